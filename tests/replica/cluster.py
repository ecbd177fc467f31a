"""Hosts with the real owner and replica, on a simulated network, with simulated disks and a metadata store.

Invariants: everything random comes from the network's seed; the protocol code is the product's, and hosts add only
what a sidecar will: they carry out effects, bring events, keep leases, and decide when a takeover is worth a try.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from logstore.base.running_time import RunningTime
from logstore.replica.appending import OwnerLimits
from logstore.replica.effects import (
    Acked,
    Deposed,
    Effect,
    EnoughMembers,
    Load,
    MemberFailed,
    Readable,
    Ready,
    Registered,
    Send,
    StoreDurably,
    StreamUnavailable,
    TooFewMembers,
)
from logstore.replica.identity import DiskLabel, DiskVerdict, judge_disk
from logstore.replica.known_replicas import StoredReplicas
from logstore.replica.messages import (
    Append,
    AppendDone,
    BatchEntry,
    CopyChunk,
    CopyDone,
    EntriesRead,
    Fence,
    FenceDone,
    LookAtRegistration,
    OutOfOrder,
    ReadEntries,
    Refused,
)
from logstore.replica.owner import Owner
from logstore.replica.owner_states import OwnerState
from logstore.replica.register import ReadRegistration, RegistrationRead, SwapAnswer, SwapRegistration
from logstore.replica.registrations import Member, OwnerId, StreamRegistration
from logstore.replica.replica import Replica
from logstore.testing.simnet import NetRules, SimNet
from tests.replica.disk import Damage, DiskError, ReplicaDisk, founding_of
from tests.replica.history import History, PromiseBroken
from tests.replica.metadata import (
    LEASE_US,
    META,
    Answer,
    DiskRead,
    KeepAlive,
    MetadataService,
    News,
    ReadDisk,
    Request,
    SwapDisk,
)

STREAM = "s/0"
TICK_US = 10_000
KEEP_ALIVE_US = 100_000
TAKEOVER_RANK_US = 150_000
LIMITS = OwnerLimits(
    chunk_bytes=600,
    largest_chunk_bytes=1_500,
    min_chunk_ms=20,
    max_in_flight_bytes=400,
    append_bytes=100,
    resend_ms=20,
    member_timeout_ms=120,
    busy_timeout_ms=600,
    longest_timeout_ms=1_000,
    fence_wait_ms=100,
    suspect_ms=1_500,
    repair_timeout_ms=400,
)


@dataclass
class Planted:
    """A bug: classes in place of the product's, or a host that does not do what the product asks of it."""

    owner: type[Owner] = Owner
    replica: type[Replica] = Replica
    forgets: tuple[type, ...] = ()
    """Operations that are reported durable without being done."""
    hides_damage: bool = False
    """A start takes a damaged copy for a shorter one."""
    disk_keeps_its_name: bool = False
    judges_disks_late: bool = False
    """A disk is judged when the label of the new start is on it."""


@dataclass
class _Pending:
    data: bytes
    end_offset: int


