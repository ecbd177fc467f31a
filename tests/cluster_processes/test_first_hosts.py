"""Topics that are made on their first use, while not all hosts of a cluster live, or before they have come."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode

from logstore.client.admin import Admin
from logstore.client.blocking import Client, parse_addresses
from logstore.errors import CairnError
from logstore.format.host_summaries import PlaceSummary
from logstore.testing.cluster import Cluster, ClusterHostProcess
from tests.cluster_processes.places import SHORT_S, is_whole
from tests.kafka.wire_client import WireClient
from tests.metadata.support import needs_etcd
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until

pytestmark = [needs_etcd, pytest.mark.clients, pytest.mark.slow]


def wait_place(host: ClusterHostProcess, topic: str, is_so: Callable[[PlaceSummary], bool]) -> None:
    """Until a host says that the only partition of a topic is as it should be."""
    last: PlaceSummary | None = None

    def found() -> bool:
        nonlocal last
        try:
            with Client(parse_addresses(host.address), limit_s=SHORT_S) as client:
                reply = Admin(client).places(topic)
        except (CairnError, OSError):
            return False
        last = reply.places[0] if reply is not None and reply.places else None
        return last is not None and is_so(last)

    until(found, lambda: f"{topic} at {host.name} is {last}")


def begin_record(host: ClusterHostProcess, topic: str) -> Producer:
    """A producer with a record on its way to a topic, which is made for it."""
    producer = Producer({"bootstrap.servers": host.address, "acks": "all", "enable.idempotence": True})
    producer.produce(topic, b"1")
    producer.poll(0)
    return producer


def test_topics_get_their_copies_without_anybody(tmp_path: Path) -> None:
    """A cluster's first host takes records alone, also of topics that are to have three copies; when others come, these
    topics have three. Where two of three hosts were killed, a topic that is made then acknowledges nothing before
    another one is back, and has three copies in the end.
    """
    with ExitStack() as stack:
        cluster = Cluster(tmp_path)
        stack.push(cluster.__exit__)
        cluster.network.start()
        cluster.etcd.start()
        a, *others = cluster
        a.start()
        assert begin_record(a, "early").flush(PATIENCE_S) == 0
        wait_place(a, "early", lambda place: (place.replicas, place.copies, place.min_copies) == (("a",), 3, 1))
        for host in others:
            host.start()
        wait_place(a, "early", lambda place: is_whole(place, "abc") and place.min_copies == 2)
        for host in others:
            host.kill()
        producer = begin_record(a, "late")
        wait_place(a, "late", lambda place: (place.copies, place.min_copies) == (3, 2))
        assert len(producer) == 1
        for host in others:
            host.start()
        assert producer.flush(PATIENCE_S) == 0
        for topic in ("early", "late"):
            wait_place(a, topic, lambda place: is_whole(place, "abc") and place.min_copies == 2)


def test_a_topic_with_one_copy_gets_two_more(tmp_path: Path) -> None:
    """By AlterPartitionReassignments: of all its partitions, with as many hosts as it is to have copies."""
    with Cluster(tmp_path) as cluster:
        a = next(iter(cluster))
        with Client(parse_addresses(a.address), limit_s=PATIENCE_S) as client:
            client.create_topic("one", 1, {}, 1)
        assert begin_record(a, "one").flush(PATIENCE_S) == 0
        wait_place(a, "one", lambda place: (place.copies, len(place.replicas)) == (1, 1))
        with WireClient(int(a.address.rpartition(":")[2])) as wire:

            def asked(*replicas: int) -> ErrorCode:
                parts = [{"partition_index": 0, "replicas": replicas}]
                answer = wire.request(45, 0, topics=[{"name": "one", "partitions": parts}])
                return ErrorCode(answer.responses[0].partitions[0].error_code)

            for wrong in ((1, 1), (1, 9), (2,)):
                assert asked(*wrong) is ErrorCode.invalid_replica_assignment
            assert asked(3, 2, 1) is ErrorCode.none
        wait_place(a, "one", lambda place: is_whole(place, "abc") and (place.copies, place.min_copies) == (3, 2))
