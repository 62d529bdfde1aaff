"""`nnasync run MODEL`: arrays or a file in, results and timing out."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np

from nnasync import CompileOptions, Net, Runtime, load, now_ns, open_runtime, run, within
from nnasync.cli.argument_types import add_value_limit, device, number, positive, runtime_devices
from nnasync.cli.daemon_thread import in_daemon_thread
from nnasync.cli.inputs import read_input
from nnasync.cli.interruption import Interruption, interruptible
from nnasync.cli.text import HelpFormatter, json_text, milliseconds, table
from nnasync.errors import InvalidArgument, MissedDeadline
from nnasync.hal import Array, Model, Priority, Struct
from nnasync.tracing import Layer, Phase, Timeline, Tracer, write_trace

_EXAMPLES = """examples:
  nnasync run model.tflite                                   zeros in, timing of 10 runs
  nnasync run model.tflite --input photo.jpg                 one input: its name may be left out
  nnasync run model.tflite --input image=photo.png --input gain=gain.npy
  nnasync run speech.tflite --input random --repeat 1000 --priority high --deadline-ms 5
  nnasync run model.tflite --input photo.jpg --output result.npz --json
  nnasync run model.tflite --repeat 100 --trace trace.json   open it at https://ui.perfetto.dev
  nnasync run model.tflite --isolate litert-cpu --trace trace.json   of both processes
"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "run",
        help="run a model",
        description="Run a .tflite, .onnx or .nnm model. The first run is reported on its own; "
        "median and percentiles are those of the later ones.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="file of the model")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]FILE|random|zeros",
        help="value of an input: .npy, .npz, raw .bin, a picture, sound, or random or zeros "
        "(default: zeros)",
    )
    _add_devices(parser.add_mutually_exclusive_group())
    parser.add_argument(
        "--priority",
        choices=[p.name.lower() for p in Priority],
        default="medium",
        help="of the runs (medium)",
    )
    parser.add_argument(
        "--deadline-ms",
        type=_milliseconds,
        metavar="MS",
        help="deadline of each run, from its call",
    )
    parser.add_argument(
        "--repeat", type=positive, default=10, metavar="N", help="runs after the first (10)"
    )
    parser.add_argument(
        "--output", metavar="DIR|FILE.npz", help="save the outputs of the last run that ended"
    )
    _add_inputs(parser)
    parser.add_argument(
        "--trace", metavar="FILE", help="write a trace of it all, which Perfetto shows"
    )
    parser.add_argument(
        "--cache-dir", metavar="DIR", help="keep what was compiled there, and load it the next time"
    )
    add_value_limit(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_command)


def _add_inputs(parser: Any) -> None:
    parser.add_argument(
        "--range",
        nargs=2,
        type=float,
        default=(0.0, 1.0),
        metavar=("LOW", "HIGH"),
        help="values of black and white of a picture for float inputs (0 1)",
    )
    parser.add_argument(
        "--rate",
        type=positive,
        default=16000,
        metavar="HZ",
        help="samples a second of sound (16000)",
    )
    parser.add_argument(
        "--raw-samples",
        action="store_true",
        help="give samples of sound to inputs, too, that look like features computed of them",
    )
    parser.add_argument("--seed", type=int, default=0, help="of random inputs (0)")


def _add_devices(group: Any) -> None:
    group.add_argument(
        "--device",
        metavar="NAME",
        type=device,
        help="use this device only; module:factory of one that is not installed",
    )
    group.add_argument(
        "--isolate",
        metavar="NAME",
        type=device,
        help="use this device only, in a process of its own",
    )


class Runs(Struct):
    """What came out of running a model; durations in nanoseconds."""

    first_ns: int | None
    durations_ns: tuple[int, ...]
    missed: int
    outputs: tuple[Array, ...]


