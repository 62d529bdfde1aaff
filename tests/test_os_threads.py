"""Threads as the system sees them: their numbers, processor time, niceness, the lowest priority."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest

from nnasync._core.os_threads import demote, make_nicer, niceness, ran_ns, threads_of_others

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells this")


@linux_only
def test_a_thread_of_python_is_none_of_the_others() -> None:
    mine: list[int] = []
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        mine.append(threading.get_native_id())
        begun.set()
        over.wait()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    assert str(mine[0]) in os.listdir("/proc/self/task")
    assert not threads_of_others() & {mine[0], threading.get_native_id()}
    over.set()
    thread.join()


@linux_only
def test_processor_time_is_that_of_the_thread() -> None:
    me = threading.get_native_id()
    before = ran_ns(me)
    assert before is not None
    spent_ns = time.thread_time_ns()
    while time.thread_time_ns() - spent_ns < 2_000_000:
        pass
    after = ran_ns(me)
    assert after is not None
    assert after - before >= 2_000_000


def test_an_unknown_thread_has_no_time() -> None:
    assert ran_ns(2**22 + 1) is None


def test_nothing_is_known_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert ran_ns(threading.get_native_id()) is None
    monkeypatch.setattr("nnasync._core.os_threads._TASKS", "/nowhere")
    assert threads_of_others() == frozenset()


@linux_only
def test_who_gives_way_is_in_the_idle_class_and_the_others_are_not() -> None:
    found: list[object] = []

    def work() -> None:
        found.append(demote(threading.get_native_id()))
        found.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True, os.SCHED_IDLE]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@linux_only
@pytest.mark.parametrize(
    ("wanted", "has"), [((3,), 3), ((5, 2), 5), ((99,), 19)], ids=["once", "twice", "too much"]
)
def test_one_thread_is_made_nicer_and_never_less_so(wanted: tuple[int, ...], has: int) -> None:
    found, policies = list[int](), list[int]()
    mine = niceness()

    def work() -> None:
        for more in wanted:
            make_nicer(mine + more)
        found.append(niceness())
        policies.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [min(mine + has, 19)]
    assert policies == [os.SCHED_BATCH]
    assert niceness() == mine


def test_where_threads_have_no_niceness_of_their_own_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = niceness()
    monkeypatch.setattr(sys, "platform", "darwin")
    make_nicer(before + 5)
    assert niceness() == before
    monkeypatch.delattr(os, "getpriority", raising=False)
    assert niceness() == 0


@linux_only
def test_a_thread_that_is_gone_gives_no_way() -> None:
    assert not demote(2**22 + 1)


def test_without_such_a_class_nothing_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "setpriority", raising=False)
    assert not demote(threading.get_native_id())
