"""The connections of a blocking client: one to the server that it was given, in a cluster one to each host it needs.

Invariants:
* Where no server says that another one leads a stream, there is one connection, and nothing is asked beside requests.
* A stream whose leader is not known any more is *astray*: it is looked up before the next request for it is sent.
* After a failure the next of the addresses is tried first: a host that is silent does not use up all the time.
* Where a call has an end (`Waiting.until`), no attempt of it waits longer; several addresses share what is left.
* A request uses one connection, from sending to the answer (`at`).
"""

import contextlib
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Final

from logstore.base.addresses import MAX_PORT, Address, parse_address
from logstore.base.errors import AddressError
from logstore.client.errors import MalformedReply
from logstore.client.network import Network
from logstore.client.security import PLAINTEXT, ClientSecurity
from logstore.client.wire import TopicPartition
from logstore.errors import InvalidConfig
from logstore.interfaces import Buffer

MAX_REPLY_BYTES: Final = 1024 * 1024 * 1024
JOINED_BYTES: Final = 65536
"""A request with less behind its first piece is sent in one piece."""
MAX_HOSTS: Final = 64
"""Hosts of a cluster that are remembered beside the addresses that the client was given."""
SECURE_NETWORK: Final = "logstore.client.secure_network"
"""Loaded only where connections are secured: new Spark workers start faster without it."""
LEAST_S: Final = 0.05
"""An attempt gets so much time, however late it begins."""
_DEFAULT_PORT: Final = 9092
_LENGTH: Final = struct.Struct(">i")


def parse_addresses(servers: str) -> list[Address]:
    """Parse `host:port,host:port` (IPv6 in brackets; the port is optional). Raises InvalidConfig, naming the entry."""
    addresses: list[Address] = []
    for entry in (part.strip() for part in servers.split(",")):
        if not entry:
            continue
        try:
            address = parse_address(entry, _DEFAULT_PORT)
        except AddressError as error:
            raise InvalidConfig(str(error)) from error
        if not address.port:
            raise InvalidConfig(f"{entry!r} is not an address of a server: its port must be from 1 to {MAX_PORT}")
        addresses.append(address)
    if not addresses:
        raise InvalidConfig(f"{servers!r} names no server; write host:port")
    return addresses


def secured(network: Network, security: ClientSecurity, client_id: str) -> Network:
    """A network whose connections are encrypted and logged in, as `security` says. Raises InvalidConfig."""
    if security == PLAINTEXT:
        return network
    secure: Network = import_module(SECURE_NETWORK).SecureNetwork(network, security, client_id)
    return secure


class Waiting:
    """How long connections wait for a server to send or take bytes: `timeout_s`, and not beyond the end of a
    call that has one, in monotonic seconds; LEAST_S in any case.
    """

    def __init__(self, network: Network, timeout_s: float) -> None:
        self._network = network
        self._timeout_s = timeout_s
        self._ends_s: float | None = None

    @contextlib.contextmanager
    def until(self, ends_s: float | None) -> Iterator[None]:
        """Let a call end at a moment; None: it ends when it ends."""
        self._ends_s, before_s = ends_s, self._ends_s
        try:
            yield
        finally:
            self._ends_s = before_s

    def left_s(self, shares: int = 1) -> float:
        """How long to wait now, where as many servers as there are shares may be asked one after the other."""
        if self._ends_s is None:
            return self._timeout_s
        return max(LEAST_S, min(self._timeout_s, (self._ends_s - self._network.monotonic_s()) / shares))


