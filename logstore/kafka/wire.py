"""Builds the answer to any version of a request from one set of named values.

kio has one class per message and version. `respond` builds the class that answers a request from the values that its
version has fields for, so that a handler serves all versions. Invariants: a field without a value takes kio's default,
or zero, or an empty value ("", ()); a null for a field that cannot be null becomes the empty string.
"""

import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from functools import cache, partial
from typing import Any, NamedTuple

from kio.index import load_response_schema
from kio.static.protocol import Entity, RequestPayload, ResponsePayload

from logstore.kafka.pace import LARGE_PARTS, Walkers

Values = Mapping[str, Any]
_MILLISECOND = timedelta(milliseconds=1)


class _Slot(NamedTuple):
    """One field: the class of its elements (if it is an array of structures), whether it may be null, its default."""

    name: str
    nested: type[Entity] | None
    nullable: bool
    default: Any
    has_default: bool


async def respond(request: RequestPayload, values: Values) -> ResponsePayload:
    """Build the answer to `request` from `values`; arrays of structures are sequences of mappings. A large answer is
    built on a thread, so that other tasks run meanwhile.

    A misspelt name looks like a field of another version and is ignored, so tests check the answers of every version.
    """
    kind = response_type(type(request))
    if count_parts(values.values()) > LARGE_PARTS:
        return typing.cast(ResponsePayload, await Walkers.run(partial(build, kind, values)))
    return typing.cast(ResponsePayload, build(kind, values))


def count_parts(values: Iterable[Any]) -> int:
    """How many elements the arrays in an answer's values have, nested arrays included; counting stops soon after
    LARGE_PARTS.
    """
    total = 0
    for value in values:
        if isinstance(value, list | tuple):
            total += len(value)
            for part in value:
                if total > LARGE_PARTS or not isinstance(part, Mapping):
                    break
                total += count_parts(part.values())
        if total > LARGE_PARTS:
            break
    return total


def milliseconds(duration: timedelta) -> int:
    """A kio duration as the number on the wire."""
    return duration // _MILLISECOND


@cache
def response_type(request_type: type[RequestPayload]) -> type[Entity]:
    """The class that answers a request."""
    return load_response_schema(request_type.__api_key__, request_type.__version__)


def build(entity_type: type[Entity], values: Values) -> Entity:
    """Build a message, or a structure in it, from those values that its class has fields for."""
    arguments: dict[str, Any] = {}
    for slot in _slots(entity_type):
        if slot.name not in values:
            if not slot.has_default:
                arguments[slot.name] = slot.default
            continue
        value = values[slot.name]
        if value is None and not slot.nullable:
            value = ""
        elif value is not None and slot.nested is not None:
            nested = slot.nested
            value = tuple(build(nested, part) for part in value)
        arguments[slot.name] = value
    return entity_type(**arguments)


@cache
def _slots(entity_type: type[Entity]) -> tuple[_Slot, ...]:
    hints = typing.get_type_hints(entity_type)
    slots = []
    for field in fields(entity_type):
        hint = hints[field.name]
        nullable = False
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            options = [option for option in typing.get_args(hint) if option is not types.NoneType]
            nullable, hint = True, options[0]
        nested = None
        empty: Any = None
        if typing.get_origin(hint) is tuple:
            element = typing.get_args(hint)[0]
            nested, empty = (typing.cast(type[Entity], element) if is_dataclass(element) else None), ()
        elif isinstance(hint, type) and issubclass(hint, timedelta):
            empty = timedelta(0)
        elif isinstance(hint, type) and issubclass(hint, str | bytes | int):
            empty = next(kind() for kind in (str, bytes, int) if issubclass(hint, kind))
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        slots.append(_Slot(field.name, nested, nullable, empty, has_default))
    return tuple(slots)
