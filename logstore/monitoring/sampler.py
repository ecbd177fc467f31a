"""Walks a sidecar's parts and takes a snapshot of their figures.

Invariants:
* A walk yields to other tasks as all long walks do (`logstore.kafka.pace`), and one walk runs at a time, however many
  clients ask.
* A snapshot is used again for REUSE times as long as it took: clients that ask without a pause cost a bounded share of
  the processor.
* What is collected is bounded: MAX_OFFSETS committed offsets, MAX_QUERIES queries; what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from logstore.base.clock import Clock
from logstore.cluster.figures import ClusterFigures, ClusterMeter
from logstore.disk.meter import DiskMeter
from logstore.disk.shared_state import SharedState
from logstore.engine import StoreEngine
from logstore.epochs.epochs import Epochs
from logstore.epochs.query import QueryProgress
from logstore.errors import NotLeader
from logstore.kafka.groups.group import ConsumerGroup
from logstore.kafka.groups.service import GroupService
from logstore.kafka.pace import Pace
from logstore.kafka.request_meter import RequestMeter
from logstore.kafka.server import KafkaServer
from logstore.log.readers import Readers
from logstore.log.served import ServedStore, ServedStream, ServedTopic
from logstore.monitoring.event_log import EventLog
from logstore.monitoring.health import Health
from logstore.monitoring.process import DiskFigures, ProcessFigures, disk_figures, process_figures

if TYPE_CHECKING:
    from logstore.tier.service import TierMeter

REUSE: Final = 20
"""A snapshot that took a millisecond is used for 20: at most a twentieth of the processor goes into snapshots."""
RATE_S: Final = 1.0
"""Rates are taken over at least this time."""
STATE_S: Final = 10.0
"""How often the queries' shared state is counted: that reads directories."""
MAX_OFFSETS: Final = 50_000
"""Committed offsets in one snapshot: a tenth of a second of walking."""
MAX_QUERIES: Final = 1_000


class Here(NamedTuple):
    """What one host of a cluster has at a time, and a host alone always: groups that it coordinates, epochs, registered
    readers. None: they are not here now.
    """

    groups: Callable[[], Sequence[GroupService]]
    epochs: Callable[[], Epochs | None]
    readers: Callable[[], Readers | None]


class Served(NamedTuple):
    """The parts of a sidecar that clients use, and the host's own store, which has its disk and its memory.

    `store` has what clients see.
    """

    engine: StoreEngine
    store: ServedStore
    server: KafkaServer
    here: Here
    cluster: ClusterMeter | None = None
    """None: the sidecar is alone."""
    tier: TierMeter | None = None
    """None: sealed chunks stay on the disk."""


@dataclass(frozen=True, slots=True)
class Watched:
    """All that is looked at."""

    served: Served
    disk: DiskMeter
    requests: RequestMeter
    events: EventLog
    health: Health
    state: SharedState | None
    data_dir: Path
    clock: Clock

    def served_so_far(self) -> int:
        """A number that grows with each request that is answered, and with all that goes to or from the disk."""
        answered = sum(times.count for _, times in self.requests.used())
        return answered + self.disk.writes + self.disk.read_bytes


class StreamFigures(NamedTuple):
    """A stream's offsets, bytes and what went through it since the start."""

    topic: ServedTopic
    partition: int
    log_start: int
    high_watermark: int
    size_bytes: int
    chunks: int
    appended_records: int
    appended_bytes: int
    fetched_bytes: int


class LagFigures(NamedTuple):
    """A group's position in a stream, and how far it is behind; None: another host leads the stream."""

    topic: str
    partition: int
    offset: int
    lag: int | None


class GroupFigures(NamedTuple):
    """A group and its positions; `lag` is that of all positions together, as far as it is known."""

    name: str
    state: str
    members: int
    positions: list[LagFigures]
    lag: int


@dataclass(frozen=True, slots=True)
class SampledFigures:
    """The figures of one moment."""

    at_s: float
    wall_ms: int
    took_s: float
    streams: dict[ServedStream, StreamFigures]
    """Of those that this host leads."""
    index_bytes: int
    groups: list[GroupFigures]
    groups_left_out: int
    queries: list[QueryProgress]
    queries_left_out: int
    staged_bytes: Mapping[str, int]
    """By query."""
    state_bytes: Mapping[str, int]
    """Shared memory by query."""
    disk: DiskFigures
    process: ProcessFigures
    messages: Mapping[str, int]
    """Records appended since the start, by topic."""
    requests: Mapping[int, int]
    """Answered requests, by API key."""
    syncs: int
    sync_s: float
    """The time that all syncs of files took together."""
    cluster: ClusterFigures | None


def _figures(topic: ServedTopic, partition: int, stream: ServedStream) -> StreamFigures:
    """Raises NotLeader."""
    return StreamFigures(
        topic,
        partition,
        stream.log_start_offset,
        stream.high_watermark,
        stream.size_bytes,
        stream.chunk_count,
        stream.appended_records,
        stream.appended_bytes,
        stream.fetched_bytes,
    )


