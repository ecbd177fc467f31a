"""Links between hosts: what is sent arrives in order, what cannot be sent is dropped, and ends are noticed at once."""

from __future__ import annotations

import pytest
import trio

from tests.cluster.links_world import LinkedHost, append, know, linked, look


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
    """When a host ends, the others hear that it is lost and that its address refuses; when it is back, so do they."""
    a, b = LinkedHost("a"), LinkedHost("b")
    async with linked(a, b) as nursery:
        await b.stop()
        await a.seen.until(lambda: ("refused", "b") in a.seen.news)
        assert a.seen.news == [("connected", "b"), ("lost", "b"), ("refused", "b")]
        assert not a.links.is_reachable("b")
        a.links.send("b", look(1))
        await b.start(nursery)
        await a.seen.until(lambda: a.links.is_reachable("b"))
        a.links.send("b", look(2))
        await b.seen.until(lambda: ("a", look(2)) in b.seen.messages)
        assert ("a", look(1)) not in b.seen.messages


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
