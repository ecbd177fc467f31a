"""Where users, access control lists and quotas are kept: entries of text keys, changed one change after the other.

A host alone keeps them in ledgers of its data directory (`LedgerEntries`), a cluster in its metadata store
(`logstore.cluster.streams.stored_access`). Both promise:

* `follow` tells of what is there, and then of each change once it is durable, in the order of the changes.
* A change is computed from what has been followed up to then, and no other change comes in between.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from logstore.log.serial_queue import SerialQueue
from logstore.log.ticket import Ticket

EntryChanges = Mapping[str, bytes | None]
"""New values by key; None removes a key."""
EntryChanged = Callable[[str, bytes | None], None]
"""Takes a key and its new value, None if it was removed. Raises CorruptFile if the value cannot be read."""


class AccessEntries(Protocol):
    """See the module."""

    def follow(self, prefix: str, changed: EntryChanged) -> None:
        """Call `changed` for each entry under a prefix, and from then on for each change. May raise CorruptFile."""

    def change(self, compute: Callable[[], EntryChanges]) -> Ticket[None]:
        """Make the change that `compute` returns durable; the ticket settles when those who follow have it.

        `compute` may be called again, if another host was faster. The ticket fails with the CairnError that it raises,
        and with those of the place where the entries are kept.
        """


class AccessLedger(Protocol):
    """The methods that are needed of a ledger (`logstore.log.ledger.Ledger`)."""

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """All pairs under a prefix."""

    def put(self, changes: Mapping[str, bytes | None]) -> Ticket[None]:
        """Store entries atomically; None deletes. The ticket settles when synced."""


class LedgerEntries:
    """Entries in a ledger of this host. A change fails with StorageFailed if the disk refuses."""

    def __init__(self, ledger: AccessLedger) -> None:
        self._ledger = ledger
        self._changes = SerialQueue()
        self._followers: list[tuple[str, EntryChanged]] = []

    def follow(self, prefix: str, changed: EntryChanged) -> None:
        """See AccessEntries. Raises CorruptFile."""
        for key, value in self._ledger.items(prefix):
            changed(key, value)
        self._followers.append((prefix, changed))

    def change(self, compute: Callable[[], EntryChanges]) -> Ticket[None]:
        """See AccessEntries; the change is made as a whole or not at all."""
        return self._changes.run("", lambda: self._change(compute))

    async def _change(self, compute: Callable[[], EntryChanges]) -> None:
        changes = compute()
        if changes:
            await self._ledger.put(changes)
        for key, value in changes.items():
            for prefix, changed in self._followers:
                if key.startswith(prefix):
                    changed(key, value)
