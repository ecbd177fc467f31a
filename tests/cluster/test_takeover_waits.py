"""Takeovers that wait for a chunk that nobody can read: they are shown, end by themselves when the chunk is back, and
go on without it when an operator says so. Hosts in memory, in virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio

from logstore.base.metadata import schema
from logstore.base.metadata.interface import Committed, ConditionFailed, Page, Reading, Transaction
from logstore.cluster.streams.takeover_waits import TakeoverWaits
from logstore.cluster.streams.wait_notes import WaitNotes
from logstore.cluster.survey import wait_summary
from logstore.commands.describe_topic import wait_text, wait_values
from logstore.errors import CorruptChunk, NothingLost, UnknownTopicOrPartition
from logstore.format.host_summaries import PlacesReply
from logstore.format.operator_api import (
    DescribePlacesRequest,
    ForgetProducersRequest,
    ProducersForgotten,
)
from logstore.format.tiered_chunk import INDEX_SUFFIX
from logstore.format.topic_partition import TopicPartition
from tests.cluster.lost_chunks import (
    SURELY_S,
    Damage,
    any_notes,
    asked,
    remove,
    shown,
    waiting,
)
from tests.cluster.test_tier_takeovers import HOSTS, leave_last_chunk_to_the_tier, lose_leader, produce
from tests.cluster.tier_world import TOPIC, TierWorld, in_world
from tests.support.limits import PATIENCE_S


async def is_over(world: TierWorld) -> None:
    """Wait until no host shows a wait."""
    with trio.fail_after(PATIENCE_S):
        while await shown(world) is not None:  # noqa: ASYNC110  time is virtual
            await trio.sleep(0.5)


async def owner_of(world: TierWorld) -> str:
    """The host that has claimed the stream."""
    stream = next(iter(world.hosts.values())).topics.topics[TOPIC].partitions[0].stream
    while True:
        owners = [name for name, life in world.hosts.items() if life.running.host.owns(stream)]
        if owners:
            return owners[0]
        await trio.sleep(0.1)


def test_a_wait_for_a_tier_that_is_silent_is_shown() -> None:
    """Each try lasts until the last of the chunk's three DataNodes was silent for 30 s; the waits of all tries count as
    one, and are shown, so that an operator can end it.
    """

    async def test(world: TierWorld) -> None:
        await leave_last_chunk_to_the_tier(world)
        world.silence_s = 90.0
        world.freeze()
        await lose_leader(world)
        with trio.fail_after(4 * world.silence_s):
            while (wait := await shown(world)) is None:  # noqa: ASYNC110  time is virtual
                await trio.sleep(1)
        assert "no answer in 90 s" in wait.error
        world.thaw()
        await is_over(world)
        await world.wait_leader()

    in_world(test, *HOSTS)


def test_a_wait_is_shown_and_ends_when_the_chunk_is_back() -> None:
    """Each host shows what is waited for, and since when: stream, chunk, object, reason. The next owner waits for it as
    well. When the object is as it was, the stream goes on with all that producers have written, and nothing is shown.
    """

    async def test(world: TierWorld) -> None:
        async with waiting(world) as (damage, wait):
            last = (await world.chunks())[-2]
            assert last.end is not None
            assert (wait.chunk, wait.first, wait.end) == (last.epoch, 0, last.end.next_offset)
            assert (wait.lost, wait.forgotten, wait.host) == (True, False, await owner_of(world))
            assert damage.key.startswith(wait.object + "/")
            assert damage.key in wait.error
            assert [await notes.names() for notes in any_notes(world)] == [(f"{TOPIC}-0",)] * len(world.hosts)
            text = wait_text(TopicPartition(TOPIC, 0), wait_summary(wait))
            for said in (wait.object, wait.error, f"cairn topics forget-producers {TOPIC}:0"):
                assert said in text
            assert wait_values(wait_summary(wait))["last"] == wait.end - 1
            event = next(fields for name, fields in world.cluster.reports.events if name == "producers_not_read")
            assert (event["stream"], event["chunk"], event["object"]) == (f"{TOPIC}-0", last.epoch, wait.object)
            await world.lose(wait.host)
            await world.bring_back()
            await trio.sleep(SURELY_S)
            other = await shown(world)
            assert other is not None
            assert (other.host, other.start) != (wait.host, wait.start)
            damage.mend()
            with trio.fail_after(PATIENCE_S):
                assert (await produce(world, 2)).duplicate
            await is_over(world)

    in_world(test, *HOSTS)


def test_a_stream_goes_on_without_a_lost_chunk_if_an_operator_says_so() -> None:
    """Its records fail as before, with their offsets; a producer begins anew with whatever sequence, and from then on
    as ever. Owners that come later go on as well. Nothing is left of it when the chunk is back.
    """

    async def test(world: TierWorld) -> None:
        async with waiting(world, is_missing=True) as (_, wait):
            places = await asked(world, DescribePlacesRequest(TOPIC))
            assert isinstance(places, PlacesReply)
            assert [place.waits for place in places.places] == [(wait_summary(wait),)]
            assert not places.places[0].is_led
            for _ in range(2):  # once more is no harm
                forgotten = await asked(world, ForgetProducersRequest(TOPIC, 0, wait.chunk))
                assert forgotten == ProducersForgotten(wait_summary(wait))
            with trio.fail_after(PATIENCE_S):
                await world.wait_leader()
            assert await shown(world) is None
            await lose_leader(world)
            with trio.fail_after(PATIENCE_S):
                life, stream = await world.wait_leader()
            assert world.cluster.reports.names().count("producers_forgotten") >= 2
            assert not (await produce(world, 7)).duplicate
            assert (await produce(world, 7)).duplicate
            with pytest.raises(CorruptChunk, match="missing") as failed:
                await life.reads.read(stream, 0, 4_000)
            assert (failed.value.first_offset, failed.value.last_offset) == (wait.first, wait.end - 1)
            await trio.sleep(1)  # until members have heard what is acknowledged
            assert (await life.reads.read(stream, wait.end, 4_000)).next_offset == stream.high_watermark
            await lose_leader(world)
            assert (await produce(world, 7)).duplicate, "the next chunk says who has written"
            with pytest.raises(NothingLost, match="nothing was changed"):
                await asked(world, ForgetProducersRequest(TOPIC, 0, wait.chunk))

    in_world(test, *HOSTS)


def test_what_may_come_back_is_not_forgotten_by_accident() -> None:
    """The tier has the chunk damaged, and a host is away that may have it: that has to be said. A stream that waits for
    nothing is refused, and so is one that is not there.
    """

    async def test(world: TierWorld) -> None:
        async with waiting(world, is_removed=False) as (_, wait):
            assert not wait.lost
            notes = any_notes(world)[0]
            with pytest.raises(NothingLost, match=r"0 to 2, which may come back: .* say --even-if-away"):
                await notes.forget(TOPIC, 0, wait.chunk, even_if_away=False, repeat_epochs=True)
            with pytest.raises(NothingLost, match="for the chunk of epoch 1234 because"):
                await notes.forget(TOPIC, 0, 1234, even_if_away=True, repeat_epochs=True)
            for partition in (1, -1):
                with pytest.raises(UnknownTopicOrPartition):
                    await notes.forget(TOPIC, partition, wait.chunk, even_if_away=True, repeat_epochs=False)
            assert world.leader() is None
            await notes.forget(TOPIC, 0, wait.chunk, even_if_away=True, repeat_epochs=False)
            with trio.fail_after(PATIENCE_S):
                assert not (await produce(world, 5)).duplicate

    in_world(test, *HOSTS)


def test_a_stream_that_is_led_forgets_nothing() -> None:
    """Nothing is lost: an operator is told so, and producers are known as before."""

    async def test(world: TierWorld) -> None:
        await world.create()
        await produce(world, 0)
        for chunk in await world.chunks():
            with pytest.raises(NothingLost, match="nothing was changed"):
                await any_notes(world)[0].forget(TOPIC, 0, chunk.epoch, even_if_away=True, repeat_epochs=True)
        await lose_leader(world)
        assert (await produce(world, 0)).duplicate
        assert await shown(world) is None

    in_world(test, *HOSTS)


def test_a_wait_that_ends_because_all_have_expired_is_shown_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is led: operators are not told that it waits, and there is nothing to forget."""

    async def test(world: TierWorld) -> None:
        async with waiting(world) as (_, wait):
            monkeypatch.setattr(TakeoverWaits, "_is_expired", lambda self, chunk: True)  # a day later
            with trio.fail_after(PATIENCE_S):
                await world.wait_leader()
            assert "producers_expired" in world.cluster.reports.names()
            await trio.sleep(5)
            assert await shown(world) is None
            with pytest.raises(NothingLost, match="nothing was changed"):
                await any_notes(world)[0].forget(TOPIC, 0, wait.chunk, even_if_away=True, repeat_epochs=False)

    in_world(test, *HOSTS)


