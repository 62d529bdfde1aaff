"""A server of the doubler and a plain connection to it, on which a test writes what it likes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec

import nnasync as nn
from nnasync.serving import Limits, ModelServer, ServeOptions
from nnasync.serving.http_server import Place, listening
from tests.serving.rig import INFER, body, serving

HERE = nn.Options(cores=1, inline_budget_us=1e6, stall_budget_us=1e6)
"""Small networks run on the loop, however slow this machine is."""


@asynccontextmanager
async def connected(
    *devices: Any, options: nn.Options = HERE, serve: ServeOptions | None = None, **limits: Any
) -> AsyncIterator[tuple[ModelServer, Any]]:
    """A server of the doubler, and a connection to it."""
    serve = serve or ServeOptions(poll_s=0, limits=msgspec.structs.replace(Limits(), **limits))
    async with (
        serving(*devices, runtime_options=options, options=serve) as server,
        listening(server, Place(port=0)) as address,
        await anyio.connect_tcp("127.0.0.1", int(address.rpartition(":")[2])) as stream,
    ):
        yield server, stream


def post(content: bytes | None = None, path: str = INFER, **headers: str) -> bytes:
    """A whole request."""
    content = json.dumps(body()).encode() if content is None else content
    fields = {"host": "x", "content-length": str(len(content)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + content


async def answers(stream: Any, count: int) -> list[tuple[int, dict[str, str], bytes]]:
    """The next answers: their status, header and body."""
    found: list[tuple[int, dict[str, str], bytes]] = []
    received = b""
    while len(found) < count:
        head, end, rest = received.partition(b"\r\n\r\n")
        if end:
            first, *lines = head.decode().split("\r\n")
            fields = dict(line.split(": ", 1) for line in lines)
            length = int(fields["content-length"])
            if len(rest) >= length:
                found.append((int(first.split()[1]), fields, rest[:length]))
                received = rest[length:]
                continue
        received += await stream.receive()
    assert not received
    return found
