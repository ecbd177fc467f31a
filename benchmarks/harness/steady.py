"""One producer at a steady rate, in a process of its own, for as long as it is wanted; how long each request took.

`python -m benchmarks.harness.steady` reads `SteadyOrders` as JSON from its standard input, and goes on until that ends.

Invariants:
* One request is due every 1 / `per_second`, whether the others are answered or not, and its latency counts from then.
  At most MOST_UNANSWERED are on their way, so that a server which stands still is not buried: what is due behind them
  is sent later, and none is left out. A server that stands still for a second delays a second's requests, not the first
  half of them.
* One connection for as long as it lasts: a new one every moment would make the 99th percentile that of first requests.
* What a connection that failed leaves without an answer is sent again on the next, and its latency counts from when it
  was due first. So a leader that is lost is a latency, as for a producer that tries again.
* A request is disturbed if its first connection failed, or if it was due before the next one brought its first answer:
  so what a lost or another leader costs is told apart from what else requests wait for.
* Whoever looks at the servers meanwhile does it in another process, which this one does not wait for.
"""

from __future__ import annotations

import json
import math
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import NamedTuple

from benchmarks.harness.leaders import wait_view
from benchmarks.harness.load import Lane, payload, stamped
from benchmarks.harness.raw import RawConnection, RawFailed

LOAD = payload(1024 - 61 - 10, batch_bytes=1024)
PATIENCE_S = 120.0
"""For a leader; and for the process to end, when it has been told to."""
PAUSE_S = 0.05
"""Before another try, behind a failure."""
BEGUN = "begun"
"""What the process says once, in front of its load."""
MOST_UNANSWERED = 100
"""Half a second's, at the rate of benchmarks/hosts."""


class SteadyOrders(NamedTuple):
    """Where the producer asks for the leader of partition 0 of a topic, and how often it sends."""

    ports: Sequence[int]
    topic: str
    per_second: float


class SteadyLoad(NamedTuple):
    """When requests were due, in seconds of the monotonic clock, how long each took, and whether it was disturbed; when
    connections failed, and when each was made, to which port.
    """

    due_s: Sequence[float]
    took_s: Sequence[float]
    disturbed: Sequence[bool]
    failed_s: Sequence[float]
    connected: Sequence[tuple[float, int]]

    def between(self, begin_s: float, end_s: float, *, disturbed: bool | None = None) -> list[float]:
        """How long those took that were due in an interval; only disturbed ones, or only others, if asked for."""
        return [
            took_s
            for due_s, took_s, was_disturbed in zip(self.due_s, self.took_s, self.disturbed, strict=True)
            if begin_s <= due_s < end_s and disturbed in (None, was_disturbed)
        ]

    def failures(self, begin_s: float, end_s: float) -> int:
        """How many connections failed in an interval."""
        return sum(begin_s <= failed_s < end_s for failed_s in self.failed_s)

    def moves(self, begin_s: float, end_s: float) -> int:
        """How often another host led than before, of the connections that were made in an interval."""
        pairs = pairwise(self.connected)
        return sum(port != before and begin_s <= made_s < end_s for (_, before), (made_s, port) in pairs)


