"""The HTTP interface as tables: every route with its parameters, its answers and its errors.

Invariants: these tables are the only definition of the interface. The coordinator checks requests against them, builds
the OpenAPI document from them, and tests compare every answer with them.
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
"""The maximum number of chunks of a request: one tebibyte in chunks of 64 MiB."""
MAX_REPLICAS = 16
MAX_SOURCES = 16
"""The maximum number of hosts that have a chunk, equal to the number of replicas."""
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
        "requests_ahead": Field(Integer(), "number of requests before this request"),
        "chunks_ahead": Field(Integer(), "number of their chunks that have not started"),
        "starts_within_chunks": Field(
            Integer(), "the proven bound for the start of the next chunk, in multiples of the longest time of a chunk"
        ),
    },
)
EVENT_RECORD = Object(
    "Event",
    {
        "number": Field(Integer(1), "number of the event in its request, from 1"),
        "event": Field(EVENT, "go: write the chunk now; revoked: stop the chunk; the other events end the request"),
        "chunk": Field(Optional(Integer()), "number of the chunk, from 0; null for an event of the whole request"),
        "attempt": Field(Optional(Integer()), "the attempt, to be sent with done and failed"),
        "hosts": Field(ListOf(NAME), "the chain: first the sender (the writer, or a source), then every replica"),
        "addresses": Field(ListOf(Optional(String(300))), "addresses of these hosts; null for an unknown address"),
    },
)
REQUEST_VIEW = Object(
    "Request",
    {
        "request": Field(NAME, "the name of the request"),
        "state": Field(STATE, "the state of the request"),
        "kind": Field(KIND, "the kind of transfer"),
        "writer": Field(Optional(NAME), "the host that writes or reads"),
        "chunks": Field(Integer(), "number of all chunks"),
        "done": Field(Integer(), "number of finished chunks"),
        "place": Field(
            Optional(PLACE), "the place in the queue, zeros while no chunk waits; null after the end of the request"
        ),
        "stranded": Field(Boolean(), "true: waiting chunks have no path without lost hosts, and wait for these hosts"),
        "go": Field(ListOf(EVENT_RECORD), "the chunks that the writer must write now"),
        "last_event": Field(Integer(), "number of the newest event, for the parameter `after`"),
        "why": Field(Optional(String(500, 0)), "the reason of a failure or a cancellation, if one is known"),
    },
)
EVENTS = Object(
    "Events",
    {
        "request": Field(NAME, "the request"),
        "state": Field(STATE, "the state of the request"),
        "events": Field(ListOf(EVENT_RECORD), "new events, in order; empty if none came within the time limit"),
    },
)
REPORTED = Object(
    "Reported",
    {
        "request": Field(NAME, "the request"),
        "chunk": Field(Integer(), "the chunk"),
        "counted": Field(Boolean(), "false: the report was known already, or its attempt was revoked or abandoned"),
        "state": Field(STATE, "the state of the request"),
    },
)
HOST_VIEW = Object(
    "Host",
    {
        "host": Field(NAME, "the name of the host in the topology"),
        "address": Field(Optional(String(300)), "the address for other hosts"),
        "registered": Field(Boolean(), "whether the host is registered, and must send keep-alives"),
        "lost": Field(Boolean(), "true: the host is not used in plans until it registers again"),
        "deadline_ms": Field(Optional(Integer()), "milliseconds within which the host must send a keep-alive"),
    },
)
IN_FLIGHT = Object(
    "ChunkInFlight",
    {
        "request": Field(NAME, "the request"),
        "chunk": Field(Integer(), "the chunk"),
        "attempt": Field(Integer(), "the attempt"),
        "kind": Field(KIND, "the kind of transfer"),
        "hosts": Field(ListOf(NAME), "the chain"),
        "for_ms": Field(Integer(), "time since the start of the chunk, in milliseconds"),
    },
)
CAPACITY = Object(
    "Capacity",
    {
        "resource": Field(String(choices=("send", "receive", "disk", "link")), "the kind of resource"),
        "name": Field(String(500), "the host or the link"),
        "used": Field(Integer(), "chunks that use the resource now"),
        "total": Field(Integer(), "chunks that may use the resource at the same time"),
    },
)
QUEUED = Object(
    "QueuedRequest",
    {
        "request": Field(NAME, "the name of the request"),
        "state": Field(STATE, "the state of the request"),
        "writer": Field(Optional(NAME), "the host that writes or reads"),
        "chunks": Field(Integer(), "number of all chunks"),
        "done": Field(Integer(), "number of finished chunks"),
        "in_flight": Field(Integer(), "chunks under way"),
        "waiting": Field(Integer(), "chunks that wait for their start"),
        "for_ms": Field(Integer(), "time since the submission, in milliseconds"),
        "stranded": Field(Boolean(), "true: waiting chunks have no path without lost hosts, and wait for these hosts"),
    },
)
STATUS = Object(
    "Status",
    {
        "topology": Field(String(200, 0), "the name of the network"),
        "planner": Field(String(), "the planner"),
        "mode": Field(String(), "the mode: continuous or timesteps"),
        "uptime_ms": Field(Integer(), "time since the start of this process, in milliseconds"),
        "store": Field(String(500), "ok, or the reason why the state cannot be stored"),
        "requests": Field(MapOf(Integer()), "number of requests in each state"),
        "hosts": Field(ListOf(HOST_VIEW), "registered and lost hosts"),
        "queue": Field(ListOf(QUEUED), "unfinished requests, the next request first"),
        "in_flight": Field(ListOf(IN_FLIGHT), "chunks under way, the oldest chunk first"),
        "capacities": Field(ListOf(CAPACITY), "all resources that are in use"),
        "checkpoints": Field(checkpoints.STATUS_CHECKPOINTS, "numbers of the registered complete checkpoints"),
    },
)
SERVER = Object(
    "Server",
    {
        "name": Field(NAME, "the name of the host"),
        "rack": Field(String(), "the switch of the host"),
        "send": Field(Integer(), "chunks that the host sends at the same time"),
        "receive": Field(Integer(), "chunks that the host receives at the same time"),
        "disk": Field(Optional(Integer()), "chunks that the disk writes at the same time; null: as `receive`"),
        "address": Field(Optional(String(300)), "the address for other hosts"),
    },
)
LINK = Object(
    "Link",
    {
        "source": Field(String(), "the switch at which the link starts"),
        "target": Field(String(), "the switch at which the link ends"),
        "capacity": Field(Integer(), "chunks at the same time"),
        "cost": Field(Integer(), "the cost of the link, for the shortest path"),
    },
)
TOPOLOGY = Object(
    "Topology",
    {
        "name": Field(String(200, 0), "the name of the network"),
        "chunk_bytes": Field(Integer(), "size of a chunk"),
        "switches": Field(ListOf(String()), "all switches"),
        "servers": Field(ListOf(SERVER), "all hosts"),
        "links": Field(ListOf(LINK), "links between switches, one for each direction"),
    },
)
HEALTH = Object(
    "Health",
    {
        "status": Field(
            String(choices=("ok", "failing", "standby")),
            "failing: the state cannot be stored, or no host of the cluster leads; standby: another host leads",
        ),
        "why": Field(Optional(String(300)), "the problem, if details are known", None),
    },
)

# ---- values in requests

REGISTER = Object(
    "RegisterHost",
    {
        "name": Field(NAME, "a host of the topology"),
        "address": Field(Optional(String(300)), "the address for other hosts, which writers get", None),
    },
)
SUBMIT = Object(
    "SubmitRequest",
    {
        "name": Field(Optional(NAME), "a name, so that the request can be sent again; none: a random name", None),
        "writer": Field(Optional(NAME), "the host that writes or reads; none for a copy", None),
        "chunks": Field(Integer(1, MAX_CHUNKS), "number of chunks"),
        "replicas": Field(Integer(1, MAX_REPLICAS), "number of replicas of each chunk; not used with a placement", 3),
        "placement": Field(
            Optional(ListOf(String(200, 0), MAX_REPLICAS)),
            "rules for each replica, such as same-rack:0 or other-rack:1; none: the default rules for `replicas`",
            None,
        ),
        "priority": Field(Integer(0, MAX_PRIORITY), "a higher priority comes first; waiting raises it", 0),
        "kind": Field(KIND, "write; read: recovery; copy: re-replication", "write"),
        "sources": Field(
            ListOf(ListOf(NAME, MAX_SOURCES), MAX_CHUNKS), "for read and copy: the hosts that have each chunk", ()
        ),
    },
)
RESUBMIT = Object("ResubmitRequest", {"chunks": Field(Integer(1, MAX_CHUNKS), "the new number of chunks")})
DONE = Object("ChunkDone", {"attempt": Field(Integer(), "the attempt of the go event")})
FAILED = Object(
    "ChunkFailed",
    {
        "attempt": Field(Integer(), "the attempt of the go event"),
        "suspects": Field(ListOf(NAME, MAX_SUSPECTS), "hosts to avoid in the next plan for the chunk", ()),
    },
)

# ---- routes


_BY_NAME = {"name": Field(NAME, "the request's name")}
_BY_CHUNK = {**_BY_NAME, "chunk": Field(Integer(0, MAX_CHUNKS), "the chunk's number, from 0")}
_BY_HOST = {"name": Field(NAME, "the host's name")}
_EVENTS_AFTER = Object(
    "EventsAfter",
    {
        "after": Field(Integer(), "number of the last known event; 0: none", 0),
        "wait_s": Field(Number(0, MAX_WAIT_S), "time to wait for a new event, in seconds", DEFAULT_WAIT_S),
    },
)
_VIEW = RouteAnswer("the request", REQUEST_VIEW)

ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/hosts", "registerHost", "Register a host, which must then send keep-alives.",
          {200: RouteAnswer("registered", HOST_VIEW)}, body=REGISTER, errors=(404,)),
    Route("PUT", "/v1/hosts/{name}/alive", "hostAlive", "Send a keep-alive of a registered host.",
          {200: RouteAnswer("noted", HOST_VIEW)}, _BY_HOST, errors=(404, 409)),
    Route("DELETE", "/v1/hosts/{name}", "deregisterHost", "Deregister a host: plans no longer use it.",
          {200: RouteAnswer("gone", HOST_VIEW)}, _BY_HOST, errors=(404,)),
    Route("POST", "/v1/requests", "submitRequest", "Request a move of chunks. The same request again has no effect.",
          {
            201: RouteAnswer("accepted", REQUEST_VIEW),
            200: RouteAnswer("the same request existed already", REQUEST_VIEW),
        },
          body=SUBMIT, errors=(404, 409, 507), large=True),
    Route("GET", "/v1/requests/{name}", "getRequest", "Get a request.", {200: _VIEW}, _BY_NAME, errors=(404,)),
    Route("PUT", "/v1/requests/{name}", "resubmitRequest", "Change the number of chunks that have not started.",
          {200: _VIEW}, _BY_NAME, body=RESUBMIT, errors=(404, 409)),
    Route("DELETE", "/v1/requests/{name}", "cancelRequest", "Cancel a request; its chunks under way are revoked.",
          {200: _VIEW}, _BY_NAME, errors=(404,)),
    Route("GET", "/v1/requests/{name}/go", "waitForGo", "Wait for the next events of a request.",
          {200: RouteAnswer("the new events", EVENTS)}, _BY_NAME, _EVENTS_AFTER, errors=(404,), waits=True),
    Route("POST", "/v1/requests/{name}/chunks/{chunk}/done", "chunkDone", "Report that a chunk is on all its replicas.",
          {200: RouteAnswer("noted", REPORTED)}, _BY_CHUNK, body=DONE, errors=(404, 409)),
    Route("POST", "/v1/requests/{name}/chunks/{chunk}/failed", "chunkFailed", "Report a chunk that could not be moved.",
          {200: RouteAnswer("noted", REPORTED)}, _BY_CHUNK, body=FAILED, errors=(404, 409)),
    *checkpoints.ROUTES,
    Route("GET", "/v1/status", "getStatus", "Get the status: hosts, queue, chunks under way, capacities.",
          {200: RouteAnswer("the current status", STATUS)}),
    Route("GET", "/v1/topology", "getTopology", "Get the network of the plans.",
          {200: RouteAnswer("the network", TOPOLOGY)}),
    Route("GET", "/metrics", "getMetrics", "Get counters and gauges for Prometheus.",
          {200: RouteAnswer("in Prometheus' text format", None, PROMETHEUS)}, local=True),
    Route("GET", "/openapi.json", "getOpenApi", "Get this document.",
          {200: RouteAnswer("OpenAPI 3.1", MapOf(String()))}),
    Route("GET", "/health", "getHealth", "Check whether the coordinator works.",
          {200: RouteAnswer("it works", HEALTH), 503: RouteAnswer("it does not work", HEALTH)}, free=True, local=True),
    Route("GET", "/", "getPage", "Get the status as a page with a picture.", {200: RouteAnswer("a page", None, HTML)}),
)  # fmt: skip
