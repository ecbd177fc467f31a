"""What the log knows of chunks in the tier: the ledger `tier`, and the chunks of each stream that are there.

Invariants:
* A chunk is in the ledger only after its objects were read back, and out of it before one of them is removed.
* A stream's local start is in the ledger before a local copy in front of it is removed, and no chunk in front of it was
  missing in the ledger then. So each record from the log start on is in a local chunk or in a chunk of the ledger.
* After a put that failed, the ledger's file may have the change or not: `settle` makes it agree with what is known here
  before anything is concluded from an entry that is missing.

Byte table in docs/format.md.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final, Protocol

from logstore.errors import CorruptFile
from logstore.format.index import UNKNOWN_TIME
from logstore.format.tiered_chunk import INDEX_SUFFIX, LOG_SUFFIX, ParsedKey, TieredChunk, decode_entry, encode_entry
from logstore.interfaces import FileSystem
from logstore.log.chunks import Chunk, ChunkView
from logstore.log.jobs import JobSource
from logstore.log.ledger import DIRECTORY, Ledger
from logstore.log.readers import StreamId
from logstore.log.retention import AgedChunk
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig
from logstore.log.waiters import Waitable

NAME: Final = "tier"
_CHUNK, _LOCAL = "chunk/", "local/"


class TieredChunks:
    """The chunks of one stream that are in the tier, with or without a local copy, in order."""

    def __init__(self, chunks: Iterable[TieredChunk] = ()) -> None:
        self._chunks = sorted(chunks, key=lambda chunk: chunk.base_offset)
        self._ends = [chunk.next_offset for chunk in self._chunks]
        self.size_bytes = sum(chunk.size_bytes for chunk in self._chunks)
        """Of their batches."""

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def end_offset(self) -> int:
        """The offset after the last record in the tier; -1: nothing is there."""
        return self._ends[-1] if self._ends else -1

    def all(self) -> Sequence[TieredChunk]:
        """All of them; a copy."""
        return list(self._chunks)

    def at(self, offset: int) -> TieredChunk | None:
        """The chunk that holds `offset`."""
        number = bisect_right(self._ends, offset)
        found = self._chunks[number] if number < len(self._chunks) else None
        return found if found is not None and found.base_offset <= offset else None

    def below(self, offset: int) -> TieredChunk | None:
        """The newest chunk with records before `offset`."""
        number = bisect_left([chunk.base_offset for chunk in self._chunks], offset)
        return self._chunks[number - 1] if number else None

    def between(self, first_offset: int, end_offset: int) -> list[TieredChunk]:
        """Those with records at or after the first offset that begin before the other."""
        number = bisect_right(self._ends, first_offset)
        return [chunk for chunk in self._chunks[number:] if chunk.base_offset < end_offset]

    def before(self, offset: int) -> list[TieredChunk]:
        """Those all of whose records are before `offset`."""
        return self._chunks[: bisect_right(self._ends, offset)]

    def add(self, chunk: TieredChunk) -> None:
        """Add the chunk that follows."""
        self._chunks.append(chunk)
        self._ends.append(chunk.next_offset)
        self.size_bytes += chunk.size_bytes

    def drop_before(self, offset: int) -> None:
        """Forget those all of whose records are before `offset`."""
        number = bisect_right(self._ends, offset)
        self.size_bytes -= sum(chunk.size_bytes for chunk in self._chunks[:number])
        del self._chunks[:number], self._ends[:number]

    def has(self, chunk: Chunk) -> bool:
        """Whether all of a local chunk is in the tier."""
        found = self.at(chunk.base_offset)
        return found is not None and (found.base_offset, found.next_offset) == (chunk.base_offset, chunk.next_offset)


class TieredLog(Waitable):
    """A stream with chunks in the tier, or without: what it has in all."""

    chunks: list[Chunk]
    config: TopicConfig
    log_start_offset: int

    def __init__(self) -> None:
        super().__init__()
        self.tiered = TieredChunks()

    @property
    def kept_chunks(self) -> Sequence[AgedChunk]:
        """All chunks in order: those that are in the tier alone, then the local ones."""
        return [*self.tiered.before(self.chunks[0].base_offset), *self.chunks] if self.tiered else self.chunks

    @property
    def local_start_offset(self) -> int:
        """The first offset that is on the disk."""
        has_older = self.tiered and self.chunks
        return max(self.log_start_offset, self.chunks[0].base_offset) if has_older else self.log_start_offset

    @property
    def tiered_end_offset(self) -> int:
        """The offset after the last record in the tier; -1: nothing is there."""
        return self.tiered.end_offset

    @property
    def tiered_chunk_count(self) -> int:
        """How many chunks are in the tier."""
        return len(self.tiered)

    @property
    def tiered_bytes(self) -> int:
        """Bytes of their batches."""
        return self.tiered.size_bytes


def tiered_view(chunk: TieredChunk) -> ChunkView:
    """A chunk of the tier as readers see a chunk: its paths are keys of the object store."""
    return ChunkView(
        chunk.key(LOG_SUFFIX),
        chunk.key(INDEX_SUFFIX),
        chunk.base_offset,
        chunk.next_offset,
        chunk.size_bytes,
        chunk.max_timestamp,
        None,
        leader_epoch=chunk.leader_epoch,
    )


class AdoptedStream(Protocol):
    """What a stream gets of the tier."""

    partition: int
    log_start_offset: int
    start_asked: int
    tiered: TieredChunks


class TierLedger:
    """The ledger `tier`: the chunks in the tier, and where the local copies of each stream begin."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._found, _ = decode_ledger(ledger.items())

    @classmethod
    def open(cls, fs: FileSystem, notify: Callable[[JobSource], None]) -> "TierLedger":
        """Read the ledger. Raises CorruptFile, UnknownFormatVersion, OSError."""
        is_used = any(name.startswith(f"{NAME}.") for name in fs.list_directory(DIRECTORY))
        return cls(Ledger.open(fs, NAME, notify) if is_used else Ledger(NAME, notify))

    def local_start(self, topic_id: str, partition: int) -> int:
        """The offset where the local copies of a stream begin; 0: at its first record."""
        return int(self._ledger.get(_local_key(StreamId(topic_id, partition))) or 0)

    def adopt(self, stream: "AdoptedStream", topic_id: str, log_start: int) -> None:
        """Give a stream that was opened what it has in the tier. Its log start is then the one last recorded."""
        stream.tiered = TieredChunks(self._found.pop(StreamId(topic_id, stream.partition), ()))
        if stream.tiered:
            first = max(log_start, stream.tiered.all()[0].base_offset)
            stream.log_start_offset = stream.start_asked = min(first, stream.log_start_offset)

    def strangers(self) -> dict[StreamId, list[TieredChunk]]:
        """Chunks of streams that are gone, once all streams were adopted."""
        return dict(self._found)

    def add(self, stream: StreamId, chunk: TieredChunk) -> Ticket[None]:
        """Note a chunk whose objects were read back. Fails with StorageFailed."""
        return self._ledger.put({_chunk_key(stream, chunk): encode_entry(chunk)})

    def drop(self, stream: StreamId, chunks: Sequence[TieredChunk]) -> Ticket[None]:
        """Forget chunks, before their objects are removed. Fails with StorageFailed."""
        return self._ledger.put({_chunk_key(stream, chunk): None for chunk in chunks})

    def set_local_start(self, stream: StreamId, offset: int) -> Ticket[None]:
        """Note that local copies in front of an offset are about to be removed. Fails with StorageFailed."""
        return self._ledger.put({_local_key(stream): str(offset).encode()})

    def forget(self, streams: Iterable[StreamId]) -> Ticket[None]:
        """Forget the local starts of streams that are gone. Fails with StorageFailed."""
        for stream in streams:
            self._found.pop(stream, None)
        keys = [_local_key(stream) for stream in streams]
        return self._ledger.put({key: None for key in keys if self._ledger.get(key) is not None})

    def settle(self) -> Ticket[None]:
        """Make the file hold what is known here, whatever became of a put that failed. Fails with StorageFailed."""
        return self._ledger.put({})


