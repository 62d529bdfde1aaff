"""Files kept whole take and give numbers that the HAL has not, on every way through the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync.dump.model_dump import model_text
from tests.importers.onnx.files import BOOL, DOUBLE, INT64, message, node, written

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("Types are the same on every loop.")]

THIRDS = np.array([[1 / 3, -2 / 3]])
LARGE = np.array([[2**40, -1]], np.int64)


def file(folder: Path) -> Path:
    """Both inputs doubled, by operators of which none is translated for a float64."""
    graph = message(
        [
            node("Add", ["x", "x"], ["y"]),
            node("Add", ["n", "n"], ["m"]),
            node("NonZero", ["n"], ["places"]),
        ],
        [("x", DOUBLE, (1, 2)), ("n", INT64, (1, 2))],
        [("y", DOUBLE, (1, 2)), ("m", INT64, (1, 2)), ("places", INT64, (2, "k"))],
    )
    return written(folder, graph)


def check(results: Any) -> None:
    doubled, integers, places = results
    assert doubled.dtype == np.float64
    assert doubled.tolist() == (2 * THIRDS).tolist()
    assert integers.dtype == places.dtype == np.int64
    assert integers.tolist() == (2 * LARGE).tolist()
    assert places.tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize("isolate", [(), ("onnxruntime-cpu",)], ids=["here", "isolated"])
async def test_calls_and_bursts(tmp_path: Path, isolate: tuple[str, ...]) -> None:
    runtime = nn.open_runtime(devices=["onnxruntime-cpu"], isolate=isolate)
    async with runtime, runtime.compile(file(tmp_path)) as net:
        assert [port.dtype for port in net.inputs] == [np.float64, np.int64]
        check(await net(THIRDS, LARGE))
        async with net.burst() as burst:
            check(await burst(THIRDS, LARGE))


async def test_what_is_saved_and_kept_in_a_cache_has_the_types(tmp_path: Path) -> None:
    model = nn.load(file(tmp_path))
    nn.save(model, tmp_path / "net.nnm")
    for _ in range(2):
        async with nn.open_runtime(devices=["onnxruntime-cpu"]) as runtime:
            path, cache = tmp_path / "net.nnm", tmp_path / "cache"
            async with runtime.compile(path, cache_dir=cache) as net:
                check(await net(THIRDS, LARGE))


def test_they_are_described(tmp_path: Path) -> None:
    assert "org.nnasync.onnx.FLOAT64" in model_text(nn.load(file(tmp_path)))
    found = nn.describe(file(tmp_path))
    assert [port.type for port in (*found.inputs, *found.outputs)] == [
        *("float64", "int64"),
        *("float64", "int64", "int64"),
    ]


async def test_integers_are_taken_in_any_width_that_holds_them(tmp_path: Path) -> None:
    graph = message(
        [node("Equal", ["n", "n"], ["y"])], [("n", INT64, (1, 2))], [("y", BOOL, (1, 2))]
    )
    runtime = nn.open_runtime(devices=["nnasync-reference"])
    async with runtime, runtime.compile(written(tmp_path, graph)) as net:
        assert net.inputs[0].dtype == np.int32
        assert (await net(np.array([[5, 6]]))).all()
        with pytest.raises(nn.InvalidArgument, match="int64, should be int32"):
            await net(LARGE)
