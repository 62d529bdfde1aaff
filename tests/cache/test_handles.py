"""Cache handles as a HAL client passes them to a driver."""

from __future__ import annotations

import fcntl
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nnasync._core.cache import HandleCache, Hit, Miss
from nnasync._core.cache import handles as handle_module
from nnasync.errors import InvalidArgument
from tests.cache.entries import Files, contents

TOKEN = bytes(range(32))
FILES: Files = ([b"code" * 100, b""], [b"weights" * 100])


class Handles:
    """Open files of a client."""

    def __init__(self, folder: Path, counts: tuple[int, int], flags: int = os.O_RDWR) -> None:
        self.paths = [folder / f"{kind}{i}" for kind in (0, 1) for i in range(counts[kind])]
        for path in self.paths:
            path.touch()
        fds = [os.open(path, flags) for path in self.paths]
        self.model, self.data = fds[: counts[0]], fds[counts[0] :]

    def close(self) -> None:
        """Close them."""
        for fd in self.model + self.data:
            os.close(fd)


@pytest.fixture
def handles(tmp_path: Path) -> Iterator[Handles]:
    """Two model cache handles and one for the data cache."""
    handles = Handles(tmp_path, (2, 1))
    yield handles
    handles.close()


@pytest.fixture
def cache(state_folder: Path) -> HandleCache:
    """What a driver keeps."""
    return HandleCache(state_folder, "driver", "1.0")


def save(cache: HandleCache, handles: Handles, files: Files = FILES, token: bytes = TOKEN) -> str:
    """Save files through handles."""
    return cache.save(token, handles.model, handles.data, model=files[0], data=files[1])


def load(cache: HandleCache, handles: Handles, token: bytes = TOKEN) -> Files | str:
    """Load files through handles, or the reason of the miss."""
    found = cache.load(token, handles.model, handles.data)
    if isinstance(found, Miss):
        return found.reason
    with found:
        return contents(found)


def test_what_was_saved_is_loaded(cache: HandleCache, handles: Handles) -> None:
    assert load(cache, handles) == "no entry"
    assert save(cache, handles) == ""
    assert load(cache, handles) == FILES


def test_offsets_of_the_handles_do_not_matter(cache: HandleCache, handles: Handles) -> None:
    for fd in handles.model + handles.data:
        os.write(fd, b"something" * 999)
    assert save(cache, handles) == ""
    for fd in handles.model + handles.data:
        os.lseek(fd, 7, os.SEEK_SET)
    assert load(cache, handles) == FILES
    assert handles.paths[0].read_bytes() == FILES[0][0]


def test_arrays_are_saved_as_their_bytes(cache: HandleCache, tmp_path: Path) -> None:
    one = Handles(tmp_path, (1, 0))
    words = memoryview(bytearray(8)).cast("I")
    words[0] = 7
    assert cache.save(TOKEN, one.model, [], model=[words], data=[]) == ""
    assert load(cache, one) == ([(7).to_bytes(8, sys.byteorder)[: len(words) * 4]], [])
    one.close()


@pytest.mark.parametrize("bit", range(0, 256, 17))
def test_a_token_with_another_bit_is_another(
    cache: HandleCache, handles: Handles, bit: int
) -> None:
    save(cache, handles)
    token = bytearray(TOKEN)
    token[bit // 8] ^= 1 << bit % 8
    assert load(cache, handles, bytes(token)) == "no entry"


def test_every_changed_bit_of_the_model_cache_is_rejected(
    cache: HandleCache, handles: Handles
) -> None:
    save(cache, handles)
    content = FILES[0][0]
    choose = random.Random(1)
    for position in range(len(content)):
        flipped = content[position] ^ 1 << choose.randrange(8)
        os.pwrite(handles.model[0], bytes([flipped]), position)
        assert load(cache, handles) == "modified: file 0 of the model cache"
        os.pwrite(handles.model[0], content[position : position + 1], position)
    assert load(cache, handles) == FILES


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("extra", [1, 256])
def test_appended_bytes_are_rejected(
    cache: HandleCache, handles: Handles, index: int, extra: int
) -> None:
    save(cache, handles)
    fd = (handles.model + handles.data)[index]
    os.pwrite(fd, bytes(extra), os.fstat(fd).st_size)
    assert str(load(cache, handles)).startswith("of another size than it was: file")


def test_the_model_cache_of_another_token_is_rejected(cache: HandleCache, handles: Handles) -> None:
    other = ([b"CODE" * 100, b""], FILES[1])
    save(cache, handles)
    save(cache, handles, other, bytes(32))
    assert load(cache, handles, bytes(32)) == other
    assert load(cache, handles) == "modified: file 0 of the model cache"


@pytest.mark.parametrize("counts", [(1, 1), (2, 0), (3, 1), (2, 2), (0, 0)])
def test_a_wrong_number_of_handles(
    cache: HandleCache, handles: Handles, tmp_path: Path, counts: tuple[int, int]
) -> None:
    save(cache, handles)
    (tmp_path / "wrong").mkdir()
    wrong = Handles(tmp_path / "wrong", counts)
    assert "cache handles came for 2 and 1 files" in str(load(cache, wrong))
    assert "cache handles came for 2 and 1 files" in save(cache, wrong)
    assert load(cache, handles) == "no entry"
    wrong.close()


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY])
def test_handles_that_allow_too_little(cache: HandleCache, tmp_path: Path, flags: int) -> None:
    poor = Handles(tmp_path, (2, 1), flags)
    reason = save(cache, poor)
    assert bool(reason) == (flags == os.O_RDONLY)
    expected = "no entry" if reason else "unreadable (Bad file descriptor): file 0 of the model"
    assert str(load(cache, poor)).startswith(expected)
    poor.close()


