"""A host of a cluster shows its streams, its groups and its cluster: in `/metrics` by the names of a host alone, and on
the status page in a real browser.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.metadata.support import etcd_members, needs_etcd
from tests.monitoring.browser import IS_THERE, MISSING, chromium
from tests.monitoring.support import Samples, ask, http_port, scrape, watched
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.waiting import until, until_holds

pytestmark = [needs_etcd, pytest.mark.clients]
TOPIC, PARTITIONS, RECORDS, GROUP = "orders", 4, 50, "billing"
LEASE_S = 600
"""Nobody takes over where the machine stands still for a moment: counters begin anew at another owner. A host that is
stopped gives its lease back.
"""
ROW = "return [...document.querySelectorAll('#%s tr')].map(row => row.innerText)"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Sidecar]]:
    """Two hosts of a cluster, with HTTP listeners."""
    with ExitStack() as stack:
        (etcd,) = stack.enter_context(etcd_members(tmp_path))
        url = f"etcd://{etcd.client.removeprefix('http://')}"
        yield [
            stack.enter_context(
                watched(
                    tmp_path / name,
                    *("--cluster", url, "--host-name", name, "--node-id", str(number)),
                    *("--peer-listen", "127.0.0.1:0", "--rack", f"rack-{name}", "--lease-s", str(LEASE_S)),
                )
            )
            for number, name in enumerate("ab", 1)
        ]


def loaded(hosts: list[Sidecar]) -> None:
    """RECORDS in each partition, half of which a group has read and committed."""
    # Streams that are made before all hosts know each other move to other owners later.
    until(lambda: all(members_of(host) == len(hosts) for host in hosts), "all are members, as each knows")
    bootstrap = ",".join(host.address for host in hosts)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    deadline_s = time.monotonic() + PATIENCE_S
    for outcome in admin.create_topics([NewTopic(TOPIC, PARTITIONS, len(hosts))]).values():
        outcome.result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    for number in range(RECORDS * PARTITIONS):
        producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False, "log_level": 2}
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    read = 0
    while read < RECORDS * PARTITIONS:
        assert time.monotonic() < deadline_s
        read += len(consumer.consume(1000, 1))
    consumer.commit(
        offsets=[TopicPartition(TOPIC, partition, RECORDS // 2) for partition in range(PARTITIONS)], asynchronous=False
    )
    consumer.close()


def members_of(host: Sidecar) -> float:
    """How many hosts are alive, as a host knows."""
    return scrape(host)["kafka_controller_kafkacontroller_activebrokercount"][()]


def of_topic(found: Samples, name: str, key: str = "partition") -> dict[str, float]:
    """A metric's values for the topic, by partition or another label."""
    values = ((dict(labels), value) for labels, value in found.get(name, {}).items())
    return {labels[key]: value for labels, value in values if labels.get("topic") == TOPIC}


def test_streams_and_groups_are_in_the_metrics(hosts: list[Sidecar]) -> None:
    """Each stream has its series at the host that leads it, and at no other; what all hosts say together is what was
    produced, read and committed. Copies that are lost are counted.
    """
    loaded(hosts)
    until_holds(lambda: check_metrics([scrape(host) for host in hosts]))
    assert hosts[1].terminate() == 0

    def leads_all_alone() -> bool:
        last = scrape(hosts[0])
        lacking = last["kafka_server_replicamanager_underreplicatedpartitions"][()]
        of_each = of_topic(last, "kafka_log_log_logendoffset")
        at_least = last["kafka_server_replicamanager_atminisrpartitioncount"][()]
        return min(lacking, at_least) >= PARTITIONS and of_each == {
            str(partition): RECORDS for partition in range(PARTITIONS)
        }

    until(leads_all_alone, "all streams are led here and lack copies")


