"""Keeps Python's garbage collector from searching many objects that stay, and from doing so while clients wait.

A full collection visits all objects that were made since the start, in one go: 10 ms for a thousand streams, in which
nobody is served. Objects that stay are taken out of its sight (`gc.freeze`), as those of the start are. What is left to
search (batches in memory, streams that came one by one) is searched when nothing is served for a moment.

Invariants:
* While a block of `making` with many streams runs, there is no full collection; young garbage is collected.
* While `FullCollections.run` runs, full collections begin there alone: in a moment of quiet once enough was made, and
  without such a moment when LATE times as much was made. So garbage in old cycles is bounded as well.
* What is out of sight is freed as soon as nothing refers to it; only what refers to itself in a cycle is not, such as
  the connections that were open then. So THAWED deleted streams bring everything back into sight.
"""

import gc
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Final

MANY: Final = 500
"""Streams, in one block or in several: a full collection visits fewer in 5 ms."""
THAWED: Final = 10_000
"""Bounds how often objects go out of sight between two full collections, MANY new streams at a time."""
LOOK_S: Final = 0.5
"""Between two looks; quiet is what has served nothing in between."""
DUE: Final = 10
"""Young collections since the last full one; Python's own rule begins with as many."""
GROWTH: Final = 4
"""A full collection waits until this part of what it would visit is new; Python's own rule has the same."""
LATE: Final = 4
"""Where something is served all the time, a full collection comes when so many times as much is new."""
_NEVER: Final = 1 << 30
_CHOSEN: Final = _NEVER - 1
"""In place of a number of young collections: `FullCollections` decides, unless many streams are made."""


class _OldestRule:
    """When this process searches all that is in sight: the one place that changes the collector's thresholds.

    Blocks of `making` and `FullCollections` begin and end in any order: what Python itself would do comes back with the
    end of the last of them.
    """

    def __init__(self) -> None:
        self._pythons = gc.get_threshold()
        """As they were when the first of those began that are under way now."""
        self._blocks = self._choosers = 0

    def change(self, *, blocks: int = 0, choosers: int = 0) -> None:
        """So many more blocks with many streams, and more `FullCollections`, are under way."""
        if not self._blocks and not self._choosers:
            self._pythons = gc.get_threshold()
        self._blocks += blocks
        self._choosers += choosers
        youngest, young, oldest = self._pythons
        gc.set_threshold(youngest, young, _NEVER if self._blocks else _CHOSEN if self._choosers else oldest)

    @property
    def is_chosen(self) -> bool:
        """Whether `FullCollections` may search now."""
        return self._choosers > 0 and not self._blocks


_RULE: Final = _OldestRule()


class Collector:
    """The collector of this process, told of the streams that are made and deleted: each is some twenty objects."""

    def __init__(self) -> None:
        self._in_sight = 0
        self._deleted = 0

    @contextmanager
    def making(self, streams: int) -> Generator[None, None, None]:
        """The block makes so many streams; other tasks may run in it."""
        self._in_sight += streams
        if self._in_sight < MANY:
            yield
            return
        _RULE.change(blocks=1)
        try:
            yield
        finally:
            gc.freeze()
            _RULE.change(blocks=-1)
            self._in_sight = 0

    def deleted(self, streams: int) -> None:
        """So many streams are gone."""
        self._deleted += streams
        if self._deleted >= THAWED:
            self._deleted = 0
            gc.unfreeze()


class FullCollections:
    """Chooses when this process searches all that is in sight. `served`: a number that grows with all that is served,
    for clients and for other hosts.
    """

    def __init__(self, served: Callable[[], int]) -> None:
        self._served = served
        self._seen = -1
        self._in_sight = 0
        """Objects, behind the last full collection."""

    async def run(self, sleep: Callable[[float], Awaitable[object]]) -> None:
        """Look every LOOK_S seconds until cancelled, and leave it to Python then; `sleep` waits for a number of
        seconds.
        """
        _RULE.change(choosers=1)
        try:
            while True:
                await sleep(LOOK_S)
                self.look()
        finally:
            _RULE.change(choosers=-1)

    def look(self) -> None:
        """Search all that is in sight, if that is due."""
        seen, self._seen = self._seen, self._served()
        youngest, young, _ = gc.get_threshold()
        due = max(DUE, self._in_sight // (GROWTH * youngest * young))
        if seen != self._seen:
            due *= LATE
        if _RULE.is_chosen and gc.get_count()[2] >= due:
            gc.collect()
            self._in_sight = len(gc.get_objects(generation=2))
