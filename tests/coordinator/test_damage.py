"""A damaged store is found, named and refused: any bit of it, rows that are gone, records that do not fit together."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from scheduler.client import CoordinatorClient
from scheduler.coordinator.command import main
from scheduler.coordinator.errors import StartError, StoreDamaged, StoreError
from scheduler.coordinator.front_settings import DATABASE
from scheduler.coordinator.metadata.interface import RemovePrefix, SetValue
from scheduler.coordinator.metadata.sqlite import COUNT_SUFFIX, SqliteMetadata
from scheduler.coordinator.registry import RequestRegistry
from scheduler.coordinator.testing import running
from scheduler.topology import racks

NETWORK = racks([4, 4], 4)
ENTRIES = {f"requests/a/{number}": f'{{"value":{number}}}' for number in range(6)}
NOBODY = 65_534
SMALL_PAGE_BYTES = 512
"""SQLite's smallest: the whole file has few enough bits for each to be tried."""


def opened(path: Path) -> dict[str, str] | str:
    """All entries, or why the store is refused."""
    try:
        with closing(SqliteMetadata(path)) as metadata:
            return dict(metadata.load())
    except StoreDamaged as error:
        return str(error)
    finally:
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)


def small_pages(path: Path) -> None:
    """Write a store anew with the smallest pages."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in ("journal_mode=DELETE", f"page_size={SMALL_PAGE_BYTES}"):
            connection.execute(f"PRAGMA {statement}")
        connection.execute("VACUUM")
        connection.execute("PRAGMA journal_mode=WAL")


def flipped(data: bytes, bit: int) -> bytes:
    """The bytes with one bit changed."""
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A directory where a sync costs nothing, if the system has one: stores are opened there some thousand times."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="cairn-damage-") as directory:
        yield Path(directory)


def test_every_bit_of_a_store(quick_path: Path) -> None:
    """Whichever bit is flipped: the store is refused as damaged, or nothing of what was stored is different."""
    path = quick_path / "a.db"
    with closing(SqliteMetadata(path)) as metadata:
        metadata.apply([SetValue(key, value) for key, value in ENTRIES.items()])
    small_pages(path)
    good = path.read_bytes()
    assert len(good) <= 3 * SMALL_PAGE_BYTES
    assert opened(path) == ENTRIES
    refused = 0
    for bit in range(8 * len(good)):
        path.write_bytes(flipped(good, bit))
        found = opened(path)
        if isinstance(found, str):
            assert str(path) in found
            assert "\n" not in found
            refused += 1
        else:
            assert found == ENTRIES, f"bit {bit} changed what is stored, and nobody noticed"
    assert refused > 8 * sum(len(key) + len(value) for key, value in ENTRIES.items())


def test_a_damaged_write_ahead_log(quick_path: Path) -> None:
    """After a kill −9 the newest transactions are in SQLite's log, which it cuts where it is damaged: that is found."""
    source, path = quick_path / "source.db", quick_path / "a.db"
    SqliteMetadata(source).close()
    small_pages(source)
    with closing(SqliteMetadata(source)) as metadata:
        for key, value in ENTRIES.items():
            metadata.apply([SetValue(key, value)])
        files = {suffix: Path(f"{source}{suffix}").read_bytes() for suffix in ("", "-wal", COUNT_SUFFIX)}
    last = len(files["-wal"]) - 1
    for number in (-1, *range(0, last, 13), last):
        for suffix, data in files.items():
            damaged = number >= 0 and suffix == "-wal"
            Path(f"{path}{suffix}").write_bytes(flipped(data, 8 * number + number % 8) if damaged else data)
        found = opened(path)
        assert isinstance(found, str) or found == ENTRIES, f"byte {number} took a transaction, and nobody noticed"
        if number < 0:
            assert found == ENTRIES
        elif number == last:
            assert "1 transactions that were stored are missing" in found
            assert f"a.db{COUNT_SUFFIX}" in found


