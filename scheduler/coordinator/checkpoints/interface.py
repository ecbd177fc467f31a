"""The routes of the registry of checkpoints, as tables.

A unit is a partition of a query: the part of an operator's state that is checkpointed and recovered as a whole (an HA
unit in SGuard, section 3). A checkpoint of a unit has a number, `seq`. `files` are the files that the checkpoint wrote;
`bases` are the other checkpoints whose files a recovery needs.

Invariant: a stored entry has the shape of the request that registered it, so the same table checks both.
"""

from logstore.base.fields import Boolean, Field, Integer, ListOf, Number, Object, Optional, String
from scheduler.coordinator.routes import Route, RouteAnswer

MAX_FILES = 1024
"""The maximum number of files of a checkpoint: 64 GiB in files of one chunk of 64 MiB."""
MAX_BASES = 64
MAX_FILE_HOSTS = 16
"""The maximum number of hosts that have a file, equal to the replicas of a chunk."""
MAX_PAGE = 500
DEFAULT_PAGE = 100
MAX_NEAR_HOSTS = 1000
DEFAULT_NEAR_HOSTS = 16
MAX_CRC = (1 << 32) - 1

UNIT_NAME = String(200)
SEQ = Integer(1)

FILE = Object(
    "CheckpointFile",
    {
        "name": Field(String(255), "the name in the directory of the checkpoint"),
        "bytes": Field(Integer(), "the length in bytes"),
        "crc32c": Field(Integer(0, MAX_CRC), "the CRC-32C of all bytes"),
        "hosts": Field(
            ListOf(String(200), MAX_FILE_HOSTS),
            "the known hosts with a replica: names of the topology, or addresses",
            (),
        ),
    },
)
REGISTER_CHECKPOINT = Object(
    "RegisterCheckpoint",
    {
        "sink": Field(String(1000), "URL of the directory with the checkpoints of the unit"),
        "epoch": Field(Integer(), "the epoch after which the state was frozen"),
        "attempt": Field(String(200, 0), "the attempt of that epoch that counted", ""),
        "state_bytes": Field(Integer(), "bytes that a recovery loads: the pages of the state"),
        "bases": Field(ListOf(SEQ, MAX_BASES), "numbers of all other checkpoints whose files a recovery needs", ()),
        "written_ms": Field(Integer(), "completion time of the last file, in milliseconds since 1970"),
        "files": Field(ListOf(FILE, MAX_FILES), "the files that the checkpoint wrote"),
    },
)
_SUMMARY = {
    "unit": Field(UNIT_NAME, "the unit"),
    "seq": Field(SEQ, "the number: a newer checkpoint of a unit has a higher number"),
    "sink": REGISTER_CHECKPOINT.fields["sink"],
    "epoch": REGISTER_CHECKPOINT.fields["epoch"],
    "attempt": Field(String(200, 0), "the attempt of that epoch that counted"),
    "state_bytes": REGISTER_CHECKPOINT.fields["state_bytes"],
    "bases": Field(ListOf(SEQ), "numbers of all other checkpoints whose files a recovery needs, ascending"),
    "recoverable": Field(Boolean(), "whether all these bases are registered"),
    "written_ms": REGISTER_CHECKPOINT.fields["written_ms"],
    "file_count": Field(Integer(), "number of the files that the checkpoint wrote"),
    "file_bytes": Field(Integer(), "bytes of these files"),
}
CHECKPOINT_SUMMARY = Object("CheckpointSummary", _SUMMARY)
CHECKPOINT_VIEW = Object("Checkpoint", {**_SUMMARY, "files": Field(ListOf(FILE), "the files of the checkpoint")})
CHECKPOINTS = Object(
    "Checkpoints",
    {
        "unit": Field(UNIT_NAME, "the unit"),
        "checkpoints": Field(ListOf(CHECKPOINT_SUMMARY), "complete checkpoints of the unit, the newest first"),
        "next": Field(Optional(SEQ), "`before` of the next page; null: no further page"),
    },
)
UNIT_VIEW = Object(
    "Unit",
    {
        "unit": Field(UNIT_NAME, "the unit"),
        "checkpoints": Field(Integer(1), "number of complete checkpoints"),
        "file_bytes": Field(Integer(), "bytes of their files"),
        "newest": Field(Optional(CHECKPOINT_SUMMARY), "the newest recoverable checkpoint; null: none is recoverable"),
    },
)
UNITS = Object(
    "Units",
    {
        "units": Field(ListOf(UNIT_VIEW), "units with a complete checkpoint, by name"),
        "next": Field(Optional(UNIT_NAME), "`after` of the next page; null: no further page"),
    },
)
CHECKPOINT_REMOVED = Object(
    "CheckpointRemoved",
    {
        "unit": Field(UNIT_NAME, "the unit"),
        "seq": Field(SEQ, "the number"),
        "removed": Field(Boolean(), "false: the checkpoint did not exist, or was removed before"),
    },
)
UNIT_FORGOTTEN = Object(
    "UnitForgotten",
    {"unit": Field(UNIT_NAME, "the unit"), "removed": Field(Integer(), "number of forgotten checkpoints")},
)
NEAR_HOST = Object(
    "NearHost",
    {
        "host": Field(String(200), "the name of the host"),
        "address": Field(Optional(String(300)), "the address for other hosts"),
        "bytes": Field(Integer(), "bytes of the newest checkpoint and its bases on the host"),
        "distance": Field(
            Optional(Number()),
            "connections between the host and the nearest replica, as the mean over all bytes; null: unknown",
        ),
    },
)
NEAR_HOSTS = Object(
    "NearHosts",
    {
        "unit": Field(UNIT_NAME, "the unit"),
        "seq": Field(SEQ, "the newest checkpoint, to which the figures belong"),
        "bytes": Field(Integer(), "bytes of the files that a recovery reads"),
        "hosts": Field(ListOf(NEAR_HOST), "hosts that are not lost; the best host to load the unit first"),
    },
)
STATUS_CHECKPOINTS = Object(
    "CheckpointCounts",
    {
        "units": Field(Integer(), "units with a complete checkpoint"),
        "checkpoints": Field(Integer(), "complete checkpoints"),
        "file_bytes": Field(Integer(), "bytes of their files"),
    },
)

