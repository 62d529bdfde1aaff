"""The guards of conftest.py find what they are there to find."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import anyio.lowlevel
import pytest

from tests.conftest import StallWatch, kept_open, loop_poster, open_descriptors, our_threads

pytestmark = pytest.mark.anyio


async def test_callback_that_computes_is_found(anyio_backend: Any) -> None:
    watch = StallWatch(loop_poster(anyio_backend[0]))
    watch.start()
    end = time.thread_time() + 30
    while not watch.stalls and time.thread_time() < end:
        sum(range(1000))
    watch.close()
    assert "test_callback_that_computes" in watch.stalls[0]


async def test_callback_that_waits_for_a_thread_is_found(anyio_backend: Any) -> None:
    watch = StallWatch(loop_poster(anyio_backend[0]))
    found = threading.Event()
    watch.stalls = Told(found)
    watch.start()
    assert found.wait(30)
    watch.close()
    assert "found.wait" in watch.stalls[0]


async def test_loop_that_has_no_core_is_not_blamed(
    anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some thread could run, and for many times the limit the process gets no processor time."""
    watch = StallWatch(loop_poster(anyio_backend[0]))
    slices, past = 3 * round(watch.limit_s / watch.slice_s), threading.Event()

    def could_run() -> bool:
        nonlocal slices
        slices -= 1
        if slices == 0:
            past.set()
        return True

    monkeypatch.setattr(watch, "_others_could_run", could_run)
    monkeypatch.setattr(time, "process_time", lambda: 1.0)
    watch.start()
    assert past.wait(30)
    watch.close()
    assert watch.stalls == []


class Told(list[str]):
    """A list that says when something is appended."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self.event = event

    def append(self, item: str) -> None:
        super().append(item)
        self.event.set()


async def test_loop_that_turns_is_not_blamed(anyio_backend: Any) -> None:
    """CPU time well above the limit, in callbacks that are each short."""
    watch = StallWatch(loop_poster(anyio_backend[0]))
    watch.start()
    end = time.thread_time() + 2 * watch.limit_s
    while time.thread_time() < end:
        sum(range(1000))
        await anyio.lowlevel.checkpoint()
    watch.close()
    assert watch.stalls == []


def test_threads_of_ours_are_known_by_name() -> None:
    gate = threading.Event()
    ours = threading.Thread(target=gate.wait, name="nnasync-worker")
    other = threading.Thread(target=gate.wait, name="somebody")
    before = our_threads()
    ours.start()
    other.start()
    assert our_threads() - before == {ours}
    gate.set()
    ours.join()
    other.join()


def test_open_descriptors_are_seen() -> None:
    before = open_descriptors()
    ends = os.pipe()
    assert open_descriptors().keys() - before.keys() == set(ends)
    for end in ends:
        os.close(end)
    assert open_descriptors().keys() == before.keys()


def test_descriptors_that_a_thread_closes_a_little_later_are_not_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, looked = open_descriptors().keys(), threading.Event()

    def look() -> dict[int, str]:
        found = open_descriptors()
        looked.set()
        return found

    def close() -> None:
        looked.wait()
        for end in ends:
            os.close(end)

    ends = os.pipe()
    assert kept_open(before, patience_s=0).keys() == set(ends)
    monkeypatch.setitem(kept_open.__globals__, "open_descriptors", look)
    closing = threading.Thread(target=close)
    closing.start()
    assert kept_open(before) == {}
    closing.join()


async def test_each_backend_is_what_it_says(anyio_backend: Any) -> None:
    library, options = anyio_backend
    if library == "asyncio":
        module = type(asyncio.get_running_loop()).__module__
        assert module.startswith("uvloop") == options["use_uvloop"]
    else:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
