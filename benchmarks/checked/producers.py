"""Producers of three libraries, idempotent and not, which number their records and note every answer.

Invariants:
* A producer ends when `Work.writing_ended` is set, and then waits for what is under way, for DRAIN_S at most.
* What a library says about a lost host never ends a producer; a library that gives up is replaced by a producer of a
  new name.
* Producers that are not idempotent have one request in flight to each host. Behind a change of the leader, librdkafka
  was seen to send a newer record first and the thirteen in front of it again afterwards.
* A producer keeps WAITING_MAX records without an answer at most: without service it waits.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import confluent_kafka
from aiokafka import AIOKafkaProducer
from kafka import KafkaProducer
from kafka.errors import KafkaError

from benchmarks.checked.history import Call
from benchmarks.checked.work import CLEARED, KEPT, ORDERS, Topic, Work, stream_name

PACE_S = 0.15
DRAIN_S = 300.0
DELIVERY_MS = 600_000
"""Longer than any fault: a record that a library gives up is a failure that nobody needs."""
REQUEST_MS = 5_000
RECONNECT_MS = 1_000
"""kafka-python's longest pause between attempts to connect. Its default of 30 s, reached while all hosts are down,
would last into the next fault."""
AIOKAFKA_MS = 15_000
"""It gives a record up after this time, too."""
WAITING_MAX = 500
PAUSE_S = 0.5

for _name in ("kafka", "aiokafka"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # of lost hosts they say much


class GivenUp(Exception):
    """A library has given up a record."""


class Numbered:
    """The records of one producer: numbers, and the calls that wait for an answer."""

    def __init__(self, work: Work, library: str, stream: str, *, is_idempotent: bool) -> None:
        self.work = work
        kind = "idempotent" if is_idempotent else "plain"
        self.who = work.new_name(f"{library}-{kind}")
        self.stream = stream
        self.waiting: set[int] = set()
        self._next = 0
        work.recorder.add(what="producer", who=self.who, stream=self.stream, idempotent=is_idempotent)

    @property
    def is_full(self) -> bool:
        """Whether enough records wait for their answers."""
        return len(self.waiting) >= WAITING_MAX

    def begin(self) -> tuple[bytes, Call]:
        """The next record."""
        number, self._next = self._next, self._next + 1
        self.waiting.add(number)
        call = self.work.recorder.begin("produce", self.who, stream=self.stream, number=number)
        return f"{self.who}:{number}".encode(), Answered(self, number, call)

    def acked(self) -> None:
        """A record was acknowledged."""
        self.work.progressed(f"stream {self.stream}")


class Answered(Call):
    """A call that leaves the producer's waiting ones when it is answered."""

    def __init__(self, numbered: Numbered, number: int, call: Call) -> None:
        self._numbered, self._call, self._of = numbered, call, number

    def ok(self, **answer: object) -> None:
        """See Call."""
        self._call.ok(**answer)
        self._numbered.waiting.discard(self._of)
        self._numbered.acked()

    def failed(self, error: object) -> None:
        """See Call."""
        self._call.failed(error)
        self._numbered.waiting.discard(self._of)


def run_kafka_python(work: Work, topic: Topic, partition: int, *, is_idempotent: bool) -> None:
    """kafka-python."""
    numbered = Numbered(work, "kafka-python", stream_name(topic.name, partition), is_idempotent=is_idempotent)
    producer = KafkaProducer(
        bootstrap_servers=work.bootstrap, acks="all", linger_ms=5, enable_idempotence=is_idempotent,
        max_in_flight_requests_per_connection=5 if is_idempotent else 1, retries=1_000_000, max_block_ms=DELIVERY_MS,
        delivery_timeout_ms=DELIVERY_MS, request_timeout_ms=REQUEST_MS, metadata_max_age_ms=5_000,
        reconnect_backoff_max_ms=RECONNECT_MS,
    )  # fmt: skip
    try:
        while not work.writing_ended.wait(PACE_S):
            if not numbered.is_full:
                value, call = numbered.begin()
                sent = producer.send(topic.name, value, partition=partition)
                sent.add_callback(lambda found, call=call: call.ok(offset=found.offset))
                sent.add_errback(call.failed)
        with suppress(KafkaError):
            producer.flush(DRAIN_S)
    finally:
        producer.close(DRAIN_S)


