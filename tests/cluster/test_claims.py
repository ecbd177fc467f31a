"""When a host claims streams: what the looks at all of them cost the rest."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from logstore.base.metadata import schema
from logstore.cluster.claims import BALANCE_AFTER_S, STREAMS_AT_ONCE, Claims, OwnStreams
from logstore.cluster.live_hosts import placing_of
from logstore.cluster.members.view import KnownHead, KnownTopic, stream_name
from logstore.replica.placing import ANYWHERE
from logstore.replica.registrations import ChunkRegistration, Member, OwnerId, StreamHead

STREAMS = 10 * STREAMS_AT_ONCE
HERE, OTHER = Member("a", "disk1"), Member("b", "disk2")


def member(disk: str) -> schema.StoredMember:
    """A host's entry."""
    return schema.StoredMember(disk=disk, start=f"{disk}.1", node_id=1, link="127.0.0.1:1", rack="", addresses={})


@pytest.mark.parametrize("leaving", [{}, {"b": schema.Leaving(how=schema.DRAIN)}])
async def test_other_tasks_run_between_looks(
    autojump_clock: trio.testing.MockClock, leaving: dict[str, schema.Leaving]
) -> None:
    """Thousands of streams, each of which another host owns: nobody waits until all were looked at."""
    topic = schema.StoredTopic(topic_id="t1", partitions=STREAMS, replicas=2, settings={})
    chunk = ChunkRegistration(1, 0, (OTHER, HERE))
    head = KnownHead(StreamHead(2, 1, 1, OwnerId("b", "disk2.1"), chunk, 0), 1)
    turns = 0
    seen: list[int] = []

    class Heads(dict[str, KnownHead]):
        """Notes in which turn of the event loop each look is made."""

        def get(self, key: str, default: Any = None) -> Any:
            seen.append(turns)
            return super().get(key, default)

    view = SimpleNamespace(
        heads=Heads({stream_name("t1", number): head for number in range(STREAMS)}),
        topics={"t": KnownTopic(topic, 1)},
        names={"t1": "t"},
    )
    hosts = SimpleNamespace(
        live={"a": member("disk1"), "b": member("disk2")},
        placing=placing_of(leaving, ANYWHERE),
        changed_s=trio.current_time(),
        all_deal=True,
        has_earlier=False,
        reaches=lambda hosts: 0,  # nothing is claimed
    )
    claims = Claims(
        OwnerId("a", "disk1.1"), cast(Any, view), cast(Any, hosts), cast(Any, SimpleNamespace(is_held=True)),
        OwnStreams(lambda stream: None, lambda stream: False, lambda stream, chunk: True), lambda: 0.0,
    )  # fmt: skip
    for stream in view.heads:
        claims.look_at(stream)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(claims.run)
        await trio.sleep(BALANCE_AFTER_S / 2 if leaving else BALANCE_AFTER_S * 1.5)
        seen.clear()
        nursery.start_soon(count_turns)
        autojump_clock.jump(BALANCE_AFTER_S)
        while len(seen) < STREAMS:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert max(Counter(seen).values()) <= 5 * STREAMS_AT_ONCE
