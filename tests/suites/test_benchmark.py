"""The benchmark: devices made wrong on purpose get exactly their verdict."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.child_process import ChildProcess
from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.suites import Gathering, Standing, SuiteRow
from nnasync.suites.benchmark import (
    Benchmark,
    BenchTarget,
    DataSequence,
    DataSet,
    Subject,
    TopK,
    open_children,
    run_benchmark,
    targets_of,
)
from nnasync.suites.benchmark.dividing import shares
from nnasync.suites.benchmark.measuring import MeasureJob, measure
from tests import rigs
from tests.faulty import Faulty
from tests.suites.benchmark_rig import QUICK, doubling, null, rows_of, saved

pytestmark = pytest.mark.anyio
here = pytest.mark.one_loop("What a verdict says is the same on every loop.")


def figure(row: SuiteRow, name: str) -> Any:
    return next(each for each in row.figures if each.name == name)


async def test_a_device_that_is_right_and_the_baseline_succeed(tmp_path: Path) -> None:
    rows = await rows_of(doubling(tmp_path, evaluator=TopK()), null("right", rigs.double))
    base, right = rows[rigs.REFERENCE], rows["right"]
    assert base.is_baseline
    assert not right.is_baseline
    assert base.standing is right.standing is Standing.SUCCESS
    assert figure(right, "top 1").value == 1.0
    assert figure(right, "top 1").is_worse is False
    assert figure(right, "golden largest error").value == 0.0
    assert figure(right, "sequences").value == 20
    assert {bars.name for bars in right.bars} >= {"latency", "compilation without cache"}


@here
async def test_a_device_that_is_off_by_three_percent_fails(tmp_path: Path) -> None:
    """Though its classes are right: its values do not agree with the baseline's."""
    off = null("off", lambda inputs: [inputs[0] * np.float32(2 * 1.03)])
    row = (await rows_of(doubling(tmp_path, evaluator=TopK()), off))["off"]
    assert row.standing is Standing.FAILURE
    assert len(row.findings) == 1
    assert row.findings[0].text.startswith("baseline: disagrees: 4 of 4 differ")
    assert row.findings[0].command.endswith("--device off")
    assert figure(row, "top 1").is_worse is False


@here
async def test_a_device_that_is_too_small_has_a_largest_error(tmp_path: Path) -> None:
    """The sign of an error does not matter."""
    low = null("low", lambda inputs: [inputs[0] * 2 - np.float32(0.5)])
    row = (await rows_of(doubling(tmp_path), low))["low"]
    assert figure(row, "golden largest error").value == pytest.approx(0.5, rel=1e-5)
    assert figure(row, "golden mean square error").value == pytest.approx(0.25, rel=1e-5)


@here
async def test_a_device_that_takes_wrong_classes_is_worse(tmp_path: Path) -> None:
    wrong = null("wrong", lambda inputs: [inputs[0] * -2])
    row = (await rows_of(doubling(tmp_path, evaluator=TopK(0.9)), wrong))["wrong"]
    assert row.standing is Standing.FAILURE
    assert figure(row, "top 1").is_worse is True
    texts = [each.text for each in row.findings]
    assert texts[0] == "top 1 is 0.000 on 20 inputs; 0.900 is expected, give or take 0.05"
    assert any(text.startswith("top 1 is worse than the baseline's by 1") for text in texts)


@here
async def test_a_slow_device_succeeds_and_is_slower(tmp_path: Path) -> None:
    """Its times are at least what it sleeps; by how much they differ from others is given."""
    slow = null("slow", rigs.double, latency_ns=2_000_000)
    row = (await rows_of(doubling(tmp_path), slow))["slow"]
    assert row.standing is Standing.SUCCESS
    assert row.findings == ()
    assert figure(row, "latency p50").value >= 2
    times = {"slow": (2e-3, 3e-3) * 10, rigs.REFERENCE: (1e-3, 2e-3) * 10}
    row = (await rows_of(doubling(tmp_path), slow, times=times))["slow"]
    assert row.standing is Standing.SUCCESS
    assert figure(row, "latency mean").is_worse is True


@here
async def test_a_device_that_fails_to_compile_or_to_run_is_a_row(tmp_path: Path) -> None:
    compiles, runs = Faulty("compiles"), Faulty("runs")
    compiles.compile_fault = lambda model: GeneralFailure("no memory for the program")
    runs.always(GeneralFailure("the accelerator is gone"))
    rows = await rows_of(doubling(tmp_path), compiles, runs)
    assert rows["compiles"].standing is rows["runs"].standing is Standing.FAILURE
    assert "no memory for the program" in rows["compiles"].text
    assert "the accelerator is gone" in rows["runs"].text


@here
async def test_a_device_that_does_not_take_the_network_is_skipped(tmp_path: Path) -> None:
    row = (await rows_of(doubling(tmp_path), Faulty("picky", takes=lambda type: False)))["picky"]
    assert row.standing is Standing.SKIPPED
    assert row.text == "does not take 1 of 1 operation: ADD"


@here
async def test_states_begin_with_zeros_for_each_sequence(tmp_path: Path) -> None:
    steps = np.ones((3, *rigs.SHAPE), np.float32)
    golden = np.cumsum(steps, axis=0)
    data = DataSet((DataSequence((steps,), (golden,)),) * 5)
    subject = Subject("counter", saved(tmp_path, rigs.counter()), lambda ports: data)
    row = (await rows_of(subject))[rigs.REFERENCE]
    assert row.standing is Standing.SUCCESS
    assert figure(row, "golden largest error").value == 0
    assert figure(row, "steps").value == 15


