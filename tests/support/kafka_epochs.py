"""A model of the table of leader epochs that a Kafka broker keeps of each partition.

`tests/foreign_clients/test_leader_epochs.py` compares it with a real Kafka.
"""

from __future__ import annotations

UNKNOWN = (-1, -1)


class KafkaEpochs:
    """`LeaderEpochFileCache` of Kafka 4.2: assign, truncateFromStart, endOffsetFor, epochForOffset."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        """Epochs, and where each begins."""

    def assign(self, epoch: int, start: int) -> None:
        """A leader begins."""
        while self.entries and (self.entries[-1][0] >= epoch or self.entries[-1][1] >= start):
            self.entries.pop()
        self.entries.append((epoch, start))

    def truncate_from_start(self, offset: int) -> None:
        """Records in front of an offset are deleted."""
        gone = [entry for entry in self.entries if entry[1] <= offset]
        if gone:
            self.entries = [(gone[-1][0], offset), *self.entries[len(gone) :]]

    def end_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """What OffsetForLeaderEpoch answers: epoch and end."""
        if epoch == -1 or not self.entries:
            return UNKNOWN
        if epoch == self.entries[-1][0]:
            return epoch, log_end
        higher = [entry for entry in self.entries if entry[0] > epoch]
        floor = [entry for entry in self.entries if entry[0] <= epoch]
        if not higher:
            return UNKNOWN
        return (floor[-1][0] if floor else epoch), higher[0][1]

    def epoch_for(self, offset: int) -> int:
        """Who wrote a record."""
        return next((epoch for epoch, start in reversed(self.entries) if start <= offset), -1)
