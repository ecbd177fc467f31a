"""The network of a simulated cluster: messages and calls between hosts, and connections of clients.

Invariants:
* Messages between hosts are bytes on the way (`logstore.cluster.links.wire`). Each takes a time of its own, so they
  overtake each other; they are lost and come twice as the faults say. Hosts must bear that.
* A connection is a stream: its bytes come in order or not at all. What is sent in a direction that is cut waits, as
  TCP repeats it, until that is healed or an end closes. A host that is gone resets its connections, or is silent.
* A cut holds for one direction; everything random comes from one generator.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import trio

from logstore.base.addresses import Address
from logstore.cluster.links.calls import HostCalls
from logstore.cluster.links.links import HostLinks
from logstore.cluster.links.peers import OwnEnd, Peer
from logstore.cluster.links.wire import FRAME, decode, encode
from logstore.cluster.streams.owner_calls import Handler
from logstore.errors import HostUnreachable
from logstore.interfaces import Buffer
from logstore.replica.messages import Message

MIN_DELAY_S = 0.0002
RECEIVE_BYTES = 1 << 16
Admit = Callable[[socket.socket, str], None]
"""Gives a host's front the socket of a new connection, and the address of the client."""


@dataclass
class NetworkFaults:
    """May be changed at any time."""

    max_delay_s: float = 0.001
    lost: float = 0.0
    """The share of messages between hosts that do not arrive."""
    doubled: float = 0.0
    """The share of them that arrive twice."""


class _PlainSocket(socket.socket):
    """One end of a pair in this process, which has none of TCP's options."""

    def setsockopt(self, *_: Any) -> None:
        """Nothing to set."""


class ClientConnection:
    """A client's end of a connection to a host: requests one after the other."""

    def __init__(self, network: SimulatedNetwork, client: str, host: str) -> None:
        self._network = network
        self.client = client
        self.host = host
        self.is_ended = False
        self._scope = trio.CancelScope()
        self._to_host, self._outgoing = trio.open_memory_channel[bytes](1000)
        self._incoming_sender, self._incoming = trio.open_memory_channel[bytes](1000)
        self._received = bytearray()

    async def ask(self, request: bytes) -> bytes:
        """Send a request with its header; returns the answer behind its correlation id. Raises OSError: the connection
        is of no use any more.
        """
        if self.is_ended:
            raise ConnectionResetError("the connection has ended")
        self._to_host.send_nowait(len(request).to_bytes(4, "big") + request)
        while len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4], "big"):
            try:
                self._received += await self._incoming.receive()
            except trio.EndOfChannel:
                self.is_ended = True
                raise ConnectionResetError("the connection has ended") from None
        size = 4 + int.from_bytes(self._received[:4], "big")
        answer = bytes(self._received[8:size])
        del self._received[:size]
        return answer

    def close(self) -> None:
        """End the connection; nothing that is on its way arrives any more at the client."""
        self.is_ended = True
        self._to_host.close()

    async def run(self, host_end: trio.socket.SocketType) -> None:
        """Carry bytes both ways until an end closes."""
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                nursery.start_soon(self._carry_out, host_end, nursery.cancel_scope)
                nursery.start_soon(self._carry_back, host_end, nursery.cancel_scope)
        finally:
            host_end.close()
            del self._network.connections[self]

    def end(self) -> None:
        """Both ends find that the connection has ended; what is on its way is lost."""
        self._scope.cancel()

    async def _carry_out(self, host_end: trio.socket.SocketType, scope: trio.CancelScope) -> None:
        async for data in self._outgoing:
            await self._network.pass_stream(self.client, self.host)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[await host_end.send(rest) :]
            except OSError:
                break
        scope.cancel()

    async def _carry_back(self, host_end: trio.socket.SocketType, scope: trio.CancelScope) -> None:
        with self._incoming_sender:
            while True:
                try:
                    data = await host_end.recv(RECEIVE_BYTES)
                except OSError:
                    data = b""
                if not data and not self._network.is_silent(self.host):
                    break
                await self._network.pass_stream(self.host, self.client)
                if not data:
                    await trio.sleep_forever()  # the machine is gone: nothing says so
                self._incoming_sender.send_nowait(data)
        scope.cancel()


