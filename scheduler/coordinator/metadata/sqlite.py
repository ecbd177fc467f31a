"""Metadata in one SQLite file.

Invariants:
* Write-ahead log with synchronous=FULL: a commit returns after its fsync, so what `apply` returned from survives a
  power cut.
* One table, one transaction per `apply`. After an error the connection is opened anew: what a failed commit left in
  its caches is not believed.
* A file that is damaged, of another program, or of a newer version is refused at the start, and left as it is.
"""

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from scheduler.coordinator.errors import StoreDamaged, StoreError
from scheduler.coordinator.metadata.interface import Change, Put

APPLICATION_ID = 0x4361_726E
"""`Carn` in a SQLite file's header: whose it is."""
VERSION = 1
LOCK_WAIT_S = 5.0
"""For somebody who looks into the file with other tools."""
CHECKPOINT_PAGES = 1000
LAST_CHARACTER = "\U0010ffff"
"""Behind every character of a key."""


class SqliteMetadata:
    """See Metadata. Raises StoreDamaged or StoreError when it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        try:
            if not path.exists():
                _create(path)
            self._connection = self._open()
            self._check()
        except sqlite3.Error as error:
            self.close()
            raise _judge(path, error) from error
        except StoreDamaged:
            self.close()
            raise

    def load(self) -> Mapping[str, str]:
        """See Metadata."""
        try:
            return dict(self._opened().execute("SELECT key, value FROM entries ORDER BY key"))
        except sqlite3.Error as error:
            raise _judge(self._path, error) from error

    def apply(self, changes: Sequence[Change]) -> None:
        """See Metadata."""
        try:
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            try:
                _change(connection, changes)
                connection.execute("COMMIT")
            except sqlite3.Error:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            self.close()
            raise StoreError(f"{self._path.name} cannot be written: {error}") from error

    def close(self) -> None:
        """See Metadata."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        # Used by one thread at a time, not always the same.
        connection = sqlite3.connect(self._path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _check(self) -> None:
        connection = self._opened()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            raise _damaged(self._path, "it is empty")
        if application != APPLICATION_ID:
            raise StoreDamaged(f"{self._path} is a database of another program: choose another --data-dir")
        if version != VERSION:
            raise StoreDamaged(f"{self._path} has version {version}; this Cairn knows {VERSION}: use a newer one")
        with closing(connection.execute("PRAGMA integrity_check(1)")) as found:
            (verdict,) = found.fetchone()
        if verdict != "ok":
            raise _damaged(self._path, verdict)


def _create(path: Path) -> None:
    """A new file under its name only when it is whole: what has the name and is empty was cut."""
    log = Path(f"{path}-wal")
    if log.exists():
        raise _damaged(path, f"it is missing, and {log.name} is there")
    new = Path(f"{path}.new")
    new.unlink(missing_ok=True)
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE entries (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={VERSION}")
        connection.execute("COMMIT")
    new.rename(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _change(connection: sqlite3.Connection, changes: Sequence[Change]) -> None:
    for change in changes:
        if isinstance(change, Put):
            connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?)", (change.key, change.value))
        else:
            last = change.prefix + LAST_CHARACTER
            connection.execute("DELETE FROM entries WHERE key >= ? AND key < ?", (change.prefix, last))


def _judge(path: Path, error: sqlite3.Error) -> StoreDamaged | StoreError:
    """Damage is no matter of trying again."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_MISMATCH):
        return _damaged(path, str(error))
    return StoreError(f"{path} cannot be opened: {error}")


def _damaged(path: Path, what: str) -> StoreDamaged:
    line = " ".join(what.split())[:200]
    return StoreDamaged(
        f"{path} is damaged ({line}): restore it from a copy, or move it away and start without what was planned"
    )
