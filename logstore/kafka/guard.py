"""Are a request's counts and lengths possible? Asked before kio decodes it.

kio reserves memory for as many elements as a request claims to have, and ends the process if there is not so much. So
requests are walked first, field by field, after kio's own description of them. Invariants: what passes has no array or
string longer than the bytes that are left, and no null where null is not allowed.
"""

import types
import typing
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Any

from logstore.errors import MalformedRequest
from logstore.kafka.framing import Reader

Skip = Callable[[Reader], None]
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


@cache
def skipper(entity: type) -> Skip:
    """What walks over one entity of a kio class, raising MalformedRequest where it cannot be one."""
    plain: list[Skip] = []
    tagged: dict[int, Skip] = {}
    for field in fields(entity):
        if "tag" in field.metadata:
            tagged[int(field.metadata["tag"])] = _field(field)
        else:
            plain.append(_field(field))
    is_flexible = bool(vars(entity)["__flexible__"])

    def skip(reader: Reader) -> None:
        for step in plain:
            step(reader)
        if is_flexible:
            _skip_tags(reader, tagged)

    return skip


def _skip_tags(reader: Reader, known: dict[int, Skip]) -> None:
    for _ in range(reader.uvarint()):
        step = known.get(reader.uvarint())
        size = reader.uvarint()
        end = reader.at + size
        if step is None:
            reader.skip(size)
            continue
        step(reader)
        if reader.at != end:
            raise MalformedRequest(f"a tagged field of {size} bytes ends at {reader.at}, not at {end}")


def _field(field: "Field[Any]") -> Skip:
    hint, nullable = _without_none(field.type)
    if typing.get_origin(hint) is tuple:
        element, _ = _without_none(typing.get_args(hint)[0])
        if is_dataclass(element):
            return _array(skipper(typing.cast(type, element)), nullable=nullable)
        return _array(_primitive(field.metadata["kafka_type"], nullable=False), nullable=nullable)
    if is_dataclass(hint):
        return _nullable(skipper(typing.cast(type, hint))) if nullable else skipper(typing.cast(type, hint))
    return _primitive(field.metadata["kafka_type"], nullable=nullable)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, types.UnionType):
        return next(option for option in typing.get_args(hint) if option is not types.NoneType), True
    return hint, False


def _array(element: Skip, *, nullable: bool) -> Skip:
    def skip(reader: Reader) -> None:
        for _ in range(reader.count(1, nullable=nullable)):
            element(reader)

    return skip


def _nullable(entity: Skip) -> Skip:
    def skip(reader: Reader) -> None:
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