def test_rows_that_are_gone_or_come_back(tmp_path: Path) -> None:
    """A row that is missing, an old one in its place, or another's: the rows no longer add up."""
    path = tmp_path / "a.db"
    with closing(SqliteMetadata(path)) as metadata:
        metadata.apply([SetValue(key, value) for key, value in ENTRIES.items()])
        metadata.apply([SetValue("requests/a/0", "new"), RemovePrefix("requests/b/"), SetValue("requests/b/1", "x")])
        metadata.apply([RemovePrefix("requests/b/")])
        assert metadata.load() == {**ENTRIES, "requests/a/0": "new"}
    good = path.read_bytes()
    crc = "(SELECT crc FROM entries WHERE key = 'requests/a/1')"
    for statement in (
        "DELETE FROM entries WHERE key = 'requests/a/3'",
        "UPDATE entries SET value = (SELECT value FROM entries WHERE key = 'requests/a/1') WHERE key = 'requests/a/2'",
        f"UPDATE entries SET value = '{ENTRIES['requests/a/1']}', crc = {crc} WHERE key = 'requests/a/2'",
        "DELETE FROM summary",
        "UPDATE summary SET entries = 5",
    ):
        path.write_bytes(good)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)
        found = opened(path)
        assert isinstance(found, str), statement


def test_a_directory_that_may_not_be_written_is_not_damage(quick_path: Path) -> None:
    """SQLite calls the database read-only if it may not make its log beside it: nothing is to be restored then."""
    path = quick_path / "a.db"
    with closing(SqliteMetadata(path)) as metadata:
        metadata.apply([SetValue("hosts/a", "x")])
    for file in quick_path.iterdir():
        file.chmod(0o666)
    quick_path.chmod(0o555)
    before = os.getresuid()
    if before[1] == 0:  # who may do everything becomes somebody else for a moment
        os.setresuid(NOBODY, NOBODY, 0)
    try:
        with pytest.raises(StoreError, match=r"cannot be opened.*readonly") as refused:
            SqliteMetadata(path)
    finally:
        os.setresuid(*before)
        quick_path.chmod(0o755)
    assert not isinstance(refused.value, StoreDamaged)


def test_an_old_copy_is_named(tmp_path: Path) -> None:
    """A store in the place of a newer one is refused; the message says what to do if it was put there on purpose."""
    path, copy = tmp_path / "a.db", tmp_path / "copy.db"
    with closing(SqliteMetadata(path)) as metadata:
        metadata.apply([SetValue("hosts/a", "old")])
    shutil.copy(path, copy)
    with closing(SqliteMetadata(path)) as metadata:
        metadata.apply([SetValue("hosts/a", "new")])
    shutil.copy(copy, path)
    found = opened(path)
    assert isinstance(found, str)
    assert f"to go on with an old copy, remove a.db{COUNT_SUFFIX}" in found
    Path(f"{path}{COUNT_SUFFIX}").unlink()
    assert opened(path) == {"hosts/a": "old"}
    path.unlink()
    Path(f"{path}{COUNT_SUFFIX}").write_text("nonsense")
    assert opened(path) == {}, "one that was moved away is made anew"


def test_a_store_of_version_1_is_taken_over(tmp_path: Path) -> None:
    """Stores from before there were CRCs keep their entries, and have CRCs from then on; odd ones are refused."""
    path = tmp_path / "a.db"
    create = "CREATE TABLE entries (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in (create, f"PRAGMA application_id={0x4361726E}", "PRAGMA user_version=1"):
            connection.execute(statement)
        connection.executemany("INSERT INTO entries VALUES (?, ?)", ENTRIES.items())
    old = path.read_bytes()
    for _ in range(2):
        assert opened(path) == ENTRIES
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE entries SET value = 'other' WHERE key = 'requests/a/1'")
    assert "checksum of entry 'requests/a/1'" in str(opened(path))
    path.write_bytes(old)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE entries SET value = x'00' WHERE key = 'requests/a/1'")
    assert "1 entries are no texts" in str(opened(path))


