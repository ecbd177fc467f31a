"""A store on a simulated disk, with a client that records its requests and the answers.

All parts are real; only threads, time and the disk are simulated. The client's view is recorded in a `History`.
"""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from logstore.epochs.epochs import Epochs
from logstore.epochs.journaled import decided_in_journal
from logstore.epochs.parts import of_host
from logstore.epochs.staging import Staging
from logstore.errors import CairnError
from logstore.format.control import FOOTPRINTS_TYPE, Begin, End, encode_control, encode_control_record
from logstore.format.epoch_api import AbortRequest, EpochCommitReply, EpochCommitRequest, Part, StageRequest, TaskOutput
from logstore.format.records import Record, decode_batch, encode_batch
from logstore.interfaces import FileSystem, ReadableFiles
from logstore.log.chunks import ChunkView
from logstore.log.cleaning import CleaningLimits
from logstore.log.jobs import Operation
from logstore.log.journal import JournalLimits
from logstore.log.readers import StreamId
from logstore.log.reading import find_timestamp, read_chunk
from logstore.log.store import Store, StoreSettings
from logstore.log.stream import Stream
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig
from logstore.testing.clock import ManualClock
from logstore.testing.controls import scan_all
from logstore.testing.driver import JobDriver
from logstore.testing.history import History, PromiseBroken, ReceivedBatch, StreamHistory, content_of, found_batches
from logstore.testing.reports import RecordedReports
from logstore.testing.simdisk import SimDisk
from logstore.testing.tiered_store import TieredStore
from logstore.tier.interface import ObjectStore

READ_BYTES = 1 << 20
FIRST_TIMESTAMP = 1_700_000_000_000
FIRST_ATTEMPT = "a0"


def unchanged(fs: FileSystem) -> FileSystem:
    """The file system without a planted fault."""
    return fs


@dataclass(frozen=True)
class Setup:
    """How a store is opened. `plant` and `rewrite` plant faults: between store and disk, and in jobs."""

    settings: StoreSettings = field(
        default_factory=lambda: StoreSettings(
            topic_defaults=TopicConfig(segment_bytes=512),
            cleaning=CleaningLimits(gain_bytes=1, gain_share=0.0, piece_bytes=200, budget_bytes=300),
            journal=JournalLimits(file_bytes=0),
        )
    )
    plant: Callable[[FileSystem], FileSystem] = unchanged
    rewrite: Callable[[Sequence[Operation]], Sequence[Operation]] | None = None
    tier: Callable[[FileSystem], ObjectStore] | None = None
    """Opens the object store of sealed chunks, on the same disk; None: there is none."""
    seed: int | None = None
    """Order in which concurrent jobs take steps; None: oldest first."""


def journaled(setup: Setup | None = None) -> Setup:
    """A setup with a journal of a few hundred bytes: small appends go there, and its files are soon full."""
    before = setup or Setup()
    limits = JournalLimits(file_bytes=900, max_part_bytes=400, max_unwritten_bytes=1600, stream_unwritten_bytes=1200)
    return replace(before, settings=replace(before.settings, journal=limits))


class ListGroup:
    """An append group whose batches are in memory."""

    def __init__(self, query: str, epoch: int, pieces: Sequence[bytearray]) -> None:
        self._query, self._epoch = query, epoch
        self._pieces = [bytearray(piece) for piece in pieces]
        self.byte_count = sum(len(piece) for piece in pieces)
        self._batch_count = len(pieces)

    def begin(self, now_ms: int) -> bytearray:
        """The BEGIN control batch."""
        begin = Begin(self._query, self._epoch, 1, ("a",), self.byte_count, self._batch_count)
        return encode_control(begin, timestamp_ms=now_ms)

    def next_batches(self) -> Ticket[bytearray | None]:
        """The next batches, at once."""
        return Ticket.succeeded(self._pieces.pop(0) if self._pieces else None)

    def end(self, now_ms: int) -> bytearray:
        """The END control batch."""
        return encode_control(End(self._query, self._epoch, 1, b"positions"), timestamp_ms=now_ms)


