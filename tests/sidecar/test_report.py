"""Log lines: whole, parseable, and not too many of the same."""

import io
import json

from logstore.report import REPEAT_S, Reporter


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
    """Within some seconds a warning is written once; the next one says how many were left out. Other events all
    appear.
    """
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
        ("recovered", None, None),
        ("append failed", "a-0", 99),
    ]


def test_a_log_that_cannot_be_written_is_lost() -> None:
    """A closed standard error never stops the sidecar."""
    target = io.StringIO()
    target.close()
    Reporter(Clock(), as_json=False, target=target)("recovered", {})
