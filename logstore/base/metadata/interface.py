"""The interface of a metadata store: a small ordered map with revisions, transactions, watches and leases.

What every implementation promises:
* The map has a *revision*, a whole number that grows by one with each transaction that changes something, and never
  otherwise. An entry has the revision of its last change; a key that is absent has revision 0 in conditions.
* A transaction is made as a whole or not at all, also over a power cut. Once `commit` has returned, its changes are
  durable, and every later read at any host shows them.
* A watch delivers the changes under its prefix in the order of their revisions, each once and none left out, those of
  one transaction together. Over a lost connection it goes on by itself from where it was; where that is impossible, it
  raises Compacted.
* A lease ends when it is revoked or not kept alive for its time; its keys are then removed in one change, which
  watches show. A store that restarts gives each lease its whole time again.
* Every call ends in bounded time, with an answer or a MetadataError. A call that is cancelled may or may not have
  changed something.
* Everything is bounded: keys, values, transactions, pages (the constants below).

`logstore.testing.check_metadata_store` checks these promises for any implementation. This module does no I/O.
"""

import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from logstore.base.metadata.errors import InvalidMetadataCall

MAX_KEY_BYTES: Final = 1024
"""Long enough for a topic's name (249 characters) spelled out in escapes, with what stands around it."""
MAX_VALUE_BYTES: Final = 64 << 10
"""A value is read and written whole; what grows belongs in keys of its own."""
MAX_CONDITIONS: Final = 64
MAX_CHANGES: Final = 64
"""etcd takes 128 operations in a transaction, and a conflict is answered with one read for each condition."""
MAX_TRANSACTION_BYTES: Final = 1 << 20
"""etcd's limit for a request is 1.5 MiB."""
MAX_PAGE_ENTRIES: Final = 256
"""So a page of the largest values has 16 MiB."""
MAX_PAGES: Final = 32
"""Read at once; each is two operations of a transaction at most."""
MIN_LEASE_S: Final = 2
"""etcd prolongs shorter leases to its election time."""
MAX_LEASE_S: Final = 3600
ABSENT: Final = 0
"""The revision of a key that is not there."""
_KEY: Final = re.compile(r"[!-~]+")


class Entry(NamedTuple):
    """A key with its value, the revision of its last change, and the lease that it is bound to (0: none)."""

    key: str
    value: bytes
    revision: int
    lease_id: int = 0


class Reading(NamedTuple):
    """What was found at a key, None if it is absent, and the revision of the map at that moment."""

    entry: Entry | None
    revision: int

    @property
    def entry_revision(self) -> int:
        """The revision to compare with in a condition."""
        return ABSENT if self.entry is None else self.entry.revision


class Page(NamedTuple):
    """Entries in the order of their keys, whether more follow, and the revision of the map at that moment. `beside`:
    the entry of the key that was asked for besides; None if it is absent.
    """

    entries: tuple[Entry, ...]
    more: bool
    revision: int
    beside: Entry | None = None


class WantedPage(NamedTuple):
    """A page of `pages`; the fields are what `page` takes."""

    prefix: str
    after: str = ""
    limit: int = MAX_PAGE_ENTRIES
    newer_than: int = 0
    beside: str = ""


class Condition(NamedTuple):
    """The transaction is made only if the key's last change has this revision; ABSENT: if the key is not there."""

    key: str
    revision: int


class Put(NamedTuple):
    """Sets a key's value, and binds it to a lease (0: to none, also if it was bound before)."""

    key: str
    value: bytes
    lease_id: int = 0


class Delete(NamedTuple):
    """Removes a key. An absent key is no error and no change."""

    key: str


class DeletePrefix(NamedTuple):
    """Removes all keys that begin with a prefix."""

    prefix: str


Change = Put | Delete | DeletePrefix


class Transaction(NamedTuple):
    """If all conditions hold, all changes are made. No two changes concern the same key."""

    conditions: tuple[Condition, ...]
    changes: tuple[Change, ...]


