"""The socket of a link: large pieces in, gathered pieces out.

Invariants: every `receive` yields to other tasks; `send` yields only if it has to wait for the socket.
"""

import socket
from collections.abc import Sequence
from typing import Final

import trio

from logstore.interfaces import Buffer

IO_VECTOR_PARTS: Final = 512
"""Buffers for one system call; the kernel accepts 1024."""
JOIN_BYTES: Final = 64 * 1024
"""Up to this size it is cheaper to join buffers than to pass them one by one."""


class LinkSocket:
    """Owns a connected socket. Methods raise OSError when the other host is gone."""

    def __init__(self, sock: socket.socket, silence_s: float) -> None:
        """`silence_s`: the connection ends when the other machine has not answered for so long."""
        self._socket = sock
        self._is_drained = True
        try:
            _set_options(sock, silence_s)
        except OSError:  # gone already
            sock.close()
            raise

    async def receive(self, target: memoryview) -> int:
        """Receive into `target`; returns the number of bytes, 0 when the other end sends no more."""
        while True:
            if self._is_drained:
                await trio.lowlevel.wait_readable(self._socket)
            else:
                await trio.lowlevel.checkpoint()
            try:
                received = self._socket.recv_into(target)
            except (BlockingIOError, InterruptedError):
                self._is_drained = True
                continue
            # A short read emptied the socket: waiting for it is cheaper than a system call that finds no data.
            self._is_drained = received < len(target)
            return received

    async def receive_exactly(self, size: int) -> bytes:
        """Receive so many bytes. Raises OSError if the other end sends fewer."""
        target = bytearray(size)
        view, at = memoryview(target), 0
        while at < size:
            received = await self.receive(view[at:])
            if not received:
                raise OSError(f"the connection ended behind {at} of {size} bytes")
            at += received
        return bytes(target)

    def send_nowait(self, parts: Sequence[Buffer]) -> list[memoryview]:
        """Send, in order, what the socket accepts without waiting; returns the rest."""
        rest = [memoryview(part) for part in parts if part]
        if len(rest) > 1 and sum(map(len, rest)) <= JOIN_BYTES:
            rest = [memoryview(b"".join(rest))]
        while rest:
            try:
                sent = self._socket.sendmsg(rest[:IO_VECTOR_PARTS])
            except (BlockingIOError, InterruptedError):
                break
            done = 0
            while done < len(rest) and sent >= len(rest[done]):
                sent -= len(rest[done])
                done += 1
            del rest[:done]
            if sent:
                rest[0] = rest[0][sent:]
        return rest

    async def send(self, parts: Sequence[Buffer], patience_s: float) -> None:
        """Send all parts, in order. Raises OSError when the other end takes nothing for `patience_s` seconds."""
        rest = self.send_nowait(parts)
        while rest:
            with trio.move_on_after(patience_s) as scope:
                await trio.lowlevel.wait_writable(self._socket)
            if scope.cancelled_caught:
                raise OSError(f"the other end has taken nothing for {patience_s:g} s")
            rest = self.send_nowait(rest)

    def close(self) -> None:
        """Close the socket; a task that waits for it gets trio.ClosedResourceError."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


def _set_options(sock: socket.socket, silence_s: float) -> None:
    sock.setblocking(False)
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
