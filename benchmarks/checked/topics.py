"""Topics that come, grow, get records, go, and come again under the same name.

Invariants: a name is used by this client alone. After a call without an answer the name is left: nobody knows what
became of it. A topic that was made again is another stream of the history.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from random import Random

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from benchmarks.checked import epochs
from benchmarks.checked.readers import read_log
from benchmarks.checked.work import Work, stream_name

EACH_S = 3.0
ANSWER_S = 30.0
RECORDS = 5
REPLICAS = 3


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


def create(work: Work, admin: AdminClient, topic: str, partitions: int) -> bool:
    """Make a topic with three replicas; whether it was answered."""
    wanted = NewTopic(topic, partitions, REPLICAS)
    return _settle(work, "create", topic, partitions, admin.create_topics([wanted], operation_timeout=ANSWER_S))


def make_topics(work: Work, chance: Random) -> None:
    """See the module."""
    admin, count = _admin(work), 0
    while not work.ended.wait(EACH_S):
        count += 1
        name = f"short-{count}"
        for life in range(chance.choice((1, 1, 2))):
            partitions = chance.randint(1, 3)
            if not create(work, admin, name, partitions):
                break
            if chance.random() < 0.5:
                partitions += 1
                grown = admin.create_partitions([NewPartitions(name, partitions)], operation_timeout=ANSWER_S)
                if not _settle(work, "grow", name, partitions, grown):
                    break
            _fill_and_read(work, name, life, partitions - 1)
            if chance.random() < 0.2:
                break  # it stays
            if not _settle(work, "delete", name, 0, admin.delete_topics([name], operation_timeout=ANSWER_S)):
                break
            work.noted("topics made and deleted")


def _fill_and_read(work: Work, topic: str, life: int, partition: int) -> None:
    stream = f"{stream_name(topic, partition)}#{life}"
    who = work.new_name("filler")
    work.recorder.add(what="producer", who=who, stream=stream, idempotent=True)
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
    if producer.flush(2 * ANSWER_S) == 0:
        read_log(work, topic, partition, stream)


def list_topics(work: Work) -> bool:
    """All topics that there are, at the end; whether it was answered."""
    admin = _admin(work)
    deadline_s = time.monotonic() + 2 * ANSWER_S
    while time.monotonic() < deadline_s:
        call = work.recorder.begin("topics", "end")
        try:
            found = admin.list_topics(timeout=10)
        except confluent_kafka.KafkaException as error:
            call.failed(error)
            continue
        call.ok(topics={name: len(topic.partitions) for name, topic in found.topics.items()})
        return True
    return False


def create_main(work: Work) -> None:
    """The topics that everybody uses. Raises RuntimeError if they cannot be made."""
    for partition in range(work.partitions):
        work.recorder.add(what="stream", stream=stream_name(work.topic, partition), dense=True)
    for stream in epochs.STREAMS:
        work.recorder.add(what="stream", stream=stream, dense=False)  # control records lie between
    for topic, partitions in ((work.topic, work.partitions), (epochs.TOPIC, epochs.PARTITIONS)):
        if not create(work, _admin(work), topic, partitions):
            raise RuntimeError(f"topic {topic} could not be made")
