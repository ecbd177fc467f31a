"""Epochs that wait for a chunk that nobody can read, and how long what an operator has said of a chunk counts. Hosts in
memory, in virtual time.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from random import Random

import pytest
import trio

from logstore.base.metadata import schema
from logstore.base.metadata.interface import ABSENT, Condition, MetadataStore, Put, Transaction
from logstore.base.metadata.sqlite import open_sqlite
from logstore.base.report import Reporter
from logstore.cluster.streams import wait_tidying
from logstore.cluster.streams.takeover_waits import GIVEN_UP_S, NOTE_AFTER_S, TakeoverWaits, WaitTimes
from logstore.cluster.survey import wait_summary
from logstore.commands.describe_topic import wait_text
from logstore.epochs.group_order import GroupOrder
from logstore.epochs.ledger_entries import Target
from logstore.errors import CairnError, CorruptChunk, NothingLost, TierUnavailable
from logstore.format.control import End, decode_control
from logstore.format.operator_api import ForgetProducersRequest
from logstore.format.tiered_chunk import INDEX_SUFFIX, LOG_SUFFIX
from logstore.format.topic_partition import TopicPartition
from logstore.replica.registrations import ChunkRegistration, Member, Prefix, encode_head
from logstore.replica.stored_registrations import head_key
from tests.cluster.lost_chunks import (
    SURELY_S,
    Damage,
    all_shown,
    any_notes,
    asked,
    counted,
    group,
    remove,
    said,
    shown,
    waiting,
)
from tests.cluster.support import Front, MemoryOwner
from tests.cluster.test_tier_takeovers import HOSTS, leave_last_chunk_to_the_tier, lose_leader, produce
from tests.cluster.tier_world import TOPIC, TierWorld, in_world
from tests.support.limits import PATIENCE_S

TIDY_S = 5.0


@pytest.fixture
def tidies_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners look every TIDY_S at what is left of waits: hosts that have nothing to do take time, too."""
    monkeypatch.setattr(wait_tidying, "TIDY_S", TIDY_S)


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
        for part in ("epoch 1 of query q", f"forget-producers {TOPIC}:0 --repeat-epochs"):
            assert part in text
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


class _SearchesOfAwayChunks:
    """Searches of epochs in a stream with six chunks that are away, one a second. An operator lets all epochs go on."""

    def __init__(self, metadata: MetadataStore) -> None:
        owner = MemoryOwner()
        self.front, self.told, self.metadata = Front(owner), StringIO(), metadata
        owner.own(self.front.stream)
        clock = self.front.clock
        reporter = Reporter(clock, target=self.told)
        self.waits = TakeoverWaits(metadata, WaitTimes(clock, lambda: 0, 1), reporter, self.front.tasks)
        self.chunks = [
            ChunkRegistration(epoch, 10 * epoch, (Member("b", "disk"),), end=Prefix(1, 10 * epoch + 10, 0))
            for epoch in range(6)
        ]

    async def say(self) -> None:
        """The operator's word, of each chunk; the second one is lost, the fourth was waited for by a takeover too."""
        head = Put(head_key(self.front.stream.stream), encode_head(self.front.stream.registration))
        await self.metadata.commit(Transaction((Condition(head.key, ABSENT),), (head,)))
        for chunk in self.chunks:
            key = schema.wait_key(self.front.stream.stream, chunk.epoch)
            wait = schema.Wait(
                host="a",
                start="a.1",
                chunk=chunk.epoch,
                first=0,
                end=10,
                object="",
                error="away",
                lost=chunk.epoch == 1,
                since_ms=0,
                forgotten=chunk.epoch == 3,
                repeat_epochs=True,
            )
            await self.metadata.commit(Transaction((Condition(key, ABSENT),), (Put(key, schema.encode(wait)),)))

    async def words(self) -> list[tuple[int, bool]]:
        """The chunks of which something is said, and whether it is said of epochs."""
        page = await self.metadata.page(schema.WAITS)
        waits = [schema.decode(schema.Wait, entry) for entry in page.entries]
        return [(wait.chunk, wait.repeat_epochs) for wait in waits]

    async def seconds(self, query: str, away: int = 6) -> int:
        """After how many seconds an epoch is appended behind the oldest of the chunks; the newer ones are back."""
        order = GroupOrder(Target("t", "", 0, 0), query, 1, 1, "", (), b"", 0)
        stream, error = self.front.stream, TierUnavailable("away")
        for waited_s in range(1_000):
            for chunk in self.chunks[away:]:
                self.waits.was_read(stream, chunk)
            for chunk in reversed(self.chunks[:away]):
                if not await self.waits.may_pass(stream, chunk, error, order):
                    break
            else:
                return waited_s
            self.front.clock.advance(1000)
        raise AssertionError(f"the epoch of {query} waits for ever")


async def test_an_operator_lets_epochs_go_on_without_many_chunks(tmp_path: Path) -> None:
    """A search comes to the next chunk when it may go on without the one behind it, which takes as long as a wait is to
    last, once for each chunk, however many there are. For how long a chunk was away counts for all epochs that come,
    and each is reported once for each chunk. If a chunk is back, others may be: what is away then is waited for anew.
    """
    async with open_sqlite(tmp_path / "metadata.db", Random(0)) as metadata:
        search = _SearchesOfAwayChunks(metadata)
        await search.front.tasks.run()
        await search.say()
        assert await search.seconds("a") == 6 * NOTE_AFTER_S
        assert search.waits.count == 0
        assert [await search.seconds(query) for query in ("b", "a")] == [0, 0]
        for query in ("a", "b"):
            assert search.told.getvalue().count(f"event=epoch_may_repeat stream=orders-0 query={query} ") == 6
        assert await search.seconds("c", away=4) == NOTE_AFTER_S


async def test_a_word_for_epochs_ends_when_a_search_reads_the_chunk(tmp_path: Path) -> None:
    """The chunk was away, and is back: when it is away again an epoch waits for it, and an operator is asked anew. What
    was said of takeovers stays, and of a chunk that was lost, a part of which may be read all the time.
    """
    async with open_sqlite(tmp_path / "metadata.db", Random(0)) as metadata:
        search = _SearchesOfAwayChunks(metadata)
        await search.front.tasks.run()
        await search.say()
        assert await search.seconds("a") == 6 * NOTE_AFTER_S
        assert await search.seconds("b", away=1) == NOTE_AFTER_S
        await search.front.tasks.run()
        assert await search.words() == [(0, True), (1, True), (3, False)]
