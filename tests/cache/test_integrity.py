"""What a client does to the files of a cache: no changed model cache file is ever accepted."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from nnasync._core.cache import Contents, Hit, Store
from nnasync._core.cache.directory import Directory
from nnasync._core.cache.entry_records import HEADER_BYTES, Record
from nnasync._core.cache.ledger import DirectoryRows
from tests.cache import entries
from tests.cache.entries import (
    FILES,
    KEY,
    MODEL,
    OTHER_KEY,
    Files,
    cache_files,
    contents,
    read,
    write,
    written,
)

SMALL: Files = ([bytes(range(256))], [bytes(range(256))])


@pytest.fixture(autouse=True, params=["lookup", "read"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it holds for a reader of descriptors and for one of contents."""
    monkeypatch.setattr(entries, "WAY", request.param)


def flips(path: Path, positions: Iterable[int], bits: tuple[int, ...]) -> Iterator[str]:
    """Flip one bit after the other, and undo it when asked for the next."""
    original = path.read_bytes()
    with open(path, "r+b", buffering=0) as file:
        for position, bit in itertools.product(positions, bits):
            os.pwrite(file.fileno(), bytes([original[position] ^ 1 << bit]), position)
            yield f"bit {bit} of byte {position} of {path.name}"
            os.pwrite(file.fileno(), original[position : position + 1], position)


@pytest.mark.parametrize("encrypt", [False, True])
def test_a_flipped_bit_is_rejected(directory: Path, state_folder: Path, encrypt: bool) -> None:
    """Each byte of the headers, and a sample of each file."""
    store = Store(directory, state_folder, encrypt=encrypt)
    written(store, SMALL)
    for path in cache_files(directory):
        positions = [*range(HEADER_BYTES), *range(HEADER_BYTES, path.stat().st_size, 37)]
        for where in flips(path, positions, (0,)):
            assert isinstance(read(store), str), where
    assert read(store) == SMALL


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 4096, 65_536])
def test_every_flipped_byte_is_rejected(store: Store, directory: Path, size: int) -> None:
    files: Files = ([random.Random(size).randbytes(size)], [b"weights"])
    written(store, files)
    for path in cache_files(directory):
        for where in flips(path, range(path.stat().st_size), (random.Random(size).randrange(8),)):
            assert isinstance(read(store), str), where
    assert read(store) == files


@pytest.mark.slow
def test_flips_at_10_000_places_of_a_large_file_are_rejected(store: Store, directory: Path) -> None:
    choose = random.Random(4)
    files: Files = ([choose.randbytes(1 << 20)], [])
    written(store, files)
    path = cache_files(directory)[0]
    places = [choose.randrange(path.stat().st_size) for _ in range(10_000)]
    for where in flips(path, places, (choose.randrange(8),)):
        assert isinstance(read(store), str), where
    assert read(store) == files


@pytest.mark.parametrize("encrypt", [False, True])
def test_every_other_length_is_rejected(directory: Path, state_folder: Path, encrypt: bool) -> None:
    store = Store(directory, state_folder, encrypt=encrypt)
    written(store, SMALL)
    for path in cache_files(directory):
        original = path.read_bytes()
        shorter = [original[:length] for length in range(0, len(original), 7)]
        longer = [original + bytes(extra) for extra in (1, 2, 64, 256)]
        for content in (*shorter, *longer):
            path.write_bytes(content)
            reason = read(store)
            assert isinstance(reason, str)
            assert reason.startswith("of another size than it was: file 0 of the ")
        path.write_bytes(original)
    assert read(store) == SMALL


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), "missing: file 1 of the model cache"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!"),
            "modified: file 1 of the model cache",
        ),
        (
            lambda path: path.write_bytes(b"N" + path.read_bytes()[1:]),
            "modified, or of another entry: file 1 of the model cache",
        ),
    ],
)
def test_the_reason_names_the_file(
    store: Store, directory: Path, damage: Callable[[Path], object], reason: str
) -> None:
    written(store)
    damage(cache_files(directory)[1])
    assert read(store) == reason
    written(store)
    assert read(store) == FILES


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("replace", [replace_by_link, replace_by_folder, replace_by_pipe])
@pytest.mark.parametrize("index", [0, 2])
def test_what_is_no_regular_file_is_not_read(
    store: Store, directory: Path, replace: Callable[[Path], None], index: int
) -> None:
    written(store)
    replace(cache_files(directory)[index])
    assert str(read(store)).startswith("unreadable (")


@pytest.mark.parametrize("kind", [0, 1])
def test_files_of_another_entry_are_rejected(store: Store, directory: Path, kind: int) -> None:
    written(store, SMALL)
    mine = cache_files(directory)[kind]
    written(store, SMALL, OTHER_KEY)
    theirs = next(
        path
        for path in cache_files(directory)
        if path.name[64:] == mine.name[64:] and path.name != mine.name
    )
    for source, target in ((theirs, mine), (mine, theirs)):
        kept = target.read_bytes()
        shutil.copy(source, target)
        assert "of another entry" in str(read(store, KEY if target == mine else OTHER_KEY))
        target.write_bytes(kept)
    assert read(store) == read(store, OTHER_KEY) == SMALL


