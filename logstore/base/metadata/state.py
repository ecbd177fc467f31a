"""The map of a metadata store in memory: entries, revisions, leases and recent changes.

Invariants:
* A change has two steps: `prepare_…` computes an `Update` and changes nothing; `install` makes it. Between the two the
  caller makes the update durable, and prepares no other.
* The history has the newest changes, at most HISTORY_CHANGES and HISTORY_BYTES, and begins behind `compacted`.
* Times come in as arguments. This module does no I/O.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from logstore.base.metadata.errors import Compacted, InvalidMetadataCall, LeaseEnded, MetadataDamaged
from logstore.base.metadata.interface import (
    ABSENT,
    Changes,
    Committed,
    ConditionFailed,
    Delete,
    Entry,
    Event,
    Lease,
    Page,
    Put,
    Reading,
    Transaction,
    WantedPage,
    check_page,
    check_pages,
    check_transaction,
    end_of_prefix,
)

HISTORY_CHANGES: Final = 10_000
"""Changes that a watch may be behind; a cluster of hundreds of streams makes some in a second at most."""
HISTORY_BYTES: Final = 16 << 20
FIRST_REVISION: Final = 1
"""Of an empty map, as in etcd."""


class Update(NamedTuple):
    """What a call changes, computed but not made. `revision` is that of the map afterwards."""

    revision: int
    puts: tuple[Entry, ...] = ()
    deletes: tuple[str, ...] = ()
    granted: tuple[Lease, ...] = ()
    ended: tuple[int, ...] = ()

    @property
    def changes_something(self) -> bool:
        """Whether there is anything to make durable."""
        return bool(self.puts or self.deletes or self.granted or self.ended)


@dataclass(slots=True)
class _HeldLease:
    ttl_s: int
    ends_s: float
    keys: set[str]


class MetadataState:
    """The map; `entries` and `leases` are what was stored, and all leases begin anew at `now_s`."""

    def __init__(
        self, now_s: float, revision: int = FIRST_REVISION, entries: Iterable[Entry] = (), leases: Iterable[Lease] = ()
    ) -> None:
        self.revision = revision
        self.compacted = revision
        """Changes up to this revision are not in the history."""
        self._entries = {entry.key: entry for entry in entries}
        self._keys = sorted(self._entries)
        self._leases = {lease.lease_id: _HeldLease(lease.ttl_s, now_s + lease.ttl_s, set()) for lease in leases}
        for entry in self._entries.values():
            if entry.lease_id in self._leases:
                self._leases[entry.lease_id].keys.add(entry.key)
        self._history: deque[Changes] = deque()
        self._history_bytes = 0

    @property
    def entries(self) -> Mapping[str, Entry]:
        """All entries, by key."""
        return self._entries

    @property
    def leases(self) -> tuple[Lease, ...]:
        """All leases."""
        return tuple(Lease(lease_id, lease.ttl_s) for lease_id, lease in self._leases.items())

    # ---- reading

    def get(self, key: str) -> Reading:
        """See MetadataStore."""
        return Reading(self._entries.get(key), self.revision)

    def page(self, prefix: str, after: str, limit: int, newer_than: int = 0, beside: str = "") -> Page:
        """See MetadataStore. Raises InvalidMetadataCall."""
        check_page(prefix, after, limit, newer_than, beside)
        besides = self._entries.get(beside)
        begin = bisect_left(self._keys, max(prefix, after + "\0" if after else ""))
        end = bisect_left(self._keys, end_of_prefix(prefix))
        if newer_than:
            newer = (self._entries[key] for key in self._keys[begin:end])
            found = tuple(islice((entry for entry in newer if entry.revision > newer_than), limit + 1))
            return Page(found[:limit], len(found) > limit, self.revision, besides)
        keys = self._keys[begin : min(end, begin + limit)]
        return Page(tuple(self._entries[key] for key in keys), end - begin > limit, self.revision, besides)

    def pages(self, wanted: Iterable[WantedPage]) -> tuple[Page, ...]:
        """See MetadataStore. Raises InvalidMetadataCall."""
        pages = tuple(wanted)
        check_pages(pages)
        return tuple(self.page(*page) for page in pages)

    def changes_after(self, revision: int, prefix: str) -> Iterator[Changes]:
        """The changes under a prefix with revisions above `revision`. Raises Compacted, MetadataDamaged."""
        if revision > self.revision:
            raise behind(revision, self.revision)
        if revision < self.compacted:
            raise Compacted(revision, self.compacted)
        newer = []
        for changes in reversed(self._history):
            if changes.revision <= revision:
                break
            newer.append(changes)
        for changes in reversed(newer):
            events = tuple(event for event in changes.events if event.key.startswith(prefix))
            if events:
                yield Changes(changes.revision, events)

    # ---- changing

    def prepare_commit(self, transaction: Transaction) -> Update | ConditionFailed:
        """The update of a transaction, or the conflict. Raises InvalidMetadataCall, LeaseEnded."""
        check_transaction(transaction)
        found = tuple(self._entries.get(condition.key) for condition in transaction.conditions)
        for condition, entry in zip(transaction.conditions, found, strict=True):
            if condition.revision != (ABSENT if entry is None else entry.revision):
                return ConditionFailed(found, self.revision)
        puts: list[Entry] = []
        deletes: list[str] = []
        revision = self.revision + 1
        for change in transaction.changes:
            if isinstance(change, Put):
                if change.lease_id and change.lease_id not in self._leases:
                    raise LeaseEnded(change.lease_id)
                puts.append(Entry(change.key, bytes(change.value), revision, change.lease_id))
            elif isinstance(change, Delete):
                deletes += [change.key] if change.key in self._entries else []
            else:
                begin = bisect_left(self._keys, change.prefix)
                deletes += self._keys[begin : bisect_left(self._keys, end_of_prefix(change.prefix))]
        if not puts and not deletes:
            return Update(self.revision)
        return Update(revision, tuple(puts), tuple(deletes))

    def prepare_grant(self, lease_id: int, ttl_s: int) -> Update:
        """The update of a new lease; nothing if it was granted already."""
        if lease_id in self._leases:
            return Update(self.revision)
        return Update(self.revision, granted=(Lease(lease_id, ttl_s),))

    def prepare_end(self, lease_ids: Iterable[int]) -> Update:
        """The update that ends leases, of which some may have ended already."""
        ended = tuple(lease_id for lease_id in lease_ids if lease_id in self._leases)
        keys = tuple(sorted(key for lease_id in ended for key in self._leases[lease_id].keys))
        return Update(self.revision + bool(keys), deletes=keys, ended=ended)

    def install(self, update: Update, now_s: float) -> Committed:
        """Make an update that was prepared last. Watches see it from now on."""
        for lease in update.granted:
            self._leases[lease.lease_id] = _HeldLease(lease.ttl_s, now_s + lease.ttl_s, set())
        for key in update.deletes:
            self._unbind(self._entries.pop(key))
            del self._keys[bisect_left(self._keys, key)]
        for entry in update.puts:
            before = self._entries.get(entry.key)
            if before is None:
                insort(self._keys, entry.key)
            else:
                self._unbind(before)
            self._entries[entry.key] = entry
            if entry.lease_id:
                self._leases[entry.lease_id].keys.add(entry.key)
        for lease_id in update.ended:
            del self._leases[lease_id]
        if update.puts or update.deletes:
            self.revision = update.revision
            events = [Event(entry.key, entry) for entry in update.puts] + [Event(key, None) for key in update.deletes]
            self._remember(Changes(update.revision, tuple(sorted(events, key=lambda event: event.key))))
        return Committed(self.revision)

    def compact(self, revision: int) -> None:
        """See MetadataStore. Raises InvalidMetadataCall."""
        if revision > self.revision:
            raise InvalidMetadataCall(f"compact up to revision {revision}: the newest is {self.revision}")
        while self._history and self._history[0].revision <= revision:
            self._forget_oldest()
        self.compacted = max(self.compacted, revision)

    # ---- leases

    def keep_alive(self, lease_id: int, now_s: float) -> Lease:
        """See MetadataStore. Raises LeaseEnded."""
        lease = self._leases.get(lease_id)
        if lease is None:
            raise LeaseEnded(lease_id)
        lease.ends_s = now_s + lease.ttl_s
        return Lease(lease_id, lease.ttl_s)

    def overdue(self, now_s: float) -> tuple[int, ...]:
        """The leases whose time is over."""
        return tuple(lease_id for lease_id, lease in self._leases.items() if lease.ends_s <= now_s)

    def next_end_s(self) -> float | None:
        """When the next lease's time is over; None without leases."""
        return min((lease.ends_s for lease in self._leases.values()), default=None)

    # ---- details

    def _unbind(self, entry: Entry) -> None:
        if entry.lease_id in self._leases:
            self._leases[entry.lease_id].keys.discard(entry.key)

    def _remember(self, changes: Changes) -> None:
        self._history.append(changes)
        self._history_bytes += _size_bytes(changes)
        while len(self._history) > HISTORY_CHANGES or self._history_bytes > HISTORY_BYTES:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest = self._history.popleft()
        self._history_bytes -= _size_bytes(oldest)
        self.compacted = oldest.revision


def behind(seen: int, found: int) -> MetadataDamaged:
    """The error for a map that is older than what was read from it before."""
    return MetadataDamaged(
        f"the metadata store is at revision {found}, and revision {seen} was seen before: an older copy was restored, "
        "or another store is at its address; restore the newest store"
    )


def _size_bytes(changes: Changes) -> int:
    return sum(len(event.key) + (len(event.entry.value) if event.entry else 0) for event in changes.events)
