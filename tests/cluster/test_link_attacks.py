"""Strangers, and hosts that do what they must not: each costs its own connection, and what it costs is bounded."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import replace

import pytest
import trio
import trio.testing

from logstore.cluster.links.incoming import MESSAGE_BYTES, RECEIVE_BYTES
from logstore.cluster.links.wire import FrameBuffer, decode, frame_head
from logstore.errors import LinkRefused
from logstore.replica.messages import AppendDone
from logstore.replica.registrations import Member, Prefix
from tests.cluster.links_world import SETTINGS, LinkedHost, append, linked, look
from tests.cluster.raw_links import NOWHERE, RAW, dialed, frame, frame_of, is_ended, listening, opened, read_hello
from tests.kafka.turns import counted_turns
from tests.support.limits import PATIENCE_S


def know_raw(host: LinkedHost, *others: LinkedHost) -> None:
    """The host knows the raw end as a member, at which nobody listens."""
    host.links.set_peers({"raw": NOWHERE} | {each.me.host: each.peer for each in others})


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "begins no hello"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "begins no hello"),
        (b"CLNK\xff\xff\x00\x00\x00\x00", "a hello of 65535 bytes, at most 2048"),
        (b"CLNK\x00\x04\x00\x00\x00\x00\x00\x01\x00\x01", "does not match its checksum"),
        (b"CLNK", "ended behind 4 of 10 bytes"),
        (b"", "ended behind 0 of 10 bytes"),
    ],
    ids=["http", "tls", "length", "checksum", "cut", "nothing"],
)
async def test_garbage_of_strangers(sent: bytes, why: str) -> None:
    """Who says no hello is disconnected at once, with an event; links go on."""
    a, b = LinkedHost("a"), LinkedHost("b")
    async with linked(a, b):
        stream = await opened(a)
        with suppress(trio.BrokenResourceError):  # closed already, at the first bytes
            await stream.send_all(sent)
            await stream.send_eof()
        assert await is_ended(stream)
        closed = await a.seen.event("link_closed")
        assert why in str(closed["why"])
        b.links.send("a", look(1))
        await a.seen.until(lambda: ("b", look(1)) in a.seen.messages)


@pytest.mark.parametrize(
    ("me", "cluster", "why"),
    [
        (Member("who", "disk-raw"), "cluster1", "host 'who' is not a member that 'a' knows of"),
        (Member("raw", "disk-2"), "cluster1", "host 'raw' has disk 'disk-raw', not 'disk-2'"),
        (RAW, "cluster2", "host 'a' is in cluster 'cluster1', not in 'cluster2'"),
        (Member("a", "disk-a"), "cluster1", "host 'a' has no link to itself"),
        (Member("x\n\x1b[2J" + "y" * 200, "d"), "c", "not in 'c'"),
    ],
    ids=["stranger", "disk", "cluster", "self", "unprintable"],
)
async def test_hellos_that_are_refused(me: Member, cluster: str, why: str) -> None:
    """A hello of who is not expected is answered with the reason."""
    a = LinkedHost("a")
    async with linked(a):
        know_raw(a)
        with pytest.raises(LinkRefused) as refused:
            await dialed(a, me, cluster)
        assert why in str(refused.value)
        assert str(refused.value).isprintable()
        assert why in str((await a.seen.event("link_closed"))["why"])


async def test_strangers_have_few_places() -> None:
    """Many connections that say nothing take each other's places, never a link's, and a host still gets in."""
    places = 4
    a, b = LinkedHost("a", settings=replace(SETTINGS, max_strangers=places)), LinkedHost("b")
    async with linked(a, b):
        know_raw(a, b)
        first = [await opened(a) for _ in range(places)]
        for _ in range(20):
            await opened(a)
        for stream in first:
            assert await is_ended(stream)
        await a.seen.until(lambda: sum(name == "link_closed" for name, _ in a.seen.events) == 20)
        late = await dialed(a)
        await late.send_all(frame(look(7)))
        await a.seen.until(lambda: ("raw", look(7)) in a.seen.messages)
        b.links.send("a", look(1))
        await a.seen.until(lambda: ("b", look(1)) in a.seen.messages)
        assert ("lost", "a") not in b.seen.news


async def test_strangers_have_little_time() -> None:
    """A connection without a hello ends after `handshake_s`, also one that sends a byte now and then."""
    a = LinkedHost("a", settings=replace(SETTINGS, handshake_s=0.2))
    async with linked(a) as nursery:
        silent, slow = [await opened(a) for _ in range(2)]

        async def trickle() -> None:
            for byte in b"CLNK\x07\x00" + bytes(2000):
                try:
                    await slow.send_all(bytes((byte,)))
                except trio.BrokenResourceError:
                    return
                await trio.sleep(0.01)

        nursery.start_soon(trickle)
        assert await is_ended(silent)
        assert await is_ended(slow)
        await a.seen.until(lambda: len(a.seen.events) == 2)
        assert {str(fields["why"]) for _, fields in a.seen.events} == {"it did not identify itself within 0.2 s"}


BAD_MEMBER = AppendDone("t/0", 3, Member("b", "disk-b"), Prefix(0, 0, 0))


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (frame_of(b"\xff\xff"), "a message of kind 255"),
        (frame_of(b""), "a message of 0 bytes"),
        (frame(look(1))[:-1] + b"x", "does not match its checksum"),
        (b"\x00\x10" + frame(look(1))[2:], "the head of a frame ("),
        (
            frame_head(SETTINGS.max_body_bytes + 1, 0),
            f"a frame of {SETTINGS.max_body_bytes + 1} bytes, at most {SETTINGS.max_body_bytes}",
        ),
        (frame(BAD_MEMBER), "host 'raw' sent a AppendDone of stream 't/0' in the name of 'b'"),
    ],
    ids=["kind", "empty", "checksum", "head", "length", "speaker"],
)
async def test_garbage_of_a_host(sent: bytes, why: str) -> None:
    """A host that sends what is no message, or speaks for another host, loses its connection, and others go on."""
    a, b = LinkedHost("a"), LinkedHost("b")
    async with linked(a, b):
        know_raw(a, b)
        stream = await dialed(a)
        await stream.send_all(frame(look(5)) + sent)
        assert await is_ended(stream)
        assert why in str((await a.seen.event("peer_disconnected"))["why"])
        b.links.send("a", look(1))
        await a.seen.until(lambda: ("b", look(1)) in a.seen.messages)
        assert a.seen.messages == [("raw", look(5)), ("b", look(1))]
        again = await dialed(a)
        await again.send_all(frame(look(6)))
        await a.seen.until(lambda: ("raw", look(6)) in a.seen.messages)


async def test_frames_byte_by_byte() -> None:
    """A host that sends its frames in the smallest pieces is understood, and others are served meanwhile."""
    a, b = LinkedHost("a"), LinkedHost("b")
    async with linked(a, b):
        know_raw(a, b)
        stream = await dialed(a)
        for byte in frame(append(b"abc")):
            await stream.send_all(bytes((byte,)))
        b.links.send("a", look(1))
        await a.seen.until(lambda: len(a.seen.messages) == 2)
        assert ("raw", append(b"abc")) in a.seen.messages


async def test_a_newer_connection_takes_the_place_of_the_older() -> None:
    """A host that connects again, as after an end that nobody saw, is heard on the new connection; the old one ends."""
    a = LinkedHost("a")
    async with linked(a):
        know_raw(a)
        old = await dialed(a)
        new = await dialed(a)
        assert await is_ended(old)
        await new.send_all(frame(look(1)))
        await a.seen.until(lambda: ("raw", look(1)) in a.seen.messages)


async def test_a_host_that_is_slow() -> None:
    """What waits for a host that reads nothing is bounded; the rest is dropped with an event, other hosts get theirs,
    and when the host reads again, what waited comes in order and what is sent then.
    """
    settings = replace(SETTINGS, queue_bytes=1 << 20, stall_s=PATIENCE_S)
    a, b = LinkedHost("a", settings=settings), LinkedHost("b")
    async with linked(a, b) as nursery, listening() as (peer, accepted):
        a.links.set_peers({"b": b.peer, "raw": peer})
        await a.until_connected(["raw"])
        stream = await accepted.receive()
        link = a.links._outgoing["raw"]
        for number in range(500):
            a.links.send("raw", append(bytes(100_000), epoch=number))
            assert link.queued_bytes <= (1 << 20) + 101_000
            if number % 10 == 0:
                await trio.lowlevel.checkpoint()
        dropped = link._dropped
        assert a.links.counts[link.host].dropped_messages == dropped
        assert a.links.queued_bytes(link.host) > 0
        assert dropped > 300
        assert sum(name == "peer_slow" for name, _ in a.seen.events) == 1
        a.links.send("b", look(1))
        await b.seen.until(lambda: ("a", look(1)) in b.seen.messages)
        frames, epochs = FrameBuffer(1 << 20, 1 << 16), list[int]()

        async def read_on() -> None:
            while True:
                piece = await stream.receive_some(len(room := frames.room()))
                room[: len(piece)] = piece
                frames.add(len(piece))
                while (body := frames.next()) is not None:
                    epochs.append(getattr(decode(body), "epoch", -1))

        nursery.start_soon(read_on)
        assert (await a.seen.event("peer_slow_over"))["dropped"] == dropped
        a.links.send("raw", append(epoch=1000))
        while not epochs or epochs[-1] != 1000:
            await trio.testing.wait_all_tasks_blocked(0.001)
        assert epochs == sorted(set(epochs))
        assert len(epochs) == 500 - dropped + 1
        nursery.cancel_scope.cancel()


async def test_a_host_that_takes_nothing() -> None:
    """When a host has taken nothing for `stall_s`, its connection ends, and the event says so. The kernel has the same
    limit, and comes first where this process stands still meanwhile.
    """
    a = LinkedHost("a", settings=replace(SETTINGS, stall_s=0.1))
    async with linked(a), listening() as (peer, accepted):
        a.links.set_peers({"raw": peer})
        await a.until_connected(["raw"])
        await accepted.receive()
        for _ in range(300):
            a.links.send("raw", append(bytes(100_000)))
        await a.seen.until(lambda: ("lost", "raw") in a.seen.news)
        why = str((await a.seen.event("peer_lost"))["why"])
        assert "not read" in why or why == os.strerror(errno.ETIMEDOUT)


async def test_a_listener_that_talks() -> None:
    """The end that is connected to says nothing behind its hello; if it does, the connection ends."""
    a = LinkedHost("a")
    async with linked(a), listening() as (peer, accepted):
        a.links.set_peers({"raw": peer})
        stream = await accepted.receive()
        await stream.send_all(b"x")
        assert (await a.seen.event("peer_lost"))["why"] == "it violated the protocol"


async def test_another_host_at_the_address() -> None:
    """If another host of the cluster listens at a host's address, it is not taken for that host."""
    a = LinkedHost("a")
    async with linked(a), listening(Member("c", "disk-raw")) as (peer, _):
        a.links.set_peers({"raw": peer})
        assert (await a.seen.event("peer_not_reached"))["why"] == f"at {peer.address} is host 'c', not 'raw'"


