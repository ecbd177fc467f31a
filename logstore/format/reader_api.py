"""The messages of registered readers: register, acknowledge, remove, describe. Bytes in, bytes out.

Requests and answers have the form of the epoch API (docs/format.md, private requests): the length of a JSON object, and
the object. Nothing follows it.

Invariant: invalid bytes or values raise MalformedRequest, and no other error.

Source: docs/decisions/0022-registered-readers.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from logstore.errors import CairnError, MalformedRequest
from logstore.format.epoch_api import decode_own_reply, encode_own_request, error_fields
from logstore.format.fields import (
    MAX_NAME_CHARACTERS,
    Fields,
    decode_fields,
    encode_fields,
    get_bool,
    get_int,
    get_name,
    get_objects,
    get_text,
)
from logstore.interfaces import Buffer

REGISTER_READER: Final = 30005
ACKNOWLEDGE: Final = 30006
REMOVE_READER: Final = 30007
DESCRIBE_READERS: Final = 30008
READER_API_KEYS: Final = frozenset((REGISTER_READER, ACKNOWLEDGE, REMOVE_READER, DESCRIBE_READERS))

LOG_START: Final = -1
"""As an offset to register at: the stream's log start."""
MAX_STREAMS: Final = 1_000
"""Of one request; bounds the work that it can cause. `pieces` divides what has more."""
STREAMS_PER_READER: Final = 20_000
NAMES_PER_REPLY: Final = 1_000

_NUMBER: Final = "run_number"
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ReaderOffset:
    """A reader's position in a stream: the offset of the first record that it still needs."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class RegisterReaderRequest:
    """Register a reader with all its streams, or set a registered reader's streams and positions anew.

    `group`: the Kafka consumer group whose commits the positions follow; "": the reader acknowledges. `keep`: a
    registered reader's other streams stay as they are. `state`: the query whose state the reader owns; "": none.
    `incarnation_number`: of the query that the reader belongs to; 0: it has none.
    """

    reader: str
    group: str
    streams: tuple[ReaderOffset, ...]
    keep: bool = False
    state: str = ""
    incarnation_number: int = 0


@dataclass(frozen=True, slots=True)
class RegisterReaderReply:
    """The registration is durable, at these positions."""

    streams: tuple[ReaderOffset, ...]


@dataclass(frozen=True, slots=True)
class AcknowledgeRequest:
    """The reader needs no record before these positions. `incarnation_number`: see RegisterReaderRequest."""

    reader: str
    streams: tuple[ReaderOffset, ...]
    incarnation_number: int = 0


@dataclass(frozen=True, slots=True)
class RemoveReaderRequest:
    """Remove a reader: it holds nothing any more."""

    reader: str


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to an acknowledgement or a removal."""


@dataclass(frozen=True, slots=True)
class DescribeReadersRequest:
    """Ask for one reader, or with an empty name for the names after `after`."""

    reader: str
    after: str = ""


@dataclass(frozen=True, slots=True)
class ReaderDescription:
    """A reader, or names alone. `released`: where it stood when it was released; `idle_ms` since it acknowledged.

    Names come NAMES_PER_REPLY at a time, sorted; fewer: there are no more.
    """

    names: tuple[str, ...]
    group: str = ""
    streams: tuple[ReaderOffset, ...] = ()
    released: tuple[ReaderOffset, ...] = ()
    idle_ms: int = 0
    state: str = ""
    incarnation_number: int = 0


ReaderRequest = RegisterReaderRequest | AcknowledgeRequest | RemoveReaderRequest | DescribeReadersRequest
ReaderReply = RegisterReaderReply | Done | ReaderDescription


def api_key_of(request: ReaderRequest) -> int:
    """The API key under which a request is sent."""
    match request:
        case RegisterReaderRequest():
            return REGISTER_READER
        case AcknowledgeRequest():
            return ACKNOWLEDGE
        case RemoveReaderRequest():
            return REMOVE_READER
        case DescribeReadersRequest():
            return DESCRIBE_READERS


def encode_request(request: ReaderRequest, *, correlation_id: int, client_id: str = "cairn") -> list[Buffer]:
    """The bytes of a request without its leading 4 bytes of frame size."""
    fields: dict[str, object] = {"reader": request.reader}
    match request:
        case RegisterReaderRequest():
            fields |= {"group": request.group, "keep": request.keep, "streams": _offset_fields(request.streams)}
            fields |= {"state": request.state} if request.state else {}
            fields |= _number_fields(request.incarnation_number)
        case AcknowledgeRequest():
            fields |= {"streams": _offset_fields(request.streams), **_number_fields(request.incarnation_number)}
        case DescribeReadersRequest():
            fields["after"] = request.after
    return encode_own_request(api_key_of(request), fields, correlation_id, client_id)


