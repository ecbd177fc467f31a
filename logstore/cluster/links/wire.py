"""The messages of replication as bytes: frames of a link between two hosts.

A frame is a head with length and CRC-32C, and a body; a body is one message of `logstore.replica.messages`.
docs/replication.md has the byte tables.

Invariants:
* `decode` of `encode` gives the same message. Other bytes raise MalformedMessage and no other error.
* Encoding does not copy the bytes of entries. Decoding copies them once, into an object for each entry; a decoded
  message does not refer to the received buffer.
* A count or a length never exceeds what the remaining bytes can hold, and a message has at most MAX_ENTRIES entries and
  MAX_FORWARD members to forward to: what decoding allocates is a small multiple of the frame.
* Numbers are whole and not negative: 63 bits for epochs, offsets, lengths in bytes and revisions, 32 bits for checksums
  and for the records of an entry.
"""

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from crc32c import crc32c

from logstore.errors import MalformedMessage, UnsendableMessage
from logstore.interfaces import Buffer
from logstore.replica.messages import (
    Append,
    AppendDone,
    BatchEntry,
    CopyChunk,
    CopyDone,
    CopyProgress,
    EntriesRead,
    Fence,
    FenceDone,
    LookAtRegistration,
    Message,
    OutOfOrder,
    ReadEntries,
    Reason,
    Refused,
    StreamRates,
)
from logstore.replica.registrations import Member, Prefix

VERSION: Final = 1
"""Of frames and messages; hosts agree on it in their hello (`logstore.cluster.links.hello`)."""
FRAME: Final = struct.Struct(">III")
"""Bytes of the body, CRC-32C of the body, CRC-32C of these two: a wrong length is found before it is waited for."""
_SIZES: Final = struct.Struct(">II")
MAX_NAME_BYTES: Final = 255
"""Of a stream, a host or a disk, in UTF-8."""
MAX_ENTRIES: Final = 32_768
"""A message has about 1 MiB of entries, and no batch has less than 61 bytes: 17,190 are enough."""
REMEMBERED_NAMES: Final = 4096
"""Messages of a stream have the same names again and again; to find them costs a fifth of reading them."""
MAX_FORWARD: Final = 15
"""Members behind the first of a chain; a topic has at most five replicas."""
_APPEND: Final = struct.Struct(">BHqqqqIqBII")
"""Each layout begins with kind and bytes of all names. Here follow: epoch, base offset, at (bytes, offset, checksum),
acked bytes, members to forward to, founding bytes, entries."""
_FENCE: Final = struct.Struct(">BHqqq")
"""epoch, base offset, fence epoch"""
_COPY: Final = struct.Struct(">BHqqqqIqB")
"""epoch, base offset, end, revision, whether there is a source (1) and whether it is urgent (2)"""
_READ: Final = struct.Struct(">BHqqIB")
"""epoch, offset, largest number of bytes, whether it is for a copy (1) and whether that is urgent (2)"""
_LOOK: Final = struct.Struct(">BHq")
"""revision"""
_RATES: Final = struct.Struct(">BHI")
"""streams; their rates follow the names"""
_PLACE: Final = struct.Struct(">BHqqqI")
"""epoch, a prefix"""
_FENCE_DONE: Final = struct.Struct(">BHqqqqIq")
"""epoch, fence epoch, durable, acked bytes"""
_COPY_DONE: Final = struct.Struct(">BHqqqIq")
"""epoch, end, revision"""
_PROGRESS: Final = struct.Struct(">BHqqq")
"""epoch, copied bytes, revision"""
_REFUSED: Final = struct.Struct(">BHqBq")
"""epoch, reason, fence epoch"""
_ENTRIES_READ: Final = struct.Struct(">BHqqqIqII")
"""epoch, at, limit offset, founding bytes, entries"""
_ENTRY: Final = struct.Struct(">II")
"""Of an entry in the table in front of the data: bytes, records."""
_REASONS: Final = {
    Reason.FENCED: 1,
    Reason.WRONG_DISK: 2,
    Reason.DISK_FAILED: 3,
    Reason.DIVERGED: 4,
    Reason.SEALED: 5,
    Reason.SHORT: 6,
    Reason.DAMAGED: 7,
    Reason.ABSENT: 8,
    Reason.DISK_FULL: 9,
}
_REASON_OF: Final = {number: reason for reason, number in _REASONS.items()}
_Parts = list[Buffer]


# ---- names


@lru_cache(maxsize=REMEMBERED_NAMES)
def _names(*names: str) -> bytes:
    return _joined(names)


