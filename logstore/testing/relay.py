"""A relay of TCP connections between the hosts of a test cluster; it cuts, delays and slows each direction by itself.

`python -m logstore.testing.relay_program ROUTES` listens at the ports of the routes (JSON). Then each line of standard
input is a command (JSON), answered by the line `done`, or by the number that it asks for; the end of the input ends the
relay. It needs no right of its own, so it works where network namespaces, nft and tc are not to be had.

Invariants:
* Bytes are neither lost nor reordered: a cut direction holds them back, as TCP does until its connection is lost. What
  is held is bounded by QUEUED and the sockets' buffers.
* A connection between hosts has the host that opened it as its source: a route knows it, or the hello on the link says
  it (docs/replication.md, "Links between hosts").
* A target that nobody listens at is refused here, too, from the second connection on: that is how hosts find that a
  process is gone.
* Links must be plain: the relay does not look into TLS.
"""

import json
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

import trio

HELLO_HEAD: Final = struct.Struct(">4sHI")
HELLO_MAGICS: Final = (b"CLNK", b"CLNC")
"""Of links, and of calls between hosts."""
HELLO_VERSIONS_BYTES: Final = 4
HELLO_BYTES_MAX: Final = 2048
PIECE_BYTES: Final = 64 << 10
LOOK_S: Final = 0.05
"""Between two looks whether a target that was gone is there again."""
QUEUED: Final = 64
"""Pieces that one direction of a connection holds while they are delayed."""
_BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


@dataclass(frozen=True, slots=True)
class RelayRoute:
    """A port, and where its connections lead. `source`: who connects there; empty: a hello says it."""

    port: int
    target: str
    to_port: int
    source: str = ""


class RelayDirection:
    """What happens to the bytes from one host to another."""

    def __init__(self) -> None:
        self._open = trio.Event()
        self._open.set()
        self.delay_s = 0.0
        self.bytes_s = 0.0
        """0: no limit."""
        self.touched_bytes = 0
        """That met a fault since it was told last; a test asks whether its fault was one."""

    def set(self, *, cut: bool, delay_s: float, bytes_s: float) -> None:
        """Change it, for connections that live too."""
        self.delay_s, self.bytes_s = delay_s, bytes_s
        if cut or self.is_slow:
            self.touched_bytes = 0
        if not cut:
            self._open.set()
        elif self._open.is_set():
            self._open = trio.Event()

    @property
    def is_slow(self) -> bool:
        """Whether bytes are delayed, or held to a rate."""
        return bool(self.delay_s or self.bytes_s)

    def take(self, data: bytes) -> bytes:
        """Bytes that were sent, which are counted if they meet a fault."""
        if self.is_slow or not self._open.is_set():
            self.touched_bytes += len(data)
        return data

    async def wait_open(self) -> None:
        """Until it is not cut."""
        while not self._open.is_set():
            await self._open.wait()


