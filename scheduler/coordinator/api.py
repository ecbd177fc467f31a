"""The interface as tables: every route, with its parameters, its answers and its errors.

Invariants: these tables are the only definition of the interface; requests are checked by them, the OpenAPI document is
made of them, and tests compare every answer with them.
"""

from logstore.base.fields import (
    Boolean,
    Field,
    Integer,
    ListOf,
    MapOf,
    Number,
    Object,
    Optional,
    String,
)
from scheduler.coordinator.checkpoints import interface as checkpoints
from scheduler.coordinator.routes import Route, RouteAnswer

MAX_WAIT_S = 60.0
DEFAULT_WAIT_S = 30.0
MAX_CHUNKS = 16_384
"""Chunks of one request: a tebibyte in chunks of 64 MiB."""
MAX_REPLICAS = 16
MAX_SOURCES = 16
"""The hosts that have a chunk are no more than its replicas."""
MAX_SUSPECTS = 16
MAX_PRIORITY = 9
HTML = "text/html; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

NAME = String(200)
KIND = String(choices=("write", "read", "copy"))
STATE = String(choices=("waiting", "running", "finished", "cancelled", "failed"))
EVENT = String(choices=("go", "revoked", "finished", "cancelled", "failed"))


# ---- values in answers

PLACE = Object(
    "Place",
    {
        "requests_ahead": Field(Integer(), "requests that come first"),
        "chunks_ahead": Field(Integer(), "their chunks that have not started yet"),
        "starts_within_chunks": Field(
            Integer(), "the proven bound: its next chunk starts within this many times a chunk's longest time"
        ),
    },
)
EVENT_RECORD = Object(
    "Event",
    {
        "number": Field(Integer(1), "1 for the request's first event, 2 for the next"),
        "event": Field(EVENT, "go: write this chunk now; revoked: stop it; the others end the request"),
        "chunk": Field(Optional(Integer()), "which chunk, from 0; null where the whole request is meant"),
        "attempt": Field(Optional(Integer()), "say it in done and failed"),
        "hosts": Field(ListOf(NAME), "the chain: who sends (the writer, or a source) first, then every replica"),
        "addresses": Field(ListOf(Optional(String(300))), "of the same hosts, where they are known"),
    },
)
REQUEST_VIEW = Object(
    "Request",
    {
        "request": Field(NAME, "its name"),
        "state": Field(STATE, "where it stands"),
        "kind": Field(KIND, "what it moves"),
        "writer": Field(Optional(NAME), "the host that writes or reads"),
        "chunks": Field(Integer(), "chunks in all"),
        "done": Field(Integer(), "chunks done"),
        "place": Field(
            Optional(PLACE), "its place in the queue, zeros while nothing of it waits; null when it is over"
        ),
        "stranded": Field(Boolean(), "true: hosts that are lost leave no path for what waits of it; it waits for them"),
        "go": Field(ListOf(EVENT_RECORD), "the chunks that are to be written right now"),
        "last_event": Field(Integer(), "number of its newest event; ask for what comes after it"),
        "why": Field(Optional(String(500, 0)), "why it failed or was cancelled, if anything was said"),
    },
)
EVENTS = Object(
    "Events",
    {
        "request": Field(NAME, "the request"),
        "state": Field(STATE, "where it stands"),
        "events": Field(ListOf(EVENT_RECORD), "what is new, in order; empty when nothing came in time"),
    },
)
REPORTED = Object(
    "Reported",
    {
        "request": Field(NAME, "the request"),
        "chunk": Field(Integer(), "the chunk"),
        "counted": Field(Boolean(), "false: known already, or an attempt that was revoked or given up"),
        "state": Field(STATE, "where the request stands"),
    },
)
HOST_VIEW = Object(
    "Host",
    {
        "host": Field(NAME, "its name in the topology"),
        "address": Field(Optional(String(300)), "where others reach it"),
        "registered": Field(Boolean(), "whether it says that it lives, and is missed when it does not"),
        "lost": Field(Boolean(), "nothing is planned on it until it registers"),
        "deadline_ms": Field(Optional(Integer()), "it must send a keep-alive within this many milliseconds"),
    },
)
IN_FLIGHT = Object(
    "ChunkInFlight",
    {
        "request": Field(NAME, "the request"),
        "chunk": Field(Integer(), "the chunk"),
        "attempt": Field(Integer(), "the attempt"),
        "kind": Field(KIND, "what it moves"),
        "hosts": Field(ListOf(NAME), "the chain"),
        "for_ms": Field(Integer(), "how long it has been under way"),
    },
)
CAPACITY = Object(
    "Capacity",
    {
        "resource": Field(String(choices=("send", "receive", "disk", "link")), "what is used"),
        "name": Field(String(500), "of which host, or which link"),
        "used": Field(Integer(), "chunks that use it now"),
        "total": Field(Integer(), "chunks that may use it at a time"),
    },
)
QUEUED = Object(
    "QueuedRequest",
    {
        "request": Field(NAME, "its name"),
        "state": Field(STATE, "where it stands"),
        "writer": Field(Optional(NAME), "the host that writes or reads"),
        "chunks": Field(Integer(), "chunks in all"),
        "done": Field(Integer(), "chunks done"),
        "in_flight": Field(Integer(), "chunks under way"),
        "waiting": Field(Integer(), "chunks that wait for their go"),
        "for_ms": Field(Integer(), "how long ago it was submitted"),
        "stranded": Field(Boolean(), "true: hosts that are lost leave no path for what waits of it; it waits for them"),
    },
)
STATUS = Object(
    "Status",
    {
        "topology": Field(String(200, 0), "the network's name"),
        "planner": Field(String(), "who plans"),
        "mode": Field(String(), "continuous, or in timesteps"),
        "uptime_ms": Field(Integer(), "since this process started"),
        "store": Field(String(500), "ok, or why nothing can be stored"),
        "requests": Field(MapOf(Integer()), "how many are in each state"),
        "hosts": Field(ListOf(HOST_VIEW), "hosts that are registered or lost"),
        "queue": Field(ListOf(QUEUED), "requests that are not over, the next first"),
        "in_flight": Field(ListOf(IN_FLIGHT), "chunks under way, the oldest first"),
        "capacities": Field(ListOf(CAPACITY), "everything of which something is used"),
        "checkpoints": Field(checkpoints.STATUS_CHECKPOINTS, "the complete checkpoints that are registered"),
    },
)
SERVER = Object(
    "Server",
    {
        "name": Field(NAME, "its name"),
        "rack": Field(String(), "the switch it hangs on"),
        "send": Field(Integer(), "chunks it sends at a time"),
        "receive": Field(Integer(), "chunks it receives at a time"),
        "disk": Field(Optional(Integer()), "chunks its disk takes at a time; null: what it receives"),
        "address": Field(Optional(String(300)), "where others reach it"),
    },
)
LINK = Object(
    "Link",
    {
        "source": Field(String(), "from this switch"),
        "target": Field(String(), "to this one"),
        "capacity": Field(Integer(), "chunks at a time"),
        "cost": Field(Integer(), "its length, for the shortest path"),
    },
)
TOPOLOGY = Object(
    "Topology",
    {
        "name": Field(String(200, 0), "the network's name"),
        "chunk_bytes": Field(Integer(), "size of a chunk"),
        "switches": Field(ListOf(String()), "all switches"),
        "servers": Field(ListOf(SERVER), "all hosts"),
        "links": Field(ListOf(LINK), "every direction of every connection between switches"),
    },
)
HEALTH = Object(
    "Health",
    {
        "status": Field(
            String(choices=("ok", "failing", "standby")),
            "failing: nothing can be stored, or no host of the cluster leads; standby: another host of it leads",
        ),
        "why": Field(Optional(String(300)), "what is wrong, where there is more to say", None),
    },
)

