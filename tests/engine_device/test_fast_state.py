"""The fast state of a burst: left when nobody calls for long, entered again by the next call."""

from __future__ import annotations

import pytest

from nnasync._core.clock import Watchdog
from nnasync._core.engine_device.fast_state import FAST_STATE_LOOKS, FastState
from nnasync._core.workers import Workers
from nnasync.tracing import Tracer


class Owner:
    """The client's end."""


@pytest.fixture
def workers() -> Workers:
    return Workers(
        cores=1,
        inline_budget_ns=0,
        stall_budget_ns=0,
        queue_limit=1,
        watchdog=Watchdog(),
        tracer=Tracer(),
    )


@pytest.fixture
def fast_state(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> FastState:
    monkeypatch.setattr(workers._crew, "start", lambda priorities: None)
    return FastState(workers)


def hot(workers: Workers) -> int:
    return workers.statistics().hot


def test_it_cools_after_many_looks_without_a_call(workers: Workers, fast_state: FastState) -> None:
    assert fast_state.look()
    for _ in range(FAST_STATE_LOOKS - 1):
        assert fast_state.look()
        assert fast_state.is_hot
    assert fast_state.look()
    assert (fast_state.is_hot, hot(workers)) == (False, 0)
    assert fast_state.look()
    assert hot(workers) == 0


def test_calls_keep_it_hot(workers: Workers, fast_state: FastState) -> None:
    for look in range(5 * FAST_STATE_LOOKS):
        if look % FAST_STATE_LOOKS == 0:
            fast_state.touch()
        fast_state.look()
    assert (fast_state.is_hot, hot(workers)) == (True, 1)


def test_a_call_heats_it_again(workers: Workers, fast_state: FastState) -> None:
    for _ in range(FAST_STATE_LOOKS + 1):
        fast_state.look()
    fast_state.touch()
    fast_state.touch()
    assert (fast_state.is_hot, hot(workers)) == (True, 1)
    fast_state.look()
    assert fast_state.is_hot


def test_leaving_is_for_good(workers: Workers, fast_state: FastState) -> None:
    fast_state.leave()
    fast_state.leave()
    fast_state.touch()
    assert (fast_state.is_hot, hot(workers)) == (False, 0)
    assert not fast_state.look()


def test_it_ends_with_its_owner(workers: Workers, fast_state: FastState) -> None:
    owner = Owner()
    fast_state.belongs_to(owner)
    assert fast_state.look()
    del owner
    assert not fast_state.look()
    assert hot(workers) == 0
