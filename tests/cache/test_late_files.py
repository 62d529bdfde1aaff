"""Entries whose files a driver writes later: what is taken over, when, and what never is."""

from __future__ import annotations

import fcntl
import gc
import os
import signal

import pytest

from nnasync._core.cache import Hit, Store
from nnasync._core.cache.late_files import Amender, SharedEntries, SharedEntry
from tests.cache import writers
from tests.cache.entries import FILES, KEY, MODEL, Files, read, written

LATER: Files = ([b"compiled" * 1000, b"more"], [b"packed" * 50])


def shared(store: Store, *, is_found: bool = True) -> SharedEntry:
    """The files of the entry that is there, or of none yet."""
    found = store.lookup(KEY, MODEL) if is_found else None
    assert found is None or isinstance(found, Hit)
    entry = SharedEntry(Amender(store, KEY, MODEL, store.generation(KEY)), (2, 1), found)
    if found is not None:
        found.close()
    return entry


def put(entry: SharedEntry, files: Files) -> None:
    """What a driver does that respects the lock."""
    fds = entry.model_fds + entry.data_fds
    fcntl.flock(fds[0], fcntl.LOCK_EX)
    for fd, content in zip(fds, files[0] + files[1], strict=True):
        os.ftruncate(fd, 0)
        os.pwrite(fd, content, 0)
    fcntl.flock(fds[0], fcntl.LOCK_UN)


def test_an_entry_is_amended_by_who_wrote_it_last(store: Store) -> None:
    written(store)
    amender = Amender(store, KEY, MODEL, store.generation(KEY))
    assert amender.replace(*LATER) == ""
    assert amender.replace(*FILES) == ""
    assert read(store) == FILES
    written(store, LATER)
    assert "written anew by somebody else" in amender.replace(*FILES)
    assert read(store) == LATER


def test_what_a_driver_writes_is_taken_over_once(store: Store) -> None:
    entry = shared(store, is_found=False)
    assert entry.collect() == ""
    assert "no entry" in str(read(store))  # all files are empty
    put(entry, FILES)
    assert entry.collect() == ""
    assert read(store) == FILES
    generation = store.generation(KEY)
    assert entry.collect() == ""
    assert store.generation(KEY) == generation
    put(entry, LATER)
    assert entry.collect() == ""
    assert read(store) == LATER


def test_a_driver_gets_what_is_there_and_may_change_it(store: Store) -> None:
    written(store)
    entry = shared(store)
    assert os.pread(entry.model_fds[0], 1000, 0) == FILES[0][0]
    os.pwrite(entry.model_fds[0], b"CODE", 0)
    assert read(store) == FILES
    assert entry.collect() == ""
    assert read(store) == ([b"CODE" + FILES[0][0][4:], *FILES[0][1:]], FILES[1])


def test_nothing_is_taken_while_the_driver_holds_its_lock(store: Store) -> None:
    written(store)
    entry = shared(store)
    put(entry, LATER)
    fcntl.flock(entry.model_fds[0], fcntl.LOCK_EX)
    assert entry.collect() == ""
    assert read(store) == FILES
    fcntl.flock(entry.model_fds[0], fcntl.LOCK_UN)
    assert entry.collect() == ""
    assert read(store) == LATER


def test_a_driver_that_dies_while_it_writes_leaves_the_older_entry(store: Store) -> None:
    written(store)
    entry = shared(store)

    def dying() -> None:
        fcntl.flock(entry.model_fds[0], fcntl.LOCK_EX)
        os.ftruncate(entry.model_fds[0], 3)
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.WIFSIGNALED(writers.forked(dying))
    assert entry.collect() == ""
    assert read(store) == FILES


def test_an_entry_that_is_replaced_meanwhile_stays(store: Store) -> None:
    written(store)
    entry = shared(store)
    put(entry, LATER)
    another: Files = ([b"of", b"another"], [b"writer"])
    written(store, another)
    assert "written anew by somebody else" in entry.collect()
    assert read(store) == another


def test_an_entry_above_the_limit_leaves_the_older_one(store: Store) -> None:
    written(store)
    entry = shared(store)
    store.limit_bytes = 1 << 14
    put(entry, ([bytes(1 << 15), b""], [b""]))
    assert "more than the limit" in entry.collect()
    assert read(store) == FILES


def test_a_directory_that_is_refused_is_a_reason(store: Store) -> None:
    written(store)
    entry = shared(store)
    put(entry, LATER)
    os.chmod(store.path, 0o777)
    assert "writable for everybody" in entry.collect()
    os.chmod(store.path, 0o700)
    assert read(store) == FILES


def test_entries_are_looked_after_as_long_as_their_owner_lives(store: Store) -> None:
    class Owner:
        pass

    written(store)
    entries, entry, owner = SharedEntries(), shared(store), Owner()
    entries.add(entry, owner)
    put(entry, LATER)
    entries.collect()
    assert read(store) == LATER
    put(entry, FILES)
    del owner
    gc.collect()
    entries.collect()
    assert read(store) == FILES
    assert not entry.close.alive
    entries.close()


def test_at_the_end_all_are_collected_and_closed(store: Store) -> None:
    entries, entry = SharedEntries(), shared(store, is_found=False)
    entries.add(entry, 1)  # which has no weak references
    put(entry, FILES)
    entries.close()
    assert read(store) == FILES
    assert not entry.close.alive
    assert entry.model_fds == ()
    assert entry.collect() == ""


@pytest.mark.slow
def test_a_client_that_is_killed_at_any_call_leaves_one_of_both(store: Store) -> None:
    written(store)
    kills = 0
    for before in range(1000):
        entry = shared(store)
        put(entry, LATER)
        status = writers.forked(writers.killed_before, before, entry.collect)
        entry.close()
        found = read(store)
        assert found in (FILES, LATER)
        if os.WIFEXITED(status):
            assert found == LATER
            break
        kills += 1
        written(store)
    assert kills > 20
