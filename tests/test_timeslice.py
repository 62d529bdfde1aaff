"""Time slices: asked for, given back, and ignored where there are none."""

from __future__ import annotations

import ctypes
import platform
import sys
import threading

import pytest

from nnasync._core import timeslice
from nnasync._core.timeslice import Promptness, has_time_slices, set_time_slice


def in_thread(slices_ns: list[int]) -> list[int | None]:
    """What setting these slices one after the other returns, on a thread of its own."""
    old: list[int | None] = []
    thread = threading.Thread(target=lambda: old.extend(map(set_time_slice, slices_ns)))
    thread.start()
    thread.join()
    return old


def test_returns_the_slice_before() -> None:
    first, second, _ = in_thread([2_000_000, 0, 0])
    if first is None:
        pytest.skip("this system has no time slices that a thread may choose")
    assert second in (2_000_000, first)  # kernels before 6.12 take the call and keep their slice


@pytest.mark.parametrize(
    ("returned", "has"), [((3, 1_100_000), True), ((0, 0), False), ((None,), None)]
)
def test_whether_slices_count_is_tried(
    returned: tuple[int | None, ...], has: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(returned)
    wanted: list[int] = []

    def set_one(slice_ns: int) -> int | None:
        wanted.append(slice_ns)
        return next(answers)

    monkeypatch.setattr(timeslice, "set_time_slice", set_one)
    assert has_time_slices() is has
    assert wanted[1:] == ([] if has is None else [returned[0]])


def test_the_slice_is_as_before_when_it_was_tried() -> None:
    set_time_slice(0)  # The thread may come with another one.
    before = set_time_slice(0)
    has_time_slices()
    assert set_time_slice(0) == before


def test_a_slice_out_of_range_is_bounded_by_the_kernel() -> None:
    _, second, _ = in_thread([1, 0, 0])
    if second is None:
        pytest.skip("this system has no time slices that a thread may choose")
    assert second > 1


def test_a_slice_too_long_for_the_kernel_s_field_is_bounded() -> None:
    first, second, _ = in_thread([2**70, 0, 0])
    if first is None:
        pytest.skip("this system has no time slices that a thread may choose")
    assert second is not None
    assert second <= 100_000_000


def test_other_systems_ignore_the_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert set_time_slice(100_000) is None


def test_unknown_machines_ignore_the_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    assert set_time_slice(100_000) is None


def test_a_kernel_that_refuses_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeslice, "_CALLS", {platform.machine(): (-1, -1)})
    assert set_time_slice(100_000) is None


def test_the_system_is_asked_only_for_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(timeslice, "set_time_slice", asked.append)
    promptness = Promptness()
    promptness.slice_ns = 500_000
    for prompt in (False, False, True, True, False):
        promptness.ask(prompt=prompt)
    promptness.slice_ns = 600_000
    promptness.ask(prompt=True)
    assert asked == [0, 500_000, 0, 600_000]


def test_each_thread_asks_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(timeslice, "set_time_slice", asked.append)
    promptness = Promptness()
    promptness.slice_ns = 500_000
    promptness.ask(prompt=True)
    other = threading.Thread(target=lambda: promptness.ask(prompt=True))
    other.start()
    other.join()
    assert asked == [500_000, 500_000]


def test_the_c_library_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    set_time_slice(0)
    looked_up: list[object] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda *args, **options: looked_up.append(args))
    set_time_slice(0)
    assert not looked_up
