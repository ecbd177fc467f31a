"""A naive model of a metadata store, for comparison: dictionaries copied whole, without any of the product's code.

Invariant: `history` has the map after every revision, so what a watch must deliver is the difference of two of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from logstore.base.metadata.interface import Change, Changes, Delete, DeletePrefix, Entry, Event, Put, Transaction

Map = dict[str, Entry]


@dataclass
class MetadataModel:
    """Its revisions begin at `first`, which is that of the real store when it was empty."""

    first: int
    history: list[Map] = field(default_factory=lambda: [{}])
    leases: set[int] = field(default_factory=set)

    @property
    def revision(self) -> int:
        """The newest revision."""
        return self.first + len(self.history) - 1

    @property
    def entries(self) -> Map:
        """The present map."""
        return self.history[-1]

    def holds(self, transaction: Transaction) -> bool:
        """Whether all conditions of a transaction hold."""
        found = [self.entries.get(condition.key) for condition in transaction.conditions]
        now = [entry.revision if entry else 0 for entry in found]
        return now == [condition.revision for condition in transaction.conditions]

    def commit(self, changes: Sequence[Change]) -> int:
        """Make changes; returns the revision."""
        after = dict(self.entries)
        removed = [
            key
            for key in after
            for change in changes
            if (isinstance(change, Delete) and key == change.key)
            or (isinstance(change, DeletePrefix) and key.startswith(change.prefix))
        ]
        for key in removed:
            del after[key]
        puts = [change for change in changes if isinstance(change, Put)]
        for put in puts:
            after[put.key] = Entry(put.key, put.value, self.revision + 1, put.lease_id)
        if puts or removed:
            self.history.append(after)
        return self.revision

    def end(self, lease_id: int) -> None:
        """End a lease."""
        self.leases.discard(lease_id)
        after = {key: entry for key, entry in self.entries.items() if entry.lease_id != lease_id}
        if after != self.entries:
            self.history.append(after)

    def under(self, prefix: str) -> list[Entry]:
        """The entries under a prefix, in order."""
        return [self.entries[key] for key in sorted(self.entries) if key.startswith(prefix)]

    def changes(self, prefix: str, after_revision: int) -> list[Changes]:
        """What a watch delivers."""
        found = []
        for revision in range(max(after_revision, self.first) + 1, self.revision + 1):
            before, after = self.history[revision - self.first - 1], self.history[revision - self.first]
            events = tuple(
                Event(key, after.get(key))
                for key in sorted({*before, *after})
                if key.startswith(prefix) and before.get(key) != after.get(key)
            )
            if events:
                found.append(Changes(revision, events))
        return found
