"""Verdicts: a model is measured once, and what lies in the folder is not trusted."""

from __future__ import annotations

import itertools
import os
import stat
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import nnasync as nn
from nnasync import devices
from nnasync._core.compilation.choice import Choice, Part
from nnasync._core.compilation.report import Candidate
from nnasync._core.compilation.spec import CompileSpec
from nnasync._core.compilation.verdicts import Circumstances, Question, Verdict, Verdicts
from nnasync._core.engine_device.warmup import WARMUP_CALLS
from nnasync._core.state_files import machine, read_state, state_folder, write_state
from tests.compilation.rig import FakeEngine, ManualClock, competing, question, way
from tests.compilation.rig import clock as clock
from tests.compilation.test_caching import KeepingEngine
from tests.rigs import ROW, calculator, doubler

pytestmark = [
    pytest.mark.filterwarnings("ignore:network .* was dropped:ResourceWarning"),
    pytest.mark.one_loop("Measurements are kept the same on every loop."),
]

A, B = Choice((Part("a", "1"),)), Choice((Part("b", "1"),))
LINES = (Candidate("a", "f32", 1.5, "equal", "slower"), Candidate("b", "f32", 1.0, "x", "chosen"))


def the_file(folder: Path) -> Path:
    (path,) = folder.glob("*.json")
    return path


def test_a_verdict_without_the_file_as_it_is_answers_no_question_with_it() -> None:
    def asked(**terms: Any) -> Question:
        return CompileSpec(source=doubler(), fingerprint=b"m", devices=(), **terms).question

    whole = doubler
    assert asked(whole=whole) != asked() == asked(whole=whole, preemption_quantum_ms=1)


def test_a_verdict_is_found_again(tmp_path: Path) -> None:
    Verdicts(tmp_path / "v").keep(question(), B, LINES)
    found = Verdicts(tmp_path / "v").find(question())
    assert found is not None
    assert (found.chosen, found.candidates) == (B, LINES)


def test_it_is_told_which_models_are_known(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path / "v")
    assert not verdicts.know("m")
    verdicts.keep(question(), B, LINES)
    assert verdicts.know("m")
    assert not verdicts.know("other")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "other"},
        {"devices": (("b", "1"), ("a", "1"))},
        {"devices": (("b", "1"),)},
        {"devices": (("a", "1"), ("b", "2"))},
        {"library": "2"},
        {"judge": "r 2"},
        {"preference": 0},
        {"precision": "exact"},
        {"cores": 3},
        {"code": {"a": "1"}},
    ],
)
def test_another_question_has_another_answer(tmp_path: Path, changes: dict[str, Any]) -> None:
    verdicts = Verdicts(tmp_path)
    verdicts.keep(question(), B, LINES)
    assert verdicts.find(question(**changes)) is None
    assert verdicts.find(question()) is not None


@pytest.mark.parametrize("other", [{"model": "o"}, {"devices": (("b", "1"),)}, {"cores": 1}])
def test_the_answer_to_another_question_is_not_taken(tmp_path: Path, other: Any) -> None:
    """Somebody put it under this question's name."""
    verdicts = Verdicts(tmp_path)
    verdicts.keep(question(), B, LINES)
    path = the_file(tmp_path)
    path.write_bytes(msgspec.json.encode(Verdict(question(**other), machine(), B, LINES)))
    assert verdicts.find(question()) is None


def spoilt(data: bytes) -> list[bytes]:
    verdict = msgspec.json.decode(data)
    return [
        b"",
        b"\0",
        b"garbage",
        b"[" * 100_000,
        data[:-1],
        data + b"x",
        data + b" " * (1 << 19),
        msgspec.json.encode(verdict | {"chosen": Choice((Part("c", "1"),))}),
        msgspec.json.encode(verdict | {"chosen": Choice(())}),
        msgspec.json.encode(verdict | {"chosen": 1}),
        msgspec.json.encode(verdict | {"chosen": "1"}),
        msgspec.json.encode(verdict | {"machine": "other"}),
        msgspec.json.encode(verdict | {"format": 99}),
        msgspec.json.encode(verdict | {"candidates": verdict["candidates"] * 1000}),
    ]


def test_what_is_damaged_is_ignored(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path)
    verdicts.keep(question(), B, LINES)
    path = the_file(tmp_path)
    whole = path.read_bytes()
    for data in spoilt(whole):
        path.write_bytes(data)
        assert verdicts.find(question()) is None, data[:80]
    path.write_bytes(whole)
    assert verdicts.find(question()) is not None


def test_the_oldest_go_first(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path, max_entries=3)
    for index in range(3):
        verdicts.keep(question(f"{index}"), B, LINES)
    for age, path in enumerate(sorted(tmp_path.glob("*.json"), key=os.path.getmtime)):
        os.utime(path, ns=(age * 10**9, age * 10**9))
    assert verdicts.find(question("0")) is not None  # now it is the latest
    verdicts.keep(question("3"), B, LINES)
    kept = [index for index in "0123" if verdicts.find(question(index))]
    assert len(kept) == 3
    assert {"0", "3"} <= set(kept)


# -- the folder


