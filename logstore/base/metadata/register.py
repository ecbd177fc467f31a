"""One key as a register with compare-and-swap, for protocols that need no more of a metadata store.

Invariants:
* A swap is made at most once, and only if the register is as the caller last saw it: one whose answer was lost is sent
  again with the same condition.
* `made` is true exactly if the register holds the caller's value at the revision given: no two writers ever swap in the
  same bytes, so a value names its writer and has a number that grows.
* A swap that is not `made`, and that was lost on the way, may have been made and replaced by a later swap since. Nobody
  acts on a swap before it is known to be made, so its writer lost nothing by it.
"""

from typing import Final, NamedTuple

from logstore.base.metadata.errors import MetadataUnavailable, OutcomeUnknown
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

TRIES: Final = 3
"""Of one call. While answers are lost, each try takes as long as the store waits for one."""


class Seen(NamedTuple):
    """What a register holds, None if nothing, and the revision to swap against."""

    value: bytes | None
    revision: int


class Swapped(NamedTuple):
    """Whether the register holds what was swapped in, and what it holds now."""

    made: bool
    now: Seen
    replaced_perhaps: bool
    """Not made now, but an answer was lost: it may have been there in between."""


class Register:
    """The register at a key. Methods raise what `MetadataStore`'s do."""

    def __init__(self, store: MetadataStore, key: str) -> None:
        self._store = store
        self._key = key

    async def read(self) -> Seen:
        """What it holds, as of now at every host."""
        return _seen((await self._store.get(self._key)).entry)

    async def compare_and_swap(self, seen: Seen, value: bytes, also: tuple[Change, ...] = ()) -> Swapped:
        """Put `value` if nothing has changed since `seen`, and make other changes with it.

        OutcomeUnknown, or cancelled: it was made, or not, or will be. The same call again settles it.
        """
        transaction = Transaction((Condition(self._key, seen.revision),), (Put(self._key, value), *also))
        tries = 1
        while True:
            try:
                outcome = await self._store.commit(transaction)
            except OutcomeUnknown:
                if tries == TRIES:
                    raise
                tries += 1
            except MetadataUnavailable as error:
                if tries == 1:
                    raise
                raise OutcomeUnknown(f"a swap of {self._key!r}: one answer was lost, and then {error}") from error
            else:
                if isinstance(outcome, Committed):
                    return Swapped(True, Seen(value, outcome.revision), False)
                now = _seen(outcome.found[0])
                made = now.value == value
                return Swapped(made, now, tries > 1 and not made)


def _seen(entry: Entry | None) -> Seen:
    return Seen(None, ABSENT) if entry is None else Seen(entry.value, entry.revision)