@dataclass
class _Attached:
    """A host in one life."""

    links: SimulatedLinks
    nursery: trio.Nursery
    admit: Admit | None = None
    is_gone: trio.Event = field(default_factory=trio.Event)


class SimulatedNetwork:
    """See the module."""

    def __init__(self, nursery: trio.Nursery, random: Random) -> None:
        self.nursery = nursery
        self.random = random
        self.faults = NetworkFaults()
        self.cuts: set[tuple[str, str]] = set()
        """Pairs of sender and receiver, hosts or clients."""
        self._changed = trio.Event()
        self.hosts: dict[str, _Attached] = {}
        self._silent: set[str] = set()
        self.connections: dict[ClientConnection, None] = {}
        self._host_ends: list[socket.socket] = []

    def close(self) -> None:
        """Close what hosts that were killed had open; nothing runs any more."""
        for sock in self._host_ends:
            sock.close()

    # ---- faults

    def cut(self, sender: str, receiver: str) -> None:
        """Let nothing pass in this direction."""
        self.cuts.add((sender, receiver))
        self.change()

    def heal(self) -> None:
        """Let everything pass again, at the usual pace."""
        self.cuts.clear()
        self.faults = NetworkFaults()
        self.change()

    def change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def attach(self, name: str, links: SimulatedLinks, nursery: trio.Nursery) -> None:
        """A host is on the network."""
        self._silent.discard(name)
        self.hosts[name] = _Attached(links, nursery)
        self.change()

    def detach(self, name: str, *, is_silent: bool) -> None:
        """A host is gone. `is_silent`: nothing says so; otherwise others find that its address refuses connections."""
        attached = self.hosts.pop(name)
        attached.is_gone.set()
        if is_silent:
            self._silent.add(name)
        self.change()
        for other in list(self.hosts.values()):
            other.links.peer_ended(name, is_refused=not is_silent)

    def reset(self, name: str) -> None:
        """All connections of clients to a host end."""
        for connection in [each for each in self.connections if each.host == name]:
            connection.end()

    def is_silent(self, name: str) -> bool:
        """Whether a host went without a word, and has not come back."""
        return name in self._silent

    # ---- between hosts

    def delay_s(self) -> float:
        """Of one message or piece of a stream."""
        return self.random.uniform(MIN_DELAY_S, max(MIN_DELAY_S, self.faults.max_delay_s))

    def passes(self, sender: str, receiver: str) -> bool:
        """Whether bytes of a sender arrive now."""
        return (sender, receiver) not in self.cuts

    def send(self, sender: str, receiver: str, data: bytes) -> None:
        """Deliver a message after its delay, or not, or twice."""
        if self.random.random() < self.faults.lost:
            return
        for _ in range(1 + (self.random.random() < self.faults.doubled)):
            self.nursery.start_soon(self._deliver, sender, receiver, data, self.hosts.get(receiver))

    async def _deliver(self, sender: str, receiver: str, data: bytes, at: _Attached | None) -> None:
        await trio.sleep(self.delay_s())
        if at is not None and self.hosts.get(receiver) is at and self.passes(sender, receiver):
            at.links.arrived(sender, data)

    async def pass_stream(self, sender: str, receiver: str) -> None:
        """Wait until the next bytes of a stream arrive."""
        await trio.sleep(self.delay_s())
        while not self.passes(sender, receiver):
            await self._changed.wait()

    async def call(self, caller: str, host: str, kind: int, payload: bytes) -> memoryview:
        """Carry out a call at a host: it is carried out even if the answer never arrives. Raises HostUnreachable."""
        answers: list[bytes] = []
        done, at = trio.Event(), self.hosts.get(host)
        await trio.sleep(self.delay_s())
        if at is None or self.hosts.get(host) is not at or not self.passes(caller, host):
            raise HostUnreachable(f"{host} is away")

        async def serve() -> None:
            handler = at.links.handler(kind)  # none yet, while the host starts: it ends the connection
            with suppress(HostUnreachable, OSError):
                answers.extend([b"".join(await handler(caller, memoryview(payload)))] if handler else [])
            done.set()

        async def give_up() -> None:
            await at.is_gone.wait()
            done.set()

        at.nursery.start_soon(serve)
        self.nursery.start_soon(give_up)
        await done.wait()
        await trio.sleep(self.delay_s())
        if not answers or not self.passes(host, caller):
            raise HostUnreachable(f"{host} is away")
        return memoryview(answers[0])

    # ---- clients

    async def connect(self, client: str, address: Address) -> ClientConnection:
        """A new connection of a client. Raises OSError; waits for a host that is silent."""
        await self.pass_stream(client, address.host)
        while self.is_silent(address.host):
            await self._changed.wait()
        at = self.hosts.get(address.host)
        if at is None or at.admit is None:
            raise ConnectionRefusedError(f"nobody listens at {address}")
        await self.pass_stream(address.host, client)
        if self.hosts.get(address.host) is not at:
            raise ConnectionResetError(f"{address} has ended")
        near, far = socket.socketpair()
        connection = ClientConnection(self, client, address.host)
        self.connections[connection] = None
        near.setblocking(False)
        self.nursery.start_soon(connection.run, trio.socket.from_stdlib_socket(near))
        self._host_ends.append(_PlainSocket(fileno=far.detach()))
        at.admit(self._host_ends[-1], client)
        return connection


