"""What the metadata store holds of a stream, and the steps from one record to the next.

A stream has one record in one register, which changes by compare-and-swap only. The steps below are all that there are;
whoever wants one computes the next record from the last one that it has read, and swaps.

Invariants of every record, which the steps keep and `check` verifies:
* Epochs only grow. A chunk is known by its epoch, and a chunk's replica set, while the chunk is open, never changes: a
  new set is a new chunk with a new epoch.
* Only the last chunk is open, and no chunk's epoch is above the record's.
* Chunks follow each other without a gap: a chunk begins at the offset where the one before it ends. The end of a sealed
  chunk never changes, so a record that is old is still right about every chunk that it shows as sealed.
* A member of a sealed chunk has all of it durably; a candidate was a member of the open chunk, or was chosen for a
  copy, and may have less. An open chunk has no candidates.
* A sealed chunk without batches is not listed.

In a register a record has a checksum: what it does not list is removed, so a flipped bit in it must not pass.

Size: about 60 bytes, and 90 bytes a chunk and 40 a member; MAX_CHUNKS bounds it (etcd takes values of 1.5 MB). A chunk
rolled costs one swap, a takeover three, a repaired copy two.
"""

import json
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from logstore.errors import CorruptRegister, UnknownFormatVersion

MAX_CHUNKS: Final = 4096
"""Beyond this an owner opens no further chunk: 256 GiB in chunks of 64 MiB, and a record of about 1 MB at r = 3."""
MAX_COPIES: Final = 5


class Member(NamedTuple):
    """A host as the owner of one disk: a host whose disk was wiped or changed is another member."""

    host: str
    disk: str


class OwnerId(NamedTuple):
    """A host in one of its lives: a host that restarts is another owner. `start`: the random name of its start."""

    host: str
    start: str


NO_OWNER: Final = OwnerId("", "")


