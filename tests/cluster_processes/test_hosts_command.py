"""What operators see of a cluster of processes: `cairn hosts`, `cairn topics describe`, each metric of a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer
from kafka import KafkaProducer

from logstore.client.admin import Admin
from logstore.client.blocking import Client, parse_addresses
from logstore.format.operator_api import SidecarReply
from logstore.monitoring.cluster_metrics import CLUSTER_METRICS
from logstore.testing.cluster import Cluster, ClusterHostProcess
from tests.metadata.support import needs_etcd
from tests.monitoring.support import ask, samples
from tests.support.cli import cairn
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until

pytestmark = [
    needs_etcd,
    pytest.mark.clients,
]
PARTITIONS = 40
"""Each host owns some: the hash of a topic's new id deals them out, and of nine a host has none now and then."""
RECORDS = 120
SLOW_PEER = {"cairn_link_dropped_messages_total", "cairn_link_queued_bytes"}
"""What moves when a host takes nothing: `test_links` has that."""
OF_COPIES = {entry.name for entry in CLUSTER_METRICS if entry.name.startswith("cairn_cop")}
"""What moves with copies: `test_copy_coordinator` has that."""
OF_TAKEOVERS = {"cairn_waiting_takeovers"}
"""What moves when a chunk is lost: `test_takeover_waits` has that."""
OF_RACKS = {"cairn_crowded_chunks"}
"""What moves when a rack is lost and back: `test_spreading` has that."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three hosts with metrics, and a topic of theirs with records."""
    with Cluster(tmp_path, ("a", "b", "c"), "--http", "127.0.0.1:0") as running:
        with Client(parse_addresses(running.bootstrap), limit_s=PATIENCE_S) as client:
            client.create_topic("orders", PARTITIONS)
        limits = dict.fromkeys(("bootstrap_timeout_ms", "max_block_ms"), PATIENCE_S * 1000)
        producer = KafkaProducer(bootstrap_servers=running.bootstrap, acks="all", **limits)
        sent = [producer.send("orders", b"%d" % number, partition=number % PARTITIONS) for number in range(RECORDS)]
        for each in sent:
            each.get(PATIENCE_S)
        producer.close()
        yield running


def said(host: ClusterHostProcess, *words: str) -> Any:
    """What a command says about the cluster, asked at one host."""
    return cairn(*words, "--servers", host.address, "--timeout", str(PATIENCE_S), "--json").json


def described_by(host: ClusterHostProcess) -> SidecarReply:
    """What `cairn status` is told by a host."""
    with Client(parse_addresses(host.address), limit_s=PATIENCE_S) as client:
        return Admin(client).sidecar()


def scraped(host: ClusterHostProcess) -> dict[str, float]:
    """Sums of a host's metrics by name."""
    port = re.search(r"http=127\.0\.0\.1:(\d+)", host.log)
    assert port is not None, host.log
    return {name: sum(found.values()) for name, found in samples(ask(int(port[1]), "/metrics").text).items()}


def owned(cluster: Cluster) -> list[float]:
    """How many streams each host owns."""
    return [scraped(host)["kafka_server_replicamanager_leadercount"] for host in cluster]


def moved(before: dict[str, float], now: dict[str, float]) -> set[str]:
    """Which metrics of a cluster are not what they were."""
    return {entry.name for entry in CLUSTER_METRICS if now[entry.name] != before.get(entry.name, 0.0)}


def lacks_nothing(*hosts: ClusterHostProcess) -> bool:
    """Whether each stream has an owner and all copies, as all these hosts say: on a loaded machine members may be
    late, and then what they lack is copied, and what they owned goes to others.
    """
    for host in hosts:
        found = said(host, "hosts")
        if found["under_replicated"] or found["streams_without_owner"]:
            return False
        described = said(host, "topics", "describe", "orders")["partitions"]
        if not all(partition["owner"] and len(partition["replicas"]) == 3 for partition in described):
            return False
    return True


