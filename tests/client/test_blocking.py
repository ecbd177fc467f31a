"""The blocking client against a scripted server on a socket pair: lost connections, time limits, wrong answers."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from logstore.base.addresses import Address
from logstore.client import wire
from logstore.client.blocking import Client, parse_addresses
from logstore.client.errors import REQUEST_TIMED_OUT, MalformedReply, SidecarRefused, Unavailable
from logstore.client.wire import TopicPartition
from logstore.errors import FencedIncarnation, InvalidConfig
from logstore.format import epoch_api

ADDRESS = Address("there", 9092)
T0 = TopicPartition("t", 0)

# A reply to METADATA with no broker and no topic, and one to LIST_OFFSETS and FETCH for t-0.
NO_TOPICS = struct.pack(">iihii", 0, 0, -1, 0, 0)
OFFSET_7 = struct.pack(">ii1H1sii", 0, 1, 1, b"t", 1, 0) + struct.pack(">hqq", 0, -1, 7)
PRODUCED_7 = struct.pack(">i1H1sii", 1, 1, b"t", 1, 0) + struct.pack(">hqqqi", 0, 7, -1, 0, 0)

Answer = Callable[[int, int, bytes], bytes | None]


class ScriptedNetwork:
    """Connections end at a function that answers requests; time passes only when the client sleeps."""

    def __init__(self, *answers: Answer | None) -> None:
        self._answers = list(answers)
        self.now_s = 0.0
        self.connections = 0
        self.requests: list[int] = []
        self._open: list[socket.socket] = []

    def connect(self, address: Address, timeout_s: float) -> socket.socket:
        """The next script, the last one for ever; None refuses the connection."""
        assert address == ADDRESS
        assert timeout_s > 0
        answer = self._answers[min(self.connections, len(self._answers) - 1)]
        self.connections += 1
        if answer is None:
            raise ConnectionRefusedError("nobody there")
        ours, theirs = socket.socketpair()
        self._open += [ours, theirs]
        threading.Thread(target=self._serve, args=(theirs, answer), daemon=True).start()
        return ours

    def monotonic_s(self) -> float:
        """The pretended time."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let it pass."""
        self.now_s += seconds

    def close(self) -> None:
        """Close what the scripts left open."""
        for connection in self._open:
            connection.close()

    def _serve(self, connection: socket.socket, answer: Answer) -> None:
        with connection, connection.makefile("rb") as stream:
            while head := stream.read(4):
                frame = stream.read(struct.unpack(">i", head)[0])
                api_key, _, correlation_id = struct.unpack_from(">hhi", frame)
                self.requests.append(api_key)
                reply = answer(api_key, correlation_id, frame)
                if reply is None:
                    return
                connection.sendall(struct.pack(">i", len(reply)) + reply)


def replying(body: bytes) -> Answer:
    """The same body to every request."""
    return lambda _, correlation_id, __: struct.pack(">i", correlation_id) + body


def hang_up(_: int, __: int, ___: bytes) -> None:
    """No answer, and the connection is gone."""


@pytest.fixture
def client_of() -> Iterator[Callable[..., tuple[Client, ScriptedNetwork]]]:
    """A client with scripts for its connections."""
    made: list[tuple[Client, ScriptedNetwork]] = []

    def make(*answers: Answer | None, limit_s: float = 10.0) -> tuple[Client, ScriptedNetwork]:
        network = ScriptedNetwork(*answers)
        made.append((Client([ADDRESS], network, limit_s=limit_s), network))
        return made[-1]

    yield make
    for client, network in made:
        client.close()
        network.close()


Make = Callable[..., tuple[Client, ScriptedNetwork]]


def test_the_last_attempt_of_a_strict_call_ends_at_its_limit() -> None:
    """Nobody answers nine tenths of the time that an attempt has: the next one gets what is left, and not as long
    again.
    """
    given: list[float] = []

    class Recorded(ScriptedNetwork):
        def connect(self, address: Address, timeout_s: float) -> socket.socket:
            given.append(timeout_s)
            self.now_s += 0.9 * timeout_s
            raise TimeoutError("timed out")

    network = Recorded(None)
    with (
        Client([ADDRESS], network, limit_s=10.0, request_timeout_s=10.0, is_strict=True) as client,
        pytest.raises(Unavailable),
    ):
        client.offsets({T0: wire.LATEST})
    assert network.now_s <= 10.0
    assert len(given) > 1


def test_what_a_server_said_is_told_where_the_last_attempt_of_a_strict_call_was_cut_short() -> None:
    """The server takes most of the limit to say why not; the attempt behind it has no time for an answer. The error is
    the server's, and not that nobody answers.
    """
    timed_out = struct.pack(">ii1H1sii", 0, 1, 1, b"t", 1, 0) + struct.pack(">hqq", REQUEST_TIMED_OUT, -1, -1)
    ended = threading.Event()

    def slow(_: int, correlation_id: int, __: bytes) -> bytes | None:
        if len(network.requests) > 1:
            ended.wait()
            return None
        network.now_s = 9.8
        return struct.pack(">i", correlation_id) + timed_out

    network = ScriptedNetwork(slow)
    try:
        with (
            Client([ADDRESS], network, limit_s=10.0, request_timeout_s=10.0, is_strict=True) as client,
            pytest.raises(Unavailable, match=r"could not do this within 10 s .*REQUEST_TIMED_OUT"),
        ):
            client.offsets({T0: wire.LATEST})
    finally:
        ended.set()
    assert len(network.requests) > 1


