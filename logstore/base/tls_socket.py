"""A connected socket with TLS on it, of either end. OpenSSL works on memory; the bytes it makes and takes go
through the plain socket.

Invariants:
* `send_nowait` returns what the socket has not taken, as for a plain socket. Bytes that are encrypted already, but not
  taken whole, are the first bytes of that rest; they are skipped when it comes back.
* Memory is bounded: at most AHEAD_BYTES are encrypted ahead of the socket, at most RECEIVE_BYTES are received ahead of
  OpenSSL, and who makes OpenSSL answer without reading (key updates) is cut at MAX_UNSENT_BYTES.
* One call receives from the socket at most once, so that records without content do not keep the event loop.
* The handshake's arithmetic runs on threads, a few at a time: who only shakes hands costs the others nothing but those
  threads' time. What all handshakes hold is bounded (`logstore.base.tls_handshakes`).
"""

import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import Final, cast

import trio

from logstore.base.connected_socket import JOIN_BYTES, Buffer, ConnectedSocket, HandshakeFailed, TooSlow
from logstore.base.tls_handshakes import Handshake, Handshakes

RECEIVE_BYTES: Final = 64 * 1024
"""Of encrypted bytes for one system call: four whole records."""
AHEAD_BYTES: Final = 64 * 1024
"""Encrypted before the socket is asked: four records for one system call."""
MAX_UNSENT_BYTES: Final = 2 * AHEAD_BYTES
"""Above what AHEAD_BYTES become by encryption."""


class TlsSocket(ConnectedSocket):
    """Owns a connected socket and the TLS on it."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, handshakes: Handshakes, *, is_server: bool = True
    ) -> None:
        """`handshakes` are those of all connections."""
        super().__init__(sock)
        self._handshakes = handshakes
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)
        self._unsent = memoryview(b"")
        self._ahead_bytes = 0
        self._is_socket_drained = True

    @property
    def certificate(self) -> bytes | None:
        """The other end's certificate, as DER, checked; None: it has none."""
        return self._tls.getpeercert(binary_form=True)

    @property
    def descriptor(self) -> int | None:
        """None: OpenSSL may have data that the socket has no more."""
        return None

    async def handshake(self) -> None:
        """Shake hands. Raises HandshakeFailed, OSError when the other end is gone."""
        with self._handshakes.one() as handshake:
            await self._shake(handshake)

    async def _shake(self, handshake: Handshake) -> None:
        is_done = not self._tls.server_side and await self._handshake_step()
        while not is_done:
            await trio.lowlevel.wait_readable(self._socket)
            received = self._refill()
            if received is None:
                continue
            if received == 0:
                raise HandshakeFailed("the connection ended during the TLS handshake")
            self._handshakes.received(handshake, received)
            is_done = await self._handshake_step()
        self._is_drained = False  # data may have come with the end of the handshake

    async def _handshake_step(self) -> bool:
        """Compute with what was received, and send what comes of it; returns whether the handshake is done."""
        is_done = True
        try:
            await trio.to_thread.run_sync(self._tls.do_handshake, limiter=self._handshakes.threads)
        except ssl.SSLWantReadError:
            is_done = False
        except ssl.SSLError as error:
            with contextlib.suppress(OSError):
                self._push()  # the alert tells the other end
            raise HandshakeFailed(f"no TLS handshake: {self._reason(error)}") from error
        while not self._push():
            await trio.lowlevel.wait_writable(self._socket)
        return is_done

    def _reason(self, error: ssl.SSLError) -> str:
        """OpenSSL's reason, and of a refused certificate what is wrong with it."""
        if isinstance(error, ssl.SSLCertVerificationError):
            whose = "client" if self._tls.server_side else "server"
            return f"the {whose}'s certificate is refused: {error.verify_message}"
        return (error.reason or "the connection ended").lower().replace("_", " ")

    def receive_nowait(self, target: memoryview) -> int | None:
        """Receive decrypted bytes into `target`; 0 at the end of what the other end sends, None if there are
        none yet.
        """
        received = self._decrypt(target)
        if received is None:
            if self._refill() is None:
                self._is_drained = True
                return None
            received = self._decrypt(target)
        if not received:  # the end is found again by the next call, which must not wait: no byte may follow a farewell
            self._is_drained = self._is_socket_drained and received is None
            return received
        more: int | None = received
        while more and received < len(target):  # a record is short: go on with those that are here
            more = self._decrypt(target[received:])
            received += more or 0
        is_empty = more is None or not (self._tls.pending() or self._incoming.pending)
        # A farewell that was found behind the bytes is found again by the next call, which must not wait.
        self._is_drained = self._is_socket_drained and is_empty and more != 0
        return received

    def _decrypt(self, target: memoryview) -> int | None:
        try:
            return cast(int, self._tls.read(len(target), cast(bytearray, target)))  # with a target it gives a number
        except ssl.SSLWantReadError:
            return None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            # Many end without TLS's farewell. Frames carry their lengths, so nothing can be cut off unseen.
            return 0
        finally:
            if self._outgoing.pending:  # OpenSSL answers by itself, such as to a key update
                self._push()

    def _refill(self) -> int | None:
        """Receive encrypted bytes for OpenSSL; 0 when the other end has closed its side, None if there are none yet."""
        try:
            received = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            self._is_socket_drained = True
            return None
        if received:
            self._incoming.write(received)
        else:
            self._incoming.write_eof()
        self._is_socket_drained = len(received) < RECEIVE_BYTES
        return len(received)

    def send_nowait(self, parts: Sequence[Buffer]) -> list[memoryview]:
        """Encrypt and send, in order, what the socket accepts without waiting; returns the rest."""
        rest = [memoryview(part) for part in parts if part]
        if len(rest) > 1 and sum(map(len, rest)) <= JOIN_BYTES:
            rest = [memoryview(b"".join(rest))]
        while self._push():
            rest = _after(rest, self._ahead_bytes)
            self._ahead_bytes = self._encrypt(rest)
            if not rest:
                return rest
        return rest

    def _encrypt(self, rest: Sequence[memoryview]) -> int:
        """Encrypt up to AHEAD_BYTES of the first bytes; returns how many."""
        done = 0
        for part in rest:
            piece = part[: AHEAD_BYTES - done]
            while piece:
                written = self._tls.write(piece)
                done += written
                piece = piece[written:]
            if done >= AHEAD_BYTES:
                break
        return done

    def _push(self) -> bool:
        """Send encrypted bytes; returns whether the socket took all. Raises OSError."""
        while True:
            if not self._unsent:
                if not self._outgoing.pending:
                    return True
                self._unsent = memoryview(self._outgoing.read())
            elif len(self._unsent) + self._outgoing.pending > MAX_UNSENT_BYTES:
                raise TooSlow("the peer does not read TLS messages")
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                return False
            self._unsent = self._unsent[sent:]

    def end_sending(self) -> None:
        """Say farewell and shut down the sending side, so that the other end sees the end of what was sent."""
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        self._push()
        super().end_sending()


def _after(parts: Sequence[memoryview], size: int) -> list[memoryview]:
    """What lies behind the first `size` bytes."""
    for number, part in enumerate(parts):
        if size < len(part):
            return [part[size:], *parts[number + 1 :]]
        size -= len(part)
    return []