class _Producer:
    """The producer, in its own process."""

    def __init__(self, orders: SteadyOrders, begun: Callable[[], None] = lambda: None) -> None:
        self._orders = orders
        self._begun = begun
        """Called with the first answer."""
        self._frames = stamped(orders.topic, LOAD)
        self._unanswered: deque[float] = deque()
        """When those were due that no connection has brought an answer to."""
        self._next_s = time.monotonic()
        self._end_s = math.inf
        """What is due behind it is not sent: standard input had ended then."""
        self._calm_s = -math.inf
        """What is due behind it is not disturbed."""
        self.due_s: list[float] = []
        self.took_s: list[float] = []
        self.disturbed: list[bool] = []
        self.failed_s: list[float] = []
        self.connected: list[tuple[float, int]] = []

    def run(self) -> SteadyLoad:
        """Produce until standard input ends and everything is answered. Raises RawFailed if there is no leader."""
        while self._has_more():
            try:
                port = self._leader()
                with RawConnection(port) as connection:
                    self.connected.append((time.monotonic(), port))
                    self._produce(connection)
            except (RawFailed, OSError):
                self.failed_s.append(time.monotonic())
                self._calm_s = math.inf
                time.sleep(PAUSE_S)
        return SteadyLoad(self.due_s, self.took_s, self.disturbed, self.failed_s, self.connected)

    @property
    def _is_over(self) -> bool:
        return self._end_s < math.inf

    def _has_more(self) -> bool:
        return not self._is_over or bool(self._unanswered) or self._next_s <= self._end_s

    def _leader(self) -> int:
        topic = self._orders.topic
        found = wait_view(lambda: self._orders.ports, topic, lambda view: view.is_whole(1), PATIENCE_S)
        if found is None:
            raise SystemExit(f"partition 0 of {topic} has no leader after {PATIENCE_S:g} s")
        return found.leaders()[0][0]

    def _produce(self, connection: RawConnection) -> None:
        """Until the connection fails, or nothing is left to do. Raises RawFailed, OSError."""
        lane = Lane(connection, self._orders.topic, lambda: next(self._frames))
        for due_s in self._unanswered:
            lane.send(due_s)
        while self._has_more():
            is_full = self._send_due(lane)
            awaited = [connection.socket] if self._is_over else [connection.socket, sys.stdin]
            wait_s = None if self._is_over or is_full else max(0.0, self._next_s - time.monotonic())
            readable, _, _ = select.select(awaited, [], [], wait_s)
            if sys.stdin in readable:
                self._end_s = time.monotonic()
            if connection.socket in readable:
                self._receive(lane)

    def _send_due(self, lane: Lane) -> bool:
        """Send what is due; returns whether so many are on their way that the rest waits."""
        last_s = min(time.monotonic(), self._end_s)
        while self._next_s <= last_s:
            if len(self._unanswered) >= MOST_UNANSWERED:
                return True
            self._unanswered.append(self._next_s)
            lane.send(self._next_s)
            self._next_s += 1 / self._orders.per_second
        return False

    def _receive(self, lane: Lane) -> None:
        answers = lane.receive([])
        now_s = time.monotonic()
        if answers and not self.due_s:
            self._begun()
        if answers:
            self._calm_s = min(self._calm_s, now_s)
        for _ in range(answers):
            due_s = self._unanswered.popleft()
            self.due_s.append(due_s)
            self.took_s.append(now_s - due_s)
            self.disturbed.append(due_s <= self._calm_s)


class SteadyProducer:
    """A context in which the producer runs; it begins when something was answered. `stop` ends the producer."""

    def __init__(self, orders: SteadyOrders) -> None:
        self._orders = orders

    def __enter__(self) -> SteadyProducer:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.harness.steady"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self._orders._asdict()) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout is not None
        self._process.stdout.readline()  # BEGUN; or the end, of one that found no leader, which `stop` tells
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it, if it runs still."""
        self._process.kill()
        self._process.communicate()

    def stop(self) -> SteadyLoad:
        """Let it end; what it has seen. Raises RawFailed if it has not ended well, or not in time."""
        try:
            output, _ = self._process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            raise RawFailed(f"the steady producer is without its last answers after {PATIENCE_S:g} s") from error
        if self._process.returncode:
            raise RawFailed("the steady producer ended with an error, which is above")
        return SteadyLoad(**json.loads(output))


def main() -> None:
    """Do what the orders on standard input say."""
    orders = SteadyOrders(**json.loads(sys.stdin.readline()))
    load = _Producer(orders, lambda: print(BEGUN, flush=True)).run()
    print(json.dumps(load._asdict()), flush=True)


if __name__ == "__main__":
    main()
