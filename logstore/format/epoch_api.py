"""Cairn's own requests on the Kafka port: stage, commit, abort and describe an epoch; scan control batches.

A request is a Kafka request with header version 1 and an API key that Kafka does not use. Its body is a length, a JSON
object and raw bytes up to the end of the frame. A response is a correlation id and the same kind of body. The byte
tables are in docs/format.md.

Invariants:
* `encode_*` and `decode_*` are exact inverses; sidecar and client use the same functions.
* Bytes that cannot be decoded raise MalformedRequest and no other error; counts and lengths are checked against the
  bytes received.
* Record batches are passed through unchanged: this module does not read them.
* Keys, error kinds and states are spelled on the wire as in version 0: `run` is the incarnation, `frames` the number of
  segments, FencedRun the error FencedIncarnation.

The module does no I/O.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from logstore import errors
from logstore.base.metadata.errors import MetadataUnavailable, OutcomeUnknown
from logstore.errors import (
    CairnError,
    CorruptChunk,
    FencedIncarnation,
    MalformedRequest,
    OffsetOutOfRange,
    StagePosition,
)
from logstore.format.fields import (
    MAX_FIELDS_BYTES,
    MAX_NAME_CHARACTERS,
    MAX_POSITIONS_CHARACTERS,
    Fields,
    as_object,
    decode_fields,
    encode_fields,
    get_bool,
    get_int,
    get_name,
    get_objects,
    get_positions,
    get_text,
)
from logstore.interfaces import Buffer

STAGE: Final = 30000
EPOCH_COMMIT: Final = 30001
ABORT: Final = 30002
DESCRIBE: Final = 30003
SCAN: Final = 30004
API_KEYS: Final = frozenset((STAGE, EPOCH_COMMIT, ABORT, DESCRIBE, SCAN))
API_VERSION: Final = 0

# Largest staged segment. Bounds the memory for one request; clients cut their output into smaller segments.
MAX_STAGE_BYTES: Final = 16 * 1024 * 1024
# More types of control records than any client needs.
MAX_SCAN_TYPES: Final = 64

_HEADER: Final = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id (-1: null)
_CORRELATION: Final = struct.Struct(">i")
_INT16_MAX: Final = 2**15 - 1
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)

Rewind = Literal["error", "skip"]
Outcome = Literal["committed", "duplicate", "skipped"]


# ---- the messages


@dataclass(frozen=True, slots=True)
class Part:
    """The batches of one stream in a staged segment."""

    topic: str
    partition: int
    length_bytes: int
    batches: int
    records: int


@dataclass(frozen=True, slots=True)
class StageRequest:
    """Stage one segment of a task attempt's output; `position` is the number of segments that the attempt staged
    before.

    `data` holds the batches of `parts`, in that order, end to end.
    """

    query: str
    incarnation: str
    epoch: int
    task: int
    attempt: str
    position: int
    parts: tuple[Part, ...]
    data: Buffer


@dataclass(frozen=True, slots=True)
class StageReply:
    """The segment is durable; `position` is the number of durable segments."""

    position: int


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """The attempt whose output counts for a task, and its number of segments."""

    task: int
    attempt: str
    segments: int


@dataclass(frozen=True, slots=True)
class EpochCommitRequest:
    """Commit an epoch with exactly the output of these attempts. `forget`: no later epoch will follow (a batch job)."""

    query: str
    incarnation: str
    epoch: int
    rewind: Rewind
    tasks: tuple[TaskOutput, ...]
    positions: str
    forget: bool


@dataclass(frozen=True, slots=True)
class EpochCommitReply:
    """The outcome, and the query's last committed epoch; for a duplicate also the `positions` of that epoch."""

    outcome: Outcome
    last_epoch: int
    positions: str = ""


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """Drop the staged output of an epoch, unless the epoch has been committed."""

    query: str
    incarnation: str
    epoch: int


@dataclass(frozen=True, slots=True)
class AbortReply:
    """The number of staged bytes that were dropped."""

    dropped_bytes: int


@dataclass(frozen=True, slots=True)
class DescribeRequest:
    """Ask for the state of a query."""

    query: str


