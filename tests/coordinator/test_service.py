"""The service in virtual time: deadlines of hosts and writers, a coordinator that was away, clocks that jump."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from logstore.base.events import LogEvent, Report, ignore
from logstore.testing.reports import RecordedReports
from scheduler.coordinator import registry
from scheduler.coordinator.deadlines import chunk_deadline_ms
from scheduler.coordinator.errors import ApiError, StoreError
from scheduler.coordinator.journal import MetadataJournal
from scheduler.coordinator.log_events import CHUNK_OVERDUE, REQUEST_CRASHED, REQUEST_HAS_A_PATH_AGAIN, REQUEST_STRANDED
from scheduler.coordinator.metadata.interface import BlockingMetadata, Change
from scheduler.coordinator.metadata.on_threads import MetadataOnThreads, OffLoad
from scheduler.coordinator.metadata.sqlite import SqliteMetadata
from scheduler.coordinator.planners import make_planner
from scheduler.coordinator.service import Coordinator, CoordinatorEnvironment, CoordinatorSettings
from scheduler.peace.online import GATHER_MS, Submission
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.plan import HostChain, Planner, Request, Residual
from scheduler.topology import Link, Server, Topology, racks

NETWORK = racks([4, 4], 4)
SETTINGS = CoordinatorSettings(host_deadline_ms=10_000, writer_deadline_ms=60_000, remember_ms=100_000, tick_s=0.5)


class Clock:
    """Trio's virtual time, and what is wrong with it: `away_s` passed while nothing ran."""

    def __init__(self, wall_ms: int = 1_000_000) -> None:
        self.away_s = 0.0
        self._wall_ms = wall_ms

    def wall_ms(self) -> int:
        """Milliseconds of the day."""
        return self._wall_ms

    def monotonic_s(self) -> float:
        """Seconds."""
        return trio.current_time() + self.away_s


async def at_once(work: Callable[[], None]) -> None:
    """Run it here: virtual time does not wait for threads."""
    work()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteMetadata]:
    """A store of its own, closed at the end."""
    with closing(SqliteMetadata(tmp_path / "a.db")) as opened:
        yield opened


@asynccontextmanager
async def coordinator(
    metadata: BlockingMetadata,
    clock: Clock,
    off_load: OffLoad = at_once,
    *,
    report: Report = ignore,
    planner: Planner | None = None,
    chunk_deadline_ms: int | None = None,
    gather_ms: int = GATHER_MS,
    network: Topology = NETWORK,
) -> AsyncGenerator[Coordinator, None]:
    """A coordinator that keeps time and stores, without a server."""
    journal = MetadataJournal(MetadataOnThreads(metadata, off_load), ignore)
    environment = CoordinatorEnvironment(network, planner or make_planner("paper", network), clock, Random(0), report)
    scheduling = replace(SETTINGS.scheduler, gather_ms=gather_ms)
    chosen = replace(SETTINGS, scheduler=scheduling, chunk_deadline_ms=chunk_deadline_ms)
    found = Coordinator(environment, chosen, journal)
    found.restore(metadata.load())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        nursery.start_soon(found.run)
        yield found
        nursery.cancel_scope.cancel()


def lost(found: Coordinator) -> list[str]:
    """Hosts that are lost."""
    return [record.name for record in found.hosts.known() if record.lost]


def write(host: str) -> object:
    """What a host's submission is made of."""
    return lambda name: Submission(name=name, writer=host, chunks=1)


