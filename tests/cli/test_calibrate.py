"""`nnasync calibrate`: networks, figures, and what differs from them."""

from __future__ import annotations

import functools
import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import asdict

from nnasync import ModelBuilder, Net, save
from nnasync._core.compilation import RELAXED, read_calibration
from nnasync._core.drivers import built_in, is_installed
from nnasync.cli import calibrate, main
from nnasync.cli.calibrate import Measurement, deviations, figures_of
from nnasync.cli.reference_networks import ReferenceNetwork, figure_of, reference_networks
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Model, OperandType, OperationType, PerformanceInfo

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


@functools.cache
def quick() -> dict[ReferenceNetwork, Model]:
    """The small networks, built once."""
    return {network: network.build() for network in reference_networks(quick=True)}


@pytest.mark.parametrize("network", quick(), ids=lambda each: each.name)
def test_networks_are_what_they_are_called(network: ReferenceNetwork) -> None:
    model = quick()[network]
    types = {operand.type for operand in model.main.operands}
    assert model.relax_computation_float32_to_float16 == (network.figure == RELAXED)
    wanted = "TENSOR_FLOAT32" if network.figure == RELAXED else network.figure
    assert OperandType[wanted] in types
    assert figure_of(model) == network.figure
    kinds = [operation.type for operation in model.main.operations]
    if "v1" in network.name:
        assert kinds.count(OperationType.DEPTHWISE_CONV_2D) == 13
    elif "v2" in network.name:
        assert kinds.count(OperationType.DEPTHWISE_CONV_2D) == 17
        assert kinds.count(OperationType.ADD) == 10
    elif "LSTM" in network.name or "phones" in network.name:
        assert kinds.count(OperationType.LSTM) == len(model.state) // 2 > 0


def test_the_suite_s_networks_are_among_them() -> None:
    names = {network.name: network.figure for network in reference_networks()}
    assert names["phones, float"] == names["words, float"] == "TENSOR_FLOAT32"
    assert names["digits, relaxed"] == names["digits_large, relaxed"] == RELAXED
    assert names["detector, int8"] == "TENSOR_QUANT8_ASYMM_SIGNED"
    assert "detector, relaxed" not in names


@pytest.mark.parametrize("name", ["litert-cpu", "openvino-cpu", "onnxruntime-cpu"])
def test_a_network_tells_each_figure_that_an_engine_states(name: str) -> None:
    """But of types that only whole ONNX files have: 16-bit quantized tensors."""
    if not is_installed(name):
        pytest.skip(f"{name} is not installed")
    engine = built_in(name)
    taken = {network: all(engine.supported_operations(model)) for network, model in quick().items()}
    told = {network.figure for network, is_taken in taken.items() if is_taken}
    stated = {entry.type.name for entry in engine.capabilities.operand_performance}
    of_files = {"TENSOR_QUANT16_SYMM", "TENSOR_QUANT16_ASYMM"} & stated
    assert told == (stated - of_files) | {RELAXED}


def test_files_and_folders_are_measured_too(tmp_path: Path) -> None:
    network = reference_networks(quick=True)[0].build()
    save(network, tmp_path / "b.nnm")
    (tmp_path / "notes.txt").write_text("none")
    found = reference_networks([tmp_path, tmp_path / "b.nnm"], quick=True)
    added = found[len(reference_networks(quick=True)) :]
    assert [each.name for each in added] == ["b.nnm, float"] * 2
    assert added[0].build().main == network.main


def test_a_folder_without_networks_and_inputs_without_a_shape(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"has no networks: no \.nnm, \.onnx, \.tflite"):
        reference_networks([tmp_path])
    builder = ModelBuilder("open")
    x = builder.input("x", (0, 2))
    builder.output("y", builder.relu(x))
    save(builder.build(), tmp_path / "open.nnm")
    with pytest.raises(InvalidArgument, match=r"open\.nnm has inputs whose shape is not fixed"):
        reference_networks([tmp_path])


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


@pytest.fixture
def quick_null(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is run, and what is measured of it is that null is four times as fast as the reference.

    For half of the processor time; what a busy machine has it measure, nobody knows.
    """
    measured = calibrate._one

    async def told(net: Net, inputs: Sequence[Array]) -> tuple[float, float, float | None]:
        time_s, cpu_s, energy_j = await measured(net, inputs)
        assert time_s > 0
        assert cpu_s > 0
        assert energy_j is None or energy_j >= 0
        is_null = net.report().partitions[0].device == "null"
        return (0.25, 0.5, None) if is_null else (1.0, 1.0, None)

    monkeypatch.setattr(calibrate, "_one", told)


@pytest.mark.usefixtures("quick_null")
def test_figures_are_kept_and_reported(
    state_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "--quick", "--device", "null", "--json"]) == 0
    told = capsys.readouterr()
    assert "19 of 19" in told.err
    names = {network.figure for network in reference_networks(quick=True)}
    figure = PerformanceInfo(0.25, 0.5)
    assert json.loads(told.out)["figures"] == {"null": dict.fromkeys(names, asdict(figure))}
    assert read_calibration(state_folder)["null"] == dict.fromkeys(names, figure)


@pytest.mark.usefixtures("quick_null")
def test_a_check_keeps_nothing_and_flags(
    state_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "--quick", "--device", "null", "--check"]) == 1
    assert "off by more than 2: null reports exec_time 1 " in capsys.readouterr().out
    assert read_calibration(state_folder) == {}


def test_what_was_measured_when_it_is_ended_is_told_and_not_kept(
    state_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_at_third(text: str) -> None:
        if text.startswith("3 of"):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(calibrate, "_say", end_at_third)
    assert main(["calibrate", "--quick", "--device", "null"]) == 143
    assert "null " in capsys.readouterr().out
    assert read_calibration(state_folder) == {}


def test_an_unknown_device_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--device", "unheard-of"]) == 1
    assert "unheard-of" in capsys.readouterr().err


def test_the_reference_alone_has_nothing_to_be_compared_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["calibrate", "--quick", "--device", REFERENCE]) == 1
    assert "no device to be measured beside nnasync-reference" in capsys.readouterr().err