class Relay:
    """All routes of a cluster."""

    def __init__(self) -> None:
        self._directions: dict[tuple[str, str], RelayDirection] = {}
        self._scopes: dict[tuple[str, str], set[trio.CancelScope]] = {}

    def direction(self, source: str, target: str) -> RelayDirection:
        """From one host to another."""
        return self._directions.setdefault((source, target), RelayDirection())

    def command(self, line: str) -> str:
        """Carry out one line: `source`, `target`, and `cut`, `delay_s`, `bytes_s`, or `reset`, or `ask`. The answer."""
        told = json.loads(line)
        ends = told["source"], told["target"]
        if told.get("ask"):
            return str(self.direction(*ends).touched_bytes)
        if told.get("reset"):
            for scope in tuple(self._scopes.get(ends, ())):
                scope.cancel()
        else:
            self.direction(*ends).set(cut=told["cut"], delay_s=told["delay_s"], bytes_s=told["bytes_s"])
        return "done"

    async def serve(self, routes: Sequence[RelayRoute]) -> None:
        """Relay until it is cancelled."""
        async with trio.open_nursery() as nursery:
            for route in routes:
                await nursery.start(self.listen, route)
            _say("relay ready")
            await self._obey()
            nursery.cancel_scope.cancel()

    async def _obey(self) -> None:
        text = b""
        async with trio.lowlevel.FdStream(sys.stdin.fileno()) as commands:
            async for piece in commands:
                text += piece
                while b"\n" in text:
                    line, _, text = text.partition(b"\n")
                    _say(self.command(line.decode()))

    async def listen(self, route: RelayRoute, task_status: trio.TaskStatus[None]) -> None:
        """Relay one route; while its target's process is gone, refuse connections as the target's machine does."""
        async with trio.open_nursery() as connections:
            listeners = await trio.open_tcp_listeners(route.port, host="127.0.0.1")
            task_status.started()
            while True:
                with trio.CancelScope() as listening:
                    take = partial(self._take, route, listening)
                    await trio.serve_listeners(take, listeners, handler_nursery=connections)
                await _until_there(route.to_port)
                listeners = await _open(route.port)

    async def _take(self, route: RelayRoute, listening: trio.CancelScope, near: trio.SocketStream) -> None:
        """Relay a connection; if nobody listens at its target, end the listening that has accepted it."""
        try:
            await self._connect(route, near)
        except* ConnectionRefusedError:
            await trio.aclose_forcefully(near)
            listening.cancel()
        except* _BROKEN:
            await trio.aclose_forcefully(near)

    async def _connect(self, route: RelayRoute, near: trio.SocketStream) -> None:
        begun = b"" if route.source else await _read_hello(near)
        source = route.source or source_of(begun)
        try:
            far = await trio.open_tcp_stream("127.0.0.1", route.to_port)
        except OSError as error:
            raise ConnectionRefusedError(f"nobody listens at port {route.to_port}") from error
        with self._noted(source, route.target):
            async with near, far, trio.open_nursery() as nursery:
                nursery.start_soon(_pump, near, far, self.direction(source, route.target), begun)
                nursery.start_soon(_pump, far, near, self.direction(route.target, source), b"")

    @contextmanager
    def _noted(self, source: str, target: str) -> Iterator[None]:
        scopes = self._scopes.setdefault((source, target), set())
        with trio.CancelScope() as scope:
            scopes.add(scope)
            try:
                yield
            finally:
                scopes.discard(scope)


async def _open(port: int) -> list[trio.SocketListener]:
    """Listen, as soon as nobody else has the port."""
    while True:
        try:
            return await trio.open_tcp_listeners(port, host="127.0.0.1")
        except OSError:
            await trio.sleep(LOOK_S)


async def _until_there(port: int) -> None:
    """Until somebody listens."""
    while True:
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            await trio.sleep(LOOK_S)
        else:
            await trio.aclose_forcefully(stream)
            return


async def _read_hello(stream: trio.SocketStream) -> bytes:
    """What came, as soon as a whole hello is in it; anything else is passed on as it is."""
    data = b""
    while len(data) < HELLO_HEAD.size + HELLO_BYTES_MAX:
        if len(data) >= HELLO_HEAD.size:
            magic, size, _ = HELLO_HEAD.unpack_from(data)
            if magic not in HELLO_MAGICS or len(data) >= HELLO_HEAD.size + size:
                break
        piece = await stream.receive_some(PIECE_BYTES)
        if not piece:
            break
        data += piece
    return data


def source_of(hello: bytes) -> str:
    """The host that says it, of a link or of calls: the second name. Empty if these bytes are no hello."""
    at = HELLO_HEAD.size + HELLO_VERSIONS_BYTES
    if not hello.startswith(HELLO_MAGICS) or len(hello) <= at:
        return ""
    at += 1 + hello[at]  # past the name of the cluster
    return hello[at + 1 : at + 1 + hello[at]].decode(errors="replace") if at < len(hello) else ""


async def _pump(source: trio.SocketStream, target: trio.SocketStream, way: RelayDirection, begun: bytes) -> None:
    """Bytes of one direction, until its end."""
    send, receive = trio.open_memory_channel[tuple[float, bytes]](QUEUED)

    async def take() -> None:
        async with send:
            if begun:
                await send.send((trio.current_time() + way.delay_s, way.take(begun)))
            async for piece in source:
                await send.send((trio.current_time() + way.delay_s, way.take(bytes(piece))))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        async for due_s, piece in receive:
            await trio.sleep_until(due_s)
            await way.wait_open()
            if way.bytes_s:
                await trio.sleep(len(piece) / way.bytes_s)
            await target.send_all(piece)
        await way.wait_open()
        await target.send_eof()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def as_json(routes: Sequence[RelayRoute]) -> str:
    """Routes as the program takes them."""
    return json.dumps([asdict(route) for route in routes])
