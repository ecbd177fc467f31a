"""Topics of a cluster in its metadata store: created once, grown, altered, deleted with all that belongs to them.

Invariants:
* A change is one transaction on the topic's entry as it was read, and is computed from that: the view may be late, and
  what another host has changed stays. One whose answer was lost is sent again, and its own
  outcome is recognized by the whole value: a topic's id is new with each creation.
* What a store lacks that is not this cluster's was not deleted, and nothing is made there (`own_store`).
* When a method returns, every host's view has the change, or will have it soon; this host's has it.
"""

import uuid
from collections.abc import Callable
from typing import Final

from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataDamaged, OutcomeUnknown
from logstore.base.metadata.interface import Committed, ConditionFailed, Entry, MetadataStore, Transaction
from logstore.cluster.members.view import ClusterView
from logstore.cluster.own_store import OwnStore
from logstore.errors import InvalidPartitions, TopicExists, TryAgain, UnknownTopicOrPartition

TRIES: Final = 8
"""An entry changes by administrators only; a transaction without an answer is made again."""


class StoredTopics:
    """See the module. Methods raise MetadataError, too."""

    def __init__(self, store: MetadataStore, view: ClusterView, cluster_id: str = "") -> None:
        """`cluster_id`: whose the store must be; empty: whosever it is."""
        self.store: Final = store
        self._own = OwnStore(store, cluster_id)
        self._view = view

    async def create(self, name: str, topic: schema.StoredTopic) -> None:
        """Create a topic. Raises TopicExists."""
        outcome = await self._commit(schema.create_topic(name, topic))
        revision = outcome.revision
        if isinstance(outcome, ConditionFailed):
            found = outcome.found[0]
            if found is None or schema.decode(schema.StoredTopic, found) != topic:
                raise TopicExists(f"topic {name!r} exists")
            revision = found.revision
        await self._view.topics_reached(revision)

    async def known_hosts(self) -> set[str]:
        """The hosts that the cluster has, alive or not: those with a disk that was started, and no removed ones. The
        metadata store says so, not the view, which may be late. Costs a page for each 256 disks. Raises MetadataDamaged
        if the store is not this cluster's.
        """
        await self.check_own()
        hosts: set[str] = set()
        after, more = "", True
        while more:
            page = await self.store.page(schema.DISKS, after=after)
            hosts.update(map(_host_of, page.entries))
            after, more = page.entries[-1].key if page.entries else "", page.more
        return hosts

    async def check_own(self) -> None:
        """Raise MetadataDamaged unless the store is this cluster's."""
        await self._own.check()

    async def deleted(self, name: str, topic_id: uuid.UUID) -> bool:
        """Whether there is no topic with this name and id any more, in the store of this cluster."""
        entry = await self._own.own_entry(schema.topic_key(name))
        return entry is None or uuid.UUID(hex=schema.decode(schema.StoredTopic, entry).topic_id) != topic_id

    async def alter(self, name: str, topic_id: str, change: Callable[[schema.StoredTopic], schema.StoredTopic]) -> None:
        """Give a topic other settings or more partitions: `change` says what it is to be, from what it is.

        Raises UnknownTopicOrPartition if there is no topic with this name and id, InvalidPartitions for fewer ones,
        TryAgain if others change it all the time, and what `change` raises.
        """
        wanted: schema.StoredTopic | None = None
        for _ in range(TRIES):
            entry, found = await self._find(name, topic_id)
            if found != wanted:  # or a lost answer was that it is done
                wanted = change(found)
            if wanted.partitions < found.partitions:
                raise InvalidPartitions(
                    f"topic {name!r} has {found.partitions} partitions and cannot have {wanted.partitions}: "
                    "give at least as many"
                )
            if found == wanted:
                await self._view.topics_reached(entry.revision)
                return
            outcome = await self._commit(schema.replace_topic(name, wanted, entry.revision))
            if isinstance(outcome, Committed):
                await self._view.topics_reached(outcome.revision)
                return
        raise _unsettled(name)

    async def delete(self, name: str, topic_id: str) -> None:
        """Delete a topic. Raises UnknownTopicOrPartition if there is none with this name and id, TryAgain if others
        change it all the time.
        """
        is_sent = False
        for _ in range(TRIES):
            try:
                entry, topic = await self._find(name, topic_id)
            except UnknownTopicOrPartition:
                if is_sent:
                    return  # the lost answer was that it is done
                raise
            is_sent = True
            outcome = await self._commit(schema.delete_topic(name, topic, entry.revision))
            if isinstance(outcome, Committed):
                await self._view.topics_reached(outcome.revision)
                return
        raise _unsettled(name)

    # ---- details

    async def _find(self, name: str, topic_id: str) -> tuple[Entry, schema.StoredTopic]:
        entry = (await self.store.get(schema.topic_key(name))).entry
        found = None if entry is None else schema.decode(schema.StoredTopic, entry)
        if entry is None or found is None or found.topic_id != topic_id:
            raise UnknownTopicOrPartition(f"there is no topic {name!r} with id {topic_id}")
        return entry, found

    async def _commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        """Make a transaction, again if its answer is lost."""
        for tries in range(1, TRIES + 1):
            try:
                return await self._own.commit(transaction)
            except OutcomeUnknown:
                if tries == TRIES:
                    raise
        raise AssertionError("the last try returns or raises")


def _unsettled(name: str) -> TryAgain:
    return TryAgain(f"topic {name!r} keeps changing: try again")


def _host_of(disk: Entry) -> str:
    """The host of a disk. Whose a damaged entry is nobody knows: a host's of its own, which loses no copy."""
    try:
        return schema.decode(schema.StoredDisk, disk).host
    except MetadataDamaged:
        return disk.key
