"""The protocol between calibrator and agents: one request per connection, in lines of JSON, then plain bytes.

    agent    {"cairn-agent": 2, "nonce": "…"}
    client   {"request": "…", "proof": "…"}          the request is a text: {"do": "hello"}
    agent    {"ok": {…}}  or  {"error": "…"}

The proof is the HMAC-SHA256 of nonce and request with the token as key: the token itself is never sent, and a proof is
valid for one request on one connection.

Invariants: no line is longer than MAX_LINE_BYTES; a violation of the protocol is a CalibrationError; every wait is
within the caller's time limit.
"""

import hashlib
import hmac
import json
import socket
from collections.abc import Mapping
from typing import Final

import trio

from logstore.base.addresses import Address
from scheduler.errors import SchedulerError

VERSION: Final = 2
MAX_LINE_BYTES: Final = 8192
DEFAULT_PORT: Final = 9881
CONNECT_S: Final = 10.0


class CalibrationError(SchedulerError):
    """An agent refuses, or violates the protocol; the message names the agent."""


class Lines:
    """A connection that is read and written in lines of JSON; bytes after a line are kept for `rest`."""

    def __init__(self, stream: trio.SocketStream, who: str) -> None:
        self.stream = stream
        self.who = who
        self.token = b""
        """What the other side has proved that it has."""
        self._buffer = bytearray()

    async def read(self) -> dict[str, object]:
        """The next line. Raises CalibrationError."""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_LINE_BYTES:
                raise CalibrationError(f"{self.who}: a line longer than {MAX_LINE_BYTES} bytes")
            data = await self.stream.receive_some(MAX_LINE_BYTES)
            if not data:
                raise CalibrationError(f"{self.who}: the connection was closed")
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise CalibrationError(f"{self.who}: a line that is not JSON: is this an agent?") from None
        if not isinstance(value, dict):
            raise CalibrationError(f"{self.who}: a line that is not a JSON object: is this an agent?")
        return value

    async def write(self, value: Mapping[str, object]) -> None:
        """Send one line."""
        await self.stream.send_all(json.dumps(value).encode() + b"\n")

    def rest(self) -> int:
        """Drop the bytes that arrived after the last line; returns their number."""
        many = len(self._buffer)
        self._buffer.clear()
        return many


def proof(token: bytes, nonce: str, request: str) -> str:
    """The proof that the sender of a request has the token."""
    # A text from JSON may contain characters that UTF-8 cannot encode.
    return hmac.new(token, f"{nonce}\n{request}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


async def ask(address: Address, token: bytes, request: Mapping[str, object], limit_s: float) -> dict[str, object]:
    """One request to an agent and its answer, within a time limit. Raises CalibrationError, which names the agent."""
    try:
        with trio.fail_after(limit_s):
            lines = await start(address, token, request)
            async with lines.stream:
                return await answer(lines)
    except trio.TooSlowError:
        raise CalibrationError(f"{address}: no answer within {limit_s:g} s") from None
    except (OSError, trio.BrokenResourceError) as error:
        raise CalibrationError(f"{address}: the connection broke: {error}") from None


async def start(address: Address, token: bytes, request: Mapping[str, object]) -> Lines:
    """Connect and send a request; `answer` reads the answer. Raises CalibrationError."""
    try:
        with trio.fail_after(CONNECT_S):
            stream = await trio.open_tcp_stream(address.host, address.port)
    except trio.TooSlowError:
        raise CalibrationError(f"{address}: no agent answered within {CONNECT_S:g} s") from None
    except (OSError, ValueError) as error:  # ValueError: an invalid host name
        raise CalibrationError(f"{address}: no agent there ({error}); start: cairn topology agent") from None
    try:
        lines = Lines(stream, str(address))
        hello = await lines.read()
        nonce = hello.get("nonce")
        if hello.get("cairn-agent") != VERSION or not isinstance(nonce, str):
            refused = hello.get("error", f"it says {hello}")
            raise CalibrationError(f"{address}: no agent of version {VERSION}: {refused}")
        text = json.dumps(request)
        await lines.write({"request": text, "proof": proof(token, nonce, text)})
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return lines


async def answer(lines: Lines) -> dict[str, object]:
    """The answer to a request. Raises CalibrationError, with the agent's message if it refused."""
    line = await lines.read()
    if "error" in line:
        raise CalibrationError(f"{lines.who}: {line['error']}")
    done = line.get("ok")
    if not isinstance(done, dict):
        raise CalibrationError(f"{lines.who}: neither ok nor error: {line}")
    return done


def abandon(stream: trio.SocketStream) -> None:
    """Discard queued bytes when the connection closes: they would disturb the next measurement."""
    # struct linger {on, 0 seconds}
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, (1).to_bytes(4, "little") + bytes(4))


def keep_queue_short(stream: trio.SocketStream) -> None:
    """Keep the kernel's send queue short, so that the receiver counts bytes that were sent just now."""
    stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_NOTSENT_LOWAT", 25), 128 << 10)
