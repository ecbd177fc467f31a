"""What epochs under way hold of streams that other hosts own: until an epoch is over, nothing behind its start is
trimmed.

Invariants:
* A hold is there from before its epoch is decided until the ledger says durably that the epoch is over, that it was
  never decided, or that the stream has it, because it waits for others: then the ledger does not name the stream any
  more. So while it is there, END of the epoch is in the stream if it was ever appended.
* A stream without holds takes no memory.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from logstore.epochs.ledger_entries import CommitRecord, Target
from logstore.log.stream_state import Pin


class HeldEpoch(NamedTuple):
    """An epoch that is under way in a stream, as its group names it."""

    target: Target
    query: str
    epoch: int
    incarnation_number: int


class StreamHolds:
    """See the module."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], dict[Pin, HeldEpoch]] = {}
        """By topic id and partition."""

    def pins(self, record: CommitRecord) -> list[Pin]:
        """Hold all streams of an epoch until the pins are released."""
        return [
            self._pin(HeldEpoch(target, record.query, record.epoch, record.incarnation_number))
            for target in record.targets
        ]

    def _pin(self, held: HeldEpoch) -> Pin:
        stream = (held.target.topic_id, held.target.partition)
        release: Callable[[Pin], None] = partial(self._release, stream)
        pin = Pin(held.target.start_offset, release)
        self._held.setdefault(stream, {})[pin] = held
        return pin

    def _release(self, stream: tuple[str, int], pin: Pin) -> None:
        pins = self._held.get(stream, {})
        pins.pop(pin, None)
        if not pins:
            self._held.pop(stream, None)

    def lowest(self, topic_id: str, partition: int, default_offset: int) -> int:
        """The lowest offset that is held of a stream; without holds, the default."""
        return min([pin.offset for pin in self._held.get((topic_id, partition), {})], default=default_offset)

    def is_under_way(self, held: HeldEpoch) -> bool:
        """Whether exactly this epoch is under way."""
        return held in self._held.get((held.target.topic_id, held.target.partition), {}).values()
