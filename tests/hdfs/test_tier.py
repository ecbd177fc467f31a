"""Sealed chunks in a real HDFS: the contract of object stores, a sidecar that keeps most of its log there, and what
becomes of it when HDFS is in safe mode.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hdfs import InsecureClient

from logstore.errors import TierUnavailable
from logstore.testing import check_object_store
from logstore.tier.hdfs import HdfsObjects, HdfsSettings
from logstore.tier.interface import ObjectStore
from logstore.tier.settings import HdfsPlace
from scheduler.coordinator.testing import running
from tests.hdfs.writers import table_of, wait_until
from tests.support.hdfs.cluster import HdfsCluster, network
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.streams import create_topic, delete_topic, produce, read_all

CHUNK_BYTES = 8_192
VALUES = [b"%06d" % number + b"x" * 1000 for number in range(40)]
AT_ONCE = 4
"""Records that are produced together: two such fill a chunk."""
TIERED = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "0",
    "segment.bytes": str(CHUNK_BYTES),
}


def tier_url(hdfs: HdfsCluster, name: str) -> str:
    """A directory of the test's own."""
    return f"{hdfs.webhdfs_url.replace('http', 'webhdfs')}/{name}"


def cairn(*arguments: str) -> str:
    """What a command prints; it succeeds."""
    command = [sys.executable, "-m", "logstore.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout


def log_files(hdfs: HdfsCluster, name: str) -> list[str]:
    """The files of chunks below a directory."""
    with opened(hdfs, name) as store:
        return [f"/{name}/{at.key}" for at in store.list_keys("") if at.key.endswith(".log")]


def local_chunks(data_dir: Path, topic: str) -> list[Path]:
    """The chunks of a topic on the disk."""
    return sorted(data_dir.glob(f"streams/{topic}.*/0/*.log"))


def read_if_there(path: Path) -> bytes:
    """The bytes of a chunk; none of one that went."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def is_alone_on_disk(hdfs: HdfsCluster, sidecar: Sidecar) -> bool:
    """Whether the disk has one chunk of the topic, and HDFS all that are full."""
    full = len(VALUES) // (2 * AT_ONCE)
    return len(local_chunks(sidecar.data_dir, "kept")) == 1 and len(log_files(hdfs, "alone")) >= full


def fill(sidecar: Sidecar) -> None:
    """Produce all records, in batches that fill some chunks."""
    for number in range(0, len(VALUES), AT_ONCE):
        values = VALUES[number : number + AT_ONCE]
        produce(sidecar.address, "kept", values, timestamp_ms=1_700_000_000_000 + number)


@contextmanager
def opened(hdfs: HdfsCluster, name: str = "objects") -> Iterator[ObjectStore]:
    """An object store in a directory of the cluster."""
    store = HdfsObjects(HdfsPlace(hdfs.webhdfs_url, f"/{name}"), HdfsSettings(replicas=2))
    yield store
    store.close()


def test_hdfs_keeps_the_contract_of_object_stores(hdfs: HdfsCluster) -> None:
    """Atomic puts, ranges, lists, removals, checksums, as the interface promises them."""
    check_object_store(lambda: opened(hdfs), steps=15)


def test_a_namenode_that_does_not_answer_is_a_reason_to_wait() -> None:
    """A read, a put and a list of an address where nobody listens are TierUnavailable, with the address."""
    nowhere = HdfsObjects(HdfsPlace("http://127.0.0.1:1", "/objects"))
    for call in (
        lambda: nowhere.get("a/b.bin", 0, 1),
        lambda: nowhere.put("a/b.bin", 1, [b"1"]),
        lambda: list(nowhere.list_keys("a/")),
        lambda: nowhere.delete("a/b.bin"),
    ):
        with pytest.raises(TierUnavailable, match=r"127\.0\.0\.1"):
            call()


@pytest.mark.clients
def test_a_sidecar_keeps_its_log_in_hdfs(hdfs: HdfsCluster, tmp_path: Path) -> None:
    """Sealed chunks go to HDFS as they are and leave the disk; all records are read from there, also after a kill, by
    offset and by time; a topic that is deleted leaves nothing.
    """
    with Sidecar(tmp_path / "data", "--tier-url", tier_url(hdfs, "alone"), "--tier-replicas", "2") as sidecar:
        create_topic(sidecar.address, "kept", config=TIERED)
        produce(sidecar.address, "kept", VALUES[:AT_ONCE])
        # What is acknowledged is in the journal first, and in the chunk soon.
        wait_until(lambda: any(map(read_if_there, local_chunks(sidecar.data_dir, "kept"))), "bytes in the chunk")
        first = read_if_there(local_chunks(sidecar.data_dir, "kept")[0])
        fill(sidecar)
        wait_until(lambda: is_alone_on_disk(hdfs, sidecar), "one chunk left on the disk, and the others in HDFS")
        files = log_files(hdfs, "alone")
        expected = VALUES[:AT_ONCE] + VALUES
        assert [row.value for row in read_all(sidecar.address, "kept")] == expected
        client = InsecureClient(hdfs.webhdfs_url, user="cairn")
        with client.read(sorted(files, key=lambda path: path.rpartition("/")[2])[0]) as reader:
            assert reader.read()[: len(first)] == first
        asked = ("topics", "describe", "kept", "--servers", sidecar.address, "--timeout", str(PATIENCE_S))
        described = json.loads(cairn(*asked, "--json"))
        tier = described["partitions"][0]["tier"]
        assert tier["up_to"] == tier["local_from"] - 1
        assert tier["chunks"] == len(files)
        assert "ON DISK FROM" in cairn(*asked)
        sidecar.kill()
        assert "no damage" in cairn("verify", str(sidecar.data_dir), "--tier", tier_url(hdfs, "alone"))
        sidecar.restart()
        assert [row.value for row in read_all(sidecar.address, "kept")] == expected
        delete_topic(sidecar.address, "kept")
        wait_until(lambda: log_files(hdfs, "alone") == [], "no file of a topic that is gone")


@pytest.mark.slow
@pytest.mark.clients
def test_safe_mode_pauses_the_tier_alone(hdfs: HdfsCluster, tmp_path: Path) -> None:
    """While HDFS is in safe mode, records are acknowledged, chunks stay on the disk, and the sidecar says why; then the
    chunks go.
    """
    with Sidecar(tmp_path / "data", "--tier-url", tier_url(hdfs, "tier-in-safe-mode")) as sidecar:
        create_topic(sidecar.address, "kept", config=TIERED)
        hdfs.admin("-safemode", "enter")
        try:
            fill(sidecar)
            wait_until(lambda: "event=tier_away" in sidecar.log(), "the sidecar says that HDFS takes nothing")
            assert [row.value for row in read_all(sidecar.address, "kept")] == VALUES
            assert len(local_chunks(sidecar.data_dir, "kept")) > 1
        finally:
            hdfs.admin("-safemode", "leave")
        wait_until(lambda: len(local_chunks(sidecar.data_dir, "kept")) == 1, "the chunks go to HDFS")
        wait_until(lambda: "event=tier_back" in sidecar.log(), "the sidecar says that HDFS takes chunks again")
        assert [row.value for row in read_all(sidecar.address, "kept")] == VALUES


@pytest.mark.clients
def test_peace_places_the_chunks(hdfs: HdfsCluster, tmp_path: Path) -> None:
    """With a coordinator and a plan table, each chunk lies on the hosts that the coordinator chose, in their order."""
    token = tmp_path / "token"
    token.write_text(hdfs.plan_token)
    with running(network(hdfs.nodes, 4)) as url, table_of(hdfs) as table:
        refused = table.plans().refused
        flags = ["--tier-coordinator", url, "--tier-host", "r1h1", "--tier-plans", hdfs.plan_url]
        flags += ["--tier-plan-token-file", str(token), "--tier-url", tier_url(hdfs, "planned")]
        with Sidecar(tmp_path / "data", *flags) as sidecar:
            create_topic(sidecar.address, "kept", config=TIERED)
            fill(sidecar)
            wait_until(lambda: len(local_chunks(sidecar.data_dir, "kept")) == 1, "the chunks go to HDFS")
            assert [row.value for row in read_all(sidecar.address, "kept")] == VALUES
        assert table.plans().refused == refused
    placed = {path: nodes[0] for path, nodes in hdfs.placements().items() if path.startswith("/planned/")}
    by_chunk: dict[str, set[tuple[str, ...]]] = {}
    for path, nodes in placed.items():
        by_chunk.setdefault(path.rpartition("/")[0], set()).add(tuple(nodes))
    assert by_chunk
    assert all(len(chains) == 1 for chains in by_chunk.values()), by_chunk
    assert all(len(set(nodes)) == 3 for chains in by_chunk.values() for nodes in chains), by_chunk
