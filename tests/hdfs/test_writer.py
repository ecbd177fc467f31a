"""The writer's own promises: attempts of a chunk follow each other, and what cannot be written is said."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from scheduler.client import CoordinatorClient
from scheduler.coordinator.testing import running
from scheduler.hdfs.errors import ChunkLost
from scheduler.hdfs.plan_table import PlanTable
from scheduler.hdfs.webhdfs import block_bytes
from scheduler.hdfs.writer import CheckpointWriter, WriterSettings
from tests.hdfs.writers import table_of, wait_until
from tests.support.hdfs.cluster import HdfsCluster, network
from tests.support.limits import PATIENCE_S

CHUNK = b"0123456789" * 100_000


class Held(Sequence[bytes]):
    """One chunk that is not read before `release`, the first time; it counts how often it was read."""

    def __init__(self) -> None:
        self.reading, self.release, self.reads = Event(), Event(), 0

    def __len__(self) -> int:
        return 1

    def __getitem__(self, place: Any) -> Any:
        self.reads += 1
        if self.reads == 1:
            self.reading.set()
            assert self.release.wait(PATIENCE_S)
        return CHUNK


def test_a_chunk_that_is_planned_anew_is_written_once_more_and_only_then(hdfs: HdfsCluster) -> None:
    """A host of its chain leaves while the writer holds it: the old attempt ends before the new one begins."""
    held = Held()
    with (
        running(network(hdfs.nodes, 4)) as url,
        CoordinatorClient(url) as client,
        table_of(hdfs) as table,
        ThreadPoolExecutor(1) as pool,
    ):
        writer = CheckpointWriter(client, table, hdfs.webhdfs_url)
        future = pool.submit(writer.write, hdfs.nodes[0].name, "/anew", held)
        assert held.reading.wait(PATIENCE_S)
        (flight,) = client.status()["in_flight"]
        client.deregister(flight["hosts"][2])
        wait_until(lambda: [one["attempt"] for one in client.status()["in_flight"]] == [2], "a second attempt")
        assert held.reads == 1  # the new attempt waits for the old one
        held.release.set()
        (written,) = future.result(PATIENCE_S)
        assert (written.attempt, held.reads) == (2, 2)
        assert flight["hosts"][2] not in written.hosts
        assert writer.read(written) == CHUNK
        assert hdfs.placements()["/anew/chunk-000"][-1] == list(written.hosts)


def test_patience_has_an_end(hdfs: HdfsCluster) -> None:
    """Without a plan table nothing is written: the request fails after bounded attempts, with the reason."""
    settings = WriterSettings(patience_s=0.0)
    with (
        running(network(hdfs.nodes, 4), max_attempts=2) as url,
        CoordinatorClient(url) as client,
        PlanTable("http://127.0.0.1:1", "token") as nowhere,
        pytest.raises(ChunkLost, match=r"HDFS was away.*does not answer"),
    ):
        CheckpointWriter(client, nowhere, hdfs.webhdfs_url, settings).write(hdfs.nodes[0].name, "/never", [CHUNK])
    assert not [path for path in hdfs.placements() if path.startswith("/never")]


def test_what_reads_back_otherwise_is_lost(hdfs: HdfsCluster) -> None:
    """Other bytes, or another length, than were acknowledged: an error that names both."""
    with running(network(hdfs.nodes, 4)) as url, CoordinatorClient(url) as client, table_of(hdfs) as table:
        writer = CheckpointWriter(client, table, hdfs.webhdfs_url)
        (written,) = writer.write(hdfs.nodes[0].name, "/other", [b"abc"])
        assert writer.read(written) == b"abc"
        for wrong in (replace_one(written, crc32=1), replace_one(written, size_bytes=4)):
            with pytest.raises(ChunkLost, match="chunk-000"):
                writer.read(wrong)


def replace_one(written: Any, **changes: int) -> Any:
    """What was written, with a field changed."""
    return written._replace(**changes)


def test_a_chunk_fits_in_one_block() -> None:
    """A block size is a multiple of HDFS's checksum unit, and never below its usual lower limit."""
    for size in (0, 1, 1 << 20, (1 << 20) + 1, 64 << 20, (64 << 20) + 511):
        block = block_bytes(size)
        assert block >= size
        assert block % 512 == 0
        assert block >= 1 << 20
        assert block < size + 512 or block == 1 << 20
