"""The keys of a Cairn cluster in its metadata store, and the transactions on them, as pure functions.

| key | value | lifetime |
|---|---|---|
| `cluster` | `StoredCluster` | permanent: the first host creates the entry |
| `adoption` | the adopter of a log: `cluster/adoption/adoption_entries.py` | until `cluster` exists |
| `disks/DISK` | `StoredDisk`: label of the last start (`replica/identity.py`) | see `cluster/members/departures.py` |
| `members/HOST` | `StoredMember` | the host's lease |
| `nodes/NODE-ID` | `StoredNode`: the host with this number | the same |
| `leaving/HOST` | `Leaving`: the operator's order for the host | until the order is cancelled, or the host is removed |
| `removed/HOST` | `Removal`: the host was removed | until many others were: `cluster/members/departures.py` |
| `copies/coordinator` | `StoredCopyCoordinator`: the host that plans copies of chunks | the host's lease |
| `copies/plan` | the copies that its plan allows now: `cluster/copies/copy_fields.py` | until the next plan |
| `coordinator/leader` | `StoredLeader`: the host whose coordinator leads | the host's lease |
| `coordinator/leader/network` | `StoredNetwork`: the network of the leader's plans | the same |
| `copies/slots` | `StoredCopyCoordinator`: the last leader, if it gives slots | until another host leads |
| `coordinator/head` | `StoredPlanHead`: replaced by each write of the coordinator's state | permanent |
| `coordinator/state/`, `coordinator/batch/` | that state: `scheduler/coordinator/metadata/entries.py` | the same |
| `topics/TOPIC` | `StoredTopic` | until the topic is deleted |
| `waits/TOPIC-ID/PARTITION/CHUNK` | `Wait`: a wait for a chunk | see `cluster/streams/takeover_waits.py` |
| `streams/TOPIC-ID/`, `chunks/TOPIC-ID/` | registrations of streams: `replica/registrations.py` | the topic |

Paths of modules begin at `logstore`, except the coordinator's.

Invariants:
* While the lease of a host lasts, no other host has its name or its node id. A host joins with a known disk.
* A topic is created once, and its entries are deleted with the topic.
* Values are JSON with a version, `v`. Unknown versions and fields are refused by name.

`docs/format.md` has the byte layout.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from logstore.base.errors import FieldError
from logstore.base.fields import Boolean, Field, Integer, ListOf, MapOf, Object, String, refuse
from logstore.base.metadata.errors import InvalidMetadataCall, MetadataDamaged
from logstore.base.metadata.interface import (
    ABSENT,
    Condition,
    Delete,
    DeletePrefix,
    Entry,
    Put,
    Transaction,
)

VERSION: Final = 1
MAX_REPLICAS: Final = 5
MAX_NAME_CHARACTERS: Final = 64
"""The longest name of a host, a rack or a disk: a key can contain several such names."""
MAX_TOPIC_CHARACTERS: Final = 249
"""As in Kafka."""
MAX_PARTITIONS: Final = 10_000
MAX_ADDRESSES: Final = 16
MAX_SETTINGS: Final = 32
MAX_RACK_CHARACTERS: Final = 255
MAX_DOMAINS: Final = 8
"""The maximum number of nested fault domains of a host."""
MAX_RATE: Final = (1 << 53) - 1
"""Bytes per second."""
MAX_NODE_ID: Final = (1 << 31) - 1
"""As in Kafka."""
MAX_OFFSET: Final = (1 << 63) - 1
MAX_ERROR_CHARACTERS: Final = 1_000
MAX_QUERY_CHARACTERS: Final = 256
"""The longest name of a query."""
MAX_URL_CHARACTERS: Final = 300
MAX_OBJECT_CHARACTERS: Final = 600
"""The longest key in the tier: the ids of cluster and topic, the topic's name, and some digits."""
CLUSTER_KEY: Final = "cluster"
ADOPTION_KEY: Final = "adoption"
DISKS: Final = "disks/"
MEMBERS: Final = "members/"
NODES: Final = "nodes/"
TOPICS: Final = "topics/"
LEAVING: Final = "leaving/"
REMOVED: Final = "removed/"
COPY_COORDINATOR_KEY: Final = "copies/coordinator"
COPY_PLAN_KEY: Final = "copies/plan"
COPY_SLOTS_KEY: Final = "copies/slots"
LEADER_KEY: Final = "coordinator/leader"
LEADER_NETWORK_KEY: Final = "coordinator/leader/network"
PLAN_HEAD_KEY: Final = "coordinator/head"
COORDINATOR_STATE: Final = "coordinator/state/"
COORDINATOR_BATCH: Final = "coordinator/batch/"
DRAIN: Final = "drain"
REMOVE: Final = "remove"
LEAVING_HOW: Final = (DRAIN, REMOVE)
WAITS: Final = "waits/"
STREAMS: Final = "streams/"
CHUNKS: Final = "chunks/"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_NAME_TYPE: Final = String(MAX_NAME_CHARACTERS)
_OBJECTS: Final = {
    "StoredCluster": Object("Cluster", {"cluster_id": Field(_NAME_TYPE, "the cluster's id, chosen by its first host")}),
    "StoredDisk": Object(
        "Disk",
        {
            "host": Field(_NAME_TYPE, "the host for which the disk was formatted"),
            "starts": Field(Integer(1), "the number of starts on the disk"),
            "start": Field(_NAME_TYPE, "the random name of the last start"),
        },
    ),
    "StoredNode": Object("Node", {"host": Field(_NAME_TYPE, "the host with the number")}),
    "StoredMember": Object(
        "Member",
        {
            "disk": Field(_NAME_TYPE, "the identity of the data directory"),
            "start": Field(_NAME_TYPE, "the random name of the last start"),
            "node_id": Field(Integer(0, MAX_NODE_ID), "the number of the host, for Kafka's clients"),
            "link": Field(String(), "HOST:PORT for other hosts"),
            "rack": Field(String(MAX_RACK_CHARACTERS, 0), "the fault domains of the host, from the widest: /zone/rack"),
            "disk_rate": Field(Integer(0, MAX_RATE), "bytes per second that the disk writes; 0: unknown", 0),
            "link_rates": Field(
                ListOf(Integer(0, MAX_RATE), MAX_DOMAINS), "bytes per second into each fault domain; 0: unknown", ()
            ),
            "addresses": Field(MapOf(String()), "HOST:PORT for each listener"),
        },
    ),
    "StoredCopyCoordinator": Object(
        "Coordinator",
        {
            "host": Field(_NAME_TYPE, "the host that plans copies"),
            "start": Field(_NAME_TYPE, "the start of the host in which it does so"),
        },
    ),
    "StoredLeader": Object(
        "Leader",
        {
            "host": Field(_NAME_TYPE, "the host whose coordinator of checkpoints leads"),
            "start": Field(_NAME_TYPE, "the start of the host in which it does so"),
            "url": Field(String(MAX_URL_CHARACTERS), "the URL of that coordinator"),
        },
    ),
    "StoredNetwork": Object(
        "Network",
        {
            "revision": Field(Integer(1, MAX_OFFSET), "the revision of the leader's entry"),
            "fingerprint": Field(_NAME_TYPE, "SHA-256 of the network of the leader's plans"),
            "hosts": Field(Integer(0, MAX_OFFSET), "number of hosts in the network"),
            "links": Field(Integer(0, MAX_OFFSET), "number of links in the network"),
        },
    ),
    "StoredPlanHead": Object(
        "PlanHead",
        {
            "writes": Field(Integer(0, MAX_OFFSET), "a lower bound of the number of writes of the coordinator's state"),
            "batch": Field(Integer(0, MAX_OFFSET), "pieces of a batch that may be incomplete; 0: none", 0),
        },
    ),
    "Wait": Object(
        "Wait",
        {
            "host": Field(_NAME_TYPE, "the host that has claimed the stream"),
            "start": Field(_NAME_TYPE, "the start of the host in which it claimed the stream"),
            "chunk": Field(Integer(0, MAX_OFFSET), "the epoch of the chunk that cannot be read"),
            "first": Field(Integer(0, MAX_OFFSET), "the first offset of the chunk"),
            "end": Field(Integer(0, MAX_OFFSET), "the offset after the last record of the chunk"),
            "object": Field(String(MAX_OBJECT_CHARACTERS, 0), "the chunk's object in the tier; empty: not in the tier"),
            "error": Field(String(MAX_ERROR_CHARACTERS), "the reason why the chunk cannot be read"),
            "lost": Field(Boolean(), "whether every host that may have the chunk lacks it or has it damaged"),
            "since_ms": Field(Integer(0, MAX_OFFSET), "start of the wait, in ms since 1970"),
            "query": Field(String(MAX_QUERY_CHARACTERS, 0), "the query whose epoch waits; empty: a takeover waits", ""),
            "epoch": Field(Integer(0, MAX_OFFSET), "the first waiting epoch of the query", 0),
            "forgotten": Field(Boolean(), "whether an operator lets takeovers continue without the chunk", False),
            "repeat_epochs": Field(Boolean(), "whether an operator lets epochs be repeated that it may have", False),
            "ended": Field(Boolean(), "whether nothing waits any more; the entry keeps the operator's order", False),
        },
    ),
    "Removal": Object("Removal", {}),
    "Leaving": Object("Leaving", {"how": Field(_NAME_TYPE, "drain or remove")}),
    "StoredTopic": Object(
        "Topic",
        {
            "topic_id": Field(_NAME_TYPE, "the id of the topic, never used again"),
            "partitions": Field(Integer(1, MAX_PARTITIONS), "the number of streams"),
            "replicas": Field(Integer(1, MAX_REPLICAS), "the number of replicas of each chunk"),
            "settings": Field(MapOf(String()), "the settings that were set for the topic"),
            "hosts": Field(Integer(0, MAX_REPLICAS), "the most hosts so far, if fewer than replicas; 0: enough", 0),
        },
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCluster:
    """The cluster that the metadata store belongs to."""

    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDisk:
    """A disk as of its last start."""

    host: str
    starts: int
    start: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNode:
    """The host with a node id."""

    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """A live host of the cluster."""

    disk: str
    """Created with the data directory: another disk, or an empty disk, has another identity."""
    start: str
    """The current start: an owner of an earlier start is gone."""
    node_id: int
    link: str
    rack: str
    addresses: Mapping[str, str]
    disk_rate: int = 0
    link_rates: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A host that must not hold anything any more. `how`: DRAIN, the live host moves its chunks away; REMOVE, the host
    is gone for good.
    """

    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A host was removed. A repeated removal succeeds, for a client whose first answer was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCopyCoordinator:
    """The host that plans copies of chunks, and its start."""

    host: str
    start: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLeader:
    """The host whose coordinator of checkpoints and of the tier leads, its start, and its URL."""

    host: str
    start: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNetwork:
    """The network of the leader's plans, written by the leader whose entry has this revision."""

    revision: int
    fingerprint: str
    hosts: int
    links: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlanHead:
    """Replaced by each write of the coordinator's state. `batch`: the pieces of a batch that is to be completed."""

    writes: int
    batch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTopic:
    """A topic."""

    topic_id: str
    partitions: int
    replicas: int
    settings: Mapping[str, str]
    hosts: int = 0
    """The most hosts of the cluster since the topic's creation, if fewer than its replicas; 0: enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A wait for a chunk that cannot be read: a takeover needs the chunk's state of producers, or the chunk may contain
    an epoch of a query.

    The chunk has the offsets from `first` up to `end`, exclusive; `chunk` is its epoch. `lost`: the chunk is missing or
    damaged, and no other host can have it. `query` is empty if a takeover waits. `forgotten`: an operator lets
    takeovers continue without the chunk. `repeat_epochs`: an operator also lets epochs that the chunk may have be
    appended after it. `ended`: nothing waits any more, and the entry keeps the operator's order.
    """

    host: str
    start: str
    chunk: int
    first: int
    end: int
    object: str
    error: str
    lost: bool
    since_ms: int
    query: str = ""
    epoch: int = 0
    forgotten: bool = False
    repeat_epochs: bool = False
    ended: bool = False

    @property
    def is_for_epoch(self) -> bool:
        """Whether an epoch waits, not a takeover."""
        return bool(self.query)

    @property
    def is_said(self) -> bool:
        """Whether an operator has given an order for the chunk."""
        return self.forgotten or self.repeat_epochs

    @property
    def is_let_go(self) -> bool:
        """Whether an operator's order ends this wait."""
        return self.passes_epochs(is_lost=self.lost) if self.is_for_epoch else self.forgotten

    def passes_epochs(self, *, is_lost: bool) -> bool:
        """Whether epochs that the chunk may have are appended after it. An order for a takeover also applies to epochs
        if the chunk is lost; a chunk that comes back would have them as well.
        """
        return self.repeat_epochs or (self.forgotten and is_lost)


Value = (
    StoredCluster
    | StoredCopyCoordinator
    | StoredDisk
    | StoredLeader
    | StoredNetwork
    | StoredPlanHead
    | Leaving
    | Removal
    | StoredMember
    | StoredNode
    | StoredTopic
    | Wait
)
V = TypeVar("V", bound=Value)


def member_key(host: str) -> str:
    """The key of a member. Raises InvalidMetadataCall."""
    _check_name("host", host)
    return f"{MEMBERS}{host}"


def leaving_key(host: str) -> str:
    """The key of what an operator has said of a host. Raises InvalidMetadataCall."""
    _check_name("host", host)
    return f"{LEAVING}{host}"


def removed_key(host: str) -> str:
    """The key of the note that a host was removed. Raises InvalidMetadataCall."""
    _check_name("host", host)
    return f"{REMOVED}{host}"


def disk_key(disk: str) -> str:
    """The key of a disk. Raises InvalidMetadataCall."""
    _check_name("disk", disk)
    return f"{DISKS}{disk}"


def node_key(node_id: int) -> str:
    """The key of a node id."""
    return f"{NODES}{node_id}"


def topic_key(name: str) -> str:
    """The key of a topic. Raises InvalidMetadataCall."""
    if not _NAME.fullmatch(name) or len(name) > MAX_TOPIC_CHARACTERS:
        raise InvalidMetadataCall(f"topic {name[:80]!r}: must have letters, digits, '.', '_', '-', at most 249")
    return f"{TOPICS}{name}"


def wait_key(stream: str, chunk: int) -> str:
    """The key of what waits for the chunk of an epoch of a stream, TOPIC-ID/PARTITION. Raises InvalidMetadataCall."""
    topic_id, _, partition = stream.partition("/")
    _check_name("topic id", topic_id)
    if not (partition.isascii() and partition.isdecimal()):
        raise InvalidMetadataCall(f"stream {stream[:80]!r}: must be TOPIC-ID/PARTITION")
    if chunk < 0:
        raise InvalidMetadataCall(f"chunk {chunk}: must be an epoch, 0 or more")
    return f"{WAITS}{stream}/{chunk}"


def wait_place(key: str) -> tuple[str, int | None]:
    """The stream and the chunk that a key of a wait names; no chunk: a host of an earlier version has put it."""
    topic_id, _, place = key.removeprefix(WAITS).partition("/")
    partition, _, chunk = place.partition("/")
    return f"{topic_id}/{partition}", int(chunk) if chunk.isascii() and chunk.isdecimal() else None


# ---- values


def encode(value: Value) -> bytes:
    """The bytes of a value. Raises InvalidMetadataCall for what `decode` would refuse."""
    kind = _OBJECTS[type(value).__name__]
    document = json.loads(json.dumps(asdict(value)))
    try:
        kind.check(document, "")
        _check_sizes(document)
    except FieldError as error:
        raise InvalidMetadataCall(f"{kind.name} {error}") from error
    for field, part in kind.fields.items():
        if document[field] in (part.default, []):
            del document[field]  # as `decode` gives it back
    return json.dumps({"v": VERSION, **document}, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def decode(kind: type[V], entry: Entry) -> V:
    """The value of an entry. Raises MetadataDamaged, which names the entry."""
    described = _OBJECTS[kind.__name__]
    try:
        document = json.loads(entry.value)
        if not isinstance(document, dict):
            raise refuse("", document, "must be an object")
        version = document.pop("v", None)
        if version != VERSION:
            raise refuse("v", version, f"this Cairn knows {VERSION}; use a newer one")
        checked = described.check(document, "")
        _check_sizes(document)
    except (ValueError, RecursionError, FieldError) as error:
        raise MetadataDamaged(
            f"the entry {entry.key!r} is not a {described.name}: {error}; put a correct one"
        ) from error
    return kind(**checked)


def check_cluster(found: Entry | None, cluster_id: str) -> None:
    """Take the entry of CLUSTER_KEY, or None: raises MetadataDamaged unless the store is this cluster's. What such a
    store lacks was not removed by anybody of the cluster: the store was emptied, or is another one.
    """
    known = "" if found is None else decode(StoredCluster, found).cluster_id
    if known != cluster_id:
        whose = f"that of cluster {known}" if known else "that of no cluster"
        raise MetadataDamaged(
            f"the metadata store is {whose}, and this host belongs to cluster {cluster_id}: entries were deleted, or "
            "another store is at this address. Nothing is deleted from disks and the tier: keep the data directories, "
            "and restore the newest store"
        )


def _check_sizes(document: Mapping[str, Any]) -> None:
    """The limits of maps and of words, which their types do not have. Raises FieldError."""
    for name, limit in (("addresses", MAX_ADDRESSES), ("settings", MAX_SETTINGS)):
        entries = document.get(name, {})
        if len(entries) > limit or any(len(each) > MAX_NAME_CHARACTERS for each in entries):
            raise refuse(name, entries, f"must have at most {limit} entries, with names of {MAX_NAME_CHARACTERS}")
    how = document.get("how", DRAIN)
    if how not in LEAVING_HOW:
        raise refuse("how", how, f"must be one of {', '.join(LEAVING_HOW)}")


def _check_name(noun: str, name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARACTERS:
        raise InvalidMetadataCall(
            f"{noun} {name[:80]!r}: must have letters, digits, '.', '_', '-', at most {MAX_NAME_CHARACTERS}"
        )


# ---- transactions


def join(
    host: str, member: StoredMember, lease_id: int, member_revision: int, node_revision: int, disk: Entry
) -> Transaction:
    """Make a host a member while its lease lasts, if nobody has its name and its node id: the entries of both have
    these revisions. A host that joins again, or starts anew before its last lease has ended, replaces its own.

    The entry of its disk is as it was read, and is put anew: who has read it before finds that it has changed.
    """
    joining = move(host, member, lease_id, member_revision, node_revision)
    known = Condition(disk.key, disk.revision)
    return Transaction((*joining.conditions, known), (*joining.changes, Put(disk.key, disk.value)))


def move(host: str, member: StoredMember, lease_id: int, member_revision: int, node_revision: int) -> Transaction:
    """Say something else of a host that is a member; its entry and that of its node id have these revisions."""
    name, node = member_key(host), node_key(member.node_id)
    conditions = (Condition(name, member_revision), Condition(node, node_revision))
    return Transaction(
        conditions, (Put(name, encode(member), lease_id), Put(node, encode(StoredNode(host=host)), lease_id))
    )


def leave(host: str, leaving: Leaving, revision: int = ABSENT, others: tuple[Condition, ...] = ()) -> Transaction:
    """Say of a host that it is to hold nothing any more, if what is said of it has this revision, and others theirs."""
    key = leaving_key(host)
    return Transaction((Condition(key, revision), *others), (Put(key, encode(leaving)),))


def stay(host: str, revision: int, others: tuple[Condition, ...] = ()) -> Transaction:
    """Take back what is said of a host, if that has this revision, and others theirs."""
    key = leaving_key(host)
    return Transaction((Condition(key, revision), *others), (Delete(key),))


def forget(host: str, revision: int, others: tuple[Condition, ...] = ()) -> Transaction:
    """Note that a host was removed, in place of what is said of it, if that has this revision, and others theirs."""
    key = leaving_key(host)
    return Transaction((Condition(key, revision), *others), (Delete(key), Put(removed_key(host), encode(Removal()))))


def coordinate_copies(coordinator: StoredCopyCoordinator, lease_id: int, revision: int = ABSENT) -> Transaction:
    """Make a host plan copies while its lease lasts, if the entry of who does has this revision."""
    put = Put(COPY_COORDINATOR_KEY, encode(coordinator), lease_id)
    return Transaction((Condition(COPY_COORDINATOR_KEY, revision),), (put,))


def keep_copy_plan(plan: bytes, coordinator_revision: int) -> Transaction:
    """Keep a plan of copies, if the entry of who plans has still this revision."""
    return Transaction((Condition(COPY_COORDINATOR_KEY, coordinator_revision),), (Put(COPY_PLAN_KEY, plan),))


def lead(leader: StoredLeader, lease_id: int, revision: int = ABSENT) -> Transaction:
    """Make a host's coordinator lead while the host's lease lasts, if the entry of who does has this revision. Hosts
    that copy chunks ask it for slots: an earlier version, which gives none, puts no entry that says so. That entry
    stays when the host has gone: who reads it knows that another one may lead in a moment.
    """
    gives = StoredCopyCoordinator(host=leader.host, start=leader.start)
    puts = (Put(LEADER_KEY, encode(leader), lease_id), Put(COPY_SLOTS_KEY, encode(gives)))
    return Transaction((Condition(LEADER_KEY, revision),), puts)


def say_network(network: StoredNetwork, lease_id: int) -> Transaction:
    """Say what the leader plans on, if the leader's entry has the revision that the network names."""
    put = Put(LEADER_NETWORK_KEY, encode(network), lease_id)
    return Transaction((Condition(LEADER_KEY, network.revision),), (put,))


def lead_no_more(revision: int) -> Transaction:
    """Let another coordinator lead, if the entry of who does has this revision."""
    return Transaction((Condition(LEADER_KEY, revision),), (Delete(LEADER_KEY),))


def create_topic(name: str, topic: StoredTopic) -> Transaction:
    """Create a topic, if there is none of that name. Its streams are registered when they get owners."""
    _check_name("topic id", topic.topic_id)
    key = topic_key(name)
    return Transaction((Condition(key, ABSENT),), (Put(key, encode(topic)),))


def replace_topic(name: str, topic: StoredTopic, revision: int) -> Transaction:
    """Give a topic more partitions or other settings, if its entry has this revision."""
    key = topic_key(name)
    return Transaction((Condition(key, revision),), (Put(key, encode(topic)),))


def delete_topic(name: str, topic: StoredTopic, revision: int) -> Transaction:
    """Remove a topic, its streams, their chunks and what waits for them, if the topic's entry has this revision."""
    key = topic_key(name)
    prefixes = (DeletePrefix(f"{kind}{topic.topic_id}/") for kind in (STREAMS, CHUNKS, WAITS))
    return Transaction((Condition(key, revision),), (Delete(key), *prefixes))
