"""What a cluster says of its hosts and of a topic's partitions, as fields of operators' messages, and back.

Invariant: invalid values raise MalformedRequest, and no other error.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from logstore.errors import MalformedRequest
from logstore.format.fields import (
    MAX_NAME_CHARACTERS,
    Fields,
    get_bool,
    get_int,
    get_name,
    get_objects,
    get_text,
)

HOSTS_PER_REPLY: Final = 1_000
PLACES_PER_REPLY: Final = 1_000
"""Bounds of an answer; further partitions are asked for with the first one wanted."""
MAX_HOSTS_OF_CHUNK: Final = 64
MAX_WAIT_CHARACTERS: Final = 2_000
MAX_WAITS: Final = 4
"""Of a partition that are named: one at a time is usual."""
HOST_STATES: Final = ("alive", "unreachable", "gone")
DRAIN: Final = "drain"
UNDRAIN: Final = "undrain"
REMOVE: Final = "remove"
HOST_ACTIONS: Final = (DRAIN, UNDRAIN, REMOVE)
_NONE: Final = -1
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class HostSummary:
    """A host of the cluster. `gone_ms`: wall time in ms since 1970 at which the asked host saw it go; None: it is here,
    or went before the asked host started. `node_id` None and an empty `rack`, `link`: not known of a host that is gone.
    """

    host: str
    node_id: int | None
    rack: str
    link: str
    addresses: tuple[str, ...]
    state: str
    gone_ms: int | None
    streams: int
    """That it owns."""
    chunks: int
    """Whose registrations name it."""
    missing_copies: int
    """Of the chunks of the streams that it owns, copies fewer than wanted on hosts that are alive."""
    leaving: str = ""
    """DRAIN or REMOVE: an operator has said that it is to hold nothing any more."""
    stuck_chunks: int = 0
    """Of the chunks of a host that is drained: those that have too few other hosts to go to."""
    missing_hosts: int = 0
    """As many more hosts as those chunks need."""

    @property
    def is_empty(self) -> bool:
        """Whether it owns and holds nothing, as far as was counted."""
        return not self.streams and not self.chunks


@dataclass(frozen=True, slots=True)
class HostsReply:
    """The cluster's hosts and totals, as the host `asked` sees them. `is_complete`: all chunks were counted. `crowded`:
    chunks that have their copies, more of them in one fault domain than need be; 0 of an earlier version.
    """

    asked: str
    hosts: tuple[HostSummary, ...]
    streams: int
    ownerless: int
    chunks: int
    under_replicated: int
    is_complete: bool
    crowded: int = 0


class ClusterGlance(NamedTuple):
    """A cluster as one of its hosts sees it at a glance: how many hosts it has, how many of them are away, and how many
    streams that this host leads have fewer live copies than `min.insync.replicas`, or refuse producers. `host`: its
    name; "" of an earlier version.
    """

    hosts: int
    away: int
    short_streams: int
    host: str = ""


@dataclass(frozen=True, slots=True)
class HostChanged:
    """A host as an action has left it. `chunks`: that name a host which is to be removed; 0: it is done."""

    host: str
    chunks: int


@dataclass(frozen=True, slots=True)
class WaitSummary:
    """What waits in a stream, since a wall time in ms since 1970, for the offsets from `first` to in front of `end`,
    the chunk of epoch `chunk`; `error` says why they cannot be read. `object`: where they lie in the tier; empty: they
    do not. `is_lost`: nobody is known who may have them still. A takeover waits if `query` is empty; otherwise an epoch
    of that query does, which the offsets may have.
    """

    since_ms: int
    chunk: int
    first: int
    end: int
    object: str
    error: str
    is_lost: bool
    query: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class PlaceSummary:
    """Where a partition is. `owner` is "" if nobody owns it; `address` is the owner's for the client's listener.
    `replicas`: the members of the open chunk; `away`: those of them that are not alive. `chunks` counts the open one.
    `min_copies`: how many live members producers need; 0: the host that was asked does not say.
    `waits`: what waits for chunks that cannot be read, if that lasts: a takeover, so that nobody leads the partition
    although it has an owner, or epochs; at most MAX_WAITS. `is_damaged`: an entry of its registration cannot be read.
    """

    partition: int
    owner: str
    address: str
    epoch: int
    copies: int
    replicas: tuple[str, ...]
    away: tuple[str, ...]
    chunks: int
    under_replicated: int
    min_copies: int = 0
    waits: tuple[WaitSummary, ...] = ()
    is_damaged: bool = False

    @property
    def live_copies(self) -> int:
        """How many members of the open chunk live."""
        return len(self.replicas) - len(self.away)

    @property
    def is_led(self) -> bool:
        """Whether the owner, if there is one, serves clients."""
        return all(wait.query for wait in self.waits)


@dataclass(frozen=True, slots=True)
class PlacesReply:
    """PLACES_PER_REPLY partitions in order; fewer: there are no more."""

    places: tuple[PlaceSummary, ...]
    is_complete: bool


# ---- fields


def hosts_fields(reply: HostsReply) -> dict[str, object]:
    """The fields of an answer about hosts."""
    return {
        "asked": reply.asked,
        "hosts": [_host_fields(host) for host in reply.hosts],
        "streams": reply.streams,
        "ownerless": reply.ownerless,
        "chunks": reply.chunks,
        "under_replicated": reply.under_replicated,
        "crowded": reply.crowded,
        "complete": reply.is_complete,
    }


def get_hosts(fields: Fields) -> HostsReply:
    """The answer in fields. Raises MalformedRequest."""
    streams, ownerless, chunks, under_replicated = (
        get_int(fields, key, 0, _INT64_MAX) for key in ("streams", "ownerless", "chunks", "under_replicated")
    )
    return HostsReply(
        asked=get_name(fields, "asked"),
        hosts=tuple(_get_host(entry) for entry in get_objects(fields, "hosts")),
        streams=streams,
        ownerless=ownerless,
        chunks=chunks,
        under_replicated=under_replicated,
        is_complete=get_bool(fields, "complete"),
        crowded=get_int({"crowded": 0, **fields}, "crowded", 0, _INT64_MAX),
    )


def get_glance(fields: Fields) -> ClusterGlance:
    """The glance in fields. Raises MalformedRequest."""
    hosts, away, short = (get_int(fields, key, 0, _INT64_MAX) for key in ("hosts", "away", "short_streams"))
    return ClusterGlance(hosts, away, short, get_text({"host": "", **fields}, "host", MAX_NAME_CHARACTERS))


def get_action(fields: Fields) -> str:
    """One of HOST_ACTIONS. Raises MalformedRequest."""
    action = get_text(fields, "action", MAX_NAME_CHARACTERS)
    if action not in HOST_ACTIONS:
        raise MalformedRequest(f"'action' is {action!r}, not one of {', '.join(HOST_ACTIONS)}")
    return action


def get_changed(fields: Fields) -> HostChanged:
    """The answer to an action in fields. Raises MalformedRequest."""
    return HostChanged(get_name(fields, "host"), get_int(fields, "chunks", 0, _INT64_MAX))


def places_fields(reply: PlacesReply) -> dict[str, object]:
    """The fields of an answer about partitions."""
    places = [
        {
            "partition": place.partition,
            "owner": place.owner,
            "address": place.address,
            "epoch": place.epoch,
            "copies": place.copies,
            "replicas": list(place.replicas),
            "away": list(place.away),
            "chunks": place.chunks,
            "under_replicated": place.under_replicated,
            "min_copies": place.min_copies,
            "waits": [wait_fields(wait) for wait in place.waits],
            "damaged": place.is_damaged,
        }
        for place in reply.places
    ]
    return {"places": places, "complete": reply.is_complete}


def get_places(fields: Fields) -> PlacesReply:
    """The answer in fields. Raises MalformedRequest."""
    places = tuple(
        PlaceSummary(
            partition=get_int(entry, "partition", 0, _INT32_MAX),
            owner=get_text(entry, "owner", MAX_NAME_CHARACTERS),
            address=get_text(entry, "address", MAX_NAME_CHARACTERS),
            epoch=get_int(entry, "epoch", 0, _INT64_MAX),
            copies=get_int(entry, "copies", 0, _INT32_MAX),
            replicas=get_texts(entry, "replicas"),
            away=get_texts(entry, "away"),
            chunks=get_int(entry, "chunks", 0, _INT64_MAX),
            under_replicated=get_int(entry, "under_replicated", 0, _INT64_MAX),
            min_copies=get_int({"min_copies": 0, **entry}, "min_copies", 0, _INT32_MAX),
            waits=tuple(get_wait(wait) for wait in get_objects({"waits": [], **entry}, "waits")[:MAX_WAITS]),
            is_damaged=get_bool({"damaged": False, **entry}, "damaged"),
        )
        for entry in get_objects(fields, "places")
    )
    return PlacesReply(places, get_bool(fields, "complete"))


def wait_fields(wait: WaitSummary) -> dict[str, object]:
    """The fields of what waits."""
    return {
        "since_ms": wait.since_ms,
        "chunk": wait.chunk,
        "first": wait.first,
        "end": wait.end,
        "object": wait.object,
        "error": wait.error,
        "lost": wait.is_lost,
        "query": wait.query,
        "epoch": wait.epoch,
    }


def get_wait(fields: Fields) -> WaitSummary:
    """What waits, in fields. Raises MalformedRequest."""
    since_ms, chunk, first, end = (get_int(fields, key, 0, _INT64_MAX) for key in ("since_ms", "chunk", "first", "end"))
    named, error, query = (get_text(fields, key, MAX_WAIT_CHARACTERS) for key in ("object", "error", "query"))
    epoch = get_int(fields, "epoch", 0, _INT64_MAX)
    return WaitSummary(since_ms, chunk, first, end, named, error, get_bool(fields, "lost"), query, epoch)


def _host_fields(host: HostSummary) -> dict[str, object]:
    return {
        "host": host.host,
        "node_id": _NONE if host.node_id is None else host.node_id,
        "rack": host.rack,
        "link": host.link,
        "addresses": list(host.addresses),
        "state": host.state,
        "gone_ms": _NONE if host.gone_ms is None else host.gone_ms,
        "streams": host.streams,
        "chunks": host.chunks,
        "missing_copies": host.missing_copies,
        "leaving": host.leaving,
        "stuck_chunks": host.stuck_chunks,
        "missing_hosts": host.missing_hosts,
    }


def _get_host(fields: Fields) -> HostSummary:
    node_id, gone_ms = (get_int(fields, key, _NONE, _INT64_MAX) for key in ("node_id", "gone_ms"))
    state = get_text(fields, "state", MAX_NAME_CHARACTERS)
    if state not in HOST_STATES:
        raise MalformedRequest(f"'state' is {state!r}")
    leaving = get_text(fields, "leaving", MAX_NAME_CHARACTERS)
    if leaving not in ("", DRAIN, REMOVE):
        raise MalformedRequest(f"'leaving' is {leaving!r}")
    return HostSummary(
        host=get_name(fields, "host"),
        node_id=None if node_id == _NONE else node_id,
        rack=get_text(fields, "rack", MAX_NAME_CHARACTERS),
        link=get_text(fields, "link", MAX_NAME_CHARACTERS),
        addresses=get_texts(fields, "addresses"),
        state=state,
        gone_ms=None if gone_ms == _NONE else gone_ms,
        streams=get_int(fields, "streams", 0, _INT64_MAX),
        chunks=get_int(fields, "chunks", 0, _INT64_MAX),
        missing_copies=get_int(fields, "missing_copies", 0, _INT64_MAX),
        leaving=leaving,
        stuck_chunks=get_int(fields, "stuck_chunks", 0, _INT64_MAX),
        missing_hosts=get_int({"missing_hosts": 0, **fields}, "missing_hosts", 0, _INT32_MAX),
    )


def get_texts(fields: Fields, key: str) -> tuple[str, ...]:
    """A short list of texts. Raises MalformedRequest."""
    value = fields.get(key)
    if not isinstance(value, list) or len(value) > MAX_HOSTS_OF_CHUNK:
        raise MalformedRequest(f"{key!r} is not a list of at most {MAX_HOSTS_OF_CHUNK} texts")
    return tuple(get_text({key: entry}, key, MAX_NAME_CHARACTERS) for entry in value)
