"""Decodes requests and encodes responses with kio, for every API except Produce and Fetch.

Invariants: for any bytes, `decode` returns a request or raises MalformedRequest; classes are loaded once per key and
version, on first use, so that start-up loads none.
"""

import io
import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache, partial
from typing import Any, NamedTuple, cast, get_args, get_origin, get_type_hints

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.protocol import Entity, RequestPayload, ResponsePayload

from logstore.errors import MalformedRequest
from logstore.interfaces import Buffer
from logstore.kafka import guard
from logstore.kafka.pace import LARGE_BYTES, LARGE_PARTS, Walkers
from logstore.kafka.wire import build, response_type

API_VERSIONS_KEY = 18
_FIXED_HEADER = struct.Struct(">hhi")
_LENGTH = struct.Struct(">h")
FIXED_HEADER_BYTES = _FIXED_HEADER.size


class RequestHeader(NamedTuple):
    """Key, version, correlation id, and the client id that the client claims."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body_at: int
    """Where the body starts in header version 1; in header version 2, tagged fields come before the body."""


class EncodedAnswer(NamedTuple):
    """An answer that its handler has encoded: its body, and whether its header has version 1."""

    body: list[Buffer]
    flexible_header: bool


async def decode_answer(request: RequestPayload, answer: EncodedAnswer) -> ResponsePayload:
    """The answer to `request` that a handler has encoded; on a thread, as it may be large."""
    kind = response_type(type(request))
    body = memoryview(b"".join(answer.body)).toreadonly()
    return cast(ResponsePayload, await Walkers.run(lambda: entity_reader(kind)(body, 0)[0]))


def decode_header(frame: memoryview) -> RequestHeader:
    """Decode the part of a request header that all header versions share. Raises MalformedRequest."""
    if len(frame) < FIXED_HEADER_BYTES:
        raise MalformedRequest(f"a frame of {len(frame)} bytes has no request header")
    api_key, version, correlation_id = _FIXED_HEADER.unpack_from(frame)
    at = FIXED_HEADER_BYTES
    if len(frame) < at + _LENGTH.size:
        return RequestHeader(api_key, version, correlation_id, "", at)
    (length,) = _LENGTH.unpack_from(frame, at)
    at += _LENGTH.size
    if length < 0:
        return RequestHeader(api_key, version, correlation_id, "", at)
    if at + length > len(frame):
        raise MalformedRequest(f"a client id of {length} bytes exceeds the frame")
    client_id = bytes(frame[at : at + length]).decode("utf-8", "replace")
    return RequestHeader(api_key, version, correlation_id, client_id, at + length)


def knows(api_key: int) -> bool:
    """Whether Kafka has a request with that key."""
    return api_key in api_key_map


@cache
def request_type(api_key: int, version: int) -> Any:
    """kio's class for a request. Raises MalformedRequest if kio has none."""
    try:
        return load_request_schema(api_key, version)
    except KioIndexError as error:
        raise MalformedRequest(f"request {api_key} has no version {version}") from error


@cache
def _reader(api_key: int, version: int) -> Callable[[memoryview, int], tuple[Any, int]]:
    return cast(Callable[[memoryview, int], tuple[Any, int]], entity_reader(request_type(api_key, version)))


@cache
def _writer(response: type[ResponsePayload]) -> Callable[[io.BytesIO, ResponsePayload], None]:
    return cast(Callable[[io.BytesIO, ResponsePayload], None], entity_writer(response))


def decode(frame: memoryview, header: RequestHeader, at: int) -> Any:
    """Decode the request after `header`; its body starts at `at`. Raises MalformedRequest."""
    kind = request_type(header.api_key, header.version)
    frame, at = guard.checked(kind, frame, at, guard.max_elements(header.api_key))
    try:
        request, _ = _reader(header.api_key, header.version)(frame.toreadonly(), at)
    except (SerialError, ValueError, TypeError, IndexError, struct.error, OverflowError, EOFError) as error:
        raise MalformedRequest(f"request {header.api_key} version {header.version}: {error}") from error
    return request


async def decode_large(frame: memoryview, header: RequestHeader, at: int) -> Any:
    """Like `decode`; a large request is decoded on a thread, so that other tasks run meanwhile."""
    if len(frame) > LARGE_BYTES:
        return await Walkers.run(partial(decode, frame, header, at))
    return decode(frame, header, at)


async def encode_large(response: ResponsePayload | EncodedAnswer) -> list[Buffer]:
    """Like `encode`; a response of many parts is encoded on a thread, so that other tasks run meanwhile."""
    if isinstance(response, EncodedAnswer):
        return response.body
    if _is_large(response):
        return await Walkers.run(partial(encode, response))
    return encode(response)


def _is_large(response: ResponsePayload) -> bool:
    """Whether the response's arrays, and the arrays of their elements, have more than LARGE_PARTS elements."""
    total = 0
    for name in _array_names(type(response)):
        parts = getattr(response, name) or ()
        total += len(parts)
        if parts and is_dataclass(parts[0]):
            names = _array_names(cast(type[Entity], type(parts[0])))
            for part in parts:
                total += sum(len(getattr(part, name) or ()) for name in names)
                if total > LARGE_PARTS:
                    return True
    return total > LARGE_PARTS


@cache
def _array_names(kind: type[Entity]) -> tuple[str, ...]:
    hints = get_type_hints(kind)
    options = {
        name: get_args(hints[name]) if get_origin(hints[name]) is not tuple else (hints[name],) for name in hints
    }
    return tuple(
        field.name for field in fields(kind) if any(get_origin(option) is tuple for option in options[field.name])
    )


def encode(response: ResponsePayload) -> list[Buffer]:
    """The body of a response."""
    target = io.BytesIO()
    _writer(type(response))(target, response)
    return [target.getvalue()]


def refuse_version(api_key: int, nearest_version: int) -> ResponsePayload | None:
    """UNSUPPORTED_VERSION in the layout of a served version; None if that response has no error code at its top."""
    kind = load_response_schema(api_key, nearest_version)
    if all(field.name != "error_code" for field in fields(kind)):
        return None
    return cast(ResponsePayload, build(kind, {"error_code": ErrorCode.unsupported_version}))


def has_flexible_response_header(response: ResponsePayload | EncodedAnswer) -> bool:
    """Whether the response header has version 1. ApiVersions always has version 0, so that any client can read it."""
    if isinstance(response, EncodedAnswer):
        return response.flexible_header
    return bool(response.__flexible__) and response.__api_key__ != API_VERSIONS_KEY
