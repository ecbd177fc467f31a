"""Log lines: whole, parseable, and not too many of the same."""

import io
import json
from datetime import timedelta
from pathlib import Path

import pytest

from logstore.report import CAUSED_BY_CLIENTS, REMEMBERED, REPEAT_S, Reporter
from tests.kafka.wire_client import WireClient
from tests.support.sidecar import Sidecar


class Clock:
    """A clock set by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return int(self.now_s * 1000)

    def monotonic_s(self) -> float:
        """Seconds."""
        return self.now_s


def test_values_that_need_it_are_quoted() -> None:
    """Spaces, quotes, equal signs and line ends stay inside their value, on one line."""
    target = io.StringIO()
    Reporter(Clock(), as_json=False, target=target)("two words", {"plain": 1, "odd": 'a="b"\nc', "empty": ""})
    (line,) = target.getvalue().splitlines()
    assert line == (
        'time=1970-01-01T00:16:40.000+00:00 level=info event="two words" plain=1 odd="a=\\"b\\"\\nc" empty=""'
    )


def test_json_holds_whatever_is_said() -> None:
    """What JSON does not know is written as text."""
    target = io.StringIO()
    Reporter(Clock(), as_json=True, target=target)("read failed", {"what": {1, 2}.__class__, "n": 3})
    assert json.loads(target.getvalue())["level"] == "warning"


def test_the_same_warning_is_counted_not_repeated() -> None:
    """Within some seconds a line is written once, whatever its level; the next one says how many were left out."""
    target, clock = io.StringIO(), Clock()
    report = Reporter(clock, as_json=True, target=target)
    for _ in range(100):
        report("append failed", {"stream": "a-0"})
        report("append failed", {"stream": "b-0"})
    report("recovered", {})
    report("recovered", {})
    clock.now_s += REPEAT_S
    report("append failed", {"stream": "a-0"})
    lines = [json.loads(line) for line in target.getvalue().splitlines()]
    assert [(line["event"], line.get("stream"), line.get("repeated")) for line in lines] == [
        ("append failed", "a-0", None),
        ("append failed", "b-0", None),
        ("recovered", None, None),
        ("append failed", "a-0", 99),
    ]
    report.flush()
    lines = [json.loads(line) for line in target.getvalue().splitlines()]
    assert [(line["event"], line.get("stream"), line.get("repeated")) for line in lines[4:]] == [
        ("append failed", "b-0", 99),
        ("recovered", None, 1),
    ]


def test_lines_about_one_client_are_folded_whatever_they_say() -> None:
    """A client that is closed a thousand times, each time for another reason, makes one line in REPEAT_S, and one
    with the count and the last reason; another address has lines of its own.
    """
    target, clock = io.StringIO(), Clock()
    report = Reporter(clock, as_json=True, target=target)
    for number in range(1000):
        report("connection closed", {"client": "10.0.0.1", "why": f"a frame of {number} bytes"})
    report("connection closed", {"client": "10.0.0.2", "why": "too slow"})
    clock.now_s += REPEAT_S
    report.flush()
    lines = [json.loads(line) for line in target.getvalue().splitlines()]
    assert [(line["client"], line["why"], line.get("repeated")) for line in lines] == [
        ("10.0.0.1", "a frame of 0 bytes", None),
        ("10.0.0.2", "too slow", None),
        ("10.0.0.1", "a frame of 999 bytes", 999),
    ]


def test_more_addresses_than_can_be_remembered_write_no_more_lines() -> None:
    """Lines and memory stay bounded however many addresses a client uses; lines of the sidecar's own are written."""
    target, clock = io.StringIO(), Clock()
    report = Reporter(clock, as_json=True, target=target)
    for number in range(5 * REMEMBERED):
        report("connection closed", {"client": f"127.0.{number >> 8}.{number & 255}", "why": "nonsense"})
    report("recovered", {})
    lines = [json.loads(line) for line in target.getvalue().splitlines()]
    assert len(lines) == REMEMBERED + 1
    assert lines[-1]["event"] == "recovered"
    clock.now_s += REPEAT_S
    report("connection closed", {"client": "10.0.0.1", "why": "nonsense"})
    assert json.loads(target.getvalue().splitlines()[-1])["client"] == "10.0.0.1"


@pytest.mark.parametrize("event", sorted(CAUSED_BY_CLIENTS))
def test_what_clients_cause_is_bounded_whatever_it_says(event: str) -> None:
    """A client that makes topics, rebalances groups or reads what is damaged, each time with other fields, gets no more
    lines than can be remembered; what the sidecar says by itself is still written.
    """
    target, clock = io.StringIO(), Clock()
    report = Reporter(clock, as_json=True, target=target)
    for number in range(3 * REMEMBERED):
        report(event, {"topic": f"topic-{number}"})
    report("durable data damaged", {"path": "x"})
    lines = [json.loads(line) for line in target.getvalue().splitlines()]
    assert len(lines) == REMEMBERED + 1
    assert lines[-1]["event"] == "durable data damaged"


def test_lines_below_the_level_are_left_out() -> None:
    """`log-level` names the least level that is written; each level has events."""
    for level, events in (("info", 3), ("warning", 2), ("error", 1)):
        target = io.StringIO()
        report = Reporter(Clock(), as_json=True, level=level, target=target)
        for event in ("recovered", "append failed", "durable data lost"):
            report(event, {})
        assert len(target.getvalue().splitlines()) == events


def test_a_log_that_cannot_be_written_is_lost() -> None:
    """A closed standard error never stops the sidecar."""
    target = io.StringIO()
    target.close()
    Reporter(Clock(), as_json=False, target=target)("recovered", {})


def test_what_happens_to_topics_and_groups_is_in_the_log(tmp_path: Path) -> None:
    """Topics that are made, grown, altered and deleted, and each new generation of a group, are lines of their own that
    name what they are about.
    """
    with Sidecar(tmp_path / "data", "--log-format", "json") as sidecar, WireClient(sidecar.port) as client:
        client.create_topic("orders", 2)
        client.request(37, 1, topics=[{"name": "orders", "count": 3, "assignments": None}])
        change = {"name": "retention.ms", "config_operation": 0, "value": "5000"}
        client.request(44, 0, resources=[{"resource_type": 2, "resource_name": "orders", "configs": [change]}])
        protocols = [{"name": "range", "metadata": b""}]
        session = timedelta(seconds=10)
        joining = {"group_id": "readers", "protocol_type": "consumer", "protocols": protocols}
        client.request(11, 2, session_timeout=session, rebalance_timeout=session, **joining)
        client.request(20, 3, topic_names=["orders"])
        assert sidecar.terminate() == 0
        events = {event.pop("event"): event for event in map(json.loads, sidecar.log().splitlines())}
    created = events["topic created"]
    assert (created["topic"], created["partitions"]) == ("orders", 2)
    assert (events["topic grown"]["partitions"], events["topic grown"]["before"]) == (3, 2)
    assert events["topic altered"]["changes"] == "retention.ms=5000"
    assert events["topic deleted"]["id"] == created["id"]
    rebalanced = events["group rebalanced"]
    assert (rebalanced["group"], rebalanced["generation"], rebalanced["members"]) == ("readers", 1, 1)