def check_metrics(found: list[Samples]) -> None:
    """What each host says, of the streams that it leads and of the groups that it coordinates; what a host has not
    heard of yet is not in its metrics.
    """
    assert [each["kafka_controller_kafkacontroller_globaltopiccount"][()] for each in found] == [2, 2]
    led = [of_topic(each, "kafka_log_log_logendoffset") for each in found]
    assert not led[0].keys() & led[1].keys()
    assert {**led[0], **led[1]} == {str(partition): RECORDS for partition in range(PARTITIONS)}
    for each, own in zip(found, led, strict=True):
        assert of_topic(each, "kafka_log_log_logstartoffset") == dict.fromkeys(own, 0)
        assert all(size > RECORDS for size in of_topic(each, "kafka_log_log_size").values())
        assert all(count >= 1 for count in of_topic(each, "kafka_log_log_numlogsegments").values())
        count = len(own) * RECORDS
        assert of_topic(each, "kafka_server_brokertopicmetrics_messagesin_total", "topic") == {TOPIC: count}
        for direction in ("in", "out"):
            moved = of_topic(each, f"kafka_server_brokertopicmetrics_bytes{direction}_total", "topic").get(TOPIC, 0)
            assert moved > count or not own
        assert each["kafka_server_replicamanager_partitioncount"][()] >= PARTITIONS
        assert each["cairn_log_bytes"][()] > RECORDS * PARTITIONS
        assert each["cairn_index_bytes"][()] > 0
    coordinating = [number for number, each in enumerate(found) if "kafka_consumergroup_members" in each]
    assert len(coordinating) == 1
    (at,) = coordinating
    committed = of_topic(found[at], "kafka_consumergroup_current_offset")
    assert committed == {str(partition): RECORDS // 2 for partition in range(PARTITIONS)}
    assert of_topic(found[at], "kafka_consumergroup_lag") == dict.fromkeys(led[at], RECORDS - RECORDS // 2)


@pytest.mark.skipif(not IS_THERE, reason=MISSING)
def test_the_page_shows_the_cluster(hosts: list[Sidecar]) -> None:
    """Hosts with the streams that they own, the streams of this host, and, when the other host is gone, the streams
    that lack copies; the console has nothing to say.
    """
    loaded(hosts)

    def status(host: Sidecar) -> dict[str, Any]:
        found: dict[str, Any] = ask(http_port(host), "/status.json").value
        return found

    here = next(host for host in hosts if status(host)["streams"]["shown"])
    other = next(host for host in hosts if host is not here)
    with chromium() as browser:
        browser.open(f"http://127.0.0.1:{http_port(here)}/")

        def shown(table: str) -> list[list[str]]:
            return [row.split("\t") for row in browser.run(ROW % table)]

        def are_hosts(rows: list[str]) -> bool:
            cells = [row.split("\t") for row in rows]
            owned = [int(row[3]) for row in cells if len(row) > 3]
            return sum(owned) == PARTITIONS + 1 and [row[:3] for row in cells] == [
                ["a", "1", "rack-a"],
                ["b", "2", "rack-b"],
            ]

        browser.wait(ROW % "hosts", are_hosts)

        def check_shown() -> None:
            assert {row[4] for row in shown("hosts")} == {"here", "up"}
            found = status(here)
            own = {f"{each['topic']}-{each['partition']}" for each in found["streams"]["shown"]}
            assert len(own) == found["cluster"]["owned_streams"]
            assert {row[0] for row in shown("streams")} == own

        until_holds(check_shown)  # the page asks now and then
        browser.wait(ROW % "lacking", lambda rows: not [row for row in rows if row.startswith(TOPIC)])
        assert other.terminate() == 0

        def is_short(rows: list[str]) -> bool:
            return {row.split("\t")[0] for row in rows} >= {f"{TOPIC}-{number}" for number in range(PARTITIONS)}

        browser.wait(ROW % "lacking", is_short)
        browser.wait(ROW % "hosts", lambda rows: len(rows) == 1)
        assert browser.run("return document.getElementById('cluster').hidden") is False
        assert "NaN" not in browser.run("return document.getElementById('page').innerText")
        assert browser.console() == []