class Host:
    """One host in one life."""

    def __init__(self, cluster: Cluster, name: str, disk: ReplicaDisk) -> None:
        self.cluster = cluster
        self.net = cluster.net
        self.name = name
        self.disk = disk
        self.start_name = f"{name}.{cluster.next_start()}"
        self.me = OwnerId(name, self.start_name)
        self.replica: Replica | None = None
        self.owner: Owner | None = None
        self.owner_since_us = 0
        self.pending: list[_Pending] = []
        self.refused: DiskVerdict | None = None
        self.vacant_since_us: int | None = None
        self._running = RunningTime(cluster.net.now_us, 2 * TICK_US)

    @property
    def owner_ms(self) -> int:
        """The owner's time: while the host stands still, it passes for two ticks at most."""
        return int(self._running.at(self.net.now_us)) // 1_000

    def _ask(self, request: Any) -> None:
        """Ask the metadata store."""
        self.net.send(self.name, META, Request(self.start_name, request))

    def begin(self) -> None:
        """The host starts."""
        self.net.after(self.name, TICK_US, "tick")
        self.net.after(self.name, 0, "keep alive")

    # ---- events

    def wake(self, reason: Any) -> None:
        """A timer, or the disk."""
        if reason == "tick":
            self.net.after(self.name, TICK_US, "tick")
            self._running.turn(self.net.now_us)
            if self.owner is not None:
                self.carry_out(self.owner.tick(self.owner_ms))
        elif reason == "keep alive":
            self.net.after(self.name, KEEP_ALIVE_US, "keep alive")
            if self.replica is None:
                self._ask(ReadDisk(self.disk.label.disk))
            else:
                self._ask(KeepAlive(self.replica.me, STREAM))
        elif isinstance(reason, StoreDurably):
            self._stored(reason)
        elif isinstance(reason, Load):
            self._loaded(reason)

    def receive(self, sender: str, message: Any) -> None:
        """A message. An answer to a former life is dropped, as its connection would be gone."""
        if isinstance(message, Answer):
            if message.start != self.start_name:
                return
            message = message.content
        now_ms = self.owner_ms
        if isinstance(message, DiskRead):
            self._disk_read(message)
        if self.replica is None:
            return
        if isinstance(message, Append | Fence | CopyChunk | ReadEntries | LookAtRegistration | EntriesRead | Refused):
            self.carry_out(self.replica.receive(sender, message))
        if isinstance(message, News):
            self._news(message)
        if isinstance(message, RegistrationRead) and message.registration is not None:
            self.carry_out(self.replica.registration_seen(message.stream, message.revision, message.registration))
        if self.owner is None:
            return
        if isinstance(message, AppendDone | OutOfOrder | FenceDone | CopyDone | Refused):
            self.carry_out(self.owner.receive(message, now_ms))
        elif isinstance(message, RegistrationRead):
            self.carry_out(self.owner.registration_read(message, now_ms))
        elif isinstance(message, SwapAnswer):
            self.carry_out(self.owner.swap_answered(message, now_ms))

    def _disk_read(self, message: DiskRead) -> None:
        """The steps of a start, as `logstore.replica.identity` has them."""
        if self.replica is not None or message.disk != self.disk.label.disk:
            return
        if message.registered is None or message.registered.start != self.start_name:
            if self.cluster.planted.judges_disks_late and self.disk.label.start != self.start_name:
                self.disk.label = self.disk.label.next_start(self.start_name)
            verdict = judge_disk(self.name, self.disk.label, message.registered)
            self.refused = None if verdict is DiskVerdict.KNOWN else verdict
            if self.refused is None:
                if self.disk.label.start != self.start_name:
                    self.disk.label = self.disk.label.next_start(self.start_name)
                self._ask(SwapDisk(message.registered, self.disk.label))
            return
        found = self.disk.found()
        if self.cluster.planted.hides_damage:
            whole = {key: replace(chunk, is_damaged=False) for key, chunk in found.chunks.items()}
            found = replace(found, chunks=whole)
        self.replica = self.cluster.planted.replica(
            self.disk.label.member, found, has_room=lambda size_bytes: not self.disk.is_full
        )
        self.carry_out([ReadRegistration(stream) for stream in self.replica.streams()])

    def _news(self, news: News) -> None:
        assert self.replica is not None
        registration = news.read.registration
        assert registration is not None
        self.carry_out(self.replica.registration_seen(STREAM, news.read.revision, registration))
        if self.owner is not None:
            self.carry_out(self.owner.registration_read(news.read, self.owner_ms))
            self.carry_out(self.owner.live_members(news.live.members, self.owner_ms))
        self._consider_takeover(registration, news.live.members)

    def _consider_takeover(self, registration: StreamRegistration, live: tuple[Member, ...]) -> None:
        """Claim the stream if its owner is gone: the hosts that live, one after the other."""
        is_mine = self.owner is not None and self.owner.state is not OwnerState.DEPOSED
        hosts = sorted(member.host for member in live)
        shape = self.cluster.shape
        is_early = shape.first_owner is not None and registration.epoch == 0
        is_early = is_early and (self.name != shape.first_owner or len(live) < len(shape.hosts))
        if is_mine or is_early or self.name not in hosts:
            self.vacant_since_us = None
            return
        if registration.owner.host in hosts and registration.owner.host != self.name:
            self.vacant_since_us = None
            return
        if self.vacant_since_us is None:
            self.vacant_since_us = self.net.now_us
        rank = (hosts.index(self.name) - registration.epoch) % len(hosts)
        if registration.owner.host == self.name:
            rank = 0
        if self.net.now_us - self.vacant_since_us >= rank * TAKEOVER_RANK_US:
            self.claim(live)

    def claim(self, live: tuple[Member, ...]) -> None:
        """Become the owner."""
        self.vacant_since_us = None
        self.pending.clear()
        limits = self.cluster.shape.limits
        self.owner = self.cluster.planted.owner(STREAM, self.me, limits, founding_of, lambda: self.net.now_ms)
        self.carry_out(self.owner.live_members(live, self.owner_ms))
        self.carry_out(self.owner.start(self.owner_ms))

    # ---- effects

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Do what a state machine asks for."""
        for effect in effects:
            if isinstance(effect, Send):
                if not effect.host.startswith("reader"):
                    self.cluster.counts[type(effect.message).__name__] += 1
                if isinstance(effect.message, FenceDone):
                    self.cluster.fenced[self.name] = None
                self.net.send(self.name, effect.host, effect.message)
            elif isinstance(effect, ReadRegistration | SwapRegistration):
                self.cluster.counts[type(effect).__name__] += 1
                self._ask(effect)
            elif isinstance(effect, StoreDurably):
                self._store(effect)
            elif isinstance(effect, Load):
                self.net.after(self.name, self.net.random.randint(50, 300), effect)
            else:
                self._told(effect)

    def _store(self, store: StoreDurably) -> None:
        self.cluster.counts[type(store.operation).__name__] += 1
        if not isinstance(store.operation, self.cluster.planted.forgets):
            self.disk.begin(store.operation)
        key = getattr(store.operation, "epoch", None)
        due_us = max(self.cluster.disk_due(self.name, key), self.net.now_us) + self.net.random.randint(50, 2_000)
        self.cluster.busy[self.name, key] = due_us
        self.net.after(self.name, due_us - self.net.now_us, store)

    def _stored(self, store: StoreDurably) -> None:
        assert self.replica is not None
        try:
            if not isinstance(store.operation, self.cluster.planted.forgets):
                self.disk.finish(store.operation)
        except DiskError as error:
            is_damaged = isinstance(error, Damage)
            self.carry_out(self.replica.store_failed(store.token, is_damaged=is_damaged))
        else:
            self.carry_out(self.replica.stored(store.token))

    def _loaded(self, load: Load) -> None:
        assert self.replica is not None
        try:
            found = self.disk.load(load)
        except DiskError:
            self.carry_out(self.replica.load_failed(load.token))
        else:
            self.carry_out(self.replica.loaded(load.token, *found))

    def _told(self, effect: Effect) -> None:
        """What the owner tells the log."""
        assert self.owner is not None
        self.net.note(f"{self.name} {effect}")
        if isinstance(effect, Acked):
            while self.pending and self.pending[0].end_offset <= effect.high_watermark:
                self.cluster.history.ack(self.pending.pop(0).data, self.me, effect.epoch)
        elif isinstance(effect, Registered):
            self.cluster.history.start_told(effect.registration.log_start, self.name)
        elif isinstance(effect, Deposed):
            self.cluster.history.deposed += 1
            self.pending.clear()
        elif isinstance(effect, Ready | Readable | StreamUnavailable | TooFewMembers | EnoughMembers | MemberFailed):
            self.cluster.events.append((self.net.now_ms, self.name, effect))
        if isinstance(effect, Ready):
            self._check_founding(effect.high_watermark)
        if isinstance(effect, Readable):
            self._read_early(effect)

    def _read_early(self, effect: Readable) -> None:
        """A new owner that takes nothing yet serves readers: everything that was acknowledged or seen is in front of
        the end. What it says that readers may see, they read from its own disk.
        """
        assert self.owner is not None
        assert self.replica is not None
        self.cluster.early_reads += 1
        if self.cluster.registration != self.owner.registration:
            return  # another host has claimed the stream
        beyond = [offset for offset in self.cluster.history.at_offset if offset >= effect.end]
        if beyond:
            raise PromiseBroken(f"{self.name} lets the stream be read up to {effect.end}, and {beyond} were told")
        for offset, entry in self.cluster.log_of(self.replica.me) if effect.is_settled else ():
            if offset < effect.end and b"!" not in entry.data:  # damage, which a read finds
                self.cluster.history.see(offset, entry, f"{self.name}, which takes no appends yet")

    def _check_founding(self, high_watermark: int) -> None:
        """A new owner finds what a chunk is founded on: at a chunk in front, unless nothing was ever appended."""
        assert self.owner is not None
        if high_watermark and self.cluster.keeps_last and len(self.owner.registration.chunks) < 2:
            raise PromiseBroken(f"{self.name} owns the stream from {high_watermark} on, and no chunk is in front")

    # ---- as a client uses it

    def trim(self, log_start: int) -> None:
        """Delete the records in front of an offset."""
        assert self.owner is not None
        self.net.note(f"trim to {log_start} at {self.name}")
        self.cluster.history.start_asked(log_start)
        self.carry_out(self.owner.trim(log_start, self.owner_ms, keeps_last=self.cluster.keeps_last))

    def roll(self) -> None:
        """Seal the open chunk."""
        assert self.owner is not None
        self.carry_out(self.owner.roll(self.owner_ms))

    @property
    def takes(self) -> bool:
        """Whether a batch may be appended here."""
        return self.owner is not None and not self.net.is_paused(self.name) and self.owner.may_append(30)

    def append(self, data: bytes, record_count: int) -> None:
        """Append a batch."""
        assert self.owner is not None
        offset = self.owner.next_offset
        self.cluster.history.append(data, self.me, offset)
        self.pending.append(_Pending(data, offset + record_count))
        self.net.note(f"append {data!r} at {self.name}")
        self.carry_out(self.owner.append(data, record_count, self.owner_ms))


class Reader:
    """A consumer: reads the stream from its start, from any member that has what comes next."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.net = cluster.net
        self.name = name
        self.next_offset = 0
        self.asked: Member | None = None

    def begin(self) -> None:
        """Start to read."""
        self.net.after(self.name, TICK_US, "ask")

    def wake(self, reason: Any) -> None:
        """Ask for the registration; the answer leads to a read."""
        self.net.after(self.name, 5 * TICK_US, "ask")
        self.net.send(self.name, META, Request(self.name, ReadRegistration(STREAM)))

    def receive(self, sender: str, message: Any) -> None:
        """The registration, or entries."""
        message = message.content if isinstance(message, Answer) else message
        if isinstance(message, RegistrationRead) and message.registration is not None:
            self.next_offset = max(self.next_offset, message.registration.log_start)
            chunk = message.registration.chunk_at(self.next_offset)
            if chunk is not None:
                self.asked = member = self.net.random.choice((*chunk.members, *chunk.candidates))
                asked = ReadEntries(STREAM, member.disk, chunk.epoch, self.next_offset, 100, for_copy=False)
                self.net.send(self.name, member.host, asked)
        elif isinstance(message, EntriesRead):
            offset = message.at.next_offset
            for entry in message.entries:
                self.cluster.history.see(offset, entry, f"{message.member.host} epoch {message.epoch}")
                offset += entry.record_count
            if message.at.next_offset == self.next_offset:
                self.next_offset = offset


