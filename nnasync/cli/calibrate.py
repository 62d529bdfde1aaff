"""`nnasync calibrate`: measure the devices, and keep the figures that they report from then on."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnasync import CompileOptions, Net, Options, Runtime, open_runtime, run
from nnasync.cli.argument_types import add_value_limit
from nnasync.cli.interruption import interruptible
from nnasync.cli.reference_networks import ReferenceNetwork, reference_networks
from nnasync.cli.text import HelpFormatter, json_text, table
from nnasync.devices import REFERENCE, figures_in, keep_figures
from nnasync.errors import DeviceError, InvalidArgument, NNError, Refused
from nnasync.hal import Array, ExecutionPreference, Model, PerformanceInfo, Struct

_EXAMPLES = """examples:
  nnasync calibrate
  nnasync calibrate --device litert-cpu
  nnasync calibrate mobilenet_v1_1.0_224_quant.tflite tts_float.tflite
  nnasync calibrate --check
"""
_FLAGGED = 2.0
_MIN_ROUNDS, _MAX_ROUNDS = 3, 30
_BUDGET_S = 0.5
_RAPL = Path("/sys/class/powercap")


class Measurement(Struct, frozen=True):
    """What one run of a network takes on a device, in seconds, and in joules where known."""

    device: str
    network: str
    figure: str
    time_s: float
    cpu_s: float
    energy_j: float | None = None


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "calibrate",
        help="measure the performance figures of the devices",
        description="Run networks on each installed device, and keep exec_time and power_usage by "
        "operand type, as ratios to the reference: those that come with nnasync (speech, words, "
        "digits, boxes), MobileNet v1 and v2 and a text LSTM with random weights (float, relaxed "
        "and quantized), single operations for the types that no network has most of, and the "
        "networks of files that are named. The devices report these figures from then on. Power "
        "is energy where the machine tells it, else processor time.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "files", type=Path, nargs="*", metavar="MODEL", help="a network more, or a folder of some"
    )
    parser.add_argument(
        "--device", action="append", metavar="NAME", help="only this device; may be repeated"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="keep nothing; compare with what the devices report, and exit with 1 where that is "
        "off by more than 2",
    )
    parser.add_argument("--quick", action="store_true", help="small networks, rougher figures")
    add_value_limit(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    names = None if arguments.device is None else _without_reference(arguments.device)
    networks = reference_networks(
        arguments.files, quick=arguments.quick, value_limit_bytes=arguments.value_limit_bytes
    )
    measurements: list[Measurement] = []
    ended: int = run(_measure_until_ended, names, networks, measurements)
    figures = figures_of(measurements)
    if ended:
        _print(figures, [], as_json=arguments.json)
        _say("ended early: nothing is kept")
        return ended
    if arguments.check:
        reported: dict[str, dict[str, PerformanceInfo]] = run(_reported, figures)
        found = deviations(figures, reported)
        _print(figures, found, as_json=arguments.json)
        return 1 if found else 0
    folder = keep_figures(figures)
    _print(figures, [], as_json=arguments.json)
    _say(f"kept in {folder}")
    return 0


def _without_reference(names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name != REFERENCE]


# -- measuring


async def _measure_until_ended(
    names: Sequence[str] | None,
    networks: Sequence[ReferenceNetwork],
    found: list[Measurement],
) -> int:
    """Measures; returns the exit code of a signal that ended it, else 0."""
    async with interruptible() as interruption:
        await _measure_all(names, networks, found)
    return interruption.exit_code


async def _measure_all(
    names: Sequence[str] | None,
    networks: Sequence[ReferenceNetwork],
    found: list[Measurement],
) -> None:
    """Add to `found` each network on each of these devices, or on all that there are."""
    options = Options(competition_budget_ms=50)
    devices = None if names is None else [*names, REFERENCE]
    async with open_runtime(devices=devices, options=options) as runtime:
        names = _without_reference([device.name for device in runtime.devices])
        if not names:
            raise InvalidArgument(
                f"there is no device to be measured beside {REFERENCE}, whose figures are 1; "
                "`nnasync devices` says what is missing"
            )
        for number, network in enumerate(networks):
            _say(f"{number + 1} of {len(networks)}: {network.name}")
            model = network.build()
            nets = await _compiled(runtime, model, [REFERENCE, *names])
            for name, (time_s, cpu_s, energy_j) in (await _measured(nets)).items():
                measurement = Measurement(
                    name, network.name, network.figure, time_s, cpu_s, energy_j
                )
                _say(f"  {name}: {1000 * time_s:.3g} ms")
                found.append(measurement)
            for net in nets.values():
                await net.close()


async def _compiled(runtime: Runtime, model: Model, names: Sequence[str]) -> dict[str, Net]:
    """The network on each device that takes it, on one core."""
    nets: dict[str, Net] = {}
    for name in names:
        try:
            nets[name] = await runtime.compile(
                model,
                devices=[name],
                preference=ExecutionPreference.SUSTAINED_SPEED,
                options=CompileOptions(wait="best"),
            )
        except (DeviceError, Refused) as error:
            _say(f"  {name}: {_short(error)}")
    return nets


async def _measured(nets: Mapping[str, Net]) -> dict[str, tuple[float, float, float | None]]:
    """Time, processor time and energy of a run, in turns; without those that fail."""
    samples: dict[str, list[tuple[float, float, float | None]]] = {name: [] for name in nets}
    inputs = {name: _inputs(net) for name, net in nets.items()}
    began_s = time.monotonic()
    for number in range(_MAX_ROUNDS):
        for name, net in nets.items():
            if name not in samples:
                continue
            try:
                await net(*inputs[name])
                samples[name].append(await _one(net, inputs[name]))
            except (DeviceError, Refused) as error:
                _say(f"  {name}: {_short(error)}")
                del samples[name]
        if number + 1 >= _MIN_ROUNDS and time.monotonic() - began_s > _BUDGET_S * len(nets):
            break
    return {name: _typical(taken) for name, taken in samples.items()}


async def _one(net: Net, inputs: Sequence[Array]) -> tuple[float, float, float | None]:
    before_j, cpu_began_s = _energy_j(), time.process_time()
    _, timing = await net.measured(*inputs)
    cpu_s, after_j = time.process_time() - cpu_began_s, _energy_j()
    energy_j = None if before_j is None or after_j is None else after_j - before_j
    return timing.time_on_device_ns / 1e9, cpu_s, energy_j


def _typical(
    samples: Sequence[tuple[float, float, float | None]],
) -> tuple[float, float, float | None]:
    energies = [energy for _, _, energy in samples if energy is not None and energy > 0]
    return (
        # Whatever else the machine does only adds to the time.
        min(each[0] for each in samples),
        statistics.median(each[1] for each in samples),
        # The counters only move once a millisecond, so the mean says more than the median.
        statistics.fmean(energies) if energies else None,
    )


def _energy_j() -> float | None:
    """Returns the energy that the processor packages have used in joules; None if unknown."""
    total = 0.0
    try:
        for package in sorted(_RAPL.glob("intel-rapl:?")):
            total += int((package / "energy_uj").read_text()) / 1e6
    except (OSError, ValueError):
        return None
    return total or None


def _inputs(net: Net) -> list[Array]:
    random = np.random.default_rng(0)
    return [random.integers(0, 100, port.shape).astype(port.dtype) for port in net.inputs]


# -- figures


def figures_of(measurements: Sequence[Measurement]) -> dict[str, dict[str, PerformanceInfo]]:
    """Returns geometric means of the ratios to the reference, by device and operand type."""
    reference = {each.network: each for each in measurements if each.device == REFERENCE}
    ratios: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for each in measurements:
        base = reference.get(each.network)
        if each.device == REFERENCE or base is None:
            continue
        ratio = (_ratio(each.time_s, base.time_s), _power(each, base))
        ratios.setdefault(each.device, {}).setdefault(each.figure, []).append(ratio)
    return {
        device: {
            figure: PerformanceInfo(
                round(statistics.geometric_mean(ratio[0] for ratio in taken), 4),
                round(statistics.geometric_mean(ratio[1] for ratio in taken), 4),
            )
            for figure, taken in by_figure.items()
        }
        for device, by_figure in ratios.items()
    }


def deviations(
    fresh: Mapping[str, Mapping[str, PerformanceInfo]],
    reported: Mapping[str, Mapping[str, PerformanceInfo]],
) -> list[str]:
    """Returns the reported figures that differ by more than a factor of 2 from fresh ones."""
    found = []
    for device, figures in fresh.items():
        for figure, info in figures.items():
            told = reported.get(device, {}).get(figure, PerformanceInfo())
            for kind in ("exec_time", "power_usage"):
                measured, claimed = getattr(info, kind), getattr(told, kind)
                if not 1 / _FLAGGED <= claimed / measured <= _FLAGGED:
                    found.append(
                        f"{device} reports {kind} {claimed:.3g} for {figure}, "
                        f"measured {measured:.3g}"
                    )
    return found


async def _reported(
    figures: Mapping[str, Mapping[str, PerformanceInfo]],
) -> dict[str, dict[str, PerformanceInfo]]:
    """Returns the figures that the devices report for the same types."""
    async with open_runtime(devices=[*figures, REFERENCE]) as runtime:
        return {
            name: figures_in(await runtime.device(name).get_capabilities(), measured)
            for name, measured in figures.items()
        }


def _ratio(value: float, base: float) -> float:
    return max(value, 1e-9) / max(base, 1e-9)


def _power(each: Measurement, base: Measurement) -> float:
    if each.energy_j is not None and base.energy_j is not None:
        return _ratio(each.energy_j, base.energy_j)
    return _ratio(each.cpu_s, base.cpu_s)


# -- telling


def _print(
    figures: Mapping[str, Mapping[str, PerformanceInfo]], found: Sequence[str], *, as_json: bool
) -> None:
    if as_json:
        data = {"figures": figures, "deviations": found}
        print(json_text(data))
        return
    rows = [
        (device, figure, f"{info.exec_time:.3g}", f"{info.power_usage:.3g}")
        for device, by_figure in figures.items()
        for figure, info in by_figure.items()
    ]
    print(table(("device", "operands", "time", "power"), rows))
    for line in found:
        print(f"off by more than {_FLAGGED:g}: {line}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _short(error: NNError) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 100 else f"{text[:97]}..."
