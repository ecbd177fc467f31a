"""A host of a cluster, on the event loop: its replicas and the streams that it owns.

`ClusterHost` carries out the effects of the state machines in `logstore.replica`, and reports the results to them:

| effect | carried out by | comes back as |
|---|---|---|
| `Send` | `Links` | `receive` |
| `StoreDurably`, `Load` | `logstore.cluster.disk_work` on `ReplicaFiles` | `stored`, `loaded` and their failures |
| `ReadRegistration`, `SwapRegistration` | `RegistrationRequests` | `registration_read`, `…_seen`, `swap_answered` |
| `Ready`, `Readable`, `Acked`, `Deposed`, `TooFewMembers` and others | the stream's `StreamObserver` | – |

It claims streams (`logstore.cluster.claims`), tells owners which members are alive (`logstore.cluster.live_hosts`), and
forgets the streams of deleted topics.

The Kafka front calls `observe` for each stream that clients may use; `ready` then reports that this host owns the
stream. As long as it owns the stream, `may_append` and `append` accept batches whose offsets begin at `next_offset`.
Everything below the offset of the last `acked` is acknowledged. `owner_of` returns the host that clients should use
otherwise. Methods that need the owner raise NotLeader.

Order of a start: `establish_identity`, the files, the listeners' sockets, the links with `receive` and `peer_refused`,
`ClusterView.run`, `ClusterHost.run`, and `Membership.run` last. Order of an end: `resign`, then cancel.

Invariants:
* All methods are called on the event loop's thread. Only `async` methods wait.
* Bounded: MAX_LOADS reads of the disk, MAX_READS reads of other hosts, three requests for the registration of a stream,
  tokens for copies that are ordered (`logstore.replica.host_state`) and made (`logstore.cluster.copies.copies`) here.
* The state machines guarantee safety. The hosts that this module takes for alive only decide what is tried and when.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import trio

from logstore.base.events import Report
from logstore.base.metadata import schema
from logstore.base.metadata.interface import Condition, MetadataStore
from logstore.base.metadata.local_watch import ChangeSignal
from logstore.cluster.claims import LOOKS_AT_ONCE, Claims, OwnStreams, streams_of
from logstore.cluster.copies.copies import Copies
from logstore.cluster.copies.copy_pace import DEFAULT_GRACE_S, CopyRates
from logstore.cluster.disk_work import DiskWork
from logstore.cluster.figures import HostStatistics
from logstore.cluster.interfaces import Links, PlanSets, ReplicaFiles, StreamObserver
from logstore.cluster.links.bursts import Bursts
from logstore.cluster.live_hosts import LiveHosts
from logstore.cluster.members import election
from logstore.cluster.members.host_identity import HostIdentity
from logstore.cluster.members.membership import Membership
from logstore.cluster.members.set_choice import SetChoice
from logstore.cluster.members.view import ClusterView, KnownHead, KnownTopic, topic_id_of
from logstore.cluster.owner_news import OwnerNews
from logstore.cluster.owner_ticks import OwnerTicks
from logstore.cluster.streams.entry_reads import EntryReads
from logstore.cluster.streams.many_registrations import ManyRegistrations
from logstore.cluster.streams.registration_requests import CreateRegistration, FirstRegistration, RegistrationRequests
from logstore.cluster.streams.shown_registrations import ShownRegistrations
from logstore.cluster.streams.stored_topics import StoredTopics
from logstore.cluster.walks import Walk
from logstore.errors import NotLeader, UnknownTopicOrPartition
from logstore.replica.appending import OwnerLimits
from logstore.replica.copy_tokens import CopyTokens
from logstore.replica.effects import Acked, Effect, Load, Send, StoreDurably
from logstore.replica.host_state import HostState
from logstore.replica.messages import (
    Append,
    AppendDone,
    CopyChunk,
    CopyDone,
    CopyProgress,
    EntriesRead,
    Fence,
    FenceDone,
    LookAtRegistration,
    Message,
    OutOfOrder,
    ReadEntries,
    Reason,
    Refused,
    StreamRates,
    ToOwner,
)
from logstore.replica.owner import Owner
from logstore.replica.owner_states import TAKING
from logstore.replica.placing import Placing
from logstore.replica.register import ReadRegistration, RegistrationRead, SwapAnswer, SwapRegistration
from logstore.replica.registrations import ChunkRegistration, Prefix, StreamHead, StreamRegistration, TieredCopy
from logstore.replica.replica import Replica
from logstore.replica.stored_registrations import StoredRegistrations

RESIGN_S: Final = 5.0
"""How long an end waits for other hosts to take over."""


@dataclass(frozen=True, slots=True)
class HostParts:
    """What a host is put together from."""

    identity: HostIdentity
    store: MetadataStore
    view: ClusterView
    links: Links
    files: ReplicaFiles
    report: Report
    plan_sets: PlanSets | None = None
    copy_rates: CopyRates = field(default_factory=CopyRates)
    grace_s: float = DEFAULT_GRACE_S
    bursts: Bursts = field(default_factory=Bursts)


class ClusterHost:
    """See the module. `run` must run."""

    def __init__(self, parts: HostParts, membership: Membership, limits: OwnerLimits | None = None) -> None:
        self.name = parts.identity.host
        self.view = parts.view
        self.topics = StoredTopics(parts.store, parts.view)
        self._parts = parts
        self._membership = membership
        self._limits = limits or OwnerLimits()
        self._replica = Replica(parts.identity.member, parts.files.stored, has_room=parts.files.has_room)
        self._owners: dict[str, Owner] = {}
        self._ticks = OwnerTicks(self._owners, self._carry_out)
        self._copies = Copies(parts.links, parts.copy_rates)
        self._shared = HostState.waking(self._has_token, self._copies.is_beside_appends)
        self._sets = SetChoice(self.name, lambda: self.live, parts.links, parts.plan_sets, self._shared.copies)
        placing = Placing(choose=self._sets.choose, crowding=self._sets.crowding)
        self._hosts = LiveHosts(
            self.name, parts.view, parts.links, membership, self._hosts_changed, placing, parts.grace_s
        )
        self._claims = Claims(
            parts.identity.owner_id,
            parts.view,
            self._hosts,
            membership,
            OwnStreams(self._claim, self._owners.__contains__, self._replica.has_end_of),
            lambda: self._requests.delay_s,
        )
        registrations = StoredRegistrations(parts.store, parts.identity.cluster_id)
        self._requests = RegistrationRequests(registrations, self._answered, parts.report)
        self._many = ManyRegistrations(parts.store, self._requests, self._answered, self._claims.is_known)
        self._vacancies = Walk(self._claims.known_streams, self._claims.look_at, LOOKS_AT_ONCE)
        self._placing = Walk(lambda: list(self._owners.values()), self._place)
        self._reads = EntryReads(self.name, parts.links, self._replica.was_copied)
        self.answering, self.acknowledged_end = self._reads.answering, self._reads.acknowledged_end
        self._heads: dict[str, StreamHead] = {}
        """Of streams with replicas here, as they were seen last."""
        known = self._requests.registrations.known
        self._shown = ShownRegistrations(
            self._replica, known, self._many.ask, self._claims.topic_of, self._carry_out, parts.report
        )
        self.disk = DiskWork(parts.files, self._replica, self._copies, self._carry_out, parts.report, parts.bursts)
        self._handlers: dict[type, Callable[[str, Any], None]] = {
            **dict.fromkeys((Append, ReadEntries), self._to_replica),
            **dict.fromkeys((AppendDone, OutOfOrder, FenceDone, CopyDone, CopyProgress), self._to_owner),
            CopyChunk: self._copy_ordered,
            EntriesRead: self._entries_read,
            Fence: self._fenced,
            LookAtRegistration: lambda _, message: self._look(message.stream, message.revision),
            StreamRates: self._sets.heard,
            Refused: self._refused,
        }
        self._changed = ChangeSignal()
        self._news = OwnerNews(parts.report, self._deposed, self._changed.notify)
        parts.view.add_observer(self)

    @property
    def statistics(self) -> HostStatistics:
        """What the host does now."""
        ownerless = self._claims.streams_without_owner
        return HostStatistics(len(self._owners), len(self._ticks), ownerless, *self._news.figures)

    @property
    def owners(self) -> Mapping[str, Owner]:
        """The streams that this host owns or claims: to look at."""
        return self._owners

    @property
    def replica_counts(self) -> tuple[int, int]:
        """How many replicas are open here, and how many are sealed."""
        return self._replica.counts

    @property
    def live(self) -> Mapping[str, schema.StoredMember]:
        """The hosts that live, as this host sees it."""
        return self._hosts.live

    @property
    def placing(self) -> Placing:
        """Where chunks of its streams may lie."""
        return self._hosts.placing

    @property
    def copy_tokens(self) -> CopyTokens:
        """Which of this host's streams may have a chunk copied."""
        return self._shared.copies

    @property
    def copies(self) -> Copies:
        """Copies that are made and served here."""
        return self._copies

    @property
    def start(self) -> str:
        """The random name of this host's present life."""
        return self._membership.member.start

    @property
    def lease_id(self) -> int:
        """The lease under which this host is a member; 0: it surely is none now."""
        return self._membership.lease_id

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry out what is asked for, until cancelled. Started when the view is complete."""
        await self.view.complete()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.disk.run)
            nursery.start_soon(self._requests.run)
            nursery.start_soon(self._ticks.run)
            nursery.start_soon(self._copies.run)
            nursery.start_soon(self._claims.run)
            nursery.start_soon(self._many.run)
            nursery.start_soon(self._vacancies.run)
            nursery.start_soon(self._placing.run)
            nursery.start_soon(self._shown.run)
            nursery.start_soon(self._hosts.watch_links)
            nursery.start_soon(self._sets.run)
            unknown = [each for each in self._replica.fenced_streams() if not self._claims.is_known(each)]
            self._many.ask_all((*self._replica.streams(), *unknown))
            self.members_changed()
            task_status.started()

    # ---- for the front: streams

    def observe(self, stream: str, observer: StreamObserver) -> None:
        """Tell an observer what becomes of a stream from now on, and what it is now: `ready`, or `unavailable`."""
        self._news.observers[stream] = observer
        owner = self._owners.get(stream)
        if owner is not None:
            owner.size_chunks(observer.chunk_bytes)
        if owner is not None and owner.state in TAKING:
            observer.registered(owner.registration)
            observer.ready(owner.registration.epoch, owner.high_watermark)
            self._news.tell_short(stream)
        else:
            self._news.tell_waiting(stream, owner)

    def stop_observing(self, stream: str) -> None:
        """Tell nobody any more."""
        self._news.observers.pop(stream, None)

    def owner_of(self, stream: str) -> str | None:
        """The host that owns a stream and lives, by the newest registration known here; None if there is none."""
        known = self.view.heads.get(stream)
        return None if known is None or election.is_owner_gone(known.head, self.live) else known.head.owner.host

    def is_changing_hands(self, stream: str) -> bool:
        """Whether the stream's owner is gone or out of reach, or has not opened a chunk yet."""
        known, owner = self.view.heads.get(stream), self.owner_of(stream)
        return known is not None and not (owner and self.may_answer(owner) and known.head.takes_appends)

    def head(self, stream: str) -> KnownHead | None:
        """The head of a stream's registration: owner, epoch and open chunk, on every host; it may be late."""
        return self.view.heads.get(stream)

    def owns(self, stream: str) -> bool:
        """Whether this host owns the stream and takes appends, or will again in a moment."""
        owner = self._owners.get(stream)
        return owner is not None and owner.state in TAKING

    def is_claimed(self, stream: str) -> bool:
        """Whether this host owns the stream, or has claimed it and is about to."""
        return stream in self._owners

    def may_append(self, stream: str, size_bytes: int) -> bool:
        """Whether `append` takes a batch of this size now. Raises NotLeader."""
        may = self._taking(stream).may_append(size_bytes)
        if not may:
            self._news.full.add(stream)
        return may

    def append(self, stream: str, data: bytes, record_count: int) -> int:
        """Append a batch, which `may_append` allows; returns its offset. Raises NotLeader."""
        owner = self._taking(stream)
        offset = owner.next_offset
        self._sets.rates.appended(stream, len(data))
        self._drive(owner, owner.append(data, record_count, self._ticks.now_ms()))
        return offset

    def trim(self, stream: str, log_start: int, *, keeps_last: bool) -> None:
        """Let readers see nothing below an offset, and drop the chunks in front: see `Owner.trim`. Raises NotLeader."""
        owner = self._taking(stream)
        self._drive(owner, owner.trim(log_start, self._ticks.now_ms(), keeps_last=keeps_last))

    def note_tiered(self, stream: str, epoch: int, copy: TieredCopy) -> None:
        """Register where a sealed chunk lies in the tier, once it was read back. Raises NotLeader."""
        owner = self._taking(stream)
        owner.trimming.tier.note(epoch, copy)
        self._drive(owner, owner.tick(self._ticks.now_ms()))

    def drop_members(self, stream: str, before_offset: int) -> None:
        """Take hosts' copies of chunks that end at or before an offset, and lie in the tier, out of the registration.
        Raises NotLeader.
        """
        owner = self._taking(stream)
        owner.trimming.tier.drop_members(before_offset)
        self._drive(owner, owner.tick(self._ticks.now_ms()))

    @property
    def alive_hosts(self) -> Collection[str]:
        """The hosts that live."""
        return self.view.members

    def roll(self, stream: str) -> None:
        """Seal the stream's open chunk, if it has anything, and open the next one. Raises NotLeader."""
        owner = self._taking(stream)
        self._drive(owner, owner.roll(self._ticks.now_ms()))

    def reconfigure(self, stream: str, chunk_bytes: int) -> None:
        """Chunks of a stream are full at another size, and have another number of members at least, as its topic says;
        if this host owns the stream.
        """
        owner = self._owners.get(stream)
        if owner is not None:
            owner.size_chunks(chunk_bytes)
            self._require(owner)

    def _require(self, owner: Owner) -> None:
        known = self._claims.topic_of(owner.stream)
        if known is not None:
            least, copies = election.min_copies(known.topic), known.topic.replicas
            self._drive(owner, owner.require(least, self._ticks.now_ms(), copies))

    def next_offset(self, stream: str) -> int:
        """The offset of the next batch. Raises NotLeader."""
        return self._taking(stream).next_offset

    def acked(self, stream: str) -> Prefix:
        """How much of the open chunk is acknowledged; its offset is the high watermark. Raises NotLeader."""
        return self._taking(stream).acked

    def registration(self, stream: str) -> StreamRegistration:
        """The registration of a stream that this host owns, all chunks included. Raises NotLeader."""
        return (self._owners[stream] if stream in self._news.readable else self._taking(stream)).registration

    async def read_registration(self, stream: str) -> StreamRegistration:
        """The registration of any stream, from the metadata store. Raises UnknownTopicOrPartition, MetadataError."""
        found = await self._requests.registrations.read(ReadRegistration(stream))
        if found.registration is None:
            raise UnknownTopicOrPartition(f"stream {stream} has no registration: its topic is new, or was deleted")
        return found.registration

    async def read_entries(self, stream: str, chunk: ChunkRegistration, offset: int, max_bytes: int) -> EntriesRead:
        """Entries of a chunk from an offset on, about `max_bytes`, from any of its members, this host included.

        The first entry is the one that holds `offset`. Without entries: no member may show more than up to
        `limit_offset` yet. Raises ChunkUnreachable.
        """
        return await self._reads.read(stream, chunk, offset, max_bytes)

    def may_answer(self, host: str) -> bool:
        """Whether a host is this one, or can be reached."""
        return host == self.name or self._parts.links.is_reachable(host)

    async def wait_ready(self, stream: str) -> None:
        """Wait until this host owns the stream and takes appends."""
        while not self.owns(stream):
            await self._changed.wait()

    async def resign(self) -> None:
        """End the membership, and wait until other hosts own this host's streams, or RESIGN_S. It goes on serving."""
        self._claims.is_over = True
        self._membership.resign()
        with trio.move_on_after(RESIGN_S):
            while self._owners and any(host != self.name for host in self._hosts.live):
                await self._changed.wait()

    def _taking(self, stream: str) -> Owner:
        owner = self._owners.get(stream)
        if owner is None or owner.state not in TAKING:
            raise self.not_leader(stream)
        return owner

    def not_leader(self, stream: str) -> NotLeader:
        """The error for a stream that this host does not own, with who does."""
        known, leader = self.view.heads.get(stream), self.owner_of(stream)
        epoch = known.head.epoch if known is not None else 0
        where = f"host {leader!r} owns it" if leader else "it has no owner yet"
        return NotLeader(f"host {self.name!r} does not own stream {stream}: {where}", leader=leader or "", epoch=epoch)

    # ---- for the links

    def receive(self, sender: str, message: Message) -> None:
        """Take a message from a host, this one included."""
        self._handlers[type(message)](sender, message)

    def _copy_ordered(self, sender: str, message: CopyChunk) -> None:
        self._to_replica(sender, message)
        if self._copies.flow.is_waiting(message.stream, message.epoch):
            self._carry_out(self._replica.progress_of(message.stream, message.epoch))
        if self._claims.is_known(message.stream):  # the registration is to name the copy; several are read together
            self._look(message.stream, message.revision)

    def _to_replica(self, sender: str, message: Append | CopyChunk | ReadEntries) -> None:
        # What comes for a topic that is not known leaves nothing here: it was deleted, or is asked for again.
        if self._claims.is_known(message.stream):
            self._carry_out(self._replica.receive(sender, message))

    def _to_owner(self, sender: str, message: ToOwner) -> None:
        owner = self._owners.get(message.stream)
        if owner is not None:
            self._drive(owner, owner.receive(message, self._ticks.now_ms()))

    def _fenced(self, sender: str, message: Fence) -> None:
        """Somebody claims the stream: this host's owner knows it before an append of its own is refused."""
        if not self._claims.is_known(message.stream):
            return
        self._carry_out(self._replica.receive(sender, message))
        me = self._parts.identity.member
        self._to_owner(sender, Refused(message.stream, message.epoch, me, Reason.FENCED, message.fence_epoch))

    def _refused(self, sender: str, message: Refused) -> None:
        self._reads.received(message)
        self._copies.refused(message)
        self._carry_out(self._replica.receive(sender, message))
        self._to_owner(sender, message)

    def _entries_read(self, sender: str, message: EntriesRead) -> None:
        self._reads.received(message)
        effects = self._replica.receive(sender, message)
        self._copies.arrived(message, effects)
        self._carry_out(effects)

    def peer_refused(self, host: str) -> None:
        """A host's connection was lost, and its address refuses connections: its process is gone."""
        self._hosts.refused(host)

    # ---- for the view

    def members_changed(self) -> None:
        """See ViewObserver: who lives has changed."""
        self._hosts.members_changed()

    def _hosts_changed(self) -> None:
        """Who lives, or can be reached, has changed."""
        self._vacancies.begin()
        self._placing.begin()
        self._changed.notify()

    def _place(self, owner: Owner) -> None:
        """Tell an owner which hosts live."""
        if self._owners.get(owner.stream) is owner:
            live = self._hosts.placement(owner.stream)
            self._drive(owner, owner.live_members(live, self._ticks.now_ms(), self._hosts.placing))

    def topic_changed(self, name: str, before: KnownTopic | None, now: KnownTopic | None) -> None:
        """See ViewObserver."""
        if before is not None and (now is None or now.topic.topic_id != before.topic.topic_id):
            for stream in streams_of(before):
                self._forget(stream)
        if now is not None:
            for stream in streams_of(now):
                self._claims.look_at(stream)

    def head_changed(self, stream: str, now: KnownHead | None) -> None:
        """See ViewObserver."""
        self._sets.head_changed(stream, now)
        self._claims.look_at(stream)
        has_replicas = self._replica.has_chunks_of(stream)
        before = self._heads.pop(stream, None)
        if now is None:  # if its topic is known still, its end is seen soon
            if self._replica.has_anything_of(stream) and not self._claims.is_known(stream):
                self._many.ask(stream)
            return
        if has_replicas:
            self._heads[stream] = now.head
        owner = self._owners.get(stream)
        is_overtaken = owner is not None and now.head.owner != self._parts.identity.owner_id
        is_alike = now.head == before or now.head.replaces_empty_chunk_of(before)
        if has_replicas and is_alike and not (is_overtaken or self._replica.has_failed(stream)):
            self._shown.look_later(stream, now.revision)  # what is to be kept is as it was: a copy was made, say
        elif is_overtaken or (has_replicas and not now.head.is_claim_of(before)):
            self._look(stream, now.revision)

    # ---- claims

    def _claim(self, stream: str) -> None:
        """Become the owner of a stream."""
        now_ms = self._ticks.now_ms()
        news, me = self._news, self._parts.identity.owner_id
        founding, written_ms = partial(news.founding, stream), partial(news.written_ms, stream)
        owner = self._owners[stream] = Owner(stream, me, self._limits, founding, written_ms, self._shared)
        owner.size_chunks(news.chunk_bytes(stream, self._limits.chunk_bytes))
        self._require(owner)
        owner.live_members(self._hosts.placement(stream), now_ms, self._hosts.placing)
        read = owner.start(now_ms)
        head, known = self.view.heads.get(stream), self._requests.registrations.known(stream)
        if head is None:
            self._drive(owner, ())
            self._requests.ask(CreateRegistration(stream, lambda: self._first_registration(stream)))
        elif known is not None and known.revision >= head.revision:
            self._answered(known)  # an older one does no harm: its claim is refused
        else:
            self._drive(owner, read)

    def _first_registration(self, stream: str) -> FirstRegistration | None:
        """None: the topic is gone."""
        known, name = self._claims.topic_of(stream), self.view.names.get(topic_id_of(stream))
        if known is None or name is None or stream not in self._owners:
            return None
        first = StreamRegistration(known.topic.replicas, election.min_copies(known.topic))
        return FirstRegistration(first, Condition(schema.topic_key(name), known.revision))

    # ---- owners

    def _drive(self, owner: Owner, effects: Iterable[Effect]) -> None:
        """Carry out what an owner asks for after an event: it gets ticks until it is at rest."""
        self._ticks.follow(owner)
        self._carry_out(effects)

    def _has_token(self, stream: str) -> None:
        """A stream that waited for a token has one."""
        owner = self._owners.get(stream)
        if owner is None:
            self._shared.leave(stream)
        else:
            self._ticks.follow(owner)

    def _forget(self, stream: str) -> None:
        """The stream's topic was deleted."""
        self._shown.forget(stream)
        self._heads.pop(stream, None)
        owner = self._owners.pop(stream, None)
        self._shared.leave(stream)
        self._claims.look_at(stream)
        self._news.stream_deleted(stream, is_owned=owner is not None)
        if self._replica.has_anything_of(stream):
            self._many.ask(stream)
        self._changed.notify()

    # ---- registrations

    def _look(self, stream: str, revision: int) -> None:
        """The registration has changed: read it, unless it is known as of this revision."""
        if self._shown.revision(stream) >= revision:
            return
        known = self._requests.registrations.known(stream)
        if known is not None and known.revision >= revision:
            self._answered(known)
        else:
            self._requests.ask(ReadRegistration(stream, revision))

    def _read(self, request: ReadRegistration) -> None:
        """Read a registration; one that is known as of the revision that a replica wants is shown to replicas alone."""
        known = self._requests.registrations.known(request.stream)
        if known is not None and known.revision >= request.revision > 0:
            self._shown.show(known)
        else:
            self._requests.ask(request)

    def _answered(self, answer: RegistrationRead | SwapAnswer) -> None:
        """What the metadata store says of a stream."""
        self._shown.show(answer)
        owner = self._owners.get(answer.stream)
        if owner is None:
            return
        if isinstance(answer, SwapAnswer):
            self._drive(owner, owner.swap_answered(answer, self._ticks.now_ms()))
        else:
            self._drive(owner, owner.registration_read(answer, self._ticks.now_ms()))

    # ---- effects

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        """Do what a state machine asks for."""
        for effect in effects:
            if isinstance(effect, Send):
                if isinstance(effect.message, ReadEntries):  # the next piece of a copy
                    self._copies.ask(effect.host, effect.message)
                else:
                    self._parts.links.send(effect.host, effect.message)
            elif isinstance(effect, StoreDurably):
                self.disk.store(effect)
            elif isinstance(effect, Acked):
                self._news.acked(effect)
            elif isinstance(effect, Load):
                self.disk.load(effect)
            elif isinstance(effect, ReadRegistration):
                self._read(effect)
            elif isinstance(effect, SwapRegistration):
                self._requests.ask(effect)
            else:
                self._news.tell(effect)

    def _deposed(self, stream: str) -> None:
        self._owners.pop(stream, None)
        self._sets.rates.deposed(stream)
        self._claims.look_at(stream)
