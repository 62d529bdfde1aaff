"""Memory that a client offers, and what is said of that which was refused."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nnasync._core.service import Limits
from nnasync._core.service import served_memories as service_memories
from nnasync._core.service.served_memories import Memories, Usage
from nnasync._core.wire.connection import Frame
from nnasync._core.wire.messages import ForgetMemory, OfferMemory, PoolForm
from nnasync.errors import InvalidArgument, NNError, ResourceExhaustedTransient
from nnasync.hal import BufferDesc, BufferRole
from nnasync.memory import Pool
from tests import rigs
from tests.service.rig import Slot, request_on, served

SIZE = 64
PATIENCE_S = 10.0 * rigs.GUARD_S
"""Longer than a test may take: whoever waits for so long has failed."""


@contextmanager
def memories(limits: Limits) -> Iterator[Memories]:
    """Those of one client, which come to their end."""
    found = Memories(limits, Usage(limits), trusts=False)
    try:
        yield found
    finally:
        found.close()


def offer(memories: Memories, number: int, *, has_fd: bool = True) -> Frame:
    """Hand memory over; the frame is closed as by a session."""
    with Pool.allocate(SIZE) as pool:
        frame = Frame(b"", [os.dup(pool.fd)] if has_fd else [])
        try:
            memories.offer(OfferMemory(number, PoolForm("ashmem", SIZE, 0, True)), frame)
        finally:
            frame.close()
    return frame


class Waiting:
    """A thread, as that of a burst, which waits for memory."""

    def __init__(self, memories: Memories, number: int) -> None:
        self._memories = memories
        self._number = number
        self._error: NNError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._memories.awaited(self._number, PATIENCE_S)
        except NNError as error:
            self._error = error

    def error(self) -> NNError | None:
        """What it was told."""
        self._thread.join(rigs.GUARD_S)
        assert not self._thread.is_alive(), "nobody told it"
        return self._error


def test_who_waits_for_memory_is_told_that_it_was_refused() -> None:
    with memories(Limits(memories=1)) as them:
        offer(them, 1)
        before = Waiting(them, 2)
        with pytest.raises(ResourceExhaustedTransient):
            offer(them, 2)
        after = Waiting(them, 2)
        assert isinstance(before.error(), ResourceExhaustedTransient)
        assert isinstance(after.error(), ResourceExhaustedTransient)


def test_who_waits_for_memory_is_told_that_it_came_without_a_descriptor() -> None:
    with memories(Limits()) as them:
        with pytest.raises(InvalidArgument):
            offer(them, 1, has_fd=False)
        assert isinstance(Waiting(them, 1).error(), InvalidArgument)


def test_what_was_refused_stays_so_until_it_is_forgotten() -> None:
    with memories(Limits(memories=1)) as them:
        offer(them, 1)
        with pytest.raises(ResourceExhaustedTransient):
            offer(them, 2)
        them.forget(ForgetMemory(1))
        with pytest.raises(ResourceExhaustedTransient):
            them.pool(2)
        them.forget(ForgetMemory(2))
        with pytest.raises(InvalidArgument, match="not known"):
            them.pool(2)


@pytest.mark.parametrize("most_bytes", [SIZE, 1], ids=["memory", "too much of it"])
def test_nobody_waits_for_what_was_given_back(most_bytes: int) -> None:
    """Whether it could be used or not: a request for it may still be on its way."""
    with memories(Limits(bytes=most_bytes)) as them:
        offer(them, 1)
        them.forget(ForgetMemory(1))
        assert isinstance(Waiting(them, 1).error(), InvalidArgument)


def test_memory_that_is_offered_again_is_there() -> None:
    with memories(Limits(memories=1)) as them:
        offer(them, 1)
        with pytest.raises(ResourceExhaustedTransient):
            offer(them, 2)
        them.forget(ForgetMemory(1))
        offer(them, 2)
        assert them.pool(2).size == SIZE


def test_a_flood_of_offers_is_forgotten_but_for_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_memories, "_REMEMBERED_REFUSALS", 4)
    with memories(Limits(memories=0)) as them:
        for number in range(1, 100):
            with pytest.raises(ResourceExhaustedTransient):
                offer(them, number)
        assert list(them._refused) == [96, 97, 98, 99]


def test_a_refusal_keeps_nothing_of_the_message() -> None:
    class Watched(Frame):
        """A frame that can be referred to weakly."""

    with memories(Limits(memories=0)) as them, Pool.allocate(SIZE) as pool:
        frame = Watched(b"", [os.dup(pool.fd)])
        with pytest.raises(ResourceExhaustedTransient):
            them.offer(OfferMemory(1, PoolForm("ashmem", SIZE, 0, True)), frame)
        frame.close()
        kept = weakref.ref(frame)
        del frame
        gc.collect()
        assert kept() is None
        assert isinstance(Waiting(them, 1).error(), ResourceExhaustedTransient)


@pytest.mark.anyio
@pytest.mark.one_loop
@pytest.mark.parametrize("way", ["copy_to", "start_copy_to", "copy_from"])
async def test_a_copy_that_found_no_room_finds_it_when_there_is_some(
    way: str, anyio_backend: str
) -> None:
    async with served(limits=Limits(memories=1)) as it:
        prepared = await it.device.prepare_model(rigs.doubler())
        buffer = await it.device.allocate(BufferDesc(), [prepared], [BufferRole(0, 0)], [])
        with Pool.allocate(rigs.ROW.nbytes) as pool:
            first = Pool.allocate(rigs.ROW.nbytes)
            await buffer.copy_from(first)
            for _ in range(2):
                with pytest.raises(ResourceExhaustedTransient, match="memories"):
                    await getattr(buffer, way)(pool)
            first.close()
            del first
            gc.collect()
            await getattr(buffer, way)(pool)
        await buffer.close()
        await prepared.close()


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_memory_that_is_handed_over_again_is_so_for_all_requests(anyio_backend: str) -> None:
    async with served() as it:
        prepared, slot = await it.device.prepare_model(rigs.doubler()), Slot()
        other = request_on(slot.pool)
        for request in (slot.request, other):
            await prepared.execute(request)
        prepared._memories.renew_pool(slot.pool)
        for request in (slot.request, other):
            slot.y[...] = 0
            await prepared.execute(request)
            assert slot.y.tolist() == (2 * rigs.ROW).tolist()
        await prepared.close()