def _milliseconds(text: str) -> float:
    value = number(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return value


def _command(arguments: argparse.Namespace) -> int:
    return run(_run, arguments)


async def _run(arguments: argparse.Namespace) -> int:
    if not arguments.trace:
        return await _run_traced(arguments, Tracer())
    timeline = Timeline()
    # What cannot be written is told before the work, not after it.
    await anyio.to_thread.run_sync(write_trace, arguments.trace, ())
    try:
        return await _run_traced(arguments, Tracer([timeline]))
    finally:
        write_trace(arguments.trace, timeline.records)


async def _run_traced(arguments: argparse.Namespace, tracer: Tracer) -> int:
    layer = Layer.APPLICATION
    model: Model | str = arguments.model
    if not arguments.cache_dir:
        with tracer.mark(layer, Phase.PREPARATION, "load the model"):
            limit = arguments.value_limit_bytes
            model = await in_daemon_thread(lambda: load(arguments.model, value_limit_bytes=limit))
    async with contextlib.AsyncExitStack() as stack:
        with tracer.mark(layer, Phase.INITIALIZATION, "open the runtime"):
            isolated = [arguments.isolate] if arguments.isolate else []
            opening = open_runtime(
                devices=isolated or runtime_devices([arguments.device or ""]),
                isolate=isolated,
                instruments=tracer.instruments,
            )
            runtime = await stack.enter_async_context(opening)
        with tracer.mark(layer, Phase.COMPILATION, f"compile {arguments.model}"):
            net = await _compiled(runtime, model, arguments)
        with tracer.mark(layer, Phase.PREPARATION, "read the inputs"):
            values, notes = await _values(arguments, net)
        runs, interruption = await _repeat(net, values, arguments, tracer)
        with tracer.mark(layer, Phase.TERMINATION, "close the runtime"):
            await stack.aclose()
    if runs.first_ns is None and not interruption.signal:
        raise MissedDeadline(
            f"none of {runs.missed} runs met the deadline of {arguments.deadline_ms:g} ms"
        )
    if arguments.output and runs.outputs:
        await anyio.to_thread.run_sync(_save, arguments.output, net, runs.outputs)
    print(_json(net, runs, notes) if arguments.json else _text(net, runs, notes))
    return interruption.exit_code


async def _compiled(runtime: Runtime, model: Model | str, arguments: argparse.Namespace) -> Net:
    priority = Priority[arguments.priority.upper()]
    named = [arguments.device] if arguments.device else []
    devices = None if runtime_devices(named) else named or None
    return await runtime.compile(
        model,
        devices=devices,
        priority=priority,
        cache_dir=arguments.cache_dir,
        options=CompileOptions(wait="best", value_limit_bytes=arguments.value_limit_bytes),
    )


async def _values(arguments: argparse.Namespace, net: Net) -> tuple[dict[str, Array], list[str]]:
    """The inputs by name, and what is to be told of them."""
    notes: list[str] = []
    chosen = dict.fromkeys((port.name for port in net.inputs), "zeros")
    chosen.update(_named(arguments.input, tuple(chosen)))
    values = {
        port.name: await read_input(
            chosen[port.name],
            port,
            seed=arguments.seed,
            rate_hz=arguments.rate,
            span=tuple(arguments.range),
            raw_samples=arguments.raw_samples,
            tell=notes.append,
        )
        for port in net.inputs
    }
    return values, notes


def _named(given: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Names of inputs and their values; an option without a name is for the next unnamed input."""
    chosen: dict[str, str] = {}
    unnamed = []
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or (name not in names and os.path.exists(text)):
            unnamed.append(text)
        elif name in names:
            chosen[name] = value
        else:
            raise InvalidArgument(f"no input is called {name!r}; there are {', '.join(names)}")
    free = [name for name in names if name not in chosen]
    if len(unnamed) > len(free):
        raise InvalidArgument(f"{len(given)} inputs are given, the network takes {len(names)}")
    return chosen | dict(zip(free, unnamed, strict=False))


async def _repeat(
    net: Net, values: dict[str, Array], arguments: argparse.Namespace, tracer: Tracer
) -> tuple[Runs, Interruption]:
    first_ns: int | None = None
    durations: list[int] = []
    missed = 0
    outputs: tuple[Array, ...] = ()
    async with interruptible() as interruption:
        for number in range(1 + arguments.repeat):
            limit_ms = arguments.deadline_ms
            with tracer.mark(Layer.APPLICATION, Phase.EXECUTION, f"run {number}"):
                started_ns = now_ns()
                try:
                    result = await net(
                        values, deadline=None if limit_ms is None else within(ms=limit_ms)
                    )
                except MissedDeadline:
                    missed += 1
                    continue
                duration_ns = now_ns() - started_ns
            outputs = result if isinstance(result, tuple) else (result,)
            if first_ns is None:
                first_ns = duration_ns
            else:
                durations.append(duration_ns)
    return Runs(first_ns, tuple(durations), missed, outputs), interruption


def _save(target: str, net: Net, outputs: Sequence[Array]) -> None:
    path = Path(target)
    arrays = {port.name: array for port, array in zip(net.outputs, outputs, strict=True)}
    if path.suffix == ".npz":
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return
    path.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(path / f"{_file_name(name)}.npy", array)


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name).strip(".") or "output"


def _top(array: Array, scale: float, zero_point: int, count: int = 5) -> list[tuple[int, float]]:
    """The largest values of an output, dequantized, with their flat indices."""
    flat = array.reshape(-1).astype(np.float64)
    order = np.argsort(-flat, kind="stable")[:count]
    real = (flat[order] - zero_point) * scale if scale else flat[order]
    return [(int(index), float(value)) for index, value in zip(order, real, strict=True)]


def _percentiles(durations_ns: Sequence[int]) -> dict[str, float]:
    if not durations_ns:
        return {}
    median, p90, p99 = np.percentile(durations_ns, [50, 90, 99])
    return {"median": float(median), "p90": float(p90), "p99": float(p99)}


def _devices(net: Net) -> list[str]:
    return list(dict.fromkeys(partition.device for partition in net.report().partitions))


def _json(net: Net, runs: Runs, notes: Sequence[str]) -> str:
    report = net.report()
    described = {
        "model": net.model.name,
        "devices": _devices(net),
        "cache_hit": report.cache_hit,
        "cache_reason": report.cache_reason,
        "notes": list(notes),
        "outputs": [
            {
                "name": port.name,
                "shape": list(array.shape),
                "dtype": str(array.dtype),
                "top": [
                    {"index": i, "value": v} for i, v in _top(array, port.scale, port.zero_point)
                ],
            }
            for port, array in zip(net.outputs, runs.outputs, strict=False)
        ],
        "runs": len(runs.durations_ns) + (runs.first_ns is not None),
        "missed": runs.missed,
        "first_ms": None if runs.first_ns is None else runs.first_ns / 1e6,
        **{f"{name}_ms": value / 1e6 for name, value in _percentiles(runs.durations_ns).items()},
    }
    return json_text(described)


def _text(net: Net, runs: Runs, notes: Sequence[str]) -> str:
    ports = [
        (f"{kind} {port.name}", str(list(port.shape)), str(port.dtype))
        for kind, ports in (("input", net.inputs), ("output", net.outputs))
        for port in ports
    ]
    parts = [
        f"{net.model.name or 'model'} on {', '.join(_devices(net))}{_cached(net)}",
        table(("", "shape", "dtype"), ports),
        *notes,
    ]
    for port, array in zip(net.outputs, runs.outputs, strict=False):
        top = _top(array, port.scale, port.zero_point)
        rows = [(str(index), f"{value:.6g}") for index, value in top]
        parts.append(table((f"top of {port.name}", "value"), rows))
    parts.append(_timing(runs))
    return "\n\n".join(parts)


def _cached(net: Net) -> str:
    """Returns a text on what the cache had of the network, where it was asked."""
    report = net.report()
    return "" if report.cache_reason.startswith("no cache:") else f" (cache: {report.cache_reason})"


def _timing(runs: Runs) -> str:
    if runs.first_ns is None:
        return f"no run ended; {runs.missed} missed their deadline"
    figures = [("first", milliseconds(runs.first_ns))]
    figures += [(name, milliseconds(ns)) for name, ns in _percentiles(runs.durations_ns).items()]
    text = ", ".join(f"{name} {value}" for name, value in figures)
    missed = f"; {runs.missed} missed their deadline" if runs.missed else ""
    return f"{1 + len(runs.durations_ns)} runs: {text}{missed}"
