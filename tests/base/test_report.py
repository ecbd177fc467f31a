"""Log lines: whole, parseable, and not too many of the same."""

import io
import json
import threading

import pytest
import trio
from trio.testing import MockClock

from logstore import events as sidecar_events
from logstore.base.events import Level, LogEvent
from logstore.base.report import MAX_REASONS, REMEMBERED, REPEAT_S, Reporter
from scheduler.coordinator import log_events as coordinator_events

EVENT = LogEvent("two_words")
FAILED = LogEvent("failed", Level.WARNING)
LOST = LogEvent("lost", Level.ERROR)
CLOSED = LogEvent("closed", folded_by="client", caused_by_clients=True)
REFUSED = LogEvent("refused", folded_by="client", counted_by="why", caused_by_clients=True)
CAUSED = LogEvent("caused", caused_by_clients=True)


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


class TrioClock(Clock):
    """The event loop's clock."""

    def monotonic_s(self) -> float:
        """Seconds."""
        return trio.current_time()


def test_values_that_need_it_are_quoted() -> None:
    """Spaces, quotes, equal signs and line ends stay inside their value, on one line."""
    target = io.StringIO()
    Reporter(Clock(), as_json=False, target=target)(EVENT, plain=1, odd='a="b"\nc', empty="", control="\x9b\ud800")
    (line,) = target.getvalue().splitlines()
    assert line == (
        'time=1970-01-01T00:16:40.000+00:00 level=info event=two_words plain=1 odd="a=\\"b\\"\\nc" empty="" '
        'control="\\u009b\\ud800"'
    )


def test_json_holds_whatever_is_said() -> None:
    """What JSON does not know is written as text."""
    target = io.StringIO()
    Reporter(Clock(), as_json=True, target=target)(FAILED, what={1, 2}.__class__, n=3)
    assert json.loads(target.getvalue())["level"] == "warning"


def test_the_same_warning_is_counted_not_repeated() -> None:
    """Within some seconds a line is written once, whatever its level; the next one says how many were left out."""
    target, clock = io.StringIO(), Clock()
    report = Reporter(clock, as_json=True, target=target)
    for _ in range(100):
        report(FAILED, stream="a-0")
        report(FAILED, stream="b-0")
    report(EVENT)
    report(EVENT)
    clock.now_s += REPEAT_S
    report(FAILED, stream="a-0")
    lines = [json.loads(line) for line in target.getvalue().splitlines()]
    assert [(line["event"], line.get("stream"), line.get("repeated")) for line in lines] == [
        ("failed", "a-0", None),
        ("failed", "b-0", None),
        ("two_words", None, None),
        ("failed", "a-0", 99),
    ]
    report.flush()
    lines = [json.loads(line) for line in target.getvalue().splitlines()]
    assert [(line["event"], line.get("stream"), line.get("repeated")) for line in lines[4:]] == [
        ("failed", "b-0", 99),
        ("two_words", None, 1),
    ]


def test_lines_about_one_client_are_folded_whatever_they_say() -> None:
    """A client that is closed a thousand times, each time for another reason, makes one line in REPEAT_S, and one
    with the count and the last reason; another address has lines of its own.
    """
    target, clock = io.StringIO(), Clock()
    report = Reporter(clock, as_json=True, target=target)
    for number in range(1000):
        report(CLOSED, client="10.0.0.1", why=f"a frame of {number} bytes")
    report(CLOSED, client="10.0.0.2", why="too slow")
    clock.now_s += REPEAT_S
    report.flush()
    lines = [json.loads(line) for line in target.getvalue().splitlines()]
    assert [(line["client"], line["why"], line.get("repeated")) for line in lines] == [
        ("10.0.0.1", "a frame of 0 bytes", None),
        ("10.0.0.2", "too slow", None),
        ("10.0.0.1", "a frame of 999 bytes", 999),
    ]


