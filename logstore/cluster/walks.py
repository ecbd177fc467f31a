"""Looks at all streams of a host, or of the cluster, when something has changed that concerns all of them.

Invariants:
* After `begin`, everything that is there at that moment is looked at once more. What comes later is not: whoever brings
  it looks at it. A walk that is begun again while it is under way begins anew behind its end, so that changes that come
  all the time keep nobody from being looked at.
* The first AT_ONCE looks are made in `begin`, the others in turns of the event loop, AT_ONCE in each: of ten thousand
  streams no look holds up other requests.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, Generic, TypeVar

import trio

AT_ONCE: Final = 50
"""An owner that hears of another host takes some 40 microseconds."""

T = TypeVar("T")


class Walk(Generic[T]):
    """See the module. `everything` is asked when a walk begins, and may be a generator; `look` is called for each.
    `run` must run.
    """

    def __init__(
        self, everything: Callable[[], Iterable[T]], look: Callable[[T], None], at_once: int = AT_ONCE
    ) -> None:
        self._everything = everything
        self._look = look
        self._at_once = at_once
        self._left: Iterator[T] | None = None
        """What the walk under way has not looked at yet."""
        self._is_wanted = False
        self._begun = trio.Event()

    def begin(self) -> None:
        """Look at everything, soon."""
        if self._left is not None:
            self._is_wanted = True
            return
        self._left = iter(self._everything())
        self._step()
        self._begun.set()

    def _step(self) -> None:
        """Look at some."""
        left = self._left
        if left is None:
            return
        looked = 0
        for each in islice(left, self._at_once):
            self._look(each)
            looked += 1
        if looked == self._at_once:
            return
        self._left = iter(self._everything()) if self._is_wanted else None
        self._is_wanted = False

    async def run(self) -> None:
        """Go on with walks, until cancelled."""
        while True:
            if self._left is None:
                self._begun = trio.Event()
                await self._begun.wait()
            await trio.lowlevel.checkpoint()
            self._step()
