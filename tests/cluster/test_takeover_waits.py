"""Takeovers that wait for a chunk that nobody can read: they are shown, end by themselves when the chunk is back, and
go on without it when an operator says so. Hosts in memory, in virtual time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio

from logstore.base.metadata import schema
from logstore.base.metadata.interface import Committed, Conflict, Page, Reading, Transaction
from logstore.cluster.members.departures import Departures
from logstore.cluster.streams import wait_tidying
from logstore.cluster.streams.takeover_waits import GIVEN_UP_S, NOTE_AFTER_S, TakeoverWaits
from logstore.cluster.streams.wait_notes import WaitNotes
from logstore.cluster.survey import Survey, wait_summary
from logstore.commands.describe_topic import wait_text, wait_values
from logstore.epochs.group_order import GroupOrder
from logstore.epochs.ledger_entries import Target
from logstore.errors import CairnError, CorruptChunk, NothingLost, TierUnavailable, UnknownTopicOrPartition
from logstore.format.control import End, decode_control
from logstore.format.epoch_api import decode_request_header
from logstore.format.host_summaries import PlacesReply
from logstore.format.operator_api import (
    DescribePlacesRequest,
    ForgetProducersRequest,
    OperatorReply,
    OperatorRequest,
    ProducersForgotten,
    api_key_of,
    decode_reply,
    encode_request,
)
from logstore.format.records import Record, encode_batch
from logstore.format.tiered_chunk import INDEX_SUFFIX, LOG_SUFFIX
from logstore.format.topic_partition import TopicPartition
from logstore.kafka.api_types import Broker, BrokerSettings
from logstore.kafka.hosts import cluster_apis
from logstore.testing.clock import ManualClock
from tests.cluster.epochs_world import NOW_MS
from tests.cluster.test_tier_takeovers import HOSTS, leave_last_chunk_to_the_tier, lose_leader, produce
from tests.cluster.tier_world import TOPIC, TierWorld, in_world
from tests.kafka.node import CALLER
from tests.support.limits import PATIENCE_S

TIDY_S = 5.0
SURELY_S = 6 * NOTE_AFTER_S
"""Virtual: as long as a wait takes to be shown, whatever was tried before."""


@pytest.fixture
def tidies_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners look every TIDY_S at what is left of waits: hosts that have nothing to do take time, too."""
    monkeypatch.setattr(wait_tidying, "TIDY_S", TIDY_S)


def any_notes(world: TierWorld) -> list[WaitNotes]:
    """What each host shows, and lets operators change."""
    return [WaitNotes(life.running.store, life.running.view) for life in world.hosts.values()]


async def all_shown(world: TierWorld) -> list[schema.Wait]:
    """What waits in partition 0, as each host says."""
    topic_id = next(iter(world.hosts.values())).topics.topics[TOPIC].topic_id.hex
    found = [(await notes.of_topic(topic_id)).get(0, []) for notes in any_notes(world)]
    assert all(each == found[0] for each in found)
    return found[0]


async def shown(world: TierWorld) -> schema.Wait | None:
    """The same, where nothing or one thing waits."""
    found = await all_shown(world)
    assert len(found) <= 1
    return found[0] if found else None


async def asked(world: TierWorld, request: OperatorRequest) -> OperatorReply:
    """What any host answers an operator, as bytes go. Raises the error that is answered."""
    life = next(iter(world.hosts.values()))
    survey = Survey(life.running.host, life.running.store, lambda host: True, ManualClock())
    broker = Broker(cast(Any, None), world.clock, BrokerSettings())
    frame, key = b"".join(encode_request(request, correlation_id=1)), api_key_of(request)
    api = next(api for api in cluster_apis(broker, survey) if api.key == key)
    answer, _ = await api.handle(memoryview(frame)[decode_request_header(frame)[-1] :], cast(Any, None), CALLER)
    _, reply = decode_reply(key, b"\0\0\0\1" + b"".join(answer))
    if isinstance(reply, CairnError):
        raise reply
    return reply


def object_of(world: TierWorld, suffix: str, back: int = 0) -> str:
    """The key of the last chunk's object, or of one before."""
    return sorted(filter(lambda key: key.endswith(suffix), world.keys()))[-1 - back]


class Damage:
    """An object of the last chunk, or of one before, is as it should not be, until it is mended."""

    def __init__(self, world: TierWorld, suffix: str = LOG_SUFFIX, *, is_missing: bool = False, back: int = 0) -> None:
        self._objects, self.key = world.objects, object_of(world, suffix, back)
        self._good = self._objects.get(self.key, 0, 1 << 20)
        self._objects.delete(self.key)
        if not is_missing:
            bad = self._good[:-1] + bytes([self._good[-1] ^ 1])
            self._objects.put(self.key, len(bad), [bad])

    def mend(self) -> None:
        """It is as it was."""
        if self.key in {at.key for at in self._objects.list_keys("")}:
            self._objects.delete(self.key)
        self._objects.put(self.key, len(self._good), [self._good])


