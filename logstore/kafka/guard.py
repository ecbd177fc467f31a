"""Checks a request's counts and lengths before kio decodes it.

kio allocates memory for as many elements as a request claims to have, and the process dies if it cannot; kio also
refuses unknown tagged fields, which a server has to ignore (KIP-482). So this module first walks over each request,
field by field, following kio's own description of it. Invariants: a frame that passes has no array or string longer
than the bytes that are left, no more elements in all its arrays than its API key allows (`max_elements`), no more
tagged fields than `framing.MAX_TAGGED_FIELDS`, no null where null is not allowed, and no tagged field that kio does not
know.
"""

import types
import typing
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Any

from logstore.errors import MalformedRequest
from logstore.kafka.framing import Reader, Writer

Skip = Callable[["GuardReader"], None]
_FIXED_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}


MAX_ELEMENTS = 25_000
"""Limit for all arrays of a request: enough for the 10,000 partitions that a topic may have, each with its replica."""
_MOST_ELEMENTS = {
    11: 1_000,  # JoinGroup: the protocols of one member; clients have one or two
    30: 2_000,  # CreateAcls: all are written at once
    31: 1_000,  # DeleteAcls: each filter is compared with every ACL
    32: 2_000,  # DescribeConfigs: the answer to each resource has some 15 settings, with their documentation
    51: 2_000,  # AlterUserScramCredentials: all are written at once
}


def max_elements(api_key: int) -> int:
    """How many elements all arrays of a request with this key may have together."""
    return _MOST_ELEMENTS.get(api_key, MAX_ELEMENTS)


class GuardReader(Reader):
    """A reader that collects edits (start, end, replacement) and counts how many more elements a request may have."""

    __slots__ = ("edits", "elements_left")

    def __init__(self, buffer: memoryview, at: int, *, flexible: bool, elements: int = MAX_ELEMENTS) -> None:
        super().__init__(buffer, at, flexible=flexible)
        self.edits: list[tuple[int, int, bytes]] = []
        self.elements_left = elements

    def elements(self, min_bytes: int, *, nullable: bool) -> int:
        """The length of an array whose elements have at least `min_bytes` bytes. Raises MalformedRequest."""
        count = self.count(min_bytes, nullable=nullable)
        self.elements_left -= count
        if self.elements_left < 0:
            raise MalformedRequest(f"an array of {count} elements at {self.at}: more than such a request can mean")
        return count


def checked(kind: type, frame: memoryview, at: int, elements: int = MAX_ELEMENTS) -> tuple[memoryview, int]:
    """A frame that kio can safely decode as `kind`, and where its body starts: `frame` itself, or a copy without
    unknown tagged fields. Raises MalformedRequest.
    """
    reader = GuardReader(frame, at, flexible=bool(vars(kind)["__flexible__"]), elements=elements)
    skipper(kind)(reader)
    if not reader.edits:
        return frame, at
    kept = bytearray()
    for start, end, replacement in reader.edits:
        kept += frame[at:start]
        kept += replacement
        at = end
    kept += frame[at:]
    return memoryview(kept), 0


@cache
def skipper(entity: type) -> Skip:
    """A function that skips one entity of a kio class. It raises MalformedRequest where the bytes are not one."""
    plain: list[Skip] = []
    tagged: dict[int, Skip] = {}
    for field in fields(entity):
        if "tag" in field.metadata:
            tagged[int(field.metadata["tag"])] = _field(field)
        else:
            plain.append(_field(field))
    is_flexible = bool(vars(entity)["__flexible__"])

    def skip(reader: GuardReader) -> None:
        for step in plain:
            step(reader)
        if is_flexible:
            _skip_tags(reader, tagged)

    return skip


def _skip_tags(reader: GuardReader, known: dict[int, Skip]) -> None:
    section = reader.at
    kept: list[tuple[int, memoryview]] = []
    total = reader.tagged_fields()
    for _ in range(total):
        tag, size = reader.uvarint(), reader.uvarint()
        start, edits = reader.at, len(reader.edits)
        step = known.get(tag)
        if step is None:
            reader.skip(size)
            continue
        step(reader)
        if reader.at != start + size or len(reader.edits) != edits:
            raise MalformedRequest(f"tagged field {tag} at {start} is not {size} bytes of what it should be")
        kept.append((tag, reader.buffer[start : reader.at]))
    if len(kept) < total:
        reader.edits.append((section, reader.at, _tags(kept)))


def _tags(fields_kept: list[tuple[int, memoryview]]) -> bytes:
    writer = Writer(flexible=True)
    writer.uvarint(len(fields_kept))
    for tag, content in fields_kept:
        writer.uvarint(tag)
        writer.uvarint(len(content))
        writer.raw(content)
    return b"".join(writer.finish())


def _field(field: "Field[Any]") -> Skip:
    hint, nullable = _without_none(field.type)
    if typing.get_origin(hint) is tuple:
        element, _ = _without_none(typing.get_args(hint)[0])
        if is_dataclass(element):
            kind = typing.cast(type, element)
            return _array(skipper(kind), _least_bytes(kind), nullable=nullable)
        kafka_type = field.metadata["kafka_type"]
        return _array(_primitive(kafka_type, nullable=False), _FIXED_BYTES.get(kafka_type, 1), nullable=nullable)
    if is_dataclass(hint):
        return _nullable(skipper(typing.cast(type, hint))) if nullable else skipper(typing.cast(type, hint))
    return _primitive(field.metadata["kafka_type"], nullable=nullable)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, types.UnionType):
        return next(option for option in typing.get_args(hint) if option is not types.NoneType), True
    return hint, False


def _least_bytes(entity: type) -> int:
    """The least size of an element of a kio class, in bytes: its fixed-size fields, and 1 for every other field."""
    least = sum(
        _FIXED_BYTES.get(field.metadata.get("kafka_type", ""), 1)
        if typing.get_origin(_without_none(field.type)[0]) is not tuple
        else 1
        for field in fields(entity)
        if "tag" not in field.metadata
    )
    return max(1, least)


def _array(element: Skip, min_bytes: int, *, nullable: bool) -> Skip:
    def skip(reader: GuardReader) -> None:
        for _ in range(reader.elements(min_bytes, nullable=nullable)):
            element(reader)

    return skip


def _nullable(entity: Skip) -> Skip:
    def skip(reader: GuardReader) -> None:
        if reader.int8() >= 0:
            entity(reader)

    return skip


def _primitive(kind: str, *, nullable: bool) -> Skip:
    size = _FIXED_BYTES.get(kind)
    if size is not None:
        return lambda reader: reader.skip(size)
    if kind == "string":
        return Reader.skip_nullable_string if nullable else Reader.skip_string
    if kind in ("bytes", "records"):
        return Reader.skip_nullable_bytes if nullable else Reader.skip_bytes
    raise TypeError(f"kio has a field of type {kind!r}, which is not known here")
