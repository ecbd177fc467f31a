"""The routes of the registry of checkpoints, as tables.

A unit is a query's partition: the part of an operator's state that is checkpointed and recovered as a whole (SGuard's
HA unit, section 3). A checkpoint of it has a number, `seq`; its files are those that the checkpoint wrote itself, and
`bases` are the checkpoints whose files a recovery needs as well.

Invariant: a stored entry has the shape of the request that registered it, so one table checks both.
"""

from logstore.base.fields import Boolean, Field, Integer, ListOf, Number, Object, Optional, String
from scheduler.coordinator.routes import Route, RouteAnswer

MAX_FILES = 1024
"""Files of one checkpoint: 64 GiB in files of one chunk of 64 MiB."""
MAX_BASES = 64
MAX_FILE_HOSTS = 16
"""The hosts that have a file are no more than the replicas of a chunk."""
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
        "name": Field(String(255), "its name below the checkpoint's directory"),
        "bytes": Field(Integer(), "its length"),
        "crc32c": Field(Integer(0, MAX_CRC), "the CRC-32C of all its bytes"),
        "hosts": Field(
            ListOf(String(200), MAX_FILE_HOSTS),
            "the hosts that have a replica, as far as known: names of the topology, or addresses",
            (),
        ),
    },
)
REGISTER_CHECKPOINT = Object(
    "RegisterCheckpoint",
    {
        "sink": Field(String(1000), "URL of the directory in which the checkpoints of the unit are"),
        "epoch": Field(Integer(), "the epoch after which the state was frozen"),
        "attempt": Field(String(200, 0), "the attempt of that epoch that counted", ""),
        "state_bytes": Field(Integer(), "what a recovery loads: the pages of the state"),
        "bases": Field(ListOf(SEQ, MAX_BASES), "numbers of all other checkpoints whose files a recovery needs", ()),
        "written_ms": Field(Integer(), "when its last file was complete, in milliseconds since 1970"),
        "files": Field(ListOf(FILE, MAX_FILES), "the files that it wrote"),
    },
)
_SUMMARY = {
    "unit": Field(UNIT_NAME, "the unit"),
    "seq": Field(SEQ, "its number: of two checkpoints of a unit the higher one is newer"),
    "sink": REGISTER_CHECKPOINT.fields["sink"],
    "epoch": REGISTER_CHECKPOINT.fields["epoch"],
    "attempt": Field(String(200, 0), "the attempt of that epoch that counted"),
    "state_bytes": REGISTER_CHECKPOINT.fields["state_bytes"],
    "bases": Field(ListOf(SEQ), "numbers of the checkpoints whose files it needs too, ascending"),
    "recoverable": Field(Boolean(), "whether all these bases are registered"),
    "written_ms": REGISTER_CHECKPOINT.fields["written_ms"],
    "file_count": Field(Integer(), "files that it wrote"),
    "file_bytes": Field(Integer(), "bytes of these files"),
}
CHECKPOINT_SUMMARY = Object("CheckpointSummary", _SUMMARY)
CHECKPOINT_VIEW = Object("Checkpoint", {**_SUMMARY, "files": Field(ListOf(FILE), "the files that it wrote")})
CHECKPOINTS = Object(
    "Checkpoints",
    {
        "unit": Field(UNIT_NAME, "the unit"),
        "checkpoints": Field(ListOf(CHECKPOINT_SUMMARY), "its complete checkpoints, the newest first"),
        "next": Field(Optional(SEQ), "`before` of the next page; null: this was the last one"),
    },
)
UNIT_VIEW = Object(
    "Unit",
    {
        "unit": Field(UNIT_NAME, "the unit"),
        "checkpoints": Field(Integer(1), "how many complete checkpoints it has"),
        "file_bytes": Field(Integer(), "bytes of their files"),
        "newest": Field(Optional(CHECKPOINT_SUMMARY), "the newest of them that can be recovered; null: none can"),
    },
)
UNITS = Object(
    "Units",
    {
        "units": Field(ListOf(UNIT_VIEW), "units with a complete checkpoint, by name"),
        "next": Field(Optional(UNIT_NAME), "`after` of the next page; null: this was the last one"),
    },
)
CHECKPOINT_REMOVED = Object(
    "CheckpointRemoved",
    {
        "unit": Field(UNIT_NAME, "the unit"),
        "seq": Field(SEQ, "the number"),
        "removed": Field(Boolean(), "false: it was not there, or is removed already"),
    },
)
UNIT_FORGOTTEN = Object(
    "UnitForgotten",
    {"unit": Field(UNIT_NAME, "the unit"), "removed": Field(Integer(), "how many of its checkpoints were forgotten")},
)
NEAR_HOST = Object(
    "NearHost",
    {
        "host": Field(String(200), "its name"),
        "address": Field(Optional(String(300)), "where others reach it"),
        "bytes": Field(Integer(), "bytes of the newest checkpoint and its bases that it has itself"),
        "distance": Field(
            Optional(Number()),
            "connections between it and the nearest replica of a byte, in the mean over all bytes; null: not known",
        ),
    },
)
NEAR_HOSTS = Object(
    "NearHosts",
    {
        "unit": Field(UNIT_NAME, "the unit"),
        "seq": Field(SEQ, "its newest checkpoint, to which the figures belong"),
        "bytes": Field(Integer(), "bytes of the files that a recovery reads"),
        "hosts": Field(ListOf(NEAR_HOST), "hosts that are not lost, the best to load the unit first"),
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
        "after": Field(String(200, 0), "the last unit of the page before; empty: from the first one", ""),
        "limit": Field(Integer(1, MAX_PAGE), "units in an answer", DEFAULT_PAGE),
    },
)
_CHECKPOINTS_PAGE = Object(
    "CheckpointsPage",
    {
        "before": Field(Integer(), "only checkpoints with a lower number; 0: from the newest one", 0),
        "limit": Field(Integer(1, MAX_PAGE), "checkpoints in an answer", DEFAULT_PAGE),
    },
)
_NEAR_PAGE = Object(
    "NearHostsPage", {"limit": Field(Integer(1, MAX_NEAR_HOSTS), "hosts in the answer", DEFAULT_NEAR_HOSTS)}
)

