"""Takeovers that wait because the chunk that says who has written to a stream cannot be read; what ends such a wait.

A new owner that finds the open chunk empty needs the producers' last sequences, which are in the last sealed chunk
(`chunk_reads`). Where nobody gives it, nobody leads the stream. The wait ends when
* the chunk can be read again: it is tried all the time;
* all who have written in it have expired, as with an owner that lives: the chunk's last append is longer ago;
* an operator lets the stream go on without it (`forget`), which the metadata store has, by a swap.
In the last two cases producers begin anew: what they send is taken, whatever its sequence, and a batch that was sent
before and is sent again is not recognized. No record is removed or hidden by that.

A stream that is led may wait for such a chunk as well: an epoch that is under way may be in it
(`logstore.cluster.epochs.group_appends`). Time does not end that; the chunk or an operator does.

Invariants:
* A wait of NOTE_AFTER_S is an entry in the metadata store, which names stream, chunk and object; any host shows it. It
  counts while its host, in its life, owns the stream; who waits writes it under the head that names it the owner.
* `forget` is for the chunk that the entry names, and for no other. It is put on the condition that neither the entry
  nor the head of the registration has changed since it was looked at: if the takeover has gone on, nothing is changed.
* An owner goes on without a chunk only behind a try to read it that has failed.
* The entry goes when its owner has read the chunk, or goes on because all have expired. One that was forgotten stays
  for the next owners, as long as they need that chunk and cannot read it; a stream has one entry at most, and the topic
  takes it along when it is deleted.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
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
from logstore.cluster.members.view import ClusterView, stream_name
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.retention_clock import AGREE_MS
from logstore.cluster.streams.tiered_chunks import tiered_chunk
from logstore.errors import CairnError, CorruptChunk, NothingLost, TryAgain, UnknownTopicOrPartition
from logstore.events import PRODUCERS_EXPIRED, PRODUCERS_FORGOTTEN, PRODUCERS_NOT_READ
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
CLEAR_PAUSE_S: Final = 5.0
"""Between tries to remove an entry while the metadata store is away."""
TRIES: Final = 8
MAX_NAMED: Final = 20
"""Streams that wait and are named in one answer."""

Table = ProducerTable[AppendTicket]
Spawn = Callable[[Callable[[], Awaitable[None]]], None]


class Waits(Protocol):
    """Who hears of takeovers that wait."""

    async def failed(
        self, stream: ReplicatedStream, offset: int, chunk: ChunkRegistration | None, error: Exception, /
    ) -> Table | None:
        """Who has written, which a chunk says, could not be read. Returns after a pause; a table: the stream goes on
        with it.
        """

    def over(self, stream: ReplicatedStream, /) -> None:
        """Who has written is known."""


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

    def over(self, stream: ReplicatedStream) -> None:
        """See Waits."""


@dataclass(slots=True)
class _Waiting:
    """A takeover that waits, in one ownership. `noted`: what its entry says."""

    stream: ReplicatedStream
    ownership: int
    since_s: float
    since_ms: int
    noted: schema.Wait | None = None

    @property
    def is_current(self) -> bool:
        return self.stream.ownership == self.ownership


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
        self._waiting: dict[str, _Waiting] = {}
        self._entries: dict[str, OwnerId] = {}
        """Streams of which this host has put an entry, and as whom."""

    @property
    def count(self) -> int:
        """How many streams of this host wait now."""
        self._waiting = {stream: waiting for stream, waiting in self._waiting.items() if waiting.is_current}
        return len(self._waiting)

    async def failed(
        self, stream: ReplicatedStream, offset: int, chunk: ChunkRegistration | None, error: Exception
    ) -> Table | None:
        """See Waits."""
        if chunk is not None and chunk.end is not None:
            waiting = self._wait(stream)
            if self._is_expired(chunk):
                return self._go_on(stream, PRODUCERS_EXPIRED, offset, chunk, error)
            try:
                if await is_forgotten(self._metadata, stream.stream, chunk):
                    return self._go_on(stream, PRODUCERS_FORGOTTEN, offset, chunk, error)
                if self._clock.monotonic_s() - waiting.since_s >= NOTE_AFTER_S:
                    await self._note(waiting, chunk, error)
            except CairnError as why:  # the metadata store is away, or the stream has another owner
                error = CairnError(f"{error}; and the wait cannot be noted now: {why}")
        return await super().failed(stream, offset, chunk, error)

    def over(self, stream: ReplicatedStream) -> None:
        """See Waits."""
        self._over(stream, is_read=True)

    # ---- searches of streams that are led

    async def may_pass(self, stream: ReplicatedStream, chunk: ChunkRegistration, error: CorruptChunk) -> bool:
        """Whether a search may pass over a chunk that it cannot read, because an operator lets the stream go on without
        it. If not, the wait is noted as that of a takeover. Raises CairnError.
        """
        if await is_forgotten(self._metadata, stream.stream, chunk):
            self._waiting.pop(stream.stream, None)
            return True
        waiting = self._wait(stream)
        if chunk.end is not None and self._clock.monotonic_s() - waiting.since_s >= NOTE_AFTER_S:
            await self._note(waiting, chunk, error)
        return False

    def searched(self, stream: ReplicatedStream, from_offset: int) -> None:
        """A search from an offset on has ended; if it has read the chunk that was waited for, the wait is over."""
        waiting = self._waiting.get(stream.stream)
        if waiting is not None and (waiting.noted is None or from_offset < waiting.noted.end):
            self.over(stream)

    # ---- details

    def _over(self, stream: ReplicatedStream, *, is_read: bool) -> None:
        self._waiting.pop(stream.stream, None)
        if stream.stream in self._entries:
            self._spawn(partial(self._clear, stream.stream, self._entries.pop(stream.stream), is_read=is_read))

    def _wait(self, stream: ReplicatedStream) -> _Waiting:
        known = self._waiting.get(stream.stream)
        if known is None or not known.is_current:
            now_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
            known = self._waiting[stream.stream] = _Waiting(stream, stream.ownership, now_s, now_ms)
        return known

    def _is_expired(self, chunk: ChunkRegistration) -> bool:
        """Whether nobody who has written in a chunk would be remembered by an owner that had lived."""
        age_ms = self._served_ms() - AGREE_MS - chunk.written_ms
        return chunk.written_ms != UNKNOWN_TIME and age_ms > self._expiry_ms

    def _go_on(
        self, stream: ReplicatedStream, event: LogEvent, offset: int, chunk: ChunkRegistration, error: Exception
    ) -> Table:
        if event is PRODUCERS_EXPIRED:
            self._over(stream, is_read=False)
        self._waiting.pop(stream.stream, None)
        self._report(event, stream=stream.name, offset=offset, **_named(stream, chunk), error=str(error))
        return ProducerTable()

    async def _note(self, waiting: _Waiting, chunk: ChunkRegistration, error: Exception) -> None:
        """Have the metadata store say what is waited for, if this host owns the stream. Raises CairnError."""
        stream, owner = waiting.stream, waiting.stream.registration.owner
        wait = schema.Wait(
            host=owner.host,
            start=owner.start,
            chunk=chunk.epoch,
            first=chunk.base_offset,
            end=chunk.base_offset if chunk.end is None else chunk.end.next_offset,
            object=_object(stream, chunk)[: schema.MAX_OBJECT_CHARACTERS],
            error=plain(str(error))[: schema.MAX_ERROR_CHARACTERS] or type(error).__name__,
            lost=isinstance(error, CorruptChunk) and not (chunk.members or chunk.candidates),
            since_ms=waiting.since_ms,
        )
        if waiting.noted is not None and (wait.chunk, wait.lost) == (waiting.noted.chunk, waiting.noted.lost):
            return
        key, head = schema.wait_key(stream.stream), head_key(stream.stream)
        entry, head_entry = (await self._metadata.get(key)).entry, (await self._metadata.get(head)).entry
        if head_entry is None or decode_head(head_entry.value).owner != owner:
            return  # it has another one, and will know soon
        if _forgets(entry, chunk):
            return  # an operator has said so since it was asked for
        conditions = (Condition(key, _revision(entry)), Condition(head, head_entry.revision))
        self._entries[stream.stream] = owner
        if isinstance(
            await self._metadata.commit(Transaction(conditions, (Put(key, schema.encode(wait)),))), Committed
        ):
            waiting.noted = wait

    async def _clear(self, stream: str, owner: OwnerId, *, is_read: bool) -> None:
        """Remove the entry that this host has put; one that was forgotten only if the chunk was read."""
        key = schema.wait_key(stream)
        while True:
            try:
                entry = (await self._metadata.get(key)).entry
                if stream in self._entries:
                    return  # it waits again, and has said so
                wait = None if entry is None else schema.decode(schema.Wait, entry)
                if entry is None or wait is None or _owner(wait) != owner or (wait.forgotten and not is_read):
                    return
                removed = Transaction((Condition(key, entry.revision),), (Delete(key),))
                if isinstance(await self._metadata.commit(removed), Committed):
                    return
            except MetadataDamaged:
                return  # it says nothing to anybody
            except MetadataError:
                await trio.sleep(CLEAR_PAUSE_S)


class WaitNotes:
    """What operators see of takeovers that wait, and may change of them. Any host has all of it; it owns nothing."""

    def __init__(self, metadata: MetadataStore, view: ClusterView) -> None:
        self._metadata = metadata
        self._view = view

    async def of_topic(self, topic_id: str) -> dict[int, schema.Wait]:
        """What the partitions of a topic wait for, by partition. Raises MetadataError."""
        found = await self._current(f"{schema.WAITS}{topic_id}/")
        return {int(stream.rpartition("/")[2]): wait for stream, wait in found.items()}

    async def names(self) -> tuple[str, ...]:
        """Streams that wait, the first MAX_NAMED. Raises MetadataError."""
        named = []
        for stream in await self._current(schema.WAITS):
            topic_id, _, partition = stream.partition("/")
            named.append(f"{self._view.names.get(topic_id, topic_id)}-{partition}")
        return tuple(sorted(named)[:MAX_NAMED])

    async def _current(self, prefix: str) -> dict[str, schema.Wait]:
        """The waits that count, by stream; entries that cannot be read are left out."""
        found: dict[str, schema.Wait] = {}
        after, more = "", True
        while more:
            page = await self._metadata.page(prefix, after=after)
            for entry in page.entries:
                stream = entry.key.removeprefix(schema.WAITS)
                known = self._view.heads.get(stream)
                try:
                    wait = schema.decode(schema.Wait, entry)
                except MetadataDamaged:
                    continue
                if known is not None and known.head.owner == _owner(wait) and not wait.forgotten:
                    found[stream] = wait
            after, more = page.entries[-1].key if page.entries else "", page.more
        return found

    async def forget(self, topic: str, partition: int, *, even_if_away: bool) -> schema.Wait:
        """Let a stream go on without the chunk that its takeover waits for; returns what it waited for. `even_if_away`:
        also if a host or a store that has the chunk may come back. May be asked again.

        Raises UnknownTopicOrPartition, NothingLost, TryAgain, MetadataError, CorruptRegister, UnknownFormatVersion.
        """
        known, name = self._view.topics.get(topic), f"{topic[:80]}-{partition}"
        if known is None or not 0 <= partition < known.topic.partitions:
            raise UnknownTopicOrPartition(f"there is no partition {name}")
        stream = stream_name(known.topic.topic_id, partition)
        key, head = schema.wait_key(stream), head_key(stream)
        for _ in range(TRIES):
            entry, head_entry = (await self._metadata.get(key)).entry, (await self._metadata.get(head)).entry
            wait = None if entry is None else schema.decode(schema.Wait, entry)
            if entry is None or wait is None or head_entry is None:
                raise _nothing_lost(name)
            if decode_head(head_entry.value).owner != _owner(wait):
                raise _nothing_lost(name)
            if wait.forgotten:
                return wait
            if not (wait.lost or even_if_away):
                raise NothingLost(
                    f"{name} waits for offsets {wait.first} to {wait.end - 1}, which may come back: {wait.error}; "
                    "bring back who has them, or say --even-if-away"
                )
            conditions = (Condition(key, entry.revision), Condition(head, head_entry.revision))
            put = Put(key, schema.encode(replace(wait, forgotten=True)))
            if isinstance(await self._metadata.commit(Transaction(conditions, (put,))), Committed):
                return wait
        raise TryAgain(f"{name}: who owns it changes all the time; try again")


async def is_forgotten(metadata: MetadataStore, stream: str, chunk: ChunkRegistration) -> bool:
    """Whether an operator lets a stream go on without a chunk. Raises MetadataError."""
    return _forgets((await metadata.get(schema.wait_key(stream))).entry, chunk)


def _forgets(entry: Entry | None, chunk: ChunkRegistration) -> bool:
    if entry is None:
        return False
    found = schema.decode(schema.Wait, entry)
    return found.forgotten and (found.chunk, found.first) == (chunk.epoch, chunk.base_offset)


def _nothing_lost(name: str) -> NothingLost:
    return NothingLost(
        f"no takeover of {name} has waited for {NOTE_AFTER_S:g} s for a chunk that cannot be read; nothing was changed "
        f"(`cairn topics describe {name.rpartition('-')[0]}`)"
    )


def _owner(wait: schema.Wait) -> OwnerId:
    return OwnerId(wait.host, wait.start)


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
