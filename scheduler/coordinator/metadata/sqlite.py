"""Metadata in one SQLite file.

Invariants:
* Write-ahead log with synchronous=FULL: a commit returns after its fsync, so changes survive a power cut once `apply`
  has returned.
* One transaction per `apply`. After an error the connection is opened again: the caches that a failed commit left are
  not used.
* Every row has a CRC-32 of its key and value. `summary` has the number of rows, the sum of their CRCs and the number of
  transactions, with a CRC of its own. A file beside the database has the number of transactions too: it is written
  after each commit, without a sync, so it may be behind the database and is never ahead of it. `load` compares all
  three: a row that changed, rows that are missing, and transactions that SQLite drops because its write-ahead log is
  damaged are all found.
* A file that is damaged, of another program, or of a newer version is refused at the start.
* A file of version 1, which had no CRCs, is taken over as it is, in one transaction.
"""

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from logstore.base.directory import sync_directory
from logstore.base.transaction_count import read_count, write_count
from scheduler.coordinator.errors import StoreDamaged, StoreError
from scheduler.coordinator.metadata.interface import Change, SetValue

APPLICATION_ID = 0x4361_726E
"""`Carn`, the application id in the header of a SQLite file."""
VERSION = 2
VERSION_WITHOUT_CRCS = 1
LOCK_WAIT_S = 5.0
"""The wait for a lock that another program holds, such as a SQLite shell."""
CHECKPOINT_PAGES = 1000
LAST_CHARACTER = "\U0010ffff"
"""The last character in the order of keys."""
ENTRIES = "CREATE TABLE entries (key TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID"
SUMMARY = (
    "CREATE TABLE summary (transactions INTEGER NOT NULL, entries INTEGER NOT NULL, sum INTEGER NOT NULL, "
    "crc INTEGER NOT NULL)"
)
TABLES = {"entries": ENTRIES, "summary": SUMMARY}
COUNT_SUFFIX = ".transactions"
"""Of the file that has the number of transactions."""
_DAMAGE = frozenset(
    (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_ERROR,  # the statements are correct, so the tables have changed
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_SCHEMA,
        sqlite3.SQLITE_TOOBIG,
    )
)


class _RowsSummary(NamedTuple):
    """The checksum of all rows."""

    transactions: int
    entries: int
    sum: int

    @property
    def crc(self) -> int:
        return crc32(f"{self.transactions} {self.entries} {self.sum}".encode())