def test_an_operators_word_is_not_written_over() -> None:
    """It is said while the host that waits asks for it, has not found it yet, and says anew what it waits for."""

    async def test(world: TierWorld) -> None:
        async with waiting(world, is_removed=False) as (_, wait):
            waits = world.hosts[wait.host].waits
            store, forget = waits._metadata, any_notes(world)[0].forget

            class Between:
                """The word comes between two looks at the entry."""

                is_said = False

                async def get(self, key: str) -> Reading:
                    found = await store.get(key)
                    if key.startswith(schema.WAITS) and not self.is_said:
                        self.is_said = True
                        for each in waits._waiting.values():
                            each[wait.chunk].noted = None  # as when an answer was lost
                        await forget(TOPIC, 0, wait.chunk, even_if_away=True, repeat_epochs=False)
                    return found

                async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
                    return await store.commit(transaction)

            waits._metadata = cast(Any, Between())
            with trio.fail_after(PATIENCE_S):
                assert not (await produce(world, 5)).duplicate

    in_world(test, *HOSTS)


class SlowStore:
    """A metadata store that does something before a transaction is made."""

    def __init__(self, store: Any, before: Callable[[], Awaitable[None]]) -> None:
        self._store, self._before = store, before

    async def get(self, key: str) -> Reading:
        return cast(Reading, await self._store.get(key))

    async def page(self, prefix: str, **more: Any) -> Page:
        return cast(Page, await self._store.page(prefix, **more))

    async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        await self._before()
        return cast(Committed | ConditionFailed, await self._store.commit(transaction))


