"""Automatic collection of garbage, put off and taken up again."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from nnasync.collecting import collecting_later


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


def test_what_was_made_is_old() -> None:
    with collecting_later():
        made: list[object] = [{} for _ in range(10)]
    old = {id(each) for each in gc.get_objects(generation=2)}
    assert id(made) in old


def test_what_an_application_froze_stays_frozen() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    try:
        with collecting_later():
            pass
        assert gc.get_freeze_count() == count > 0
    finally:
        gc.unfreeze()
