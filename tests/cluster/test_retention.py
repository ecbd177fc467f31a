"""Retention of replicated streams: what goes, when, and what clients see of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing
from crc32c import crc32c

from logstore.base.metadata.errors import MetadataDamaged
from logstore.base.metadata.interface import MetadataStore, Put, Transaction
from logstore.base.metadata.sqlite import open_sqlite
from logstore.cluster.streams.refusal_window import FIRST_S, ON_THE_WAY_S
from logstore.cluster.streams.replicated_stream import CROWDED_S, ReplicatedStream
from logstore.cluster.streams.retention import ClusterRetention
from logstore.cluster.streams.retention_clock import AGREE_MS, KEY, ClusterClock, decode_time, encode_time
from logstore.errors import NotEnoughReplicas, NotLeader, OffsetOutOfRange, StorageFailed, TryAgain
from logstore.log.readers import HeldRecords
from logstore.log.store import StoreSettings
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig
from logstore.testing.clock import ManualClock
from logstore.testing.reports import RecordedReports
from tests.cluster.support import Front, MemoryOwner

HOUR_MS = 3_600_000


@dataclass
class World:
    """A stream that this host leads, and its retention."""

    front: Front
    owner: MemoryOwner
    retention: ClusterRetention
    clock: ManualClock

    def write(self, count: int = 1, producer_id: int = -1) -> None:
        """A chunk with so many batches of one record; the next chunk is open behind it."""
        for number in range(count):
            self.front.append(bytes(100), producer_id=producer_id, sequence=number if producer_id >= 0 else -1)
            self.owner.ack()
        self.owner.roll()

    async def apply(self) -> None:
        """Look at the stream; the metadata store takes what is asked for."""
        await self.retention.apply(self.front.stream)
        self.owner.carry_out_trims()

    def pass_hours(self, hours: float) -> None:
        """Hosts serve for so long."""
        self.clock.advance(round(hours * HOUR_MS))
        self.front.retention.time_ms = self.retention.now_ms()


@asynccontextmanager
async def world(directory: Path, config: TopicConfig) -> AsyncIterator[World]:
    """See World; real hosts have the same clock for both."""
    clock = ManualClock()
    async with open_sqlite(directory / "metadata.db", Random(0)) as store:
        owner, reports = MemoryOwner(), RecordedReports()
        front = Front(owner, config=config, clock=clock, reports=reports)
        retention = ClusterRetention(await ClusterClock.open(store, clock), clock, StoreSettings(), reports)
        owner.own(front.stream)
        await front.tasks.run()
        yield World(front, owner, retention, clock)


async def test_size_trims_whole_chunks_from_the_front(tmp_path: Path) -> None:
    """Of six chunks as many stay as are needed to have `retention.bytes`; the operator is told."""
    async with world(tmp_path, TopicConfig(retention_bytes=500)) as at:
        for _ in range(6):
            at.write()
        size = at.front.stream.size_bytes // 6
        await at.apply()
        stream = at.front.stream
        assert stream.size_bytes - size < 500 <= stream.size_bytes
        assert stream.log_start_offset == stream.registration.chunks[0].base_offset == 3
        assert at.front.reports.names().count("trimmed") == 1
        assert at.front.retention.streams, "a chunk that was rolled makes the stream due"


async def test_age_counts_from_the_append_in_time_that_was_served(tmp_path: Path) -> None:
    """Records stay for `retention.ms` at least, whatever the wall clock does; then the chunk goes, also when input has
    stopped.
    """
    async with world(tmp_path, TopicConfig(retention_ms=2 * HOUR_MS, segment_ms=HOUR_MS)) as at:
        at.write()
        at.pass_hours(1)
        at.front.append(b"newer")
        at.owner.ack()
        at.clock.jump(at.clock.wall_ms() + 1000 * HOUR_MS)
        at.pass_hours(1)
        await at.apply()
        assert at.front.stream.log_start_offset == 0
        at.pass_hours(AGREE_MS / HOUR_MS + 0.01)
        await at.apply()
        assert at.front.stream.log_start_offset == 1
        assert len(at.owner.chunks) == 2, "the open chunk is older than segment.ms, and was sealed"
        at.pass_hours(1)
        await at.apply()
        assert at.front.stream.log_start_offset == at.front.stream.high_watermark == 2
        assert at.front.stream.size_bytes == 0


async def test_an_open_chunk_is_sealed_by_age(tmp_path: Path) -> None:
    """Not before its first append is as old as `segment.ms`; an empty one never is."""
    async with world(tmp_path, TopicConfig(retention_ms=-1, segment_ms=HOUR_MS)) as at:
        at.pass_hours(5)
        await at.apply()
        assert at.owner.epoch == 1
        at.front.append(b"1")
        at.owner.ack()
        at.pass_hours(0.9)
        await at.apply()
        assert at.owner.epoch == 1
        at.pass_hours(0.2)
        await at.apply()
        assert [chunk.registration.is_open for chunk in at.owner.chunks] == [False, True]


async def test_a_chunk_is_sealed_by_age_whoever_cannot_be_asked(tmp_path: Path) -> None:
    """What goes needs the leave of readers and epochs, and waits for it; what is sealed does not."""

    class Away:
        async def trim_limit(self, *_: object) -> int:
            await trio.lowlevel.checkpoint()
            raise TryAgain("no host has the readers")

    async with world(tmp_path, TopicConfig(retention_ms=HOUR_MS)) as at:
        at.write()
        at.retention.holds = Away()
        at.front.append(b"newer")
        at.owner.ack()
        at.pass_hours(1 + AGREE_MS / HOUR_MS + 0.01)
        with pytest.raises(TryAgain, match="no host has the readers"):
            await at.apply()
        assert [chunk.registration.is_open for chunk in at.owner.chunks] == [False, False, True]
        assert at.front.stream.log_start_offset == 0


async def test_a_chunk_of_another_owner_counts_from_its_seal(tmp_path: Path) -> None:
    """A new owner does not know when the last append was: records stay longer, never shorter."""
    async with world(tmp_path, TopicConfig(retention_ms=HOUR_MS)) as at:
        at.pass_hours(10)
        assert at.front.stream.written_ms() == at.retention.now_ms()
        at.front.append(b"1")
        at.owner.ack()
        at.pass_hours(1)
        assert at.front.stream.written_ms() == at.retention.now_ms() - HOUR_MS


async def test_registered_readers_hold_records(tmp_path: Path) -> None:
    """Nothing at or behind a reader's position goes; what it holds back is counted for its limits."""
    asked: list[tuple[int, HeldRecords]] = []

    class Holds:
        async def trim_limit(self, stream: ReplicatedStream, wanted: int, held: Callable[[int], HeldRecords]) -> int:
            asked.append((wanted, held(2)))
            return 2

    async with world(tmp_path, TopicConfig(retention_bytes=0)) as at:
        at.retention.holds = Holds()
        for _ in range(5):
            at.write()
        size = at.front.stream.size_bytes // 5
        await at.apply()
        assert at.front.stream.log_start_offset == 2
        assert [(wanted, held[0]) for wanted, held in asked] == [(5, 3 * size)]