# ---- values in requests

REGISTER = Object(
    "RegisterHost",
    {
        "name": Field(NAME, "a host of the topology"),
        "address": Field(Optional(String(300)), "where others reach it; writers are told", None),
    },
)
SUBMIT = Object(
    "SubmitRequest",
    {
        "name": Field(Optional(NAME), "your name for it, so that it can be sent twice; none: one is made up", None),
        "writer": Field(Optional(NAME), "the host that writes, or reads; none for a copy", None),
        "chunks": Field(Integer(1, MAX_CHUNKS), "how many chunks"),
        "replicas": Field(Integer(1, MAX_REPLICAS), "how many replicas of each; a placement decides it", 3),
        "placement": Field(
            Optional(ListOf(String(200, 0), MAX_REPLICAS)),
            "rules for each replica, such as same-rack:0 or other-rack:1; none: the default for that many replicas",
            None,
        ),
        "priority": Field(Integer(0, MAX_PRIORITY), "higher comes first; waiting raises it", 0),
        "kind": Field(KIND, "write; read: recovery; copy: re-replication", "write"),
        "sources": Field(
            ListOf(ListOf(NAME, MAX_SOURCES), MAX_CHUNKS), "for read and copy: the hosts that have each chunk", ()
        ),
    },
)
RESUBMIT = Object("ResubmitRequest", {"chunks": Field(Integer(1, MAX_CHUNKS), "the new number of chunks")})
DONE = Object("ChunkDone", {"attempt": Field(Integer(), "the attempt that the go named")})
FAILED = Object(
    "ChunkFailed",
    {
        "attempt": Field(Integer(), "the attempt that the go named"),
        "suspects": Field(ListOf(NAME, MAX_SUSPECTS), "hosts to avoid when it is planned again", ()),
    },
)

