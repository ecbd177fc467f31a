"""The chunk server: takes a chunk over TCP, writes it, forwards it down the chain as it comes, acknowledges upwards.

A chunk is a header (length, JSON), its bytes, and their CRC-32C. The header names the rest of the chain. The answer is
one line of JSON: the hosts that have the chunk, or what went wrong and which hosts are suspected.

Invariants:
* An answer without error comes only after every host of the chain has the bytes, checked and fsynced, in its file.
* Each host of the chain checks the CRC itself; what is refused or cut short leaves no file.
* At most MOST_CONNECTIONS at a time, headers up to MOST_HEADER_BYTES; every wait has a time limit.
* A failure names the host that failed: the next one when it cannot be reached or falls silent, this one for its disk.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import crc32c

from benchmarks.racks.pace import Pace

BLOCK_BYTES = 32 << 10
BUFFER_BYTES = 64 << 10
"""Of a socket, each way. With three hops 0.4 MB of a chunk are under way, a tenth of what HDFS allows (80 × 64 KB)."""
MAX_CONNECTIONS = 256
MAX_HEADER_BYTES = 16 << 10
MAX_CHUNK_BYTES = 1 << 30
CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 60.0
"""Longest wait for the next block or the answer; the slowest of 16 paced writers waits less than a second for one."""
_LENGTH = struct.Struct(">I")
_CRC = struct.Struct(">I")


class Hop(NamedTuple):
    """A host of a chain: its name, and where its chunk server listens."""

    name: str
    address: str
    port: int


class Chunk(NamedTuple):
    """A chunk's name: of which request, which one, at which attempt."""

    request: str
    number: int
    attempt: int = 1

    @property
    def file(self) -> str:
        """Its file's name on every host."""
        return f"{self.request.replace('/', '_')}.{self.number}.{self.attempt}"


class Answer(NamedTuple):
    """What comes back up the chain: who has the chunk, or what went wrong and who is suspected."""

    stored: tuple[str, ...] = ()
    error: str | None = None
    suspects: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """One line of JSON."""
        return json.dumps(self._asdict()).encode() + b"\n"


