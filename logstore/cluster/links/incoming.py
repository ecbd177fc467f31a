"""The connections from other hosts to this one, on which it receives.

Invariants:
* Each host has one connection for messages, and one for calls: a new one ends the older one, which may be dead.
* Connections that have not said who they are have `max_strangers` places and `handshake_s` seconds, and make this host
  keep a hello each. One more takes the place of the oldest, of the address
  (`address_group`) that has most of them.
* A host speaks for itself: a message that names another host as its sender ends the connection, and so does what is no
  message. Other connections go on.
* After RECEIVE_BYTES of one connection other tasks run; a short message counts as MESSAGE_BYTES.
"""

import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio

from logstore.base.addresses import Address, address_group, canonical_host
from logstore.base.connected_socket import ConnectedSocket
from logstore.base.errors import TlsError
from logstore.base.failures import cannot_listen
from logstore.cluster.links.hello import (
    HEAD,
    Hello,
    body_bytes,
    check_hello,
    decode_hello,
    encode_hello,
    encode_refusal,
    shown,
)
from logstore.cluster.links.peers import LinkCounts, OwnEnd, Peer
from logstore.cluster.links.sockets import receive_exactly
from logstore.cluster.links.wire import FrameBuffer, decode
from logstore.errors import LinkRefused, MalformedMessage
from logstore.events import CANNOT_ACCEPT, LINK_CLOSED, PEER_DISCONNECTED
from logstore.replica.messages import (
    AppendDone,
    CopyDone,
    CopyProgress,
    EntriesRead,
    FenceDone,
    Message,
    OutOfOrder,
    Refused,
)

BACKLOG: Final = 128
ACCEPT_AGAIN_S: Final = 0.1
"""How long to wait after a connection could not be accepted, as when the process has no descriptor left."""
RECEIVE_BYTES: Final = 256 * 1024
MESSAGE_BYTES: Final = 4096
"""What a message counts for beside its bytes: 64 short messages, or 256 KiB, are some milliseconds of work."""
_SPEAKING: Final = (AppendDone, OutOfOrder, FenceDone, CopyDone, CopyProgress, Refused, EntriesRead)


async def open_listener(address: Address) -> trio.socket.SocketType:
    """A socket that listens on the address. Raises OSError, which names the address."""
    try:
        found = await trio.socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, target = found[0]
        listener = trio.socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await listener.bind(target)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise cannot_listen(f"{address} for links", error) from error
    return listener


ServeCalls = Callable[[str, ConnectedSocket], Awaitable[None]]
"""Serves a host's calls to the end of the connection. Raises OSError, MalformedMessage."""


