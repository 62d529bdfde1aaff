"""A device that a program serves, and others connect to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

import nnasync as nn
from nnasync.devices import NullEngine
from tests.rigs import ROW, double, doubler, runtime

pytestmark = pytest.mark.anyio


async def test_what_programs_serve_is_what_they_connect_to(tmp_path: Path) -> None:
    path = tmp_path / "run" / "null.socket"
    async with runtime(NullEngine(compute=double)) as rt, anyio.create_task_group() as tasks:
        await tasks.start(nn.serve, rt.device("null"), path)
        async with runtime(await nn.connect(path)) as client:
            net = await client.compile(doubler())
            assert (await net(ROW) == 2 * ROW).all()
        tasks.cancel_scope.cancel()
    assert not path.exists()


async def test_instruments_hear_the_name_that_a_device_is_called_by(tmp_path: Path) -> None:
    path = tmp_path / "run" / "null.socket"
    async with runtime(NullEngine(compute=double)) as rt, anyio.create_task_group() as tasks:
        await tasks.start(nn.serve, rt.device("null"), path)
        device: Any = await nn.connect(path, called="camera room")
        assert device.name == "camera room"
        assert device._supervisor.traces.device == "camera room"
        await device.close()
        tasks.cancel_scope.cancel()


async def test_a_path_that_cannot_be_a_socket_is_refused() -> None:
    async with runtime(NullEngine(compute=double)) as rt:
        with pytest.raises(nn.InvalidArgument, match="at most"):
            await nn.serve(rt.device("null"), "/tmp/" + 200 * "x")
