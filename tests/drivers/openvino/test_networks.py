"""Copies of a compiled network, so that executions at once do not wait for each other."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from nnasync._core.drivers.openvino import OpenVinoEngine
from nnasync._core.drivers.openvino.networks import SHARED, Networks
from nnasync._core.workers import StopFlag
from nnasync.engine import Lowering
from nnasync.errors import GeneralFailure
from nnasync.hal import Array
from tests.drivers.openvino.rig import FAST, PRECISE, compiled_product, model_of, product

NUMBER = 4


def copies_made() -> None:
    """Wait for the copies that are being made."""
    for thread in threading.enumerate():
        if thread.name == "nnasync-copying":
            thread.join()


def test_who_finds_none_free_shares_and_has_a_copy_made() -> None:
    made = iter(["second", "third"])
    networks = Networks("first", lambda: next(made), 3)
    assert (networks.take(), networks.all) == (0, ["first"])
    assert networks.take() == SHARED
    copies_made()
    assert networks.take() == 1
    assert networks.take() == SHARED
    copies_made()
    assert networks.take() == 2
    for number in (SHARED, 2):
        networks.give_back(number)
    assert networks.take() == 2
    assert networks.take() == SHARED
    copies_made()
    assert networks.all == ["first", "second", "third"]


def test_one_that_cannot_be_copied_is_shared_for_good(caplog: pytest.LogCaptureFixture) -> None:
    tried: list[int] = []

    def copy() -> str:
        tried.append(1)
        raise GeneralFailure("it cannot be exported")

    networks = Networks("first", copy, 4)
    networks.take()
    for _ in range(3):
        assert networks.take() == SHARED
        copies_made()
    assert len(tried) == 1
    assert caplog.text.count("it cannot be exported") == 1


def test_without_a_thread_the_next_one_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    networks = Networks("first", lambda: "second", 2)
    networks.take()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert networks.take() == SHARED
    assert networks.take() == SHARED
    copies_made()
    assert networks.take() == 1


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_copy_computes_the_same(is_imported: bool) -> None:
    plan = compiled_product()
    if is_imported:
        engine = OpenVinoEngine()
        engine.cores = 2
        plan = engine.deserialize(engine.serialize(plan), PRECISE)
    x = np.asarray([[1, 2, 3], [4, 5, 6]], np.float32)
    y = np.zeros((2, NUMBER), np.float32)
    call, networks = plan.bind([x], [y]), plan.networks
    assert call.run(StopFlag())
    expected: Array = y.copy()
    assert (networks.take(), networks.take()) == (0, SHARED)
    copies_made()
    assert len(networks.all) == 2
    for _ in range(2):
        y[...] = -1
        assert call.run(StopFlag())
        assert (y == expected).all()
        assert networks.take() == 1
        networks.give_back(1)
    networks.give_back(0)
    plan.trim()
    assert call.run(StopFlag())
    assert (y == expected).all()


def test_as_many_as_the_cores_have_room_for_and_as_many_that_go_ahead_of_them() -> None:
    engine = OpenVinoEngine()
    engine.cores = 5
    plan = engine.compile(model_of(product), FAST, Lowering("f32", 2))
    for _ in range(6):
        plan.networks.take()
        copies_made()
    assert len(plan.networks.all) == 4


def test_a_plan_goes_with_its_last_user() -> None:
    plan = compiled_product()
    plan.networks.take()
    plan.networks.take()
    copies_made()
    gone = weakref.ref(plan.networks)
    gc.collect()
    gc.disable()
    try:
        del plan
        assert gone() is None
    finally:
        gc.enable()
