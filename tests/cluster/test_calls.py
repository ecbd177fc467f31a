"""Calls between hosts, over real sockets: answers, ends of connections, bounds, and what is no call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trustme

from logstore.base.addresses import Address
from logstore.cluster.links import calls
from logstore.cluster.links.calls import CallHead, decode_call, encode_call
from logstore.cluster.links.hello import Hello, encode_hello
from logstore.cluster.links.peers import Peer
from logstore.cluster.links.wire import FRAME, FrameBuffer
from logstore.cluster.streams import owner_calls
from logstore.errors import HostUnreachable, MalformedMessage
from logstore.interfaces import Buffer
from tests.cluster.links_world import SETTINGS, LinkedHost, linked, look
from tests.cluster.raw_links import NOWHERE, RAW, frame_of, is_ended, opened, read_hello
from tests.cluster.test_link_tls import secured
from tests.support.limits import PATIENCE_S

ECHO, SLOW, BROKEN = 1, 2, 9


async def echo(host: str, payload: memoryview) -> Sequence[Buffer]:
    """Says who has called, and what was said."""
    await trio.lowlevel.checkpoint()
    return [host.encode(), b": ", payload]


class Gate:
    """Answers when a test says so."""

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.waiting = 0
        self.seen: list[list[int]] = []
        """The sizes of those that were here at the same time, whenever one came."""
        self._sizes: list[int] = []

    async def serve(self, host: str, payload: memoryview) -> Sequence[Buffer]:
        self.waiting += 1
        self._sizes.append(len(payload))
        self.seen.append(list(self._sizes))
        await self.opened.wait()
        self.waiting -= 1
        self._sizes.remove(len(payload))
        return [payload]


async def broken(host: str, payload: memoryview) -> Sequence[Buffer]:
    """Has a defect."""
    raise KeyError("a defect")


async def called(host: LinkedHost, peer: str, *payload: Buffer) -> bytes:
    """The echo of another host."""
    return bytes(await host.links.calls.call(peer, ECHO, payload))


def two() -> tuple[LinkedHost, LinkedHost]:
    """Two hosts that serve calls."""
    a, b = LinkedHost("a"), LinkedHost("b")
    for host in (a, b):
        host.links.calls.handle(ECHO, echo)
    return a, b


@pytest.mark.parametrize("size", [0, 1, 100_000, 5_000_000])
async def test_a_call_is_answered(size: int) -> None:
    """By the host that was called, with the name of the host that calls; calls to oneself too."""
    a, b = two()
    data = bytes(size)
    async with linked(a, b):
        assert await called(a, "b", data[:10], data[10:]) == b"a: " + data
        assert await called(b, "a", data) == b"b: " + data
        assert await called(a, "a", data) == b"a: " + data


async def test_many_calls_share_a_connection_and_get_their_own_answers() -> None:
    """In any order: one that waits holds up no other."""
    a, b = two()
    gate = Gate()
    b.links.calls.handle(SLOW, gate.serve)
    found: dict[int, bytes] = {}

    async def ask(kind: int, number: int) -> None:
        found[number] = bytes(await a.links.calls.call("b", kind, [b"%d" % number]))

    async with linked(a, b) as nursery:
        async with trio.open_nursery() as asking:
            for number in range(50):
                asking.start_soon(ask, SLOW if number % 2 else ECHO, number)
            while len(found) < 25 or gate.waiting < 25:
                await trio.lowlevel.checkpoint()
            gate.opened.set()
        nursery.cancel_scope.cancel()
    assert found == {number: b"%d" % number if number % 2 else b"a: %d" % number for number in range(50)}


async def test_calls_of_a_kind_have_a_bound_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """More wait for their turn, by number and by bytes; another kind passes; one larger than the bound goes alone."""
    monkeypatch.setattr(calls, "MAX_CALLS", 3)
    monkeypatch.setattr(calls, "MAX_KIND_BYTES", 1000)
    a, b = two()
    gate = Gate()
    b.links.calls.handle(SLOW, gate.serve)
    async with linked(a, b), trio.open_nursery() as asking:
        for size in (400, 400, 400, 5000, 10, 10, 10, 10):
            asking.start_soon(a.links.calls.call, "b", SLOW, [bytes(size)])
        while not gate.waiting:
            await trio.lowlevel.checkpoint()
        assert await called(a, "b", b"x") == b"a: x"
        gate.opened.set()
    assert len(gate.seen) == 8
    assert all(len(sizes) <= 3 and (sum(sizes) <= 1000 or len(sizes) == 1) for sizes in gate.seen), gate.seen


async def test_a_host_that_ends_answers_nothing_and_one_that_starts_is_called_anew() -> None:
    """The call fails by name, whether it was carried out or not; the next one finds the host again."""
    a, b = two()
    gate = Gate()
    b.links.calls.handle(SLOW, gate.serve)
    async with linked(a, b) as nursery:
        failed: list[HostUnreachable] = []

        async def ask() -> None:
            with pytest.raises(HostUnreachable, match="host 'b'") as found:
                await a.links.calls.call("b", SLOW, [b"1"])
            failed.append(found.value)

        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            while not gate.waiting:
                await trio.lowlevel.checkpoint()
            await b.stop()
        assert len(failed) == 1
        with pytest.raises(HostUnreachable, match="host 'b'"):
            await a.links.calls.call("b", ECHO, [b"2"])
        with pytest.raises(HostUnreachable, match="'nobody': it is not a member"):
            await a.links.calls.call("nobody", ECHO, [b"3"])
        await b.start(nursery)
        assert await called(a, "b", b"4") == b"a: 4"


async def test_a_call_that_is_given_up_costs_no_other() -> None:
    """Its answer comes to nobody; the connection goes on."""
    a, b = two()
    gate = Gate()
    b.links.calls.handle(SLOW, gate.serve)
    async with linked(a, b):
        async with trio.open_nursery() as asking:
            asking.start_soon(a.links.calls.call, "b", SLOW, [b"1"])
            while not gate.waiting:
                await trio.lowlevel.checkpoint()
            asking.cancel_scope.cancel()
        gate.opened.set()
        assert await called(a, "b", b"2") == b"a: 2"


def test_calls_of_all_other_kinds_leave_room_for_one_more() -> None:
    """A host that serves as many as another one may make reads on: what they wait for may be a call."""
    kinds = [name for name, value in vars(owner_calls).items() if name.isupper() and isinstance(value, int)]
    assert len(kinds) > 10
    assert len(kinds) * calls.MAX_CALLS < calls.MAX_SERVED


async def test_calls_that_are_given_up_do_not_pile_up_where_they_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are made and given up, the other host serves MAX_CALLS of a kind, and calls of other kinds pass."""
    monkeypatch.setattr(calls, "MAX_CALLS", 3)
    monkeypatch.setattr(calls, "MAX_SERVED", 6)
    a, b = two()
    gate = Gate()
    b.links.calls.handle(SLOW, gate.serve)
    async with linked(a, b):
        for _ in range(3):
            async with trio.open_nursery() as asking:
                before = gate.waiting
                for _ in range(3):
                    asking.start_soon(a.links.calls.call, "b", SLOW, [b"1"])
                while gate.waiting < min(3, before + 3):
                    await trio.lowlevel.checkpoint()
                for _ in range(3):
                    with trio.fail_after(PATIENCE_S):
                        assert await called(a, "b", b"2") == b"a: 2"
                asking.cancel_scope.cancel()
        assert gate.waiting == 3
        gate.opened.set()
        assert bytes(await a.links.calls.call("b", SLOW, [b"3"])) == b"3"


