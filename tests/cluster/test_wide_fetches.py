"""One Fetch of very many partitions of a cluster whose hosts are gone, silent or slow, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from logstore.cluster.engine import ClusterEngine
from logstore.cluster.interfaces import ReplicaFiles
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.cluster.streams.entry_reads import READ_ROUNDS, EntryReads
from logstore.cluster.streams.late_reads import LATE_S, MAX_LATE
from logstore.cluster.streams.stream_place import StreamPlace
from logstore.engine import StoreEngine
from logstore.errors import ChunkUnreachable, TierUnavailable
from logstore.kafka import fetch
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.fetch import FetchPartition, FetchRequest
from logstore.kafka.offsets import _TimeSearch
from logstore.replica.messages import Message, ReadEntries
from logstore.replica.registrations import Member
from tests.cluster.support import MEMBERS, Front, MemoryOwner, NoFiles
from tests.kafka.front_driver import decode_answer

PARTITIONS = 1_000
TOPIC = "orders"
VERSION = 11
MAX_WAIT_S = 0.5
SILENCE_S = 60.0


Values = Callable[[int], Sequence[bytes]]
"""The values of the records of a stream, each in a batch of its own."""


def _one_value(number: int) -> Sequence[bytes]:
    return [b"x"]


class Wide:
    """Streams that this host owns, with their chunks on two other hosts alone, unless a test puts them elsewhere."""

    def __init__(self, nursery: trio.Nursery, partitions: int = PARTITIONS) -> None:
        self.nursery = nursery
        self.asked = self.owing = self.most_owing = 0
        """Messages that were sent, and those of them that are not answered; the most that there were."""
        self.delay_s: dict[str, float | None] = {member.host: 0.001 for member in MEMBERS}
        """For how long each host is silent; None: it cannot be reached."""
        self.owners = [MemoryOwner() for _ in range(partitions)]
        self.fronts = [
            Front(owner, place=StreamPlace(TOPIC, f"{1:032x}", number)) for number, owner in enumerate(self.owners)
        ]
        self.reads = EntryReads("me", self, lambda *_: False)
        owners = SimpleNamespace(read_entries=self.reads.read, answering=self.reads.answering)
        chunk_reads = ChunkReads(
            cast(StoreEngine, SimpleNamespace(find_timestamp=self.lead)),
            cast(Any, owners),
            cast(ReplicaFiles, NoFiles()),
            self.fronts[0].clock,
            self.fronts[0].reports,
            None,
            nursery.start_soon,
        )
        topic = SimpleNamespace(partitions=[front.stream for front in self.fronts])
        store = SimpleNamespace(
            topics={TOPIC: topic},
            report=self.fronts[0].reports,
            stream=lambda _, partition: self.fronts[partition].stream,
        )
        self.broker = SimpleNamespace(engine=ClusterEngine(cast(Any, None), cast(Any, store), chunk_reads))

    async def lead(self, values: Values) -> None:
        """Append a batch to each stream for each of its values."""
        for number, (owner, front) in enumerate(zip(self.owners, self.fronts, strict=True)):
            owner.own(front.stream)
            await front.tasks.run()
            for value in values(number):
                front.append(value)
                owner.ack()
            owner.roll()

    def put(self, number: int, host: str) -> None:
        """Have only this host have a stream's chunk."""
        chunk = self.owners[number].chunks[0]
        chunk.registration = replace(chunk.registration, members=(Member(host, f"disk-{host}"),))

    # ---- Links

    def send(self, host: str, message: Message) -> None:
        """See Links: the answer comes when the host answers."""
        assert isinstance(message, ReadEntries)
        self.asked += 1
        self.owing += 1
        self.most_owing = max(self.owing, self.most_owing)
        self.nursery.start_soon(self._answer, host, message)

    async def _answer(self, host: str, asked: ReadEntries) -> None:
        delay_s = self.delay_s[host]
        if delay_s is None:
            return
        await trio.sleep(delay_s)
        owner = next(
            owner for owner, front in zip(self.owners, self.fronts, strict=True) if front.stream.stream == asked.stream
        )
        member = next(member for member in owner.chunks[0].registration.members if member.host == host)
        found = await owner.read_entries(asked.stream, owner.chunks[0].registration, asked.offset, asked.max_bytes)
        self.owing -= 1
        self.reads.received(replace(found, member=member))

    def is_reachable(self, host: str) -> bool:
        """See Links."""
        return self.delay_s[host] is not None

    def is_stranger_to(self, host: str) -> bool:
        """See Links."""
        return False

    def deals(self, host: str) -> bool:
        """See Links."""
        return True

    # ---- the client

    async def fetch(
        self, max_wait_s: float = MAX_WAIT_S, min_bytes: int = 1, without: Collection[int] = ()
    ) -> tuple[list[int], list[int], float]:
        """The errors of all partitions, which of them have records, and how long it took."""
        numbers = [number for number in range(len(self.fronts)) if number not in without]
        partitions = [FetchPartition(number, -1, 0, 1 << 20) for number in numbers]
        begun_s = trio.current_time()
        body = await self.ask(partitions, AnswerBudget(64 << 20), max_wait_s=max_wait_s, min_bytes=min_bytes)
        took_s = trio.current_time() - begun_s
        (topic,) = decode_answer(fetch.KEY, VERSION, body).responses
        found = [each.partition_index for each in topic.partitions if each.records]
        return [each.error_code.value for each in topic.partitions], found, took_s

    async def ask(
        self,
        partitions: list[FetchPartition],
        answers: AnswerBudget,
        *,
        max_wait_s: float = MAX_WAIT_S,
        min_bytes: int = 1,
        max_bytes: int = 16 << 20,
    ) -> bytes:
        """The answer to a Fetch."""
        request = FetchRequest(
            VERSION, int(max_wait_s * 1000), min_bytes, max_bytes, 0, -1, [(TOPIC, partitions)], len(partitions)
        )
        body, _ = await fetch.handle(cast(Any, self.broker), request, answers)
        return b"".join(body)


