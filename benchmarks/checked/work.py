"""What all clients of a history share: where the cluster is, the recorder, when to end, and who had an answer when.

Invariants:
* Whatever must go on after a fault is `expected` by its name, and tells each answer with `progressed`: every stream,
  reader, group and query, and the changes of topics.
* Clients that write end first (`writing_ended`); readers and members go on until they have everything (`ended`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from benchmarks.checked.history import Recorder

MAX_NOTES: Final = 200
KIB: Final = 1024


class Topic(NamedTuple):
    """A topic that is there from the beginning to the end; its chunks are small, so that they fill.

    `is_dense`: its offsets have no holes. `keeps_bytes`: what retention leaves of a stream; 0: everything.
    """

    name: str
    partitions: int
    segment_bytes: int
    is_dense: bool = True
    keeps_bytes: int = 0

    @property
    def streams(self) -> list[str]:
        """The names of its streams."""
        return [stream_name(self.name, partition) for partition in range(self.partitions)]

    @property
    def settings(self) -> dict[str, str]:
        """As Kafka's tools take them."""
        retention = {"retention.bytes": str(self.keeps_bytes)} if self.keeps_bytes else {}
        return {"segment.bytes": str(self.segment_bytes), **retention}


ORDERS: Final = Topic("orders", 3, 32 * KIB)
KEPT: Final = Topic("kept", 2, 16 * KIB, keeps_bytes=48 * KIB)
"""Retention takes what is old."""
CLEARED: Final = Topic("cleared", 2, 16 * KIB)
"""An operator deletes records."""
RESULTS: Final = Topic("results", 4, 16 * KIB, is_dense=False)
"""Exactly-once queries write; control records lie between the records."""
TOPICS: Final = (ORDERS, KEPT, CLEARED, RESULTS)


class Work:
    """See the module."""

    def __init__(self, bootstrap: Sequence[str], recorder: Recorder) -> None:
        self.bootstrap = list(bootstrap)
        self.recorder = recorder
        self.writing_ended = threading.Event()
        self.ended = threading.Event()
        self.librdkafka_logs: dict[str, str | int] = {"log_level": 0}
        """Settings of its clients."""
        self.notes: Counter[str] = Counter()
        """What clients met that breaks no promise, as errors of libraries."""
        self.answered_s: dict[str, list[float]] = {}
        """When each of those that must go on had answers."""
        self.positions: dict[tuple[str, str], int] = {}
        """How far each reader and each group is in each of its streams."""
        self.groups: dict[str, list[str]] = {}
        """All that commit, and the streams of each."""
        self.filled: dict[str, tuple[str, int]] = {}
        """Streams of topics that come and go, that have records: topic and partition."""
        self._last_offsets: dict[str, int] = {}
        self._names: Counter[str] = Counter()
        self._lock = threading.Lock()

    def new_name(self, kind: str) -> str:
        """A name that no other client has."""
        with self._lock:
            self._names[kind] += 1
            return f"{kind}-{self._names[kind]}"

    def expected(self, name: str) -> None:
        """Whoever has this name must have answers again after each fault."""
        with self._lock:
            self.answered_s.setdefault(name, [0.0])

    def progressed(self, name: str) -> None:
        """An answer that shows that its stream, group or query goes on."""
        self.answered_s[name].append(self.recorder.at_s)

    def reader(self, who: str, streams: Sequence[str]) -> None:
        """A reader that must get to the end of these streams."""
        self.recorder.add(what="reader", who=who, streams=list(streams))
        for stream in streams:
            self.positions[who, stream] = 0
        self.expected(f"reader {who}")

    def group(self, group: str, streams: Sequence[str], *, reads: bool) -> None:
        """A group that commits, or one whose members also read to the end of these streams."""
        with self._lock:
            if group in self.groups:
                return
            self.groups[group] = list(streams)
        self.recorder.add(what="group", group=group, streams=list(streams), reads=reads)
        if reads:
            for stream in streams:
                self.positions[group, stream] = 0
        self.expected(f"group {group}")

    def looked(self, stream: str, last_offset: int) -> None:
        """A log was read; this is the offset of its last record."""
        self._last_offsets[stream] = last_offset

    def last_offset(self, stream: str) -> int:
        """Of the last record when the log was read; −1: there was none, or nobody could read it."""
        return self._last_offsets.get(stream, -1)

    def noted(self, what: str, error: object = None) -> None:
        """Something that a report should count."""
        text = what if error is None else f"{what}: {type(error).__name__}"
        with self._lock:
            if text in self.notes or len(self.notes) < MAX_NOTES:
                self.notes[text] += 1


def stream_name(topic: str, partition: int) -> str:
    """How histories name a stream."""
    return f"{topic}-{partition}"


def place_of(stream: str) -> tuple[str, int]:
    """The topic and the partition of a stream's name."""
    topic, _, partition = stream.rpartition("-")
    return topic, int(partition)