@dataclass(frozen=True, slots=True)
class DescribeReply:
    """The state of a query.

    `last_epoch` is None before the first committed epoch; `incarnation` (the newest) is None for an unknown query.
    `state` is that of the epoch being committed (`logstore.epochs.ledger_entries.EpochState`), or "idle"; `positions`
    are those of the last epoch. `incarnation_number` counts the query's incarnations; 0: an earlier release's sidecar.
    """

    last_epoch: int | None
    incarnation: str | None
    state: str
    staged_bytes: int
    staged_attempts: int
    positions: str = ""
    incarnation_number: int = 0


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """Ask for a stream's control batches before an offset (-1: the high watermark), newest first.

    `types`: the wanted types of control records (empty: all). At most `max_bytes` of batches, but at least one.
    """

    topic: str
    partition: int
    before_offset: int
    types: tuple[int, ...]
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ScanReply:
    """Whole control batches end to end, newest first, at their true offsets; may be empty.

    Older control batches: send the request again with `next_before`, until it is at or below `log_start_offset`.
    """

    batches: Buffer
    next_before: int
    log_start_offset: int
    high_watermark: int


Request = StageRequest | EpochCommitRequest | AbortRequest | DescribeRequest | ScanRequest
Reply = StageReply | EpochCommitReply | AbortReply | DescribeReply | ScanReply


# ---- requests


def encode_request(request: Request, *, correlation_id: int, client_id: str = "cairn") -> list[Buffer]:
    """The bytes of a request without its leading 4 bytes of frame size; the raw part is not copied."""
    raw: Buffer = b""
    fields: dict[str, object]
    match request:
        case StageRequest():
            api_key, raw = STAGE, request.data
            fields = {
                "query": request.query,
                "run": request.incarnation,
                "epoch": request.epoch,
                "task": request.task,
                "attempt": request.attempt,
                "position": request.position,
                "parts": [part_fields(part) for part in request.parts],
            }
        case EpochCommitRequest():
            api_key = EPOCH_COMMIT
            fields = {"query": request.query, "run": request.incarnation, "epoch": request.epoch}
            fields |= {
                "rewind": request.rewind,
                "tasks": [{"task": t.task, "attempt": t.attempt, "frames": t.segments} for t in request.tasks],
                "positions": request.positions,
                "forget": request.forget,
            }
        case AbortRequest():
            api_key = ABORT
            fields = {"query": request.query, "run": request.incarnation, "epoch": request.epoch}
        case DescribeRequest():
            api_key = DESCRIBE
            fields = {"query": request.query}
        case ScanRequest():
            api_key = SCAN
            fields = {"topic": request.topic, "partition": request.partition, "before": request.before_offset}
            fields |= {"types": list(request.types), "max_bytes": request.max_bytes}
    return [*encode_own_request(api_key, fields, correlation_id, client_id), raw]


def encode_own_request(api_key: int, fields: Fields, correlation_id: int, client_id: str) -> list[Buffer]:
    """The bytes of any request of Cairn's own without its leading 4 bytes of frame size, up to the raw part."""
    name = client_id.encode()
    return [_HEADER.pack(api_key, API_VERSION, correlation_id, len(name)) + name, encode_fields(fields)]


def decode_request_header(frame: Buffer) -> tuple[int, int, int, str | None, int]:
    """API key, version, correlation id, client id and the position of the body. Raises MalformedRequest."""
    if len(frame) < _HEADER.size:
        raise MalformedRequest(f"a request of {len(frame)} bytes is shorter than its header")
    api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
    if length == -1:
        return api_key, version, correlation_id, None, _HEADER.size
    end = _HEADER.size + length
    if length < -1 or end > len(frame):
        raise MalformedRequest(f"a client id of {length} bytes does not fit into a request of {len(frame)} bytes")
    return api_key, version, correlation_id, _text(frame, _HEADER.size, end), end


def decode_request(api_key: int, body: Buffer) -> Request:
    """The request in a body (the bytes after the request header). Raises MalformedRequest."""
    fields, raw = decode_fields(body)
    if api_key == STAGE:
        return _decode_stage(fields, raw)
    if len(raw):
        raise MalformedRequest(f"{len(raw)} bytes behind a request that carries none")
    if api_key == SCAN:
        return _decode_scan(fields)
    query = get_name(fields, "query")
    if api_key == DESCRIBE:
        return DescribeRequest(query)
    incarnation, epoch = get_name(fields, "run"), get_int(fields, "epoch", 0, _INT64_MAX)
    if api_key == ABORT:
        return AbortRequest(query, incarnation, epoch)
    if api_key == EPOCH_COMMIT:
        return EpochCommitRequest(
            query=query,
            incarnation=incarnation,
            epoch=epoch,
            rewind=_get_rewind(fields),
            tasks=_get_tasks(fields),
            positions=get_text(fields, "positions", MAX_POSITIONS_CHARACTERS),
            forget=get_bool(fields, "forget"),
        )
    raise MalformedRequest(f"{api_key} is none of Cairn's requests ({', '.join(map(str, sorted(API_KEYS)))})")