@asynccontextmanager
async def wide(partitions: int = PARTITIONS, values: Values = _one_value) -> AsyncIterator[Wide]:
    """See Wide."""
    async with trio.open_nursery() as nursery:
        at = Wide(nursery, partitions)
        await at.lead(values)
        yield at
        nursery.cancel_scope.cancel()


async def test_partitions_without_a_live_host_take_no_time(autojump_clock: Any) -> None:
    """Each says so; the answer comes when the client would be told that there is nothing, not at once for it to ask
    again and again.
    """
    async with wide() as at:
        at.delay_s = dict.fromkeys(at.delay_s)
        errors, found, took_s = await at.fetch()
        assert (set(errors), found, at.asked) == ({56}, [], 0)
        assert took_s == pytest.approx(MAX_WAIT_S)


async def test_partitions_whose_hosts_are_silent_take_the_time_of_one_fetch(autojump_clock: Any) -> None:
    """Whatever their number, and whatever the client would wait at least; the time for which the process of a host is
    stopped is paid for by the first Fetch alone.
    """
    async with wide() as at:
        at.delay_s = dict.fromkeys(at.delay_s, SILENCE_S)
        for max_wait_s in (0.0, MAX_WAIT_S, MAX_WAIT_S):
            errors, found, took_s = await at.fetch(max_wait_s)
            assert (set(errors), found) == ({0}, [])
            assert took_s <= max_wait_s + fetch.LEAST_OTHERS_S + 0.001
        assert at.asked <= (MAX_LATE + 3) * READ_ROUNDS * len(MEMBERS)


async def test_one_live_host_serves_what_a_silent_one_has_too(autojump_clock: Any) -> None:
    """The silent host is waited for once; then the other one is asked first: a few Fetches have all partitions."""
    async with wide() as at:
        at.delay_s["a"] = SILENCE_S
        seen = set[int]()
        for _ in range(6):
            errors, found, took_s = await at.fetch(without=seen)
            assert set(errors) == {0}
            assert took_s <= MAX_WAIT_S + fetch.LEAST_OTHERS_S + 0.001
            seen.update(found)
            if len(seen) == PARTITIONS:
                return
        pytest.fail(f"only {len(seen)} partitions had records")


async def test_slow_hosts_serve_all_partitions_in_the_end(autojump_clock: Any) -> None:
    """Each answer takes longer than a Fetch waits, as over a slow link: answers come to later ones, all of them."""
    async with wide() as at:
        at.delay_s = dict.fromkeys(at.delay_s, 4 * LATE_S)
        seen = set[int]()
        for _ in range(40):
            errors, found, took_s = await at.fetch(without=seen)
            assert set(errors) == {0}
            assert took_s <= MAX_WAIT_S + fetch.LEAST_OTHERS_S + 0.001
            seen.update(found)
            if len(seen) > 64:
                return
        pytest.fail(f"only {len(seen)} partitions had records")


@pytest.mark.parametrize("silence_s", [SILENCE_S, None])
async def test_look_ups_by_time_take_the_time_of_a_few(autojump_clock: Any, silence_s: float | None) -> None:
    """One ListOffsets of all partitions, whose hosts are silent or gone: each has its own answer, an error, and the one
    whose host is well has its offset.
    """
    async with wide() as at:
        at.delay_s = {"a": silence_s, "b": silence_s, "me": 0.0}
        chunk = at.owners[-1].chunks[0]
        chunk.registration = replace(chunk.registration, members=(Member("me", "disk-me"),))
        search, failed, found = _TimeSearch(cast(Any, at.broker)), 0, []
        begun_s = trio.current_time()
        for front in at.fronts:
            try:
                found.append(await search.find(front.stream, 0))
            except (ChunkUnreachable, TierUnavailable):
                failed += 1
        assert trio.current_time() - begun_s < 15
        assert (failed, found) == (PARTITIONS - 1, [(0, at.fronts[-1].clock.wall_ms())])
