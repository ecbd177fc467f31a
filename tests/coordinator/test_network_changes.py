"""The network of a coordinator that runs is changed: what is under way, who is told, and what is stored."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from trio.testing import MockClock

from logstore.testing.reports import RecordedReports
from scheduler.client import CoordinatorClient
from scheduler.coordinator.errors import ApiError, PlanNotMoved, StoreError
from scheduler.coordinator.log_events import TOPOLOGY_LOADED, TOPOLOGY_UNUSABLE
from scheduler.coordinator.metadata.sqlite import SqliteMetadata
from scheduler.coordinator.network_file import NetworkFile, NetworkOutcome
from scheduler.coordinator.service import Coordinator
from scheduler.coordinator.testing import CoordinatorProcess
from scheduler.errors import PlanInvalid
from scheduler.peace.online import Submission
from scheduler.peace.online.records import EventOutcome
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.plan import HostChain, Request, Residual, TransferKind
from scheduler.topology import Topology, racks
from scheduler.topology.description import topology_toml
from tests.coordinator.support import topology_file
from tests.coordinator.test_service import NETWORK, Clock, coordinator
from tests.support.waiting import until


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteMetadata]:
    """A store of its own, closed at the end."""
    with closing(SqliteMetadata(tmp_path / "a.db")) as opened:
        yield opened


def without(*names: str) -> Topology:
    """The network without these servers."""
    return Topology(
        [server for server in NETWORK.servers if server.name not in names], NETWORK.links, switches=NETWORK.switches
    )


def asked(writer: str, chunks: int = 1, placement: tuple[str, ...] = ("other-rack:0",)) -> object:
    """What a host's submission is made of."""
    return lambda name: Submission(name=name, writer=writer, chunks=chunks, placement=placement)


async def submitted(found: Coordinator, name: str, writer: str, chunks: int = 1) -> None:
    """A request of this name."""
    await found.submit(name, asked(writer, chunks))  # type: ignore[arg-type]


async def moved(found: Coordinator, topology: Topology) -> EventOutcome:
    """It goes on with this network."""
    return await found.change_network(topology, PaperPlanner(topology))


async def told(found: Coordinator, name: str) -> list[str]:
    """What the writer of a request was told so far."""
    return [event["event"] for event in (await found.wait(name, 0, 0))[1]]


# ---- what is under way


