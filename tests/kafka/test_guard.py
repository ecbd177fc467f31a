"""What the guard lets through is what kio can decode; what it stops would have cost memory, or the process."""

import io
import struct
from contextlib import suppress
from datetime import timedelta
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from kio.index import load_request_schema
from kio.serial import entity_writer
from kio.static.protocol import RequestPayload

from logstore.errors import MalformedRequest
from logstore.kafka import codec, guard
from logstore.kafka.wire import build

SERVED: dict[int, tuple[int, int]] = {}
for part in (
    {2: (1, 10), 3: (0, 13), 8: (2, 9), 9: (1, 9), 10: (0, 6), 11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5)},
    {15: (0, 6), 16: (0, 5), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5), 23: (2, 4), 32: (1, 4), 33: (0, 2)},
    {35: (1, 4), 37: (0, 3), 42: (0, 2), 44: (0, 1), 46: (0, 0), 47: (0, 0), 60: (0, 2), 75: (0, 0)},
):
    SERVED.update(part)
VERSIONS = [(key, version) for key, (low, high) in SERVED.items() for version in range(low, high + 1)]


def sample(kind: type, depth: int = 0) -> dict[str, Any]:
    """Values for every field of a kio class: two elements in every array, text in every string."""
    values: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        if name.startswith("__"):
            continue
        options = [option for option in get_args(hint) if option is not type(None)] if _is_union(hint) else [hint]
        values[name] = _sample_of(options[0], depth)
    return values


def _is_union(hint: Any) -> bool:
    return type(None) in get_args(hint)


def _sample_of(hint: Any, depth: int) -> Any:
    if get_origin(hint) is tuple:
        element = get_args(hint)[0]
        if hasattr(element, "__dataclass_fields__"):
            return [sample(element, depth + 1)] * 2
        return (_sample_of(element, depth),) * 2
    if hasattr(hint, "__dataclass_fields__"):
        return build(hint, sample(hint, depth + 1))
    if _is_union(hint):
        return None
    if not isinstance(hint, type):
        return None
    if issubclass(hint, timedelta):
        return timedelta(milliseconds=1500)
    if issubclass(hint, str):
        return "text"
    if issubclass(hint, bytes):
        return b"bytes"
    return hint is bool if issubclass(hint, bool) else (1 if issubclass(hint, int) else None)


def encoded(kind: type[RequestPayload]) -> bytes:
    """A request with something in every field, in kio's encoding."""
    target = io.BytesIO()
    write: Any = entity_writer(kind)
    write(target, build(kind, sample(kind)))
    return target.getvalue()


def walk(kind: type[RequestPayload], body: bytes) -> int:
    """Walk over a body; where the walk ends."""
    reader = guard.GuardReader(memoryview(body), 0, flexible=bool(kind.__flexible__))
    guard.skipper(kind)(reader)
    return reader.at


@pytest.fixture(params=VERSIONS, ids=lambda pair: f"{pair[0]}-v{pair[1]}")
def kind(request: pytest.FixtureRequest) -> type[RequestPayload]:
    """Every version of every request that kio decodes for us."""
    return load_request_schema(*request.param)


def test_whole_cut_and_trailing(kind: type[RequestPayload]) -> None:
    """A request is walked to its last byte; cut anywhere it is malformed; what follows it is not looked at."""
    body = encoded(kind)
    assert walk(kind, body) == len(body)
    assert walk(kind, body + b"more") == len(body)
    for length in range(len(body)):
        with pytest.raises(MalformedRequest):
            walk(kind, body[:length])


def test_every_bit_flipped(kind: type[RequestPayload]) -> None:
    """Whatever a bit does to a request, it is decoded or malformed; nothing else happens, and nothing is allocated."""
    body = bytearray(encoded(kind))
    for at in range(len(body) * 8):
        body[at // 8] ^= 1 << at % 8
        header = codec.RequestHeader(int(kind.__api_key__), int(kind.__version__), 1, "", 0)
        with suppress(MalformedRequest):
            codec.decode(memoryview(bytes(body)), header, 0)
        body[at // 8] ^= 1 << at % 8


def test_unknown_tagged_fields_are_ignored() -> None:
    """A newer client may tag on what we do not know, anywhere in a request of a flexible version."""
    tags = b"\x02\x00\x01x\x63\x03abc"
    topic = b"\x02\x03ab" + tags
    body = b"\x05" + topic[1:] + topic[1:].replace(b"ab", b"cd", 1) * 3
    plain = b"\x05\x03ab\x00" + b"\x03cd\x00" * 3
    header = codec.RequestHeader(3, 9, 1, "", 0)
    with_tags = codec.decode(memoryview(body + b"\x01\x00\x00" + tags), header, 0)
    assert with_tags == codec.decode(memoryview(plain + b"\x01\x00\x00\x00"), header, 0)
    assert [part.name for part in with_tags.topics] == ["ab", "cd", "cd", "cd"]


@pytest.mark.parametrize("count", [2**31 - 1, 1000, -2])
def test_impossible_counts(count: int) -> None:
    """An array that claims more elements than there are bytes is refused before anything is reserved for it."""
    body = struct.pack(">i", count) + b"\x00\x01a" * 5
    with pytest.raises(MalformedRequest):
        walk(load_request_schema(3, 1), body)
