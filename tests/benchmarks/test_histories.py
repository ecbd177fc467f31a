"""The checker of histories: it finds every planted violation, and none in a history that keeps its promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.checked.checker import Checker
from benchmarks.checked.history import Entry, Recorder, read_history
from tests.metadata.support import needs_etcd
from tests.support.limits import PROGRAM_S

ROOT = Path(__file__).parents[2]
STREAM = "orders-0"
Records = list[tuple[int, str]]


class History:
    """A history that is written by hand, a second for each entry."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._calls = 0
        self.add(what="stream", stream=STREAM, dense=True)
        self.add(what="producer", who="p", stream=STREAM, idempotent=True)
        self.add(what="producer", who="q", stream=STREAM, idempotent=False)

    def add(self, **entry: Any) -> None:
        """One entry."""
        self.entries.append({"at_s": float(len(self.entries)), **entry})

    def begin(self, call: str, who: str = "x", **asked: Any) -> int:
        """A call begins; its number."""
        self._calls += 1
        self.add(what="begin", who=who, id=self._calls, call=call, **asked)
        return self._calls

    def end(self, number: int, **answer: Any) -> None:
        """It is answered."""
        self.add(what="end", id=number, ok=True, **answer)

    def call(self, call: str, who: str = "x", *, answer: dict[str, Any] | None = None, **asked: Any) -> None:
        """A call and its answer."""
        self.end(self.begin(call, who, **asked), **(answer or {}))

    def fail(self, call: str, who: str = "x", **asked: Any) -> None:
        """A call without an answer."""
        self.add(what="end", id=self.begin(call, who, **asked), ok=False, error="timeout")

    def produce(self, who: str, number: int, offset: int) -> None:
        """A record is acknowledged."""
        self.call("produce", who, stream=STREAM, number=number, answer={"offset": offset})

    def log(self, *values: str, stream: str = STREAM) -> None:
        """What the log holds at the end."""
        self.call("log", "end", stream=stream, answer={"records": list(enumerate(values)), "limit": len(values)})

    def read(self, offset: int, *records: tuple[int, str]) -> None:
        """What a reader reads at a position."""
        self.call("read", "r", stream=STREAM, offset=offset, answer={"records": list(records)})

    def broken(self) -> set[str]:
        """The names of the promises that the checker finds broken."""
        checker = Checker()
        checker.feed(self.entries)
        found = {violation.promise for violation in checker.violations()}
        assert bool(found) == bool(checker.violation_count)
        return found


def good() -> History:
    """Acknowledged, failed and unanswered calls of all kinds, and no promise that is broken."""
    history = History()
    history.call("create", topic="t", partitions=1)
    history.call("grow", topic="t", partitions=2)
    history.call("create", topic="gone", partitions=1)
    history.call("delete", topic="gone", partitions=0)
    history.fail("delete", topic="perhaps", partitions=0)
    history.produce("p", 0, 0)
    history.produce("q", 0, 1)
    history.fail("produce", "q", stream=STREAM, number=1)
    history.begin("produce", "p", stream=STREAM, number=1)
    history.read(0, (0, "p:0"))
    history.read(1, (1, "q:0"), (2, "q:0"))
    history.call("deliver", "m", group="g", stream=STREAM, answer={"records": [(0, "p:0"), (1, "q:0")]})
    history.call("commit", "m", group="g", stream=STREAM, offset=1)
    history.fail("commit", "m", group="g", stream=STREAM, offset=2)
    history.call("committed", "end", group="g", stream=STREAM, answer={"offset": 1})
    history.call("committed", "end", group="g", stream=STREAM, answer={"offset": 2})
    for number in range(3):
        history.call("epoch", query="e", number=number, streams=["out-0", "out-1"])
    history.fail("epoch", query="e", number=3, streams=["out-0", "out-1"])
    for partition in range(2):
        history.log("e:0", "e:1", "e:2", stream=f"out-{partition}")
    history.call("topics", answer={"topics": {"t": 2, "perhaps": 1}})
    history.log("p:0", "q:0", "q:0", "q:1", "p:1")
    return history


def test_a_history_that_keeps_its_promises_passes() -> None:
    """Duplicates of a producer that is not idempotent, and calls whose outcome nobody knows, break nothing."""
    assert good().broken() == set()


def lost_ack(history: History) -> None:
    """The log lacks a record that was acknowledged, and nothing else shows it."""
    history.produce("p", 1, 2)
    history.log("p:0", "q:0", "q:0")


def duplicate(history: History) -> None:
    """A batch of an idempotent producer that was sent again is in the log twice."""
    history.log("p:0", "q:0", "q:0", "p:0")


def reorder(history: History) -> None:
    """A record that failed at first comes behind the one that was sent after it."""
    for number in (1, 2):
        history.fail("produce", "p", stream=STREAM, number=number)
    history.log("p:0", "q:0", "q:0", "p:2", "p:1")


def acked_out_of_order(history: History) -> None:
    """Two records are acknowledged at offsets in the other order."""
    history.produce("q", 2, 4)
    history.produce("q", 3, 3)
    history.log("p:0", "q:0", "q:0", "q:3", "q:2")


def offset_twice(history: History) -> None:
    """Two owners give the same offset."""
    history.produce("p", 2, 0)


def never_sent(history: History) -> None:
    """The log holds what nobody sent."""
    history.log("p:0", "q:0", "q:0", "q:77")


def other_stream(history: History) -> None:
    """The log holds a record of another topic, which had the same name."""
    history.add(what="producer", who="old", stream="t#0-0", idempotent=True)
    history.call("produce", "old", stream="t#0-0", number=0, answer={"offset": 0})
    history.log("old:0", stream="t#1-0")