def _decode_stage(fields: Fields, raw: memoryview) -> StageRequest:
    if len(raw) > MAX_STAGE_BYTES:
        raise MalformedRequest(f"a segment of {len(raw)} bytes; at most {MAX_STAGE_BYTES} are allowed")
    parts = get_parts(fields)
    expected_bytes = sum(part.length_bytes for part in parts)
    if expected_bytes != len(raw):
        raise MalformedRequest(f"parts of {expected_bytes} bytes in all, but {len(raw)} bytes of data")
    return StageRequest(
        query=get_name(fields, "query"),
        incarnation=get_name(fields, "run"),
        epoch=get_int(fields, "epoch", 0, _INT64_MAX),
        task=get_int(fields, "task", 0, _INT32_MAX),
        attempt=get_name(fields, "attempt"),
        position=get_int(fields, "position", 0, _INT32_MAX),
        parts=parts,
        data=raw,
    )


def _decode_scan(fields: Fields) -> ScanRequest:
    types = fields.get("types")
    if not isinstance(types, list) or len(types) > MAX_SCAN_TYPES:
        raise MalformedRequest(f"'types' is not a list of at most {MAX_SCAN_TYPES} numbers")
    return ScanRequest(
        topic=get_name(fields, "topic"),
        partition=get_int(fields, "partition", 0, _INT32_MAX),
        before_offset=get_int(fields, "before", -1, _INT64_MAX),
        types=tuple(get_int({"types": kind}, "types", 0, _INT16_MAX) for kind in types),
        max_bytes=get_int(fields, "max_bytes", 0, _INT32_MAX),
    )


def _get_rewind(fields: Fields) -> Rewind:
    rewind = get_text(fields, "rewind", MAX_NAME_CHARACTERS)
    if rewind not in ("error", "skip"):
        raise MalformedRequest(f"'rewind' is {rewind!r}; allowed are 'error' and 'skip'")
    return cast(Rewind, rewind)


def _get_tasks(fields: Fields) -> tuple[TaskOutput, ...]:
    tasks = tuple(
        TaskOutput(
            task=get_int(entry, "task", 0, _INT32_MAX),
            attempt=get_name(entry, "attempt"),
            segments=get_int(entry, "frames", 0, _INT32_MAX),
        )
        for entry in get_objects(fields, "tasks")
    )
    if len({task.task for task in tasks}) != len(tasks):
        raise MalformedRequest("'tasks' names a task twice; exactly one attempt of each counts")
    return tasks


# ---- responses


def encode_reply(reply: Reply | CairnError, *, correlation_id: int) -> bytes:
    """The bytes of a response without its 4 bytes of frame size; an error is also a reply."""
    return b"".join([_CORRELATION.pack(correlation_id), *encode_reply_body(reply)])


def encode_reply_body(reply: Reply | CairnError) -> list[Buffer]:
    """The body of a response: the bytes after the correlation id. The raw part is not copied."""
    if isinstance(reply, ScanReply):
        return [encode_scan_reply(reply.next_before, reply.log_start_offset, reply.high_watermark), reply.batches]
    fields: dict[str, object] = {"error": None}
    match reply:
        case CairnError():
            fields["error"] = error_fields(reply)
        case StageReply():
            fields["position"] = reply.position
        case EpochCommitReply():
            fields |= {"outcome": reply.outcome, "last_epoch": reply.last_epoch, "positions": reply.positions}
        case AbortReply():
            fields["dropped_bytes"] = reply.dropped_bytes
        case DescribeReply():
            fields |= {"last_epoch": reply.last_epoch, "run": reply.incarnation, "state": reply.state}
            fields |= {"staged_bytes": reply.staged_bytes, "staged_attempts": reply.staged_attempts}
            fields |= {"positions": reply.positions, "run_number": reply.incarnation_number}
    return [encode_fields(fields)]


