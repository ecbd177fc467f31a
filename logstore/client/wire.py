"""Encodes the few Kafka requests that the blocking client sends, and decodes their replies. No I/O.

`logstore.client.admin_wire` and `logstore.client.acl_wire` have those of operators' commands, in the same way.

The module does not use kio, because loading kio's dataclasses costs each new Spark worker half a second. All versions
precede the flexible encodings: Metadata 4, ListOffsets 2, Fetch 11, Produce 7, OffsetCommit 7, OffsetFetch 5,
FindCoordinator 2, DescribeGroups 4, ListGroups 2, CreateTopics 4, DeleteTopics 3, DeleteRecords 1, DescribeAcls 1,
CreateAcls 1, DeleteAcls 1, DescribeConfigs 2, DescribeLogDirs 1, CreatePartitions 1, DeleteGroups 1,
IncrementalAlterConfigs 0. Cairn and every Kafka since 2.3 serve them.

Invariants: a reply that is too short, or counts more elements than it holds, raises MalformedReply and no other error;
record batches are views into the reply, never copied.

Source: Kafka's protocol guide, kafka.apache.org/protocol.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from logstore.base.addresses import Address
from logstore.client.errors import MalformedReply
from logstore.format.topic_partition import TopicPartition as TopicPartition
from logstore.interfaces import Buffer

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DELETE_RECORDS: Final = 21
DESCRIBE_ACLS: Final = 29
CREATE_ACLS: Final = 30
DELETE_ACLS: Final = 31
DESCRIBE_CONFIGS: Final = 32
DESCRIBE_LOG_DIRS: Final = 35
CREATE_PARTITIONS: Final = 37
DELETE_GROUPS: Final = 42
INCREMENTAL_ALTER_CONFIGS: Final = 44
DESCRIBE_USERS: Final = 50
ALTER_USERS: Final = 51
VERSIONS: Final = {
    PRODUCE: 7,
    FETCH: 11,
    LIST_OFFSETS: 2,
    METADATA: 4,
    OFFSET_COMMIT: 7,
    OFFSET_FETCH: 5,
    FIND_COORDINATOR: 2,
    DESCRIBE_GROUPS: 4,
    LIST_GROUPS: 2,
    CREATE_TOPICS: 4,
    DELETE_TOPICS: 3,
    DELETE_RECORDS: 1,
    DESCRIBE_ACLS: 1,
    CREATE_ACLS: 1,
    DELETE_ACLS: 1,
    DESCRIBE_CONFIGS: 2,
    DESCRIBE_LOG_DIRS: 1,
    CREATE_PARTITIONS: 1,
    DELETE_GROUPS: 1,
    INCREMENTAL_ALTER_CONFIGS: 0,
    DESCRIBE_USERS: 0,
    ALTER_USERS: 0,
}

EARLIEST: Final = -2
LATEST: Final = -1

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_HEADER: Final = struct.Struct(">hhi")
_FETCH_HEAD: Final = struct.Struct(">iiiibii")
_FETCH_PARTITION: Final = struct.Struct(">iiqqi")
_FETCHED: Final = struct.Struct(">ihqqq")
_NO_REPLICA: Final = -1
_NO_EPOCH: Final = -1
_NO_SESSION: Final = 0
_READ_UNCOMMITTED: Final = 0
_TOPIC: Final = 2
DEFAULT_REPLICATION: Final = -1


class TopicInfo(NamedTuple):
    """Metadata's answer for a topic. `partitions` is empty if `error` is not 0."""

    error: int
    internal: bool
    partitions: tuple[int, ...]


class OffsetInfo(NamedTuple):
    """ListOffsets's answer for a stream; `offset` is -1 if no record has the timestamp or a later one."""

    error: int
    timestamp_ms: int
    offset: int


class Fetched(NamedTuple):
    """Fetch's answer for a stream. `records` are concatenated batches; the last one may be cut off."""

    error: int
    high_watermark: int
    log_start_offset: int
    records: memoryview


class Produced(NamedTuple):
    """Produce's answer for a stream."""

    error: int
    base_offset: int


