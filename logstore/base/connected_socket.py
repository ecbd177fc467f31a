"""A connected socket, with no more system calls and task switches than necessary.

Invariants: every `receive` yields to other tasks; `send` yields only if it has to wait for the socket.
"""

import socket
from collections.abc import Callable, Sequence

import trio

Buffer = bytes | bytearray | memoryview
IO_VECTOR_PARTS = 512
"""Buffers for one system call; the kernel accepts 1024."""
JOIN_BYTES = 64 * 1024
"""Up to this size it is cheaper to join buffers than to pass them one by one."""


class ConnectedSocket:
    """Owns a connected socket. Methods raise OSError when the other end is gone."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._is_drained = True

    @property
    def certificate(self) -> bytes | None:
        """The other end's certificate, as DER, checked; None: it has none."""
        return None

    @property
    def descriptor(self) -> int | None:
        """Of a file that has data when `receive_nowait` has some; None: there is none."""
        return self._socket.fileno()

    async def handshake(self) -> None:
        """Do what comes before the first frame: nothing on a plain connection. Raises HandshakeFailed, OSError."""

    async def receive(self, target: memoryview) -> int:
        """Receive into `target`; returns the number of bytes, 0 when the other end has closed its side."""
        while True:
            await self.wait_data()
            received = self.receive_nowait(target)
            if received is not None:
                return received

    async def wait_data(self) -> None:
        """Wait until `receive_nowait` may find data; always yields to other tasks."""
        if self._is_drained:
            await trio.lowlevel.wait_readable(self._socket)
        else:
            await trio.lowlevel.checkpoint()

    def receive_nowait(self, target: memoryview) -> int | None:
        """Receive available bytes into `target`; 0 at the end of what the other end sends, None if there are
        none yet.
        """
        try:
            received = self._socket.recv_into(target)
        except (BlockingIOError, InterruptedError):
            self._is_drained = True
            return None
        # A short read emptied the socket: waiting for it is cheaper than another system call that finds no data.
        self._is_drained = received < len(target)
        return received

    def send_nowait(self, parts: Sequence[Buffer]) -> list[memoryview]:
        """Send, in order, what the socket accepts without waiting; returns the rest."""
        if sum(map(len, parts)) <= JOIN_BYTES:
            whole = parts[0] if len(parts) == 1 else b"".join(parts)
            if not whole:
                return []
            try:
                sent = self._socket.send(whole)
            except (BlockingIOError, InterruptedError):
                sent = 0
            if sent == len(whole):
                return []
            rest = [memoryview(whole)[sent:]]
        else:
            rest = [memoryview(part) for part in parts if part]
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

    async def send(
        self, parts: Sequence[Buffer], patience_s: float, on_rest: Callable[[int], None] = lambda size: None
    ) -> None:
        """Send all parts, in order. Before each wait for the other end, `on_rest` gets the number of bytes that are
        left. Raises TooSlow when the other end takes nothing for `patience_s` seconds.
        """
        rest = self.send_nowait(parts)
        while rest:
            on_rest(sum(map(len, rest)))
            with trio.move_on_after(patience_s) as scope:
                await trio.lowlevel.wait_writable(self._socket)
            if scope.cancelled_caught:
                raise TooSlow("it does not read what is sent to it")
            rest = self.send_nowait(rest)

    def end_sending(self) -> None:
        """Shut down the sending side, so that the other end sees the end of what was sent."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket; a task that waits for it gets trio.ClosedResourceError."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class TooSlow(OSError):
    """The other end does not take what is sent to it."""


class HandshakeFailed(OSError):
    """Both ends did not agree on TLS; the message says why."""
