"""A stream that carries a query's state: footprints, closes and marks between its records, as the runner writes them.

Every client reads all results and nothing else, wherever it begins.
"""

from __future__ import annotations

import shutil
import uuid

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.harness.raw import RawConnection, make_batch
from logstore.format import epoch_api
from spe_adapter.cec.control import EndPositions, Mark, encode_footprints, encode_mark, encode_tombstones
from tests.foreign_clients.adapters import EARLIEST, LATEST, Client, ConfluentClient, Message
from tests.foreign_clients.broker import Broker, eventually
from tests.foreign_clients.test_kcat import kcat
from tests.support.kafka_peer import run_tool

TIMESTAMP_MS = 1_700_000_000_000
WINDOWS = 5_000
"""More than one control batch of footprints."""


@pytest.fixture(autouse=True)
def _cairn_only(broker: Broker) -> None:
    if broker.is_kafka:
        pytest.skip("Kafka takes no control records from clients")


def controls(query: str, epoch: int, windows: int) -> list[bytes]:
    """Footprints of so many windows with some state, some closes, and the mark."""
    names = pa.array([b"key-%d" % number for number in range(windows)], pa.binary())
    numbers = pa.array(np.arange(windows))
    trail = pa.array(["x" * 100] * windows)
    state = pa.RecordBatch.from_arrays(
        [names, numbers, pa.array(np.full(windows, 2**63 - 1)), trail], names=["key", "number", "expires", "s_trail"]
    )
    gone = pa.RecordBatch.from_arrays([names.slice(0, 3), numbers.slice(0, 3)], names=["key", "number"])
    mark = Mark(
        query=query, epoch=epoch, attempt="0", partition=0, partitions=1, layout=0, operator="test",
        open_windows=windows, emitted=epoch, seen=epoch, sequence=epoch, max_event_ms=None, watermark_ms=0,
        oldest_epoch=epoch,
    )  # fmt: skip
    opened = np.ones(windows, np.bool_)
    return [
        *encode_footprints(query, epoch, state, opened, TIMESTAMP_MS),
        *encode_tombstones(query, epoch, gone, TIMESTAMP_MS),
        encode_mark(mark, TIMESTAMP_MS),
    ]


def commit(connection: RawConnection, request: epoch_api.Request, key: int) -> None:
    """Send one of Cairn's own requests."""
    body = b"".join(bytes(piece) for piece in epoch_api.encode_request(request, correlation_id=1))
    _, reply = epoch_api.decode_reply(key, connection.call(len(body).to_bytes(4, "big") + body))
    if isinstance(reply, Exception):
        raise reply


def publish(broker: Broker, topic: str, epochs: list[list[bytes]], windows: int = WINDOWS) -> None:
    """One append group for each epoch: its results, then its control records."""
    query, incarnation = uuid.uuid4().hex, uuid.uuid4().hex
    progress = EndPositions(
        generation=0,
        batch=0,
        closing=False,
        late_watermark_ms=0,
        watermark_ms=0,
        max_event_ms=None,
        partitions=1,
        layout=0,
    )
    with RawConnection(broker.port) as connection:
        for epoch, values in enumerate(epochs):
            batches = [make_batch(values, timestamp_ms=TIMESTAMP_MS)] if values else []
            batches += controls(query, epoch, windows)
            data = b"".join(batches)
            records = len(values) + len(batches) - bool(values)
            part = epoch_api.Part(topic, 0, len(data), len(batches), records)
            commit(
                connection, epoch_api.StageRequest(query, incarnation, epoch, 0, "0", 0, (part,), data), epoch_api.STAGE
            )
            tasks = (epoch_api.TaskOutput(0, "0", 1),)
            request = epoch_api.EpochCommitRequest(query, incarnation, epoch, "error", tasks, progress.to_json(), False)
            commit(connection, request, epoch_api.EPOCH_COMMIT)


EPOCHS = [[b"%d-%d" % (epoch, at) for at in range(1 + epoch % 3)] if epoch % 4 != 2 else [] for epoch in range(12)]
RESULTS = [value for values in EPOCHS for value in values]


def test_every_client_reads_the_results_and_nothing_else(client: Client, broker: Broker, topic: str) -> None:
    """From the first offset on, and from any other; epochs without results are passed over."""
    publish(broker, topic, EPOCHS)
    ConfluentClient(broker.bootstrap).produce(topic, [Message(value=b"behind")])
    got = client.consume(topic, len(RESULTS) + 1)
    assert [message.value for message in got] == [*RESULTS, b"behind"]
    assert client.offset_at(topic, EARLIEST) == 0
    assert client.offset_at(topic, LATEST) == got[-1].offset + 1
    for start in (0, 4, len(got) - 1):
        place = got[start].offset
        again = client.consume(topic, len(got) - start, offset=place)
        assert [message.offset for message in again] == [message.offset for message in got[start:]]
    inside = got[3].offset + 1  # perhaps a control record: the next result comes
    assert client.consume(topic, 1, offset=inside)[0].offset == got[4].offset


def test_groups_commit_past_control_records(client: Client, broker: Broker, topic: str, group: str) -> None:
    """A member that has read all results leaves the rest of the group nothing but what comes later."""
    publish(broker, topic, EPOCHS[:5])
    first = [value for values in EPOCHS[:5] for value in values]
    assert [message.value for message in client.consume_as_group(topic, group, len(first))] == first
    publish(broker, topic, [[], [b"later"]])
    assert [message.value for message in client.consume_as_group(topic, group, 1)] == [b"later"]


@pytest.mark.skipif(shutil.which("kcat") is None, reason="no kcat on the path")
def test_kcat_reads_to_the_end(broker: Broker, topic: str) -> None:
    """-e ends at the end of the stream, though that is a control record."""
    publish(broker, topic, EPOCHS)
    printed = kcat(broker, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", "%s\n")
    assert printed.encode().split() == RESULTS


@pytest.mark.kafka_peer
def test_the_java_consumer_reads_the_results(broker: Broker, topic: str) -> None:
    """Kafka's own console consumer prints them and nothing between them and the next record."""
    publish(broker, topic, EPOCHS)
    client = ConfluentClient(broker.bootstrap)
    eventually(lambda: client.offset_at(topic, LATEST) > len(RESULTS))
    client.produce(topic, [Message(value=b"last")])
    count = str(len(RESULTS) + 1)
    printed = run_tool(
        "console-consumer",
        ["--bootstrap-server", broker.bootstrap, "--topic", topic, "--from-beginning", "--max-messages", count],
    )
    assert printed.encode().split() == [*RESULTS, b"last"]
