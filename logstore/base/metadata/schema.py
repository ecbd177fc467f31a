"""The keys of a Cairn cluster in its metadata store, and the transactions on them, as pure functions.

| key | value | lives |
|---|---|---|
| `members/HOST` | `Member` | as long as the host's lease |
| `topics/TOPIC` | `Topic` | until the topic is deleted |
| `streams/TOPIC-ID/PARTITION` | `Stream`: owner, epoch, open chunk | the same |
| `chunks/TOPIC-ID/PARTITION/BASE-OFFSET` | `SealedChunk`: end, epoch, replica set | until it is trimmed |

Invariants:
* A stream has one entry of bounded size and one for each sealed chunk: a roll writes two entries, whatever the number
  of chunks. Every change of a stream has the condition that its entry is as its owner saw it, so an owner that was
  replaced changes nothing.
* The epoch of a stream grows with each change of owner, and never else; a chunk has the epoch in which it was opened or
  got its replica set.
* Values are JSON with a version, `v`; unknown versions and fields are refused by name.

`docs/format.md` has the byte layout.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from logstore.base.errors import FieldError
from logstore.base.fields import Field, Integer, ListOf, MapOf, Object, Optional, String, refuse
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
"""Of a host, a rack or a disk's identity: a replica set of five names stays below 400 bytes."""
MAX_TOPIC_CHARACTERS: Final = 249
"""As in Kafka."""
MAX_PARTITIONS: Final = 10_000
MAX_ADDRESSES: Final = 16
MAX_SETTINGS: Final = 32
MEMBERS: Final = "members/"
TOPICS: Final = "topics/"
STREAMS: Final = "streams/"
CHUNKS: Final = "chunks/"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_NAME_TYPE: Final = String(MAX_NAME_CHARACTERS)
_REPLICAS_TYPE: Final = ListOf(_NAME_TYPE, MAX_REPLICAS, 1)
_OPEN_CHUNK: Final = Object(
    "OpenChunk",
    {
        "base_offset": Field(Integer(), "its first offset"),
        "epoch": Field(Integer(), "when it was opened"),
        "replicas": Field(_REPLICAS_TYPE, "hosts, owner first"),
    },
)
_OBJECTS: Final = {
    "Member": Object(
        "Member",
        {
            "disk": Field(_NAME_TYPE, "identity of its data directory"),
            "rack": Field(String(MAX_NAME_CHARACTERS, 0), "its fault domain"),
            "addresses": Field(MapOf(String()), "listener to HOST:PORT"),
        },
    ),
    "Topic": Object(
        "Topic",
        {
            "topic_id": Field(_NAME_TYPE, "never used again"),
            "partitions": Field(Integer(1, MAX_PARTITIONS), "number of streams"),
            "replicas": Field(Integer(1, MAX_REPLICAS), "of each chunk"),
            "settings": Field(MapOf(String()), "topic settings that were set"),
        },
    ),
    "Stream": Object(
        "Stream",
        {
            "owner": Field(_NAME_TYPE, "the host that appends"),
            "epoch": Field(Integer(1), "grows with each owner"),
            "chunk": Field(Optional(_OPEN_CHUNK), "the open chunk"),
        },
    ),
    "SealedChunk": Object(
        "SealedChunk",
        {
            "end_offset": Field(Integer(), "the offset behind its last record"),
            "epoch": Field(Integer(), "of its replica set"),
            "replicas": Field(_REPLICAS_TYPE, "hosts"),
        },
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A host of the cluster that is alive."""

    disk: str
    """Made with its data directory: another or an empty disk has another one."""
    rack: str
    addresses: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic."""

    topic_id: str
    partitions: int
    replicas: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenChunk:
    """The chunk that a stream's owner appends to."""

    base_offset: int
    epoch: int
    replicas: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Who appends to a stream; `chunk` is None until its first owner has opened one."""

    owner: str
    epoch: int
    chunk: OpenChunk | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedChunk:
    """A chunk that nobody appends to: its records have offsets from that in its key to before `end_offset`."""

    end_offset: int
    epoch: int
    replicas: tuple[str, ...]


Value = Member | Topic | Stream | SealedChunk
V = TypeVar("V", Member, Topic, Stream, SealedChunk)


@dataclass(frozen=True, slots=True)
class StreamKey:
    """A stream, by its topic's id and its partition."""

    topic_id: str
    partition: int

    def __post_init__(self) -> None:
        _check_name("topic id", self.topic_id)
        if not 0 <= self.partition < MAX_PARTITIONS:
            raise InvalidMetadataCall(f"partition {self.partition}: must be from 0 to {MAX_PARTITIONS - 1}")

    @property
    def key(self) -> str:
        """The key of its `Stream`."""
        return f"{STREAMS}{self.topic_id}/{self.partition}"

    @property
    def chunks(self) -> str:
        """The prefix of its chunks, whose keys are in the order of their offsets."""
        return f"{CHUNKS}{self.topic_id}/{self.partition}/"

    def chunk(self, base_offset: int) -> str:
        """The key of a sealed chunk."""
        return f"{self.chunks}{base_offset:016x}"


def member_key(host: str) -> str:
    """The key of a member. Raises InvalidMetadataCall."""
    _check_name("host", host)
    return f"{MEMBERS}{host}"


def topic_key(name: str) -> str:
    """The key of a topic. Raises InvalidMetadataCall."""
    if not _NAME.fullmatch(name) or len(name) > MAX_TOPIC_CHARACTERS:
        raise InvalidMetadataCall(f"topic {name[:80]!r}: must have letters, digits, '.', '_', '-', at most 249")
    return f"{TOPICS}{name}"


def base_offset_of(key: str) -> int:
    """The base offset in the key of a sealed chunk. Raises MetadataDamaged."""
    try:
        return int(key.rpartition("/")[2], 16)
    except ValueError as error:
        raise MetadataDamaged(f"{key!r} is no key of a chunk: remove it") from error


# ---- values


def encode(value: Value) -> bytes:
    """The bytes of a value. Raises InvalidMetadataCall for what `decode` would refuse."""
    name = type(value).__name__
    document = json.loads(json.dumps(asdict(value)))
    try:
        _OBJECTS[name].check(document, "")
        _check_sizes(document)
    except FieldError as error:
        raise InvalidMetadataCall(f"{name} {error}") from error
    return json.dumps({"v": VERSION, **document}, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def decode(kind: type[V], entry: Entry) -> V:
    """The value of an entry. Raises MetadataDamaged, which names the entry."""
    name = kind.__name__
    try:
        document = json.loads(entry.value)
        if not isinstance(document, dict):
            raise refuse("", document, "must be an object")
        version = document.pop("v", None)
        if version != VERSION:
            raise refuse("v", version, f"this Cairn knows {VERSION}; use a newer one")
        checked = _OBJECTS[name].check(document, "")
        _check_sizes(document)
    except (ValueError, RecursionError, FieldError) as error:
        raise MetadataDamaged(f"the entry {entry.key!r} is no {name}: {error}; put a correct one") from error
    return kind(**_nested(checked))


def _nested(checked: dict[str, Any]) -> dict[str, Any]:
    chunk = checked.get("chunk")
    return checked if chunk is None else {**checked, "chunk": OpenChunk(**chunk)}


def _check_sizes(document: Mapping[str, Any]) -> None:
    """The limits of maps, which their type does not have. Raises FieldError."""
    for name, limit in (("addresses", MAX_ADDRESSES), ("settings", MAX_SETTINGS)):
        entries = document.get(name, {})
        if len(entries) > limit or any(len(each) > MAX_NAME_CHARACTERS for each in entries):
            raise refuse(name, entries, f"must have at most {limit} entries, with names of {MAX_NAME_CHARACTERS}")


def _check_name(noun: str, name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARACTERS:
        raise InvalidMetadataCall(
            f"{noun} {name[:80]!r}: must have letters, digits, '.', '_', '-', at most {MAX_NAME_CHARACTERS}"
        )


# ---- transactions


def join(host: str, member: Member, lease_id: int) -> Transaction:
    """Make a host a member while its lease lasts, if no other has its name."""
    key = member_key(host)
    return Transaction((Condition(key, ABSENT),), (Put(key, encode(member), lease_id),))


def create_topic(name: str, topic: Topic) -> Transaction:
    """Create a topic, if there is none of that name. Its streams get entries when they get owners."""
    _check_name("topic id", topic.topic_id)
    key = topic_key(name)
    return Transaction((Condition(key, ABSENT),), (Put(key, encode(topic)),))


def delete_topic(name: str, topic: Topic, revision: int) -> Transaction:
    """Remove a topic, its streams and its chunks, if the topic's entry has this revision."""
    key = topic_key(name)
    prefixes = (DeletePrefix(f"{STREAMS}{topic.topic_id}/"), DeletePrefix(f"{CHUNKS}{topic.topic_id}/"))
    return Transaction((Condition(key, revision),), (Delete(key), *prefixes))


def take_stream(stream: StreamKey, before: Stream | None, revision: int, owner: str) -> Transaction:
    """Make a host the owner, with the next epoch, if the stream's entry has this revision (ABSENT: it has none)."""
    _check_name("host", owner)
    after = Stream(owner=owner, epoch=before.epoch + 1 if before else 1, chunk=before.chunk if before else None)
    return Transaction((Condition(stream.key, revision),), (Put(stream.key, encode(after)),))


def roll_chunk(
    stream: StreamKey, before: Stream, revision: int, end_offset: int, replicas: Sequence[str]
) -> Transaction:
    """Seal the open chunk at `end_offset` and open the next one there, if the stream's entry has this revision.

    Without an open chunk, the first is opened there. A chunk without records leaves no entry.
    """
    sealed = before.chunk
    if sealed is not None and end_offset < sealed.base_offset:
        raise InvalidMetadataCall(f"{stream.key}: a chunk from {sealed.base_offset} cannot end at {end_offset}")
    opened = OpenChunk(base_offset=end_offset, epoch=before.epoch, replicas=tuple(replicas))
    after = Stream(owner=before.owner, epoch=before.epoch, chunk=opened)
    changes = [Put(stream.key, encode(after))]
    if sealed is not None and end_offset > sealed.base_offset:
        value = SealedChunk(end_offset=end_offset, epoch=sealed.epoch, replicas=sealed.replicas)
        changes.append(Put(stream.chunk(sealed.base_offset), encode(value)))
    return Transaction((Condition(stream.key, revision),), tuple(changes))


def trim_chunks(stream: StreamKey, revision: int, base_offsets: Sequence[int]) -> Transaction:
    """Remove sealed chunks (at most MAX_CHANGES), if the stream's entry has this revision."""
    deletes = tuple(Delete(stream.chunk(base_offset)) for base_offset in base_offsets)
    return Transaction((Condition(stream.key, revision),), deletes)


def move_chunk(stream: StreamKey, base_offset: int, revision: int, after: SealedChunk) -> Transaction:
    """Give a sealed chunk another replica set, if its entry has this revision."""
    key = stream.chunk(base_offset)
    return Transaction((Condition(key, revision),), (Put(key, encode(after)),))
