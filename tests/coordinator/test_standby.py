"""Coordinators that stand by for each other, in virtual time: whatever becomes of the leader, another goes on."""

from __future__ import annotations

import json
from functools import partial
from random import Random

import pytest
import trio

from logstore.base.copy_slots import SLOT_MS
from logstore.base.metadata import schema
from logstore.base.metadata.interface import Committed, Delete, Put, Transaction
from logstore.base.metadata.state import Update
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from scheduler.coordinator.front_settings import Security
from scheduler.coordinator.log_events import (
    COORDINATOR_CANNOT_LEAD,
)
from scheduler.coordinator.metadata.cluster import LIMIT_BYTES, ClusterMetadata
from scheduler.coordinator.service import (
    FULL_REMEMBER_MS,
    NEARLY_FULL_BYTES,
)
from scheduler.coordinator.standby import candidate
from scheduler.coordinator.standby.candidate import CANNOT_LEAD_S
from scheduler.topology import racks
from tests.coordinator.standby_world import (
    HASTY,
    LEASE_S,
    TOKEN,
    World,
    checkpoint,
    in_a_world,
    submission,
)
from tests.support.virtual_time import run_virtual


def test_another_one_goes_on_when_the_leader_is_killed() -> None:
    """Chunks under way stay so, what waits is planned, reports count once, checkpoints are there: within the time of a
    lease and a look.
    """

    async def test(world: World) -> None:
        view = await world.ask("POST", "/v1/requests", submission("one"))
        await world.ask("PUT", "/v1/units/u.0/checkpoints/1", checkpoint(1))
        await world.ask("POST", "/v1/requests/one/chunks/0/done", {"attempt": 1})
        began_s, before = trio.current_time(), await world.leader()
        world.kill(before)
        after = await world.leader()
        assert after != before
        assert trio.current_time() - began_s <= LEASE_S + 0.5
        again = await world.ask("GET", "/v1/requests/one")
        assert {go["chunk"] for go in again["go"]} >= {go["chunk"] for go in view["go"]} - {0}
        assert (await world.ask("POST", "/v1/requests/one/chunks/0/done", {"attempt": 1}))["counted"] is False
        assert (await world.ask("GET", "/v1/units/u.0/newest"))["seq"] == 1
        for chunk in (1, 2):
            await world.ask("POST", f"/v1/requests/one/chunks/{chunk}/done", {"attempt": 1})
        assert (await world.ask("GET", "/v1/requests/one"))["state"] == "finished"

    in_a_world(test)


def test_who_ends_hands_over_at_once() -> None:
    """A planned stop costs no lease's time; the host that resigned sends its clients on, and leads no more."""

    async def test(world: World) -> None:
        await world.ask("POST", "/v1/requests", submission("one"))
        before, began_s = await world.leader(), trio.current_time()
        await world.hosts[before].standing.resign()
        assert (await world.at(before, "GET", "/v1/status")).status in (307, 503)
        after = await world.leader()
        assert after != before
        assert trio.current_time() - began_s < 1
        answer = await world.at(before, "GET", "/v1/status?x=1")
        assert (answer.status, answer.headers["Location"]) == (307, f"{world.hosts[after].url}/v1/status?x=1")
        world.kill(after)
        await trio.sleep(LEASE_S + 1)
        assert await world.leader() not in (before, after)

    in_a_world(test)


def test_a_new_network_is_the_next_leaders_too() -> None:
    """All hosts follow the same file: the leader goes on with its network at once, and whoever leads later begins with
    it; what is under way is under way in both.
    """

    async def test(world: World) -> None:
        view = await world.ask("POST", "/v1/requests", submission("one"))
        wider = racks([4, 5], 4)
        for life in world.hosts.values():
            await life.standing.change_network(wider)
        for _ in range(2):
            assert len((await world.ask("GET", "/v1/topology"))["servers"]) == 9
            assert (await world.ask("GET", "/v1/requests/one"))["go"] == view["go"]
            await world.ask("POST", "/v1/hosts", {"name": "r2h5", "address": "10.0.0.5"})
            world.kill(await world.leader())

    in_a_world(test)