class Created(NamedTuple):
    """CreateTopics's or CreatePartitions's answer for a topic; the message may be empty."""

    error: int
    message: str


class Trimmed(NamedTuple):
    """DeleteRecords's answer for a stream: its new start offset."""

    error: int
    log_start_offset: int


class TopicConfigs(NamedTuple):
    """DescribeConfigs's answer for a topic: the values in effect, defaults included."""

    error: int
    message: str
    values: dict[str, str]


class WireWriter:
    """Appends Kafka's primitive types to a buffer."""

    def __init__(self) -> None:
        self.data = bytearray()

    def int8(self, value: int) -> None:
        """A signed byte."""
        self.data += _INT8.pack(value)

    def int16(self, value: int) -> None:
        """A signed number of 2 bytes."""
        self.data += _INT16.pack(value)

    def int32(self, value: int) -> None:
        """A signed number of 4 bytes."""
        self.data += _INT32.pack(value)

    def int64(self, value: int) -> None:
        """A signed number of 8 bytes."""
        self.data += _INT64.pack(value)

    def string(self, value: str | None) -> None:
        """A string with its length in front; None is null."""
        if value is None:
            self.int16(-1)
            return
        encoded = value.encode()
        self.int16(len(encoded))
        self.data += encoded


class WireReader:
    """Reads Kafka's primitive types in sequence."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self._at = 0

    def _take(self, kind: struct.Struct) -> tuple[int, ...]:
        if len(self._data) - self._at < kind.size:
            raise MalformedReply(f"a reply of {len(self._data)} bytes ends too early")
        values = kind.unpack_from(self._data, self._at)
        self._at += kind.size
        return values

    def fields(self, kind: struct.Struct) -> tuple[int, ...]:
        """The numbers of a struct."""
        return self._take(kind)

    def int8(self) -> int:
        """A signed byte."""
        return self._take(_INT8)[0]

    def int16(self) -> int:
        """A signed number of 2 bytes."""
        return self._take(_INT16)[0]

    def int32(self) -> int:
        """A signed number of 4 bytes."""
        return self._take(_INT32)[0]

    def int64(self) -> int:
        """A signed number of 8 bytes."""
        return self._take(_INT64)[0]

    def string(self) -> str:
        """A string; "" where it is null."""
        length = self.int16()
        try:
            return str(self._bytes(max(length, 0)), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedReply(f"a name that is not UTF-8: {error}") from error

    def nullable(self) -> str | None:
        """A string, or None."""
        length = self.int16()
        if length < 0:
            return None
        self._at -= _INT16.size
        return self.string()

    def records(self) -> memoryview:
        """Bytes with their length in front, or none where they are null; a view."""
        return self._bytes(max(self.int32(), 0))

    def count(self) -> int:
        """An array's length. Raises MalformedReply if the remaining bytes cannot hold its elements of two bytes."""
        count = self.int32()
        if count > (len(self._data) - self._at) // 2:
            raise MalformedReply(f"{count} elements do not fit a reply of {len(self._data)} bytes")
        return max(count, 0)

    def _bytes(self, length: int) -> memoryview:
        if length > len(self._data) - self._at:
            raise MalformedReply(f"a field of {length} bytes does not fit a reply of {len(self._data)} bytes")
        self._at += length
        return self._data[self._at - length : self._at]


def request_header(api_key: int, correlation_id: int, client_id: str) -> bytes:
    """The header (version 1) before a request's body."""
    writer = WireWriter()
    writer.data += _HEADER.pack(api_key, VERSIONS[api_key], correlation_id)
    writer.string(client_id)
    return bytes(writer.data)


def metadata_request(topics: Sequence[str] | None, *, create: bool) -> bytes:
    """Ask for topics (None: all); `create`: create those that do not exist, if the server allows it."""
    writer = WireWriter()
    if topics is None:
        writer.int32(-1)
    else:
        writer.int32(len(topics))
        for topic in topics:
            writer.string(topic)
    writer.int8(create)
    return bytes(writer.data)


def metadata_reply(body: Buffer) -> dict[str, TopicInfo]:
    """Topics by name. Raises MalformedReply."""
    return _metadata(body).topics


