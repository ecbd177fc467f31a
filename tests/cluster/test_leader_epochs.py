"""Leader epochs of a replicated stream are to clients what they are in Kafka: where each ends, who wrote a record, and
where a client's log parts from the stream's.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from logstore.cluster.engine import ClusterEngine
from logstore.cluster.interfaces import ReplicaFiles
from logstore.cluster.streams import leader_epochs
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.engine import StoreEngine
from logstore.errors import ChunkUnreachable, NotLeader
from logstore.format.batch import parse_header
from logstore.kafka import fetch
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.fetch import FetchPartition, FetchRequest
from logstore.kafka.offsets import EPOCHS_S, OffsetHandlers, _TimeSearch
from logstore.log.read_patience import ReadPatience
from logstore.replica.messages import BatchEntry, EntriesRead
from logstore.replica.registrations import ChunkRegistration
from tests.cluster.support import Front, MemoryOwner, NoFiles
from tests.cluster.tier_world import TierWorld, in_world
from tests.kafka.front_driver import decode_answer
from tests.support.kafka_epochs import UNKNOWN, KafkaEpochs


class CountedOwner(MemoryOwner):
    """Counts the reads of chunks; those of chunks that are `away` fail, and take `silence_s` to do so, others
    `slow_s`.
    """

    reads = 0
    silence_s = slow_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.away: set[int] = set()

    async def read_entries(self, stream: str, chunk: ChunkRegistration, offset: int, max_bytes: int) -> EntriesRead:
        self.reads += 1
        found = await super().read_entries(stream, chunk, offset, max_bytes)
        await trio.sleep(self.slow_s)
        if chunk.epoch in self.away:
            await trio.sleep(self.silence_s)
            raise ChunkUnreachable("no member has answered")
        return found


class Story:
    """A stream with its owners one after the other, and Kafka's table of the same history."""

    def __init__(self) -> None:
        self.owner, self.kafka = CountedOwner(), KafkaEpochs()
        self.front = Front(self.owner)
        reads = ChunkReads(
            cast(StoreEngine, None), self.owner, cast(ReplicaFiles, NoFiles()), self.front.clock, self.front.reports
        )
        topic = SimpleNamespace(partitions=[self.front.stream])
        store = SimpleNamespace(
            topics={"orders": topic}, stream=lambda *_: self.front.stream, report=self.front.reports
        )
        self.engine = ClusterEngine(cast(Any, None), cast(Any, store), reads)
        self.broker = cast(Any, SimpleNamespace(engine=self.engine))

    async def take_over(self, kept: int = 0) -> int:
        """Another host owns the stream. The result: its leader epoch."""
        self.owner.own(self.front.stream, kept=kept)
        await self.front.tasks.run()
        self.kafka.assign(self.front.stream.leader_epoch, self.front.stream.high_watermark)
        return self.front.stream.leader_epoch

    def write(self, *records: int) -> None:
        """Append batches of so many records each, acknowledged."""
        for count in records:
            self.front.append(*[b"x"] * count)
            self.owner.ack()

    async def trim(self, offset: int) -> None:
        """Delete the records in front of an offset."""
        self.front.stream.trim(offset)
        self.owner.carry_out_trims()
        self.kafka.truncate_from_start(self.front.stream.log_start_offset)

    async def end_of(self, epoch: int) -> tuple[int, int]:
        """What OffsetForLeaderEpoch answers."""
        asked = SimpleNamespace(current_leader_epoch=-1, leader_epoch=epoch, partition=0)
        found = await OffsetHandlers(self.broker)._epoch_end("orders", asked, ReadPatience(EPOCHS_S))
        assert found["error_code"].value == 0
        return found.get("leader_epoch", -1), found.get("end_offset", -1)

    async def listed(self, timestamp: int) -> tuple[int, int]:
        """Offset and leader epoch that ListOffsets answers."""
        part = SimpleNamespace(partition_index=0, timestamp=timestamp)
        found = await OffsetHandlers(self.broker)._offset("orders", part, 10, _TimeSearch(self.broker))
        return found["offset"], found["leader_epoch"]

    async def check(self) -> None:
        """Every epoch and every offset is answered as Kafka answers it."""
        stream = self.front.stream
        epochs = [*range(-1, stream.leader_epoch + 1), stream.newest_epoch + 1]
        for epoch in epochs:
            assert (epoch, *await self.end_of(epoch)) == (epoch, *self.kafka.end_for(epoch, stream.log_end))
        for offset in range(stream.log_start_offset, stream.high_watermark):
            found = await self.engine.leader_epoch_at(stream, offset, ReadPatience(EPOCHS_S))
            (batch, *_) = (await self.engine.read(stream, offset, 1)).buffers
            assert found == self.kafka.epoch_for(offset) == parse_header(batch).partition_leader_epoch


