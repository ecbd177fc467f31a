"""What clients ask to be changed while the metadata store of a cluster is away: they hear the reason, and soon."""

from functools import partial

import pytest
import trio

from logstore.base.metadata.errors import OutcomeUnknown
from logstore.base.metadata.interface import MetadataStore
from logstore.base.metadata.schema import StoredTopic
from logstore.cluster.streams.stored_access import StoredAccess
from logstore.cluster.while_there import AWAY_S, while_there
from logstore.errors import TopicExists
from logstore.testing.reports import RecordedReports
from tests.cluster.memory import MemoryCluster, simulated


def test_who_changes_something_hears_that_the_store_is_away() -> None:
    """A change of the metadata store, and one of users: both fail with the reason when the store is away for AWAY_S. A
    store that is away for less costs nobody anything, and errors of the change itself are its own.
    """

    async def test(cluster: MemoryCluster) -> None:
        store: MetadataStore = cluster.hosts["a"].store
        topics = cluster.hosts["a"].host.topics
        access = StoredAccess(store, RecordedReports(), cluster.nursery.start_soon)
        cluster.nursery.start_soon(access.run)
        await access.complete()

        async def change_users() -> None:
            settled = trio.Event()
            ticket = access.change(lambda: {"user/x": b"x"})
            ticket.add_callback(lambda _: settled.set())
            await settled.wait()
            ticket.result()

        topic = StoredTopic(topic_id="t1", partitions=1, replicas=1, settings={})
        await while_there(store, partial(topics.create, "one", topic))
        with pytest.raises(TopicExists):
            await while_there(store, partial(topics.create, "one", StoredTopic(
                topic_id="t2", partitions=1, replicas=1, settings={},
            )))  # fmt: skip
        cluster.metadata.stop()
        while not store.statistics.away:  # noqa: ASYNC110  time is virtual
            await trio.sleep(0.1)
        for change in (partial(while_there, store, partial(topics.delete, "one", "t1")), change_users):
            began_s = trio.current_time()
            with pytest.raises(OutcomeUnknown, match=r"the metadata store is away .*; the change was not made, or"):
                await change()
            assert trio.current_time() - began_s <= AWAY_S + 0.5
        deleted = trio.Event()

        async def delete() -> None:
            await while_there(store, partial(topics.delete, "one", "t1"))
            deleted.set()

        cluster.nursery.start_soon(delete)
        await trio.sleep(AWAY_S / 2)
        cluster.metadata.start()
        await deleted.wait()

    simulated(test, "a")