async def test_a_host_that_takes_nothing_and_then_ends() -> None:
    """Calls whose bytes are under way fail as others do, and the host that calls goes on."""
    a = LinkedHost("a")
    is_open, opened_by_a = trio.Event(), list[trio.SocketStream]()

    async def silent(stream: trio.SocketStream) -> None:
        hello = await read_hello(stream)
        await stream.send_all(encode_hello(Hello(hello.cluster, RAW, hello.me.host, for_calls=hello.for_calls)))
        if hello.for_calls:
            opened_by_a.append(stream)
            is_open.set()
        await trio.sleep_forever()

    failed: list[str] = []

    async def ask() -> None:
        with pytest.raises(HostUnreachable) as found:
            await a.links.calls.call("raw", ECHO, [bytes(20_000_000)])
        failed.append(str(found.value))

    async with linked(a), trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, silent, 0)
        address = Address("127.0.0.1", listeners[0].socket.getsockname()[1])
        a.links.set_peers({"raw": Peer(address, RAW.disk)})
        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            with trio.fail_after(PATIENCE_S):
                await is_open.wait()
            await trio.testing.wait_all_tasks_blocked(0.05)
            opened_by_a[0].socket.shutdown(trio.socket.SHUT_WR)  # what it sends ends, and it still takes nothing
        nursery.cancel_scope.cancel()
    assert len(failed) == 1
    assert "it ended the connection" in failed[0]