@pytest.mark.parametrize("seed", range(40))
async def test_epochs_end_where_kafka_says(seed: int) -> None:
    """In random histories of appends, rolled chunks, takeovers that keep some of what was not acknowledged, owners that
    wrote nothing and records that are deleted: epochs, ends and epochs of records are those of Kafka's table.
    """
    random, story = Random(seed), Story()
    await story.take_over()
    for _ in range(40):
        match random.choice(("write", "write", "roll", "take over", "trim", "keep")):
            case "write":
                story.write(*random.choices((1, 2, 5), k=random.randint(1, 3)))
            case "roll":
                story.owner.roll()
            case "take over":
                await story.take_over()
            case "keep":
                for _ in range(3):
                    story.front.append(b"x")
                await story.take_over(kept=random.randint(0, 3))
            case "trim":
                start, end = story.front.stream.log_start_offset, story.front.stream.high_watermark
                await story.trim(random.randint(start, end))
        await story.check()


async def test_a_reader_never_hears_of_an_end_in_front_of_what_it_read() -> None:
    """An owner rolls chunks, whose epochs in the registration grow beyond those of its batches: a reader who asks with
    the epoch of a batch hears of the end of that owner's records, and not of the chunk's.
    """
    story = Story()
    first = await story.take_over()
    for _ in range(5):
        story.write(2)
        story.owner.roll()
    second = await story.take_over()
    story.write(3)
    assert (await story.end_of(first), await story.end_of(second)) == ((first, 10), (second, 13))


async def test_records_of_a_host_alone_that_a_cluster_took_over() -> None:
    """They have epoch 0 in chunks of higher epochs; the first owner in the cluster begins behind them."""
    story = Story()
    await story.take_over()
    story.front.stream.leader_epoch = 0
    for _ in range(3):
        story.write(2)
        story.owner.roll()
    newest = await story.take_over()
    story.write(1)
    assert [await story.end_of(epoch) for epoch in (0, newest - 1, newest)] == [(0, 6), (0, 6), (newest, 7)]
    assert await story.listed(-2) == (0, 0)
    assert await story.listed(-1) == (7, newest)


async def test_a_chunk_that_nobody_can_read_makes_an_end_a_later_one(autojump_clock: Any) -> None:
    """Never an earlier one, which would be a loss to the reader; and who asks for thousands waits for a second at most.
    When the chunk can be read again, the end is the exact one.
    """
    story = Story()
    await story.take_over()
    owners = [story.front.stream.leader_epoch]
    for _ in range(4):
        story.write(2)
        owners.append(await story.take_over())
    story.owner.away, story.owner.silence_s = {owners[1]}, 4.0
    begun_s = trio.current_time()
    ends = [await story.end_of(owners[0])]
    took_s = trio.current_time() - begun_s
    story.owner.away.clear()
    ends.append(await story.end_of(owners[0]))
    assert (ends[0][1] > 2, ends[1], took_s <= EPOCHS_S) == (True, (owners[0], 2), True)


async def test_who_waits_for_members_tells_no_earlier_end() -> None:
    """A host that serves readers and has no members yet: what it does not show may be acknowledged, so older epochs
    end at the end of the log as far as it is not known which owner wrote it.
    """
    story = Story()
    first = await story.take_over()
    story.write(2)
    story.front.append(b"not known to be acknowledged")
    second = Front(story.owner)
    story.owner.own_for_readers(second.stream, kept=1)
    story.front.stream.deposed(2)
    story.front = second
    assert await story.end_of(first) == (first, 3)
    assert await story.end_of(second.stream.leader_epoch) == (second.stream.leader_epoch, 3)


