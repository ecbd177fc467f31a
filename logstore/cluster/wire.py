"""The messages of replication as bytes: frames of a link between two hosts.

A frame is a length, a CRC-32C and a body; a body is one message of `logstore.replica.messages`. docs/replication.md has
the byte tables.

Invariants:
* What `encode` takes, `decode` gives back. Bytes that are no message raise MalformedMessage and nothing else.
* The bytes of entries are not copied when a message is encoded, and once, into an object of each entry, when it is
  decoded. A decoded message keeps nothing of the buffer that it came in.
* A count or a length never exceeds what the remaining bytes can hold, and a message has at most MAX_ENTRIES entries and
  MAX_FORWARD members to forward to: what decoding allocates is a small multiple of the frame.
* Numbers are whole and not negative: 63 bits for epochs, offsets, lengths in bytes and revisions, 32 bits for checksums
  and for the records of an entry.
"""

import struct
from collections.abc import Callable
from typing import Final, NoReturn

from crc32c import crc32c

from logstore.errors import MalformedMessage, UnsendableMessage
from logstore.interfaces import Buffer
from logstore.replica.messages import (
    Append,
    AppendDone,
    CopyChunk,
    CopyDone,
    EntriesRead,
    Entry,
    Fence,
    FenceDone,
    LookAtRegistration,
    Message,
    OutOfOrder,
    ReadEntries,
    Reason,
    Refused,
)
from logstore.replica.registrations import Member, Prefix

VERSION: Final = 1
"""Of frames and messages; hosts agree on it in their hello (`logstore.cluster.hello`)."""
FRAME: Final = struct.Struct(">II")
"""Bytes of the body, CRC-32C of the body."""
MAX_NAME_BYTES: Final = 255
"""Of a stream, a host or a disk, in UTF-8."""
MAX_ENTRIES: Final = 32_768
"""A message has about 1 MiB of entries, and no batch has less than 61 bytes: 17,190 are enough."""
MAX_FORWARD: Final = 15
"""Members behind the first of a chain; a topic has at most five replicas."""
_APPEND: Final = struct.Struct(">qqqqIqBII")
"""epoch, base offset, at (bytes, offset, checksum), acked bytes, members to forward to, founding bytes, entries"""
_FENCE: Final = struct.Struct(">qqq")
"""epoch, base offset, fence epoch"""
_COPY: Final = struct.Struct(">qqqqIqB")
"""epoch, base offset, end, revision, whether there is a source"""
_READ: Final = struct.Struct(">qqIB")
"""epoch, offset, largest number of bytes, whether it is for a copy"""
_REVISION: Final = struct.Struct(">q")
_PLACE: Final = struct.Struct(">qqqI")
"""epoch, a prefix"""
_FENCE_DONE: Final = struct.Struct(">qqqqIq")
"""epoch, fence epoch, durable, acked bytes"""
_COPY_DONE: Final = struct.Struct(">qqqIq")
"""epoch, end, revision"""
_REFUSED: Final = struct.Struct(">qBq")
"""epoch, reason, fence epoch"""
_ENTRIES_READ: Final = struct.Struct(">qqqIqII")
"""epoch, at, limit offset, founding bytes, entries"""
_ENTRY_BYTES: Final = 8
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
}
_REASON_OF: Final = {number: reason for reason, number in _REASONS.items()}
_Parts = list[Buffer]


# ---- out


def encode(message: Message, max_body_bytes: int) -> tuple[list[Buffer], int]:
    """The frame of a message, in parts that follow each other, and its size in bytes. The parts share the bytes of the
    message's entries.

    Raises UnsendableMessage if the message exceeds a limit, `max_body_bytes` or one of this module.
    """
    kind, write = _WRITERS[type(message)]
    try:
        head, rest = write(message)
    except struct.error as error:
        raise UnsendableMessage(f"{_named(message)} has a number out of range ({error}): do not send it") from error
    head = bytes((kind,)) + head
    size = len(head) + sum(map(len, rest))
    if size > max_body_bytes:
        raise UnsendableMessage(f"{_named(message)} has {size} bytes, a frame at most {max_body_bytes}: split it")
    checksum = crc32c(head)
    for part in rest:
        checksum = crc32c(part, checksum)
    return [FRAME.pack(size, checksum) + head, *rest], FRAME.size + size


def _named(message: Message) -> str:
    return f"{type(message).__name__} of stream {message.stream[:80]!r}"


def _names(*names: str) -> bytes:
    parts = []
    for name in names:
        encoded = name.encode()
        if len(encoded) > MAX_NAME_BYTES:
            raise UnsendableMessage(f"the name {name[:80]!r} has {len(encoded)} bytes, at most {MAX_NAME_BYTES}")
        parts.append(bytes((len(encoded),)) + encoded)
    return b"".join(parts)


