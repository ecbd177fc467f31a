"""Many writers of checkpoints into one HDFS, and what its logs must say about every chunk of theirs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Event

from scheduler.client import CoordinatorClient
from scheduler.hdfs.plan_table import PlanTable
from scheduler.hdfs.writer import CheckpointWriter, WriterSettings, WrittenChunk
from tests.support.hdfs.cluster import HdfsCluster
from tests.support.limits import PATIENCE_S


def chunks_of(seed: int, writer: int, chunks: int, size_bytes: int) -> list[bytes]:
    """A checkpoint's chunks, of slightly different sizes, none a multiple of anything."""
    random = Random(seed * 1000 + writer)
    return [random.randbytes(size_bytes + random.randrange(1000)) for _ in range(chunks)]


def table_of(hdfs: HdfsCluster) -> PlanTable:
    """A client of a cluster's plan table."""
    return PlanTable(hdfs.plan_url, hdfs.plan_token, hdfs.addresses)


def write_all(
    hdfs: HdfsCluster,
    coordinator_url: str,
    checkpoints: Sequence[Sequence[bytes]],
    hosts: Sequence[str],
    directory: str,
) -> list[list[WrittenChunk]]:
    """One thread, client and plan table per writer, on `hosts` in turn; gives what each says was acknowledged."""

    def one(number: int) -> list[WrittenChunk]:
        with CoordinatorClient(coordinator_url) as client, table_of(hdfs) as table:
            writer = CheckpointWriter(client, table, hdfs.webhdfs_url, WriterSettings(patience_s=PATIENCE_S))
            return writer.write(hosts[number % len(hosts)], f"{directory}/{number}", checkpoints[number])

    with ThreadPoolExecutor(len(checkpoints)) as pool:
        return list(pool.map(one, range(len(checkpoints))))


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        Event().wait(0.05)


def not_as_planned(hdfs: HdfsCluster, written: Sequence[WrittenChunk]) -> list[str]:
    """Every chunk whose way in the NameNode's or the DataNodes' logs differs from its plan, in words."""
    placed, travelled = hdfs.placements(), hdfs.travels()
    wrong = []
    for one in written:
        planned = [list(one.hosts)]
        seen = (placed.get(one.path), travelled.get(one.path), one.led_to)
        if seen != (planned, planned, hdfs.addresses[one.hosts[0]]):
            wrong.append(f"{one.path}: planned {planned[0]}, NameNode {seen[0]}, DataNodes {seen[1]}, led to {seen[2]}")
    return wrong
