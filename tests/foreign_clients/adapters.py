"""One small interface over clients written by others, so that one promise is one test for all of them.

Each adapter opens and closes its client inside a call: a test never depends on a client's state from before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

import aiokafka
import confluent_kafka
import kafka
import kafka.codec
import kafka.errors

from tests.support.limits import PATIENCE_S

Headers = Sequence[tuple[str, bytes | None]]
EARLIEST, LATEST = -2, -1


class Message(NamedTuple):
    """A record as a client shows it; `offset` and `partition` are the broker's."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 1_700_000_000_000
    offset: int = -1
    partition: int = 0


class Refused(Exception):
    """The broker's error code, as the client reports it."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code


class Sending(NamedTuple):
    """How to produce."""

    acks: str = "all"
    compression: str = "none"
    idempotent: bool = False
    max_request_bytes: int = 1_000_000


DEFAULT = Sending()


class Client(Protocol):
    """What the tests ask of a client."""

    name: str
    codecs: frozenset[str]

    def produce(self, topic: str, messages: Sequence[Message], sending: Sending = DEFAULT) -> list[int]:
        """Send, flush, and give back the offsets (-1 where acks=0 knows none). Raises Refused."""
        ...

    def consume(self, topic: str, count: int, *, offset: int = 0, partition: int = 0) -> list[Message]:
        """`count` records of a partition from `offset`; AssertionError if the position is not behind them then."""
        ...

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int:
        """The first offset with that timestamp or a later one, EARLIEST or LATEST; -1 where there is none."""
        ...

    def consume_as_group(self, topic: str, group: str, count: int) -> list[Message]:
        """Subscribe, read `count` records from the committed offsets (else the earliest), commit, leave."""
        ...


CODECS = frozenset(("gzip", "snappy", "lz4", "zstd"))


class ConfluentClient:
    """confluent-kafka, that is librdkafka."""

    name = "confluent"
    codecs = CODECS

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def produce(self, topic: str, messages: Sequence[Message], sending: Sending = DEFAULT) -> list[int]:
        """As the protocol says."""
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "acks": sending.acks,
                "compression.type": sending.compression,
                "enable.idempotence": sending.idempotent,
                "linger.ms": 5,
                "message.max.bytes": max(sending.max_request_bytes, 1_000_000),
            }
        )
        reports: list[tuple[Any, Any]] = []
        for message in messages:
            producer.produce(
                topic,
                message.value,
                message.key,
                partition=message.partition,
                timestamp=message.timestamp_ms,
                headers=list(message.headers),
                on_delivery=lambda error, sent: reports.append((error, sent)),
            )
        assert producer.flush(PATIENCE_S) == 0
        for error, _ in reports:
            if error is not None:
                raise Refused(error.code())
        offsets = [sent.offset() for _, sent in reports]
        return [-1 if offset is None or offset < 0 else offset for offset in offsets]

    def consume(self, topic: str, count: int, *, offset: int = 0, partition: int = 0) -> list[Message]:
        """As the protocol says."""
        consumer = self._consumer("unused")
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
            got = confluent_poll(consumer, count)
            if got:
                assert (
                    consumer.position([confluent_kafka.TopicPartition(topic, partition)])[0].offset
                    == got[-1].offset + 1
                )
            return got
        finally:
            consumer.close()

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int:
        """As the protocol says."""
        consumer = self._consumer("unused")
        try:
            place = confluent_kafka.TopicPartition(topic, partition, timestamp_ms)
            if timestamp_ms < 0:
                low, high = consumer.get_watermark_offsets(place, timeout=PATIENCE_S)
                return int(low if timestamp_ms == EARLIEST else high)
            return int(consumer.offsets_for_times([place], timeout=PATIENCE_S)[0].offset)
        finally:
            consumer.close()

    def consume_as_group(self, topic: str, group: str, count: int) -> list[Message]:
        """As the protocol says."""
        consumer = self._consumer(group)
        try:
            consumer.subscribe([topic])
            got = confluent_poll(consumer, count)
            consumer.commit(asynchronous=False)
            return got
        finally:
            consumer.close()

    def _consumer(self, group: str) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "fetch.message.max.bytes": 100_000,
            }
        )


def confluent_poll(consumer: confluent_kafka.Consumer, count: int, seconds: float = PATIENCE_S) -> list[Message]:
    """Poll until `count` records came; AssertionError when time runs out first."""
    deadline = time.monotonic() + seconds
    got: list[Message] = []
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count} records within {seconds} s"
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error():
            assert message.error().retriable() or message.error().code() == 3, message.error()
            continue
        headers = tuple(message.headers() or ())
        got.append(
            Message(
                message.key(), message.value(), headers, message.timestamp()[1], message.offset(), message.partition()
            )
        )
    return got


class KafkaPythonClient:
    """kafka-python."""

    name = "kafka-python"
    codecs = CODECS if kafka.codec.has_snappy() else CODECS - {"snappy"}

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def produce(self, topic: str, messages: Sequence[Message], sending: Sending = DEFAULT) -> list[int]:
        """As the protocol says."""
        producer = kafka.KafkaProducer(
            bootstrap_servers=self._bootstrap,
            bootstrap_timeout_ms=PATIENCE_S * 1000,
            acks={"all": "all", "0": 0, "1": 1}[sending.acks],
            compression_type=None if sending.compression == "none" else sending.compression,
            enable_idempotence=sending.idempotent,
            max_request_size=max(sending.max_request_bytes, 1_048_576),
            linger_ms=5,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=message.partition,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            producer.flush(PATIENCE_S)
            return [future.get(PATIENCE_S).offset for future in futures]
        except kafka.errors.BrokerResponseError as error:
            raise Refused(error.errno) from None
        finally:
            producer.close(PATIENCE_S)

    def consume(self, topic: str, count: int, *, offset: int = 0, partition: int = 0) -> list[Message]:
        """As the protocol says."""
        consumer = self._consumer(None)
        try:
            place = kafka.TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            got = self._poll(consumer, count)
            if got:
                assert consumer.position(place) == got[-1].offset + 1
            return got
        finally:
            consumer.close()

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int:
        """As the protocol says."""
        consumer = self._consumer(None)
        try:
            place = kafka.TopicPartition(topic, partition)
            if timestamp_ms == EARLIEST:
                return int(consumer.beginning_offsets([place])[place])
            if timestamp_ms == LATEST:
                return int(consumer.end_offsets([place])[place])
            found = consumer.offsets_for_times({place: timestamp_ms})[place]
            return -1 if found is None else int(found.offset)
        finally:
            consumer.close()

    def consume_as_group(self, topic: str, group: str, count: int) -> list[Message]:
        """As the protocol says."""
        consumer = self._consumer(group)
        try:
            consumer.subscribe([topic])
            got = self._poll(consumer, count)
            consumer.commit()
            return got
        finally:
            consumer.close()

    def _consumer(self, group: str | None) -> kafka.KafkaConsumer:
        return kafka.KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            bootstrap_timeout_ms=PATIENCE_S * 1000,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
        )

    def _poll(self, consumer: kafka.KafkaConsumer, count: int) -> list[Message]:
        deadline = time.monotonic() + PATIENCE_S
        got: list[Message] = []
        while len(got) < count:
            assert time.monotonic() < deadline, f"{len(got)} of {count} records within {PATIENCE_S} s"
            # A poll of 3.0.12 that ends in the moment in which a join is answered never gets its assignment.
            for batch in consumer.poll(timeout_ms=PATIENCE_S * 100, max_records=count - len(got)).values():
                got += [from_python(record) for record in batch]
        return got


def python_admin(bootstrap: str) -> kafka.KafkaAdminClient:
    """kafka-python's admin client; the caller closes it."""
    return kafka.KafkaAdminClient(bootstrap_servers=bootstrap, bootstrap_timeout_ms=PATIENCE_S * 1000)


