"""Readers, members of a group, a committer, and the reading of whole logs at the end.

Invariants:
* A reader begins at 0 and never seeks: it goes on where it was, through whatever happens to hosts. Where records are
  trimmed it goes on at the log start if it was left behind.
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

from benchmarks.checked.work import ORDERS, Topic, Work, place_of, stream_name

POLL_S = 0.5
REJOIN_S = (5.0, 20.0)
COMMIT_EACH_S = 0.5
PAUSE_S = 0.5
END_OF_PARTITION = -191
"""What librdkafka calls `_PARTITION_EOF`."""
LOG_S = 300.0
"""For one log to be read, or for one answer, at the end."""
ASK_S = 10.0
ATTEMPT_S = 30.0
"""So long a consumer may give nothing before another one takes its place."""
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


def read_confluent(work: Work, topics: Sequence[Topic], reset: str) -> None:
    """A reader of all partitions of some topics, of librdkafka. `reset`: what it does where its position is trimmed."""
    who = work.new_name("reader-librdkafka")
    streams = [stream for topic in topics for stream in topic.streams]
    work.reader(who, streams)
    consumer = confluent_kafka.Consumer(_settings(work, who) | {"auto.offset.reset": reset})
    consumer.assign([confluent_kafka.TopicPartition(*place_of(stream), 0) for stream in streams])
    while not work.ended.is_set():
        found: defaultdict[str, Records] = defaultdict(list)
        for message in consumer.consume(500, POLL_S):
            if message.error():
                work.noted("a reader of librdkafka was told " + message.error().name())
            else:
                stream = stream_name(message.topic(), message.partition())
                found[stream].append((message.offset(), (message.value() or b"").decode()))
        for stream, records in found.items():
            _note_read(work, who, stream, records)
    consumer.close()


def read_kafka_python(work: Work) -> None:
    """A reader of all partitions of orders, of kafka-python."""
    who = work.new_name("reader-kafka-python")
    work.reader(who, ORDERS.streams)
    consumer = KafkaConsumer(
        bootstrap_servers=work.bootstrap, auto_offset_reset="none", metadata_max_age_ms=5_000, request_timeout_ms=5_000
    )
    places = [TopicPartition(*place_of(stream)) for stream in ORDERS.streams]
    consumer.assign(places)
    for place in places:
        consumer.seek(place, 0)
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
                _note_read(work, who, stream_name(place.topic, place.partition), records)


def _note_read(work: Work, who: str, stream: str, records: Records) -> None:
    call = work.recorder.begin("read", who, stream=stream, offset=work.positions[who, stream])
    call.ok(records=records)
    work.positions[who, stream] = records[-1][0] + 1
    work.progressed(f"reader {who}")


def be_member(work: Work, group: str, topics: Sequence[Topic], chance: Random) -> None:
    """A member that commits what it was given, leaves after a while, and comes again."""
    work.group(group, [stream for topic in topics for stream in topic.streams], reads=True)
    while not work.ended.is_set():
        who = work.new_name(f"member-{group}")
        settings = _settings(work, group) | {"auto.offset.reset": "earliest", "session.timeout.ms": 6_000}
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe([topic.name for topic in topics])
        until_s = time.monotonic() + chance.uniform(*REJOIN_S)
        while time.monotonic() < until_s and not work.ended.is_set():
            given: defaultdict[str, Records] = defaultdict(list)
            for message in consumer.consume(500, POLL_S):
                if not message.error():
                    stream = stream_name(message.topic(), message.partition())
                    given[stream].append((message.offset(), (message.value() or b"").decode()))
            if given:
                _deliver_and_commit(work, who, group, consumer, given)
        consumer.close()
        work.noted("members that left")


def _deliver_and_commit(
    work: Work, who: str, group: str, consumer: confluent_kafka.Consumer, given: dict[str, Records]
) -> None:
    calls = {}
    for stream, records in given.items():
        work.recorder.begin("deliver", who, group=group, stream=stream).ok(records=records)
        offset = records[-1][0] + 1
        call = work.recorder.begin("commit", who, group=group, stream=stream, offset=offset)
        calls[stream] = call, confluent_kafka.TopicPartition(*place_of(stream), offset)
    try:
        answers = consumer.commit(offsets=[place for _, place in calls.values()], asynchronous=False)
    except confluent_kafka.KafkaException as error:
        for call, _ in calls.values():
            call.failed(error)
        return
    failed = {stream_name(each.topic, each.partition): each.error for each in answers or [] if each.error is not None}
    for stream, (call, place) in calls.items():
        if stream in failed:
            call.failed(failed[stream])
        else:
            call.ok()
            work.positions[group, stream] = max(place.offset, work.positions[group, stream])
            work.progressed(f"group {group}")


def commit_alone(work: Work) -> None:
    """Numbers that only go up are committed and read back, by one client without a membership."""
    who = group = work.new_name("committer")
    stream = ORDERS.streams[0]
    work.group(group, [stream], reads=False)
    consumer = confluent_kafka.Consumer(_settings(work, group))
    offset = 0
    while not work.writing_ended.wait(COMMIT_EACH_S):
        offset += 1
        call = work.recorder.begin("commit", who, group=group, stream=stream, offset=offset)
        place = confluent_kafka.TopicPartition(*place_of(stream), offset)
        try:
            consumer.commit(offsets=[place], asynchronous=False)
        except confluent_kafka.KafkaException as error:
            call.failed(error)
        else:
            call.ok()
        if _ask_committed(work, who, group, consumer, stream):
            work.progressed(f"group {group}")
    consumer.close()


def _ask_committed(work: Work, who: str, group: str, consumer: confluent_kafka.Consumer, stream: str) -> bool:
    """Whether there was an answer."""
    call = work.recorder.begin("committed", who, group=group, stream=stream)
    try:
        (found,) = consumer.committed([confluent_kafka.TopicPartition(*place_of(stream))], timeout=ASK_S)
    except confluent_kafka.KafkaException as error:
        call.failed(error)
        return False
    if found.error is not None:
        call.failed(found.error)
        return False
    call.ok(offset=found.offset)
    return True


def ask_commits(work: Work) -> None:
    """What each group has committed at the end. That there was no answer shows in the history."""
    for group, streams in work.groups.items():
        consumer = confluent_kafka.Consumer(_settings(work, group))
        for stream in streams:
            deadline_s = time.monotonic() + LOG_S
            while not _ask_committed(work, "end", group, consumer, stream) and time.monotonic() < deadline_s:
                time.sleep(PAUSE_S)
        consumer.close()


def find_limits(work: Work, streams: Sequence[str]) -> dict[str, int]:
    """Where streams end by now; those that nobody tells are left out."""
    consumer = confluent_kafka.Consumer(_settings(work, work.new_name("limits")))
    found = {}
    for stream in streams:
        with suppress(confluent_kafka.KafkaException):
            found[stream] = consumer.get_watermark_offsets(
                confluent_kafka.TopicPartition(*place_of(stream)), timeout=ASK_S
            )[1]
    consumer.close()
    return found


def read_log(work: Work, place: tuple[str, int], stream: str, limit_s: float = LOG_S) -> bool:
    """All that a partition holds, noted under the name of a stream. False: it could not be read within `limit_s`.

    A consumer that gets nothing for a while is replaced: what a library makes of errors is not what is judged here.
    """
    deadline_s = time.monotonic() + limit_s
    call = work.recorder.begin("log", "end", stream=stream)
    while time.monotonic() < deadline_s:
        found = _try_to_read(work, place, min(deadline_s, time.monotonic() + ATTEMPT_S))
        if found is not None:
            start, limit, records = found
            work.looked(stream, records[-1][0] if records else -1)
            call.ok(records=records, start=start, limit=limit)
            return True
        work.noted("reads of a log begun anew")
    call.failed(f"not within {limit_s:g} s")
    return False


def _try_to_read(work: Work, place: tuple[str, int], deadline_s: float) -> tuple[int, int, Records] | None:
    """Start, limit and records of a log."""
    settings = _settings(work, work.new_name("end")) | {"enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(settings)
    records: Records = []
    start, limit = 0, -1
    try:
        while limit < 0 and time.monotonic() < deadline_s:
            with suppress(confluent_kafka.KafkaException):
                start, limit = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(*place), timeout=ASK_S)
        position = start
        consumer.assign([confluent_kafka.TopicPartition(*place, start)])
        while position < limit and time.monotonic() < deadline_s:
            for message in consumer.consume(5_000, POLL_S):
                if message.error() is None:
                    deadline_s = time.monotonic() + ATTEMPT_S
                    records.append((message.offset(), (message.value() or b"").decode()))
                    position = message.offset() + 1
                elif message.error().code() == END_OF_PARTITION:
                    position = message.offset()  # control records, which clients do not show, lie behind the last one
                else:
                    work.noted("a reader of a whole log was told " + message.error().name())
        return (start, limit, [each for each in records if each[0] < limit]) if 0 <= limit <= position else None
    finally:
        consumer.close()
