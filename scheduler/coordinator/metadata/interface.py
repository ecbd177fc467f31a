"""What the coordinator needs of a metadata store: all of it at the start, and changes, each batch whole or not at all.

Keys are texts with `/` between parts, values JSON texts: any ordered key-value store with transactions will do.

Invariants that every implementation keeps:
* `apply` returns only when its changes are durable; what it raises says that they may or may not be.
* The changes of one `apply` are there together or not at all, whenever the process or the machine stops.
* `apply` may be called again with the same changes.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class Put(NamedTuple):
    """Sets the value of a key."""

    key: str
    value: str


class RemovePrefix(NamedTuple):
    """Removes all keys that start with `prefix`."""

    prefix: str


Change = Put | RemovePrefix


class Metadata(Protocol):
    """A metadata store. Methods block and are called from one thread at a time."""

    def load(self) -> Mapping[str, str]:
        """All keys and values. Raises StoreDamaged, StoreError."""
        ...

    def apply(self, changes: Sequence[Change]) -> None:
        """Make these changes, in order, all or none. Raises StoreError."""
        ...

    def close(self) -> None:
        """Close the store."""
        ...