def group(world: TierWorld, epoch: int, query: str = "q") -> GroupOrder:
    """An epoch of one record, decided before the stream had anything."""
    topic_id = str(next(iter(world.hosts.values())).topics.topics[TOPIC].topic_id)
    batch = bytes(encode_batch([Record(0, NOW_MS, None, b"%d" % epoch)]))
    return GroupOrder(Target(TOPIC, topic_id, 0, 0), query, epoch, 1, "", ("0:a",), batch, 1)


async def append_epoch(world: TierWorld) -> None:
    """Whoever leads has the first epoch."""
    life, _ = await world.wait_leader()
    await life.appends.append(group(world, 1))


async def ends(world: TierWorld, from_offset: int = 0) -> list[tuple[str, int]]:
    """The epochs that whoever leads finds in the stream, from an offset on, the newest first."""
    life, stream = await world.wait_leader()
    await trio.sleep(1)  # until members have heard what is acknowledged
    found: list[tuple[str, int]] = []

    def take(_: int, batch: bytes) -> None:
        control = decode_control(batch)
        assert isinstance(control, End)
        found.append((control.query, control.epoch))

    await life.engine.find_ends(stream, from_offset, take=take)
    return found


async def retry_until_shown(world: TierWorld, order: GroupOrder, error: type[CairnError]) -> schema.Wait:
    """A home of epochs sends a group again and again, and is refused, until a host shows what it waits for."""
    life, _ = await world.wait_leader()
    with trio.fail_after(PATIENCE_S):
        while (found := await shown(world)) is None:
            with pytest.raises(error):
                await life.appends.append(order)
            await trio.sleep(1)
    return found


async def remove(world: TierWorld, lost: str) -> None:
    """No chunk names a lost host any more."""
    running = next(iter(world.cluster.hosts.values()))
    await world.cluster.until(lambda: lost not in running.view.members)
    departures = Departures(running.view, running.store)
    while await departures.remove(lost):  # noqa: ASYNC110  time is virtual
        await trio.sleep(0.5)


@asynccontextmanager
async def waiting(
    world: TierWorld, *, is_removed: bool = True, is_missing: bool = False
) -> AsyncIterator[tuple[Damage, schema.Wait]]:
    """The last sealed chunk lies in the tier, alone if the host that had it is removed; it is damaged, and a takeover
    waits for it. What the registration names is not checked meanwhile.
    """
    lost = await leave_last_chunk_to_the_tier(world)
    if is_removed:
        await remove(world, lost)
    check_named, world.check_named = world.check_named, trio.lowlevel.checkpoint  # type: ignore[method-assign]
    damage = Damage(world, is_missing=is_missing)
    await lose_leader(world)
    await trio.sleep(SURELY_S)
    assert world.leader() is None
    wait = await shown(world)
    assert wait is not None
    assert counted(world) == 1
    yield damage, wait
    assert counted(world) == 0
    damage.mend()
    world.check_named = check_named  # type: ignore[method-assign]
    await world.check_all()


def counted(world: TierWorld) -> int:
    """What the metric of all hosts says together."""
    return sum(life.waits.count for life in world.hosts.values())


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


@pytest.mark.parametrize("is_back", [False, True])
def test_an_epoch_that_waits_for_a_lost_chunk_when_its_stream_is_led(
    monkeypatch: pytest.MonkeyPatch, is_back: bool
) -> None:
    """All producers have expired meanwhile. The epoch may be in the chunk, so time does not end its wait: it is shown
    as well, and ends when the chunk is back or an operator says so.
    """

    async def test(world: TierWorld) -> None:
        async with waiting(world) as (damage, wait):
            monkeypatch.setattr(TakeoverWaits, "_is_expired", lambda self, chunk: True)  # a day later
            with trio.fail_after(PATIENCE_S):
                life, stream = await world.wait_leader()
            await trio.sleep(5)
            assert await shown(world) is None
            lost, order = (await world.chunks())[-2], group(world, 1)
            error = CorruptChunk(f"{damage.key} is damaged", first_offset=0, last_offset=wait.end - 1)
            with trio.fail_after(PATIENCE_S):
                while await shown(world) is None:
                    assert not await life.waits.may_pass(stream, lost, error, order)
                    await trio.sleep(5)
            found = await shown(world)
            assert found is not None
            assert (found.chunk, found.first, found.end, found.lost) == (lost.epoch, wait.first, wait.end, True)
            assert (found.query, found.epoch) == ("q", 1)
            life.waits.was_read(stream, (await world.chunks())[-1])
            await trio.sleep(5)
            assert await shown(world) == found, "what another search has read is not what is waited for"
            if is_back:
                life.waits.was_read(stream, lost)
                await trio.sleep(5)
                assert await shown(world) is None
                return
            await asked(world, ForgetProducersRequest(TOPIC, 0, lost.epoch))
            for _ in range(2):
                assert await life.waits.may_pass(stream, lost, error, order)
                await trio.sleep(5)

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

                async def commit(self, transaction: Transaction) -> Committed | Conflict:
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

    async def commit(self, transaction: Transaction) -> Committed | Conflict:
        await self._before()
        return cast(Committed | Conflict, await self._store.commit(transaction))


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


