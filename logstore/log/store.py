"""All topics, streams and ledgers of a sidecar, for the request handlers. Does no I/O itself.

Invariants:
* A topic exists if and only if the catalogue has an entry for it. Its directory is created before the entry and removed
  after it; a partition's directory is created with its first chunk.
* Changes of one topic run one after the other, so no change overwrites another or takes effect after a deletion.
* A log start is durable in the catalogue before any data before it is removed.
* Producer ids are reserved durably in blocks, so no id is allocated twice, even after a crash.
* `open` returns only when all data that the store will serve is durable. Entries for the ledger of epochs
  in the journal are moved durably to that ledger before the ledger is read and before the journal's files are removed.

Sources: docs/format.md (data directory), DESIGN (recovery of a sidecar).
"""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from logstore.base.clock import Clock
from logstore.base.events import LogEvent, Report
from logstore.base.fields import shown
from logstore.errors import (
    InvalidPartitions,
    InvalidReplicas,
    StorageFailed,
    TopicExists,
    UnknownTopicOrPartition,
)
from logstore.events import (
    READER_RELEASED,
    READER_REMOVED,
    TOPIC_ALTERED,
    TOPIC_CREATED,
    TOPIC_DELETED,
    TOPIC_GROWN,
)
from logstore.format.index import UNKNOWN_TIME
from logstore.interfaces import FileSystem
from logstore.log.background import BackgroundJobs
from logstore.log.catalogue import (
    PRODUCER_IDS,
    RETENTION_CLOCK,
    TOPIC,
    check_partitions,
    start_key,
    topic_entry,
)
from logstore.log.chunks import IndexCache
from logstore.log.cleaning import CleaningLimits, LogCleaner
from logstore.log.coroutines import all_settled, start
from logstore.log.data_directory import STREAMS_DIRECTORY, DirectoryIdentity, prepare_directory, remove_tree
from logstore.log.jobs import JobQueue, JobSource, MakeDirectory, Operation, RemoveDirectory, RemoveFile, SyncDirectory
from logstore.log.journal import DIRECTORY as JOURNAL_DIRECTORY
from logstore.log.journal import Journal, JournalLimits
from logstore.log.journal_replay import Decided, nothing_decided, read_journal
from logstore.log.ledger import Ledger
from logstore.log.opening import Each, OpenedStream, StoredStream, open_streams, recover_from_files
from logstore.log.producers import ProducerTable
from logstore.log.quiet import QuietStreams
from logstore.log.readers import (
    MAX_READERS,
    RELEASED_AT_ONCE,
    CleanLimit,
    HoldLimits,
    Readers,
    StreamBounds,
    StreamId,
)
from logstore.log.replicas import ReplicaChunks
from logstore.log.retention import RetentionClock, held_records, must_roll
from logstore.log.rolling import ChunkRoller
from logstore.log.serial_queue import SerialQueue
from logstore.log.space import DEFAULT_RESERVE, SpaceGuard, make_way
from logstore.log.stream import Stream
from logstore.log.stream_state import RecoveredStream, RollingStream, StreamName, TrimmedStream
from logstore.log.tail import Tail
from logstore.log.ticket import Ticket
from logstore.log.tiered import TierLedger
from logstore.log.topics import TopicConfig, check_name, named_and_reset, parse_config, require_tier

PRODUCER_ID_BLOCK = 1000
DEFAULT_TAIL_BYTES = 16 << 20
"""Of the newest batches of all streams, in memory."""
READABLE_NAME_CHARACTERS = 180
MAKE_ROOM_INTERVAL_S = 10.0
"""While the disk is short of room, retention is applied so often, rather than every `retention_check_interval_ms`."""
STREAMS_PER_TURN = 200
"""Streams that a walk over all of them looks at before other work runs: about a millisecond."""
NEW_STREAMS_PER_TURN = 50
"""Streams of a new topic that are made before other work runs: about a millisecond."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Limits and defaults of a store. Sizes in bytes, times in ms."""

    io_window: int = 8
    tail_bytes: int = DEFAULT_TAIL_BYTES
    journal: JournalLimits = field(default_factory=JournalLimits)
    node_id: int = 0
    producer_expiry_ms: int = 24 * 3600 * 1000
    retention_check_interval_ms: int = 300_000
    disk_reserve_bytes: int = DEFAULT_RESERVE
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    hold_limits: HoldLimits = field(default_factory=HoldLimits)
    cleaning: CleaningLimits = field(default_factory=CleaningLimits)
    has_tier: bool = False


