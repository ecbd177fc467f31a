"""Topics that come, grow, get records, go, and come again under the same name; settings that change; deleted records.

Invariants: a name is used by this client alone. After a call without an answer the name is left: nobody knows what
became of it. A topic that was made again is another stream of the history. Records are deleted up to an offset that
only goes up.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

import confluent_kafka
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from benchmarks.checked.readers import find_limits, read_log
from benchmarks.checked.work import CLEARED, KIB, ORDERS, TOPICS, Topic, Work, place_of, stream_name

EACH_S = 3.0
CLEAR_EACH_S = 10.0
ANSWER_S = 30.0
END_S = 300.0
RECORDS = 5
REPLICAS = 3
CHANGES: Final = "changes of topics"
"""What must go on by this name."""
ALTERED: Final = "segment.bytes"
LOW_64_BITS: Final = (1 << 64) - 1


def _admin(work: Work) -> AdminClient:
    return AdminClient({"bootstrap.servers": ",".join(work.bootstrap), "log_level": 0, "socket.timeout.ms": 10_000})


def _settle(work: Work, call: str, topic: str, partitions: int, futures: Mapping[str, object]) -> bool:
    """Note a call of the admin client; whether it succeeded."""
    noted = work.recorder.begin(call, "admin", topic=topic, partitions=partitions)
    try:
        for future in futures.values():
            future.result(ANSWER_S)  # type: ignore[attr-defined]
    except (confluent_kafka.KafkaException, TimeoutError) as error:
        noted.failed(error)
        return False
    noted.ok()
    return True


def create(work: Work, admin: AdminClient, topic: NewTopic) -> bool:
    """Make a topic; whether it was answered."""
    made = admin.create_topics([topic], operation_timeout=ANSWER_S)
    return _settle(work, "create", topic.topic, topic.num_partitions, made)


def make_topics(work: Work, chance: Random) -> None:
    """See the module."""
    admin, count = _admin(work), 0
    work.expected(CHANGES)
    while not work.writing_ended.wait(EACH_S):
        count += 1
        name = f"short-{count}"
        for life in range(chance.choice((1, 1, 2))):
            partitions = chance.randint(1, 3)
            if not create(work, admin, NewTopic(name, partitions, REPLICAS)):
                break
            work.progressed(CHANGES)
            if chance.random() < 0.5:
                partitions += 1
                grown = admin.create_partitions([NewPartitions(name, partitions)], operation_timeout=ANSWER_S)
                if not _settle(work, "grow", name, partitions, grown):
                    break
            _fill_and_read(work, name, life, partitions - 1)
            if chance.random() < 0.2:
                break  # it stays
            work.filled.pop(f"{stream_name(name, partitions - 1)}#{life}", None)
            if not _settle(work, "delete", name, 0, admin.delete_topics([name], operation_timeout=ANSWER_S)):
                break
            work.noted("topics made and deleted")


def _fill_and_read(work: Work, topic: str, life: int, partition: int) -> None:
    stream = f"{stream_name(topic, partition)}#{life}"
    who = work.new_name("filler")
    work.recorder.add(what="producer", who=who, stream=stream, idempotent=True, topic=topic)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": ",".join(work.bootstrap), "enable.idempotence": True, "log_level": 0,
            "message.timeout.ms": int(ANSWER_S * 1000),
        }
    )  # fmt: skip
    for number in range(RECORDS):
        call = work.recorder.begin("produce", who, stream=stream, number=number)

        def note(error: object, message: confluent_kafka.Message, call: object = call) -> None:
            if error is None:
                call.ok(offset=message.offset())  # type: ignore[attr-defined]
            else:
                call.failed(error)  # type: ignore[attr-defined]

        producer.produce(topic, f"{who}:{number}".encode(), partition=partition, on_delivery=note)
    work.filled[stream] = topic, partition
    if producer.flush(2 * ANSWER_S) == 0:
        read_log(work, (topic, partition), stream, 2 * ANSWER_S)


def change_settings(work: Work, chance: Random) -> None:
    """A setting of orders changes and is read back, and records of another topic are deleted."""
    admin, deleter = _admin(work), Deleter(work)
    while not work.writing_ended.wait(CLEAR_EACH_S):
        value = 16 * KIB + chance.randrange(32 * KIB)
        call = work.recorder.begin("alter", "admin", topic=ORDERS.name, key=ALTERED, value=value)
        entry = ConfigEntry(ALTERED, str(value), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, ORDERS.name, incremental_configs=[entry])
        try:
            for future in admin.incremental_alter_configs([resource], request_timeout=ANSWER_S).values():
                future.result(ANSWER_S)
        except (confluent_kafka.KafkaException, TimeoutError) as error:
            call.failed(error)
        else:
            call.ok()
        describe(work, admin)
        deleter.delete_records(admin, chance)


def describe_at_end(work: Work) -> bool:
    """Read the setting back until there is an answer; whether there was one within END_S."""
    admin, deadline_s = _admin(work), time.monotonic() + END_S
    while not (is_answered := describe(work, admin)) and time.monotonic() < deadline_s:
        pass
    return is_answered


def describe(work: Work, admin: AdminClient) -> bool:
    """Read the setting back; whether it was answered."""
    call = work.recorder.begin("described", "admin", topic=ORDERS.name, key=ALTERED)
    try:
        (future,) = admin.describe_configs(
            [ConfigResource(ResourceType.TOPIC, ORDERS.name)], request_timeout=ANSWER_S
        ).values()
        found = future.result(ANSWER_S)
    except (confluent_kafka.KafkaException, TimeoutError) as error:
        call.failed(error)
        return False
    call.ok(value=int(found[ALTERED].value))
    return True


class Deleter:
    """Deletes records of the streams of a topic, up to offsets that only go up."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._cleared = dict.fromkeys(CLEARED.streams, 0)

    def delete_records(self, admin: AdminClient, chance: Random) -> None:
        """Up to somewhere between what was deleted and the end."""
        stream = chance.choice(CLEARED.streams)
        limit = find_limits(self._work, [stream]).get(stream, 0)
        if limit <= self._cleared[stream]:
            return
        offset = self._cleared[stream] = chance.randint(self._cleared[stream] + 1, limit)
        call = self._work.recorder.begin("clear", "admin", stream=stream, offset=offset)
        place = confluent_kafka.TopicPartition(*place_of(stream), offset)
        try:
            for future in admin.delete_records([place], request_timeout=ANSWER_S).values():
                future.result(ANSWER_S)
        except (confluent_kafka.KafkaException, TimeoutError) as error:
            call.failed(error)
        else:
            call.ok()