class Committed(NamedTuple):
    """The transaction was made and is durable. `revision` is that of its puts, or the map's if nothing changed."""

    revision: int


class ConditionFailed(NamedTuple):
    """A condition did not hold, so nothing was changed. `found` has the entries of the conditions' keys, in order,
    None for an absent key, at `revision` of the map.
    """

    found: tuple[Entry | None, ...]
    revision: int


class Event(NamedTuple):
    """A key's new entry; None: the key was removed."""

    key: str
    entry: Entry | None


class Changes(NamedTuple):
    """What one transaction, or the end of leases, changed under a watch's prefix, in the order of the keys."""

    revision: int
    events: tuple[Event, ...]


class Lease(NamedTuple):
    """A lease and the time for which it lasts unless it is kept alive; the store may give more than was asked for."""

    lease_id: int
    ttl_s: int


@dataclass(slots=True)
class MetadataStatistics:
    """What a store has done since it was opened; `away` has the reason while it does not answer, "" otherwise."""

    calls: int = 0
    transactions: int = 0
    conflicts: int = 0
    attempts_failed: int = 0
    watches_resumed: int = 0
    unknown_outcomes: int = 0
    away: str = ""


class Watch(Protocol):
    """A running watch."""

    async def receive(self) -> Changes:
        """The next changes; waits for them, also while the store is away.

        Raises Compacted, after which the watch is over, and MetadataRefused, MetadataDamaged.
        """
        ...


class MetadataStore(Protocol):
    """See the module. Every call may raise MetadataUnavailable, MetadataRefused, MetadataDamaged and
    InvalidMetadataCall; calls that change something MetadataFull and OutcomeUnknown too.
    """

    @property
    def statistics(self) -> MetadataStatistics:
        """What the store has done so far, kept up to date."""
        ...

    async def get(self, key: str) -> Reading:
        """Read a key."""
        ...

    async def page(
        self, prefix: str, *, after: str = "", limit: int = MAX_PAGE_ENTRIES, newer_than: int = 0, beside: str = ""
    ) -> Page:
        """Read up to `limit` entries whose keys begin with `prefix` and come behind the key `after`, and whose
        revisions are above `newer_than`; and, of the same moment, the entry at the key `beside`, unless that is "".

        A page shows one moment; two pages show two. A watch from the revision of the first page completes the picture
        (`view.MetadataView`).
        """
        ...

    async def pages(self, wanted: Sequence[WantedPage]) -> tuple[Page, ...]:
        """Read up to MAX_PAGES pages of the same moment, in their order; all limits together are MAX_PAGE_ENTRIES at
        most.
        """
        ...

    async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        """Make a transaction. Raises LeaseEnded if a put names a lease that is not there."""
        ...

    def watch(self, prefix: str, after_revision: int) -> AbstractAsyncContextManager[Watch]:
        """Watch the changes of keys under `prefix` with revisions above `after_revision`. Leaving ends the watch."""
        ...

    async def grant_lease(self, ttl_s: int) -> Lease:
        """Take a new lease. When it was lost on the way, it ends by itself. Never raises OutcomeUnknown."""
        ...

    async def keep_alive(self, lease_id: int) -> Lease:
        """Give the lease its whole time again. Raises LeaseEnded. Never raises OutcomeUnknown."""
        ...

    async def revoke_lease(self, lease_id: int) -> None:
        """End a lease now; its keys are removed. A lease that has ended is no error. Never raises OutcomeUnknown."""
        ...

    async def compact(self, revision: int) -> None:
        """Let the changes up to `revision` go: watches from before it are Compacted. May be repeated."""
        ...


def check_key(key: str) -> None:
    """Raises InvalidMetadataCall unless the text may be a key."""
    if not _KEY.fullmatch(key) or len(key) > MAX_KEY_BYTES:
        raise InvalidMetadataCall(
            f"key {key[:80]!r}: must have from 1 to {MAX_KEY_BYTES} visible ASCII characters; escape others"
        )


def check_prefix(prefix: str) -> None:
    """Raises InvalidMetadataCall unless the text may be a prefix of keys; "" is one."""
    if prefix:
        check_key(prefix)