def _joined(names: Iterable[str]) -> bytes:
    parts = []
    for name in names:
        encoded = name.encode()
        if len(encoded) > MAX_NAME_BYTES:
            raise UnsendableMessage(f"the name {name[:80]!r} has {len(encoded)} bytes, at most {MAX_NAME_BYTES}")
        parts.append(bytes((len(encoded),)) + encoded)
    return b"".join(parts)


@lru_cache(maxsize=REMEMBERED_NAMES)
def _append_names(stream: str, disk: str, owner: str, forward: tuple[Member, ...]) -> bytes:
    if len(forward) > MAX_FORWARD:
        raise UnsendableMessage(f"a chain of {len(forward)} more members, at most {MAX_FORWARD}: shorten it")
    return _names(stream, disk, owner, *[name for member in forward for name in member])


@lru_cache(maxsize=REMEMBERED_NAMES)
def _split(block: bytes, count: int) -> tuple[str, ...]:
    """As `_parted`, for names that come again and again."""
    return _parted(block, count)


def _parted(block: bytes, count: int) -> tuple[str, ...]:
    """The names in a block. Raises MalformedMessage if it has not exactly so many."""
    found = []
    at = 0
    while at < len(block):
        end = at + 1 + block[at]
        if end > len(block):
            raise MalformedMessage(f"a name of {block[at]} bytes exceeds the {len(block)} bytes of a message's names")
        try:
            found.append(str(block[at + 1 : end], "utf-8"))
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"the name {block[at + 1 : end]!r} of a message is not UTF-8") from error
        at = end
    if len(found) != count:
        raise MalformedMessage(f"a message with {len(found)} names, not {count}")
    return tuple(found)


@lru_cache(maxsize=REMEMBERED_NAMES)
def _split_append(block: bytes, forward: int) -> tuple[str, str, str, tuple[Member, ...]]:
    if forward > MAX_FORWARD:
        raise MalformedMessage(f"a chain of {forward} more members, at most {MAX_FORWARD}")
    stream, disk, owner, *rest = _split(block, 3 + 2 * forward)
    return stream, disk, owner, tuple(map(Member, rest[::2], rest[1::2]))


@lru_cache(maxsize=REMEMBERED_NAMES)
def _split_answer(block: bytes) -> tuple[str, Member]:
    stream, host, disk = _split(block, 3)
    return stream, Member(host, disk)


# ---- out


def encode(message: Message, max_body_bytes: int) -> tuple[list[Buffer], int]:
    """The frame of a message, in parts that follow each other, and its size in bytes. The parts share the bytes of the
    message's entries.

    Raises UnsendableMessage if the message exceeds a limit, `max_body_bytes` or one of this module.
    """
    try:
        head, *rest = _WRITERS[type(message)](message)
    except struct.error as error:
        raise UnsendableMessage(f"{_named(message)} has a number out of range ({error}): do not send it") from error
    size = len(head) + sum(map(len, rest))
    if size > max_body_bytes:
        raise UnsendableMessage(f"{_named(message)} has {size} bytes, a frame at most {max_body_bytes}: split it")
    checksum = crc32c(head)
    for part in rest:
        checksum = crc32c(part, checksum)
    return [frame_head(size, checksum) + head, *rest], FRAME.size + size


def frame_head(size: int, checksum: int) -> bytes:
    """What stands in front of a body of so many bytes with this checksum."""
    return FRAME.pack(size, checksum, crc32c(_SIZES.pack(size, checksum)))


def _named(message: Message) -> str:
    if isinstance(message, StreamRates):
        return f"StreamRates of {len(message.rates)} streams"
    return f"{type(message).__name__} of stream {message.stream[:80]!r}"


def _table(entries: tuple[BatchEntry, ...]) -> bytes:
    """Length and records of each entry."""
    if len(entries) == 1:
        return _ENTRY.pack(len(entries[0].data), entries[0].record_count)
    if len(entries) > MAX_ENTRIES:
        raise UnsendableMessage(f"a message with {len(entries)} entries, at most {MAX_ENTRIES}: split it")
    return struct.pack(f">{2 * len(entries)}I", *[n for data, records in entries for n in (len(data), records)])


def _write_append(message: Append) -> _Parts:
    names = _append_names(message.stream, message.disk, message.owner, message.forward)
    fixed = _APPEND.pack(
        1, len(names), message.epoch, message.base_offset, *message.at, message.acked_bytes, len(message.forward),
        len(message.founding), len(message.entries),
    )  # fmt: skip
    return [fixed + names + _table(message.entries) + message.founding, *[data for data, _ in message.entries]]