@dataclass
class ClusterShape:
    """How many hosts, and how many copies."""

    hosts: tuple[str, ...] = ("a", "b", "c", "d")
    copies: int = 3
    min_copies: int = 2
    rules: NetRules = field(default_factory=NetRules)
    first_owner: str | None = None
    """Claims the stream first, when all hosts are alive; members are preferred by name then."""
    limits: OwnerLimits = LIMITS
    lease_us: int = LEASE_US


class Cluster:
    """Hosts, disks, metadata store and readers; what is done to them, and what is checked."""

    def __init__(self, seed: int, shape: ClusterShape | None = None, planted: Planted | None = None) -> None:
        self.shape = shape or ClusterShape()
        self.planted = planted or Planted()
        self.net = SimNet(seed, self.shape.rules)
        self.history = History()
        self.events: list[tuple[int, str, Effect]] = []
        self.busy: dict[tuple[str, int | None], int] = {}
        self.counts: Counter[str] = Counter()
        """Messages, requests to the metadata store and synced operations, by type."""
        self.fenced: dict[str, None] = {}
        """Hosts that have answered a fence, until somebody clears it."""
        self.appended = self.early_reads = 0
        """Batches; and takeovers in which the stream was read before it took any."""
        self.keeps_last = True
        """Trims leave the last sealed chunk as long as the open one is empty."""
        self.meta = MetadataService(self.net, self.history, self.shape.lease_us)
        if self.shape.first_owner is not None:
            self.meta.rotation = None
        self.meta.create(STREAM, StreamRegistration(self.shape.copies, self.shape.min_copies))
        self.net.start(META, self.meta)
        self._starts = self._disks_made = 0
        self.disks = {name: self._new_disk(name) for name in self.shape.hosts}
        self.hosts: dict[str, Host] = {}
        for name in self.shape.hosts:
            self.start(name)
        self.readers = [Reader(self, f"reader{number}") for number in range(2)]
        for reader in self.readers:
            self.net.start(reader.name, reader)
            reader.begin()

    def next_start(self) -> int:
        """For the name of a start."""
        self._starts += 1
        return self._starts

    def _new_disk(self, name: str) -> ReplicaDisk:
        self._disks_made += 1
        return ReplicaDisk(DiskLabel(f"{name}{self._disks_made}", name))

    def disk_due(self, name: str, key: int | None) -> int:
        """When the last operation on a chunk of a host ends."""
        return self.busy.get((name, key), 0)

    # ---- faults

    def start(self, name: str) -> None:
        """A host starts."""
        self.hosts[name] = host = Host(self, name, self.disks[name])
        self.net.start(name, host)
        host.begin()

    def crash(self, name: str) -> None:
        """A host's power is cut."""
        self.net.crash(name)
        self.disks[name].crash(self.net.random)
        self.hosts.pop(name)
        for key in [key for key in self.busy if key[0] == name]:
            del self.busy[key]

    def wipe(self, name: str) -> None:
        """The disk of a host that is down is replaced by an empty one."""
        old = self.disks[name].label
        self.disks[name] = ReplicaDisk(old) if self.planted.disk_keeps_its_name else self._new_disk(name)

    # ---- clients

    def append(self, name: str, record_count: int = 1) -> bool:
        """A client appends a batch at a host that takes it."""
        host = self.hosts.get(name)
        if host is None or not host.takes:
            return False
        self.appended += 1
        host.append(f"batch {self.appended:06d}.".encode(), record_count)
        return True

    @property
    def registration(self) -> StreamRegistration:
        """The stream's registration."""
        return self.meta.registration(STREAM)

    def owner_host(self) -> Host | None:
        """The host that the metadata store names as the owner, if it takes batches."""
        host = self.hosts.get(self.registration.owner.host)
        if host is None or host.owner is None or host.me != self.registration.owner:
            return None
        return host if host.owner.state is OwnerState.APPENDING else None

    def is_settled(self) -> bool:
        """Whether an owner has everything acknowledged, and every sealed chunk has its copies alive."""
        host = self.owner_host()
        if host is None or host.owner is None or host.pending or host.owner.registration != self.registration:
            return False
        live = self.meta.live()
        wanted = min(self.shape.copies, len({member.host for member in live}))
        return all(
            len([member for member in chunk.members if member in live]) >= wanted for chunk in self.registration.chunks
        )

    def settle(self, within_ms: int) -> bool:
        """Let time pass until the cluster is settled."""
        for _ in range(within_ms // 10):
            if self.is_settled():
                return True
            self.net.run(10_000)
        return self.is_settled()

    def scrub(self) -> None:
        """Read every sealed chunk of every member once, as a consumer may."""
        for chunk in self.registration.chunks:
            for member in chunk.members if chunk.end is not None else ():
                asked = ReadEntries(STREAM, member.disk, chunk.epoch, chunk.base_offset, 1 << 20, for_copy=True)
                self.net.send("reader0", member.host, asked)
        self.net.run(1_000_000)

    # ---- what is checked

    def log_of(self, member: Member) -> list[tuple[int, BatchEntry]]:
        """What a member holds, chunk by chunk, as far as the registration names it for a chunk."""
        found: list[tuple[int, BatchEntry]] = []
        for chunk in self.registration.chunks:
            disk = self.disks[member.host]
            stored = disk.chunks.get((STREAM, chunk.epoch))
            if member in chunk.members and stored is not None and disk.label.disk == member.disk:
                for entry, prefix in zip(stored.entries, stored.prefixes, strict=False):
                    if chunk.end is None or prefix.length_bytes < chunk.end.length_bytes:
                        found.append((prefix.next_offset, entry))
        return found

    def check(self) -> None:
        """Every promise, of a cluster that is settled."""
        whole: dict[int, BatchEntry] = {}
        for chunk in self.registration.chunks:
            for member in chunk.members:
                for offset, entry in self.log_of(member):
                    whole.setdefault(offset, entry)
                    self.history.see(offset, entry, f"the disk of {member.host}")
        self.history.check_log(sorted(whole.items()), "the log")
        live = self.meta.live()
        listed = {(STREAM, chunk.epoch) for chunk in self.registration.chunks}
        for name, disk in self.disks.items():
            kept = {key for key, chunk in disk.chunks.items() if chunk.entries}  # a start passes over empty files
            if name in self.hosts and kept - listed:
                raise AssertionError(f"{name} keeps {kept - listed}, which is listed no more")
        for chunk in self.registration.chunks:
            for member in chunk.members:
                stored = self.disks[member.host].chunks.get((STREAM, chunk.epoch))
                if member in live and chunk.end is not None and (stored is None or stored.end[0] < chunk.end[0]):
                    raise AssertionError(f"{member} does not have chunk {chunk.epoch} to its end")


__all__ = ["LIMITS", "STREAM", "Cluster", "ClusterShape", "Host", "OwnerId", "Planted", "StoredReplicas"]