def leaders_reply(body: Buffer) -> tuple[list[Address], dict[TopicPartition, Address]]:
    """The hosts of a cluster, and who leads which stream, by a metadata request. Raises MalformedReply."""
    found = _metadata(body)
    hosts = found.hosts
    leaders = {stream: hosts[node] for stream, node in found.leaders.items() if node in hosts}
    return list(hosts.values()), leaders


class _Metadata(NamedTuple):
    """Hosts by node id, topics by name, and the node ids of leaders."""

    hosts: dict[int, Address]
    topics: dict[str, TopicInfo]
    leaders: dict[TopicPartition, int]


def _metadata(body: Buffer) -> _Metadata:
    reader = WireReader(body)
    reader.int32()  # throttle time
    hosts: dict[int, Address] = {}
    for _ in range(reader.count()):
        node, host, port = reader.int32(), reader.string(), reader.int32()
        reader.string()  # rack
        hosts[node] = Address(host, port)
    reader.string(), reader.int32()  # cluster, controller
    topics: dict[str, TopicInfo] = {}
    leaders: dict[TopicPartition, int] = {}
    for _ in range(reader.count()):
        error, name, internal = reader.int16(), reader.string(), bool(reader.int8())
        partitions: list[int] = []
        for _ in range(reader.count()):
            reader.int16()  # its error code: a partition without a leader is listed too
            partitions.append(reader.int32())
            leaders[TopicPartition(name, partitions[-1])] = reader.int32()
            for _ in range(2):  # replicas, in-sync replicas
                for _ in range(reader.count()):
                    reader.int32()
        topics[name] = TopicInfo(error, internal, tuple(sorted(partitions)))
    return _Metadata(hosts, topics, leaders)


