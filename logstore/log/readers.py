"""Registered readers: consumers whose unread records no retention removes, up to a limit.

A reader registers under a name with a position in each of its streams, and acknowledges later positions. Its held
offset in a stream is its last durable position there. Retention removes no record at or after the lowest held offset of
a stream. A reader that stays behind for too long, or keeps too many bytes, is released from the stream: it holds
nothing there any more, and its next acknowledgement below the log start is refused with an error that names what was
lost. A reader with a group follows the offsets that a Kafka consumer group commits.

Invariants:
* A position holds records from the call on, and is answered when it is durable and its records still exist. An
  acknowledgement of a stream that the reader already holds is answered at once and becomes durable at a later `save`. A
  crash before that loses the acknowledgement; the older held offset then holds more records than needed, never fewer.
* Changes of one reader run one after the other. Until a change is durable the former positions hold too.
* Only the newest incarnation of a query changes its reader: a registration or an acknowledgement with a lower number is
  refused and keeps nothing alive. A registration without a number removes the number.
* A held offset belongs to one topic id: it holds nothing in a later topic of the same name. If a client has deleted
  records, a held offset below the log start holds the records from the log start on.
* The bytes that a reader keeps are counted from its acknowledgements, durable or not: a live reader is not released
  because its acknowledgements wait to be written.
* Bounded: MAX_READERS readers with MAX_READER_STREAMS streams in all, STREAMS_PER_READER each; a call of `save` writes
  SAVED_AT_ONCE readers. The time of periodic work does not grow with readers times streams.

Source: SGuard, section 3 (HAInput acknowledges, HAOutput trims); docs/decisions/0022-registered-readers.md.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeVar

from logstore.errors import (
    CairnError,
    FencedIncarnation,
    OffsetOutOfRange,
    ReaderReleased,
    TooManyReaders,
    UnknownReader,
    UnknownTopicOrPartition,
)
from logstore.format.reader_api import STREAMS_PER_READER
from logstore.log.reader_entries import ReaderEntry, decode_reader, encode_reader
from logstore.log.reader_entries import StreamId as StreamId
from logstore.log.serial_queue import SerialQueue
from logstore.log.ticket import Ticket

MAX_READERS: Final = 10_000
MAX_READER_STREAMS: Final = 200_000
"""Streams of all readers; a stream counts once for each of its readers."""
SAVED_AT_ONCE: Final = 200
"""Readers that one `save` writes, and lines about releases that are reported together."""
RELEASED_AT_ONCE: Final = 1_000
"""Readers that one `trim_limit` releases; the next call goes on."""
_PREFIX: Final = "reader/"
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """How much a reader may keep beyond a stream's retention: bytes of one stream, and ms since it acknowledged."""

    max_bytes: int = 10 << 30
    max_idle_ms: int = 7 * 24 * 3600 * 1000


class StreamBounds(NamedTuple):
    """The records of a stream: those at or after `log_start` are there, and no trim of them is being written."""

    name: str
    log_start: int
    high_watermark: int


class HeldRecords(NamedTuple):
    """Records that a reader keeps beyond the retention: bytes, and the retention clock when the first were written."""

    size_bytes: int
    written_ms: int


class Release(NamedTuple):
    """A reader that was released from `streams` streams, from `stream` at `offset`; `why` is a part of a sentence."""

    reader: str
    stream: str
    offset: int
    why: str
    streams: int


class CleanLimit(NamedTuple):
    """Control records of state of these queries are needed by nobody below an offset of a stream."""

    before_offset: int
    queries: frozenset[str]


class ReaderState(NamedTuple):
    """A reader as tools show it: positions that hold records, those it was released at, ms since it acknowledged.

    `state`: the query of whose state it reads the control records; empty: it reads other records.
    `incarnation_number`: of the query's incarnation that it belongs to; 0: none.
    """

    name: str
    group: str
    held: Mapping[StreamId, int]
    released: Mapping[StreamId, int]
    idle_ms: int
    state: str = ""
    incarnation_number: int = 0