def encode_scan_reply(next_before: int, log_start_offset: int, high_watermark: int) -> bytes:
    """The bytes before the batches in the answer to a scan."""
    return encode_fields(
        {
            "error": None,
            "next_before": next_before,
            "log_start_offset": log_start_offset,
            "high_watermark": high_watermark,
        }
    )


def decode_reply(api_key: int, frame: Buffer) -> tuple[int, Reply | CairnError]:
    """Correlation id and reply of a response frame (without its size); an error is a value. Raises MalformedRequest."""
    correlation_id, fields, raw = _split_reply(frame)
    error = fields["error"]
    if error is None and api_key == SCAN:
        return correlation_id, _decode_scan_reply(fields, raw)
    if len(raw):
        raise MalformedRequest(f"{len(raw)} bytes behind a response that carries none")
    if error is not None:
        return correlation_id, decode_error(error)
    return correlation_id, _decode_reply_fields(api_key, fields)


def decode_own_reply(frame: Buffer) -> tuple[int, dict[str, object] | CairnError]:
    """Correlation id and fields, or the error, of any reply of Cairn's own without a raw part.

    Raises MalformedRequest.
    """
    correlation_id, fields, raw = _split_reply(frame)
    if len(raw):
        raise MalformedRequest(f"{len(raw)} bytes behind a response that carries none")
    error = fields["error"]
    return correlation_id, fields if error is None else decode_error(error)


def _split_reply(frame: Buffer) -> tuple[int, dict[str, object], memoryview]:
    if len(frame) < _CORRELATION.size:
        raise MalformedRequest(f"a response of {len(frame)} bytes is shorter than its correlation id")
    (correlation_id,) = _CORRELATION.unpack_from(frame)
    fields, raw = decode_fields(memoryview(frame)[_CORRELATION.size :])
    if "error" not in fields:
        raise MalformedRequest("a response without 'error'")
    return correlation_id, fields, raw


def _decode_scan_reply(fields: Fields, raw: memoryview) -> ScanReply:
    return ScanReply(
        batches=raw,
        next_before=get_int(fields, "next_before", 0, _INT64_MAX),
        log_start_offset=get_int(fields, "log_start_offset", 0, _INT64_MAX),
        high_watermark=get_int(fields, "high_watermark", 0, _INT64_MAX),
    )


def _decode_reply_fields(api_key: int, fields: Fields) -> Reply:
    if api_key == STAGE:
        return StageReply(get_int(fields, "position", 0, _INT32_MAX))
    if api_key == EPOCH_COMMIT:
        outcome = get_text(fields, "outcome", MAX_NAME_CHARACTERS)
        if outcome not in ("committed", "duplicate", "skipped"):
            raise MalformedRequest(f"'outcome' is {outcome!r}")
        last_epoch = get_int(fields, "last_epoch", 0, _INT64_MAX)
        return EpochCommitReply(cast(Outcome, outcome), last_epoch, get_positions(fields))
    if api_key == ABORT:
        return AbortReply(get_int(fields, "dropped_bytes", 0, _INT64_MAX))
    if api_key == DESCRIBE:
        known = fields.get("last_epoch") is not None
        return DescribeReply(
            last_epoch=get_int(fields, "last_epoch", 0, _INT64_MAX) if known else None,
            incarnation=get_name(fields, "run") if fields.get("run") is not None else None,
            state=get_text(fields, "state", MAX_NAME_CHARACTERS),
            staged_bytes=get_int(fields, "staged_bytes", 0, _INT64_MAX),
            staged_attempts=get_int(fields, "staged_attempts", 0, _INT64_MAX),
            positions=get_positions(fields),
            incarnation_number=get_int({"run_number": 0, **fields}, "run_number", 0, _INT64_MAX),
        )
    raise MalformedRequest(f"{api_key} is none of Cairn's requests")


# ---- errors on the wire: the kind, the message and the class's other fields

# The kind of an error is the name of its class, except here.
_FENCED: Final = "FencedRun"