async def test_no_common_version() -> None:
    """A host of a release without a common version is refused by name."""
    from logstore.cluster.links.hello import Hello, encode_hello

    a = LinkedHost("a")
    async with linked(a):
        know_raw(a)
        stream = await opened(a)
        await stream.send_all(encode_hello(Hello("cluster1", RAW, "a", 2, 3)))
        with pytest.raises(LinkRefused, match="speaks versions 1 to 1 of links, 'raw' 2 to 3: update the older host"):
            await read_hello(stream)


async def test_a_defect_costs_one_connection() -> None:
    """A message that meets a defect here is reported with a trace; its host connects again, and others go on."""
    a, b, c = LinkedHost("a"), LinkedHost("b"), LinkedHost("c")
    async with linked(a, b, c):

        def broken(host: str, message: object) -> None:
            if message == look(13):
                raise ZeroDivisionError

        a.seen.on_received = broken
        b.links.send("a", look(13))
        crashed = await a.seen.event("peer_message_crashed")
        assert crashed["host"] == "b"
        assert "ZeroDivisionError" in str(crashed["trace"])
        await b.seen.until(lambda: b.seen.news.count(("connected", "a")) == 2)
        b.links.send("a", look(2))
        c.links.send("a", look(3))
        a.links.send("a", look(13))
        a.links.send("a", look(4))
        await a.seen.until(lambda: {("b", look(2)), ("c", look(3)), ("a", look(4))} <= set(a.seen.messages))


async def test_a_flood_gives_way() -> None:
    """While a host sends as much as it can, other tasks run after 64 short messages, or 256 KiB."""
    a = LinkedHost("a")
    count = 20_000
    async with linked(a):
        know_raw(a)
        stream = await dialed(a)
        async with counted_turns() as turns:
            before = turns.count
            await stream.send_all(frame(look(1)) * count)
            await a.seen.until(lambda: len(a.seen.messages) == count)
            assert turns.count - before >= count / (RECEIVE_BYTES / MESSAGE_BYTES) - 1
            before = turns.count
            await stream.send_all(frame(append(bytes(RECEIVE_BYTES))) * 30)
            await a.seen.until(lambda: len(a.seen.messages) == count + 30)
            assert turns.count - before >= 30
