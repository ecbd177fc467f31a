"""Takeovers of the home of epochs: what the next home reads, and what is said of queries meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, cast

import pytest
import trio

from logstore.base.metadata import schema
from logstore.base.metadata.interface import MetadataStore
from logstore.cluster.epochs import epochs_home
from logstore.cluster.epochs.epochs_home import EpochsLedger
from logstore.cluster.epochs.replicated_ledger import ReplicatedLedger
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.cluster.streams.topics import EPOCHS_TOPIC
from logstore.errors import CairnError, TryAgain
from logstore.format.epoch_api import EPOCH_COMMIT, EpochCommitReply
from logstore.format.operator_api import (
    DESCRIBE_QUERIES,
    DescribeQueriesRequest,
    QueriesReply,
    decode_reply,
    encode_request,
)
from logstore.kafka.budgets import AnswerBudget
from tests.cluster.epochs_world import EpochHost, EpochsWorld, epochs_world, groups_in
from tests.cluster.late_watches import LateWatches
from tests.cluster.test_epoch_trims import stage_for_left
from tests.cluster.test_epochs import PARTITIONS, in_virtual_time, isolated, run_random
from tests.kafka.node import CALLER

SMALL_BYTES: Final = 16 << 10


def run(story: Callable[[EpochsWorld], Awaitable[None]], limit_s: float = 200.0) -> None:
    """A story of three hosts."""

    async def main() -> None:
        async with epochs_world("a", "b", "c", partitions=PARTITIONS) as world:
            await story(world)

    in_virtual_time(main, limit_s)


# ---- what is read


def test_a_takeover_reads_what_lives_and_not_what_was_staged_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query stages a record and stops, others fill the topic of epochs behind it, and the home is lost: the next one
    reads four times what lives, or `TIDY_BYTES`, and what was put while that was written. The record is there all the
    same, and is committed.
    """
    monkeypatch.setattr(epochs_home, "TIDY_BYTES", SMALL_BYTES)
    load, found = ReplicatedLedger.load, list[tuple[int, int]]()

    async def noted(self: ReplicatedLedger, reads: ChunkReads, offset: int) -> None:
        await load(self, reads, offset)
        if isinstance(self, EpochsLedger):
            found.append((self.span_bytes, self.limit_bytes))

    monkeypatch.setattr(ReplicatedLedger, "load", noted)

    async def story(world: EpochsWorld) -> None:
        commit = await stage_for_left(world)
        for number in range(40):
            await world.epoch(number, PARTITIONS, records=100)
        home = await world.home()
        stream = world.hosts[home].topics.topics[EPOCHS_TOPIC].partitions[0]
        behind_bytes = stream.size_bytes
        assert stream.log_start_offset < 5, "the record holds the stream"
        assert behind_bytes > 20 * SMALL_BYTES
        await world.kill(home)
        await world.home()
        span_bytes, limit_bytes = found[-1]
        assert limit_bytes == SMALL_BYTES
        assert span_bytes < 2 * limit_bytes < behind_bytes / 10
        await world.check(40, PARTITIONS, records=100)
        reply = await world.ask(commit, EPOCH_COMMIT)
        assert isinstance(reply, EpochCommitReply)
        assert groups_in(await world._batches(0))[-1] == (5, [b"left"])

    run(story)


