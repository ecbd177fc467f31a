"""A commit from its request to its end: the commit record, and the streams that still lack the epoch.

Invariants:
* A target leaves `remaining` only when its stream holds the whole group durably, or is deleted.
* The commit record names all of `remaining`, and pins hold what it names: a target leaves the record behind a durable
  entry of the ledger without it (`narrow`), so no later life gives its stream the group again.
"""

from collections.abc import Sequence
from dataclasses import replace

from logstore.epochs.ledger_entries import CommitRecord, LastEpoch, Target
from logstore.format.staged import AttemptKey
from logstore.log.stream_state import Pin


class CommitInProgress:
    """An epoch in progress: its commit record, and the streams that still lack it.

    `earlier` are commits whose record may be on disk until the record of this commit is; their pins and staged data
    are held too.
    """

    def __init__(self, record: CommitRecord, last: LastEpoch) -> None:
        self.is_owed = False
        """It counts as decided: its block failed and may be on the disk, and the ledger does not have it yet."""
        self.record = record
        self.last = last
        self.remaining = dict.fromkeys(record.targets)
        self._waiting = 0
        """How many streams lacked the epoch when `narrower` was asked last."""
        self.pins: list[Pin] = []
        self.earlier: list[CommitInProgress] = []
        self.reported_error: str | None = None
        self.refusals: dict[Target, str] = {}
        """By stream, the refusal that was reported last."""
        self._keys = frozenset(
            AttemptKey(record.query, record.incarnation, record.epoch, task.task, task.attempt) for task in record.tasks
        )

    def covers(self, key: AttemptKey) -> bool:
        """Whether this commit may need an attempt's staged data."""
        return key in self._keys or any(commit.covers(key) for commit in self.earlier)

    def narrower(self) -> CommitRecord | None:
        """The commit record without the streams that have the epoch; None if there are none, or if one has got it since
        this was asked last: the epoch is not held up then.
        """
        before, self._waiting = self._waiting, len(self.remaining)
        if not 0 < len(self.remaining) < len(self.record.targets) or self._waiting != before:
            return None
        return replace(self.record, targets=tuple(self.remaining))

    def narrow(self, record: CommitRecord, pins: Sequence[Pin]) -> None:
        """The ledger has this record in the place of the former one, durably: only `pins` are held from now on."""
        self.release_pins()
        self.record, self.pins = record, list(pins)

    def forget_earlier(self) -> None:
        """The earlier commits are surely over."""
        for commit in self.earlier:
            commit.release_pins()
        self.earlier.clear()

    def release_pins(self) -> None:
        """Release the pins of this commit and of the earlier ones."""
        self.forget_earlier()
        for pin in self.pins:
            pin.release()
        self.pins.clear()
