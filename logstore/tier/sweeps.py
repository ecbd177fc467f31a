"""Removes objects of a tier: those that are known to be nobody's, and, by sweeps, those that crashes and failures left.

A sweep lists the store page by page, one page at a call, so that chunks are stored meanwhile. Whoever has it swept
(`Swept`) says of each key whether it is left, and hears at the end which named objects were not listed.

Invariants:
* Nothing is removed but what `Swept.is_left` gives, which is asked after the key was listed.
* A sweep is due at the start, after a failure, and SWEEP_INTERVAL_S after the last one. A failure ends the sweep under
  way; the next one begins anew.
* What is called missing was named when the sweep began, and was not listed until it ended.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, Protocol, TypeVar

from logstore.base.clock import Clock
from logstore.base.events import Report
from logstore.events import TIER_SWEPT
from logstore.format.tiered_chunk import ParsedKey, TieredChunk, parse_key
from logstore.tier.figures import TierFigures
from logstore.tier.interface import ListedObject, ObjectStore

T = TypeVar("T")
SWEEP_INTERVAL_S: Final = 3600.0
PAGE_KEYS: Final = 1000


class Run(Protocol):
    """Runs blocking work somewhere. Raises what the work raises."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Run it."""


class Swept(Protocol):
    """Knows what is named."""

    async def sweep_begins(self) -> Iterable[TieredChunk]:
        """A listing is about to begin: the chunks that are named now."""

    async def is_left(self, key: ParsedKey | None, /) -> bool:
        """Whether nobody names a key that was listed, or ever will. None: a key of another form."""

    async def sweep_ends(self, missing: Sequence[ParsedKey], /) -> None:
        """The listing is over. `missing`: chunks that were named at its beginning, and lack objects."""


@dataclass(slots=True)
class _Sweep:
    """A sweep under way. `unseen`: how many objects of each named chunk were not listed yet."""

    listed: Iterator[ListedObject]
    unseen: dict[ParsedKey, int]
    swept_keys: int = 0


class Sweeps:
    """See the module."""

    def __init__(
        self,
        objects: ObjectStore,
        run: Run,
        figures: TierFigures,
        clock: Clock,
        report: Report,
        interval_s: float = SWEEP_INTERVAL_S,
    ) -> None:
        self._objects = objects
        self._run = run
        self._figures = figures
        self._clock = clock
        self._report = report
        self._interval_s = interval_s
        self._sweep: _Sweep | None = None
        self._at_s = 0.0

    async def remove(self, keys: Iterable[str]) -> None:
        """Remove objects that nobody names. Raises TierUnavailable; a sweep then removes what is left."""
        waiting = iter(keys)
        while page := list(islice(waiting, PAGE_KEYS)):
            await self._run(partial(_delete_all, self._objects, page))

    async def remove_chunks(self, chunks: Sequence[TieredChunk]) -> None:
        """The same, of chunks."""
        await self.remove([key for chunk in chunks for key in chunk.all_keys()])
        self._figures.removed_chunks += len(chunks)

    def begin_again(self) -> None:
        """Something failed, and may have left objects: a sweep is due."""
        self._sweep, self._at_s = None, 0.0

    async def step(self, prefix: str, swept: Swept) -> bool:
        """Sweep a page of the keys with a prefix, if a sweep is due; whether there are more pages. Raises
        TierUnavailable, TierRefused, ObjectMissing, and what `swept` raises.
        """
        if self._sweep is None:
            if self._clock.monotonic_s() < self._at_s:
                return False
            unseen = {chunk.parsed: len(chunk.objects()) for chunk in await swept.sweep_begins()}
            self._sweep = _Sweep(self._objects.list_keys(prefix), unseen)
        sweep = self._sweep
        page = await self._run(partial(_take, sweep.listed))
        left: list[str] = []
        for at in page:
            key = parse_key(at.key)
            if await swept.is_left(key):
                left.append(at.key)
            elif key in sweep.unseen and not at.key.rpartition("/")[2].startswith("_"):  # a file that is not whole
                sweep.unseen[key] -= 1
        await self.remove(left)
        sweep.swept_keys += len(left)
        self._figures.swept_keys += len(left)
        if page:
            return True
        self._sweep, self._at_s = None, self._clock.monotonic_s() + self._interval_s
        if sweep.swept_keys:
            self._report(TIER_SWEPT, keys=sweep.swept_keys)
        await swept.sweep_ends([key for key, count in sweep.unseen.items() if count > 0])
        return False


def _take(listed: Iterator[ListedObject]) -> list[ListedObject]:
    return list(islice(listed, PAGE_KEYS))


def _delete_all(objects: ObjectStore, keys: Sequence[str]) -> None:
    for key in keys:
        objects.delete(key)