def test_a_takeover_that_goes_on_meanwhile_is_not_disturbed() -> None:
    """Between an operator's look and the change the chunk comes back: the change is refused, producers are known."""

    async def test(world: TierWorld) -> None:
        async with waiting(world) as (damage, wait):

            async def come_back() -> None:
                damage.mend()
                await world.wait_leader()
                await is_over(world)

            running = next(iter(world.hosts.values())).running
            notes = WaitNotes(cast(Any, SlowStore(running.store, come_back)), running.view)
            with pytest.raises(NothingLost), trio.fail_after(PATIENCE_S):
                await notes.forget(TOPIC, 0, wait.chunk, even_if_away=True, repeat_epochs=True)
            assert (await produce(world, 2)).duplicate
            assert "producers_forgotten" not in world.cluster.reports.names()

    in_world(test, *HOSTS)


def test_a_takeover_needs_no_index_of_the_chunk() -> None:
    """The batches alone say who has written: they are read from their beginning, as their sum is known."""

    async def test(world: TierWorld) -> None:
        await remove(world, await leave_last_chunk_to_the_tier(world))
        check_named, world.check_named = world.check_named, trio.lowlevel.checkpoint  # type: ignore[method-assign]
        damage = Damage(world, INDEX_SUFFIX, is_missing=True)
        await lose_leader(world)
        with trio.fail_after(PATIENCE_S):
            assert (await produce(world, 2)).duplicate
        damage.mend()
        world.check_named = check_named  # type: ignore[method-assign]
        await world.check_all()

    in_world(test, *HOSTS)
