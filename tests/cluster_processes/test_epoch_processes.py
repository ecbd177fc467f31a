"""Epochs of a client over a cluster of processes: the home of epochs and owners of streams are killed in turn."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from kafka import TopicPartition

from logstore.client.blocking import Client, parse_addresses
from logstore.errors import StagedMissing
from logstore.format.epoch_api import DescribeRequest, EpochCommitRequest, Part, StageRequest, TaskOutput
from logstore.format.records import Record, encode_batch
from logstore.testing.cluster import Cluster, ClusterHostProcess
from tests.cluster_processes.clients import asked, read
from tests.metadata.support import needs_etcd
from tests.support.cli import cairn
from tests.support.cluster_network import new_network
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until, until_holds

pytestmark = [
    needs_etcd,
    pytest.mark.clients,
]
TOPIC, PARTITIONS = "out", 4
QUERY, RUN = "orders", "run1"
EPOCHS_BETWEEN = 5
"""Before, between and behind kills."""
NOW_MS = 1_700_000_000_000
SLOW = pytest.mark.slow


class StagingClient:
    """Stages and commits one epoch after the other, each with a record for every partition, until it is to end."""

    def __init__(self, cluster: Cluster) -> None:
        self.committed = 0
        self.again = 0
        """Epochs that were run again, because what they had staged was lost with a host."""
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self._cluster = cluster
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> StagingClient:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._thread.join(2 * PATIENCE_S)

    def _run(self) -> None:
        try:
            with Client(parse_addresses(self._cluster.bootstrap), limit_s=PATIENCE_S) as client:
                while not self.ended.is_set():
                    self._epoch(client)
        except BaseException as error:
            self.error = error
            raise

    def _epoch(self, client: Client) -> None:
        number, attempt = self.committed, f"{self.committed}.{self.again}"
        batches = [bytes(encode_batch([Record(0, NOW_MS, None, b"%d" % number)])) for _ in range(PARTITIONS)]
        parts = tuple(Part(TOPIC, partition, len(batch), 1, 1) for partition, batch in enumerate(batches))
        client.stage(StageRequest(QUERY, RUN, number, 0, attempt, 0, parts, b"".join(batches)))
        tasks = (TaskOutput(0, attempt, 1),)
        try:
            client.commit(EpochCommitRequest(QUERY, RUN, number, "error", tasks, f"p{number}", False))
            self.committed += 1
        except StagedMissing:
            self.again += 1

    def go_on(self) -> None:
        """Wait until more epochs are committed."""
        wanted = self.committed + EPOCHS_BETWEEN
        until(lambda: self.committed >= wanted or self.error is not None, "epochs are committed")
        assert self.error is None, repr(self.error)


def leader_of(cluster: Cluster, topic: str) -> ClusterHostProcess:
    """The host that leads the first partition of a topic, once there is one."""
    found: list[int] = []

    def is_led() -> bool:
        described = asked(cluster.bootstrap, lambda admin: admin.describe_topics([topic]))
        found[:] = [each["leader_id"] for each in described[0]["partitions"] if each["partition_index"] == 0]
        return bool(found) and found[0] > 0 and cluster.by_node(found[0]).is_running

    until(is_led, f"somebody leads {topic}")
    return cluster.by_node(found[0])


def values(cluster: Cluster, partition: int) -> list[int]:
    """All records of a partition, as a consumer gets them."""
    return [int(value) for _, value in read(cluster.bootstrap, TopicPartition(TOPIC, partition))]


@pytest.mark.parametrize("led", [("__cairn_epochs", TOPIC), pytest.param(("__cairn_epochs", TOPIC) * 5, marks=SLOW)])
def test_epochs_are_exact_while_home_and_owners_are_killed(tmp_path: Path, led: tuple[str, ...]) -> None:
    """`kill -9` of the home of epochs, then of an owner of a stream: the client goes on, and each partition has each
    epoch once, in order. `cairn queries` says the same as the client, at any host.
    """
    with Cluster(tmp_path, network=new_network()) as cluster:
        with Client(parse_addresses(cluster.bootstrap), limit_s=PATIENCE_S) as client:
            client.create_topic(TOPIC, PARTITIONS)
            with StagingClient(cluster) as staging:
                for topic in led:
                    staging.go_on()
                    victim = leader_of(cluster, topic)
                    victim.kill()
                    staging.go_on()
                    victim.start()
                    cluster.wait_members()
            assert staging.error is None
            described = client.describe(DescribeRequest(QUERY))
        assert (described.last_epoch, described.positions) == (staging.committed - 1, f"p{staging.committed - 1}")
        for partition in range(PARTITIONS):
            until(lambda partition=partition: len(values(cluster, partition)) >= staging.committed, "all are read")  # type: ignore[misc]
            assert values(cluster, partition) == list(range(staging.committed)), f"{staging.again} were run again"
        for host in cluster:
            until_holds(lambda host=host: check_shown(host, staging.committed - 1))  # type: ignore[misc]


def check_shown(host: ClusterHostProcess, epoch: int) -> None:
    """A host says of the query what the client knows; one that has just started may not have heard of it yet."""
    shown = cairn("queries", "--servers", host.address, "--timeout", str(PATIENCE_S), "--json")
    assert shown.status == 0, shown.err
    assert [(each["query"], each["epoch"]) for each in shown.json["queries"]] == [(QUERY, epoch)]