def test_the_folder_comes_from_the_environment(
    state_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nnasync._core import state_files

    assert state_files.state_folder() == str(state_folder)
    monkeypatch.delenv("NNASYNC_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert state_files.state_folder() == "/somewhere/nnasync"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "/nobody")
    assert state_files.state_folder() == "/nobody/.local/state/nnasync"


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    assert write_state(path, b"one")
    assert write_state(path, b"two")
    assert read_state(path, 10) == b"two"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_what_is_not_a_file_of_ours_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_state(path, b"12345")
    assert read_state(path, 4) is None
    (tmp_path / "link").symlink_to(path)
    assert read_state(tmp_path / "link", 10) is None
    os.mkfifo(tmp_path / "fifo")
    assert read_state(tmp_path / "fifo", 10) is None
    assert read_state(tmp_path, 10) is None
    assert read_state(tmp_path / "none", 10) is None


def test_a_folder_that_cannot_be_written_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert not write_state(tmp_path / "file" / "x", b"data")
    Verdicts(tmp_path / "file").keep(question(), B, LINES)
    assert Verdicts(tmp_path / "file").find(question()) is None


# -- compiling


def rivals(clock: ManualClock) -> tuple[FakeEngine, FakeEngine]:
    return FakeEngine("a", clock, way(us=100)), FakeEngine("b", clock, way(us=50))


@pytest.mark.anyio
async def test_a_model_is_measured_once(clock: ManualClock) -> None:
    async with competing(*rivals(clock)) as rt:
        first = (await rt.compile(doubler())).report()
    measured = clock.now_ns
    a, b = rivals(clock)
    async with competing(a, b) as rt:
        net = await rt.compile(doubler())
        assert (a.compiled, b.compiled) == ([], ["f32*1"])
        # A sample, for it is a driver of others, one try and the warm-up calls, so that the first
        # call finds it warm; and no contest.
        assert clock.now_ns == measured + (2 + WARMUP_CALLS) * 50_000
        assert net.report().partitions[0].reason.endswith("as measured before")
        assert net.report().candidates == first.candidates
        assert net.report().pin == first.pin
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        await rt.compile(calculator())
        assert clock.now_ns > measured


@pytest.mark.anyio
@pytest.mark.parametrize("change", ["version", "lowerings", "cores", "preference"])
async def test_whatever_changes_it_is_measured_anew(clock: ManualClock, change: str) -> None:
    async with competing(*rivals(clock)) as rt:
        await rt.compile(doubler())
    measured = clock.now_ns
    a, b = rivals(clock)
    preference, cores = nn.Preference.FAST_SINGLE_ANSWER, 2
    if change == "version":
        b.version = "2"
    elif change == "lowerings":
        a.ways.append(way("int8", us=70))
    elif change == "cores":
        cores = 1
    else:
        preference = nn.Preference.SUSTAINED_SPEED
    async with competing(a, b, cores=cores) as rt:
        await rt.compile(doubler(), preference=preference)
    assert clock.now_ns > measured


@pytest.mark.anyio
async def test_a_disturbed_contest_is_held_again_three_times_in_all(clock: ManualClock) -> None:
    """Half of each run somebody else had the core."""
    held = []
    for _ in range(5):
        a, b = FakeEngine("a", clock, way(us=100, cpu_us=50)), FakeEngine("b", clock, way(us=60))
        measured = clock.now_ns
        async with competing(a, b) as rt:
            net = await rt.compile(doubler())
            (partition,) = net.report().partitions
            assert partition.device == "b"
            assert "(other work disturbed the measuring)" in partition.reason
        held.append(clock.now_ns - measured > 10_000_000)
    assert held == [True, True, True, False, False]


@pytest.mark.anyio
async def test_one_that_was_not_disturbed_is_the_last(clock: ManualClock) -> None:
    chosen, held = [], []
    for us, cpu_us in ((100, 50), (50, 50), (100, 50), (100, 50)):
        a = FakeEngine("a", clock, way(us=us, cpu_us=cpu_us))
        b = FakeEngine("b", clock, way(us=60))
        measured = clock.now_ns
        async with competing(a, b) as rt:
            chosen.append((await rt.compile(doubler())).report().partitions[0].device)
        held.append(clock.now_ns - measured > 10_000_000)
    assert chosen == ["b", "a", "a", "a"]
    assert held == [True, True, False, False]


def test_a_disturbed_contest_does_not_replace_a_quiet_one(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path)
    quiet = verdicts.keep(question(), B, LINES, Circumstances.of(1, 1, None))
    disturbed = Circumstances.of(2, 1.5, quiet.circumstances)
    assert verdicts.keep(question(), A, LINES[::-1], disturbed, quiet) == quiet
    assert verdicts.find(question()) == quiet


def test_of_two_disturbed_ones_the_quieter_stands(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path)
    first = verdicts.keep(question(), B, LINES, Circumstances.of(1, 1.5, None))
    worse = Circumstances.of(2, 2, first.circumstances)
    second = verdicts.keep(question(), A, LINES[::-1], worse, first)
    assert (second.chosen, second.candidates) == (B, LINES)
    assert second.circumstances == Circumstances(2, 1.5, 2)
    better = Circumstances.of(3, 1.4, second.circumstances)
    third = verdicts.keep(question(), A, LINES[::-1], better, second)
    assert (third.chosen, third.circumstances) == (A, better)
    assert verdicts.find(question()) == third


@pytest.mark.anyio
async def test_who_is_far_ahead_is_remembered_too(clock: ManualClock) -> None:
    """Nobody is left whom it would take turns with."""
    for again in (False, True):
        async with competing(FakeEngine("a", clock, way(us=5000)), FakeEngine("b", clock)) as rt:
            report = (await rt.compile(doubler())).report()
        assert report.partitions[0].device == "b"
        assert report.partitions[0].reason.endswith("as measured before") == again


@pytest.mark.anyio
async def test_a_provisional_verdict_is_taken_while_the_machine_is_busy(clock: ManualClock) -> None:
    held = []
    for is_quiet in (False, False, False, True):
        clock.is_quiet = is_quiet
        a, b = FakeEngine("a", clock, way(us=100, cpu_us=50)), FakeEngine("b", clock, way(us=60))
        measured = clock.now_ns
        async with competing(a, b) as rt:
            await rt.compile(doubler())
        held.append(clock.now_ns - measured > 10_000_000)
    assert held == [True, False, False, True]


@pytest.mark.anyio
async def test_what_a_disturbed_contest_chose_is_taken_from_the_cache_while_it_is_busy(
    clock: ManualClock, tmp_path: Path
) -> None:
    hits = []
    b = KeepingEngine("b", clock, way(us=60, cpu_us=30))
    for is_quiet in (False, False, True):
        clock.is_quiet = is_quiet
        async with competing(FakeEngine("a", clock, way(us=100, cpu_us=50)), b) as rt:
            report = (await rt.compile(doubler(), cache_dir=tmp_path / "cache")).report()
            hits.append((report.cache_hit, report.cache_reason))
    assert [hit for hit, _ in hits] == [False, True, False]
    assert hits[2][1].startswith("other work disturbed the measuring")


@pytest.mark.anyio
@pytest.mark.parametrize("which", ["doubler", "all", "another"])
async def test_what_is_forgotten_is_measured_again_and_not_taken_from_a_cache(
    clock: ManualClock, tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count(1_700_000_000)
    for module in ("competition", "verdict_list"):
        today = SimpleNamespace(time=lambda: next(seconds), process_time_ns=time.process_time_ns)
        monkeypatch.setattr(f"nnasync._core.compilation.{module}.time", today)
    b = KeepingEngine("b", clock, way(us=60))
    found = []
    for number in range(4):
        if number == 2:
            assert [(each.name, each.device) for each in devices.verdicts()[0]] == [
                ("doubler", "b")
            ]
            assert devices.forget_verdicts(which) == (which != "another")
        measured = clock.now_ns
        async with competing(FakeEngine("a", clock, way(us=100)), b) as rt:
            report = (await rt.compile(doubler(), cache_dir=tmp_path / "cache")).report()
        found.append((report.cache_hit, clock.now_ns - measured > 10_000_000))
        reason = report.cache_reason
    assert reason == "hit"
    again = [(True, False)] * 2 if which == "another" else [(False, True), (True, False)]
    assert found == [(False, True), (True, False), *again]


@pytest.mark.anyio
@pytest.mark.parametrize("error", [0, 100])
async def test_a_driver_of_others_answers_a_sample_again(
    clock: ManualClock, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own files are the same, but not what it computes with."""
    async with competing(*rivals(clock)) as rt:
        await rt.compile(doubler())
    a, b = rivals(clock)
    b.ways[0] = way(us=50, error=error)
    async with competing(a, b) as rt:
        report = (await rt.compile(doubler())).report()
    assert report.partitions[0].device == ("a" if error else "b")
    assert report.partitions[0].reason.endswith("as measured before") == (not error)
    assert ("does not any more" in caplog.text) == bool(error)


@pytest.mark.anyio
async def test_a_winner_that_fails_now_is_measured_against_again(clock: ManualClock) -> None:
    async with competing(*rivals(clock)) as rt:
        await rt.compile(doubler())
    a, b = rivals(clock)
    b.ways[0] = way(us=50, compile_fault=RuntimeError("not today"))
    async with competing(a, b) as rt:
        net = await rt.compile(doubler())
        assert net.report().partitions[0].device == "a"


@pytest.mark.anyio
async def test_garbage_in_the_folder_is_measured_over(clock: ManualClock) -> None:
    async with competing(*rivals(clock)) as rt:
        await rt.compile(doubler())
        path = the_file(Path(state_folder()) / "verdicts")
        path.write_bytes(b'{"chosen": 7}')
        measured = clock.now_ns
        net = await rt.compile(doubler())
        assert clock.now_ns > measured
        assert net.report().partitions[0].device == "b"
        assert Verdict is type(msgspec.json.decode(path.read_bytes(), type=Verdict))


def test_the_machine_is_told_without_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from nnasync._core import state_files

    def started(*args: Any, **options: Any) -> Any:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", started)
    assert state_files.machine.__wrapped__() == machine()
