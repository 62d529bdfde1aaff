"""`nnasync calibrate`: networks, figures, and what differs from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nnasync._core.compilation import RELAXED, read_calibration
from nnasync.cli import main
from nnasync.cli.calibrate import Measurement, deviations, figures_of
from nnasync.cli.reference_networks import reference_networks
from nnasync.hal import OperandType, OperationType, PerformanceInfo

REFERENCE = "nnasync-reference"


def measurement(
    device: str, time_s: float, cpu_s: float, *, network: str = "n", energy_j: float | None = None
) -> Measurement:
    return Measurement(device, network, "TENSOR_FLOAT32", time_s, cpu_s, energy_j)


def test_figures_are_ratios_to_the_reference() -> None:
    found = figures_of([measurement(REFERENCE, 0.2, 0.1), measurement("d", 0.05, 0.2)])
    assert found == {"d": {"TENSOR_FLOAT32": PerformanceInfo(0.25, 2.0)}}


def test_figures_of_several_networks_are_their_geometric_mean() -> None:
    found = figures_of(
        [
            measurement(REFERENCE, 1, 1),
            measurement("d", 0.5, 0.5),
            measurement(REFERENCE, 1, 1, network="m"),
            measurement("d", 0.125, 2, network="m"),
        ]
    )
    assert found["d"]["TENSOR_FLOAT32"] == PerformanceInfo(0.25, 1.0)


def test_power_is_energy_where_both_are_known() -> None:
    both = [measurement(REFERENCE, 1, 1, energy_j=8), measurement("d", 1, 1, energy_j=2)]
    assert figures_of(both)["d"]["TENSOR_FLOAT32"].power_usage == 0.25
    one = [measurement(REFERENCE, 1, 1), measurement("d", 1, 1, energy_j=2)]
    assert figures_of(one)["d"]["TENSOR_FLOAT32"].power_usage == 1


def test_a_network_that_the_reference_did_not_run_tells_nothing() -> None:
    assert figures_of([measurement("d", 1, 1)]) == {}


@pytest.mark.parametrize(
    ("told", "flagged"),
    [
        (PerformanceInfo(0.5, 0.5), []),
        (PerformanceInfo(1.0, 0.25), []),
        (PerformanceInfo(1.1, 0.5), ["exec_time"]),
        (PerformanceInfo(0.24, 0.5), ["exec_time"]),
        (PerformanceInfo(0.5, 5), ["power_usage"]),
        (PerformanceInfo(), ["exec_time", "power_usage"]),
    ],
)
def test_what_is_off_by_more_than_two_is_flagged(told: PerformanceInfo, flagged: list[str]) -> None:
    fresh = {"d": {"TENSOR_FLOAT32": PerformanceInfo(0.5, 0.5)}}
    lines = deviations(fresh, {"d": {"TENSOR_FLOAT32": told}})
    assert [word for line in lines for word in ("exec_time", "power_usage") if word in line] == (
        flagged
    )


def test_a_device_that_reports_nothing_is_flagged() -> None:
    assert len(deviations({"d": {"TENSOR_FLOAT32": PerformanceInfo(1, 1)}}, {})) == 2


# -- the networks


@pytest.mark.parametrize("network", reference_networks(quick=True), ids=lambda each: each.name)
def test_networks_are_what_they_are_called(network: object) -> None:
    from nnasync.cli.reference_networks import ReferenceNetwork

    assert isinstance(network, ReferenceNetwork)
    model = network.build()
    types = {operand.type for operand in model.main.operands}
    assert model.relax_computation_float32_to_float16 == (network.figure == RELAXED)
    wanted = "TENSOR_FLOAT32" if network.figure == RELAXED else network.figure
    assert OperandType[wanted] in types
    kinds = [operation.type for operation in model.main.operations]
    if "v1" in network.name:
        assert kinds.count(OperationType.DEPTHWISE_CONV_2D) == 13
    elif "v2" in network.name:
        assert kinds.count(OperationType.DEPTHWISE_CONV_2D) == 17
        assert kinds.count(OperationType.ADD) == 10
    else:
        assert kinds.count(OperationType.LSTM) == len(model.state) // 2


def test_full_networks_have_the_weights_of_the_real_ones() -> None:
    sizes = {
        network.name: len(network.build().operand_values)
        + sum(pool.size for pool in network.build().pools)
        for network in reference_networks()
        if network.name in ("MobileNet v1, float", "MobileNet v2, float")
    }
    assert 4.2e6 < sizes["MobileNet v1, float"] / 4 < 4.4e6
    assert 3.4e6 < sizes["MobileNet v2, float"] / 4 < 3.7e6


# -- the command


def test_figures_are_kept_and_reported(
    state_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "--quick", "--device", "null", "--json"]) == 0
    told = capsys.readouterr()
    assert "12 of 12" in told.err
    figures = json.loads(told.out)["figures"]["null"]
    assert set(figures) == {
        "TENSOR_FLOAT32",
        RELAXED,
        "TENSOR_QUANT8_ASYMM",
        "TENSOR_QUANT8_ASYMM_SIGNED",
    }
    # It computes nothing, so it is many times as fast as the reference.
    assert all(0 < info["exec_time"] < 0.5 for info in figures.values())
    kept = read_calibration(state_folder)["null"]
    assert {name: info.exec_time for name, info in kept.items()} == {
        name: info["exec_time"] for name, info in figures.items()
    }


def test_a_check_keeps_nothing_and_flags(
    state_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "--quick", "--device", "null", "--check"]) == 1
    assert "off by more than 2: null reports exec_time 1 " in capsys.readouterr().out
    assert read_calibration(state_folder) == {}


def test_an_unknown_device_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--device", "unheard-of"]) == 1
    assert "unheard-of" in capsys.readouterr().err
