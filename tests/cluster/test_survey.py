"""What a cluster says of its hosts: who lives, who owns and holds what, and what is missing after a loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from logstore.base.metadata import schema
from logstore.base.metadata.interface import Put, Transaction
from logstore.base.racks import HostPlace
from logstore.cluster.members.departures import Departures
from logstore.cluster.survey import REUSE_S, Survey
from logstore.commands.hosts import gone_host, progress
from logstore.errors import UnknownTopicOrPartition
from logstore.format.host_summaries import (
    PLACES_PER_REPLY,
    HostSummary,
    get_hosts,
    get_places,
    hosts_fields,
    places_fields,
)
from logstore.testing.clock import ManualClock
from tests.cluster.memory import LIMITS, MemoryCluster, RunningHost, simulated


def survey_of(cluster: MemoryCluster, running: RunningHost, clock: ManualClock) -> Survey:
    """The survey of a host."""

    def is_reachable(host: str) -> bool:
        return cluster.network.passes(running.host.name, host)

    return Survey(running.host, running.store, is_reachable, clock)


async def hosts_of(survey: Survey, clock: ManualClock) -> dict[str, HostSummary]:
    """What it says of each host now."""
    clock.advance(int(REUSE_S * 2000))
    return {host.host: host for host in (await survey.hosts()).hosts}


def test_hosts_before_and_after_a_loss() -> None:
    """Streams and chunks are counted by host; a host that is gone is shown with the time, its copies as missing; once
    they are made anew nothing is missing.
    """

    async def test(cluster: MemoryCluster) -> None:
        clock = ManualClock()
        streams = await cluster.create_topic("t", partitions=6)
        for stream in streams:
            for _ in range(4):
                await cluster.append(stream, b"x" * 600)
        await cluster.at_rest()
        survey = survey_of(cluster, cluster.hosts["a"], clock)
        hosts = await hosts_of(survey, clock)
        reply = await survey.hosts()
        assert (reply.asked, reply.streams, reply.ownerless, reply.is_complete) == ("a", 6, 0, True)
        assert {name: (host.state, host.node_id, host.rack) for name, host in hosts.items()} == {
            "a": ("alive", 0, ""), "b": ("alive", 1, ""), "c": ("alive", 2, ""),
        }  # fmt: skip
        assert hosts["b"].addresses == ("b:9092",)
        assert hosts["b"].link == "b:9192"
        assert sum(host.streams for host in hosts.values()) == 6
        registered = [(await cluster.owner(stream)).host.registration(stream) for stream in streams]
        chunks = [chunk for registration in registered for chunk in registration.chunks]
        assert len(chunks) > 6  # sealed ones too
        assert reply.chunks == len(chunks)
        assert reply.under_replicated == 0
        for name, host in hosts.items():
            assert host.chunks == sum(any(member.host == name for member in chunk.members) for chunk in chunks)
        cluster.network.cut("a", "b")
        assert (await hosts_of(survey, clock))["b"].state == "unreachable"
        cluster.network.heal()
        gone_ms = clock.wall_ms()
        await cluster.kill("c")
        await cluster.until(lambda: "c" not in cluster.hosts["a"].view.members)
        hosts = await hosts_of(survey, clock)
        reply = await survey.hosts()
        assert hosts["c"].state == "gone"
        assert hosts["c"].gone_ms is not None
        assert hosts["c"].gone_ms >= gone_ms
        assert (hosts["c"].node_id, hosts["c"].streams) == (2, 0)
        assert reply.under_replicated > 0
        await cluster.start("c", node_id=2)
        await trio.sleep(60)
        assert (await hosts_of(survey, clock))["c"].gone_ms is None
        reply = await survey.hosts()
        assert reply.under_replicated == 0
        assert sum(host.missing_copies for host in reply.hosts) == 0

    simulated(test, "a", "b", "c", limits=replace(LIMITS, chunk_bytes=1_000))


def test_a_host_that_was_started_by_mistake_is_shown_until_it_is_removed() -> None:
    """It has joined once, holds nothing, and nobody that is asked has seen it: it counts for `min.insync.replicas` all
    the same, so it is there to be seen, and the command says what to do.
    """

    async def test(cluster: MemoryCluster) -> None:
        await cluster.kill("d")
        clock, host = ManualClock(), cluster.hosts["a"]
        await cluster.until(lambda: "d" not in host.view.members)
        survey = survey_of(cluster, host, clock)
        found = (await hosts_of(survey, clock))["d"]
        assert (found.state, found.chunks, found.gone_ms) == ("gone", 0, None)
        assert "cairn hosts remove d" in gone_host(found)
        await Departures(host.view, host.store).remove("d")
        await trio.sleep(60)
        assert "d" not in await hosts_of(survey, clock)

    simulated(test, "a", "b", "c", "d")


def test_a_drain_that_cannot_end_says_what_it_lacks() -> None:
    """How many hosts, and the domain in which nobody stays; a chunk of which the host is to get a copy counts."""

    async def test(cluster: MemoryCluster) -> None:
        clock = ManualClock()
        (stream,) = await cluster.create_topic("t")
        await cluster.append(stream, b"x")
        for name, rack in (("a", "/z1/r1"), ("b", "/z1/r2"), ("c", "/z2/r3")):
            await cluster.hosts[name].membership.move(HostPlace(rack))
        await Departures(cluster.hosts["a"].view, cluster.hosts["a"].store).drain("c")
        await Departures(cluster.hosts["a"].view, cluster.hosts["a"].store).drain("b")
        survey = survey_of(cluster, cluster.hosts["a"], clock)
        hosts = await hosts_of(survey, clock)
        assert {name: host.missing_hosts for name, host in hosts.items()} == {"a": 0, "b": 2, "c": 2}
        reply = await survey.hosts()
        assert progress(hosts["c"], reply).endswith(
            "1 of the chunks need more copies than there are other hosts: start 2 other hosts; no remaining host is "
            "in /z2, so copies will spread over fewer fault domains"
        )
        assert "no remaining host is in /z1/r2," in progress(hosts["b"], reply)
        assert "remaining" not in progress(replace(hosts["b"], rack="/z1/r1"), reply)
        assert get_hosts(hosts_fields(reply)) == reply

    simulated(test, "a", "b", "c")


def test_places_of_a_topic() -> None:
    """Each partition with owner, address, epoch and the members of its open chunk; those that are away are named."""

    async def test(cluster: MemoryCluster) -> None:
        clock = ManualClock()
        streams = await cluster.create_topic("t", partitions=3)
        for stream in streams:
            await cluster.append(stream, b"x")
        running = cluster.hosts["a"]
        survey = survey_of(cluster, running, clock)
        addresses = {0: "a:1", 1: "b:1", 2: "c:1"}
        reply = await survey.places("t", 0, addresses)
        assert reply.is_complete
        assert [place.partition for place in reply.places] == [0, 1, 2]
        for place, stream in zip(reply.places, streams, strict=True):
            assert place.owner == (await cluster.owner(stream)).host.name
            assert place.address == f"{place.owner}:1"
            assert (sorted(place.replicas), place.away, place.copies) == (["a", "b", "c"], (), 3)
            assert (place.chunks, place.under_replicated) == (1, 0)
            assert (place.live_copies, place.min_copies) == (3, 2)
        assert get_places(places_fields(reply)) == reply
        assert [place.partition for place in (await survey.places("t", 2, addresses)).places] == [2]
        assert (await survey.places("t", PLACES_PER_REPLY, addresses)).places == ()
        single = await cluster.create_topic("single", partitions=30, replicas=1)
        for stream in single:
            await cluster.append(stream, b"x")
        await cluster.kill("c")
        await trio.sleep(10)
        places = (await survey.places("single", 0, addresses)).places
        assert any(place.away for place in places)
        for place in places:
            assert len(place.replicas) == 1
            assert place.away == (("c",) if "c" in place.replicas else ())
            assert place.under_replicated == len(place.away)
            assert (place.live_copies, place.min_copies) == (1 - len(place.away), 1)
        with pytest.raises(UnknownTopicOrPartition, match="'nothing'"):
            await survey.places("nothing", 0, addresses)

    simulated(test, "a", "b", "c")


@pytest.mark.parametrize("is_head", [True, False])
def test_a_damaged_entry_is_shown_for_its_partition(*, is_head: bool) -> None:
    """The head of its registration, or a sealed chunk; the other partitions of the topic have none."""

    async def test(cluster: MemoryCluster) -> None:
        streams = await cluster.create_topic("t", partitions=2)
        for stream in streams:
            for _ in range(4):
                await cluster.append(stream, b"x" * 600)
        await cluster.at_rest()
        running = cluster.hosts["a"]
        survey = survey_of(cluster, running, ManualClock())
        key = f"{schema.STREAMS}{streams[1]}"
        if not is_head:
            key = (await running.store.page(f"{schema.CHUNKS}{streams[1]}/")).entries[0].key
        await running.store.commit(Transaction((), (Put(key, b"{"),)))
        await trio.sleep(1)
        reply = await survey.places("t", 0, {})
        assert [place.is_damaged for place in reply.places] == [False, True]
        assert not reply.is_complete
        assert get_places(places_fields(reply)) == reply

    simulated(test, "a", "b", "c", limits=replace(LIMITS, chunk_bytes=1000))
