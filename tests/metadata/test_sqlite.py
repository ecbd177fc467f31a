"""The metadata store of one host: durable over kill −9, damage is found, a failing disk is named and goes on."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
import trio

from logstore.base.metadata.errors import (
    MetadataDamaged,
    MetadataFull,
    MetadataUnavailable,
    OutcomeUnknown,
)
from logstore.base.metadata.interface import ABSENT, Delete, Entry, Lease, Put
from logstore.base.metadata.sqlite import SqliteMetadataStore, open_sqlite, stored_of
from logstore.base.metadata.sqlite_file import SqliteFile, Stored
from logstore.base.metadata.state import FIRST_REVISION, MetadataState, Update
from logstore.replica.register import ReadRegistration, SwapRegistration
from logstore.replica.registrations import OwnerId, StreamRegistration
from logstore.replica.stored_registrations import StoredRegistrations
from logstore.testing.metadata_contract import changing, committed, put
from tests.support.limits import PATIENCE_S
from tests.support.small_disk import small_disk


def written(path: Path, entries: int) -> Stored:
    """Make a file with so many entries and a lease; its content."""
    file = SqliteFile(path)
    file.load()
    puts = tuple(Entry(f"key/{number:04d}", b"v" * 100, FIRST_REVISION + 1, 5) for number in range(entries))
    file.apply(Update(FIRST_REVISION + 1, puts, granted=(Lease(5, 60),)))
    file.close()
    return Stored(FIRST_REVISION + 1, puts, (Lease(5, 60),))


def loaded(path: Path) -> Stored:
    """What a file holds."""
    file = SqliteFile(path)
    try:
        return file.load()
    finally:
        file.close()


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    """Entries, their revisions and leases; the lease has its whole time again, and its keys go with it."""
    path = tmp_path / "a.db"
    async with open_sqlite(path, Random(1)) as store:
        lease = await store.grant_lease(60)
        ended = await store.grant_lease(60)
        await committed(store, changing(Put("a", b"1", lease.lease_id), Put("b", b"", ended.lease_id)))
        await store.revoke_lease(ended.lease_id)
        revision = await committed(store, changing(Put("c", b"\0")))
        page = await store.page("")
    async with open_sqlite(path, Random(2)) as store:
        assert await store.page("") == page
        assert await store.keep_alive(lease.lease_id) == lease
        await store.revoke_lease(lease.lease_id)
        assert (await store.page("")).entries == (Entry("c", b"\0", revision),)


PROGRAM = """
import sys, trio
from pathlib import Path
from random import Random
from logstore.base.metadata.interface import Put, Transaction
from logstore.base.metadata.sqlite import open_sqlite

async def main():
    async with open_sqlite(Path(sys.argv[1]), Random(0)) as store:
        for number in range(1000000):
            await store.commit(Transaction((), (Put(f"k/{number % 50}", b"%d" % number), Put("n", b"%d" % number))))
            print(number, flush=True)