@pytest.mark.parametrize("is_back", [False, True])
def test_an_epoch_that_a_chunk_may_have_which_is_away(*, is_back: bool) -> None:
    """The tier is away. That the stream goes on without the chunk says nothing of epochs that it may have: they would
    be there twice, and wait, while producers go on. The wait is shown as what it is. It ends when the tier is back, and
    the epoch is there once; or when an operator says that it may be there twice, and then it is.
    """

    async def test(world: TierWorld) -> None:
        await leave_last_chunk_to_the_tier(world, append_epoch)
        world.is_away, world.held_from = True, 0
        await lose_leader(world)
        await trio.sleep(SURELY_S)
        takeover, notes = await shown(world), any_notes(world)[0]
        assert takeover is not None
        assert not takeover.is_for_epoch
        await notes.forget(TOPIC, 0, takeover.chunk, even_if_away=True, repeat_epochs=False)
        with trio.fail_after(PATIENCE_S):
            life, _ = await world.wait_leader()
        assert await all_shown(world) == []
        wait = await retry_until_shown(world, group(world, 1), TierUnavailable)
        assert (wait.query, wait.epoch, wait.chunk, wait.lost) == ("q", 1, takeover.chunk, False)
        text = wait_text(TopicPartition(TOPIC, 0), wait_summary(wait))
        for said in ("epoch 1 of query q", f"forget-producers {TOPIC}:0 --repeat-epochs"):
            assert said in text
        assert not (await produce(world, 7)).duplicate
        with pytest.raises(NothingLost, match=r"epoch 1 of query 'q' waits in .* say --repeat-epochs"):
            await notes.forget(TOPIC, 0, wait.chunk, even_if_away=True, repeat_epochs=False)
        if not is_back:
            await asked(world, ForgetProducersRequest(TOPIC, 0, wait.chunk, repeat_epochs=True))
            await life.appends.append(group(world, 1))
        world.is_away = False
        await life.appends.append(group(world, 1))
        await trio.sleep(NOTE_AFTER_S)
        assert await all_shown(world) == []
        assert await ends(world) == [("q", 1)] * (1 if is_back else 2)
        assert world.cluster.reports.names().count("epoch_may_repeat") == (0 if is_back else 1)

    in_world(test, *HOSTS)


def test_an_epoch_waits_a_while_for_a_chunk_that_may_come_back() -> None:
    """The operator has said everything at once. A store that is away for less time than a wait takes to be shown makes
    no epoch repeat: at the next owner it is asked anew whether the chunk is away for longer.
    """

    async def test(world: TierWorld) -> None:
        await leave_last_chunk_to_the_tier(world, append_epoch)
        world.is_away, world.held_from = True, 0
        await lose_leader(world)
        await trio.sleep(SURELY_S)
        wait = await shown(world)
        assert wait is not None
        await any_notes(world)[0].forget(TOPIC, 0, wait.chunk, even_if_away=True, repeat_epochs=True)
        with trio.fail_after(PATIENCE_S):
            life, _ = await world.wait_leader()
        with pytest.raises(TierUnavailable):
            await life.appends.append(group(world, 1))
        world.is_away = False
        await life.appends.append(group(world, 1))
        assert await ends(world) == [("q", 1)]

    in_world(test, *HOSTS)


