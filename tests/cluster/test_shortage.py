"""A stream with fewer hosts than min.insync.replicas, as its host tells it, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import trio

from logstore.base.metadata import schema
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


def test_the_last_host_of_a_stream_serves_its_readers() -> None:
    """Its owner was lost, and one host is left of the two that are needed: it says that the stream may be read, and
    that members are wanting, to whoever observes it. It takes appends when another host is back.
    """

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic("t", 1, 3, **{MIN_COPIES_SETTING: "2"})
        name, _ = await cluster.append(stream, b"0")
        last, other = (host for host in "abc" if host != name)
        heard = cluster.hosts[last].observe(stream)
        await cluster.kill(other)
        await cluster.until(lambda: other not in cluster.hosts[name].host.live)
        await cluster.append(stream, b"1")
        await trio.sleep(0.1)  # members hear after `tell_ms` that it is acknowledged
        killed_s = trio.current_time()
        await cluster.kill(name)
        await cluster.until(lambda: "short" in heard.names())
        assert cluster.limits.short_after_ms / 1000 < trio.current_time() - killed_s < LEASE_S + 5
        (readable,) = [told for news, told in heard.news if news == "readable"]
        assert isinstance(readable, tuple)
        assert readable[1:] == (2, False)
        again = cluster.hosts[last].observe(stream)
        assert again.news[-2:] == [("readable", readable), ("short", 2)]
        registration = cluster.hosts[last].host.registration(stream)
        assert registration.last_chunk is not None
        found = await cluster.hosts[last].host.read_entries(stream, registration.last_chunk, 1, 1000)
        assert ([entry.data for entry in found.entries], found.limit_offset) == ([b"1"], 2)
        await cluster.start(other)
        await cluster.until(lambda: "ready" in again.names())
        assert again.news[-1] == ("ready", (registration.epoch, 2))
        await cluster.append(stream, b"2")

    simulated(test, "a", "b", "c")


def test_a_topic_with_more_copies_has_them_on_all_chunks() -> None:
    """Chunks that there are get further copies, and the open one is followed by another with more members."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic("t", 1, 1)
        name, _ = await cluster.append(stream, b"0")
        host = cluster.hosts[name].host

        def raised(topic: schema.StoredTopic) -> schema.StoredTopic:
            return replace(topic, replicas=3)

        await host.topics.alter("t", host.view.topics["t"].topic.topic_id, raised)
        for running in cluster.hosts.values():
            await cluster.until(lambda view=running.view: view.topics["t"].topic.replicas == 3)  # type: ignore[misc]
            running.host.reconfigure(stream, 1 << 20)  # as the topic's front does

        def has_all() -> bool:
            found = host.registration(stream)
            return found.copies == 3 and all(len(chunk.members) == 3 for chunk in found.chunks)

        await cluster.until(has_all)
        assert len(host.registration(stream).chunks) == 2
        await cluster.append(stream, b"1")
        await cluster.kill(name)
        await cluster.append(stream, b"2")
        await cluster.at_rest()
        owner = (await cluster.owner(stream)).host.name
        assert await cluster.read_all(owner, stream) == [b"0", b"1", b"2"]

    simulated(test, "a", "b", "c")
