"""What all clients of a history share: where the cluster is, the recorder, when to end, and when there was service."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from benchmarks.checked.history import Recorder

TOPIC = "orders"
PARTITIONS = 3
MAX_NOTES = 200


class Work:
    """See the module."""

    def __init__(self, bootstrap: Sequence[str], recorder: Recorder, partitions: int = PARTITIONS) -> None:
        self.bootstrap = list(bootstrap)
        self.recorder = recorder
        self.topic = TOPIC
        self.partitions = partitions
        self.ended = threading.Event()
        self.librdkafka_logs: dict[str, str | int] = {"log_level": 0}
        """Settings of its clients."""
        self.notes: Counter[str] = Counter()
        """What clients met that breaks no promise, as errors of libraries."""
        self.acks_s: dict[str, list[float]] = {stream_name(TOPIC, number): [0.0] for number in range(partitions)}
        """When each stream had acknowledgements."""
        self._names: Counter[str] = Counter()
        self._lock = threading.Lock()

    def new_name(self, kind: str) -> str:
        """A name that no other client has."""
        with self._lock:
            self._names[kind] += 1
            return f"{kind}-{self._names[kind]}"

    def acked(self, stream: str) -> None:
        """A record of a stream was acknowledged."""
        self.acks_s[stream].append(self.recorder.at_s)

    def noted(self, what: str, error: object = None) -> None:
        """Something that a report should count."""
        text = what if error is None else f"{what}: {type(error).__name__}"
        with self._lock:
            if text in self.notes or len(self.notes) < MAX_NOTES:
                self.notes[text] += 1


def stream_name(topic: str, partition: int) -> str:
    """How histories name a stream."""
    return f"{topic}-{partition}"
