"""The common form of Produce is read, appended and answered as the general way does it."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from logstore.base.connected_socket import ConnectedSocket
from logstore.format.records import Record, encode_batch
from logstore.kafka import codec, produce
from logstore.kafka.answers import AnswerLine
from logstore.kafka.budgets import AnswerBudget, RequestBudget
from logstore.kafka.framing import Reader, Writer, frame
from logstore.kafka.request_meter import RequestMeter
from logstore.kafka.single_batch import SingleBatch, start
from tests.kafka.front_driver import NOW_MS, TOPIC, Server, serving
from tests.support.limits import PATIENCE_S

VERSIONS = range(produce.MIN_VERSION, produce.FIRST_WITH_IDS)
BATCH = bytes(encode_batch([Record(0, NOW_MS, None, b"value")]))


def request(
    version: int,
    *,
    topic: str = TOPIC,
    partition: int = 0,
    records: bytes | None = BATCH,
    acks: int = -1,
    copies: int = 1,
    transaction: str | None = None,
) -> memoryview:
    """A whole request without its length, with `copies` equal topics."""
    flexible = version >= produce.FIRST_FLEXIBLE
    writer = Writer(flexible=flexible)
    writer.raw(struct.pack(">hhih", produce.KEY, version, 77, 4) + b"test")
    writer.tags()
    writer.string(transaction)
    writer.int16(acks)
    writer.int32(30_000)
    writer.count(copies)
    for _ in range(copies):
        writer.string(topic)
        writer.count(1)
        writer.int32(partition)
        if records is None:
            writer.count(-1)
        else:
            writer.records([records], len(records))
        writer.tags()
        writer.tags()
    writer.tags()
    return memoryview(bytearray(b"".join(writer.finish())))


def general(server: Server, asked: memoryview) -> bytes:
    """The general way's answer to a request that is refused or whose ticket has settled at once."""
    header = codec.decode_header(asked)
    reader = Reader(asked, header.body_at, flexible=header.version >= produce.FIRST_FLEXIBLE)
    reader.tags()
    decoded = produce.decode(asked, reader.at, header.version)
    answer = produce.ProduceAnswer(decoded.version, decoded.acks)
    produce.start(server.kafka._broker, decoded, len(asked), answer)
    body = answer.body()
    assert body is not None
    return b"".join(frame(header.correlation_id, body, flexible_header=header.version >= produce.FIRST_FLEXIBLE))


class Client:
    """Asks through a line of answers on a pair of sockets."""

    def __init__(self, server: Server, line: AnswerLine, sock: trio.socket.SocketType) -> None:
        self._server = server
        self.line = line
        self.meter = RequestMeter([produce.KEY]).of(produce.KEY)
        self._socket = sock

    def start(self, asked: memoryview) -> bool:
        """Begin a request."""
        return start(self._server.kafka._broker, self.line, self.meter, asked)

    async def answer(self) -> bytes:
        """The next answer."""
        received = bytearray()
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            received += await self._socket.recv(1 << 16)
        return bytes(received)


@asynccontextmanager
async def a_client(server: Server) -> AsyncIterator[Client]:
    """A line with its sender at work; at the end every request is answered."""
    ours, theirs = socket.socketpair()
    link = ConnectedSocket(ours)
    line = AnswerLine(link, server.engine, RequestBudget(1 << 20), AnswerBudget(1 << 20), PATIENCE_S, lambda: None)
    with trio.socket.from_stdlib_socket(theirs) as sock, trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.send_answers)
            await trio.testing.wait_all_tasks_blocked()
            yield Client(server, line, sock)
            line.end()
        assert line.request_bytes == 0
    link.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_answers_are_those_of_the_general_way(version: int, tmp_path: Path) -> None:
    """Byte for byte, in every version: for a batch that is appended, for one that is a duplicate of it, and for ones
    that are refused because of their topic, their partition or their bytes.
    """
    async with serving(tmp_path) as server, a_client(server) as client:
        value = [Record(0, NOW_MS, None, b"x")]
        batch = bytes(encode_batch(value, producer_id=5, producer_epoch=0, base_sequence=0))
        asked = request(version, records=batch)
        assert client.start(memoryview(bytearray(asked)))
        server.engine.kick()
        assert await client.answer() == general(server, asked), "the second one is a duplicate, with the same offset"
        others = [asked, request(version, topic="nowhere"), request(version, partition=77)]
        others += [request(version, partition=-1), request(version, records=b"")]
        others.append(request(version, records=BATCH[:-1] + b"?"))
        for each in others:
            assert client.start(memoryview(bytearray(each)))
            assert await client.answer() == general(server, each)


async def test_answers_of_requests_that_arrive_together_leave_together(tmp_path: Path) -> None:
    """Refused requests behind each other: nothing is sent before the last is begun, then all."""
    async with serving(tmp_path) as server, a_client(server) as client:
        asked = request(7, topic="nowhere")
        client.line.gather()
        for _ in range(3):
            assert client.start(memoryview(bytearray(asked)))
        assert client.line.request_bytes > 0
        client.line.flush_gathered()
        assert client.line.request_bytes == 0
        expected = general(server, asked)
        received = b""
        while len(received) < 3 * len(expected):
            received += await client._socket.recv(1 << 16)
        assert received == 3 * expected


async def test_other_forms_are_left_to_the_general_way(tmp_path: Path) -> None:
    """Several topics, no records, a transaction, unknown acks, versions with topics' ids, broken frames: nothing is
    done.
    """
    async with serving(tmp_path) as server, a_client(server) as client:
        for version in VERSIONS:
            forms = [request(version, copies=2), request(version, copies=0), request(version, records=None)]
            forms += [request(version, acks=2), request(version, transaction="t")]
            whole = request(version)
            forms += [whole[:-1], memoryview(bytearray(whole) + b"?"), whole[:12], whole[:0]]
            forms.append(memoryview(bytearray(whole).replace(TOPIC.encode(), b"\xff" * len(TOPIC))))
            assert not any(client.start(asked) for asked in forms)
        for version in (produce.FIRST_WITH_IDS, produce.MAX_VERSION + 1):
            assert not client.start(request(version))
        assert client.line.request_bytes == 0
        assert server.stream.high_watermark == server.stream.end_offset == 0


@given(data=st.data(), version=st.sampled_from(VERSIONS))
def test_any_bytes(data: st.DataObject, version: int) -> None:
    """A frame with any bytes changed is read as the general way reads it, or is left to it."""
    asked = bytearray(request(version, records=data.draw(st.binary(max_size=300))))
    for _ in range(data.draw(st.integers(0, 3))):
        asked[data.draw(st.integers(4, len(asked) - 1))] = data.draw(st.integers(0, 255))
    view = memoryview(asked)
    slot = SingleBatch.decode(view)
    if slot is None:
        return
    header = codec.decode_header(view)
    reader = Reader(view, header.body_at, flexible=header.version >= produce.FIRST_FLEXIBLE)
    reader.tags()
    decoded = produce.decode(view, reader.at, header.version)
    ((topic, (partition,)),) = decoded.topics
    assert (topic, partition.partition, decoded.acks) == (slot.topic, slot._partition, slot.acks)
    assert partition.records == slot.records
    assert (header.correlation_id, header.version) == (slot.correlation_id, slot._version)
