"""A replica of a chunk as the log knows it: its name, how much of it there is, and what is noted of it in a ledger.

A replica lies in a directory of its own, `replicas/TOPIC-ID-PARTITION-EPOCH-SERIAL`, with the files of a stream. The
serial is never used twice while anything of an earlier directory may be left, in the journal or in a table: a chunk
that is removed and copied anew is another replica.

Invariants:
* An entry of the ledger says only what is durable: a replica that has one has at least what the entry proves, and a
  sealed one ends there, whatever its files hold.
* The batches of a replica have dense offsets from its base offset on, and leader epochs that never fall, up to the
  chunk's epoch.

Sources: docs/replication.md, docs/format.md (replicas of chunks).
"""

import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from logstore.errors import CorruptFile, InvalidRecord, StorageFailed, UnknownFormatVersion
from logstore.format.batch import BatchHeader, check_batch
from logstore.format.control import BEGIN_TYPE, known_type
from logstore.interfaces import Buffer
from logstore.log.stream import Stream
from logstore.log.stream_state import AppendTicket, PendingAppend, PlacedGroup
from logstore.log.ticket import Ticket

DIRECTORY: Final = "replicas"
LEDGER: Final = "replicas"
CHUNK_KEY: Final = "chunk/"
REMOVED_KEY: Final = "removed/"
FENCE_KEY: Final = "fence/"
"""Keys in the ledger: with a directory, what is noted of a replica, or that it is being removed; with a stream, the
lowest epoch from which its appends are taken.
"""
ENTRY_VERSION: Final = 1
KNOWN_INTERVAL_BYTES: Final = 1 << 20
"""Between two prefixes that are kept in memory: what a read in the middle has to go through first."""
RECENT_ENDS: Final = 16
"""Ends of appends and reads that are kept of each replica: so many readers go on at no cost."""
_STREAM = re.compile(r"([0-9a-f]{32})/(0|[1-9][0-9]{0,8})")
_DIRECTORY = re.compile(r"([0-9a-f]{32})-(0|[1-9][0-9]{0,8})-([1-9][0-9]{0,17})-([1-9][0-9]{0,17})")


class ChunkPrefix(NamedTuple):
    """How much of a chunk: its bytes, the offset of the next record, and the CRC-32C of these bytes."""

    length_bytes: int
    next_offset: int
    checksum: int

    @classmethod
    def empty(cls, base_offset: int) -> "ChunkPrefix":
        """Nothing of a chunk that begins at an offset."""
        return cls(0, base_offset, 0)

    def followed_by(self, data: Buffer, next_offset: int) -> "ChunkPrefix":
        """The prefix with more batches, which end at an offset."""
        return ChunkPrefix(self.length_bytes + len(data), next_offset, crc32c(data, self.checksum))


NOTHING: Final = ChunkPrefix(0, 0, 0)


class ReplicaName(NamedTuple):
    """The name of a replica: its chunk, and the serial of its directory."""

    stream: str
    epoch: int
    serial: int

    @property
    def directory(self) -> str:
        """Where its files are."""
        return f"{DIRECTORY}/{self.stream.replace('/', '-')}-{self.epoch}-{self.serial}"

    @property
    def topic_id(self) -> str:
        """The topic's id, in hexadecimal."""
        return self.stream.partition("/")[0]

    @property
    def partition(self) -> int:
        """The partition."""
        return int(self.stream.partition("/")[2])


def name_of(directory: str) -> ReplicaName | None:
    """The replica in a directory below `replicas`, by the last part of its path; None if that is no replica's."""
    found = _DIRECTORY.fullmatch(directory.rpartition("/")[2])
    if found is None:
        return None
    return ReplicaName(f"{found[1]}/{found[2]}", int(found[3]), int(found[4]))


def check_stream(stream: str) -> None:
    """Raise StorageFailed unless a name is that of a replicated stream, which becomes a part of a path."""
    if _STREAM.fullmatch(stream) is None:
        raise StorageFailed(f"{stream[:80]!r} does not name a replicated stream; it must be TOPIC-ID-IN-HEX/PARTITION")