def decode_request(api_key: int, body: Buffer) -> ReaderRequest:
    """The request in a body (the bytes after the request header). Raises MalformedRequest."""
    fields, raw = decode_fields(body)
    if len(raw):
        raise MalformedRequest(f"{len(raw)} bytes behind a request that carries none")
    if api_key == DESCRIBE_READERS:
        return DescribeReadersRequest(
            get_text(fields, "reader", MAX_NAME_CHARACTERS), get_text(fields, "after", MAX_NAME_CHARACTERS)
        )
    reader = get_name(fields, "reader")
    if api_key == REMOVE_READER:
        return RemoveReaderRequest(reader)
    if api_key == ACKNOWLEDGE:
        return AcknowledgeRequest(reader, _get_offsets(fields, "streams", 0, MAX_STREAMS), _get_number(fields))
    if api_key == REGISTER_READER:
        group = get_text(fields, "group", MAX_NAME_CHARACTERS)
        state = get_text({"state": "", **fields}, "state", MAX_NAME_CHARACTERS)
        _check_printable(reader=reader, group=group, state=state)
        keep = get_bool({"keep": False, **fields}, "keep")
        streams = _get_offsets(fields, "streams", LOG_START, MAX_STREAMS)
        return RegisterReaderRequest(reader, group, streams, keep, state, _get_number(fields))
    raise MalformedRequest(f"{api_key} is none of the requests of readers ({sorted(READER_API_KEYS)})")


def _check_printable(**names: str) -> None:
    """Refuse control characters: names are shown on terminals, line by line."""
    for key, name in names.items():
        found = next((character for character in name if not character.isprintable()), None)
        if found is not None:
            raise MalformedRequest(f"{key!r} has the character {found!r}, which cannot be printed; leave it out")


def pieces(streams: Sequence[ReaderOffset]) -> list[tuple[ReaderOffset, ...]]:
    """The streams in pieces that fit into a request; at least one."""
    return [tuple(streams[at : at + MAX_STREAMS]) for at in range(0, max(1, len(streams)), MAX_STREAMS)]


def encode_reply_body(reply: ReaderReply | CairnError) -> list[Buffer]:
    """The body of a response: the bytes after the correlation id."""
    fields: dict[str, object] = {"error": None}
    match reply:
        case CairnError():
            fields["error"] = error_fields(reply)
        case RegisterReaderReply():
            fields["streams"] = _offset_fields(reply.streams)
        case ReaderDescription():
            fields |= {"names": list(reply.names), "group": reply.group, "idle_ms": reply.idle_ms}
            fields |= {"streams": _offset_fields(reply.streams), "released": _offset_fields(reply.released)}
            fields |= {"state": reply.state} if reply.state else {}
            fields |= _number_fields(reply.incarnation_number)
    return [encode_fields(fields)]


def decode_reply(api_key: int, frame: Buffer) -> tuple[int, ReaderReply | CairnError]:
    """Correlation id and reply of a response frame (without its size); an error is a value. Raises MalformedRequest."""
    correlation_id, fields = decode_own_reply(frame)
    if isinstance(fields, CairnError):
        return correlation_id, fields
    if api_key == REGISTER_READER:
        return correlation_id, RegisterReaderReply(_get_offsets(fields, "streams", 0, MAX_STREAMS))
    if api_key == DESCRIBE_READERS:
        names = fields.get("names")
        if not isinstance(names, list):
            raise MalformedRequest("'names' is not a list")
        return correlation_id, ReaderDescription(
            names=tuple(get_name({"names": name}, "names") for name in names),
            group=get_text(fields, "group", MAX_NAME_CHARACTERS),
            streams=_get_offsets(fields, "streams", 0, STREAMS_PER_READER),
            released=_get_offsets(fields, "released", 0, STREAMS_PER_READER),
            idle_ms=get_int(fields, "idle_ms", 0, _INT64_MAX),
            state=get_text({"state": "", **fields}, "state", MAX_NAME_CHARACTERS),
            incarnation_number=_get_number(fields),
        )
    return correlation_id, Done()


def _offset_fields(streams: Sequence[ReaderOffset]) -> list[dict[str, object]]:
    return [{"topic": s.topic, "partition": s.partition, "offset": s.offset} for s in streams]


def _number_fields(incarnation_number: int) -> dict[str, object]:
    return {_NUMBER: incarnation_number} if incarnation_number else {}


def _get_number(fields: Fields) -> int:
    return get_int({_NUMBER: 0, **fields}, _NUMBER, 0, _INT64_MAX)


def _get_offsets(fields: Fields, key: str, minimum: int, at_most: int) -> tuple[ReaderOffset, ...]:
    entries = get_objects(fields, key)
    if len(entries) > at_most:
        raise MalformedRequest(f"{key!r} has {len(entries)} streams; at most {at_most} are allowed")
    offsets = tuple(
        ReaderOffset(
            topic=get_name(entry, "topic"),
            partition=get_int(entry, "partition", 0, _INT32_MAX),
            offset=get_int(entry, "offset", minimum, _INT64_MAX),
        )
        for entry in entries
    )
    if len({(entry.topic, entry.partition) for entry in offsets}) < len(offsets):
        raise MalformedRequest(f"{key!r} names a stream twice")
    return offsets
