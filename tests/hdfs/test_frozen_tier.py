"""A real HDFS whose processes are stopped (SIGSTOP): they take connections, and answer nothing. What needs HDFS waits,
and nothing else does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from logstore.client.blocking import Client, parse_addresses
from logstore.cluster.epochs.group_appends import GroupAppends
from logstore.cluster.streams.topics import ClusterTopics
from logstore.epochs.group_order import GroupOrder
from logstore.errors import CairnError, TierUnavailable, TryAgain
from logstore.testing.cluster import Cluster
from logstore.tier.hdfs import HdfsObjects, HdfsSettings
from logstore.tier.settings import HdfsPlace
from scheduler.hdfs.webhdfs import Timeouts
from tests.cluster.support import Front
from tests.cluster.test_group_appends import order
from tests.cluster.test_tiered_reads import Running, running_on
from tests.cluster_processes.test_epoch_processes import TOPIC as OUT
from tests.cluster_processes.test_epoch_processes import StagingClient
from tests.hdfs.test_cluster_tier import copies, create, produce, read
from tests.hdfs.test_tier import tier_url
from tests.hdfs.writers import wait_until
from tests.metadata.support import needs_etcd
from tests.support.hdfs.cluster import HdfsCluster
from tests.support.limits import PATIENCE_S

pytestmark = [pytest.mark.slow]
SILENCE_S = 10.0
FROZEN = ["datanodes", "namenode"]


@contextmanager
def frozen(hdfs: HdfsCluster, what: str) -> Iterator[None]:
    """Processes of HDFS are stopped meanwhile."""
    names = ["namenode"] if what == "namenode" else [node.name for node in hdfs.nodes]
    for name in names:
        os.kill(hdfs.pid(name), signal.SIGSTOP)
    try:
        yield
    finally:
        for name in names:
            os.kill(hdfs.pid(name), signal.SIGCONT)


class _Owner:
    """The owner of a stream that it has taken over; its sealed chunks, the first of which has an epoch, lie in HDFS."""

    def __init__(self, at: Running, front: Front, nursery: trio.Nursery) -> None:
        self.at, self.front = at, front
        topic = SimpleNamespace(partitions=[front.stream])
        known = SimpleNamespace(topic_by_id=lambda topic_id: topic, streams=lambda: [front.stream])
        self.appends = GroupAppends(
            cast(ClusterTopics, known), at.engine, cast(Any, None), front.clock, nursery.start_soon
        )

    async def asked(self, wanted: GroupOrder) -> type[CairnError] | None:
        """What the owner says of a group; None: the stream has it."""
        try:
            await self.appends.append(wanted)
        except CairnError as error:
            return type(error)
        return None

    async def append_group(self, wanted: GroupOrder) -> None:
        """A group that is appended, and acknowledged."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.appends.append, wanted)
            with trio.fail_after(PATIENCE_S):
                while not self.at.owner.window:  # noqa: ASYNC110  it comes in the next turns
                    await trio.sleep(0.01)
            self.at.owner.ack()

    async def ends(self) -> int:
        """How many epochs the stream has. A DataNode that was silent is not asked for a minute."""
        with trio.fail_after(2 * PATIENCE_S):
            while True:
                found: list[int] = []

                def take(offset: int, _: bytes, found: list[int] = found) -> None:
                    found.append(offset)

                try:
                    await self.at.engine.find_ends(self.front.stream, 0, take=take)
                except TierUnavailable:
                    await trio.sleep(0.5)
                else:
                    return len(found)


async def _taken_over(at: Running, nursery: trio.Nursery) -> _Owner:
    former = _Owner(at, at.front, nursery)
    await former.append_group(order(1, 0))
    for number in range(3):
        at.front.append(b"%d" % number)
        at.owner.ack()
        at.owner.roll()
    await at.move()
    at.front.append(b"newest")
    at.owner.ack()
    front = Front(at.owner, reports=at.front.reports)
    at.owner.own(front.stream)
    await front.tasks.run()
    return _Owner(at, front, nursery)


@pytest.mark.parametrize("what", FROZEN)
def test_epochs_go_on_that_a_silent_hdfs_does_not_have(hdfs: HdfsCluster, tmp_path: Path, what: str) -> None:
    """An epoch that a chunk in HDFS may have waits, and whoever sends it is told soon; appends and other epochs of the
    same stream go on. When HDFS answers again, the epoch is in the stream once.
    """

    async def test() -> None:
        settings = HdfsSettings(replicas=2, timeouts=Timeouts(SILENCE_S, SILENCE_S))
        objects = HdfsObjects(HdfsPlace(hdfs.webhdfs_url, f"/frozen-{what}"), settings)
        async with running_on(tmp_path, cast(Any, objects)) as at, trio.open_nursery() as nursery:
            owner = await _taken_over(at, nursery)
            with frozen(hdfs, what), trio.fail_after(PATIENCE_S):
                assert await owner.asked(order(1, 0)) is TryAgain
                owner.front.append(b"beside")
                at.owner.ack()
                await owner.append_group(_decided_now(owner, order(1, 0, "other")))
                assert await owner.asked(order(1, 0)) is TryAgain, "the search goes on"
                told: set[type[CairnError] | None] = set()
                while TierUnavailable not in told:
                    told.add(await owner.asked(order(1, 0)))
                    await trio.sleep(0.1)
                assert told <= {TryAgain, TierUnavailable}
            with trio.fail_after(2 * PATIENCE_S):
                while await owner.asked(order(1, 0)) is not None:  # noqa: ASYNC110  as the home of epochs does
                    await trio.sleep(0.1)
            assert not at.owner.window
            assert await owner.ends() == 2
            nursery.cancel_scope.cancel()
        objects.close()

    trio.run(test)


def _decided_now(owner: _Owner, wanted: GroupOrder) -> GroupOrder:
    return replace(wanted, target=replace(wanted.target, start_offset=owner.front.stream.high_watermark))


@needs_etcd
@pytest.mark.clients
@pytest.mark.parametrize("what", FROZEN)
def test_a_cluster_goes_on_beside_a_silent_hdfs(hdfs: HdfsCluster, tmp_path: Path, what: str) -> None:
    """Producers, readers of what hosts have, and epochs of queries; what HDFS has is read when it answers again."""
    with Cluster(
        tmp_path / "c", ("a", "b", "c"), "--tier-url", tier_url(hdfs, f"silent-{what}"), "--tier-replicas", "2"
    ) as cluster:
        topic_id = create(cluster)
        produce(cluster, 0, 60)
        wait_until(lambda: max(copies(cluster, topic_id)) <= 2, "chunks are in HDFS alone")
        with Client(parse_addresses(cluster.bootstrap), limit_s=PATIENCE_S) as client:
            client.create_topic(OUT, 4)
        with StagingClient(cluster) as staging:
            staging.go_on()
            with frozen(hdfs, what):
                produce(cluster, 60, 40)
                assert read(cluster, 90) == list(range(90, 100))
                staging.go_on()
            staging.go_on()
        assert staging.error is None
        assert read(cluster) == list(range(100))
