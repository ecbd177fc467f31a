"""Links between hosts: what is sent arrives in order, what cannot be sent is dropped, and ends are noticed at once."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.abc

from logstore.cluster.links.hello import Hello
from logstore.cluster.links.outgoing import OutgoingLink
from logstore.cluster.links.peers import LinkSettings
from logstore.cluster.links.sockets import set_options
from tests.cluster.links_world import LOOPBACK, SETTINGS, LinkedHost, append, know, linked, look
from tests.cluster.raw_links import NOWHERE, RAW, encode_earlier, listening, opened, read_hello

TCP_OPTIONS = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 5000}


async def test_messages_arrive_in_order() -> None:
    """All messages between connected hosts arrive, whole and in the order in which they were sent."""
    a, b, c = LinkedHost("a"), LinkedHost("b"), LinkedHost("c")
    async with linked(a, b, c):
        sent = [look(number) for number in range(1000)] + [append(b"x" * 1000, bytes(3_000_000)), append()]
        for message in sent:
            a.links.send("b", message)
        c.links.send("b", look(5))
        await b.seen.until(lambda: len(b.seen.messages) == len(sent) + 1)
        assert [message for host, message in b.seen.messages if host == "a"] == sent
        assert ("c", look(5)) in b.seen.messages


async def test_messages_to_oneself() -> None:
    """A message to the host itself arrives soon, not within `send`, and so does one that is sent while it arrives."""
    a = LinkedHost("a")
    async with linked(a):
        depth = []

        def again(host: str, message: object) -> None:
            depth.append(1)
            if len(a.seen.messages) < 5000:
                before = len(depth)
                a.links.send("a", look(len(a.seen.messages)))
                assert len(depth) == before

        a.seen.on_received = again
        a.links.send("a", look(0))
        assert not a.seen.messages
        await a.seen.until(lambda: len(a.seen.messages) == 5000)
        assert a.links.is_reachable("a")


async def test_the_end_of_a_process_is_noticed() -> None:
    """When a host ends, the others hear that it is lost, and that its address refuses, as long as it does; when it is
    back, they hear that too.
    """
    a, b = LinkedHost("a"), LinkedHost("b")
    async with linked(a, b) as nursery:
        await b.stop()
        await a.seen.until(lambda: ("refused", "b") in a.seen.news)
        assert a.seen.news[:3] == [("connected", "b"), ("lost", "b"), ("refused", "b")]
        await a.seen.until(lambda: a.seen.news.count(("refused", "b")) >= 3)
        assert not a.links.is_reachable("b")
        a.links.send("b", look(1))
        await b.start(nursery)
        await a.seen.until(lambda: a.links.is_reachable("b"))
        a.links.send("b", look(2))
        await b.seen.until(lambda: ("a", look(2)) in b.seen.messages)
        assert ("a", look(1)) not in b.seen.messages


async def test_a_host_that_is_no_member_is_told_from_one_that_is_not_reached() -> None:
    """Who does not know a host answers it all the same; when it knows the host, they connect. A host that is gone says
    nothing.
    """
    a, b = LinkedHost("a"), LinkedHost("b")
    async with trio.open_nursery() as nursery:
        for host in (a, b):
            await host.start(nursery)
        a.links.set_peers({"b": b.peer})
        await a.seen.event("peer_not_reached")
        assert a.links.is_stranger_to("b")
        assert not a.links.is_reachable("b")
        assert not b.links.is_stranger_to("a")
        know(a, b)
        await a.until_connected(["b"])
        assert not a.links.is_stranger_to("b")
        b.links.set_peers({})
        await b.stop()
        await a.seen.until(lambda: ("refused", "b") in a.seen.news)
        assert not a.links.is_stranger_to("b")
        nursery.cancel_scope.cancel()


async def test_hosts_say_whether_they_deal() -> None:
    """In their hellos. A host of the version before, which says nothing of that, is connected to as well; of a host
    that was never connected to nothing is known, and of one that is gone what it said.
    """
    a, b = LinkedHost("a"), LinkedHost("b")
    async with linked(a, b), listening(is_earlier=True) as (peer, accepted):
        assert (a.links.deals("a"), a.links.deals("b"), a.links.deals("c")) == (True, True, None)
        a.links.set_peers({"b": b.peer, "raw": peer, "nowhere": NOWHERE})
        await accepted.receive()
        await a.seen.until(lambda: a.links.is_reachable("raw"))
        assert a.links.deals("raw") is False
        assert a.links.deals("nowhere") is None
        await b.stop()
        await a.seen.until(lambda: not a.links.is_reachable("b"))
        assert a.links.deals("b") is True
        stream = await opened(a)
        await stream.send_all(encode_earlier(Hello("cluster1", RAW, "a")))
        assert (await read_hello(stream)).deals


async def test_another_cluster_is_refused() -> None:
    """Hosts of two clusters that got each other's addresses do not connect, and say why."""
    a, b = LinkedHost("a"), LinkedHost("b", cluster="cluster2")
    async with trio.open_nursery() as nursery:
        for host in (a, b):
            await host.start(nursery)
        know(a, b)
        trouble = await a.seen.event("peer_not_reached")
        assert trouble["why"] == "host 'b' is in cluster 'cluster2', not in 'cluster1'"
        closed = await b.seen.event("link_closed")
        assert closed["why"] == trouble["why"]
        assert not a.links.is_reachable("b")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("trouble_s", [0.0, 10_000.0])