_BY_UNIT = {"unit": Field(UNIT_NAME, "the unit's name")}
_BY_SEQ = {**_BY_UNIT, "seq": Field(SEQ, "the checkpoint's number")}
_UNITS_PAGE = Object(
    "UnitsPage",
    {
        "after": Field(String(200, 0), "the last unit of the previous page; empty: the first page", ""),
        "limit": Field(Integer(1, MAX_PAGE), "units in an answer", DEFAULT_PAGE),
    },
)
_CHECKPOINTS_PAGE = Object(
    "CheckpointsPage",
    {
        "before": Field(Integer(), "only checkpoints with a lower number; 0: the first page", 0),
        "limit": Field(Integer(1, MAX_PAGE), "checkpoints in an answer", DEFAULT_PAGE),
    },
)
_NEAR_PAGE = Object(
    "NearHostsPage", {"limit": Field(Integer(1, MAX_NEAR_HOSTS), "hosts in the answer", DEFAULT_NEAR_HOSTS)}
)

ROUTES: tuple[Route, ...] = (
    Route("GET", "/v1/units", "listUnits", "List the units with a complete checkpoint.",
          {200: RouteAnswer("a page of units", UNITS)}, query=_UNITS_PAGE),
    Route("DELETE", "/v1/units/{unit}", "forgetUnit", "Forget a unit with all its checkpoints; their files stay.",
          {200: RouteAnswer("forgotten, or unknown", UNIT_FORGOTTEN)}, _BY_UNIT),
    Route("GET", "/v1/units/{unit}/checkpoints", "listCheckpoints", "List the complete checkpoints of a unit.",
          {200: RouteAnswer("a page of checkpoints", CHECKPOINTS)}, _BY_UNIT, _CHECKPOINTS_PAGE, errors=(404,)),
    Route("GET", "/v1/units/{unit}/newest", "newestCheckpoint", "Get the newest recoverable checkpoint.",
          {200: RouteAnswer("the checkpoint with its files", CHECKPOINT_VIEW)}, _BY_UNIT, errors=(404,)),
    Route("GET", "/v1/units/{unit}/hosts", "hostsOfUnit", "List the hosts that load a unit fastest.",
          {200: RouteAnswer("the best host first", NEAR_HOSTS)}, _BY_UNIT, _NEAR_PAGE, errors=(404,)),
    Route("PUT", "/v1/units/{unit}/checkpoints/{seq}", "registerCheckpoint",
          "Register a complete checkpoint: all its files are durable. Repetitions have no effect.",
          {
              201: RouteAnswer("registered", CHECKPOINT_SUMMARY),
              200: RouteAnswer("the same checkpoint was registered already", CHECKPOINT_SUMMARY),
          },
          _BY_SEQ, body=REGISTER_CHECKPOINT, errors=(409,), large=True),
    Route("GET", "/v1/units/{unit}/checkpoints/{seq}", "getCheckpoint", "Get a complete checkpoint with its files.",
          {200: RouteAnswer("the checkpoint", CHECKPOINT_VIEW)}, _BY_SEQ, errors=(404,)),
    Route("DELETE", "/v1/units/{unit}/checkpoints/{seq}", "removeCheckpoint",
          "Remove a checkpoint, if a newer one does not need it. The caller removes its files.",
          {200: RouteAnswer("removed, or not registered", CHECKPOINT_REMOVED)}, _BY_SEQ, errors=(409,)),
)  # fmt: skip
