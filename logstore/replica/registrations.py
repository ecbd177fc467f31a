"""What the metadata store holds of a stream, and the steps from one registration to the next.

A stream has one registration in one register, which changes by compare-and-swap only. The steps below are all that
there are; whoever wants one computes the next registration from the last one that it has read, and swaps.

Invariants of every registration, which the steps keep and `check` verifies:
* Epochs only grow. A chunk is known by its epoch, and a chunk's replica set, while the chunk is open, never changes: a
  new set is a new chunk with a new epoch.
* Only the last chunk is open, and no chunk's epoch is above the registration's.
* Chunks follow each other without a gap: a chunk begins at the offset where the one before it ends. The end of a sealed
  chunk never changes, so a registration that is old is still right about every chunk that it shows as sealed.
* A member of a sealed chunk has all of it durably; a candidate was a member of the open chunk, or was chosen for a
  copy, and may have less. An open chunk has no candidates.
* A sealed chunk without batches is not listed.

In a metadata store a registration is several entries with checksums: the head, which is the register, and one for each
sealed chunk (`encode_registration`). What a registration does not list is removed from disks, so an entry that is
damaged or missing must not pass for a chunk that is gone.

Size: docs/metadata.md has the bytes of a head and of a sealed chunk's entry. A chunk rolled costs one swap of two
entries, a takeover three swaps, a repaired copy two swaps of two; MAX_CHUNKS bounds what an owner has in memory.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from logstore.errors import CorruptRegister, UnknownFormatVersion

MAX_CHUNKS: Final = 4096
"""Beyond this an owner opens no further chunk, and says so: 256 GiB in chunks of 64 MiB, 2 MB of memory."""


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
class ChunkRegistration:
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
class StreamRegistration:
    """A stream. `copies`: replicas wanted of each chunk; `min_copies`: without that many, no chunk is opened."""

    copies: int
    min_copies: int
    epoch: int = 0
    owner: OwnerId = NO_OWNER
    chunks: tuple[ChunkRegistration, ...] = ()

    @property
    def last_chunk(self) -> ChunkRegistration | None:
        """The chunk at the end of the stream."""
        return self.chunks[-1] if self.chunks else None

    @property
    def open_chunk(self) -> ChunkRegistration | None:
        """The chunk that is open, or None."""
        last = self.last_chunk
        return last if last is not None and last.is_open else None

    @property
    def settled_offset(self) -> int:
        """Readers may see every record below this offset, by this registration alone: it lies in front of the last
        chunk.

        A last chunk that is sealed may hold batches that were never acknowledged, on fewer hosts than `min_copies`.
        """
        return self.chunks[-1].base_offset if self.chunks else 0

    def chunk(self, epoch: int) -> ChunkRegistration | None:
        """The chunk of an epoch, or None if the stream has none."""
        return next((chunk for chunk in self.chunks if chunk.epoch == epoch), None)

    def chunk_at(self, offset: int) -> ChunkRegistration | None:
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

    def claimed(self, owner: OwnerId) -> "StreamRegistration":
        """The registration with a new owner, who still has to fence the open chunk."""
        return replace(self, epoch=self.epoch + 1, owner=owner)

    def sealed(
        self, end: Prefix, members: tuple[Member, ...], candidates: tuple[Member, ...] = ()
    ) -> "StreamRegistration":
        """The open chunk ends at `end`, which `members` have."""
        chunk = self.open_chunk
        if chunk is None:
            raise AssertionError(f"epoch {self.epoch}: no chunk is open")
        if end.length_bytes == 0:
            return replace(self, chunks=self.chunks[:-1])
        sealed = replace(chunk, end=end, members=members, candidates=candidates)
        return replace(self, chunks=(*self.chunks[:-1], sealed))

    def opened(self, members: tuple[Member, ...], base_offset: int) -> "StreamRegistration":
        """A new chunk at the end of the stream, with a new epoch: the one of the claim if it has no chunk yet."""
        if self.open_chunk is not None:
            raise AssertionError(f"epoch {self.epoch}: a chunk is open")
        is_used = self.last_chunk is not None and self.last_chunk.epoch == self.epoch
        epoch = self.epoch + 1 if is_used else self.epoch
        return replace(self, epoch=epoch, chunks=(*self.chunks, ChunkRegistration(epoch, base_offset, members)))

    def rolled(
        self, end: Prefix, holders: tuple[Member, ...], candidates: tuple[Member, ...], members: tuple[Member, ...]
    ) -> "StreamRegistration":
        """The open chunk ends, and the next one begins, in one step. Never at the same epoch, even if it was empty."""
        sealed = self.sealed(end, holders, candidates)
        return replace(sealed, epoch=self.epoch + 1).opened(members, end.next_offset)

    def with_copies(
        self, epoch: int, members: tuple[Member, ...], candidates: tuple[Member, ...] = ()
    ) -> "StreamRegistration":
        """Other holders of a sealed chunk."""
        chunks = tuple(
            replace(chunk, members=members, candidates=candidates) if chunk.epoch == epoch else chunk
            for chunk in self.chunks
        )
        return replace(self, chunks=chunks)

    def check(self) -> None:
        """Raises AssertionError, with the chunk's epoch, if the registration breaks an invariant."""
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