def test_files_of_an_entry_cannot_change_places(store: Store, directory: Path) -> None:
    written(store, ([b"same", b"same"], [b"same"]))
    paths = cache_files(directory)
    for one, other in itertools.permutations(paths, 2):
        kept = other.read_bytes()
        shutil.copy(one, other)
        assert "of another entry" in str(read(store))
        other.write_bytes(kept)
    assert isinstance(read(store), tuple)


def test_older_files_put_back_are_rejected(store: Store, directory: Path, tmp_path: Path) -> None:
    written(store, SMALL)
    shutil.copytree(directory, tmp_path / "older")
    written(store, FILES)
    shutil.copytree(tmp_path / "older", directory, dirs_exist_ok=True)
    assert read(store) == FILES  # its files have other names than those of the writing before
    written(store, SMALL)
    shutil.copytree(tmp_path / "older", directory, dirs_exist_ok=True)
    assert "of another entry" in str(read(store))


def test_a_copy_of_the_directory_is_no_cache(
    store: Store, directory: Path, state_folder: Path
) -> None:
    written(store)
    shutil.copytree(directory, directory.with_name("copy"))
    os.chmod(directory.with_name("copy"), 0o700)
    reason = read(Store(directory.with_name("copy"), state_folder))
    assert str(reason).startswith("no record of these files")


def test_another_installation_does_not_accept_it(
    store: Store, directory: Path, tmp_path: Path
) -> None:
    written(store)
    other = Store(directory, tmp_path / "state")
    assert str(read(other)).startswith("no record of these files")
    written(other)
    assert "of another entry" in str(read(store))
    assert read(other) == FILES


def test_a_whole_directory_of_rubbish_is_rejected(store: Store, directory: Path) -> None:
    written(store)
    choose = random.Random(7)
    for _ in range(50):
        for path in cache_files(directory):
            path.write_bytes(choose.randbytes(choose.randrange(1, 600)))
        assert isinstance(read(store), str)
    written(store)
    assert read(store) == FILES


class Swapping:
    """A client who replaces each file at the moment when it was opened, or right before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, swap: Callable[[str], None]) -> None:
        self.opened = 0
        self._swap = swap
        self._open_file = Directory.open_file
        monkeypatch.setattr(Directory, "open_file", self.open_file)

    @property
    def open_file(self) -> Callable[[Directory, str], int]:
        def replaced(directory: Directory, name: str) -> int:
            fd = self._open_file(directory, name)
            self.opened += 1
            self._swap(name)
            return fd

        return replaced


@pytest.mark.parametrize("in_place", [False, True])
def test_files_replaced_between_check_and_use(
    store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    """The file that was opened is the one that counts; written to in place it is rejected."""
    written(store, SMALL)

    def swap(name: str) -> None:
        path = directory / name
        evil = path.read_bytes()[:HEADER_BYTES] + bytes(256)
        if not in_place:
            path.unlink()
        path.write_bytes(evil)

    client = Swapping(monkeypatch, swap)
    found = read(store)
    assert client.opened >= 1
    assert found == ("modified: file 0 of the model cache" if in_place else SMALL)


def test_files_changed_after_the_lookup_do_not_matter(store: Store, directory: Path) -> None:
    written(store)
    found, taken = store.lookup(KEY, MODEL), store.read(KEY, MODEL)
    assert isinstance(found, Hit)
    assert isinstance(taken, Contents)
    for path in cache_files(directory):
        path.write_bytes(bytes(path.stat().st_size))
    with found:
        assert contents(found) == FILES
    assert (list(taken.model), [bytes(data) for data in taken.data]) == FILES
    assert all(data.readonly for data in taken.data)


def test_a_reader_overtaken_by_a_writer_reads_the_new_entry(store: Store) -> None:
    """The record was read, then the entry is replaced, then the files are read."""
    written(store)
    newer: Files = ([b"newer"], [b"data"])
    find = DirectoryRows.find
    overtaking = iter([True])

    def overtaken(rows: DirectoryRows, token: bytes) -> Record | None:
        record = find(rows, token)
        if next(overtaking, False):
            written(store, newer)
        return record

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectoryRows, "find", overtaken)
        assert read(store) == newer


def test_a_damaged_data_file_is_noticed(store: Store, directory: Path) -> None:
    written(store, SMALL)
    path = cache_files(directory)[1]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert read(store) == "modified: file 0 of the data cache"


def test_a_driver_that_closes_a_descriptor_stores_nothing(store: Store) -> None:
    with store.write(KEY, MODEL, (1, 0)) as writing:
        fd = writing.model_fds[0]
        pipe = os.pipe()
        os.dup2(pipe[0], fd)
    for end in pipe:
        os.close(end)
    assert not writing.stored
    assert "regular file" in writing.reason
    assert write(store).stored