def _entries(entries: tuple[Entry, ...], founding: bytes) -> _Parts:
    """The table of entries with the founding state behind it, and the entries' bytes."""
    if len(entries) > MAX_ENTRIES:
        raise UnsendableMessage(f"a message with {len(entries)} entries, at most {MAX_ENTRIES}: split it")
    table = struct.pack(
        f">{2 * len(entries)}I", *[number for data, records in entries for number in (len(data), records)]
    )
    return [table + founding, *[data for data, _ in entries if data]]


def _write_append(message: Append) -> tuple[bytes, _Parts]:
    if len(message.forward) > MAX_FORWARD:
        raise UnsendableMessage(f"a chain of {len(message.forward)} more members, at most {MAX_FORWARD}: shorten it")
    head = _names(message.stream, message.disk, message.owner, *[name for member in message.forward for name in member])
    fixed = _APPEND.pack(
        message.epoch, message.base_offset, *message.at, message.acked_bytes, len(message.forward),
        len(message.founding), len(message.entries),
    )  # fmt: skip
    return fixed + head, _entries(message.entries, message.founding)


def _write_fence(message: Fence) -> tuple[bytes, _Parts]:
    return _FENCE.pack(message.epoch, message.base_offset, message.fence_epoch) + _names(
        message.stream, message.disk
    ), []


def _write_copy(message: CopyChunk) -> tuple[bytes, _Parts]:
    fixed = _COPY.pack(message.epoch, message.base_offset, *message.end, message.revision, message.source is not None)
    return fixed + _names(message.stream, message.disk, *(message.source or ())), []


def _write_read(message: ReadEntries) -> tuple[bytes, _Parts]:
    fixed = _READ.pack(message.epoch, message.offset, message.max_bytes, message.for_copy)
    return fixed + _names(message.stream, message.disk), []


def _write_look(message: LookAtRegistration) -> tuple[bytes, _Parts]:
    return _REVISION.pack(message.revision) + _names(message.stream), []


def _write_append_done(message: AppendDone) -> tuple[bytes, _Parts]:
    return _PLACE.pack(message.epoch, *message.durable) + _names(message.stream, *message.member), []


def _write_out_of_order(message: OutOfOrder) -> tuple[bytes, _Parts]:
    return _PLACE.pack(message.epoch, *message.end) + _names(message.stream, *message.member), []


def _write_fence_done(message: FenceDone) -> tuple[bytes, _Parts]:
    fixed = _FENCE_DONE.pack(message.epoch, message.fence_epoch, *message.durable, message.acked_bytes)
    return fixed + _names(message.stream, *message.member), []


def _write_copy_done(message: CopyDone) -> tuple[bytes, _Parts]:
    fixed = _COPY_DONE.pack(message.epoch, *message.end, message.revision)
    return fixed + _names(message.stream, *message.member), []


def _write_refused(message: Refused) -> tuple[bytes, _Parts]:
    fixed = _REFUSED.pack(message.epoch, _REASONS[message.reason], message.fence_epoch)
    return fixed + _names(message.stream, *message.member), []


def _write_entries_read(message: EntriesRead) -> tuple[bytes, _Parts]:
    fixed = _ENTRIES_READ.pack(
        message.epoch, *message.at, message.limit_offset, len(message.founding), len(message.entries)
    )
    return fixed + _names(message.stream, *message.member), _entries(message.entries, message.founding)


# ---- in


class _Reader:
    """Reads the fields of a body in sequence."""

    __slots__ = ("at", "body")

    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.at = 1

    def fixed(self, layout: struct.Struct) -> tuple[int, ...]:
        """Numbers of fixed size."""
        at = self.at
        self.at = at + layout.size
        try:
            numbers = layout.unpack_from(self.body, at)
        except struct.error:
            self._end(layout.size, at)
        if min(numbers) < 0:
            raise MalformedMessage(f"a number of a message at byte {at} is negative: {min(numbers)}")
        return numbers

    def name(self) -> str:
        """A name."""
        at = self.at
        if at >= len(self.body):
            self._end(1, at)
        end = self.at = at + 1 + self.body[at]
        if end > len(self.body):
            self._end(end - at, at)
        try:
            return str(self.body[at + 1 : end], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"a name at byte {at} of a message is not UTF-8") from error

    def member(self) -> Member:
        """A member."""
        return Member(self.name(), self.name())

    def entries(self, count: int, founding_bytes: int) -> tuple[tuple[Entry, ...], bytes]:
        """Entries and the founding state, which end the body."""
        body, at = self.body, self.at
        data_at = at + count * _ENTRY_BYTES + founding_bytes
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
            entries.append(Entry(bytes(body[data_at : data_at + size]), record_count))
            data_at += size
        return tuple(entries), founding

    def _end(self, size: int, at: int) -> NoReturn:
        raise MalformedMessage(f"a message ends at byte {len(self.body)}, inside a field of {size} bytes at {at}")


