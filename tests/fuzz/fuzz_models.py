"""Fuzzing of models and requests, with a command of its own.

    make fuzz                                                        100,000 models of a seed
    python -m tests.fuzz.fuzz_models --runs 100000 --seed 0 --jobs 2
    python -m tests.fuzz.fuzz_models --seed 0 --only 4711            one of them, with its trace
    python -m tests.fuzz.fuzz_models --atheris -max_total_time=600   guided by coverage

Each run takes a small model (one operation of each kind, control flow, networks; official cases
too where the folder ../shared is beside the checkout), changes it, and takes it through the
reference device (`attempts`). Run `n` of a seed is always the same.

Runs happen in processes that can be lost: memory above the limit of the device plus some for
Python is refused to them, warnings are errors, and one that crashes or does not come back within
`--patience` seconds is a finding too. The exit status is 1 if there are findings.

With `--atheris` the decisions come from bytes that libFuzzer chooses, guided by what code they
reach, and all further arguments are libFuzzer's. Atheris comes with the dependency group `fuzz`
(`pip install --group fuzz`); it has wheels for Linux and Python up to 3.13. Elsewhere there are
seeds, which need nothing.
"""

from __future__ import annotations

import argparse
import collections
import gc
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import FunctionType
from typing import Any

from nnasync.suites.fuzz.decisions import ReplayedRandom, decisions_in
from nnasync.suites.fuzz.mutations import Mutator
from nnasync.suites.fuzz.samples import FuzzSample, own_samples
from tests.fuzz.attempts import MEMORY_LIMIT_BYTES, Finding, Outcome, Session
from tests.fuzz.official import official_samples

__all__ = ["Fuzzer", "described", "fuzz", "main", "source_of"]

SHARED = Path(__file__).resolve().parents[3] / "shared"
SLACK_BYTES = 256 << 20
"""Memory for Python, threads and what kernels need besides their operands and scratch."""


class Fuzzer:
    """Samples, a session and a place for files: what any number of runs need."""

    def __init__(self, session: Session, folder: Path, samples: Sequence[FuzzSample]) -> None:
        self._session = session
        self._path = folder / "model.nnm"
        self._samples = samples

    def run(self, source: random.Random) -> Outcome:
        """One changed model; raises Finding."""
        mutator = Mutator(source)
        sample = source.choice(self._samples)
        way = source.random()
        if way < 0.02:
            return self._session.attempt_file(sample, mutator, self._path)
        if way < 0.05:
            return self._session.attempt_built(mutator)
        return self._session.attempt(mutator.sample(sample, self._samples), mutator)


def all_samples() -> list[FuzzSample]:
    """Our own, and official ones where they are at hand."""
    return [*own_samples(), *(official_samples(SHARED) if SHARED.is_dir() else [])]


def source_of(seed: int, number: int) -> random.Random:
    """The decisions of one run of a seed."""
    return random.Random(f"{seed}:{number}")


def limit_memory() -> None:
    """Refuse this process much more memory than it has, where the system tells how much it has."""
    if not sys.platform.startswith("linux"):
        return
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    limit = size + MEMORY_LIMIT_BYTES + SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def work(seed: int, numbers: range, progress: Any, results: Connection) -> None:
    """Some runs in this process; sends (number, outcome or description of a finding)."""
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as folder, Session() as session:
        fuzzer = Fuzzer(session, Path(folder), all_samples())
        session.warm_up(own_samples())
        limit_memory()
        for number in numbers:
            progress.value = number
            try:
                results.send((number, fuzzer.run(source_of(seed, number))))
            except Exception as error:
                results.send((number, described(error)))
        progress.value = -1
    results.close()


