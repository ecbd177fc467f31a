"""The registration of a stream in the metadata store, and the steps from a registration to the next one.

A stream has one registration in one register, which changes only by compare-and-swap. This module has all steps. A host
computes the next registration from the last registration that it has read, and swaps.

Invariants of every registration, which the steps keep and `check` verifies:
* Epochs only grow. An epoch identifies a chunk. The replica set of an open chunk never changes: a new set is a new
  chunk with a new epoch.
* Only the last chunk is open, and no chunk's epoch is above the registration's.
* Chunks follow each other without a gap: a chunk begins at the end offset of the previous chunk. The end of a sealed
  chunk never changes, so an old registration is still right about every chunk that it shows as sealed.
* A member of a sealed chunk has the whole chunk durably. A candidate was a member of the open chunk, or was chosen for
  a copy, and may have less. An open chunk has no candidates.
* A sealed chunk without members is in the tier only. The place of a chunk in the tier is written once, after the chunk
  was read back there, and never changes.
* A sealed chunk without batches is not listed.
* Readers see nothing below the log start, which never goes back. It is in the first chunk, or after the first chunk if
  that chunk waits for its removal, and never after the acknowledged end. Without chunks it is the end of the stream.

In a metadata store a registration is several entries with checksums: the head, which is the register, and an entry for
each sealed chunk (`encode_registration`). Hosts remove chunks that the registration does not list, so a damaged or
missing entry must not look like a removed chunk.

Size: docs/metadata.md has the bytes of a head and of a sealed chunk's entry. A new chunk costs one swap of two
entries, a takeover three swaps, a repaired copy two swaps of two entries. MAX_CHUNKS bounds the memory of an owner.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from logstore.errors import CorruptRegister, UnknownFormatVersion

MAX_CHUNKS: Final = 16_384
"""Beyond this an owner opens no further chunk, and says so: a TiB in chunks of 64 MiB, 16 MB of memory."""


SPARE_CHUNKS: Final = 64
"""Beyond MAX_CHUNKS, of takeovers and of members that fail: an owner needs an open chunk before it can trim. One more
takes no batches, and is not listed when it is sealed, because it is empty.
"""
MAX_DROPPED: Final = 60
"""Chunks that one trim drops: a swap is one transaction. What is left is dropped by the next one."""
UNKNOWN_TIME: Final = -1
"""A chunk of a registration of version 1 does not say when it was written."""


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


class TieredCopy(NamedTuple):
    """Where a sealed chunk lies in the tier (`logstore.format.tiered_chunk`), once it was read back: the attempt that
    stored it, the newest time of its records in ms, bytes and CRC-32C of its index and of its producers' state, if it
    has any. Those of its batches are the chunk's `end`.
    """

    attempt: str
    max_timestamp: int
    index_sum: tuple[int, int]
    producers_sum: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class ChunkRegistration:
    """A chunk. `end` is None while it is open.

    `written_ms`: of a sealed one, when its last batch was appended, or later: on the cluster's retention clock.
    `tiered`: where a sealed one lies in the tier; None: it does not.
    """

    epoch: int
    base_offset: int
    members: tuple[Member, ...]
    end: Prefix | None = None
    candidates: tuple[Member, ...] = ()
    written_ms: int = UNKNOWN_TIME
    tiered: TieredCopy | None = None

    @property
    def is_open(self) -> bool:
        """Whether the owner may append to it."""
        return self.end is None

    @property
    def is_tiered_alone(self) -> bool:
        """Whether no host is to hold it: it is read from the tier."""
        return self.tiered is not None and not self.members and not self.candidates

    def names(self, member: Member) -> bool:
        """Whether the member holds this chunk, or may."""
        return member in self.members or member in self.candidates


_EPOCH: Final = attrgetter("epoch")
_BASE_OFFSET: Final = attrgetter("base_offset")


@dataclass(frozen=True, slots=True)
class StreamRegistration:
    """A stream. `copies`: replicas wanted of each chunk; `min_copies`: without that many, no chunk is opened."""

    copies: int
    min_copies: int
    epoch: int = 0
    owner: OwnerId = NO_OWNER
    chunks: tuple[ChunkRegistration, ...] = ()
    log_start: int = 0

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
        return self.chunks[-1].base_offset if self.chunks else self.log_start

    def chunk(self, epoch: int) -> ChunkRegistration | None:
        """The chunk of an epoch, or None if the stream has none."""
        at = bisect_left(self.chunks, epoch, key=_EPOCH)
        return self.chunks[at] if at < len(self.chunks) and self.chunks[at].epoch == epoch else None

    def chunk_at(self, offset: int) -> ChunkRegistration | None:
        """The chunk that holds the record of an offset, or will."""
        at = bisect_right(self.chunks, offset, key=_BASE_OFFSET)
        if not at:
            return None
        chunk = self.chunks[at - 1]
        return chunk if chunk.end is None or offset < chunk.end.next_offset else None

    def dropped_by(self, log_start: int, *, keeps_last: bool) -> int:
        """How many chunks in front a trim to an offset drops: sealed ones without a record from that offset on, at
        most MAX_DROPPED. `keeps_last`: not the last sealed one.
        """
        last = self.last_chunk
        sealed = len(self.chunks) - (last is not None and last.is_open)
        count, most = 0, min(MAX_DROPPED, sealed - keeps_last)
        while count < most and (end := self.chunks[count].end) is not None and end.next_offset <= log_start:
            count += 1
        return count

    # ---- steps

    def claimed(self, owner: OwnerId) -> "StreamRegistration":
        """The registration with a new owner, who still has to fence the open chunk."""
        return replace(self, epoch=self.epoch + 1, owner=owner)

    def sealed(
        self,
        end: Prefix,
        members: tuple[Member, ...],
        candidates: tuple[Member, ...] = (),
        written_ms: int = UNKNOWN_TIME,
    ) -> "StreamRegistration":
        """The open chunk ends at `end`, which `members` have."""
        chunk = self.open_chunk
        if chunk is None:
            raise AssertionError(f"epoch {self.epoch}: no chunk is open")
        if end.length_bytes == 0:
            return replace(self, chunks=self.chunks[:-1])
        sealed = replace(chunk, end=end, members=members, candidates=candidates, written_ms=written_ms)
        return replace(self, chunks=(*self.chunks[:-1], sealed))

    def opened(self, members: tuple[Member, ...], base_offset: int) -> "StreamRegistration":
        """A new chunk at the end of the stream, with a new epoch: the one of the claim if it has no chunk yet."""
        if self.open_chunk is not None:
            raise AssertionError(f"epoch {self.epoch}: a chunk is open")
        is_used = self.last_chunk is not None and self.last_chunk.epoch == self.epoch
        epoch = self.epoch + 1 if is_used else self.epoch
        return replace(self, epoch=epoch, chunks=(*self.chunks, ChunkRegistration(epoch, base_offset, members)))

    def rolled(
        self,
        end: Prefix,
        holders: tuple[Member, ...],
        candidates: tuple[Member, ...],
        members: tuple[Member, ...],
        written_ms: int = UNKNOWN_TIME,
    ) -> "StreamRegistration":
        """The open chunk ends, and the next one begins, in one step. Never at the same epoch, even if it was empty."""
        sealed = self.sealed(end, holders, candidates, written_ms)
        return replace(sealed, epoch=self.epoch + 1).opened(members, end.next_offset)

    def with_copies(
        self, epoch: int, members: tuple[Member, ...], candidates: tuple[Member, ...] = ()
    ) -> "StreamRegistration":
        """Other holders of a sealed chunk."""
        at = bisect_left(self.chunks, epoch, key=_EPOCH)
        if at == len(self.chunks) or self.chunks[at].epoch != epoch:
            return self
        changed = replace(self.chunks[at], members=members, candidates=candidates)
        return replace(self, chunks=(*self.chunks[:at], changed, *self.chunks[at + 1 :]))

    def with_tiered(self, epoch: int, copy: TieredCopy) -> "StreamRegistration":
        """A sealed chunk lies in the tier as well. The same registration if it does already, or is not listed."""
        chunk = self.chunk(epoch)
        if chunk is None or chunk.is_open or chunk.tiered is not None:
            return self
        at = bisect_left(self.chunks, epoch, key=_EPOCH)
        return replace(self, chunks=(*self.chunks[:at], replace(chunk, tiered=copy), *self.chunks[at + 1 :]))

    def without_members(self, before_offset: int) -> "StreamRegistration":
        """Sealed chunks that end at or before an offset lie in the tier alone: of the first MAX_DROPPED that have
        members and lie there. Never the last sealed chunk: a new owner reads there who has written, and does not wait
        for the tier as long as a member is alive.
        """
        chunks, left = list(self.chunks), MAX_DROPPED
        sealed = len(chunks) - (self.open_chunk is not None)
        for at, chunk in enumerate(chunks[: max(0, sealed - 1)]):
            if chunk.end is None or chunk.end.next_offset > before_offset or not left:
                break
            if chunk.tiered is not None and not chunk.is_tiered_alone:
                chunks[at] = replace(chunk, members=(), candidates=())
                left -= 1
        return self if left == MAX_DROPPED else replace(self, chunks=tuple(chunks))

    def trimmed(self, log_start: int, *, keeps_last: bool) -> "StreamRegistration":
        """Readers see nothing below an offset, everything in front of which is acknowledged; chunks in front go.

        Never the open chunk, and with `keeps_last` not the last sealed one. A log start never goes back.
        """
        log_start = max(log_start, self.log_start)
        chunks = self.chunks[self.dropped_by(log_start, keeps_last=keeps_last) :]
        return replace(self, chunks=chunks, log_start=log_start)

    def check(self, before: "StreamRegistration | None" = None) -> None:
        """Raises AssertionError, with the chunk, if the registration breaks an invariant. `before`: one that was
        checked; then only the chunks that it does not have, and their neighbours, are looked at.
        """
        last = self.last_chunk
        if self.log_start < 0 or (last is not None and self.log_start < self.chunks[0].base_offset):
            raise AssertionError(f"the log start {self.log_start} lies in front of the first chunk of {self._named}")
        if last is not None and last.end is not None and self.log_start > last.end.next_offset:
            raise AssertionError(f"the log start {self.log_start} lies behind the last chunk of {self._named}")
        if last is not None and last.epoch > self.epoch:
            raise AssertionError(f"{last} has a later epoch than {self._named}")
        first, end = 0, len(self.chunks)
        if before is not None:
            _, first, fresh = differing_chunks(before, self)
            first, end = max(0, first - 1), first + len(fresh) + 1
        offset, epoch = -1, 0
        for chunk in self.chunks[first:end]:
            follows = offset in (-1, chunk.base_offset)
            ordered = epoch < chunk.epoch <= self.epoch
            is_held = bool(chunk.members) or chunk.is_tiered_alone
            if not (follows and ordered) or len(set(chunk.members)) < len(chunk.members) or not is_held:
                raise AssertionError(f"{chunk} does not follow offset {offset} and epoch {epoch} in {self._named}")
            if chunk.end is None and (chunk.candidates or chunk.tiered or chunk is not last):
                raise AssertionError(
                    f"{chunk} is open, but not the last chunk, with candidates or in the tier, in {self._named}"
                )
            if chunk.end is not None and chunk.end.length_bytes == 0:
                raise AssertionError(f"{chunk} is sealed without batches in {self._named}")
            offset, epoch = (chunk.end.next_offset if chunk.end else chunk.base_offset), chunk.epoch

    @property
    def _named(self) -> str:
        return f"a registration of epoch {self.epoch} with {len(self.chunks)} chunks, owned by {self.owner}"


@dataclass(frozen=True, slots=True)
class StreamHead:
    """What the head of a registration says: all but the sealed chunks, of which it has number, start and end."""

    copies: int
    min_copies: int
    epoch: int
    owner: OwnerId
    open_chunk: ChunkRegistration | None
    sealed_chunks: int
    log_start: int = 0

    @property
    def takes_appends(self) -> bool:
        """Whether the owner has opened a chunk: behind a claim, it has not yet."""
        return self.open_chunk is not None and self.open_chunk.epoch == self.epoch

    def is_claim_of(self, before: "StreamHead | None") -> bool:
        """Whether only the owner has changed: a claim changes no chunk."""
        if before is None or self.owner == before.owner:
            return False
        return self._has_sealed_chunks_of(before) and self.open_chunk == before.open_chunk

    def replaces_empty_chunk_of(self, before: "StreamHead | None") -> bool:
        """Whether the open chunk, in which nothing was acknowledged, has other members now: no chunk was sealed. It
        would have ended at a later offset than it had begun.
        """
        if before is None or self.open_chunk is None or before.open_chunk is None or self.owner != before.owner:
            return False
        is_empty = self.open_chunk.base_offset == before.open_chunk.base_offset
        return is_empty and self._has_sealed_chunks_of(before)

    def _has_sealed_chunks_of(self, before: "StreamHead") -> bool:
        return self.sealed_chunks == before.sealed_chunks and self.log_start == before.log_start


# ---- bytes

HEAD: Final = "head"
"""The name of the part of a registration that is not a sealed chunk."""
_VERSION: Final = 2
_TIER_VERSION: Final = 3
"""Of the entry of a chunk that lies in the tier; all other entries are of version 2, which older hosts read. Version 1
had neither the log start, which was 0, nor the time at which a chunk was written.
"""


def encode_registration(registration: StreamRegistration) -> dict[str, bytes]:
    """A registration as entries of a metadata store, by name: its head, and each sealed chunk by its base offset.

    An entry is the CRC-32C of what follows, as 8 hexadecimal digits, and JSON.
    """
    sealed = (chunk for chunk in registration.chunks if not chunk.is_open)
    return {HEAD: encode_head(registration), **{_chunk_name(chunk): _encode_chunk(chunk) for chunk in sealed}}


def encode_head(registration: StreamRegistration) -> bytes:
    """The entry of a registration's head; it costs the same however many chunks there are."""
    chunks, open_chunk = registration.chunks, registration.open_chunk
    count = len(chunks) - (open_chunk is not None)
    head = {
        "v": _VERSION,
        "copies": [registration.copies, registration.min_copies],
        "epoch": registration.epoch,
        "owner": registration.owner,
        "open": None if open_chunk is None else _chunk_fields(open_chunk),
        "sealed": [count, *([chunks[0].base_offset, chunks[count - 1].end] if count else [])],
        "start": registration.log_start,
    }
    return _entry(head)