class Strangers:
    """Connections that have not said who they are."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._hosts: dict[Callable[[], None], str] = {}

    def enter(self, host: str, end: Callable[[], None]) -> None:
        """A new connection; ends another one if all places are taken."""
        host = address_group(host)
        if len(self._hosts) >= self._places:
            counts: dict[str, int] = {}
            for each in self._hosts.values():
                counts[each] = counts.get(each, 0) + 1
            most = max(counts, key=lambda each: counts[each])
            oldest = next(found for found, each in self._hosts.items() if each == most)
            del self._hosts[oldest]
            oldest()
        self._hosts[end] = host

    def leave(self, end: Callable[[], None]) -> None:
        """A connection has ended, or said who it is."""
        self._hosts.pop(end, None)


class IncomingLinks:
    """Listens for the other hosts. `greeted` is called with a host that has connected; `serve_calls` serves a
    connection of calls to its end.
    """

    def __init__(
        self, own: OwnEnd, peers: Mapping[str, Peer], greeted: Callable[[str], None], serve_calls: ServeCalls
    ) -> None:
        self._own = own
        self._peers = peers
        self._greeted = greeted
        self._strangers = Strangers(own.settings.max_strangers)
        self._serve_calls = serve_calls
        self._links: dict[str, trio.CancelScope] = {}
        self._calls: dict[str, trio.CancelScope] = {}

    async def serve(self, listener: trio.socket.SocketType) -> None:
        """Take connections, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    client, source = await listener.accept()
                except OSError as error:
                    self._own.report(CANNOT_ACCEPT, error=str(error))
                    await trio.sleep(ACCEPT_AGAIN_S)
                    continue
                nursery.start_soon(self._serve, client, canonical_host(str(source[0])))

    async def _serve(self, client: trio.socket.SocketType, source: str) -> None:
        try:
            link = self._own.wrapped(socket.socket(fileno=client.detach()), is_server=True)
        except OSError:  # gone already
            return
        scope = trio.CancelScope()
        self._strangers.enter(source, scope.cancel)
        host, links = "", self._links
        try:
            with scope:
                hello = await self._welcome(link)
                host, links = hello.me.host, self._calls if hello.for_calls else self._links
                self._strangers.leave(scope.cancel)
                self._take_over(host, links, scope)
                await (self._serve_calls(host, link) if hello.for_calls else self._receive(link, host))
            if scope.cancelled_caught and not host:
                self._own.report(LINK_CLOSED, client=source, why="it gave way to a newer connection")
        except (OSError, MalformedMessage, LinkRefused, TlsError) as error:
            if not host:
                self._own.report(LINK_CLOSED, client=source, why=str(error))
            elif isinstance(error, MalformedMessage):
                self._own.report(PEER_DISCONNECTED, host=host, why=str(error))
        finally:
            self._strangers.leave(scope.cancel)
            if links.get(host) is scope:
                del links[host]
            link.close()

    def _take_over(self, host: str, links: dict[str, trio.CancelScope], scope: trio.CancelScope) -> None:
        older = links.get(host)
        links[host] = scope
        if older is not None:
            older.cancel()
        self._greeted(host)

    async def _welcome(self, link: ConnectedSocket) -> Hello:
        """Exchange hellos; returns the host's. Raises OSError, MalformedMessage, LinkRefused, TlsError."""
        patience_s = self._own.settings.handshake_s
        with trio.move_on_after(patience_s):
            await link.handshake()
            head = await receive_exactly(link, HEAD.size)
            found = decode_hello(head + await receive_exactly(link, body_bytes(head)))
            own = self._own.hello_to(found.me.host, for_calls=found.for_calls)
            try:
                self._own.check_name(link, found.me.host)
                self._check(own, found)
            except (LinkRefused, TlsError) as error:
                link.send_nowait([encode_refusal(str(error))])
                raise
            await link.send([encode_hello(own)], patience_s)
            return found
        raise OSError(f"it did not identify itself within {patience_s:g} s")

    def _check(self, own: Hello, found: Hello) -> None:
        known = self._peers.get(found.me.host)
        check_hello(own, found, None if known is None else known.disk)

    async def _receive(self, link: ConnectedSocket, host: str) -> None:
        """Hand over messages until the connection ends, or one meets a defect. Raises OSError, MalformedMessage."""
        frames = FrameBuffer(self._own.settings.max_body_bytes, RECEIVE_BYTES)
        left, counts = RECEIVE_BYTES, self._own.counts_of(host)
        while True:
            received = await link.receive(frames.room())
            if not received:
                return
            frames.add(received)
            counts.received_bytes += received
            while (taken := self._take(frames, host, counts, left)) is not None:
                left -= taken
                if left > 0:
                    break
                left = RECEIVE_BYTES
                await trio.lowlevel.checkpoint()
            else:
                return

    def _take(self, frames: FrameBuffer, host: str, counts: LinkCounts, most: int) -> int | None:
        """Hand over whole messages, as one burst, until they count for `most`; returns what they count for, None if one
        has met a defect. Raises MalformedMessage.
        """
        taken = 0
        self._own.bursts.begin()
        try:
            while taken < most and (body := frames.next()) is not None:
                counts.received_messages += 1
                message = decode(body)
                check_speaker(host, message)
                if not self._own.deliver(host, message):
                    return None
                taken += len(body) + MESSAGE_BYTES
        finally:
            self._own.bursts.end()
        return taken


def check_speaker(host: str, message: Message) -> None:
    """Raises MalformedMessage if a message that came from a host speaks for another one."""
    if isinstance(message, _SPEAKING) and message.member.host != host:
        raise MalformedMessage(
            f"host {host!r} sent a {type(message).__name__} of stream {shown(message.stream)} in the name of "
            f"{shown(message.member.host)}"
        )