def check_page(prefix: str, after: str, limit: int, newer_than: int, beside: str = "") -> None:
    """Raises InvalidMetadataCall unless these are arguments of `page`."""
    for text in (prefix, after, beside):
        check_prefix(text)
    if not 1 <= limit <= MAX_PAGE_ENTRIES:
        raise InvalidMetadataCall(f"limit={limit}: must be from 1 to {MAX_PAGE_ENTRIES}; read further pages")
    if newer_than < 0:
        raise InvalidMetadataCall(f"newer_than={newer_than}: must be a revision, or 0 for all entries")


def check_pages(wanted: Sequence[WantedPage]) -> None:
    """Raises InvalidMetadataCall unless these are pages of one call."""
    for page in wanted:
        check_page(*page)
    entries = sum(page.limit for page in wanted)
    if not 1 <= len(wanted) <= MAX_PAGES or entries > MAX_PAGE_ENTRIES:
        raise InvalidMetadataCall(
            f"{len(wanted)} pages of {entries} entries: from 1 to {MAX_PAGES} of {MAX_PAGE_ENTRIES} in all are read"
        )


def check_transaction(transaction: Transaction) -> None:
    """Raises InvalidMetadataCall unless every store takes the transaction."""
    for noun, number, limit in (
        ("conditions", len(transaction.conditions), MAX_CONDITIONS),
        ("changes", len(transaction.changes), MAX_CHANGES),
    ):
        if number > limit:
            raise InvalidMetadataCall(f"a transaction of {number} {noun}: at most {limit} are taken; cut it")
    for condition in transaction.conditions:
        check_key(condition.key)
        if condition.revision < 0:
            raise InvalidMetadataCall(f"condition on {condition.key!r}: revision {condition.revision} is below 0")
    size_bytes = sum(_change_bytes(change) for change in transaction.changes)
    if size_bytes > MAX_TRANSACTION_BYTES:
        raise InvalidMetadataCall(
            f"a transaction of {size_bytes} bytes: at most {MAX_TRANSACTION_BYTES} are taken; cut it"
        )
    _check_distinct(transaction.changes)


def check_lease_time(ttl_s: int) -> None:
    """Raises InvalidMetadataCall unless every store takes this time of a lease."""
    if not MIN_LEASE_S <= ttl_s <= MAX_LEASE_S:
        raise InvalidMetadataCall(f"a lease of {ttl_s} s: must be from {MIN_LEASE_S} to {MAX_LEASE_S} s")


def end_of_prefix(prefix: str) -> str:
    """The least text above all keys that begin with `prefix`."""
    return prefix + "\x7f"


def _change_bytes(change: Change) -> int:
    if isinstance(change, DeletePrefix):
        check_key(change.prefix)  # not "": nobody means to remove everything
        return len(change.prefix)
    check_key(change.key)
    if isinstance(change, Delete):
        return len(change.key)
    if len(change.value) > MAX_VALUE_BYTES:
        raise InvalidMetadataCall(
            f"the value of {change.key!r} has {len(change.value)} bytes: at most {MAX_VALUE_BYTES} are taken; "
            "use separate keys for what grows"
        )
    return len(change.key) + len(change.value)


def _check_distinct(changes: Sequence[Change]) -> None:
    """Changes of one key in one transaction have no order, in etcd too."""
    keys = [change.key for change in changes if not isinstance(change, DeletePrefix)]
    prefixes = [change.prefix for change in changes if isinstance(change, DeletePrefix)]
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise InvalidMetadataCall(f"a transaction changes key {key!r} twice: leave the first change out")
        seen.add(key)
    for number, prefix in enumerate(prefixes):
        others = (*keys, *prefixes[:number], *prefixes[number + 1 :])
        overlapping = next((key for key in others if key.startswith(prefix)), None)
        if overlapping is not None:
            raise InvalidMetadataCall(
                f"a transaction changes {overlapping!r} and removes {prefix!r}: use two transactions"
            )
