"""Memory that the process of an isolated device may have: what asks for more fails alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync.errors import DeviceUnavailable, GeneralFailure, InvalidArgument
from tests import rigs
from tests.importers.onnx.files import FLOAT, INT64, message, node, written
from tests.importers.tflite_files import Op, T, tflite_file

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("The limit is one of another process."),
]


def onnx(folder: Path) -> Path:
    """Zeros of a shape that is an input."""
    nodes = [node("ConstantOfShape", ["s"], ["z"]), node("ReduceSum", ["z"], ["y"], keepdims=0)]
    return written(folder, message(nodes, [("s", INT64, (2,))], [("y", FLOAT, ())]))


def tflite(folder: Path) -> Path:
    """Zeros of a shape that is an input."""
    zero = T("FLOAT32", (), np.zeros((), np.float32))
    axes = T("INT32", (2,), np.arange(2, dtype=np.int32))
    tensors = [T("INT32", (2,)), zero, T("FLOAT32", (1, 1)), axes, T("FLOAT32", ())]
    ops = [Op("FILL", (0, 1), (2,), "FillOptions"), Op("SUM", (2, 3), (4,), "ReducerOptions")]
    (folder / "net.tflite").write_bytes(tflite_file(tensors, ops, [0], [4]))
    return folder / "net.tflite"


@pytest.mark.parametrize(
    ("device", "saved", "dtype"),
    [("onnxruntime-cpu", onnx, np.int64), ("litert-cpu", tflite, np.int32)],
)
async def test_a_value_that_only_a_run_makes_too_large_fails_alone(
    device: str, saved: Callable[[Path], Path], dtype: Any, tmp_path: Path
) -> None:
    options = nn.Options(cores=1, isolated_limit_bytes=2 << 30, competition_budget_ms=0)
    async with nn.open_runtime(devices=[device], isolate=[device], options=options) as rt:
        net = await rt.compile(nn.load(saved(tmp_path), form="whole"))
        small, large = np.array([2, 3], dtype), np.array([1 << 15, 1 << 15], dtype)
        pid = rt.devices[0].pid  # type: ignore[attr-defined]  # isolated ones have it
        for _ in range(2):
            assert (await net(small)).tolist() == [0]
            with pytest.raises(GeneralFailure, match="failed"):
                await net(large)
        assert rt.devices[0].pid == pid  # type: ignore[attr-defined]  # isolated ones have it


async def test_with_less_than_a_process_needs_it_does_not_begin() -> None:
    options = nn.Options(isolated_limit_bytes=1 << 20)
    with pytest.raises(DeviceUnavailable, match="status . with isolated_limit_bytes=1048576"):
        async with nn.open_runtime(
            devices=[rigs.REFERENCE], isolate=[rigs.REFERENCE], options=options
        ) as rt:
            await rt.compile(rigs.doubler())


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, 1 << 63])
def test_what_is_no_limit(limit: Any) -> None:
    with pytest.raises(InvalidArgument, match="isolated_limit_bytes"):
        nn.Options(isolated_limit_bytes=limit)
