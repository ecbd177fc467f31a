"""Who leads and who follows: a cluster's answer to Metadata, version 1, which servers of Kafka and sidecars give.

Invariant: an answer is one moment's; whoever needs a leader asks again after it failed.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.harness.raw import RawConnection, RawFailed, frame, string

METADATA, METADATA_VERSION = 3, 1
POLL_S = 0.05


class Partition(NamedTuple):
    """Nodes by their numbers; `leader` is -1 when there is none."""

    number: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class View(NamedTuple):
    """What a server says of the cluster and one topic."""

    ports: dict[int, int]
    """Of each node that lives."""
    partitions: tuple[Partition, ...]

    def leaders(self) -> list[tuple[int, list[int]]]:
        """The port of each leader, and its partitions, as `Orders` has them. RawFailed if a partition has none."""
        found: dict[int, list[int]] = {}
        for partition in self.partitions:
            if partition.leader not in self.ports:
                raise RawFailed(f"partition {partition.number} has no leader that lives: {partition.leader}")
            found.setdefault(self.ports[partition.leader], []).append(partition.number)
        return sorted(found.items())

    def is_whole(self, replicas: int, *, partitions: int = 1) -> bool:
        """Whether every partition has a leader and so many members in sync."""
        return len(self.partitions) >= partitions and all(
            each.leader in self.ports and len(each.in_sync) >= replicas for each in self.partitions
        )


class _Reader:
    """Takes fields from an answer, one after the other."""

    def __init__(self, answer: memoryview) -> None:
        self._answer, self._at = answer, 4

    def number(self, code: str) -> int:
        (value,) = struct.unpack_from(f">{code}", self._answer, self._at)
        self._at += struct.calcsize(f">{code}")
        return int(value)

    def numbers(self) -> tuple[int, ...]:
        return tuple(self.number("i") for _ in range(self.number("i")))

    def skip_string(self) -> None:
        size = self.number("h")
        self._at += max(0, size)


def view(port: int, topic: str | None) -> View:
    """Ask the server at `port`; None: of no topic, for servers make topics that are asked for. OSError, RawFailed."""
    topics = [] if topic is None else [topic]
    wanted = struct.pack(">i", len(topics)) + b"".join(map(string, topics))
    with RawConnection(port, 5.0) as connection:
        answer = connection.call(frame(METADATA, METADATA_VERSION, wanted))
    reader = _Reader(answer)
    ports: dict[int, int] = {}
    for _ in range(reader.number("i")):
        node = reader.number("i")
        reader.skip_string()
        ports[node] = reader.number("i")
        reader.skip_string()
    reader.number("i")  # the controller
    partitions: list[Partition] = []
    for _ in range(reader.number("i")):
        reader.number("h")
        reader.skip_string()
        reader.number("b")
        for _ in range(reader.number("i")):
            reader.number("h")
            partitions.append(Partition(reader.number("i"), reader.number("i"), reader.numbers(), reader.numbers()))
    return View(ports, tuple(sorted(partitions)))


def wait_view(
    ports: Callable[[], Sequence[int]], topic: str | None, is_so: Callable[[View], bool], patience_s: float
) -> View | None:
    """The first view of which something is so, asked of whichever server answers; None when patience ends."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        for port in ports():
            try:
                found = view(port, topic)
            except (OSError, RawFailed):
                continue
            if is_so(found):
                return found
        time.sleep(POLL_S)
    return None