ROUTES: tuple[Route, ...] = (
    Route("GET", "/v1/units", "listUnits", "Units that have a complete checkpoint.",
          {200: RouteAnswer("a page of them", UNITS)}, query=_UNITS_PAGE),
    Route("DELETE", "/v1/units/{unit}", "forgetUnit", "Forget a unit with all its checkpoints; their files stay.",
          {200: RouteAnswer("forgotten, or not known", UNIT_FORGOTTEN)}, _BY_UNIT),
    Route("GET", "/v1/units/{unit}/checkpoints", "listCheckpoints", "The complete checkpoints of a unit.",
          {200: RouteAnswer("a page of them", CHECKPOINTS)}, _BY_UNIT, _CHECKPOINTS_PAGE, errors=(404,)),
    Route("GET", "/v1/units/{unit}/newest", "newestCheckpoint", "The newest checkpoint that can be recovered.",
          {200: RouteAnswer("it, with its files", CHECKPOINT_VIEW)}, _BY_UNIT, errors=(404,)),
    Route("GET", "/v1/units/{unit}/hosts", "hostsOfUnit", "The hosts that load a unit best.",
          {200: RouteAnswer("the best first", NEAR_HOSTS)}, _BY_UNIT, _NEAR_PAGE, errors=(404,)),
    Route("PUT", "/v1/units/{unit}/checkpoints/{seq}", "registerCheckpoint",
          "A checkpoint is complete: all its files are durable. The same again is no second one.",
          {
              201: RouteAnswer("registered", CHECKPOINT_SUMMARY),
              200: RouteAnswer("it was there already, and is the same", CHECKPOINT_SUMMARY),
          },
          _BY_SEQ, body=REGISTER_CHECKPOINT, errors=(409,), large=True),
    Route("GET", "/v1/units/{unit}/checkpoints/{seq}", "getCheckpoint", "A complete checkpoint with its files.",
          {200: RouteAnswer("it", CHECKPOINT_VIEW)}, _BY_SEQ, errors=(404,)),
    Route("DELETE", "/v1/units/{unit}/checkpoints/{seq}", "removeCheckpoint",
          "A checkpoint may go: there is a newer one that does not build on it. Its files are removed by you.",
          {200: RouteAnswer("removed, or not there", CHECKPOINT_REMOVED)}, _BY_SEQ, errors=(409,)),
)  # fmt: skip
