"""Reads of one Fetch that wait for other hosts: several at the same time, taken in the order of the request.

Invariants:
* At most TOGETHER reads are begun and not taken.
* A read begins before its turn only if every place from the one whose turn it is up to its own can have all that it
  asks for, in the bytes that are left. So each place gets what it would get in its turn, and what is held of answers is
  within the bytes that the Fetch has reserved.
* A read that nobody takes ends with the nursery.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import trio

T = TypeVar("T")
TOGETHER: Final = 8
"""Of a host's reads at other hosts (`entry_reads.MAX_READS`) one Fetch takes an eighth at most."""
LOOK_AHEAD: Final = 100
"""Places that are looked at in one turn."""


class WantedRead(NamedTuple):
    """A place of a Fetch: the most bytes that it may have, and whether its read waits for other hosts."""

    most_bytes: int
    is_elsewhere: bool


NOTHING: Final = WantedRead(0, False)


class _BegunRead(Generic[T]):
    """A read that was begun before its turn."""

    __slots__ = ("ended", "found")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.found: T | None = None


class ReadsTogether(Generic[T]):
    """See the module. `wanted`: all places, in the order of the request; `read` reads one of them, by its number."""

    def __init__(
        self, nursery: trio.Nursery, wanted: Sequence[WantedRead], read: Callable[[int], Awaitable[T]]
    ) -> None:
        self._nursery = nursery
        self._wanted = wanted
        self._read = read
        self._begun: dict[int, _BegunRead[T]] = {}
        self._turn = self._reach = 0
        """Places in front of `_reach` were looked at; from `_turn` up to there they want `_needed_bytes`."""
        self._needed_bytes = 0

    async def take(self, turn: int, left_bytes: int) -> T | None:
        """It is this place's turn, and so many bytes are left: begin what may begin; then the result of the place's
        read, or None if it is to be read now.
        """
        self._begin(turn, left_bytes)
        begun = self._begun.get(turn)
        if begun is None:
            return None
        await begun.ended.wait()
        del self._begun[turn]
        return begun.found

    def _begin(self, turn: int, left_bytes: int) -> None:
        for passed in range(self._turn, min(turn, self._reach)):
            self._needed_bytes -= self._wanted[passed].most_bytes
        self._turn, self._reach = turn, max(turn, self._reach)
        for number in range(self._reach, min(self._reach + LOOK_AHEAD, len(self._wanted))):
            wanted = self._wanted[number]
            if len(self._begun) >= TOGETHER or self._needed_bytes + wanted.most_bytes > left_bytes:
                return
            self._needed_bytes += wanted.most_bytes
            self._reach = number + 1
            if wanted.is_elsewhere:
                self._begun[number] = begun = _BegunRead[T]()
                self._nursery.start_soon(self._run, number, begun)

    async def _run(self, number: int, begun: _BegunRead[T]) -> None:
        begun.found = await self._read(number)
        begun.ended.set()
