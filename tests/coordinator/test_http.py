"""The HTTP server's manners: what is HTTP is answered, what is not is refused, and nobody can hold it up."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import h11
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair

from logstore.base.addresses import Address
from logstore.base.events import ignore
from logstore.base.http.connection import HttpConnection
from logstore.base.http.messages import HttpRequest, HttpResponse, HttpSettings, json_response
from logstore.base.http.server import HttpServer
from logstore.testing.reports import RecordedReports
from scheduler.coordinator.log_events import CONNECTION_CRASHED
from tests.support.limits import PATIENCE_S
from tests.support.virtual_time import run_virtual

SETTINGS = HttpSettings(max_header_bytes=2048, max_body_bytes=1000, header_s=10, body_s=20, idle_s=60, send_s=5)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def echo(request: HttpRequest) -> HttpResponse:
    """Answers with what it was asked."""
    return json_response(200, {"method": request.method, "target": request.target, "body": request.body.decode()})


async def talk(*pieces: bytes, then: Callable[[], None] | None = None, pause_s: float = 0) -> bytes:
    """Send pieces on one connection, end it, and return all that came back."""
    ours, theirs = memory_stream_pair()
    connection = HttpConnection(theirs, "test", SETTINGS, echo, lambda _: False)
    received = bytearray()

    async def serve() -> None:
        await connection.run()
        await theirs.aclose()

    async def send() -> None:
        try:
            for piece in pieces:
                await ours.send_all(piece)
                if pause_s:
                    await trio.sleep(pause_s)
            await ours.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        nursery.start_soon(send)
        async for data in ours:
            received += data
        nursery.cancel_scope.cancel()
    return bytes(received)


def statuses(received: bytes, requests: int = 1) -> list[int]:
    """The statuses of all answers; what came must be whole, valid HTTP."""
    found: list[int] = []
    while received:
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        client.send(h11.EndOfMessage())
        client.receive_data(received)
        while True:
            event = client.next_event()
            if isinstance(event, h11.Response):
                found.append(event.status_code)
            if isinstance(event, h11.EndOfMessage):
                break
            assert event is not h11.NEED_DATA, "half an answer"
            assert not isinstance(event, h11.ConnectionClosed)
        received = client.trailing_data[0]
    return found


async def test_a_request_in_any_pieces_is_the_same() -> None:
    """Byte by byte, whole, or with the next one behind it: the same answers."""
    request = b"POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
    whole = await talk(request)
    assert statuses(whole) == [200]
    assert b'"body":"abc"' in whole
    assert await talk(*(request[n : n + 1] for n in range(len(request)))) == whole
    assert statuses(await talk(request + request + GET)) == [200, 200, 200]


async def test_chunked_bodies_are_put_together() -> None:
    """Transfer-Encoding: chunked."""
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b'"body":"hello"' in await talk(head, b"2\r\nhe\r\n3\r\n", b"llo\r\n0\r\n\r\n")


async def test_expect_continue_is_answered_first() -> None:
    """A client that waits for 100 Continue gets it, and its answer."""
    request = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"
    received = await talk(request, b"z")
    assert received.startswith(b"HTTP/1.1 100 ")
    assert b"HTTP/1.1 200 " in received


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50) + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 3000, 431),
        (b"GET /" + b"a" * 3000, 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"a" * 1001 + b"\r\n0\r\n\r\n",
            413,
        ),
        (b"GET / HTTP/3.7\r\nHost: x\r\n\r\n", 505),
    ],
)
async def test_what_cannot_be_a_request_is_refused(sent: bytes, status: int) -> None:
    """One 4xx, and the connection ends; bodies that say they are too large are refused unread."""
    received = await talk(sent, GET)
    assert statuses(received) == [status]
    assert b"connection: close" in received.lower()


async def test_head_has_no_body() -> None:
    """HEAD says how long the answer would be, and is followed by the next request's answer."""
    received = await talk(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "after_s", "status"),
    [(b"", 60, None), (b"GET / HT", 10, 408), (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab", 20, 408)],
)
async def test_the_slow_are_let_go(autojump_clock: MockClock, sent: bytes, after_s: int, status: int | None) -> None:
    """Idling, headers and bodies each have their deadline, and no byte now and then moves it."""
    ours, theirs = memory_stream_pair()
    connection = HttpConnection(theirs, "test", SETTINGS, echo, lambda _: False)
    began = trio.current_time()

    async def drip() -> None:
        await ours.send_all(sent)
        while sent:
            await trio.sleep(3)
            await ours.send_all(b"a")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        await connection.run()
        nursery.cancel_scope.cancel()
    assert after_s <= trio.current_time() - began <= after_s + 1
    await theirs.aclose()
    received = b""
    async for data in ours:
        received += data
    assert statuses(received) == ([] if status is None else [status])


async def test_who_does_not_take_answers_is_let_go(autojump_clock: MockClock) -> None:
    """A client that sends and never reads loses its connection after `send_s`."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.send_all, GET)
        await HttpConnection(theirs, "test", SETTINGS, echo, lambda _: False).run()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == pytest.approx(SETTINGS.send_s)


async def test_a_long_wait_ends_when_its_client_leaves() -> None:
    """What waits for nobody is cancelled."""
    ours, theirs = memory_stream_pair()
    waiting = trio.Event()

    async def wait(request: HttpRequest) -> HttpResponse:
        waiting.set()
        await trio.sleep_forever()
        raise AssertionError

    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpConnection(theirs, "test", SETTINGS, wait, lambda _: True).run)
        await ours.send_all(GET)
        await waiting.wait()
        await ours.send_eof()  # and the nursery ends


async def test_a_drain_answers_what_is_under_way() -> None:
    """Idle connections are closed at once, new ones refused, and the last answer says `close`."""
    began, go_on = trio.Event(), trio.Event()

    async def slow(request: HttpRequest) -> HttpResponse:
        began.set()
        await go_on.wait()
        return json_response(200, {})

    server = HttpServer(SETTINGS, slow, ignore)
    async with trio.open_nursery() as nursery:
        address = await nursery.start(server.serve, Address("127.0.0.1", 0))
        idle = await trio.open_tcp_stream("127.0.0.1", address.port)
        busy = await trio.open_tcp_stream("127.0.0.1", address.port)
        await busy.send_all(GET)
        await began.wait()
        nursery.start_soon(server.drain, 20)
        assert await idle.receive_some() == b""
        with pytest.raises(OSError, match="connect"):
            while True:
                (await trio.open_tcp_stream("127.0.0.1", address.port)).socket.close()
        go_on.set()
        received = b""
        async for data in busy:
            received += data
        assert statuses(received) == [200]
        assert b"connection: close" in received.lower()
        await idle.aclose()
        await busy.aclose()


async def test_a_drain_cuts_who_is_not_ready_in_time() -> None:
    """A client in the middle of its body cannot hold up the end for longer than the drain's patience."""
    server = HttpServer(HttpSettings(body_s=60), echo, ignore)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(server.serve, Address("127.0.0.1", 0))
            slow = await trio.open_tcp_stream("127.0.0.1", address.port)
            await slow.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
            assert b" 100 " in await slow.receive_some()
            await server.drain(0.05)
        await slow.aclose()


async def test_a_fault_of_the_handlers_costs_one_connection() -> None:
    """What a handler does not catch ends its client's connection, is reported, and the next client is served."""
    reports = RecordedReports()

    async def faulty(request: HttpRequest) -> HttpResponse:
        if request.target == "/fault":
            raise ValueError("a fault of ours")
        return await echo(request)

    for may_wait in (lambda _: False, lambda _: True):
        server = HttpServer(SETTINGS, faulty, reports, may_wait=may_wait)
        async with trio.open_nursery() as nursery:
            address = await nursery.start(server.serve, Address("127.0.0.1", 0))
            async with await trio.open_tcp_stream("127.0.0.1", address.port) as stream:
                await stream.send_all(GET.replace(b"/ ", b"/fault ", 1))
                assert await stream.receive_some() == b""
            async with await trio.open_tcp_stream("127.0.0.1", address.port) as stream:
                await stream.send_all(GET)
                assert b"200 OK" in await stream.receive_some()
            nursery.cancel_scope.cancel()
    assert reports.names() == [CONNECTION_CRASHED.name] * 2


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
async def test_a_body_with_two_ends_ends_the_connection(head: bytes) -> None:
    """Content-Length and Transfer-Encoding in one request (RFC 9112, 6.1): nothing behind it is taken for a request."""
    received = await talk(head + b"0\r\n\r\n" + GET)
    assert statuses(received) == [400]
    assert b"connection: close" in received.lower()


async def test_most_bodies_are_small() -> None:
    """Only the requests that may be large get all the room; which these are, their method, target and headers say."""
    limits = HttpSettings(max_body_bytes=1000, max_small_body_bytes=100)
    found: list[int] = []

    def large(method: str, target: str, headers: Mapping[str, str]) -> bool:
        return (method, target) == ("POST", "/large") and "known" in headers

    for name in (b"Known", b"Unknown"):
        ours, theirs = memory_stream_pair()
        connection = HttpConnection(theirs, "test", limits, echo, lambda _: False, large)
        head = (
            b"POST /large HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\nConnection: close\r\n" + name + b": 1\r\n\r\n"
        )
        await ours.send_all(head + bytes(b"a" * 101))
        await ours.send_eof()
        await connection.run()
        await theirs.aclose()
        found += statuses(b"".join([bytes(data) async for data in ours]))
    assert found == [200, 413]


async def test_connections_are_bounded() -> None:
    """One too many is told so and closed; when another leaves there is room again."""
    server = HttpServer(HttpSettings(max_connections=2), echo, ignore)
    async with trio.open_nursery() as nursery:
        address = await nursery.start(server.serve, Address("127.0.0.1", 0))
        streams = [await trio.open_tcp_stream("127.0.0.1", address.port) for _ in range(2)]
        for stream in streams:
            await stream.send_all(GET)
            assert b"200 OK" in await stream.receive_some()
        third = await trio.open_tcp_stream("127.0.0.1", address.port)
        received = b""
        async for data in third:
            received += data
        assert statuses(received) == [503]
        await third.aclose()
        assert (server.connections, server.refused) == (2, 1)
        await streams.pop().aclose()
        while server.connections == 2:
            await trio.lowlevel.checkpoint()
        fourth = await trio.open_tcp_stream("127.0.0.1", address.port)
        await fourth.send_all(GET)
        assert b"200 OK" in await fourth.receive_some()
        for stream in (*streams, fourth):
            await stream.aclose()
        nursery.cancel_scope.cancel()


async def test_urgent_requests_have_places_of_their_own() -> None:
    """While all places are busy, a reserved one answers an urgent request and no other; a silent client there gives way
    to the next, and none of them keeps its place.
    """
    free = trio.Event()

    async def busy(request: HttpRequest) -> HttpResponse:
        if request.target != "/health":
            await free.wait()
        return await echo(request)

    settings = HttpSettings(max_connections=1, reserved_connections=1, gives_way=True)
    server = HttpServer(settings, busy, ignore, is_urgent=lambda request: request.target == "/health")
    async with trio.open_nursery() as nursery:
        address = await nursery.start(server.serve, Address("127.0.0.1", 0))

        async def answer(question: bytes) -> tuple[list[int], bytes]:
            async with await trio.open_tcp_stream("127.0.0.1", address.port) as stream:
                await stream.send_all(question)
                received = b"".join([bytes(data) async for data in stream])
            return statuses(received), received.lower()

        first = await trio.open_tcp_stream("127.0.0.1", address.port)
        await first.send_all(GET)
        while not any(not connection.may_give_way for connection in server._connections):
            await trio.lowlevel.checkpoint()
        silent = await trio.open_tcp_stream("127.0.0.1", address.port)
        while server.connections < 2:
            await trio.lowlevel.checkpoint()
        for _ in range(3):
            found, said = await answer(GET.replace(b"/ ", b"/health ", 1))
            assert (found, b"connection: close" in said) == ([200], True)
            assert (await answer(GET))[0] == [503]
        assert await silent.receive_some() == b""
        assert server.refused == 3
        free.set()
        assert b"200 OK" in await first.receive_some()
        while server.connections > 1:
            await trio.lowlevel.checkpoint()
        assert (await answer(GET.replace(b"Host", b"Connection: close\r\nHost", 1)))[0] == [200]
        await first.aclose()
        await silent.aclose()
        nursery.cancel_scope.cancel()


PARTS = st.sampled_from(
    [b"GET", b"POST", b" ", b"/", b"/v1/requests", b" HTTP/1.1", b"\r\n", b"\n", b"Host: x", b"Content-Length: ", b"5",
     b"Transfer-Encoding: chunked", b"\r\n\r\n", b"0\r\n\r\n", b"{}", b"\x00", b"Expect: 100-continue",
     b"Connection: close"]
)  # fmt: skip
BYTES = st.lists(st.one_of(PARTS, st.binary(max_size=30)), max_size=14)


@given(BYTES)
def test_any_bytes_are_survived(pieces: list[bytes]) -> None:
    """Whatever is sent: every answer is whole and valid, after a refusal nothing follows, nothing is raised."""

    async def main() -> bytes:
        return await talk(*(piece for piece in pieces if piece))

    received = run_virtual(main)
    found = statuses(received.replace(b"HTTP/1.1 100 \r\n\r\n", b""))
    assert all(status == 200 or number == len(found) - 1 for number, status in enumerate(found))
