"""Entries: looked up, written, replaced and evicted."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnasync._core.cache import CacheKey, Contents, Hit, Miss, Store, fill, view
from nnasync._core.cache.keys import derive_token, file_names, spare_token
from nnasync.errors import InvalidArgument
from tests.cache.entries import (
    FILES,
    KEY,
    MODEL,
    OTHER_KEY,
    Files,
    cache_files,
    clear,
    read,
    totals,
    write,
    written,
)

pytestmark = pytest.mark.usefixtures("no_leaks")

ONE_BLOCK: Files = ([b"code"], [])


def test_what_was_written_is_found(store: Store) -> None:
    assert read(store) == "no entry: the cache directory does not exist"
    written(store)
    assert read(store) == FILES
    assert read(store, OTHER_KEY) == "no entry"


def test_another_process_finds_it_too(store: Store, directory: Path, state_folder: Path) -> None:
    written(store)
    assert read(Store(str(directory) + "/", str(state_folder))) == FILES


@given(
    st.lists(st.binary(max_size=9), max_size=3),
    st.lists(st.sampled_from([b"", b"x", b"y" * 300_000]), max_size=3),
    st.booleans(),
)
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
def test_any_files_come_back_as_they_were(
    store: Store, state_folder: Path, model: list[bytes], data: list[bytes], encrypt: bool
) -> None:
    store = Store(store.path, state_folder, encrypt=encrypt)
    if model or data:
        written(store, (model, data))
        assert read(store) == (model, data)


def test_the_largest_number_of_files(store: Store) -> None:
    files = ([bytes([i]) for i in range(32)], [bytes([i]) * i for i in range(32)])
    written(store, files)
    assert read(store) == files


@pytest.mark.parametrize("counts", [(1, 1), (2, 0), (3, 1)])
def test_a_device_that_wants_other_numbers_misses(store: Store, counts: tuple[int, int]) -> None:
    written(store)
    found = store.lookup(KEY, MODEL, counts)
    assert isinstance(found, Miss)
    assert f"the device wants {counts[0]} model" in found.reason


def test_who_reads_is_told_that_there_is_something(store: Store, directory: Path) -> None:
    told: list[str] = []

    def found() -> None:
        told.append("found")
        for path in cache_files(directory):
            path.unlink()

    assert isinstance(store.read(KEY, MODEL, found=found), Miss)
    written(store)
    cache_files(directory)[0].rename(directory / "elsewhere")
    assert isinstance(store.read(KEY, MODEL, found=found), Miss)
    assert told == []
    written(store)
    contents = store.read(KEY, MODEL, found=found)
    assert isinstance(contents, Contents)
    assert (list(contents.model), [bytes(data) for data in contents.data]) == FILES
    assert told == ["found"]


def test_a_device_without_cache_files_misses(store: Store, directory: Path) -> None:
    assert store.lookup(KEY, MODEL, (0, 0)) == Miss("the device has no cache files")
    assert write(store, ([], [])).reason == "the device has no cache files"
    assert not directory.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device_version": "2.1"}, "other driver version 2.1, was 1.0"),
        ({"library_version": "0.2"}, "other nnasync version 0.2, was 0.1"),
        ({"priority": 2}, "no entry"),
        ({"variant": "bf16"}, "no entry"),
    ],
)
def test_another_key_misses_and_says_why(store: Store, change: dict[str, Any], reason: str) -> None:
    written(store)
    assert read(store, msgspec.structs.replace(KEY, **change)) == reason
    assert read(store) == FILES


def test_two_driver_versions_live_side_by_side(store: Store) -> None:
    newer = msgspec.structs.replace(KEY, device_version="2.1")
    written(store)
    written(store, ONE_BLOCK, newer)
    assert (read(store), read(store, newer)) == (FILES, ONE_BLOCK)


def test_a_token_used_for_another_model_is_noticed(store: Store) -> None:
    written(store)
    assert read(store, model=b"other") == "the token is of another model"
    assert write(store, ONE_BLOCK, model=b"other").stored
    assert read(store) == "the token is of another model"
    assert read(store, model=b"other") == ONE_BLOCK


def test_a_smaller_entry_leaves_nothing_of_the_larger_one(store: Store, directory: Path) -> None:
    written(store)
    for tokens in (spare_token, bytes) * 2:
        written(store, ONE_BLOCK)
        names = [path.name for path in cache_files(directory)]
        assert names == file_names(tokens(derive_token(KEY)), (1, 0))
        assert read(store) == ONE_BLOCK


def test_an_entry_is_replaced_only_where_it_is_still_the_one(store: Store) -> None:
    assert store.generation(KEY) == b""
    first = write(store, replaces=b"")
    assert (first.stored, store.generation(KEY)) == (True, first.generation)
    late = write(store, ONE_BLOCK, replaces=b"")
    assert (late.stored, late.reason) == (
        False,
        "the entry was written anew by somebody else meanwhile",
    )
    assert read(store) == FILES
    second = write(store, ONE_BLOCK, replaces=first.generation)
    assert second.stored
    assert not write(store, replaces=first.generation).stored
    assert read(store) == ONE_BLOCK
    clear(store)
    assert not write(store, replaces=second.generation).stored
    assert read(store) == "no entry"


def test_files_belong_to_their_owner_only(
    store: Store, directory: Path, state_folder: Path
) -> None:
    written(store)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(state_folder.stat().st_mode) == 0o700
    for path in (*directory.iterdir(), *state_folder.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_nothing_of_the_check_lies_in_the_cache_directory(
    store: Store, directory: Path, state_folder: Path
) -> None:
    written(store)
    secret = (state_folder / "cache.key").read_bytes()
    assert len(secret) == 32
    assert len(cache_files(directory)) == 3
    assert all(secret not in path.read_bytes() for path in directory.iterdir())


def test_a_hit_can_be_changed_by_nobody(store: Store) -> None:
    written(store)
    found = store.lookup(KEY, MODEL)
    assert isinstance(found, Hit)
    with found:
        for fd in found.model_fds + found.data_fds:
            for flags in (os.O_RDWR, os.O_RDONLY):
                with open(os.open(f"/proc/self/fd/{fd}", flags), "rb") as file:
                    with pytest.raises(OSError):
                        os.write(file.fileno(), b"x")
                    with pytest.raises(OSError):
                        os.ftruncate(file.fileno(), 0)
        kept = view(found.model_fds[0])
    assert (found.model_fds, found.data_fds) == ((), ())
    assert bytes(kept) == FILES[0][0]


def test_what_the_driver_writes_after_the_block_does_not_count(store: Store) -> None:
    with store.write(KEY, MODEL, (1, 0)) as writing:
        late = os.dup(writing.model_fds[0])
        fill(late, b"code")
    fill(late, b"evil")
    os.close(late)
    assert read(store) == ([b"code"], [])


def test_the_offset_of_the_driver_does_not_matter(store: Store) -> None:
    with store.write(KEY, MODEL, (1, 0)) as writing:
        os.write(writing.model_fds[0], b"code")
    assert read(store) == ([b"code"], [])


def test_an_exception_in_the_block_stores_nothing(store: Store, directory: Path) -> None:
    with pytest.raises(ZeroDivisionError), store.write(KEY, MODEL, (1, 1)) as writing:
        raise ZeroDivisionError
    assert not writing.stored
    assert list(directory.iterdir()) == []


def test_an_abandoned_writing_stores_nothing(store: Store) -> None:
    written(store)
    with store.write(KEY, MODEL, (1, 0)) as writing:
        writing.abandon("the driver cannot serialize this model")
        writing.abandon("")
    assert (writing.stored, writing.reason) == (False, "the driver cannot serialize this model")
    assert read(store) == FILES


@pytest.mark.parametrize("counts", [(33, 0), (0, 33), (-1, 2)])
def test_too_many_files_are_refused(store: Store, counts: tuple[int, int]) -> None:
    with pytest.raises(InvalidArgument, match="0 to 32"), store.write(KEY, MODEL, counts):
        pass


def used_at(directory: Path, key: CacheKey, second: int) -> None:
    """Pretend that an entry was last used then."""
    for name in file_names(derive_token(key), (1, 0)):
        os.utime(directory / name, (second, second))


def test_the_least_recently_used_entry_goes(directory: Path, state_folder: Path) -> None:
    store = Store(directory, state_folder, limit_bytes=3 * 4096)
    keys = [msgspec.structs.replace(KEY, step=step) for step in range(4)]
    for second, key in enumerate(keys[:3]):
        written(store, ONE_BLOCK, key)
        used_at(directory, key, second)
    assert read(store, keys[0]) == ONE_BLOCK
    written(store, ONE_BLOCK, keys[3])
    assert [read(store, key) for key in keys] == [ONE_BLOCK, "no entry", ONE_BLOCK, ONE_BLOCK]
    assert totals(store) == (3, 3 * 4096)


def test_files_without_a_record_go_first(directory: Path, state_folder: Path) -> None:
    store = Store(directory, state_folder, limit_bytes=2 * 4096)
    written(store, ONE_BLOCK)
    used_at(directory, KEY, 0)
    orphan = directory / ("A" * 64 + "20")
    orphan.write_bytes(b"x")
    written(store, ONE_BLOCK, OTHER_KEY)
    assert not orphan.exists()
    assert read(store) == read(store, OTHER_KEY) == ONE_BLOCK


def test_an_entry_above_the_limit_is_not_stored(directory: Path, state_folder: Path) -> None:
    store = Store(directory, state_folder, limit_bytes=2 * 4096)
    written(store, ONE_BLOCK)
    writing = write(store, ([b"x" * 9000], []), OTHER_KEY)
    assert writing.reason == "the entry takes 12288 bytes, more than the limit of 8192"
    assert read(store) == ONE_BLOCK


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_is_refused(directory: Path, state_folder: Path, limit: int) -> None:
    with pytest.raises(InvalidArgument, match="1 byte"):
        Store(directory, state_folder, limit_bytes=limit)


def test_files_of_others_stay(store: Store, directory: Path) -> None:
    directory.mkdir()
    (directory / "notes.txt").write_text("mine")
    written(store)
    clear(store)
    assert [path.name for path in directory.iterdir()] == ["notes.txt"]
    assert read(store) == "no entry"
    assert totals(store) == (0, 0)


def test_an_encrypted_entry_shows_nothing(directory: Path, state_folder: Path) -> None:
    store = Store(directory, state_folder, encrypt=True)
    secret: Files = ([b"secret code" * 10], [b"secret weights" * 10])
    written(store, secret)
    assert read(store) == secret
    assert all(b"secret" not in path.read_bytes() for path in directory.iterdir())
    plain = Store(directory, state_folder)
    assert read(plain) == "the entry is encrypted, which is off now"
    written(plain)
    assert read(store) == "the entry is not encrypted"


def test_the_same_content_is_encrypted_differently_each_time(
    directory: Path, state_folder: Path
) -> None:
    store = Store(directory, state_folder, encrypt=True)
    seen = set()
    for _ in range(2):
        written(store, ([b"code", b"code"], []))
        seen |= {path.read_bytes()[64:] for path in directory.iterdir()}
    assert len(seen) == 4