def test_a_leader_that_is_cut_off_answers_nothing() -> None:
    """Its lease in doubt, it says 503, before another host leads; when it is back it follows. Nothing that it knows
    alone is told, and no host or writer is blamed for the time in which nobody could be heard.
    """

    async def test(world: World) -> None:
        await world.ask("POST", "/v1/hosts", {"name": "r1h2", "address": "10.0.0.1:1"})
        before = await world.leader()
        world.service.cut_off(before)
        was_silent = False
        while world.leaders() in ([before], []):
            was_silent = was_silent or not world.leaders()
            answer = await world.at(before, "GET", "/v1/status")
            assert answer.status == (200 if world.leaders() else 503)
            await trio.sleep(0.05)
        assert was_silent
        assert before not in world.leaders()
        assert (await world.at(before, "GET", "/v1/status")).status == 503
        assert (await world.at(before, "GET", "/v1/status")).headers["Retry-After"] == "1"
        status = await world.ask("GET", "/v1/status")
        assert [host["lost"] for host in status["hosts"]] == [False]
        world.service.heal(before)
        await trio.sleep(5)
        assert (await world.at(before, "GET", "/v1/status")).status == 307

    in_a_world(test)


def test_a_store_that_was_away_costs_no_plan() -> None:
    """The metadata store is away for longer than a lease: the leader says 503, and others still send clients to it.
    Behind that the plan is whole, and hosts and writers that could not be heard are not given up.
    """

    async def test(world: World) -> None:
        await world.ask("POST", "/v1/hosts", {"name": "r1h2", "address": "10.0.0.1:1"})
        view, leader = await world.ask("POST", "/v1/requests", submission("one")), await world.leader()
        world.service.stop()
        await trio.sleep(100)
        for name in world.hosts:
            expected = 503 if name == leader else 307
            assert (await world.at(name, "GET", "/v1/status")).status == expected
        world.service.start()
        again = await world.ask("GET", "/v1/requests/one")
        assert (again["state"], again["go"]) == (view["state"], view["go"])
        await trio.sleep(2)
        assert [host["lost"] for host in (await world.ask("GET", "/v1/status"))["hosts"]] == [False]

    in_a_world(test)


def test_hosts_are_not_lost_while_nobody_can_hear_them() -> None:
    """The metadata store is away for less than the leader's lease needs to end: the leader stays, and the time in which
    it answers nobody, longer than what is left of a host's deadline, does not count for that.
    """

    async def test(world: World) -> None:
        await world.leader()
        await trio.sleep(1)
        await world.ask("POST", "/v1/hosts", {"name": "r1h2", "address": "10.0.0.1:1"})
        leader, before_s = await world.leader(), trio.current_time()
        world.service.stop()
        await trio.sleep(5.2)
        assert not world.leaders()
        world.service.start()
        assert await world.leader() == leader
        await trio.sleep(0.6)
        assert trio.current_time() - before_s > HASTY.host_deadline_ms / 1000 + 1
        assert [host["lost"] for host in (await world.ask("GET", "/v1/status"))["hosts"]] == [False]

    in_a_world(test, settings=HASTY)


def test_who_stands_by_has_health_and_metrics_of_its_own() -> None:
    """They are asked of every host, and sent nowhere else; one host of all leads."""

    async def test(world: World) -> None:
        leader = await world.leader()
        await trio.sleep(1)
        said = {name: json.loads((await world.at(name, "GET", "/health")).body)["status"] for name in world.hosts}
        assert said == {name: "ok" if name == leader else "standby" for name in world.hosts}
        leads = 0
        for name in world.hosts:
            text = (await world.at(name, "GET", "/metrics")).body.decode()
            leads += int(text.split("\ncairn_coordinator_leads ")[1].split("\n")[0])
        assert leads == 1
        for life in world.hosts.values():
            await life.standing.resign()
        await trio.sleep(1)
        assert {(await world.at(name, "GET", "/health")).status for name in world.hosts} == {503}

    in_a_world(test)


