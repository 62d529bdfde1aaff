"""Circumstances of a contest: when a verdict is provisional, and which one of two stands."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.compilation.verdicts import QUIET, Circumstances, is_quiet, succeeds

crowdings = st.floats(1, 10)


def test_a_quiet_contest_is_final() -> None:
    held = Circumstances.of(5.5, 1.15, None)
    assert held == Circumstances(5, 1.15, 0)
    assert not held.is_provisional


def test_a_disturbed_one_is_provisional_up_to_three_in_a_row() -> None:
    held, provisional = None, []
    for _ in range(4):
        held = Circumstances.of(0, 1.2, held)
        provisional.append(held.is_provisional)
    assert provisional == [True, True, False, False]


def test_a_quiet_contest_ends_the_row() -> None:
    first = Circumstances.of(0, 2, None)
    assert Circumstances.of(1, 1, first).disturbed == 0
    assert Circumstances.of(2, 2, Circumstances.of(1, 1, first)).disturbed == 1


@given(st.lists(crowdings, min_size=1, max_size=6))
def test_the_verdict_that_stands_is_the_last_quiet_one_or_the_least_disturbed(
    held: list[float],
) -> None:
    standing: Circumstances | None = None
    chosen = -1
    for number, crowding in enumerate(held):
        new = Circumstances.of(number, crowding, standing)
        if succeeds(new, standing):
            standing, chosen = new, number
        else:
            assert standing is not None
            standing = standing.outlasting(new)
    quiet = [number for number, crowding in enumerate(held) if crowding <= 1.15]
    assert chosen == (max(quiet) if quiet else held.index(min(held)))
    assert standing is not None
    assert standing.disturbed == (0 if quiet else len(held))


def test_nothing_stands_before_the_first() -> None:
    assert succeeds(Circumstances.of(0, 9, None), None)
    assert not succeeds(Circumstances.of(0, 9, QUIET), QUIET)


@pytest.mark.parametrize(("load", "quiet"), [(0.0, True), (2.0, True), (2.1, False), (99, False)])
def test_a_machine_is_quiet_while_half_of_it_is_idle(
    monkeypatch: pytest.MonkeyPatch, load: float, quiet: bool
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 50.0, 50.0))
    assert is_quiet() == quiet


def test_where_the_load_is_unknown_it_counts_as_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> tuple[float, float, float]:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", unknown)
    assert is_quiet()
