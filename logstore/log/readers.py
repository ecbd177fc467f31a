"""Registered readers: consumers whose unread records no retention removes, up to a limit.

A reader registers under a name with a position in each of its streams, and acknowledges later positions. A mark is the
last durable position of one reader in one stream. Retention removes no record at or after the lowest mark of a stream.
A reader that stays behind for too long, or holds too many bytes, is released: its mark holds nothing any more, and the
reader's next acknowledgement below the log start is refused with an error that names what was lost.

Invariants:
* Only durable marks hold records back. An acknowledgement becomes durable at the next `save`; a crash before loses it,
  and the older mark then holds more records than needed, never fewer.
* A mark belongs to one topic id: it holds nothing in a later topic of the same name.
* A mark below its stream's log start holds nothing: the reader was released, or a client deleted the records.
* Bounded: MAX_READERS readers with MAX_MARKS marks in all.

Source: SGuard, section 2 (HAInput acknowledges, HAOutput trims); docs/decisions/0022-registered-readers.md.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from logstore.errors import CairnError, CorruptFile, ReaderReleased, TooManyReaders, UnknownReader
from logstore.log.coroutines import start
from logstore.log.ledger import Ledger
from logstore.log.ticket import Ticket

MAX_READERS: Final = 10_000
MAX_MARKS: Final = 200_000
_PREFIX: Final = "reader/"


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """How much a reader may keep beyond a stream's retention: bytes of one stream, and ms since it acknowledged."""

    max_bytes: int = 10 << 30
    max_idle_ms: int = 7 * 24 * 3600 * 1000


class StreamId(NamedTuple):
    """A stream of one topic for as long as that topic exists: hex topic id and partition."""

    topic_id: str
    partition: int


class Held(NamedTuple):
    """Records that a mark keeps beyond the retention: their bytes; the retention clock when the first were written."""

    size_bytes: int
    written_ms: int


class Release(NamedTuple):
    """A reader whose mark in a stream holds nothing any more; `why` is a sentence part for operators."""

    reader: str
    mark: int
    why: str


class ReaderState(NamedTuple):
    """A reader as tools show it: the marks that hold records, those that were released, ms since it acknowledged."""

    name: str
    group: str
    marks: Mapping[StreamId, int]
    released: Mapping[StreamId, int]
    idle_ms: int


@dataclass(slots=True)
class _Reader:
    name: str
    group: str
    positions: dict[StreamId, int]
    """What it acknowledged, durable or not."""
    acknowledged_ms: int
    released: dict[StreamId, int] = field(default_factory=dict)
    marks: dict[StreamId, int] = field(default_factory=dict)
    """The durable positions."""
    is_saved: bool = False


