"""A cluster in memory whose hosts have a tier: producers write, hosts are lost at any step, and nothing may be missing.

Invariants: time is virtual and everything random comes from one seed (`tests.cluster.memory`). Hosts, owners, topics,
tiering and reads of the tier are the real ones; links, disks, the metadata store and the object store are models. What
a host asks of the object store is one step after another; a host that is lost at a step has done nothing behind it.

What is checked at every loss, and at the end: each object that a registration names is in the store as it is named;
each acknowledged record is read, once and in order, from the log start on.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TypeVar, cast

import trio

from logstore.cluster.engine import ClusterEngine
from logstore.cluster.epochs.group_appends import GroupAppends
from logstore.cluster.interfaces import ReplicaFiles
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.cluster.streams.producer_ids import ProducerIds
from logstore.cluster.streams.replicated_stream import ReplicatedStream, StreamServices
from logstore.cluster.streams.takeover_waits import TakeoverWaits, WaitTimes
from logstore.cluster.streams.tiered_chunks import tiered_chunk
from logstore.cluster.streams.topics import ClusterFacts, ClusterTopics
from logstore.cluster.streams.wait_tidying import WaitTidying
from logstore.cluster.tier.tiering import AsyncRead, ClusterTiering, ClusterTierParts
from logstore.engine import StoreEngine
from logstore.epochs.group_order import GroupOrder
from logstore.errors import CairnError, NotEnoughReplicas, NotLeader, TierUnavailable
from logstore.format.batch import iterate_batches
from logstore.format.records import Record, decode_batch, encode_batch
from logstore.format.tiered_chunk import StoredObject, TieredChunk
from logstore.log.chunks import IndexCache
from logstore.log.store import StoreSettings
from logstore.replica.identity import DiskLabel
from logstore.replica.register import ReadRegistration
from logstore.replica.registrations import ChunkRegistration, StreamRegistration
from logstore.replica.stored_registrations import StoredRegistrations
from logstore.testing.directory_objects import DirectoryObjects
from logstore.testing.simdisk import SimDisk
from logstore.tier.interface import ListedObject, NoTurns
from logstore.tier.range_cache import RangeCache
from logstore.tier.reads import TierReads
from logstore.tier.sealed_upload import Piece, Read, SealedChunk
from logstore.tier.upload import read_back
from tests.cluster.epochs_world import NOW_MS, TicketsOnly, VirtualClock
from tests.cluster.memory import LIMITS, MemoryCluster, RunningHost, memory_cluster
from tests.replica.disk import ReplicaDisk
from tests.support.virtual_time import run_virtual

T = TypeVar("T")
TOPIC = "orders"
TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "0", "retention.ms": "-1"}
CACHE_BYTES = 1 << 20
ROUND_S = 0.5
SWEEP_S = 8.0
SILENCE_S = 30.0
"""How long a call of the object store waits for an answer, as of HDFS (`logstore.tier.hdfs`)."""


class HostObjects:
    """The object store as one life of a host sees it; `step` is told of each call, and may raise."""

    def __init__(self, shared: DirectoryObjects, step: Callable[[str], None]) -> None:
        self._shared = shared
        self._step = step
        self.postpone: Callable[[Callable[[], None]], None] | None = None
        """Takes what the store will do later; nobody hears of it."""

    def put(self, key: str, size_bytes: int, pieces: Iterable[bytes], chain: Sequence[str] = ()) -> None:
        self._step("put")
        if self.postpone is not None:
            self.postpone(partial(self._shared.put, key, size_bytes, list(pieces), chain))
            raise TierUnavailable("no answer")
        self._shared.put(key, size_bytes, pieces, chain)
        self._step("put done")

    def get(self, key: str, position: int, length: int) -> bytes:
        self._step("get")
        return self._shared.get(key, position, length)

    def checksum(self, key: str) -> StoredObject:
        self._step("checksum")
        return self._shared.checksum(key)

    def list_keys(self, prefix: str) -> Iterator[ListedObject]:
        self._step("list")
        yield from self._shared.list_keys(prefix)

    def delete(self, key: str) -> None:
        self._step("delete")
        self._shared.delete(key)

    def close(self) -> None:
        pass


class VirtualThreads:
    """See TierThreads: blocking work takes a little time before and behind, and runs at once in between."""

    def __init__(self, random: Random, answering: Callable[[], Awaitable[None]]) -> None:
        self._random = random
        self._answering = answering
        self.delay_s = 0.005
        """At most, before and behind."""

    async def run(self, work: Callable[[], T]) -> T:
        await trio.sleep(self._random.random() * self.delay_s)
        await self._answering()
        try:
            return work()
        finally:
            await trio.sleep(self._random.random() * self.delay_s)

    async def upload(self, work: Callable[[Read], TieredChunk], chunk: SealedChunk, read: AsyncRead) -> TieredChunk:
        """All of the chunk is read before."""
        pieces: dict[int, Piece] = {}
        offset = chunk.base_offset
        while offset < chunk.next_offset:
            pieces[offset] = await read(offset)
            offset = pieces[offset].next_offset
        return await self.run(partial(work, pieces.__getitem__))


class InlineReads(TierReads):
    """Reads of the tier without threads. `under_way` and `most`: how many there are now, and were at a time."""

    def __init__(self, nursery: trio.Nursery, answering: Callable[[], Awaitable[None]]) -> None:
        super().__init__(IndexCache(), nursery)
        self._answering = answering
        self.under_way = self.most = 0

    async def _blocking(self, call: Callable[[], T]) -> T:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await trio.lowlevel.checkpoint()
            await self._answering()
            return call()
        finally:
            self.under_way -= 1


@dataclass
class TieredHost:
    """A host with its tier, in one life."""

    running: RunningHost
    topics: ClusterTopics
    reads: ChunkReads
    engine: ClusterEngine
    waits: TakeoverWaits
    appends: GroupAppends
    tiering: ClusterTiering
    threads: VirtualThreads
    objects: HostObjects
    nursery: trio.Nursery
    tier_reads: InlineReads
    is_lost: bool = False
    ended: trio.Event = field(default_factory=trio.Event)


class TierWorld:
    """The cluster, its object store and a producer. `kill_at`: the number of the step that loses the host that takes
    it; `away_at`: that from which on the object store takes nothing, as `is_away` says.
    """

    def __init__(self, cluster: MemoryCluster, nursery: trio.Nursery, seed: int) -> None:
        self.cluster = cluster
        self.nursery = nursery
        self.random = Random(seed)
        self.clock = VirtualClock()
        self.objects = DirectoryObjects(SimDisk())
        self.hosts: dict[str, TieredHost] = {}
        self.acked: list[bytes] = []
        self.log_start = 0
        self.steps: list[str] = []
        self.kill_at = self.away_at = -1
        self.lost: list[str] = []
        self.is_away = False
        self.silence_s = SILENCE_S
        self._thawed: trio.Event | None = None
        """The object store is frozen until then: connections are taken, and nothing is answered."""
        self.held_from = 1 << 62
        """The offset from which on epochs under way need the stream."""
        self.cut_off: set[str] = set()
        self.make: Callable[..., ClusterTiering] = ClusterTiering
        self._numbers: dict[str, int] = {}

    # ---- hosts

    async def start(self, name: str) -> None:
        """A host starts; it may have been here before."""
        disk = self.cluster.disks.setdefault(name, ReplicaDisk(DiskLabel("", name)))
        disk.knows_founding = False
        running = await self.cluster.start(name, node_id=self._numbers.setdefault(name, len(self._numbers)))
        self.hosts[name] = await self.nursery.start(self._live, running)

    async def _live(self, running: RunningHost, task_status: trio.TaskStatus[TieredHost]) -> None:
        reports, store, host = self.cluster.reports, running.store, running.host
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                local = TicketsOnly()
                tier_reads = local.tier = InlineReads(nursery, self.answering)  # type: ignore[attr-defined]
                engine, files = cast(StoreEngine, local), cast(ReplicaFiles, running.files)
                served_ms = lambda: self.clock.wall_ms() - NOW_MS + 10_000  # noqa: E731
                times = WaitTimes(self.clock, served_ms, StoreSettings().producer_expiry_ms)
                waits = TakeoverWaits(store, times, reports, nursery.start_soon)
                reads = ChunkReads(engine, host, files, self.clock, reports, waits)
                services = StreamServices(host, self.clock, reports, reads.load_producers, nursery.start_soon)
                facts = ClusterFacts("cluster", 1, StoreSettings(has_tier=True))
                topics = ClusterTopics(host, facts, ProducerIds(store), services, self._new_id)
                topics.take_all()
                cluster_engine = ClusterEngine(engine, topics, reads)
                appends = GroupAppends(topics, cluster_engine, self, self.clock, nursery.start_soon, waits)
                objects = HostObjects(self.objects, lambda step: self._step(host.name, step))
                tier_reads.cache = RangeCache(objects, CACHE_BYTES)
                threads = VirtualThreads(self.random, self.answering)
                parts = ClusterTierParts(objects, NoTurns(), threads, 2, self.clock, served_ms, reports, SWEEP_S)
                tiering = self.make(topics, host, parts)
                life = TieredHost(
                    running,
                    topics,
                    reads,
                    cluster_engine,
                    waits,
                    appends,
                    tiering,
                    threads,
                    objects,
                    nursery,
                    tier_reads,
                )
                tidying = WaitTidying(store, topics.streams, reads, cluster_engine, self, waits)
                nursery.start_soon(tidying.run)
                nursery.start_soon(self._rounds, tiering)
                task_status.started(life)
                await running.ended.wait()
                nursery.cancel_scope.cancel()
            scope.cancel()

    async def _rounds(self, tiering: ClusterTiering) -> None:
        while True:
            has_more = await tiering.round()
            await trio.sleep(0.001 if has_more else ROUND_S)

    async def trim_limit(self, stream: ReplicatedStream, wanted: int, /) -> int:
        """See HeldByEpochs."""
        await trio.lowlevel.checkpoint()
        return min(wanted, self.held_from)

    async def is_under_way(self, order: GroupOrder, /) -> bool:
        """See EpochsUnderWay."""
        await trio.lowlevel.checkpoint()
        return True

    def _new_id(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128))

    def _step(self, name: str, step: str) -> None:
        """A host asks the object store: here it may be lost."""
        life = self.hosts.get(name)
        if life is None or life.is_lost:
            raise TierUnavailable(f"{name} is lost")
        self.is_away = self.is_away or len(self.steps) == self.away_at
        if self.is_away and (step != "put done" or self.away_at >= 0):
            raise TierUnavailable("the store is away")
        if len(self.steps) == self.kill_at:
            life.is_lost = True
            self.lost.append(name)
            self.nursery.start_soon(self.kill, name)
            raise TierUnavailable(f"{name} is lost")
        self.steps.append(step)

    def freeze(self) -> None:
        """The object store is silent from now on."""
        self._thawed = trio.Event()

    def thaw(self) -> None:
        """It answers again, what was asked meanwhile as well."""
        if self._thawed is not None:
            self._thawed.set()
            self._thawed = None

    async def answering(self) -> None:
        """Wait for the object store. Raises TierUnavailable if it is silent."""
        if self._thawed is not None:
            with trio.move_on_after(self.silence_s):
                await self._thawed.wait()
                return
            raise TierUnavailable(f"no answer in {self.silence_s:g} s")

    async def kill(self, name: str) -> None:
        """The host is gone, with all that it had not synced."""
        life = self.hosts.pop(name)
        life.is_lost = True
        await self.cluster.kill(name)
        await self.check_named()

    async def lose(self, name: str) -> None:
        """The host is gone, and may be brought back."""
        self.lost.append(name)
        await self.kill(name)

    def isolate(self, name: str) -> None:
        """Nothing passes between a host and the others, and the metadata store; the object store it reaches."""
        self.cut_off.add(name)
        self.cluster.metadata.cut_off(name)
        for other in self.hosts:
            if other != name:
                self.cluster.network.cut(name, other)

    def heal(self, name: str) -> None:
        """Everything passes again."""
        self.cut_off.discard(name)
        self.cluster.metadata.heal(name)
        self.cluster.network.heal()

    async def bring_back(self) -> None:
        """The hosts that were lost start again, with their disks."""
        while self.lost:
            name = self.lost.pop()
            while name in self.cluster.hosts:  # noqa: ASYNC110  it is being killed
                await trio.sleep(0.01)
            await self.start(name)

    # ---- producer and reader

    async def create(self, replicas: int = 3, **settings: str) -> str:
        """Create the topic; returns its stream."""
        (stream,) = await self.cluster.create_topic(TOPIC, 1, replicas, **{**TIERED, **settings})
        return stream

    def leader(self) -> tuple[TieredHost, ReplicatedStream] | None:
        """The host that leads the stream, if one does."""
        for name, life in self.hosts.items():
            topic = None if name in self.cut_off else life.topics.topics.get(TOPIC)
            if topic is not None and topic.partitions[0].is_leader and not life.is_lost:
                return life, topic.partitions[0]
        return None

    async def wait_leader(self) -> tuple[TieredHost, ReplicatedStream]:
        """The host that leads the stream."""
        while (found := self.leader()) is None:  # noqa: ASYNC110  time is virtual
            await trio.sleep(0.02)
        return found

    async def append(self, count: int = 1) -> None:
        """Append batches of one record, again until each is acknowledged; a batch that may be in the log is not sent
        again, and its value not expected.
        """
        while count:
            value = b"%06d" % len(self.acked) + bytes(100)
            _, stream = await self.wait_leader()
            batch = encode_batch([Record(0, NOW_MS + len(self.acked), None, value)])
            try:
                ticket = stream.append(bytearray(batch), now_ms=NOW_MS)
                settled = trio.Event()
                ticket.add_callback(lambda _, settled=settled: settled.set())  # type: ignore[misc]
                await settled.wait()
                ticket.result()
            except (NotLeader, NotEnoughReplicas):
                self.acked.append(b"?")
                await trio.sleep(0.02)
                continue
            self.acked.append(value)
            count -= 1

    async def chunk(self, batches: int = 3) -> None:
        """Append batches, and seal the chunk behind them."""
        await self.append(batches)
        life, stream = await self.wait_leader()
        try:
            life.running.host.roll(stream.stream)
        except NotLeader:
            return
        await trio.sleep(0.05)

    async def read_all(self) -> list[bytes]:
        """All records, from the log start on, by whoever leads."""
        while True:
            life, stream = await self.wait_leader()
            found: list[bytes] = []
            offset = stream.log_start_offset
            try:
                while offset < stream.high_watermark:
                    result = await life.reads.read(stream, offset, 4_000)
                    for buffer in result.buffers:
                        for at, header in iterate_batches(buffer):
                            batch = memoryview(buffer)[at : at + header.size_bytes]
                            found += [record.value or b"" for record in decode_batch(batch)]
                    offset = result.next_offset
                return found
            except (NotLeader, TierUnavailable):
                await trio.sleep(0.1)

    # ---- what must hold

    async def registration(self) -> StreamRegistration | None:
        """The stream's registration; None: it has none."""
        connected = [life for name, life in self.hosts.items() if name not in self.cut_off]
        topic = connected[0].topics.topics.get(TOPIC) if connected else None
        if topic is None:
            return None
        store = connected[0].running.store
        read = await StoredRegistrations(store).read(ReadRegistration(topic.partitions[0].stream))
        return read.registration

    async def chunks(self) -> tuple[ChunkRegistration, ...]:
        """The chunks of the stream's registration."""
        found = await self.registration()
        assert found is not None
        return found.chunks

    async def named(self) -> list[TieredChunk]:
        """What the registration names."""
        found = await self.registration()
        life = next(iter(self.hosts.values()))
        place = life.topics.topics[TOPIC].partitions[0].tier_place if found is not None else ""
        chunks = () if found is None else found.chunks
        return [tiered for chunk in chunks if (tiered := tiered_chunk(place, chunk)) is not None]

    async def check_named(self) -> None:
        """Every object that the registration names is there; asked of the store before and behind nothing may move."""
        try:
            with trio.fail_after(30):
                before = await self.named()
        except (CairnError, trio.TooSlowError, StopIteration, RuntimeError):
            return
        for chunk in before:
            read_back(self.objects, chunk)

    async def check_all(self) -> None:
        """The same, and all that was acknowledged is read, and nothing twice."""
        await self.check_named()
        expected = [value for value in self.acked if value != b"?"]
        found = await self.read_all()
        sent = [value for value in found if value in set(expected)]
        _, stream = await self.wait_leader()
        skipped = len(expected) - len(sent)
        assert sent == expected[skipped:], (len(sent), len(expected))
        assert len(found) == stream.high_watermark - stream.log_start_offset
        if not stream.log_start_offset:
            assert not skipped

    def keys(self) -> set[str]:
        """All keys of the store."""
        return {at.key for at in self.objects.list_keys("")}

    async def settle(self, *, is_swept: bool = True) -> None:
        """Wait until every sealed chunk but the last is in the tier alone, and, if a sweep is wanted, nothing but what
        is named is in the store.
        """
        while True:
            await trio.sleep(1)
            found = await self.registration()
            if found is None or self.leader() is None:
                continue
            sealed = [chunk for chunk in found.chunks if not chunk.is_open]
            if all(chunk.is_tiered_alone for chunk in sealed[:-1]) and all(chunk.tiered for chunk in sealed):
                break
        while not all(self._holds_what_it_is_to_hold(name) for name in self.hosts):  # noqa: ASYNC110
            await trio.sleep(0.1)
        if is_swept:
            await trio.sleep(2.5 * SWEEP_S)
            named = {key for chunk in await self.named() for key in chunk.all_keys()}
            assert self.keys() == named, (sorted(self.keys() - named), sorted(named - self.keys()))

    def _holds_what_it_is_to_hold(self, name: str) -> bool:
        """Whether a host has no chunk on its disk that the registration does not list for it."""
        found = self.leader()
        if found is None:
            return False
        chunks = found[1].registration.chunks
        listed = {chunk.epoch for chunk in chunks if name in {member.host for member in chunk.members}}
        held = {epoch for stream, epoch in self.cluster.disks[name].chunks if stream == found[1].stream}
        return held <= listed


@asynccontextmanager
async def tier_world(*names: str, seed: int = 0) -> AsyncIterator[TierWorld]:
    """Hosts with a tier, and the tiered topic."""
    async with memory_cluster(seed=seed, limits=LIMITS) as cluster, trio.open_nursery() as nursery:
        world = TierWorld(cluster, nursery, seed)
        for name in names:
            await world.start(name)
        await cluster.until(lambda: all(len(each.view.members) == len(names) for each in cluster.hosts.values()))
        yield world
        nursery.cancel_scope.cancel()


Test = Callable[[TierWorld], Awaitable[None]]


def in_world(test: Test, *names: str, seed: int = 0) -> None:
    """Run a test on hosts with a tier, in virtual time."""

    async def main() -> None:
        with trio.fail_after(10 * 86_400):
            async with tier_world(*names, seed=seed) as world:
                await test(world)

    run_virtual(main, seed=seed)