class UnderWay:
    """Epochs that hold the stream at an offset, until a test says that they are over."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.asked: list[int] = []
        self.over: Ticket[None] = Ticket()

    async def trim_limit(self, stream: ReplicatedStream, wanted: int) -> int:
        self.asked.append(wanted)
        return min(wanted, self.offset)

    def deletable(self, stream: ReplicatedStream, offset: int) -> Ticket[None]:
        self.asked.append(offset)
        return self.over


async def test_epochs_under_way_hold_records(tmp_path: Path) -> None:
    """Nothing behind the start of one goes. Registered readers are asked last: a trim follows from their answer."""
    asked: list[int] = []

    class Holds:
        async def trim_limit(self, stream: ReplicatedStream, wanted: int, held: Callable[[int], HeldRecords]) -> int:
            asked.append(wanted)
            return wanted

    async with world(tmp_path, TopicConfig(retention_bytes=0)) as at:
        under_way = at.retention.epochs = UnderWay(3)
        at.retention.holds = Holds()
        for _ in range(5):
            at.write()
        await at.apply()
        assert (at.front.stream.log_start_offset, under_way.asked, asked) == (3, [5], [3])
        await at.apply()
        assert (at.front.stream.log_start_offset, under_way.asked, asked) == (3, [5, 5], [3])


@pytest.mark.parametrize("is_in_time", [True, False])
async def test_a_deletion_waits_for_epochs_under_way(tmp_path: Path, *, is_in_time: bool) -> None:
    """Then it is done; or the client is told to ask again, and nothing is deleted."""
    async with world(tmp_path, TopicConfig()) as at:
        under_way = UnderWay(0)
        at.front.retention.epochs = under_way
        at.write(5)
        deleted = at.front.stream.delete_records(3)
        at.owner.carry_out_trims()
        assert (deleted.done, under_way.asked, at.front.stream.log_start_offset) == (False, [3], 0)
        if is_in_time:
            under_way.over.succeed(None)
            at.owner.carry_out_trims()
            assert deleted.result() == 3
            assert at.front.stream.delete_records(2).result() == 3
        else:
            under_way.over.fail(TryAgain("an epoch is under way"))
            at.owner.carry_out_trims()
            assert isinstance(deleted.error, TryAgain)
        assert under_way.asked == [3]
        assert at.front.stream.log_start_offset == (3 if is_in_time else 0)


async def test_the_last_chunk_stays_for_the_producers(tmp_path: Path) -> None:
    """While the open chunk is empty, the last sealed one alone has their sequences; readers do not see it."""
    async with world(tmp_path, TopicConfig(retention_bytes=0)) as at:
        at.write(3, producer_id=7)
        await at.apply()
        stream = at.front.stream
        assert (stream.log_start_offset, len(at.owner.chunks)) == (3, 2)
        with pytest.raises(OffsetOutOfRange):
            stream.check_offset(2)
        at.clock.advance(25 * HOUR_MS)  # the producer is forgotten
        await at.apply()
        assert len(at.owner.chunks) == 1


async def test_the_last_chunk_goes_with_the_first_batch_behind_it(tmp_path: Path) -> None:
    """The open chunk has the producers' sequences then: what is trimmed does not stay until the next trim."""
    async with world(tmp_path, TopicConfig(retention_bytes=0)) as at:
        at.write(3, producer_id=7)
        await at.apply()
        assert len(at.owner.chunks) == 2
        at.front.append(b"1")
        at.owner.ack()
        await at.retention.apply(at.front.stream)
        assert at.owner.asked == [(3, True)]  # the owner knows better: `Trimming`


