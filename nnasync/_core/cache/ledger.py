"""The records of all entries: a map in the user's state folder that many processes share.

It is one SQLite database. Every operation opens it, does one transaction and closes it, so nothing
is held over a fork and any thread may call. Records are signed with the secret of the installation
and bound to their directory and token; a row that does not verify is as good as none. A database
that is damaged is thrown away and begun anew: a cache may be lost.

Only writing an entry writes here; which entries were used last is kept in the directory of the
files. The number of rows is bounded all the same: past it the oldest writings go.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from nnasync._core.cache.entry_records import Record, decode, encode, sign
from nnasync._core.cache.installation import Installation
from nnasync._core.cache.outcome import Rejected

if TYPE_CHECKING:
    import sqlite3

_NAME = "cache-1.sqlite3"
_PATIENCE_S = 10.0
_READING_PATIENCE_S = 1.0
_MAX_ROWS = 4096
_DAMAGE = (11, 26)  # SQLITE_CORRUPT, SQLITE_NOTADB

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    directory BLOB NOT NULL,
    token BLOB NOT NULL,
    slot BLOB NOT NULL,
    written INTEGER NOT NULL,
    record BLOB NOT NULL,
    signature BLOB NOT NULL,
    PRIMARY KEY (directory, token)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_by_age ON entries (written);
"""


class DirectoryRows:
    """The rows of one directory within one transaction."""

    def __init__(self, connection: sqlite3.Connection, secret: bytes, directory: bytes) -> None:
        self._connection = connection
        self._secret = secret
        self._directory = directory

    def find(self, token: bytes) -> Record | None:
        """The record of an entry, None without one; raises Rejected if it is not genuine."""
        row = self._connection.execute(
            "SELECT record, signature FROM entries WHERE directory = ? AND token = ?",
            (self._directory, token),
        ).fetchone()
        return None if row is None else self._verified(token, *row)

    def same_slot(self, slot: bytes) -> list[Record]:
        """The genuine records of a slot, the latest first."""
        rows = self._connection.execute(
            "SELECT token, record, signature FROM entries "
            "WHERE directory = ? AND slot = ? ORDER BY written DESC LIMIT 16",
            (self._directory, slot),
        ).fetchall()
        found = []
        for row in rows:
            with contextlib.suppress(Rejected):
                found.append(self._verified(*row))
        return found

    def _verified(self, token: object, record: object, signature: object) -> Record:
        if not (isinstance(token, bytes) and isinstance(record, bytes)):
            raise Rejected("the record of the entry is damaged")
        expected = sign(self._secret, self._directory, token, record)
        if not isinstance(signature, bytes) or not hmac.compare_digest(signature, expected):
            raise Rejected("the record of the entry was not signed by this installation")
        return decode(record)

    def tokens(self) -> set[bytes]:
        """Tokens of the directory."""
        rows = self._connection.execute(
            "SELECT token FROM entries WHERE directory = ?", (self._directory,)
        )
        return {token for (token,) in rows if isinstance(token, bytes)}

    def named_by(self) -> dict[bytes, bytes]:
        """The tokens of the directory, by those that the files of their entries are named by."""
        rows = self._connection.execute(
            "SELECT token, record, signature FROM entries WHERE directory = ?", (self._directory,)
        )
        found = {}
        for row in rows:
            with contextlib.suppress(Rejected):
                found[self._verified(*row).named_by(row[0])] = row[0]
        return found

    def put(self, token: bytes, slot: bytes, record: Record) -> None:
        """Write a record, and forget the oldest ones of all directories past a bound."""
        data = encode(record)
        signature = sign(self._secret, self._directory, token, data)
        self._connection.execute(
            "INSERT OR REPLACE INTO entries SELECT ?, ?, ?, coalesce(max(written), 0) + 1, ?, ? "
            "FROM entries",
            (self._directory, token, slot, data, signature),
        )
        self._connection.execute(
            "DELETE FROM entries WHERE written < "
            "(SELECT written FROM entries ORDER BY written DESC LIMIT 1 OFFSET ?)",
            (_MAX_ROWS - 1,),
        )

    def forget(self, token: bytes) -> None:
        """Delete a record; harmless without one."""
        self._connection.execute(
            "DELETE FROM entries WHERE directory = ? AND token = ?", (self._directory, token)
        )


class CacheLedger:
    """The database of an installation."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._path = installation.path(_NAME)

    @contextlib.contextmanager
    def reading(self, directory: bytes) -> Iterator[DirectoryRows | None]:
        """The rows of a directory to look at; None where nothing was ever written.

        Raises Rejected where the database cannot be read, InvalidArgument for a state folder that
        belongs to somebody else.
        """
        secret = self._installation.secret()
        if secret is None or not os.path.exists(self._path):
            yield None
            return
        with _explained("read"), self._connection(_READING_PATIENCE_S) as connection:
            yield DirectoryRows(connection, secret, directory)

    @contextlib.contextmanager
    def writing(self, directory: bytes) -> Iterator[DirectoryRows]:
        """The rows of a directory to change: alone, and in one step when the block is left.

        An exception in the block takes all of it back. Raises as `reading`.
        """
        secret = self._installation.make_secret()
        with _explained("written", damaged=self._begin_anew):
            self._make()
            with self._connection() as connection:
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield DirectoryRows(connection, secret, directory)
                    connection.execute("COMMIT")
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def _connection(self, patience_s: float = _PATIENCE_S) -> Iterator[sqlite3.Connection]:
        import sqlite3

        connection = sqlite3.connect(self._path, timeout=patience_s, isolation_level=None)
        try:
            yield connection
        finally:
            connection.close()

    def _make(self) -> None:
        """Make the database if there is none; one that is no database is begun anew."""
        import sqlite3

        try:
            if self._is_made():
                return
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._begin_anew()
        with self._alone(), self._connection() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)

    def _is_made(self) -> bool:
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise Rejected(f"the state folder cannot be written: {error.strerror}") from error
        with self._connection() as connection:
            found = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return bool(found[0] >= 2)

    def _begin_anew(self) -> None:
        with self._alone():
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(OSError):
                    os.unlink(self._path + suffix)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        # SQLite changes its journal mode without patience: of two at once, one fails.
        try:
            fd = os.open(self._path + "-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Rejected(f"the state folder cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


@contextlib.contextmanager
def _explained(done: str, *, damaged: Callable[[], None] | None = None) -> Iterator[None]:
    """Errors of SQLite as reasons; `damaged` is called where the database is no longer one."""
    try:
        import sqlite3
    except ImportError as error:
        raise Rejected("this Python has no sqlite3, which the cache needs") from error
    try:
        yield
    except sqlite3.Error as error:
        if damaged is not None and _is_damage(error):
            damaged()
            raise Rejected(f"the cache's ledger was damaged and is begun anew: {error}") from error
        raise Rejected(f"the cache's ledger cannot be {done}: {error}") from error


def _is_damage(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGE
