"""Coordinators that stand by for each other, in virtual time: what a host says of itself while it stands by."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataUnavailable
from scheduler.coordinator.log_events import (
    COORDINATOR_AWAITS_STATE,
    COORDINATOR_CANNOT_LEAD,
    COORDINATOR_DATABASE_LEFT,
    COORDINATOR_NETWORK_AGREES,
    COORDINATOR_NETWORK_DIFFERS,
)
from scheduler.coordinator.metadata.cluster import ClusterMetadata
from scheduler.coordinator.metadata.interface import SetValue
from scheduler.coordinator.metadata.sqlite import SqliteMetadata
from scheduler.coordinator.service import FULL_REMEMBER_MS
from scheduler.coordinator.standby import candidate
from scheduler.coordinator.standby.candidate import CANNOT_LEAD_S, STATE_LIMIT_S, TELL_S
from scheduler.coordinator.standby.networks import LASTING_S, fingerprint_of
from scheduler.topology import Topology, racks
from tests.coordinator.standby_world import (
    NETWORK,
    HostLife,
    StoreOfAKilledHost,
    World,
    in_a_world,
    submission,
)


def test_a_host_with_another_network_says_so() -> None:
    """Two hosts with the same network in another order, and a third with another network: that one is named in its log
    once the difference lasts, in its metrics and its health, and stands by. When it has the leader's network, it says
    that too.
    """
    other = racks([4, 5], 4)
    turned = Topology(NETWORK.servers[::-1], NETWORK.links[::-1], switches=NETWORK.switches[::-1], name="turned")

    async def test(world: World) -> None:
        world.start("a")
        assert await world.leader() == "a"
        world.networks = {"b": turned, "c": other}
        world.start("b", "c")
        await trio.sleep(LASTING_S - 5)
        assert not world.hosts["c"].reports.of(COORDINATOR_NETWORK_DIFFERS)
        await trio.sleep(100)
        said = {name: life.reports.of(COORDINATOR_NETWORK_DIFFERS) for name, life in world.hosts.items()}
        assert {name: len(each) for name, each in said.items()} == {"a": 0, "b": 0, "c": 1}
        assert (said["c"][0]["leader"], "9 hosts" in str(said["c"][0]["own"])) == ("a", True)
        assert "8 hosts" in str(said["c"][0]["leaders"])
        for name, differs in (("b", "0"), ("c", "1")):
            text = (await world.at(name, "GET", "/metrics")).body.decode()
            assert f"\ncairn_coordinator_network_differs {differs}\n" in text
            health = await world.at(name, "GET", "/health")
            assert (health.status, "another network" in health.body.decode()) == (200, differs == "1")
        await world.hosts["c"].standing.change_network(NETWORK)
        await trio.sleep(2)
        assert len(world.hosts["c"].reports.of(COORDINATOR_NETWORK_AGREES)) == 1
        await world.hosts["a"].standing.change_network(other)
        await trio.sleep(LASTING_S + 5)
        assert [len(world.hosts[name].reports.of(COORDINATOR_NETWORK_DIFFERS)) for name in "bc"] == [1, 2]
        world.kill("a")
        await world.leader()

    in_a_world(test, "")


def test_a_fingerprint_is_that_of_what_is_planned_on() -> None:
    """Names, capacities and rates of hosts and links count; the network's name and the order do not."""
    turned = Topology(NETWORK.servers[::-1], NETWORK.links[::-1], switches=NETWORK.switches[::-1], name="turned")
    assert fingerprint_of(turned) == fingerprint_of(NETWORK)
    first = NETWORK.servers[0]
    for changed in (replace(first, send=first.send + 1), replace(first, disk=7), replace(first, address="10.0.0.1")):
        other = Topology([changed, *NETWORK.servers[1:]], NETWORK.links, switches=NETWORK.switches)
        assert fingerprint_of(other) != fingerprint_of(NETWORK)


def test_who_cannot_read_the_state_says_what_it_waits_for() -> None:
    """The store holds the lease and gives no state: the host that is to lead says so at once, each minute, in its
    health and its metrics, without a word of where the store is; it tries for STATE_LIMIT_S, and then leaves the lead
    to others. When the state can be read, a host leads.
    """

    async def test(world: World) -> None:
        away = [True]

        class NoState(StoreOfAKilledHost):
            """A store of which nothing below the state can be read."""

            async def page(self, prefix: str, **how: Any) -> Any:
                """See MetadataStore."""
                if away[0] and prefix == schema.COORDINATOR_STATE:
                    raise MetadataUnavailable("10.0.0.7:2379 did not answer; nothing was changed")
                return await self._store.page(prefix, **how)

        life = world.hosts["a"] = HostLife("a", "s1", NoState(world.service.store("a")), world)
        world._nursery.start_soon(life.run)
        await trio.sleep(3)
        (first,) = life.reports.of(COORDINATOR_AWAITS_STATE)
        assert "10.0.0.7:2379" in str(first["why"])
        health = await world.at("a", "GET", "/health")
        assert (health.status, "no state yet" in health.body.decode()) == (503, True)
        assert "10.0.0.7" not in health.body.decode()
        assert "\ncairn_coordinator_awaits_state 1\n" in (await world.at("a", "GET", "/metrics")).body.decode()
        await trio.sleep(TELL_S + 1)
        assert len(life.reports.of(COORDINATOR_AWAITS_STATE)) == 2
        assert not life.reports.of(COORDINATOR_CANNOT_LEAD)
        await trio.sleep(STATE_LIMIT_S - TELL_S)
        (given_up,) = life.reports.of(COORDINATOR_CANNOT_LEAD)
        assert "10.0.0.7:2379" in str(given_up["why"])
        away[0] = False
        began_s = trio.current_time()
        assert await world.leader() == "a"
        assert trio.current_time() - began_s <= CANNOT_LEAD_S + 1
        assert (await world.at("a", "GET", "/health")).status == 200

    in_a_world(test, "")


def test_requests_are_refused_before_the_state_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Live requests keep room for all that is still to be stored of them: who asks for more is told so, with when to
    ask again, and what is accepted is written without the limit. A request that can never have room is not to be tried
    again. Metrics show how full the state is, and when requests are over there is room again.
    """
    limit_bytes = 50_000
    monkeypatch.setattr(candidate, "ClusterMetadata", partial(ClusterMetadata, limit_bytes=limit_bytes))

    def figure(text: str, name: str) -> float:
        return float(text.split(f"\ncairn_coordinator_{name} ")[1].split("\n")[0])

    def kept(world: World) -> int:
        entries = world.service.state.entries.values()
        return sum(len(each.key) + len(each.value) for each in entries if each.key.startswith(schema.COORDINATOR_STATE))

    async def test(world: World) -> None:
        leader = await world.leader()
        never = await world.at(leader, "POST", "/v1/requests", submission("large", chunks=100))
        assert (never.status, json.loads(never.body)["field"]) == (400, "chunks")
        accepted = 0
        while (
            answer := await world.at(leader, "POST", "/v1/requests", submission(f"r{accepted}", chunks=10))
        ).status == 201:
            accepted += 1
        assert (answer.status, answer.headers["Retry-After"]) == (507, "10")
        assert "the state is full" in json.loads(answer.body)["error"]
        assert accepted >= 5
        more = await world.at(leader, "PUT", "/v1/requests/r0", {"chunks": 60})
        assert more.status in (409, 507)
        text = (await world.at(leader, "GET", "/metrics")).body.decode()
        assert figure(text, "state_limit_bytes") == limit_bytes
        assert figure(text, "state_bytes") == kept(world)
        assert limit_bytes - figure(text, "state_bytes") - figure(text, "state_promised_bytes") < 8_000
        most = 0
        for number in range(accepted):
            view = await world.ask("GET", f"/v1/requests/r{number}")
            while view["state"] != "finished":
                for go in view["go"]:
                    path = f"/v1/requests/r{number}/chunks/{go['chunk']}/done"
                    await world.ask("POST", path, {"attempt": go["attempt"]})
                most = max(most, kept(world))
                view = await world.ask("GET", f"/v1/requests/r{number}")
        assert limit_bytes / 4 < most <= limit_bytes
        await trio.sleep(FULL_REMEMBER_MS / 1000 + 5)
        assert (await world.at(leader, "POST", "/v1/requests", submission("new", chunks=10))).status == 201

    in_a_world(test, "a")


def test_a_host_that_follows_names_the_database_that_it_has_left(tmp_path: Path) -> None:
    """Another host leads: the database of a coordinator that was alone here is named in a warning once, with what to
    do, and stays as it is.
    """
    path = tmp_path / "coordinator.db"

    async def test(world: World) -> None:
        with closing(SqliteMetadata(path)) as database:
            database.apply([SetValue("hosts/r1h1", "{}")])
        world.start("a")
        await world.leader()
        world.former["b"] = path
        world.start("b")
        while not (said := world.hosts["b"].reports.of(COORDINATOR_DATABASE_LEFT)):  # noqa: ASYNC110  many may say it
            await trio.sleep(0.5)
        await trio.sleep(10)
        assert len(said) == 1
        assert (said[0]["file"], said[0]["why"]) == (path, "host a leads")
        assert path.exists()

    in_a_world(test, "")
