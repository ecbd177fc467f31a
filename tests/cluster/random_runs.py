"""Random histories of a cluster in memory: appends and reads at all hosts, and every fault, from one seed.

Invariant: the promises are those of `tests.replica.history`; disks are never lost, so nothing acknowledged may be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from logstore.base.metadata.errors import MetadataError
from logstore.errors import ChunkUnreachable, NotLeader, UnknownTopicOrPartition
from logstore.replica.appending import OwnerLimits
from logstore.replica.messages import BatchEntry, EntriesRead
from logstore.replica.registrations import StreamRegistration
from tests.cluster.memory import Heard, MemoryCluster, memory_cluster
from tests.replica.history import History, PromiseBroken
from tests.support.virtual_time import Trace, run_virtual

HOSTS: Final = ("a", "b", "c", "d")
ACTIONS: Final = 40
SETTLE_S: Final = 60
CHECKS: Final = 10
LIMITS: Final = OwnerLimits(
    chunk_bytes=2_000,
    largest_chunk_bytes=6_000,
    min_chunk_ms=0,
    max_in_flight_bytes=1_000,
    append_bytes=300,
    resend_ms=30,
    suspect_ms=1_500,
    repair_timeout_ms=1_000,
)


@dataclass
class _Sent:
    data: bytes
    end_offset: int


@dataclass
class LoadObserver(Heard):
    """A stream at one host: batches that wait for their acknowledgement."""

    history: History = field(default_factory=History)
    waiting: list[_Sent] = field(default_factory=list)
    epoch: int = 0

    def acked(self, high_watermark: int) -> None:
        """See StreamObserver."""
        super().acked(high_watermark)
        while self.waiting and self.waiting[0].end_offset <= high_watermark:
            batch = self.history.appended[self.waiting[0].data]
            self.history.ack(self.waiting.pop(0).data, batch.owner, self.epoch)

    def registered(self, registration: StreamRegistration) -> None:
        """See StreamObserver."""
        super().registered(registration)
        self.history.start_seen(registration.log_start)

    def ready(self, epoch: int, high_watermark: int) -> None:
        """See StreamObserver."""
        super().ready(epoch, high_watermark)
        self.waiting.clear()
        self.epoch = epoch

    def deposed(self, newer_epoch: int) -> None:
        """See StreamObserver."""
        super().deposed(newer_epoch)
        self.waiting.clear()


class RandomRun:
    """One run."""

    def __init__(self, cluster: MemoryCluster, seed: int, actions: int = ACTIONS) -> None:
        self.cluster = cluster
        self.actions = actions
        self.random = Random(f"actions {seed}")
        self.histories: dict[str, History] = {}
        self.faults: Counter[str] = Counter()
        self.number = 0
        self._down: set[str] = set()
        self._is_over = False

    async def run(self) -> None:
        """Faults under load, healing, and every check."""
        streams = await self.cluster.create_topic(partitions=2, replicas=3)
        self.histories = {stream: History() for stream in streams}
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(self._produce, stream)
                nursery.start_soon(self._trim, stream)
                for host in HOSTS[:2]:
                    nursery.start_soon(self._read, host, stream)
            for _ in range(self.actions):
                await trio.sleep(self.random.choice((0.02, 0.3, 1, 4)))
                await self._fault()
            await self._heal()
            with trio.move_on_after(SETTLE_S) as limit:
                for stream in streams:
                    await self._settled(stream)
            if limit.cancelled_caught:
                raise PromiseBroken(f"{self.faults}: not settled after {SETTLE_S} s\n{self.cluster.describe()}")
            nursery.cancel_scope.cancel()
        for stream in streams:
            for host in HOSTS:
                await self._check(host, stream)

    # ---- load

    def _observer(self, host: str, stream: str) -> LoadObserver:
        running = self.cluster.hosts[host]
        heard = running.observers.get(stream)
        if heard is None:
            heard = running.observers[stream] = LoadObserver(
                history=self.histories[stream], chunk_bytes=running.chunk_bytes
            )
            running.host.observe(stream, heard)
        assert isinstance(heard, LoadObserver)
        return heard

    async def _produce(self, stream: str) -> None:
        while True:
            await trio.sleep(self.random.choice((0.001, 0.01, 0.1)))
            for name, running in list(self.cluster.hosts.items()):
                observer = self._observer(name, stream)
                if not running.host.owns(stream):
                    continue
                for _ in range(self.random.randint(1, 4)):
                    self.number += 1
                    data = b"%d:%s" % (self.number, b"x" * self.random.randint(0, 60))
                    count = self.random.randint(1, 3)
                    if not running.host.may_append(stream, len(data)):
                        break
                    offset = running.host.next_offset(stream)
                    self.histories[stream].append(data, running.identity.owner_id, offset)
                    observer.waiting.append(_Sent(data, offset + count))
                    try:
                        assert running.host.append(stream, data, count) == offset
                    except NotLeader:
                        break

    async def _trim(self, stream: str) -> None:
        """Clients delete records, and chunks come of age, at whoever believes to own the stream."""
        while True:
            await trio.sleep(self.random.choice((1, 3, 5)))
            for name, running in list(self.cluster.hosts.items()):
                observer = self._observer(name, stream)
                if not running.host.owns(stream):
                    continue
                end = running.host.next_offset(stream)
                offset = self.random.choice(
                    (end, self.random.randint(observer.log_start, max(end, observer.log_start)))
                )
                running.host.trim(stream, offset, keeps_last=True)
                if self.random.random() < 0.3:
                    running.host.roll(stream)

    async def _read(self, host: str, stream: str) -> None:
        """A reader that follows the stream, at a host that comes and goes."""
        offset = 0
        while True:
            await trio.sleep(0.05)
            running = self.cluster.hosts.get(host)
            if running is None:
                continue
            with trio.move_on_after(20):
                try:
                    registration = await running.host.read_registration(stream)
                    self.histories[stream].start_seen(registration.log_start)
                    offset = max(offset, registration.log_start)
                    answer = await self._read_at(host, stream, registration, offset)
                except (MetadataError, ChunkUnreachable, UnknownTopicOrPartition):
                    continue
                if answer is not None:
                    offset = self._see(stream, answer, host)

    async def _read_at(
        self, host: str, stream: str, registration: StreamRegistration, offset: int
    ) -> EntriesRead | None:
        chunk = registration.chunk_at(offset)
        running = self.cluster.hosts.get(host)
        if chunk is None or running is None:
            return None
        return await running.host.read_entries(stream, chunk, offset, 500)

    def _see(self, stream: str, answer: EntriesRead, host: str) -> int:
        offset = answer.at.next_offset
        for entry in answer.entries:
            self.histories[stream].see(offset, entry, f"{answer.member} for {host}, epoch {answer.epoch}")
            offset += entry.record_count
        return offset

    # ---- faults

    async def _fault(self) -> None:
        kinds = (
            "kill", "start", "start", "meta off", "meta on", "cut off", "heal", "cut", "loss", "stop", "rest", "full",
            "room",
        )  # fmt: skip
        kind = self.random.choice(kinds)
        self.faults[kind] += 1
        up = [host for host in HOSTS if host in self.cluster.hosts]
        host, other = self.random.choice(HOSTS), self.random.choice(HOSTS)
        network, metadata = self.cluster.network, self.cluster.metadata
        if kind == "kill" and host in up:
            await self.cluster.kill(host, is_refused=self.random.random() < 0.7)
        elif kind == "start":
            await self._start_one()
        elif kind == "meta off":
            metadata.stop()
        elif kind == "meta on":
            metadata.start()
        elif kind == "cut off":
            metadata.cut_off(host)
        elif kind == "heal":
            for each in HOSTS:
                metadata.heal(each)
            network.heal()
            network.loss = 0.0
        elif kind == "cut":
            network.cuts.add((host, other))
            if self.random.random() < 0.5:
                network.cut(host, other)
        elif kind == "loss":
            network.loss = self.random.choice((0.0, 0.05, 0.2))
        elif kind == "full":
            self.cluster.disks[host].is_full = True
        elif kind == "room":
            self._make_room()
        elif kind == "stop" and host in up:
            with trio.move_on_after(20) as limit:
                await self.cluster.stop(host)
            if limit.cancelled_caught:
                self.faults["stop cut short"] += 1

    def _make_room(self) -> None:
        for disk in self.cluster.disks.values():
            disk.is_full = False

    async def _start_one(self) -> None:
        down = [host for host in HOSTS if host not in self.cluster.hosts]
        if down and self.cluster.metadata.reaches(down[0]):
            await self.cluster.start(down[0])

    async def _heal(self) -> None:
        self._make_room()
        self.cluster.metadata.start()
        for host in HOSTS:
            self.cluster.metadata.heal(host)
        self.cluster.network.heal()
        self.cluster.network.loss = 0.0
        for host in HOSTS:
            if host not in self.cluster.hosts:
                await self.cluster.start(host)

    # ---- the end

    async def _settled(self, stream: str) -> None:
        """Wait until batches are acknowledged again and every chunk has all its copies."""
        history = self.histories[stream]
        acked = history.acked
        await self.cluster.until(lambda: history.acked > acked)
        while True:
            await trio.sleep(0.5)
            owner = await self.cluster.owner(stream)
            registration = owner.host.registration(stream)
            if all(len(chunk.members) >= 3 for chunk in registration.chunks):
                return

    async def _check(self, host: str, stream: str) -> None:
        """The log as a reader at a host sees it. It may see it a moment later: members are told what is acknowledged,
        and chunks are rolled, after the last acknowledgement.
        """
        end = max(self.histories[stream].at_offset)
        await self.cluster.at_rest()
        for _ in range(CHECKS):
            log = await self._read_log(host, stream)
            if log and log[-1][0] >= end:
                break
            await trio.sleep(1)
        registration = await self.cluster.hosts[host].host.read_registration(stream)
        if registration.log_start < self.histories[stream].log_start:
            raise PromiseBroken(f"{host}: the log starts at {registration.log_start} again")
        self.histories[stream].check_log(log, f"read at {host}")

    async def _read_log(self, host: str, stream: str) -> list[tuple[int, BatchEntry]]:
        registration = await self.cluster.hosts[host].host.read_registration(stream)
        log: list[tuple[int, BatchEntry]] = []
        for chunk in registration.chunks:
            offset = chunk.base_offset
            while chunk.end is None or offset < chunk.end.next_offset:
                try:
                    answer = await self.cluster.hosts[host].host.read_entries(stream, chunk, offset, 500)
                except ChunkUnreachable:
                    return log  # the chunk has ended, and was copied here, since the registration was read
                if not answer.entries:
                    break
                for entry in answer.entries:
                    log.append((offset, entry))
                    offset += entry.record_count
        return log


def run_one(seed: int, *, order: int | None = None, actions: int = ACTIONS, trace: Trace | None = None) -> RandomRun:
    """One run; raises PromiseBroken, or whatever a host raises. `order`: the seed of the order of tasks, `seed` if none
    is given.
    """
    runs: list[RandomRun] = []

    async def main() -> None:
        async with memory_cluster(*HOSTS, seed=seed, limits=LIMITS) as cluster:
            run = RandomRun(cluster, seed, actions)
            runs.append(run)
            await run.run()

    run_virtual(main, seed=seed if order is None else order, trace=trace)
    return runs[0]
