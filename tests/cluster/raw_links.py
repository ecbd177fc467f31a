"""An end of a link that does what it likes, spoken byte by byte."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from crc32c import crc32c

from logstore.base.addresses import Address
from logstore.cluster.links.hello import HEAD, HELLO, Hello, body_bytes, decode_hello, encode_hello
from logstore.cluster.links.peers import Peer
from logstore.cluster.links.wire import encode, frame_head
from logstore.replica.messages import Message
from logstore.replica.registrations import Member
from tests.cluster.links_world import LOOPBACK, LinkedHost
from tests.support.limits import PATIENCE_S

RAW = Member("raw", "disk-raw")
NOWHERE = Peer(Address(LOOPBACK, 1), RAW.disk)
"""An address of loopback at which nobody listens."""


async def exactly(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    """So many bytes. Raises EOFError at the end."""
    found = b""
    with trio.fail_after(PATIENCE_S):
        while len(found) < size:
            piece = await stream.receive_some(size - len(found))
            if not piece:
                raise EOFError
            found += piece
    return found


async def read_hello(stream: trio.abc.ReceiveStream) -> Hello:
    """The other end's hello. Raises LinkRefused, EOFError."""
    head = await exactly(stream, HEAD.size)
    return decode_hello(head + await exactly(stream, body_bytes(head)))


async def is_ended(stream: trio.abc.ReceiveStream) -> bool:
    """Wait for the other end to close the connection."""
    with trio.fail_after(PATIENCE_S):
        try:
            return not await stream.receive_some(1)
        except trio.BrokenResourceError:
            return True


async def opened(host: LinkedHost) -> trio.SocketStream:
    """A connection to a host, without a word."""
    stream = await trio.open_tcp_stream(*host.address)
    host.strangers.append(stream)
    return stream


async def dialed(host: LinkedHost, me: Member = RAW, cluster: str = "cluster1") -> trio.SocketStream:
    """A connection to a host that has accepted our hello."""
    stream = await opened(host)
    await stream.send_all(encode_hello(Hello(cluster, me, host.me.host)))
    await read_hello(stream)
    return stream


def encode_earlier(hello: Hello) -> bytes:
    """A hello as the version before says it: the names are its end."""
    body = encode_hello(hello)[HEAD.size : -1]
    return HEAD.pack(HELLO, len(body), crc32c(body)) + body


def frame(message: Message) -> bytes:
    """A message's frame."""
    return b"".join(encode(message, 1 << 25)[0])


def frame_of(body: bytes) -> bytes:
    """A frame with any body."""
    return frame_head(len(body), crc32c(body)) + body


@asynccontextmanager
async def listening(
    me: Member = RAW, *, is_earlier: bool = False
) -> AsyncIterator[tuple[Peer, trio.MemoryReceiveChannel[trio.SocketStream]]]:
    """A host that answers each hello with its own, and leaves what follows to the test. `is_earlier`: its version says
    nothing of what it knows.
    """
    send, receive = trio.open_memory_channel[trio.SocketStream](100)

    async def serve(stream: trio.SocketStream) -> None:
        hello = await read_hello(stream)
        own = Hello(hello.cluster, me, hello.me.host)
        await stream.send_all(encode_earlier(own) if is_earlier else encode_hello(own))
        await send.send(stream)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        yield Peer(Address(LOOPBACK, listeners[0].socket.getsockname()[1]), me.disk), receive
        nursery.cancel_scope.cancel()
