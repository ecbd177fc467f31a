"""The messages of operators' commands: what the sidecar alone knows of itself and of its queries. Bytes in, bytes out.

Requests and answers have the form of the epoch API (docs/format.md, private requests): the length of a JSON object, and
the object. Nothing follows it.

Invariants: invalid bytes or values raise MalformedRequest, and no other error; an answer is bounded, whatever the
sidecar holds.
"""

from dataclasses import dataclass
from typing import Final

from logstore.errors import CairnError, MalformedRequest
from logstore.format.epoch_api import decode_own_reply, encode_own_request, error_fields
from logstore.format.fields import (
    MAX_NAME_CHARACTERS,
    Fields,
    as_object,
    decode_fields,
    encode_fields,
    get_bool,
    get_int,
    get_name,
    get_objects,
    get_text,
)
from logstore.format.host_summaries import (
    ClusterGlance,
    HostChanged,
    HostsReply,
    PlacesReply,
    WaitSummary,
    get_action,
    get_changed,
    get_glance,
    get_hosts,
    get_places,
    get_texts,
    get_wait,
    hosts_fields,
    places_fields,
    wait_fields,
)
from logstore.format.tier_summaries import TierReply, get_tier, tier_fields
from logstore.interfaces import Buffer

DESCRIBE_QUERIES: Final = 30009
DESCRIBE_SIDECAR: Final = 30010
DESCRIBE_HOSTS: Final = 30011
DESCRIBE_PLACES: Final = 30012
DESCRIBE_TIER: Final = 30020
CHANGE_HOST: Final = 30013
FORGET_PRODUCERS: Final = 30014
CLUSTER_API_KEYS: Final = frozenset((DESCRIBE_HOSTS, DESCRIBE_PLACES, CHANGE_HOST, FORGET_PRODUCERS))
"""What hosts of a cluster say and do; a sidecar that is alone refuses them with NoCluster."""
OPERATOR_API_KEYS: Final = frozenset((DESCRIBE_QUERIES, DESCRIBE_SIDECAR, DESCRIBE_TIER, *CLUSTER_API_KEYS))

QUERIES_PER_REPLY: Final = 1_000
"""Bounds the answer and the work of one request; the next are asked for with `after`."""
_NONE: Final = -1
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DescribeQueriesRequest:
    """Ask for the queries whose names come after `after`, in sorted order."""

    after: str = ""


@dataclass(frozen=True, slots=True)
class QuerySummary:
    """A query as the sidecar knows it. Times are wall time in ms since 1970.

    `last_epoch` and `committed_ms` are None before the first commit; `state` is that of the epoch in progress, or
    "idle"; `streams_left` counts the streams that do not have the committed epoch yet; `is_batch_job`: no later epoch
    follows; `topics` are those of the newest epoch with output, sorted, the first of them (from a sidecar of an earlier
    version none).
    """

    query: str
    incarnation: str
    incarnation_number: int
    seen_ms: int
    last_epoch: int | None
    committed_ms: int | None
    state: str
    streams_left: int
    staged_bytes: int
    staged_attempts: int
    is_batch_job: bool
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueriesReply:
    """QUERIES_PER_REPLY queries, sorted by name; fewer: there are no more."""

    queries: tuple[QuerySummary, ...]


@dataclass(frozen=True, slots=True)
class DescribeSidecarRequest:
    """Ask for the sidecar itself."""


@dataclass(frozen=True, slots=True)
class SidecarReply:
    """The sidecar: its version, ms since it started, what it holds, and the disk of its data directory.

    `disk_needed_bytes` are to stay free there: if fewer are, appends are refused, since `refused_since_ms` (wall time
    in ms since 1970; None: they are taken). `waiting`: streams of the cluster that wait for chunks, the first of them.
    `cluster`: how that is; None: the sidecar is alone, or of an earlier version.
    """

    version: str
    uptime_ms: int
    topics: int
    streams: int
    log_bytes: int
    queries: int
    readers: int
    staged_bytes: int
    disk_total_bytes: int
    disk_free_bytes: int
    disk_needed_bytes: int
    refused_since_ms: int | None
    waiting: tuple[str, ...] = ()
    cluster: ClusterGlance | None = None


@dataclass(frozen=True, slots=True)
class DescribeHostsRequest:
    """Ask a host of a cluster for all hosts."""


@dataclass(frozen=True, slots=True)
class DescribePlacesRequest:
    """Ask a host of a cluster where the partitions of a topic are, from this one on."""

    topic: str
    first: int = 0


