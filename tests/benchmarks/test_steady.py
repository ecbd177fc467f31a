"""The steady producer of the benchmarks leaves out no request that was due while a server stood still."""

import time
from typing import Any

import pytest

from benchmarks.harness.steady import MOST_UNANSWERED, SteadyOrders, _Producer

RATE_S = 200.0
STOOD_S = 3.0


class NoLane:
    """A connection on which nothing is answered; when what was sent on it was due."""

    def __init__(self) -> None:
        self.due_s: list[float] = []

    def send(self, at: float) -> None:
        self.due_s.append(at)

    def receive(self, _: list[float]) -> int:
        return len(self.due_s)


def test_requests_that_were_due_while_a_server_stood_still_are_sent_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts from when it was due, however many were on their way then: those of the last moments of a stall as
    well as those of its first.
    """
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    producer, lane = _Producer(SteadyOrders((), "t", RATE_S)), NoLane()
    sending: Any = lane
    now_s += STOOD_S
    producer._send_due(sending)
    while lane.due_s:
        assert len(producer._unanswered) == len(lane.due_s) <= MOST_UNANSWERED
        producer._receive(sending)
        lane.due_s.clear()
        producer._send_due(sending)
    expected = [1000.0 + number / RATE_S for number in range(int(STOOD_S * RATE_S))]
    assert producer.due_s[: len(expected)] == pytest.approx(expected)
    assert producer.took_s == pytest.approx([now_s - due_s for due_s in producer.due_s])
