"""Chunks lie where Peace planned them: proven for every one from the NameNode's and the DataNodes' own logs."""

from __future__ import annotations

import re
import urllib.request
from itertools import chain

from hdfs import InsecureClient

from scheduler.client import CoordinatorClient
from scheduler.coordinator.testing import running
from scheduler.hdfs.plan_table import PlanTable
from scheduler.hdfs.writer import CheckpointWriter
from tests.hdfs.writers import chunks_of, not_as_planned, table_of, write_all
from tests.support.hdfs.cluster import HdfsCluster, network
from tests.support.limits import PATIENCE_S

CHUNK_BYTES = 200_000
UPLINK = 4
SEED = 5


def test_every_chunk_of_many_writers_goes_the_way_that_was_planned(hdfs: HdfsCluster) -> None:
    """16 writers, 3 chunks each: first replica and pipeline order as planned, in every log; every byte reads back."""
    checkpoints = [chunks_of(SEED, writer, 3, CHUNK_BYTES) for writer in range(16)]
    with table_of(hdfs) as table, running(network(hdfs.nodes, UPLINK), seed=SEED) as url:
        before = table.plans()
        written = list(chain.from_iterable(write_all(hdfs, url, checkpoints, list(hdfs.addresses), "/checkpoint")))
        after = table.plans()
        assert len(written) == 16 * 3
        assert not_as_planned(hdfs, written) == []
        assert all(one.followed for one in written)
        assert after.used - before.used == 2 * len(written)  # the redirect, and the block
        assert (after.refused, after.chains) == (before.refused, {})
        with CoordinatorClient(url) as client:
            reader = CheckpointWriter(client, table, hdfs.webhdfs_url)
            data = [reader.read(one) for one in written]
    assert data == list(chain.from_iterable(checkpoints))


def place(hdfs: HdfsCluster, table: PlanTable, path: str, planned: list[str]) -> list[str]:
    """Where a small file lands whose plan is this."""
    table.push(path, planned)
    InsecureClient(hdfs.webhdfs_url, user="test").write(path, data=b"small", overwrite=True, replication=3)
    landed = hdfs.placements()[path][-1]
    counts = table.forget(path)[path]
    assert (counts.refused == 0) == (landed == planned)
    return landed


def test_a_plan_that_cannot_be_followed_leaves_the_choice_to_hdfs(hdfs: HdfsCluster) -> None:
    """Unknown names, a node twice, fewer nodes than replicas: the file is written, elsewhere, and it is counted."""
    names = [node.name for node in hdfs.nodes]
    with table_of(hdfs) as table:
        assert place(hdfs, table, "/fall-back/good", [names[4], names[0], names[5]]) == [names[4], names[0], names[5]]
        for number, bad in enumerate(([names[0], "nobody", names[1]], [names[0]] * 3, names[:2])):
            refused = table.plans().refused
            landed = place(hdfs, table, f"/fall-back/{number}", bad)
            assert len(set(landed)) == 3
            assert set(landed) <= set(names)
            assert table.plans().refused > refused


def fsck(hdfs: HdfsCluster, path: str) -> str:
    """What the NameNode's own check says of a file, now."""
    with urllib.request.urlopen(
        f"{hdfs.webhdfs_url}/fsck?ugi=test&files=1&blocks=1&path={path}", timeout=PATIENCE_S
    ) as answer:
        return str(answer.read().decode())


def test_a_plan_may_use_one_rack_and_hdfs_leaves_it_there(hdfs: HdfsCluster) -> None:
    """Three replicas in one rack are against HDFS's own rule; it neither refuses them nor finds anything to mend."""
    first_rack = [node.name for node in hdfs.nodes if node.rack == hdfs.nodes[0].rack][:3]
    with table_of(hdfs) as table:
        assert place(hdfs, table, "/one-rack", first_rack) == first_rack
    hdfs.wait(lambda _: "Live_repl=3" in fsck(hdfs, "/one-rack"), "three replicas reported")
    assert re.search(r"Mis-replicated blocks:\s+0 ", fsck(hdfs, "/one-rack"))
    assert hdfs.travels()["/one-rack"] == [first_rack]