class SimulatedCalls(HostCalls):
    """Calls of one host over the network."""

    def __init__(self, own: OwnEnd, peers: dict[str, Peer], network: SimulatedNetwork) -> None:
        super().__init__(own, peers)
        self._network = network

    def handler(self, kind: int) -> Handler | None:
        """What serves a kind of call."""
        return self._handlers.get(kind)

    async def call(self, host: str, kind: int, payload: Sequence[Buffer]) -> memoryview:
        """See HostCalls."""
        whole, name = b"".join(payload), self._own.me.host
        if host == name:
            return memoryview(b"".join(await self._handlers[kind](host, memoryview(whole))))
        return await self._network.call(name, host, kind, whole)


class SimulatedLinks(HostLinks):
    """The links of one host over the network."""

    def __init__(self, own: OwnEnd, network: SimulatedNetwork, nursery: trio.Nursery) -> None:
        super().__init__(own)
        self._network = network
        self._host_nursery = nursery
        self.calls = SimulatedCalls(own, self._peers, network)

    def handler(self, kind: int) -> Handler | None:
        """What serves a kind of call."""
        assert isinstance(self.calls, SimulatedCalls)
        return self.calls.handler(kind)

    async def serve(
        self, address: Address, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """See HostLinks."""
        self._network.attach(self._own.me.host, self, self._host_nursery)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._own.bursts.run)
            nursery.start_soon(self._deliver_local)
            task_status.started(address)

    def set_peers(self, peers: dict[str, Peer]) -> None:  # type: ignore[override]
        """See HostLinks."""
        self._peers.clear()
        self._peers.update(peers)

    def send(self, host: str, message: Message) -> None:
        """See HostLinks."""
        if host == self._own.me.host:
            super().send(host, message)
            return
        parts, _ = encode(message, self._own.settings.max_body_bytes)
        self._network.send(self._own.me.host, host, b"".join(parts))

    def arrived(self, sender: str, data: bytes) -> None:
        """A message has come."""
        self._own.bursts.begin()
        self._own.deliver(sender, decode(memoryview(data)[FRAME.size :]))
        self._own.bursts.end()

    def peer_ended(self, host: str, *, is_refused: bool) -> None:
        """A host is gone."""
        if is_refused:
            self._own.observer.refused(host)

    def is_reachable(self, host: str) -> bool:
        """See HostLinks."""
        name = self._own.me.host
        up = host in self._network.hosts and name in self._network.hosts
        return host == name or (up and self._network.passes(name, host) and self._network.passes(host, name))

    def is_stranger_to(self, host: str) -> bool:
        """See HostLinks: here all are known."""
        return False

    def deals(self, host: str) -> bool | None:
        """See HostLinks."""
        return True
