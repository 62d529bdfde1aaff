"""The benchmark: each network of a list on each target, a row for each, whatever happens.

All targets get the same data as the baseline. A row fails where the answers are wrong: they do not
agree with the baseline's (by the rules by which devices that compete must agree with the
reference), an evaluator finds them beyond what it allows, or a score is worse than the baseline's
beyond doubt. To be slow is no failure; the figure says that it is worse.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio.to_thread
import msgspec
import numpy as np

from nnasync._core.compilation.agreement import judge, wants_moved
from nnasync._core.execution.ports import Port, Ports, ports_of
from nnasync._core.importers import load
from nnasync.errors import InvalidArgument, NNError
from nnasync.hal import Array, Model
from nnasync.suites.benchmark.children import MeasureBench, NotMeasured
from nnasync.suites.benchmark.comparing import compared
from nnasync.suites.benchmark.data import DataSequence, DataSet, Outputs
from nnasync.suites.benchmark.evaluators import Evaluation, Evaluator
from nnasync.suites.benchmark.measuring import KINDS, DeviceMeasurement, MeasureJob
from nnasync.suites.benchmark.targets import PLAIN, BenchTarget
from nnasync.suites.benchmark.timing import TimingRules, histogram, latency_figures
from nnasync.suites.gathering import Gathering
from nnasync.suites.results import Bars, Better, Finding, Standing, SuiteFigure, SuiteRow

_BASELINE = "baseline"


class Subject(msgspec.Struct, frozen=True):
    """A network of a list: its file, what makes its data, and who says what answers are worth.

    `value_limit_bytes` is what a value of the file may take, as `nnasync.load` has it.
    `read_data` is called in a thread with the inputs and outputs of the network; it raises
    InvalidArgument or OSError where data are missing or broken.
    """

    name: str
    model: Path
    read_data: Callable[[Ports], DataSet]
    evaluator: Evaluator | None = None
    value_limit_bytes: int | None = None


class Benchmark(msgspec.Struct, frozen=True):
    """What is run: networks, on targets, compared with the first of `baselines` that answers.

    `scale` multiplies all times, and the share of the data that is taken, up to all.
    """

    subjects: tuple[Subject, ...]
    targets: tuple[BenchTarget, ...]
    baselines: tuple[BenchTarget, ...]
    scale: float = 1.0
    rules: TimingRules = TimingRules()


async def run_benchmark(benchmark: Benchmark, bench: MeasureBench, gathering: Gathering) -> None:
    """Add a row for each network and target; raises InvalidArgument if there is none of either."""
    if not benchmark.subjects:
        raise InvalidArgument("there is no network to be benchmarked")
    if not benchmark.targets:
        raise InvalidArgument("there is no device to be benchmarked")
    rules = benchmark.rules.scaled(benchmark.scale)
    gathering.expected = len(benchmark.subjects) * len(benchmark.targets)
    for subject in benchmark.subjects:
        await _OnSubject(benchmark, subject, rules, bench, gathering).run()


class _OnSubject:
    """One network on all targets."""

    def __init__(
        self,
        benchmark: Benchmark,
        subject: Subject,
        rules: TimingRules,
        bench: MeasureBench,
        gathering: Gathering,
    ) -> None:
        self._benchmark = benchmark
        self._subject = subject
        self._rules = rules
        self._bench = bench
        self._gathering = gathering

    async def run(self) -> None:
        """Add a row for each target, and one for a baseline that is none of them."""
        try:
            model, data = await anyio.to_thread.run_sync(self._read)
        except (NNError, OSError) as error:
            for target in self._benchmark.targets:
                self._gathering.add(
                    SuiteRow(self._subject.name, target.name, Standing.FAILURE, 0.0, _said(error))
                )
            return
        self._judge = Judge(self._subject, model, data)
        base = await self._baseline()
        for target in self._benchmark.targets:
            if target.name != base:
                await self._row(target)

    def _read(self) -> tuple[Model, DataSet]:
        limit_bytes = self._subject.value_limit_bytes
        model = load(self._subject.model, value_limit_bytes=limit_bytes)
        data = self._subject.read_data(ports_of(model)).sampled(self._benchmark.scale)
        if not data.sequences:
            raise InvalidArgument(f"{self._subject.name}: there are no data")
        return model, data

    async def _baseline(self) -> str:
        """The name of the baseline, whose row is there; empty if there is none."""
        for target in self._benchmark.baselines:
            if await self._row(target, is_candidate=True):
                return target.name
        return ""

    async def _row(self, target: BenchTarget, *, is_candidate: bool = False) -> bool:
        """Measure and add the row; a candidate for the baseline that fails is no row.

        It is one if it crashes, or is a target as well.
        """
        begun = time.monotonic()
        subject, gathering = self._subject.name, self._gathering
        is_wanted = target in self._benchmark.targets
        job = MeasureJob(
            str(self._subject.model),
            None,
            self._rules,
            precision="exact" if target.is_plain else None,
            has_compilations=is_wanted,
            moved=is_candidate and wants_moved(self._judge.model),
            value_limit_bytes=self._subject.value_limit_bytes,
        )
        found = await self._bench.run(
            target,
            job,
            [each.inputs for each in self._judge.data.sequences],
            lambda text: gathering.step(f"{subject} on {target.name}: {text}"),
        )
        seconds = time.monotonic() - begun
        if isinstance(found, NotMeasured):
            if not is_candidate or (not is_wanted and found.standing is Standing.CRASH):
                row = SuiteRow(subject, target.name, found.standing, seconds, found.text)
                gathering.add(row)
            return False
        row = await anyio.to_thread.run_sync(self._judge.row, target, found, seconds, is_candidate)
        gathering.add(row)
        return True


class Judge:
    """What the answers of targets for one network and its data are worth, in rows."""

    def __init__(self, subject: Subject, model: Model, data: DataSet) -> None:
        self.model = model
        self.data = data
        self._subject = subject
        self._ports = ports_of(model)
        self._base: DeviceMeasurement | None = None
        self._base_scores: Evaluation = Evaluation()

    def row(
        self, target: BenchTarget, found: DeviceMeasurement, seconds: float, is_baseline: bool
    ) -> SuiteRow:
        """The row of a target; that of the baseline comes first."""
        evaluation = self._evaluated(found)
        if is_baseline:
            self._base, self._base_scores = found, evaluation
        findings = [
            *self._incomplete(found),
            *evaluation.faults,
            *([] if is_baseline else self._disagreements(found)),
        ]
        scores, worse = self._scores(evaluation, is_baseline=is_baseline)
        findings += worse
        standing = Standing.FAILURE if findings else Standing.SUCCESS
        text = "; ".join([found.plan, *findings[:1], *self.data.notes])
        limit_bytes = self._subject.value_limit_bytes
        limit = "" if limit_bytes is None else f" --value-limit-bytes {limit_bytes}"
        command = f"nnasync suite benchmark {self._subject.model}{limit} --device {target.name}"
        return SuiteRow(
            self._subject.name,
            target.name,
            standing,
            seconds,
            text,
            (*scores, *self._golden(found), *self._times(found)),
            _bars(found),
            tuple(Finding(each, command.removesuffix(PLAIN)) for each in findings),
            is_baseline,
        )

    # -- what is wrong

    def _incomplete(self, found: DeviceMeasurement) -> list[str]:
        if found.is_whole:
            return []
        done, wanted = len(found.outputs), len(self.data.sequences)
        return [f"only {done} of {wanted} sequences were done in time"]

    def _disagreements(self, found: DeviceMeasurement) -> list[str]:
        if self._base is None or not (found.is_whole and self._base.is_whole):
            return []
        main = self.model.main
        ends = tuple(main.output_indexes[port.position] for port in self._ports.outputs)
        judgment = judge(
            msgspec.structs.replace(
                self.model, main=msgspec.structs.replace(main, output_indexes=ends)
            ),
            _steps(self._base.outputs),
            _steps(found.outputs),
            is_reduced=False,
            moved=_steps(self._base.moved),
        )
        return [] if judgment.agrees else [f"{_BASELINE}: {judgment.text}"]

    def _evaluated(self, found: DeviceMeasurement) -> Evaluation:
        if self._subject.evaluator is None:
            return Evaluation()
        done = len(found.outputs)
        sequences = [_real(each, self._ports.outputs) for each in self.data.sequences[:done]]
        outputs = [_dequantized(each, self._ports.outputs) for each in found.outputs]
        return self._subject.evaluator.evaluate(sequences, outputs)

    def _scores(
        self, evaluation: Evaluation, *, is_baseline: bool
    ) -> tuple[list[SuiteFigure], list[str]]:
        bases = {each.name: each for each in self._base_scores.scores}
        figures, findings = [], []
        for score in evaluation.scores:
            base = None if is_baseline else bases.get(score.name)
            verdict = None if base is None else compared(score, base)
            is_worse = None if verdict is None else verdict.is_worse
            figures.append(
                SuiteFigure(
                    score.name, score.value, score.unit, better=score.better, is_worse=is_worse
                )
            )
            if verdict is None:
                continue
            loss = f"{score.name}, loss against the {_BASELINE}"
            figures.append(
                SuiteFigure(loss, verdict.loss, score.unit, verdict.low, verdict.high, Better.LESS)
            )
            if is_worse:
                findings.append(
                    f"{score.name} is worse than the {_BASELINE}'s by {verdict.loss:.3g} "
                    f"{score.unit} ({verdict.low:.3g} to {verdict.high:.3g}, {verdict.pairs} pairs)"
                )
        return figures, findings

    # -- figures

    def _golden(self, found: DeviceMeasurement) -> list[SuiteFigure]:
        """Mean square and largest absolute errors against golden outputs, where there are some."""
        squares: list[float] = []
        largest = 0.0
        for sequence, outputs in zip(self.data.sequences, found.outputs, strict=False):
            for golden, given in zip(sequence.golden, outputs, strict=False):
                errors = given.astype(np.float64).reshape(-1) - golden.reshape(-1)
                squares += np.square(errors).reshape(len(given), -1).mean(axis=1).tolist()
                largest = max(largest, float(np.abs(errors).max(initial=0)))
        if not squares:
            return []
        mean = math.fsum(squares) / len(squares)
        return [
            SuiteFigure("golden mean square error", mean, better=Better.LESS),
            SuiteFigure("golden largest error", largest, better=Better.LESS),
        ]

    def _times(self, found: DeviceMeasurement) -> list[SuiteFigure]:
        base = () if self._base is None or self._base is found else self._base.latencies
        figures = [*latency_figures("latency", found.latencies, base)]
        first = found.first_compile_s * 1e3
        figures.append(SuiteFigure("first compilation", first, "ms", better=Better.LESS))
        for kind in KINDS:
            times = found.compilations.get(kind, ())
            figures += latency_figures(f"compilation {kind}", times)[:1]
        if found.cache_bytes:
            figures.append(SuiteFigure("cache", found.cache_bytes, "bytes", better=Better.LESS))
        if found.joules is not None:
            figures.append(SuiteFigure("energy", found.joules * 1e3, "mJ", better=Better.LESS))
        sequences = self.data.sequences
        return [*figures, SuiteFigure("sequences", len(sequences)), _steps_figure(self.data)]


def _said(error: NNError | OSError) -> str:
    """An error in words; one of the system names the file that cannot be read."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be read: {error.strerror}"
    return str(error)


def _steps_figure(data: DataSet) -> SuiteFigure:
    return SuiteFigure("steps", data.steps)


def _bars(found: DeviceMeasurement) -> tuple[Bars, ...]:
    times = {"latency": found.latencies}
    times |= {f"compilation {kind}": each for kind, each in found.compilations.items()}
    return tuple(histogram(name, each) for name, each in times.items() if len(each))


def _steps(outputs: Sequence[Outputs]) -> list[list[Array]]:
    """Returns each step of each sequence as a run."""
    return [list(step) for each in outputs for step in zip(*each, strict=True)]


def _dequantized(outputs: Outputs, ports: Sequence[Port]) -> Outputs:
    return tuple(
        port.dequantize(array) if port.stands_for_real else array
        for array, port in zip(outputs, ports, strict=True)
    )


def _real(sequence: DataSequence, ports: Sequence[Port]) -> DataSequence:
    """A sequence with the real values of its golden outputs."""
    if not sequence.golden:
        return sequence
    return msgspec.structs.replace(sequence, golden=_dequantized(sequence.golden, ports))
