"""Hosts of a cluster in one process: real hosts, owners and replicas on links, disks and a metadata store in memory.

Invariants: time is virtual, chance has one seed, links lose only what they are told, disks are `tests.replica.disk`s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import trio

from logstore.base.metadata import schema
from logstore.base.metadata.interface import MetadataStore
from logstore.base.racks import HostPlace
from logstore.cluster.copies.copy_coordinator import CopyCoordinator
from logstore.cluster.copies.copy_pace import CopyRates
from logstore.cluster.copies.copy_requests import CopyRequests
from logstore.cluster.host import ClusterHost, HostParts
from logstore.cluster.interfaces import Loaded, PeerRefused, PlanCopies, Received
from logstore.cluster.members.host_identity import HostIdentity, establish_identity
from logstore.cluster.members.membership import Announcement, Membership
from logstore.cluster.members.view import ClusterView, stream_name
from logstore.cluster.streams.owner_calls import TELL_GOES, TELL_WISHES, Handler
from logstore.errors import CorruptChunk, HostUnreachable, StorageFailed
from logstore.interfaces import Buffer
from logstore.log.stream import Stream
from logstore.log.ticket import Ticket
from logstore.replica.appending import OwnerLimits
from logstore.replica.effects import DiskOperation, Load, WriteEntries
from logstore.replica.identity import DiskLabel
from logstore.replica.known_replicas import StoredReplicas
from logstore.replica.messages import Message
from logstore.replica.owner import Owner
from logstore.replica.owner_states import OwnerState
from logstore.replica.registrations import StreamRegistration
from logstore.testing.reports import RecordedReports
from logstore.testing.simdisk import SimDisk
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from scheduler.peace.copies import CopyScheduler
from scheduler.peace.replica_sets import ReplicaSets
from tests.cluster.hash_claims import HashClaims
from tests.replica.disk import Damage, DiskError, ReplicaDisk
from tests.support.virtual_clock import VirtualClock
from tests.support.virtual_time import run_virtual

SHOWN_CHUNKS = 5
TOPIC_ID = "0123456789abcdef0123456789abcdef"
LINK_S = 0.0005
DISK_S = 0.001
LEASE_S = 3
WAIT_S = 300.0
"""Virtual, for what must come: a suspect that has failed often is tried again after three minutes."""


class MemoryNetwork:
    """Links between hosts: each message takes LINK_S, those of one pair in order."""

    def __init__(self) -> None:
        self.nursery: trio.Nursery | None = None
        self.cuts: set[tuple[str, str]] = set()
        """Pairs of sender and receiver between whom nothing passes."""
        self.loss = 0.0
        self.random = Random(0)
        self.sent: dict[str, int] = {}
        """Messages by type."""
        self._hosts: dict[str, tuple[Received, PeerRefused]] = {}
        self.handlers: dict[str, dict[int, Handler]] = {}
        """Of calls, by host."""
        self.before_answer: Callable[[str], Awaitable[None]] | None = None
        """Called when a host has carried out a call, before it answers."""
        self.earlier: set[str] = set()  # hosts of the version before, which deals no streams

    def attach(self, name: str, received: Received, refused: PeerRefused) -> None:
        """A host listens."""
        self._hosts[name] = (received, refused)

    def detach(self, name: str, *, is_refused: bool) -> None:
        """A host is gone; `is_refused`: the others find that its address refuses connections."""
        self._hosts.pop(name, None)
        if is_refused:
            for _, refused in list(self._hosts.values()):
                refused(name)

    def cut(self, one: str, other: str) -> None:
        """Let nothing pass between two hosts."""
        self.cuts |= {(one, other), (other, one)}

    def heal(self) -> None:
        """Let everything pass again."""
        self.cuts.clear()

    def passes(self, sender: str, receiver: str) -> bool:
        """Whether there is a connection."""
        return {sender, receiver} <= self._hosts.keys() and (sender, receiver) not in self.cuts

    def send(self, sender: str, receiver: str, message: Message) -> None:
        """Deliver a message after LINK_S."""
        self.sent[type(message).__name__] = self.sent.get(type(message).__name__, 0) + 1
        if self.nursery is not None and not self.random.random() < self.loss:
            self.nursery.start_soon(self._deliver, sender, receiver, message, self._hosts.get(receiver))

    async def _deliver(
        self, sender: str, receiver: str, message: Message, at: tuple[Received, PeerRefused] | None
    ) -> None:
        await trio.sleep(LINK_S)
        if at is not None and self._hosts.get(receiver) is at and self.passes(sender, receiver):
            at[0](sender, message)


@dataclass
class MemoryLinks:
    """See Links."""

    network: MemoryNetwork
    name: str

    def send(self, host: str, message: Message) -> None:
        """See Links."""
        self.network.send(self.name, host, message)

    def is_reachable(self, host: str) -> bool:
        """See Links."""
        return self.network.passes(self.name, host)

    def is_stranger_to(self, host: str) -> bool:
        """See Links: here all are known."""
        return False

    def deals(self, host: str) -> bool:
        """See Links."""
        return host not in self.network.earlier


@dataclass
class MemoryCalls:
    """See Calls: each way takes LINK_S."""

    network: MemoryNetwork
    name: str

    async def call(self, host: str, kind: int, payload: Sequence[Buffer], /) -> memoryview:
        """See Calls."""
        body = memoryview(b"".join(payload))
        await self._cross(self.name, host)
        handlers = self.network.handlers[host]
        self.network.sent["call"] = self.network.sent.get("call", 0) + 1
        answer = await handlers[kind](self.name, body)
        if self.network.before_answer is not None:
            await self.network.before_answer(host)
        if self.network.handlers[host] is not handlers:
            raise HostUnreachable(f"host {host!r} has gone")
        await self._cross(host, self.name)
        return memoryview(b"".join(answer))

    async def _cross(self, sender: str, receiver: str) -> None:
        await trio.sleep(LINK_S)
        if sender != receiver and not self.network.passes(sender, receiver):
            raise HostUnreachable(f"nothing passes from {sender!r} to {receiver!r}")


class MemoryFiles:
    """See ReplicaFiles: operations on one chunk take DISK_S each, one after the other. They end with their host.

    With a rate, the disk carries out one operation at a time, of any chunk, and each takes the time of its bytes too.
    """

    def __init__(self, disk: ReplicaDisk, nursery: trio.Nursery) -> None:
        self.disk = disk
        self.stored: StoredReplicas = disk.found()
        self._nursery = nursery
        self._turns: dict[tuple[str, int], deque[tuple[DiskOperation, Ticket[None]]]] = {}
        self.operations: dict[str, int] = {}
        self.write_s = DISK_S
        self.bytes_per_s: float | None = None
        self._device = trio.Lock()
        self.read_error = 0
        """Every read fails with this number."""

    def has_room(self, size_bytes: int) -> bool:
        """See ReplicaFiles."""
        return not self.disk.is_full

    def perform(self, operation: DiskOperation) -> Ticket[None]:
        """See ReplicaFiles."""
        name = type(operation).__name__
        self.operations[name] = self.operations.get(name, 0) + 1
        ticket: Ticket[None] = Ticket()
        self.disk.begin(operation)
        key = (operation.stream, getattr(operation, "epoch", 0))
        turns = self._turns.setdefault(key, deque())
        turns.append((operation, ticket))
        if len(turns) == 1:
            self._nursery.start_soon(self._work, turns)
        return ticket

    async def _work(self, turns: deque[tuple[DiskOperation, Ticket[None]]]) -> None:
        while turns:
            await self._busy(turns[0][0])
            self._finish(*turns[0])
            turns.popleft()

    async def _busy(self, operation: DiskOperation) -> None:
        if self.bytes_per_s is None:
            await trio.sleep(self.write_s)
            return
        entries = operation.entries if isinstance(operation, WriteEntries) else ()
        async with self._device:
            await trio.sleep(self.write_s + sum(len(entry.data) for entry in entries) / self.bytes_per_s)

    def _finish(self, operation: DiskOperation, ticket: Ticket[None]) -> None:
        try:
            self.disk.finish(operation)
        except Damage as error:
            ticket.fail(CorruptChunk(str(error), first_offset=0, last_offset=0))
        except DiskError as error:
            ticket.fail(StorageFailed(str(error)))
        else:
            ticket.succeed(None)

    async def load(self, load: Load) -> Loaded:
        """See ReplicaFiles."""
        await trio.sleep(DISK_S)
        if self.read_error:
            raise OSError(self.read_error, "a test's error")
        try:
            at, entries, limit, founding = self.disk.load(load)
        except DiskError as error:
            raise CorruptChunk(str(error), first_offset=0, last_offset=0) from error
        return Loaded(at, tuple(entries), limit, founding)

    def begin(self) -> None:
        """See ReplicaFiles: what is asked for has begun."""

    def begin_soon(self) -> None:
        """See ReplicaFiles: what is asked for has begun."""

    def after_settling(self, callback: Callable[[], None]) -> bool:
        """See ReplicaFiles: each settles by itself."""
        return False

    def local(self, stream: str, epoch: int) -> Stream | None:
        """See ReplicaFiles: there are no streams of a store here."""
        return None


@dataclass
class Heard:
    """See StreamObserver: keeps what it hears."""

    name: str = "orders-0"
    founded: Callable[[int], bytes] = lambda base_offset: b"state at %d" % base_offset
    news: list[tuple[str, object]] = field(default_factory=list)
    high_watermark: int = 0
    log_start: int = 0
    chunk_bytes: int = 64 << 20
    time_ms: int = 0
    crowds: int = 0

    def written_ms(self) -> int:
        """See StreamObserver."""
        return self.time_ms

    def registered(self, registration: StreamRegistration) -> None:
        """See StreamObserver."""
        assert registration.log_start >= self.log_start
        self.log_start = registration.log_start

    def crowded(self) -> None:
        """See StreamObserver."""
        self.crowds += 1

    def founding(self, base_offset: int) -> bytes:
        """See StreamObserver."""
        return self.founded(base_offset)

    def ready(self, epoch: int, high_watermark: int) -> None:
        """See StreamObserver."""
        self.news.append(("ready", (epoch, high_watermark)))
        self.high_watermark = high_watermark

    def readable(self, epoch: int, end: int, *, is_settled: bool) -> None:
        """See StreamObserver."""
        self.news.append(("readable", (epoch, end, is_settled)))

    def acked(self, high_watermark: int) -> None:
        """See StreamObserver."""
        assert high_watermark >= self.high_watermark
        self.high_watermark = high_watermark

    def room(self) -> None:
        """See StreamObserver."""

    def deposed(self, newer_epoch: int) -> None:
        """See StreamObserver."""
        self.news.append(("deposed", newer_epoch))

    def unavailable(self, reason: str) -> None:
        """See StreamObserver."""
        self.news.append(("unavailable", reason))

    def short(self, needed: int) -> None:
        """See StreamObserver."""
        self.news.append(("short", needed))

    def enough(self) -> None:
        """See StreamObserver."""
        self.news.append(("enough", None))

    def names(self) -> list[str]:
        """What it heard, without what was said."""
        return [name for name, _ in self.news]


@dataclass
class RunningHost:
    """A host in one life."""

    host: ClusterHost
    store: MetadataStore
    identity: HostIdentity
    membership: Membership
    view: ClusterView
    files: MemoryFiles
    scope: trio.CancelScope
    ended: trio.Event = field(default_factory=trio.Event)
    observers: dict[str, Heard] = field(default_factory=dict)
    chunk_bytes: int = 64 << 20
    coordinator: CopyCoordinator | None = None
    requests: CopyRequests | None = None

    def observe(self, stream: str) -> Heard:
        """Hear of a stream."""
        heard = self.observers[stream] = Heard(chunk_bytes=self.chunk_bytes)
        self.host.observe(stream, heard)
        return heard


class NeverSo(AssertionError):
    """What a test waits for has not come; says what it was, and how the cluster is."""


def _owner_state(owner: Owner) -> str:
    """What an owner waits for."""
    if owner.state in (OwnerState.IDLE, OwnerState.READING):
        return owner.state.value
    found = owner.registration
    chunks = ", ".join(
        f"{chunk.epoch} from {chunk.base_offset} on {[member.host for member in chunk.members]}"
        + (f" and {[member.host for member in chunk.candidates]}" if chunk.candidates else "")
        for chunk in found.chunks[-SHOWN_CHUNKS:]
    )
    waiting = f"{owner.waiting_batches} batches wait behind {owner.high_watermark}"
    rest = "at rest" if owner.is_at_rest else "ticks"
    return f"{owner.state.value}, {rest}, epoch {found.epoch}, revision {owner.revision}; {waiting}; chunks {chunks}"


class MemoryCluster:
    """Hosts by name, each with a disk that outlives it."""

    def __init__(
        self,
        nursery: trio.Nursery,
        metadata: SimulatedMetadata | dict[str, MetadataStore],
        random: Random,
        limits: OwnerLimits,
    ) -> None:
        self.nursery = nursery
        self._metadata = metadata
        self.limits = limits
        self.network = MemoryNetwork()
        self.network.nursery = nursery
        self.random = random
        self.reports = RecordedReports()
        self.clock: VirtualClock | None = None
        self.bytes_per_s: float | None = None
        self.write_s = DISK_S
        """Of the disks of hosts that start from now on."""
        self.copy_rates = CopyRates()
        self.grace_s = 0.0
        self.lease_s = LEASE_S
        """Of hosts that start from now on."""
        self.is_planned = False
        """Whether hosts that start from now on follow a plan of copies."""
        self.planner: Callable[[str], PlanCopies | None] = lambda host: CopyScheduler
        """What a host loads to plan copies."""
        self.before_joining: dict[str, Callable[[], Awaitable[None]]] = {}
        """What hosts that start from now on wait for, between telling their disk and becoming members."""
        self.disks: dict[str, ReplicaDisk] = {}
        self.label_disks: dict[str, SimDisk] = {}
        self.hosts: dict[str, RunningHost] = {}

    @property
    def metadata(self) -> SimulatedMetadata:
        """The simulated service."""
        assert isinstance(self._metadata, SimulatedMetadata)
        return self._metadata

    def _store(self, name: str) -> MetadataStore:
        return self._metadata.store(name) if isinstance(self._metadata, SimulatedMetadata) else self._metadata[name]

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Wait until a condition holds. Raises NeverSo, with the state of the cluster, if that takes WAIT_S."""
        end_s = trio.current_time() + WAIT_S
        while not condition():
            await self.wait(end_s, what or f"{condition.__code__.co_filename}:{condition.__code__.co_firstlineno}")

    async def wait(self, end_s: float, what: str, pause_s: float = 0.01) -> None:
        """Let a moment pass for something that has not come. Raises NeverSo behind the end."""
        if trio.current_time() > end_s:
            raise NeverSo(f"not after {WAIT_S} s: {what}\n{self.describe()}")
        await trio.sleep(pause_s)

    async def at_rest(self) -> None:
        """Wait until no owner has anything to do, and none waits for a copy."""
        await self.until(lambda: not self._working(), "all owners are at rest")

    def _working(self) -> bool:
        hosts = [each.host for each in self.hosts.values()]
        return any(host.statistics.ticking_owners or host.copy_tokens.held for host in hosts)

    def describe(self) -> str:
        """The state of the cluster, to be read by people: hosts, faults, and what owners wait for."""
        full = [name for name, disk in self.disks.items() if disk.is_full]
        cuts = sorted(self.network.cuts)
        lines = [f"at {trio.current_time():.3f} s: up {sorted(self.hosts)}, cuts {cuts}, full {full}"]
        for name, running in self.hosts.items():
            is_reached = not isinstance(self._metadata, SimulatedMetadata) or self.metadata.reaches(name)
            lines.append(f"{name}: {running.membership.state.value}, metadata {'there' if is_reached else 'away'}")
            lines += [f"  {stream}: {_owner_state(owner)}" for stream, owner in running.host.owners.items()]
        return "\n".join(lines)

    # ---- hosts

    async def start(self, name: str, *, rack: str = "", node_id: int | None = None) -> RunningHost:
        """A host starts, with its disk, and is a member."""
        running: RunningHost = await self.nursery.start(self._live, name, rack, node_id)
        return running

    async def _live(self, name: str, rack: str, node_id: int | None, task_status: trio.TaskStatus[RunningHost]) -> None:
        store = self._store(name)
        fs = self.label_disks.setdefault(name, SimDisk())
        disk = self.disks.setdefault(name, ReplicaDisk(DiskLabel("", name)))
        with trio.CancelScope() as scope:
            identity = await establish_identity(store, fs, name, self.random, self.reports)
            async with trio.open_nursery() as nursery:
                view = ClusterView(store, self.reports)
                number = sorted({*self.hosts, name}).index(name) if node_id is None else node_id
                announced = Announcement(number, f"{name}:9192", {"kafka": f"{name}:9092"}, HostPlace(rack))
                membership = Membership(store, identity, announced, self.reports, self.lease_s)
                files = MemoryFiles(disk, nursery)
                files.bytes_per_s, files.write_s = self.bytes_per_s, self.write_s
                links = MemoryLinks(self.network, name)
                parts = HostParts(
                    identity, store, view, links, files, self.reports, ReplicaSets, self.copy_rates, self.grace_s
                )
                host = ClusterHost(parts, membership, self.limits)
                if name in self.network.earlier:
                    cast(Any, host)._claims.__class__ = HashClaims
                running = RunningHost(host, store, identity, membership, view, files, scope)
                if self.is_planned:
                    self._plan_copies(running, nursery)
                running.chunk_bytes = self.limits.chunk_bytes
                self.network.attach(name, host.receive, host.peer_refused)
                nursery.start_soon(view.run)
                await nursery.start(host.run)
                if name in self.before_joining:
                    await self.before_joining[name]()
                await view.members_reached(await nursery.start(membership.run))
                self.hosts[name] = running
                task_status.started(running)
        running.ended.set()

    def _plan_copies(self, running: RunningHost, nursery: trio.Nursery) -> None:
        host, store, name = running.host, running.store, running.host.name
        calls = MemoryCalls(self.network, name)

        async def load() -> PlanCopies | None:
            return self.planner(name)

        coordinator = CopyCoordinator(host, store, calls, self.random, self.reports, load)
        requests = CopyRequests(name, host.copy_tokens, coordinator, store, calls, running.view, self.reports)
        self.network.handlers[name] = {TELL_WISHES: coordinator.serve, TELL_GOES: requests.serve}
        running.coordinator, running.requests = coordinator, requests
        nursery.start_soon(coordinator.run)
        nursery.start_soon(requests.run)

    async def kill(self, name: str, *, is_refused: bool = True) -> None:
        """The process of a host ends at once; what it had not synced may be lost. Its lease ends by itself."""
        running = self.hosts.pop(name)
        is_simulated = isinstance(self._metadata, SimulatedMetadata)
        if is_simulated:
            self.metadata.cut_off(name)
        self.network.detach(name, is_refused=is_refused)
        running.scope.cancel()
        await running.ended.wait()
        if is_simulated:
            self.metadata.heal(name)
        self.disks[name].crash(self.random)

    def wipe(self, name: str) -> None:
        """A host that does not run gets an empty disk."""
        del self.disks[name], self.label_disks[name]

    async def stop(self, name: str) -> None:
        """A host ends as planned."""
        running = self.hosts.pop(name)
        await running.host.resign()
        self.network.detach(name, is_refused=True)
        running.scope.cancel()
        await running.ended.wait()
        self.disks[name].crash(self.random)

    # ---- streams

    async def create_topic(self, name: str = "t", partitions: int = 1, replicas: int = 3, **settings: str) -> list[str]:
        """Create a topic; returns its streams."""
        topic_id = f"{self.random.getrandbits(128):032x}"
        topic = schema.StoredTopic(topic_id=topic_id, partitions=partitions, replicas=replicas, settings=settings)
        await next(iter(self.hosts.values())).host.topics.create(name, topic)
        return [stream_name(topic_id, partition) for partition in range(partitions)]

    async def owner(self, stream: str) -> RunningHost:
        """Wait for the host that owns a stream."""
        end_s = trio.current_time() + WAIT_S
        while True:
            for running in self.hosts.values():
                if running.host.owns(stream):
                    return running
            await self.wait(end_s, f"stream {stream} has an owner")

    async def append(self, stream: str, data: bytes, record_count: int = 1) -> tuple[str, int]:
        """Append a batch at the owner, wherever it is, and wait until it is acknowledged: at least once."""
        end_s = trio.current_time() + WAIT_S
        while True:
            running = await self.owner(stream)
            heard = running.observers.get(stream) or running.observe(stream)
            if not running.host.may_append(stream, len(data)):
                await self.wait(end_s, f"stream {stream} takes {len(data)} bytes")
                continue
            news = len(heard.news)
            offset = running.host.append(stream, data, record_count)
            while heard.high_watermark < offset + record_count:
                await self.wait(end_s, f"stream {stream} is acknowledged up to {offset + record_count}", 0.002)
                if heard.news[news:] or running.scope.cancel_called:
                    break
            else:
                return running.host.name, offset

    async def read_all(self, reader: str, stream: str) -> list[bytes]:
        """All batches of a stream that readers may see, read at a host."""
        host = self.hosts[reader].host
        registration = await host.read_registration(stream)
        found: list[bytes] = []
        for chunk in registration.chunks:
            offset = chunk.base_offset
            while chunk.end is None or offset < chunk.end.next_offset:
                answer = await host.read_entries(stream, chunk, offset, 1000)
                if not answer.entries:
                    break
                found += [entry.data for entry in answer.entries]
                offset = answer.at.next_offset + sum(entry.record_count for entry in answer.entries)
        return found