trio.run(main)
"""


@pytest.mark.crash
def test_kill9(tmp_path: Path) -> None:
    """Killed at any moment, five times: what was acknowledged is there, transactions whole, revisions without a gap."""
    path = tmp_path / "a.db"
    for round_ in range(5):
        command = [sys.executable, "-c", PROGRAM, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(20 + 13 * round_):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split()
        stored = loaded(path)
        entries = {entry.key: entry for entry in stored.entries}
        number = int(entries["n"].value)
        assert number >= (int(rest[-1]) if rest else 19 + 13 * round_)
        assert entries[f"k/{number % 50}"].value == entries["n"].value
        assert entries["n"].revision == stored.revision


def test_damage_is_found(tmp_path: Path) -> None:
    """Every page overwritten in turn, or the file cut: it is opened with all of it intact, or refused in one line."""
    path = tmp_path / "a.db"
    content = written(path, 200)
    good = path.read_bytes()
    refusals = 0
    for position in range(0, len(good), 4096):
        path.write_bytes(good[:position] + b"\xa5" * 4096 + good[position + 4096 :])
        refusals += refused(path, content)
    assert refusals == len(good) // 4096
    for length in (0, 1, 100, 4096, len(good) - 4096):
        path.write_bytes(good[:length])
        assert refused(path, content)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    """A bit of every 31st byte of a small file flipped: it is opened with all of it intact, or refused."""
    path = tmp_path / "a.db"
    content = written(path, 2)
    good = path.read_bytes()
    for position in range(0, len(good), 31):
        flipped = good[position] ^ (1 << position % 8)
        path.write_bytes(good[:position] + bytes([flipped]) + good[position + 1 :])
        refused(path, content)


def refused(path: Path, content: Stored) -> bool:
    """Whether the file is refused as damaged; if not, all of it must be there."""
    try:
        assert loaded(path) == content
    except MetadataDamaged as error:
        said = str(error)
    else:
        said = ""
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    assert not said or str(path) in said
    assert "\n" not in said
    return bool(said)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE entries SET value = x'00' WHERE key = 'key/0001'", "checksum of entry 'key/0001'"),
        ("UPDATE entries SET revision = 9 WHERE key = 'key/0001'", "checksum of entry 'key/0001'"),
        ("UPDATE entries SET lease = 0 WHERE key = 'key/0001'", "checksum of entry 'key/0001'"),
        ("DELETE FROM entries WHERE key = 'key/0001'", "its summary says"),
        ("DELETE FROM leases", "its summary says"),
        ("UPDATE leases SET ttl_s = 61", "checksum of lease 5"),
        ("UPDATE summary SET revision = 1", "checksum of its summary"),
        ("DELETE FROM summary", "summary cannot be read"),
        ("CREATE TABLE more (x)", "its tables are not those that were made"),
        ("PRAGMA user_version=2", "has version 2; this Cairn knows 1"),
        ("PRAGMA application_id=1", "another program"),
    ],
)
def test_changes_behind_our_back_are_found(tmp_path: Path, statement: str, said: str) -> None:
    """A row that changed, is missing, or is of another version is named."""
    path = tmp_path / "a.db"
    written(path, 3)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)
    with pytest.raises(MetadataDamaged, match=said):
        loaded(path)


def test_an_older_copy_is_found(tmp_path: Path) -> None:
    """A copy from before the last transactions is refused; the message says how many are missing and what to do."""
    path = tmp_path / "a.db"
    written(path, 3)
    copy = path.read_bytes()
    file = SqliteFile(path)
    file.load()
    file.apply(Update(FIRST_REVISION + 2, deletes=("key/0001",)))
    file.close()
    path.write_bytes(copy)
    with pytest.raises(MetadataDamaged, match=r"1 transactions that were stored are missing.*remove a.db.transactions"):
        loaded(path)


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    """While one has the file, another is told so."""
    path = tmp_path / "a.db"
    first = SqliteFile(path)
    first.load()
    try:
        with pytest.raises(MetadataUnavailable, match="in use by another process"):
            loaded(path)
    finally:
        first.close()
    loaded(path)


async def test_a_new_file_is_private_and_its_directory_is_needed(tmp_path: Path) -> None:
    """Others do not read it; without its directory, the error names it."""
    async with open_sqlite(tmp_path / "a.db", Random(0)):
        assert (tmp_path / "a.db").stat().st_mode & 0o077 == 0
    with pytest.raises(MetadataUnavailable, match="none"):
        async with open_sqlite(tmp_path / "none" / "a.db", Random(0)):
            pass


class FailingFile(SqliteFile):
    """A file whose next calls fail as they would on a disk that refuses."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fail_next: list[str] = []

    def apply(self, update: Update) -> None:
        """See SqliteFile."""
        kind = self.fail_next.pop(0) if self.fail_next else ""
        if kind == "before":
            self.close()
            raise MetadataFull("no room; make room")
        if kind == "stored, then failed":
            super().apply(update)
        if kind:
            self.close()
            raise OutcomeUnknown("a commit failed")
        super().apply(update)

    def load(self) -> Stored:
        """See SqliteFile."""
        if self.fail_next and self.fail_next[0] == "load":
            self.fail_next.pop(0)
            raise MetadataUnavailable("cannot be opened")
        return super().load()


async def failing(path: Path) -> tuple[FailingFile, SqliteMetadataStore]:
    """A store on a file that can be made to fail."""
    file = FailingFile(path)
    stored = file.load()
    return file, SqliteMetadataStore(file, MetadataState(0, stored.revision, stored.entries, stored.leases), Random(0))