@dataclass(frozen=True, slots=True)
class DescribeTierRequest:
    """Ask a sidecar that is alone what of a topic is in the tier, from this partition on."""

    topic: str
    first: int = 0


@dataclass(frozen=True, slots=True)
class ChangeHostRequest:
    """Have a host drained, kept after all, or removed: `action` is one of HOST_ACTIONS. May be sent again."""

    host: str
    action: str


@dataclass(frozen=True, slots=True)
class ForgetProducersRequest:
    """Let what waits in a stream for a chunk, by its epoch, go on without it. `even_if_away`: a takeover also if a host
    or a store that has the chunk may come back; `repeat_epochs`: epochs as well, which are in the stream twice then.
    May be sent again.
    """

    topic: str
    partition: int
    chunk: int
    even_if_away: bool = False
    repeat_epochs: bool = False


@dataclass(frozen=True, slots=True)
class ProducersForgotten:
    """What the stream goes on without."""

    wait: WaitSummary


OperatorRequest = (
    DescribeQueriesRequest
    | DescribeSidecarRequest
    | DescribeHostsRequest
    | DescribePlacesRequest
    | ChangeHostRequest
    | DescribeTierRequest
    | ForgetProducersRequest
)
OperatorReply = QueriesReply | SidecarReply | HostsReply | PlacesReply | HostChanged | TierReply | ProducersForgotten

_KEYS: Final[dict[type, int]] = {
    DescribeQueriesRequest: DESCRIBE_QUERIES,
    DescribeSidecarRequest: DESCRIBE_SIDECAR,
    DescribeHostsRequest: DESCRIBE_HOSTS,
    DescribePlacesRequest: DESCRIBE_PLACES,
    ChangeHostRequest: CHANGE_HOST,
    DescribeTierRequest: DESCRIBE_TIER,
    ForgetProducersRequest: FORGET_PRODUCERS,
}

_COUNTS: Final = (
    "uptime_ms",
    "topics",
    "streams",
    "log_bytes",
    "queries",
    "readers",
    "staged_bytes",
    "disk_total_bytes",
    "disk_free_bytes",
    "disk_needed_bytes",
)


def api_key_of(request: OperatorRequest) -> int:
    """The API key under which a request is sent."""
    return _KEYS[type(request)]


def encode_request(request: OperatorRequest, *, correlation_id: int, client_id: str = "cairn") -> list[Buffer]:
    """The bytes of a request without its leading 4 bytes of frame size."""
    fields: dict[str, object] = {}
    if isinstance(request, DescribeQueriesRequest):
        fields = {"after": request.after}
    elif isinstance(request, DescribePlacesRequest | DescribeTierRequest):
        fields = {"topic": request.topic, "first": request.first}
    elif isinstance(request, ChangeHostRequest):
        fields = {"host": request.host, "action": request.action}
    elif isinstance(request, ForgetProducersRequest):
        fields = {"topic": request.topic, "partition": request.partition, "chunk": request.chunk}
        fields |= {"even_if_away": request.even_if_away, "repeat_epochs": request.repeat_epochs}
    return encode_own_request(api_key_of(request), fields, correlation_id, client_id)


def decode_request(api_key: int, body: Buffer) -> OperatorRequest:
    """The request in a body (the bytes after the request header). Raises MalformedRequest."""
    fields, raw = decode_fields(body)
    if len(raw):
        raise MalformedRequest(f"{len(raw)} bytes behind a request that carries none")
    if api_key == DESCRIBE_QUERIES:
        return DescribeQueriesRequest(get_text(fields, "after", MAX_NAME_CHARACTERS))
    if api_key == DESCRIBE_SIDECAR:
        return DescribeSidecarRequest()
    if api_key == DESCRIBE_HOSTS:
        return DescribeHostsRequest()
    if api_key == DESCRIBE_PLACES:
        return DescribePlacesRequest(get_name(fields, "topic"), get_int(fields, "first", 0, _INT32_MAX))
    if api_key == CHANGE_HOST:
        return ChangeHostRequest(get_name(fields, "host"), get_action(fields))
    if api_key == DESCRIBE_TIER:
        return DescribeTierRequest(get_name(fields, "topic"), get_int(fields, "first", 0, _INT32_MAX))
    if api_key == FORGET_PRODUCERS:
        partition, chunk = get_int(fields, "partition", 0, _INT32_MAX), get_int(fields, "chunk", 0, _INT64_MAX)
        even_if_away, repeat_epochs = get_bool(fields, "even_if_away"), get_bool(fields, "repeat_epochs")
        return ForgetProducersRequest(get_name(fields, "topic"), partition, chunk, even_if_away, repeat_epochs)
    raise MalformedRequest(f"{api_key} is none of the requests of operators ({sorted(OPERATOR_API_KEYS)})")


