"""Retention in a running sidecar: what it takes, what it leaves, and what it says of it."""

from pathlib import Path

from logstore.format.records import Record, encode_batch
from tests.kafka.wire_client import LIST_OFFSETS, WireClient
from tests.support.sidecar import Sidecar
from tests.support.waiting import until

OLD_MS = 1_600_000_000_000


def earliest(client: WireClient, topic: str) -> int:
    """The log start of partition 0."""
    part = {"partition_index": 0, "timestamp": -2}
    answer = client.request(LIST_OFFSETS, 5, replica_id=-1, topics=[{"name": topic, "partitions": [part]}])
    return int(answer.topics[0].partitions[0].offset)


def test_old_records_stay_and_every_trim_is_a_line(tmp_path: Path) -> None:
    """Records of years ago stay as long as new ones would; checks run as often as is set; each trim is a line."""
    flags = ("--retention-check-interval-ms", "20")
    with Sidecar(tmp_path / "data", *flags) as sidecar, WireClient(sidecar.port) as client:
        old = bytes(encode_batch([Record(0, OLD_MS, None, b"value")]))
        for topic, retention_ms in (("kept", "604800000"), ("short", "1")):
            assert client.create_topic(topic, configs={"retention.ms": retention_ms}) == 0
            assert client.produce(topic, old).error == 0
        until(lambda: earliest(client, "short") == 1, "the short one is trimmed")
        assert earliest(client, "kept") == 0
        until(lambda: "event=trimmed" in sidecar.log(), "it is told of")
        lines = [line for line in sidecar.log().splitlines() if "event=trimmed" in line]
        assert len(lines) == 1
        assert "stream=short-0 first=0 last=0 why=age" in lines[0]