# Errors of these requests whose constructor takes only a message; others are decoded as CairnError with the message.
_PLAIN_ERRORS: Final[Mapping[str, type[CairnError]]] = {
    _FENCED: FencedIncarnation,
} | {
    kind.__name__: kind
    for kind in (
        errors.ChunkUnreachable,
        errors.ClusterAuthorizationFailed,
        errors.CorruptBatch,
        errors.CorruptFile,
        errors.GroupAuthorizationFailed,
        errors.GroupTooLarge,
        errors.InvalidConfig,
        errors.InvalidPartitions,
        errors.InvalidRecord,
        errors.InvalidTimestamp,
        errors.InvalidTopic,
        errors.MalformedRequest,
        errors.MessageTooLarge,
        errors.HostStays,
        errors.NoCluster,
        errors.NotEnoughReplicas,
        errors.NothingLost,
        errors.NotLeader,
        errors.UnknownHost,
        errors.ReaderReleased,
        errors.StagedMissing,
        errors.StaleEpoch,
        errors.StorageFailed,
        errors.TooManyReaders,
        errors.TopicAuthorizationFailed,
        errors.TransactionalIdAuthorizationFailed,
        errors.TryAgain,
        errors.UnknownReader,
        errors.UnknownTopicOrPartition,
        errors.UnsupportedBatchFormat,
    )
}


_TRIED_AGAIN: Final = (errors.TryAgain, errors.TierUnavailable, MetadataUnavailable, OutcomeUnknown)


def error_fields(error: CairnError) -> dict[str, object]:
    """The JSON fields of an error: the class name, the message and the class's other fields."""
    kind = _FENCED if isinstance(error, FencedIncarnation) else type(error).__name__
    if kind not in _PLAIN_ERRORS and isinstance(error, _TRIED_AGAIN):
        kind = errors.TryAgain.__name__
    fields: dict[str, object] = {"kind": kind, "message": str(error)}
    if isinstance(error, StagePosition):
        fields["length"] = error.length
    if isinstance(error, OffsetOutOfRange):
        fields |= {"offset": error.offset, "start": error.start_offset, "end": error.high_watermark}
        fields["stream"] = error.stream
    if isinstance(error, CorruptChunk):
        fields |= {"first": error.first_offset, "last": error.last_offset}
    return fields


def decode_error(value: object) -> CairnError:
    """The inverse of `error_fields`, as far as an error has a class of its own. Raises MalformedRequest."""
    fields = as_object(value, "'error'")
    kind = get_text(fields, "kind", MAX_NAME_CHARACTERS)
    message = get_text(fields, "message", MAX_FIELDS_BYTES)
    if kind == "StagePosition":
        return StagePosition(message, length=get_int(fields, "length", 0, _INT32_MAX))
    if kind == "OffsetOutOfRange":
        start, end = get_int(fields, "start", 0, _INT64_MAX), get_int(fields, "end", 0, _INT64_MAX)
        offset = get_int(fields, "offset", _INT64_MIN, _INT64_MAX)
        return OffsetOutOfRange(get_text(fields, "stream", MAX_FIELDS_BYTES), offset, start, end)
    if kind == "CorruptChunk":
        first, last = get_int(fields, "first", 0, _INT64_MAX), get_int(fields, "last", 0, _INT64_MAX)
        return CorruptChunk(message, first_offset=first, last_offset=last)
    plain = _PLAIN_ERRORS.get(kind)
    return plain(message) if plain is not None else CairnError(message or kind)


# ---- parts of a staged segment


def part_fields(part: Part) -> dict[str, object]:
    """The JSON fields of a part."""
    return {
        "topic": part.topic,
        "partition": part.partition,
        "length": part.length_bytes,
        "batches": part.batches,
        "records": part.records,
    }


def get_parts(fields: Fields) -> tuple[Part, ...]:
    """The list `parts`. Raises MalformedRequest."""
    return tuple(
        Part(
            topic=get_name(entry, "topic"),
            partition=get_int(entry, "partition", 0, _INT32_MAX),
            length_bytes=get_int(entry, "length", 0, _INT32_MAX),
            batches=get_int(entry, "batches", 0, _INT32_MAX),
            records=get_int(entry, "records", 0, _INT64_MAX),
        )
        for entry in get_objects(fields, "parts")
    )


def _text(frame: Buffer, start: int, end: int) -> str:
    try:
        return bytes(memoryview(frame)[start:end]).decode()
    except UnicodeDecodeError:
        raise MalformedRequest("a client id that is not UTF-8") from None
