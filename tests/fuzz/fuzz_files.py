"""Fuzzing of foreign model files, with a command of its own.

    python -m tests.fuzz.fuzz_files --runs 100000 FILE_OR_FOLDER ...
    python -m tests.fuzz.fuzz_files --run --runs 5000 FILE ...         and what loads runs, too
    python -m tests.fuzz.fuzz_files --seed 0 --only 4711 FILE ...      one of them, with its trace

Each run takes a file, changes some of its bytes, or fields of an ONNX message or of the description
in `.nnm`, and loads it: that gives a model or a typed error, takes at most 4 times the file and
512 MiB of memory, and ends. With `--run` what is loaded, and the file as a whole besides, is
compiled by its engine and the reference, and run once.
Run `n` of a seed and of some files is always the same. Processes
that do it can be lost, as those of `fuzz_models`, which this uses.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import sys
import tempfile
import threading
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from nnasync import hal
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.litert import LiteRTEngine
from nnasync._core.drivers.onnxruntime import OnnxRuntimeEngine
from nnasync._core.importers import LOADERS, load
from nnasync.engine import BoundCall, OutputBuffer, StopFlag
from nnasync.errors import NNError
from nnasync.extensions import LITERT, ONNX, sized
from nnasync.hal import ExecutionPreference, Model
from nnasync.suites.fuzz.bytes_edits import byte_edits, edited
from nnasync.suites.fuzz.nnm_fields import changed_description
from nnasync.suites.fuzz.onnx_fields import changed_fields
from nnasync.suites.fuzz.usage import forget_peak, peak_bytes
from tests.fuzz.attempts import Finding, Outcome
from tests.fuzz.fuzz_models import described, fuzz, source_of

__all__ = ["files_in", "main", "mutated"]

SLACK_BYTES, SHARE = 512 << 20, 4
"""What loading may take: so much, and so many times the file."""
MOST_INPUT_BYTES = 1 << 24
MOST_RUN_S = 5
BY_FIELD = {".onnx": changed_fields, ".nnm": changed_description}
FAST = ExecutionPreference.SUSTAINED_SPEED


def files_in(paths: Sequence[str]) -> list[Path]:
    """The files of models that are named, and those in folders that are."""
    found: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [each for each in inside if each.suffix in LOADERS]
    return found


def mutated(data: bytes, source: random.Random) -> bytes:
    """Some bytes or words changed, more often near an end; sometimes a part is lost or moved."""
    return edited(data, byte_edits(source))


def attempt(path: Path, *, runs: bool) -> Outcome:
    """Load a file that may be anything, and run what it gives; raises Finding."""
    forget_peak()
    before = peak_bytes()
    try:
        model = load(path)
    except NNError:
        outcome = Outcome.NOT_LEGAL
    else:
        outcome = Outcome.RAN
    taken = peak_bytes() - before
    if taken > SHARE * path.stat().st_size + SLACK_BYTES:
        raise Finding(f"took {taken >> 20} MiB of memory ({outcome.value})")
    if not runs or outcome is not Outcome.RAN:
        return outcome
    try:
        run(load(path, form="whole"))
    except NNError:
        pass
    return run(model)


def run(model: Model) -> Outcome:
    """Compile and run a model on the engines that take it."""
    outcome = Outcome.NOT_PREPARED
    try:
        model = sized(model, (LITERT, ONNX), "the engines")
    except NNError:
        return outcome
    ends = (*model.main.input_indexes, *model.main.output_indexes)
    if any(nbytes(model, index) > MOST_INPUT_BYTES for index in ends):
        return Outcome.NOT_RUN
    for engine in (LiteRTEngine(), OnnxRuntimeEngine(), ReferenceEngine()):
        if not all(engine.supported_operations(model)):
            continue
        try:
            plan = engine.compile(model, FAST)
            inputs = [some_input(model, index) for index in model.main.input_indexes]
            outputs = [output_of(model, index) for index in model.main.output_indexes]
            if run_for_a_while(plan.bind(inputs, outputs)):
                outcome = Outcome.RAN
        except NNError:
            outcome = Outcome.FAILED if outcome is not Outcome.RAN else outcome
    return outcome


def run_for_a_while(call: BoundCall) -> bool:
    """Run a call; False if it was stopped, as a loop that its file never ends must be."""
    stop = StopFlag()
    limit = threading.Timer(MOST_RUN_S, stop.abort)
    limit.start()
    try:
        return call.run(stop)
    finally:
        limit.cancel()
        limit.join()


def nbytes(model: Model, index: int) -> int:
    """The size of an input or output; of open dimensions 1."""
    operand = model.main.operands[index]
    return hal.byte_size(operand.type, [size or 1 for size in operand.dimensions])


def some_input(model: Model, index: int) -> Any:
    """Numbers for an input."""
    operand = model.main.operands[index]
    shape = [size or 1 for size in operand.dimensions]
    return np.ones(shape, hal.dtype_of(operand.type))


def output_of(model: Model, index: int) -> Any:
    """Room for an output."""
    operand = model.main.operands[index]
    room = np.zeros(MOST_INPUT_BYTES, np.uint8)
    return OutputBuffer(room, hal.dtype_of(operand.type), operand.dimensions)


def one(files: Sequence[Path], folder: Path, source: random.Random, *, runs: bool) -> Outcome:
    """One changed file; raises Finding or whatever came instead of a typed error."""
    original = source.choice(files)
    path = folder / f"changed{original.suffix}"
    # A file of its own each time: the one before may be mapped by a model still.
    path.unlink(missing_ok=True)
    data = original.read_bytes()
    by_field = BY_FIELD.get(original.suffix)
    change = mutated if by_field is None or source.random() < 0.3 else by_field
    path.write_bytes(change(data, source))
    return attempt(path, runs=runs)


def work(
    files: Sequence[Path],
    runs: bool,
    seed: int,
    numbers: range,
    progress: Any,
    results: Connection,
) -> None:
    """Some runs in this process; sends (number, outcome or description of a finding)."""
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as folder:
        for path in files[:2]:
            attempt(path, runs=runs)
        for number in numbers:
            progress.value = number
            try:
                outcome: Any = one(files, Path(folder), source_of(seed, number), runs=runs)
            except Exception as error:
                outcome = described(error)
            results.send((number, outcome))
        progress.value = -1
    results.close()


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="fuzz_files", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", help="files of models, or folders of them")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--run", action="store_true", help="compile and run what loads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--patience", type=float, default=60, help="seconds that a run may take")
    parser.add_argument("--only", type=int, help="the number of the only run")
    options = parser.parse_args(arguments)
    files = files_in(options.files)
    if options.only is not None:
        warnings.simplefilter("error")
        with tempfile.TemporaryDirectory() as folder:
            source = source_of(options.seed, options.only)
            print(one(files, Path(folder), source, runs=options.run).value)
        return 0
    each = functools.partial(work, files, options.run)
    return 1 if fuzz(options.seed, options.runs, options.jobs, options.patience, each) else 0


if __name__ == "__main__":
    sys.exit(main())
