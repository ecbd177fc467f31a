"""A host is drained and removed in a cluster of processes, while a producer of another make writes."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer
from kafka import TopicPartition

from logstore.client.blocking import Client, parse_addresses
from logstore.testing.cluster import Cluster, ClusterHostProcess
from tests.cluster_processes.clients import PATIENCE_MS, read
from tests.metadata.support import needs_etcd
from tests.support.cli import Finished, cairn
from tests.support.cluster_network import new_network
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until

pytestmark = [
    needs_etcd,
    pytest.mark.clients,
]
PARTITIONS = 8


class Load:
    """Numbers that an idempotent producer writes to all partitions in turn, and which of them were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acked: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self.errors: list[str] = []
        self.is_over = threading.Event()
        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5,
            "message.timeout.ms": PATIENCE_MS,
        }  # fmt: skip
        self._producer = Producer(settings)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def count(self) -> int:
        """How many records were acknowledged."""
        return sum(map(len, self.acked.values()))

    def _run(self) -> None:
        number = 0
        while not self.is_over.wait(0.002):
            partition = number % PARTITIONS
            self._producer.produce("orders", b"%d" % number, partition=partition, on_delivery=self._heard(number))
            self._producer.poll(0)
            number += 1
        self._producer.flush(PATIENCE_S)

    def _heard(self, number: int) -> Callable[[object, Message], None]:
        def note(error: object, message: Message) -> None:
            if error is not None:
                self.errors.append(repr(error))
            else:
                self.acked[message.partition() or 0].append(number)

        return note

    def end(self) -> None:
        """Write no more; everything is acknowledged then, or an error."""
        self.is_over.set()
        self._thread.join(2 * PATIENCE_S)

    def wait_more(self, records: int) -> None:
        """Wait until so many more are acknowledged."""
        wanted = self.count + records
        until(lambda: self.count >= wanted or bool(self.errors), f"{wanted} records are acknowledged")


def said(host: ClusterHostProcess, *words: str) -> Finished:
    """A command, asked at one host."""
    return cairn(*words, "--servers", host.address, "--timeout", str(PATIENCE_S))


def numbers_in(bootstrap: str, partition: int) -> list[int]:
    """The numbers in a partition."""
    return [int(value) for _, value in read(bootstrap, TopicPartition("orders", partition))]


def held_by_a(asked: ClusterHostProcess) -> tuple[str, int, int]:
    """What a host says of host a. While one that stays misses its lease for a moment, as on a busy machine, host a
    stands in for it in new chunks.
    """
    held = next(host for host in said(asked, "hosts", "--json").json["hosts"] if host["host"] == "a")
    return held["leaving"], held["streams"], held["chunks"]


def test_a_host_is_drained_stopped_and_removed(tmp_path: Path) -> None:
    """Its streams and chunks go to others while a producer writes; it ends with none and is stopped for good. Nothing
    is lost or doubled, and no error comes to the producer. What cannot be is refused with a reason.
    """
    with Cluster(tmp_path, ("a", "b", "c", "d"), "--lease-s", "30", network=new_network()) as cluster:
        a, b, c, _ = cluster
        with Client(parse_addresses(cluster.bootstrap), limit_s=PATIENCE_S) as client:
            client.create_topic("orders", PARTITIONS)
        load = Load(cluster.bootstrap)
        try:
            load.wait_more(500)
            refused = said(b, "hosts", "remove", "a")
            assert (refused.status, "host 'a' is alive: `cairn hosts drain a`" in refused.err) == (1, True)
            assert "there is no host 'x'" in said(b, "hosts", "drain", "x").err
            begun = said(c, "hosts", "drain", "a", "--no-wait")
            assert begun.status == 0, begun.err
            until(lambda: "being drained" in said(b, "hosts").out, "another host hears of it")
            drained = said(b, "hosts", "drain", "a")
            assert drained.out == "host a holds nothing: switch it off, then remove it\n", drained.err
            until(lambda: held_by_a(c) == ("drain", 0, 0), "another host says the same")
            logs = "".join(host.log for host in cluster)
            assert "copies_coordinated" in logs or "copies_unplanned" in logs
            assert "copy_planner_missing" not in logs
            assert a.stop() == 0
            cluster.wait_members()
            load.wait_more(500)
        finally:
            load.end()
        assert not load.errors
        # While a host that stays misses its lease, host a may have stood in for it, and c may not have heard yet.
        told: list[Finished] = []

        def is_removed() -> bool:
            told.append(said(c, "hosts", "remove", "a"))
            return "host a is removed: no chunk names it" in told[-1].out or "there is no host 'a'" in told[-1].err

        until(is_removed, lambda: f"host a is removed; {told[-1].err}")
        until(lambda: not re.search(r"^a ", said(c, "hosts").out, re.MULTILINE), "nobody names host a any more")
        living = ",".join(host.address for host in cluster if host is not a)
        for partition, numbers in load.acked.items():
            assert numbers_in(living, partition) == numbers