class AiokafkaClient:
    """aiokafka."""

    name = "aiokafka"
    codecs = CODECS

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def produce(self, topic: str, messages: Sequence[Message], sending: Sending = DEFAULT) -> list[int]:
        """As the protocol says."""
        return asyncio.run(self._produce(topic, messages, sending))

    async def _produce(self, topic: str, messages: Sequence[Message], sending: Sending) -> list[int]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            acks={"all": "all", "0": 0, "1": 1}[sending.acks],
            compression_type=None if sending.compression == "none" else sending.compression,
            enable_idempotence=sending.idempotent,
            max_request_size=max(sending.max_request_bytes, 1_048_576),
            linger_ms=5,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=message.partition,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            async with asyncio.timeout(PATIENCE_S):
                sent = [await future for future in futures]
            return [-1 if one is None else one.offset for one in sent]
        except aiokafka.errors.BrokerResponseError as error:
            raise Refused(error.errno) from None
        finally:
            await producer.stop()

    def consume(self, topic: str, count: int, *, offset: int = 0, partition: int = 0) -> list[Message]:
        """As the protocol says."""

        async def body(consumer: aiokafka.AIOKafkaConsumer) -> list[Message]:
            place = aiokafka.TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            got = [from_python(await consumer.getone()) for _ in range(count)]
            if got:
                assert await consumer.position(place) == got[-1].offset + 1
            return got

        return self._with_consumer(None, (), body)

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int:
        """As the protocol says."""

        async def body(consumer: aiokafka.AIOKafkaConsumer) -> int:
            place = aiokafka.TopicPartition(topic, partition)
            if timestamp_ms == EARLIEST:
                return int((await consumer.beginning_offsets([place]))[place])
            if timestamp_ms == LATEST:
                return int((await consumer.end_offsets([place]))[place])
            found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
            return -1 if found is None else int(found.offset)

        return self._with_consumer(None, (), body)

    def consume_as_group(self, topic: str, group: str, count: int) -> list[Message]:
        """As the protocol says."""

        async def body(consumer: aiokafka.AIOKafkaConsumer) -> list[Message]:
            got = [from_python(await consumer.getone()) for _ in range(count)]
            await consumer.commit()
            return got

        return self._with_consumer(group, (topic,), body)

    def _with_consumer(
        self, group: str | None, topics: Sequence[str], body: Callable[[aiokafka.AIOKafkaConsumer], Awaitable[Any]]
    ) -> Any:
        async def run() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(
                *topics,
                bootstrap_servers=self._bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                fetch_max_wait_ms=100,
            )
            await consumer.start()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    return await body(consumer)
            finally:
                await consumer.stop()

        return asyncio.run(run())


def from_python(record: Any) -> Message:
    """A record of kafka-python or aiokafka."""
    return Message(record.key, record.value, tuple(record.headers), record.timestamp, record.offset, record.partition)


CLIENTS: dict[str, Callable[[str], Client]] = {
    client.name: client for client in (ConfluentClient, KafkaPythonClient, AiokafkaClient)
}