class ReaderLedger(Protocol):
    """What keeps readers durably: a ledger's file, or a replicated stream."""

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """All pairs under a prefix."""

    def put(self, changes: Mapping[str, bytes | None]) -> Ticket[None]:
        """Store entries atomically; None deletes. The ticket settles when they are durable."""


class Readers:
    """All registered readers of one store, or of a cluster.

    `served_ms` is the retention clock: an outage makes no reader idle. `bounds` are a stream's; None: it is gone.
    """

    def __init__(
        self,
        ledger: ReaderLedger,
        limits: HoldLimits,
        served_ms: Callable[[], int],
        bounds: Callable[[StreamId], StreamBounds | None],
    ) -> None:
        self.limits = limits
        self._ledger = ledger
        self._served_ms = served_ms
        self._bounds = bounds
        self._changes = SerialQueue()
        self._readers: dict[str, ReaderEntry] = {}
        # Those that hold records: the registered readers, and registrations that are being written.
        self._holders: dict[ReaderEntry, None] = {}
        self._by_stream: dict[StreamId, dict[ReaderEntry, None]] = {}
        self._by_group: dict[str, dict[ReaderEntry, None]] = {}
        self._streams = 0
        self._replaced_readers = 0
        self._replaced_streams = 0
        self._dirty: dict[str, None] = {}
        self._releases: dict[str, Release] = {}
        self.released_streams = 0
        """Releases of a reader from a stream since the start."""
        self._committed: Callable[[str, StreamId], int | None] = lambda *_: None
        for key, value in ledger.items(_PREFIX):
            reader = decode_reader(key[len(_PREFIX) :], value)
            self._readers[reader.name] = reader
            self._add(reader)

    # ---- the index of those that hold records

    def _add(self, reader: ReaderEntry) -> None:
        self._holders[reader] = None
        for stream in reader.positions:
            self._add_stream(reader, stream)
        if reader.group:
            self._by_group.setdefault(reader.group, {})[reader] = None

    def _add_stream(self, reader: ReaderEntry, stream: StreamId) -> None:
        self._by_stream.setdefault(stream, {})[reader] = None
        self._streams += 1

    def _drop(self, reader: ReaderEntry) -> None:
        del self._holders[reader]
        for stream in reader.positions:
            _discard(self._by_stream, stream, reader)
        self._streams -= len(reader.positions)
        if reader.group:
            _discard(self._by_group, reader.group, reader)

    def _drop_stream(self, stream: StreamId) -> None:
        for reader in self._by_stream.pop(stream):
            del reader.positions[stream], reader.held[stream]
            reader.released.pop(stream, None)
            self._streams -= 1
            self._dirty[reader.name] = None

    # ---- what readers ask for

    def register(
        self,
        name: str,
        positions: Mapping[StreamId, int],
        group: str = "",
        *,
        keep: bool = False,
        state: str = "",
        incarnation_number: int = 0,
    ) -> Ticket[None]:
        """Register a reader with all its positions, or set those of a registered reader anew; durable when it settles.

        With a `group` the positions follow the offsets that the Kafka consumer group commits (`follow`). With `keep` a
        registered reader's other streams stay as they are. `state`: the reader owns the state of this query; control
        records of the state that no reader holds may be removed (`clean_limit`). Raises OffsetOutOfRange,
        TooManyReaders, UnknownTopicOrPartition. The ticket fails with StorageFailed, or FencedIncarnation if the reader
        belongs to a newer incarnation than `incarnation_number`, and then nothing has changed; with OffsetOutOfRange or
        UnknownTopicOrPartition if records were deleted meanwhile: the reader is then registered, and holds what is
        left.
        """
        self.check_placed(positions)
        known = self._readers.get(name)
        kept = known.positions if known is not None and keep else {}
        wanted = len({*kept, *positions})
        self._check_room(name, wanted, known)
        placed, held = dict(positions), dict(positions)
        reader = ReaderEntry(name, group, placed, self._served_ms(), {}, state, incarnation_number, held)
        self._add(reader)
        registered = self._changes.run(name, lambda: self._register(reader, keep=keep))
        if known is not None and not registered.done:
            replaced = min(wanted, len(known.positions))
            self._count_replaced(1, replaced)
            registered.add_callback(lambda _: self._count_replaced(-1, -replaced))
        return registered

    def _count_replaced(self, readers: int, streams: int) -> None:
        """Both the reader and its registration anew hold records; in the limits they count once."""
        self._replaced_readers += readers
        self._replaced_streams += streams

    async def _register(self, reader: ReaderEntry, *, keep: bool) -> None:
        known = self._readers.get(reader.name)
        placed = dict(reader.positions)
        if known is not None and keep:
            for stream in [stream for stream in known.positions if stream not in placed]:
                self._take_over(stream, known, reader)
        try:
            if known is not None and reader.incarnation_number:
                _refuse_older(known, reader.incarnation_number)
            await self._ledger.put({_PREFIX + reader.name: encode_reader(reader)})
        except CairnError:
            self._drop(reader)
            raise
        if known is not None:
            self._drop(known)
        self._readers[reader.name] = reader
        self._take_commits(reader)
        self.check_placed(placed)

    def _take_over(self, stream: StreamId, known: ReaderEntry, reader: ReaderEntry) -> None:
        reader.positions[stream], reader.held[stream] = known.positions[stream], known.held[stream]
        if stream in known.released:
            reader.released[stream] = known.released[stream]
        self._add_stream(reader, stream)

    def acknowledge(self, name: str, positions: Mapping[StreamId, int], incarnation_number: int = 0) -> Ticket[None]:
        """Note that a reader needs nothing before these positions; a position never goes back.

        The ticket has settled at once, and the positions become durable at a `save`, if the reader holds records of all
        these streams and nothing else of the reader is being written. It fails with UnknownReader;
        FencedIncarnation if the reader belongs to a newer incarnation than `incarnation_number`; ReaderReleased if
        records at or after a position are gone; OffsetOutOfRange above the high watermark, or for a stream that is
        new to the reader; TooManyReaders; UnknownTopicOrPartition; and then nothing has changed. StorageFailed: new
        streams may be lost in a crash.
        """
        return self._changes.run(name, lambda: self._acknowledge(name, positions, incarnation_number))

    async def _acknowledge(self, name: str, positions: Mapping[StreamId, int], incarnation_number: int) -> None:
        reader = self._known(name)
        _refuse_older(reader, incarnation_number)
        for stream, position in positions.items():
            self._check_acknowledged(reader, stream, position)
        new = [stream for stream in positions if stream not in reader.positions]
        begun = new + [stream for stream in positions if stream in reader.released]
        if new:
            self._check_room(name, len(reader.positions) + len(new), reader)
        for stream in new:
            reader.positions[stream] = reader.held[stream] = positions[stream]
            self._add_stream(reader, stream)
        for stream, position in positions.items():
            reader.positions[stream] = max(position, reader.positions[stream])
            reader.released.pop(stream, None)
        reader.incarnation_number = incarnation_number
        self._note_life(reader)
        if begun:
            # A crash would lose what this reader begins to hold, not only how far it is.
            await self._save(reader)
            for stream in begun:
                self._check_acknowledged(reader, stream, positions[stream])

    def check_placed(self, positions: Mapping[StreamId, int]) -> None:
        """Refuse positions whose records are not all there. Raises OffsetOutOfRange, UnknownTopicOrPartition."""
        for stream, position in positions.items():
            bounds = self._existing(stream)
            if not bounds.log_start <= position <= bounds.high_watermark:
                raise OffsetOutOfRange(bounds.name, position, bounds.log_start, bounds.high_watermark)

    def _check_acknowledged(self, reader: ReaderEntry, stream: StreamId, position: int) -> None:
        if stream not in reader.positions or position >= (first := self._existing(stream).log_start):
            self.check_placed({stream: position})
            return
        since = ""
        if stream in reader.released:
            since = f", since this reader stayed at {reader.released[stream]} for too long or held too many bytes"
        raise ReaderReleased(
            f"reader {reader.name!r} acknowledged offset {position} of partition {stream.partition}, but records "
            f"before {first} are gone{since}; register again from {first} or later"
        )

    def _existing(self, stream: StreamId) -> StreamBounds:
        bounds = self._bounds(stream)
        if bounds is None:
            raise UnknownTopicOrPartition(f"partition {stream.partition} of topic id {stream.topic_id} is gone")
        return bounds

    def _check_room(self, name: str, wanted: int, known: ReaderEntry | None) -> None:
        """Refuse a reader that would have `wanted` streams, in place of `known`, beyond the limits."""
        others = len(self._holders) - self._replaced_readers - (known is not None)
        streams = self._streams - self._replaced_streams - (0 if known is None else len(known.positions))
        if wanted > STREAMS_PER_READER or others >= MAX_READERS or streams + wanted > MAX_READER_STREAMS:
            raise TooManyReaders(
                f"reader {name!r} with {wanted} streams, beside {others} readers with {streams} streams: at most "
                f"{MAX_READERS} readers with {MAX_READER_STREAMS} streams may be registered, and a reader may have "
                f"{STREAMS_PER_READER} streams; remove readers that are gone"
            )

    def _note_life(self, reader: ReaderEntry) -> None:
        reader.acknowledged_ms = self._served_ms()
        self._dirty[reader.name] = None

    def remove(self, name: str) -> Ticket[None]:
        """Remove a reader; durable when it settles. The ticket fails with UnknownReader or StorageFailed."""
        return self._changes.run(name, lambda: self._remove(name))

    async def _remove(self, name: str) -> None:
        reader = self._known(name)
        await self._ledger.put({_PREFIX + name: None})
        del self._readers[name]
        self._dirty.pop(name, None)
        self._drop(reader)

    def _known(self, name: str) -> ReaderEntry:
        reader = self._readers.get(name)
        if reader is None:
            raise UnknownReader(f"no reader is registered as {name!r}; register it first")
        return reader

    def describe(self, name: str) -> ReaderState:
        """One reader. Raises UnknownReader."""
        reader = self._known(name)
        held = {stream: offset for stream, offset in reader.positions.items() if stream not in reader.released}
        idle_ms, number = self._idle_ms(reader), reader.incarnation_number
        return ReaderState(name, reader.group, held, dict(reader.released), idle_ms, reader.state, number)

    def _idle_ms(self, reader: ReaderEntry) -> int:
        return max(0, self._served_ms() - reader.acknowledged_ms)

    def names(self) -> list[str]:
        """All readers' names, sorted."""
        return sorted(self._readers)

    # ---- what groups commit

    def follow(self, committed: Callable[[str, StreamId], int | None]) -> None:
        """Take from `committed` what groups have committed: now, and of each later registration; None: nothing.

        Later commits come by `note_commits`.
        """
        self._committed = committed
        for followers in self._by_group.values():
            for reader in followers:
                self._take_commits(reader)

    def _take_commits(self, reader: ReaderEntry) -> None:
        is_moved = False
        for stream in list(reader.positions) if reader.group else ():
            offset = self._committed(reader.group, stream)
            if offset is not None:
                is_moved |= self._move(reader, stream, offset)
        if is_moved:
            self._note_life(reader)

    def note_commits(self, group: str, offsets: Mapping[StreamId, int]) -> None:
        """Note what a group has durably committed: its readers follow, also back, as far as records are there."""
        for reader in self._by_group.get(group, ()):
            followed = [stream for stream in offsets if stream in reader.positions]
            for stream in followed:
                self._move(reader, stream, offsets[stream])
            if followed:
                self._note_life(reader)

    def _move(self, reader: ReaderEntry, stream: StreamId, offset: int) -> bool:
        """Set a follower's position, within what is there; whether anything has changed."""
        bounds = self._bounds(stream)
        if bounds is None or (offset < bounds.log_start and stream in reader.released):
            return False
        position = min(max(offset, bounds.log_start), bounds.high_watermark)
        was_released = reader.released.pop(stream, None) is not None
        if position == reader.positions[stream]:
            return was_released
        reader.positions[stream] = position
        reader.held[stream] = min(position, reader.held[stream])
        return True

    def not_held(self, name: str, streams: Iterable[StreamId]) -> list[StreamId]:
        """The streams of which a reader holds nothing now."""
        reader = self._readers.get(name)
        return [] if reader is None else [each for each in streams if each not in reader.positions]

    def holding_below(self, stream: StreamId, log_start: int, wanted: int) -> list[int]:
        """The positions below an offset whose records readers hold in a stream, durable or not."""
        held = self._holding(stream, log_start)
        return sorted({max(reader.positions[stream], log_start) for offset, reader in held if offset < wanted})

    # ---- what the store asks for

    def newest_ms(self) -> int:
        """The latest acknowledgement on the retention clock: that clock has been there."""
        return max((reader.acknowledged_ms for reader in self._readers.values()), default=0)

    def reconcile(self) -> None:
        """Forget the streams that do not exist: a crash came between the deletion of a topic and the next `save`."""
        for stream in [stream for stream in self._by_stream if self._bounds(stream) is None]:
            self._drop_stream(stream)

    def forget_topic(self, topic_id: str) -> None:
        """Forget all positions in a deleted topic."""
        for stream in [stream for stream in self._by_stream if stream.topic_id == topic_id]:
            self._drop_stream(stream)

    def save(self, at_most: int = SAVED_AT_ONCE) -> list[Ticket[None]]:
        """Start to make durable what readers acknowledged, those first that wait the longest. Held offsets move once it
        is durable.
        """
        names = list(islice(self._dirty, at_most))
        for name in names:
            del self._dirty[name]
        return [self._changes.run(name, partial(self._save_known, name)) for name in names]

    async def _save_known(self, name: str) -> None:
        reader = self._readers.get(name)
        if reader is not None:
            await self._save(reader)

    async def _save(self, reader: ReaderEntry) -> None:
        self._dirty.pop(reader.name, None)
        written = dict(reader.positions)
        try:
            await self._ledger.put({_PREFIX + reader.name: encode_reader(reader)})
        except CairnError:
            self._dirty[reader.name] = None
            raise
        for stream, offset in written.items():
            position = reader.positions.get(stream)
            if position is not None:  # else its topic was deleted meanwhile
                reader.held[stream] = min(offset, position)

    def remove_idle(self) -> list[tuple[str, Ticket[bool]]]:
        """Start to remove readers that hold nothing and are idle: for `max_idle_ms`, or twice that if released.

        Some at a time. A ticket settles with whether the reader is removed: it may have acknowledged meanwhile.
        """
        idle = islice((reader.name for reader in self._readers.values() if self._is_idle(reader)), SAVED_AT_ONCE)
        return [(name, self._changes.run(name, partial(self._remove_idle, name))) for name in list(idle)]

    def _is_idle(self, reader: ReaderEntry) -> bool:
        # Who was released for being idle has as long again to come back and be told what is gone.
        at_most_ms = self.limits.max_idle_ms * (2 if reader.released else 1)
        return len(reader.released) == len(reader.positions) and self._idle_ms(reader) > at_most_ms

    async def _remove_idle(self, name: str) -> bool:
        reader = self._readers.get(name)
        if reader is None or not self._is_idle(reader):
            return False
        await self._remove(name)
        return True

    def _holding(self, stream: StreamId, log_start: int) -> Iterable[tuple[int, ReaderEntry]]:
        for reader in self._by_stream.get(stream, ()):
            if stream not in reader.released:
                offset = reader.held[stream]
                yield offset if offset > log_start else log_start, reader

    def clean_limit(self, stream: StreamId, log_start: int) -> CleanLimit | None:
        """Below which offset, and of which queries, a stream's control records of state may be removed.

        That is the lowest held offset of all readers of the stream; None without a reader of state.
        """
        holding = list(self._holding(stream, log_start))
        queries = frozenset(reader.state for _, reader in holding if reader.state)
        return CleanLimit(min(offset for offset, _ in holding), queries) if queries else None

    def streams_with_state(self) -> list[StreamId]:
        """The streams in which control records of state may be removed."""
        return list(dict.fromkeys(at for reader in self._holders if reader.state for at in reader.held))

    def trim_limit(self, stream: StreamId, log_start: int, wanted: int, held: Callable[[int], HeldRecords]) -> int:
        """How far retention may trim a stream that it wants to trim up to `wanted`; releases who keeps too much.

        `held(offset)`: the records from an offset up to `wanted`.
        """
        before = self.released_streams
        for offset, reader in sorted(self._holding(stream, log_start), key=lambda pair: pair[0]):
            if offset >= wanted:
                break
            why = self._why_released(reader, max(reader.positions[stream], log_start), wanted, held)
            if why is None or self.released_streams - before >= RELEASED_AT_ONCE:
                return offset
            self.released_streams += 1
            reader.released[stream] = reader.positions[stream]
            self._dirty[reader.name] = None
            bounds, said = self._bounds(stream), self._releases.get(reader.name)
            if said is None:
                name = "" if bounds is None else bounds.name
                self._releases[reader.name] = Release(reader.name, name, reader.positions[stream], why, 1)
            else:
                self._releases[reader.name] = said._replace(streams=said.streams + 1)
        return wanted

    def _why_released(
        self, reader: ReaderEntry, position: int, wanted: int, held: Callable[[int], HeldRecords]
    ) -> str | None:
        if position >= wanted:
            return None  # it waits for a `save` only
        records, limits = held(position), self.limits
        # A reader that had read everything is not late before there is something to read.
        idle_ms = self._served_ms() - max(reader.acknowledged_ms, records.written_ms)
        if records.size_bytes > limits.max_bytes:
            return f"it held {records.size_bytes} bytes beyond the retention, at most {limits.max_bytes} are allowed"
        if idle_ms > limits.max_idle_ms:
            return f"it acknowledged nothing for {idle_ms} ms, at most {limits.max_idle_ms} are allowed"
        return None

    @property
    def has_releases(self) -> bool:
        """Whether there are releases that were not reported yet."""
        return bool(self._releases)

    def take_releases(self) -> list[Release]:
        """Releases that were not reported yet, one for each reader, some at a time."""
        return [self._releases.pop(name) for name in list(islice(self._releases, SAVED_AT_ONCE))]


def _discard(index: dict[_Key, dict["ReaderEntry", None]], key: _Key, reader: ReaderEntry) -> None:
    readers = index[key]
    del readers[reader]
    if not readers:
        del index[key]


def _refuse_older(reader: ReaderEntry, incarnation_number: int) -> None:
    """Raise FencedIncarnation for an incarnation before the one that a reader belongs to."""
    if incarnation_number < reader.incarnation_number:
        sender = f"incarnation {incarnation_number}" if incarnation_number else "a reader without an incarnation"
        raise FencedIncarnation(
            f"reader {reader.name!r} belongs to incarnation {reader.incarnation_number} of its query, and this is "
            f"{sender}; stop this one"
        )