def hole(history: History) -> None:
    """An offset is missing."""
    history.call("log", stream=STREAM, answer={"records": [(0, "p:0"), (1, "q:0"), (3, "q:0")], "limit": 4})


def read_goes_back(history: History) -> None:
    """A reader is given again what it has read."""
    history.read(3, (1, "q:0"), (2, "q:0"))


def read_skips(history: History) -> None:
    """A reader is given the record behind the next one."""
    history.read(3, (4, "p:1"))


def read_vanishes(history: History) -> None:
    """A record that was read is not in the log at the end: it was shown before it was safe."""
    history.fail("produce", "p", stream=STREAM, number=5)
    history.read(5, (5, "p:5"))


def reads_differ(history: History) -> None:
    """Two readers are given different records at an offset."""
    history.read(1, (1, "q:1"))


def commit_goes_back(history: History) -> None:
    """A group has an older offset than the one that was committed last."""
    history.call("commit", "m", group="g2", stream=STREAM, offset=1)
    history.call("commit", "m", group="g2", stream=STREAM, offset=2)
    history.call("committed", "end", group="g2", stream=STREAM, answer={"offset": 1})


def commit_is_lost(history: History) -> None:
    """A group has no offset, though one was committed."""
    history.call("commit", "m", group="g2", stream=STREAM, offset=1)
    history.call("committed", "end", group="g2", stream=STREAM, answer={"offset": -1001})


def group_skips(history: History) -> None:
    """A group has committed a record that no member was given."""
    history.call("commit", "m", group="g", stream=STREAM, offset=4)
    history.call("committed", "end", group="g", stream=STREAM, answer={"offset": 4})


def topic_is_lost(history: History) -> None:
    """A topic that was made is not there."""
    history.call("topics", answer={"topics": {"perhaps": 1}})


def topic_shrinks(history: History) -> None:
    """A topic that was grown has its former number of partitions."""
    history.call("topics", answer={"topics": {"t": 1}})


def topic_comes_back(history: History) -> None:
    """A topic that was deleted is there."""
    history.call("topics", answer={"topics": {"t": 2, "gone": 1}})


def epoch_twice(history: History) -> None:
    """An epoch is in a stream twice."""
    history.log("e:0", "e:1", "e:1", "e:2", stream="out-0")


def epoch_torn(history: History) -> None:
    """An epoch that failed is in one of its streams."""
    history.log("e:0", "e:1", "e:2", "e:3", stream="out-0")


def epoch_lost(history: History) -> None:
    """An epoch that was committed is nowhere."""
    for partition in range(2):
        history.log("e:0", "e:2", stream=f"out-{partition}")


def epochs_out_of_order(history: History) -> None:
    """A later epoch stands in front."""
    for partition in range(2):
        history.log("e:1", "e:0", "e:2", stream=f"out-{partition}")


PLANTED = {
    lost_ack: "acknowledged records stay",
    duplicate: "idempotent records once",
    reorder: "idempotent records in order",
    acked_out_of_order: "in order",
    offset_twice: "an offset once",
    never_sent: "nothing that was not sent",
    other_stream: "nothing that was not sent",
    hole: "no holes",
    read_goes_back: "reads go up",
    read_skips: "reads have no holes",
    read_vanishes: "what was read stays",
    reads_differ: "reads agree",
    commit_goes_back: "commits stay",
    commit_is_lost: "commits stay",
    group_skips: "groups get all",
    topic_is_lost: "topics stay",
    topic_shrinks: "topics stay",
    topic_comes_back: "deleted topics go",
    epoch_twice: "epochs once",
    epoch_torn: "epochs whole",
    epoch_lost: "committed epochs stay",
    epochs_out_of_order: "epochs in order",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_violation_is_found(plant: Any) -> None:
    """Each is told by the name of the promise that it breaks."""
    history = good()
    plant(history)
    assert PLANTED[plant] in history.broken()


def test_an_unanswered_commit_may_come_late() -> None:
    """A commit that failed may be carried out behind a later one; one that was answered before may not."""
    history = History()
    history.fail("commit", "m", group="g", stream=STREAM, offset=1)
    history.call("commit", "m", group="g", stream=STREAM, offset=2)
    history.call("committed", "end", group="g", stream=STREAM, answer={"offset": 1})
    assert history.broken() == set()


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Calls, answers and failures come back in their order, with the times of the clock that was given."""
    times = iter(range(100))
    path = tmp_path / "history.jsonl"
    with Recorder(path, lambda: float(next(times))) as recorder:
        recorder.begin("produce", "p", stream=STREAM, number=0).ok(offset=7)
        recorder.begin("create", "admin", topic="t", partitions=1).failed("no")
    recorder.add(what="stream", stream="late", dense=True)  # dropped: the history is closed
    assert list(read_history(path)) == [
        {"at_s": 1.0, "what": "begin", "who": "p", "id": 1, "call": "produce", "stream": STREAM, "number": 0},
        {"at_s": 2.0, "what": "end", "who": "p", "id": 1, "ok": True, "offset": 7},
        {"at_s": 3.0, "what": "begin", "who": "admin", "id": 2, "call": "create", "topic": "t", "partitions": 1},
        {"at_s": 4.0, "what": "end", "who": "admin", "id": 2, "ok": False, "error": "no"},
    ]


@needs_etcd
@pytest.mark.clients
@pytest.mark.slow
def test_half_a_minute_of_faults_breaks_no_promise(tmp_path: Path) -> None:
    """Clients, faults and the judge, end to end."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.histories", "--smoke", "--results", str(tmp_path), "--data", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "histories.json").read_text())
    assert (found["violations"], found["trouble"]) == ([], [])
    assert found["calls"]["produce"] > 100