def _write_append_done(message: AppendDone) -> _Parts:
    names = _names(message.stream, *message.member)
    return [_PLACE.pack(14 if message.is_working else 2, len(names), message.epoch, *message.durable) + names]


def _write_out_of_order(message: OutOfOrder) -> _Parts:
    names = _names(message.stream, *message.member)
    return [_PLACE.pack(3, len(names), message.epoch, *message.end) + names]


def _write_fence(message: Fence) -> _Parts:
    names = _names(message.stream, message.disk)
    return [_FENCE.pack(4, len(names), message.epoch, message.base_offset, message.fence_epoch) + names]


def _write_fence_done(message: FenceDone) -> _Parts:
    names = _names(message.stream, *message.member)
    fixed = _FENCE_DONE.pack(5, len(names), message.epoch, message.fence_epoch, *message.durable, message.acked_bytes)
    return [fixed + names]


def _write_copy(message: CopyChunk) -> _Parts:
    names = _names(message.stream, message.disk, *(message.source or ()))
    fixed = _COPY.pack(
        6, len(names), message.epoch, message.base_offset, *message.end, message.revision,
        _flags(message.source is not None, message.is_urgent),
    )  # fmt: skip
    return [fixed + names]


def _write_copy_done(message: CopyDone) -> _Parts:
    names = _names(message.stream, *message.member)
    return [_COPY_DONE.pack(7, len(names), message.epoch, *message.end, message.revision) + names]


def _flags(first: bool, second: bool) -> int:
    return first | second << 1


def _write_read(message: ReadEntries) -> _Parts:
    names = _names(message.stream, message.disk)
    flags = _flags(message.for_copy, message.is_urgent)
    fixed = _READ.pack(8, len(names), message.epoch, message.offset, message.max_bytes, flags)
    return [fixed + names]


def _write_entries_read(message: EntriesRead) -> _Parts:
    names = _names(message.stream, *message.member)
    fixed = _ENTRIES_READ.pack(
        9, len(names), message.epoch, *message.at, message.limit_offset, len(message.founding), len(message.entries)
    )
    return [fixed + names + _table(message.entries) + message.founding, *[data for data, _ in message.entries]]


def _write_refused(message: Refused) -> _Parts:
    names = _names(message.stream, *message.member)
    return [_REFUSED.pack(10, len(names), message.epoch, _REASONS[message.reason], message.fence_epoch) + names]


def _write_look(message: LookAtRegistration) -> _Parts:
    names = _names(message.stream)
    return [_LOOK.pack(11, len(names), message.revision) + names]


def _write_progress(message: CopyProgress) -> _Parts:
    names = _names(message.stream, *message.member)
    return [_PROGRESS.pack(12, len(names), message.epoch, message.copied_bytes, message.revision) + names]


def _write_rates(message: StreamRates) -> _Parts:
    names = _joined([stream for stream, _ in message.rates])
    count = len(message.rates)
    return [_RATES.pack(13, len(names), count) + names, struct.pack(f">{count}q", *[rate for _, rate in message.rates])]


# ---- in


class _BodyReader:
    """Reads a body: numbers, names, entries. `at`: where what is not read yet begins."""

    __slots__ = ("at", "body", "names")

    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.at = 0
        self.names = b""
        """The block of all names."""

    def fixed(self, layout: struct.Struct) -> tuple[int, ...]:
        """Kind, bytes of names, and the numbers behind them; reads the names too."""
        body = self.body
        try:
            numbers: tuple[int, ...] = layout.unpack_from(body)
        except struct.error:
            raise MalformedMessage(f"a message of {len(body)} bytes, of a kind of at least {layout.size}") from None
        if min(numbers) < 0:
            raise MalformedMessage(f"a number of a message of kind {body[0]} is negative: {min(numbers)}")
        size = numbers[1]
        self.at = layout.size + size
        if self.at > len(body):
            raise MalformedMessage(f"names of {size} bytes exceed a message of {len(body)} bytes")
        self.names = bytes(body[layout.size : self.at])
        return numbers

    def entries(self, count: int, founding_bytes: int) -> tuple[tuple[BatchEntry, ...], bytes]:
        """Entries and the founding state, which end the body."""
        body, at = self.body, self.at
        data_at = at + count * _ENTRY.size + founding_bytes
        if count > MAX_ENTRIES or data_at > len(body):
            raise MalformedMessage(
                f"{count} entries and a founding state of {founding_bytes} bytes at byte {at} exceed a message of "
                f"{len(body)} bytes, or {MAX_ENTRIES} entries"
            )
        table = struct.unpack_from(f">{2 * count}I", body, at)
        sizes = table[::2]
        if data_at + sum(sizes) != len(body):
            raise MalformedMessage(
                f"entries of {sum(sizes)} bytes at byte {data_at} do not end a message of {len(body)} bytes"
            )
        self.at = len(body)
        founding = bytes(body[data_at - founding_bytes : data_at])
        entries = []
        for size, record_count in zip(sizes, table[1::2], strict=True):
            entries.append(BatchEntry(bytes(body[data_at : data_at + size]), record_count))
            data_at += size
        return tuple(entries), founding