@dataclass(frozen=True, slots=True)
class StreamHead:
    """What the head of a registration says: all but the sealed chunks, of which it has number, start and end."""

    copies: int
    min_copies: int
    epoch: int
    owner: OwnerId
    open_chunk: ChunkRegistration | None
    sealed_chunks: int

    def is_claim_of(self, before: "StreamHead | None") -> bool:
        """Whether only the owner has changed: a claim changes no chunk."""
        if before is None or self.owner == before.owner:
            return False
        return self.open_chunk == before.open_chunk and self.sealed_chunks == before.sealed_chunks


# ---- bytes

HEAD: Final = "head"
"""The name of the part of a registration that is not a sealed chunk."""
_VERSION: Final = 1


def encode_registration(registration: StreamRegistration) -> dict[str, bytes]:
    """A registration as entries of a metadata store, by name: its head, and each sealed chunk by its base offset.

    An entry is the CRC-32C of what follows, as 8 hexadecimal digits, and JSON.
    """
    open_chunk = registration.open_chunk
    sealed = registration.chunks if open_chunk is None else registration.chunks[:-1]
    head = {
        "v": _VERSION,
        "copies": [registration.copies, registration.min_copies],
        "epoch": registration.epoch,
        "owner": registration.owner,
        "open": None if open_chunk is None else _chunk_fields(open_chunk),
        "sealed": [len(sealed), *([sealed[0].base_offset, sealed[-1].end] if sealed else [])],
    }
    return {
        HEAD: _entry(head),
        **{_chunk_name(chunk): _entry({"v": _VERSION, **_chunk_fields(chunk)}) for chunk in sealed},
    }


def changed_entries(before: StreamRegistration, after: StreamRegistration) -> tuple[dict[str, bytes], list[str]]:
    """What a swap of a registration writes, and which entries it removes; their number does not depend on the
    registration's size.

    All of it is one transaction, on the condition that the head is as `before` was read: the register is the head.
    """
    known = set(before.chunks)
    fresh = replace(after, chunks=tuple(chunk for chunk in after.chunks if chunk.is_open or chunk not in known))
    written = {name: value for name, value in encode_registration(fresh).items() if name != HEAD}
    kept = {_chunk_name(chunk) for chunk in after.chunks if not chunk.is_open}
    removed = [_chunk_name(chunk) for chunk in before.chunks if not chunk.is_open and _chunk_name(chunk) not in kept]
    return {HEAD: encode_registration(after)[HEAD], **written}, removed


