"""A history: every call of every client, its begin and its end, as lines of JSON.

| entry | what it says |
|---|---|
| `stream` | a stream is used: `stream`; `dense`: without holes; `copies`; `keeps_bytes`: of retention, or 0 |
| `producer` | `who` sends to `stream`, its records numbered from 0; `idempotent`; `topic`, if the topic may go |
| `reader` | `who` must get to the end of `streams` |
| `group` | `group` commits offsets of `streams`; `reads`: its members must get to their end |
| `setting` | `topic` has `value` at `key` |
| `begin`, `end` | of a call: `who`, `id`, `call`; what was asked stands in the one, what was answered in the other |
| `died` | `host` ended with `status`, though nobody had ended it, or not as it was told: `why`, the end of its `log` |
| `disk` | the disk of `host` was read, when no host ran |
| `copies` | `records` of `stream` on the disk of `host`, behind the last `log` |

| call | asked | answered (`ok`) |
|---|---|---|
| `produce` | `stream`, `number` | `offset`; below 0: the library was not told it |
| `read` | `stream`, `offset` (the reader's position) | `records`: offset and value of each |
| `log` | `stream`: all of it, at the end | `records`, `start` and `limit`: beginning and end of the log |
| `deliver` | `group`, `stream`: what a member was given | `records` |
| `commit` | `group`, `stream`, `offset` | |
| `committed` | `group`, `stream` | `offset` |
| `create`, `grow`, `delete` | `topic`, `partitions` | |
| `topics` | | `topics`: partitions of each |
| `alter` | `topic`, `key`, `value` | |
| `described` | `topic`, `key` | `value` |
| `clear` | `stream`, `offset`: records below it are deleted | |
| `epoch` | `query`, `run`, `number`, `streams` | |
| `take over` | `query`, `run` | `last`: its last epoch that is committed, or −1 |
| `zombie` | `query`, `number`: a run that was replaced commits | |
| `fault` | `kind`, `hosts` | `seen`: by kind, what shows that the fault was one; empty if nothing did |

Invariants:
* A call that has no end, or an end that is not `ok`, was carried out or not, or will be.
* A record's value is `WHO:NUMBER`; of an epoch `QUERY/RUN:NUMBER`. A stream is a name that its users agree on: a
  topic that is made anew has another one.
* Times are seconds since the history began, from one clock, and lines are in the order of times.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

Entry = dict[str, Any]


class Call:
    """A call that is under way."""

    def __init__(self, recorder: Recorder, who: str, number: int) -> None:
        self._recorder, self._who, self._number = recorder, who, number

    def ok(self, **answer: Any) -> None:
        """It was answered."""
        self._recorder.add(what="end", who=self._who, id=self._number, ok=True, **answer)

    def failed(self, error: object) -> None:
        """It failed, or nobody knows whether it was carried out."""
        self._recorder.add(what="end", who=self._who, id=self._number, ok=False, error=str(error)[:300])


class Recorder:
    """Writes a history, from many threads."""

    def __init__(self, path: Path, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._begun_s = now_s()
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self._calls = 0

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """No more comes; what comes all the same is dropped, as of a client that has not ended in time."""
        with self._lock:
            self._file.close()

    @property
    def at_s(self) -> float:
        """The time in this history."""
        return self._now_s() - self._begun_s

    def begin(self, call: str, who: str, **asked: Any) -> Call:
        """A client asks for something."""
        with self._lock:
            self._calls += 1
            number = self._calls
        self.add(what="begin", who=who, id=number, call=call, **asked)
        return Call(self, who, number)

    def add(self, **entry: Any) -> None:
        """Write one entry."""
        with self._lock:
            if not self._file.closed:
                line = {"at_s": round(self.at_s, 6), **entry}
                self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


def read_history(path: Path) -> Iterator[Entry]:
    """The entries of a history, in their order."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