def test_a_lost_connection_is_made_anew_and_the_question_repeated(client_of: Make) -> None:
    """A sidecar that restarts is not noticed, but for the time it takes."""
    client, network = client_of(hang_up, None, None, replying(OFFSET_7))
    assert client.offsets({T0: wire.LATEST})[T0].offset == 7
    assert (network.connections, network.requests) == (4, [wire.LIST_OFFSETS] * 2)


def test_nobody_there_is_an_error_with_the_address_at_the_limit(client_of: Make) -> None:
    """After the stated time, not before, and not long after."""
    client, network = client_of(None, limit_s=5.0)
    with pytest.raises(Unavailable, match=r"no answer from there:9092 within 5 s \(nobody there\)"):
        client.topics()
    assert 4.0 <= network.now_s <= 5.0


def test_a_server_that_ends_connections_is_not_said_to_be_away(client_of: Make) -> None:
    """A listener with TLS closes a plain connection, and an older sidecar one with a request that it does not know: the
    error names both causes, TLS first, and does not ask whether the sidecar runs.
    """
    client, _ = client_of(hang_up, limit_s=5.0)
    with pytest.raises(
        Unavailable, match=r"9092 closes .* require other TLS or login .* or it is older than"
    ) as caught:
        client.topics()
    assert "running there" not in str(caught.value)
    client, _ = client_of(None, limit_s=5.0)
    with pytest.raises(Unavailable, match="is the sidecar running there"):
        client.topics()


def test_a_started_request_survives_a_lost_connection(client_of: Make) -> None:
    """What was sent ahead is asked again when its answer never comes."""
    body = struct.pack(">ihi", 0, 0, 0) + struct.pack(">i1H1si", 1, 1, b"t", 1)
    body += struct.pack(">ihqqq", 0, 0, 9, 9, 2) + struct.pack(">ii", -1, -1) + struct.pack(">i", 3) + b"abc"
    client, network = client_of(hang_up, replying(body))
    fetched = client.start_fetch(T0, 5, 1000).receive()
    assert (fetched.high_watermark, fetched.log_start_offset, bytes(fetched.records)) == (9, 2, b"abc")
    assert network.requests == [wire.FETCH] * 2


def test_a_produce_is_never_sent_twice(client_of: Make) -> None:
    """Whether it arrived is unknown, so the caller decides; a connection that cannot be made is tried again first."""
    client, network = client_of(None, hang_up, replying(PRODUCED_7))
    with pytest.raises(Unavailable, match="lost during a produce"):
        client.produce(T0, b"batch")
    assert network.requests == [wire.PRODUCE]
    assert client.produce(T0, b"batch") == 7


def test_answers_to_other_questions_are_refused(client_of: Make) -> None:
    """A correlation id that was not asked, and frames no server of ours sends, end the connection, with the address
    named.
    """
    for answer in (
        lambda _, correlation_id, __: struct.pack(">i", correlation_id + 1) + NO_TOPICS,
        lambda _, __, ___: b"\x00",
        replying(b"\x00\x00"),
        replying(struct.pack(">iiI", 0, 0, 0xFFFFFFFF)),
    ):
        client, network = client_of(answer)
        with pytest.raises(MalformedReply):
            client.topics()
        assert network.connections == 1


def test_a_frame_of_a_size_that_cannot_be_allocates_nothing(client_of: Make) -> None:
    """Two thousand million bytes announced are refused by arithmetic."""
    client, network = client_of(replying(NO_TOPICS))
    client.topics()

    def lie(_: int, __: int, ___: bytes) -> bytes | None:
        network._open[-1].sendall(struct.pack(">i", 2**31 - 1))
        return None

    client.close()
    network._answers = [lie]
    with pytest.raises(MalformedReply, match=r"2147483647 bytes from there:9092, .* a Kafka listener, and not of HTTP"):
        client.topics()


def test_errors_of_the_sidecar_come_back_as_they_were_raised(client_of: Make) -> None:
    """By class, with their message, and not tried again."""
    client, network = client_of(
        lambda _, correlation_id, __: epoch_api.encode_reply(
            FencedIncarnation("r1 is old"), correlation_id=correlation_id
        )
    )
    with pytest.raises(FencedIncarnation, match="r1 is old"):
        client.abort(epoch_api.AbortRequest("q", "r1", 3))
    assert network.requests == [epoch_api.ABORT]


def test_a_kafka_is_not_a_sidecar(client_of: Make) -> None:
    """Whoever answers Cairn's own requests with something else is named."""
    client, _ = client_of(replying(b"\x00\x00\x00\x05hello"))
    with pytest.raises(MalformedReply, match="there:9092 does not answer as a Cairn sidecar"):
        client.describe(epoch_api.DescribeRequest("q"))


def test_an_unknown_topic_is_refused_by_name(client_of: Make) -> None:
    """At once if nothing makes it, after a few seconds if something might."""
    body = struct.pack(">iihii", 0, 0, -1, 0, 1) + struct.pack(">h1H1s?i", 3, 1, b"t", False, 0)
    client, network = client_of(replying(body))
    with pytest.raises(SidecarRefused, match="topic 't' at there:9092: UNKNOWN_TOPIC_OR_PARTITION"):
        client.partitions("t")
    assert network.now_s == 0.0
    with pytest.raises(SidecarRefused):
        client.partitions("t", create=True)
    assert 4.0 <= network.now_s <= 6.0


def test_addresses() -> None:
    """host:port with commas between them; IPv6 in brackets; Kafka's port where none is given."""
    assert parse_addresses(" a:1, b ,[::1]:2,[::1]") == [
        Address("a", 1),
        Address("b", 9092),
        Address("::1", 2),
        Address("::1", 9092),
    ]
    for wrong in ("", " , ", "a:b", "a:0", "a:99999", ":1"):
        with pytest.raises(InvalidConfig):
            parse_addresses(wrong)