async def test_searches_read_little_and_remember_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand chunks of a hundred owners: an end is found with at most eleven reads, and with none when it is asked
    for again; what is remembered is bounded.
    """
    story = Story()
    for _ in range(100):
        newest = await story.take_over()
        for _ in range(10):
            story.write(1)
            story.owner.roll()
    story.owner.reads, most = 0, 0
    for epoch in range(1, newest, 97):
        before = story.owner.reads
        assert await story.end_of(epoch) == story.kafka.end_for(epoch, 1000)
        most = max(most, story.owner.reads - before)
    known = story.owner.reads
    for epoch in range(1, newest, 97):
        await story.end_of(epoch)
    assert (0 < most <= 12, story.owner.reads) == (True, known)
    monkeypatch.setattr(leader_epochs, "MAX_KNOWN", 5)
    for epoch in range(1, newest, 7):
        await story.end_of(epoch)
    assert story.engine._epochs.known_chunks <= known + 1


async def test_an_ownership_that_ends_meanwhile_answers_nothing(autojump_clock: Any) -> None:
    """Another owner may know of other ends: the client asks again."""
    story = Story()
    await story.take_over()
    story.write(2)
    await story.take_over()
    story.owner.away, story.owner.silence_s = {1}, 0.5

    async def depose() -> None:
        await trio.sleep(0.1)
        story.front.stream.deposed(9)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(depose)
        with pytest.raises(NotLeader):
            await story.engine.end_of_epoch(story.front.stream, 1, ReadPatience(EPOCHS_S))


async def fetched(story: Story, offset: int, last_epoch: int) -> Any:
    """The partition's answer to a Fetch of version 12 that says which epoch the client has read last."""
    part = FetchPartition(0, -1, offset, 1 << 20, last_epoch)
    request = FetchRequest(12, 0, 1, 1 << 20, 0, -1, [("orders", [part])], 1)
    body, _ = await fetch.handle(story.broker, request, AnswerBudget(64 << 20))
    return decode_answer(fetch.KEY, 12, b"\0" + b"".join(map(bytes, body))).responses[0].partitions[0]


async def test_a_fetch_says_where_a_client_s_log_parts_from_the_stream_s() -> None:
    """By the last epoch that it has read and its offset, as Kafka: with no records, and where to go back to. A log that
    does not part is read; an epoch that the stream never had is out of range.
    """
    story = Story()
    first = await story.take_over()
    story.write(2)
    second = await story.take_over()
    story.write(3)
    together = [await fetched(story, 2, first), await fetched(story, 5, second), await fetched(story, 1, -1)]
    assert [part.error_code.value for part in together] == [0, 0, 0]
    assert [bool(part.records) for part in together] == [True, False, True]
    assert [part.diverging_epoch.epoch for part in together] == [-1, -1, -1]
    apart = await fetched(story, 3, first)
    assert (apart.error_code.value, bool(apart.records)) == (0, False)
    assert (apart.diverging_epoch.epoch, apart.diverging_epoch.end_offset) == (first, 2)
    assert (await fetched(story, 3, second + 1)).error_code.value == 1
    longer = await fetched(story, 9, second)
    assert (longer.error_code.value, longer.diverging_epoch.epoch, longer.diverging_epoch.end_offset) == (0, second, 5)
    await story.trim(1)
    assert (await fetched(story, 0, second)).error_code.value == 1


def test_epochs_of_chunks_that_the_tier_alone_has() -> None:
    """Behind takeovers of hosts that are lost: the ends are exact, also behind a log start inside of such a chunk."""

    async def test(world: TierWorld) -> None:
        await world.create()
        model = KafkaEpochs()
        for _ in range(3):
            life, stream = await world.wait_leader()
            model.assign(stream.leader_epoch, stream.high_watermark)
            for _ in range(2):
                await world.chunk()
            await world.lose(life.running.host.name)
            await world.bring_back()
        life, stream = await world.wait_leader()
        model.assign(stream.leader_epoch, stream.high_watermark)
        await world.append()
        await world.settle(is_swept=False)
        for start in (0, 4):
            life, stream = await world.wait_leader()
            if start:
                await life.engine.wait(stream.delete_records(start))
                model.truncate_from_start(start)
            assert any(chunk.is_tiered_alone for chunk in stream.registration.chunks)
            for epoch in range(-1, stream.leader_epoch + 1):
                found = await life.engine.end_of_epoch(stream, epoch, ReadPatience(EPOCHS_S))
                assert (epoch, *(found or UNKNOWN)) == (epoch, *model.end_for(epoch, stream.log_end))
            assert await life.engine.leader_epoch_at(stream, start, ReadPatience(EPOCHS_S)) == model.epoch_for(start)

    in_world(test, "a", "b", "c")


