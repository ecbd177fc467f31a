"""Stored before told: group commit, failing disks, and a metadata file that is full, damaged or somebody else's."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.base.addresses import Address
from logstore.base.errors import DirectoryInUse
from logstore.base.events import ignore
from logstore.base.system import SystemClock
from scheduler.client import CoordinatorClient, CoordinatorUnavailable, NotFound
from scheduler.coordinator.errors import StoreDamaged, StoreError
from scheduler.coordinator.front_settings import DATABASE
from scheduler.coordinator.journal import MetadataJournal
from scheduler.coordinator.metadata.interface import BlockingMetadata, Change, RemovePrefix, SetValue
from scheduler.coordinator.metadata.on_threads import MetadataOnThreads
from scheduler.coordinator.metadata.sqlite import COUNT_SUFFIX, SqliteMetadata
from scheduler.coordinator.planners import make_planner
from scheduler.coordinator.running import ServeSettings, opened
from scheduler.coordinator.service import CoordinatorEnvironment, CoordinatorSettings
from scheduler.coordinator.testing import _Thread, in_thread, running
from scheduler.topology import racks
from tests.coordinator.support import ask
from tests.support.limits import PATIENCE_S
from tests.support.small_disk import small_disk

NETWORK = racks([4, 4], 4)


class Flaky:
    """Metadata on a disk that fails when it is told to; what failed may or may not be there."""

    def __init__(self, inner: BlockingMetadata) -> None:
        self.inner = inner
        self.failing = False
        self.keeps_what_failed = False
        self.batches: list[list[Change]] = []

    def load(self) -> Mapping[str, str]:
        """See BlockingMetadata."""
        return self.inner.load()

    def apply(self, changes: Sequence[Change]) -> None:
        """See BlockingMetadata."""
        if self.failing:
            if self.keeps_what_failed:
                self.inner.apply(changes)
            raise StoreError("disk I/O error")
        self.batches.append(list(changes))
        self.inner.apply(changes)

    def close(self) -> None:
        """See BlockingMetadata."""
        self.inner.close()


@pytest.fixture
def flaky(tmp_path: Path) -> Iterator[Flaky]:
    """Metadata that can fail."""
    with closing(SqliteMetadata(tmp_path / "flaky.db")) as inner:
        yield Flaky(inner)


def environment(random: int = 0) -> CoordinatorEnvironment:
    """A small network, planned by Algorithm 1."""
    return CoordinatorEnvironment(NETWORK, make_planner("paper", NETWORK), SystemClock(), Random(random), ignore)


SERVE = ServeSettings(Address("127.0.0.1", 0))
KEYS = st.sampled_from(["a", "b", "a/x", "a/y", "b/x", "ab/x", "a%2Fb/x", "ö/x"])
CHANGES = st.lists(
    st.one_of(
        st.builds(SetValue, KEYS, st.text(max_size=5)), st.builds(RemovePrefix, st.sampled_from(["a/", "b/", "ö/"]))
    ),
    max_size=8,
)


@settings(max_examples=15)
@given(st.lists(CHANGES, max_size=5))
def test_sqlite_is_an_ordered_map(batches: list[list[Change]]) -> None:
    """Against a dictionary: puts, removals by prefix, batches again, and everything after opening it anew."""
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"model-{os.getpid()}.db"
    model: dict[str, str] = {}
    try:
        with closing(SqliteMetadata(path)) as metadata:
            for batch in batches:
                metadata.apply(batch)
                metadata.apply(batch)
                for change in batch:
                    if isinstance(change, SetValue):
                        model[change.key] = change.value
                    else:
                        model = {key: text for key, text in model.items() if not key.startswith(change.prefix)}
                assert metadata.load() == model
        with closing(SqliteMetadata(path)) as metadata:
            assert metadata.load() == model
    finally:
        for suffix in ("", "-wal", "-shm", COUNT_SUFFIX):
            Path(f"{path}{suffix}").unlink(missing_ok=True)


def test_sqlite_syncs_every_commit(tmp_path: Path) -> None:
    """Write-ahead log and synchronous=FULL: what a power cut must not take."""
    with closing(SqliteMetadata(tmp_path / "a.db")) as metadata:
        connection = metadata._opened()
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


async def test_what_comes_together_is_stored_together(flaky: Flaky) -> None:
    """Changes recorded while a transaction is in flight share the next one; nobody is told before."""
    journal = MetadataJournal(MetadataOnThreads(flaky), ignore)
    told: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        for number in range(100):
            journal.record([SetValue(f"k{number}", "v")], lambda number=number: told.append(number))  # type: ignore[misc]
        assert told == []
        await journal.durable()
        assert told == list(range(100))
        assert len(flaky.batches) == 1
        nursery.cancel_scope.cancel()
    assert len(flaky.load()) == 100


@pytest.mark.parametrize("keeps", [False, True])
async def test_a_failed_transaction_is_told_nobody_and_tried_again(flaky: Flaky, keeps: bool) -> None:
    """While it fails: StoreError to all who wait. Afterwards all of it is there, in order, and told once."""
    journal = MetadataJournal(MetadataOnThreads(flaky), ignore)
    flaky.failing, flaky.keeps_what_failed = True, keeps
    told: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        journal.record([SetValue("a/1", "old"), SetValue("b/1", "old")], lambda: told.append("first"))
        with pytest.raises(StoreError, match="disk I/O"):
            await journal.durable()
        with pytest.raises(StoreError, match="disk I/O"):
            await journal.ready()
        journal.record([RemovePrefix("a/"), SetValue("b/1", "new")], lambda: told.append("second"))
        assert told == []
        flaky.failing = False
        await journal.ready()
        await journal.durable()
        assert told == ["first", "second"]
        assert flaky.load() == {"b/1": "new"}
        nursery.cancel_scope.cancel()


async def test_what_came_during_a_failure_comes_behind_it(flaky: Flaky) -> None:
    """Changes recorded while a transaction is failing are newer than it, and win."""
    flying, go_on = trio.Event(), trio.Event()

    async def slow(work: Callable[[], None]) -> None:
        flying.set()
        await go_on.wait()
        work()

    journal = MetadataJournal(MetadataOnThreads(flaky, slow), ignore)
    flaky.failing = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        journal.record([SetValue("a/1", "old"), SetValue("b/1", "old")])
        await flying.wait()
        journal.record([SetValue("b/1", "new"), RemovePrefix("a/")])
        go_on.set()
        while journal.failing is None:
            await trio.lowlevel.checkpoint()
        flaky.failing = False
        await journal.ready()
        await journal.durable()
        assert flaky.load() == {"b/1": "new"}
        nursery.cancel_scope.cancel()


def test_forgetting_many_at_once_is_quick() -> None:
    """All that was remembered at a start is forgotten at the same moment; that must not hold up the service."""
    journal = MetadataJournal(MetadataOnThreads(Flaky(None)), ignore)  # type: ignore[arg-type]
    began = time.perf_counter()
    journal.record([RemovePrefix(f"requests/{number}/") for number in range(200_000)])
    # A second. It would be half an hour if each looked at all before it.
    assert time.perf_counter() - began < PATIENCE_S


def test_a_new_directory_is_there_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of all directories that were made are synced before anything is told."""
    synced: set[tuple[int, int]] = set()

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.add((found.st_dev, found.st_ino))
        real(descriptor)

    real = os.fsync
    monkeypatch.setattr(os, "fsync", fsync)
    with opened(tmp_path / "a/b/c"):
        for path in (tmp_path, tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c"):
            assert (path.stat().st_dev, path.stat().st_ino) in synced, path


def test_a_disk_that_fails_is_503_and_goes_on(flaky: Flaky) -> None:
    """Writers are asked to wait, the page says why, and everything goes on when the disk does."""
    with in_thread(environment(), flaky, SERVE) as url, CoordinatorClient(url, patience_s=0) as client:
        write = client.submit("r1h1", chunks=2, name="before")
        flaky.failing = True
        assert client.request("before")["state"] == "running"
        for _ in range(2):
            with pytest.raises(CoordinatorUnavailable, match="disk I/O error"):
                client.submit("r1h2", chunks=1)
        assert client.request("before")["state"] == "running", "what is stored can be asked for all the while"
        assert ask(url, "GET", "/health").status == 503
        refused = ask(url, "POST", "/v1/requests", {"writer": "r1h2", "chunks": 1})
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert "disk I/O error" in client.status()["store"]
        for name in [one["request"] for one in client.status()["queue"]]:
            events = ask(url, "GET", f"/v1/requests/{name}/go?wait_s=0").json()["events"]
            assert bool(events) is (name == "before"), "told before it was stored"
        assert "disk I/O error" in ask(url, "GET", "/").text
        flaky.failing = False
        assert [go.done() for go in write.goes()] == [True, True]
        assert ask(url, "GET", "/health").status == 200
        # What has a name may be in effect, as it would be after a lost answer; what nobody could name is not.
        for name in [one["request"] for one in client.status()["queue"]]:
            assert len(name) == len("request-") + 24, "this name was made by the coordinator"
            client.cancel(name)
        assert client.status()["capacities"] == []


def test_a_full_disk_is_503_until_there_is_room(tmp_path: Path) -> None:
    """On a real file system without room: no answer is a lie, and the coordinator goes on by itself."""
    with small_disk(tmp_path / "small", 768 << 10) as place:
        served = running(NETWORK, planner="paper", data_dir=place / "data")
        with served as url, CoordinatorClient(url, patience_s=0) as client:
            filler = place / "filler"
            with filler.open("ab", buffering=0) as file, pytest.raises(OSError, match="No space"):
                while True:
                    file.write(b"x" * 4096)
            accepted: list[str] = []
            with pytest.raises(CoordinatorUnavailable, match="full"):
                while True:
                    accepted += [client.submit("r1h1", chunks=1, name=f"n{len(accepted)}").name]
            filler.unlink()
            client.submit("r1h2", chunks=1, name="room again")
        with running(NETWORK, planner="paper", data_dir=place / "data") as url, CoordinatorClient(url) as client:
            for name in [*accepted, "room again"]:
                assert client.request(name)["state"] in ("waiting", "running")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """Every page overwritten in turn, or the file cut: it starts with the data intact, or not at all, in one line."""
    path = tmp_path / "a.db"
    entries = {f"key/{number:04d}": "v" * 100 for number in range(200)}
    with closing(SqliteMetadata(path)) as metadata:
        metadata.apply([SetValue(key, value) for key, value in entries.items()])
    good = path.read_bytes()
    refusals = 0
    for position in range(0, len(good), 4096):
        path.write_bytes(good[:position] + b"\xa5" * 4096 + good[position + 4096 :])
        refusals += refused(path, entries)
    for length in (0, 1, 100, 4096, len(good) - 4096):
        path.write_bytes(good[:length])
        assert refused(path, entries)
    assert refusals == len(good) // 4096


def refused(path: Path, entries: dict[str, str]) -> bool:
    """Whether the file is refused as damaged; if not, all of it must be there."""
    said = None
    try:
        with closing(SqliteMetadata(path)) as metadata:
            found = metadata.load()
    except StoreDamaged as error:
        said = str(error)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    if said is None:
        assert found == entries
        return False
    assert str(path) in said
    assert "\n" not in said
    return True


def test_what_is_not_ours_is_refused(tmp_path: Path) -> None:
    """Another program's database, and a newer version's, are named as such and left alone."""
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE pets (name TEXT)")
    with pytest.raises(StoreDamaged, match="another program"):
        SqliteMetadata(other)
    newer = tmp_path / "newer.db"
    SqliteMetadata(newer).close()
    with closing(sqlite3.connect(newer)) as connection:
        connection.execute("PRAGMA user_version=3")
    with pytest.raises(StoreDamaged, match="version 3; this Cairn knows 2"):
        SqliteMetadata(newer)


@pytest.mark.parametrize(
    ("key", "value"),
    [("requests/a/record", "{}"), ("requests/a/record", "["), ("requests/a/chunks/0", '{"request": 1}'),
     ("requests/a/events/1", "nothing"), ("hosts/r1h1", '{"name": "r1h1", "colour": 1}'), ("requests/b/asked", "{}")],
)  # fmt: skip
def test_an_entry_that_cannot_be_read_is_named(tmp_path: Path, key: str, value: str) -> None:
    """A start on entries that make no sense is refused, and the entry or request is named."""
    with running(NETWORK, planner="paper", data_dir=tmp_path) as url, CoordinatorClient(url) as client:
        client.submit("r1h1", chunks=1, name="a")
    with closing(SqliteMetadata(tmp_path / DATABASE)) as metadata:
        metadata.apply([SetValue(key, value)])
    with pytest.raises(ExceptionGroup) as caught, running(NETWORK, planner="paper", data_dir=tmp_path):
        pass
    (error,) = caught.value.exceptions
    assert isinstance(error, StoreDamaged)
    assert key in str(error) or "'b'" in str(error)


def test_forgetting_one_touches_no_other(tmp_path: Path) -> None:
    """A request whose name begins with a forgotten one's is still there after a restart; so is a lost host."""
    settings = CoordinatorSettings(max_remembered=0, tick_s=0.01)
    served = running(NETWORK, planner="paper", settings=settings, data_dir=tmp_path)
    with served as url, CoordinatorClient(url) as client:
        for name in ("ab", "a/b", "b"):
            client.submit("r1h1", chunks=1, name=name)
        next(client.submit("r2h1", chunks=1, name="a").goes()).done()
        client.deregister("r2h4")
        while "finished" in client.status()["requests"]:
            pass
    with running(NETWORK, planner="paper", data_dir=tmp_path) as url, CoordinatorClient(url) as client:
        assert {one["request"] for one in client.status()["queue"]} == {"ab", "a/b", "b"}
        assert [one["host"] for one in client.status()["hosts"] if one["lost"]] == ["r2h4"]
        events = ask(url, "GET", "/v1/requests/ab/go?wait_s=0").json()["events"]
        assert (events[0]["number"], events[0]["event"]) == (1, "go")
        with pytest.raises(NotFound):
            client.request("a")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """A second coordinator on the same directory is refused, and told who has it."""
    with opened(tmp_path), pytest.raises(DirectoryInUse, match=f"process {os.getpid()}"), opened(tmp_path):
        pass


def test_another_network_is_refused_or_planned_around(tmp_path: Path) -> None:
    """After a restart on a network without a chain's host, its chunk is planned again; nothing is forgotten."""
    with running(NETWORK, planner="paper", data_dir=tmp_path) as url, CoordinatorClient(url) as client:
        write = client.submit("r1h1", chunks=1, replicas=1, name="a", placement=["other-rack:0"])
        (event,) = write.refresh()["go"]
    target = event["hosts"][1]
    rest = [server for server in NETWORK.servers if server.name != target]
    smaller = type(NETWORK)(rest, NETWORK.links, switches=NETWORK.switches)
    with running(smaller, planner="paper", data_dir=tmp_path) as url, CoordinatorClient(url) as client:
        (again,) = client.submit("r1h1", chunks=1, replicas=1, name="a", placement=["other-rack:0"]).refresh()["go"]
        assert again["attempt"] == 2
        assert again["hosts"][1] != target


def test_a_loop_that_has_ended_can_be_stopped(flaky: Flaky) -> None:
    """The end of a coordinator in a thread is no error when its loop has ended by itself in just that moment."""
    thread = _Thread(environment(), flaky, SERVE)
    thread.start()
    thread.address()
    assert thread._token is not None
    assert thread._over is not None
    thread._token.run_sync_soon(thread._over.set)
    thread.join(PATIENCE_S)
    thread.is_alive = lambda: True  # type: ignore[method-assign]  # as it was a moment before
    thread.stop()
