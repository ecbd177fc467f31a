"""What the documentation shows of operators and their harness does what it says."""

from __future__ import annotations

import datetime as dt
import pickle
import random

import pytest

from spe_adapter.operators.errors import OperatorFailed
from spe_adapter.testing.harness import OperatorHarness, check_any_batches
from tests.operators.examples import CLICKS, PAYMENTS, Alarm, Sessions

Rows = list[dict[str, object]]


def alarms(checks: int | None = None) -> OperatorHarness:
    """A harness around the alarm."""
    return OperatorHarness(Alarm(), key="customer", schema=PAYMENTS, checks=checks)


def at(minute: float) -> dt.datetime:
    """A moment."""
    return dt.datetime(2026, 3, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=minute)


def test_the_example_of_the_harness() -> None:
    """Its module's docstring, line by line."""
    harness = alarms()
    rows: Rows = [{"customer": "x", "cents": 100}, {"customer": "x", "cents": 5000}]
    assert harness.send(rows) == [{"customer": "x", "cents": 5000, "mean_cents": 100.0}]
    harness.crash_and_recover()
    assert harness.state() == [{"customer": "x", "payments": 2, "paid_cents": 5100}]
    check_any_batches(alarms, [rows], random.Random(7))


def test_results_become_records_with_the_customer_as_key() -> None:
    """Key bytes as they are; the row as JSON."""
    harness = alarms()
    harness.send([{"customer": "x", "cents": 1}, {"customer": "x", "cents": 20}])
    assert harness.records() == [(b"x", b'{"customer":"x","cents":20,"mean_cents":1.0}')]


@pytest.mark.parametrize("checks", [None, 0, 1])
def test_recovery_at_any_time_changes_nothing(checks: int | None) -> None:
    """With and without replay, the run with a crash behind every epoch is the run without."""
    calm, shaken = alarms(checks), alarms(checks)
    chance = random.Random(3)
    for _ in range(12):
        rows = [{"customer": chance.choice("abc"), "cents": chance.choice([1, 2, 90])} for _ in range(5)]
        assert calm.send(rows) == shaken.send(rows)
        shaken.crash_and_recover()
        assert calm.state() == shaken.state()


def test_an_operator_that_fails_is_named_with_the_key_and_leaves_no_trace() -> None:
    """A null among the payments of one of many customers: that customer is named, the others' state is as before."""
    harness = alarms()
    harness.send([{"customer": f"c{number}", "cents": 5} for number in range(50)])
    before = harness.state()
    rows: Rows = [{"customer": f"c{number}", "cents": None if number == 17 else 5} for number in range(50)]
    with pytest.raises(OperatorFailed, match=r"operator Alarm failed in epoch 2 at key 'c17'"):
        harness.send(rows)
    assert harness.state() == before
    harness.send([{"customer": "c17", "cents": 5}])
    assert harness.state()[9] == {"customer": "c17", "payments": 2, "paid_cents": 10}


def test_sessions_end_a_pause_after_the_last_click() -> None:
    """A session is extended as long as clicks come, and given once it is over; recovery in between is not noticed."""
    harness = OperatorHarness(Sessions(), key="user", schema=CLICKS)
    assert harness.send([{"user": "u", "at": at(0)}, {"user": "u", "at": at(10)}, {"user": "v", "at": at(1)}]) == []
    assert harness.send([{"user": "u", "at": at(20)}]) == []
    harness.crash_and_recover()
    assert harness.send([{"user": "w", "at": at(30)}]) == [{"user": "v", "clicks": 1, "start": at(1), "end": at(1)}]
    assert harness.send([]) == []
    assert harness.advance_watermark(int(at(35).timestamp() * 1000)) == [
        {"user": "u", "clicks": 3, "start": at(0), "end": at(20)}
    ]
    assert [row["user"] for row in harness.state()] == ["w"]


def test_operators_travel() -> None:
    """An operator can be pickled, as Spark does."""
    assert pickle.loads(pickle.dumps(Sessions())).state == Sessions.state