def _machine(data_dir: Path) -> tuple[DiskFigures, ProcessFigures]:
    """What the operating system says. Blocks: with many open files it takes milliseconds."""
    return disk_figures(data_dir), process_figures()


class Sampler:
    """Takes snapshots of one sidecar."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self._taking = trio.Lock()
        self._latest: SampledFigures | None = None
        self._before: SampledFigures | None = None
        self._state_bytes: Mapping[str, int] = {}
        self._state_at_s = -STATE_S

    async def snapshot(self) -> tuple[SampledFigures, SampledFigures | None]:
        """A snapshot of now, or of a moment ago, and one of RATE_S seconds before it or more (None: the first)."""
        async with self._taking:
            latest = self._latest
            if latest is not None and self.watched.clock.monotonic_s() < latest.at_s + REUSE * latest.took_s:
                return latest, self._before
            if latest is not None and (self._before is None or latest.at_s >= self._before.at_s + RATE_S):
                self._before = replace(latest, groups=[])  # rates need only what is counted
            self._latest = await self._take()
            return self._latest, self._before

    async def _take(self) -> SampledFigures:
        watched = self.watched
        begun_s = watched.clock.monotonic_s()
        disk, process = await trio.to_thread.run_sync(_machine, watched.data_dir)
        if watched.state is not None and begun_s >= self._state_at_s + STATE_S:
            self._state_bytes = await trio.to_thread.run_sync(watched.state.usage)
            self._state_at_s = begun_s
        working_s = watched.clock.monotonic_s()
        streams, messages = await self._streams()
        index_bytes = await self._indexes()
        groups, groups_left_out = await self._groups()
        cluster = None if watched.served.cluster is None else await watched.served.cluster.take()
        epochs = watched.served.here.epochs()
        queries = [] if epochs is None else epochs.progress()
        found = () if epochs is None else epochs.summaries(epochs.names())
        staged = {query.query: query.staged_bytes for query in found if query.staged_bytes}
        now_s = watched.clock.monotonic_s()
        return SampledFigures(
            at_s=now_s,
            wall_ms=watched.clock.wall_ms(),
            took_s=now_s - working_s,
            streams=streams,
            index_bytes=index_bytes,
            groups=groups,
            groups_left_out=groups_left_out,
            queries=queries[:MAX_QUERIES],
            queries_left_out=max(0, len(queries) - MAX_QUERIES),
            staged_bytes=staged,
            state_bytes=self._state_bytes,
            disk=disk,
            process=process,
            messages=messages,
            requests={key: times.count for key, times in watched.requests.used()},
            syncs=watched.disk.syncs.count,
            sync_s=watched.disk.syncs.sum_s,
            cluster=cluster,
        )

    async def _streams(self) -> tuple[dict[ServedStream, StreamFigures], dict[str, int]]:
        """The figures of every stream that this host leads, topic by topic; records by topic."""
        pace = Pace()
        found: dict[ServedStream, StreamFigures] = {}
        messages: dict[str, int] = {}
        for topic in list(self.watched.served.store.topics.values()):
            messages[topic.name] = 0
            for partition, stream in enumerate(list(topic.partitions)):
                await pace.step()
                messages[topic.name] += stream.appended_records
                if stream.is_leader:
                    with suppress(NotLeader):  # it is being taken over at this moment
                        found[stream] = _figures(topic, partition, stream)
        return found, messages

    async def _indexes(self) -> int:
        """The bytes of all indexes in memory: of streams, and of copies of chunks."""
        store, pace = self.watched.served.engine.store, Pace()
        size_bytes = store.indexes.size_bytes
        for stream in (*store.streams(), *store.replicas.logs()):
            await pace.step()
            if stream.chunks and stream.chunks[-1].index is not None:
                size_bytes += stream.chunks[-1].index.size_bytes
        return size_bytes

    async def _groups(self) -> tuple[list[GroupFigures], int]:
        """The groups with their positions, and how many groups were left out."""
        pace, left = Pace(), MAX_OFFSETS
        found: list[GroupFigures] = []
        groups = [
            (service, group) for service in self.watched.served.here.groups() for group in service.coordinator.groups()
        ]
        for service, group in groups:
            left -= 1 + service.count(group.group_id)
            if left < 0:
                continue
            found.append(await self._group(service, group, pace))
        return found, len(groups) - len(found)

    async def _group(self, service: GroupService, group: ConsumerGroup, pace: Pace) -> GroupFigures:
        topics = self.watched.served.store.topics
        committed = service.committed(group.group_id)
        positions: list[LagFigures] = []
        await pace.step()
        for where in committed.known:
            await pace.step()
            position = committed.of(where)
            topic = topics.get(where.topic)
            if position is None or topic is None or where.partition >= len(topic.partitions):
                continue
            stream = topic.partitions[where.partition]
            lag = max(0, stream.high_watermark - position.offset) if stream.is_leader else None
            positions.append(LagFigures(where.topic, where.partition, position.offset, lag))
        total = sum(position.lag or 0 for position in positions)
        return GroupFigures(group.group_id, group.state.value, len(group.members), positions, total)