class ChunkFailed(Exception):
    """A chunk that was not stored by the whole chain; `suspects` are the hosts to avoid."""

    def __init__(self, message: str, suspects: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.suspects = tuple(suspects)


@dataclass(frozen=True, slots=True)
class Header:
    """What comes before a chunk's bytes; `rest` is the chain behind the receiver."""

    chunk: Chunk
    size_bytes: int
    rest: tuple[Hop, ...]

    def encode(self) -> bytes:
        """The header as it is sent."""
        body = json.dumps([self.chunk, self.size_bytes, self.rest]).encode()
        return _LENGTH.pack(len(body)) + body


class Connection:
    """A blocking socket with time limits, for whole blocks. Raises OSError, a cut connection included."""

    def __init__(self, sock: socket.socket, silence_s: float = SILENCE_SECONDS) -> None:
        self.sock = sock
        limit = struct.pack("ll", int(silence_s), int(silence_s % 1 * 1e6))
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fill(self, view: memoryview) -> None:
        """Receive exactly as many bytes as `view` has."""
        got = 0
        while got < len(view):
            count = self.sock.recv_into(view[got:], 0, socket.MSG_WAITALL)
            if count == 0:
                raise ConnectionError("the connection was cut")
            got += count

    def take(self, size_bytes: int) -> bytes:
        """Receive so many bytes."""
        buffer = bytearray(size_bytes)
        self.fill(memoryview(buffer))
        return bytes(buffer)

    def spoke(self) -> bool:
        """Something has come that nobody read yet: an answer before its time is an error."""
        return bool(select.select([self.sock], [], [], 0)[0])

    def answer(self) -> Answer:
        """Receive the answer."""
        line = bytearray()
        while not line.endswith(b"\n"):
            piece = self.sock.recv(4096)
            if not piece:
                raise ConnectionError("the connection was cut before the answer")
            line += piece
            if len(line) > MAX_HEADER_BYTES:
                raise ConnectionError("an answer without an end")
        stored, error, suspects = (json.loads(line)[name] for name in Answer._fields)
        return Answer(tuple(stored), error, tuple(suspects))


class Sender:
    """A chunk on its way to the first host of `chain`. Raises ChunkFailed, which suspects it or whom it names."""

    def __init__(self, chunk: Chunk, size_bytes: int, chain: Sequence[Hop], silence_s: float = SILENCE_SECONDS) -> None:
        self._to = chain[0]
        try:
            sock = _connect(self._to)
        except OSError as error:
            raise self._failed(error) from error
        self._connection = Connection(sock, silence_s)
        try:
            self.send(Header(chunk, size_bytes, tuple(chain[1:])).encode())
        except ChunkFailed:
            self.close()
            raise

    def send(self, data: bytes | memoryview) -> None:
        """Send some of the bytes; an early answer is an error that ends it."""
        try:
            if self._connection.spoke():
                self._raise(self._connection.answer())
            self._connection.sock.sendall(data)
        except OSError as error:
            raise self._failed(error) from error

    def end(self, crc: int) -> None:
        """Send the CRC, after all bytes."""
        self.send(_CRC.pack(crc))

    def answer(self) -> Answer:
        """Wait until all have the chunk."""
        try:
            answer = self._connection.answer()
        except (OSError, ValueError, KeyError) as error:
            raise self._failed(error) from error
        if answer.error is not None:
            self._raise(answer)
        return answer

    def close(self) -> None:
        """Close the connection; before `answer` has returned it gives the chunk up."""
        self._connection.sock.close()

    def _raise(self, answer: Answer) -> None:
        raise ChunkFailed(answer.error or f"{self._to.name} answered too early", answer.suspects)

    def _failed(self, error: Exception) -> ChunkFailed:
        why = "no sign of life" if isinstance(error, BlockingIOError) else str(error)
        return ChunkFailed(f"{self._to.name}: {why}", (self._to.name,))


def send_chunk(
    chunk: Chunk, data: memoryview, chain: Sequence[Hop], client: Pace, silence_s: float = SILENCE_SECONDS
) -> Answer:
    """Send a whole chunk, computing its CRC on the way as HDFS's clients do. Raises ChunkFailed."""
    sender = Sender(chunk, len(data), chain, silence_s)
    try:
        crc = 0
        with client.using():
            for start in range(0, len(data), BLOCK_BYTES):
                block = data[start : start + BLOCK_BYTES]
                crc = crc32c.crc32c(block, crc)
                client.wait(len(block))
                sender.send(block)
            sender.end(crc)
        return sender.answer()
    finally:
        sender.close()


class ChunkServer:
    """Serves chunks on one address, at `hop`, a thread for each connection, until `close`."""

    def __init__(
        self,
        name: str,
        directory: Path,
        disk: Pace,
        address: tuple[str, int] = ("127.0.0.1", 0),
        *,
        silence_s: float = SILENCE_SECONDS,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.name = name
        self._directory = directory
        self._disk = disk
        self._silence_s = silence_s
        self._log = log
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._served = 0
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _small_buffers(self._listener)  # inherited by what it accepts
        self._listener.bind(address)
        self._listener.listen(MAX_CONNECTIONS)
        own, port = self._listener.getsockname()[:2]
        self.hop = Hop(name, own, port)
        self._thread = threading.Thread(target=self._accept, name=f"{name} accepts", daemon=True)
        self._thread.start()

    def wait_served(self, connections: int, timeout_s: float) -> None:
        """Until so many connections have been served to their end. Raises TimeoutError."""
        with self._lock:
            if not self._ended.wait_for(lambda: self._served >= connections, timeout_s):
                raise TimeoutError(f"{self.name}: {self._served} of {connections} served after {timeout_s:g} s")

    def close(self) -> None:
        """Stop at once: connections are cut, chunks under way are lost."""
        with self._lock:
            cut = [self._listener, *self._open]
        for sock in cut:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if not self._free.acquire(blocking=False):
                sock.close()
                continue
            with self._lock:
                self._open.add(sock)
            threading.Thread(target=self._serve, args=(sock,), name=f"{self.name} serves", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock:
                connection = Connection(sock, self._silence_s)
                answer = self._receive(connection)
                sock.sendall(answer.encode())
                if answer.error is not None:
                    self._log(answer.error)
                    _linger(sock)
        except OSError as error:
            self._log(f"{self.name}: the sender is gone: {error}")
        finally:
            with self._lock:
                self._open.discard(sock)
                self._served += 1
                self._ended.notify_all()
            self._free.release()

    def _receive(self, connection: Connection) -> Answer:
        """Take one chunk; the answer says what became of it."""
        try:
            header = _header(connection)
        except (ValueError, TypeError, LookupError) as error:
            return Answer(error=f"{self.name}: a header that is none: {error}")
        path = self._directory / header.chunk.file
        try:
            return self._store(connection, header, path)
        except ChunkFailed as failed:
            path.unlink(missing_ok=True)
            return Answer(error=str(failed), suspects=failed.suspects)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def _store(self, connection: Connection, header: Header, path: Path) -> Answer:
        """Write and forward the bytes as they come. Raises ChunkFailed, or OSError when the sender is gone."""
        onward = Sender(header.chunk, header.size_bytes, header.rest, self._silence_s) if header.rest else None
        view = memoryview(bytearray(BLOCK_BYTES))
        crc, left = 0, header.size_bytes
        try:
            with self._disk.using(), self._file(path) as file:
                while left:
                    block = view[: min(left, BLOCK_BYTES)]
                    connection.fill(block)
                    left -= len(block)
                    crc = crc32c.crc32c(block, crc)
                    if onward is not None:
                        onward.send(block)
                    self._disk.wait(len(block))
                    file.write(block)
                sent = _CRC.unpack(connection.take(_CRC.size))[0]
                if sent != crc:
                    raise ChunkFailed(f"{self.name}: {path.name}: CRC {crc:08x}, but {sent:08x} was sent")
                if onward is not None:
                    onward.end(crc)
                file.sync()
            stored = onward.answer().stored if onward is not None else ()
            return Answer((self.name, *stored))
        finally:
            if onward is not None:
                onward.close()

    def _file(self, path: Path) -> _File:
        return _File(path, self.name)


class _File:
    """A new file; what goes wrong with it is the host's fault, not the sender's."""

    def __init__(self, path: Path, host: str) -> None:
        self._host = host
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            raise self._failed(error) from error

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: Any) -> None:
        os.close(self._fd)

    def write(self, block: memoryview) -> None:
        """Write a whole block."""
        try:
            written = 0
            while written < len(block):
                written += os.write(self._fd, block[written:])
        except OSError as error:
            raise self._failed(error) from error

    def sync(self) -> None:
        """fsync."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> ChunkFailed:
        return ChunkFailed(f"{self._host}: {error}", (self._host,))


def _header(connection: Connection) -> Header:
    """Receive and check a header. Raises ValueError, TypeError or LookupError for what is none."""
    length = _LENGTH.unpack(connection.take(_LENGTH.size))[0]
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise ValueError(f"{length} bytes")
    chunk, size, rest = json.loads(connection.take(length))
    if not isinstance(size, int) or not 0 <= size <= MAX_CHUNK_BYTES:
        raise ValueError(f"a chunk of {size!r} bytes")
    name = Chunk(str(chunk[0]), int(chunk[1]), int(chunk[2]))
    if not name.request or name.file.startswith(".") or "\0" in name.file:
        raise ValueError(f"request {name.request!r}")
    return Header(name, size, tuple(Hop(str(hop[0]), str(hop[1]), int(hop[2])) for hop in rest))


def _connect(to: Hop) -> socket.socket:
    sock = socket.socket()
    try:
        _small_buffers(sock)
        sock.settimeout(CONNECT_SECONDS)
        sock.connect((to.address, to.port))
    except OSError:
        sock.close()
        raise
    return sock


def _small_buffers(sock: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)


def _linger(sock: socket.socket) -> None:
    """Read what the sender still sends, for a moment: closing now would reset the connection and lose the answer."""
    sock.shutdown(socket.SHUT_WR)
    until = time.monotonic() + CONNECT_SECONDS
    sock.settimeout(CONNECT_SECONDS)
    while time.monotonic() < until and sock.recv(BLOCK_BYTES):
        pass