def decode_ledger(
    entries: Iterable[tuple[str, bytes]],
) -> tuple[dict[StreamId, list[TieredChunk]], dict[StreamId, int]]:
    """The chunks in the tier, and the local starts, by stream. Raises CorruptFile, UnknownFormatVersion."""
    chunks: dict[StreamId, list[TieredChunk]] = {}
    starts: dict[StreamId, int] = {}
    for key, value in entries:
        kind, _, rest = key.partition("/")
        try:
            topic_id, partition, *base = rest.split("/")
            stream = StreamId(topic_id, int(partition))
            if f"{kind}/" == _LOCAL:
                starts[stream] = int(value)
            else:
                chunks.setdefault(stream, []).append(decode_entry(int(base[0]), value, f"ledger {NAME}, {key}"))
        except (ValueError, IndexError) as error:
            raise CorruptFile(f"ledger {NAME}: {key!r} is not an entry of it ({error}); restore the ledger") from error
    return chunks, starts


def _chunk_key(stream: StreamId, chunk: TieredChunk) -> str:
    return f"{_CHUNK}{stream.topic_id}/{stream.partition}/{chunk.base_offset:020d}"


def _local_key(stream: StreamId) -> str:
    return f"{_LOCAL}{stream.topic_id}/{stream.partition}"


def local_excess(
    chunks: Sequence[Chunk],
    tiered: TieredChunks,
    config: TopicConfig,
    served_ms: int,
    unseen: Container[ParsedKey],
    pinned_offset: int,
) -> int | None:
    """The offset up to which local copies are beyond the topic's local retention and in the tier; None: none is.

    The last chunk always stays, and what lies behind `pinned_offset`: a start searches it for an epoch that is not
    over, and waits for no store. `served_ms` is the retention clock; `unseen`: chunks whose objects may be missing.
    """
    before_offset = None
    total_bytes = sum(chunk.size_bytes for chunk in chunks)
    most_bytes, oldest_ms = config.kept_local_bytes, config.kept_local_ms
    for chunk in chunks[:-1]:
        is_too_big = 0 <= most_bytes <= total_bytes - chunk.size_bytes
        is_too_old = chunk.written_ms != UNKNOWN_TIME and 0 <= oldest_ms <= served_ms - chunk.written_ms
        found = tiered.at(chunk.base_offset)
        is_there = tiered.has(chunk) and (found is None or found.parsed not in unseen)
        is_kept = chunk.rewriting is not None or chunk.next_offset > pinned_offset
        if is_kept or not is_there or not (is_too_big or is_too_old):
            break
        before_offset = chunk.next_offset
        total_bytes -= chunk.size_bytes
    return before_offset
