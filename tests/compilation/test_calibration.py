"""Measured figures: kept, read with suspicion, and reported by the devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import nnasync as nn
from nnasync._core.compilation.calibration import (
    RELAXED,
    calibrated,
    figures_in,
    read_calibration,
    write_calibration,
)
from nnasync._core.drivers.null import NullEngine
from nnasync.hal import OperandType, PerformanceInfo, lookup

FIGURES = {
    "null": {
        "TENSOR_FLOAT32": PerformanceInfo(0.25, 0.5),
        "TENSOR_QUANT8_ASYMM": PerformanceInfo(0.125, 0.25),
        RELAXED: PerformanceInfo(0.2, 0.3),
    }
}


def test_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_calibration(tmp_path) == {}
    assert write_calibration(tmp_path, FIGURES)
    assert read_calibration(tmp_path) == FIGURES


@pytest.mark.parametrize(
    "change",
    [
        b"",
        b"[]",
        b"{" * 1000,
        {"machine": "another"},
        {"format": 2},
        {"devices": {"null": {"NO_SUCH_TYPE": {"exec_time": 1.0, "power_usage": 1.0}}}},
        {"devices": {"null": {"SUBGRAPH": {"exec_time": 1.0, "power_usage": 1.0}}}},
        {"devices": {"null": {"TENSOR_FLOAT32": {"exec_time": 0, "power_usage": 1.0}}}},
        {"devices": {"null": {"TENSOR_FLOAT32": {"exec_time": -1.0, "power_usage": 1.0}}}},
        {"devices": {"null": {"TENSOR_FLOAT32": {"exec_time": 1e300, "power_usage": 1.0}}}},
        {"devices": {"null": {"TENSOR_FLOAT32": {"exec_time": 1.0}}}},
        {"devices": {"null": {"TENSOR_FLOAT32": {"exec_time": "1", "power_usage": 1.0}}}},
        {"devices": [1]},
    ],
)
def test_figures_that_make_no_sense_are_ignored(tmp_path: Path, change: object) -> None:
    write_calibration(tmp_path, FIGURES)
    (path,) = tmp_path.glob("calibration-*.json")
    if isinstance(change, dict):
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    elif isinstance(change, bytes):
        path.write_bytes(change)
    assert read_calibration(tmp_path) == {}


def test_figures_replace_those_of_their_types() -> None:
    before = NullEngine().capabilities
    after = calibrated(before, FIGURES["null"])
    table = after.operand_performance
    assert [entry.type for entry in table] == sorted(entry.type for entry in table)
    assert lookup(table, OperandType.TENSOR_FLOAT32) == PerformanceInfo(0.25, 0.5)
    assert lookup(table, OperandType.FLOAT32) == lookup(
        before.operand_performance, OperandType.FLOAT32
    )
    assert lookup(table, OperandType.TENSOR_INT32) == PerformanceInfo(1, 1)
    assert after.relaxed_float32_to_float16_performance_tensor == PerformanceInfo(0.2, 0.3)
    assert (
        after.relaxed_float32_to_float16_performance_scalar
        == before.relaxed_float32_to_float16_performance_scalar
    )
    assert after.if_performance == before.if_performance
    assert figures_in(after, FIGURES["null"]) == FIGURES["null"]


def test_what_was_not_measured_stays() -> None:
    before = NullEngine().capabilities
    assert calibrated(before, {}) == before
    only = {"TENSOR_FLOAT16": PerformanceInfo(0.5, 0.5)}
    after = calibrated(before, only)
    assert after.relaxed_float32_to_float16_performance_tensor == PerformanceInfo(1, 1)


@pytest.mark.anyio
async def test_devices_report_what_was_measured(state_folder: Path) -> None:
    reference = {"nnasync-reference": {"TENSOR_FLOAT32": PerformanceInfo(0.5, 0.5)}}
    write_calibration(state_folder, FIGURES | reference)
    for _ in range(2):
        async with nn.open_runtime(devices=["null", "nnasync-reference"]) as rt:
            told = await rt.device("null").get_capabilities()
            assert figures_in(told, FIGURES["null"]) == FIGURES["null"]
            measure = await rt.device("nnasync-reference").get_capabilities()
            one = lookup(measure.operand_performance, OperandType.TENSOR_FLOAT32)
            assert one == PerformanceInfo(1, 1), "the reference is the measure"
    async with nn.open_runtime(devices=[NullEngine()]) as rt:
        own = await rt.device("null").get_capabilities()
        assert own == NullEngine().capabilities, "an engine of the application's own"


@pytest.mark.anyio
async def test_the_folder_can_be_an_option(tmp_path: Path) -> None:
    write_calibration(tmp_path / "mine", FIGURES)
    options = nn.Options(state_dir=tmp_path / "mine")
    async with nn.open_runtime(devices=["null"], options=options) as rt:
        told = await rt.device("null").get_capabilities()
        assert figures_in(told, FIGURES["null"]) == FIGURES["null"]
