"""Automatic collection of garbage, put off and taken up again."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from nnasync._core.collecting import collecting_later


@pytest.fixture(autouse=True)
def collects() -> Iterator[None]:
    """Automatic collection is on at the start, and nothing is frozen."""
    was, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.unfreeze()
    gc.enable()
    yield
    if frozen:
        gc.freeze()
    (gc.enable if was else gc.disable)()


def test_it_is_off_within_and_on_again_afterwards() -> None:
    with collecting_later():
        assert not gc.isenabled()
        gc.collect()  # by hand it works as always
    assert gc.isenabled()


def test_the_last_of_several_takes_it_up_again() -> None:
    with collecting_later():
        with collecting_later():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_takes_it_up_again() -> None:
    with pytest.raises(ValueError, match="no"), collecting_later():
        raise ValueError("no")
    assert gc.isenabled()


def test_who_has_no_automatic_collection_gets_none() -> None:
    gc.disable()
    with collecting_later():
        pass
    assert not gc.isenabled()


def imports(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """As if so many modules were imported."""
    for number in range(count):
        monkeypatch.setitem(sys.modules, f"imported_{number}", ModuleType("made"))


@pytest.mark.parametrize("count", [0, 100])
def test_what_was_made_is_old_where_modules_were_imported(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    with collecting_later():
        imports(monkeypatch, count)
        made: list[object] = [{} for _ in range(10)]
        gc.disable()
    old = {id(each) for each in gc.get_objects(generation=2)}
    assert (id(made) in old) == bool(count)


def test_what_an_application_froze_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [object()]
    gc.freeze()
    try:
        with collecting_later():
            imports(monkeypatch, 100)
        # The number of frozen objects is no measure: each that is dropped is one less.
        assert all(each is not made for each in gc.get_objects())
    finally:
        gc.unfreeze()
