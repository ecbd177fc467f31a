"""DataNodes die, the NameNode restarts, safe mode comes and goes, while checkpoints are written through plans.

The promise: no chunk that was acknowledged is lost, and the plan goes on around what is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path
from threading import Thread

import pytest

from scheduler.client import CoordinatorClient
from scheduler.coordinator.testing import running
from scheduler.hdfs.errors import HdfsError
from scheduler.hdfs.writer import CheckpointWriter, WrittenChunk
from tests.hdfs.writers import chunks_of, not_as_planned, table_of, wait_until, write_all
from tests.support.hdfs.cluster import HdfsCluster, loopback_nodes, network
from tests.support.hdfs.launch import Runtime

SEED = 7
UPLINK = 4
WRITERS = 8
CHUNKS = 3
CHUNK_BYTES = 300_000
BEFORE = 6  # chunks that are under way or done when the fault happens


def files_in(hdfs: HdfsCluster, directory: str) -> int:
    """How many files of a directory have been given a block."""
    return sum(path.startswith(f"{directory}/") for path in hdfs.placements())


def write_during(
    hdfs: HdfsCluster,
    url: str,
    seed: int,
    fault: Callable[[], None],
    without: str | None = None,
    writers: int = WRITERS,
    chunks: int = CHUNKS,
) -> list[WrittenChunk]:
    """Writers at work while `fault` happens in another thread; every acknowledged chunk is read back and compared."""
    hosts = [name for name in hdfs.addresses if name != without]
    checkpoints = [chunks_of(seed, writer, chunks, CHUNK_BYTES) for writer in range(writers)]
    directory = f"/checkpoint-{seed}"
    failures: list[BaseException] = []

    def happen() -> None:
        try:
            wait_until(lambda: files_in(hdfs, directory) >= BEFORE, f"{BEFORE} chunks in {directory}")
            fault()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    trouble = Thread(target=happen)
    trouble.start()
    try:
        written = list(chain.from_iterable(write_all(hdfs, url, checkpoints, hosts, directory)))
    finally:
        trouble.join()  # nothing is broken any more when the next test begins
    assert failures == []
    assert len(written) == writers * chunks
    assert read_back(hdfs, url, written) == list(chain.from_iterable(checkpoints))
    return written


def read_back(hdfs: HdfsCluster, url: str, written: Sequence[WrittenChunk]) -> list[bytes]:
    """The bytes of every chunk."""
    with CoordinatorClient(url) as client, table_of(hdfs) as table:
        reader = CheckpointWriter(client, table, hdfs.webhdfs_url)
        return [reader.read(one) for one in written]


def otherwise_than_said(hdfs: HdfsCluster, written: Sequence[WrittenChunk]) -> list[str]:
    """Every chunk of which it was said that it followed its plan, but whose last block did not."""
    placed = hdfs.placements()
    return [one.path for one in written if one.followed and placed[one.path][-1] != list(one.hosts)]


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
            with suppress(HdfsError):  # it was never killed: something else went wrong
                hdfs.kill(victim)
            hdfs.start_node(victim)


def test_the_namenode_is_killed_and_restarted_in_mid_run(hdfs: HdfsCluster) -> None:
    """Writers wait for it and push their chains again into its empty table; nothing acknowledged is lost.

    A chunk under way then may be placed by HDFS, as may one that is planned before all DataNodes are back; never is it
    said that it was not. Afterwards all is as planned again.
    """
    with running(network(hdfs.nodes, UPLINK), seed=SEED) as url, table_of(hdfs) as table:
        table.push("/before", ["r1h1"])
        run = table.run
        written = write_during(hdfs, url, SEED + 2, hdfs.restart_namenode)
        assert table.plans().chains == {}
        assert table.run != run
        assert otherwise_than_said(hdfs, written) == []
        after = write_during(hdfs, url, SEED + 3, lambda: None, writers=BEFORE, chunks=1)
        assert not_as_planned(hdfs, after) == []


def test_safe_mode_is_waited_for(hdfs: HdfsCluster) -> None:
    """Writers that find the NameNode in safe mode wait, and nothing is placed; then all goes where it was planned."""
    checkpoints = [chunks_of(SEED, writer, 1, CHUNK_BYTES) for writer in range(WRITERS)]
    with (
        running(network(hdfs.nodes, UPLINK), seed=SEED) as url,
        table_of(hdfs) as table,
        ThreadPoolExecutor(1) as pool,
    ):
        hdfs.admin("-safemode", "enter")
        try:
            led_before = table.plans().used
            writing = pool.submit(write_all, hdfs, url, checkpoints, list(hdfs.addresses), "/safe")
            wait_until(lambda: table.plans().used > led_before, "a writer that is led to a DataNode")
            assert files_in(hdfs, "/safe") == 0
        finally:
            hdfs.admin("-safemode", "leave")
        written = list(chain.from_iterable(writing.result()))
        assert not_as_planned(hdfs, written) == []
        assert read_back(hdfs, url, written) == list(chain.from_iterable(checkpoints))


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
            assert otherwise_than_said(hdfs, written) == []
            healed = write_during(hdfs, url, SEED + 1, lambda: None, writers=16, chunks=8)
            assert not_as_planned(hdfs, healed) == []
            assert any(victim in one.hosts for one in healed)
        hdfs.wait(lambda seen: seen.under_replicated == 0, "all replicas there again")
