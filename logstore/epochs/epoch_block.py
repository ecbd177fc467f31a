"""An epoch's decision and its groups as parts of one block of the journal: one sync decides and publishes.

Invariants:
* All parts go into one block, or none does: the streams are asked first, then all of them give their part.
* The decision comes behind the groups, so that all streams show the epoch when the decision settles.
* A block that failed may be on the disk. It counts as decided: whoever gets FAILED must go on with the same decision.
* While only the journal has the decision, the block holds its file, until `release`.

Source: docs/format.md, "Decisions in the journal".
"""

import enum
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from logstore.epochs.append_group import EpochGroup
from logstore.format.journal_block import PartPlace, ledger_place
from logstore.interfaces import Buffer
from logstore.log.jobs import Operation
from logstore.log.journal import Holder, Journal
from logstore.log.stream import Stream
from logstore.log.stream_state import OpenGroup, WriteInFlight
from logstore.log.ticket import Ticket

_LEDGER: Final = ledger_place("epochs")


class BlockOutcome(enum.Enum):
    """What became of an epoch's block."""

    NOT_WRITTEN = "not written"  # not all parts could go into a block: nothing was written
    DURABLE = "durable"
    FAILED = "failed"  # the block may be on the disk


class Decision(NamedTuple):
    """The decision as a part of a block."""

    place: PartPlace
    changes: bytes

    def buffers(self) -> Sequence[Buffer]:
        """The changes of the ledger."""
        return (self.changes,)


class EpochBlock:
    """The parts of one epoch. `settle` makes the decision durable in the ledger, when the journal asks for it."""

    def __init__(
        self,
        journal: Journal,
        changes: bytes,
        groups: Sequence[tuple[Stream, EpochGroup, bytearray]],
        settle: Callable[[], Ticket[None]],
    ) -> None:
        self._journal = journal
        self._decision = Decision(_LEDGER, changes)
        self._groups = groups
        self._settle = settle
        self._generation = 0
        self.outcome: Ticket[BlockOutcome] = Ticket()

    def offer(self) -> Ticket[BlockOutcome]:
        """Offer the parts to the journal; settles once the block is durable or has failed, or there will be none."""
        self._journal.offer_together(self)
        return self.outcome

    # ---- what the journal asks

    def take_parts(self) -> list[tuple[Holder, WriteInFlight | Decision]]:
        """All groups, then the decision; empty, if a stream cannot take part now."""
        if not all(stream.takes_group(group.byte_count) for stream, group, _ in self._groups):
            self.refused()
            return []
        parts: list[tuple[Holder, WriteInFlight | Decision]] = []
        for stream, group, batches in self._groups:
            opened = OpenGroup(group, Ticket(), _nobody_waits, is_whole=True, pieces=[batches] if batches else [])
            parts.append((stream, stream.take_group(opened)))
        parts.append((self, self._decision))
        self._groups = ()
        return parts

    def refused(self) -> None:
        """The journal takes nothing now."""
        self._groups = ()
        self.outcome.succeed(BlockOutcome.NOT_WRITTEN)

    def journaled(self, _decision: Decision, generation: int) -> None:
        """The block is durable."""
        self._generation = generation
        self.outcome.succeed(BlockOutcome.DURABLE)

    def journal_failed(self, _decision: Decision, _operation: Operation, _error: OSError) -> None:
        """Nobody knows whether the block is on the disk."""
        self.outcome.succeed(BlockOutcome.FAILED)

    def sync_backlog(self) -> Ticket[None]:
        """The file is to be used again: the ledger has to get the decision."""
        return self._settle()

    def release(self) -> None:
        """The decision is durable elsewhere, or a later decision of the query is."""
        self._journal.release(self, [self._generation])


def _nobody_waits() -> None:
    """The group is in memory already."""
