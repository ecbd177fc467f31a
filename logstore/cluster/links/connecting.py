"""How this host connects to another one, for messages or for calls: a socket, and the hello of both ends.

Invariant: links without TLS are for loopback addresses alone.
"""

import socket
from typing import Final

import trio

from logstore.base.addresses import Address, is_loopback
from logstore.base.connected_socket import ConnectedSocket
from logstore.cluster.links.hello import HEAD, Hello, body_bytes, check_hello, decode_hello, encode_hello, shown
from logstore.cluster.links.peers import OwnEnd, Peer
from logstore.cluster.links.sockets import receive_exactly
from logstore.errors import LinkRefused

MAX_TRIED: Final = 4
"""Addresses of a host's name that are tried: `localhost` has two."""


async def connect(own: OwnEnd, address: Address) -> ConnectedSocket:
    """A connection to the address. Raises OSError, ConnectionRefusedError if nobody listens there."""
    if own.tls is None and not is_loopback(address.host):
        raise OSError(f"{address} is not a loopback address, and links without TLS are for those alone")
    trouble: OSError | None = None
    with trio.move_on_after(own.settings.connect_s):
        found = await trio.socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, target in found[:MAX_TRIED]:
            sock = trio.socket.socket(family, kind, protocol)
            try:
                await sock.connect(target)
                return own.wrapped(socket.socket(fileno=sock.detach()), is_server=False)
            except OSError as error:
                if trouble is None or not isinstance(error, ConnectionRefusedError):
                    trouble = error  # a host is gone if all of its addresses refuse
            finally:
                sock.close()
    raise trouble or OSError(f"no connection within {own.settings.connect_s:g} s")


async def greet(link: ConnectedSocket, own: OwnEnd, host: str, peer: Peer, *, for_calls: bool = False) -> Hello:
    """Exchange hellos with a host; returns the host's. Raises OSError, MalformedMessage, LinkRefused, TlsError."""
    hello = own.hello_to(host, for_calls=for_calls)
    with trio.move_on_after(own.settings.handshake_s):
        await link.handshake()
        own.check_name(link, host)
        await link.send([encode_hello(hello)], own.settings.handshake_s)
        head = await receive_exactly(link, HEAD.size)
        found = decode_hello(head + await receive_exactly(link, body_bytes(head)))
        if found.me.host != host:
            raise LinkRefused(f"at {peer.address} is host {shown(found.me.host)}, not {host!r}")
        check_hello(hello, found, peer.disk)
        return found
    raise OSError(f"no hello within {own.settings.handshake_s:g} s")