class SqliteMetadata:
    """See BlockingMetadata. Raises StoreDamaged or StoreError when it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = Path(f"{path}{COUNT_SUFFIX}")
        self._connection: sqlite3.Connection | None = None
        try:
            if not path.exists():
                _create(path, self._count)
            self._connection = self._open()
            self._check()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self.close()
            raise _judge(path, error) from error
        except StoreDamaged:
            self.close()
            raise

    def load(self) -> Mapping[str, str]:
        """See BlockingMetadata."""
        entries: dict[str, str] = {}
        total = 0
        try:
            connection = self._opened()
            # As bytes: a damaged text may be invalid UTF-8.
            rows = connection.execute("SELECT CAST(key AS BLOB), CAST(value AS BLOB), crc FROM entries ORDER BY key")
            for key, value, crc in rows:
                if crc32(key + b"\0" + value) != crc:
                    name = key.decode(errors="backslashreplace")
                    raise _damaged(self._path, f"the checksum of entry {name!r} does not fit")
                entries[key.decode()] = value.decode()
                total += crc
            self._compare(connection, entries, total)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise _judge(self._path, error) from error
        return entries

    def _compare(self, connection: sqlite3.Connection, entries: Mapping[str, str], total: int) -> None:
        """Check that these rows are complete and the newest that were stored. Raises StoreDamaged."""
        rows = connection.execute("SELECT transactions, entries, sum, crc FROM summary").fetchall()
        if len(rows) != 1 or not all(type(value) is int for value in rows[0]):
            raise _damaged(self._path, "its summary cannot be read")
        summary = _RowsSummary(*rows[0][:3])
        if summary.crc != rows[0][3]:
            raise _damaged(self._path, "the checksum of its summary does not fit")
        if (summary.entries, summary.sum) != (len(entries), total):
            raise _damaged(self._path, f"it has {len(entries)} entries, and its summary says {summary.entries}")
        stored = read_count(self._count)
        if stored is not None and stored > summary.transactions:
            raise _damaged(
                self._path,
                f"{stored - summary.transactions} transactions that were stored are missing: its write-ahead log is "
                f"damaged, or it is an old copy; to go on with an old copy, remove {self._count.name}",
            )

    def apply(self, changes: Sequence[Change]) -> None:
        """See BlockingMetadata."""
        try:
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            try:
                transactions = _change(connection, changes)
                connection.execute("COMMIT")
            except sqlite3.Error:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            self.close()
            raise StoreError(f"{self._path.name} cannot be written: {error}") from error
        write_count(self._count, transactions)

    def close(self) -> None:
        """See BlockingMetadata."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        # One thread at a time uses it, but not always the same thread.
        connection = sqlite3.connect(self._path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        except (sqlite3.Error, UnicodeDecodeError):
            connection.close()
            raise
        return connection

    def _check(self) -> None:
        connection = self._opened()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        tables = dict(connection.execute("SELECT name, sql FROM sqlite_master"))
        if not tables:
            raise _damaged(self._path, "it is empty")
        if application != APPLICATION_ID:
            raise StoreDamaged(f"{self._path} is a database of another program: choose another --data-dir")
        if version not in (VERSION, VERSION_WITHOUT_CRCS):
            raise StoreDamaged(f"{self._path} has version {version}; this Cairn knows {VERSION}: use a newer one")
        with closing(connection.execute("PRAGMA integrity_check(1)")) as found:
            (verdict,) = found.fetchone()
        if verdict != "ok":
            raise _damaged(self._path, verdict)
        if version == VERSION_WITHOUT_CRCS and "summary" not in tables:
            _migrate(self._path, connection)
        elif tables != TABLES:
            raise _damaged(self._path, "its tables are not those that were made")


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
        _make_tables(connection)
        connection.execute("COMMIT")
    new.rename(path)
    sync_directory(path.parent)


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in TABLES.values():
        connection.execute(statement)
    nothing = _RowsSummary(0, 0, 0)
    connection.execute("INSERT INTO summary VALUES (?, ?, ?, ?)", (*nothing, nothing.crc))
    connection.execute(f"PRAGMA user_version={VERSION}")


def _migrate(path: Path, connection: sqlite3.Connection) -> None:
    """Migrate from version 1, whose rows have no CRCs: its rows are accepted as they are. Raises StoreDamaged."""
    connection.create_function("crc_of", 2, _crc, deterministic=True)
    connection.execute("BEGIN IMMEDIATE")
    try:
        odd = "SELECT count(*) FROM entries WHERE typeof(key) != 'text' OR typeof(value) != 'text'"
        (strange,) = connection.execute(odd).fetchone()
        if strange:
            raise _damaged(path, f"{strange} entries are no texts")
        connection.execute("ALTER TABLE entries RENAME TO old_entries")
        _make_tables(connection)
        connection.execute("INSERT INTO entries SELECT key, value, crc_of(key, value) FROM old_entries")
        connection.execute("DROP TABLE old_entries")
        found = connection.execute("SELECT 0, count(*), coalesce(sum(crc), 0) FROM entries").fetchone()
        _store_summary(connection, _RowsSummary(*found))
        connection.execute("COMMIT")
    except (sqlite3.Error, StoreDamaged):
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _crc(key: str, value: str) -> int:
    return crc32(f"{key}\0{value}".encode())


def _change(connection: sqlite3.Connection, changes: Sequence[Change]) -> int:
    """Make the changes and update the summary; returns the number of transactions including this one."""
    transactions, entries, total = connection.execute("SELECT transactions, entries, sum FROM summary").fetchone()
    for change in changes:
        if isinstance(change, SetValue):
            before = connection.execute("SELECT crc FROM entries WHERE key = ?", (change.key,)).fetchone()
            crc = _crc(change.key, change.value)
            connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (change.key, change.value, crc))
            entries += before is None
            total += crc - (0 if before is None else before[0])
        else:
            below = (change.prefix, change.prefix + LAST_CHARACTER)
            gone, their_sum = connection.execute(
                "SELECT count(*), coalesce(sum(crc), 0) FROM entries WHERE key >= ? AND key < ?", below
            ).fetchone()
            connection.execute("DELETE FROM entries WHERE key >= ? AND key < ?", below)
            entries, total = entries - gone, total - their_sum
    _store_summary(connection, _RowsSummary(transactions + 1, entries, total))
    return int(transactions) + 1


def _store_summary(connection: sqlite3.Connection, summary: _RowsSummary) -> None:
    connection.execute("UPDATE summary SET transactions = ?, entries = ?, sum = ?, crc = ?", (*summary, summary.crc))


def _judge(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> StoreDamaged | StoreError:
    """The error to raise: StoreDamaged for damage, which no other try mends. Damaged text may not even decode."""
    if isinstance(error, UnicodeDecodeError):
        return _damaged(path, f"a text in it cannot be read: {error}")
    # Errors of Python itself, such as text that cannot be decoded, have no code.
    primary = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    # A writable file that SQLite calls read-only: the version in its header is damaged. SQLite gives the same error for
    # a directory in which it cannot create its log.
    may_write = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    if primary in _DAMAGE or (primary == sqlite3.SQLITE_READONLY and may_write):
        return _damaged(path, str(error))
    return StoreError(f"{path} cannot be opened: {error}")


def _damaged(path: Path, what: str) -> StoreDamaged:
    line = " ".join(what.split())[:300]
    return StoreDamaged(
        f"{path} is damaged ({line}): restore it from a copy, or move it away and start without what was planned"
    )
