"""Staged output in a cluster: segments as records of the stream that has the ledger of epochs.

A segment is its header and data as in a staging file (`logstore.format.staged`), cut into pieces of PIECE_BYTES: a
record with the key SEGMENT, then records with the key MORE. A record with the key DROPPED names attempts that no longer
exist. A record with the key STAGED has the headers and the places of earlier segments, for an owner that begins to read
after these segments. The owner of the stream appends all these records, and the next owner reads them in their order
(`take`).

Invariants:
* A ticket of `stage` settles only when all pieces of the segment are acknowledged: on every member, synced.
* The pieces of a segment are in order; ledger entries may lie between them. After a takeover a segment counts only if
  all pieces exist and its checksums match. An unfinished segment of the former owner is skipped.
* The segments of an attempt count from the first segment on, without a gap.
* A failed append of a piece ends the attempt of its segment. A failed DROPPED record is appended again
  (`tell_dropped`), and the name of a dropped attempt is used again only after that record: so the next owner never
  reads a mixture of two attempts under a name.
* The next owner needs only records from `first_offset` on. A dropped attempt counts until the stream has its DROPPED
  record durably.
* STAGED records name all attempts up to the first segment that is not durable, and are written while no segment is
  under way (`cluster.epochs.replicated_ledger`). So an owner that begins to read at the first STAGED record misses no
  segment, and an owner that begins earlier learns nothing new from them. DROPPED records
  with the dropped attempts that are not named follow, so that neither owner knows these attempts.
* `move` appends segments again unchanged, and never after the DROPPED record of their attempt. The offsets of an
  attempt change when all its segments were appended again: an owner that reads from an earlier offset takes the first
  copies, an owner that reads from a later offset the second copies. If a segment of an attempt cannot be read, the
  attempt is not moved at all: otherwise each try would append a part of the attempt again.
* A named segment before the start of the stream is skipped, and so are the later segments of its attempt: a host of an
  earlier version, which writes no STAGED records, trims dropped segments before the stream has the DROPPED record.
* All staged bytes together stay below `limit_bytes` and one segment header. At most CACHE_BYTES of data are kept in
  memory, for epochs that are committed soon; the rest is read from the stream.

This module does not know which epochs are committed: `logstore.epochs.epochs` names the attempts to drop.
"""

import json
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, takewhile
from typing import Final, NamedTuple

from crc32c import crc32c

from logstore.errors import CairnError, CorruptFile, MalformedRequest, StagePosition, StorageFailed
from logstore.format.epoch_api import Part
from logstore.format.fields import get_int, get_name, get_objects, parse_object
from logstore.format.records import Record
from logstore.format.staged import (
    AttemptKey,
    SegmentHeader,
    decode_segment_header,
    encode_known_header,
    encode_segment_header,
    segment_bytes,
)
from logstore.interfaces import Buffer
from logstore.log.coroutines import all_settled, start
from logstore.log.ticket import Ticket

SEGMENT: Final = b"segment"
MORE: Final = b"more"
DROPPED: Final = b"dropped"
STAGED: Final = b"staged"
PIECE_BYTES: Final = 1 << 20
"""Half of what the owner of a stream may have under way at the least, so that pieces are written while others wait."""
CACHE_BYTES: Final = 16 << 20
KEYS_AT_ONCE: Final = 1_000
"""Of dropped attempts in one record."""
NAMED_AT_ONCE_BYTES: Final = 1 << 20
"""Of headers in one record, or one larger one: a stream takes no batch of all headers."""
_PLACE: Final = struct.Struct(">QI")
_INT64_MAX: Final = 2**63 - 1
_NOT_KNOWN: Final = _INT64_MAX
"""The first offset of an attempt of which nothing is acknowledged."""

AppendRecord = Callable[[bytes, bytes], Ticket[int]]
"""Appends a record, by key and value, behind those before it; settles with the offset when it is acknowledged."""
ReadValues = Callable[[int, int], Ticket[list[bytes]]]
"""The values of so many staged records, SEGMENT first, from an offset on. Fails with StorageFailed, CorruptChunk, or
NotLeader.
"""


class SegmentPart(NamedTuple):
    """The batches of one stream in a segment: where they are in its data, and how many."""

    position: int
    length: int
    batches: int