@pytest.mark.slow  # fifteen seconds of a machine with nothing else to do
def test_a_cluster_is_shown(cluster: Cluster) -> None:
    """Hosts, owners, copies and metrics are right while all live, when a host is killed, and without etcd; each metric
    moves with its cause.
    """
    a, b, c = cluster
    until(lambda: lacks_nothing(a, b) and min(owned(cluster)) > 0, lambda: f"hosts own {owned(cluster)} streams")
    first = scraped(a)
    alive = set(moved({}, first))
    assert (first["kafka_controller_kafkacontroller_activebrokercount"], first["cairn_link_up"]) == (3, 2)
    leading = owned(cluster)
    assert sum(leading) == PARTITIONS
    assert first["cairn_replicas"] >= PARTITIONS
    found = said(b, "hosts")
    assert [(host["host"], host["state"], host["node_id"]) for host in found["hosts"]] == [
        ("a", "alive", 1), ("b", "alive", 2), ("c", "alive", 3),
    ]  # fmt: skip
    assert [host["streams"] for host in found["hosts"]] == leading
    assert (found["asked"], found["streams"], found["streams_without_owner"]) == ("b", PARTITIONS, 0)
    assert found["under_replicated"] == 0
    assert [host["addresses"] for host in found["hosts"]] == [[host.address] for host in cluster]
    described = said(a, "topics", "describe", "orders")["partitions"]
    assert sum(partition["latest"] for partition in described) == RECORDS
    assert {tuple(sorted(partition["replicas"])) for partition in described} == {("a", "b", "c")}
    assert [sum(partition["owner"] == host for partition in described) for host in "abc"] == leading
    sidecars = [described_by(host) for host in cluster]
    assert [each.streams for each in sidecars] == leading
    assert all(each.topics >= 1 and each.log_bytes > 0 and each.disk_free_bytes > 0 for each in sidecars)
    assert sum(partition["latest"] for partition in said(c, "offsets", "orders")["partitions"]) == RECORDS
    assert [topic["topic"] for topic in said(b, "topics")["topics"]] == ["orders"]
    describe = ("topics", "describe", "orders", "--servers", a.address, "--timeout", str(PATIENCE_S))
    copied = re.compile(r"^0 of \d+ chunks have fewer than 3 copies$", re.MULTILINE)  # a late member costs a chunk
    until(lambda: copied.search(cairn(*describe).out), "all copies are there, as the command says")

    c.kill()
    until(lambda: "c" in gone(a), "host c is gone")
    until(lambda: said(a, "hosts")["streams_without_owner"] == 0, "the streams of c have owners")
    assert described_by(a).cluster == (3, 1, 0, "a")
    found = said(a, "hosts")
    lost = next(host for host in found["hosts"] if host["host"] == "c")
    assert (lost["state"], lost["node_id"], lost["streams"]) == ("gone", 3, 0)
    assert lost["gone_ms"] > 0
    assert sum(host["missing_copies"] for host in found["hosts"]) >= PARTITIONS
    assert found["under_replicated"] >= PARTITIONS
    assert "gone since 2" in cairn("hosts", "--servers", a.address, "--timeout", str(PATIENCE_S)).out
    second = [scraped(host) for host in (a, b)]
    assert sum(each["kafka_server_replicamanager_underreplicatedpartitions"] for each in second) == PARTITIONS
    assert sum(each["cairn_underreplicated_chunks"] for each in second) == found["under_replicated"]
    assert sum(each["cairn_takeovers_total"] for each in second) >= leading[2]
    alive |= moved(first, second[0]) | {name for name in moved({}, second[1]) if name not in moved({}, first)}

    cluster.etcd.kill()
    b.kill()
    producer = ConfluentProducer({"bootstrap.servers": a.address})
    for partition in range(PARTITIONS):
        producer.produce("orders", b"waits", partition=partition)
    wanted = {entry.name for entry in CLUSTER_METRICS} - SLOW_PEER - OF_COPIES - OF_TAKEOVERS - OF_RACKS

    def all_are_alive() -> bool:
        alive.update(moved(second[0], scraped(a)))
        return alive >= wanted

    until(all_are_alive, lambda: f"these metrics move: {sorted(wanted - alive)}")
    assert scraped(a)["cairn_metadata_away"] == 1
    producer.purge()  # what it has sent is never acknowledged


def gone(host: ClusterHostProcess) -> set[str]:
    """The hosts that are gone, as a host says."""
    return {each["host"] for each in said(host, "hosts")["hosts"] if each["state"] == "gone"}
