"""A sidecar that was alone becomes a cluster of three with its log: everything that it had is there, and stays when a
host is lost.
"""

from __future__ import annotations

import re
import shlex
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_STORED, Consumer, KafkaError, Producer, TopicPartition

from logstore.client.admin import Admin
from logstore.client.blocking import Client, parse_addresses
from logstore.client.blocking import TopicPartition as Stream
from logstore.client.errors import ELSEWHERE, SidecarRefused
from logstore.format.epoch_api import DescribeRequest, EpochCommitRequest, Part, StageRequest, TaskOutput
from logstore.format.reader_api import ReaderOffset
from logstore.format.records import Record, encode_batch
from logstore.testing.cluster import Cluster
from logstore.testing.processes import Etcd
from tests.kafka.wire_client import LIST_OFFSETS, WireClient
from tests.metadata.support import needs_etcd
from tests.support.cli import cairn
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.waiting import until_holds

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"
QUERY, RUN = "orders-query", "run1"
NOW_MS = 1_700_000_000_000
PRODUCER_ID = 7
"""Of an idempotent producer whose batches the test makes itself."""
LAST_SEQUENCE = 4
LEADER_EPOCH = 23


class Row(NamedTuple):
    """A record as a client sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


class Known(NamedTuple):
    """What clients have seen of the sidecar before it became a cluster."""

    rows: dict[tuple[str, int], list[Row]]
    ends: dict[tuple[str, int], int]
    last_duplicate: int
    """The offset of the idempotent producer's last batch."""


def numbered(number: int) -> bytes:
    """A batch of the idempotent producer."""
    record = Record(0, NOW_MS, None, b"once %d" % number)
    return bytes(encode_batch([record], producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=number))


def connect(bootstrap: str) -> Client:
    """A client of Cairn's own."""
    return Client(parse_addresses(bootstrap), limit_s=PATIENCE_S)


def stage(client: Client, epoch: int) -> None:
    """Stage an epoch's output for both partitions of `out`."""
    batches = [bytes(encode_batch([Record(0, NOW_MS, b"k", b"epoch %d" % epoch)])) for _ in range(2)]
    parts = tuple(Part("out", partition, len(batch), 1, 1) for partition, batch in enumerate(batches))
    client.stage(StageRequest(QUERY, RUN, epoch, 0, f"{epoch}.0", 0, parts, b"".join(batches)))


def commit(client: Client, epoch: int) -> None:
    """Commit what was staged."""
    tasks = (TaskOutput(0, f"{epoch}.0", 1),)
    client.commit(EpochCommitRequest(QUERY, RUN, epoch, "error", tasks, f"p{epoch}", False))


def read_all(bootstrap: str, ends: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], list[Row]]:
    """All records of partitions up to an offset of each."""
    rows: dict[tuple[str, int], list[Row]] = {stream: [] for stream in ends}
    places = dict.fromkeys(ends, 0)
    settings: dict[str, str | bool] = {
        "bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False,
        "enable.partition.eof": True, "auto.offset.reset": "earliest",
    }  # fmt: skip
    deadline_s = time.monotonic() + PATIENCE_S
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(*stream, OFFSET_BEGINNING) for stream in ends])
        while any(place < ends[stream] for stream, place in places.items()):
            assert time.monotonic() < deadline_s, (places, ends)
            for found in consumer.consume(1_000, timeout=0.1):
                stream, offset = (found.topic() or "", found.partition() or 0), found.offset() or 0
                error = found.error()
                if error is not None:
                    places[stream] = offset if error.code() == KafkaError._PARTITION_EOF else places[stream]
                    continue
                places[stream] = offset + 1
                if offset < ends[stream]:
                    headers = tuple((name, bytes(value or b"")) for name, value in found.headers() or [])
                    rows[stream].append(Row(offset, found.timestamp()[1], found.key(), found.value() or b"", headers))
    return rows