@dataclass(slots=True)
class Topic:
    """A topic and its streams, one for each partition."""

    name: str
    topic_id: uuid.UUID
    directory: str
    overrides: dict[str, str]
    config: TopicConfig
    partitions: list[Stream]
    internal: bool = False


class StoreEnvironment(NamedTuple):
    """What a store needs from its surroundings."""

    fs: FileSystem
    clock: Clock
    new_id: Callable[[], uuid.UUID]
    report: Report


class Store:
    """The streams, topics and ledgers of one sidecar."""

    default_replicas = 1

    def __init__(self, environment: StoreEnvironment, settings: StoreSettings, identity: DirectoryIdentity) -> None:
        self.clock = environment.clock
        self.settings = settings
        self.cluster_id = identity.cluster_id
        self.node_id = settings.node_id
        self.queue = JobQueue(settings.io_window)
        self.tail = Tail(settings.tail_bytes)
        self.indexes = IndexCache()
        self.journal = Journal(settings.journal, identity.journal_key, self.notify, environment.report)
        self.topics: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._new_id = environment.new_id
        self._report = environment.report
        self.space = SpaceGuard(settings.disk_reserve_bytes, self.notify, environment.report, self.clock.wall_ms)
        self.space.when_short(self._make_room)
        self.space.when_short(self.journal.give_up_spare)
        self._background = BackgroundJobs(self.notify)
        self._turns = BackgroundJobs(self.notify)
        self._creating: dict[str, Ticket[Topic]] = {}
        self._roller = ChunkRoller(self.notify)
        self._changes = SerialQueue()
        self._trims = 0
        self._room_made_s: float | None = None
        self._producer_ids = range(0)
        self._reservation: Ticket[None] = Ticket.succeeded(None)
        fs = environment.fs
        self.catalogue = Ledger.open(fs, "catalogue", self.notify)
        self.quiet = QuietStreams.open(fs, self.notify, environment.report, self.indexes)
        self.cleaner = LogCleaner(self.notify, environment.report, self.indexes, settings.cleaning, self.quiet)
        self.retention_clock = RetentionClock(self.clock, int(self.catalogue.get(RETENTION_CLOCK) or 0))
        self.epochs = Ledger.open(fs, "epochs", self.notify)
        self.groups = Ledger.open(fs, "groups", self.notify)
        self.access = Ledger.open(fs, "access", self.notify)
        self.tier = TierLedger.open(fs, self.notify)
        self.readers = Readers(
            Ledger.open(fs, "readers", self.notify), settings.hold_limits, self.retention_clock.now_ms, self._bounds
        )

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        clock: Clock,
        settings: StoreSettings,
        *,
        new_id: Callable[[], uuid.UUID],
        report: Report,
        each: Each = map,
        decided: Decided = nothing_decided,
    ) -> "Store":
        """Open the data directory, or create it, and recover every stream. Blocks. `each` applies the recovery of a
        stream to many, as `map` does, or on several threads. `decided`: what the ledger of epochs gets of what the
        journal has for it; without it, a journal with something for that ledger is refused.

        Raises UnknownFormatVersion, CorruptFile, OSError.
        """
        make_way(fs)
        identity = prepare_directory(fs, new_id)
        store = cls(StoreEnvironment(fs, clock, new_id, report), settings, identity)
        store._recover(fs, each, decided)
        store.space.look_now(fs)
        store.journal.fit(fs.space().total_bytes)
        return store

    def _recover(self, fs: FileSystem, each: Each, decided: Decided) -> None:
        known: set[str] = set()
        journal = read_journal(fs, self.journal.key, self.report)
        if changes := decided(self.epochs, journal.changes_of(self.epochs.name)):
            self.epochs.put_now(fs, changes)
        stored: list[tuple[Topic, StoredStream]] = []
        for key, value in self.catalogue.items(TOPIC):
            entry = json.loads(value)
            name = key[len(TOPIC) :]
            overrides = dict(entry["config"])
            config = parse_config(overrides, self.settings.topic_defaults)
            topic = Topic(name, uuid.UUID(entry["id"]), entry["directory"], overrides, config, [])
            known.add(topic.directory)
            there = set(fs.list_directory(topic.directory))
            for partition in range(entry["partitions"]):
                first = max(self._log_start(topic, partition), self.tier.local_start(topic.topic_id.hex, partition))
                directory = f"{topic.directory}/{partition}"
                stored.append((topic, StoredStream(directory, first, str(partition) in there)))
            self.topics[name] = self._by_id[topic.topic_id] = topic
        now_ms = self.clock.wall_ms()
        recover = partial(recover_from_files, fs, self.quiet, journal.parts, now_ms, self.report)
        opened = open_streams(fs, self.quiet, recover, [at for _, at in stored], each)
        self.replicas = ReplicaChunks.open(fs, self, journal, each)
        self._adopt(stored, opened, fs)
        # The streams hold it all now, synced: it must not be found again behind what they append from here on.
        self.journal.start_behind(journal.serial, journal.generation)
        for path in journal.paths:
            fs.remove(path)
        # Also if there is none: a killed process may have removed one with a block that failed, in the page cache only.
        # If a power cut brought that back, the next start would put its parts over what is appended now.
        fs.sync_directory(JOURNAL_DIRECTORY)
        self._set_retention_clock()
        self.readers.reconcile()
        for name in fs.list_directory(STREAMS_DIRECTORY):
            if f"{STREAMS_DIRECTORY}/{name}" not in known:
                remove_tree(fs, f"{STREAMS_DIRECTORY}/{name}")

    def _adopt(
        self, stored: Sequence[tuple[Topic, StoredStream]], opened: Sequence[OpenedStream], fs: FileSystem
    ) -> None:
        """Make streams of what was opened."""
        changed: dict[str, None] = {}
        for (topic, at), (recovered, is_quiet) in zip(stored, opened, strict=True):
            stream = Stream(topic.name, len(topic.partitions), at.directory, topic.config, self, recovered)
            self.tier.adopt(stream, topic.topic_id.hex, self._log_start(topic, stream.partition))
            topic.partitions.append(stream)
            if is_quiet:
                self.quiet.opened_asleep(stream)
            elif at.is_there:
                changed[topic.directory] = None
                self.quiet.opened_awake(stream)
        # A killed process may have left the names of partitions in the page cache only.
        for directory in changed:
            fs.sync_directory(directory)
        self.quiet.keep_only([*(at.directory for _, at in stored), *self.replicas.directories()])

    def _log_start(self, topic: Topic, partition: int) -> int:
        return int(self.catalogue.get(start_key(topic.topic_id, partition)) or 0)

    def _set_retention_clock(self) -> None:
        """Continue the clock from the latest known time; data without an index block was written no later than now."""
        chunks = [chunk for stream in self.streams() for chunk in stream.chunks]
        self.retention_clock.is_behind(max((chunk.written_ms for chunk in chunks), default=0))
        self.retention_clock.is_behind(self.readers.newest_ms())
        now_ms = self.retention_clock.now_ms()
        for stream in self.streams():
            if stream.chunks and stream.chunks[-1].written_ms == UNKNOWN_TIME:
                stream.chunks[-1].written_ms = now_ms

    # ---- what streams need from their store (StreamHost)

    def notify(self, source: JobSource) -> None:
        """Note that `source` may have disk work."""
        self.queue.ready(source)

    def roll_soon(self, stream: RollingStream) -> None:
        """Note that a stream's last chunk is to be sealed, also when nothing is appended."""
        self._roller.add(stream)

    def report(self, event: LogEvent, /, **fields: object) -> None:
        """Report an event to the operator."""
        self._report(event, **fields)

    def save_log_start(self, stream: StreamName, offset: int) -> Ticket[None]:
        """Make a stream's log start durable."""
        topic = self.topics.get(stream.topic)
        if topic is None:
            return Ticket.failed(UnknownTopicOrPartition(f"{stream.topic} has been deleted"))
        return self.catalogue.put({start_key(topic.topic_id, stream.partition): str(offset).encode()})

    def trim_limit(self, stream: TrimmedStream, wanted: int) -> int:
        """The offset up to which registered readers let retention trim a stream; releases those that hold too much."""
        topic = self.topics.get(stream.topic)
        if topic is None:
            return wanted
        stream_id = StreamId(topic.topic_id.hex, stream.partition)
        return self.readers.trim_limit(
            stream_id, stream.log_start_offset, wanted, held_records(stream.kept_chunks, wanted)
        )

    def _stream_of(self, stream_id: StreamId) -> Stream | None:
        topic = self._by_id.get(uuid.UUID(hex=stream_id.topic_id))
        if topic is None or not 0 <= stream_id.partition < len(topic.partitions):
            return None
        return topic.partitions[stream_id.partition]

    def _bounds(self, stream_id: StreamId) -> StreamBounds | None:
        stream = self._stream_of(stream_id)
        if stream is None:
            return None
        # A trim that is being written takes its records: nobody may rely on them any more.
        return StreamBounds(stream.name, max(stream.start_asked, stream.log_start_offset), stream.high_watermark)

    # ---- topics

    def topic(self, name: str) -> Topic:
        """The topic called `name`. Raises UnknownTopicOrPartition."""
        topic = self.topics.get(name)
        if topic is None:
            # Cut: an answer may say it for each of 10,000 partitions, of a name of 32 KiB.
            raise UnknownTopicOrPartition(f"topic {shown(name)} does not exist")
        return topic

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        """The topic with this id, or None."""
        return self._by_id.get(topic_id)

    def stream(self, topic: str, partition: int) -> Stream:
        """One stream. Raises UnknownTopicOrPartition."""
        partitions = self.topic(topic).partitions
        if not 0 <= partition < len(partitions):
            raise UnknownTopicOrPartition(
                f"topic {topic!r} has no partition {partition}, only 0 to {len(partitions) - 1}"
            )
        return partitions[partition]

    def streams(self) -> Sequence[Stream]:
        """Every stream."""
        return [stream for topic in self.topics.values() for stream in topic.partitions]

    def replicas_of(self, wanted: int) -> int:
        """The number of replicas of a new topic: 1. Raises InvalidReplicas."""
        if wanted not in (1, -1):
            raise InvalidReplicas(f"replication factor {wanted}: there is 1 node, so it must be 1 (or -1)")
        return 1

    def check_topic(self, name: str, partitions: int, config: Mapping[str, str], replicas: int = -1) -> TopicConfig:
        """Make the checks of `create_topic`, and raise what it raises."""
        self.replicas_of(replicas)
        check_name(name)
        if name in self.topics:
            raise TopicExists(f"topic {name!r} exists")
        check_partitions(partitions)
        return require_tier(parse_config(config, self.settings.topic_defaults), has_tier=self.settings.has_tier)

    def creation(self, name: str) -> Ticket[Topic] | None:
        """The creation of this topic that is in progress, or None."""
        return self._creating.get(name)

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str], replicas: int = -1) -> Ticket[Topic]:
        """Create a topic; settles once the topic is durable. Joins a creation of this name that is in progress.

        Raises InvalidTopic, TopicExists, InvalidPartitions, InvalidConfig, InvalidReplicas; the ticket fails with
        StorageFailed.
        """
        parsed = self.check_topic(name, partitions, config, replicas)
        if name in self._creating:
            return self._creating[name]
        topic_id = self._new_id()
        directory = f"{STREAMS_DIRECTORY}/{name[:READABLE_NAME_CHARACTERS]}.{topic_id.hex}"
        topic = Topic(name, topic_id, directory, dict(config), parsed, [])
        operations: list[Operation] = [MakeDirectory(directory), SyncDirectory(STREAMS_DIRECTORY)]
        self._creating[name] = start(self._create(topic, partitions, operations))
        return self._creating[name]

    async def _create(self, topic: Topic, partitions: int, operations: list[Operation]) -> Topic:
        saved = start(self._save_topic(topic, partitions, operations))
        await saved.settled()
        del self._creating[topic.name]
        return saved.result()

    def add_partitions(self, name: str, total: int) -> Ticket[Topic]:
        """Grow a topic to `total` partitions.

        The ticket fails with UnknownTopicOrPartition, InvalidPartitions or StorageFailed.
        """
        return self._changes.run(name, lambda: self._add_partitions(name, total))

    async def _add_partitions(self, name: str, total: int) -> Topic:
        topic = self.topic(name)
        check_partitions(total)
        if total <= len(topic.partitions):
            raise InvalidPartitions(f"topic {name!r} has {len(topic.partitions)} partitions; {total} would not be more")
        return await self._save_topic(topic, total, [])

    def alter_topic(
        self, name: str, changes: Mapping[str, str | None], *, resets_others: bool = False
    ) -> Ticket[Topic]:
        """Change settings of a topic; None resets a setting to its default, `resets_others` all that are not named.

        The ticket fails with UnknownTopicOrPartition, InvalidConfig or StorageFailed.
        """
        return self._changes.run(name, lambda: self._alter_topic(name, changes, resets_others=resets_others))

    async def _alter_topic(self, name: str, named: Mapping[str, str | None], *, resets_others: bool) -> Topic:
        topic = self.topic(name)
        changes = named_and_reset(topic.overrides, named, resets_others=resets_others)
        kept = {key: value for key, value in topic.overrides.items() if key not in changes}
        overrides = kept | {key: value for key, value in changes.items() if value is not None}
        parse_config({key: None for key, value in changes.items() if value is None})
        has_tier = self.settings.has_tier or topic.config.is_tiered
        parsed = require_tier(parse_config(overrides, self.settings.topic_defaults), has_tier=has_tier)
        await self.catalogue.put({TOPIC + name: topic_entry(topic, len(topic.partitions), overrides)})
        topic.overrides, topic.config = overrides, parsed
        for stream in topic.partitions:
            stream.config = parsed
        shown = " ".join(f"{key}={'default' if value is None else value}" for key, value in sorted(changes.items()))
        self.report(TOPIC_ALTERED, topic=name, changes=shown)
        return topic

    def delete_topic(self, name: str) -> Ticket[None]:
        """Delete a topic; settles once the deletion is durable. Its files are removed later.

        The ticket fails with UnknownTopicOrPartition or StorageFailed.
        """
        return self._changes.run(name, lambda: self._delete_topic(name))

    async def _delete_topic(self, name: str) -> None:
        topic = self.topic(name)
        gone: dict[str, bytes | None] = {TOPIC + name: None}
        gone.update({start_key(topic.topic_id, stream.partition): None for stream in topic.partitions})
        try:
            await self.catalogue.put(gone)
        except StorageFailed:
            # The deletion may be on the disk all the same. It is taken back at once, or what the topic acknowledges
            # from here on would go with it at the next start.
            await self.catalogue.put({}).settled()
            raise
        if self.topics.get(name) is topic:
            del self.topics[name]
        self._by_id.pop(topic.topic_id, None)
        self.readers.forget_topic(topic.topic_id.hex)
        self.quiet.forget(topic.partitions)
        self._discard(topic)
        self.report(TOPIC_DELETED, topic=name, id=topic.topic_id, partitions=len(topic.partitions))

    def _discard(self, topic: Topic) -> None:
        operations: list[Operation] = []
        for stream in topic.partitions:
            stream.abandon()
            for chunk in stream.chunks:
                self.indexes.forget(chunk.index_path)
                paths = (chunk.log_path, chunk.index_path, chunk.producers_path, chunk.cleaned_path)
                operations += [RemoveFile(path, optional=True) for path in paths]
            operations.append(RemoveDirectory(stream.directory, optional=True))
        operations.append(RemoveDirectory(topic.directory, optional=True))
        self._background.run(operations)

    async def _save_topic(self, topic: Topic, total: int, operations: list[Operation]) -> Topic:
        """Create the directory first, then write the catalogue entry, then create the streams, in turns between which
        other work runs. Clients see all of them at once.
        """
        await self._background.run(operations)
        await self.catalogue.put({TOPIC + topic.name: topic_entry(topic, total, topic.overrides)})
        before = len(topic.partitions)
        added: list[Stream] = []
        for partition in range(before, total):
            if len(added) % NEW_STREAMS_PER_TURN == NEW_STREAMS_PER_TURN - 1:
                await self._turns.run([])
            directory = f"{topic.directory}/{partition}"
            fresh = RecoveredStream([], ProducerTable(), 0, 0)
            added.append(Stream(topic.name, partition, directory, topic.config, self, fresh))
        topic.partitions += added
        self.topics[topic.name] = self._by_id[topic.topic_id] = topic
        if before:
            self.report(TOPIC_GROWN, topic=topic.name, partitions=total, before=before)
        else:
            self.report(TOPIC_CREATED, topic=topic.name, id=topic.topic_id, partitions=total)
        return topic

    # ---- producer ids

    def allocate_producer_id(self) -> Ticket[int]:
        """Allocate a producer id that was never allocated before. Fails with StorageFailed."""
        return start(self._allocate_producer_id())

    async def _allocate_producer_id(self) -> int:
        while not self._producer_ids:
            if self._reservation.done:
                self._reservation = start(self._reserve_producer_ids())
            await self._reservation
        first, self._producer_ids = self._producer_ids[0], self._producer_ids[1:]
        return first

    async def _reserve_producer_ids(self) -> None:
        first = int(self.catalogue.get(PRODUCER_IDS) or 0)
        block = range(first, first + PRODUCER_ID_BLOCK)
        await self.catalogue.put({PRODUCER_IDS: str(block.stop).encode()})
        self._producer_ids = block

    # ---- time and end

    def tick(self) -> None:
        """Apply retention and forget expired producers. The caller runs this every `retention_check_interval_ms`."""
        self._save_retention_clock()
        start(self._apply_retention(self.readers.save()))
        for name, removed in self.readers.remove_idle():
            removed.add_callback(partial(self._report_removal, name))

    def _make_room(self) -> None:
        """Apply retention before its next check, because the disk is short of room."""
        now_s = self.clock.monotonic_s()
        if self._room_made_s is None or now_s - self._room_made_s >= MAKE_ROOM_INTERVAL_S:
            self._room_made_s = now_s
            start(self._apply_retention(self.readers.save()))

    def clean(self) -> Ticket[None]:
        """Remove control records of state that no reader needs from sealed chunks; settles when the round has ended."""
        found = [
            (at, stream) for at in self.readers.streams_with_state() if (stream := self._stream_of(at)) is not None
        ]
        return self.cleaner.clean([(stream, partial(self._clean_limit, at, stream)) for at, stream in found])

    def _clean_limit(self, stream_id: StreamId, stream: Stream) -> CleanLimit | None:
        # What is in the tier stays as it is, and records of state may be missing only in front of those that are there.
        is_tiered = bool(stream.tiered) or stream.config.is_tiered
        return None if is_tiered else self.readers.clean_limit(stream_id, stream.log_start_offset)

    def save_readers(self) -> None:
        """Make durable what readers acknowledged, report releases, let cleaning go on, and write out what streams have
        in the journal only. The caller runs this every few seconds.
        """
        self.readers.save()
        self.cleaner.more()
        self.journal.tick()
        self.replicas.tick()
        if not self._trims:  # else one line for all streams that a reader is released from
            self._report_releases()

    async def _apply_retention(self, saves: Sequence[Ticket[None]]) -> None:
        """Trim with the held offsets that are durable once the readers' acknowledgements are written, or could not be.

        Where many readers are released, writes in between let other work run; so do turns between many streams.
        """
        await all_settled(saves)
        self._trims += 1
        for number, stream in enumerate(self.streams(), 1):
            if number % STREAMS_PER_TURN == 0:
                await self._turns.run([])
            stream.producers.expire(self.clock.wall_ms() - self.settings.producer_expiry_ms)
            if not stream.chunks:
                continue
            released = RELEASED_AT_ONCE
            while released >= RELEASED_AT_ONCE and not stream.deleted:
                before = self.readers.released_streams
                stream.apply_retention()
                released = self.readers.released_streams - before
                if released:
                    await all_settled(self.readers.save(1))
            if must_roll(stream.chunks, stream.config, stream.log_start_offset, self.retention_clock.now_ms()):
                self.roll_soon(stream)
        self._trims -= 1
        self.clean()
        while self.readers.has_releases:
            self._report_releases()
            await all_settled(self.readers.save())

    def _report_releases(self) -> None:
        for release in self.readers.take_releases():
            self.report(READER_RELEASED, **release._asdict())

    def _report_removal(self, name: str, removed: Ticket[bool]) -> None:
        if removed.error is None and removed.result():
            self.report(READER_REMOVED, reader=name, why="it held and acknowledged nothing for too long")

    def _save_retention_clock(self) -> Ticket[None]:
        return self.catalogue.put({RETENTION_CLOCK: str(self.retention_clock.now_ms()).encode()})

    def close(self) -> Ticket[None]:
        """Refuse appends, finish pending ones, leave nothing to scan at the next start. Settles when all streams are
        closed.
        """
        streams = [*self.streams(), *self.replicas.logs()]
        closing = [stream.close() for stream in streams]
        closing.append(self._save_retention_clock())
        closing.append(self.cleaner.stop())
        closing.extend(self.readers.save(MAX_READERS))
        return start(self._close(closing, streams))

    async def _close(self, closing: Sequence[Ticket[Any]], streams: Sequence[Stream]) -> None:
        await all_settled(closing)
        await all_settled([*(stream.sync_backlog() for stream in streams), self.replicas.note_all()])
        await self.journal.settle()
        await self.quiet.rest().settled()  # a round under way
        await self.quiet.rest(at_once=True).settled()
        await self.journal.close()