class ReplicatedSegment:
    """A segment in the stream."""

    def __init__(self, header: SegmentHeader, ticket: Ticket[int]) -> None:
        self.header = header
        self.ticket = ticket
        self.offset = -1
        """Of its first piece; -1: not known yet."""

    @property
    def is_durable(self) -> bool:
        """Whether all its pieces are acknowledged."""
        return self.ticket.done and self.ticket.error is None

    @property
    def pieces(self) -> int:
        """How many records have it."""
        return -(-self.header.size_bytes // PIECE_BYTES)

    def parts(self) -> Iterator[tuple[tuple[str, int], SegmentPart]]:
        """The parts of its data that are not empty, by topic and partition."""
        position = 0
        for part in self.header.parts:
            if part.length_bytes:
                yield (part.topic, part.partition), SegmentPart(position, part.length_bytes, part.batches)
            position += part.length_bytes


class ReplicatedAttempt:
    """The segments of one attempt."""

    def __init__(self, key: AttemptKey) -> None:
        self.key = key
        self.segments: list[ReplicatedSegment] = []
        self.durable_segments = 0
        self.size_bytes = self.named_bytes = 0
        """Of all segments, and of their headers in STAGED records."""
        self.failure: StorageFailed | None = None
        self.unread = 0
        """The segment that could not be read when the attempt was to be moved."""

    @property
    def last_staged_ms(self) -> int:
        """Wall time of the newest segment, in ms."""
        return self.segments[-1].header.staged_ms if self.segments else 0

    def add(self, segment: ReplicatedSegment) -> None:
        """The next segment."""
        self.segments.append(segment)
        self.size_bytes += segment.header.size_bytes
        self.named_bytes += _PLACE.size + segment.header.header_bytes

    @property
    def first_offset(self) -> int:
        """Of its first segment; −1: not known yet, or there is none."""
        return self.segments[0].offset if self.segments else -1

    def known(self, position: int, data: Buffer) -> Ticket[int] | None:
        """The ticket of the same segment, if it is here; None if it is the next one. Raises StagePosition."""
        if position > len(self.segments):
            raise StagePosition(
                f"segment {position} of attempt {self.key.attempt!r} does not follow the {len(self.segments)} segments "
                "here",
                length=len(self.segments),
            )
        if position == len(self.segments):
            return None
        segment = self.segments[position]
        if segment.header.data_bytes != len(data) or segment.header.data_crc != crc32c(data):
            raise StagePosition(
                f"segment {position} of attempt {self.key.attempt!r} is here with other bytes; an attempt's output "
                "must not change: use a new attempt",
                length=len(self.segments),
            )
        return segment.ticket


class _Pieces:
    """A segment while it is read back, piece by piece."""

    def __init__(self, offset: int, value: bytes) -> None:
        self.offset = offset
        self.size_bytes = segment_bytes(value)
        self.data = bytearray(value)

    def header(self) -> SegmentHeader | None:
        """The header, if the segment is whole."""
        if len(self.data) != self.size_bytes:
            return None
        header = decode_segment_header(self.data)
        whole = memoryview(self.data)[header.header_bytes :]
        return header if crc32c(whole) == header.data_crc else None


class ReplicatedStaging:
    """The staged output of all attempts (`logstore.epochs.parts.StagingArea`)."""

    def __init__(self, append: AppendRecord, read: ReadValues, limit_bytes: int) -> None:
        self._append = append
        self._read = read
        self._limit_bytes = limit_bytes
        self._attempts: dict[AttemptKey, ReplicatedAttempt] = {}
        self._by_query: dict[str, dict[AttemptKey, ReplicatedAttempt]] = {}
        """The same, by their queries; a query without attempts has no entry."""
        self._reading: _Pieces | None = None
        self._cache: dict[ReplicatedSegment, bytes] = {}
        self._cached_bytes = 0
        self._untold: dict[AttemptKey, int] = {}
        """Dropped, and the stream does not say so, nor is it being told; with the first offset of each."""
        self._telling: dict[Ticket[int], Mapping[AttemptKey, int]] = {}
        """The DROPPED records under way, with what they name and the first offset of each."""
        self._moved: Ticket[None] = Ticket.succeeded(None)
        self.used_bytes = self.named_bytes = 0
        """Of all segments, and of their headers in STAGED records."""

    # ---- what the stream has, at a takeover

    @property
    def first_offset(self) -> int | None:
        """The offset of the first piece of an attempt that lives, or may live for a next owner; None: there is none. An
        offset that is not known yet is behind all that are.
        """
        known = [attempt.first_offset for attempt in self._attempts.values() if attempt.first_offset >= 0]
        dropped = [offset for _, offset in self._dropped() if offset < _NOT_KNOWN]
        return min([*known, *dropped], default=None)

    def _dropped(self) -> Iterator[tuple[AttemptKey, int]]:
        """The attempts that were dropped and may live for a next owner, with their first offsets."""
        return chain(self._untold.items(), *(some.items() for some in self._telling.values()))

    def begun_before(self, offset: int) -> list[AttemptKey]:
        """The attempts for which the stream has to be kept in front of an offset."""
        return [key for key, attempt in self._attempts.items() if 0 <= attempt.first_offset < offset]

    def take(self, offset: int, record: Record, log_start: int = 0) -> None:
        """Read back a record; `log_start`: where the stream starts now. Raises CorruptFile, UnknownFormatVersion."""
        value = record.value or b""
        if record.key == SEGMENT:
            self._reading = _Pieces(offset, value)
        elif record.key == MORE and self._reading is not None:
            self._reading.data += value
        elif record.key == DROPPED:
            self._forget(_decode_keys(value))
        elif record.key == STAGED:
            for named, at in _decode_named(value):
                if at >= log_start:
                    self._take_segment(named, at)
        if self._reading is not None and len(self._reading.data) >= self._reading.size_bytes:
            pieces, self._reading = self._reading, None
            header = pieces.header()
            if header is not None:
                self._take_segment(header, pieces.offset)

    def _take_segment(self, header: SegmentHeader, offset: int) -> None:
        attempt = self._attempts.get(header.key) or ReplicatedAttempt(header.key)
        if header.position != len(attempt.segments):
            return  # its attempt was dropped, or began before what is read; or it is named, and was read
        segment = ReplicatedSegment(header, Ticket.succeeded(header.position + 1))
        segment.offset = offset
        attempt.add(segment)
        attempt.durable_segments += 1
        self._remember(attempt)
        self._count(segment)

    def named(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of records that name the durable segments of all attempts, each as of when it is taken; and
        behind them what was dropped before it could be named, which an owner that begins earlier forgets there.
        """
        segments = deque(
            (attempt, segment)
            for attempt in self._attempts.values()
            for segment in takewhile(lambda segment: segment.is_durable, attempt.segments)
        )
        while segments:
            some = self._take_named(segments)
            if some:
                yield STAGED, some
        dropped = [key for key, _ in self._dropped()]
        for first in range(0, len(dropped), KEYS_AT_ONCE):
            yield DROPPED, _encode_keys(dropped[first : first + KEYS_AT_ONCE])

    def _take_named(self, segments: deque[tuple[ReplicatedAttempt, ReplicatedSegment]]) -> bytes:
        """The headers of the first segments, as many as go into a record; takes them, and those that are dropped."""
        some = bytearray()
        while segments:
            attempt, segment = segments[0]
            if self._attempts.get(attempt.key) is attempt:
                named = _PLACE.pack(segment.offset, segment.header.header_bytes) + encode_known_header(segment.header)
                if some and len(some) + len(named) > NAMED_AT_ONCE_BYTES:
                    break
                some += named
            segments.popleft()
        return bytes(some)

    # ---- staging

    def stage(
        self, key: AttemptKey, position: int, parts: tuple[Part, ...], data: Buffer, *, now_ms: int
    ) -> Ticket[int]:
        """Stage the segment `position` of an attempt; the result is `position` + 1, once the segment is durable.

        The caller has checked the batches. Raises StagePosition, or StorageFailed if the area is full.
        """
        attempt = self._attempts.get(key) or ReplicatedAttempt(key)
        known = attempt.known(position, data)
        if known is not None:
            return known
        if key in self._untold:
            self.tell_dropped()
        if key in self._untold:
            raise StorageFailed(
                f"attempt {key.attempt!r} was dropped, which the topic of epochs does not take now; retry, or use "
                "another attempt"
            )
        if self.used_bytes + len(data) > self._limit_bytes:
            raise StorageFailed(
                f"{self.used_bytes} bytes are staged, and {len(data)} more would exceed staging.limit_bytes = "
                f"{self._limit_bytes}; commit or stop queries, or raise the limit"
            )
        head, header = encode_segment_header(key, position=position, staged_ms=now_ms, parts=parts, data=data)
        segment = ReplicatedSegment(header, Ticket())
        attempt.add(segment)
        self._remember(attempt)
        self._count(segment)
        whole = head + data
        self._keep(segment, whole[len(head) :])
        start(self._settle(attempt, segment, self._append_pieces(whole)))
        return segment.ticket

    def _append_pieces(self, whole: bytes) -> list[Ticket[int]]:
        pieces = [whole[at : at + PIECE_BYTES] for at in range(0, len(whole), PIECE_BYTES)]
        return [self._append(MORE if number else SEGMENT, piece) for number, piece in enumerate(pieces)]

    def _count(self, segment: ReplicatedSegment) -> None:
        self.used_bytes += segment.header.size_bytes
        self.named_bytes += _PLACE.size + segment.header.header_bytes

    async def _settle(
        self, attempt: ReplicatedAttempt, segment: ReplicatedSegment, appended: Sequence[Ticket[int]]
    ) -> None:
        failure: StorageFailed | None = None
        for ticket in appended:
            await ticket.settled()
            if ticket.error is not None:
                failure = failure or StorageFailed(f"staging for epoch {attempt.key.epoch}: {ticket.error}; retry")
            elif segment.offset < 0:
                segment.offset = ticket.result()  # from now on an owner has to read from here
        if failure is not None:
            attempt.failure = failure
            segment.ticket.fail(failure)
            return
        attempt.durable_segments += 1
        segment.ticket.succeed(segment.header.position + 1)

    def _keep(self, segment: ReplicatedSegment, data: bytes) -> None:
        """Keep data in memory; the oldest makes room."""
        self._cache[segment] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            self._cached_bytes -= len(self._cache.pop(next(iter(self._cache))))

    # ---- moving

    def move(self, keys: Iterable[AttemptKey]) -> None:
        """Append once more what these attempts have staged: then the stream need not be kept in front of that. Call it
        every few seconds with those that are to be moved still; nothing is begun while one of them is on its way.
        """
        if self._moved.done:
            attempts = [attempt for key in keys if (attempt := self._attempts.get(key)) is not None]
            self._moved = start(self._move(attempts))

    async def _move(self, attempts: Sequence[ReplicatedAttempt]) -> None:
        """One segment after another, so that one is in memory."""
        for attempt in attempts:
            segments, offsets = tuple(attempt.segments), list[int]()
            if not all(segment.is_durable for segment in segments):
                continue
            try:
                await self._read_through(attempt, segments)
                for segment in segments:
                    whole = await self._whole(segment)
                    if self._attempts.get(attempt.key) is not attempt:
                        break  # it was dropped
                    appended = self._append_pieces(whole)
                    await all_settled(appended)
                    places = [ticket.result() for ticket in appended]
                    offsets.append(places[0])
            except CairnError:
                continue  # the next call tries it again; what is damaged stays where it is
            if len(offsets) == len(segments) == len(attempt.segments):
                for segment, offset in zip(segments, offsets, strict=True):
                    segment.offset = offset

    async def _read_through(self, attempt: ReplicatedAttempt, segments: Sequence[ReplicatedSegment]) -> None:
        """Read all segments, the one that could not be read last time first. Raises as `data` does."""
        first = attempt.unread
        for number in (*range(first, len(segments)), *range(first)):
            attempt.unread = number
            await self._whole(segments[number])
        attempt.unread = 0

    # ---- reading back

    async def data(self, segment: ReplicatedSegment) -> bytes:
        """The data of a durable segment, checked. Raises StorageFailed, CorruptFile, NotLeader."""
        cached = self._cache.get(segment)
        return cached if cached is not None else (await self._whole(segment))[segment.header.header_bytes :]

    async def _whole(self, segment: ReplicatedSegment) -> bytes:
        """Header and data as they are in the stream. Raises as `data` does."""
        header = segment.header
        whole = b"".join(await self._read(segment.offset, segment.pieces))
        data = memoryview(whole)[header.header_bytes :]
        if len(data) != header.data_bytes or crc32c(data) != header.data_crc:
            raise CorruptFile(
                f"segment {header.position} of attempt {header.key.attempt!r} of query {header.key.query!r}, at offset "
                f"{segment.offset} of the topic of epochs, is damaged: {header.data_bytes} bytes were staged"
            )
        return whole

    # ---- attempts

    def get(self, key: AttemptKey) -> ReplicatedAttempt | None:
        """The attempt with this key, or None if it has staged nothing."""
        return self._attempts.get(key)

    def attempts(self, query: str) -> list[ReplicatedAttempt]:
        """The attempts of a query. Costs what there are of the query, whatever the others have staged."""
        return list(self._by_query.get(query, {}).values())

    def all_attempts(self) -> list[ReplicatedAttempt]:
        """Every attempt."""
        return list(self._attempts.values())

    def drop(self, keys: Iterable[AttemptKey]) -> int:
        """Forget these attempts; the stream hears of it, and nobody waits for that. Returns their total bytes."""
        dropped = [key for key in keys if key in self._attempts]
        if not dropped:
            return 0
        first_offsets = {key: self._attempts[key].first_offset for key in dropped}
        self._note_untold({key: offset if offset >= 0 else _NOT_KNOWN for key, offset in first_offsets.items()})
        dropped_bytes = self._forget(dropped)
        self.tell_dropped()
        return dropped_bytes

    def tell_dropped(self) -> None:
        """Tell the stream of dropped attempts that it does not know of. Call it every few seconds."""
        untold, self._untold = list(self._untold.items()), {}
        for first in range(0, len(untold), KEYS_AT_ONCE):
            some = dict(untold[first : first + KEYS_AT_ONCE])
            telling = self._append(DROPPED, _encode_keys(list(some)))
            self._telling[telling] = some
            telling.add_callback(partial(self._told, some))

    def _told(self, some: Mapping[AttemptKey, int], told: Ticket[int]) -> None:
        del self._telling[told]
        if told.error is not None:
            self._note_untold(some)

    def _note_untold(self, first_offsets: Mapping[AttemptKey, int]) -> None:
        for key, offset in first_offsets.items():
            self._untold[key] = min(offset, self._untold.get(key, offset))

    def _remember(self, attempt: ReplicatedAttempt) -> None:
        self._attempts[attempt.key] = self._by_query.setdefault(attempt.key.query, {})[attempt.key] = attempt

    def _forget(self, keys: Iterable[AttemptKey]) -> int:
        forgotten = [attempt for key in keys if (attempt := self._attempts.pop(key, None)) is not None]
        for attempt in forgotten:
            of_query = self._by_query[attempt.key.query]
            del of_query[attempt.key]
            if not of_query:
                del self._by_query[attempt.key.query]
        for segment in (segment for attempt in forgotten for segment in attempt.segments):
            self._cached_bytes -= len(self._cache.pop(segment, b""))
        dropped_bytes = sum(attempt.size_bytes for attempt in forgotten)
        self.used_bytes -= dropped_bytes
        self.named_bytes -= sum(attempt.named_bytes for attempt in forgotten)
        return dropped_bytes


def _encode_keys(keys: Sequence[AttemptKey]) -> bytes:
    fields = ("query", "run", "epoch", "task", "attempt")  # as in the header of a segment
    named = [dict(zip(fields, key, strict=True)) for key in keys]
    return json.dumps({"attempts": named}, ensure_ascii=False, separators=(",", ":")).encode()


def _decode_keys(value: bytes) -> list[AttemptKey]:
    """Raises CorruptFile."""
    try:
        return [
            AttemptKey(
                get_name(entry, "query"),
                get_name(entry, "run"),
                get_int(entry, "epoch", 0, _INT64_MAX),
                get_int(entry, "task", 0, _INT64_MAX),
                get_name(entry, "attempt"),
            )
            for entry in get_objects(parse_object(value), "attempts")
        ]
    except MalformedRequest as error:
        raise CorruptFile(f"a record of dropped attempts in the topic of epochs: {error}") from error


def _decode_named(value: bytes) -> Iterator[tuple[SegmentHeader, int]]:
    """The headers of a STAGED record, and the offsets of their segments. Raises CorruptFile, UnknownFormatVersion."""
    view, position = memoryview(value), 0
    while position < len(view):
        if len(view) - position < _PLACE.size:
            raise CorruptFile(f"a record of staged segments in the topic of epochs ends at {len(view)}, within a place")
        offset, header_bytes = _PLACE.unpack_from(view, position)
        header = decode_segment_header(view[position + _PLACE.size :])
        position += _PLACE.size + header.header_bytes
        yield replace(header, header_bytes=header_bytes), offset