def test_another_driver_version_or_driver(
    cache: HandleCache, handles: Handles, state_folder: Path
) -> None:
    save(cache, handles)
    newer = HandleCache(state_folder, "driver", "2.1")
    assert load(newer, handles) == "other driver version 2.1, was 1.0"
    assert load(HandleCache(state_folder, "other", "1.0"), handles) == "no entry"


@pytest.mark.parametrize("token", [b"", b"x" * 31, b"x" * 33])
def test_a_token_of_another_length_is_refused(
    cache: HandleCache, handles: Handles, token: bytes
) -> None:
    with pytest.raises(InvalidArgument, match="32 bytes"):
        save(cache, handles, token=token)
    with pytest.raises(InvalidArgument, match="32 bytes"):
        load(cache, handles, token)


def test_a_client_who_swaps_files_gets_the_right_ones_or_none(
    cache: HandleCache, tmp_path: Path
) -> None:
    """Another model's file is put in the place of ours before, between and after the steps."""
    add, mul = [b"add" * 999], [b"mul" * 999]
    mine = Handles(tmp_path, (1, 0))
    for moment in range(3):
        steps: list[Callable[[], object]] = [
            lambda: cache.save(TOKEN, mine.model, [], model=add, data=[]),
            lambda: cache.load(TOKEN, mine.model, []),
        ]
        steps.insert(moment, lambda: mine.paths[0].write_bytes(mul[0]))
        found = [step() for step in steps]
        for answer in found:
            if isinstance(answer, Hit):
                with answer:
                    assert contents(answer) == (add, [])
    mine.close()


LATER: Files = ([b"more code" * 100, b"x"], [b"weights" * 10])


def amend(cache: HandleCache, handles: Handles, files: Files = LATER) -> str:
    """Write files later."""
    return cache.amend(TOKEN, handles.model, handles.data, model=files[0], data=files[1])


def test_what_was_amended_is_loaded_and_what_was_saved_before_too(
    cache: HandleCache, handles: Handles
) -> None:
    assert save(cache, handles) == ""
    copies = [path.read_bytes() for path in handles.paths]
    assert amend(cache, handles) == ""
    assert load(cache, handles) == LATER
    for path, copy in zip(handles.paths, copies, strict=True):
        path.write_bytes(copy)
    assert load(cache, handles) == FILES
    assert save(cache, handles, LATER) == ""
    for path, copy in zip(handles.paths, copies, strict=True):
        path.write_bytes(copy)
    assert "of another size" in str(load(cache, handles))


def test_files_of_before_and_afterwards_are_not_mixed(cache: HandleCache, handles: Handles) -> None:
    assert save(cache, handles) == ""
    first = handles.paths[0].read_bytes()
    assert amend(cache, handles) == ""
    handles.paths[0].write_bytes(first)
    assert "of another size" in str(load(cache, handles))


def test_other_numbers_of_files_do_not_amend(cache: HandleCache, handles: Handles) -> None:
    assert save(cache, handles) == ""
    assert "handles came for" in amend(cache, handles, ([b"one"], [b"two"]))
    assert load(cache, handles) == FILES


def test_a_client_who_keeps_the_lock_is_not_waited_for_long(
    cache: HandleCache, handles: Handles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle_module, "_LOCK_PAUSE_S", 0)
    assert save(cache, handles) == ""
    with open(handles.paths[0], "rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert amend(cache, handles) == "the client holds the lock of the file"
    assert load(cache, handles) == FILES
    assert amend(cache, handles) == ""
