"""The stream of a replicated topic, with the interface of a stream for the Kafka front and its clients.

Life of a batch: `append` checks the batch as `logstore.log.stream.Stream` does, and queues it. When the owner has room,
the batch gets its offset and is sent to the members of the open chunk. `acked` settles the ticket of the batch, moves
the high watermark and wakes waiting readers.

Invariants:
* Only the owner's host accepts appends, and only after it knows the producers' last sequences up to the offset where
  its ownership begins. So a batch that an earlier owner appended is recognized as a duplicate.
* Readers see a batch, and its ticket settles, when the owner's state machine acknowledges the batch.
* A batch that a client sends during a takeover by this host waits for a short time (`early_appends`).
* When another host takes over, every unacknowledged batch fails with NotLeader. It may be in the log or not; an
  idempotent producer that sends it again finds out.
* At most MAX_WAITING_BYTES (or one larger batch) wait for room; further batches are refused and not appended. Batches
  that a client has sent after a refused batch are refused as well (`refusal_window`).
* While the owner has too few members, batches of clients are refused, and waiting batches are answered but stay queued;
  a repeated batch with a producer id is in the log once. The cluster's own batches, and groups, wait.
* An append group is one entry of the owner: it is in the log as a whole, in one chunk, or not at all, and nothing lies
  between its batches. The group of an epoch is appended once at a time: a second append waits for the first.
* While a takeover waits for members, readers are served, and batches of clients are refused (`acknowledged_end`).
* Readers see nothing below the log start of the registration. A trim is answered when it is registered.

The leader epoch of clients and of batches is the epoch of the registration with which the ownership began. A new chunk
under the same owner does not change the leader epoch.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from logstore.base.clock import Clock
from logstore.base.events import Report
from logstore.base.metadata.local_watch import ChangeSignal
from logstore.cluster.interfaces import Spawn, StreamOwners
from logstore.cluster.streams.acknowledged_end import follow_acknowledged
from logstore.cluster.streams.early_appends import EarlyAppends
from logstore.cluster.streams.group_entry import GroupKey, check_group, place_batches
from logstore.cluster.streams.refusal_window import RefusalWindow, RefusedFirsts
from logstore.cluster.streams.stream_batches import SubmittedBatch, WaitingBatch, WantedTrim, answer_early
from logstore.cluster.streams.stream_place import StreamPlace
from logstore.cluster.streams.tiered_bounds import TieredBounds
from logstore.errors import (
    CairnError,
    EndNotKnown,
    InvalidTopic,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    StorageFailed,
    UnknownTopicOrPartition,
)
from logstore.events import STREAM_LED, TRIMMED
from logstore.format.batch import BatchHeader, patch_base, stamp_append_time
from logstore.format.index import NO_TIMESTAMP
from logstore.format.snapshot import ProducerSnapshot, encode_snapshot
from logstore.log.coroutines import start
from logstore.log.producers import ProducerTable
from logstore.log.stream_state import AppendResult, AppendTicket
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig
from logstore.log.validation import check_produced
from logstore.replica.registrations import UNKNOWN_TIME, StreamRegistration

MAX_BATCH_BYTES: Final = 16 << 20
"""Of one batch, whatever `max.message.bytes` says: a quarter of what a member keeps unsynced, and of a link's frame."""
MAX_WAITING_BYTES: Final = 8 << 20
"""Of a stream's batches without an offset: twice what an owner has in flight, so a rolled chunk is filled at once."""
CROWDED_S: Final = 1.0
"""A chunk with other members is opened in a few milliseconds, if there are other hosts; producers hear of no more."""

LoadProducers = Callable[["ReplicatedStream", int], Awaitable[ProducerTable[AppendTicket] | None]]
"""The last sequences of a stream's producers as of an offset (`chunk_reads`). None: they could not be read."""


class StreamRetention(Protocol):
    """What streams need of retention (`logstore.cluster.streams.retention`)."""

    def now_ms(self) -> int:
        """The cluster's retention clock."""

    def due(self, stream: "ReplicatedStream", /) -> None:
        """Something may go: look at the stream soon."""

    def deletable(self, stream: "ReplicatedStream", offset: int, /) -> Ticket[None]:
        """Settles when epochs under way let the records in front of an offset be deleted. Fails with TryAgain."""