class NotedReplica(NamedTuple):
    """What the ledger has of a replica. `proven`: so much of it was durable; of a sealed one it is all. `cut`: base
    offset and length in bytes of the file at whose end a sealed one ends, if it was longer. `is_damaged`: a start has
    found it damaged; what it lacks may not show any more.
    """

    base_offset: int
    proven: ChunkPrefix
    is_sealed: bool = False
    cut: tuple[int, int] | None = None
    is_damaged: bool = False

    def encode(self) -> bytes:
        """The ledger's value."""
        fields = {"v": ENTRY_VERSION, "base": self.base_offset, "proven": self.proven, "sealed": self.is_sealed}
        more = ({"cut": self.cut} if self.cut is not None else {}) | ({"damaged": True} if self.is_damaged else {})
        return json.dumps(fields | more).encode()


def decode_noted(value: bytes, directory: str) -> NotedReplica:
    """What the ledger has of the replica in a directory. Raises CorruptFile, UnknownFormatVersion."""
    try:
        fields = json.loads(value)
        version, cut = fields["v"], fields.get("cut")
        if version == ENTRY_VERSION:
            place = None if cut is None else (int(cut[0]), int(cut[1]))
            proven = ChunkPrefix(*map(int, fields["proven"]))
            is_damaged = bool(fields.get("damaged", False))
            return NotedReplica(int(fields["base"]), proven, bool(fields["sealed"]), place, is_damaged)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise CorruptFile(f"the ledger of replicas is damaged at {directory}: {error!r}; report this") from error
    raise UnknownFormatVersion(f"{directory}: the ledger has an entry of version {version!r}; start a newer Cairn")


class KnownPrefixes:
    """Prefixes of one chunk, `KNOWN_INTERVAL_BYTES` apart at least, in rising order."""

    __slots__ = ("_checksums", "_lengths", "_offsets")

    def __init__(self, base_offset: int) -> None:
        self._lengths, self._offsets, self._checksums = array("q", (0,)), array("q", (base_offset,)), array("Q", (0,))

    def note(self, prefix: ChunkPrefix) -> None:
        """Keep a prefix if it is far enough from the others."""
        lengths, length = self._lengths, prefix.length_bytes
        number = bisect_right(lengths, length)
        is_far = number == len(lengths) or lengths[number] - length >= KNOWN_INTERVAL_BYTES
        if is_far and length - lengths[number - 1] >= KNOWN_INTERVAL_BYTES:
            lengths.insert(number, length)
            self._offsets.insert(number, prefix.next_offset)
            self._checksums.insert(number, prefix.checksum)

    def cut(self, length_bytes: int) -> None:
        """Forget what is longer than so many bytes."""
        count = bisect_right(self._lengths, length_bytes)
        del self._lengths[count:], self._offsets[count:], self._checksums[count:]

    def before_offset(self, offset: int) -> ChunkPrefix:
        """The longest known prefix that ends at or in front of an offset; the empty one, if none does."""
        return self._at(max(0, bisect_right(self._offsets, offset) - 1))

    def before_length(self, length_bytes: int) -> ChunkPrefix:
        """The longest known prefix with at most so many bytes."""
        return self._at(max(0, bisect_right(self._lengths, length_bytes) - 1))

    def _at(self, number: int) -> ChunkPrefix:
        return ChunkPrefix(self._lengths[number], self._offsets[number], self._checksums[number])