class Prefix(NamedTuple):
    """How much of a chunk: its bytes, the offset of the next record, and the CRC-32C of these bytes.

    Two copies of a chunk are the same up to a length exactly if their prefixes of that length are equal.
    """

    length_bytes: int
    next_offset: int
    checksum: int

    @classmethod
    def empty(cls, base_offset: int) -> "Prefix":
        """Nothing of a chunk that begins at an offset."""
        return cls(0, base_offset, 0)

    def followed_by(self, data: bytes, record_count: int) -> "Prefix":
        """The prefix with one more batch."""
        checksum = crc32c(data, self.checksum)
        return Prefix(self.length_bytes + len(data), self.next_offset + record_count, checksum)


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """A chunk. `end` is None while it is open."""

    epoch: int
    base_offset: int
    members: tuple[Member, ...]
    end: Prefix | None = None
    candidates: tuple[Member, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether the owner may append to it."""
        return self.end is None

    def names(self, member: Member) -> bool:
        """Whether the member holds this chunk, or may."""
        return member in self.members or member in self.candidates


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream. `copies`: replicas wanted of each chunk; `min_copies`: without that many, no chunk is opened."""

    copies: int
    min_copies: int
    epoch: int = 0
    owner: OwnerId = NO_OWNER
    chunks: tuple[ChunkRecord, ...] = ()

    @property
    def last_chunk(self) -> ChunkRecord | None:
        """The chunk at the end of the stream."""
        return self.chunks[-1] if self.chunks else None

    @property
    def open_chunk(self) -> ChunkRecord | None:
        """The chunk that is open, or None."""
        last = self.last_chunk
        return last if last is not None and last.is_open else None

    @property
    def settled_offset(self) -> int:
        """Readers may see every record below this offset, by this record alone: it lies in front of the last chunk.

        A last chunk that is sealed may hold batches that were never acknowledged, on fewer hosts than `min_copies`.
        """
        return self.chunks[-1].base_offset if self.chunks else 0

    def chunk(self, epoch: int) -> ChunkRecord | None:
        """The chunk of an epoch, or None if the stream has none."""
        return next((chunk for chunk in self.chunks if chunk.epoch == epoch), None)

    def chunk_at(self, offset: int) -> ChunkRecord | None:
        """The chunk that holds the record of an offset, or will."""
        for chunk in reversed(self.chunks):
            if chunk.base_offset <= offset:
                return chunk if chunk.end is None or offset < chunk.end.next_offset else None
        return None

    def end_of_epoch(self, epoch: int) -> int | None:
        """Where the records of an owner's epoch, and of those before it, end: Kafka's OffsetForLeaderEpoch.

        None: the epoch is the newest, or unknown, and its end is the high watermark.
        """
        following = next((chunk for chunk in self.chunks if chunk.epoch > epoch), None)
        return following.base_offset if following is not None else None

    # ---- steps

    def claimed(self, owner: OwnerId) -> "StreamRecord":
        """The record with a new owner, who still has to fence the open chunk."""
        return replace(self, epoch=self.epoch + 1, owner=owner)

    def sealed(self, end: Prefix, members: tuple[Member, ...], candidates: tuple[Member, ...] = ()) -> "StreamRecord":
        """The open chunk ends at `end`, which `members` have."""
        chunk = self.open_chunk
        if chunk is None:
            raise AssertionError(f"epoch {self.epoch}: no chunk is open")
        if end.length_bytes == 0:
            return replace(self, chunks=self.chunks[:-1])
        sealed = replace(chunk, end=end, members=members, candidates=candidates)
        return replace(self, chunks=(*self.chunks[:-1], sealed))

    def opened(self, members: tuple[Member, ...], base_offset: int) -> "StreamRecord":
        """A new chunk at the end of the stream, with a new epoch: the one of the claim if it has no chunk yet."""
        if self.open_chunk is not None:
            raise AssertionError(f"epoch {self.epoch}: a chunk is open")
        is_used = self.last_chunk is not None and self.last_chunk.epoch == self.epoch
        epoch = self.epoch + 1 if is_used else self.epoch
        return replace(self, epoch=epoch, chunks=(*self.chunks, ChunkRecord(epoch, base_offset, members)))

    def rolled(
        self, end: Prefix, holders: tuple[Member, ...], candidates: tuple[Member, ...], members: tuple[Member, ...]
    ) -> "StreamRecord":
        """The open chunk ends, and the next one begins, in one step. Never at the same epoch, even if it was empty."""
        sealed = self.sealed(end, holders, candidates)
        return replace(sealed, epoch=self.epoch + 1).opened(members, end.next_offset)

    def with_copies(
        self, epoch: int, members: tuple[Member, ...], candidates: tuple[Member, ...] = ()
    ) -> "StreamRecord":
        """Other holders of a sealed chunk."""
        chunks = tuple(
            replace(chunk, members=members, candidates=candidates) if chunk.epoch == epoch else chunk
            for chunk in self.chunks
        )
        return replace(self, chunks=chunks)

    def check(self) -> None:
        """Raises AssertionError, with the chunk's epoch, if the record breaks an invariant."""
        offset, epoch = -1, 0
        for chunk in self.chunks:
            follows = offset in (-1, chunk.base_offset)
            ordered = epoch < chunk.epoch <= self.epoch
            if not (follows and ordered) or len(set(chunk.members)) < len(chunk.members) or not chunk.members:
                raise AssertionError(f"chunk {chunk.epoch} does not follow offset {offset} and epoch {epoch}: {self}")
            if chunk.end is None and (chunk.candidates or chunk is not self.chunks[-1]):
                raise AssertionError(f"chunk {chunk.epoch} is open, but not the last one or with candidates: {self}")
            if chunk.end is not None and chunk.end.length_bytes == 0:
                raise AssertionError(f"chunk {chunk.epoch} is sealed without batches: {self}")
            offset, epoch = (chunk.end.next_offset if chunk.end else chunk.base_offset), chunk.epoch


# ---- bytes


def encode_record(record: StreamRecord) -> bytes:
    """The value of a stream's register: the CRC-32C of what follows, and JSON, with hosts and disks in a table."""
    table: dict[Member, int] = {}

    def numbers(members: tuple[Member, ...]) -> list[int]:
        return [table.setdefault(member, len(table)) for member in members]

    chunks = [
        [chunk.epoch, chunk.base_offset, numbers(chunk.members), numbers(chunk.candidates), chunk.end]
        for chunk in record.chunks
    ]
    fields = {
        "version": 1,
        "copies": [record.copies, record.min_copies],
        "epoch": record.epoch,
        "owner": record.owner,
        "disks": list(table),
        "chunks": chunks,
    }
    encoded = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    return b"%08x" % crc32c(encoded) + encoded


def decode_record(value: bytes) -> StreamRecord:
    """A stream's record from its register. Raises UnknownFormatVersion, or CorruptRegister for any other damage."""
    fields = _object(value)
    if fields.get("version") != 1:
        raise UnknownFormatVersion(f"version {fields.get('version')!r} of a stream's record is not 1; update this host")
    try:
        table = [Member(str(host), str(disk)) for host, disk in fields["disks"]]
        chunks = tuple(
            ChunkRecord(
                int(epoch),
                int(base_offset),
                tuple(table[number] for number in members),
                None if end is None else Prefix(*map(int, end)),
                tuple(table[number] for number in candidates),
            )
            for epoch, base_offset, members, candidates, end in fields["chunks"]
        )
        copies, min_copies = map(int, fields["copies"])
        host, start = fields["owner"]
        record = StreamRecord(copies, min_copies, int(fields["epoch"]), OwnerId(str(host), str(start)), chunks)
        record.check()
    except (KeyError, IndexError, TypeError, ValueError, AssertionError) as error:
        raise CorruptRegister(f"a stream's record of {len(value)} bytes is damaged ({error}); restore it") from error
    return record


def _object(value: bytes) -> dict[str, Any]:
    if value[:8] != b"%08x" % crc32c(value[8:]):
        raise CorruptRegister(f"a stream's record of {len(value)} bytes does not match its checksum; restore it")
    try:
        fields = json.loads(value[8:])
    except (ValueError, RecursionError) as error:
        raise CorruptRegister(f"a stream's record of {len(value)} bytes is not JSON ({error}); restore it") from error
    if not isinstance(fields, dict):
        raise CorruptRegister(f"a stream's record is {value[:40]!r}, not an object; restore it")
    return fields