async def test_trouble_is_said_after_a_bound(trouble_s: float) -> None:
    """While hosts start, some do not know others yet: who cannot be reached is reported only if that lasts."""
    a, b = LinkedHost("a", settings=replace(SETTINGS, trouble_s=trouble_s)), LinkedHost("b")
    async with trio.open_nursery() as nursery:
        for host in (a, b):
            await host.start(nursery)
        a.links.set_peers({"b": b.peer})  # b does not know a
        if trouble_s:
            await b.seen.until(lambda: len([name for name, _ in b.seen.events if name == "link_closed"]) > 2)
        else:
            assert (await a.seen.event("peer_not_reached"))["why"] == "host 'a' is not a member that 'b' knows of"
        know(a, b)
        await a.seen.until(lambda: a.links.is_reachable("b"))
        assert any(name == "peer_not_reached" for name, _ in a.seen.events) is (trouble_s == 0)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("disk", ["disk-old", "disk-new"])
async def test_another_disk_is_refused(disk: str) -> None:
    """A host whose disk is not the one that it is known by is refused by name, until that is put right."""
    a, b = LinkedHost("a"), LinkedHost("b", disk="disk-now")
    async with trio.open_nursery() as nursery:
        for host in (a, b):
            await host.start(nursery)
        b.links.set_peers({"a": a.peer})
        a.links.set_peers({"b": b.peer._replace(disk=disk)})
        trouble = await a.seen.event("peer_not_reached")
        assert trouble["why"] == f"host 'b' has disk '{disk}', not 'disk-now'"
        a.links.set_peers({"b": b.peer})
        await a.seen.until(lambda: a.links.is_reachable("b"))
        nursery.cancel_scope.cancel()


async def test_a_host_that_leaves_keeps_its_connection() -> None:
    """A host that is no member any more, as when its lease has ended, is sent to and heard as long as the connections
    last, and not connected to again.
    """
    a, b = LinkedHost("a"), LinkedHost("b")
    async with linked(a, b) as nursery:
        a.links.set_peers({})
        b.links.set_peers({})
        a.links.send("b", look(1))
        b.links.send("a", look(2))
        await b.seen.until(lambda: b.seen.messages == [("a", look(1))])
        await a.seen.until(lambda: a.seen.messages == [("b", look(2))])
        a.links.set_peers({"b": b.peer})
        assert a.links.is_reachable("b")
        a.links.set_peers({})
        await b.stop()
        await a.seen.until(lambda: ("lost", "b") in a.seen.news)
        await b.start(nursery)
        know(a, b)
        await a.until_connected(["b"])
        assert [news for news in a.seen.news if news[0] != "refused"] == [
            *(("connected", "b"), ("lost", "b"), ("connected", "b")),
        ]


async def test_a_host_that_moves() -> None:
    """A host with another address or another disk is connected to there."""
    a, b = LinkedHost("a"), LinkedHost("b")
    moved = LinkedHost("b", disk="disk-2")
    async with linked(a, b) as nursery:
        await moved.start(nursery)
        know(moved, a)
        know(a, moved)
        await a.seen.until(lambda: a.seen.news == [("connected", "b"), ("lost", "b"), ("connected", "b")])
        a.links.send("b", look(1))
        await moved.seen.until(lambda: moved.seen.messages == [("a", look(1))])
        assert not b.seen.messages


async def test_a_hello_ends_the_pause() -> None:
    """A host that has come back connects, and is connected to at once, however long the pause would be."""
    patient = LinkSettings(min_pause_s=10_000, max_pause_s=10_000)
    a, b = LinkedHost("a", settings=patient), LinkedHost("b")
    async with trio.open_nursery() as nursery:
        await a.start(nursery)
        await b.start(nursery)
        await b.stop()
        know(a, b)
        await a.seen.until(lambda: ("refused", "b") in a.seen.news)
        await b.start(nursery)
        await a.until_connected(["b"])
        nursery.cancel_scope.cancel()


