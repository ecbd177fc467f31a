"""The backup of docs/cluster.md: its commands are run, everything is lost, and what was saved is there again."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.format.records import Record, encode_batch
from logstore.testing.cluster import Cluster
from logstore.testing.processes import Etcd
from tests.metadata.support import needs_etcd
from tests.support.limits import PATIENCE_S

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"
STREAM = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000
pytestmark = [
    needs_etcd,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("etcdctl") is None, reason="no etcdctl is installed: apt-get install etcd-client"),
]


def commands() -> tuple[list[str], list[str]]:
    """Those that save, and those that restore."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Backup\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^ *```console\n(.*?)^ *```", section, flags=re.MULTILINE | re.DOTALL)
    saving, restoring = ([line.strip().removeprefix("$ ") for line in block.splitlines()] for block in blocks)
    return saving, restoring


def run(lines: list[str], directory: Path, cluster: Cluster) -> None:
    """Run commands of the page in a directory, with this etcd."""
    assert isinstance(cluster.etcd, Etcd)
    for line in lines:
        words = line.replace("127.0.0.1:2379", cluster.etcd.endpoint).split()
        done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, (line, done.stderr)


def records(cluster: Cluster) -> int:
    """How many there are."""
    with Client(parse_addresses(cluster.bootstrap), limit_s=PATIENCE_S) as client:
        return client.offsets({STREAM: -1})[STREAM].offset


def append(cluster: Cluster, number: int) -> None:
    """One record more."""
    record = encode_batch([Record(0, NOW_MS, None, b"%d" % number)])
    with Client(parse_addresses(cluster.bootstrap), limit_s=PATIENCE_S) as client:
        client.retry_until(lambda: client.produce(STREAM, record), client.deadline_s())


def stop(cluster: Cluster) -> None:
    """Stop all hosts."""
    for host in cluster:
        assert host.stop() == 0


def start(cluster: Cluster) -> None:
    """Start all hosts."""
    for host in cluster:
        host.begin()
    for host in cluster:
        host.wait_ready()
    cluster.wait_members()


def test_a_cluster_is_saved_and_restored(tmp_path: Path) -> None:
    """All records of before the backup are there again, those of later are gone, and the cluster takes more."""
    saving, restoring = commands()
    with Cluster(tmp_path, ("a", "b", "c"), "--lease-s", "3") as cluster:
        with Client(parse_addresses(cluster.bootstrap), limit_s=PATIENCE_S) as client:
            client.create_topic("orders", 1)
        for number in range(5):
            append(cluster, number)
        stop(cluster)
        run(saving, tmp_path, cluster)
        start(cluster)
        append(cluster, 5)
        assert records(cluster) == 6
        stop(cluster)
        cluster.etcd.kill()
        for name in ("etcd", "a", "b", "c"):
            shutil.rmtree(tmp_path / name)
        run(restoring, tmp_path, cluster)
        cluster.etcd.start()
        start(cluster)
        assert records(cluster) == 5
        append(cluster, 6)
        assert records(cluster) == 6
