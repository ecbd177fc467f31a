"""Fuzz targets for HTTP: whole connections to the coordinator, from bytes to answers.

Invariant: whatever arrives, the connection ends without an error, and no request counts as a fault of ours.
"""

from typing import Final

import trio

from logstore.base.events import LogEvent
from logstore.base.http.connection import HttpConnection
from logstore.base.http.messages import HttpSettings
from scheduler.coordinator.api import ROUTES
from scheduler.coordinator.dispatch import ApiCall, ClientCheck, Dispatch, Reply, may_wait
from scheduler.coordinator.errors import ApiError
from tests.fuzz.interface import Target

BODY: Final = b'{"name":"a","writer":"r1h1","chunks":2,"priority":1,"copies":3}'


class _Bytes:
    """A client that sends these bytes and then closes its side."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def send_all(self, data: bytes) -> None:
        """Take the answer."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The next bytes."""
        size = len(self._data) if max_bytes is None else max_bytes
        found, self._data = self._data[:size], self._data[size:]
        return found

    async def aclose(self) -> None:
        """Nothing is open."""


async def _reached(call: ApiCall) -> Reply:
    raise ApiError(409, f"{len(call)} parts were read")


def _serve(data: bytes) -> object:
    crashes: list[object] = []

    def report(event: LogEvent, /, **fields: object) -> None:
        crashes.append((event, fields))

    dispatch = Dispatch({route.operation: _reached for route in ROUTES}, report, ClientCheck())

    async def serve() -> None:
        await HttpConnection(_Bytes(data), "client", HttpSettings(), dispatch, may_wait).run()

    trio.run(serve)
    if crashes:
        raise AssertionError(f"a fault of ours: {crashes}")
    return dispatch.answered


def connections() -> list[Target]:
    """Requests of every route, alone and one after the other."""
    head = "{} {} HTTP/1.1\r\nHost: localhost:1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    seeds = []
    for route in ROUTES:
        path = route.path.replace("{", "").replace("}", "")
        body = b"" if route.body is None else BODY
        seeds.append(head.format(route.method, path, len(body)).encode() + body)
    seeds.append(seeds[0] + seeds[-1])
    chunked = b"POST /v1/requests?a=1&b=%20 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    seeds.append(chunked + b"2\r\n{}\r\n0\r\n\r\n")
    return [Target("coordinator-http", _serve, (), seeds)]
