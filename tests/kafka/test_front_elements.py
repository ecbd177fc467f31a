"""Requests of many small parts: no more than can be meant, each answered once, and others served in between.

The promise is counted: how often another task runs while one request is decoded, handled, and its answer encoded.
"""

import struct
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from kio.schema.errors import ErrorCode

from logstore.base.system import SystemClock
from logstore.errors import MalformedRequest
from logstore.events import CONNECTION_CLOSED
from logstore.format.batch import HEADER, HEADER_BYTES, parse_header
from logstore.format.epoch_api import DESCRIBE, decode_request
from logstore.format.fields import MAX_FIELDS_VALUES
from logstore.kafka import codec, fetch, produce
from logstore.kafka.api_types import Broker, BrokerSettings
from logstore.kafka.framing import MAX_TAGGED_FIELDS, Writer
from logstore.kafka.guard import MAX_ELEMENTS, max_elements
from logstore.kafka.pace import STEPS, _Limiters
from logstore.log.topics import MAX_PARTITIONS
from tests.kafka.front_driver import (
    NOW_MS,
    PRODUCE,
    TOPIC,
    batch,
    decode_answer,
    fetch_frame,
    produce_frame,
    request_frame,
    serving,
    wait_until,
)
from tests.kafka.node import CALLER, Node, running
from tests.kafka.turns import counted_turns
from tests.kafka.wire_client import encode
from tests.support.compressed import CODECS, compressed, with_body
from tests.support.limits import PATIENCE_S

MANY = 20_000
MONTH_MS = 30 * 86_400_000
FEWEST_SERVED = 3
"""Requests of another client, while a million records are looked at."""
FEWEST_TURNS = MANY // STEPS // 4
"""Of another task, while a request of MANY parts is served; served in one go, it lets it run a few times."""

LARGE: dict[str, tuple[int, int, Mapping[str, Any]]] = {
    "Metadata": (3, 9, {"topics": [{"name": f"n{n}"} for n in range(MANY)], "allow_auto_topic_creation": False}),
    "ListOffsets": (
        2,
        5,
        {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}] * MANY}]},
    ),
    "FindCoordinator": (10, 4, {"coordinator_keys": [f"g{n}" for n in range(MANY)]}),
    "CreateTopics": (
        19,
        5,
        {"topics": [{"name": f"n{n}", "num_partitions": 0, "replication_factor": 1} for n in range(MANY)]},
    ),
    "DeleteTopics": (20, 6, {"topics": [{"topic_id": uuid.UUID(int=n + 1)} for n in range(MANY)]}),
    "DeleteRecords": (
        21,
        2,
        {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 9, "offset": 0}] * MANY}]},
    ),
    "OffsetForLeaderEpoch": (23, 4, {"topics": [{"topic": TOPIC, "partitions": [{"partition": 0}] * MANY}]}),
    "AlterConfigs": (33, 2, {"resources": [{"resource_type": 2, "resource_name": f"n{n}"} for n in range(MANY)]}),
    "CreatePartitions": (37, 3, {"topics": [{"name": f"n{n}", "count": 2} for n in range(MANY)]}),
}


async def serve_counting(node: Node, key: int, version: int, values: Mapping[str, Any]) -> tuple[Any, int]:
    """Serve a request as a connection does; its response, and how often another task ran meanwhile."""
    body = encode(codec.request_type(key, version), values)
    header = codec.RequestHeader(key, version, 1, "", 0)
    async with counted_turns() as turns:
        request = await codec.decode_large(memoryview(body), header, 0)
        response = await node.apis[key].handle(request, CALLER)
        await codec.encode_large(response)
    return response, turns.count


@pytest.mark.parametrize("name", LARGE)
async def test_a_request_of_many_parts_gives_way(tmp_path: Path, name: str) -> None:
    """While a request of 20,000 parts is served, others run after every hundred of them; it costs no more than its
    parts, however often it names the same.
    """
    key, version, values = LARGE[name]
    async with running(tmp_path) as node:
        await node.engine.wait(node.store.create_topic(TOPIC, 1, {}))
        _, turns = await serve_counting(node, key, version, values)
    assert turns >= FEWEST_TURNS


