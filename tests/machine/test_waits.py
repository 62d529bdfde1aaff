"""How long threads waited for a core: what the system tells, and a system that tells nothing."""

from __future__ import annotations

import builtins
import io
import os
import time

import pytest

from nnasync.machine import WaitMeter


def test_a_share_is_told_where_the_system_tells_it() -> None:
    if not os.path.exists("/proc/self/schedstat"):
        pytest.skip("the system does not tell how long threads wait")
    meter = WaitMeter()
    began = time.process_time()
    while time.process_time() - began < 0.02:
        pass
    share = meter.read()
    assert share is not None
    assert 0 <= share < 1


def test_threads_count_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """One ran for 60 and waited for 20; another one is new, and a third one has ended."""
    told = iter(["100 10 1", "7 7 7", "160 30 2", "15 5 1"])
    threads = iter([["1", "3"], ["1", "2"]])
    monkeypatch.setattr(os, "listdir", lambda _: next(threads))
    monkeypatch.setattr(builtins, "open", lambda *_, **__: io.StringIO(next(told)))
    assert WaitMeter().read() == pytest.approx(25 / 100)


def test_a_system_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **options: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(builtins, "open", refused)
    assert WaitMeter().read() is None
    monkeypatch.setattr(os, "listdir", refused)
    assert WaitMeter().read() is None
