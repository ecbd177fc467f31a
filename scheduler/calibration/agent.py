"""The agent of a host: on request it sends to other agents, receives from them, and writes to its disk.

Invariants:
* A request runs only after its proof was checked (in constant time). Without a token an agent listens on loopback only.
  It takes a former token of its file as well, for a while; towards other agents it uses the token of who asked it, so
  that files may be replaced while a calibration runs: those of the agents first.
* Connections, seconds, streams, writers and bytes on disk are bounded; it sends only to agents with the same token.
* Files have no name: they vanish when closed, also after kill −9. When a calibrator disconnects, its job stops.
* An error of one connection does not affect another.
"""

import fcntl
import hmac
import json
import math
import os
import secrets
import shutil
import sys
import tempfile
import termios
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final, TypeVar

import trio

from logstore.base.accepted_secrets import AcceptedSecrets
from logstore.base.addresses import Address, parse_address
from logstore.base.errors import CairnError
from logstore.base.fields import Integer, ListOf, Number, String
from scheduler.calibration.tasks import first_of, together
from scheduler.calibration.windows import ReceiveWindow, number_in, placed, together_in
from scheduler.calibration.wire import (
    DEFAULT_PORT,
    VERSION,
    CalibrationError,
    Lines,
    abandon,
    answer,
    keep_queue_short,
    proof,
    start,
)

T = TypeVar("T")