# ---- routes


_BY_NAME = {"name": Field(NAME, "the request's name")}
_BY_CHUNK = {**_BY_NAME, "chunk": Field(Integer(0, MAX_CHUNKS), "the chunk's number, from 0")}
_BY_HOST = {"name": Field(NAME, "the host's name")}
_EVENTS_AFTER = Object(
    "EventsAfter",
    {
        "after": Field(Integer(), "number of the last event you have; 0: none", 0),
        "wait_s": Field(Number(0, MAX_WAIT_S), "how long to wait for a new one", DEFAULT_WAIT_S),
    },
)
_VIEW = RouteAnswer("the request as it stands", REQUEST_VIEW)

ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/hosts", "registerHost", "A host says that it is there, or back; it must go on saying so.",
          {200: RouteAnswer("registered", HOST_VIEW)}, body=REGISTER, errors=(404,)),
    Route("PUT", "/v1/hosts/{name}/alive", "hostAlive", "A registered host still lives.",
          {200: RouteAnswer("noted", HOST_VIEW)}, _BY_HOST, errors=(404, 409)),
    Route("DELETE", "/v1/hosts/{name}", "deregisterHost", "A host leaves: nothing is planned on it any more.",
          {200: RouteAnswer("gone", HOST_VIEW)}, _BY_HOST, errors=(404,)),
    Route("POST", "/v1/requests", "submitRequest", "Ask to move chunks. The same request again is no second one.",
          {
            201: RouteAnswer("accepted", REQUEST_VIEW),
            200: RouteAnswer("it was there already, and is the same", REQUEST_VIEW),
        },
          body=SUBMIT, errors=(404, 409, 507), large=True),
    Route("GET", "/v1/requests/{name}", "getRequest", "A request as it stands.", {200: _VIEW}, _BY_NAME, errors=(404,)),
    Route("PUT", "/v1/requests/{name}", "resubmitRequest", "Change the number of chunks that are still to come.",
          {200: _VIEW}, _BY_NAME, body=RESUBMIT, errors=(404, 409)),
    Route("DELETE", "/v1/requests/{name}", "cancelRequest", "Give it up; what is under way is revoked.",
          {200: _VIEW}, _BY_NAME, errors=(404,)),
    Route("GET", "/v1/requests/{name}/go", "waitForGo", "Wait for the request's next events.",
          {200: RouteAnswer("what is new", EVENTS)}, _BY_NAME, _EVENTS_AFTER, errors=(404,), waits=True),
    Route("POST", "/v1/requests/{name}/chunks/{chunk}/done", "chunkDone", "A chunk is on all its replicas.",
          {200: RouteAnswer("noted", REPORTED)}, _BY_CHUNK, body=DONE, errors=(404, 409)),
    Route("POST", "/v1/requests/{name}/chunks/{chunk}/failed", "chunkFailed", "A chunk could not be moved as planned.",
          {200: RouteAnswer("noted", REPORTED)}, _BY_CHUNK, body=FAILED, errors=(404, 409)),
    *checkpoints.ROUTES,
    Route("GET", "/v1/status", "getStatus", "What goes on: hosts, queue, chunks under way, capacities.",
          {200: RouteAnswer("the state now", STATUS)}),
    Route("GET", "/v1/topology", "getTopology", "The network that is planned on.", {200: RouteAnswer("it", TOPOLOGY)}),
    Route("GET", "/metrics", "getMetrics", "Counters and gauges for Prometheus.",
          {200: RouteAnswer("in Prometheus' text format", None, PROMETHEUS)}, local=True),
    Route("GET", "/openapi.json", "getOpenApi", "This document.", {200: RouteAnswer("OpenAPI 3.1", MapOf(String()))}),
    Route("GET", "/health", "getHealth", "Whether the coordinator can do its work.",
          {200: RouteAnswer("it can", HEALTH), 503: RouteAnswer("it cannot", HEALTH)}, free=True, local=True),
    Route("GET", "/", "getPage", "The status as a page with a picture.", {200: RouteAnswer("a page", None, HTML)}),
)  # fmt: skip