@pytest.mark.parametrize("key", [2, 3, 8, 9, 10, 11, 30, 32, 42])
def test_more_parts_than_can_be_meant_are_refused(key: int) -> None:
    """An array of more elements than such a request can mean is refused before anything is made of it, although the
    bytes are there.
    """
    name = {2: "topics", 3: "topics", 8: "topics", 9: "groups", 10: "coordinator_keys"}
    name |= {11: "protocols", 30: "creations", 32: "resources", 42: "groups_names"}
    version = {2: 5, 3: 1, 8: 5, 9: 8, 10: 4, 11: 5, 30: 1, 32: 2, 42: 1}[key]
    count = max_elements(key) + 1
    kind = codec.request_type(key, version)
    (one,) = [field for field in kind.__dataclass_fields__.values() if field.name == name[key]]
    element: Any = "" if "kafka_type" in one.metadata else {}
    body = encode(kind, {name[key]: [element] * count})
    with pytest.raises(MalformedRequest, match="more than such a request can mean"):
        codec.decode(memoryview(body), codec.RequestHeader(key, version, 1, "", 0), 0)


def tagged(count: int) -> bytes:
    """A section of that many tagged fields, which nobody knows."""
    writer = Writer(flexible=True)
    writer.uvarint(count)
    writer.raw(b"\x7f\x00" * count)
    return b"".join(bytes(part) for part in writer.finish())


def framed(body: bytes) -> bytes:
    """A frame with its length."""
    return struct.pack(">i", len(body)) + body


def with_tagged_fields(where: str, count: int) -> bytes:
    """A frame with so many tagged fields."""
    head = {"header of Metadata": (3, 12), "header of Produce": (0, 9), "Produce": (0, 9), "Fetch": (1, 12)}
    key, version = head.get(where, (3, 12))
    begin = struct.pack(">hhih", key, version, 7, -1)
    if where.startswith("header"):
        return framed(begin + tagged(count))
    if where == "Metadata":
        return framed(begin + b"\x00" + b"\x00\x00\x00" + tagged(count))
    if where == "Produce":
        return framed(begin + b"\x00" + b"\x00" + struct.pack(">hi", -1, 1000) + b"\x01" + tagged(count))
    fixed = struct.pack(">iiiibii", -1, 0, 0, 0, 0, 0, -1)
    topic_without_partitions = b"\x02" + b"\x02t" + b"\x01"
    return framed(begin + b"\x00" + fixed + topic_without_partitions + tagged(count) + b"\x01\x01\x00")


@pytest.mark.parametrize("where", ["header of Metadata", "header of Produce", "Produce", "Fetch", "Metadata"])
async def test_more_tagged_fields_than_anybody_sends_are_refused(tmp_path: Path, where: str) -> None:
    """Two bytes are enough for a tagged field: a frame with too many is refused at their number, before they are walked
    over, in a header as in a body. Some that nobody knows are passed over.
    """
    (tmp_path / "node").mkdir()
    async with running(tmp_path / "node") as node, serving(tmp_path, apis=list(node.apis.values())) as server:
        async with await server.connect() as peer:
            await peer.send(with_tagged_fields(where, MAX_TAGGED_FIELDS + 1))
            assert await peer.ended()
        (closed,) = server.reported(CONNECTION_CLOSED)
        assert f"{MAX_TAGGED_FIELDS + 1} tagged fields" in str(closed["why"])
        if not where.startswith("header"):
            async with await server.connect() as peer:
                assert await peer.ask(with_tagged_fields(where, 3))


async def test_a_long_name_is_not_repeated_for_each_partition(tmp_path: Path) -> None:
    """A name of 32 KiB, which no topic can have, is cut where an answer says for each of many partitions that there is
    no such topic: the answer stays as long as the request, nearly.
    """
    name, count = "n" * 32_000, 1_000
    async with running(tmp_path) as node:
        for key, values in (
            (43, {"topic_partitions": [{"topic": name, "partitions": range(count)}]}),
            (45, {"topics": [{"name": name, "partitions": [{"partition_index": n} for n in range(count)]}]}),
        ):
            answer = await node.ask(key, 0, **values)
            (topic,) = getattr(answer, "replica_election_results", None) or answer.responses
            partitions = getattr(topic, "partition_result", None) or topic.partitions
            assert len(partitions) == count
            assert all(len(part.error_message) < 200 for part in partitions)
    parts = [produce.PartitionData(0, None), produce.PartitionData(1, memoryview(b"x"))]
    request = produce.ProduceRequest(9, None, -1, [(name, parts)], len(parts))
    async with serving(tmp_path) as server:
        broker = Broker(server.engine, SystemClock(), BrokerSettings())
        outcome = produce.ProduceAnswer(9, -1)
        produce.start(broker, request, 100, outcome)
        assert len(b"".join(bytes(part) for part in outcome.body() or ())) < len(name) + len(parts) * 200