async def test_a_host_is_lost_when_its_deadline_is_over(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """Keep-alives hold it for as long as they come; then it is lost within the deadline and a tick."""
    async with coordinator(database, Clock()) as found:
        await found.register("r1h1", None)
        for _ in range(20):
            await trio.sleep(9)
            found.alive("r1h1")
        await trio.sleep(9.9)
        assert lost(found) == []
        await trio.sleep(1.2)
        assert lost(found) == ["r1h1"]
        with pytest.raises(ApiError, match="was lost"):
            found.alive("r1h1")
        await found.register("r1h1", None)
        assert lost(found) == []


async def test_who_was_away_blames_nobody(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """A coordinator that was stopped for an hour heard nobody: hosts and writers get that hour."""
    clock = Clock()
    async with coordinator(database, clock) as found:
        await found.register("r1h1", None)
        entry, _ = await found.submit("a", write("r1h1"))  # type: ignore[arg-type]
        clock.away_s += 3600
        await trio.sleep(9)
        assert lost(found) == []
        assert entry.state == "running"
        await trio.sleep(2.2)
        assert lost(found) == ["r1h1"]


async def test_a_silent_writer_holds_capacity_for_a_bounded_time(
    database: SqliteMetadata, autojump_clock: MockClock
) -> None:
    """One that asks now and then goes on for ever; one that does not is cancelled."""
    async with coordinator(database, Clock()) as found:
        await found.submit("ignore", write("r1h1"))  # type: ignore[arg-type]
        await found.submit("asking", write("r1h2"))  # type: ignore[arg-type]
        for _ in range(5):
            await trio.sleep(20)
            await found.wait("asking", 1, 0)
        assert found.registry.requests["ignore"].state == "cancelled"
        assert found.registry.requests["asking"].state == "running"
        await trio.sleep(110)
        assert "ignore" not in found.registry.requests


async def test_a_writer_that_waits_is_not_silent(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """A question for events that waits for longer than the deadline is heard all the while, and from its end on."""
    async with coordinator(database, Clock()) as found:
        entry, _ = await found.submit("a", write("r1h1"))  # type: ignore[arg-type]
        await found.wait("a", 1, 70)
        await trio.sleep(50)
        assert entry.state == "running"
        await trio.sleep(12)
        assert entry.state == "cancelled"


async def test_who_watches_keeps_no_writer_alive(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """A monitor that asks for a dead writer's request, its place and the status does not count: it is cancelled."""
    async with coordinator(database, Clock()) as found:
        await found.submit("dead", write("r1h1"))  # type: ignore[arg-type]
        await found.submit("alive", write("r1h2"))  # type: ignore[arg-type]
        for _ in range(7):
            await trio.sleep(10)
            await found.request("dead")
            found.place("dead")
            found.status()
            entry, new = await found.submit("alive", write("r1h2"))  # type: ignore[arg-type]
            assert not new
        assert found.registry.requests["dead"].state == "cancelled"
        assert entry.state == "running"


async def test_a_chunk_that_hangs_is_revoked(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """A writer that polls and never reports holds a chunk for its deadline; then it is told, and goes another way."""
    reports = RecordedReports()
    made = coordinator(
        database, Clock(), chunk_deadline_ms=30_000,
        report=reports,
    )  # fmt: skip
    async with made as found:
        entry, _ = await found.submit("hung", write("r1h1"))  # type: ignore[arg-type]
        for _ in range(59):
            await found.wait("hung", len(entry.log.events), 0.5)
        assert found.registry.oldest_ms(found.now_ms()) == pytest.approx(29_500, abs=600)
        assert found.counts["overdue"] == 0
        await found.wait("hung", 1, 60)
        assert trio.current_time() == pytest.approx(30.5, abs=0.6)
        await trio.sleep(GATHER_MS / 1000)
        await trio.testing.wait_all_tasks_blocked()
        (go, revoked, again) = entry.log.events
        assert [event["event"] for event in entry.log.events] == ["go", "revoked", "go"]
        assert revoked["hosts"] == go["hosts"]
        assert set(again["hosts"]) & set(go["hosts"]) == {"r1h1"}, "its chain's hosts are suspects"
        assert [fields["request"] for fields in reports.of(CHUNK_OVERDUE)] == ["hung"]
        assert found.counts["overdue"] == 1
        assert found.registry.oldest_ms(found.now_ms()) < 1000
        _, counted = await found.done("hung", 0, 1)
        assert not counted, "the attempt that was revoked"
        await found.done("hung", 0, 2)
        assert entry.state == "finished"


async def test_a_chunk_has_its_time_again_when_nobody_could_report(
    database: SqliteMetadata, autojump_clock: MockClock
) -> None:
    """A restart, a coordinator that was stopped, a store that failed: none of it is the writer's fault."""
    clock = Clock()
    async with coordinator(database, clock, chunk_deadline_ms=30_000) as found:
        await found.submit("a", write("r1h1"))  # type: ignore[arg-type]
        await trio.sleep(20)
    async with coordinator(database, Clock(wall_ms=5_000_000), chunk_deadline_ms=30_000) as found:
        await trio.sleep(29)
        assert found.counts["overdue"] == 0
        await trio.sleep(2)
        assert found.counts["overdue"] == 1
    slow = trio.Event()
    slow.set()

    async def off_load(work: Callable[[], None]) -> None:
        await slow.wait()
        work()

    clock = Clock(wall_ms=9_000_000)
    async with coordinator(database, clock, off_load, chunk_deadline_ms=30_000) as found:
        await trio.sleep(1)
        clock.away_s += 3600
        await trio.sleep(19)
        slow = trio.Event()
        with pytest.raises(StoreError):
            await found.submit("b", write("r1h2"))  # type: ignore[arg-type]
        await trio.sleep(1000)
        slow.set()
        await trio.sleep(1)
        assert found.counts["overdue"] == 0
        await trio.sleep(12)
        assert found.counts["overdue"] == 1


@pytest.mark.parametrize(
    ("topology", "expected_ms"),
    [
        (racks([4, 4], 4), 600_000),
        (Topology([Server("a", "r", disk_bytes_s=64 << 10), Server("b", "r")]), 10 * 1024_000),
        (Topology([Server("a", "r", send=4, link_bytes_s=64 << 18), Server("b", "r")]), 10 * 16_000),
        (Topology([Server("a", "r", link_bytes_s=1e10), Server("b", "r")]), 30_000),
        (Topology([Server("a", "r", disk_bytes_s=1e-300), Server("b", "r")]), 10**15),
        (
            Topology(
                [Server("a", "x", disk_bytes_s=64 << 20), Server("b", "y")],
                [Link("x", "y", 8, bytes_s=64 << 20), Link("y", "x", 8)],
            ),
            10 * 8_000,
        ),
    ],
)
def test_the_deadline_of_a_chunk(topology: Topology, expected_ms: int) -> None:
    """Ten times what the slowest link or disk needs for it while as many use it as may; 30 s at least."""
    assert chunk_deadline_ms(topology) == expected_ms


async def test_a_stranded_request_is_told(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """When hosts that are lost leave a request no path, the log says so with their names; and when one is back."""
    said: list[str] = []

    def report(event: LogEvent, /, **fields: object) -> None:
        if event in (REQUEST_STRANDED, REQUEST_HAS_A_PATH_AGAIN):
            said.append(f"{event.name}: {fields['request']} {fields.get('hosts_lost', '')}".strip())

    async with coordinator(database, Clock(), report=report) as found:
        for host in ("r2h1", "r2h2", "r2h3", "r2h4"):
            await found.deregister(host)
        await found.submit("a", lambda name: Submission(name=name, writer="r1h1", chunks=1, replicas=3))
        await found.submit("b", lambda name: Submission(name=name, writer="r1h1", chunks=1, replicas=1))
        await trio.sleep(2)
        assert found.unreachable == {"a"}
        await found.register("r2h1", None)
        await found.register("r2h2", None)
        await trio.sleep(2)
        assert found.unreachable == frozenset()
    assert said == ["request_stranded: a r2h1,r2h2,r2h3,r2h4", "request_has_a_path_again: a"]


class Faulty(PaperPlanner):
    """A planner with a fault that shows when it is told to."""

    faults = 0

    def chain(self, request: Request, number: int, residual: Residual, random: Random) -> HostChain | None:
        """See Planner."""
        if self.faults:
            self.faults -= 1
            raise ZeroDivisionError("a fault of the planner's")
        return super().chain(request, number, residual, random)


async def test_an_event_that_fails_in_the_middle_leaves_no_trace(
    database: SqliteMetadata, autojump_clock: MockClock
) -> None:
    """Its caller gets the fault, the next ones 503, until the plan is what is stored; then all goes on."""
    planner = Faulty(NETWORK)
    async with coordinator(database, Clock(), planner=planner, gather_ms=0) as found:
        entry, _ = await found.submit("a", lambda name: Submission(name=name, writer="r1h1", chunks=4, replicas=1))
        assert len(entry.current_goes()) == 2
        before = found.status()
        planner.faults = 1
        with pytest.raises(ZeroDivisionError):
            await found.done("a", 0, 1)  # the chunk is landed, then the search for the next one fails
        assert found.status() != before, "memory is ahead of the store"
        with pytest.raises(StoreError, match="failed in the middle"):
            await found.done("a", 0, 1)
        with pytest.raises(StoreError, match="failed in the middle"):
            await found.submit("b", write("r1h2"))  # type: ignore[arg-type]
        assert "failed in the middle" in str(found.failing)
        await trio.sleep(1)
        assert str(found.failing) == "None"
        assert found.counts["rebuilt"] == 1
        assert found.status() == before
        assert await found.done("a", 0, 1) == (entry, True)
        assert len(entry.log.events) == 3, "who waits for events waits on the same request"
        # A submission that fails is not there afterwards.
        planner.faults = 1
        with pytest.raises(ZeroDivisionError):
            await found.submit("c", write("r1h3"))  # type: ignore[arg-type]
        assert "c" not in found.registry.requests
        await trio.sleep(1)
        assert str(found.failing) == "None"
        _, new = await found.submit("c", write("r1h3"))  # type: ignore[arg-type]
        assert new


async def test_a_plan_of_what_was_gathered_that_fails_costs_nobody_anything(
    database: SqliteMetadata, autojump_clock: MockClock
) -> None:
    """What was reported is stored; changes get 503 until the plan is made anew; those who wait are answered then."""
    planner = Faulty(NETWORK)
    reports = RecordedReports()
    async with coordinator(database, Clock(), planner=planner, report=reports, gather_ms=100) as found:
        entry, _ = await found.submit("a", lambda name: Submission(name=name, writer="r1h1", chunks=4, replicas=1))
        planner.faults = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.done, "a", 0, 1)
            await trio.sleep(0.2)
            assert reports.of(REQUEST_CRASHED)
            with pytest.raises(StoreError, match="failed in the middle"):
                await found.done("a", 1, 1)
        assert found.counts["rebuilt"] == 1
        assert [(event["event"], event["chunk"]) for event in entry.log.events] == [("go", 0), ("go", 1), ("go", 2)]
        assert await found.done("a", 0, 1) == (entry, False), "it counted"


async def test_what_comes_together_is_planned_together(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """Those who submit within the time that is gathered get their answers, with their chunks, at its end."""
    async with coordinator(database, Clock(), gather_ms=100) as found:
        answered: list[tuple[str, int, float]] = []

        async def submit(host: str, after_s: float) -> None:
            await trio.sleep(after_s)
            entry, _ = await found.submit(host, write(host))  # type: ignore[arg-type]
            answered.append((host, len(entry.current_goes()), round(trio.current_time(), 3)))

        async with trio.open_nursery() as nursery:
            for number, host in enumerate(("r1h1", "r1h2", "r1h3")):
                nursery.start_soon(submit, host, number * 0.03)
        assert sorted(answered) == [(host, 1, 0.1) for host in ("r1h1", "r1h2", "r1h3")]


async def test_a_restart_plans_what_was_gathered(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """A report is durable before it is planned: who comes back after a crash in between finds the next chunk going."""
    async with coordinator(database, Clock(), gather_ms=1000) as found:
        await found.submit("a", lambda name: Submission(name=name, writer="r1h1", chunks=3, replicas=1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.done, "a", 0, 1)
            await trio.testing.wait_all_tasks_blocked()
            assert found.journal.commits == 3, "submitted, planned, reported"
            nursery.cancel_scope.cancel()
    async with coordinator(database, Clock(), gather_ms=1000) as found:
        await found.journal.durable()
        entry = found.registry.requests["a"]
        assert [go["chunk"] for go in entry.current_goes()] == [1, 2]
        assert trio.current_time() < 1.1, "and it did not wait for it"


class Full:
    """A store on a disk that can be full."""

    def __init__(self, metadata: BlockingMetadata) -> None:
        self._metadata = metadata
        self.full = False

    def load(self) -> Mapping[str, str]:
        """See BlockingMetadata."""
        return self._metadata.load()

    def apply(self, changes: Sequence[Change]) -> None:
        """See BlockingMetadata."""
        if self.full:
            raise StoreError("the disk is full")
        self._metadata.apply(changes)

    def close(self) -> None:
        """See BlockingMetadata."""


async def test_what_is_gathered_while_nothing_can_be_stored_is_planned_later(
    database: SqliteMetadata, autojump_clock: MockClock
) -> None:
    """The timer finds the disk full: nothing starts; the next tick at which it has room plans it."""
    store = Full(database)
    async with coordinator(store, Clock(), gather_ms=1000) as found:
        store.full = True
        with pytest.raises(StoreError):
            await found.submit("a", write("r1h1"))  # type: ignore[arg-type]
        assert found.registry.requests["a"].current_goes() == []
        await trio.sleep(10)
        assert found.registry.requests["a"].current_goes() == []
        store.full = False
        await trio.sleep(3)
        assert len(found.registry.requests["a"].current_goes()) == 1
        await found.journal.durable()


async def test_only_news_ends_a_wait(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """A report that leads to no event for the writer leaves its question waiting."""
    async with coordinator(database, Clock()) as found:
        await found.submit("a", lambda name: Submission(name=name, writer="r1h1", chunks=2))
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.wait, "a", 2, 30.0)
            await trio.sleep(1)
            await found.done("a", 0, 1)
        assert trio.current_time() - began == pytest.approx(30)


async def test_what_is_given_up_is_under_way_no_more(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """Chunks of a cancelled request leave the picture at once, and a restart does not bring them back."""
    async with coordinator(database, Clock()) as found:
        await found.submit("a", write("r1h1"))  # type: ignore[arg-type]
        assert len(found.registry.spans()) == 1
        await found.cancel("a")
        assert found.registry.spans() == []
    async with coordinator(database, Clock()) as found:
        assert found.registry.spans() == []


async def test_large_requests_are_remembered_for_less_long(
    database: SqliteMetadata, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only the requests that are over are bounded, their events are too; a restart counts them as before."""
    monkeypatch.setattr(registry, "MAX_EVENTS", 7)
    async with coordinator(database, Clock()) as found:
        for name in ("a", "b", "c"):
            await found.submit(name, lambda name: Submission(name=name, writer="r1h1", chunks=1))
            await found.cancel(name)  # go, revoked, cancelled
        await trio.sleep(1)
        assert list(found.registry.requests) == ["b", "c"]
        await found.submit("live", write("r1h1"))  # type: ignore[arg-type]
    async with coordinator(database, Clock()) as found:
        await trio.sleep(1)
        assert list(found.registry.requests) == ["b", "c", "live"]
        await found.cancel("live")
        await trio.sleep(1)
        assert list(found.registry.requests) == ["c", "live"]


async def test_made_up_names_are_new_after_a_restart(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """With the same seed the same names come again: a new writer must not get an old one's request."""
    names = []
    for _ in range(3):
        async with coordinator(database, Clock()) as found:
            entry, new = await found.submit(None, write("r1h1"))  # type: ignore[arg-type]
            assert new
            names.append(entry.log.prefix)
    assert len(set(names)) == 3


async def test_what_is_not_stored_is_not_told(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """While a report is being stored, the request is told as it was; killed then, that is how it comes back."""
    slow = trio.Event()
    slow.set()

    async def off_load(work: Callable[[], None]) -> None:
        await slow.wait()
        work()

    async with coordinator(database, Clock(), off_load) as found:
        entry, _ = await found.submit("a", write("r1h1"))  # type: ignore[arg-type]
        slow = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.done, "a", 0, 1)
            await trio.sleep(1)
            assert entry.state == "finished"
            assert (entry.stored.state, entry.done) == ("running", set())  # type: ignore[union-attr]
            assert [event["chunk"] for event in entry.current_goes()] == [0]
            nursery.cancel_scope.cancel()
    async with coordinator(database, Clock()) as found:
        entry = await found.request("a")
        assert (entry.state, len(entry.current_goes())) == ("running", 1)
        await found.done("a", 0, 1)
        assert (entry.stored.state, entry.done, entry.current_goes()) == ("finished", {0}, [])  # type: ignore[union-attr]


async def test_a_disk_that_hangs_is_one_that_fails(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """Nobody waits for it for long, nothing is begun, no host is blamed; when it comes back, all of it is there."""
    slow = trio.Event()
    slow.set()

    async def off_load(work: Callable[[], None]) -> None:
        await slow.wait()
        work()

    async with coordinator(database, Clock(), off_load) as found:
        await found.register("r1h1", None)
        slow = trio.Event()
        began = trio.current_time()
        with pytest.raises(StoreError, match="longer than 5 s"):
            await found.submit("a", write("r1h2"))  # type: ignore[arg-type]
        with pytest.raises(StoreError, match="longer than 5 s"):
            await found.submit("b", write("r1h2"))  # type: ignore[arg-type]
        assert trio.current_time() - began == pytest.approx(5, abs=0.1)
        await trio.sleep(60)
        assert "longer" in str(found.journal.failing)
        assert lost(found) == []
        found.alive("r1h1")
        slow.set()
        assert (await found.request("a")).stored is not None
        assert found.journal.failing is None
        assert "b" not in found.registry.requests
        await found.submit("b", write("r1h2"))  # type: ignore[arg-type]


async def test_time_never_goes_back(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """A restart with a clock that was set back: the queue's order, and so who is next, stays."""
    async with coordinator(database, Clock(wall_ms=2_000_000)) as found:
        await trio.sleep(100)
        await found.submit("first", write("r1h1"))  # type: ignore[arg-type]
        before_ms = found.now_ms()
    async with coordinator(database, Clock(wall_ms=5)) as found:
        assert found.now_ms() >= before_ms
        await found.submit("second", write("r1h2"))  # type: ignore[arg-type]
        assert [one.name for one in found.status().requests] == ["first", "second"]


async def test_a_stop_answers_those_who_wait(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """A long poll ends at once when the service stops; later ones do not begin."""
    async with coordinator(database, Clock()) as found:
        await found.submit("a", write("r1h1"))  # type: ignore[arg-type]
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.wait, "a", 1, 60.0)
            await trio.testing.wait_all_tasks_blocked(0.01)
            found.stop()
        assert (await found.wait("a", 1, 60.0))[1] == []
        assert trio.current_time() - began < 1
