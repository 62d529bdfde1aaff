"""The ledger: rows that verify, a database that is damaged, locked or foreign."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nnasync._core.cache import Store
from nnasync._core.cache import ledger as ledger_module
from nnasync._core.cache.entry_records import FORMAT, FileRecord, Record
from nnasync._core.cache.installation import Installation
from nnasync._core.cache.ledger import CacheLedger
from nnasync._core.cache.outcome import Rejected
from tests.cache.entries import FILES, OTHER_KEY, read, write, written

RECORD = Record(FORMAT, "0.1", "device", "1.0", b"m", b"g" * 16, False, (FileRecord(1, b"d"),), ())
DATABASE = "cache-1.sqlite3"


@pytest.fixture
def ledger(state_folder: Path) -> CacheLedger:
    """An empty ledger."""
    return CacheLedger(Installation(str(state_folder)))


@contextlib.contextmanager
def database(state_folder: Path) -> Iterator[sqlite3.Connection]:
    """The database below a ledger."""
    with contextlib.closing(sqlite3.connect(state_folder / DATABASE)) as connection, connection:
        yield connection


def put(ledger: CacheLedger, directory: bytes, token: bytes, slot: bytes = b"slot") -> None:
    """Write a record."""
    with ledger.writing(directory) as rows:
        rows.put(token, slot, RECORD)


def found(ledger: CacheLedger, directory: bytes, token: bytes) -> Record | None:
    """Look for a record."""
    with ledger.reading(directory) as rows:
        return rows.find(token) if rows else None


def test_an_empty_ledger_is_not_made_by_reading(ledger: CacheLedger, state_folder: Path) -> None:
    assert found(ledger, b"/d", b"t") is None
    assert list(state_folder.iterdir()) == []


def test_records_belong_to_a_directory_and_a_token(ledger: CacheLedger) -> None:
    put(ledger, b"/d", b"t")
    assert found(ledger, b"/d", b"t") == RECORD
    assert found(ledger, b"/e", b"t") is None
    assert found(ledger, b"/d", b"u") is None
    with ledger.writing(b"/d") as rows:
        assert rows.tokens() == {b"t"}
        assert rows.same_slot(b"slot") == [RECORD]
        assert rows.same_slot(b"other") == []
        rows.forget(b"t")
    assert found(ledger, b"/d", b"t") is None


def test_an_exception_takes_everything_back(ledger: CacheLedger) -> None:
    put(ledger, b"/d", b"t")
    with pytest.raises(ZeroDivisionError), ledger.writing(b"/d") as rows:
        rows.forget(b"t")
        rows.put(b"u", b"slot", RECORD)
        raise ZeroDivisionError
    assert found(ledger, b"/d", b"t") == RECORD
    assert found(ledger, b"/d", b"u") is None


@pytest.mark.parametrize(
    "change",
    [
        "record = zeroblob(length(record))",
        "record = 'text'",
        "signature = zeroblob(32)",
        "signature = ''",
        "token = x'75'",
        "directory = x'2f65'",
    ],
)
def test_a_row_that_was_changed_is_not_accepted(
    ledger: CacheLedger, state_folder: Path, change: str
) -> None:
    put(ledger, b"/d", b"t")
    with database(state_folder) as connection:
        connection.execute(f"UPDATE entries SET {change}")
    for directory, token in ((b"/d", b"t"), (b"/e", b"t"), (b"/d", b"u")):
        with contextlib.suppress(Rejected):
            assert found(ledger, directory, token) is None
    with ledger.reading(b"/d") as rows:
        assert rows is not None
        assert rows.same_slot(b"slot") == []


def test_the_number_of_rows_is_bounded(
    ledger: CacheLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "_MAX_ROWS", 3)
    for token in (b"1", b"2", b"3", b"1", b"4"):
        put(ledger, b"/" + token, token)
    assert [bool(found(ledger, b"/" + token, token)) for token in (b"1", b"2", b"3", b"4")] == [
        True,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("content", [b"", b"no database", bytes(8192), b"SQLite format 3\0" * 99])
def test_a_file_that_is_no_database_is_begun_anew(
    store: Store, state_folder: Path, content: bytes
) -> None:
    written(store)
    (state_folder / DATABASE).write_bytes(content)
    assert isinstance(read(store), str)
    written(store)
    assert read(store) == FILES


@pytest.mark.parametrize("page", [0, 1, 2])
@pytest.mark.parametrize("offset", [0, 100, 2000])
def test_a_damaged_page_costs_entries_at_most(
    store: Store, state_folder: Path, page: int, offset: int
) -> None:
    written(store)
    path = state_folder / DATABASE
    with open(path, "r+b") as file:
        file.seek(page * 4096 + offset)
        file.write(b"\xa5" * 300)
    assert read(store) == FILES or isinstance(read(store), str)
    for _ in range(3):
        write(store)
    assert read(store) == FILES
    written(store, key=OTHER_KEY)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.with_name(path.name + "-wal").write_bytes(b"rubbish" * 999),
        lambda path: path.with_name(path.name + "-shm").write_bytes(b"rubbish" * 999),
    ],
)
def test_files_of_the_database_that_are_lost_or_rubbish(
    store: Store, state_folder: Path, spoil: Callable[[Path], object]
) -> None:
    written(store)
    spoil(state_folder / DATABASE)
    assert read(store) == FILES or isinstance(read(store), str)
    written(store)
    assert read(store) == FILES


def test_a_ledger_that_somebody_holds_is_a_reason_not_an_error(
    store: Store, state_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(store)
    monkeypatch.setattr(ledger_module, "_PATIENCE_S", 0.0)
    with database(state_folder) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert read(store) == FILES
        connection.execute("ROLLBACK")


def test_a_database_in_a_folder_s_place(store: Store, state_folder: Path) -> None:
    (state_folder / DATABASE).mkdir(parents=True)
    assert "state folder cannot be written" in write(store).reason
    assert isinstance(read(store), str)


def test_without_sqlite_there_is_no_cache(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    written(store)
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    assert read(store) == write(store).reason == "this Python has no sqlite3, which the cache needs"


def test_threads_share_a_ledger(ledger: CacheLedger) -> None:
    names = [b"%d" % number for number in range(8)]
    threads = [threading.Thread(target=put, args=(ledger, b"/d", name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found(ledger, b"/d", name) for name in names] == [RECORD] * 8


def test_processes_agree_on_the_secret(state_folder: Path) -> None:
    installations = [Installation(str(state_folder)) for _ in range(8)]
    secrets: list[bytes] = []
    barrier = threading.Barrier(8)

    def make(installation: Installation) -> None:
        barrier.wait()
        secrets.append(installation.make_secret())

    threads = [threading.Thread(target=make, args=(each,)) for each in installations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(secrets) == 8
    assert set(secrets) == {installations[0].secret()}
    assert [path.name for path in state_folder.iterdir()] == ["cache.key"]