def _encode_chunk(chunk: ChunkRegistration) -> bytes:
    version = _VERSION if chunk.tiered is None else _TIER_VERSION
    return _entry({"v": version, **_chunk_fields(chunk)})


def changed_entries(before: StreamRegistration, after: StreamRegistration) -> tuple[dict[str, bytes], list[str]]:
    """What a swap of a registration writes, and which entries it removes; their number does not depend on the
    registration's size.

    All of it is one transaction, on the condition that the head is as `before` was read: the register is the head.
    """
    gone, _, fresh = differing_chunks(before, after)
    was = {_chunk_name(chunk): chunk for chunk in gone if not chunk.is_open}
    now = {_chunk_name(chunk): chunk for chunk in fresh if not chunk.is_open}
    written = {name: _encode_chunk(chunk) for name, chunk in now.items() if was.get(name) != chunk}
    return {HEAD: encode_head(after), **written}, [name for name in was if name not in now]


def differing_chunks(
    before: StreamRegistration, after: StreamRegistration
) -> tuple[tuple[ChunkRegistration, ...], int, tuple[ChunkRegistration, ...]]:
    """The chunks of two registrations without those in front, and those at the end, that both have; with the number
    of the first one of the second registration.
    """
    known, now = before.chunks, after.chunks
    first = bisect_left(known, now[0].base_offset, key=_BASE_OFFSET) if now else len(known)
    same = _common(known[first:], now)
    was, fresh = known[first + same :], now[same:]
    tail = _common(was[::-1], fresh[::-1])
    return (*known[:first], *was[: len(was) - tail]), same, fresh[: len(fresh) - tail]