async def test_a_defect_ends_the_connection_and_is_reported() -> None:
    """The host that serves goes on; links are not touched."""
    a, b = two()
    b.links.calls.handle(BROKEN, broken)
    async with linked(a, b):
        with pytest.raises(HostUnreachable):
            await a.links.calls.call("b", BROKEN, [])
        crashed = await b.seen.event("peer_message_crashed")
        assert "a defect" in str(crashed["trace"])
        assert await called(a, "b", b"2") == b"a: 2"
        a.links.send("b", look(1))
        await b.until_received(1)


async def test_a_call_that_is_too_long_is_not_sent() -> None:
    """The other host would end the connection."""
    settings = replace(SETTINGS, max_body_bytes=1000)
    a, b = LinkedHost("a", settings=settings), LinkedHost("b", settings=settings)
    b.links.calls.handle(ECHO, echo)
    async with linked(a, b):
        with pytest.raises(HostUnreachable, match="at most 1000"):
            await a.links.calls.call("b", ECHO, [bytes(1000)])
        assert await called(a, "b", b"1") == b"a: 1"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "a call of 0 bytes"),
        (b"\0\1\0\0\0\0\0\0\0", "a call of 9 bytes"),
        (b"\2\1" + bytes(8), "neither one nor an answer"),
        (b"\1\1" + bytes(8), "which this host does not serve"),
        (b"\0\7" + bytes(8), "which this host does not serve"),
    ],
    ids=["nothing", "cut", "flag", "answer", "kind"],
)
async def test_what_is_no_call_ends_the_connection(body: bytes, why: str) -> None:
    """With an event that says why; other connections go on."""
    a, b = two()
    async with linked(a, b):
        a.links.set_peers({"raw": NOWHERE, "b": b.peer})
        stream = await opened(a)
        await stream.send_all(encode_hello(Hello("cluster1", RAW, "a", for_calls=True)))
        assert (await read_hello(stream)).for_calls
        await stream.send_all(frame_of(body))
        assert await is_ended(stream)
        closed = await a.seen.event("peer_disconnected")
        assert why in str(closed["why"])
        assert await called(b, "a", b"1") == b"b: 1"


def test_a_call_as_bytes() -> None:
    """What is encoded is decoded, from any pieces; docs/replication.md has the table."""
    head = CallHead(False, 3, 5)
    parts = encode_call(head, [b"pay", b"load"], 100)
    whole = b"".join(parts)
    assert whole[FRAME.size :] == b"\x00\x03\x00\x00\x00\x00\x00\x00\x00\x05payload"
    frames = FrameBuffer(100, 64)
    for byte in whole:
        room = frames.room()
        room[0] = byte
        frames.add(1)
        body = frames.next()
        if body is not None:
            found, payload = decode_call(body)
            assert (found, bytes(payload)) == (head, b"payload")
            break
    else:
        pytest.fail("no frame")
    with pytest.raises(MalformedMessage):
        decode_call(memoryview(b"\x02" + whole[FRAME.size + 1 :]))


async def test_calls_by_tls(tmp_path: Path) -> None:
    """With the certificates of links."""
    authority = trustme.CA()
    a, b = (secured(tmp_path, authority, name) for name in ("a", "b"))
    b.links.calls.handle(ECHO, echo)
    with trio.fail_after(PATIENCE_S):
        async with linked(a, b):
            assert await called(a, "b", bytes(300_000)) == b"a: " + bytes(300_000)