@pytest.mark.usefixtures("tidies_often")
def test_a_stream_with_two_lost_chunks() -> None:
    """The takeover needs the last one, and an epoch both. Each is shown when it is waited for, and what an operator has
    said of the one is not undone by the wait for the other: the epoch goes on when both were said, as do later owners.
    """

    async def test(world: TierWorld) -> None:
        await remove(world, await leave_last_chunk_to_the_tier(world, chunks=2))
        world.check_named = trio.lowlevel.checkpoint  # type: ignore[method-assign]
        world.held_from = 0
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX):  # the index alone would say that the chunk has no epoch
            for back in (1, 0):
                Damage(world, suffix, is_missing=True, back=back)
        first, last = (await world.chunks())[:2]
        await lose_leader(world)
        await trio.sleep(SURELY_S)
        wait = await shown(world)
        assert wait is not None
        assert wait.chunk == last.epoch
        await asked(world, ForgetProducersRequest(TOPIC, 0, last.epoch))
        with trio.fail_after(PATIENCE_S):
            await world.wait_leader()
        wait = await retry_until_shown(world, group(world, 1), CorruptChunk)
        assert (wait.chunk, wait.query, wait.lost) == (first.epoch, "q", True)
        await lose_leader(world)
        with trio.fail_after(SURELY_S):
            life, stream = await world.wait_leader()
        await retry_until_shown(world, group(world, 1), CorruptChunk)
        await asked(world, ForgetProducersRequest(TOPIC, 0, first.epoch))
        await life.appends.append(group(world, 1))
        assert await ends(world, last.end.next_offset if last.end is not None else 0) == [("q", 1)]
        assert world.cluster.reports.names().count("epoch_may_repeat") >= 2

        world.held_from = 1 << 62  # the epoch is over, and nobody needs the chunks
        await trio.sleep(2 * TIDY_S)
        assert await said(world) == []
        lost = CorruptChunk("missing", first_offset=0, last_offset=5)
        for _ in range(3):
            for chunk in (first, last):
                assert not await life.waits.may_pass(stream, chunk, lost, group(world, 2))
            await trio.sleep(NOTE_AFTER_S)
        assert [wait.chunk for wait in await all_shown(world)] == [first.epoch, last.epoch], "both are shown"
        assert counted(world) == 1
        await trio.sleep(GIVEN_UP_S)
        assert counted(world) == 0, "what nobody tries any more waits no more"
        await trio.sleep(2 * TIDY_S)
        assert await said(world) == []

    in_world(test, *HOSTS)


async def said(world: TierWorld) -> list[int]:
    """The chunks of which the metadata store has a wait or an operator's word."""
    page = await next(iter(world.hosts.values())).running.store.page(schema.WAITS)
    return [schema.wait_place(entry.key)[1] or 0 for entry in page.entries]


@pytest.mark.usefixtures("tidies_often")
def test_an_operators_word_ends_with_its_reason() -> None:
    """It is kept while the chunk is lost and a takeover may need it, whoever owns the stream. When the chunk is back it
    is removed, also if nobody takes over meanwhile: a later loss of the same chunk is waited for, and asked about anew.
    """

    async def test(world: TierWorld) -> None:
        await remove(world, await leave_last_chunk_to_the_tier(world))
        check_named, world.check_named = world.check_named, trio.lowlevel.checkpoint  # type: ignore[method-assign]
        damage = Damage(world)
        for _ in range(2):
            await lose_leader(world)
            await trio.sleep(SURELY_S)
            wait = await shown(world)
            assert wait is not None
            await asked(world, ForgetProducersRequest(TOPIC, 0, wait.chunk))
            with trio.fail_after(PATIENCE_S):
                await world.wait_leader()
            await lose_leader(world)
            with trio.fail_after(SURELY_S):
                await world.wait_leader()
            await trio.sleep(2 * TIDY_S)
            assert await said(world) == [wait.chunk]
            damage.mend()
            await trio.sleep(2 * TIDY_S)
            assert await said(world) == []
            damage = Damage(world)
        damage.mend()
        world.check_named = check_named  # type: ignore[method-assign]
        await world.check_all()

    in_world(test, *HOSTS)


@pytest.mark.usefixtures("tidies_often")
def test_an_operators_word_ends_when_nobody_needs_the_chunk() -> None:
    """A record is acknowledged behind it: no takeover needs it any more. An epoch that was decided in front of its end
    may: the word stays until the home of epochs says that it is over.
    """

    async def test(world: TierWorld) -> None:
        async with waiting(world) as (_, wait):
            world.held_from, index = 0, Damage(world, INDEX_SUFFIX)
            await asked(world, ForgetProducersRequest(TOPIC, 0, wait.chunk))
            with trio.fail_after(PATIENCE_S):
                await produce(world, 7)
            await trio.sleep(2 * TIDY_S)
            assert await said(world) == [wait.chunk]
            world.held_from = wait.end
            await trio.sleep(2 * TIDY_S)
            assert await said(world) == []
            index.mend()

    in_world(test, *HOSTS)