def test_a_resource_named_often_is_described_once(tmp_path: Path) -> None:
    """An answer is many times longer than a question: what is asked a thousand times is answered once."""

    async def ask() -> None:
        async with running(tmp_path) as node:
            await node.engine.wait(node.store.create_topic(TOPIC, 1, {}))
            resources = [{"resource_type": 2, "resource_name": TOPIC}] * 1000
            answer = await node.ask(32, 4, resources=resources)
            assert len(answer.results) == 1
            assert answer.results[0].configs

    trio.run(ask)


async def test_a_fetch_that_names_a_partition_twice_is_refused(tmp_path: Path) -> None:
    """A million times the same partition is no question: twice is one time too many. Other clients do not notice."""
    frame = fetch_frame(11, offsets=(0, 0))
    twice = frame.replace(struct.pack(">iiq", 1, -1, 0), struct.pack(">iiq", 0, -1, 0))
    assert twice != frame
    async with serving(tmp_path) as server, await server.connect() as peer, await server.connect() as other:
        await peer.send(twice)
        assert await peer.ended()
        assert "names a partition twice" in str(server.reported(CONNECTION_CLOSED)[0]["why"])
        assert (await other.produce(batch())).error_code is ErrorCode.none


def test_fetch_and_produce_name_a_bounded_number_of_partitions() -> None:
    """Their frames may be long; the number of partitions in them is bounded all the same."""
    one = struct.pack(">iqi", 0, 0, 1)
    body = struct.pack(">iiiib", -1, 0, 0, 0, 0) + struct.pack(">ih", 1, 1) + b"t"
    with pytest.raises(MalformedRequest, match=f"at most {MAX_ELEMENTS}"):
        fetch.decode(memoryview(body + struct.pack(">i", MAX_ELEMENTS + 1) + one * (MAX_ELEMENTS + 1)), 0, 4)
    count = MAX_PARTITIONS + 1
    body = struct.pack(">hhi", -1, 1, 0) + struct.pack(">ih", 1, 1) + b"t" + struct.pack(">i", count)
    with pytest.raises(MalformedRequest, match=f"at most {MAX_PARTITIONS}"):
        produce.decode(memoryview(body + struct.pack(">ii", 0, -1) * count), 0, 3)


async def test_a_large_produce_request_is_appended_in_order(tmp_path: Path) -> None:
    """A Produce request of so many partitions that others run in between is appended before the one behind it."""
    partitions = 3 * STEPS
    async with serving(tmp_path, partitions=partitions) as server, await server.connect() as peer:
        frames = [produce_frame([batch(1, 10 + n)] * partitions, correlation_id=n) for n in range(3)]
        await peer.send(*frames)
        for number in range(3):
            assert (await peer.answer())[0] == number
        for partition in (0, partitions - 1):
            stream = server.engine.store.stream(TOPIC, partition)
            sizes = [len(entry.buffer) for entry in stream.read_tail(0, 1 << 20) or []]
            assert sizes == [len(batch(1, 10 + n)) for n in range(3)]


