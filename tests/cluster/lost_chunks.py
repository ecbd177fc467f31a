"""Chunks that nobody can read in the cluster of `tier_world`, what waits for them, and what operators are told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import trio

from logstore.base.metadata import schema
from logstore.cluster.members.departures import Departures
from logstore.cluster.streams.takeover_waits import NOTE_AFTER_S
from logstore.cluster.streams.wait_notes import WaitNotes
from logstore.cluster.survey import Survey
from logstore.epochs.group_order import GroupOrder
from logstore.epochs.ledger_entries import Target
from logstore.errors import CairnError
from logstore.format.epoch_api import decode_request_header
from logstore.format.operator_api import (
    OperatorReply,
    OperatorRequest,
    api_key_of,
    decode_reply,
    encode_request,
)
from logstore.format.records import Record, encode_batch
from logstore.format.tiered_chunk import LOG_SUFFIX
from logstore.kafka.api_types import Broker, BrokerSettings
from logstore.kafka.hosts import cluster_apis
from logstore.testing.clock import ManualClock
from tests.cluster.epochs_world import NOW_MS
from tests.cluster.test_tier_takeovers import leave_last_chunk_to_the_tier, lose_leader
from tests.cluster.tier_world import TOPIC, TierWorld
from tests.kafka.node import CALLER

SURELY_S = 6 * NOTE_AFTER_S
"""Virtual: as long as a wait takes to be shown, whatever was tried before."""


def any_notes(world: TierWorld) -> list[WaitNotes]:
    """What each host shows, and lets operators change."""
    return [WaitNotes(life.running.store, life.running.view) for life in world.hosts.values()]


async def all_shown(world: TierWorld) -> list[schema.Wait]:
    """What waits in partition 0, as each host says."""
    topic_id = next(iter(world.hosts.values())).topics.topics[TOPIC].topic_id.hex
    found = [(await notes.of_topic(topic_id)).get(0, []) for notes in any_notes(world)]
    assert all(each == found[0] for each in found)
    return found[0]


async def shown(world: TierWorld) -> schema.Wait | None:
    """The same, where nothing or one thing waits."""
    found = await all_shown(world)
    assert len(found) <= 1
    return found[0] if found else None


async def asked(world: TierWorld, request: OperatorRequest) -> OperatorReply:
    """What any host answers an operator, as bytes go. Raises the error that is answered."""
    life = next(iter(world.hosts.values()))
    survey = Survey(life.running.host, life.running.store, lambda host: True, ManualClock())
    broker = Broker(cast(Any, None), world.clock, BrokerSettings())
    frame, key = b"".join(encode_request(request, correlation_id=1)), api_key_of(request)
    api = next(api for api in cluster_apis(broker, survey) if api.key == key)
    answer, _ = await api.handle(memoryview(frame)[decode_request_header(frame)[-1] :], cast(Any, None), CALLER)
    _, reply = decode_reply(key, b"\0\0\0\1" + b"".join(answer))
    if isinstance(reply, CairnError):
        raise reply
    return reply


def object_of(world: TierWorld, suffix: str, back: int = 0) -> str:
    """The key of the last chunk's object, or of one before."""
    return sorted(filter(lambda key: key.endswith(suffix), world.keys()))[-1 - back]


class Damage:
    """An object of the last chunk, or of one before, is as it should not be, until it is mended."""

    def __init__(self, world: TierWorld, suffix: str = LOG_SUFFIX, *, is_missing: bool = False, back: int = 0) -> None:
        self._objects, self.key = world.objects, object_of(world, suffix, back)
        self._good = self._objects.get(self.key, 0, 1 << 20)
        self._objects.delete(self.key)
        if not is_missing:
            bad = self._good[:-1] + bytes([self._good[-1] ^ 1])
            self._objects.put(self.key, len(bad), [bad])

    def mend(self) -> None:
        """It is as it was."""
        if self.key in {at.key for at in self._objects.list_keys("")}:
            self._objects.delete(self.key)
        self._objects.put(self.key, len(self._good), [self._good])


def group(world: TierWorld, epoch: int, query: str = "q") -> GroupOrder:
    """An epoch of one record, decided before the stream had anything."""
    topic_id = str(next(iter(world.hosts.values())).topics.topics[TOPIC].topic_id)
    batch = bytes(encode_batch([Record(0, NOW_MS, None, b"%d" % epoch)]))
    return GroupOrder(Target(TOPIC, topic_id, 0, 0), query, epoch, 1, "", ("0:a",), batch, 1)


async def remove(world: TierWorld, lost: str) -> None:
    """No chunk names a lost host any more."""
    running = next(iter(world.cluster.hosts.values()))
    await world.cluster.until(lambda: lost not in running.view.members)
    departures = Departures(running.view, running.store)
    while await departures.remove(lost):  # noqa: ASYNC110  time is virtual
        await trio.sleep(0.5)


@asynccontextmanager
async def waiting(
    world: TierWorld, *, is_removed: bool = True, is_missing: bool = False
) -> AsyncIterator[tuple[Damage, schema.Wait]]:
    """The last sealed chunk lies in the tier, alone if the host that had it is removed; it is damaged, and a takeover
    waits for it. What the registration names is not checked meanwhile.
    """
    lost = await leave_last_chunk_to_the_tier(world)
    if is_removed:
        await remove(world, lost)
    check_named, world.check_named = world.check_named, trio.lowlevel.checkpoint  # type: ignore[method-assign]
    damage = Damage(world, is_missing=is_missing)
    await lose_leader(world)
    await trio.sleep(SURELY_S)
    assert world.leader() is None
    wait = await shown(world)
    assert wait is not None
    assert counted(world) == 1
    yield damage, wait
    assert counted(world) == 0
    damage.mend()
    world.check_named = check_named  # type: ignore[method-assign]
    await world.check_all()


def counted(world: TierWorld) -> int:
    """What the metric of all hosts says together."""
    return sum(life.waits.count for life in world.hosts.values())


async def said(world: TierWorld) -> list[int]:
    """The chunks of which the metadata store has a wait or an operator's word."""
    page = await next(iter(world.hosts.values())).running.store.page(schema.WAITS)
    return [schema.wait_place(entry.key)[1] or 0 for entry in page.entries]