class Connection:
    """A connection to the first of some addresses that answers, made when it is needed."""

    def __init__(self, addresses: Sequence[Address], network: Network, waiting: Waiting) -> None:
        self.addresses = list(addresses)
        self._network = network
        self._waiting = waiting
        self._socket: socket.socket | None = None

    @property
    def where(self) -> str:
        """The addresses, for messages."""
        return ", ".join(map(str, self.addresses))

    def fileno(self) -> int:
        """The file descriptor; -1 without a connection."""
        return -1 if self._socket is None else self._socket.fileno()

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def fail(self) -> None:
        """Close it, because it does not work: the next one is tried at the next address."""
        if self._socket is not None:
            self.addresses.append(self.addresses.pop(0))
        self.close()

    def connected(self) -> socket.socket:
        """The socket. Raises OSError if no address answers."""
        if self._socket is None:
            failure: OSError | None = None
            for shares in range(len(self.addresses), 0, -1):
                try:
                    self._socket = self._network.connect(self.addresses[0], self._waiting.left_s(shares))
                    break
                except OSError as error:
                    failure = error
                    self.addresses.append(self.addresses.pop(0))
            else:
                raise failure or OSError("no address")
        self._socket.settimeout(self._waiting.left_s())
        return self._socket

    def send(self, pieces: Sequence[Buffer]) -> None:
        """Send a frame. Raises OSError."""
        connection = self.connected()
        head = _LENGTH.pack(sum(len(piece) for piece in pieces)) + bytes(pieces[0])
        if sum(len(piece) for piece in pieces[1:]) < JOINED_BYTES:
            connection.sendall(b"".join([head, *pieces[1:]]))
            return
        connection.sendall(head)
        for piece in pieces[1:]:
            connection.sendall(piece)

    def receive(self) -> memoryview:
        """Receive a frame. Raises OSError, MalformedReply."""
        (length,) = _LENGTH.unpack(self._receive_exactly(_LENGTH.size))
        if not 0 <= length <= MAX_REPLY_BYTES:
            raise MalformedReply(
                f"a reply of {length} bytes from {self.where}, which is none of Kafka's protocol; is that the "
                "address of a Kafka listener, and not of HTTP (--http) or of TLS?"
            )
        return self._receive_exactly(length)

    def _receive_exactly(self, length: int) -> memoryview:
        connection = self.connected()
        whole = memoryview(bytearray(length))
        at = 0
        while at < length:
            received = connection.recv_into(whole[at:])
            if not received:
                raise ConnectionResetError("the connection was closed")
            at += received
        return whole


class Connections:
    """See the module. `at`: the connection of the request under way, or of the last one."""

    def __init__(self, addresses: Sequence[Address], network: Network, timeout_s: float) -> None:
        self._given = list(addresses)
        self._network = network
        self.waiting = Waiting(network, timeout_s)
        self.home = self.at = Connection(addresses, network, self.waiting)
        self._others: dict[Address, Connection] = {}
        self._leaders: dict[TopicPartition, Address] = {}
        self._astray: dict[TopicPartition, None] = {}

    @property
    def where(self) -> str:
        """The addresses that the client was given, for messages."""
        return ", ".join(map(str, self._given))

    def close(self) -> None:
        """Close all connections; the next request opens a new one."""
        self.home.close()
        for connection in self._others.values():
            connection.close()

    def fail(self) -> None:
        """The connection of the request under way does not work."""
        self.at.fail()
        if self.at is self.home:
            return
        (gone,) = self.at.addresses
        for stream in [stream for stream, address in self._leaders.items() if address == gone]:
            self.stray(stream)

    # ---- whom to ask

    def use_home(self) -> None:
        """The next request goes to any host."""
        self.at = self.home

    def use_leader(self, stream: TopicPartition) -> None:
        """The next request goes to a stream's leader, if another one than the first host is known to lead it."""
        self.use_host(self._leaders.get(stream))

    def use_host(self, address: Address | None) -> None:
        """The next request goes to this address; None: to any host."""
        if address is None:
            self.at = self.home
            return
        found = self._others.get(address)
        if found is None:
            found = self._others[address] = Connection([address], self._network, self.waiting)
        self.at = found

    def leader(self, stream: TopicPartition) -> Address | None:
        """The address of a stream's leader; None: the first host, as far as is known."""
        return self._leaders.get(stream)

    def is_astray(self, stream: TopicPartition) -> bool:
        """Whether a stream's leader is to be looked up."""
        return stream in self._astray

    # ---- what servers say

    def stray(self, stream: TopicPartition) -> None:
        """A server says that it does not lead the stream, or the leader is gone."""
        self._leaders.pop(stream, None)
        self._astray[stream] = None

    def learn(self, leaders: Mapping[TopicPartition, Address], hosts: Iterable[Address]) -> None:
        """Leaders of streams, and all hosts of the cluster."""
        for stream, address in leaders.items():
            self._leaders[stream] = address
            self._astray.pop(stream, None)
        known = [host for host in self.home.addresses if host in self._given]
        self.home.addresses = [*known, *(host for host in list(hosts)[:MAX_HOSTS] if host not in known)]
