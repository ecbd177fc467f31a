"""Reads and writes Kafka's primitive types in one buffer, for the two requests whose records are not copied.

Produce and Fetch carry the data; their frames are parsed in place, so that records are passed on as slices. kio decodes
all other requests. Invariants: a count or a length never exceeds what the remaining bytes can hold (MalformedRequest),
so that no request makes the sidecar allocate more than the request's own size; a request has at most MAX_TAGGED_FIELDS
tagged fields, so that to skip them takes a millisecond at most.

Source: Kafka protocol guide, "Protocol Primitive Types"; KIP-482 (flexible versions).
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from uuid import UUID

from logstore.errors import MalformedRequest
from logstore.interfaces import Buffer

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_Unpack = Callable[[Buffer, int], tuple[int]]
_unpack_int8: _Unpack = _INT8.unpack_from
_unpack_int16: _Unpack = _INT16.unpack_from
_unpack_int32: _Unpack = _INT32.unpack_from
_unpack_int64: _Unpack = _INT64.unpack_from
MAX_UVARINT_BYTES = 5
UUID_BYTES = 16
MAX_TAGGED_FIELDS = 1_000
"""Of one reader, that is of a request's header, or of its body. Clients send none, or one or two in all; two bytes are
enough for one, so a frame has room for millions."""
REMEMBERED_UUIDS = 4096
"""Making a UUID costs ten times as much as finding one; clients name the same topics again and again."""


@lru_cache(maxsize=REMEMBERED_UUIDS)
def _uuid(content: bytes) -> UUID:
    return UUID(bytes=content)


class Reader:
    """Reads primitives in sequence. `flexible`: compact lengths and tagged fields (KIP-482)."""

    __slots__ = ("at", "buffer", "flexible", "tagged_fields_left")

    def __init__(self, buffer: memoryview, at: int, *, flexible: bool) -> None:
        self.buffer = buffer
        self.at = at
        self.flexible = flexible
        self.tagged_fields_left = MAX_TAGGED_FIELDS

    def _ended(self, at: int) -> MalformedRequest:
        return MalformedRequest(f"the request ends at byte {len(self.buffer)}, inside a field at {at}")

    def int8(self) -> int:
        """A signed byte."""
        at = self.at
        self.at = at + 1
        try:
            return _unpack_int8(self.buffer, at)[0]
        except struct.error:
            raise self._ended(at) from None

    def int16(self) -> int:
        """A signed 16-bit integer."""
        at = self.at
        self.at = at + 2
        try:
            return _unpack_int16(self.buffer, at)[0]
        except struct.error:
            raise self._ended(at) from None

    def int32(self) -> int:
        """A signed 32-bit integer."""
        at = self.at
        self.at = at + 4
        try:
            return _unpack_int32(self.buffer, at)[0]
        except struct.error:
            raise self._ended(at) from None

    def int64(self) -> int:
        """A signed 64-bit integer."""
        at = self.at
        self.at = at + 8
        try:
            return _unpack_int64(self.buffer, at)[0]
        except struct.error:
            raise self._ended(at) from None

    def uuid(self) -> UUID:
        """A UUID."""
        return _uuid(bytes(self._take(UUID_BYTES)))

    def uvarint(self) -> int:
        """An unsigned varint of at most 32 bits."""
        value = 0
        for shift in range(0, 7 * MAX_UVARINT_BYTES, 7):
            byte = self.int8() & 0xFF
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedRequest(f"varint at {self.at} does not end")

    def _length(self, *, wide: bool) -> int:
        """A length in bytes; -1 for null."""
        if self.flexible:
            return self.uvarint() - 1
        return self.int32() if wide else self.int16()

    def _take(self, length: int) -> memoryview:
        if length < 0 or self.at + length > len(self.buffer):
            raise MalformedRequest(f"a field of {length} bytes at {self.at} exceeds the request's {len(self.buffer)}")
        taken = self.buffer[self.at : self.at + length]
        self.at += length
        return taken

    def nullable_string(self) -> str | None:
        """A string or null."""
        length = self._length(wide=False)
        if length == -1:
            return None
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedRequest(f"a string at {self.at} is not UTF-8") from error

    def string(self) -> str:
        """A string."""
        value = self.nullable_string()
        if value is None:
            raise MalformedRequest(f"a string at {self.at} is null")
        return value

    def nullable_bytes(self) -> memoryview | None:
        """Bytes, as a slice of the buffer, or null."""
        length = self._length(wide=True)
        return None if length == -1 else self._take(length)

    def count(self, element_bytes: int, *, nullable: bool = False) -> int:
        """An array's length (null: 0). Raises MalformedRequest if the remaining bytes cannot hold that number of
        elements of at least `element_bytes`.
        """
        count = self._length(wide=True)
        if count == -1 and nullable:
            return 0
        if count < 0 or count * element_bytes > len(self.buffer) - self.at:
            raise MalformedRequest(f"an array of {count} elements at {self.at} exceeds the request")
        return count

    def skip(self, size: int) -> None:
        """Skip `size` bytes."""
        if size < 0 or self.at + size > len(self.buffer):
            raise MalformedRequest(f"a field of {size} bytes at {self.at} exceeds the request's {len(self.buffer)}")
        self.at += size

    def skip_string(self) -> None:
        """Skip a string."""
        self.skip(self._length(wide=False))

    def skip_nullable_string(self) -> None:
        """Skip a string or null."""
        self.skip(max(0, self._nullable_length(wide=False)))

    def skip_bytes(self) -> None:
        """Skip bytes."""
        self.skip(self._length(wide=True))

    def skip_nullable_bytes(self) -> None:
        """Skip bytes or null."""
        self.skip(max(0, self._nullable_length(wide=True)))

    def _nullable_length(self, *, wide: bool) -> int:
        length = self._length(wide=wide)
        if length < -1:
            raise MalformedRequest(f"a field at {self.at} has length {length}")
        return length

    def tagged_fields(self) -> int:
        """The number of tagged fields in a section. Raises MalformedRequest if the request has more than it may."""
        count = self.uvarint()
        self.tagged_fields_left -= count
        if self.tagged_fields_left < 0:
            raise MalformedRequest(
                f"{count} tagged fields at {self.at}: a request may have {MAX_TAGGED_FIELDS} in its header, and as "
                "many in its body"
            )
        return count

    def tags(self) -> None:
        """Skip tagged fields."""
        if not self.flexible:
            return
        for _ in range(self.tagged_fields()):
            self.uvarint()
            self._take(self.uvarint())


class Writer:
    """Collects primitives; record batches are added without a copy."""

    __slots__ = ("_parts", "_tail", "flexible", "size")

    def __init__(self, *, flexible: bool) -> None:
        self.flexible = flexible
        self._parts: list[Buffer] = []
        self._tail = bytearray()
        self.size = 0

    def fixed(self, layout: struct.Struct, *values: int) -> None:
        """Several integers of fixed size, packed with `layout`."""
        self._tail += layout.pack(*values)

    def int8(self, value: int) -> None:
        """A signed byte."""
        self._tail += _INT8.pack(value)

    def int16(self, value: int) -> None:
        """A signed 16-bit integer."""
        self._tail += _INT16.pack(value)

    def int32(self, value: int) -> None:
        """A signed 32-bit integer."""
        self._tail += _INT32.pack(value)

    def int64(self, value: int) -> None:
        """A signed 64-bit integer."""
        self._tail += _INT64.pack(value)

    def uvarint(self, value: int) -> None:
        """An unsigned varint."""
        while value > 0x7F:
            self._tail.append((value & 0x7F) | 0x80)
            value >>= 7
        self._tail.append(value)

    def count(self, value: int) -> None:
        """An array's length."""
        if self.flexible:
            self.uvarint(value + 1)
        else:
            self.int32(value)

    def string(self, value: str | None) -> None:
        """A string or null."""
        encoded = None if value is None else value.encode()
        length = -1 if encoded is None else len(encoded)
        if self.flexible:
            self.uvarint(length + 1)
        else:
            self.int16(length)
        if encoded is not None:
            self._tail += encoded

    def raw(self, content: Buffer) -> None:
        """Bytes without a length."""
        self._tail += content

    def records(self, buffers: list[Buffer], size: int) -> None:
        """Concatenated record batches of `size` bytes in total."""
        if self.flexible:
            self.uvarint(size + 1)
        else:
            self.int32(size)
        self._parts.append(bytes(self._tail))
        self.size += len(self._tail) + size
        self._parts.extend(buffers)
        self._tail = bytearray()

    def tags(self) -> None:
        """An empty section of tagged fields."""
        if self.flexible:
            self._tail.append(0)

    def finish(self) -> list[Buffer]:
        """Everything written, in order."""
        self.size += len(self._tail)
        parts = [*self._parts, bytes(self._tail)]
        self._parts, self._tail = [], bytearray()
        return parts


def uvarint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def frame(correlation_id: int, body: list[Buffer], *, flexible_header: bool) -> list[Buffer]:
    """A response frame: length, header (v1 if flexible, else v0), body."""
    head = _INT32.pack(correlation_id) + (b"\x00" if flexible_header else b"")
    size = len(head) + sum(len(part) for part in body)
    return [_INT32.pack(size) + head, *body]