def test_strangers_are_not_told_who_leads() -> None:
    """Where clients need a token, a host that stands by sends nobody on without it, and answers /health to all."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            service = SimulatedMetadata(Random(0), MetadataFaults())
            await nursery.start(service.serve)
            world = World(service, nursery)
            world.security = Security(token=TOKEN)
            world.start("a", "b")
            leader = await world.leader()
            await trio.sleep(1)
            (other,) = set(world.hosts) - {leader}
            refused = await world.at(other, "GET", "/v1/status")
            assert (refused.status, "Location" in refused.headers) == (401, False)
            assert (await world.at(other, "GET", "/health")).status == 200
            sent_on = await world.at(other, "GET", "/v1/status", authorization=f"Bearer {TOKEN}")
            assert (sent_on.status, sent_on.headers["Location"]) == (307, f"{world.hosts[leader].url}/v1/status")
            nursery.cancel_scope.cancel()

    run_virtual(main)


def test_who_cannot_lead_says_why_and_tries_again() -> None:
    """A state that cannot be read: each host takes its entry away and says what is wrong; when it is mended, a host
    leads within CANNOT_LEAD_S.
    """

    async def test(world: World) -> None:
        await world.ask("POST", "/v1/requests", submission("one"))
        store, bad = world.service.store("x"), f"{schema.COORDINATOR_STATE}hosts/r1h1"
        await store.commit(Transaction((), (Put(bad, b"?"),)))
        world.kill(await world.leader())
        await trio.sleep(2 * LEASE_S)
        assert not world.leaders()
        for name, life in world.hosts.items():
            ((_, fields),) = [one for one in life.reports.events if one[0] == COORDINATOR_CANNOT_LEAD.name]
            assert "hosts/r1h1" in str(fields["why"])
            assert (await world.at(name, "GET", "/v1/status")).status == 503
        await store.commit(Transaction((), (Delete(bad),)))
        began_s = trio.current_time()
        await world.leader()
        assert trio.current_time() - began_s <= CANNOT_LEAD_S + 1
        assert (await world.ask("GET", "/v1/requests/one"))["state"] == "running"

    in_a_world(test)


def test_a_host_replaces_its_former_life_within_its_lease() -> None:
    """A restart within the lease's time: the host goes on without waiting for its former lease, but for as long as a
    slot for copies lasts that it may have given.
    """

    async def test(world: World) -> None:
        await world.ask("POST", "/v1/requests", submission("one"))
        world.kill("a")
        began_s = trio.current_time()
        world.start("a")
        assert await world.leader() == "a"
        assert SLOT_MS / 1000 <= trio.current_time() - began_s < LEASE_S - 1
        assert (await world.ask("GET", "/v1/requests/one"))["state"] == "running"

    in_a_world(test, "a")


def test_a_damaged_entry_is_replaced() -> None:
    """An entry that nobody can read names no leader: a host puts its own in its place."""

    async def test(world: World) -> None:
        await world.service.store("x").commit(Transaction((), (Put(schema.LEADER_KEY, b"?"),)))
        world.start("a")
        assert await world.leader() == "a"

    in_a_world(test, "")


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))])
def test_whatever_happens_nothing_that_was_answered_is_lost(seed: int) -> None:
    """Hosts are killed, started, cut off, and resign; answers of the metadata store are lost and late. Never do two
    hosts answer as the leader, no go is told twice with another chain, and at the end every checkpoint and every
    request that was answered is there.
    """

    async def test(world: World) -> None:
        random, checkpoints, gos = Random(seed), list[int](), dict[tuple[str, int, int], list[str]]()

        async def work() -> None:
            for number in range(40):
                await world.ask("PUT", f"/v1/units/u/checkpoints/{number + 1}", checkpoint(number + 1))
                checkpoints.append(number + 1)
                name = f"r{number}"
                view = await world.ask("POST", "/v1/requests", submission(name, f"r1h{1 + number % 4}", 2))
                while view["state"] != "finished":
                    for go in view["go"]:
                        chain = gos.setdefault((name, go["chunk"], go["attempt"]), go["hosts"])
                        assert chain == go["hosts"]
                        path = f"/v1/requests/{name}/chunks/{go['chunk']}/done"
                        await world.ask("POST", path, {"attempt": go["attempt"]})
                    await trio.sleep(random.uniform(0, 0.5))
                    view = await world.ask("GET", f"/v1/requests/{name}")
            scope.cancel()

        async def watch() -> None:
            while True:
                assert len(world.leaders()) <= 1
                await trio.sleep(0.01)

        async def harm() -> None:
            while True:
                await trio.sleep(random.uniform(0, 4))
                name = random.choice("abc")
                match random.randrange(5):
                    case 0 if name in world.hosts and len(world.hosts) > 1:
                        world.kill(name)
                    case 1 if name in world.hosts:
                        world.service.cut_off(name)
                    case 2 if name in world.hosts and len(world.hosts) > 1:
                        await world.hosts[name].standing.resign()
                        world.kill(name)
                    case _:
                        world.service.heal(name)
                        if name not in world.hosts:
                            world.start(name)

        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work)
                nursery.start_soon(watch)
                nursery.start_soon(harm)
        for name in "abc":
            world.service.heal(name)
        listed = await world.ask("GET", "/v1/units/u/checkpoints")
        assert sorted(one["seq"] for one in listed["checkpoints"]) == checkpoints
        assert len(checkpoints) == 40
        status = await world.ask("GET", "/v1/status")
        assert status["requests"] == {"finished": 40}

    in_a_world(test, seed=seed, faults=MetadataFaults(max_delay_s=0.05, lost_requests=0.02, lost_answers=0.02))


@pytest.mark.parametrize("limit_bytes", [NEARLY_FULL_BYTES // 2, LIMIT_BYTES])
def test_requests_that_are_over_keep_nobody_out_of_a_full_store(
    limit_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where little more is taken, what is over is remembered for as long as its clients ask again, and no longer; else
    for as long as the settings say.
    """
    is_full = limit_bytes < NEARLY_FULL_BYTES
    monkeypatch.setattr(candidate, "ClusterMetadata", partial(ClusterMetadata, limit_bytes=limit_bytes))

    async def test(world: World) -> None:
        await world.ask("POST", "/v1/requests", submission("one", chunks=1))
        await world.ask("POST", "/v1/requests/one/chunks/0/done", {"attempt": 1})
        await trio.sleep(FULL_REMEMBER_MS / 1000 - 5)
        assert (await world.ask("GET", "/v1/requests/one"))["state"] == "finished"
        await trio.sleep(10)
        assert (await world.at(await world.leader(), "GET", "/v1/requests/one")).status == (404 if is_full else 200)
        kept = [
            key for key in world.service.state.entries if key.startswith(f"{schema.COORDINATOR_STATE}requests/one/")
        ]
        assert bool(kept) != is_full

    in_a_world(test, "a")


