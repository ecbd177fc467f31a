"""The coordinator's metadata in the metadata store of a cluster, for the host that leads.

Invariants:
* Every transaction has two conditions: the leader's entry is the one that this host put, and the head is as this host
  wrote it last. So a coordinator that was replaced changes nothing (`LeadershipLost`); and of a transaction whose
  answer was lost and the one behind it at most one is made: nothing older comes behind something newer.
* Changes that do not fit into one transaction are a batch. Its pieces are stored first; the head that names them is the
  moment at which the batch is made. Then its changes are made one transaction after the other, the last of which takes
  the batch away. Whoever finds a head that names a batch finishes the batch before anything else.
* While this host is not sure of its lease, `obstacle` says so: it tells and changes nothing.
* The coordinator refuses requests and checkpoints for which LIMIT_BYTES leave no room (`left_bytes`), also for what
  is still to be written of requests that it has accepted; these may be written on.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataDamaged, MetadataError, MetadataRefused, OutcomeUnknown
from logstore.base.metadata.interface import (
    ABSENT,
    Committed,
    Condition,
    DeletePrefix,
    Entry,
    MetadataStore,
    Put,
    Transaction,
)
from scheduler.coordinator.errors import StoreDamaged, StoreError
from scheduler.coordinator.metadata import entries
from scheduler.coordinator.metadata.interface import Change
from scheduler.coordinator.metadata.on_threads import OffLoad, in_a_thread

T = TypeVar("T")
LIMIT_BYTES: Final = 32 << 20
"""Of keys and values: a takeover reads all of them, and etcd counts those that are left for each page that it gives."""
TRIES: Final = 3
"""Of a transaction whose answer is lost, in one call; the store has tried all endpoints in each."""
FEW: Final = 1000
"""Changes that are cut into transactions on the event loop: some milliseconds."""
UNSURE: Final = "this host is not sure that its coordinator leads: the metadata store has not confirmed its lease"


class LeadershipLost(StoreError):
    """Another coordinator leads, or none: this one stores nothing any more."""


class HeadMoved(StoreError):
    """A write whose answer was lost had been made: nothing was changed now, and the next write knows."""


class Leadership(NamedTuple):
    """The leader's entry as this host put it. `is_sure`: whether the lease that it lies under surely lasts."""

    revision: int
    is_sure: Callable[[], bool]


