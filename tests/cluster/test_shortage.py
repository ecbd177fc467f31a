"""A stream with fewer hosts than min.insync.replicas, as its host tells it, in virtual time."""

from __future__ import annotations

import trio

from logstore.cluster.members.election import MIN_COPIES_SETTING
from tests.cluster.memory import LEASE_S, MemoryCluster, simulated


def test_a_stream_with_too_few_members_tells_its_front() -> None:
    """After `short_after_ms`, also if nobody writes, and whoever observes it later; and when the member is back."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic("t", 1, 3, **{MIN_COPIES_SETTING: "3"})
        name, _ = await cluster.append(stream, b"0")
        owner = cluster.hosts[name]
        killed_s = trio.current_time()
        await cluster.kill(next(other for other in cluster.hosts if other != name))
        await cluster.until(lambda: "short" in owner.observers[stream].names())
        assert cluster.limits.short_after_ms / 1000 < trio.current_time() - killed_s < LEASE_S + 4
        heard = owner.observe(stream)
        assert heard.news[-1] == ("short", 3)
        await cluster.start(next(other for other in "abc" if other not in cluster.hosts))
        await cluster.until(lambda: "enough" in heard.names())
        await cluster.append(stream, b"1")
        assert owner.observe(stream).names() == ["ready"]

    simulated(test, "a", "b", "c")