@dataclass(slots=True, eq=False)
class LocalReplica:
    """A replica of a chunk. `end`: what is durable; `asked`: with what is being written."""

    name: ReplicaName
    base_offset: int
    end: ChunkPrefix
    asked: ChunkPrefix
    known: KnownPrefixes
    log: Stream | None = None
    """Its records. None: nothing of them is left, or it is sealed and rests."""
    noted: Ticket[None] | None = None
    """Settles when the ledger has an entry; None: nothing was written yet."""
    proven: ChunkPrefix = NOTHING
    """What the entry proves, or will."""
    is_sealed: bool = False
    is_damaged: bool = False
    failure: str = ""
    """Why nothing can be added in this life."""
    cutting: Ticket[None] | None = None
    """Unsettled while its files are being cut: reads may find their end where batches were."""
    recent: list[ChunkPrefix] = field(default_factory=list)
    """Where the last appends and reads ended: the next reads begin or end there."""

    def fail(self, error: Exception) -> None:
        """Nothing is added any more; the first reason is kept."""
        self.failure = self.failure or str(error)

    def note_append(self, end: ChunkPrefix) -> None:
        """Batches are durable up to a prefix."""
        self.end = end
        self.known.note(end)
        self._keep(end)

    def note_read(self, end: ChunkPrefix) -> None:
        """A read has ended behind a prefix."""
        if end not in self.recent:
            self._keep(end)

    def _keep(self, end: ChunkPrefix) -> None:
        self.recent.append(end)
        if len(self.recent) > RECENT_ENDS:
            del self.recent[0]

    def forget_behind(self, end: ChunkPrefix) -> None:
        """The replica ends at a prefix, and may have been longer."""
        self.end = self.asked = end
        self.known.cut(end.length_bytes)
        self.recent.clear()

    def before_offset(self, offset: int) -> ChunkPrefix:
        """The longest prefix in memory that ends at or in front of an offset."""
        near = [prefix for prefix in self.recent if prefix.next_offset <= offset]
        return max([self.known.before_offset(offset), *near])

    def before_length(self, length_bytes: int) -> ChunkPrefix:
        """The longest prefix in memory with at most so many bytes."""
        near = [prefix for prefix in self.recent if prefix.length_bytes <= length_bytes]
        return max([self.known.before_length(length_bytes), *near])


class PlacedAppends(NamedTuple):
    """Batches and whole append groups to be appended, and the prefix behind them."""

    appends: list[PendingAppend | PlacedGroup]
    end: ChunkPrefix


def check_placed(name: ReplicaName, at: ChunkPrefix, batches: Sequence[tuple[Buffer, int]]) -> PlacedAppends:
    """Check batches that are to follow a prefix: whole, intact, with the offsets that are due. Each comes with the
    number of its offsets; one of them may be several record batches end to end. If the first of these is a BEGIN, they
    are an append group, which is written so that a crash leaves all of it or nothing.

    A batch that is damaged must not be confirmed: the next start would take it for a torn end. Raises CorruptBatch,
    UnsupportedBatchFormat, InvalidRecord.
    """
    appends: list[PendingAppend | PlacedGroup] = []
    for data, count in batches:
        view, position, due = memoryview(data), 0, at.next_offset
        found: list[PendingAppend] = []
        while position < len(view):
            header = check_batch(view, position)
            _check_place(name, header, due)
            due, end = header.next_offset, position + header.size_bytes
            ticket: AppendTicket = Ticket()
            found.append(PendingAppend(view[position:end], header, ticket))
            position = end
        if len(found) > 1 and known_type(found[0].buffer) == BEGIN_TYPE:
            appends.append(PlacedGroup([append.buffer for append in found]))
        else:
            appends += found
        if due != at.next_offset + count:
            raise InvalidRecord(f"{name.directory}: a batch at {at.next_offset} ends at {due}, not {count} behind it")
        at = at.followed_by(data, due)
    return PlacedAppends(appends, at)


def _check_place(name: ReplicaName, header: BatchHeader, due: int) -> None:
    if header.base_offset != due:
        raise InvalidRecord(f"{name.directory}: a batch with offset {header.base_offset} comes where {due} is due")
    if not 0 <= header.partition_leader_epoch <= name.epoch:
        epoch = header.partition_leader_epoch
        raise InvalidRecord(f"{name.directory}: the batch at {due} has leader epoch {epoch}, not 0 to {name.epoch}")
