"""Encodes the Kafka requests of operators' commands, and decodes their replies. No I/O.

Groups, their offsets, deletion of topics, changed settings, sizes of streams. The versions are in
`logstore.client.wire.VERSIONS`; all precede the flexible encodings.

Invariant: a reply that is too short, or counts more elements than it holds, raises MalformedReply and no other error.

Source: Kafka's protocol guide, kafka.apache.org/protocol; KIP-339 (IncrementalAlterConfigs).
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from logstore.base.addresses import Address
from logstore.client.errors import MalformedReply
from logstore.client.wire import WireReader, WireWriter
from logstore.format.topic_partition import TopicPartition
from logstore.interfaces import Buffer

_TOPIC: Final = 2
_GROUP: Final = 0
_SET: Final = 0
_DELETE: Final = 1
_NO_GENERATION: Final = -1
_NO_EPOCH: Final = -1


class ClusterInfo(NamedTuple):
    """Metadata's answer about the cluster: its id ("" if it has none), and the advertised HOST:PORT of each host."""

    cluster_id: str
    hosts: tuple[str, ...]


class DescribedMember(NamedTuple):
    """A member of a group, and the streams that it reads (none while the group balances)."""

    member_id: str
    client_id: str
    host: str
    streams: tuple[TopicPartition, ...]


class GroupInfo(NamedTuple):
    """DescribeGroups's answer for a group."""

    error: int
    state: str
    protocol: str
    members: tuple[DescribedMember, ...]


NO_GROUP: Final = GroupInfo(0, "Dead", "", ())
"""Kafka's answer for a group that does not exist."""


def cluster_reply(body: Buffer) -> ClusterInfo:
    """The cluster part of a reply to `wire.metadata_request`. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    hosts: list[str] = []
    for _ in range(reader.count()):
        reader.int32()  # node
        hosts.append(str(Address(reader.string(), reader.int32())))
        reader.nullable()  # rack
    return ClusterInfo(reader.nullable() or "", tuple(hosts))


def find_coordinator_request(group: str) -> bytes:
    """Ask who coordinates a group."""
    writer = WireWriter()
    writer.string(group)
    writer.int8(_GROUP)
    return bytes(writer.data)


def find_coordinator_reply(body: Buffer) -> tuple[int, Address]:
    """The error code, and the coordinator's address. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    error = reader.int16()
    reader.nullable()  # message
    reader.int32()  # node
    return error, Address(reader.string(), reader.int32())


# ---- groups


def list_groups_reply(body: Buffer) -> tuple[int, list[str]]:
    """The error code, and the names of all groups, sorted; the request has no body. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    error = reader.int16()
    names: list[str] = []
    for _ in range(reader.count()):
        names.append(reader.string())
        reader.string()  # protocol type
    return error, sorted(names)


def describe_groups_request(groups: Sequence[str]) -> bytes:
    """Ask for these groups."""
    writer = WireWriter()
    _strings(writer, groups)
    writer.int8(False)  # no authorized operations
    return bytes(writer.data)


def describe_groups_reply(body: Buffer) -> dict[str, GroupInfo]:
    """Groups by name. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    groups: dict[str, GroupInfo] = {}
    for _ in range(reader.count()):
        error, name, state, _, protocol = (
            reader.int16(),
            reader.string(),
            reader.string(),
            reader.string(),
            reader.string(),
        )
        members = []
        for _ in range(reader.count()):
            member_id = reader.string()
            reader.nullable()  # instance id
            client_id, host = reader.string(), reader.string()
            reader.records()  # subscription
            members.append(DescribedMember(member_id, client_id, host, _assigned(reader.records())))
        reader.int32()  # authorized operations
        groups[name] = GroupInfo(error, state, protocol, tuple(members))
    return groups


def _assigned(assignment: memoryview) -> tuple[TopicPartition, ...]:
    """The streams in a member's assignment; none if it is empty or is not that of a consumer."""
    if not len(assignment):
        return ()
    reader = WireReader(assignment)
    try:
        reader.int16()  # version
        streams = []
        for _ in range(reader.count()):
            topic = reader.string()
            streams += [TopicPartition(topic, reader.int32()) for _ in range(reader.count())]
    except MalformedReply:
        return ()
    return tuple(streams)


def delete_groups_request(groups: Sequence[str]) -> bytes:
    """Delete these groups with their offsets; each must be without members."""
    writer = WireWriter()
    _strings(writer, groups)
    return bytes(writer.data)


