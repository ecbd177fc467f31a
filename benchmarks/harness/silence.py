"""One producer as users have it (librdkafka), and when it was answered.

Invariant: the producer knows the cluster's addresses and nothing else: leaders that go are its own business.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from itertools import pairwise

import confluent_kafka

PACE_S = 0.002
PATIENCE_S = 60.0


class SteadyProducer:
    """A context in which a record of 100 B goes to partition 0 of a topic every 2 ms, at the settings that librdkafka
    comes with, apart from acks=all, no batching delay, and a minute until a record is given up.
    """

    def __init__(self, ports: list[int], topic: str) -> None:
        self._topic = topic
        self._times_s: list[float] = []
        self.errors: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        settings: dict[str, str | int] = {
            "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports),
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": int(PATIENCE_S * 1000),
            "log_level": 0,
        }
        self._producer = confluent_kafka.Producer(settings)

    def __enter__(self) -> SteadyProducer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(PACE_S):
            with suppress(
                BufferError
            ):  # the queue is full of records that wait for a leader: no more until there is one
                self._producer.produce(self._topic, b"x" * 100, partition=0, on_delivery=self._delivered)
            self._producer.poll(0)
        self._producer.flush(PATIENCE_S)

    def _delivered(self, error: confluent_kafka.KafkaError | None, _: object) -> None:
        if error is None:
            self._times_s.append(time.monotonic())
        else:
            self.errors.append(str(error))

    def answered_since(self, since_s: float) -> bool:
        """Whether a record was acknowledged after a moment of the monotonic clock."""
        return bool(self._times_s) and self._times_s[-1] > since_s

    def wait_answered(self, since_s: float) -> bool:
        """Until it is so; False when patience ends."""
        deadline_s = time.monotonic() + 2 * PATIENCE_S
        while not self.answered_since(since_s):
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.01)
        return True

    def silence_s(self, since_s: float, until_s: float) -> float:
        """The longest time without an acknowledgement between two moments."""
        times = [since_s, *(at for at in list(self._times_s) if since_s < at < until_s), until_s]
        return max(after - before for before, after in pairwise(times))