BLOCK_BYTES: Final = 1 << 20
SHORTEST_S: Final = 1e-9
MAX_ADDRESS_CHARACTERS: Final = 1000
GRACE_S: Final = 15.0
"""The time that a job may take beyond the requested time, to connect, drain and sync."""


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """The limits of an agent's jobs."""

    connections: int = 64
    seconds: float = 60.0
    streams: int = 16
    writers: int = 16
    disk_bytes: int = 4 << 30
    """The bytes of all test files at a time."""
    handshake_s: float = 10.0
    disk_s: float = 600.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How an agent runs. `directory`: on the disk to measure; `token` empty: no token is needed; those of a file are
    followed by who runs the agent.
    """

    directory: Path
    token: bytes | AcceptedSecrets = b""
    limits: AgentLimits = AgentLimits()


class Agent:
    """The agent of one host."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self._connections = 0
        self._disk_bytes = 0
        self._block = os.urandom(BLOCK_BYTES)  # random, so that no disk compresses it
        self._threads = trio.CapacityLimiter(settings.limits.writers * 2)

    async def serve(
        self, address: Address, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen until cancelled; reports the address with the real port. Raises OSError."""
        listeners = await trio.open_tcp_listeners(address.port, host=address.host)
        name = listeners[0].socket.getsockname()
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(trio.serve_listeners, self._connection, listeners))
            task_status.started(Address(name[0], name[1]))

    async def _connection(self, stream: trio.SocketStream) -> None:
        self._connections += 1
        try:
            with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                async with stream:
                    await self._converse(Lines(stream, "the caller"))
        finally:
            self._connections -= 1

    async def _converse(self, lines: Lines) -> None:
        """Serve one connection: one request and its answer."""
        limits = self.settings.limits
        request: Mapping[str, object] = {}
        try:
            with trio.fail_after(limits.handshake_s):
                if self._connections > limits.connections:
                    raise CalibrationError(f"busy: {limits.connections} connections already")
                nonce = secrets.token_hex(16)
                await lines.write({"cairn-agent": VERSION, "nonce": nonce})
                request = self._checked(lines, await lines.read(), nonce)
            jobs: dict[str, Callable[[Lines, Mapping[str, object]], Awaitable[Mapping[str, object]]]] = {
                "hello": self._hello,
                "take": self._take,
                "send": self._send,
                "write": self._write,
            }
            job = jobs[String(choices=tuple(jobs)).check(request.get("do"), "do")]
            done = await job(lines, request)
        except CairnError as error:
            await lines.write({"error": str(error)})
        except trio.TooSlowError:
            await lines.write({"error": f"{request.get('do') if request else 'the request'} took too long"})
        except OSError as error:
            await lines.write({"error": f"{type(error).__name__}: {error}"})
        else:
            await lines.write({"ok": done})
            await _drain(lines.stream)

    def _checked(self, lines: Lines, line: Mapping[str, object], nonce: str) -> Mapping[str, object]:
        """The request in a line, whose sender has proved that it has a token; notes that in `lines`."""
        text, given = line.get("request"), line.get("proof")
        if not isinstance(text, str) or not isinstance(given, str):
            raise CalibrationError("a request and its proof are expected")
        token = self._proved(given.encode("utf-8", "surrogatepass"), nonce, text)
        if token is None:
            raise CalibrationError("wrong token: calibrator and agents need the same --token-file")
        try:
            request = json.loads(text)
        except (ValueError, RecursionError):
            raise CalibrationError("the request is not JSON") from None
        if not isinstance(request, dict):
            raise CalibrationError("the request is not a JSON object")
        lines.token = token
        return request

    def _proved(self, given: bytes, nonce: str, text: str) -> bytes | None:
        """The token that the sender of a request has, of those that are accepted; None: none of them."""
        token = self.settings.token
        for each in (token,) if isinstance(token, bytes) else token():
            if hmac.compare_digest(given, proof(each, nonce, text).encode()):
                return each
        return None

    # ---- jobs

    async def _hello(self, lines: Lines, asked: Mapping[str, object]) -> Mapping[str, object]:
        """Report that the agent runs, and the room on its disk."""
        return {"free_bytes": shutil.disk_usage(self.settings.directory).free}

    async def _take(self, lines: Lines, asked: Mapping[str, object]) -> Mapping[str, object]:
        """Count what comes in: `seconds` from the first byte on, without `warm_up_s`; or `bytes`, onto disk."""
        limits = self.settings.limits
        if "bytes" in asked:
            size = _number(asked, "bytes", 1, limits.disk_bytes)
            await lines.write({"ok": {}})
            return {"bytes_s": size / await self._store(lines, size)}
        seconds = _number(asked, "seconds", 0.01, limits.seconds)
        warm_up_s = _number(asked, "warm_up_s", 0, seconds * 0.9)
        ordered_at = trio.current_time()
        await lines.write({"ok": {}})
        with trio.fail_after(seconds + GRACE_S):
            window = await count(lines.stream, seconds, warm_up_s, partial(_unread, lines.stream))
        return window.answer(ordered_at, trio.current_time())

    async def _store(self, lines: Lines, size: float) -> float:
        """Write `size` received bytes and sync them; returns the seconds from the first byte to the end of the sync."""
        with self._room(int(size)), tempfile.TemporaryFile(dir=self.settings.directory) as file:
            with trio.fail_after(self.settings.limits.disk_s):
                if lines.rest():
                    raise CalibrationError("bytes came before they were asked for")
                began, taken = 0.0, 0
                while taken < size:
                    data = await lines.stream.receive_some(BLOCK_BYTES)
                    if not data:
                        raise CalibrationError(f"the sender stopped after {taken} of {size:.0f} bytes")
                    began = began or trio.current_time()
                    taken += len(data)
                    await trio.to_thread.run_sync(file.write, data, limiter=self._threads)
                await trio.to_thread.run_sync(_sync, file, limiter=self._threads)
                return max(trio.current_time() - began, 1e-9)

    async def _send(self, lines: Lines, asked: Mapping[str, object]) -> Mapping[str, object]:
        """Send to other agents at once, `streams` connections to each.

        The answer has an item for each agent: with `bytes` the rate, with `seconds` the window that it counted in.
        """
        ordered_at = trio.current_time()
        limits = self.settings.limits
        targets = [parse_address(target, DEFAULT_PORT) for target in _texts(asked, "to", limits.streams)]
        streams = _integer(asked, "streams", 1, limits.streams) if "streams" in asked else 1
        if len(targets) * streams > limits.streams:
            raise CalibrationError(
                f"{len(targets)} targets with {streams} streams each: at most {limits.streams} in all"
            )
        connect, token = partial(_while_connected, lines.stream), lines.token
        each = [target for target in targets for _ in range(streams)]
        if "bytes" in asked:
            order: dict[str, object] = {"do": "take", "bytes": _number(asked, "bytes", 1, limits.disk_bytes)}
            with trio.fail_after(limits.disk_s):
                rates = await connect(partial(together, [partial(self._feed_bytes, to, token, order) for to in each]))
            return {"bytes_s": [sum(rates[n : n + streams]) for n in range(0, len(rates), streams)]}
        seconds = _number(asked, "seconds", 0.01, limits.seconds)
        order = {"do": "take", "seconds": seconds, "warm_up_s": _number(asked, "warm_up_s", 0, seconds * 0.9)}
        with trio.fail_after(seconds + GRACE_S):
            windows = await connect(partial(together, [partial(self._feed_window, to, token, order) for to in each]))
        by_target = [together_in(windows[n : n + streams]) for n in range(0, len(windows), streams)]
        return {"windows": [window.answer(ordered_at, trio.current_time()) for window in by_target]}

    async def _feed_bytes(self, target: Address, token: bytes, order: Mapping[str, object]) -> float:
        """Send one agent the bytes that it writes to its disk; its rate."""
        return number_in(await self._feed(target, token, order), "bytes_s", str(target))

    async def _feed_window(self, target: Address, token: bytes, order: Mapping[str, object]) -> ReceiveWindow:
        """Send one agent bytes for some seconds; the window that it counted in, on this agent's clock."""
        ordered_at = trio.current_time()
        counted = await self._feed(target, token, order)
        return placed(counted, ordered_at, trio.current_time(), str(target))

    async def _feed(self, target: Address, token: bytes, order: Mapping[str, object]) -> dict[str, object]:
        """Send one agent what it takes, until it answers; the answer."""
        lines = await start(target, token, order)
        async with lines.stream:
            await answer(lines)
            keep_queue_short(lines.stream)

            async def pump() -> dict[str, object]:
                with suppress(trio.BrokenResourceError):
                    while True:
                        await lines.stream.send_all(self._block)
                return await trio.sleep_forever()  # the answer says why

            counted = await first_of(partial(answer, lines), pump)
            abandon(lines.stream)
        return counted

    async def _write(self, lines: Lines, asked: Mapping[str, object]) -> Mapping[str, object]:
        """`writers` writers at a time write a file of `bytes` each and sync it; returns each writer's rate."""
        limits = self.settings.limits
        writers = _integer(asked, "writers", 1, limits.writers)
        size = _integer(asked, "bytes", 1, limits.disk_bytes)
        job = partial(_write_file, self.settings.directory, self._block, size)
        jobs = [partial(trio.to_thread.run_sync, job, limiter=self._threads) for _ in range(writers)]
        with self._room(size * writers), trio.fail_after(limits.disk_s):
            seconds = await _while_connected(lines.stream, partial(together, jobs))
        return {"bytes_s": [size / one for one in seconds]}

    def _room(self, size: int) -> "_Room":
        return _Room(self, size)

    def reserve(self, size: int) -> None:
        """Reserve room on the disk for test files. Raises CalibrationError."""
        limit = self.settings.limits.disk_bytes
        if self._disk_bytes + size > limit:
            raise CalibrationError(
                f"{size} bytes on disk: beside {self._disk_bytes} in use, at most {limit} are allowed"
            )
        free = shutil.disk_usage(self.settings.directory).free
        if size > free * 0.8:
            raise CalibrationError(f"{size} bytes on disk: only {free} are free in {self.settings.directory}")
        self._disk_bytes += size

    def release(self, size: int) -> None:
        """Release the room."""
        self._disk_bytes -= size


class _Room:
    """Reserves room on the disk while a block runs."""

    def __init__(self, agent: Agent, size: int) -> None:
        self._agent, self._size = agent, size

    def __enter__(self) -> None:
        self._agent.reserve(self._size)

    def __exit__(self, *_: object) -> None:
        self._agent.release(self._size)


def _number(asked: Mapping[str, object], name: str, least: float, most: float) -> float:
    return Number(least, most).check(asked.get(name), name)


def _integer(asked: Mapping[str, object], name: str, least: int, most: int) -> int:
    return Integer(least, most).check(asked.get(name), name)


def _texts(asked: Mapping[str, object], name: str, most: int) -> tuple[str, ...]:
    return ListOf(String(MAX_ADDRESS_CHARACTERS), most, 1).check(asked.get(name), name)


async def count(
    stream: trio.abc.ReceiveStream, seconds: float, warm_up_s: float, unread: Callable[[], int]
) -> ReceiveWindow:
    """Count the bytes that arrive between the warm-up and the end. A shaped link lets a burst through first.

    `unread`: bytes that have arrived and wait to be read. A receiver that stood still must not take what arrived
    earlier for what arrives now. If nothing arrives in the window, because this machine or the sender stood still, the
    window is prolonged until something does. Raises CalibrationError if the sender stops before.
    """
    data = await stream.receive_some(BLOCK_BYTES)
    began = begin = end = trio.current_time()
    arrived = -unread() if warm_up_s else len(data)
    while data and (end < began + seconds or arrived <= 0):
        with trio.move_on_at(began + seconds if arrived > 0 else math.inf) as scope:
            data = await stream.receive_some(BLOCK_BYTES)
        end = trio.current_time()
        if scope.cancelled_caught or not data:
            break
        if end < began + warm_up_s:
            begin, arrived = end, -unread()
        else:
            arrived += len(data)
    arrived += unread()
    if arrived <= 0:
        raise CalibrationError("the sender stopped before anything could be counted")
    return ReceiveWindow(arrived, begin, max(end, begin + SHORTEST_S))


def _unread(stream: trio.SocketStream) -> int:
    """Bytes that wait in a socket's receive queue."""
    size = fcntl.ioctl(stream.socket.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(size, sys.byteorder)


async def _drain(stream: trio.SocketStream) -> None:
    """Let the other side close first: closing with unread bytes would take the answer away from it."""
    with trio.move_on_after(GRACE_S):
        while await stream.receive_some(BLOCK_BYTES):
            pass


async def _while_connected(stream: trio.SocketStream, job: Callable[[], Awaitable[T]]) -> T:
    """Run a job until it ends or the calibrator disconnects."""

    async def watch() -> T:
        while await stream.receive_some(1024):
            pass
        raise CalibrationError("the calibrator went away")

    return await first_of(job, watch)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _write_file(directory: Path, block: bytes, size: int) -> float:
    """Write a file without a name, sync it; the seconds that took. Runs in a thread of trio's; stops when cancelled."""
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        began = time.perf_counter()
        left = size
        while left > 0:
            trio.from_thread.check_cancelled()
            left -= file.write(memoryview(block)[: min(left, len(block))])
        os.fsync(file.fileno())
        return max(time.perf_counter() - began, 1e-9)
