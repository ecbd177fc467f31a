"""The metadata store as that of one cluster: what is written there only while the store is this cluster's.

Most writes are made on the condition that an entry of this cluster is as it was read. Those that make an entry where
there is none (a topic, a block of producer ids, the clock of retention, the head of users and lists) would also be made
in a store that was emptied, or in another cluster's at the same address.

Invariants:
* Such a write is made on one more condition: the entry of the cluster is the one that was read, and names this cluster.
* Where it is another entry, or none, MetadataDamaged says so, and nothing was written.
* An entry of the cluster that was written again, as by a restore, is read again.

Costs: a condition for each write, and a read of the cluster's entry for the first one.
"""

from typing import Final, Protocol

from logstore.base.metadata import schema
from logstore.base.metadata.errors import OutcomeUnknown
from logstore.base.metadata.interface import (
    ABSENT,
    Committed,
    Condition,
    ConditionFailed,
    Entry,
    MetadataStore,
    Reading,
    Transaction,
)

TRIES: Final = 8
"""The cluster's entry changes by a restore only."""


class EntryStore(Protocol):
    """A store of which single entries are read and written: see `MetadataStore`."""

    async def get(self, key: str) -> Reading:
        """Read a key."""

    async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        """Make a transaction."""


class OwnStore:
    """See the module. Without a cluster's id it is any store."""

    def __init__(self, store: MetadataStore, cluster_id: str = "") -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._revision: int | None = None
        """Of the cluster's entry, as it was read last."""

    async def get(self, key: str) -> Reading:
        """See MetadataStore."""
        return await self._store.get(key)

    async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        """See MetadataStore; raises MetadataDamaged if the store is not this cluster's."""
        if not self._cluster_id:
            return await self._store.commit(transaction)
        for _ in range(TRIES):
            if self._revision is None:
                await self.check()
            known = self._revision
            own = Condition(schema.CLUSTER_KEY, known or ABSENT)
            outcome = await self._store.commit(transaction._replace(conditions=(*transaction.conditions, own)))
            if isinstance(outcome, Committed):
                return outcome
            *others, found = outcome.found
            if found is not None and found.revision == known:  # not as somebody else has read it since
                return ConditionFailed(tuple(others), outcome.revision)
            self._take(found)
        raise OutcomeUnknown(f"the entry {schema.CLUSTER_KEY!r} of the metadata store keeps changing: ask again")

    async def check(self) -> None:
        """Raise MetadataDamaged unless the store is this cluster's."""
        self._take((await self._store.get(schema.CLUSTER_KEY)).entry)

    async def own_entry(self, key: str) -> Entry | None:
        """An entry, None if the cluster has none. Raises MetadataDamaged if the store is not this cluster's at that
        moment.
        """
        conditions = Condition(key, ABSENT), Condition(schema.CLUSTER_KEY, ABSENT)
        outcome = await self._store.commit(Transaction(conditions, ()))
        entry, cluster = (None, None) if isinstance(outcome, Committed) else outcome.found
        self._take(cluster)
        return entry

    def _take(self, found: Entry | None) -> None:
        self._revision = None
        if self._cluster_id:
            schema.check_cluster(found, self._cluster_id)
            self._revision = None if found is None else found.revision