async def test_two_hosts_of_one_name() -> None:
    """Two hosts that by mistake have one name and one disk take the connections of others from each other, one at a
    time; `test_pauses` has how they slow down.
    """
    a, b = LinkedHost("a"), LinkedHost("a")
    c = LinkedHost("c")
    async with trio.open_nursery() as nursery:
        for host in (a, b, c):
            await host.start(nursery)
        for host in (a, b):
            host.links.set_peers({"c": c.peer})
        c.links.set_peers({"a": a.peer})
        await a.seen.until(lambda: a.seen.news.count(("connected", "c")) >= 4)
        assert set(a.seen.news[::2]) == {("connected", "c")}
        assert set(a.seen.news[1::2]) == {("lost", "c")}
        assert len(c.links._incoming._links) <= 1
        nursery.cancel_scope.cancel()


def test_pauses() -> None:
    """The first try after a long connection comes at once; pauses grow from one bound to the other, also over failures
    of many days, and over connections that end early.
    """
    a = LinkedHost("a", settings=LinkSettings(min_pause_s=0.05, max_pause_s=1.0))
    link = OutgoingLink("b", a.peer, a.links._own)
    assert [link._pause_s(None) for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert [link._pause_s(0.01) for _ in range(3)] == [0.05, 0.1, 0.2]
    assert link._pause_s(1.01) == 0
    for _ in range(5000):
        assert link._pause_s(None) <= 1.0
    assert link._pause_s(0.01) == 0.05


async def test_sends_to_nobody() -> None:
    """A message to a host that is unknown, or to anybody before links serve, is dropped."""
    a, b = LinkedHost("a"), LinkedHost("b")
    a.links.send("b", look(1))
    a.links.set_peers({"b": b.peer})
    a.links.send("b", look(1))
    assert not a.links.is_reachable("b")
    assert not a.links.is_reachable("c")
    async with linked(a, b):
        a.links.send("b", look(2))
        await b.seen.until(lambda: b.seen.messages == [("a", look(2))])


async def test_a_message_beyond_the_limits() -> None:
    """A message that no frame can hold is dropped with an event that names its stream; the next ones are sent."""
    a, b = LinkedHost("a", settings=replace(SETTINGS, max_body_bytes=10_000)), LinkedHost("b")
    async with linked(a, b):
        a.links.send("b", append(bytes(10_000)))
        a.links.send("b", append(bytes(9_000)))
        await b.seen.until(lambda: b.seen.messages == [("a", append(bytes(9_000)))])
        unsent = await a.seen.event("peer_message_unsent")
        assert "Append of stream 'stream/0' has 10" in str(unsent["error"])


async def test_a_listener_that_cannot_be_opened() -> None:
    """An address that is taken is named in the error."""
    a, b = LinkedHost("a"), LinkedHost("b")
    async with linked(a):
        with pytest.raises(OSError, match=f"cannot listen on {a.address} for links"):
            await b.links.serve(a.address)


def test_a_link_is_prepared_for_silence() -> None:
    """The kernel is told to probe a silent machine, to end the connection after `stall_s`, and to send at once what is
    small.
    """
    with socket.create_server((LOOPBACK, 0)) as server, socket.create_connection(server.getsockname()) as client:
        set_options(client, 5.0)
        options = {name: client.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in TCP_OPTIONS}
        assert options == TCP_OPTIONS
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


class TwoAddresses(trio.abc.HostnameResolver):
    """Names have two addresses of loopback each."""

    async def getaddrinfo(self, host: Any, port: Any, family: int = 0, *rest: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (found, port)) for found in ("127.0.0.9", LOOPBACK)]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise AssertionError("links ask for the addresses of names only")


async def test_a_name_with_several_addresses() -> None:
    """A host that listens on one address of its name is reached by the name; the name refuses if both addresses do."""
    trio.socket.set_custom_hostname_resolver(TwoAddresses())
    a, b = LinkedHost("a"), LinkedHost("b")
    async with trio.open_nursery() as nursery:
        for host in (a, b):
            await host.start(nursery)
        b.links.set_peers({"a": a.peer})
        a.links.set_peers({"b": b.peer._replace(address=b.address._replace(host="localhost"))})
        await a.until_connected(["b"])
        await b.stop()
        await a.seen.until(lambda: ("refused", "b") in a.seen.news)
        nursery.cancel_scope.cancel()


async def test_other_loopback_addresses() -> None:
    """A link is plain between any addresses of loopback: of IPv6, by name, and others of IPv4."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    a, b, c = (
        LinkedHost(name, address=address)
        for name, address in zip("abc", ("::1", "localhost", "127.0.0.9"), strict=True)
    )
    async with linked(a, b, c):
        for sender, receiver in ((a, b), (b, c), (c, a)):
            sender.links.send(receiver.me.host, look(1))
            await receiver.until_received(1)
