"""Changed models and requests either run or are refused; and whatever else happens is found."""

from __future__ import annotations

import os
import random
import signal
import threading
import tracemalloc
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync import hal
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.cpu.plan import ReferencePlan
from nnasync.hal import ExecutionPreference, Model
from nnasync.kernels import EXTENSION_OPERATIONS, OPERATIONS, Operation
from nnasync.suites.fuzz.mutations import Mutator
from nnasync.suites.fuzz.samples import FuzzSample, own_samples, without_samples
from tests.fuzz.attempts import MEMORY_LIMIT_BYTES, MOST_BYTES, Finding, Outcome, Session
from tests.fuzz.fuzz_models import Fuzzer, described, fuzz, main, source_of
from tests.fuzz.official import official_samples

LARGE = (2**16, 2**31 - 1, 2**31, 2**32 - 1)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session() as opened:
        yield opened


def same(seed: int = 0) -> Mutator:
    """Decisions that are always the same."""
    return Mutator(random.Random(seed))


# -- what fuzzing begins with


def test_samples_use_every_operation() -> None:
    assert without_samples((*OPERATIONS.values(), *EXTENSION_OPERATIONS.values())) == []
    used = {(s.model.name, o.type) for s in own_samples() for o in s.model.main.operations}
    assert {type for _, type in used} >= set(OPERATIONS)
    assert {name for name, _ in used} >= {op.name for op in EXTENSION_OPERATIONS.values()}
    assert {hal.OperationType.IF, hal.OperationType.WHILE} <= {type for _, type in used}


def test_an_operation_without_a_sample_says_what_to_do() -> None:
    gather = OPERATIONS[hal.OperationType.GATHER]
    new = Operation(7, gather.signatures, gather._rule, gather._compute, name="com.vendor.NEW")
    (told,) = without_samples([new])
    assert told.startswith("no sample of com.vendor.NEW: ")
    assert told.endswith("add a form 'com.vendor.NEW' to _FORMS in nnasync/suites/fuzz/samples.py")
    assert "no form says what the tensor 'indices' is" in told


def test_samples_run_as_they_are(session: Session) -> None:
    for sample in own_samples():
        outcomes = (session.attempt(sample, same(seed)) for seed in range(4))
        assert Outcome.RAN in outcomes, sample.model.name


# -- what fuzzing promises


@given(st.randoms(use_true_random=False))
def test_changed_models_run_or_are_refused(session: Session, source: random.Random) -> None:
    mutator = Mutator(source)
    sample = mutator.sample(source.choice(own_samples()), own_samples())
    session.attempt(sample, mutator)


@pytest.mark.slow
def test_seeds(session: Session, tmp_path: Path) -> None:
    fuzzer = Fuzzer(session, tmp_path, own_samples())
    outcomes = [fuzzer.run(source_of(0, number)) for number in range(1000)]
    for outcome in Outcome:
        assert outcomes.count(outcome) > 10
    assert outcomes.count(Outcome.RAN) > 250


@pytest.mark.slow
def test_official_models(shared: Path, session: Session, tmp_path: Path) -> None:
    fuzzer = Fuzzer(session, tmp_path, official_samples(shared))
    outcomes = [fuzzer.run(source_of(1, number)) for number in range(400)]
    assert outcomes.count(Outcome.RAN) > 80


@pytest.mark.parametrize("number", LARGE)
def test_huge_dimensions_run_in_little_memory_or_are_refused(session: Session, number: int) -> None:
    for sample in own_samples()[::3]:
        operands = [o for o in sample.model.main.operands if not hal.is_constant(o)]
        for old in {n for operand in operands for n in operand.dimensions}:
            session.attempt(resized(sample, old, number), same())


def resized(sample: FuzzSample, old: int, new: int) -> FuzzSample:
    """A sample in which a length is another wherever it occurs, but in constants."""
    replace = msgspec.structs.replace
    main = sample.model.main
    operands = tuple(
        operand
        if hal.is_constant(operand)
        else replace(operand, dimensions=tuple(new if n == old else n for n in operand.dimensions))
        for operand in main.operands
    )
    model = replace(sample.model, main=replace(main, operands=operands))
    return replace(sample, model=model)


def test_a_seed_s_runs_are_always_the_same() -> None:
    samples = own_samples()

    def changed() -> list[Model]:
        return [Mutator(source_of(3, n)).sample(samples[n], samples).model for n in range(50)]

    assert list(map(repr, changed())) == list(map(repr, changed()))


# -- that what breaks a promise is found


class Broken(ReferenceEngine):
    """Does something in place of compiling."""

    def __init__(self, what: Any) -> None:
        super().__init__(MEMORY_LIMIT_BYTES)
        self._what = what

    def compile(self, model: Model, preference: ExecutionPreference) -> ReferencePlan:
        plan = super().compile(model, preference)
        self._what(plan)
        return plan


def raises(plan: ReferencePlan) -> None:
    raise ZeroDivisionError("on purpose")


def fails_later(plan: ReferencePlan) -> None:
    setattr(plan, "bind", raises)  # noqa: B010


def warns(plan: ReferencePlan) -> None:
    np.float32(3e38) * np.float32(10)


def takes_memory(plan: ReferencePlan) -> None:
    np.zeros(MOST_BYTES + 1, np.uint8)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (raises, "prepare_model: ZeroDivisionError"),
        (fails_later, "an execution: TypeError"),
        (warns, "prepare_model: RuntimeWarning"),
        (takes_memory, "took .* MiB of memory"),
    ],
)
def test_findings(what: Any, message: str) -> None:
    small = FuzzSample(next(s.model for s in own_samples() if s.model.name == "RELU"), {})
    with Session(Broken(what)) as session, pytest.raises(Finding, match=message) as raised:
        for seed in range(100):
            session.attempt(small, same(seed))
    assert message.split(":")[0] in described(raised.value) or "took" in message
    assert not tracemalloc.is_tracing()


def crashing(seed: int, numbers: range, progress: Any, results: Connection) -> None:
    """Work that ends its process at every number that 3 divides but 0."""
    for number in numbers:
        progress.value = number
        if number and number % 3 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        results.send((number, Outcome.RAN))


def hanging(seed: int, numbers: range, progress: Any, results: Connection) -> None:
    """Work that never comes to the end of number 1."""
    for number in numbers:
        progress.value = number
        if number == 1:
            threading.Event().wait()
        results.send((number, Outcome.RAN))


@pytest.mark.slow
def test_a_lost_process_is_a_finding_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fuzz(0, 8, 1, 60.0, crashing) == 2
    told = capsys.readouterr().out
    assert "run 3: the process died: -9" in told
    assert "run 6: the process died: -9" in told
    assert "8 runs, 2 findings" in told


@pytest.mark.slow
def test_a_process_that_does_not_come_back_is_a_finding(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fuzz(0, 3, 1, 2.0, hanging) == 1
    assert "run 1: no answer within 2 s" in capsys.readouterr().out


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", "40", "--jobs", "1"]) == 0
    assert "40 runs, 0 findings" in capsys.readouterr().out


def test_one_run_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "7"]) == 0
    assert capsys.readouterr().out.strip() in {outcome.value for outcome in Outcome}
