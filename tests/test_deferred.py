"""Modules that are imported when something of them is used."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from nnasync._core.deferred import deferred


def test_imported_when_used_and_no_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    module = deferred("colorsys")
    assert "colorsys" not in sys.modules
    assert module.rgb_to_hsv(1, 1, 1) == (0, 0, 1)
    assert "colorsys" in sys.modules


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = deferred("colorsys").nothing
    with pytest.raises(ModuleNotFoundError):
        _ = deferred("nnasync.nothing").anything


def test_what_may_change_is_looked_up_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ModuleType("nnasync_found")
    monkeypatch.setitem(sys.modules, "nnasync_found", found)
    vars(found).update(number=1, function=len)
    module = deferred("nnasync_found")
    assert (module.number, module.function) == (1, len)
    vars(found).update(number=2)
    assert (module.number, module.function) == (2, len)