@here
async def test_data_that_cannot_be_read_are_rows(tmp_path: Path) -> None:
    def broken(ports: Any) -> DataSet:
        raise InvalidArgument("labels.txt has no classes")

    subject = Subject("broken", doubling(tmp_path).model, broken)
    row = (await rows_of(subject))[rigs.REFERENCE]
    assert (row.standing, row.text) == (Standing.FAILURE, "labels.txt has no classes")


@here
async def test_a_file_of_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    def missing(ports: Any) -> DataSet:
        (tmp_path / "cup.input").read_bytes()
        return DataSet(())

    subject = Subject("missing", doubling(tmp_path).model, missing)
    row = (await rows_of(subject))[rigs.REFERENCE]
    assert row.standing is Standing.FAILURE
    assert row.text == f"{tmp_path / 'cup.input'} cannot be read: {os.strerror(errno.ENOENT)}"


@here
async def test_models_that_are_none_are_rows(tmp_path: Path) -> None:
    (tmp_path / "junk.nnm").write_bytes(b"junk")
    subject = Subject("junk", tmp_path / "junk.nnm", lambda ports: DataSet(()))
    row = (await rows_of(subject))[rigs.REFERENCE]
    assert row.standing is Standing.FAILURE
    assert "junk.nnm" in row.text


@here
async def test_a_death_in_a_child_is_a_crash_and_the_next_goes_on(tmp_path: Path) -> None:
    """A device whose process dies in the compilation, then one that is well."""
    dies = BenchTarget.of("tests.suites.benchmark_rig:DiesInCompile")
    base = BenchTarget.of(rigs.REFERENCE)
    benchmark = Benchmark((doubling(tmp_path),), (dies, base), (base,), rules=QUICK)
    gathering = Gathering("benchmark", "")
    async with open_children() as children:
        await run_benchmark(benchmark, children, gathering)
    assert [(row.device, row.standing) for row in gathering.rows] == [
        (rigs.REFERENCE, Standing.SUCCESS),
        (dies.name, Standing.CRASH),
    ]
    assert gathering.rows[1].text == "the process died (exit code 3): compile"


@here
async def test_ctrl_c_in_a_terminal_does_not_reach_a_child(tmp_path: Path) -> None:
    """It would say where it was interrupted, if it still starts."""
    target = BenchTarget.of("tests.suites.benchmark_rig:TellsSession")
    benchmark = Benchmark((doubling(tmp_path),), (target,), (), rules=QUICK)
    gathering = Gathering("benchmark", "")
    async with open_children() as children:
        await run_benchmark(benchmark, children, gathering)
    assert gathering.rows[0].text == "the process died (exit code 7): compile"


@here
async def test_a_device_that_does_not_answer_hangs(tmp_path: Path) -> None:
    """However short the patience: what holds the compilation up would do so for ever."""
    hangs = BenchTarget.of("tests.suites.benchmark_rig:HangsInCompile")
    benchmark = Benchmark((doubling(tmp_path),), (hangs,), (), rules=QUICK)
    gathering = Gathering("benchmark", "")
    async with open_children(patience_s=0.01) as children:
        await run_benchmark(benchmark, children, gathering)
    (row,) = gathering.rows
    assert (row.standing, row.text) == (Standing.HANG, "no answer within 0.01 s")


async def test_patience_that_ends_while_the_child_starts_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[ChildProcess] = []
    start = ChildProcess.start

    async def noted(*arguments: Any, **options: Any) -> ChildProcess:
        started.append(await start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(ChildProcess, "start", noted)
    hangs = BenchTarget.of("tests.suites.benchmark_rig:HangsInCompile")
    benchmark = Benchmark((doubling(tmp_path),), (hangs,), (), rules=QUICK)
    async with open_children(patience_s=1e-9) as children:
        await run_benchmark(benchmark, children, Gathering("benchmark", ""))
    assert [await each.ended() for each in started] == [-signal.SIGKILL] * len(started)


@here
async def test_two_devices_share_a_network_that_each_takes_whole(tmp_path: Path) -> None:
    m = nn.ModelBuilder("chain")
    x = m.input("x", (4,))
    for _ in range(4):
        x = m.add(x, m.constant(np.ones(4, np.float32)))
    m.output("y", x)
    path = str(saved(tmp_path, m.build()))
    first, second = Faulty("first"), Faulty("second")
    async with rigs.runtime(rigs.REFERENCE, first, second) as runtime:
        job = MeasureJob(path, ("first", "second"), QUICK)
        measured = await measure(runtime, job, [(np.zeros((1, 4), np.float32),)])
    assert measured.plan == "first+second (whole model + whole model; 2 steps)"
    assert measured.outputs[0][0].tolist() == [[4, 4, 4, 4]]


def test_each_device_gets_an_even_share_of_what_it_takes() -> None:
    assert shares([[True] * 4, [True] * 4]) == [0, 0, 1, 1]
    assert shares([[True] * 4, [False, False, False, True]]) == [0, 0, 0, 1]
    assert shares([[True, True, False, True], [True] * 4]) == [0, 0, 1, 1]
    assert shares([[True] * 4, [False] * 4]) is None
    assert shares([[True, False], [True, False]]) is None


@here
async def test_a_benchmark_of_nothing_is_refused() -> None:
    async with open_children() as children:
        with pytest.raises(InvalidArgument, match="no network"):
            await run_benchmark(Benchmark((), (), ()), children, Gathering("benchmark", ""))


def test_names_of_targets() -> None:
    isolated, both, auto = targets_of(("isolated:a", "a+b", "auto", "auto"))
    assert (isolated.devices, isolated.isolated) == (("a",), True)
    assert both.devices == ("a", "b")
    assert auto.devices is None
    assert targets_of(())[-1] == auto
    with pytest.raises(InvalidArgument, match="names no device"):
        targets_of(("isolated:",))
