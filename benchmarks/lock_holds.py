"""How long engines keep the interpreter lock while they load a model, and when they let it go.

A thread that ticks every fifth of a millisecond looks how late it is, while another one calls the
engine alone, without nnasync. What keeps the lock keeps an event loop from turning as well, on
whatever thread it is called. Each figure is the smallest of a few rounds, in milliseconds: how late
the worst tick was, of how long the step took.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks._report import arguments, models_folder, publish, table

PERIOD_S = 0.0002
Steps = Iterator[tuple[str, Callable[[], object]]]
"""What an engine does with a model, one step after the other."""


class Ticker:
    """A thread that ticks; `worst_ms` is the latest tick so far."""

    def __init__(self) -> None:
        self.worst_ms = 0.0
        self._is_over = False
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._is_over:
            before = time.perf_counter()
            time.sleep(PERIOD_S)
            late_ms = (time.perf_counter() - before - PERIOD_S) * 1e3
            if self._began.is_set():
                self.worst_ms = max(self.worst_ms, late_ms)
            self._began.set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._began.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._is_over = True
        self._thread.join()


def litert(path: Path) -> Steps:
    """Returns the steps of LiteRT with XNNPACK."""
    from ai_edge_litert.interpreter import Interpreter  # type: ignore[import-untyped]  # no types

    content, held = path.read_bytes(), list[Any]()
    yield "open", lambda: held.append(Interpreter(model_content=content, num_threads=1))
    yield "allocate", lambda: held[0].allocate_tensors()
    yield "run", lambda: held[0].invoke()
    yield "let go", held.clear


def onnxruntime(path: Path) -> Steps:
    """Returns the steps of ONNX Runtime."""
    import onnxruntime as ort  # type: ignore[import-untyped]  # no types

    content, held = path.read_bytes(), list[Any]()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    kinds = ["CPUExecutionProvider"]
    yield "open", lambda: held.append(ort.InferenceSession(content, options, providers=kinds))
    yield "let go", held.clear


def openvino(path: Path) -> Steps:
    """Returns the steps of OpenVINO."""
    import openvino as ov  # type: ignore[import-untyped]  # no types

    core, read, held = ov.Core(), list[Any](), list[Any]()
    yield "open", lambda: read.append(core.read_model(path))
    yield "compile", lambda: held.append(core.compile_model(read[0], "CPU"))
    yield "let go", held.clear


ENGINES = {".tflite": (litert, openvino), ".onnx": (onnxruntime, openvino)}


def holds(steps: Steps) -> dict[str, tuple[float, float]]:
    """Returns each step's latest tick, and how long the step took."""
    found = {}
    for name, step in steps:
        with Ticker() as ticker:
            began = time.perf_counter()
            step()
            took_ms = (time.perf_counter() - began) * 1e3
        found[name] = (ticker.worst_ms, took_ms)
    return found


def child(path: Path, engine: str, rounds: int) -> None:
    """Prints the figures of an engine and a model as JSON."""
    steps = next(each for each in ENGINES[path.suffix] if each.__name__ == engine)
    found = [holds(steps(path)) for _ in range(rounds)]
    least = {name: min(each[name] for each in found) for name in found[0]}
    print(json.dumps([f"{name} {late:.1f} of {took:.1f}" for name, (late, took) in least.items()]))


def row(path: Path, engine: str, rounds: int) -> list[str]:
    """Returns one line of the table."""
    command = [sys.executable, "-m", "benchmarks.lock_holds", "--child", engine]
    command += ["--model", str(path), "--rounds", str(rounds)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    cells = ["does not run it"] if ran.returncode else json.loads(ran.stdout.splitlines()[-1])
    return [path.name, engine, *cells, *[""] * (4 - len(cells))]


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--models", type=Path, help="folder of models (the reference models)")
    parser.add_argument("--model", type=Path, nargs="+", help="these files only")
    parser.add_argument("--child", help="an engine, which this process is for")
    options = parser.parse_args()
    sys.setswitchinterval(1e-4)
    if options.child:
        child(options.model[0], options.child, options.rounds)
        return
    paths = options.model or sorted(models_folder(options.models).iterdir())
    rows = [
        row(path, engine.__name__, options.rounds)
        for path in paths
        for engine in ENGINES.get(path.suffix, ())
    ]
    heads = ["model", "engine", "ms of the lock", "", "", ""]
    found = {f"{model}, {engine}": cells for model, engine, *cells in rows}
    publish("The interpreter lock", table(heads, rows), found, options)


if __name__ == "__main__":
    main()
