"""The blocking client in a cluster: whom it asks, and what happens when a stream moves or a host is gone."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from logstore.base.addresses import Address
from logstore.client import wire
from logstore.client.admin import Admin
from logstore.client.blocking import Client
from logstore.client.errors import (
    LEADER_NOT_AVAILABLE,
    NOT_LEADER,
    UNKNOWN_TOPIC_OR_PARTITION,
    SidecarRefused,
    Unavailable,
)
from logstore.client.wire import TopicPartition
from logstore.errors import NotLeader
from logstore.format import epoch_api

A, B, C = (Address(name, 9092) for name in ("a", "b", "c"))
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NODES = {0: A, 1: B, 2: C}


def text(value: str) -> bytes:
    """A string on the wire."""
    return struct.pack(f">h{len(value)}s", len(value), value.encode())


class ScriptedCluster:
    """Hosts that answer as the hosts of a cluster do. Time passes only when the client sleeps."""

    def __init__(self) -> None:
        self.leaders = {T0: 0, T1: 1}
        """Node by stream; -1: nobody leads it."""
        self.gone: set[Address] = set()
        self.coordinator = 2
        self.lagging = set[Address]()
        """Hosts that know of no topic of groups."""
        self.asked: list[tuple[str, int]] = []
        """Host and API key of each request."""
        self.now_s = 0.0
        self.on_sleep: Callable[[], None] = lambda: None
        self._open: list[tuple[Address, socket.socket]] = []

    def connect(self, address: Address, timeout_s: float) -> socket.socket:
        """A connection, unless the host is gone."""
        if address in self.gone:
            raise ConnectionRefusedError("nobody there")
        ours, theirs = socket.socketpair()
        self._open += [(address, ours), (address, theirs)]
        threading.Thread(target=self._serve, args=(address, theirs), daemon=True).start()
        return ours

    def kill(self, address: Address) -> None:
        """A host is gone, and its connections end."""
        self.gone.add(address)
        for at, connection in self._open:
            if at == address:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def monotonic_s(self) -> float:
        """The pretended time."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let it pass."""
        self.now_s += seconds
        self.on_sleep()

    def close(self) -> None:
        """Close all connections."""
        for _, connection in self._open:
            connection.close()

    def _serve(self, address: Address, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while head := stream.read(4):
                frame = stream.read(struct.unpack(">i", head)[0])
                api_key, _, correlation_id = struct.unpack_from(">hhi", frame)
                self.asked.append((address.host, api_key))
                reply = struct.pack(">i", correlation_id) + self._answer(address, api_key, frame)
                connection.sendall(struct.pack(">i", len(reply)) + reply)

    def _answer(self, address: Address, api_key: int, frame: bytes) -> bytes:
        if api_key == wire.METADATA:
            return self._metadata() if b"__cairn_groups" not in frame else self._groups_topic(address)
        if api_key == wire.LIST_OFFSETS:
            return self._offsets(address, [stream for stream in (T0, T1) if struct.pack(">iq", stream[1], -1) in frame])
        if api_key == wire.FETCH:
            error = self._error(address, T0)
            return (
                struct.pack(">ihii", 0, 0, 0, 1)
                + text("t")
                + struct.pack(">iihqqqiii", 1, 0, error, 9, 9, 0, -1, -1, 0)
            )
        if api_key == wire.FIND_COORDINATOR:
            node = self.coordinator
            return struct.pack(">ihhi", 0, 0, -1, node) + text(NODES[node].host) + struct.pack(">i", 9092)
        if api_key == wire.LIST_GROUPS:
            error = 0 if NODES[self.coordinator] == address else 16
            return struct.pack(">ihi", 0, error, 1) + text("readers") + text("consumer")
        assert api_key == epoch_api.SCAN
        if self._error(address, T0):
            return b"".join(map(bytes, epoch_api.encode_reply_body(NotLeader("another host"))))
        return b"".join(map(bytes, epoch_api.encode_reply_body(epoch_api.ScanReply(b"", 0, 0, 9))))

    def _groups_topic(self, address: Address) -> bytes:
        error = UNKNOWN_TOPIC_OR_PARTITION if address in self.lagging else 0
        return struct.pack(">iihiih", 0, 0, -1, 0, 1, error) + text("__cairn_groups") + struct.pack(">bi", 1, 0)

    def _error(self, address: Address, stream: TopicPartition) -> int:
        return 0 if NODES.get(self.leaders[stream]) == address else NOT_LEADER

    def _metadata(self) -> bytes:
        live = {node: address for node, address in NODES.items() if address not in self.gone}
        parts = [struct.pack(">ii", 0, len(live))]
        parts += [struct.pack(">i", n) + text(at.host) + struct.pack(">ih", at.port, -1) for n, at in live.items()]
        parts += [struct.pack(">hi", -1, 0), struct.pack(">ih", 1, 0), text("t"), struct.pack(">bi", 0, 2)]
        for stream, node in self.leaders.items():
            parts.append(struct.pack(">hiiii", 0 if node >= 0 else LEADER_NOT_AVAILABLE, stream[1], node, 0, 0))
        return b"".join(parts)

    def _offsets(self, address: Address, streams: list[TopicPartition]) -> bytes:
        found = b"".join(
            struct.pack(">ihqq", stream[1], self._error(address, stream), -1, 10 + stream[1]) for stream in streams
        )
        return struct.pack(">ii", 0, 1) + text("t") + struct.pack(">i", len(streams)) + found


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    """Three hosts."""
    made = ScriptedCluster()
    yield made
    made.close()


@pytest.fixture
def client(cluster: ScriptedCluster) -> Iterator[Client]:
    """A client that knows the first host alone."""
    with Client([A], cluster, limit_s=10) as made:
        yield made


def scan(client: Client) -> epoch_api.ScanReply:
    """A scan of t-0."""
    return client.scan(epoch_api.ScanRequest("t", 0, -1, (), 100))


def test_where_nothing_moves_nothing_else_is_asked(cluster: ScriptedCluster, client: Client) -> None:
    """As with a sidecar alone: no look-up before or between requests."""
    for _ in range(2):
        assert client.offsets({T0: wire.LATEST})[T0].offset == 10
        assert client.start_fetch(T0, 0, 100).receive().high_watermark == 9
        assert scan(client).high_watermark == 9
    assert {key for _, key in cluster.asked} == {wire.LIST_OFFSETS, wire.FETCH, epoch_api.SCAN}


def test_requests_go_to_the_leaders_of_their_streams(cluster: ScriptedCluster, client: Client) -> None:
    """Found by one look-up, then known; a request for streams of several leaders is asked of each."""
    cluster.leaders[T0] = 2
    found = client.offsets({T0: wire.LATEST, T1: wire.LATEST})
    assert (found[T0].offset, found[T1].offset) == (10, 11)
    assert scan(client).high_watermark == 9
    assert client.start_fetch(T0, 0, 100).receive().error == 0
    assert [key for _, key in cluster.asked].count(wire.METADATA) == 1
    assert cluster.asked[-2:] == [("c", epoch_api.SCAN), ("c", wire.FETCH)]


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_stream_that_moves_is_followed(cluster: ScriptedCluster, client: Client, *, is_killed: bool) -> None:
    """Its leader is killed, or hands it over; nobody leads it for a while; requests under way are asked again."""
    cluster.leaders[T0] = 1
    fetch = client.start_fetch(T0, 0, 100)
    assert fetch.receive().error == 0
    cluster.leaders[T0] = -1
    if is_killed:
        cluster.kill(B)

    def take_over() -> None:
        if cluster.now_s > 1:
            cluster.leaders[T0] = 2

    cluster.on_sleep = take_over
    assert client.start_fetch(T0, 0, 100).receive().error == 0
    assert scan(client).high_watermark == 9
    assert 1 < cluster.now_s < 3


def test_another_host_answers_when_the_first_one_is_gone(cluster: ScriptedCluster, client: Client) -> None:
    """The hosts of a cluster are known from a look-up on; one that is silent or gone is asked last."""
    cluster.leaders[T0] = 2
    client.offsets({T0: wire.LATEST})
    cluster.kill(A)
    assert client.partitions("t") == 2
    assert client.offsets({T1: wire.LATEST})[T1].offset == 11


def test_a_stream_without_a_leader_is_waited_for_as_long_as_the_client_waits(
    cluster: ScriptedCluster, client: Client
) -> None:
    """Then the error says so."""
    cluster.leaders[T0] = -1
    with pytest.raises(Unavailable, match=r"within 10 s .*LEADER_NOT_AVAILABLE"):
        client.offsets({T0: wire.LATEST})


def test_groups_are_asked_for_at_their_coordinator(cluster: ScriptedCluster, client: Client) -> None:
    """Also when it moves, or is gone."""
    admin = Admin(client)
    assert admin.group_names() == ["readers"]
    cluster.coordinator = 1
    assert admin.group_names() == ["readers"]
    cluster.kill(B)
    cluster.coordinator = 0
    assert admin.group_names() == ["readers"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_that_there_are_no_groups_is_believed_when_several_hosts_say_so(
    cluster: ScriptedCluster, client: Client, is_lost: bool
) -> None:
    """A host that lags behind knows of no topic of groups; another one does. One that is gone is passed over."""
    cluster.lagging = {A} if is_lost else {A, B}
    cluster.on_sleep = lambda: cluster.kill(B) if is_lost else None
    assert Admin(client).group_names() == ["readers"]
    cluster.lagging = {A, B, C}
    assert Admin(client).group_names() == []
    assert ("c", wire.LIST_GROUPS) in cluster.asked


def test_a_batch_is_sent_once(cluster: ScriptedCluster, client: Client) -> None:
    """A produce that another host would take is refused, and goes there the next time."""
    cluster.leaders[T0] = 2
    client.offsets({T0: wire.LATEST})
    cluster.kill(C)
    with pytest.raises((Unavailable, SidecarRefused)):
        client.produce(T0, b"batch")
    assert ("c", wire.PRODUCE) not in cluster.asked
