"""A cluster in memory whose hosts have epochs: a client stages and commits, hosts are lost, and streams are compared.

Invariants: time is virtual and everything random comes from one seed (`tests.cluster.memory`). Hosts, owners, topics,
homes of epochs and their routing are the real ones; links, calls, disks and the metadata store are models. A call that
has reached a host is carried out even if the caller is gone; every group comes a second time, later, as from a home
that was slow.

What is checked: each committed epoch is in each of its streams once, whole and in order, and nothing else is.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar, cast

import trio

from logstore.cluster.engine import ClusterEngine
from logstore.cluster.epochs.epoch_holds import EpochHolds
from logstore.cluster.epochs.epochs_home import EpochsHome, StagingLimits
from logstore.cluster.epochs.group_appends import GroupAppends
from logstore.cluster.epochs.replicated_ledger import LedgerServices
from logstore.cluster.interfaces import ReplicaFiles
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.cluster.streams.owner_calls import APPEND_GROUP, Handler, OwnerCalls
from logstore.cluster.streams.producer_ids import ProducerIds
from logstore.cluster.streams.replicated_stream import ReplicatedStream, StreamServices
from logstore.cluster.streams.topics import ClusterFacts, ClusterTopics
from logstore.engine import StoreEngine
from logstore.errors import CairnError, HostUnreachable, StagedMissing, StorageFailed, TryAgain
from logstore.format.batch import iterate_batches
from logstore.format.control import Begin, End, decode_control
from logstore.format.epoch_api import (
    DESCRIBE,
    EPOCH_COMMIT,
    STAGE,
    DescribeReply,
    DescribeRequest,
    EpochCommitReply,
    EpochCommitRequest,
    Part,
    Reply,
    Request,
    StageRequest,
    TaskOutput,
    decode_reply,
    decode_request_header,
    encode_request,
)
from logstore.format.records import Record, decode_batch, encode_batch
from logstore.interfaces import Buffer
from logstore.kafka.api_types import Broker, BrokerSettings
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.epoch_routing import EpochRouting
from logstore.log.store import StoreSettings
from logstore.log.ticket import Ticket, TicketView
from logstore.replica.identity import DiskLabel
from logstore.replica.registrations import UNKNOWN_TIME
from tests.cluster.memory import LINK_S, MemoryCluster, RunningHost, memory_cluster
from tests.kafka.node import CALLER
from tests.replica.disk import ReplicaDisk

T = TypeVar("T")
TOPIC = "out"
QUERY = "q"
NOW_MS = 1_700_000_000_000
LATE_S = 2.0
"""How late a group comes the second time."""
KINDS = {STAGE: "stage", EPOCH_COMMIT: "commit", DESCRIBE: "describe"}


Step = int | tuple[str, int]
"""Something that hosts do for an epoch: by its number among all, or by its name and its number among those."""


class VirtualClock:
    """The time of the event loop."""

    def wall_ms(self) -> int:
        return NOW_MS + int(trio.current_time() * 1000)

    def monotonic_s(self) -> float:
        return trio.current_time()


class TicketsOnly:
    """A `StoreEngine` without a store: tickets settle by themselves."""

    async def wait(self, ticket: TicketView[T]) -> T:
        settled = trio.Event()
        cast(Any, ticket).add_callback(lambda _: settled.set())
        await settled.wait()
        return ticket.result()


class ClientsTrims:
    """`StreamRetention` where nothing goes by itself: clients delete records, as far as epochs let them."""

    def __init__(self) -> None:
        self.epochs: EpochHolds | None = None

    def now_ms(self) -> int:
        return UNKNOWN_TIME

    def due(self, stream: ReplicatedStream, /) -> None:
        pass

    def deletable(self, stream: ReplicatedStream, offset: int, /) -> Ticket[None]:
        assert self.epochs is not None
        return self.epochs.deletable(stream, offset)


@dataclass
class EpochHost:
    """What a host has for epochs, in one life."""

    running: RunningHost
    topics: ClusterTopics
    reads: ChunkReads
    home: EpochsHome
    appends: GroupAppends
    routing: EpochRouting
    nursery: trio.Nursery
    handlers: dict[int, Handler]
    ended: trio.Event = field(default_factory=trio.Event)


class MemoryCalls:
    """Calls of one host, and what it serves (`logstore.cluster.links.calls.HostCalls`)."""

    def __init__(self, world: EpochsWorld, name: str) -> None:
        self._world = world
        self._name = name
        self.handlers: dict[int, Handler] = {}

    def handle(self, kind: int, handler: Handler) -> None:
        self.handlers[kind] = handler

    async def call(self, host: str, kind: int, payload: Sequence[Buffer]) -> memoryview:
        whole = b"".join(payload)
        if host != self._name:
            await trio.sleep(LINK_S)
        self._world.step(f"call {kind}")
        called = self._world.hosts.get(host)
        if called is None or kind not in called.handlers or not self._world.passes(self._name, host):
            raise HostUnreachable(f"{host} is away")
        if kind == APPEND_GROUP:
            self._world.nursery.start_soon(self._world.again, host, whole)
        answers: list[bytes] = []
        done = trio.Event()

        async def serve() -> None:
            answers.append(b"".join(await called.handlers[kind](self._name, memoryview(whole))))
            self._world.step(f"answer {kind}")
            done.set()

        async def give_up() -> None:
            await called.ended.wait()
            done.set()

        called.nursery.start_soon(serve)
        self._world.nursery.start_soon(give_up)
        await done.wait()
        if host != self._name:
            await trio.sleep(LINK_S)
        if not answers or not self._world.passes(self._name, host):
            raise HostUnreachable(f"{host} is away")
        return memoryview(answers[0])


class EpochsWorld:
    """The cluster, and a client of it. `kill_at`: which step of those that are counted loses which host; `factor`:
    `default-replication-factor`.
    """

    def __init__(self, cluster: MemoryCluster, nursery: trio.Nursery, random: Random, factor: int = 3) -> None:
        self.cluster = cluster
        self.nursery = nursery
        self.random = random
        self.factor = factor
        self.clock = VirtualClock()
        self.hosts: dict[str, EpochHost] = {}
        self.asked: frozenset[str] | None = None
        """The hosts that the client asks, as far as they are there; None: any."""
        self._numbers: dict[str, int] = {}
        self.steps: list[str] = []
        self.is_counting = False
        self.kill_at: dict[Step, str] = {}
        self.lost: list[str] = []
        self.outcomes: list[str] = []
        self.read: dict[int, list[Buffer]] = {}
        self.read_to: dict[int, int] = {}
        """What a consumer has read of each partition, and up to where."""

    # ---- hosts

    async def start(self, name: str) -> None:
        """A host starts; it may have been here before."""
        disk = self.cluster.disks.setdefault(name, ReplicaDisk(DiskLabel("", name)))
        disk.knows_founding = False
        running = await self.cluster.start(name, node_id=self._numbers.setdefault(name, len(self._numbers)))
        self.hosts[name] = await self.nursery.start(self._live, running)

    async def _live(self, running: RunningHost, task_status: trio.TaskStatus[EpochHost]) -> None:
        name, reports, store = running.host.name, self.cluster.reports, running.store
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                files = cast(ReplicaFiles, running.files)
                local = cast(StoreEngine, TicketsOnly())
                reads = ChunkReads(local, running.host, files, self.clock, reports)
                trims = ClientsTrims()
                services = StreamServices(
                    running.host, self.clock, reports, reads.load_producers, nursery.start_soon, trims
                )
                facts = ClusterFacts("cluster", 1, StoreSettings(), self.factor)
                topics = ClusterTopics(running.host, facts, ProducerIds(store), services, self._new_id)
                topics.take_all()
                calls = MemoryCalls(self, name)
                owners = OwnerCalls(running.host, calls)
                home = EpochsHome(LedgerServices(topics, reads, store, self.clock, reports), owners, StagingLimits())
                engine = ClusterEngine(local, topics, reads)
                holds = EpochHolds(owners, lambda: home.known_stream, store, nursery.start_soon)
                trims.epochs = holds
                home.answer_owners(calls)
                appends = GroupAppends(topics, engine, holds, self.clock, nursery.start_soon)
                appends.serve(calls)
                routing = EpochRouting(
                    Broker(engine, self.clock, BrokerSettings(auto_create_topics=False)), home, owners
                )
                routing.serve(calls)
                nursery.start_soon(home.run)
                host = EpochHost(running, topics, reads, home, appends, routing, nursery, calls.handlers)
                task_status.started(host)
                await running.ended.wait()
            scope.cancel()

    def _new_id(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128))

    def passes(self, one: str, other: str) -> bool:
        return one in self.hosts and other in self.hosts and (one, other) not in self.cluster.network.cuts

    async def kill(self, name: str) -> None:
        """The host is gone, with all that it had not synced."""
        host = self.hosts.pop(name, None)
        if host is not None:
            host.ended.set()
            await self.cluster.kill(name)
            host.nursery.cancel_scope.cancel()

    async def again(self, host: str, payload: bytes) -> None:
        """A group comes once more, from a home that is slow or gone, at the host that has the stream then."""
        await trio.sleep(LATE_S)
        for called in list(self.hosts.values()):
            if APPEND_GROUP in called.handlers:
                called.nursery.start_soon(called.handlers[APPEND_GROUP], host, memoryview(payload))

    def step(self, name: str) -> None:
        """Something that hosts do for an epoch: here a host may be lost."""
        if not self.is_counting:
            return
        victim = self.kill_at.get(len(self.steps)) or self.kill_at.get((name, self.steps.count(name)))
        self.steps.append(name)
        if victim is not None and victim in self.hosts:
            self.lost.append(victim)
            self.nursery.start_soon(self.kill, victim)

    async def bring_back(self) -> None:
        """The hosts that were lost start again, with their disks."""
        for name in self.lost:
            while name in self.cluster.hosts:  # noqa: ASYNC110  it is being killed
                await trio.sleep(0.01)
            await self.start(name)

    # ---- the client

    async def ask(self, request: Request, api_key: int) -> Reply:
        """Ask any host (see `asked`), again and again. Raises what is no reason to ask again."""
        frame = b"".join(encode_request(request, correlation_id=1))
        body = memoryview(frame)[decode_request_header(frame)[-1] :]
        while True:
            names = sorted(name for name in self.hosts if self.asked is None or name in self.asked)
            if not names:
                await trio.sleep(0.1)
                continue
            answer = await self._ask_host(self.hosts[self.random.choice(names)], api_key, body)
            if answer is None:
                self.outcomes.append(f"{KINDS[api_key]}: host lost")
                await trio.sleep(0.02)
                continue
            _, reply = decode_reply(api_key, b"\0\0\0\1" + answer)
            if isinstance(reply, TryAgain | StorageFailed):
                self.outcomes.append(f"{KINDS[api_key]}: {type(reply).__name__}")
                await trio.sleep(0.05)
                continue
            if isinstance(reply, CairnError):
                raise reply
            return reply

    async def _ask_host(self, host: EpochHost, api_key: int, body: memoryview) -> bytes | None:
        """The answer of a host; None: it is gone."""
        done, answers = trio.Event(), list[bytes]()

        async def serve() -> None:
            answer, _ = await host.routing.handle(api_key, body, cast(AnswerBudget, None), CALLER)
            answers.append(b"".join(answer))
            done.set()

        async def give_up() -> None:
            await host.ended.wait()
            done.set()

        host.nursery.start_soon(serve)
        self.nursery.start_soon(give_up)
        await done.wait()
        return answers[0] if answers else None

    async def epoch(self, number: int, partitions: int, records: int = 2) -> None:
        """Stage and commit an epoch of two tasks, as a query does: run it again if what was staged is gone."""
        for attempt in range(100):
            name = f"a{number}.{attempt}"
            for task in range(2):
                parts, data = [], b""
                for partition in range(partitions):
                    values = [value_of(number, partition, task, record) for record in range(records)]
                    now_ms = self.clock.wall_ms()
                    batch = encode_batch([Record(i, now_ms, None, value) for i, value in enumerate(values)])
                    parts.append(Part(TOPIC, partition, len(batch), 1, records))
                    data += batch
                await self.ask(StageRequest(QUERY, "run", number, task, name, 0, tuple(parts), data), STAGE)
            tasks = tuple(TaskOutput(task, name, 1) for task in range(2))
            commit = EpochCommitRequest(QUERY, "run", number, "error", tasks, f"p{number}", False)
            try:
                reply = await self.ask(commit, EPOCH_COMMIT)
            except StagedMissing:
                self.outcomes.append("staged output gone")
                continue
            assert isinstance(reply, EpochCommitReply)
            assert reply.last_epoch == number
            return
        raise AssertionError(f"epoch {number} was never committed: {self.outcomes[-20:]}")

    async def describe(self) -> DescribeReply:
        """The query, as any host says."""
        reply = await self.ask(DescribeRequest(QUERY), DESCRIBE)
        assert isinstance(reply, DescribeReply)
        return reply

    # ---- what the streams have

    async def check(self, epochs: int, partitions: int, records: int = 2, first: int = 0) -> None:
        """Every committed epoch is in every stream: once, whole, in order, as it was staged."""
        for partition in range(partitions):
            found = groups_in([*self.read.get(partition, []), *await self._batches(partition)])
            expected = [
                (number, [value_of(number, partition, task, record) for task in range(2) for record in range(records)])
                for number in range(first, epochs)
            ]
            assert found == expected, f"partition {partition}: {found}"

    async def _batches(self, partition: int) -> list[Buffer]:
        """All that readers may see of a stream behind what was read, read at its owner, control batches too."""
        while True:
            for host in list(self.hosts.values()):
                stream = host.topics.stream(TOPIC, partition)
                found: list[Buffer] = []
                offset = self.read_to.get(partition, stream.log_start_offset)
                try:
                    while offset < stream.high_watermark or not stream.is_leader:
                        read = await host.reads.read(stream, offset, 1 << 20, include_control=True)
                        found += read.buffers
                        offset = read.next_offset
                        if not read.buffers:
                            await trio.sleep(0.05)
                except CairnError:
                    continue
                return found
            await trio.sleep(0.1)

    async def read_and_delete(self, partition: int) -> None:
        """A consumer reads on at whoever leads a stream, and deletes what it has read."""
        for host in list(self.hosts.values()):
            topic = host.topics.topics.get(TOPIC)
            stream = None if topic is None else topic.partitions[partition]
            if stream is None or not stream.is_leader:
                continue
            try:
                while (offset := self.read_to.get(partition, 0)) < stream.high_watermark:
                    read = await host.reads.read(stream, offset, 1 << 20, include_control=True)
                    if not read.buffers:
                        break
                    self.read.setdefault(partition, []).extend(read.buffers)
                    self.read_to[partition] = read.next_offset
            except CairnError:
                continue
            stream.delete_records(min(self.read_to.get(partition, 0), stream.high_watermark))

    async def home(self) -> str:
        """The host that has the epochs, once there is one."""
        while True:
            for name, host in self.hosts.items():
                if host.home.epochs is not None:
                    return name
            await trio.sleep(0.01)


def groups_in(buffers: Sequence[Buffer]) -> list[tuple[int, list[bytes]]]:
    """The epochs of a stream that has nothing but groups, and the values of their records."""
    open_epoch: int | None = None
    groups: list[tuple[int, list[bytes]]] = []
    for buffer in buffers:
        for at, header in iterate_batches(buffer):
            batch = memoryview(buffer)[at : at + header.size_bytes]
            if header.is_control:
                control = decode_control(batch)
                if isinstance(control, Begin):
                    assert open_epoch is None
                    open_epoch = control.epoch
                    groups.append((control.epoch, []))
                elif isinstance(control, End):
                    assert open_epoch == control.epoch
                    open_epoch = None
            else:
                assert open_epoch is not None
                groups[-1][1].extend(record.value or b"" for record in decode_batch(batch))
    assert open_epoch is None, "a group without an end"
    return groups


def value_of(epoch: int, partition: int, task: int, record: int) -> bytes:
    """What a record of an epoch says."""
    return b"%d/%d/%d/%d" % (epoch, partition, task, record)


@asynccontextmanager
async def epochs_world(*names: str, seed: int = 0, partitions: int = 3, factor: int = 3) -> AsyncIterator[EpochsWorld]:
    """A cluster whose hosts have epochs, and a topic with so many partitions."""
    async with memory_cluster(seed=seed) as cluster, trio.open_nursery() as nursery:
        world = EpochsWorld(cluster, nursery, Random(seed), factor)
        send = cluster.network.send

        def counted(sender: str, receiver: str, message: Any) -> None:
            world.step(type(message).__name__)
            send(sender, receiver, message)

        cluster.network.send = counted  # type: ignore[method-assign]
        for name in names:
            await world.start(name)
        await cluster.create_topic(TOPIC, partitions, min(3, len(names)))
        yield world
        nursery.cancel_scope.cancel()
