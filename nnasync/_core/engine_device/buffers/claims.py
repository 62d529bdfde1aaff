"""Claims: what reads or writes buffers of a device has them meanwhile, all of them or none.

A request that runs again and again has one `Claim`, which remembers what was found. What it found
holds for as long as no contents came, went, or changed their dimensions anywhere on the device, of
which there is a count. So in a steady stream a run with many buffers pays for one lock and a number
before it, and for the same after it, and none of the buffers is looked at.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Protocol

from nnasync.errors import (
    BadState,
    GeneralFailure,
    InvalidArgument,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.hal import Shape

Read = tuple["Claimed", Shape]
"""A buffer, and the dimensions that its contents must have."""

Written = tuple["Claimed", Shape | None]
"""A buffer, and the dimensions of its contents; None where it has none."""


class ChangeMark:
    """The tick of the last change of contents, shared by all buffers that have this mark."""

    __slots__ = ("__weakref__", "tick")

    def __init__(self, tick: int = 0) -> None:
        self.tick = tick


class Claimed(Protocol):
    """A buffer as claims see it; `found` has the dimensions of its contents, None without any."""

    token: int
    found: Shape | None
    mark: ChangeMark

    @property
    def is_closed(self) -> bool:
        """Returns whether the buffer takes no more claims."""

    def let_go(self) -> None:
        """Drops the memory of a closed buffer that nobody uses."""


class Claim:
    """The buffers that a user reads, and those that it writes, for any number of runs.

    `written` has the dimensions that a run leaves, unless it says otherwise at its end.
    """

    __slots__ = ("_all", "_writes", "found_at", "left_at", "mark", "reads", "writes", "written")

    def __init__(self, reads: Iterable[Read] = (), written: Iterable[Written] = ()) -> None:
        self.reads = tuple(reads)
        self.written = tuple(written)
        self.writes = tuple(buffer for buffer, _ in self.written)
        self._writes = frozenset(self.writes)
        self._all = self._writes.union([buffer for buffer, _ in self.reads])
        # By the count of the claims; no count is negative.
        self.found_at = self.left_at = -1
        self.mark = ChangeMark()

    def has(self, buffer: Claimed) -> bool:
        """Returns whether the claim includes this buffer."""
        return buffer in self._all

    def meets(self, other: Claim) -> bool:
        """Returns whether one of the two claims writes a buffer that the other one has."""
        return not (self._writes.isdisjoint(other._all) and other._writes.isdisjoint(self._all))


class Claims:
    """Claims any number of the buffers of a device at once, under one lock.

    `tick` counts the changes of contents and of their states.
    """

    __slots__ = ("_marks", "_states", "_under_way", "lock", "tick")

    def __init__(self) -> None:
        # The collection of garbage may close another buffer anywhere, on the thread that holds it.
        self.lock = threading.RLock()
        self.tick = 0
        self._states = 0
        self._under_way: list[Claim] = []
        # By tokens, since a key with buffers would keep these, and they their marks.
        self._marks: weakref.WeakValueDictionary[frozenset[int], ChangeMark]
        self._marks = weakref.WeakValueDictionary()

    def begin(self, claim: Claim) -> None:
        """Claims buffers: those to read need contents of known dimensions.

        Raises GeneralFailure where there are no contents, InvalidArgument where they have other
        dimensions, ResourceExhaustedTransient for what is claimed otherwise, BadState when closed.
        """
        with self.lock:
            under_way, states = self._under_way, self._states
            if claim.found_at != states or (under_way and any(map(claim.meets, under_way))):
                self._check(claim)
                claim.found_at = states
            under_way.append(claim)

    def end(self, claim: Claim, written: Sequence[Written] | None = None) -> int:
        """Gives the buffers back, with contents as the claim or `written` says.

        Returns the tick.
        """
        with self.lock:
            self._under_way.remove(claim)
            if written is not None or claim.left_at != self._states:
                self._leave(claim, claim.written if written is None else written)
                claim.left_at = self._states if written is None else -1
            if claim.writes:
                self.tick += 1
                claim.mark.tick = self.tick
            return self.tick

    def fail(self, claim: Claim) -> None:
        """Gives the buffers back; those that were to be written have no contents."""
        self.end(claim, [(buffer, None) for buffer in claim.writes])

    def void(self, buffers: Iterable[Claimed], tick: int) -> None:
        """Invalidates the contents of buffers that have not changed since and nobody writes."""
        with self.lock:
            for buffer in buffers:
                if buffer.mark.tick <= tick and not self._is_written(buffer):
                    self.tick += 1
                    self.states_changed()
                    buffer.found, buffer.mark = None, ChangeMark(self.tick)

    def are_on(self, buffer: Claimed) -> bool:
        """Returns whether somebody has claimed a buffer; under the lock."""
        return any(claim.has(buffer) for claim in self._under_way)

    def states_changed(self) -> None:
        """Makes every claim check its buffers again; under the lock."""
        self._states += 1

    def _is_written(self, buffer: Claimed) -> bool:
        return any(buffer in claim.writes for claim in self._under_way)

    def _check(self, claim: Claim) -> None:
        """Raises the error that keeps a claim from beginning."""
        for buffer in claim.writes:
            if buffer.is_closed or self.are_on(buffer):
                raise _refusal_to_write(buffer)
        for buffer, dimensions in claim.reads:
            is_written = self._is_written(buffer)
            if is_written or buffer.found != dimensions:
                raise _refusal_to_read(buffer, dimensions, is_written=is_written)

    def _leave(self, claim: Claim, written: Sequence[Written]) -> None:
        """Notes contents, and frees the memory of buffers that were closed meanwhile."""
        key = frozenset([buffer.token for buffer in claim.writes])
        claim.mark = self._marks.setdefault(key, claim.mark)
        for buffer in claim.writes:
            if buffer.mark is not claim.mark:
                self.states_changed()
                buffer.mark = claim.mark
        for buffer, dimensions in written:
            found = None if buffer.is_closed else dimensions
            if buffer.found != found:
                self.states_changed()
                buffer.found = found
        for buffer in (*claim.writes, *(each for each, _ in claim.reads)):
            if buffer.is_closed and not self.are_on(buffer):
                buffer.let_go()


def _refusal_to_write(buffer: Claimed) -> NNError:
    if buffer.is_closed:
        return BadState(f"{buffer} is closed")
    return ResourceExhaustedTransient(f"{buffer} is in use; write to it afterwards")


def _refusal_to_read(buffer: Claimed, dimensions: Shape, *, is_written: bool) -> NNError:
    if buffer.is_closed:
        return BadState(f"{buffer} is closed")
    if is_written:
        return ResourceExhaustedTransient(f"{buffer} is being written; read it afterwards")
    if buffer.found is None:
        return GeneralFailure(f"{buffer} is not initialized: nothing was written to it")
    return InvalidArgument(
        f"{buffer} holds dimensions {list(buffer.found)}, not {list(dimensions)}"
    )
