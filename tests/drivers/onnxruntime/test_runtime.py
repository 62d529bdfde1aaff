"""ONNX files get what every model gets: awaiting, bursts, fences, deadlines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.importers.onnx import wrap
from nnasync.hal import ErrorStatus
from tests.importers.onnx.files import FLOAT, INT64, message, node, written

pytestmark = pytest.mark.anyio

FIRST_USE = """
import os
from nnasync._core.drivers.onnxruntime.providers import package

def files():
    return {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}

before = files()
package()
print(*files() - before)
"""
DEVICES = ["nnasync-reference", "onnxruntime-cpu"]
X = np.array([[1, 2], [3, 4]], np.float32)


def squared(folder: Path, shape: Sequence[int | str] = (2, 2)) -> nn.Model:
    """x times x, as a whole file."""
    graph = message(
        [node("Einsum", ["x", "x"], ["y"], equation="ij,jk->ik")],
        [("x", FLOAT, shape)],
        [("y", FLOAT, shape)],
    )
    return wrap(written(folder, graph))


async def test_on_every_path(tmp_path: Path) -> None:
    async with nn.open_runtime(devices=DEVICES) as runtime:
        net = await runtime.compile(squared(tmp_path), priority=nn.Priority.HIGH)
        assert net.report().partitions[0].device == "onnxruntime-cpu"
        assert (await net(X, deadline=nn.within(s=60)) == X @ X).all()
        async with net.burst() as burst:
            assert (await burst(X) == X @ X).all()
        first = await net.launch(X)
        second = await net.launch(first.outputs, wait_for=[first.fence])
        await second.fence
        assert (np.asarray(second.outputs[0]) == X @ X @ X @ X).all()
        assert (await second.info()).status == ErrorStatus.NONE


async def test_open_dimensions(tmp_path: Path) -> None:
    async with nn.open_runtime(devices=DEVICES) as runtime:
        net = await runtime.compile(squared(tmp_path, ("n", "n")))
        for size in (2, 3):
            x = np.eye(size, dtype=np.float32) * 2
            assert (await net(x) == x @ x).all()


async def test_an_open_output_of_another_rank_than_stated(tmp_path: Path) -> None:
    shape = ("shape", INT64, (3,))
    graph = message(
        [node("Reshape", ["x", "shape"], ["y"])],
        [("x", FLOAT, (2, 2)), shape],
        [("y", FLOAT, (1, "n"))],
    )
    async with nn.open_runtime(devices=DEVICES) as runtime:
        net = await runtime.compile(wrap(written(tmp_path, graph)))
        result = await net(X, np.array([4, 1, 1], np.int64))
        assert result.tolist() == X.reshape(4, 1, 1).tolist()


async def test_the_reference_alone_does_not_take_it(tmp_path: Path) -> None:
    async with nn.open_runtime(devices=["nnasync-reference"]) as runtime:
        with pytest.raises(nn.NNError, match="no device"):
            await runtime.compile(squared(tmp_path))


async def test_a_deadline_that_has_passed(tmp_path: Path) -> None:
    async with nn.open_runtime(devices=DEVICES) as runtime:
        net = await runtime.compile(squared(tmp_path))
        with pytest.raises(nn.MissedDeadline):
            await net(X, deadline=nn.within(ms=0))


def test_it_reports_to_nobody(tmp_path: Path) -> None:
    """By itself it keeps a database at home, and a thread that opens sockets every few seconds."""
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    del environment["ORT_DISABLE_TELEMETRY"]
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []
    assert list(tmp_path.iterdir()) == []
