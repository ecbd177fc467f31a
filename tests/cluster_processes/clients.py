"""kafka-python on a cluster whose hosts come and go: patient, and asked again where the client gives up.

kafka-python chooses among the hosts one that was killed, and then raises: whoever asks for something asks again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Final, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaError, OffsetOutOfRangeError, TopicAlreadyExistsError

from tests.support.limits import PATIENCE_S

T = TypeVar("T")
PATIENCE_MS: Final = PATIENCE_S * 1000
ASK_MS: Final = 60_000
"""For one answer: a host that was stopped for a test gives none, and the next one is asked."""
PAUSE_S: Final = 0.1


def asked(bootstrap: str, ask: Callable[[KafkaAdminClient], T]) -> T:
    """What an administrator asks for, again while hosts change."""
    return again(lambda: _with_admin(bootstrap, ask))


def _with_admin(bootstrap: str, ask: Callable[[KafkaAdminClient], T]) -> T:
    with closing(
        KafkaAdminClient(bootstrap_servers=bootstrap, bootstrap_timeout_ms=ASK_MS, request_timeout_ms=ASK_MS)
    ) as admin:
        return ask(admin)


def again(do: Callable[[], T]) -> T:
    """What a client does, once it does it without an error."""
    deadline_s, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while True:
        try:
            return do()
        except OffsetOutOfRangeError:
            raise  # an answer
        except KafkaError:
            if time.monotonic() > deadline_s:
                raise
            pause.wait(PAUSE_S)


def create_topic(bootstrap: str, topic: NewTopic) -> None:
    """Create a topic, once, however often hosts have to be asked."""

    def ask(admin: KafkaAdminClient) -> None:
        with suppress(TopicAlreadyExistsError):  # by a request whose answer came too late
            admin.create_topics([topic])

    asked(bootstrap, ask)


def consumer(bootstrap: str, offset_reset: str = "earliest") -> KafkaConsumer:
    """A consumer without a group."""
    return KafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset=offset_reset, bootstrap_timeout_ms=PATIENCE_MS,
        request_timeout_ms=ASK_MS,
    )  # fmt: skip


def ends(bootstrap: str, place: TopicPartition) -> tuple[int, int]:
    """The first offset and the end of a partition, as a new consumer is told."""

    def ask() -> tuple[int, int]:
        with closing(consumer(bootstrap)) as reader:
            return reader.beginning_offsets([place])[place], reader.end_offsets([place])[place]

    return again(ask)


def read(bootstrap: str, place: TopicPartition, offset: int | None = None) -> list[tuple[int, bytes]]:
    """Offset and value of every record from an offset, or the beginning, to the end of now.

    Raises OffsetOutOfRangeError for an offset that is not there.
    """
    return again(lambda: _read(bootstrap, place, offset))


def _read(bootstrap: str, place: TopicPartition, offset: int | None) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    _, end = ends(bootstrap, place)
    with closing(consumer(bootstrap, "none" if offset is not None else "earliest")) as reader:
        reader.assign([place])
        if offset is None:
            reader.seek_to_beginning()
        else:
            reader.seek(place, offset)
        deadline_s = time.monotonic() + PATIENCE_S
        while (at := reader.position(place)) is None or at < end:
            assert time.monotonic() < deadline_s, f"{place}: at {at} of {end}, {len(found)} records read"
            for records in reader.poll(1_000).values():
                found += [(record.offset, record.value) for record in records]
    return found
