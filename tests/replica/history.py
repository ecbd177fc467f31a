"""What clients and readers of a replicated stream have seen, and the promises that it must fulfil.

* An acknowledged batch is at its offset, once, wherever and whenever it is read; no batch is read at two offsets, and
  no two batches at one.
* In an epoch one owner acknowledges.
* Batches of one owner are in the order in which it took them.
* A reader never goes back: what it has seen stays, also if it was never acknowledged.
* Nothing is read that was never appended.
* A log start that was told to a client never goes back, and nothing at or behind it is lost. It never lies behind
  what a client asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from logstore.replica.messages import BatchEntry
from logstore.replica.registrations import OwnerId


class PromiseBroken(AssertionError):
    """A promise of replication was broken; the message names it, and the place."""


@dataclass
class Appended:
    """A batch that an owner took."""

    owner: OwnerId
    number: int
    offset: int
    epoch_acked: int | None = None


@dataclass
class History:
    """One stream."""

    appended: dict[bytes, Appended] = field(default_factory=dict)
    at_offset: dict[int, bytes] = field(default_factory=dict)
    """Batches that were acknowledged or seen, by offset."""
    owners: dict[int, OwnerId] = field(default_factory=dict)
    """Who acknowledged in which epoch."""
    acked: int = 0
    seen: int = 0
    deposed: int = 0
    log_start: int = 0
    """As the metadata store has it."""
    asked_start: int = 0
    """The furthest log start that a client has asked for."""
    trims: int = 0

    def append(self, data: bytes, owner: OwnerId, offset: int) -> None:
        """An owner takes a batch."""
        self.appended[data] = Appended(owner, len(self.appended), offset)

    def ack(self, data: bytes, owner: OwnerId, epoch: int) -> None:
        """An owner acknowledges a batch it took."""
        first = self.owners.setdefault(epoch, owner)
        if first != owner:
            raise PromiseBroken(f"{first} and {owner} acknowledge in epoch {epoch}")
        batch = self.appended[data]
        batch.epoch_acked = epoch
        self.acked += 1
        self._note(batch.offset, data, f"acknowledged by {owner} in epoch {epoch}")

    def see(self, offset: int, entry: BatchEntry, where: str) -> None:
        """A reader gets a batch."""
        batch = self.appended.get(entry.data)
        if batch is None:
            raise PromiseBroken(f"{where}: {entry.data!r} at offset {offset} was never appended")
        if batch.offset != offset:
            raise PromiseBroken(f"{where}: {entry.data!r} is at offset {offset}, and was appended at {batch.offset}")
        self.seen += 1
        self._note(offset, entry.data, f"read from {where}")

    def start_asked(self, log_start: int) -> None:
        """A client asks for all records in front of an offset to be deleted."""
        self.asked_start = max(self.asked_start, log_start)

    def start_registered(self, log_start: int) -> None:
        """The metadata store has a registration with this log start."""
        if log_start > self.asked_start:
            raise PromiseBroken(f"the log starts at {log_start}, and {self.asked_start} was asked for at most")
        if log_start < self.log_start:
            raise PromiseBroken(f"the log starts at {log_start} again, after {self.log_start}")
        self.trims += log_start > self.log_start
        self.log_start = log_start

    def start_seen(self, log_start: int) -> None:
        """Somebody has read where the log starts, perhaps a while ago: no later registration is in front of that."""
        self.log_start = max(self.log_start, log_start)

    def start_told(self, log_start: int, where: str) -> None:
        """A client is told where the log starts: what lies in front never comes back."""
        if log_start > self.log_start:
            raise PromiseBroken(f"{where}: a client was told {log_start}, and the log starts at {self.log_start}")

    def _note(self, offset: int, data: bytes, how: str) -> None:
        other = self.at_offset.setdefault(offset, data)
        if other != data:
            raise PromiseBroken(f"offset {offset}: {data!r} is {how}, but {other!r} is there ({self.appended[other]})")

    def check_log(self, log: list[tuple[int, BatchEntry]], where: str) -> None:
        """The log from its first chunk on, as read at the end: everything that was acknowledged or seen and was not
        trimmed is there, without gaps.
        """
        next_offset = log[0][0] if log else self.log_start
        if next_offset > self.log_start:
            raise PromiseBroken(f"{where}: begins at {next_offset}, and the log starts at {self.log_start}")
        numbers: dict[OwnerId, int] = {}
        for offset, entry in log:
            if offset != next_offset:
                raise PromiseBroken(f"{where}: a gap from offset {next_offset} to {offset}")
            self.see(offset, entry, where)
            batch = self.appended[entry.data]
            if numbers.get(batch.owner, -1) >= batch.number:
                raise PromiseBroken(f"{where}: {entry.data!r} is out of order")
            numbers[batch.owner] = batch.number
            next_offset += entry.record_count
        missing = [offset for offset in self.at_offset if offset >= next_offset]
        if missing:
            first = min(missing)
            raise PromiseBroken(f"{where}: ends at {next_offset}, but {self.at_offset[first]!r} is lost from {first}")