def list_topics(work: Work) -> dict[str, int] | None:
    """All topics that there are and their partitions, at the end; None: no host answered."""
    admin = _admin(work)
    deadline_s = time.monotonic() + END_S
    while time.monotonic() < deadline_s:
        call = work.recorder.begin("topics", "end")
        try:
            listed = admin.list_topics(timeout=10)
        except confluent_kafka.KafkaException as error:
            call.failed(error)
            continue
        found = {name: len(topic.partitions) for name, topic in listed.topics.items()}
        call.ok(topics=found)
        return found
    return None


def find_ids(work: Work, wanted: Sequence[Topic]) -> dict[str, str]:
    """The name of each topic by its id, in hexadecimal; empty: no host answered within END_S."""
    admin, names = _admin(work), confluent_kafka.TopicCollection([topic.name for topic in wanted])
    deadline_s = time.monotonic() + END_S
    while time.monotonic() < deadline_s:
        try:
            described = admin.describe_topics(names, request_timeout=ANSWER_S)
            found = {name: future.result(ANSWER_S).topic_id for name, future in described.items()}
        except (confluent_kafka.KafkaException, TimeoutError) as error:
            work.noted("the topics were not described", error)
        else:
            return {_hexadecimal(uuid): name for name, uuid in found.items()}
    return {}


def _hexadecimal(uuid: confluent_kafka.Uuid) -> str:
    high, low = uuid.get_most_significant_bits(), uuid.get_least_significant_bits()
    return f"{high & LOW_64_BITS:016x}{low & LOW_64_BITS:016x}"


def create_main(work: Work) -> None:
    """The topics that everybody uses. Raises RuntimeError if they cannot be made."""
    for topic in TOPICS:
        for stream in topic.streams:
            work.recorder.add(
                what="stream", stream=stream, dense=topic.is_dense, copies=REPLICAS, keeps_bytes=topic.keeps_bytes
            )
        if not create(work, _admin(work), NewTopic(topic.name, topic.partitions, REPLICAS, config=topic.settings)):
            raise RuntimeError(f"topic {topic.name} could not be made")
    work.recorder.add(what="setting", topic=ORDERS.name, key=ALTERED, value=ORDERS.segment_bytes)
