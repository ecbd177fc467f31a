"""The client's requests and replies as bytes, against kio's independent codec; torn and lying replies."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import pytest
from kio.schema.create_partitions.v1 import request as grow_request
from kio.schema.create_partitions.v1 import response as grow_response
from kio.schema.create_topics.v4 import request as create_request
from kio.schema.create_topics.v4 import response as create_response
from kio.schema.delete_records.v1 import request as trim_request
from kio.schema.delete_records.v1 import response as trim_response
from kio.schema.describe_configs.v2 import request as configs_request
from kio.schema.describe_configs.v2 import response as configs_response
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11 import request as fetch_request
from kio.schema.fetch.v11 import response as fetch_response
from kio.schema.list_offsets.v2 import request as offsets_request
from kio.schema.list_offsets.v2 import response as offsets_response
from kio.schema.metadata.v4 import request as metadata_request
from kio.schema.metadata.v4 import response as metadata_response
from kio.schema.produce.v7 import request as produce_request
from kio.schema.produce.v7 import response as produce_response
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records, i8, i32, i32Timedelta, i64

from logstore.client import wire
from logstore.client.errors import MalformedReply
from logstore.client.wire import TopicPartition

WAIT = i32Timedelta.parse(timedelta(0))
T = TypeVar("T")
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("ü", 0)


def written(entity: object) -> bytes:
    """An entity as kio writes it."""
    sink = io.BytesIO()
    entity_writer(type(entity))(sink, entity)  # type: ignore[type-var]
    return sink.getvalue()


def read(kind: type[T], data: bytes) -> T:
    """An entity as kio reads it, which must take all bytes."""
    entity, size = entity_reader(kind)(memoryview(data).toreadonly(), 0)  # type: ignore[type-var]
    assert size == len(data)
    return entity


def test_requests_are_what_kio_reads() -> None:
    """Every field is where Kafka expects it."""
    asked = read(metadata_request.MetadataRequest, wire.metadata_request(["t", "ü"], create=True))
    assert [topic.name for topic in asked.topics or ()] == ["t", "ü"]
    assert asked.allow_auto_topic_creation
    assert read(metadata_request.MetadataRequest, wire.metadata_request(None, create=False)).topics is None
    offsets = read(offsets_request.ListOffsetsRequest, wire.list_offsets_request({T0: -2, U0: 5, T1: -1}))
    found = {(t.name, p.partition_index): p.timestamp for t in offsets.topics for p in t.partitions}
    assert found == {("t", 0): -2, ("t", 1): -1, ("ü", 0): 5}
    fetch = read(fetch_request.FetchRequest, wire.fetch_request(T1, 77, max_bytes=1000, max_wait_ms=500))
    (partition,) = fetch.topics[0].partitions
    assert (fetch.topics[0].topic, partition.partition, partition.fetch_offset) == ("t", 1, 77)
    assert (fetch.max_wait, fetch.min_bytes, fetch.max_bytes) == (timedelta(milliseconds=500), 1, 1000)
    assert (fetch.session_id, fetch.session_epoch, fetch.isolation_level) == (0, -1, 0)
    produce = read(
        produce_request.ProduceRequest, b"".join(map(bytes, wire.produce_request(T1, b"batch", timeout_ms=9)))
    )
    assert (produce.acks, produce.transactional_id) == (-1, None)
    assert produce.topic_data[0].partition_data[0].records == b"batch"


def test_requests_about_topics_are_what_kio_reads() -> None:
    """Making a topic, trimming a stream and reading settings: every field is where Kafka expects it."""
    made = read(
        create_request.CreateTopicsRequest,
        wire.create_topic_request("ü", 3, {"a.b": "1", "c": ""}, timeout_ms=1500),
    )
    (topic,) = made.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor, topic.assignments) == ("ü", 3, -1, ())
    assert {entry.name: entry.value for entry in topic.configs} == {"a.b": "1", "c": ""}
    assert (made.timeout, made.validate_only) == (timedelta(milliseconds=1500), False)
    grown = read(grow_request.CreatePartitionsRequest, wire.create_partitions_request("t", 5, timeout_ms=9))
    assert (grown.topics[0].name, grown.topics[0].count, grown.topics[0].assignments) == ("t", 5, None)
    assert (grown.timeout, grown.validate_only) == (timedelta(milliseconds=9), False)
    trimmed = read(trim_request.DeleteRecordsRequest, wire.delete_records_request(T1, 2**40, timeout_ms=9))
    (partition,) = trimmed.topics[0].partitions
    assert (trimmed.topics[0].name, partition.partition_index, partition.offset) == ("t", 1, 2**40)
    asked = read(configs_request.DescribeConfigsRequest, wire.describe_topic_request("t"))
    (resource,) = asked.resources
    assert (resource.resource_type, resource.resource_name, resource.configuration_keys) == (2, "t", None)
    assert not asked.include_synonyms


CREATED = create_response.CreateTopicsResponse(
    throttle_time=WAIT,
    topics=(
        create_response.CreatableTopicResult(
            name=TopicName("t"), error_code=ErrorCode.topic_already_exists, error_message="there"
        ),
    ),
)
GROWN = grow_response.CreatePartitionsResponse(
    throttle_time=WAIT,
    results=(
        grow_response.CreatePartitionsTopicResult(
            name=TopicName("t"), error_code=ErrorCode.invalid_partitions, error_message=None
        ),
    ),
)
TRIMMED = trim_response.DeleteRecordsResponse(
    throttle_time=WAIT,
    topics=(
        trim_response.DeleteRecordsTopicResult(
            name=TopicName("t"),
            partitions=(
                trim_response.DeleteRecordsPartitionResult(
                    partition_index=i32(1), low_watermark=i64(2**40), error_code=ErrorCode.none
                ),
            ),
        ),
    ),
)
CONFIGS = configs_response.DescribeConfigsResponse(
    throttle_time=WAIT,
    results=(
        configs_response.DescribeConfigsResult(
            error_code=ErrorCode.none,
            error_message=None,
            resource_type=i8(2),
            resource_name="t",
            configs=tuple(
                configs_response.DescribeConfigsResourceResult(
                    name=name,
                    value=value,
                    read_only=False,
                    config_source=i8(1),
                    is_sensitive=False,
                    synonyms=(configs_response.DescribeConfigsSynonym(name=name, value=None, source=i8(5)),),
                )
                for name, value in (("a.b", "1"), ("secret", None), ("empty", ""))
            ),
        ),
    ),
)


def test_replies_about_topics_are_read_as_kio_wrote_them() -> None:
    """Nulls and empty texts are told apart."""
    assert wire.create_topic_reply(written(CREATED)) == wire.Created(36, "there")
    assert wire.create_topic_reply(written(GROWN)) == wire.Created(37, "")
    assert wire.delete_records_reply(written(TRIMMED)) == wire.Trimmed(0, 2**40)
    assert wire.describe_topic_reply(written(CONFIGS)) == wire.TopicConfigs(0, "", {"a.b": "1", "empty": ""})


METADATA = metadata_response.MetadataResponse(
    throttle_time=WAIT,
    brokers=(metadata_response.MetadataResponseBroker(node_id=BrokerId(0), host="h", port=i32(9), rack=None),),
    cluster_id="c",
    topics=(
        metadata_response.MetadataResponseTopic(
            error_code=ErrorCode.none,
            name=TopicName("t"),
            is_internal=True,
            partitions=tuple(
                metadata_response.MetadataResponsePartition(
                    error_code=ErrorCode.none,
                    partition_index=i32(index),
                    leader_id=BrokerId(0),
                    replica_nodes=(BrokerId(0),),
                    isr_nodes=(BrokerId(0),),
                )
                for index in (1, 0)
            ),
        ),
        metadata_response.MetadataResponseTopic(
            error_code=ErrorCode.unknown_topic_or_partition, name=TopicName("u"), partitions=()
        ),
    ),
)
OFFSETS = offsets_response.ListOffsetsResponse(
    throttle_time=WAIT,
    topics=(
        offsets_response.ListOffsetsTopicResponse(
            name=TopicName("t"),
            partitions=(
                offsets_response.ListOffsetsPartitionResponse(
                    partition_index=i32(1), error_code=ErrorCode.none, timestamp=i64(5), offset=i64(2**40)
                ),
            ),
        ),
    ),
)
FETCH = fetch_response.FetchResponse(
    throttle_time=WAIT,
    error_code=ErrorCode.none,
    responses=(
        fetch_response.FetchableTopicResponse(
            topic=TopicName("t"),
            partitions=(
                fetch_response.PartitionData(
                    partition_index=i32(0),
                    error_code=ErrorCode.none,
                    high_watermark=i64(9),
                    last_stable_offset=i64(9),
                    log_start_offset=i64(2),
                    aborted_transactions=None,
                    records=Records(b"batches"),
                ),
            ),
        ),
    ),
)
PRODUCED = produce_response.ProduceResponse(
    responses=(
        produce_response.TopicProduceResponse(
            name=TopicName("t"),
            partition_responses=(
                produce_response.PartitionProduceResponse(
                    index=i32(0), error_code=ErrorCode.corrupt_message, base_offset=i64(-1)
                ),
            ),
        ),
    ),
)


def test_replies_are_read_as_kio_wrote_them() -> None:
    """Errors, nulls and orders included."""
    topics = wire.metadata_reply(written(METADATA))
    assert topics["t"] == wire.TopicInfo(0, True, (0, 1))
    assert topics["u"] == wire.TopicInfo(3, False, ())
    assert wire.list_offsets_reply(written(OFFSETS)) == {T1: wire.OffsetInfo(0, 5, 2**40)}
    fetched = wire.fetch_reply(written(FETCH))
    assert (fetched.error, fetched.high_watermark, fetched.log_start_offset) == (0, 9, 2)
    assert bytes(fetched.records) == b"batches"
    assert wire.produce_reply(written(PRODUCED)) == wire.Produced(2, -1)


@pytest.mark.parametrize(
    ("entity", "decode"),
    [
        (METADATA, wire.metadata_reply),
        (OFFSETS, wire.list_offsets_reply),
        (FETCH, wire.fetch_reply),
        (PRODUCED, wire.produce_reply),
        (CREATED, wire.create_topic_reply),
        (GROWN, wire.create_topic_reply),
        (TRIMMED, wire.delete_records_reply),
        (CONFIGS, wire.describe_topic_reply),
    ],
)
def test_damaged_replies_are_malformed_and_nothing_worse(entity: object, decode: Callable[[bytes], object]) -> None:
    """Torn at every byte, and with every bit flipped: an answer or MalformedReply."""
    whole = written(entity)
    last_needed = len(whole) - (12 if entity is PRODUCED else 0)  # what follows the base offset is not looked at
    for length in range(last_needed):
        try:
            decode(whole[:length])
        except MalformedReply:
            continue
        assert entity is PRODUCED
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << (bit % 8)
        try:
            decode(bytes(flipped))
        except MalformedReply:
            continue