async def test_records_that_are_deleted_during_a_search(autojump_clock: Any) -> None:
    """What begins at the new log start is not the batch of a chunk in front of it: a search that has begun ends, and
    tells no earlier end; nothing wrong is remembered.
    """
    story = Story()
    for _ in range(6):
        await story.take_over()
        story.write(2)
    story.owner.slow_s = 0.1

    async def delete() -> None:
        await trio.sleep(0.05)
        await story.trim(11)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete)
        assert (await story.end_of(1))[1] >= 2
    await story.check()


async def test_a_batch_that_names_an_epoch_that_it_cannot_have() -> None:
    """Its checksum does not cover the epoch: one above the chunk's own, or below 0, counts as one that cannot be read.
    The search ends, and tells a later end, never an earlier one.
    """
    for wrong in (1 << 30, -5):
        story = Story()
        for _ in range(6):
            await story.take_over()
            story.write(2)
        for chunk in story.owner.chunks[1:5]:
            damaged = bytearray(chunk.entries[0].data)
            damaged[12:16] = wrong.to_bytes(4, "big", signed=True)
            chunk.entries[0] = BatchEntry(bytes(damaged), 2)
        assert [await story.end_of(epoch) for epoch in (1, 3, 6)] == [(1, 10), (3, 10), (6, 12)]
        assert (await story.engine.leader_epoch_at(story.front.stream, 2, ReadPatience(EPOCHS_S))) == -1


@pytest.mark.parametrize("seed", range(20))
async def test_no_end_is_too_early_whatever_happens_meanwhile(autojump_clock: Any, seed: int) -> None:
    """While many ask at the same time, chunks are slow or away, records are deleted, owners append, roll and change:
    each request has an answer, or an error at which the client asks again, and no end in front of the true one.
    """
    random, story = Random(seed), Story()
    await story.take_over()
    for _ in range(20):
        story.write(*random.choices((1, 2, 5), k=2))
        if random.random() < 0.5:
            story.owner.roll()
        else:
            await story.take_over()
    answered = 0

    async def ask() -> None:
        nonlocal answered
        for _ in range(10):
            await trio.sleep(random.uniform(0.0, 0.5))
            stream = story.front.stream
            epoch = random.randint(0, stream.leader_epoch)
            _, end = story.kafka.end_for(epoch, stream.log_end)
            with suppress(NotLeader):
                found = await story.engine.end_of_epoch(stream, epoch, ReadPatience(EPOCHS_S))
                assert found is not None
                assert found.end_offset >= end
                answered += 1

    async def change() -> None:
        for _ in range(30):
            await trio.sleep(random.uniform(0.0, 0.3))
            stream, chunks = story.front.stream, [chunk.registration.epoch for chunk in story.owner.chunks]
            story.owner.slow_s, story.owner.silence_s = random.choice((0.0, 0.05, 0.3)), random.choice((0.0, 0.4))
            story.owner.away = set(random.sample(chunks, len(chunks) // 4))
            match random.choice(("write", "roll", "take over", "trim", "trim")):
                case "write":
                    story.write(1, 2)
                case "roll":
                    story.owner.roll()
                case "take over":
                    await story.take_over()
                case "trim":
                    further = random.randint(0, stream.high_watermark - stream.log_start_offset) // 2
                    await story.trim(stream.log_start_offset + further)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        for _ in range(20):
            nursery.start_soon(ask)
    assert answered >= 50
    story.owner.slow_s, story.owner.away = 0.0, set()
    await story.check()


async def test_an_ownership_that_is_told_again_within_a_chunk() -> None:
    """A stream that is made anew while its owner stays, behind a rolled chunk: its batches have another epoch from
    there on. A record's epoch is never an earlier one than its batch's, or its reader would be sent back.
    """
    story = Story()
    first = await story.take_over()
    story.write(2)
    story.owner.roll()
    story.write(2)
    stream = story.front.stream
    stream.ready(story.owner.epoch, story.owner.acked_offset)
    await story.front.tasks.run()
    story.write(3)
    assert (first, stream.leader_epoch, stream.led_from) == (1, 2, 4)
    assert [await story.end_of(epoch) for epoch in (1, 2)] == [(1, 4), (2, 7)]
    for offset in range(stream.high_watermark):
        found = await story.engine.leader_epoch_at(stream, offset, ReadPatience(EPOCHS_S))
        (batch, *_) = (await story.engine.read(stream, offset, 1)).buffers
        assert found == parse_header(batch).partition_leader_epoch