def shown(target: io.StringIO) -> list[tuple[str, str, int]]:
    """The lines so far: client, reason, repeats."""
    lines = map(json.loads, target.getvalue().splitlines())
    return [(line["client"], line["why"], line.get("repeated", 0)) for line in lines]


def test_repeats_are_counted_for_each_reason() -> None:
    """A count never stands beside a reason that it does not count: a bad certificate is no plain connection."""
    target, clock = io.StringIO(), Clock()
    report = Reporter(clock, as_json=True, target=target)
    for _ in range(14):
        report(REFUSED, client="10.0.0.1", why="plain text")
    report(REFUSED, client="10.0.0.1", why="bad certificate")
    report(REFUSED, client="10.0.0.1", why="plain text")
    first = [("10.0.0.1", "plain text", 0), ("10.0.0.1", "bad certificate", 0)]
    assert shown(target) == first
    clock.now_s += REPEAT_S
    report(REFUSED, client="10.0.0.1", why="bad certificate")
    report.flush()
    assert shown(target) == [*first, ("10.0.0.1", "bad certificate", 0), ("10.0.0.1", "plain text", 14)]


def test_a_client_has_few_reasons_of_its_own() -> None:
    """A client that invents a reason each time gets a line for each of the first few, and one for all others."""
    target, clock = io.StringIO(), Clock()
    report = Reporter(clock, as_json=True, target=target)
    for number in range(1000):
        report(REFUSED, client="10.0.0.1", why=f"a frame of {number} bytes")
    clock.now_s += REPEAT_S
    report.flush()
    separate = [("10.0.0.1", f"a frame of {number} bytes", 0) for number in range(MAX_REASONS + 1)]
    assert shown(target) == [*separate, ("10.0.0.1", "a frame of 999 bytes", 999 - MAX_REASONS)]


def test_more_addresses_than_can_be_remembered_write_no_more_lines() -> None:
    """Lines and memory stay bounded however many addresses a client uses; lines of the sidecar's own are written."""
    target, clock = io.StringIO(), Clock()
    report = Reporter(clock, as_json=True, target=target)
    for number in range(5 * REMEMBERED):
        report(CLOSED, client=f"127.0.{number >> 8}.{number & 255}", why="nonsense")
    report(EVENT)
    lines = [json.loads(line) for line in target.getvalue().splitlines()]
    assert len(lines) == REMEMBERED + 1
    assert lines[-1]["event"] == EVENT.name
    clock.now_s += REPEAT_S
    report(CLOSED, client="10.0.0.1", why="nonsense")
    assert json.loads(target.getvalue().splitlines()[-1])["client"] == "10.0.0.1"


def test_what_clients_cause_is_bounded_whatever_it_says() -> None:
    """A client that makes topics, rebalances groups or reads what is damaged, each time with other fields, gets no more
    lines than can be remembered; what the sidecar says by itself is still written.
    """
    target, clock = io.StringIO(), Clock()
    report = Reporter(clock, as_json=True, target=target)
    for number in range(3 * REMEMBERED):
        report(CAUSED, topic=f"topic-{number}")
    report(LOST, path="x")
    lines = [json.loads(line) for line in target.getvalue().splitlines()]
    assert len(lines) == REMEMBERED + 1
    assert lines[-1]["event"] == LOST.name


def test_own_lines_do_not_displace_those_of_clients() -> None:
    """However many lines a program writes by itself, lines about clients are written as well."""
    target, clock = io.StringIO(), Clock()
    report = Reporter(clock, as_json=True, target=target)
    for number in range(3 * REMEMBERED):
        report(EVENT, number=number)
    report(CLOSED, client="10.0.0.1", why="nonsense")
    lines = [json.loads(line) for line in target.getvalue().splitlines()]
    assert len(lines) == 3 * REMEMBERED + 1
    assert lines[-1]["client"] == "10.0.0.1"


