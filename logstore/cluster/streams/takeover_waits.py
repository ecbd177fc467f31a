"""Waits in a stream for a chunk that no host can read, of takeovers and of epochs, and the end of such a wait.

A new owner that finds the open chunk empty needs the producers' last sequences, which are in the last sealed chunk
(`chunk_reads`). If that chunk cannot be read, the stream has no leader. The wait ends when
* the chunk can be read again: the owner tries all the time;
* all producers of the chunk have expired, by the same rule as at an owner: the chunk's last append is long enough ago;
* an operator lets the stream continue without the chunk (`wait_notes`), by an entry in the metadata store.
In the last two cases producers begin anew: their batches are accepted with any sequence, and a repeated batch is not
recognized. No record is removed or hidden.

A stream with a leader waits with the part of an epoch that the chunk may already contain
(`logstore.cluster.epochs.group_appends`). This wait does not end with time, but when the chunk is read or an operator
ends it. If the chunk is lost, an order for the takeover counts for the epoch as well. If the chunk is away, a separate
order for the epoch is needed: if the chunk contains the epoch, the stream has it twice once the chunk is back.

Invariants:
* A wait longer than NOTE_AFTER_S is an entry in the metadata store, one for each chunk, which names stream, chunk and
  object; any host shows the entry. The entry counts while its host, since the same start, owns the stream. The waiting
  host writes it on the condition that the head names it as the owner, and keeps an operator's order for the chunk.
* An owner continues without a chunk only after an attempt to read it has failed. An epoch continues without a chunk
  that may come back only if the chunk could not be read for NOTE_AFTER_S.
* The entry is removed when its owner has read the chunk, or continues because all producers have expired. The order of
  an operator stays for later owners as long as they may need it (`wait_tidying`). An order for the epochs of an absent
  chunk is removed when a search that waited for the chunk has read it: if the chunk is away again, a new order is
  needed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple, Protocol

import trio

from logstore.base.clock import Clock
from logstore.base.events import LogEvent, Report
from logstore.base.fields import plain
from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataDamaged, MetadataError
from logstore.base.metadata.interface import (
    ABSENT,
    Committed,
    Condition,
    Delete,
    Entry,
    MetadataStore,
    Put,
    Transaction,
)
from logstore.cluster.interfaces import Spawn
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.retention_clock import AGREE_MS
from logstore.cluster.streams.tiered_chunks import tiered_chunk
from logstore.epochs.group_order import GroupOrder
from logstore.errors import CairnError, CorruptChunk, CorruptRegister, UnknownFormatVersion
from logstore.events import EPOCH_MAY_REPEAT, PRODUCERS_EXPIRED, PRODUCERS_FORGOTTEN, PRODUCERS_NOT_READ
from logstore.format.tiered_chunk import chunk_directory
from logstore.log.producers import ProducerTable
from logstore.log.stream_state import AppendTicket
from logstore.replica.registrations import UNKNOWN_TIME, ChunkRegistration, OwnerId, decode_head
from logstore.replica.stored_registrations import head_key

PAUSE_S: Final = 0.05
"""Before what could not be read is tried again."""
TIER_PAUSE_S: Final = 1.0
"""The same where no host has it: a tier that is away is not back in a moment."""
NOTE_AFTER_S: Final = 10.0
"""Hosts and a store that restart are back by then."""
GIVEN_UP_S: Final = 120.0
"""What was not tried for so long waits no more. Takeovers and epochs are tried every second or two, but a try lasts
90 s where a chunk's three DataNodes are silent (`logstore.tier.hdfs`).
"""
CLEAR_PAUSE_S: Final = 5.0
"""Between tries to remove an entry while the metadata store is away."""

Table = ProducerTable[AppendTicket]


class Waits(Protocol):
    """Who hears of takeovers that wait."""

    async def failed(
        self, stream: ReplicatedStream, offset: int, chunk: ChunkRegistration | None, error: Exception, /
    ) -> Table | None:
        """Who has written, which a chunk says, could not be read. Returns after a pause; a table: the stream goes on
        with it.
        """

    def over(self, stream: ReplicatedStream, chunk: ChunkRegistration | None, /) -> None:
        """Who has written is known, by a chunk; None: nobody has written."""


class ReportedWaits:
    """Waits that are reported, and last until the chunk can be read."""

    def __init__(self, report: Report) -> None:
        self._report = report

    async def failed(
        self, stream: ReplicatedStream, offset: int, chunk: ChunkRegistration | None, error: Exception
    ) -> Table | None:
        """See Waits."""
        self._report(PRODUCERS_NOT_READ, stream=stream.name, offset=offset, **_named(stream, chunk), error=str(error))
        await trio.sleep(PAUSE_S if chunk is None or chunk.tiered is None else TIER_PAUSE_S)
        return None

    def over(self, stream: ReplicatedStream, chunk: ChunkRegistration | None) -> None:
        """See Waits."""


@dataclass(slots=True)
class _WaitingTakeover:
    """What waits for a chunk, in one ownership: since when, and when a chunk of the stream could not be read last: a
    search that waits for one chunk comes to no other. `noted`: what its entry says. `is_passed`: epochs go on without
    the chunk, and nothing waits for it; for how long it could not be read counts for those that come. `told`: epochs of
    which it was reported that they do.
    """

    stream: ReplicatedStream
    ownership: int
    since_s: float
    since_ms: int
    failed_s: float
    noted: schema.Wait | None = None
    is_passed: bool = False
    told: set[tuple[str, int]] = field(default_factory=set)

    def is_known(self, now_s: float) -> bool:
        return self.stream.ownership == self.ownership and now_s - self.failed_s < GIVEN_UP_S

    def is_current(self, now_s: float) -> bool:
        return self.is_known(now_s) and not self.is_passed


class WaitTimes(NamedTuple):
    """The clock, the retention clock in ms, and how long a producer that writes nothing is remembered."""

    clock: Clock
    served_ms: Callable[[], int]
    expiry_ms: int


class TakeoverWaits(ReportedWaits):
    """See the module; implements `Waits` for a host."""

    def __init__(self, metadata: MetadataStore, times: WaitTimes, report: Report, spawn: Spawn) -> None:
        super().__init__(report)
        self._metadata = metadata
        self._clock, self._served_ms, self._expiry_ms = times
        self._spawn = spawn
        self._waiting: dict[str, dict[int, _WaitingTakeover]] = {}
        """By stream, and epoch of the chunk."""
        self._entries: dict[tuple[str, int], OwnerId] = {}
        """Streams and chunks of which this host has put an entry, and as whom."""

    @property
    def count(self) -> int:
        """How many streams of this host wait now."""
        now_s = self._clock.monotonic_s()
        for stream, chunks in list(self._waiting.items()):
            known = {chunk: waiting for chunk, waiting in chunks.items() if waiting.is_known(now_s)}
            self._waiting[stream] = known
            if not known:
                del self._waiting[stream]
        waiting = (any(each.is_current(now_s) for each in chunks.values()) for chunks in self._waiting.values())
        return sum(waiting)

    def is_waited_for(self, stream: ReplicatedStream, chunk: ChunkRegistration) -> bool:
        """Whether anything of this host waits for a chunk now."""
        waiting = self._waiting.get(stream.stream, {}).get(chunk.epoch)
        return waiting is not None and waiting.is_current(self._clock.monotonic_s())

    # ---- takeovers

    async def failed(
        self, stream: ReplicatedStream, offset: int, chunk: ChunkRegistration | None, error: Exception
    ) -> Table | None:
        """See Waits."""
        if chunk is not None and chunk.end is not None:
            waiting = self._wait(stream, chunk)
            if self._is_expired(chunk):
                return self._go_on(stream, PRODUCERS_EXPIRED, offset, chunk, error)
            try:
                said = await self._said(stream, chunk)
                if said is not None and said.forgotten:
                    return self._go_on(stream, PRODUCERS_FORGOTTEN, offset, chunk, error)
                if self._has_lasted(waiting):
                    await self._note(waiting, chunk, error)
            except CairnError as why:  # the metadata store is away, or the stream has another owner
                error = CairnError(f"{error}; and the wait cannot be noted now: {why}")
        return await super().failed(stream, offset, chunk, error)

    def over(self, stream: ReplicatedStream, chunk: ChunkRegistration | None) -> None:
        """See Waits."""
        self._waiting.pop(stream.stream, None)
        if chunk is not None:
            self._remove(stream, chunk, is_read=True)

    def _is_expired(self, chunk: ChunkRegistration) -> bool:
        """Whether nobody who has written in a chunk would be remembered by an owner that had lived."""
        age_ms = self._served_ms() - AGREE_MS - chunk.written_ms
        return chunk.written_ms != UNKNOWN_TIME and age_ms > self._expiry_ms

    def _go_on(
        self, stream: ReplicatedStream, event: LogEvent, offset: int, chunk: ChunkRegistration, error: Exception
    ) -> Table:
        self._waiting.pop(stream.stream, None)
        if event is PRODUCERS_EXPIRED:
            self._remove(stream, chunk, is_read=False)
        self._report(event, stream=stream.name, offset=offset, **_named(stream, chunk), error=str(error))
        return ProducerTable()

    # ---- epochs

    async def may_pass(
        self, stream: ReplicatedStream, chunk: ChunkRegistration, error: Exception, order: GroupOrder
    ) -> bool:
        """Whether an operator lets the epoch of a group go on without a chunk that cannot be read. If not, the wait is
        noted as that of a takeover is. Raises CairnError.
        """
        if chunk.end is None:
            return False
        waiting, said = self._wait(stream, chunk), await self._said(stream, chunk)
        has_lasted, is_lost = self._has_lasted(waiting), _is_lost(chunk, error)
        waiting.is_passed = False
        if said is None or not said.passes_epochs(is_lost=is_lost):
            if has_lasted:
                await self._note(waiting, chunk, error, order)
            return False
        if not (is_lost or has_lasted):
            return False
        waiting.is_passed, waiting.noted = True, None
        if (order.query, order.epoch) not in waiting.told:
            waiting.told.add((order.query, order.epoch))
            named = {"query": order.query, "epoch": order.epoch, **_named(stream, chunk)}
            self._report(EPOCH_MAY_REPEAT, stream=stream.name, **named, error=str(error))
        return True

    def was_read(self, stream: ReplicatedStream, chunk: ChunkRegistration) -> None:
        """A search for an epoch has read a chunk: what waited for that waits no more."""
        if self._forget(stream, chunk):
            now_s = self._clock.monotonic_s()
            for waiting in self._waiting.get(stream.stream, {}).values():
                waiting.since_s = now_s  # what it waits for may be back as well
            place = (stream.stream, chunk.epoch)
            self._entries.pop(place, None)
            self._spawn(partial(self._end_word, place, stream.registration.owner))

    # ---- details

    def _wait(self, stream: ReplicatedStream, chunk: ChunkRegistration) -> _WaitingTakeover:
        """What waits for a chunk, which could not be read just now."""
        now_s, chunks = self._clock.monotonic_s(), self._waiting.setdefault(stream.stream, {})
        known = chunks.get(chunk.epoch)
        if known is None or not known.is_known(now_s):
            known = _WaitingTakeover(stream, stream.ownership, now_s, self._clock.wall_ms(), now_s)
            chunks[chunk.epoch] = known
        for each in chunks.values():
            if each.is_known(now_s):
                each.failed_s = now_s
        return known

    def _has_lasted(self, waiting: _WaitingTakeover) -> bool:
        return self._clock.monotonic_s() - waiting.since_s >= NOTE_AFTER_S

    def _forget(self, stream: ReplicatedStream, chunk: ChunkRegistration) -> bool:
        """Nothing waits for a chunk any more; whether something did."""
        chunks = self._waiting.get(stream.stream, {})
        waited = chunks.pop(chunk.epoch, None) is not None
        if waited and not chunks:
            del self._waiting[stream.stream]
        return waited

    async def _said(self, stream: ReplicatedStream, chunk: ChunkRegistration) -> schema.Wait | None:
        """The entry of a chunk, with what an operator has said of it. Raises MetadataError."""
        entry = (await self._metadata.get(schema.wait_key(stream.stream, chunk.epoch))).entry
        return None if entry is None else schema.decode(schema.Wait, entry)

    async def _note(
        self, waiting: _WaitingTakeover, chunk: ChunkRegistration, error: Exception, order: GroupOrder | None = None
    ) -> None:
        """Have the metadata store say what is waited for, by a takeover or the group of an epoch, if this host owns the
        stream. Raises CairnError.
        """
        wait, noted = _entry_of(waiting, chunk, error, order), waiting.noted
        if noted is not None and (wait.lost, wait.is_for_epoch) == (noted.lost, noted.is_for_epoch):
            return
        stream, owner = waiting.stream.stream, OwnerId(wait.host, wait.start)
        key, head = schema.wait_key(stream, chunk.epoch), head_key(stream)
        entry, head_entry = (await self._metadata.get(key)).entry, (await self._metadata.get(head)).entry
        if head_entry is None or decode_head(head_entry.value).owner != owner:
            return  # it has another one, and will know soon
        said = None if entry is None else schema.decode(schema.Wait, entry)
        if said is not None:
            wait = replace(wait, forgotten=said.forgotten, repeat_epochs=said.repeat_epochs)
        if wait.is_let_go:
            return  # an operator has said so since it was asked for
        conditions = (Condition(key, _revision(entry)), Condition(head, head_entry.revision))
        self._entries[stream, chunk.epoch] = owner
        put = Put(key, schema.encode(wait))
        if isinstance(await self._metadata.commit(Transaction(conditions, (put,))), Committed):
            waiting.noted = wait

    def _remove(self, stream: ReplicatedStream, chunk: ChunkRegistration, *, is_read: bool) -> None:
        """Remove the entry of a chunk, if this host has put one. `is_read`: a takeover has read the chunk."""
        place = (stream.stream, chunk.epoch)
        if place in self._entries:
            self._spawn(partial(self._clear, place, self._entries.pop(place), is_read=is_read))

    async def _clear(self, place: tuple[str, int], owner: OwnerId, *, is_read: bool) -> None:
        """Remove the entry that this host has put, but for what an operator has said, as far as it still counts."""
        key = schema.wait_key(*place)
        while True:
            try:
                entry = (await self._metadata.get(key)).entry
                if place in self._entries:
                    return  # it waits again, and has said so
                wait = None if entry is None else schema.decode(schema.Wait, entry)
                if entry is None or wait is None or owner_of(wait) != owner:
                    return
                left = replace(wait, forgotten=wait.forgotten and not is_read, ended=True)
                if left == wait:
                    return
                change = Put(key, schema.encode(left)) if left.is_said else Delete(key)
                removed = Transaction((Condition(key, entry.revision),), (change,))
                if isinstance(await self._metadata.commit(removed), Committed):
                    return
            except MetadataDamaged:
                return  # it says nothing to anybody
            except MetadataError:
                await trio.sleep(CLEAR_PAUSE_S)

    async def _end_word(self, place: tuple[str, int], owner: OwnerId) -> None:
        """Remove the entry of a chunk that a search has read, whoever has put it, but for what an operator has said of
        takeovers, or of a chunk that was lost: another part of it may be damaged. `owner`: this host.
        """
        key, head = schema.wait_key(*place), head_key(place[0])
        while True:
            try:
                entry, head_entry = (await self._metadata.get(key)).entry, (await self._metadata.get(head)).entry
                if place in self._entries or head_entry is None or decode_head(head_entry.value).owner != owner:
                    return  # it waits again, and has said so; or another host owns the stream
                wait = None if entry is None else schema.decode(schema.Wait, entry)
                if entry is None or wait is None:
                    return
                left = replace(wait, repeat_epochs=wait.repeat_epochs and wait.lost, ended=True)
                if left == wait:
                    return
                change = Put(key, schema.encode(left)) if left.is_said else Delete(key)
                conditions = (Condition(key, entry.revision), Condition(head, head_entry.revision))
                if isinstance(await self._metadata.commit(Transaction(conditions, (change,))), Committed):
                    return
            except (MetadataDamaged, CorruptRegister, UnknownFormatVersion):
                return  # it says nothing to anybody
            except MetadataError:
                await trio.sleep(CLEAR_PAUSE_S)


def owner_of(wait: schema.Wait) -> OwnerId:
    """Who owned the stream when an entry was written."""
    return OwnerId(wait.host, wait.start)


def _entry_of(
    waiting: _WaitingTakeover, chunk: ChunkRegistration, error: Exception, order: GroupOrder | None
) -> schema.Wait:
    """What an entry says of a takeover that waits, or of the group of an epoch. Raises NotLeader."""
    stream, owner = waiting.stream, waiting.stream.registration.owner
    return schema.Wait(
        host=owner.host,
        start=owner.start,
        chunk=chunk.epoch,
        first=chunk.base_offset,
        end=chunk.base_offset if chunk.end is None else chunk.end.next_offset,
        object=_object(stream, chunk)[: schema.MAX_OBJECT_CHARACTERS],
        error=plain(str(error))[: schema.MAX_ERROR_CHARACTERS] or type(error).__name__,
        lost=_is_lost(chunk, error),
        since_ms=waiting.since_ms,
        query="" if order is None else plain(order.query)[: schema.MAX_QUERY_CHARACTERS],
        epoch=0 if order is None else order.epoch,
    )


def _is_lost(chunk: ChunkRegistration, error: Exception) -> bool:
    """Whether nobody is known who may have a chunk that could not be read."""
    return isinstance(error, CorruptChunk) and not (chunk.members or chunk.candidates)


def _revision(entry: Entry | None) -> int:
    return ABSENT if entry is None else entry.revision


def _object(stream: ReplicatedStream, chunk: ChunkRegistration) -> str:
    """What the keys of a chunk's objects in the tier start with; empty: it does not lie there."""
    tiered = tiered_chunk(stream.tier_place, chunk)
    return "" if tiered is None else chunk_directory(tiered.place, tiered.base_offset, tiered.attempt)


def _named(stream: ReplicatedStream, chunk: ChunkRegistration | None) -> dict[str, object]:
    """What a report says of the chunk that is waited for."""
    if chunk is None or chunk.end is None:
        return {}
    named = {"chunk": chunk.epoch, "first": chunk.base_offset, "last": chunk.end.next_offset - 1}
    hosts = ",".join(dict.fromkeys(member.host for member in (*chunk.members, *chunk.candidates)))
    return named | {"object": _object(stream, chunk), "hosts": hosts}
