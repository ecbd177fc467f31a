"""Limits log lines that clients can cause at any rate: of equal lines only a few are written, with their number.

Invariants: the first line of a kind is written at once; the next line of that kind at least INTERVAL_S later, with the
number of lines in between (`repeated`); if no next line comes, `run` writes the number. At most MAX_KINDS kinds are
distinguished; other events pass unchanged.
"""

from collections.abc import Callable, Mapping

import trio

Report = Callable[[str, Mapping[str, object]], None]

INTERVAL_S = 10.0
MAX_KINDS = 1000
"""The kinds (an event with its client or operation) that are counted; all others share one kind per event."""
FOLDED = frozenset(("cannot accept", "connection crashed", "connection refused", "request crashed"))
OTHERS = "others"


class _LineKind:
    __slots__ = ("fields", "held", "written_s")

    def __init__(self, written_s: float) -> None:
        self.written_s = written_s
        self.held = 0
        self.fields: Mapping[str, object] = {}


class Folding:
    """A report that folds repeated lines. `now_s`: seconds that never go back."""

    def __init__(self, report: Report, now_s: Callable[[], float]) -> None:
        self._report = report
        self._now_s = now_s
        self._kinds: dict[tuple[str, str], _LineKind] = {}
        self._look_s = 0.0

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        """Write one event, or count it."""
        if event not in FOLDED:
            self._report(event, fields)
            return
        now_s = self._now_s()
        if now_s >= self._look_s:
            self._sweep(now_s)
        key = (event, str(fields.get("client") or fields.get("operation") or ""))
        if key not in self._kinds and len(self._kinds) >= MAX_KINDS:
            key = (event, OTHERS)
        kind = self._kinds.get(key)
        if kind is None:
            self._kinds[key] = _LineKind(now_s)
            self._report(event, fields)
        elif now_s - kind.written_s >= INTERVAL_S:
            self._report(event, {**fields, "repeated": kind.held} if kind.held else fields)
            kind.written_s, kind.held = now_s, 0
        else:
            kind.held, kind.fields = kind.held + 1, fields

    async def run(self) -> None:
        """Write the counts of ended intervals, also without new events, until cancelled."""
        while True:
            await trio.sleep(INTERVAL_S)
            self._sweep(self._now_s())

    def _sweep(self, now_s: float) -> None:
        """Write the counts of ended intervals, and drop the kinds without new events."""
        self._look_s = now_s + INTERVAL_S
        for key, kind in list(self._kinds.items()):
            if now_s - kind.written_s >= INTERVAL_S:
                if kind.held:
                    self._report(key[0], {**kind.fields, "repeated": kind.held})
                    kind.written_s, kind.held = now_s, 0
                else:
                    del self._kinds[key]

    def flush(self) -> None:
        """Write all counts."""
        for key, kind in self._kinds.items():
            if kind.held:
                self._report(key[0], {**kind.fields, "repeated": kind.held})
        self._kinds.clear()
