"""Small networks, data and devices made wrong on purpose, for tests of the benchmark."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.null import NullEngine
from nnasync.suites import Gathering, SuiteRow
from nnasync.suites.benchmark import (
    Benchmark,
    BenchTarget,
    DataSequence,
    DataSet,
    Evaluator,
    InThisProcess,
    Subject,
    TimingRules,
    run_benchmark,
)
from tests import rigs

QUICK = TimingRules(0.0, 1e-9, 1000.0, 0.0, 1e-9, 1)
"""Each sequence once, one compilation of each kind."""


def saved(folder: Path, model: nn.Model) -> Path:
    """The file of a model."""
    path = folder / f"{model.name}.nnm"
    nn.save(model, path)
    return path


def doubling(folder: Path, *, evaluator: Evaluator | None = None, count: int = 20) -> Subject:
    """A network that doubles rows, on rows whose largest value is in the place of their class."""
    random = np.random.default_rng(0)
    sequences = []
    for number in range(count):
        row = random.random((1, *rigs.SHAPE)).astype(np.float32)
        row[..., number % 4] += 1
        sequences.append(DataSequence((row,), (row * 2,), np.array([number % 4])))
    data = DataSet(tuple(sequences))
    return Subject("doubler", saved(folder, rigs.doubler()), lambda ports: data, evaluator)


def null(name: str, compute: Callable[[Any], Any], **settings: Any) -> NullEngine:
    """A device that computes something else."""
    return NullEngine(name, compute=compute, **settings)


class Timed:
    """Measures here; the times of some devices are given, whatever else the machine does."""

    def __init__(self, runtime: nn.Runtime, times: Mapping[str, tuple[float, ...]]) -> None:
        self._here = InThisProcess(runtime)
        self._times = times

    async def run(self, target: BenchTarget, *arguments: Any) -> Any:
        found = await self._here.run(target, *arguments)
        if target.name not in self._times:
            return found
        return msgspec.structs.replace(found, latencies=self._times[target.name])


async def rows_of(
    subject: Subject, *engines: Any, times: Mapping[str, tuple[float, ...]] = {}
) -> dict[str, SuiteRow]:
    """The rows of a network on the reference, the baseline, and on devices, by name."""
    base = BenchTarget.of(rigs.REFERENCE)
    targets = tuple(BenchTarget.of(engine.name) for engine in engines)
    benchmark = Benchmark((subject,), (base, *targets), (base,), rules=QUICK)
    gathering = Gathering("benchmark", "nnasync suite benchmark")
    async with rigs.runtime(rigs.REFERENCE, *engines) as runtime:
        await run_benchmark(benchmark, Timed(runtime, times), gathering)
    assert gathering.expected == len(gathering.rows)
    return {row.device: row for row in gathering.rows}


class DiesInCompile(ReferenceEngine):
    """An engine that takes its process with it."""

    name = "dies"

    def compile(self, *arguments: Any, **options: Any) -> Any:
        os._exit(3)


class TellsSession(ReferenceEngine):
    """An engine that ends its process with 7 if no terminal of its parent reaches it, else 8."""

    name = "session"

    def compile(self, *arguments: Any, **options: Any) -> Any:
        os._exit(7 if os.getsid(0) == os.getpid() else 8)


class HangsInCompile(ReferenceEngine):
    """An engine that never has a plan."""

    name = "hangs"

    def compile(self, *arguments: Any, **options: Any) -> Any:
        threading.Event().wait()