class SimulatedStore:
    """A store, its disk and its client."""

    def __init__(self, disk: SimDisk, history: History, setup: Setup, clock: ManualClock | None = None) -> None:
        self.disk = disk
        self.history = history
        self.setup = setup
        self.clock = clock or ManualClock(FIRST_TIMESTAMP)
        self.reports = RecordedReports()
        self._open()

    def _open(self) -> None:
        self.is_open = False
        self.fs = self.setup.plant(self.disk)
        ids = Random(self.disk.calls + self.history.version)

        self.store = Store.open(
            self.fs,
            self.clock,
            self.setup.settings,
            new_id=lambda: uuid.UUID(int=ids.getrandbits(128)),
            report=self.reports,
            decided=decided_in_journal,
        )
        self.staging = Staging.open(self.fs, self.store.notify, self.reports)
        self.epochs = Epochs(of_host(self.store, self.staging, self.reports), self.reports)
        self.tier: TieredStore | None = None
        if self.setup.tier is not None:
            objects = self.setup.tier(self.fs)
            self.tier = TieredStore(self.store, self.fs, objects, lambda: uuid.UUID(int=ids.getrandbits(128)))
        order = None if self.setup.seed is None else Random(self.setup.seed)
        self.driver = JobDriver(self.store.queue, self.fs, order, self.setup.rewrite)
        for search in self.epochs.searches():
            stream = self.store.stream(search.target.topic, search.target.partition)
            self.epochs.found(search, self.controls(stream, search.from_offset))
        self.epochs.roll_forward()
        self.is_open = True
        self.run()

    def run(self, steps: int | None = None) -> None:
        """Run disk work, and record what readers can see."""
        taken = 0
        while (steps is None or taken < steps) and self.driver.step():
            taken += 1
            self._look()
        self._look()

    def _look(self) -> None:
        for stream in self.store.streams():
            known = self.history.stream(stream.topic, stream.partition)
            if stream.high_watermark > known.seen_high_watermark:
                known.seen_high_watermark = stream.high_watermark
                self.history.version += 1

    def tier_round(self) -> None:
        """Do what is due in the tier; runs all disk work."""
        if self.tier is not None:
            self.tier.tiering.round()
        self.run()

    def restart(self, *, clean: bool) -> None:
        """End this life and start the next: after a clean shutdown, or after a kill (un-synced data is still there)."""
        if clean:
            self.store.close()
            self.run()
        self.disk = self.disk.next_life()
        self._open()

    # ---- the client

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> Ticket[object]:
        """Create a topic."""
        self.history.topics_unsure[name] = partitions
        ticket = self.store.create_topic(name, partitions, config or {})

        def settled(_: object) -> None:
            if ticket.error is None:
                self.history.topics_acked[name] = partitions
                self.history.topics_unsure.pop(name, None)
                self.history.version += 1

        ticket.add_callback(settled)
        return ticket  # type: ignore[return-value]

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self.history.topics_unsure[name] = self.history.topics_acked.pop(name)
        ticket = self.store.delete_topic(name)

        def settled(_: object) -> None:
            if ticket.error is None:
                self.history.topics_unsure.pop(name, None)
                for key in [key for key in self.history.streams if key[0] == name]:
                    del self.history.streams[key]
                self.history.version += 1

        ticket.add_callback(settled)

    def make_batch(
        self, known: StreamHistory, records: int, value_bytes: int, producer: tuple[int, int, int] | None = None
    ) -> tuple[bytearray, int]:
        """A unique batch, and its largest timestamp."""
        self.history.version += 1
        number = self.history.version
        start = FIRST_TIMESTAMP + 10 * len(known.sent) - 15 * (len(known.sent) % 3 == 2)
        rows = [
            Record(0, start + at, None, f"{known.name}/{number}/{at}/".encode().ljust(value_bytes, b"."))
            for at in range(records)
        ]
        pid, epoch, sequence = producer or (-1, -1, -1)
        batch = encode_batch(rows, producer_id=pid, producer_epoch=epoch, base_sequence=sequence)
        return batch, start + records - 1

    def append(
        self,
        topic: str,
        partition: int = 0,
        *,
        records: int = 1,
        value_bytes: int = 40,
        producer: tuple[int, int, int] | None = None,
    ) -> Ticket[object]:
        """Send one batch."""
        known = self.history.stream(topic, partition)
        batch, newest = self.make_batch(known, records, value_bytes, producer)
        known.send(content_of(batch), records, newest)
        return self.send(topic, partition, batch)

    def send(self, topic: str, partition: int, batch: bytearray) -> Ticket[object]:
        """Send a batch that `history` has recorded, for the first time or again."""
        known = self.history.stream(topic, partition)
        content = content_of(batch)
        sent = known.sent[content]
        ticket = self.store.stream(topic, partition).append(batch, now_ms=self.clock.wall_ms())

        def settled(_: object) -> None:
            if ticket.error is not None:
                return
            offset = ticket.result().base_offset
            if sent.offset is None:
                known.acked.append(content)
            elif sent.offset != offset:
                raise PromiseBroken(f"{known.name}: the batch at {sent.offset} was acknowledged again at {offset}")
            sent.offset = offset
            self.history.version += 1

        ticket.add_callback(settled)
        return ticket  # type: ignore[return-value]

    def append_group(
        self, topic: str, partition: int, epoch: int, batches: int, value_bytes: int = 40, *, states: int = 0
    ) -> None:
        """Send a group of batches, as one epoch of the query "group"; `states`: its control records of state."""
        known = self.history.stream(topic, partition)
        pieces = [self.make_batch(known, 1, value_bytes)[0] for _ in range(batches)]
        for number in range(states):
            text = f"{known.name}/{self.history.version}/{epoch}/{number}/".encode().ljust(value_bytes, b".")
            piece = encode_control_record(FOOTPRINTS_TYPE, {"query": "group"}, text, FIRST_TIMESTAMP)
            known.states.add(content_of(piece))
            pieces.append(piece)
        known.groups.setdefault(("group", epoch), {})["run"] = tuple(content_of(piece) for piece in pieces)
        ticket = self.store.stream(topic, partition).append_group(ListGroup("group", epoch, pieces))

        def settled(_: object) -> None:
            if ticket.error is None:
                known.acked_groups["group", epoch] = ticket.result().base_offset
                self.history.version += 1

        ticket.add_callback(settled)

    def trim(self, topic: str, partition: int, before_offset: int) -> None:
        """Delete records."""
        known = self.history.stream(topic, partition)
        known.trim_asked = max(known.trim_asked, before_offset)
        ticket = self.store.stream(topic, partition).delete_records(before_offset)

        def settled(_: object) -> None:
            if ticket.error is None:
                known.trim_acked = max(known.trim_acked, ticket.result())
                self.history.version += 1

        ticket.add_callback(settled)

    def retain(self) -> None:
        """Let retention trim (whole chunks, at most up to the high watermark)."""
        for stream in self.store.streams():
            known = self.history.stream(stream.topic, stream.partition)
            known.trim_asked = max(known.trim_asked, stream.high_watermark)
        self.store.tick()

    def own_state(self, topic: str, partition: int, offset: int, query: str = "group") -> None:
        """Register a reader of the query's state that needs nothing before an offset."""
        known = self.history.stream(topic, partition)
        known.clean_asked = max(known.clean_asked, offset)
        stream_id = StreamId(self.store.topic(topic).topic_id.hex, partition)
        self.store.readers.register("state", {stream_id: offset}, state=query)

    def clean(self) -> None:
        """Let control records of state go; runs all disk work."""
        ticket = self.store.clean()
        self.run()
        while not ticket.done:
            self.store.cleaner.more()
            self.run()

    def rest(self) -> None:
        """Let every stream that can rest come to rest; runs no disk work."""
        self.store.quiet.rest(at_once=True)

    def put(self) -> None:
        """Put the next number under two keys of a ledger, so that half a put would be visible."""
        self.history.puts_sent += 1
        self.history.version += 1
        number = self.history.puts_sent
        text = str(number).encode()
        before = (self.store.groups.get("a") or b"").decode()
        ticket = self.store.groups.put({"a": text, "b": text, f"old{before}": None, f"old{number}": text})

        def settled(_: object) -> None:
            if ticket.error is None:
                self.history.puts_acked = max(self.history.puts_acked, number)
                self.history.version += 1

        ticket.add_callback(settled)

    def allocate(self) -> None:
        """Get a producer id."""
        ticket = self.store.allocate_producer_id()

        def settled(_: object) -> None:
            if ticket.error is None:
                if ticket.result() in self.history.producer_ids:
                    raise PromiseBroken(f"producer id {ticket.result()} was given out twice")
                self.history.producer_ids.add(ticket.result())
                self.history.version += 1

        ticket.add_callback(settled)

    def take_over(self, incarnation: str, query: str = "q") -> None:
        """A new incarnation of a query asks for its last epoch, behind its own admission; runs no disk work."""
        request = StageRequest(query, incarnation, 0, 0, "fence", 0, (), b"")
        ticket = self.epochs.stage(request, now_ms=self.clock.wall_ms())

        def settled(_: object) -> None:
            if ticket.error is None:
                told = self.epochs.describe(query).last_epoch
                self.history.taken_over.append((query, incarnation, -1 if told is None else told))
                self.history.version += 1

        ticket.add_callback(settled)

    def abort(self, epoch: int, incarnation: str, query: str = "q") -> None:
        """Abort an epoch; runs all disk work."""
        self.epochs.abort(AbortRequest(query, incarnation, epoch))
        self.run()

    def stage(
        self,
        topic: str,
        epoch: int,
        incarnation: str,
        *,
        partitions: int = 2,
        tasks: int = 1,
        value_bytes: int = 30,
        query: str = "q",
        attempt: str = FIRST_ATTEMPT,
    ) -> None:
        """Stage one batch for each partition from each task of one execution of an epoch; runs all disk work."""
        for task in range(tasks):
            self.begin_stage(
                topic,
                epoch,
                incarnation,
                partitions=range(partitions),
                task=task,
                value_bytes=value_bytes,
                query=query,
                attempt=attempt,
            )
            self.run()

    def begin_stage(
        self,
        topic: str,
        epoch: int,
        incarnation: str,
        *,
        partitions: Sequence[int],
        task: int = 0,
        value_bytes: int = 30,
        query: str = "q",
        attempt: str = FIRST_ATTEMPT,
    ) -> None:
        """Stage one batch for each partition from one task of one execution of an epoch; runs no disk work."""
        execution = _execution(incarnation, attempt)
        parts, data = [], bytearray()
        for partition in partitions:
            known = self.history.stream(topic, partition)
            batch, _ = self.make_batch(known, 1, value_bytes)
            executions = known.groups.setdefault((query, epoch), {})
            executions[execution] = (*executions.get(execution, ()), content_of(batch))
            parts.append(Part(topic, partition, len(batch), 1, 1))
            data += batch
        request = StageRequest(query, incarnation, epoch, task, attempt, 0, tuple(parts), bytes(data))
        self.epochs.stage(request, now_ms=self.clock.wall_ms())

    def commit(
        self, epoch: int, incarnation: str, *, tasks: int = 1, query: str = "q", attempt: str = FIRST_ATTEMPT
    ) -> str | None:
        """Commit an epoch; runs all disk work. Returns the outcome, or None if the disk refused."""
        ticket = self.begin_commit(epoch, incarnation, tasks=tasks, query=query, attempt=attempt)
        self.run()
        return None if not ticket.done or ticket.error is not None else ticket.result().outcome

    def begin_commit(
        self, epoch: int, incarnation: str, *, tasks: int = 1, query: str = "q", attempt: str = FIRST_ATTEMPT
    ) -> Ticket[EpochCommitReply]:
        """Commit an epoch; runs no disk work."""
        outputs = tuple(TaskOutput(task, attempt, 1) for task in range(tasks))
        request = EpochCommitRequest(query, incarnation, epoch, "error", outputs, json.dumps({"epoch": epoch}), False)
        ticket = self.epochs.commit(request, now_ms=self.clock.wall_ms())

        def settled(_: object) -> None:
            if ticket.error is None and ticket.result().outcome == "committed":
                self.history.committed[query, epoch] = _execution(incarnation, attempt)
                self.history.version += 1

        ticket.add_callback(settled)
        return ticket

    # ---- the readers

    def read(self, stream: Stream, offset: int | None = None) -> list[ReceivedBatch]:
        """All batches from `offset` (the log start) on, control batches included: from the chunk files, and from memory
        what the files lack.
        """
        offset = stream.log_start_offset if offset is None else offset
        found: list[ReceivedBatch] = []
        while offset < stream.high_watermark:
            view = stream.chunk_at(offset)
            unwritten = stream.read_unwritten(offset, READ_BYTES) if view is None else None
            if unwritten:
                found.extend(found_batches([entry.buffer for entry in unwritten]))
                offset = unwritten[-1].next_offset
                continue
            chunk = stream.tiered.at(offset) if view is None else None
            files: ReadableFiles = self.fs
            if chunk is not None and self.tier is not None:
                files, view = self.tier.view(chunk)
            if view is None:
                raise PromiseBroken(f"{stream.name}: no chunk holds offset {offset} below {stream.high_watermark}")
            result = read_chunk(files, self.store.indexes, view, offset, READ_BYTES, include_control=True)
            found.extend(found_batches(result.buffers))
            offset = result.next_offset
        return found

    def controls(self, stream: Stream, from_offset: int = 0) -> list[tuple[int, bytes]]:
        """Control batches from an offset on, found through the indexes, once the chunk's file has all that the journal
        has.
        """
        stream.write_backlog()
        self.run()
        return self._indexed_controls(stream, from_offset)

    def _indexed_controls(self, stream: Stream, from_offset: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        for files, view in self._views(stream, from_offset):
            found.extend(scan_all(files, self.store.indexes, view, from_offset))
        return found

    def _views(self, stream: Stream, from_offset: int) -> list[tuple[ReadableFiles, ChunkView]]:
        local: list[tuple[ReadableFiles, ChunkView]] = [(self.fs, view) for view in stream.chunk_views(from_offset)]
        return local if self.tier is None else [*self.tier.views(stream, from_offset), *local]

    def find(self, stream: Stream, timestamp_ms: int) -> int | None:
        """The first offset with this timestamp or a later one, found through the indexes; as the engine does, once the
        chunk's file has what only the journal had.
        """
        stream.write_backlog()
        self.run()
        return self._indexed_find(stream, timestamp_ms)

    def _indexed_find(self, stream: Stream, timestamp_ms: int) -> int | None:
        start = stream.log_start_offset
        for files, view in self._views(stream, start):
            if view.max_timestamp >= timestamp_ms:
                found = find_timestamp(files, self.store.indexes, view, timestamp_ms, max(start, view.base_offset))
                if found is not None:
                    return found[0]
        return None

    def check(self, *, epochs: bool = True) -> None:
        """Check that the store, as it is now, keeps all promises."""
        for name, partitions in self.history.topics_acked.items():
            if name not in self.store.topics or len(self.store.topics[name].partitions) < partitions:
                raise PromiseBroken(f"topic {name} is lost")
        for name in self.store.topics:
            if name not in self.history.topics_acked and name not in self.history.topics_unsure:
                raise PromiseBroken(f"topic {name} is there, but should not")
        found = {}
        for stream in self.store.streams():
            known = self.history.stream(stream.topic, stream.partition)
            log = self.read(stream)
            found[stream.topic, stream.partition] = known.check(stream.log_start_offset, stream.high_watermark, log)
            self._check_index(stream, log)
        if epochs:
            progress = self.epochs.progress()
            self.history.check_epochs(found, {at.name: -1 if at.epoch is None else at.epoch for at in progress})
        self._check_ledger()
        if self.tier is not None:
            self.tier.check()

    def adopt(self) -> None:
        """After a restart: batches that readers see now may be unacknowledged, but must stay from now on."""
        for stream in self.store.streams():
            known = self.history.stream(stream.topic, stream.partition)
            for batch in self.read(stream):
                content = content_of(batch.data)
                sent = known.sent.get(content)
                if sent is not None and sent.offset is None:
                    sent.offset = batch.header.base_offset
                    known.acked.append(content)

    def _check_ledger(self) -> None:
        first, second = self.store.groups.get("a"), self.store.groups.get("b")
        if first != second:
            raise PromiseBroken(f"half a put: {first!r} and {second!r}")
        value = int(first or 0)
        if not self.history.puts_acked <= value <= self.history.puts_sent:
            raise PromiseBroken(f"the ledger holds {value}, acknowledged were {self.history.puts_acked}")
        old = sorted(key for key, _ in self.store.groups.items("old"))
        if old != ([f"old{value}"] if value else []):
            raise PromiseBroken(f"the ledger holds {old} beside {value}")

    def _check_index(self, stream: Stream, log: Sequence[ReceivedBatch]) -> None:
        start = stream.log_start_offset
        # Nothing is written for a check: what only the journal has is no matter of the indexes.
        log = [batch for batch in log if batch.header.base_offset < stream.written_offset]
        indexed = [offset for offset, _ in self._indexed_controls(stream, start) if offset >= start]
        controls = [batch.header.base_offset for batch in log if batch.header.is_control]
        if indexed != [offset for offset in controls if offset >= start]:
            raise PromiseBroken(f"{stream.name}: control batches at {controls}, the index has {indexed}")
        records = [
            record
            for batch in log
            if not batch.header.is_control
            for record in decode_batch(batch.data)
            if record.offset >= start
        ]
        for wanted in {record.timestamp for record in records}:
            expected = next(record.offset for record in records if record.timestamp >= wanted)
            at = self._indexed_find(stream, wanted)
            if at != expected:
                raise PromiseBroken(f"{stream.name}: timestamp {wanted} first at {expected}, the index says {at}")


def _execution(incarnation: str, attempt: str) -> str:
    """The name of an execution of an epoch in the history."""
    return incarnation if attempt == FIRST_ATTEMPT else f"{incarnation}/{attempt}"


def failed(ticket: Ticket[object]) -> bool:
    """Whether a ticket settled with a CairnError."""
    return ticket.done and isinstance(ticket.error, CairnError)