@pytest.mark.parametrize("kind", ["stored, then failed", "failed"])
async def test_a_failed_commit_is_settled_by_reading(tmp_path: Path, kind: str) -> None:
    """After a commit of unknown outcome, readers and watches see what the file has, with no gap; all goes on."""
    file, store = await failing(tmp_path / "a.db")
    with closing(file):
        begin = await committed(store, put("a", b"1"))
        async with store.watch("", begin) as watch:
            file.fail_next = [kind, "load"]
            with pytest.raises(OutcomeUnknown):
                await store.commit(put("a", b"2"))
            with pytest.raises(MetadataUnavailable):
                await store.get("a")
            assert store.statistics.away
            found = await store.get("a")
            made = kind == "stored, then failed"
            assert found.entry == Entry("a", b"2" if made else b"1", begin + made)
            assert store.statistics.away == ""
            after = await committed(store, put("b"))
            assert after == begin + 1 + made
            revisions = [(await watch.receive()).revision for _ in range(1 + made)]
            assert revisions == [begin + 1, begin + 2][: 1 + made]
        assert loaded_again(file) == stored_of(store._state)


def loaded_again(file: SqliteFile) -> Stored:
    """What the file holds."""
    return SqliteFile.load(file)


async def test_a_refused_change_changes_nothing(tmp_path: Path) -> None:
    """Without room: MetadataFull, nothing changed, reads go on from memory, and the next change is made."""
    file, store = await failing(tmp_path / "a.db")
    with closing(file):
        begin = await committed(store, put("a", b"1"))
        file.fail_next = ["before", "load"]
        with pytest.raises(MetadataFull):
            await store.commit(changing(Delete("a")))
        assert (await store.get("a")).revision == begin
        with pytest.raises(MetadataUnavailable):
            await store.commit(changing(Delete("a")))
        assert await committed(store, changing(Delete("a"))) == begin + 1


@pytest.mark.parametrize("kinds", [["stored, then failed"], ["failed"], ["failed", "stored, then failed"]])
async def test_leases_and_swaps_have_known_outcomes(tmp_path: Path, kinds: list[str]) -> None:
    """Grants, ends of leases and swaps are made once, whatever failed on the way."""
    file, store = await failing(tmp_path / "a.db")
    with closing(file), trio.fail_after(PATIENCE_S):
        if len(kinds) == 1:
            file.fail_next = [*kinds]
            lease = await store.grant_lease(60)
            assert list(store._state.leases) == [lease]
            file.fail_next = [*kinds]
            await store.revoke_lease(lease.lease_id)
            assert not store._state.leases
        registrations = StoredRegistrations(store)
        first = StreamRegistration(3, 2).claimed(OwnerId("h1", "h1.1"))
        assert (await registrations.read(ReadRegistration("t1/0"))).revision == ABSENT
        file.fail_next = [*kinds]
        answer = await registrations.swap(SwapRegistration("t1/0", ABSENT, first))
        assert answer.is_done
        assert answer.revision == FIRST_REVISION + 1, "made once"
        other = StreamRegistration(3, 2).claimed(OwnerId("h2", "h2.1"))
        late = await registrations.swap(SwapRegistration("t1/0", ABSENT, other))
        assert (late.is_done, late.revision, late.registration) == (False, answer.revision, first)
        later = first.claimed(OwnerId("h2", "h2.1"))
        assert (await registrations.swap(SwapRegistration("t1/0", late.revision, later))).is_done


def test_a_full_disk_refuses_until_there_is_room(tmp_path: Path) -> None:
    """On a real file system without room: refused by name, what was acknowledged stays, and it goes on."""
    with small_disk(tmp_path / "small", 768 << 10) as place:
        trio.run(fill, place)


async def fill(place: Path) -> None:
    """Fill the disk, make room, and look at what is there."""
    async with open_sqlite(place / "a.db", Random(0)) as store:
        filler = place / "filler"
        with filler.open("ab", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(b"x" * 4096)
        number = 0
        with pytest.raises((MetadataFull, OutcomeUnknown, MetadataUnavailable)):
            while True:
                await committed(store, put(f"k{number}", b"x" * 4000))
                number += 1
        filler.unlink()
        await committed(store, put("room-again"))
        page = await store.page("")
    async with open_sqlite(place / "a.db", Random(0)) as store:
        assert await store.page("") == page
        assert {f"k{index}" for index in range(number)} <= {entry.key for entry in page.entries}