def decode(body: memoryview) -> Message:
    """The message of a body, without its frame. Raises MalformedMessage."""
    if not body:
        raise MalformedMessage("a message of 0 bytes")
    read = _READERS.get(body[0])
    if read is None:
        raise MalformedMessage(f"a message of kind {body[0]}; version {VERSION} has {min(_READERS)} to {max(_READERS)}")
    reader = _BodyReader(body)
    message = read(reader)
    if reader.at != len(body):
        raise MalformedMessage(f"{len(body) - reader.at} bytes follow a {type(message).__name__}, which ends there")
    return message


def _read_append(reader: _BodyReader) -> Append:
    _, _, epoch, base, length, offset, checksum, acked, forward, founding_bytes, count = reader.fixed(_APPEND)
    stream, disk, owner, chain = _split_append(reader.names, forward)
    entries, founding = reader.entries(count, founding_bytes)
    at = Prefix(length, offset, checksum)
    return Append(stream, disk, epoch, base, owner, at, entries, acked, chain, founding)


def _read_append_done(reader: _BodyReader) -> AppendDone:
    kind, _, epoch, length, offset, checksum = reader.fixed(_PLACE)
    stream, member = _split_answer(reader.names)
    return AppendDone(stream, epoch, member, Prefix(length, offset, checksum), kind == 14)


def _read_out_of_order(reader: _BodyReader) -> OutOfOrder:
    _, _, epoch, length, offset, checksum = reader.fixed(_PLACE)
    stream, member = _split_answer(reader.names)
    return OutOfOrder(stream, epoch, member, Prefix(length, offset, checksum))


def _read_fence(reader: _BodyReader) -> Fence:
    _, _, epoch, base, fence = reader.fixed(_FENCE)
    stream, disk = _split(reader.names, 2)
    return Fence(stream, disk, epoch, base, fence)


def _read_fence_done(reader: _BodyReader) -> FenceDone:
    _, _, epoch, fence, length, offset, checksum, acked = reader.fixed(_FENCE_DONE)
    stream, member = _split_answer(reader.names)
    return FenceDone(stream, epoch, member, fence, Prefix(length, offset, checksum), acked)


def _bits(value: int, noun: str) -> tuple[bool, bool]:
    if value > 3:
        raise MalformedMessage(f"the flags of {noun} are {value}, not 0 to 3")
    return bool(value & 1), bool(value & 2)


def _read_copy(reader: _BodyReader) -> CopyChunk:
    _, _, epoch, base, length, offset, checksum, revision, flags = reader.fixed(_COPY)
    has_source, is_urgent = _bits(flags, "a copy")
    stream, disk, *source = _split(reader.names, 4 if has_source else 2)
    member = Member(*source) if source else None
    return CopyChunk(stream, disk, epoch, base, Prefix(length, offset, checksum), member, revision, is_urgent)


def _read_copy_done(reader: _BodyReader) -> CopyDone:
    _, _, epoch, length, offset, checksum, revision = reader.fixed(_COPY_DONE)
    stream, member = _split_answer(reader.names)
    return CopyDone(stream, epoch, member, Prefix(length, offset, checksum), revision)


def _read_read(reader: _BodyReader) -> ReadEntries:
    _, _, epoch, offset, max_bytes, flags = reader.fixed(_READ)
    stream, disk = _split(reader.names, 2)
    return ReadEntries(stream, disk, epoch, offset, max_bytes, *_bits(flags, "a read"))


def _read_entries_read(reader: _BodyReader) -> EntriesRead:
    _, _, epoch, length, offset, checksum, limit, founding_bytes, count = reader.fixed(_ENTRIES_READ)
    stream, member = _split_answer(reader.names)
    entries, founding = reader.entries(count, founding_bytes)
    return EntriesRead(stream, epoch, member, Prefix(length, offset, checksum), entries, limit, founding)


def _read_refused(reader: _BodyReader) -> Refused:
    _, _, epoch, number, fence = reader.fixed(_REFUSED)
    reason = _REASON_OF.get(number)
    if reason is None:
        raise MalformedMessage(f"a refusal for the reason {number}; version {VERSION} has 1 to {len(_REASON_OF)}")
    stream, member = _split_answer(reader.names)
    return Refused(stream, epoch, member, reason, fence)


