"""Histories that are written by hand, for the checker of histories."""

from __future__ import annotations

from typing import Any

from benchmarks.checked.checker import Checker
from benchmarks.checked.history import Entry

STREAM = "orders-0"
ORDERS = ["p:0", "q:0", "q:0", "q:1", "p:1"]
RESULTS = ["e/a:0", "e/a:1", "e/a:2"]
Records = list[tuple[int, str]]


class History:
    """A history that is written by hand, a second for each entry."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._calls = 0
        self.stream(STREAM)
        self.stream("kept-0", keeps_bytes=2_000)
        self.stream("cleared-0")
        for partition in range(2):
            self.stream(f"out-{partition}", dense=False)
        self.add(what="producer", who="p", stream=STREAM, idempotent=True)
        self.add(what="producer", who="q", stream=STREAM, idempotent=False)

    def add(self, **entry: Any) -> None:
        """One entry."""
        self.entries.append({"at_s": float(len(self.entries)), **entry})

    def stream(self, name: str, *, dense: bool = True, keeps_bytes: int = 0) -> None:
        """A stream with two copies."""
        self.add(what="stream", stream=name, dense=dense, copies=2, keeps_bytes=keeps_bytes)

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

    def log(self, *values: str, stream: str = STREAM, start: int = 0) -> None:
        """What the log holds at the end, from its start on."""
        records = list(enumerate(values, start))
        self.call(
            "log", "end", stream=stream, answer={"records": records, "start": start, "limit": start + len(values)}
        )

    def read(self, offset: int, *records: tuple[int, str], stream: str = STREAM) -> None:
        """What a reader reads at a position."""
        self.call("read", "r", stream=stream, offset=offset, answer={"records": list(records)})

    def sent(self, stream: str, count: int) -> list[str]:
        """So many records of a producer of its own are acknowledged; their values."""
        who = f"of-{stream}"
        self.add(what="producer", who=who, stream=stream, idempotent=True)
        for number in range(count):
            self.call("produce", who, stream=stream, number=number, answer={"offset": number})
        return [f"{who}:{number}" for number in range(count)]

    def disks(self, *hosts: str, lacking: int = -1) -> None:
        """All records of orders lie on the disks of hosts; of the last one, one may be missing."""
        for host in hosts:
            records = [(at, value) for at, value in enumerate(ORDERS) if host != hosts[-1] or at != lacking]
            self.add(what="copies", host=host, stream=STREAM, records=records)
            for stream in ("out-0", "out-1"):
                self.add(what="copies", host=host, stream=stream, records=list(enumerate(RESULTS)))
            self.add(what="disk", host=host)

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
    history.add(what="reader", who="r", streams=[STREAM])
    history.read(0, (0, "p:0"))
    history.read(1, (1, "q:0"), (2, "q:0"))
    history.read(3, (3, "q:1"), (4, "p:1"))
    history.add(what="group", group="g", streams=[STREAM], reads=True)
    history.call("deliver", "m", group="g", stream=STREAM, answer={"records": list(enumerate(ORDERS))})
    history.call("commit", "m", group="g", stream=STREAM, offset=1)
    history.fail("commit", "m", group="g", stream=STREAM, offset=2)
    history.call("committed", "end", group="g", stream=STREAM, answer={"offset": 1})
    history.call("committed", "end", group="g", stream=STREAM, answer={"offset": 2})
    history.call("commit", "m", group="g", stream=STREAM, offset=5)
    history.call("committed", "end", group="g", stream=STREAM, answer={"offset": 5})
    history.add(what="setting", topic="t", key="k", value=1)
    history.call("described", topic="t", key="k", answer={"value": 1})
    history.fail("alter", topic="t", key="k", value=2)
    history.call("alter", topic="t", key="k", value=3)
    history.call("described", topic="t", key="k", answer={"value": 2})
    history.call("take over", query="e", run="a", answer={"last": -1})
    for number in range(3):
        history.call("epoch", query="e", run="a", number=number, streams=["out-0", "out-1"])
    history.fail("epoch", query="e", run="a", number=3, streams=["out-0", "out-1"])
    history.call("take over", query="e", run="b", answer={"last": 2})
    history.fail("zombie", query="e", number=3)
    for partition in range(2):
        history.log(*RESULTS, stream=f"out-{partition}")
    history.call("topics", answer={"topics": {"t": 2, "perhaps": 1}})
    kept = history.sent("kept-0", 20)
    history.read(0, (0, kept[0]), (6, kept[6]), stream="kept-0")
    history.log(*kept[7:], stream="kept-0", start=7)
    cleared = history.sent("cleared-0", 5)
    history.call("clear", stream="cleared-0", offset=2)
    history.fail("clear", stream="cleared-0", offset=3)
    history.log(*cleared[3:], stream="cleared-0", start=3)
    history.log(*ORDERS)
    history.call("fault", kind="kill + pause", answer={"seen": {"kill": "a ended: -9", "pause": ""}})
    return history
