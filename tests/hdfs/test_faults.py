"""DataNodes die, the NameNode restarts, safe mode comes and goes, while checkpoints are written through plans.

The promise: no chunk that was acknowledged is lost, and the plan goes on around what is broken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from threading import Event, Thread

import pytest

from scheduler.client import CoordinatorClient
from scheduler.coordinator.testing import running
from scheduler.hdfs.cluster import HdfsCluster, loopback_nodes, network
from scheduler.hdfs.launch import Runtime
from scheduler.hdfs.writer import CheckpointWriter, Written
from tests.hdfs.writers import chunks_of, not_as_planned, table_of, write_all

SEED = 7
UPLINK = 4
WRITERS = 8
CHUNKS = 3
CHUNK_BYTES = 300_000
BEFORE = 6  # chunks that are under way or done when the fault happens
END_S = 60


def wait_for_chunks(hdfs: HdfsCluster, directory: str, count: int) -> None:
    """Wait until so many files of a directory have been given a block."""
    deadline = time.monotonic() + END_S
    while sum(path.startswith(directory) for path in hdfs.placements()) < count:
        assert time.monotonic() < deadline, f"no {count} chunks in {directory}"
        Event().wait(0.1)


def write_during(
    hdfs: HdfsCluster,
    url: str,
    seed: int,
    fault: Callable[[], None],
    without: str | None = None,
    writers: int = WRITERS,
    chunks: int = CHUNKS,
) -> list[Written]:
    """Writers at work while `fault` happens in another thread; every acknowledged chunk is read back and compared."""
    hosts = [name for name in hdfs.addresses if name != without]
    checkpoints = [chunks_of(seed, writer, chunks, CHUNK_BYTES) for writer in range(writers)]
    directory = f"/checkpoint-{seed}"
    failures: list[BaseException] = []

    def happen() -> None:
        try:
            wait_for_chunks(hdfs, directory, BEFORE)
            fault()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    trouble = Thread(target=happen)
    trouble.start()
    written = list(chain.from_iterable(write_all(hdfs, url, checkpoints, hosts, directory)))
    trouble.join()
    assert failures == []
    assert len(written) == writers * chunks
    with CoordinatorClient(url) as client, table_of(hdfs) as table:
        reader = CheckpointWriter(client, table, hdfs.webhdfs_url)
        assert [reader.read(one) for one in written] == list(chain.from_iterable(checkpoints))
    return written


def test_a_datanode_dies_in_mid_run_and_the_plan_goes_on_around_it(hdfs: HdfsCluster) -> None:
    """Its chunks are planned again on others; afterwards no chain names it; everything acknowledged is there."""
    victim = hdfs.nodes[1].name
    with running(network(hdfs.nodes, UPLINK), seed=SEED) as url, CoordinatorClient(url) as client:
        try:
            write_during(hdfs, url, SEED, lambda: hdfs.kill(victim), without=victim)
            client.deregister(victim)
            after = write_during(hdfs, url, SEED + 1, lambda: None, without=victim)
            assert not [one for one in after if victim in one.hosts]
            assert not_as_planned(hdfs, after) == []
        finally:
            hdfs.start_node(victim)


def test_the_namenode_is_killed_and_restarted_in_mid_run(hdfs: HdfsCluster) -> None:
    """Writers wait for it and push their chains again into its empty table; nothing acknowledged is lost."""
    with running(network(hdfs.nodes, UPLINK), seed=SEED) as url, table_of(hdfs) as table:
        table.push("/before", ["r1h1"])
        run = table.run
        written = write_during(hdfs, url, SEED + 2, hdfs.restart_namenode)
        assert table.plans().chains == {}
        assert table.run != run
    placed = hdfs.placements()
    follow = [one for one in written if one.followed]
    assert len(follow) >= len(written) - WRITERS  # the others were in flight when the table was lost
    assert [one.path for one in follow if placed[one.path][-1] != list(one.hosts)] == []


def test_safe_mode_is_waited_for(hdfs: HdfsCluster) -> None:
    """While the NameNode takes no writes they wait; afterwards they go where they were planned."""

    def fault() -> None:
        hdfs.admin("-safemode", "enter")
        hdfs.wait(lambda seen: seen.safe_mode, "safe mode")
        hdfs.admin("-safemode", "leave")

    with running(network(hdfs.nodes, UPLINK), seed=SEED) as url:
        written = write_during(hdfs, url, SEED + 4, fault)
        assert not_as_planned(hdfs, written, begun_before=True) == []


@pytest.mark.slow
def test_sixteen_writers_survive_all_of_it(runtime: Runtime, tmp_path: Path) -> None:
    """Eight DataNodes, 16 writers of 8 chunks; one DataNode dies, safe mode, a new NameNode, and it comes back."""
    with HdfsCluster(tmp_path, loopback_nodes(8, racks=2), runtime=runtime) as hdfs:
        victim = hdfs.nodes[-1].name

        def faults() -> None:
            hdfs.kill(victim)
            hdfs.admin("-safemode", "enter")
            hdfs.admin("-safemode", "leave")
            hdfs.restart_namenode()
            hdfs.start_node(victim)

        with running(network(hdfs.nodes, UPLINK), seed=SEED) as url:
            written = write_during(hdfs, url, SEED, faults, victim, writers=16, chunks=8)
            placed = hdfs.placements()
            follow = [one for one in written if one.followed]
            assert [one.path for one in follow if placed[one.path][-1] != list(one.hosts)] == []
            healed = write_during(hdfs, url, SEED + 1, lambda: None, writers=16, chunks=8)
            assert not_as_planned(hdfs, healed) == []
            assert any(victim in one.hosts for one in healed)
        hdfs.wait(lambda seen: seen.under_replicated == 0, "all replicas there again")