def _read_look(reader: _BodyReader) -> LookAtRegistration:
    _, _, revision = reader.fixed(_LOOK)
    (stream,) = _split(reader.names, 1)
    return LookAtRegistration(stream, revision)


def _read_progress(reader: _BodyReader) -> CopyProgress:
    _, _, epoch, copied, revision = reader.fixed(_PROGRESS)
    stream, member = _split_answer(reader.names)
    return CopyProgress(stream, epoch, member, copied, revision)


def _read_rates(reader: _BodyReader) -> StreamRates:
    _, _, count = reader.fixed(_RATES)
    streams = _parted(reader.names, count)
    if len(reader.body) - reader.at != 8 * count:
        raise MalformedMessage(f"{count} rates in {len(reader.body) - reader.at} bytes behind a message's names")
    rates = struct.unpack_from(f">{count}q", reader.body, reader.at)
    if min(rates, default=0) < 0:
        raise MalformedMessage(f"the rate of a stream is negative: {min(rates)}")
    reader.at = len(reader.body)
    return StreamRates(tuple(zip(streams, rates, strict=True)))


_WRITERS: Final[dict[type, Callable[[Any], _Parts]]] = {
    Append: _write_append,
    AppendDone: _write_append_done,
    OutOfOrder: _write_out_of_order,
    Fence: _write_fence,
    FenceDone: _write_fence_done,
    CopyChunk: _write_copy,
    CopyDone: _write_copy_done,
    ReadEntries: _write_read,
    EntriesRead: _write_entries_read,
    Refused: _write_refused,
    LookAtRegistration: _write_look,
    CopyProgress: _write_progress,
    StreamRates: _write_rates,
}
_READERS: Final[dict[int, Callable[[_BodyReader], Message]]] = {
    1: _read_append,
    2: _read_append_done,
    3: _read_out_of_order,
    4: _read_fence,
    5: _read_fence_done,
    6: _read_copy,
    7: _read_copy_done,
    8: _read_read,
    9: _read_entries_read,
    10: _read_refused,
    11: _read_look,
    12: _read_progress,
    13: _read_rates,
    14: _read_append_done,
}


# ---- frames


class FrameBuffer:
    """Bytes of a link, cut into frames.

    Memory: room for `start_bytes`, or for twice what has arrived of a longer frame, and never for more than the longest
    frame; a length that is only announced takes nothing.
    """

    __slots__ = ("_bytes", "_end", "_start", "_start_bytes", "_view", "max_body_bytes")

    def __init__(self, max_body_bytes: int, start_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self._start_bytes = start_bytes
        self._bytes = bytearray(start_bytes)
        self._view = memoryview(self._bytes)
        self._start = self._end = 0

    def room(self) -> memoryview:
        """Where the next bytes go."""
        if self._end == self._start:
            self._start = self._end = 0
            if len(self._bytes) > self._start_bytes:
                self._move(self._start_bytes)
        elif len(self._bytes) - self._end < self._start_bytes // 4:
            longest = max(FRAME.size + self.max_body_bytes, self._start_bytes)
            self._move(len(self._bytes) if self._start else min(2 * len(self._bytes), longest))
        return self._view[self._end :]

    def _move(self, size: int) -> None:
        """Put the bytes at the front, of a buffer of this size."""
        rest = self._view[self._start : self._end]
        if size != len(self._bytes):
            self._bytes = bytearray(size)
            self._view = memoryview(self._bytes)
        self._view[: len(rest)] = rest
        self._start, self._end = 0, len(rest)

    def add(self, size: int) -> None:
        """So many bytes were put into `room()`."""
        self._end += size

    def next(self) -> memoryview | None:
        """The next frame's body, valid until `room` is called; None if it is not whole yet. Raises MalformedMessage."""
        if self._end - self._start < FRAME.size:
            return None
        size, checksum, own_checksum = FRAME.unpack_from(self._bytes, self._start)
        if crc32c(self._view[self._start : self._start + _SIZES.size]) != own_checksum:
            raise MalformedMessage(
                f"the head of a frame ({size} bytes) does not match its checksum {own_checksum:#010x}"
            )
        if size > self.max_body_bytes:
            raise MalformedMessage(f"a frame of {size} bytes, at most {self.max_body_bytes}")
        begin = self._start + FRAME.size
        if self._end - begin < size:
            return None
        self._start = begin + size
        body = self._view[begin : self._start]
        if crc32c(body) != checksum:
            raise MalformedMessage(f"a frame of {size} bytes does not match its checksum {checksum:#010x}")
        return body
