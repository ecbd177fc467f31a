"""What clients of a partition have seen, and the promises that it must fulfil.

* A record is at one offset, and an offset has one record, whoever reads it and whenever; an acknowledged record is at
  the offset that its producer was told, and is there in the end.
* The records of a producer are in the order of its sequence numbers, each once, and none between two is missing.
* Nothing is read that was not sent.
* What lies in front of a high watermark that was shown is there in the end. (`tests.whole.clients` compares each with
  what is acknowledged.)
* A batch, and an epoch of a query, is there whole or not at all, and no reader is told an end within it.
* In a leader epoch, one host acknowledges.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.replica.history import PromiseBroken


@dataclass
class ClientHistory:
    """One partition."""

    name: str
    numbers: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    """Each record that was sent: its producer and its number among that one's."""
    at_offset: dict[int, bytes] = field(default_factory=dict)
    """Records that were acknowledged or read."""
    offsets: dict[bytes, int] = field(default_factory=dict)
    batches: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    acked: set[bytes] = field(default_factory=set)
    ackers: dict[int, str] = field(default_factory=dict)
    """By offset of a record that was acknowledged when it was sent for the first time: the host."""
    epochs: dict[int, int] = field(default_factory=dict)
    """The leader epoch of each record that was read, by offset."""
    shown: int = 0
    """The highest high watermark."""
    ends: set[int] = field(default_factory=set)
    """All of them."""

    def broken(self, what: str) -> None:
        """A promise is broken. Raises PromiseBroken."""
        raise PromiseBroken(f"{self.name}: {what}")

    def sent(self, producer: str, sequence: int, values: list[bytes]) -> None:
        """A producer sends a batch for the first time."""
        self.batches[producer, sequence] = values
        for number, value in enumerate(values, sequence):
            self.numbers[value] = producer, number

    def acknowledged(self, producer: str, sequence: int, base_offset: int, host: str, *, is_first: bool) -> None:
        """A host acknowledges a batch. `is_first`: it was sent once, so that host has appended it."""
        for offset, value in enumerate(self.batches[producer, sequence], base_offset):
            self._note(offset, value, f"acknowledged by {host} to {producer}")
            self.acked.add(value)
            if is_first:
                self.ackers[offset] = host

    def committed(self, writer: str, number: int) -> None:
        """An epoch is committed, and so acknowledged; where its records are is not known."""
        self.acked.update(self.batches[writer, number])

    def high_watermark_shown(self, high_watermark: int) -> None:
        """A reader is told where the end is."""
        self.shown = max(self.shown, high_watermark)
        self.ends.add(high_watermark)

    def read(self, offset: int, value: bytes, epoch: int, where: str) -> None:
        """A reader gets a record."""
        if value not in self.numbers:
            self.broken(f"{where}: {value!r} at offset {offset} was never sent")
        self._note(offset, value, f"read: {where}")
        before = self.epochs.setdefault(offset, epoch)
        if before != epoch:
            self.broken(f"{where}: offset {offset} is of epoch {epoch}, and was of epoch {before}")

    def _note(self, offset: int, value: bytes, how: str) -> None:
        other, place = self.at_offset.setdefault(offset, value), self.offsets.setdefault(value, offset)
        if other != value:
            self.broken(f"offset {offset}: {value!r} is {how}, but {other!r} is there")
        if place != offset:
            self.broken(f"{value!r} is {how} at offset {offset}, but it is at {place}")

    def check(self, log: dict[int, bytes], where: str) -> None:
        """The whole log, as read at the end."""
        end = max(log, default=-1) + 1
        if sorted(log) != list(range(end)):
            self.broken(f"{where}: there are gaps: {sorted(set(range(end)) - set(log))[:5]}")
        for offset, value in self.at_offset.items():
            if log.get(offset) != value:
                self.broken(f"{where}: offset {offset} has {log.get(offset)!r}, but {value!r} was acknowledged or read")
        if self.shown > end:
            self.broken(f"{where}: the log ends at {end}, and a reader was told {self.shown}")
        missing = self.acked - set(log.values())
        if missing:
            self.broken(f"{where}: {min(missing)!r} was acknowledged, and is lost")
        self._check_order(log, where)
        self._check_ends(log, where)
        owners: dict[int, str] = {}
        for offset, host in sorted(self.ackers.items()):
            epoch = self.epochs.get(offset)
            if epoch is not None and owners.setdefault(epoch, host) != host:
                self.broken(f"{host} and {owners[epoch]} acknowledge in epoch {epoch}")

    def _check_order(self, log: dict[int, bytes], where: str) -> None:
        following: dict[str, int] = {}
        for offset, value in sorted(log.items()):
            if not value:
                continue
            producer, number = self.numbers[value]
            if number != following.setdefault(producer, 0):
                self.broken(f"{where}: offset {offset} has number {number} of {producer}, after {following[producer]}")
            following[producer] = number + 1

    def _check_ends(self, log: dict[int, bytes], where: str) -> None:
        """No high watermark lies within a batch, or within the records of an epoch."""
        for (producer, _), values in self.batches.items():
            found = [self.offsets[value] for value in values if value in self.offsets]
            within = self.ends & set(range(min(found) + 1, max(found) + 1)) if found else ()
            if within:
                self.broken(f"{where}: a reader was told {min(within)}, within {values} of {producer}")
            if 0 < len(found) < len(values):
                self.broken(f"{where}: {len(found)} of {values} are there")
