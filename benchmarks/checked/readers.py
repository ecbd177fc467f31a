"""Readers, members of a group, a committer, and the reading of whole logs at the end.

Invariants:
* A reader begins at 0 and never seeks: it goes on where it was, through whatever happens to hosts.
* A member commits what it was delivered, after it was delivered.
* A committer is alone in its group, and reads back what it has committed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing, suppress
from random import Random

import confluent_kafka
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from benchmarks.checked.work import Work, stream_name

POLL_S = 0.5
REJOIN_S = (5.0, 20.0)
COMMIT_EACH_S = 0.2
PAUSE_S = 0.5
END_OF_PARTITION = -191
"""What librdkafka calls `_PARTITION_EOF`."""
LOG_S = 120.0
"""For one log to be read at the end."""
Records = list[tuple[int, str]]


def _settings(work: Work, group: str) -> dict[str, str | int | bool]:
    return {
        "bootstrap.servers": ",".join(work.bootstrap),
        "group.id": group,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "socket.timeout.ms": 10_000,
        "client.id": group,
        **work.librdkafka_logs,
    }


def read_confluent(work: Work) -> None:
    """A reader of all partitions, of librdkafka."""
    who = work.new_name("reader-librdkafka")
    consumer = confluent_kafka.Consumer(_settings(work, who))
    consumer.assign([confluent_kafka.TopicPartition(work.topic, partition, 0) for partition in range(work.partitions)])
    positions = [0] * work.partitions
    while not work.ended.is_set():
        found: defaultdict[int, Records] = defaultdict(list)
        for message in consumer.consume(500, POLL_S):
            if message.error():
                work.noted("a reader of librdkafka was told " + message.error().name())
            else:
                found[message.partition()].append((message.offset(), (message.value() or b"").decode()))
        for partition, records in found.items():
            _note_read(work, who, partition, positions, records)
    consumer.close()


def read_kafka_python(work: Work) -> None:
    """A reader of all partitions, of kafka-python."""
    who = work.new_name("reader-kafka-python")
    consumer = KafkaConsumer(
        bootstrap_servers=work.bootstrap, auto_offset_reset="none", metadata_max_age_ms=5_000, request_timeout_ms=5_000
    )
    places = [TopicPartition(work.topic, partition) for partition in range(work.partitions)]
    consumer.assign(places)
    for place in places:
        consumer.seek(place, 0)
    positions = [0] * work.partitions
    with closing(consumer):
        while not work.ended.is_set():
            try:
                polled = consumer.poll(int(POLL_S * 1000))
            except KafkaError as error:
                work.noted("a reader of kafka-python was told", error)
                work.ended.wait(PAUSE_S)
                continue
            for place, messages in polled.items():
                records = [(message.offset, message.value.decode()) for message in messages]
                _note_read(work, who, place.partition, positions, records)


def _note_read(work: Work, who: str, partition: int, positions: list[int], records: Records) -> None:
    stream = stream_name(work.topic, partition)
    call = work.recorder.begin("read", who, stream=stream, offset=positions[partition])
    call.ok(records=records)
    positions[partition] = records[-1][0] + 1


def be_member(work: Work, group: str, chance: Random) -> None:
    """A member that commits what it was given, leaves after a while, and comes again."""
    while not work.ended.is_set():
        who = work.new_name(f"member-{group}")
        settings = _settings(work, group) | {"auto.offset.reset": "earliest", "session.timeout.ms": 6_000}
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe([work.topic])
        until_s = time.monotonic() + chance.uniform(*REJOIN_S)
        while time.monotonic() < until_s and not work.ended.is_set():
            given: defaultdict[int, Records] = defaultdict(list)
            for message in consumer.consume(500, POLL_S):
                if not message.error():
                    given[message.partition()].append((message.offset(), (message.value() or b"").decode()))
            _deliver_and_commit(work, who, group, consumer, given)
        consumer.close()
        work.noted("members that left")


def _deliver_and_commit(
    work: Work, who: str, group: str, consumer: confluent_kafka.Consumer, given: dict[int, Records]
) -> None:
    calls = []
    for partition, records in given.items():
        stream = stream_name(work.topic, partition)
        work.recorder.begin("deliver", who, group=group, stream=stream).ok(records=records)
        offset = records[-1][0] + 1
        call = work.recorder.begin("commit", who, group=group, stream=stream, offset=offset)
        calls.append((call, confluent_kafka.TopicPartition(work.topic, partition, offset)))
    if not calls:
        return
    try:
        answers = consumer.commit(offsets=[place for _, place in calls], asynchronous=False)
    except confluent_kafka.KafkaException as error:
        for call, _ in calls:
            call.failed(error)
        return
    failed = {answer.partition: answer.error for answer in answers or [] if answer.error is not None}
    for call, place in calls:
        if place.partition in failed:
            call.failed(failed[place.partition])
        else:
            call.ok()


def commit_alone(work: Work) -> None:
    """Numbers that only go up are committed and read back, by one client without a membership."""
    who = group = work.new_name("committer")
    consumer = confluent_kafka.Consumer(_settings(work, group))
    offset, stream = 0, stream_name(work.topic, 0)
    while not work.ended.wait(COMMIT_EACH_S):
        offset += 1
        call = work.recorder.begin("commit", who, group=group, stream=stream, offset=offset)
        try:
            consumer.commit(offsets=[confluent_kafka.TopicPartition(work.topic, 0, offset)], asynchronous=False)
        except confluent_kafka.KafkaException as error:
            call.failed(error)
        else:
            call.ok()
        _ask_committed(work, who, group, consumer, 0)
    consumer.close()


def _ask_committed(work: Work, who: str, group: str, consumer: confluent_kafka.Consumer, partition: int) -> bool:
    """Whether there was an answer."""
    call = work.recorder.begin("committed", who, group=group, stream=stream_name(work.topic, partition))
    try:
        (found,) = consumer.committed([confluent_kafka.TopicPartition(work.topic, partition)], timeout=10.0)
    except confluent_kafka.KafkaException as error:
        call.failed(error)
        return False
    if found.error is not None:
        call.failed(found.error)
        return False
    call.ok(offset=found.offset)
    return True


def ask_commits(work: Work, groups: Sequence[str]) -> None:
    """What each group has committed at the end."""
    for group in groups:
        consumer = confluent_kafka.Consumer(_settings(work, group))
        for partition in range(work.partitions):
            deadline_s = time.monotonic() + LOG_S
            while not _ask_committed(work, "end", group, consumer, partition) and time.monotonic() < deadline_s:
                time.sleep(PAUSE_S)
        consumer.close()


def read_log(work: Work, topic: str, partition: int, stream: str) -> bool:
    """All that a stream holds. False: it could not be read within LOG_S."""
    settings = _settings(work, work.new_name("end")) | {"enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(settings)
    place = confluent_kafka.TopicPartition(topic, partition, 0)
    deadline_s = time.monotonic() + LOG_S
    call = work.recorder.begin("log", "end", stream=stream)
    records: Records = []
    try:
        limit = None
        while limit is None and time.monotonic() < deadline_s:
            with suppress(confluent_kafka.KafkaException):
                limit = consumer.get_watermark_offsets(place, timeout=10)[1]
        consumer.assign([place])
        position = 0
        while limit is not None and position < limit and time.monotonic() < deadline_s:
            for message in consumer.consume(5_000, POLL_S):
                if message.error() is None:
                    records.append((message.offset(), (message.value() or b"").decode()))
                    position = message.offset() + 1
                elif message.error().code() == END_OF_PARTITION:
                    position = message.offset()  # control records, which clients do not show, lie behind the last one
    finally:
        consumer.close()
    if limit is None or position < limit:
        call.failed(f"{len(records)} records of {limit} within {LOG_S:g} s")
        return False
    call.ok(records=[each for each in records if each[0] < limit], limit=limit)
    return True
