"""`nnasync bench MODEL`: what each device takes for a model of the user's own."""

from __future__ import annotations

import argparse
import functools
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from nnasync import Net, Options, Runtime, load, open_runtime, run
from nnasync.cli.argument_types import add_value_limit, device, positive, positive_number
from nnasync.cli.bench.contestant import Contestant, Refusal, Setting, enter, refusal_of
from nnasync.cli.bench.figures import Figures, figures_of
from nnasync.cli.bench.pinned_lowerings import lowering_settings
from nnasync.cli.bench.rounds import run_rounds
from nnasync.cli.inputs import read_input
from nnasync.cli.interruption import interruptible
from nnasync.cli.text import HelpFormatter, json_text, milliseconds, table
from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.hal import Array, ExecutionPreference, Model

__all__ = ["add_parser"]

_EXAMPLES = """examples:
  nnasync bench model.tflite                          every installed device, and their competition
  nnasync bench model.tflite --device litert-cpu --device openvino-cpu --seconds 10
  nnasync bench model.tflite --threads 1              one core for everything
  nnasync bench model.tflite --device openvino-cpu --lowerings
  nnasync bench model.tflite --in-flight 32 --json figures.json
"""
_PREFERENCES = {
    "fast": ExecutionPreference.FAST_SINGLE_ANSWER,
    "sustained": ExecutionPreference.SUSTAINED_SPEED,
    "low-power": ExecutionPreference.LOW_POWER,
}
_TOGETHER = "all of them"
_REASON_WIDTH = 200
_HEADS = ("device", "runs on", "compile", "first", "median", "p90", "p99", "CPU per run")


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "bench",
        help="measure a model on every device",
        description="Measure a model, as `await net(x)` sees it: time to compile, the first run, "
        "median and percentiles of the later ones, and how many are done in a second with several "
        "in flight. The devices take turns. Inputs are random. Without --device there is a row for "
        "each installed device, and one for what is chosen when all of them compete.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="file of the model")
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="NAME",
        type=device,
        help="measure this device, by its name or module:factory; may be repeated (all installed "
        "ones, and their competition)",
    )
    parser.add_argument(
        "--seconds",
        type=positive_number,
        default=3.0,
        metavar="S",
        help="runs of each device last (3)",
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="cores that may be used (all)"
    )
    parser.add_argument(
        "--in-flight", type=positive, default=8, metavar="N", help="runs at once for the rate (8)"
    )
    parser.add_argument(
        "--preference", choices=list(_PREFERENCES), default="fast", help="what to prepare for: fast"
    )
    parser.add_argument(
        "--precision",
        choices=["exact", "bf16"],
        help="only bit-stable lowerings, or bfloat16 allowed (neither)",
    )
    parser.add_argument(
        "--lowerings", action="store_true", help="a row for each way that a device knows, too"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (0)")
    add_value_limit(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    return run(_run, arguments)


async def _run(arguments: argparse.Namespace) -> int:
    loaded = functools.partial(load, value_limit_bytes=arguments.value_limit_bytes)
    model = await anyio.to_thread.run_sync(loaded, arguments.model)
    options = Options() if arguments.threads is None else Options(cores=arguments.threads)
    progress = _Progress()
    entries: list[Contestant | Refusal] = []
    async with open_runtime(devices=arguments.device or None, options=options) as runtime:
        async with interruptible() as interruption:
            await _enter_all(runtime, model, arguments, progress, entries)
            await run_rounds(
                [entry for entry in entries if isinstance(entry, Contestant)],
                duration_ns=int(arguments.seconds * 1e9),
                in_flight=arguments.in_flight,
                progress=progress.turn,
            )
        progress.close()
        results = _results(entries, arguments.in_flight)
    if not any(isinstance(result, Figures) for result in results):
        if interruption.signal:
            return interruption.exit_code
        raise GeneralFailure(f"no device runs {arguments.model}: {_reasons(results)}")
    await _print_results(model, options, results, arguments)
    return interruption.exit_code


async def _values(net: Net, seed: int) -> dict[str, Array]:
    for port in net.inputs:
        if not port.is_settled:
            raise InvalidArgument(
                f"input {port.name!r} has the open shape {list(port.shape)}; fix it in the model "
                "to measure it"
            )
    return {port.name: await read_input("random", port, seed=seed) for port in net.inputs}


async def _enter_all(
    runtime: Runtime,
    model: Model,
    arguments: argparse.Namespace,
    progress: _Progress,
    entries: list[Contestant | Refusal],
) -> None:
    """Compile for each device, its lowerings if they are wanted, and all devices together."""
    preference, precision = _PREFERENCES[arguments.preference], arguments.precision

    async def values(net: Net) -> dict[str, Array]:
        return await _values(net, arguments.seed)

    async def compete(setting: Setting) -> Contestant | Refusal:
        progress.tell(f"{setting.name}: compiling")
        entries.append(await enter(runtime, model, setting, values))
        return entries[-1]

    for each in runtime.devices:
        entry = await compete(Setting(each.name, (each.name,), preference, precision))
        if arguments.lowerings and isinstance(entry, Contestant):
            report = entry.net.report()
            for setting in await lowering_settings(each, model, preference, precision, report):
                await compete(setting)
    if not arguments.device and len(runtime.devices) > 1:
        await compete(Setting(_TOGETHER, None, preference, precision))


def _results(entries: Sequence[Contestant | Refusal], in_flight: int) -> list[Figures | Refusal]:
    """Figures of whatever has run; an interruption leaves out what has not."""
    results: list[Figures | Refusal] = []
    for entry in entries:
        if isinstance(entry, Refusal):
            results.append(entry)
        elif entry.failure is not None:
            results.append(refusal_of(entry.name, entry.failure))
        elif entry.latencies_ns:
            results.append(figures_of(entry, in_flight))
    return results


def _reasons(results: Sequence[object]) -> str:
    return "; ".join(
        f"{result.name}: {result.reason}" for result in results if isinstance(result, Refusal)
    )


class _Progress:
    """Tells on standard error what is being done: on a terminal in one line, else not at all."""

    def __init__(self) -> None:
        self._lively = sys.stderr.isatty()
        self._width = 0

    def turn(self, turn: int, turns: int, name: str) -> None:
        self.tell(f"{name}: turn {turn + 1} of {turns}")

    def tell(self, line: str) -> None:
        if self._lively:
            print(f"\r{line.ljust(self._width)}", end="", file=sys.stderr, flush=True)
            self._width = len(line)

    def close(self) -> None:
        if self._lively:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)


# -- what is told


async def _print_results(
    model: Model,
    options: Options,
    results: Sequence[Figures | Refusal],
    arguments: argparse.Namespace,
) -> None:
    measured = [result for result in results if isinstance(result, Figures)]
    refused = [result for result in results if isinstance(result, Refusal)]
    if arguments.json:
        data = {
            "model": model.name,
            "cores": options.cores,
            "preference": arguments.preference,
            "devices": measured,
            "not_run": refused,
        }
        await anyio.Path(arguments.json).write_bytes(json_text(data).encode() + b"\n")
    print(_text(model, options, measured, refused, arguments.in_flight))


def _text(
    model: Model,
    options: Options,
    measured: Sequence[Figures],
    refused: Sequence[Refusal],
    in_flight: int,
) -> str:
    cores = f"{options.cores} core{'s' if options.cores > 1 else ''}"
    heads = (*_HEADS, f"per second, {in_flight} in flight", "cores busy")
    parts = [f"{model.name or 'model'} on {cores}", table(heads, [_row(one) for one in measured])]
    parts += [f"{one.name} does not run it: {_short(one.reason)}" for one in refused]
    if len(measured) > 1:
        best = min(measured, key=lambda one: one.median_ns)
        parts.append(f"fastest one at a time: {best.name} ({_duration(best.median_ns)})")
    return "\n\n".join(parts)


def _short(reason: str) -> str:
    return textwrap.shorten(reason, _REASON_WIDTH, placeholder=" ...")


def _duration(duration_ns: float) -> str:
    return f"{duration_ns / 1e3:.1f} us" if duration_ns < 1e6 else milliseconds(duration_ns)


def _row(figures: Figures) -> tuple[str, ...]:
    alone = figures.name.startswith(figures.devices)
    where = figures.lowering if alone else f"{figures.devices} {figures.lowering}"
    durations = (
        figures.compile_ns,
        figures.first_ns,
        figures.median_ns,
        figures.p90_ns,
        figures.p99_ns,
        figures.cpu_ns,
    )
    rates = (f"{figures.per_second:.0f}", f"{figures.busy_cores:.2f}")
    return (figures.name, where, *map(_duration, durations), *rates)
