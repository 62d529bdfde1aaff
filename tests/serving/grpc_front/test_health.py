"""The health of a server over gRPC: who watches it takes no place of who infers."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc", reason="the extra serve is not installed")

import anyio
import grpc

from nnasync.serving import Limits, ServeOptions
from nnasync.serving.grpc_front import open_grpc_front
from tests.rigs import GUARD_S
from tests.serving.rig import serving

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("grpc.aio runs on asyncio")]

LIVE = "/inference.GRPCInferenceService/ServerLive"
WATCH = "/grpc.health.v1.Health/Watch"


async def test_so_many_watch_and_no_more() -> None:
    options = ServeOptions(poll_s=0, api_keys={"k": "ann"}, limits=Limits(connections=8))
    with anyio.fail_after(GUARD_S):
        async with (
            serving(options=options) as server,
            open_grpc_front(server, port=0) as front,
            grpc.aio.insecure_channel(f"127.0.0.1:{front.port}") as channel,
        ):
            watch, live = channel.unary_stream(WATCH), channel.unary_unary(LIVE)
            watching = [watch(b"") for _ in range(2)]
            for each in watching:
                assert await each.read() == b"\x08\x01"
            for _ in range(8):
                with pytest.raises(grpc.aio.AioRpcError, match="watched 2 times already"):
                    await watch(b"").read()
            assert await live(b"", metadata=(("x-api-key", "k"),)) == b"\x08\x01"
            watching[0].cancel()
            while True:
                again = watch(b"")
                try:
                    assert await again.read() == b"\x08\x01"
                    break
                except grpc.aio.AioRpcError as error:
                    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