class ClusterMetadata:
    """See Metadata. `load` comes first."""

    def __init__(
        self,
        store: MetadataStore,
        leadership: Leadership,
        off_load: OffLoad = in_a_thread,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        self._store = store
        self._off_load = off_load
        self._leadership = leadership
        self.limit_bytes: Final[float] = limit_bytes
        self._head_revision = ABSENT
        self._writes = 0
        """The highest number of a write that was tried."""
        self._batch = 0
        self._is_unsure = False
        """Whether a transaction is perhaps made, or will be."""
        self._sizes: dict[str, dict[str, int]] = {}
        """Of stored keys with their values, by the first two parts of the key."""
        self._bytes = 0
        self.is_lost = False
        """Whether another coordinator leads, as the store has said."""

    @property
    def obstacle(self) -> str | None:
        """See Metadata."""
        return None if self._leadership.is_sure() else UNSURE

    @property
    def left_bytes(self) -> float:
        """See Metadata."""
        return self.limit_bytes - self._bytes

    async def load(self) -> Mapping[str, str]:
        """See Metadata. Raises LeadershipLost too."""
        try:
            self._adopt((await self._store.get(schema.PLAN_HEAD_KEY)).entry)
            await self._settle()
            stored = await self._read(schema.COORDINATOR_STATE)
        except (MetadataDamaged, MetadataRefused) as error:
            raise StoreDamaged(f"the coordinator's state in the metadata store cannot be read: {error}") from error
        except MetadataError as error:
            raise StoreError(str(error)) from error
        self._sizes, self._bytes = {}, 0
        for key, value in stored.items():
            self._note_put(key, len(value))
        found: dict[str, str] = {}
        await self._off_load(lambda: found.update(entries.entries(stored)))
        return found

    async def apply(self, changes: Sequence[Change]) -> None:
        """See Metadata. Raises LeadershipLost too."""
        try:
            if self._is_unsure or self._batch:
                await self._settle()
            await self._make(changes)
        except MetadataError as error:
            raise StoreError(str(error)) from error

    async def _settle(self) -> None:
        """From here on nothing older can come; what was begun is finished."""
        with suppress(HeadMoved):
            await self._write([], self._batch)
        if self._batch:
            await self._finish()

    async def _make(self, changes: Sequence[Change]) -> None:
        if len(changes) <= FEW:
            parts = entries.transactions(changes)
            pieces = entries.batch_pieces(changes) if len(parts) > 1 else []
        else:
            parts, pieces = await self._apart(lambda: (entries.transactions(changes), entries.batch_pieces(changes)))
        if len(parts) <= 1:
            await self._write(parts[0] if parts else [], 0)
            return
        *first, last = entries.grouped(pieces)
        for part in first:
            await self._write(part, 0)
        await self._write(last, len(pieces))
        await self._make_parts(parts)

    async def _finish(self) -> None:
        """Make the changes of the batch that the head names. Raises StoreDamaged too."""
        pieces = await self._read(schema.COORDINATOR_BATCH)
        parts = await self._apart(lambda: entries.transactions(entries.batch_of(pieces, self._batch)))
        await self._make_parts(parts)

    async def _apart(self, make: Callable[[], T]) -> T:
        """The value of what takes long: this host holds its lease meanwhile."""
        found: list[T] = []
        await self._off_load(lambda: found.append(make()))
        return found[0]

    async def _make_parts(self, parts: Sequence[Sequence[entries.Piece]]) -> None:
        *first, last = parts
        for part in first:
            await self._write(part, self._batch)
        await self._write([*last, DeletePrefix(schema.COORDINATOR_BATCH)], 0)

    async def _write(self, changes: Sequence[entries.Piece], batch: int) -> None:
        """One transaction. Raises LeadershipLost, StoreError, MetadataError."""
        self._writes += 1
        head = schema.encode(schema.StoredPlanHead(writes=self._writes, batch=batch))
        conditions = (
            Condition(schema.LEADER_KEY, self._leadership.revision),
            Condition(schema.PLAN_HEAD_KEY, self._head_revision),
        )
        transaction = Transaction(conditions, (Put(schema.PLAN_HEAD_KEY, head), *changes))
        number = self._writes
        for _ in range(TRIES):
            try:
                outcome = await self._store.commit(transaction)
                break
            except OutcomeUnknown as unknown:
                self._is_unsure = True
                why = str(unknown)
        else:
            raise StoreError(why)
        self._is_unsure = False
        if isinstance(outcome, Committed):
            self._head_revision, self._batch = outcome.revision, batch
        else:
            leader, found = outcome.found
            if leader is None or leader.revision != self._leadership.revision:
                self.is_lost = True
                raise LeadershipLost("another coordinator leads now: ask again")
            if self._adopt(found) != number:
                raise HeadMoved("a write whose answer was lost had been made: try again")
        for change in changes:
            self._note(change)

    def _adopt(self, found: Entry | None) -> int:
        """Take the head as it is in the store; returns the number of its write."""
        head = schema.StoredPlanHead(writes=0) if found is None else schema.decode(schema.StoredPlanHead, found)
        self._head_revision = ABSENT if found is None else found.revision
        self._batch = head.batch
        self._writes = max(self._writes, head.writes)
        return head.writes

    async def _read(self, prefix: str) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        after = ""
        while True:
            page = await self._store.page(prefix, after=after)
            found.update((entry.key, entry.value) for entry in page.entries)
            if not page.more:
                return found
            after = page.entries[-1].key

    # ---- size

    def _note(self, change: entries.Piece) -> None:
        if isinstance(change, Put):
            if change.key.startswith(schema.COORDINATOR_STATE):
                self._note_put(change.key, len(change.value))
            return
        prefix = change.prefix
        group = _group(prefix)
        for name in [group] if group in self._sizes else [one for one in self._sizes if one.startswith(prefix)]:
            sizes = self._sizes[name]
            for key in [key for key in sizes if key.startswith(prefix)]:
                self._bytes -= sizes.pop(key)
            if not sizes:
                del self._sizes[name]

    def _note_put(self, key: str, value_bytes: int) -> None:
        sizes = self._sizes.setdefault(_group(key), {})
        size = len(key) + value_bytes
        self._bytes += size - sizes.get(key, 0)
        sizes[key] = size


def _group(key: str) -> str:
    """The first two parts of a key, such as those of a request or a unit; of a shorter one, what it has."""
    parts = key.removeprefix(schema.COORDINATOR_STATE).split("/", 2)
    return schema.COORDINATOR_STATE + "/".join(parts[:2])
