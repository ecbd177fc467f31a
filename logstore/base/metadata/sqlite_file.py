"""One SQLite file with the entries and leases of a metadata store. Methods block.

Invariants:
* Write-ahead log with synchronous=FULL: `apply` returns after the fsync of its transaction, so its update survives a
  power cut. One transaction for each update.
* The file is locked for one process: what is in memory beside it stays true.
* Every row has a CRC-32. `summary` has the revision, the number of rows, the sum of their CRCs and the number of
  transactions, with a CRC of its own. A file beside the database has the number of transactions too; it is written
  after each commit, without a sync, so it may be behind the database and is never ahead of it. `load` compares all
  three: a row that changed, rows that are missing, and transactions that SQLite drops because its write-ahead log is
  damaged are all found.
* A file that is damaged, of another program, or of a newer version is refused.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from logstore.base.directory import FILE_MODE, sync_directory
from logstore.base.metadata.errors import (
    MetadataDamaged,
    MetadataError,
    MetadataFull,
    MetadataUnavailable,
    OutcomeUnknown,
)
from logstore.base.metadata.interface import Entry, Lease
from logstore.base.metadata.state import FIRST_REVISION, Update
from logstore.base.transaction_count import read_count, write_count

APPLICATION_ID: Final = 0x4361_6D64
"""`Camd`, the application id in the header of the SQLite file."""
VERSION: Final = 1
LOCK_WAIT_S: Final = 1.0
"""The wait for a lock that another process holds: a former life of this one may be about to end."""
CHECKPOINT_PAGES: Final = 1000
TABLES: Final = {
    "entries": "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL, "
    "lease INTEGER NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID",
    "leases": "CREATE TABLE leases (id INTEGER PRIMARY KEY, ttl_s INTEGER NOT NULL, crc INTEGER NOT NULL)",
    "summary": "CREATE TABLE summary (transactions INTEGER NOT NULL, revision INTEGER NOT NULL, rows INTEGER NOT NULL, "
    "sum INTEGER NOT NULL, crc INTEGER NOT NULL)",
}
COUNT_SUFFIX: Final = ".transactions"
"""Of the file that has the number of transactions."""
_DAMAGE: Final = frozenset(
    (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_ERROR,  # the statements are correct, so the tables have changed
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_SCHEMA,
        sqlite3.SQLITE_TOOBIG,
    )
)


class Stored(NamedTuple):
    """The content of the file."""

    revision: int
    entries: tuple[Entry, ...]
    leases: tuple[Lease, ...]


class _MapSummary(NamedTuple):
    transactions: int
    revision: int
    rows: int
    sum: int

    @property
    def crc(self) -> int:
        return crc32(" ".join(map(str, self)).encode())


_EMPTY: Final = _MapSummary(0, FIRST_REVISION, 0, 0)


class SqliteFile:
    """See the module. Used by one thread at a time, not always the same."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = Path(f"{path}{COUNT_SUFFIX}")
        self._connection: sqlite3.Connection | None = None

    def load(self) -> Stored:
        """Open the file, making it if it is missing, and read all of it.

        What an earlier failure left in the write-ahead log is moved to the database and synced there first. Raises
        MetadataDamaged, MetadataUnavailable.
        """
        self.close()
        try:
            if not self._path.exists():
                _create(self._path, self._count)
            self._connection = self._open()
            self._check(self._connection)
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return self._read(self._connection)
        except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
            self.close()
            raise _judge(self._path, error) from error
        except MetadataDamaged:
            self.close()
            raise

    def apply(self, update: Update) -> None:
        """Make an update durable.

        Raises MetadataFull or MetadataUnavailable if nothing was changed. Raises OutcomeUnknown if the commit itself
        failed; `load` then says what is stored.
        """
        connection = self._connection
        if connection is None:
            raise MetadataUnavailable(f"{self._path} is not open: it failed before")
        try:
            connection.execute("BEGIN IMMEDIATE")
            transactions = _change(connection, update)
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            self.close()  # what a failed statement left in SQLite's cache is not used
            raise _refused(self._path, error) from error
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self.close()
            raise OutcomeUnknown(f"{self._path}: a commit failed ({error}): read what is stored") from error
        write_count(self._count, transactions)

    def close(self) -> None:
        """Close the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    @property
    def is_open(self) -> bool:
        """Whether the file is open and no call has failed since `load`."""
        return self._connection is not None

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        except (sqlite3.Error, UnicodeDecodeError):
            connection.close()
            raise
        return connection

    def _check(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        tables = dict(connection.execute("SELECT name, sql FROM sqlite_master"))
        if not tables:
            raise _damaged(self._path, "it is empty")
        if application != APPLICATION_ID:
            raise MetadataDamaged(f"{self._path} is a database of another program: choose another directory")
        if version != VERSION:
            raise MetadataDamaged(f"{self._path} has version {version}; this Cairn knows {VERSION}: use a newer one")
        with closing(connection.execute("PRAGMA integrity_check(1)")) as found:
            (verdict,) = found.fetchone()
        if verdict != "ok":
            raise _damaged(self._path, verdict)
        if tables != TABLES:
            raise _damaged(self._path, "its tables are not those that were made")

    def _read(self, connection: sqlite3.Connection) -> Stored:
        # Keys as bytes: a damaged text may be invalid UTF-8.
        query = "SELECT CAST(key AS BLOB), value, revision, lease, crc FROM entries ORDER BY key"
        entries, total = [], 0
        for key, value, revision, lease_id, crc in connection.execute(query):
            if _entry_crc(key, value, revision, lease_id) != crc:
                name = key.decode(errors="backslashreplace")
                raise _damaged(self._path, f"the checksum of entry {name!r} does not fit")
            entries.append(Entry(key.decode("ascii"), value, revision, lease_id))
            total += crc
        leases = []
        for lease_id, ttl_s, crc in connection.execute("SELECT id, ttl_s, crc FROM leases ORDER BY id"):
            if _lease_crc(lease_id, ttl_s) != crc:
                raise _damaged(self._path, f"the checksum of lease {lease_id} does not fit")
            leases.append(Lease(lease_id, ttl_s))
            total += crc
        summary = self._compare(connection, len(entries) + len(leases), total)
        return Stored(summary.revision, tuple(entries), tuple(leases))

    def _compare(self, connection: sqlite3.Connection, rows: int, total: int) -> _MapSummary:
        """Check that these rows are complete and the newest that were stored. Raises MetadataDamaged."""
        found = connection.execute("SELECT transactions, revision, rows, sum, crc FROM summary").fetchall()
        if len(found) != 1 or not all(type(value) is int for value in found[0]):
            raise _damaged(self._path, "its summary cannot be read")
        summary = _MapSummary(*found[0][:4])
        if summary.crc != found[0][4]:
            raise _damaged(self._path, "the checksum of its summary does not fit")
        if (summary.rows, summary.sum) != (rows, total):
            raise _damaged(self._path, f"it has {rows} rows, but its summary says {summary.rows} or lists others")
        stored = read_count(self._count)
        if stored is not None and stored > summary.transactions:
            raise _damaged(
                self._path,
                f"{stored - summary.transactions} transactions that were stored are missing: its write-ahead log is "
                f"damaged, or it is an old copy; to go on with an old copy, remove {self._count.name}",
            )
        return summary


def _create(path: Path, count: Path) -> None:
    """Create a file, which gets its name only when it is complete: an empty file of that name was truncated."""
    log = Path(f"{path}-wal")
    if log.exists():
        raise _damaged(path, f"it is missing, and {log.name} is there")
    new = Path(f"{path}.new")
    new.unlink(missing_ok=True)
    count.unlink(missing_ok=True)
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        for statement in TABLES.values():
            connection.execute(statement)
        connection.execute("INSERT INTO summary VALUES (?, ?, ?, ?, ?)", (*_EMPTY, _EMPTY.crc))
        connection.execute(f"PRAGMA user_version={VERSION}")
        connection.execute("COMMIT")
    new.chmod(FILE_MODE)
    new.rename(path)
    sync_directory(path.parent)


def _change(connection: sqlite3.Connection, update: Update) -> int:
    """Make an update and its summary; returns the number of transactions including this one."""
    found = connection.execute("SELECT transactions, revision, rows, sum FROM summary").fetchone()
    transactions, _, rows, total = found
    gone: list[tuple[str, str, str | int]] = [("entries", "key", key) for key in update.deletes]
    gone += [("entries", "key", entry.key) for entry in update.puts]
    gone += [("leases", "id", lease_id) for lease_id in update.ended]
    for table, column, key in gone:
        for crc in _remove(connection, table, column, key):
            rows, total = rows - 1, total - crc
    for entry in update.puts:
        crc = _entry_crc(entry.key.encode("ascii"), entry.value, entry.revision, entry.lease_id)
        row = (entry.key, entry.value, entry.revision, entry.lease_id, crc)
        connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", row)
        rows, total = rows + 1, total + crc
    for lease in update.granted:
        crc = _lease_crc(*lease)
        connection.execute("INSERT INTO leases VALUES (?, ?, ?)", (*lease, crc))
        rows, total = rows + 1, total + crc
    summary = _MapSummary(transactions + 1, update.revision, rows, total)
    connection.execute(
        "UPDATE summary SET transactions = ?, revision = ?, rows = ?, sum = ?, crc = ?", (*summary, summary.crc)
    )
    return summary.transactions


def _remove(connection: sqlite3.Connection, table: str, column: str, key: str | int) -> Iterator[int]:
    """Remove a row; yields its CRC if it was there."""
    rows: Iterable[tuple[int]] = connection.execute(
        f"SELECT crc FROM {table} WHERE {column} = ?",  # noqa: S608 - names of our own tables
        (key,),
    ).fetchall()
    for (crc,) in rows:
        connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (key,))  # noqa: S608 - names of our own tables
        yield crc


def _entry_crc(key: bytes, value: bytes, revision: int, lease_id: int) -> int:
    return crc32(value, crc32(f"{revision} {lease_id} ".encode() + key + b"\0"))


def _lease_crc(lease_id: int, ttl_s: int) -> int:
    return crc32(f"{lease_id} {ttl_s}".encode())


def _code(error: BaseException) -> int:
    # Errors of Python itself, such as text that cannot be decoded, have no code.
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)) & 0xFF


def _refused(path: Path, error: sqlite3.Error) -> MetadataError:
    """The error of a change that was rolled back."""
    if _code(error) == sqlite3.SQLITE_FULL:
        return MetadataFull(f"{path} cannot grow: {error}; free space on its disk")
    return MetadataUnavailable(f"{path} cannot be written: {error}")


def _judge(path: Path, error: sqlite3.Error | UnicodeDecodeError | OSError) -> MetadataError:
    """The error of opening: MetadataDamaged for damage, which no other try mends. Damaged text may not even decode."""
    if isinstance(error, UnicodeDecodeError):
        return _damaged(path, f"a text in it cannot be read: {error}")
    if isinstance(error, OSError):
        return MetadataUnavailable(f"{path} cannot be opened: {error.strerror or error}")
    code = _code(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return MetadataUnavailable(f"{path} is in use by another process: end that process, or use another directory")
    # A writable file that SQLite calls read-only: the version in its header is damaged. SQLite gives the same error for
    # a directory in which it cannot create its log.
    may_write = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    if code in _DAMAGE or (code == sqlite3.SQLITE_READONLY and may_write):
        return _damaged(path, str(error))
    if code == sqlite3.SQLITE_FULL:
        return MetadataFull(f"{path} cannot be opened: {error}; free space on its disk")
    return MetadataUnavailable(f"{path} cannot be opened: {error}")


def _damaged(path: Path, what: str) -> MetadataDamaged:
    line = " ".join(what.split())[:300]
    return MetadataDamaged(
        f"{path} is damaged ({line}): restore it from a copy, or move it away and start without its content"
    )