class _NoRetention:
    """Nothing goes."""

    def now_ms(self) -> int:
        return UNKNOWN_TIME

    def due(self, stream: "ReplicatedStream", /) -> None:
        pass

    def deletable(self, stream: "ReplicatedStream", offset: int, /) -> Ticket[None]:
        return Ticket.succeeded(None)


class StreamServices(NamedTuple):
    """What all replicated streams of a host share."""

    owners: StreamOwners
    clock: Clock
    report: Report
    load_producers: LoadProducers
    spawn: Spawn
    retention: StreamRetention = _NoRetention()
    is_store_away: Callable[[], bool] = lambda: False
    refused: RefusedFirsts | None = None


class ReplicatedStream(TieredBounds):
    """See the module."""

    def __init__(self, place: StreamPlace, config: TopicConfig, services: StreamServices) -> None:
        super().__init__()
        self.topic, self.partition = place.topic, place.partition
        self.name = f"{place.topic}-{place.partition}"
        self.stream, self.tier_place = place.stream, place.in_tier
        self.config = config
        self.leader_epoch = 0
        self.high_watermark = self.log_start_offset = self.led_from = 0
        """`led_from`: where the newest leader epoch begins."""
        self.producers: ProducerTable[AppendTicket] = ProducerTable()
        self.deleted = self.is_leader = False
        self.is_internal = place.is_internal
        self.appended_bytes = self.appended_records = self.fetched_bytes = 0
        self._services = services
        self._waiting: deque[WaitingBatch] = deque()
        self._waiting_bytes = 0
        self._in_flight: deque[SubmittedBatch] = deque()
        self._early = EarlyAppends(self._append_of_client, services.spawn)
        self._window = RefusalWindow(services.clock, services.refused)
        self.tidy = self._window.tidy
        """Forget refused batches that come no more, whoever leads."""
        self._groups: dict[GroupKey, AppendTicket] = {}
        """Groups under way."""
        self._ownership = 0
        self._open_epoch = 0
        self._opened_ms = self._written_ms = UNKNOWN_TIME
        """When the first batch of the open chunk was appended, and the last batch of this ownership."""
        self._trims: list[WantedTrim] = []
        self.moved = ChangeSignal()
        """The registration has changed, or an ownership has begun or ended."""
        self._crowded_s: float | None = None
        """Since when a member has no room, and no other chunk was opened."""
        self._too_few = ""
        """Why clients' batches are refused: the stream has too few members."""
        self._read_end: int | None = None
        """Where the log ends that is read while this host takes no appends yet; None: it takes them, or leads not."""

    # ---- appending

    @property
    def end_offset(self) -> int:
        """The offset after the last record that has an offset, acknowledged or not."""
        return self._in_flight[-1].next_offset if self._in_flight else self.high_watermark

    def append(self, records: bytearray | memoryview, *, now_ms: int, are_times_checked: bool = False) -> AppendTicket:
        """Append one RecordBatch v2 as a client sent it. The stream patches the buffer in place.

        Raises at once: NotLeader, NotEnoughReplicas, UnknownTopicOrPartition, InvalidTopic (an internal one), and what
        `check_produced` and `ProducerTable.admit` raise. The ticket fails with one of the first three.
        """
        if self.is_internal:
            raise InvalidTopic(f"{self.topic} is internal to the cluster: clients do not write to it")
        if not (self.is_leader or self.deleted) and self._services.owners.is_claimed(self.stream):
            if self._read_end is not None and self._too_few and not self._services.is_store_away():
                self._early.refused()
                self._window.renew(
                    check_produced(records, self.name, self.config, now_ms, are_times_checked=are_times_checked)
                )
                raise NotEnoughReplicas(self._too_few)
            held = self._early.hold(records, now_ms=now_ms, are_times_checked=are_times_checked)
            if held is not None:
                return held
        return self._append_of_client(records, now_ms=now_ms, are_times_checked=are_times_checked)

    def _append_of_client(
        self, records: bytearray | memoryview, *, now_ms: int, are_times_checked: bool = False
    ) -> AppendTicket:
        if not self.is_leader:
            self._window.refused_elsewhere(records)
            self.check_leader()
        header = check_produced(records, self.name, self.config, now_ms, are_times_checked=are_times_checked)
        keeps_order = header.producer_id >= 0 and self.producers.knows(header.producer_id)
        if self._too_few and not self._services.is_store_away():  # else it may lead no more: who waits looks elsewhere
            if not keeps_order:
                self._window.renew(header)
            self._check_room(0)  # full disks are another reason, with another way out
            raise NotEnoughReplicas(self._too_few)
        if keeps_order:
            return self._append(records, header)
        if self._window.refuses(header):
            self._window.refused(header)
            raise NotEnoughReplicas(f"{self.name}: an earlier batch was refused just now; send it again later")
        try:
            ticket = self._append(records, header)
        except (StorageFailed, NotEnoughReplicas):
            self._window.refused(header)
            self._window.begin(self._last_ticket)
            raise
        self._window.taken(header)
        return ticket

    def append_own(
        self, records: bytearray | memoryview, *, now_ms: int, are_times_checked: bool = False
    ) -> AppendTicket:
        """Append a batch of the cluster's own; otherwise as `append`."""
        self.check_leader()
        header = check_produced(records, self.name, self.config, now_ms, are_times_checked=are_times_checked)
        return self._append(records, header)

    def _append(self, records: bytearray | memoryview, header: BatchHeader) -> AppendTicket:
        if header.size_bytes > MAX_BATCH_BYTES:
            raise MessageTooLarge(
                f"{self.name}: a batch of {header.size_bytes} bytes, a stream of a cluster takes {MAX_BATCH_BYTES}; "
                "send smaller batches"
            )
        self._check_room(header.size_bytes)
        ticket: AppendTicket = Ticket()
        if header.producer_id >= 0:
            duplicate = self.producers.admit(header, ticket)
            if duplicate is not None:
                if duplicate.ticket is not None:
                    return duplicate.ticket
                return Ticket.succeeded(AppendResult(duplicate.base_offset, self.log_start_offset, True))
        self._waiting.append(WaitingBatch(records, header.last_offset_delta + 1, header, ticket))
        self._waiting_bytes += header.size_bytes
        self._offer()
        return ticket

    def append_group(self, group: bytearray, *, now_ms: int) -> AppendTicket:
        """Append a group, from BEGIN to END; the base offset of the result is BEGIN's. If its epoch's group is under
        way, its ticket. The stream patches the buffer in place; the caller has checked the batches.

        Raises at once, and appends nothing: NotLeader, UnknownTopicOrPartition, GroupTooLarge, CorruptBatch,
        InvalidRecord (no BEGIN), NotEnoughReplicas. The ticket fails with NotLeader: the group is in the log or not,
        and whoever owns the stream next knows by its END; with UnknownTopicOrPartition if the topic is deleted.
        """
        self.check_leader()
        key, record_count = check_group(self.name, group)
        known = self._groups.get(key)
        if known is not None:
            return known
        self._check_room(len(group))
        ticket = self._groups[key] = AppendTicket()
        ticket.add_callback(lambda _: self._end_group(key))
        self._waiting.append(WaitingBatch(group, record_count, None, ticket))
        self._waiting_bytes += len(group)
        self._offer()
        return ticket

    def _end_group(self, key: GroupKey) -> None:
        del self._groups[key]

    def _check_room(self, size_bytes: int) -> None:
        """Raise StorageFailed if a member's disk has had no room for CROWDED_S, and the stream has no other members;
        NotEnoughReplicas if too much waits already.
        """
        since_s = self._crowded_s
        if since_s is not None and self._services.clock.monotonic_s() - since_s > CROWDED_S:
            raise StorageFailed(
                f"{self.name}: the disk of a host that has the stream's newest chunk has no space, and too few "
                "other hosts live; delete topics or records, lower their retention, or free space on that disk"
            )
        if self._waiting and self._waiting_bytes + size_bytes > MAX_WAITING_BYTES:
            raise NotEnoughReplicas(
                f"{self.name}: {self._waiting_bytes} bytes already wait for the stream's members; send them again later"
            )

    @property
    def _last_ticket(self) -> AppendTicket | None:
        """Of the last batch that is not acknowledged."""
        batches = self._waiting or self._in_flight
        return batches[-1].ticket if batches else None

    @property
    def ownership(self) -> int:
        """Another number with each beginning and each end of an ownership."""
        return self._ownership

    def check_leader(self) -> None:
        """Raise UnknownTopicOrPartition or NotLeader unless this host serves the stream's clients."""
        if self.deleted:
            raise UnknownTopicOrPartition(f"{self.name} has been deleted")
        if not self.is_leader:
            raise NotLeader(f"{self.name}: this host does not lead it; ask for metadata again")

    @property
    def is_readable(self) -> bool:
        """Whether this host serves the stream's readers: it leads it, or will when there are members enough."""
        return self.is_leader or self._read_end is not None

    def check_reads(self) -> None:
        """Raise UnknownTopicOrPartition or NotLeader unless this host serves the stream's readers."""
        if not self.is_readable:
            self.check_leader()

    def _offer(self) -> None:
        """Give the owner what waits, as far as it takes it."""
        owners = self._services.owners
        if self._waiting:
            self._written_ms = self._services.retention.now_ms()
        while self._waiting and owners.may_append(self.stream, len(self._waiting[0].buffer)):
            waiting = self._waiting.popleft()
            header, append_ms = waiting.header, NO_TIMESTAMP
            stamp_ms = self._services.clock.wall_ms() if self.config.stamps_appends else NO_TIMESTAMP
            offset, count, size_bytes = owners.next_offset(self.stream), waiting.record_count, len(waiting.buffer)
            self._waiting_bytes -= size_bytes
            if header is None:
                place_batches(waiting.buffer, offset, self.leader_epoch, stamp_ms)
            else:
                if stamp_ms != NO_TIMESTAMP:
                    append_ms, header = stamp_ms, stamp_append_time(waiting.buffer, header, stamp_ms)
                patch_base(waiting.buffer, 0, offset, self.leader_epoch)
            self._in_flight.append(
                SubmittedBatch(offset, offset + count, size_bytes, header, waiting.ticket, append_ms)
            )
            if self._opened_ms == UNKNOWN_TIME:
                self._opened_ms = self._written_ms
            owners.append(self.stream, bytes(waiting.buffer), count)

    # ---- what the owner says (StreamObserver)

    def founding(self, base_offset: int) -> bytes:
        """The producers' last sequences as of an offset; everything in front of it is acknowledged."""
        if base_offset != self.high_watermark:
            raise AssertionError(f"{self.name}: founding as of {base_offset}, acknowledged is {self.high_watermark}")
        entries = self.producers.entries()
        return encode_snapshot(ProducerSnapshot(0, base_offset, entries)) if entries else b""

    @property
    def chunk_bytes(self) -> int:
        """See StreamObserver: the topic's `segment.bytes`."""
        return self.config.segment_bytes

    def written_ms(self) -> int:
        """See StreamObserver. What a former owner has appended counts as appended now."""
        return self._services.retention.now_ms() if self._written_ms == UNKNOWN_TIME else self._written_ms

    def registered(self, registration: StreamRegistration) -> None:
        """The registration has changed: readers see what it says, and trims that it holds are answered."""
        first, self.log_start_offset = self.log_start_offset, registration.log_start
        open_chunk = registration.open_chunk
        if open_chunk is not None and open_chunk.epoch != self._open_epoch:
            self._open_epoch, self._crowded_s = open_chunk.epoch, None
            self._opened_ms = self._services.retention.now_ms() if self._in_flight else UNKNOWN_TIME
            if self.config.retention_bytes >= 0:
                self._services.retention.due(self)
        done = [trim for trim in self._trims if trim.offset <= registration.log_start]
        self._trims = [trim for trim in self._trims if trim.offset > registration.log_start]
        if done and done[-1].why and first < registration.log_start:
            last, why = registration.log_start - 1, done[-1].why
            self._services.report(TRIMMED, stream=self.name, first=first, last=last, why=why)
        for trim in done:
            trim.ticket.succeed(registration.log_start)
        self.moved.notify()

    def ready(self, epoch: int, high_watermark: int) -> None:
        """This host owns the stream; it takes appends when the producers' table is there."""
        self._end_ownership(NotLeader(f"{self.name}: its ownership has restarted"))
        self.leader_epoch, self.high_watermark, self.led_from = epoch, high_watermark, high_watermark
        ownership = self._ownership

        async def begin() -> None:
            table = None
            while table is None and self._ownership == ownership:
                table = await self._services.load_producers(self, high_watermark)
            if table is not None and self._ownership == ownership:
                self.producers, self.is_leader = table, True
                self._services.report(STREAM_LED, stream=self.name, epoch=epoch, offset=high_watermark)
                if rest_s := self._early.end():
                    self._window.begin(self._last_ticket, rest_s)
                self._wake()

        self._services.spawn(begin)

    def readable(self, epoch: int, end: int, *, is_settled: bool) -> None:
        """See StreamObserver: an offset that is not known to be acknowledged is shown to nobody, and is in range."""
        if self.is_internal:
            return
        self._end_ownership(NotLeader(f"{self.name}: its ownership has restarted"))
        last = self.registration.last_chunk
        self.leader_epoch, self._read_end, self.led_from = epoch, end, end
        self.high_watermark = end if is_settled or last is None else max(last.base_offset, self.log_start_offset)
        if self.high_watermark < end and last is not None:
            show, owners = partial(self._show_acknowledged, self._ownership), self._services.owners
            self._services.spawn(partial(follow_acknowledged, owners, self.stream, last, self.high_watermark, show))
        self._wake()

    def _show_acknowledged(self, ownership: int, end: int) -> bool:
        """Readers may see what lies in front of an end. The result: whether more of this ownership is hidden."""
        if self._ownership != ownership:
            return False
        if end > self.high_watermark:
            self.high_watermark = end
            self._wake()
        return self.high_watermark < self.log_end

    def acked(self, high_watermark: int) -> None:
        """All batches below are acknowledged: settle them, and give out what may now be sent."""
        log_start, self._crowded_s = self.log_start_offset, None
        settled: list[SubmittedBatch] = []
        now_ms = self._services.clock.wall_ms() if self._in_flight else 0
        while self._in_flight and self._in_flight[0].next_offset <= high_watermark:
            batch = self._in_flight.popleft()
            if batch.header is not None and batch.header.producer_id >= 0:
                self.producers.synced(batch.header, batch.base_offset, now_ms)
            self.appended_bytes += batch.size_bytes
            self.appended_records += batch.next_offset - batch.base_offset
            settled.append(batch)
        self.high_watermark = max(self.high_watermark, high_watermark)
        for batch in settled:
            batch.ticket.succeed(AppendResult(batch.base_offset, log_start, False, batch.append_ms))
        self._offer()
        self._wake()

    def room(self) -> None:
        """Batches that were not taken may be offered again."""
        self._offer()

    def deposed(self, newer_epoch: int) -> None:
        """Another host owns the stream."""
        self._end_ownership(NotLeader(f"{self.name}: another host owns it since epoch {newer_epoch}"))
        self._early.end()
        self._wake()

    def unavailable(self, reason: str) -> None:
        """The stream waits; the host reports it."""

    def short(self, needed: int) -> None:
        """See StreamObserver: clients are told, and send again; the cluster's own batches and groups wait."""
        self._too_few = f"{self.name}: fewer hosts can hold it than min.insync.replicas, {needed}; start another"
        if not (self.is_internal or self._services.is_store_away()):
            answer_early(self._in_flight, self._waiting, self.producers, self._too_few)

    def enough(self) -> None:
        """See StreamObserver."""
        self._too_few = ""

    @property
    def lacks_members(self) -> bool:
        """Whether the owner has said so, and may lead still: what is appended now waits until a host is back."""
        return bool(self._too_few) and not self._services.is_store_away()

    def crowded(self) -> None:
        """A member's disk has no room: see StreamObserver."""
        if self._crowded_s is None:
            self._crowded_s = self._services.clock.monotonic_s()
        self._services.retention.due(self)

    def abandon(self) -> None:
        """The topic is deleted."""
        self.deleted = True
        self._end_ownership(UnknownTopicOrPartition(f"{self.name} has been deleted"))
        self._early.end()
        self._wake()

    def _end_ownership(self, reason: Exception) -> None:
        """Fail what is not acknowledged; the table of producers belongs to the ownership."""
        self._ownership += 1
        self.is_leader, self._read_end = False, None
        tickets = [batch.ticket for batch in self._in_flight] + [batch.ticket for batch in self._waiting]
        trims, self._trims = self._trims, []
        self._in_flight.clear()
        self._waiting.clear()
        self._written_ms, self._crowded_s, self._too_few = UNKNOWN_TIME, None, ""
        self._waiting_bytes = 0
        self.producers = ProducerTable()
        for ticket in tickets:
            ticket.fail(reason)
        for trim in trims:
            trim.ticket.fail(reason)
        self.moved.notify()

    # ---- reading

    @property
    def newest_epoch(self) -> int:
        """The newest epoch that another host may have told clients: rolls under this owner have raised it."""
        return max(self.leader_epoch, self.registration.epoch) if self.is_leader else self.leader_epoch

    @property
    def log_end(self) -> int:
        """Where the log ends, also where readers are shown less of it for now."""
        return max(self.high_watermark, self._read_end or 0)

    @property
    def registration(self) -> StreamRegistration:
        """The stream's registration, while this host owns it. Raises NotLeader."""
        return self._services.owners.registration(self.stream)

    @property
    def size_bytes(self) -> int:
        """Bytes of all chunks, of the open one as far as it is acknowledged; 0 where another host owns the stream."""
        if not self.is_readable:
            return 0
        sealed = (chunk.end.length_bytes for chunk in self.registration.chunks if chunk.end is not None)
        return sum(sealed) + (self.open_bytes if self.is_leader else 0)

    @property
    def chunk_count(self) -> int:
        """The number of chunks; 0 where another host owns the stream."""
        return len(self.registration.chunks) if self.is_readable else 0

    @property
    def start_asked(self) -> int:
        """The log start when all trims that were asked for are done."""
        return max([self.log_start_offset, *(trim.offset for trim in self._trims)])

    @property
    def open_bytes(self) -> int:
        """Bytes of the open chunk that are acknowledged. Raises NotLeader."""
        return self._services.owners.acked(self.stream).length_bytes

    def check_offset(self, offset: int) -> None:
        """Raise OffsetOutOfRange unless `offset` lies between log start and high watermark, both included. Raises
        NotLeader, UnknownTopicOrPartition.
        """
        self.check_reads()
        if not self.log_start_offset <= offset <= self.log_end:
            raise OffsetOutOfRange(self.name, offset, self.log_start_offset, self.high_watermark)

    def check_end(self) -> None:
        """Raise EndNotKnown while readers may be shown less than is acknowledged: see `readable`."""
        if self.high_watermark < self.log_end:
            raise EndNotKnown(f"{self.name}: its end is known once enough hosts that have it are alive; ask again")

    # ---- the front of the stream

    def reconfigure(self, config: TopicConfig) -> None:
        """The topic's settings have changed."""
        self.config = config
        self._services.owners.reconfigure(self.stream, config.segment_bytes)
        if self.is_leader:
            self._services.retention.due(self)

    @property
    def needs_last_chunk(self) -> bool:
        """Whether the last sealed chunk stays while the open one is empty: it tells a new owner the producers' last
        sequences.
        """
        return bool(self.producers.entries())

    def delete_records(self, offset: int) -> Ticket[int]:
        """Delete the records in front of an offset, as a client asks; -1: all. Settles with the log start from then on.
        Waits for epochs that are under way behind the log start.

        Fails with NotLeader, UnknownTopicOrPartition, InvalidTopic, OffsetOutOfRange, TryAgain.
        """
        try:
            if self.is_internal:
                raise InvalidTopic(f"{self.topic} is internal to the cluster: clients cannot delete its records")
            self.check_leader()
            if not -1 <= offset <= self.high_watermark:
                raise OffsetOutOfRange(self.name, offset, self.log_start_offset, self.high_watermark)
        except CairnError as error:
            return Ticket.failed(error)
        return start(self._delete(self.high_watermark if offset == -1 else offset))

    async def _delete(self, offset: int) -> int:
        if offset > self.start_asked:
            await self._services.retention.deletable(self, offset)
        return await self.trim(offset, "deleted by a client")

    def trim(self, offset: int, why: str = "") -> Ticket[int]:
        """Let nobody see the records in front of an offset, and give up the chunks in front. Settles with the log start
        when that is registered; an offset behind what is acknowledged counts as the end of that. `why`: for a report.

        Fails with NotLeader, UnknownTopicOrPartition.
        """
        try:
            self.check_leader()
            self._services.owners.trim(self.stream, offset, keeps_last=self.needs_last_chunk)
        except CairnError as error:
            return Ticket.failed(error)
        wanted = min(offset, self.high_watermark)
        if wanted <= self.log_start_offset:
            return Ticket.succeeded(self.log_start_offset)
        ticket: Ticket[int] = Ticket()
        self._trims.append(WantedTrim(wanted, why, ticket))
        return ticket

    def roll_if_old(self) -> None:
        """Seal the open chunk if it is older than the topic's settings allow, or all is trimmed. Raises NotLeader."""
        config, acked = self.config, self._services.owners.acked(self.stream)
        if not acked.length_bytes or self._opened_ms == UNKNOWN_TIME:
            return
        oldest_ms = config.segment_ms if config.retention_ms < 0 else min(config.segment_ms, config.retention_ms)
        is_old = self._services.retention.now_ms() - self._opened_ms > oldest_ms
        if is_old or self.log_start_offset >= acked.next_offset:
            self._services.owners.roll(self.stream)
