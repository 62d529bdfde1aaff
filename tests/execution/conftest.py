"""The fixture that takes the clock out of deadlines."""

from __future__ import annotations

import pytest

from tests.rigs import ManualWatchdog


@pytest.fixture
def watchdog(monkeypatch: pytest.MonkeyPatch) -> ManualWatchdog:
    """The watchdog of the next runtime, which the test rings."""
    made = ManualWatchdog()
    monkeypatch.setattr("nnasync._core.runtime.runtime.Watchdog", lambda: made)
    return made
