"""The fast state of a burst: left when nobody calls for long, entered again by the next call."""

from __future__ import annotations

import pytest

from nnasync.clock import Watchdog
from nnasync.engine_device.fast_state import COOLS_AFTER_LOOKS, Heat
from nnasync.tracing import Tracer
from nnasync.workers import Workers


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
def heat(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Heat:
    monkeypatch.setattr(workers, "_start", lambda priorities: None)
    return Heat(workers)


def hot(workers: Workers) -> int:
    return workers.statistics().hot


def test_it_cools_after_many_looks_without_a_call(workers: Workers, heat: Heat) -> None:
    assert heat.look()
    for _ in range(COOLS_AFTER_LOOKS - 1):
        assert heat.look()
        assert heat.is_hot
    assert heat.look()
    assert (heat.is_hot, hot(workers)) == (False, 0)
    assert heat.look()
    assert hot(workers) == 0


def test_calls_keep_it_hot(workers: Workers, heat: Heat) -> None:
    for look in range(5 * COOLS_AFTER_LOOKS):
        if look % COOLS_AFTER_LOOKS == 0:
            heat.touch()
        heat.look()
    assert (heat.is_hot, hot(workers)) == (True, 1)


def test_a_call_heats_it_again(workers: Workers, heat: Heat) -> None:
    for _ in range(COOLS_AFTER_LOOKS + 1):
        heat.look()
    heat.touch()
    heat.touch()
    assert (heat.is_hot, hot(workers)) == (True, 1)
    heat.look()
    assert heat.is_hot


def test_leaving_is_for_good(workers: Workers, heat: Heat) -> None:
    heat.leave()
    heat.leave()
    heat.touch()
    assert (heat.is_hot, hot(workers)) == (False, 0)
    assert not heat.look()


def test_it_ends_with_its_owner(workers: Workers, heat: Heat) -> None:
    owner = Owner()
    heat.belongs_to(owner)
    assert heat.look()
    del owner
    assert not heat.look()
    assert hot(workers) == 0