def produce(client: Client, data: bytes, topic: str = "once") -> int:
    """Send a batch, again as long as another host has the stream; returns its offset."""
    deadline_s, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while True:
        try:
            return client.produce(Stream(topic, 0), data)
        except SidecarRefused as error:
            if error.code not in ELSEWHERE or time.monotonic() > deadline_s:
                raise
            pause.wait(0.05)


def ends_of(bootstrap: str) -> dict[tuple[str, int], int]:
    """Where the partitions end."""
    with connect(bootstrap) as client:
        streams = [("orders", 0), ("orders", 1), ("once", 0), ("out", 0), ("out", 1)]
        return {stream: client.offsets({Stream(*stream): -1})[Stream(*stream)].offset for stream in streams}


def fill(address: str) -> Known:
    """Write what a sidecar may have, and see what clients see of it."""
    with connect(address) as client:
        client.create_topic("orders", 2, {"segment.bytes": "16384", "retention.ms": "-1"})
        client.create_topic("once", 1)
        client.create_topic("out", 2)
        client.create_topic("gone", 1)
        for number in range(LAST_SEQUENCE + 1):
            last = produce(client, numbered(number))
            produce(client, numbered(number), "gone")
        assert client.delete_records(Stream("gone", 0), -1) == LAST_SEQUENCE + 1
        for codec in ("none", "gzip"):
            producer = Producer({"bootstrap.servers": address, "compression.type": codec, "enable.idempotence": True})
            for number in range(300):
                headers = {"trace": b"%d" % number} if number % 3 else {}
                producer.produce(
                    "orders", b"%0200d" % number, b"key %d" % number, number % 2, timestamp=NOW_MS + number,
                    headers=headers,
                )  # fmt: skip
            assert producer.flush(PATIENCE_S) == 0
        for epoch in range(3):
            stage(client, epoch)
            commit(client, epoch)
        assert client.delete_records(Stream("orders", 0), 100) == 100
        client.register_reader("archive", [ReaderOffset("orders", 1, 50)])
    with closing(Consumer({"bootstrap.servers": address, "group.id": "billing"})) as consumer:
        consumer.commit(offsets=[TopicPartition("orders", 1, 123, "half", leader_epoch=0)], asynchronous=False)
    ends = ends_of(address)
    return Known(read_all(address, ends), ends, last)


@contextmanager
def adopted(directory: Path, source: Path, *flags: str) -> Iterator[Cluster]:
    """A cluster whose host `a` has taken over the log of a data directory."""
    cluster = Cluster(directory, ("a", "b", "c"), "--lease-s", "3", *flags)
    try:
        cluster.network.start()
        cluster.etcd.start()
        done = cairn(*adopt_words(cluster, source))
        assert done.status == 0, done.err
        again = cairn(*adopt_words(cluster, source))
        assert (again.status, again.out.startswith("already adopted: start host a on ")) == (0, True), again.err
        for host in cluster:
            host.begin()
        for host in cluster:
            host.wait_ready()
        cluster.wait_members()
        yield cluster
    finally:
        cluster._kill_all()