def decode(body: memoryview) -> Message:
    """The message of a body, without its frame. Raises MalformedMessage."""
    if not body:
        raise MalformedMessage("a message of 0 bytes")
    read = _READERS.get(body[0])
    if read is None:
        raise MalformedMessage(f"a message of kind {body[0]}; version {VERSION} has {min(_READERS)} to {max(_READERS)}")
    reader = _Reader(body)
    message = read(reader)
    if reader.at != len(body):
        raise MalformedMessage(f"{len(body) - reader.at} bytes follow a {type(message).__name__}, which ends there")
    return message


def _read_append(reader: _Reader) -> Append:
    epoch, base, length, offset, checksum, acked, forward, founding_bytes, count = reader.fixed(_APPEND)
    if forward > MAX_FORWARD:
        raise MalformedMessage(f"a chain of {forward} more members, at most {MAX_FORWARD}")
    stream, disk, owner = reader.name(), reader.name(), reader.name()
    chain = tuple([reader.member() for _ in range(forward)])
    entries, founding = reader.entries(count, founding_bytes)
    at = Prefix(length, offset, checksum)
    return Append(stream, disk, epoch, base, owner, at, entries, acked, chain, founding)


def _read_fence(reader: _Reader) -> Fence:
    epoch, base, fence = reader.fixed(_FENCE)
    return Fence(reader.name(), reader.name(), epoch, base, fence)


def _flag(value: int, noun: str) -> bool:
    if value > 1:
        raise MalformedMessage(f"{noun} is {value}, not 0 or 1")
    return value == 1


def _read_copy(reader: _Reader) -> CopyChunk:
    epoch, base, length, offset, checksum, revision, has_source = reader.fixed(_COPY)
    stream, disk = reader.name(), reader.name()
    source = reader.member() if _flag(has_source, "whether a copy has a source") else None
    return CopyChunk(stream, disk, epoch, base, Prefix(length, offset, checksum), source, revision)


def _read_read(reader: _Reader) -> ReadEntries:
    epoch, offset, max_bytes, for_copy = reader.fixed(_READ)
    is_copy = _flag(for_copy, "whether a read is for a copy")
    return ReadEntries(reader.name(), reader.name(), epoch, offset, max_bytes, is_copy)


def _read_look(reader: _Reader) -> LookAtRegistration:
    (revision,) = reader.fixed(_REVISION)
    return LookAtRegistration(reader.name(), revision)


def _read_append_done(reader: _Reader) -> AppendDone:
    epoch, length, offset, checksum = reader.fixed(_PLACE)
    return AppendDone(reader.name(), epoch, reader.member(), Prefix(length, offset, checksum))


def _read_out_of_order(reader: _Reader) -> OutOfOrder:
    epoch, length, offset, checksum = reader.fixed(_PLACE)
    return OutOfOrder(reader.name(), epoch, reader.member(), Prefix(length, offset, checksum))


def _read_fence_done(reader: _Reader) -> FenceDone:
    epoch, fence, length, offset, checksum, acked = reader.fixed(_FENCE_DONE)
    return FenceDone(reader.name(), epoch, reader.member(), fence, Prefix(length, offset, checksum), acked)


def _read_copy_done(reader: _Reader) -> CopyDone:
    epoch, length, offset, checksum, revision = reader.fixed(_COPY_DONE)
    return CopyDone(reader.name(), epoch, reader.member(), Prefix(length, offset, checksum), revision)


def _read_refused(reader: _Reader) -> Refused:
    epoch, number, fence = reader.fixed(_REFUSED)
    reason = _REASON_OF.get(number)
    if reason is None:
        raise MalformedMessage(f"a refusal for the reason {number}; version {VERSION} has 1 to {len(_REASON_OF)}")
    return Refused(reader.name(), epoch, reader.member(), reason, fence)


def _read_entries_read(reader: _Reader) -> EntriesRead:
    epoch, length, offset, checksum, limit, founding_bytes, count = reader.fixed(_ENTRIES_READ)
    stream, member = reader.name(), reader.member()
    entries, founding = reader.entries(count, founding_bytes)
    return EntriesRead(stream, epoch, member, Prefix(length, offset, checksum), entries, limit, founding)


_WRITERS: Final[dict[type, tuple[int, Callable[..., tuple[bytes, _Parts]]]]] = {
    Append: (1, _write_append),
    AppendDone: (2, _write_append_done),
    OutOfOrder: (3, _write_out_of_order),
    Fence: (4, _write_fence),
    FenceDone: (5, _write_fence_done),
    CopyChunk: (6, _write_copy),
    CopyDone: (7, _write_copy_done),
    ReadEntries: (8, _write_read),
    EntriesRead: (9, _write_entries_read),
    Refused: (10, _write_refused),
    LookAtRegistration: (11, _write_look),
}
_READERS: Final[dict[int, Callable[[_Reader], Message]]] = {
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
        size, checksum = FRAME.unpack_from(self._bytes, self._start)
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
