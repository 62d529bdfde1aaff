"""Cache directories that are refused, missing, full or read-only, and state folders likewise."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nnasync._core.cache import Store, eviction, fill
from nnasync.errors import InvalidArgument
from tests.cache.entries import FILES, KEY, MODEL, OTHER_KEY, cache_files, read, write, written

pytestmark = pytest.mark.usefixtures("no_leaks")


def refused(store: Store, match: str) -> None:
    """Every call refuses the directory."""
    with pytest.raises(InvalidArgument, match=match):
        store.lookup(KEY, MODEL)
    with pytest.raises(InvalidArgument, match=match):
        store.read(KEY, MODEL)
    with pytest.raises(InvalidArgument, match=match), store.write(KEY, MODEL, (1, 0)):
        pytest.fail("the block of a refused directory was entered")


def test_a_missing_directory_is_made_with_its_parents(tmp_path: Path, state_folder: Path) -> None:
    store = Store(tmp_path / "a" / "b" / "c", state_folder)
    assert read(store) == "no entry: the cache directory does not exist"
    written(store)
    assert read(store) == FILES
    assert stat.S_IMODE((tmp_path / "a" / "b" / "c").stat().st_mode) == 0o700


def test_the_home_of_the_user_is_known(
    tmp_path: Path, state_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    written(Store("~/cache", state_folder))
    assert len(cache_files(tmp_path / "cache")) == 3


def test_a_relative_path_is_kept_when_the_process_moves(
    tmp_path: Path, state_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store("cache", state_folder)
    monkeypatch.chdir("/")
    written(store)
    assert len(cache_files(tmp_path / "cache")) == 3


@pytest.mark.parametrize("path", ["", "a\0b", None, 3, b"bytes", "\udcff\ud800"])
def test_what_is_no_path_is_refused(path: Any, state_folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="path"):
        Store(path, state_folder)
    with pytest.raises(InvalidArgument, match="path"):
        Store(state_folder, path)


def test_a_directory_of_somebody_else_is_refused(
    store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.mkdir(mode=0o700)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    refused(store, f"belongs to user {owner}; it must belong to user {owner + 1}")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_directory_writable_for_everybody_is_refused(
    store: Store, directory: Path, mode: int
) -> None:
    directory.mkdir()
    directory.chmod(mode)
    refused(store, f"mode {mode:o}")


def test_a_symbolic_link_is_refused(store: Store, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    directory.symlink_to(tmp_path / "elsewhere")
    refused(store, "symbolic link")


def test_a_link_with_a_slash_is_refused_too(tmp_path: Path, state_folder: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    refused(Store(f"{tmp_path}/link/", state_folder), "symbolic link")


def test_a_file_is_refused(store: Store, directory: Path, state_folder: Path) -> None:
    directory.write_text("not a directory")
    refused(store, "is not a directory")
    refused(Store(directory / "below", state_folder), "is not a directory")


def test_a_link_among_the_parents_is_followed(tmp_path: Path, state_folder: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    written(Store(tmp_path / "link" / "cache", state_folder))
    assert read(Store(tmp_path / "disk" / "cache", state_folder)) == FILES


def test_a_directory_that_turns_bad_meanwhile_stores_nothing(store: Store, directory: Path) -> None:
    with store.write(KEY, MODEL, (1, 0)) as writing:
        fill(writing.model_fds[0], b"code")
        directory.chmod(0o777)
    assert not writing.stored
    assert "writable for everybody" in writing.reason


def failing(call: Callable[..., Any], code: int, when: Callable[..., bool]) -> Callable[..., Any]:
    """A system call that fails with `code` when `when` says so of its arguments."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            raise OSError(code, os.strerror(code))
        return call(*args, **kwargs)

    return wrapped


def after(calls: int) -> Callable[..., bool]:
    """True from the call on that follows this many."""
    left = iter(range(calls))
    return lambda *args, **kwargs: next(left, None) is None


def is_creating(path: Any, flags: int, *args: Any, dir_fd: int | None = None) -> bool:
    """Whether `os.open` makes a file in the cache directory."""
    return bool(flags & os.O_CREAT) and dir_fd is not None


def test_a_read_only_directory_is_read_and_not_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(store)
    monkeypatch.setattr(os, "open", failing(os.open, errno.EROFS, is_creating))
    monkeypatch.setattr(os, "utime", failing(os.utime, errno.EROFS, lambda *a, **k: True))
    assert read(store) == FILES
    with store.write(OTHER_KEY, MODEL, (1, 1)) as writing:
        assert writing.fds == ()
    assert writing.reason == "the cache directory cannot be written: Read-only file system"


def test_a_directory_that_cannot_be_made(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "mkdir", failing(os.mkdir, errno.EACCES, lambda *a, **k: True))
    assert write(store).reason == "the cache directory cannot be made: Permission denied"