@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 40), marks=pytest.mark.slow)], ids=["a seed", "many seeds"]
)
def test_random_histories_of_homes_that_tidy(monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    """Entries are written anew, and staged output is named, all the time, while hosts are lost, come back and are cut
    off: every epoch is in every stream once, whole and in order.
    """
    monkeypatch.setattr(epochs_home, "TIDY_BYTES", 1500)
    tidy, tidied = ReplicatedLedger.tidy, list[int]()

    async def counted(self: ReplicatedLedger, settled: object) -> object:
        found = await tidy(self, settled)  # type: ignore[arg-type]
        tidied.append(found.named_offset)
        return found

    monkeypatch.setattr(ReplicatedLedger, "tidy", counted)
    for seed in seeds:
        tidied.clear()
        run_random(seed, has_deletions=bool(seed % 2))
        assert len(tidied) > 8


# ---- what is said of queries


async def queries(host: EpochHost) -> QueriesReply | CairnError:
    """The queries, as a host says."""
    request = DescribeQueriesRequest()
    frame = b"".join(encode_request(request, correlation_id=1))
    body = memoryview(frame)[len(frame) - len(b'\0\0\0\0{"after":""}') :]
    answer, _ = await host.routing.handle(DESCRIBE_QUERIES, body, cast(AnswerBudget, None), CALLER)
    _, reply = decode_reply(DESCRIBE_QUERIES, bytes(4) + b"".join(answer))
    assert isinstance(reply, QueriesReply | CairnError)
    return reply


def last_epoch(reply: QueriesReply | CairnError) -> int | None:
    """Of the sole query."""
    assert isinstance(reply, QueriesReply), reply
    (query,) = reply.queries
    return query.last_epoch


def test_a_home_that_is_cut_off_says_nothing_old_of_queries() -> None:
    """Another host has committed an epoch since: who asks the old home is told to ask again, or the truth."""

    async def story(world: EpochsWorld) -> None:
        await world.epoch(0, PARTITIONS)
        home = await world.home()
        old = world.hosts[home]
        assert last_epoch(await queries(old)) == 0
        await isolated(world, home)
        del world.hosts[home]
        await world.epoch(1, PARTITIONS)
        world.hosts[home] = old
        assert old.home.epochs is not None, "it does not know"
        assert isinstance(await queries(old), TryAgain)
        world.cluster.metadata.heal(home)
        assert not isinstance(reply := await queries(old), QueriesReply) or last_epoch(reply) == 1
        world.cluster.network.heal()
        assert last_epoch(await queries(old)) == 1

    run(story)


def test_a_host_that_has_not_heard_of_epochs_does_not_say_that_there_are_none() -> None:
    """It hears of no new topic: who asks it is told to ask again, once there are epochs. Before, there are none, and
    nobody makes a topic for who only looks.
    """

    async def story(world: EpochsWorld) -> None:
        cluster = world.cluster
        late = cast(MetadataStore, LateWatches(cluster.metadata.store("d"), (schema.TOPICS,)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster, "_store", lambda name: late)
            await world.start("d")
        asked = world.hosts.pop("d")
        reply = await queries(asked)
        assert isinstance(reply, QueriesReply)
        assert not reply.queries
        assert EPOCHS_TOPIC not in world.hosts["a"].topics.topics
        await world.epoch(0, PARTITIONS)
        assert isinstance(await queries(asked), TryAgain)
        cluster.metadata.cut_off("d")
        assert isinstance(await queries(asked), TryAgain)
        assert last_epoch(await queries(world.hosts["a"])) == 0

    run(story)


def test_queries_are_told_where_the_topic_of_epochs_takes_nothing() -> None:
    """An operator looks at them because of that: the metadata store says that the home is the home."""

    async def story(world: EpochsWorld) -> None:
        await world.epoch(0, PARTITIONS)
        home = await world.home()
        for other in world.hosts:
            if other != home:
                world.cluster.network.cut(home, other)
        with trio.fail_after(1.0):
            assert last_epoch(await queries(world.hosts[home])) == 0

    run(story)


def test_queries_are_told_while_the_metadata_store_is_away() -> None:
    """The home's entries are acknowledged, so it is the home."""

    async def story(world: EpochsWorld) -> None:
        await world.epoch(0, PARTITIONS)
        home = await world.home()
        world.cluster.metadata.cut_off(home)
        with trio.fail_after(5.0):
            assert last_epoch(await queries(world.hosts[home])) == 0

    run(story)