async def test_records_are_deleted_when_that_is_registered(tmp_path: Path) -> None:
    """Not before; a client whose owner is replaced meanwhile is told to ask the next one."""
    async with world(tmp_path, TopicConfig()) as at:
        at.write(5)
        stream = at.front.stream
        deleted = stream.delete_records(3)
        assert (deleted.done, stream.log_start_offset) == (False, 0)
        at.owner.carry_out_trims()
        assert (deleted.result(), stream.log_start_offset) == (3, 3)
        assert stream.delete_records(1).result() == 3
        for bad in (6, -2):
            assert isinstance(stream.delete_records(bad).error, OffsetOutOfRange)
        all_of_them = stream.delete_records(-1)
        at.owner.carry_out_trims()
        assert all_of_them.result() == 5
        at.write()
        lost = stream.delete_records(6)
        stream.deposed(9)
        assert isinstance(lost.error, NotLeader)
        assert isinstance(stream.delete_records(6).error, NotLeader)


async def test_what_is_not_acknowledged_is_not_trimmed(tmp_path: Path) -> None:
    """A trim behind the end is one to the end of what is acknowledged."""
    async with world(tmp_path, TopicConfig()) as at:
        at.front.append(b"1")
        at.owner.ack()
        at.front.append(b"2")
        trimmed = at.front.stream.trim(100)
        at.owner.carry_out_trims()
        assert trimmed.result() == 1


async def test_settings_count_at_once(tmp_path: Path) -> None:
    """The size of chunks, and what retention allows."""
    async with world(tmp_path, TopicConfig()) as at:
        at.front.stream.reconfigure(TopicConfig(segment_bytes=4096, retention_bytes=1))
        assert at.owner.chunk_bytes == 4096
        assert at.front.retention.streams == [at.front.stream]


async def test_producers_hear_that_disks_are_full(tmp_path: Path) -> None:
    """Only if no chunk with other members is opened: that takes milliseconds. What a client has sent behind a refused
    batch is refused as well, though there is room.
    """
    async with world(tmp_path, TopicConfig()) as at:
        stream = at.front.stream
        stream.crowded()
        at.front.append(b"1")
        at.clock.advance(round(CROWDED_S * 1000) + 100)
        with pytest.raises(StorageFailed, match="has no space"):
            at.front.append(b"2")
        at.owner.ack()
        with pytest.raises(NotEnoughReplicas, match="an earlier batch was refused just now"):
            at.front.append(b"3")
        at.clock.advance(round(ON_THE_WAY_S * 1000))
        at.front.append(b"2")
        stream.crowded()
        at.owner.roll()
        at.clock.advance(round(CROWDED_S * 1000) + 100)
        at.front.append(b"3")


