"""Peace and the tier of a cluster: three sidecar processes, an etcd, a coordinator that is killed, a real HDFS.

For the coordinator each host of the cluster runs beside a DataNode. A planned chunk never lies beside its writer,
and all its files lie on the same DataNodes in the same order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.testing.cluster import Cluster
from scheduler.coordinator.testing import CoordinatorProcess
from scheduler.hdfs.plan_table import PlanTable
from scheduler.topology.description import topology_toml
from tests.hdfs.test_cluster_tier import copies, create, described, leader, produce, read
from tests.hdfs.test_tier import tier_url
from tests.hdfs.writers import table_of, wait_until
from tests.metadata.support import needs_etcd
from tests.support.hdfs.cluster import HdfsCluster, network

pytestmark = [needs_etcd, pytest.mark.clients, pytest.mark.slow]
NAME = "cluster-plans"
REPLICAS = 3
UPLINK = 4
STEP = 60
"""Records between two looks: eight chunks, or so."""


class StoredFiles:
    """The files of chunks that have come into HDFS since the last look, as the NameNode's log says."""

    def __init__(self, hdfs: HdfsCluster) -> None:
        self._hdfs = hdfs
        self._seen: set[str] = set()

    def new(self) -> dict[str, list[tuple[str, ...]]]:
        """The DataNodes of each file, in pipeline order, by chunk."""
        found: dict[str, list[tuple[str, ...]]] = {}
        for path, blocks in self._hdfs.placements().items():
            if path.startswith(f"/{NAME}/") and path not in self._seen:
                self._seen.add(path)
                found.setdefault(path.rpartition("/")[0], []).extend(tuple(nodes) for nodes in blocks)
        return found


def all_are_stored(cluster: Cluster, topic_id: str, least: int) -> None:
    """Wait until the tier has so many chunks at least, and hosts keep no more than the last sealed and the open one."""

    def is_so() -> bool:
        tier = described(cluster)
        running = [count for host, count in zip(cluster, copies(cluster, topic_id), strict=True) if host.is_running]
        return tier is not None and tier["chunks"] >= least and max(running) <= 2

    wait_until(is_so, f"{least} chunks in the tier, and no copies of others")


def stored_chunks(cluster: Cluster) -> int:
    """How many chunks the tier has."""
    tier = described(cluster)
    assert tier is not None
    return tier["chunks"]


def check_planned(
    table: PlanTable, used: int, refused: int, chunks: dict[str, list[tuple[str, ...]]], own: str
) -> None:
    """Each file of these chunks has followed a plan, and each chunk lies as a whole away from its writer."""
    assert chunks
    for chunk, files in chunks.items():
        assert len(set(files)) == 1, f"{chunk}: the files of a chunk lie on different hosts: {files}"
        (chain,) = set(files)
        assert len(set(chain)) == REPLICAS, (chunk, chain)
        assert own not in chain, f"{chunk}: {chain} has the writer {own}, which no plan has"
    now = table.plans()
    assert now.refused == refused
    assert now.used - used == 2 * sum(map(len, chunks.values()))  # the redirect, and the block


def test_a_cluster_stores_its_chunks_where_the_coordinator_plans(hdfs: HdfsCluster, tmp_path: Path) -> None:
    """Sealed chunks of a cluster lie where Peace plans them. The coordinator is killed: chunks are stored without a
    plan, after a minute, and producers and readers do not notice; it is back: with a plan again, by the next owner too.
    """
    token, description = tmp_path / "token", tmp_path / "topology.toml"
    token.write_text(hdfs.plan_token)
    description.write_text(topology_toml(network(hdfs.nodes, UPLINK)))
    beside = {host: node.name for host, node in zip("abc", hdfs.nodes, strict=False)}
    with CoordinatorProcess(description, tmp_path / "coordinator") as coordinator, table_of(hdfs) as table:
        flags = ["--tier-url", tier_url(hdfs, NAME), "--tier-replicas", str(REPLICAS)]
        flags += ["--tier-coordinator", coordinator.url, "--tier-plans", hdfs.plan_url]
        flags += ["--tier-plan-token-file", str(token)]
        own = {host: ["--tier-host", node] for host, node in beside.items()}
        with Cluster(tmp_path / "c", tuple(beside), *flags, host_flags=own) as cluster:
            files, topic_id = StoredFiles(hdfs), create(cluster)
            before = table.plans()
            owner = leader(cluster)
            produce(cluster, 0, STEP)
            all_are_stored(cluster, topic_id, 2)
            check_planned(table, before.used, before.refused, files.new(), beside[owner.name])

            coordinator.kill()
            before, stored = table.plans(), stored_chunks(cluster)
            produce(cluster, STEP, STEP)
            assert read(cluster) == list(range(2 * STEP))
            all_are_stored(cluster, topic_id, stored + 2)
            assert table.plans().used == before.used, "a chunk has a plan, and there is nobody who plans"
            assert files.new()

            coordinator.start()
            before, stored = table.plans(), stored_chunks(cluster)
            produce(cluster, 2 * STEP, STEP)
            all_are_stored(cluster, topic_id, stored + 2)
            check_planned(table, before.used, before.refused, files.new(), beside[owner.name])

            owner.kill()
            owner = leader(cluster)
            before, stored = table.plans(), stored_chunks(cluster)
            produce(cluster, 3 * STEP, STEP)
            all_are_stored(cluster, topic_id, stored + 2)
            check_planned(table, before.used, before.refused, files.new(), beside[owner.name])
            assert read(cluster) == list(range(4 * STEP))