def decode_registration(entries: Mapping[str, bytes]) -> StreamRegistration:
    """A registration from all its entries, as of one revision of the head.

    Raises UnknownFormatVersion, or CorruptRegister for any other damage, an entry that is missing or too many included.
    """
    if HEAD not in entries:
        raise CorruptRegister(
            f"of a stream's registration the head is missing among {len(entries)} entries; restore it"
        )
    head = _fields(HEAD, entries[HEAD])
    sealed = [_fields(name, entries[name]) for name in sorted(entries) if name != HEAD]
    try:
        chunks = [_chunk(fields) for fields in sealed]
        described = [len(chunks), *([chunks[0].base_offset, chunks[-1].end] if chunks else [])]
        if head["sealed"] != json.loads(json.dumps(described)):
            raise CorruptRegister(
                f"a stream's registration has chunks {described}, its head says {head['sealed']}; restore it"
            )
        if head["open"] is not None:
            chunks.append(_chunk(head["open"]))
        copies, min_copies = map(int, head["copies"])
        host, start = map(str, head["owner"])
        registration = StreamRegistration(copies, min_copies, int(head["epoch"]), OwnerId(host, start), tuple(chunks))
        registration.check()
    except (KeyError, IndexError, TypeError, ValueError, AssertionError) as error:
        raise CorruptRegister(
            f"a stream's registration of {len(entries)} entries is damaged ({error}); restore it"
        ) from error
    return registration


def decode_head(value: bytes) -> StreamHead:
    """What a head alone says. Raises UnknownFormatVersion, CorruptRegister."""
    head = _fields(HEAD, value)
    try:
        copies, min_copies = map(int, head["copies"])
        host, start = map(str, head["owner"])
        open_chunk = None if head["open"] is None else _chunk(head["open"])
        sealed = int(head["sealed"][0])
        return StreamHead(copies, min_copies, int(head["epoch"]), OwnerId(host, start), open_chunk, sealed)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CorruptRegister(f"the head of a stream's registration is damaged ({error}); restore it") from error


def decode_sealed_chunk(value: bytes) -> ChunkRegistration:
    """What the entry of a sealed chunk says. Raises UnknownFormatVersion, CorruptRegister."""
    fields = _fields("of a sealed chunk", value)
    try:
        return _chunk(fields)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CorruptRegister(f"the entry of a sealed chunk is damaged ({error}); restore it") from error


def _chunk_name(chunk: ChunkRegistration) -> str:
    return f"{chunk.base_offset:020d}"


def _chunk_fields(chunk: ChunkRegistration) -> dict[str, object]:
    return {
        "epoch": chunk.epoch,
        "base": chunk.base_offset,
        "members": chunk.members,
        "candidates": chunk.candidates,
        "end": chunk.end,
    }


def _chunk(fields: Mapping[str, Any]) -> ChunkRegistration:
    end = fields["end"]
    return ChunkRegistration(
        int(fields["epoch"]),
        int(fields["base"]),
        tuple(Member(str(host), str(disk)) for host, disk in fields["members"]),
        None if end is None else Prefix(*map(int, end)),
        tuple(Member(str(host), str(disk)) for host, disk in fields["candidates"]),
    )


def _entry(fields: Mapping[str, object]) -> bytes:
    encoded = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    return b"%08x" % crc32c(encoded) + encoded


def _fields(name: str, value: bytes) -> dict[str, Any]:
    if value[:8] != b"%08x" % crc32c(value[8:]):
        raise CorruptRegister(f"entry {name} of a stream's registration does not match its checksum; restore it")
    try:
        fields = json.loads(value[8:])
    except (ValueError, RecursionError) as error:
        raise CorruptRegister(f"entry {name} of a stream's registration is not JSON ({error}); restore it") from error
    if not isinstance(fields, dict):
        raise CorruptRegister(f"entry {name} of a stream's registration is not an object; restore it")
    if fields.get("v") != _VERSION:
        found = fields.get("v")
        raise UnknownFormatVersion(
            f"entry {name} of a stream's registration has version {found!r}, not 1; update this host"
        )
    return fields
