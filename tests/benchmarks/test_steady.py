"""The steady producer of the benchmarks leaves out no request that was due while a server stood still."""

import time
from contextlib import nullcontext
from typing import Any

import pytest

from benchmarks.harness.raw import RawFailed
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


def test_requests_that_another_leader_disturbs_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were under way when the connection failed, and those that were due before the next one brought its
    first answer; none before, and none behind.
    """
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    producer, lane = _Producer(SteadyOrders((), "t", RATE_S)), NoLane()
    sending: Any = lane
    leads = iter([9092, 9094])
    monkeypatch.setattr(producer, "_leader", lambda: next(leads))
    monkeypatch.setattr("benchmarks.harness.steady.RawConnection", nullcontext)

    def step(seconds: float, *, is_answered: bool) -> None:
        nonlocal now_s
        now_s += seconds
        producer._send_due(sending)
        if is_answered:
            producer._receive(sending)
            lane.due_s.clear()

    def first(_: int) -> None:
        step(0.1025, is_answered=True)  # not at a moment at which a request is due
        step(0.1, is_answered=False)
        raise RawFailed("NOT_LEADER_OR_FOLLOWER")

    def second(_: int) -> None:
        step(0.3, is_answered=True)
        step(0.1, is_answered=True)
        producer._end_s = now_s

    turns = iter([first, second])
    monkeypatch.setattr(producer, "_produce", lambda connection: next(turns)(connection))
    monkeypatch.setattr("benchmarks.harness.steady.PAUSE_S", 0.0)
    load = producer.run()
    assert load.failures(1000.0, 1000.5) == load.moves(1000.0, 1000.5) == 1
    assert load.moves(1000.0, 1000.2) == 0
    assert len(load.between(1000.0, 1001.0)) == 121
    assert len(load.between(1000.0, 1001.0, disturbed=True)) == 80
    assert len(load.between(1000.1025, 1000.5025, disturbed=True)) == 80
