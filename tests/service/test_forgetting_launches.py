"""Launches that a client forgets while they end, on the thread that signals their fence."""

from __future__ import annotations

from typing import Any

from nnasync._core.service.holdings import Holdings


class _Over:
    """A fence that is over, and a launch that has it."""

    done, error = True, None

    @property
    def fence(self) -> _Over:
        return self


def test_a_launch_that_ends_while_it_is_forgotten() -> None:
    """Its callback comes between the note that it is forgotten and the look at it."""
    holdings: Any = Holdings.__new__(Holdings)
    sent: list[object] = []

    class Ending(set[int]):
        def add(self, number: int) -> None:
            super().add(number)
            holdings._launch_ended(number, _Over())

    holdings._send, holdings._forgotten = sent.append, Ending()
    holdings._launches = {9: _Over()}
    holdings._forget_launch(9)
    assert (holdings._launches, holdings._forgotten) == ({}, set())
    assert len(sent) == 1