def _common(known: tuple[ChunkRegistration, ...], now: tuple[ChunkRegistration, ...]) -> int:
    """How many chunks in front are the same; equal tuples are compared at the speed of memory."""
    low, high = 0, min(len(known), len(now))
    while low < high:
        middle = (low + high + 1) // 2
        if known[low:middle] == now[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


Entries = Mapping[str, bytes | ChunkRegistration]
"""Entries by name; those of sealed chunks may be decoded already (`decode_sealed_chunk`)."""


def decode_registration(entries: Entries) -> StreamRegistration:
    """A registration from all its entries, as of one revision of the head.

    Raises UnknownFormatVersion, or CorruptRegister for any other damage, an entry that is missing or too many included.
    """
    if HEAD not in entries:
        raise CorruptRegister(
            f"of a stream's registration the head is missing among {len(entries)} entries; restore it"
        )
    head = _head(entries)
    sealed = [_sealed(name, entries[name]) for name in sorted(entries) if name != HEAD]
    try:
        return _assembled(head, sealed)
    except _DAMAGES as error:
        raise CorruptRegister(
            f"a stream's registration of {len(entries)} entries is damaged ({error}); restore it"
        ) from error


def decode_changes(known: StreamRegistration, entries: Entries) -> StreamRegistration | None:
    """A registration from an older one, the head, and the entries that have changed since; None if it does not follow
    from these: then all entries are needed. Raises UnknownFormatVersion, CorruptRegister.
    """
    head = _head(entries)
    try:
        changed = [_sealed(name, entries[name]) for name in sorted(entries) if name != HEAD]
        count, *place = head["sealed"]
        first = bisect_left(known.chunks, int(place[0]), key=_BASE_OFFSET) if count else len(known.chunks)
        chunks = [chunk for chunk in known.chunks[first:] if not chunk.is_open]
        for chunk in changed:
            at = bisect_left(chunks, chunk.base_offset, key=_BASE_OFFSET)
            is_known = at < len(chunks) and chunks[at].base_offset == chunk.base_offset
            chunks[at : at + is_known] = [chunk]
        return _assembled(head, chunks, known)
    except (CorruptRegister, *_DAMAGES):
        return None


_DAMAGES: Final = (KeyError, IndexError, TypeError, ValueError, OverflowError, AssertionError)
"""What entries that are no registration can raise."""


def _assembled(
    head: Mapping[str, Any], chunks: list[ChunkRegistration], before: StreamRegistration | None = None
) -> StreamRegistration:
    """A registration from the fields of its head and its sealed chunks; `before`: see `check`.

    Raises CorruptRegister, _DAMAGES.
    """
    described = [len(chunks), *([chunks[0].base_offset, chunks[-1].end] if chunks else [])]
    if head["sealed"] != json.loads(json.dumps(described)):
        raise CorruptRegister(
            f"a stream's registration has chunks {described}, its head says {head['sealed']}; restore it"
        )
    if head["open"] is not None:
        chunks.append(_chunk(head["open"]))
    copies, min_copies = map(int, head["copies"])
    host, start = map(str, head["owner"])
    owner, log_start = OwnerId(host, start), _since_version_2(head, "start", 0)
    registration = StreamRegistration(copies, min_copies, int(head["epoch"]), owner, tuple(chunks), log_start)
    registration.check(before)
    return registration


def decode_head(value: bytes) -> StreamHead:
    """What a head alone says. Raises UnknownFormatVersion, CorruptRegister."""
    head = _fields(HEAD, value)
    try:
        copies, min_copies = map(int, head["copies"])
        host, start = map(str, head["owner"])
        open_chunk = None if head["open"] is None else _chunk(head["open"])
        sealed = int(head["sealed"][0])
        log_start = _since_version_2(head, "start", 0)
        return StreamHead(copies, min_copies, int(head["epoch"]), OwnerId(host, start), open_chunk, sealed, log_start)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise CorruptRegister(f"the head of a stream's registration is damaged ({error}); restore it") from error


def decode_sealed_chunk(value: bytes) -> ChunkRegistration:
    """What the entry of a sealed chunk says. Raises UnknownFormatVersion, CorruptRegister."""
    return _sealed("of a sealed chunk", value)


def _head(entries: Entries) -> dict[str, Any]:
    value = entries[HEAD]
    if not isinstance(value, bytes):
        raise AssertionError(f"the head of a stream's registration is a chunk: {value}")
    return _fields(HEAD, value)


def _sealed(name: str, value: bytes | ChunkRegistration) -> ChunkRegistration:
    if isinstance(value, ChunkRegistration):
        return value
    fields = _fields(name, value)
    try:
        return _chunk(fields)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise CorruptRegister(f"entry {name} of a stream's registration is damaged ({error}); restore it") from error


def _chunk_name(chunk: ChunkRegistration) -> str:
    return f"{chunk.base_offset:020d}"


def _chunk_fields(chunk: ChunkRegistration) -> dict[str, object]:
    return {
        "epoch": chunk.epoch,
        "base": chunk.base_offset,
        "members": chunk.members,
        "candidates": chunk.candidates,
        "end": chunk.end,
        **({} if chunk.end is None else {"written": chunk.written_ms}),
        **({} if chunk.tiered is None else {"tier": chunk.tiered}),
    }


def _chunk(fields: Mapping[str, Any]) -> ChunkRegistration:
    end = fields["end"]
    return ChunkRegistration(
        int(fields["epoch"]),
        int(fields["base"]),
        tuple(Member(str(host), str(disk)) for host, disk in fields["members"]),
        None if end is None else Prefix(*map(int, end)),
        tuple(Member(str(host), str(disk)) for host, disk in fields["candidates"]),
        UNKNOWN_TIME if end is None else _since_version_2(fields, "written", UNKNOWN_TIME),
        _tiered(fields["tier"]) if fields.get("v", _VERSION) >= _TIER_VERSION else None,
    )


def _tiered(parts: Sequence[Any]) -> TieredCopy:
    attempt, max_timestamp, index, producers = parts
    return TieredCopy(str(attempt), int(max_timestamp), _sum(index), None if producers is None else _sum(producers))


def _sum(pair: Sequence[Any]) -> tuple[int, int]:
    size_bytes, crc = pair
    return int(size_bytes), int(crc)


def _since_version_2(fields: Mapping[str, Any], name: str, before: int) -> int:
    """A number that entries of version 1 do not have; a chunk in a head has the version of the head."""
    return int(fields[name]) if fields.get("v", _VERSION) >= 2 else before


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
    newest, found = _VERSION if name == HEAD else _TIER_VERSION, fields.get("v")
    if found not in range(1, newest + 1):
        raise UnknownFormatVersion(
            f"entry {name} of a stream's registration has version {found!r}, at most {newest}; update this host"
        )
    return fields