async def test_counts_are_written_when_nothing_else_comes(autojump_clock: MockClock) -> None:
    """Clients that went away leave no count behind that is only written at the end."""
    target = io.StringIO()
    report = Reporter(TrioClock(), as_json=True, target=target)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(report.run, trio.sleep)
        for _ in range(5):
            report(CLOSED, client="a")
        await trio.sleep(2 * REPEAT_S + 1)
        nursery.cancel_scope.cancel()
    assert [json.loads(line).get("repeated", 0) for line in target.getvalue().splitlines()] == [0, 4]


@pytest.mark.parametrize("name", ["two words", "Upper", "a-b", "", "_a"])
def test_names_of_events_are_in_snake_case(name: str) -> None:
    """Another name is a defect, found where the event is defined."""
    with pytest.raises(AssertionError, match="snake_case"):
        LogEvent(name)


def test_lines_below_the_level_are_left_out() -> None:
    """`log-level` names the least level that is written; each level has events."""
    for level, events in ((Level.INFO, 3), (Level.WARNING, 2), (Level.ERROR, 1)):
        target = io.StringIO()
        report = Reporter(Clock(), as_json=True, level=level, target=target)
        for event in (EVENT, FAILED, LOST):
            report(event)
        assert len(target.getvalue().splitlines()) == events


def test_a_log_that_cannot_be_written_is_lost() -> None:
    """A closed standard error never stops the sidecar."""
    target = io.StringIO()
    target.close()
    Reporter(Clock(), as_json=False, target=target)(EVENT)


def test_lines_that_are_not_shown_are_counted() -> None:
    """More clients than are remembered: every line is written, or counted as not shown."""
    target, clock = io.StringIO(), Clock()
    report = Reporter(clock, as_json=True, target=target)
    for number in range(REMEMBERED + 500):
        report(CLOSED, client=f"10.0.{number // 250}.{number % 250}")
    report(CAUSED, what="first seen while the memory is full")
    report.flush()
    lines = [json.loads(line) for line in target.getvalue().splitlines()]
    assert sum("client" in line for line in lines) == REMEMBERED
    assert {line["event"]: line["not_shown"] for line in lines if "not_shown" in line} == {"closed": 500, "caused": 1}
    report.flush()
    assert len(target.getvalue().splitlines()) == len(lines)


def test_an_event_has_one_level_in_both_programs() -> None:
    """A sidecar with a coordinator inside writes the events of both."""
    levels: dict[str, set[Level]] = {}
    for module in (sidecar_events, coordinator_events):
        for event in vars(module).values():
            if isinstance(event, LogEvent):
                levels.setdefault(event.name, set()).add(event.level)
    assert {name: found for name, found in levels.items() if len(found) > 1} == {}


class SlowTarget(io.StringIO):
    """A target in whose `write` a thread stays until another one is there too, or has had the time to come."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0
        self.most_inside = 0
        self.second = threading.Event()

    def write(self, text: str) -> int:
        """Piece by piece, as a file without a buffer may."""
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        if self.inside > 1:
            self.second.set()
        for piece in (text[:5], text[5:]):
            super().write(piece)
            self.second.wait(0.1)
        self.inside -= 1
        return len(text)


def test_threads_that_report_at_once_write_whole_lines() -> None:
    """One line after the other, none lost, and repeats are counted right."""
    target = SlowTarget()
    report = Reporter(Clock(), as_json=True, target=target)

    def say(thread: int) -> None:
        report(EVENT, thread=thread)
        for _ in range(500):
            report(FAILED)

    threads = [threading.Thread(target=say, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report.flush(is_end=True)
    assert target.most_inside == 1
    lines = [json.loads(line) for line in target.getvalue().splitlines()]
    assert sorted(line["thread"] for line in lines if line["event"] == "two_words") == [0, 1, 2, 3]
    assert [line.get("repeated", 0) for line in lines if line["event"] == "failed"] == [0, 4 * 500 - 1]