def run_confluent(work: Work, topic: Topic, partition: int, *, is_idempotent: bool) -> None:
    """librdkafka."""
    numbered = Numbered(work, "librdkafka", stream_name(topic.name, partition), is_idempotent=is_idempotent)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": ",".join(work.bootstrap), "enable.idempotence": is_idempotent, "acks": "all",
            "linger.ms": 5, "message.timeout.ms": DELIVERY_MS, "socket.timeout.ms": 10_000, **work.librdkafka_logs,
            "max.in.flight.requests.per.connection": 5 if is_idempotent else 1, "client.id": numbered.who,
        }
    )  # fmt: skip

    def delivered(call: Call) -> Callable[[object, confluent_kafka.Message], None]:
        def note(error: object, message: confluent_kafka.Message) -> None:
            if error is None:
                call.ok(offset=message.offset())
            else:
                call.failed(error)

        return note

    while not work.writing_ended.wait(PACE_S):
        if not numbered.is_full:
            value, call = numbered.begin()
            producer.produce(topic.name, value, partition=partition, on_delivery=delivered(call))
        producer.poll(0)
    producer.flush(DRAIN_S)


def run_aiokafka(work: Work, topic: Topic, partition: int, *, is_idempotent: bool) -> None:
    """aiokafka."""
    numbered = Numbered(work, "aiokafka", stream_name(topic.name, partition), is_idempotent=is_idempotent)
    failures: list[str] = []
    """Behind a batch that aiokafka gives up, its sequence has a gap: an idempotent producer is refused from then on."""

    def settle(call: Call, sent: asyncio.Future[Any]) -> None:
        if sent.cancelled() or sent.exception() is not None:
            failures.append("cancelled" if sent.cancelled() else repr(sent.exception()))
            call.failed(failures[-1])
        else:
            call.ok(offset=sent.result().offset)

    async def produce() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=work.bootstrap, acks="all", enable_idempotence=is_idempotent, linger_ms=5,
            request_timeout_ms=AIOKAFKA_MS, metadata_max_age_ms=1_000,
        )  # fmt: skip
        await producer.start()
        try:
            while not work.writing_ended.is_set():
                if failures:
                    raise GivenUp(failures[0])
                if not numbered.is_full:
                    value, call = numbered.begin()
                    sent = await producer.send(topic.name, value, partition=partition)
                    sent.add_done_callback(functools.partial(settle, call))
                await asyncio.sleep(PACE_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(producer.flush(), DRAIN_S)
        finally:
            await producer.stop()

    asyncio.run(produce())


Producer = Callable[..., None]
LIBRARIES: tuple[Producer, ...] = (run_kafka_python, run_confluent, run_aiokafka)


def keep_producing(run: Producer, work: Work, topic: Topic, partition: int, *, is_idempotent: bool) -> None:
    """A producer after another, until writing ends: what ends in an error is counted and begun anew."""
    while not work.writing_ended.is_set():
        try:
            run(work, topic, partition, is_idempotent=is_idempotent)
        except Exception as error:  # noqa: BLE001  whatever a library raises
            work.noted(f"{run.__name__} was begun anew", error)
            work.writing_ended.wait(PAUSE_S)


def _plan() -> Iterator[tuple[Producer, Topic, int, bool]]:
    """Each library, idempotent and not; a partition of orders has two libraries, so one that waits is not the
    cluster. The small topics have a producer each of a library that goes on by itself.
    """
    for place, run in enumerate(LIBRARIES):
        for is_idempotent in (True, False):
            yield run, ORDERS, (place + is_idempotent) % ORDERS.partitions, is_idempotent
    for topic in (KEPT, CLEARED):
        for partition in range(topic.partitions):
            yield (run_kafka_python if partition else run_confluent), topic, partition, True


def begin_all(work: Work) -> list[threading.Thread]:
    """All producers, one in a thread."""
    threads = []
    for run, topic, partition, is_idempotent in _plan():
        stream = stream_name(topic.name, partition)
        work.expected(f"stream {stream}")
        thread = threading.Thread(
            target=keep_producing,
            args=(run, work, topic, partition),
            kwargs={"is_idempotent": is_idempotent},
            name=f"{run.__name__} of {stream}, {'idempotent' if is_idempotent else 'plain'}",
            daemon=True,
        )
        thread.start()
        threads.append(thread)
    return threads
