"""The interface of a metadata store: it loads all entries at the start, and applies batches of changes atomically.

Keys are texts with `/` between parts, values are JSON texts; any ordered key-value store with transactions fits.

Every implementation has these invariants:
* `apply` returns only when its changes are durable; after an error they may be durable or not.
* The changes of one `apply` are applied together or not at all, even if the process or the machine stops.
* `apply` may be called again with the same changes, and with further ones behind them.
* One call at a time.

A store on a disk blocks (`BlockingMetadata`); `on_threads` makes a `Metadata` of it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class SetValue(NamedTuple):
    """Sets the value of a key."""

    key: str
    value: str


class RemovePrefix(NamedTuple):
    """Removes all keys that start with `prefix`, which ends in `/`."""

    prefix: str


Change = SetValue | RemovePrefix


class Metadata(Protocol):
    """A metadata store."""

    @property
    def obstacle(self) -> str | None:
        """Why nothing that is stored here may be told or changed now, although no call has failed; None: it may."""
        ...

    @property
    def limit_bytes(self) -> float:
        """How many bytes of keys and values the store takes in all; infinite: what its disk takes."""
        ...

    @property
    def left_bytes(self) -> float:
        """How many bytes of keys and values the store takes beside those that it has."""
        ...

    async def load(self) -> Mapping[str, str]:
        """All keys and values. Raises StoreDamaged, StoreError."""
        ...

    async def apply(self, changes: Sequence[Change]) -> None:
        """Make these changes, in order, all or none. Raises StoreError."""
        ...


class BlockingMetadata(Protocol):
    """A metadata store whose methods block and are called from one thread at a time; see Metadata."""

    def load(self) -> Mapping[str, str]:
        """All keys and values. Raises StoreDamaged, StoreError."""
        ...

    def apply(self, changes: Sequence[Change]) -> None:
        """Make these changes, in order, all or none. Raises StoreError."""
        ...

    def close(self) -> None:
        """Close the store."""
        ...