def described(error: BaseException) -> str:
    """A finding in some lines, the last of which is where it comes from."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    frames = traceback.extract_tb(cause.__traceback__)[-3:]
    places = " > ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames)
    text = str(error) if isinstance(error, Finding) else f"{type(error).__name__}: {error}"
    return f"{text[:300]}\n    {places}"


Work = Callable[[int, range, Any, Connection], None]


class Worker:
    """A process with a part of the runs; `numbers` are theirs."""

    def __init__(self, seed: int, numbers: range, work: Work = work) -> None:
        self._work = work
        self._seed = seed
        self._step = numbers.step
        self._stop = numbers.stop
        self._changed_s = time.monotonic()
        self._last = -1
        self._start(numbers)

    def _start(self, numbers: range) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe(duplex=False)
        self._progress = context.Value("q", -1, lock=False)
        self._process = context.Process(
            target=self._work, args=(self._seed, numbers, self._progress, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def receive(self, patience_s: float) -> list[tuple[int, Outcome | str]] | None:
        """What is new; None at the end. A process that is lost or hangs is replaced."""
        found: list[tuple[int, Outcome | str]] = []
        try:
            while self.connection.poll(0 if found else 0.2):
                found.append(self.connection.recv())
        except EOFError:
            self._process.join()
            if self._process.exitcode == 0:
                return found or None
            return [*found, self._replace(f"the process died: {self._process.exitcode}")]
        if found or self._last != self._progress.value:
            self._last, self._changed_s = self._progress.value, time.monotonic()
        elif time.monotonic() - self._changed_s > patience_s and self._last >= 0:
            self._process.kill()
            self._process.join()
            found.append(self._replace(f"no answer within {patience_s:g} s"))
        return found

    def _replace(self, reason: str) -> tuple[int, str]:
        number = self._progress.value
        if number < 0:
            raise RuntimeError(f"a process could not begin: {reason}")
        self._start(range(number + self._step, self._stop, self._step))
        self._changed_s = time.monotonic()
        return number, reason


def fuzz(seed: int, runs: int, jobs: int, patience_s: float, work: Work = work) -> int:
    """All runs of a seed in some processes; how many findings there were."""
    workers = [Worker(seed, range(job, runs, jobs), work) for job in range(jobs)]
    outcomes: collections.Counter[str] = collections.Counter()
    findings: list[tuple[int, str]] = []
    told_s = time.monotonic()
    while workers:
        for worker in list(workers):
            news = worker.receive(patience_s)
            if news is None:
                workers.remove(worker)
            for number, result in news or ():
                if isinstance(result, Outcome):
                    outcomes[result.value] += 1
                    continue
                findings.append((number, result))
                print(f"run {number}: {result}", flush=True)
        if time.monotonic() - told_s > 30:
            told_s = time.monotonic()
            print(f"{sum(outcomes.values())} runs, {len(findings)} findings", flush=True)
    for name, count in outcomes.most_common():
        print(f"{count:8} {name}")
    print(f"{sum(outcomes.values()) + len(findings)} runs, {len(findings)} findings")
    return len(findings)


def fuzz_with_atheris(arguments: list[str]) -> None:
    """Runs that libFuzzer steers, until it has enough; does not return."""
    import atheris

    warnings.simplefilter("error")
    functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    for function in functions:
        if (function.__module__ or "").startswith("nnasync."):
            atheris.instrument_func(function)
    session = Session()
    fuzzer = Fuzzer(session, Path(tempfile.mkdtemp()), all_samples())

    def one(data: bytes) -> None:
        fuzzer.run(ReplayedRandom(decisions_in(data)))

    usual = ["-rss_limit_mb=4096", "-timeout=60", "-len_control=0", "-max_len=2000"]
    atheris.Setup([sys.argv[0], *usual, *arguments], one)
    atheris.Fuzz()


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="fuzz_models", description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--patience", type=float, default=60, help="seconds that a run may take")
    parser.add_argument("--only", type=int, help="the number of the only run")
    parser.add_argument("--atheris", action="store_true", help="the rest is for libFuzzer")
    options, rest = parser.parse_known_args(arguments)
    if options.atheris:
        fuzz_with_atheris(rest)
    if rest:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    if options.only is not None:
        warnings.simplefilter("error")
        with tempfile.TemporaryDirectory() as folder, Session() as session:
            fuzzer = Fuzzer(session, Path(folder), all_samples())
            print(fuzzer.run(source_of(options.seed, options.only)).value)
        return 0
    return 1 if fuzz(options.seed, options.runs, options.jobs, options.patience) else 0


if __name__ == "__main__":
    sys.exit(main())