class Readers:
    """All registered readers of one store. `served_ms` is the retention clock: an outage makes no reader idle."""

    def __init__(self, ledger: Ledger, limits: HoldLimits, served_ms: Callable[[], int]) -> None:
        self.limits = limits
        self._ledger = ledger
        self._served_ms = served_ms
        self._readers: dict[str, _Reader] = {}
        self._by_stream: dict[StreamId, dict[str, _Reader]] = {}
        self._committed: Callable[[str, StreamId], int | None] = lambda *_: None
        for key, value in ledger.items(_PREFIX):
            self._adopt(_decode(key[len(_PREFIX) :], value))

    def _adopt(self, reader: _Reader) -> None:
        self._readers[reader.name] = reader
        for stream in reader.positions:
            self._by_stream.setdefault(stream, {})[reader.name] = reader

    # ---- what readers ask for

    def register(self, name: str, positions: Mapping[StreamId, int], group: str = "") -> Ticket[None]:
        """Register a reader with all its positions, or set those of a registered reader anew; durable when it settles.

        With a `group` the positions follow the offsets that the Kafka consumer group commits (`follow`). Raises
        TooManyReaders; the ticket fails with StorageFailed.
        """
        known = self._readers.get(name)
        others = len(self._readers) - (known is not None)
        marks = sum(len(reader.positions) for reader in self._readers.values() if reader is not known)
        if others >= MAX_READERS or marks + len(positions) > MAX_MARKS:
            raise TooManyReaders(
                f"reader {name!r} with {len(positions)} streams: beside {others} readers with {marks} streams at most "
                f"{MAX_READERS} readers with {MAX_MARKS} streams may be registered; remove readers that are gone"
            )
        reader = _Reader(name, group, dict(positions), self._served_ms())
        if known is not None:
            # Until the new positions are durable, the old marks hold too: a crash may bring either back.
            reader.marks = {stream: min(mark, positions.get(stream, mark)) for stream, mark in known.marks.items()}
            self._forget(known)
        self._adopt(reader)
        for stream in reader.marks:
            self._by_stream.setdefault(stream, {})[name] = reader
        return start(self._save(reader))

    def acknowledge(self, name: str, positions: Mapping[StreamId, int], log_starts: Mapping[StreamId, int]) -> None:
        """Note that a reader needs nothing before these positions; a position never goes back. Durable at `save`.

        `log_starts` has the log start of each stream. Raises UnknownReader; ReaderReleased if records at or after a
        position are gone; TooManyReaders if a new stream does not fit. A refused acknowledgement changes nothing.
        """
        reader = self._known(name)
        for stream, position in positions.items():
            first = log_starts[stream]
            if position < first:
                raise ReaderReleased(
                    f"reader {name!r} acknowledged offset {position} of partition {stream.partition}, but records "
                    f"before {first} are gone{self._reason(reader, stream)}; register again from {first} or later"
                )
        new = sum(stream not in reader.positions for stream in positions)
        marks = sum(len(other.positions) for other in self._readers.values()) if new else 0
        if marks + new > MAX_MARKS:
            raise TooManyReaders(f"reader {name!r}: {new} more streams, but all readers have {MAX_MARKS} at most")
        for stream, position in positions.items():
            reader.positions[stream] = max(position, reader.positions.get(stream, 0))
            reader.released.pop(stream, None)
            self._by_stream.setdefault(stream, {})[name] = reader
        reader.acknowledged_ms = self._served_ms()
        reader.is_saved = False

    def _reason(self, reader: _Reader, stream: StreamId) -> str:
        if stream not in reader.released:
            return ""
        return f", since this reader stayed at {reader.released[stream]} for too long or held too many bytes"

    def remove(self, name: str) -> Ticket[None]:
        """Remove a reader; durable when it settles. Raises UnknownReader."""
        self._forget(self._known(name))
        return self._ledger.put({_PREFIX + name: None})

    def _forget(self, reader: _Reader) -> None:
        del self._readers[reader.name]
        for stream in (*reader.positions, *reader.marks):
            self._drop(reader, stream)

    def _drop(self, reader: _Reader, stream: StreamId) -> None:
        readers = self._by_stream.get(stream, {})
        readers.pop(reader.name, None)
        if not readers:
            self._by_stream.pop(stream, None)

    def _known(self, name: str) -> _Reader:
        reader = self._readers.get(name)
        if reader is None:
            raise UnknownReader(f"no reader is registered as {name!r}; register it first")
        return reader

    def describe(self, name: str) -> ReaderState:
        """One reader. Raises UnknownReader."""
        reader = self._known(name)
        held = {stream: mark for stream, mark in reader.positions.items() if stream not in reader.released}
        return ReaderState(name, reader.group, held, dict(reader.released), self._served_ms() - reader.acknowledged_ms)

    def names(self) -> list[str]:
        """All readers' names, sorted."""
        return sorted(self._readers)

    # ---- what the store asks for

    def follow(self, committed: Callable[[str, StreamId], int | None]) -> None:
        """Take the positions of readers with a group from here on from what their groups committed; None: nothing."""
        self._committed = committed

    def _take_commits(self) -> None:
        for reader in self._readers.values():
            for stream in list(reader.positions) if reader.group else ():
                offset = self._committed(reader.group, stream)
                if offset is not None and offset > reader.positions[stream]:
                    reader.positions[stream] = offset
                    reader.acknowledged_ms = self._served_ms()
                    reader.is_saved = False

    def save(self) -> list[Ticket[None]]:
        """Start to make durable what was acknowledged since the last call; marks move once it is."""
        self._take_commits()
        return [start(self._save(reader)) for reader in self._readers.values() if not reader.is_saved]

    async def _save(self, reader: _Reader) -> None:
        reader.is_saved = True
        positions = dict(reader.positions)
        try:
            await self._ledger.put({_PREFIX + reader.name: _encode(reader)})
        except CairnError:
            reader.is_saved = False
            raise
        reader.marks = positions
        for stream in positions:
            if self._readers.get(reader.name) is reader:
                self._by_stream.setdefault(stream, {})[reader.name] = reader

    def held_from(self, stream: StreamId, log_start: int) -> int | None:
        """The lowest mark that holds records of a stream; None if no mark does."""
        return min((mark for mark, _ in self._holding(stream, log_start)), default=None)

    def _holding(self, stream: StreamId, log_start: int) -> Iterable[tuple[int, _Reader]]:
        for reader in self._by_stream.get(stream, {}).values():
            mark = reader.marks.get(stream)
            if mark is not None and mark >= log_start and stream not in reader.released:
                yield mark, reader

    def trim_limit(
        self, stream: StreamId, log_start: int, wanted: int, held: Callable[[int], Held]
    ) -> tuple[int, list[Release]]:
        """How far retention may trim a stream that it wants to trim up to `wanted`, and which readers are released.

        `held(mark)`: the records from a mark up to `wanted`.
        """
        released: list[Release] = []
        for mark, reader in sorted(self._holding(stream, log_start), key=lambda pair: pair[0]):
            if mark >= wanted:
                break
            records = held(mark)
            # A reader that had read everything is not late before there is something to read.
            idle_ms = self._served_ms() - max(reader.acknowledged_ms, records.written_ms)
            limits = self.limits
            if records.size_bytes > limits.max_bytes:
                why = f"it kept {records.size_bytes} bytes beyond the retention, at most {limits.max_bytes} are allowed"
            elif idle_ms > limits.max_idle_ms:
                why = f"it acknowledged nothing for {idle_ms} ms, at most {limits.max_idle_ms} are allowed"
            else:
                return mark, released
            released.append(Release(reader.name, mark, why))
            reader.released[stream] = mark
            reader.is_saved = False
        return wanted, released

    def forget_topic(self, topic_id: str) -> None:
        """Forget all positions in a deleted topic."""
        for stream in [stream for stream in self._by_stream if stream.topic_id == topic_id]:
            for reader in self._by_stream.pop(stream).values():
                for positions in (reader.positions, reader.marks, reader.released):
                    positions.pop(stream, None)
                reader.is_saved = False


def _encode(reader: _Reader) -> bytes:
    return json.dumps(
        {
            "group": reader.group,
            "acknowledged_ms": reader.acknowledged_ms,
            "positions": [[*stream, offset] for stream, offset in reader.positions.items()],
            "released": [[*stream, offset] for stream, offset in reader.released.items()],
        },
        separators=(",", ":"),
    ).encode()


def _decode(name: str, value: bytes) -> _Reader:
    try:
        entry = json.loads(value)
        positions = {StreamId(topic_id, partition): offset for topic_id, partition, offset in entry["positions"]}
        released = {StreamId(topic_id, partition): offset for topic_id, partition, offset in entry["released"]}
        reader = _Reader(name, entry["group"], positions, entry["acknowledged_ms"], released, dict(positions), True)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFile(
            f"ledger readers: the entry of {name!r} is damaged ({error!r}); restore it from a copy"
        ) from error
    return reader