async def test_what_is_under_way_goes_on(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """A faster network, with its hosts in another order: nothing is revoked, and what waited starts."""
    async with coordinator(database, Clock(), gather_ms=0) as found:
        await submitted(found, "a", "r1h1", 3)
        assert await told(found, "a") == ["go", "go"], "a host sends two chunks at a time"
        faster = Topology(
            [replace(server, send=3) for server in reversed(NETWORK.servers)], NETWORK.links, switches=NETWORK.switches
        )
        outcome = await moved(found, faster)
        assert not outcome.revoked
        assert not outcome.given_up
        assert await told(found, "a") == ["go", "go", "go"]
        for chunk in range(3):
            assert (await found.done("a", chunk, 1))[1]
        assert await told(found, "a") == ["go", "go", "go", "finished"]
        assert found.status().uses == found._scheduler.status().uses
        assert all(use.used == 0 for use in found.status().uses)


async def test_what_is_too_much_ends_before_anything_begins(
    database: SqliteMetadata, autojump_clock: MockClock
) -> None:
    """Two chunks are under way where one is carried now: the next begins when both are done."""
    async with coordinator(database, Clock(), gather_ms=0) as found:
        await submitted(found, "a", "r1h1", 4)
        slower = Topology(
            [replace(server, send=1) for server in NETWORK.servers], NETWORK.links, switches=NETWORK.switches
        )
        assert (await moved(found, slower)).revoked == ()
        used = {use.name: (use.used, use.total) for use in found.status().uses if use.resource == "send"}
        assert used["r1h1"] == (2, 1)
        assert (await found.done("a", 0, 1))[1]
        assert await told(found, "a") == ["go", "go"]
        assert (await found.done("a", 1, 1))[1]
        assert await told(found, "a") == ["go", "go", "go"]


async def test_a_host_that_leaves_ends_its_chunks(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """A chunk through it is revoked and planned around it; a writer's requests end; all of it outlives two restarts."""
    async with coordinator(database, Clock(), gather_ms=0) as found:
        await submitted(found, "through", "r1h1")
        (go,) = [each.go for each in found.status().in_flight]
        await submitted(found, "of", go.hosts[1])
        left = without(go.hosts[1])
        outcome = await moved(found, left)
        assert (outcome.given_up, {gone.request for gone in outcome.revoked}) == (("of",), {"through", "of"})
        assert await told(found, "through") == ["go", "revoked", "go"]
        assert await told(found, "of") == ["go", "revoked", "cancelled"]
        assert not (await found.failed("through", 0, 1, (go.hosts[1],)))[1], "a report of what was revoked is no error"
        with pytest.raises(ApiError, match="no such host"):
            await found.register(go.hosts[1], None)
        queue = [status.name for status in found.status().requests]
    for _ in range(2):  # what the first stores, the second reads
        async with coordinator(database, Clock(), gather_ms=0, network=left) as found:
            assert [status.name for status in found.status().requests] == queue == ["through"]
            assert (await found.request("of")).state == "cancelled"


async def test_no_copy_goes_to_a_source_that_returns(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """A host that had the chunk has it still when it is back in the network: the copy waits for another host."""
    three = racks([2, 1], 4)
    copy = Submission("copy", None, 1, 1, ("anywhere",), 0, TransferKind.COPY, (("r1h1", "r2h1"),))

    def only(*names: str) -> Topology:
        kept = [server for server in three.servers if server.name in names]
        return Topology(kept, three.links, switches=three.switches)

    async with coordinator(database, Clock(), gather_ms=0, network=three) as found:
        await found.submit("copy", lambda name: copy)
        assert (await moved(found, only("r1h1"))).revoked[0].hosts[-1] == "r1h2"
        assert (await moved(found, only("r1h1", "r2h1"))).go == ()
        (go,) = (await moved(found, three)).go
        assert (go.attempt, go.hosts[-1]) == (2, "r1h2")


async def test_hosts_that_return_are_what_they_were(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """A lost host is lost still; a registered one has a whole deadline, whatever passed while it was away."""
    clock = Clock()
    async with coordinator(database, clock) as found:
        await found.register("r1h1", "10.0.0.1")
        await found.register("r2h1", None)
        await found.deregister("r2h1")
        await moved(found, without("r1h1", "r2h1"))
        assert found.hosts.known() == []
        clock.away_s += 3600
        await moved(found, NETWORK)
        known = {record.name: (record.registered, record.lost) for record in found.hosts.known()}
        assert known == {"r1h1": (True, False), "r2h1": (False, True)}
        assert found.hosts.left_ms("r1h1", found.now_ms()) == found.hosts.deadline_ms
        assert [host.name for host in found.status().hosts if host.lost] == ["r2h1"]


class Unfit(PaperPlanner):
    """A planner that cannot plan at all."""

    def chain(self, request: Request, chunk: int, residual: Residual, random: Random) -> HostChain | None:
        """See Planner."""
        raise PlanInvalid("nothing fits")


async def test_a_plan_that_cannot_move_stays(database: SqliteMetadata, autojump_clock: MockClock) -> None:
    """Nothing has changed then: what is under way, what waits, the network; and the next change counts."""
    async with coordinator(database, Clock(), gather_ms=0) as found:
        await submitted(found, "a", "r1h1", 3)
        before, topology = found.status(), found.environment.topology
        faster = racks([5, 4], 4, send=3)
        with pytest.raises(PlanNotMoved, match="nothing fits"):
            await found.change_network(faster, Unfit(faster))
        assert (found.status(), found.environment.topology) == (before, topology)
        assert (await moved(found, NETWORK)).revoked == ()
        assert (await found.done("a", 0, 1))[1]


# ---- the file


class Applied:
    """Networks that were applied; `failing`: the store cannot take any."""

    def __init__(self) -> None:
        self.hosts: list[int] = []
        self.failing = False

    async def __call__(self, topology: Topology) -> NetworkOutcome:
        """See network_file.Apply."""
        if self.failing:
            raise StoreError("the disk is full")
        self.hosts.append(len(topology.servers))
        return NetworkOutcome()


def write(path: Path, text: str, at: int) -> None:
    """Write it, with a time of its own, whatever the clock's grain."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(at, at))


async def test_a_file_is_followed(tmp_path: Path) -> None:
    """Once it has stayed as it is for a look; what cannot be used is said once, and changes nothing."""
    path, reports, applied = tmp_path / "network.toml", RecordedReports(), Applied()
    write(path, topology_toml(racks([4, 4], 4)), 1)
    network = NetworkFile(path, reports)
    assert len(network.read().servers) == 8
    await network.look(applied)
    write(path, topology_toml(racks([4], 4)), 2)  # half of it is written
    await network.look(applied)
    write(path, topology_toml(racks([4, 5], 4)), 3)
    await network.look(applied)
    assert applied.hosts == []
    await network.look(applied)
    await network.look(applied)
    assert applied.hosts == [9]
    (loaded,) = reports.of(TOPOLOGY_LOADED)
    assert (loaded["hosts"], loaded["hosts_new"], loaded["hosts_gone"], loaded["changed"]) == (9, 1, 0, True)
    write(path, '[[server]]\nname = "a"\nrack = 7\n', 4)
    for _ in range(4):
        await network.look(applied)
    (said,) = reports.of(TOPOLOGY_UNUSABLE)
    assert "network.toml" in str(said["error"])
    assert "rack" in str(said["error"])
    path.unlink()
    for _ in range(4):
        await network.look(applied)
    assert len(reports.of(TOPOLOGY_UNUSABLE)) == 2
    write(path, topology_toml(racks([4, 5], 4)), 5)  # as before
    for _ in range(3):
        await network.look(applied)
    assert applied.hosts == [9]


async def test_a_file_is_read_at_once_when_asked(tmp_path: Path) -> None:
    """Also in another format; and what is wrong is said again, as is that nothing has changed."""
    path, reports, applied = tmp_path / "racks.json", RecordedReports(), Applied()
    write(path, '{"switch": [{"name": "r"}], "server": [{"name": "a", "rack": "r"}]}', 1)
    network = NetworkFile(path, reports)
    network.read()
    write(path, "Rack: /r1\n   10.0.0.1:9866 (a)\n   10.0.0.2:9866 (b)\n", 2)
    await network.look(applied, is_wanted=True)
    await network.look(applied, is_wanted=True)
    write(path, '{"kind": "List", "items": []}', 3)
    for _ in range(2):
        await network.look(applied, is_wanted=True)
    assert applied.hosts == [2]
    assert [loaded["changed"] for loaded in reports.of(TOPOLOGY_LOADED)] == [True, False]
    assert ["names no hosts" in str(said["error"]) for said in reports.of(TOPOLOGY_UNUSABLE)] == [True, True]


async def test_a_change_that_cannot_be_stored_is_tried_again(tmp_path: Path) -> None:
    """Until the store takes it."""
    path, applied = tmp_path / "network.toml", Applied()
    write(path, topology_toml(racks([4, 4], 4)), 1)
    network = NetworkFile(path, RecordedReports())
    network.read()
    write(path, topology_toml(racks([4, 5], 4)), 2)
    applied.failing = True
    for _ in range(4):
        await network.look(applied)
    applied.failing = False
    await network.look(applied)
    assert applied.hosts == [9]


def test_a_running_coordinator_follows_its_file(tmp_path: Path) -> None:
    """SIGHUP behind a change: a host that was unknown registers, and a writer whose host is gone is told."""
    path, _ = topology_file(tmp_path)
    with CoordinatorProcess(path, tmp_path / "data", "--planner", "paper") as process:
        with CoordinatorClient(process.url) as client:
            gone = client.submit("r1h4", chunks=1, placement=["other-rack:0"])
            topology_file(tmp_path, (3, 5))
            os.kill(process.pid, signal.SIGHUP)
            until(lambda: "r2h5" in [each["name"] for each in client.topology()["servers"]], process.log)
            client.register("r2h5", keep_alive=False)
            assert client.request(gone.name)["state"] == "cancelled"
        until(lambda: "event=topology_loaded" in process.log(), process.log)
        assert "hosts_new=1 hosts_gone=1" in process.log()
