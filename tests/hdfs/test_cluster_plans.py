"""Peace and the tier of a cluster: three sidecar processes, an etcd, a coordinator that is killed, a real HDFS.

For the coordinator each host of the cluster runs beside a DataNode. A planned chunk never lies beside its writer,
and all its files lie on the same DataNodes in the same order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.testing.cluster import Cluster
from scheduler.coordinator.testing import CoordinatorProcess
from scheduler.topology.description import topology_toml
from tests.cluster_processes.places import seen_by
from tests.hdfs.test_cluster_tier import copies, create, described, leader, produce, read
from tests.hdfs.test_tier import tier_url
from tests.hdfs.writers import table_of, wait_until
from tests.metadata.support import needs_etcd
from tests.support.hdfs.cluster import HdfsCluster, network

pytestmark = [needs_etcd, pytest.mark.clients, pytest.mark.slow]
NAME = "cluster-plans"
REPLICAS = 3
UPLINK = 4
CHUNKS, AT_ONCE = 3, 4
"""Chunks that are filled between two looks, and records that are appended at a time: two or three fill a chunk."""


def stored_from(hdfs: HdfsCluster, first: int) -> dict[str, list[tuple[str, ...]]]:
    """The chunks in HDFS that begin at an offset or behind it, and so were begun when that was the log's end: for each
    file, as the NameNode's log says, the DataNodes in pipeline order.
    """
    found: dict[str, list[tuple[str, ...]]] = {}
    for path, blocks in hdfs.placements().items():
        chunk = path.rpartition("/")[0]
        if path.startswith(f"/{NAME}/") and int(chunk.rpartition("/")[2].partition("-")[0]) >= first:
            found.setdefault(chunk, []).extend(tuple(nodes) for nodes in blocks)
    return found


class FilledTopic:
    """A topic whose chunks are filled and stored. `count`: the records that there are, with the numbers from 0 on."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._topic_id = create(cluster)
        self._sealed = 0
        self.count = 0

    def fill(self) -> None:
        """Append until CHUNKS more are sealed; wait until these are in the tier, and hosts keep two chunks: the last
        sealed one and the open one.
        """
        wanted = self._sealed + CHUNKS

        def are_sealed() -> bool:
            produce(self._cluster, self.count, AT_ONCE)
            self.count += AT_ONCE
            places = [seen_by(host) for host in self._cluster if host.is_running]
            self._sealed = max([self._sealed, *(place.chunks - 1 for place in places if place is not None)])
            return self._sealed >= wanted

        def are_stored() -> bool:
            held = zip(self._cluster, copies(self._cluster, self._topic_id), strict=True)
            if max(count for host, count in held if host.is_running) > 2:
                return False
            tier = described(self._cluster)
            return tier is not None and tier["chunks"] >= self._sealed

        wait_until(are_sealed, f"{wanted} chunks are sealed")
        wait_until(are_stored, f"{self._sealed} chunks in the tier, and no copies of others")


def check_planned(hdfs: HdfsCluster, first: int, own: str, least_uses: int) -> int:
    """Each file from an offset on has followed a plan: the files of a chunk lie on the same DataNodes, in one order,
    and none beside the writer. Returns how often plans have been used by then, for `least_uses` of the next check.
    """
    chunks = stored_from(hdfs, first)
    assert chunks
    for chunk, files in chunks.items():
        assert len(set(files)) == 1, f"{chunk}: the files of a chunk lie on different hosts: {files}"
        assert len(set(files[0])) == REPLICAS, (chunk, files)
        assert own not in files[0], f"{chunk}: {files[0]} has the writer {own}, which no plan has"
    with table_of(hdfs) as table:
        used = table.plans().used
    assert used >= least_uses + 2 * sum(map(len, chunks.values()))  # the redirect, and the block
    return used


def test_a_cluster_stores_its_chunks_where_the_coordinator_plans(hdfs: HdfsCluster, tmp_path: Path) -> None:
    """Sealed chunks of a cluster lie where Peace plans them. The coordinator is killed: chunks are stored without a
    plan, after a minute, and producers and readers do not notice; it is back: with a plan again, by the next owner too.
    """
    token, description = tmp_path / "token", tmp_path / "topology.toml"
    token.write_text(hdfs.plan_token)
    description.write_text(topology_toml(network(hdfs.nodes, UPLINK)))
    beside = {host: node.name for host, node in zip("abc", hdfs.nodes, strict=False)}
    with table_of(hdfs) as table:
        before = table.plans()
    with CoordinatorProcess(description, tmp_path / "coordinator") as coordinator:
        flags = ["--tier-url", tier_url(hdfs, NAME), "--tier-replicas", str(REPLICAS)]
        flags += ["--tier-coordinator", coordinator.url, "--tier-plans", hdfs.plan_url]
        flags += ["--tier-plan-token-file", str(token)]
        own = {host: ["--tier-host", node] for host, node in beside.items()}
        with Cluster(tmp_path / "c", tuple(beside), *flags, host_flags=own) as cluster:
            topic = FilledTopic(cluster)
            owner = leader(cluster)
            topic.fill()
            used = check_planned(hdfs, 0, beside[owner.name], before.used)

            coordinator.kill()
            first = topic.count
            topic.fill()
            assert read(cluster) == list(range(topic.count))
            assert stored_from(hdfs, first), "nothing is stored while nobody plans"

            coordinator.start()
            first = topic.count
            topic.fill()
            used = check_planned(hdfs, first, beside[owner.name], used)

            owner.kill()
            owner, first = leader(cluster), topic.count
            topic.fill()
            check_planned(hdfs, first, beside[owner.name], used)
            assert read(cluster) == list(range(topic.count))
    with table_of(hdfs) as table:
        assert table.plans().refused == before.refused
