"""nnasync beside LiteRT, OpenVINO and ONNX Runtime, in one run and interleaved.

compute  each model, awaited, against the engines called directly with their own loaders
first    the first execution of a prepared model against the later ones, per device
async    latency and throughput under asyncio against the engines' own ways; bursts, chains, memory
qos      HIGH every 10 ms beside four LOW clients, alone and beside two busy processes
idle     fifty models loaded: CPU use, and the speed of one of them

Every measurement runs in a process of its own. Peers that are not installed, or that refuse a
model, are named. "limit" is what nnasync is meant to keep on a machine like this one. The reference
models are read from a folder; a MobileNet v1 1.0 224 float is built.
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib.util
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from benchmarks._report import arguments, cores, keep, models_folder
from benchmarks._rounds import Quiet
from benchmarks.peers import awaited, calls, first, idle, mobilenet, qos, ratios
from benchmarks.peers.catalog import Entry, catalog
from benchmarks.peers.ratios import Ratio, has_matrix_units
from benchmarks.peers.section import Context, Progress, Section

SECTIONS: dict[str, tuple[float, tuple[Callable[..., Section], ...]]] = {
    "compute": (100, (ratios.run,)),
    "first": (45, (first.run,)),
    "async": (50, (awaited.run, calls.run)),
    "qos": (72, (qos.run,)),
    "idle": (60, (idle.run,)),
}
"""Seconds that each section may take by default, and what is in it."""
ROUNDS = {"compute": 5, "first": 3, "async": 3, "qos": 2, "idle": 7}
QOS_TURN_S = 1.5
PACKAGES = ("ai-edge-litert", "openvino", "onnxruntime", "onnx", "uvloop")


def main() -> None:
    """Measure, print and write."""
    options = _options()
    folder, started_s = models_folder(options.models_folder), time.monotonic()
    print(_machine())
    sections: dict[str, Any] = {}
    try:
        with _workplace() as cache:
            _measure(_entries(folder, cache, options.models), options, sections)
    except KeyboardInterrupt:
        print("interrupted")
    finally:
        _write(sections, options)
    print(f"\n({time.monotonic() - started_s:.0f} s)")


def _measure(entries: list[Entry], options: Any, sections: dict[str, Any]) -> None:
    """Runs the chosen sections; prints each and puts its figures into `sections`."""
    progress = Progress()
    for name in options.only or SECTIONS:
        seconds, parts = SECTIONS[name]
        context = Context(entries, options.rounds or ROUNDS[name], progress, options.device)
        context.begin(seconds * options.patience)
        for run in parts:
            quiet = Quiet()
            try:
                section = _run(run, context, options)
            finally:
                progress.close()
            text = f"{section.text}\n\n({quiet.told()})"
            print(f"\n## {section.title}\n\n{text}", flush=True)
            if options.keep:
                keep(f"Beside the peers: {section.title}", text)
            sections[section.title] = section.figures


def _write(sections: dict[str, Any], options: Any) -> None:
    if options.json is not None:
        data = {"machine": _machine(), "packages": _packages(), "sections": sections}
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(data)) + b"\n")
    if options.plot is not None:
        _plot(sections, options.plot)


def _options() -> Any:
    parser = arguments(__doc__, rounds=0)
    parser.prog = "python -m benchmarks.peers"
    parser.set_defaults(rounds=None)
    parser.add_argument(
        "--only", action="append", choices=list(SECTIONS), help="this section; may be repeated"
    )
    parser.add_argument("--models", default="*", metavar="GLOB", help="models by name (all)")
    parser.add_argument("--models-folder", type=Path, metavar="DIR", help="the reference models")
    parser.add_argument(
        "--device", action="append", metavar="NAME", help="devices of nnasync (all installed)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the compute ratios")
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        metavar="X",
        help="so many times the sections' time, and of QoS longer turns (1)",
    )
    parser.add_argument(
        "--quantum-ms", type=float, metavar="MS", help="QoS: preemption quantum of LOW (none)"
    )
    options = parser.parse_args()
    if options.plot is not None and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    return options


@contextlib.contextmanager
def _workplace() -> Iterator[Path]:
    """Makes a folder for what is built, and for verdicts of the devices' competition."""
    before = os.environ.get("NNASYNC_STATE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NNASYNC_STATE_DIR"] = str(Path(folder) / "state")
        try:
            yield Path(folder)
        finally:
            os.environ.pop("NNASYNC_STATE_DIR")
            if before is not None:
                os.environ["NNASYNC_STATE_DIR"] = before


def _entries(folder: Path, cache: Path, pattern: str) -> list[Entry]:
    try:
        return catalog(folder, cache, pattern)
    except ImportError as error:
        print(f"{mobilenet.NAME} is left out, its file format comes with LiteRT: {error}")
        names = [path.stem for path in folder.glob("*.tflite")]
        found = fnmatch.filter(names, pattern)
        return [Entry(name, str(folder / f"{name}.tflite")) for name in sorted(found)]


def _run(run: Callable[..., Section], context: Context, options: Any) -> Section:
    if run is qos.run:
        seconds = QOS_TURN_S * options.patience
        return qos.run(context, seconds=seconds, quantum_ms=options.quantum_ms)
    return run(context)


def _plot(sections: dict[str, Any], path: Path) -> None:
    from benchmarks.peers.plot import draw

    rows = [msgspec.convert(row, Ratio) for row in sections.get("Compute", {}).get("ratios", [])]
    if not rows:
        print("nothing to draw: the plot is of the compute section")
        return
    amx = "with AMX" if has_matrix_units() else "without AMX"
    draw(rows, path, machine=f"{len(cores())} cores, {platform.machine()} {amx}")


def _machine() -> str:
    amx = "with AMX" if has_matrix_units() else "without AMX"
    packages = ", ".join(f"{name} {version}" for name, version in _packages().items())
    return (
        f"{len(cores())} cores, {platform.machine()} {amx}, {platform.system()}, "
        f"Python {platform.python_version()}\n{packages}"
    )


def _packages() -> dict[str, str]:
    """Returns the versions of the peers; one that is missing takes no part."""
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