LIMITS = OwnerLimits(min_chunk_ms=0, suspect_ms=1_500, repair_timeout_ms=1_000)
Test = Callable[[MemoryCluster], Awaitable[None]]


@asynccontextmanager
async def memory_cluster(*names: str, seed: int = 0, limits: OwnerLimits = LIMITS) -> AsyncIterator[MemoryCluster]:
    """A cluster with these hosts, all members of it."""
    metadata = SimulatedMetadata(Random(seed), MetadataFaults(max_delay_s=0.002))
    async with trio.open_nursery() as service:
        await service.start(metadata.serve)
        async with trio.open_nursery() as nursery:
            cluster = MemoryCluster(nursery, metadata, metadata.random, limits)
            for name in names:
                await cluster.start(name)
            # A stream that is made before all hosts know each other gets another owner at first.
            await cluster.until(lambda: all(len(each.view.members) == len(names) for each in cluster.hosts.values()))
            yield cluster
            nursery.cancel_scope.cancel()
        service.cancel_scope.cancel()


def simulated(test: Test, *names: str, seed: int = 0, limits: OwnerLimits = LIMITS) -> None:
    """Run a test on a cluster, in virtual time."""
    clock = VirtualClock()

    async def main() -> None:
        async with memory_cluster(*names, seed=seed, limits=limits) as cluster:
            cluster.clock = clock
            await test(cluster)

    run_virtual(main, seed=seed, clock=clock)
