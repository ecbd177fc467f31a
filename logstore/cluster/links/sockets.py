"""What links need of connected sockets beyond sending and receiving."""

import socket

from logstore.base.connected_socket import ConnectedSocket


def set_options(sock: socket.socket, silence_s: float) -> None:
    """Prepare the socket of a link: small messages leave at once, and a machine that does not answer for `silence_s`
    seconds ends the connection. Raises OSError.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", max(1, int(silence_s / 4))),
        ("TCP_KEEPINTVL", max(1, int(silence_s / 4))),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", int(silence_s * 1000)),
    ):
        if hasattr(socket, option):  # Linux; elsewhere the defaults of the system count
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def receive_exactly(link: ConnectedSocket, size: int) -> bytes:
    """Receive so many bytes. Raises OSError if the other end sends fewer."""
    target = bytearray(size)
    view, at = memoryview(target), 0
    while at < size:
        received = await link.receive(view[at:])
        if not received:
            raise OSError(f"the connection ended behind {at} of {size} bytes of a hello")
        at += received
    return bytes(target)