def adopt_words(cluster: Cluster, source: Path) -> list[str]:
    """The command of docs/cluster.md, with this etcd and these directories."""
    assert isinstance(cluster.etcd, Etcd)
    (command,) = re.findall(r"^ *\$ cairn (adopt .*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    words = shlex.split(command)
    words[1], words[words.index("--into") + 1] = str(source), str(cluster["a"].data_dir)
    words[words.index("--cluster") + 1] = f"etcd://{cluster.etcd.endpoint}"
    return words


def check(bootstrap: str, known: Known) -> None:
    """Everything that was known is there, at its offsets."""
    assert read_all(bootstrap, known.ends) == known.rows
    settings: dict[str, str | bool] = {
        "bootstrap.servers": bootstrap, "group.id": "billing", "enable.auto.commit": False,
        "auto.offset.reset": "error",
    }  # fmt: skip
    with closing(Consumer(settings)) as consumer:
        (found,) = consumer.committed([TopicPartition("orders", 1)], timeout=PATIENCE_S)
        assert (found.offset, found.metadata, found.error, found.leader_epoch) == (123, "half", None, 0)
        # It asks where leader epoch 0 ends: an end in front of its offset would be a loss, and it would begin anew.
        consumer.assign([TopicPartition("orders", 1, OFFSET_STORED)])
        deadline_s, first = time.monotonic() + PATIENCE_S, None
        while first is None or first.error() is not None:
            assert time.monotonic() < deadline_s
            first = consumer.poll(0.1)
        assert first.offset() == 123
    until_holds(lambda: check_epochs(bootstrap, known))


def check_epochs(bootstrap: str, known: Known) -> None:
    """The leader epoch of the sidecar, 0, ends where its records end, whatever was written since, and ListOffsets
    gives it to the first of them.
    """
    told: dict[tuple[str, int], int] = {}
    for host, _, port in (address.rpartition(":") for address in bootstrap.split(",")):
        with WireClient(int(port), host) as wire:
            for topic, partition in known.ends:
                part = {"partition": partition, "current_leader_epoch": -1, "leader_epoch": 0}
                asked = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [part]}]}
                found = wire.request(LEADER_EPOCH, 4, **asked).topics[0].partitions[0]
                part = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -2}
                asked = {"replica_id": -1, "topics": [{"name": topic, "partitions": [part]}]}
                first = wire.request(LIST_OFFSETS, 10, **asked).topics[0].partitions[0]
                if found.error_code == first.error_code == 0:
                    assert (found.leader_epoch, first.leader_epoch) == (0, 0)
                    told[topic, partition] = found.end_offset
    assert told == known.ends


@needs_etcd
@pytest.mark.clients
def test_a_sidecar_and_its_log_become_a_cluster_of_three(tmp_path: Path) -> None:
    """Records with keys, headers, times and compression, offsets of groups, a producer's sequence (where all records
    are deleted, too), epochs, a log start and a registered reader are what they were; also when the host that had them
    is killed. The old directory does not start any more, and says where its log is.
    """
    source = tmp_path / "alone"
    with Sidecar(source) as sidecar:
        known = fill(sidecar.address)
        sidecar.kill()
    with Sidecar(source) as sidecar:  # completes the last epoch, if the kill came before that
        assert sidecar.terminate() == 0
    with adopted(tmp_path / "cluster", source) as cluster:
        check(cluster.bootstrap, known)
        assert ends_of(cluster.bootstrap) == known.ends
        with connect(cluster.bootstrap) as client:
            orders = Stream("orders", 0)
            assert client.offsets({orders: -2})[orders].offset == 100
            assert produce(client, numbered(LAST_SEQUENCE)) == known.last_duplicate
            assert produce(client, numbered(LAST_SEQUENCE + 1)) == known.last_duplicate + 1
            assert produce(client, numbered(LAST_SEQUENCE), "gone") == LAST_SEQUENCE
            assert client.describe(DescribeRequest(QUERY)).last_epoch == 2
            stage(client, 3)
            commit(client, 3)
            assert client.reader_names() == ["archive"]
            assert client.topic_configs("orders")["segment.bytes"] == "16384"
        wait_copied(cluster)
        cluster["a"].kill()
        left = ",".join(host.address for host in cluster if host.name != "a")
        check(left, known)
        with connect(left) as client:
            assert produce(client, numbered(LAST_SEQUENCE + 2)) == known.last_duplicate + 2
            assert produce(client, numbered(LAST_SEQUENCE + 1), "gone") == LAST_SEQUENCE + 1
            stage(client, 4)
            commit(client, 4)
    with (
        pytest.raises(RuntimeError, match=r"adopted\.json: the log of this data directory was adopted"),
        Sidecar(source),
    ):
        pass


def wait_copied(cluster: Cluster) -> None:
    """Wait until every chunk has all its copies, as each host says."""
    for host in cluster:
        with connect(host.address) as client:
            until_holds(lambda client=client: check_copied(client))  # type: ignore[misc]


def check_copied(client: Client) -> None:
    """Every chunk has all its copies, as the host says that is asked."""
    found = Admin(client).hosts()
    assert found.is_complete, found
    assert found.ownerless == found.under_replicated == 0, found
