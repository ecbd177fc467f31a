"""The service in virtual time: deadlines of hosts and writers, a coordinator that was away, clocks that jump."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from scheduler.coordinator.errors import ApiError
from scheduler.coordinator.journal import Journal
from scheduler.coordinator.metadata.interface import Metadata
from scheduler.coordinator.metadata.sqlite import SqliteMetadata
from scheduler.coordinator.running import make_planner
from scheduler.coordinator.service import Coordinator, CoordinatorSettings, World
from scheduler.coordinator.testing import silent
from scheduler.peace.online import Submission
from scheduler.topology import racks

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


@asynccontextmanager
async def coordinator(metadata: Metadata, clock: Clock) -> AsyncGenerator[Coordinator, None]:
    """A coordinator that keeps time and stores, without a server."""
    journal = Journal(metadata, silent, at_once)
    world = World(NETWORK, make_planner("paper", NETWORK), clock, Random(0), silent)
    found = Coordinator(world, SETTINGS, journal)
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


async def test_a_host_is_lost_when_its_deadline_is_over(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Keep-alives hold it for as long as they come; then it is lost within the deadline and a tick."""
    async with coordinator(SqliteMetadata(tmp_path / "a.db"), Clock()) as found:
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


async def test_who_was_away_blames_nobody(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A coordinator that was stopped for an hour heard nobody: hosts and writers get that hour."""
    clock = Clock()
    async with coordinator(SqliteMetadata(tmp_path / "a.db"), clock) as found:
        await found.register("r1h1", None)
        tracked, _ = await found.submit("a", write("r1h1"))  # type: ignore[arg-type]
        clock.away_s += 3600
        await trio.sleep(9)
        assert lost(found) == []
        assert tracked.state == "running"
        await trio.sleep(2.2)
        assert lost(found) == ["r1h1"]


async def test_a_silent_writer_holds_capacity_for_a_bounded_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    """One that asks now and then goes on for ever; one that does not is cancelled."""
    async with coordinator(SqliteMetadata(tmp_path / "a.db"), Clock()) as found:
        await found.submit("silent", write("r1h1"))  # type: ignore[arg-type]
        await found.submit("asking", write("r1h2"))  # type: ignore[arg-type]
        for _ in range(5):
            await trio.sleep(20)
            await found.wait("asking", 1, 0)
        assert found.ledger.requests["silent"].state == "cancelled"
        assert found.ledger.requests["asking"].state == "running"
        await trio.sleep(110)
        assert "silent" not in found.ledger.requests


async def test_time_never_goes_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A restart with a clock that was set back: the queue's order, and so who is next, stays."""
    metadata = SqliteMetadata(tmp_path / "a.db")
    async with coordinator(metadata, Clock(wall_ms=2_000_000)) as found:
        await trio.sleep(100)
        await found.submit("first", write("r1h1"))  # type: ignore[arg-type]
        before_ms = found.now_ms()
    async with coordinator(metadata, Clock(wall_ms=5)) as found:
        assert found.now_ms() >= before_ms
        await found.submit("second", write("r1h2"))  # type: ignore[arg-type]
        assert [one.name for one in found.status().requests] == ["first", "second"]


async def test_a_stop_answers_those_who_wait(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A long poll ends at once when the service stops; later ones do not begin."""
    async with coordinator(SqliteMetadata(tmp_path / "a.db"), Clock()) as found:
        await found.submit("a", write("r1h1"))  # type: ignore[arg-type]
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.wait, "a", 1, 60.0)
            await trio.testing.wait_all_tasks_blocked(0.01)
            found.stop()
        assert (await found.wait("a", 1, 60.0))[1] == []
        assert trio.current_time() - began < 1
