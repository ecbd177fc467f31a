"""The copies of the cluster's own topics: they follow the hosts that the cluster has, not those that live just then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import cast

import pytest
import trio
import trio.testing

from logstore.base.metadata import schema
from logstore.base.metadata.interface import Delete, MetadataStore, Transaction
from logstore.base.metadata.sqlite import open_sqlite
from logstore.cluster.members.election import min_copies
from logstore.cluster.streams import growing_topics
from logstore.cluster.streams.own_topics import grown, own_topic
from logstore.cluster.streams.topics import EPOCHS_TOPIC, GROUPS_TOPIC
from logstore.errors import InvalidConfig, InvalidTopic
from logstore.events import TOPIC_ALTERED
from tests.cluster.test_topics import (
    AwayForAMoment,
    Host,
    a_disk_starts,
    asks_for,
    host_comes,
    settled,
    stored_topic,
    two_hosts,
)
from tests.support.limits import PATIENCE_S

ID = "a" * 32


async def made(host: Host, name: str = GROUPS_TOPIC) -> tuple[int, int]:
    """The copies of a topic of the cluster's own, and how many of these it needs, once it is there; a host asks for
    the topic.
    """
    assert host.front.internal_topic(name) is None
    with trio.fail_after(PATIENCE_S):
        while (topic := host.front.topics.get(name)) is None:
            await host.front.changed.wait()
    return topic.replicas, topic.config.min_insync_replicas


@pytest.mark.parametrize(
    ("factor", "numbers"),
    [
        (1, [(1, 1), (1, 1), (2, 1), (2, 1), (2, 1)]),
        (2, [(2, 1), (2, 1), (2, 1), (2, 1), (2, 1)]),
        (3, [(3, 1), (3, 1), (3, 2), (3, 2), (3, 2)]),
        (5, [(5, 1), (5, 1), (5, 2), (5, 2), (5, 3)]),
    ],
)
def test_the_numbers_are_those_of_the_hosts_whatever_the_way_there(factor: int, numbers: list[tuple[int, int]]) -> None:
    """A topic that is made in a cluster of so many hosts, from one to five, has the numbers of a topic that was made
    in a smaller cluster and grew: in one step, and host by host. With a factor that the cluster has hosts for, no copy
    is missing, and none when one host of several leaves.
    """
    for hosts, (copies, least) in enumerate(numbers, 1):
        new = own_topic(ID, hosts, factor)
        assert (new.replicas, min_copies(new), new.hosts) == (copies, least, 0)
        topic = own_topic(ID, 1, factor)
        assert grown(topic, hosts, factor) == new
        for number in range(2, hosts + 1):
            topic = grown(topic, number, factor)
        assert topic == new
        for fewer in range(1, hosts):
            assert grown(new, fewer, factor) == new
        if factor < 3:
            assert copies <= max(factor, hosts - 1)


@pytest.mark.parametrize("live", [1, 2])
async def test_a_cluster_of_two_hosts_needs_one_copy(tmp_path: Path, live: int) -> None:
    """Whether one host or both live when its own topics are made."""
    async with two_hosts(tmp_path, members=live) as (one, other, store):
        for number in range(2):
            await a_disk_starts(store, f"h{number}")
        for name in (GROUPS_TOPIC, EPOCHS_TOPIC):
            assert await made(one, name) == (3, 1)
            await asks_for(other, name, 1)


async def test_hosts_that_are_away_count(tmp_path: Path) -> None:
    """Of three hosts one lives when a client looks for a coordinator, or the others are not in its view yet: no commit
    is acknowledged by one disk.
    """
    async with two_hosts(tmp_path, members=1) as (one, _, store):
        for number in range(3):
            await a_disk_starts(store, f"h{number}")
        assert await made(one) == (3, 2)


async def test_own_topics_need_a_second_copy_when_a_third_host_comes(tmp_path: Path) -> None:
    """Whether or not a client looks for a coordinator then: all may have found it before. The number stays when a host
    is removed; an operator is told of the change.
    """
    async with two_hosts(tmp_path, members=1) as (one, other, store):
        await a_disk_starts(store, "h0")
        assert await made(one) == (3, 1)
        for number, copies in ((1, 1), (2, 2)):
            await a_disk_starts(store, f"h{number}")
            revision = await host_comes(store, number)
            for host in (one, other):
                await host.view.members_reached(revision)
                await trio.testing.wait_all_tasks_blocked()
                await asks_for(host, GROUPS_TOPIC, copies)
        told = {fields["changes"] for host in (one, other) for fields in host.reports.of(TOPIC_ALTERED)}
        assert told == {"min.insync.replicas=2"}
        before = (await store.get(schema.topic_key(GROUPS_TOPIC))).entry
        removed = (Delete(schema.member_key("h2")), Delete(schema.disk_key("disk-h2")))
        outcome = await store.commit(Transaction((), removed))
        await one.view.members_reached(outcome.revision)
        assert one.front.groups_topic() == other.front.groups_topic()
        await settled(one.front.create_topic("later", 1, {}, 1))  # behind whatever the lines above began
        assert (await store.get(schema.topic_key(GROUPS_TOPIC))).entry == before


async def test_a_small_factor_is_that_of_own_topics_too(tmp_path: Path) -> None:
    """A cluster of two hosts with two copies lacks none; with a third host it still has two, so that each of the three
    can be drained. With one copy there are two as soon as three hosts are there.
    """
    for factor, numbers in ((2, [(2, 1), (2, 1), (2, 1)]), (1, [(1, 1), (1, 1), (2, 1)])):
        directory = tmp_path / f"{factor}"
        directory.mkdir()
        async with two_hosts(directory, members=1, factor=factor) as (one, _, store):
            assert await made(one) == numbers[0]
            for number in (1, 2):
                revision = await host_comes(store, number)
                await one.view.members_reached(revision)
                await trio.testing.wait_all_tasks_blocked()
                with trio.fail_after(PATIENCE_S):
                    while one.front.topic(GROUPS_TOPIC).replicas != numbers[number][0]:
                        await one.front.changed.wait()
                assert one.front.topic(GROUPS_TOPIC).config.min_insync_replicas == numbers[number][1]


async def test_what_an_earlier_version_has_made_is_not_made_less_safe(tmp_path: Path) -> None:
    """It counted the hosts that lived, and never made fewer than three copies: two copies that a topic needs stay two
    in a cluster of two hosts, whatever the factor. A topic that needs one copy needs two in a cluster of three,
    although only one of these lives when the new version comes.
    """
    for needed, hosts, factor, numbers in ((2, 2, 3, (3, 2)), (2, 2, 2, (3, 2)), (1, 2, 3, (3, 1)), (1, 3, 2, (3, 2))):
        directory = tmp_path / f"{needed}{hosts}{factor}"
        directory.mkdir()
        async with two_hosts(directory, members=1, factor=factor) as (one, _, store):
            for number in range(hosts):
                await a_disk_starts(store, f"h{number}")
            topic = own_topic(ID, 1, 3)
            topic = replace(topic, settings={**topic.settings, "min.insync.replicas": str(needed)})
            await store.commit(schema.create_topic(GROUPS_TOPIC, topic))
            await asks_for(one, GROUPS_TOPIC, numbers[1])
            await trio.testing.wait_all_tasks_blocked()
            found = await stored_topic(store, GROUPS_TOPIC)
            assert (found.replicas, min_copies(found)) == numbers


async def test_an_operator_lowers_what_an_earlier_version_has_made(tmp_path: Path) -> None:
    """In a cluster of two hosts two required copies become one when an operator says so, and stay one; with a third
    host they are two again, and cannot be one. No other setting changes.
    """
    async with two_hosts(tmp_path, members=2) as (one, other, store):
        topic = own_topic(ID, 1, 3)
        topic = replace(topic, settings={**topic.settings, "min.insync.replicas": "2"})
        await a_disk_starts(store, "h0")
        await a_disk_starts(store, "h1")
        await store.commit(schema.create_topic(GROUPS_TOPIC, topic))
        await asks_for(other, GROUPS_TOPIC, 2)
        await settled(one.front.alter_topic(GROUPS_TOPIC, {"min.insync.replicas": "1"}))
        await asks_for(other, GROUPS_TOPIC, 1)
        await trio.testing.wait_all_tasks_blocked()
        lowered = {**topic.settings, "min.insync.replicas": "1"}
        assert (await stored_topic(store, GROUPS_TOPIC)) == replace(topic, settings=lowered)
        assert {fields["changes"] for fields in one.reports.of(TOPIC_ALTERED)} == {"min.insync.replicas=1"}
        await a_disk_starts(store, "h2")
        await host_comes(store, 2)
        for host in (one, other):
            await asks_for(host, GROUPS_TOPIC, 2)
        with pytest.raises(InvalidConfig, match=r"min.insync.replicas=1: must be from 2 to 3 .* has 3 hosts"):
            await settled(one.front.alter_topic(GROUPS_TOPIC, {"min.insync.replicas": "1"}))
        await settled(one.front.alter_topic(GROUPS_TOPIC, {"min.insync.replicas": "3"}))
        await asks_for(other, GROUPS_TOPIC, 3)
        await settled(one.front.alter_topic(GROUPS_TOPIC, {"min.insync.replicas": None}))
        await asks_for(other, GROUPS_TOPIC, 2)
        for changes in ({"retention.ms": "1"}, {"min.insync.replicas": "2", "retention.ms": "1"}, {}):
            with pytest.raises(InvalidTopic, match="internal to the cluster"):
                await settled(one.front.alter_topic(GROUPS_TOPIC, changes))


async def test_a_host_of_an_earlier_version_and_a_new_one_agree(tmp_path: Path) -> None:
    """The earlier one asks for two members where it sees three hosts, also of a topic that is to have two copies: the
    new one leaves that, and does not write the entry again.
    """
    async with two_hosts(tmp_path, factor=2) as (one, other, store):
        assert await made(one) == (2, 1)
        topic = await stored_topic(store, GROUPS_TOPIC)
        asked = replace(topic, settings={**topic.settings, "min.insync.replicas": "2"})
        await one.topics.alter(GROUPS_TOPIC, topic.topic_id, lambda _: asked)
        for host in (one, other):
            await asks_for(host, GROUPS_TOPIC, 2)
        await host_comes(store, 3)
        await trio.testing.wait_all_tasks_blocked()
        assert await stored_topic(store, GROUPS_TOPIC) == asked


async def test_a_topic_that_was_made_behind_the_coming_of_hosts_needs_a_second_copy(tmp_path: Path) -> None:
    """Its maker counted the hosts before they came: the others see more, and have nothing to wait for."""
    async with two_hosts(tmp_path) as (one, _, store):
        await store.commit(schema.create_topic(GROUPS_TOPIC, own_topic(ID, 1, 3)))
        await asks_for(one, GROUPS_TOPIC, 2)


async def test_a_store_that_is_away_when_hosts_come_leaves_no_own_topic_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second copy is needed when the store answers again, although no member changes behind that. While it is away
    no topic is made, and the next client that asks has it made.
    """
    monkeypatch.setattr(growing_topics, "AGAIN_S", 0.01)
    async with open_sqlite(tmp_path / "metadata.db", Random(0)) as store, trio.open_nursery() as nursery:
        away = AwayForAMoment(store)
        host = Host(cast(MetadataStore, away), nursery, iter(range(1, 9)))
        nursery.start_soon(host.view.run)
        await host_comes(store, 0)
        await host.view.complete()
        away.left = 1
        assert host.front.groups_topic() is None
        while host.front.creation(GROUPS_TOPIC) is not None:
            await trio.lowlevel.checkpoint()
        assert (host.front.topics, away.left) == ({}, 0)
        assert await made(host) == (3, 1)
        away.left = 2
        for number in (1, 2):
            await host_comes(store, number)
        await asks_for(host, GROUPS_TOPIC, 2)
        assert not away.left
        nursery.cancel_scope.cancel()
