"""One key as a register with compare-and-swap, for protocols that need no more of a metadata store.

Invariants:
* A swap is made only if the register is as the caller last saw it. The result is always known: a swap whose answer was
  lost is sent again with the same condition until an answer shows what happened.
* That works only if no two writers ever swap in the same bytes: a value names its writer, or has a number that grows.
"""

from typing import NamedTuple

from logstore.base.metadata.errors import OutcomeUnknown
from logstore.base.metadata.interface import (
    ABSENT,
    Change,
    Committed,
    Condition,
    Entry,
    MetadataStore,
    Put,
    Transaction,
)


class Seen(NamedTuple):
    """What a register holds, None if nothing, and the revision to swap against."""

    value: bytes | None
    revision: int


class Swapped(NamedTuple):
    """Whether the swap was made, and what the register holds now."""

    made: bool
    now: Seen


class Register:
    """The register at a key. Methods raise what `MetadataStore`'s do, but never OutcomeUnknown."""

    def __init__(self, store: MetadataStore, key: str) -> None:
        self._store = store
        self._key = key

    async def read(self) -> Seen:
        """What it holds, as of now at every host."""
        return _seen((await self._store.get(self._key)).entry)

    async def compare_and_swap(self, seen: Seen, value: bytes, also: tuple[Change, ...] = ()) -> Swapped:
        """Put `value` if nothing has changed since `seen`, and make other changes with it. Waits while it must.

        Cancelled, or with MetadataUnavailable: it may be made; `read` and a swap against that settle it.
        """
        transaction = Transaction((Condition(self._key, seen.revision),), (Put(self._key, value), *also))
        sent_before = False
        while True:
            try:
                outcome = await self._store.commit(transaction)
            except OutcomeUnknown:
                sent_before = True
                continue
            if isinstance(outcome, Committed):
                return Swapped(True, Seen(value, outcome.revision))
            now = _seen(outcome.found[0])
            return Swapped(sent_before and now.value == value, now)


def _seen(entry: Entry | None) -> Seen:
    return Seen(None, ABSENT) if entry is None else Seen(entry.value, entry.revision)