def test_a_directory_that_cannot_be_opened(
    store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(store)
    opens = failing(os.open, errno.EACCES, lambda path, *a, **k: path == str(directory))
    monkeypatch.setattr(os, "open", opens)
    assert read(store) == "the cache directory cannot be opened: Permission denied"


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fills_up_or_fails(store: Store, directory: Path, call: str, code: int) -> None:
    """The n-th write, sync or rename fails: the older entry stays, or there is none."""
    newer = ([b"newer code", b"more"], [b"newer weights"])
    outcomes = set()
    for calls_before in range(8):
        written(store)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, call, failing(getattr(os, call), code, after(calls_before)))
            writing = write(store, newer)
        outcomes.add(writing.stored)
        if writing.stored:
            assert read(store) == newer
        else:
            assert os.strerror(code) in writing.reason
            assert read(store) == FILES or isinstance(read(store), str)
        assert {path.name[64:] for path in cache_files(directory)} <= {"10", "11", "20"}
    assert outcomes == {False, True}
    written(store)
    assert read(store) == FILES


def test_short_writes_are_continued(store: Store) -> None:
    def short(fd: int, data: memoryview) -> int:
        return real(fd, data[:3])

    real = os.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", short)
        written(store)
        assert read(store) == FILES
    assert read(store) == FILES


def test_no_descriptors_left(store: Store) -> None:
    broken = failing(os.memfd_create, errno.EMFILE, lambda *a, **k: True)
    written(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "memfd_create", broken)
        assert "Too many open files" in write(store).reason
        assert "Too many open files" in str(read(store))
    assert read(store) == FILES


def test_where_there_are_no_memory_files_temporary_ones_serve(store: Store) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(os, "memfd_create")
        written(store)
        assert read(store) == FILES


def test_what_killed_writers_left_is_swept(store: Store, directory: Path) -> None:
    directory.mkdir(mode=0o700)
    left = directory / ".nnasync-0123"
    left.write_bytes(b"half an entry")
    busy = directory / ".nnasync-4567"
    with open(busy, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        written(store)
        assert not left.exists()
        assert busy.exists()
    written(store)
    assert not busy.exists()
    assert len(cache_files(directory)) == 3


def test_a_directory_without_end_stores_nothing(
    store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(store)
    monkeypatch.setattr(eviction, "MAX_FILES", 2)
    assert write(store, key=OTHER_KEY).reason == "the cache directory holds more than 2 files"
    assert read(store) == FILES


def test_an_unexpected_failure_is_a_reason(store: Store) -> None:
    written(store)
    broken = failing(os.path.realpath, errno.ESTALE, lambda path: True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os.path, "realpath", broken)
        assert read(store) == "the cache directory cannot be read: Stale file handle"
        assert write(store).reason == "the cache directory cannot be written: Stale file handle"
    assert read(store) == FILES


def test_traps_among_the_temporary_names_are_harmless(store: Store, directory: Path) -> None:
    directory.mkdir(mode=0o700)
    os.mkfifo(directory / ".nnasync-pipe")
    (directory / ".nnasync-folder").mkdir()
    (directory / ".nnasync-link").symlink_to("/")
    written(store)
    assert read(store) == FILES


def test_a_file_system_without_locks_serves(store: Store) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", failing(fcntl.flock, errno.ENOTSUP, has_lock_flag))
        written(store)
    assert read(store) == FILES


def has_lock_flag(file: Any, operation: int) -> bool:
    """Whether a lock is asked for that does not wait, as in the cache directory."""
    return bool(operation & fcntl.LOCK_NB)


def test_a_state_folder_of_somebody_else_is_refused(
    store: Store, directory: Path, state_folder: Path
) -> None:
    written(store)
    found = os.stat

    def foreign(path: Any, *args: Any, **kwargs: Any) -> Any:
        result = found(path, *args, **kwargs)
        if path != str(state_folder):
            return result
        return os.stat_result((*result[:4], result.st_uid + 1, *result[5:10]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "stat", foreign)
        with pytest.raises(InvalidArgument, match="state folder"):
            store.lookup(KEY, MODEL)
        with pytest.raises(InvalidArgument, match="state folder"), store.write(KEY, MODEL, (1, 0)):
            pytest.fail("the block was entered")


def test_a_state_folder_that_is_open_to_others_is_closed(store: Store, state_folder: Path) -> None:
    state_folder.chmod(0o777)
    written(store)
    assert stat.S_IMODE(state_folder.stat().st_mode) == 0o700


def test_a_state_folder_that_cannot_be_made(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(directory, tmp_path / "file" / "state")
    directory.mkdir(mode=0o700)
    assert "state folder cannot be" in str(read(store))
    assert "state folder cannot be written" in write(store).reason


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"short"),
        lambda path: path.chmod(0o644),
        lambda path: path.write_bytes(bytes(32)),
        lambda path: (path.rename(path.with_name("k")), path.symlink_to(path.with_name("k"))),
    ],
)
def test_a_secret_that_is_spoilt_costs_the_entries(
    store: Store, state_folder: Path, spoil: Callable[[Path], object]
) -> None:
    written(store)
    spoil(state_folder / "cache.key")
    assert isinstance(read(store), str)
    written(store)
    assert read(store) == FILES
    assert stat.S_IMODE((state_folder / "cache.key").lstat().st_mode) == 0o600
