"""Real-time priority: asked for, given back, followed by threads that wait for deadlines."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

import nnasync as nn
from nnasync._core import real_time
from nnasync._core.clock import Watchdog, now_ns
from nnasync._core.real_time import Policy, RealTime
from nnasync.errors import InvalidArgument
from tests.system_policies import USUAL, System

WAIT_S = 30

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the policies are those of Linux")


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    return System().stand_in(monkeypatch)


@pytest.fixture
def wish(monkeypatch: pytest.MonkeyPatch) -> RealTime:
    found = RealTime()
    for module in ("clock", "runtime.process_settings"):
        monkeypatch.setattr(f"nnasync._core.{module}.REAL_TIME", found)
    return found


def in_real_time(policy: Policy) -> bool:
    flag = os.SCHED_RESET_ON_FORK
    return policy.number == os.SCHED_RR | flag and policy.priority == 3


def test_a_thread_gets_it_and_gives_it_back(system: System) -> None:
    wish = RealTime()
    wish.enter()
    assert in_real_time(system.here())
    wish.leave()
    assert system.here() == USUAL


def test_it_is_wanted_until_the_last_runtime_is_closed(system: System) -> None:
    wish = RealTime()
    wish.enter()
    wish.enter()
    wish.leave()
    assert (in_real_time(system.here()), wish.is_wanted) == (True, True)
    wish.leave()
    assert (system.here(), wish.is_wanted) == (USUAL, False)


def test_what_a_program_has_chosen_itself_stays(system: System) -> None:
    chosen = Policy(os.SCHED_FIFO, 5)
    system.policies[threading.get_ident()] = chosen
    wish = RealTime()
    wish.enter()
    assert system.here() == chosen
    wish.leave()
    assert system.here() == chosen


def test_without_permission_it_says_what_it_takes(system: System) -> None:
    system.permits = False
    wish = RealTime()
    with pytest.raises(InvalidArgument, match="RLIMIT_RTPRIO of 3"):
        wish.enter()
    assert not wish.is_wanted


def test_without_privileges_the_flag_stays_behind(system: System) -> None:
    system.clears_flag = False
    wish = RealTime()
    wish.enter()
    wish.leave()
    assert system.here() == Policy(os.SCHED_RESET_ON_FORK, 0)


def test_a_child_of_the_process_wants_nothing(system: System) -> None:
    wish = RealTime()
    wish.enter()
    wish.forget()
    assert not wish.is_wanted
    del system.policies[threading.get_ident()]  # The system gave the child none.
    wish.enter()
    assert (in_real_time(system.here()), wish.is_wanted) == (True, True)


def test_a_system_without_policies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getscheduler")
    with pytest.raises(InvalidArgument, match="no real-time threads"):
        RealTime().enter()


def called_on(watchdog: Watchdog, what: Callable[[], Policy]) -> Policy:
    """What the thread of a watchdog finds."""
    found: Future[Policy] = Future()
    watchdog.arm(now_ns(), lambda: found.set_result(what()))
    return found.result(WAIT_S)


def test_a_thread_of_deadlines_follows(system: System, wish: RealTime) -> None:
    watchdog = Watchdog()
    try:
        assert called_on(watchdog, system.here) == USUAL
        wish.enter()
        called_on(watchdog, system.here)  # It sees the wish before it waits again.
        assert in_real_time(called_on(watchdog, system.here))
        wish.leave()
        called_on(watchdog, system.here)
        assert called_on(watchdog, system.here) == USUAL
    finally:
        watchdog.close()


@pytest.mark.anyio
async def test_an_open_runtime_has_it(system: System, wish: RealTime) -> None:
    options = nn.Options(real_time=True)
    async with nn.open_runtime(devices=["nnasync-reference"], options=options):
        assert (in_real_time(system.here()), wish.is_wanted) == (True, True)
    assert (system.here(), wish.is_wanted) == (USUAL, False)


@pytest.mark.anyio
@pytest.mark.one_loop("on trio a runtime belongs to a block")
async def test_runtimes_of_one_loop_are_closed_in_any_order(system: System, wish: RealTime) -> None:
    options = nn.Options(real_time=True)
    first = await nn.open_runtime(devices=["nnasync-reference"], options=options)
    async with nn.open_runtime(devices=["nnasync-reference"], options=options):
        await first.aclose()
        assert (in_real_time(system.here()), wish.is_wanted) == (True, True)
    assert (system.here(), wish.is_wanted) == (USUAL, False)


@pytest.mark.anyio
async def test_a_runtime_that_may_not_have_it_does_not_open(system: System, wish: RealTime) -> None:
    system.permits = False
    options = nn.Options(real_time=True)
    with pytest.raises(InvalidArgument, match="CAP_SYS_NICE"):
        async with nn.open_runtime(devices=["nnasync-reference"], options=options):
            pass
    assert system.here() == USUAL


def test_the_system_takes_what_is_asked_for() -> None:
    """With the real calls, on a thread of its own, where this process may."""
    found: Future[tuple[Policy, Policy, Policy]] = Future()

    def work() -> None:
        wish = RealTime()
        try:
            wish.enter()
            inside, child = Policy.here(), Future[Policy]()
            thread = threading.Thread(target=lambda: child.set_result(Policy.here()))
            thread.start()
            thread.join()
            wish.leave()
            found.set_result((inside, child.result(), Policy.here()))
        except BaseException as error:
            found.set_exception(error)

    thread = threading.Thread(target=work)
    before = Policy.here()
    thread.start()
    thread.join()
    if isinstance(found.exception(), InvalidArgument):
        pytest.skip("this process may not have real-time threads")
    inside, child, after = found.result()
    if before.number & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER:
        assert in_real_time(inside)
    assert child.number & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER
    assert after.number & ~os.SCHED_RESET_ON_FORK == before.number & ~os.SCHED_RESET_ON_FORK
    assert real_time.REAL_TIME.is_wanted is False