def delete_groups_reply(body: Buffer) -> dict[str, int]:
    """Error codes by group. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    return {reader.string(): reader.int16() for _ in range(reader.count())}


def offset_fetch_request(group: str) -> bytes:
    """Ask for all offsets that a group has committed."""
    writer = WireWriter()
    writer.string(group)
    writer.int32(-1)  # all streams
    return bytes(writer.data)


def offset_fetch_reply(body: Buffer) -> tuple[int, dict[TopicPartition, int]]:
    """The error code, and the committed offsets by stream. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    offsets: dict[TopicPartition, int] = {}
    for _ in range(reader.count()):
        topic = reader.string()
        for _ in range(reader.count()):
            partition, offset = reader.int32(), reader.int64()
            reader.int32()  # leader epoch
            reader.nullable()  # the client's own note
            if not reader.int16() and offset >= 0:
                offsets[TopicPartition(topic, partition)] = offset
    return reader.int16(), offsets


def offset_commit_request(group: str, offsets: Mapping[TopicPartition, int]) -> bytes:
    """Set offsets of a group that has no members."""
    writer = WireWriter()
    writer.string(group)
    writer.int32(_NO_GENERATION)
    writer.string("")  # no member
    writer.string(None)
    topics: dict[str, list[TopicPartition]] = {}
    for stream in offsets:
        topics.setdefault(stream.topic, []).append(stream)
    writer.int32(len(topics))
    for topic, streams in topics.items():
        writer.string(topic)
        writer.int32(len(streams))
        for stream in streams:
            writer.int32(stream.partition)
            writer.int64(offsets[stream])
            writer.int32(_NO_EPOCH)
            writer.string(None)
    return bytes(writer.data)


def offset_commit_reply(body: Buffer) -> dict[TopicPartition, int]:
    """Error codes by stream. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    errors: dict[TopicPartition, int] = {}
    for _ in range(reader.count()):
        topic = reader.string()
        for _ in range(reader.count()):
            partition = reader.int32()
            errors[TopicPartition(topic, partition)] = reader.int16()
    return errors


# ---- topics


def delete_topics_request(topics: Sequence[str], *, timeout_ms: int) -> bytes:
    """Delete these topics with all their records."""
    writer = WireWriter()
    _strings(writer, topics)
    writer.int32(timeout_ms)
    return bytes(writer.data)


def delete_topics_reply(body: Buffer) -> dict[str, int]:
    """Error codes by topic; this version has no messages. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    return {reader.string(): reader.int16() for _ in range(reader.count())}


def alter_topic_request(topic: str, changes: Mapping[str, str | None]) -> bytes:
    """Change settings of a topic; None resets a setting to its default."""
    writer = WireWriter()
    writer.int32(1)
    writer.int8(_TOPIC)
    writer.string(topic)
    writer.int32(len(changes))
    for key, value in changes.items():
        writer.string(key)
        writer.int8(_DELETE if value is None else _SET)
        writer.string(value)
    writer.int8(False)  # validate only: no
    return bytes(writer.data)


def alter_topic_reply(body: Buffer) -> tuple[int, str]:
    """The error code and its message, which may be empty. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    if reader.count() != 1:
        raise MalformedReply("a reply that is not about the one topic to be changed")
    error, message = reader.int16(), reader.nullable() or ""
    return error, message


def log_dirs_request() -> bytes:
    """Ask for the sizes of all streams."""
    writer = WireWriter()
    writer.int32(-1)
    return bytes(writer.data)


def log_dirs_reply(body: Buffer) -> dict[TopicPartition, int] | None:
    """The bytes of each stream's chunks; None: who asks may not know, and is told of no directory. Raises
    MalformedReply.
    """
    reader = WireReader(body)
    reader.int32()  # throttle time
    sizes: dict[TopicPartition, int] = {}
    directories = reader.count()
    for _ in range(directories):
        reader.int16(), reader.string()  # error code and name of the directory
        for _ in range(reader.count()):
            topic = reader.string()
            for _ in range(reader.count()):
                partition, size_bytes = reader.int32(), reader.int64()
                reader.int64(), reader.int8()  # lag and whether it is moving here
                sizes[TopicPartition(topic, partition)] = size_bytes
    return sizes if directories else None


def _strings(writer: WireWriter, values: Sequence[str]) -> None:
    writer.int32(len(values))
    for value in values:
        writer.string(value)