def encode_reply_body(reply: OperatorReply | CairnError) -> list[Buffer]:
    """The body of a response: the bytes after the correlation id."""
    fields: dict[str, object] = {"error": None}
    match reply:
        case CairnError():
            fields["error"] = error_fields(reply)
        case QueriesReply():
            fields["queries"] = [_query_fields(query) for query in reply.queries]
        case SidecarReply():
            fields["version"] = reply.version
            fields |= {name: getattr(reply, name) for name in _COUNTS}
            fields["refused_since_ms"] = _NONE if reply.refused_since_ms is None else reply.refused_since_ms
            fields["waiting"] = list(reply.waiting)
            if reply.cluster is not None:
                fields["cluster"] = reply.cluster._asdict()
        case HostsReply():
            fields |= hosts_fields(reply)
        case PlacesReply():
            fields |= places_fields(reply)
        case HostChanged():
            fields |= {"host": reply.host, "chunks": reply.chunks}
        case TierReply():
            fields |= tier_fields(reply)
        case ProducersForgotten():
            fields["wait"] = wait_fields(reply.wait)
    return [encode_fields(fields)]


def decode_reply(api_key: int, frame: Buffer) -> tuple[int, OperatorReply | CairnError]:
    """Correlation id and reply of a response frame (without its size); an error is a value. Raises MalformedRequest."""
    correlation_id, fields = decode_own_reply(frame)
    if isinstance(fields, CairnError):
        return correlation_id, fields
    if api_key == DESCRIBE_QUERIES:
        return correlation_id, QueriesReply(tuple(_get_query(entry) for entry in get_objects(fields, "queries")))
    if api_key == DESCRIBE_HOSTS:
        return correlation_id, get_hosts(fields)
    if api_key == DESCRIBE_PLACES:
        return correlation_id, get_places(fields)
    if api_key == CHANGE_HOST:
        return correlation_id, get_changed(fields)
    if api_key == DESCRIBE_TIER:
        return correlation_id, get_tier(fields)
    if api_key == FORGET_PRODUCERS:
        return correlation_id, ProducersForgotten(get_wait(as_object(fields.get("wait"), "'wait'")))
    counts = {name: get_int(fields, name, 0, _INT64_MAX) for name in _COUNTS}
    since_ms = get_int(fields, "refused_since_ms", _NONE, _INT64_MAX)
    version = get_text(fields, "version", MAX_NAME_CHARACTERS)
    waiting = get_texts({"waiting": [], **fields}, "waiting")
    refused_since_ms = None if since_ms == _NONE else since_ms
    glance = get_glance(as_object(fields["cluster"], "'cluster'")) if "cluster" in fields else None
    return correlation_id, SidecarReply(
        version, **counts, refused_since_ms=refused_since_ms, waiting=waiting, cluster=glance
    )


def _query_fields(query: QuerySummary) -> dict[str, object]:
    return {
        "query": query.query,
        "run": query.incarnation,
        "run_number": query.incarnation_number,
        "seen_ms": query.seen_ms,
        "last_epoch": _NONE if query.last_epoch is None else query.last_epoch,
        "committed_ms": _NONE if query.committed_ms is None else query.committed_ms,
        "state": query.state,
        "streams_left": query.streams_left,
        "staged_bytes": query.staged_bytes,
        "staged_attempts": query.staged_attempts,
        "batch_job": query.is_batch_job,
        "topics": list(query.topics),
    }


def _get_query(fields: Fields) -> QuerySummary:
    last_epoch, committed_ms = (get_int(fields, key, _NONE, _INT64_MAX) for key in ("last_epoch", "committed_ms"))
    return QuerySummary(
        query=get_name(fields, "query"),
        incarnation=get_name(fields, "run"),
        incarnation_number=get_int(fields, "run_number", 0, _INT64_MAX),
        seen_ms=get_int(fields, "seen_ms", 0, _INT64_MAX),
        last_epoch=None if last_epoch == _NONE else last_epoch,
        committed_ms=None if committed_ms == _NONE else committed_ms,
        state=get_text(fields, "state", MAX_NAME_CHARACTERS),
        streams_left=get_int(fields, "streams_left", 0, _INT64_MAX),
        staged_bytes=get_int(fields, "staged_bytes", 0, _INT64_MAX),
        staged_attempts=get_int(fields, "staged_attempts", 0, _INT64_MAX),
        is_batch_job=get_bool(fields, "batch_job"),
        topics=get_texts({"topics": [], **fields}, "topics"),
    )