@pytest.mark.parametrize("behind_ms", [0, PATIENCE_S * 2000], ids=["in time", "late"])
async def test_others_are_served_while_records_times_are_looked_at(tmp_path: Path, behind_ms: int) -> None:
    """Two kilobytes that open to a million records: with `message.timestamp.before.max.ms` each of them is looked at,
    and others are served meanwhile. What follows on the same connection is appended behind it.
    """
    count, body = 1_000_000, batch(1, 0, timestamp=NOW_MS - behind_ms)[HEADER_BYTES:]
    header = parse_header(batch(1, 0, timestamp=NOW_MS - behind_ms))
    whole = header._replace(last_offset_delta=count - 1, record_count=count)
    large = bytes(with_body(HEADER.pack(*whole), *CODECS["zstd"][:1], CODECS["zstd"][1](body * count)))
    async with serving(tmp_path) as server, await server.connect() as peer, await server.connect() as other:
        settings = {"message.timestamp.before.max.ms": str(PATIENCE_S * 1000 + SystemClock().wall_ms() - NOW_MS)}
        await server.engine.wait(server.engine.store.create_topic("late", 1, settings))
        assert (await other.produce(batch())).error_code is ErrorCode.none
        asked = fetch_frame()
        await peer.send(produce_frame([large], topic="late"), produce_frame([batch()], topic="late", correlation_id=8))
        served = 0
        while not server.engine.store.stream("late", 0).high_watermark:
            await other.ask(asked)  # from memory: how many there are is no matter of the disk
            served += 1
        assert served > FEWEST_SERVED
        answers = [decode_answer(PRODUCE, 8, (await peer.answer())[1]) for _ in range(2)]
        outcomes = [answer.responses[0].partition_responses[0] for answer in answers]
        assert outcomes[0].error_code is (ErrorCode.invalid_timestamp if behind_ms else ErrorCode.none)
        assert outcomes[1].base_offset == (0 if behind_ms else count)


async def test_a_client_is_not_late_while_its_batch_is_looked_at(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """While a batch waits for a thread that looks at its records' times, what its client sent before is written, and
    the client's own deadlines stand still.
    """
    mock_clock.rate = 1
    late = bytes(compressed(batch(3), "zstd"))
    async with serving(tmp_path) as server, await server.connect() as peer:
        await server.engine.wait(
            server.engine.store.create_topic("late", 1, {"message.timestamp.before.max.ms": str(MONTH_MS)})
        )
        walkers = _Limiters.current().walkers
        async with AsyncExitStack() as stack:
            for _ in range(int(walkers.total_tokens)):
                await walkers.acquire_on_behalf_of(owner := object())
                stack.callback(walkers.release_on_behalf_of, owner)
            await peer.send(produce_frame([batch()]), produce_frame([late], topic="late", correlation_id=8))
            await wait_until(lambda: server.stream.high_watermark)
            await wait_until(lambda: walkers.statistics().tasks_waiting == 1)
            mock_clock.jump(600)
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert (await peer.answer())[0] == 7
        assert (await peer.answer())[0] == 8
        assert not server.reported(CONNECTION_CLOSED)


@pytest.mark.parametrize(("limit", "error"), [(1 << 20, ErrorCode.corrupt_message), (100, ErrorCode.message_too_large)])
async def test_what_is_damaged_is_not_called_late(tmp_path: Path, limit: int, error: ErrorCode) -> None:
    """A batch whose records' times are looked at apart is refused for what is wrong with it, as any other: a client
    sends a damaged one again, but not one that is too old.
    """
    damaged = compressed(batch(300), "zstd")
    damaged[-1] ^= 1
    settings = {"message.timestamp.before.max.ms": str(MONTH_MS), "max.message.bytes": str(limit)}
    async with serving(tmp_path) as server, await server.connect() as peer:
        await server.engine.wait(server.engine.store.create_topic("late", 1, settings))
        assert (await peer.produce(bytes(damaged), topic="late")).error_code is error


def test_a_body_of_many_values_is_refused() -> None:
    """A private request is JSON: millions of values in it are refused before they are made."""
    values = b"[" + b"0," * MAX_FIELDS_VALUES + b"0]"
    text = b'{"query":"q","tasks":' + values + b"}"
    with pytest.raises(MalformedRequest, match=f"more than {MAX_FIELDS_VALUES} values"):
        decode_request(DESCRIBE, struct.pack(">i", len(text)) + text)


async def test_hostile_requests_close_one_connection_only(tmp_path: Path) -> None:
    """A frame of 1 MiB with as many empty names as fit ends its connection at once; others are served."""
    count = 500_000
    for name in ("node", "broker"):
        (tmp_path / name).mkdir()
    async with running(tmp_path / "node") as node:
        apis = list(node.apis.values())
        async with serving(tmp_path / "broker", apis=apis) as server, await server.connect() as peer:
            await peer.send(request_frame(3, 1, struct.pack(">i", count) + struct.pack(">h", 0) * count))
            assert await peer.ended()
            async with await server.connect() as other:
                assert (await other.produce(batch())).error_code is ErrorCode.none