def test_what_the_store_has_of_a_chunk_and_of_a_checkpoint() -> None:
    """A chunk is written thrice: at its go, at its end, and with the request; what is kept of it goes with the request.
    A checkpoint is written once. Bytes of keys and values, as docs/metadata.md says.
    """

    async def test(world: World) -> None:
        written = [0]
        install = world.service.install

        def counted(update: Update) -> Committed:
            written[0] += sum(len(entry.key) + len(entry.value) for entry in update.puts)
            return install(update)

        def kept() -> int:
            entries = world.service.state.entries.values()
            return sum(
                len(each.key) + len(each.value) for each in entries if each.key.startswith(schema.COORDINATOR_STATE)
            )

        await world.leader()
        world.service.install = counted  # type: ignore[method-assign]
        name = "query-0123456789.p12"
        await world.ask("POST", "/v1/requests", submission(name, chunks=1))
        await world.ask("POST", f"/v1/requests/{name}/chunks/0/done", {"attempt": 1})
        small = (written[0], kept())
        assert small[0] <= 2_000
        assert small[1] <= 1_300
        name = "query-0123456789.p13"
        await world.ask("POST", "/v1/requests", submission(name, chunks=101))
        view = await world.ask("GET", f"/v1/requests/{name}")
        done = 0
        while view["state"] != "finished":
            for go in view["go"]:
                await world.ask("POST", f"/v1/requests/{name}/chunks/{go['chunk']}/done", {"attempt": go["attempt"]})
                done += 1
            view = await world.ask("GET", f"/v1/requests/{name}")
        assert done == 101
        assert written[0] - 2 * small[0] <= 100 * 850
        assert kept() - 2 * small[1] <= 100 * 500
        before = (written[0], kept())
        for seq in range(1, 11):
            await world.ask("PUT", f"/v1/units/query-0123456789.12/checkpoints/{seq}", checkpoint(seq))
        assert written[0] - before[0] <= 10 * 320
        assert kept() - before[1] <= 10 * 280

    in_a_world(test)