def _grouped(streams: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for stream in streams:
        topics.setdefault(stream.topic, []).append(stream)
    return topics


def list_offsets_request(timestamps_ms: Mapping[TopicPartition, int]) -> bytes:
    """Ask for the first offset at or after a timestamp; EARLIEST and LATEST are timestamps too."""
    writer = WireWriter()
    writer.int32(_NO_REPLICA)
    writer.int8(_READ_UNCOMMITTED)
    topics = _grouped(timestamps_ms)
    writer.int32(len(topics))
    for topic, streams in topics.items():
        writer.string(topic)
        writer.int32(len(streams))
        for stream in streams:
            writer.int32(stream.partition)
            writer.int64(timestamps_ms[stream])
    return bytes(writer.data)


def list_offsets_reply(body: Buffer) -> dict[TopicPartition, OffsetInfo]:
    """Offsets by stream. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    offsets: dict[TopicPartition, OffsetInfo] = {}
    for _ in range(reader.count()):
        topic = reader.string()
        for _ in range(reader.count()):
            partition, error = reader.int32(), reader.int16()
            offsets[TopicPartition(topic, partition)] = OffsetInfo(error, reader.int64(), reader.int64())
    return offsets


def fetch_request(stream: TopicPartition, offset: int, *, max_bytes: int, max_wait_ms: int) -> bytes:
    """Ask for batches of one stream, starting with the batch that holds `offset`."""
    writer = WireWriter()
    writer.data += _FETCH_HEAD.pack(_NO_REPLICA, max_wait_ms, 1, max_bytes, _READ_UNCOMMITTED, _NO_SESSION, _NO_EPOCH)
    writer.int32(1)
    writer.string(stream.topic)
    writer.int32(1)
    writer.data += _FETCH_PARTITION.pack(stream.partition, _NO_EPOCH, offset, -1, max_bytes)
    writer.int32(0)  # no topics to remove from the session
    writer.string("")  # rack
    return bytes(writer.data)


def fetch_reply(body: Buffer) -> Fetched:
    """The stream's batches, as views into `body`. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    error = reader.int16()
    reader.int32()  # session
    if error:
        return Fetched(error, -1, -1, memoryview(b""))
    if reader.count() != 1 or reader.string() is None or reader.count() != 1:
        raise MalformedReply("a fetch reply that is not about the one stream asked for")
    _, error, high_watermark, _, log_start_offset = reader.fields(_FETCHED)
    for _ in range(reader.count()):  # aborted transactions
        reader.int64(), reader.int64()
    reader.int32()  # preferred replica
    return Fetched(error, high_watermark, log_start_offset, reader.records())


def produce_request(stream: TopicPartition, records: Buffer, *, timeout_ms: int) -> list[Buffer]:
    """Append batches to a stream, acknowledged once durable; `records` is not copied."""
    writer = WireWriter()
    writer.string(None)  # no transaction
    writer.int16(-1)  # acks=all
    writer.int32(timeout_ms)
    writer.int32(1)
    writer.string(stream.topic)
    writer.int32(1)
    writer.int32(stream.partition)
    writer.int32(len(records))
    return [bytes(writer.data), records]


def produce_reply(body: Buffer) -> Produced:
    """The answer for the stream. Raises MalformedReply."""
    reader = WireReader(body)
    if reader.count() != 1 or reader.string() is None or reader.count() != 1:
        raise MalformedReply("a produce reply that is not about the one stream asked for")
    reader.int32()  # partition
    return Produced(reader.int16(), reader.int64())


def create_topic_request(
    name: str, partitions: int, configs: Mapping[str, str], *, timeout_ms: int, replicas: int = DEFAULT_REPLICATION
) -> bytes:
    """Create one topic."""
    writer = WireWriter()
    writer.int32(1)
    writer.string(name)
    writer.int32(partitions)
    writer.int16(replicas)
    writer.int32(0)  # no assignments
    writer.int32(len(configs))
    for key, value in configs.items():
        writer.string(key)
        writer.string(value)
    writer.int32(timeout_ms)
    writer.int8(False)  # validate only: no
    return bytes(writer.data)


def create_partitions_request(name: str, count: int, *, timeout_ms: int) -> bytes:
    """Give one topic more partitions: `count` in total, assigned by the server."""
    writer = WireWriter()
    writer.int32(1)
    writer.string(name)
    writer.int32(count)
    writer.int32(-1)  # no assignments
    writer.int32(timeout_ms)
    writer.int8(False)  # validate only: no
    return bytes(writer.data)


def create_topic_reply(body: Buffer) -> Created:
    """The answer for the topic to CreateTopics or CreatePartitions. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    if reader.count() != 1 or reader.string() is None:
        raise MalformedReply("a reply that is not about the one topic to be made")
    return Created(reader.int16(), reader.nullable() or "")


def delete_records_request(stream: TopicPartition, before_offset: int, *, timeout_ms: int) -> bytes:
    """Trim the records before an offset (-1: all records)."""
    writer = WireWriter()
    writer.int32(1)
    writer.string(stream.topic)
    writer.int32(1)
    writer.int32(stream.partition)
    writer.int64(before_offset)
    writer.int32(timeout_ms)
    return bytes(writer.data)


def delete_records_reply(body: Buffer) -> Trimmed:
    """The answer for the stream. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    if reader.count() != 1 or reader.string() is None or reader.count() != 1:
        raise MalformedReply("a reply that is not about the one stream to be trimmed")
    reader.int32()  # partition
    start = reader.int64()
    return Trimmed(reader.int16(), start)


def describe_topic_request(name: str) -> bytes:
    """Ask for all settings of one topic."""
    writer = WireWriter()
    writer.int32(1)
    writer.int8(_TOPIC)
    writer.string(name)
    writer.int32(-1)  # all of them
    writer.int8(False)  # no synonyms
    return bytes(writer.data)


def describe_topic_reply(body: Buffer) -> TopicConfigs:
    """The topic's settings; settings without a value are left out. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    if reader.count() != 1:
        raise MalformedReply("a reply that is not about the one topic asked for")
    error, message = reader.int16(), reader.nullable() or ""
    reader.int8(), reader.string()  # type and name
    values: dict[str, str] = {}
    for _ in range(reader.count()):
        key, value = reader.string(), reader.nullable()
        reader.int8(), reader.int8(), reader.int8()  # read-only, source, sensitive
        for _ in range(reader.count()):
            reader.string(), reader.nullable(), reader.int8()  # a synonym
        if value is not None:
            values[key] = value
    return TopicConfigs(error, message, values)
