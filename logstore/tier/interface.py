"""What an object store must do for the tier, and who says when a chunk may go there.

This is the interface of HDFS (`logstore.tier.hdfs`) and of any other store, one with the S3 API among them: keys, whole
objects, ranges. `logstore.testing.check_object_store` is its contract.

Invariants every `ObjectStore` must keep:
* `put` is atomic: until it returns there is no object of that key, and afterwards all of it, durably. A put that fails,
  or that a crash interrupts, leaves no object of that key; what it may leave are keys that `list_keys` shows under the
  same directory (everything up to the last `/`), and that `delete` removes.
* An object never changes. Callers do not put a key twice.
* Methods block, may be called from any thread, and end within bounded time. They raise TierUnavailable if a later try
  may succeed (TierFull: after somebody has made room), ObjectMissing, TierRefused for anything else.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from logstore.errors import TierUnavailable
from logstore.format.tiered_chunk import StoredObject

T = TypeVar("T")


class HostFailed(TierUnavailable):
    """A host of the object store failed in the middle of a call; `address` is its address."""

    def __init__(self, address: str, message: str) -> None:
        super().__init__(message)
        self.address = address


class ListedObject(NamedTuple):
    """A key of the store, and the bytes of its object."""

    key: str
    size_bytes: int


class ObjectStore(Protocol):
    """Objects by keys: parts of visible ASCII, separated by `/`."""

    def put(self, key: str, size_bytes: int, pieces: Iterable[bytes], chain: Sequence[str] = ()) -> None:
        """Store an object of `size_bytes`, given in pieces. `chain`: the hosts that are to hold it, in order, as Peace
        planned; a store that places objects itself ignores it. Errors of `pieces` pass through.
        """

    def get(self, key: str, position: int, length: int) -> bytes:
        """The bytes of an object from `position` on; fewer than `length` only at its end."""

    def checksum(self, key: str) -> StoredObject:
        """Length and CRC-32C of an object as the store gives it back now: it is read, or a store that keeps a checksum
        of the whole object, verified when it was stored and whenever it is read, may answer from that.
        """

    def list_keys(self, prefix: str) -> Iterator[ListedObject]:
        """All keys that start with `prefix`, which ends with `/` or is empty, in any order."""

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is no error."""

    def close(self) -> None:
        """End what is under way in other threads, with TierUnavailable; nothing is asked afterwards."""


class Turn(NamedTuple):
    """Leave to store one chunk. `chain`: as for `ObjectStore.put`; `is_revoked`: the chunk was planned anew, stop."""

    chain: Sequence[str]
    is_revoked: Callable[[], bool]


class UploadTurns(Protocol):
    """Who says when a chunk may be stored: Peace, or nobody."""

    def run(self, store: Callable[[Turn], T]) -> T:
        """Call `store` when it is the chunk's turn, again when it is planned anew; its result. Blocks. Raises what
        `store` raises, and TierUnavailable if no turn comes.
        """

    def close(self) -> None:
        """End what waits for a turn in other threads."""


class NoTurns:
    """Every chunk may be stored at once, wherever the store puts it: `tier-uploads` alone bounds them."""

    def run(self, store: Callable[[Turn], T]) -> T:
        """See UploadTurns."""
        return store(Turn((), lambda: False))

    def close(self) -> None:
        """See UploadTurns."""