# ---- the clock


async def stored(store: MetadataStore) -> int:
    """The time that the metadata store has."""
    entry = (await store.get(KEY)).entry
    return 0 if entry is None else decode_time(entry.value)


async def test_hosts_agree_on_the_time(tmp_path: Path) -> None:
    """A host that starts has the time of the others; one writes for all; an outage of all hosts does not count."""
    async with open_sqlite(tmp_path / "metadata.db", Random(0)) as store:
        one, other = ManualClock(), ManualClock()
        first = await ClusterClock.open(store, one)
        one.advance(1_000_000)
        await first.agree()
        second = await ClusterClock.open(store, other)
        assert second.now_ms() == first.now_ms() == 1_000_000
        transactions = store.statistics.transactions
        for _ in range(60):
            one.advance(10_000)
            other.advance(10_000)
            await first.agree()
            await second.agree()
        assert store.statistics.transactions == transactions + 60, "one write in ten seconds, for both"
        assert abs(first.now_ms() - second.now_ms()) <= AGREE_MS
        much_later = ManualClock()
        much_later.advance(5_000_000)
        late = await ClusterClock.open(store, much_later)
        assert late.now_ms() == await stored(store)


DAMAGED = (
    b"x", b"", b"-1", b"9" * 14, b"9" * 5_000,
    encode_time(1_000).replace(b"1000", b"9000"), encode_time(-1), encode_time(10**13),
    *(b"%08x" % crc32c(other) + other for other in (b"7", b'{"v":2,"ms":1}', b'{"v":1,"ms":"1"}', b"[" * 60_000)),
)  # fmt: skip


@pytest.mark.parametrize("value", DAMAGED)
async def test_a_time_that_nobody_wrote_is_damage(tmp_path: Path, value: bytes) -> None:
    """No host takes it over: records would be deleted for their age."""
    async with open_sqlite(tmp_path / "metadata.db", Random(0)) as store:
        clock = await ClusterClock.open(store, ManualClock())
        await store.commit(Transaction((), (Put(KEY, value),)))
        with pytest.raises(MetadataDamaged, match="the entry 'retention-clock'"):
            await clock.agree()
        assert clock.now_ms() == 0


async def test_a_time_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It is a decimal number without a checksum; the next write has one."""
    async with open_sqlite(tmp_path / "metadata.db", Random(0)) as store:
        await store.commit(Transaction((), (Put(KEY, b"1000000"),)))
        clock = ManualClock()
        opened = await ClusterClock.open(store, clock)
        assert opened.now_ms() == 1_000_000
        clock.advance(10_000)
        await opened.agree()
        entry = (await store.get(KEY)).entry
        assert entry is not None
        assert entry.value == b'3c5898f8{"v":1,"ms":1010000}'


# ---- the walk


async def test_the_walk_looks_at_what_is_due(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A stream that is due at once, all of them when the disk is short of room, but not more than every ten seconds."""
    async with world(tmp_path, TopicConfig(retention_bytes=0)) as at, trio.open_nursery() as nursery:
        nursery.start_soon(at.retention.run, lambda: [at.front.stream])
        at.write()
        for is_for_all in (False, True):
            if is_for_all:
                at.retention.all_due()
            else:
                at.retention.due(at.front.stream)
            await trio.testing.wait_all_tasks_blocked()
            assert at.owner.asked
            at.owner.carry_out_trims()
            at.write()
        at.retention.all_due()
        await trio.testing.wait_all_tasks_blocked()
        assert not at.owner.asked
        at.clock.advance(10_000)
        at.retention.all_due()
        await trio.testing.wait_all_tasks_blocked()
        assert at.owner.asked
        nursery.cancel_scope.cancel()


async def test_the_walk_forgets_refused_batches_of_streams_of_other_hosts(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Producers who have asked a host that does not lead the stream, and never come again: they are not kept."""
    async with world(tmp_path, TopicConfig()) as at, trio.open_nursery() as nursery:
        stream = at.front.stream
        stream.deposed(2)
        for producer_id in range(10):
            with pytest.raises(NotLeader):
                at.front.append(b"x", producer_id=producer_id, sequence=0)
        assert stream._window.first_refused == 10
        nursery.start_soon(at.retention.run, lambda: [stream])
        at.clock.advance(round(1000 * FIRST_S))
        at.retention.all_due()
        await trio.testing.wait_all_tasks_blocked()
        assert stream._window.first_refused == 0
        nursery.cancel_scope.cancel()
