"""Keeps Python's garbage collector from searching many objects that stay.

A full collection visits all objects that were made since the start, in one go: 10 ms for a thousand streams, in which
nobody is served. Objects that stay are taken out of its sight (`gc.freeze`), as those of the start are.

Invariants:
* While a block of `making` with many streams runs, there is no full collection; young garbage is collected.
* What is out of sight is freed as soon as nothing refers to it; only what refers to itself in a cycle is not, such as
  the connections that were open then. So THAWED deleted streams bring everything back into sight.
"""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

MANY: Final = 500
"""Streams, in one block or in several: a full collection visits fewer in 5 ms."""
THAWED: Final = 10_000
"""Bounds how often objects go out of sight between two full collections, MANY new streams at a time."""
_NEVER: Final = 1 << 30


class Collector:
    """The collector of this process, told of the streams that are made and deleted: each is some twenty objects."""

    def __init__(self) -> None:
        self._thresholds = gc.get_threshold()
        self._in_sight = 0
        self._deleted = 0

    @contextmanager
    def making(self, streams: int) -> Generator[None, None, None]:
        """The block makes so many streams; other tasks may run in it."""
        self._in_sight += streams
        if self._in_sight < MANY:
            yield
            return
        youngest, young, _ = self._thresholds
        gc.set_threshold(youngest, young, _NEVER)
        try:
            yield
        finally:
            gc.freeze()
            gc.set_threshold(*self._thresholds)
            self._in_sight = 0

    def deleted(self, streams: int) -> None:
        """So many streams are gone."""
        self._deleted += streams
        if self._deleted >= THAWED:
            self._deleted = 0
            gc.unfreeze()