def test_a_damaged_store_prevents_a_start_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`cairn coordinate` on a store with one bit flipped says which file and entry, and ends with status 2."""
    import argparse

    from scheduler.coordinator.command import add_arguments
    from scheduler.topology.description import topology_toml

    (tmp_path / "network.toml").write_text(topology_toml(NETWORK))
    data = tmp_path / "data"
    with running(NETWORK, planner="paper", data_dir=data) as url, CoordinatorClient(url) as client:
        client.submit("r1h1", chunks=1, name="a")
    path = data / DATABASE
    good = path.read_bytes()
    place = good.index(b'"hosts":["r1h1"') + len('"hosts":["r1h')
    path.write_bytes(good[:place] + b"2" + good[place + 1 :])
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    flags = ["--topology", str(tmp_path / "network.toml"), "--data-dir", str(data), "--listen", "127.0.0.1:0"]
    assert main(parser.parse_args([*flags, "--planner", "paper"])) == 2
    said = capsys.readouterr().err
    assert f"cairn: {path} is damaged (the checksum of entry 'requests/a/" in said
    assert "Traceback" not in said


# ---- what was stored together belongs together


@pytest.fixture
def stored(tmp_path: Path) -> dict[str, str]:
    """What is stored of a request with a chunk done, one that failed once and is under way, and one that waits."""
    with running(NETWORK, planner="paper", data_dir=tmp_path) as url, CoordinatorClient(url) as client:
        write = client.submit("r1h1", chunks=4, name="a")
        goes = write.goes()
        next(goes).done()
        next(goes).failed()
        client.cancel(client.submit("r1h2", chunks=1, name="b").name)
    with closing(SqliteMetadata(tmp_path / DATABASE)) as metadata:
        return dict(metadata.load())


Change = Callable[[Any], object]


@pytest.mark.parametrize(
    ("key", "change", "says"),
    [
        ("chunks/1", lambda value: value["hosts"].__setitem__(1, "r1h9"), "its writer was told"),
        ("chunks/1", lambda value: value.update(attempt=7), "stored is attempt 7"),
        ("chunks/1", lambda value: value.update(state="odd"), "has state 'odd'"),
        ("chunks/1", lambda value: value["hosts"].__setitem__(0, "r1h3"), "is sent by r1h3"),
        ("chunks/1", lambda value: value.update(chunk=3), "has the record of chunk 3"),
        ("chunks/1", lambda value: value.update(request="b"), "has the record of chunk 1 of 'b'"),
        ("record", lambda value: value.update(name="b"), "its record is of 'b'"),
        ("record", lambda value: value.update(writer="r1h2"), "stored is a write by r1h2"),
        ("record", lambda value: value.update(chunks=1), "chunk 1 of 1"),
        ("record", lambda value: value.update(state="finished"), "its writer was not told"),
        ("record", lambda value: value.update(state="odd"), "its state is 'odd'"),
        ("record", lambda value: value.update(state="waiting"), "its state is waiting"),
        ("record", lambda value: value.update(chunks=None), "cannot be read"),
        ("events/00000001", lambda value: value["hosts"].__setitem__(1, "r1h9"), "its writer was told"),
        ("events/00000001", lambda value: value.update(number=5), "its event 1"),
        ("events/00000001", lambda value: value.update(event="finished"), "its event 1 of"),
        ("events/00000002", None, "its event 2"),
        ("chunks/0", None, "stored is nothing"),
    ],
)
def test_contradictions_are_named(stored: Mapping[str, str], key: str, change: Change | None, says: str) -> None:
    """Parts of a request that cannot have been stored together: the request and what does not fit are named."""
    RequestRegistry().restore(stored, 0)
    entries = dict(stored)
    if change is None:
        del entries[f"requests/a/{key}"]
    else:
        value = json.loads(entries[f"requests/a/{key}"])
        change(value)
        entries[f"requests/a/{key}"] = json.dumps(value)
    with pytest.raises((StartError, StoreError), match=says) as caught:
        RequestRegistry().restore(entries, 0)
    assert "'a'" in str(caught.value) or "requests/a/" in str(caught.value)
