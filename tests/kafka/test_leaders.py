"""The current leader in refusals of Produce and Fetch is written as the protocol's schemas say."""

import inspect
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId
from kio.static.primitive import i32

from logstore.base.metadata import schema
from logstore.cluster.members.placement import Placement
from logstore.cluster.members.view import KnownHead, stream_name
from logstore.kafka import codec, fetch, produce
from logstore.kafka.leaders import NOT_LEADER, Leaders
from logstore.kafka.topic_keys import TopicKey
from logstore.kafka.wire import build
from logstore.log.store import Store, StoreSettings
from logstore.log.stream import Stream
from logstore.replica.registrations import OwnerId, StreamHead
from logstore.testing.clock import ManualClock
from logstore.testing.reports import RecordedReports
from logstore.testing.simdisk import SimDisk

HOSTS = {"a": 1, "b": 2, "c": 3}


class KnownOwners:
    """What a host knows of the owners of one topic's streams."""

    def __init__(self, topic_id: uuid.UUID, owners: Mapping[int, str]) -> None:
        self.live: Mapping[str, schema.StoredMember] = {}
        self.owners = {stream_name(topic_id.hex, partition): owner for partition, owner in owners.items()}

    def owner_of(self, stream: str) -> str | None:
        return self.owners.get(stream)

    def head(self, stream: str) -> KnownHead | None:
        return KnownHead(StreamHead(3, 2, 7, OwnerId(self.owners.get(stream, "a"), "1"), None, 0), 9)

    def is_changing_hands(self, stream: str) -> bool:
        return False

    def may_answer(self, host: str) -> bool:
        return True


def leaders(owners: Mapping[int, str]) -> tuple[Leaders, uuid.UUID]:
    """Leaders of the partitions of the topic t, and its id; hosts listen at NAME.example:9092."""
    disk = SimDisk()
    store = Store.open(disk, ManualClock(), StoreSettings(), new_id=uuid.uuid4, report=RecordedReports())
    created = store.create_topic("t", 4, {})
    while (job := store.queue.next_job()) is not None:
        store.queue.finished(job, job.run(disk))
    topic = created.result()
    assert all(isinstance(stream, Stream) for stream in topic.partitions)
    members = {
        name: schema.StoredMember(
            disk=name, start="1", node_id=number, link="l:1", rack="r" if name == "b" else "",
            addresses={"PLAINTEXT_0": f"{name}.example:9092"},
        )
        for name, number in HOSTS.items()
    }  # fmt: skip
    known = KnownOwners(topic.topic_id, owners)
    placement = Placement(known, lambda: members, {"PLAINTEXT_0": "a.example:9092"}, lambda: None, 1)
    return Leaders(store, placement, "a.example", 9092), topic.topic_id


def told(kinds: Any, owners: Mapping[int, str], partition: int, error: int) -> dict[str, Any]:
    """The leader in a partition's answer."""
    if error != NOT_LEADER or partition not in owners:
        return {}
    leader = kinds.LeaderIdAndEpoch(leader_id=BrokerId(HOSTS[owners[partition]]), leader_epoch=i32(7))
    return {"current_leader": leader}


def endpoints(owners: Mapping[int, str], refused: Mapping[int, int]) -> dict[str, Any]:
    """The addresses in an answer."""
    led = {owners[partition] for partition, error in refused.items() if error == NOT_LEADER and partition in owners}
    shown = [
        {"node_id": HOSTS[name], "host": f"{name}.example", "port": 9092, "rack": "r" if name == "b" else None}
        for name in sorted(led)
    ]
    return {"node_endpoints": shown} if shown else {}


CASES = [
    ({0: "b", 1: "b", 2: "c"}, {0: 6, 1: 6, 2: 6, 3: 6}),
    ({0: "b"}, {0: 6, 1: 3}),
    ({}, {0: 6}),
    ({0: "b"}, {0: 3}),
]


@pytest.mark.parametrize(("owners", "refused"), CASES)
@pytest.mark.parametrize("version", range(produce.MIN_VERSION, produce.MAX_VERSION + 1))
def test_produce(version: int, owners: dict[int, str], refused: dict[int, int]) -> None:
    """Of Produce from version 10 on, for each partition that another host leads; each address is there once."""
    found, topic_id = leaders(owners)
    key: TopicKey = topic_id if version >= produce.FIRST_WITH_IDS else "t"
    answer = produce.ProduceAnswer(version, -1, found)
    answer.topics.append((key, [produce._Outcome(partition, error, "why") for partition, error in refused.items()]))
    is_told = version >= 10
    kinds = inspect.getmodule(load_response_schema(0, version))
    partitions = [
        {
            "index": partition,
            "error_code": ErrorCode(error),
            "base_offset": -1,
            "log_append_time": None,
            "log_start_offset": -1,
            "record_errors": (),
            "error_message": "why",
            **(told(kinds, owners, partition, error) if is_told else {}),
        }
        for partition, error in refused.items()
    ]
    named = {"topic_id": topic_id} if version >= produce.FIRST_WITH_IDS else {"name": "t"}
    values = {
        "responses": [{**named, "partition_responses": partitions}],
        **(endpoints(owners, refused) if is_told else {}),
    }
    expected = codec.encode(build(load_response_schema(0, version), values))  # type: ignore[arg-type]
    assert b"".join(answer.body() or ()) == b"".join(expected)


@pytest.mark.parametrize(("owners", "refused"), CASES)
@pytest.mark.parametrize("version", range(12, fetch.MAX_VERSION + 1))
async def test_fetch(version: int, owners: dict[int, str], refused: dict[int, int]) -> None:
    """Of Fetch from version 16 on, likewise."""
    found, topic_id = leaders(owners)
    key: TopicKey = topic_id if version >= fetch.FIRST_WITH_IDS else "t"
    answers = [fetch._PartitionAnswer(partition, error, -1, -1, [], 0) for partition, error in refused.items()]
    is_told = version >= 16
    kinds = inspect.getmodule(load_response_schema(1, version))
    partitions = [
        {
            "partition_index": partition,
            "error_code": ErrorCode(error),
            "high_watermark": -1,
            "last_stable_offset": -1,
            "log_start_offset": -1,
            "aborted_transactions": (),
            "preferred_read_replica": -1,
            "records": b"",
            **(told(kinds, owners, partition, error) if is_told else {}),
        }
        for partition, error in refused.items()
    ]
    named = {"topic_id": topic_id} if version >= fetch.FIRST_WITH_IDS else {"topic": "t"}
    values = {
        "error_code": ErrorCode.none,
        "responses": [{**named, "partitions": partitions}],
        **(endpoints(owners, refused) if is_told else {}),
    }
    expected = codec.encode(build(load_response_schema(1, version), values))  # type: ignore[arg-type]
    assert b"".join(await fetch._encode(version, 0, [(key, answers)], found)) == b"".join(expected)
