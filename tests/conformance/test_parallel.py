"""Plans in one process and in several, and workers that die."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path as FilePath
from typing import Any

import anyio
import msgspec
import pytest

from nnasync._core.child_process import ChildProcess
from nnasync.conformance import parallel
from nnasync.conformance.cases import Selection
from nnasync.conformance.parallel import run_parallel
from nnasync.conformance.plan import Plan, run_plan
from nnasync.conformance.progress_lines import Begun, Ended, Message, Stopped
from nnasync.conformance.results import CaseOutcome, CaseResult
from nnasync.errors import DeviceDied, GeneralFailure, InvalidArgument, NNError
from tests.conformance.small_cases import addition, quantized_sum, rectified, write

REFERENCE = "nnasync-reference"


@pytest.fixture
def folder(tmp_path: FilePath) -> FilePath:
    write(tmp_path / "a.jsonl", [addition(f"add_{n}") for n in range(8)])
    write(tmp_path / "b.jsonl.gz", [quantized_sum(), rectified(), addition("wrong", wrong=1)])
    return tmp_path


def results_of(plan: Plan, jobs: int) -> dict[str, CaseOutcome]:
    found: list[CaseResult] = []
    anyio.run(run_parallel, plan, jobs, found.append)
    assert len({each.name for each in found}) == len(found)
    return {each.name: each.outcome for each in found}


def test_plan_in_this_process(folder: FilePath) -> None:
    seen: list[str] = []
    plan = Plan(str(folder), REFERENCE)

    async def main() -> None:
        await run_plan(
            plan, lambda result: seen.append("-" + result.name), lambda case: seen.append(case.name)
        )

    anyio.run(main)
    assert seen[:4] == ["add_0", "-add_0", "add_1", "-add_1"]
    assert len(seen) == 2 * 11


def test_skipped_cases_and_selection(folder: FilePath) -> None:
    plan = Plan(str(folder), REFERENCE, Selection(spec="add"), skip=7)
    assert results_of(plan, 1) == {"add_7": CaseOutcome.PASSED, "add_quant8": CaseOutcome.PASSED}


def test_processes_share_the_cases(folder: FilePath) -> None:
    plan = Plan(str(folder), REFERENCE)
    alone = results_of(plan, 1)
    assert alone.pop("wrong") is CaseOutcome.FAILED
    assert set(alone.values()) == {CaseOutcome.PASSED}
    together = results_of(plan, 2)
    assert together.pop("wrong") is CaseOutcome.FAILED
    assert together == alone


def test_parts_of_parts(folder: FilePath) -> None:
    parts = [
        results_of(Plan(str(folder), REFERENCE, Selection(part=part, parts=2)), 1)
        for part in (0, 1)
    ]
    assert len(parts[0]) + len(parts[1]) == 11
    assert results_of(Plan(str(folder), REFERENCE, Selection(part=1, parts=2)), 2) == parts[1]


def test_what_is_wrong_with_a_plan_is_told(folder: FilePath) -> None:
    (folder / "c.jsonl").write_text("{}\n")
    for jobs in (1, 2):
        with pytest.raises((NNError, ExceptionGroup)) as caught:
            results_of(Plan(str(folder / "c.jsonl"), REFERENCE), jobs)
        error: BaseException = caught.value
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        assert isinstance(error, InvalidArgument | GeneralFailure)
        assert "c.jsonl:1: not a conformance case" in str(error)


def test_unknown_device(folder: FilePath) -> None:
    with pytest.raises(InvalidArgument, match="no device 'none'"):
        results_of(Plan(str(folder), "none"), 1)


# -- what workers say and how they die


def worker(*said: Message, end: str = "") -> tuple[str, ...]:
    """A worker that says this, then ends in some way."""
    lines = b"\n".join([*(msgspec.json.encode(each) for each in said), b""]).decode()
    script = (
        f"import os, sys; sys.stdin.readline(); os.write(1, {lines!r}.encode()); {end or 'pass'}"
    )
    return ("-c", script)


BEGUN = Begun("crashing", "spec", "some.jsonl", ("ADD",))
DEAD_FIRST = (
    "import json, os, sys\n"
    "plan = json.loads(sys.stdin.readline())\n"
    "if plan['skip'] == 0:\n"
    f"    os.write(1, {msgspec.json.encode(BEGUN)!r} + b'\\n')\n"
    "    os.abort()\n"
    f"os.write(1, {msgspec.json.encode(Ended())!r} + b'\\n')\n"
)


def test_a_worker_that_dies_costs_one_case(
    folder: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "WORKER", ("-c", DEAD_FIRST))
    found: list[CaseResult] = []
    anyio.run(run_parallel, Plan(str(folder), REFERENCE), 2, found.append)
    assert [each.name for each in found] == ["crashing"] * 2
    assert found[0].outcome is CaseOutcome.FAILED
    assert found[0].runs[0].reason == "the process of the device died: SIGABRT"


@pytest.mark.parametrize(
    ("command", "kind", "message"),
    [
        (worker(end="sys.exit(3)"), DeviceDied, "exit code 3, between two cases"),
        (worker(Stopped("no such thing")), GeneralFailure, "no such thing"),
        (("-c", "print('hello')"), GeneralFailure, "what is no message"),
        (("-c", "print('x' * 2**21)"), GeneralFailure, "too long"),
    ],
)
def test_a_worker_that_cannot_go_on(
    folder: FilePath,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    kind: type[Exception],
    message: str,
) -> None:
    monkeypatch.setattr(parallel, "WORKER", command)
    with pytest.raises(ExceptionGroup) as caught:
        results_of(Plan(str(folder), REFERENCE), 2)
    errors = caught.value.exceptions
    assert all(isinstance(error, kind) for error in errors)
    assert message in str(errors[0])


def test_workers_are_killed_when_nobody_waits(
    folder: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipe on which they would speak closes, and they leave no process behind."""
    processes: list[ChildProcess] = []
    start = ChildProcess.start

    async def spying(*arguments: Any, **options: Any) -> ChildProcess:
        processes.append(await start(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(parallel, "WORKER", ("-c", "import signal; signal.pause()"))
    monkeypatch.setattr(ChildProcess, "start", spying)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_parallel, Plan(str(folder), REFERENCE), 2, print)
            with anyio.fail_after(20):
                while len(processes) < 2:
                    await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

    anyio.run(main)
    assert [anyio.run(process.ended) for process in processes] == [-signal.SIGKILL] * 2


def test_worker_speaks_json_lines_only(folder: FilePath) -> None:
    plan = Plan(str(folder / "b.jsonl.gz"), REFERENCE)
    done = subprocess.run(
        [sys.executable, "-m", "nnasync.conformance.worker"],
        input=msgspec.json.encode(plan),
        capture_output=True,
        check=True,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [message["type"] for message in said] == ["begun", "done"] * 3 + ["ended"]
    assert said[0]["name"] == said[1]["result"]["name"] == "add_quant8"
    assert done.stderr == b""


def test_worker_tells_why_it_stops(folder: FilePath) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nnasync.conformance.worker"],
        input=msgspec.json.encode(Plan(str(folder / "none"), REFERENCE)),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    (message,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert message["type"] == "stopped"
    assert "no case files" in message["reason"]
