"""A load of Produce requests from processes of their own, at the lowest cost per request that Python reaches.

`python -m benchmarks.harness.generator` reads an `Orders` as JSON from its standard input, and answers with one line of
JSON. Frames are built before the clock starts. Answers of one load have all the same length, so they are counted by
bytes, and their error codes are compared with a slice of every answer at once: no answer is decoded one by one.

Invariants:
* Closed loop: each connection has `depth` requests in flight; as many answers as came in one piece are followed by as
  many requests, in one piece.
* Every answer's error code is checked. One that is not `error` ends the measurement (RawFailed).
* What is acknowledged after the clock stopped is waited for, and not counted.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.harness.load import BATCH_BYTES, RECORD_OVERHEAD_BYTES, payload
from benchmarks.harness.raw import RawConnection, RawFailed, produce_frame

RECEIVE_BYTES = 256 * 1024
ERROR_BYTES = 2
SAMPLES = 20_000
"""Latencies that a process hands back: every n-th of them, in order."""


class Orders(NamedTuple):
    """What one process does. `error`: the code that every answer must have; 0 for an acknowledged request."""

    port: int
    topic: str
    streams: int = 1
    connections: int = 1
    depth: int = 1
    request_bytes: int = BATCH_BYTES
    seconds: float = 1.0
    error: int = 0
    first_partition: int = 0
    leaders: Sequence[tuple[int, Sequence[int]]] = ()
    """Where partitions have different leaders: the port of each, and its partitions. A connection to each, then, and
    `port`, `streams`, `connections` and `first_partition` say nothing."""


class Generated(NamedTuple):
    """What the processes saw together: answers counted, seconds, latencies (a sample), the processes' own CPU time."""

    requests: int
    seconds: float
    latencies_s: list[float]
    cpu_s: float


class _Lane:
    """One connection: what is in flight on it, and the frames that it sends in turn."""

    def __init__(self, orders: Orders, port: int, partitions: Sequence[int], batch: bytes) -> None:
        """A connection to `port`, which writes to these partitions of the topic in turn."""
        self.frames = [bytes(produce_frame(orders.topic, partition, batch)) for partition in partitions]
        self.connection = RawConnection(port)
        self.socket = self.connection.socket
        self.sent_at: deque[float] = deque()
        self._at = 0
        self._left = b""
        self._error = orders.error.to_bytes(ERROR_BYTES, "big")
        self._error_at = 4 + 4 + 4 + 2 + len(orders.topic) + 4 + 4
        self._answer_bytes = self._error_at + ERROR_BYTES + 8 + 8 + 8 + 4

    def send(self, count: int, now: float) -> None:
        """Send the next `count` requests in one piece."""
        frames, at = self.frames, self._at
        if len(frames) == 1:
            self.socket.sendall(frames[0] * count if count > 1 else frames[0])
        else:
            self.socket.sendall(b"".join(frames[(at + number) % len(frames)] for number in range(count)))
            self._at = (at + count) % len(frames)
        self.sent_at.extend([now] * count)

    def receive(self) -> int:
        """The number of whole answers in what has come. Raises RawFailed on another error code than the ordered one."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise RawFailed("the server closed the connection")
        if self._left:
            data = self._left + data
        size = self._answer_bytes
        count, left = divmod(len(data), size)
        end = len(data) - left
        self._left = data[end:]
        for at in range(ERROR_BYTES):
            if data[self._error_at + at : end : size] != self._error[at : at + 1] * count:
                wanted = int.from_bytes(self._error, "big")
                codes = {
                    int.from_bytes(data[first : first + ERROR_BYTES], "big")
                    for first in range(self._error_at, end, size)
                }
                raise RawFailed(f"answers have the error codes {sorted(codes)}; all were to have {wanted}")
        return count


def generate(orders: Orders) -> Generated:
    """Load the server from this process."""
    batch = payload(
        max(1, orders.request_bytes - 61 - RECORD_OVERHEAD_BYTES) if orders.request_bytes < BATCH_BYTES else 100,
        batch_bytes=orders.request_bytes,
    ).batch
    lanes = [_Lane(orders, port, partitions, batch) for port, partitions in orders.leaders or _shares(orders)]
    try:
        return _run(orders, lanes)
    finally:
        for lane in lanes:
            lane.connection.close()


def _shares(orders: Orders) -> list[tuple[int, range]]:
    """Connection n writes to partitions n, n + connections, … of the topic."""
    first, end = orders.first_partition, orders.first_partition + orders.streams
    return [
        (orders.port, range(first + number % orders.streams, end, orders.connections))
        for number in range(orders.connections)
    ]


def _run(orders: Orders, lanes: list[_Lane]) -> Generated:
    latencies_s: list[float] = []
    by_descriptor = {lane.socket.fileno(): lane for lane in lanes}
    poll = select.epoll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    begin = now = time.perf_counter()
    cpu = time.process_time()
    for lane in lanes:
        lane.send(orders.depth, begin)
    only = lanes[0] if len(lanes) == 1 else None
    while now - begin < orders.seconds:
        ready = (only,) if only is not None else [by_descriptor[found] for found, _ in poll.poll()]
        for lane in ready:
            count = lane.receive()
            now = time.perf_counter()
            sent_at = lane.sent_at
            latencies_s.extend([now - sent_at.popleft() for _ in range(count)])
            if count:
                lane.send(count, now)
    used = time.process_time() - cpu
    for lane in lanes:
        while lane.sent_at:
            for _ in range(lane.receive()):
                lane.sent_at.popleft()
    step = max(1, len(latencies_s) // SAMPLES)
    return Generated(len(latencies_s), now - begin, sorted(latencies_s)[step // 2 :: step], used)


def generate_apart(orders: Orders, processes: int = 1) -> Generated:
    """Load the server from `processes` other processes at once, which share the connections and the streams evenly.
    `orders` says how many connections and streams they have together. Raises RawFailed if one of them fails.
    """
    processes = max(1, min(processes, orders.connections))
    running: list[subprocess.Popen[str]] = []
    for number in range(processes):
        mine = len(range(number, orders.connections, processes))
        streams = len(range(number, orders.streams, processes)) if orders.streams >= orders.connections else 1
        first = sum(len(range(n, orders.streams, processes)) for n in range(number)) % orders.streams
        first += orders.first_partition
        own = orders._replace(connections=mine, streams=max(1, streams), first_partition=first)
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.harness.generator"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdin is not None
        process.stdin.write(json.dumps(own._asdict()) + "\n")
        process.stdin.flush()
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()  # it is ready: all of them begin together
    found: list[dict[str, Any]] = []
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in running:
        output, _ = process.communicate(timeout=60 + 10 * orders.seconds)
        if process.returncode:
            raise RawFailed("a process of the load ended with an error, which is above")
        found.append(json.loads(output))
    latencies_s = sorted(value for each in found for value in each["latencies_s"])
    seconds = max(each["seconds"] for each in found)
    return Generated(
        sum(each["requests"] for each in found), seconds, latencies_s, sum(each["cpu_s"] for each in found)
    )


def main() -> None:
    """Do what the orders on standard input say."""
    orders = Orders(**json.loads(sys.stdin.readline()))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(generate(orders)._asdict()), flush=True)


if __name__ == "__main__":
    main()
