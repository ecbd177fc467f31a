"""Which host's coordinator leads: whoever holds the entry `coordinator/leader`, under its membership's lease.

Every host that stands by watches the entry. When nobody holds it, each tries to put its own, and one succeeds; that one
leads (`Lead`) until its entry is gone or another's. Which host leads does not matter.

Invariants:
* A host leads only behind its own put of the entry, and what it stores needs that very put
  (`scheduler.coordinator.metadata.cluster`): two that both think that they lead cannot both store, nor tell anything.
* A host puts its entry in the place of none but its own of before, whose lease has not ended yet, and a damaged one.
  After its start it waits for SLOT_MS with its own of before: a slot that it gave in that life lasts no longer
  (`scheduler.coordinator.copy_slots`). Whoever gives up the lead waits for the end of its slots.
* A host that cannot lead, as with another network than the plan was made for, takes its entry away and leaves the lead
  to others for CANNOT_LEAD_S. One that cannot read the state keeps it and tries again, for STATE_LIMIT_S; it says what
  it waits for, at once and each TELL_S.
* `resign` stores what was recorded, and takes the entry away: another host leads at once. This one does not lead again.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol

import trio

from logstore.base.copy_slots import SLOT_MS
from logstore.base.events import Report
from logstore.base.failures import leaves
from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataDamaged, MetadataError, MetadataRefused
from logstore.base.metadata.interface import ABSENT, Committed, Entry, MetadataStore
from logstore.base.metadata.view import MetadataView
from scheduler.coordinator.errors import StartError, StoreError
from scheduler.coordinator.log_events import (
    COORDINATOR_AWAITS_STATE,
    COORDINATOR_CANNOT_LEAD,
    COORDINATOR_FOLLOWS,
    COORDINATOR_LEADS,
    COORDINATOR_LEADS_NO_MORE,
)
from scheduler.coordinator.metadata.cluster import ClusterMetadata, Leadership
from scheduler.coordinator.metadata.on_threads import OffLoad

LOOK_S: Final = 0.2
"""Between two looks at the entry while nothing is heard of it: this host may have become a member meanwhile."""
STORE_AWAY_S: Final = 1.0
"""Before a state that could not be read is read again."""
STATE_LIMIT_S: Final = 120.0
"""For the state to be read, in tries that fail; then another host is to try."""
REFUSED_S: Final = 1.0
"""Before the entry is read again, where the store has refused this host."""
TELL_S: Final = 60.0
"""Between two lines of the log about a state that is awaited."""
READING: Final = "the state is being read"
CANNOT_LEAD_S: Final = 30.0
RESIGN_S: Final = 5.0
"""For what was recorded to be stored, and for the entry to go; else the lease's end takes it."""


class CandidateHost(Protocol):
    """This host as a member of the cluster."""

    @property
    def lease_id(self) -> int:
        """The lease under which this host is a member; 0: it surely is none now."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def start(self) -> str:
        """The random name of the life that it is in."""


class LeadingCoordinator(Protocol):
    """A coordinator that leads, and takes requests."""

    def stop(self) -> None:
        """Answer the clients that wait."""

    async def finish(self) -> None:
        """Answer the clients that wait, and store what was recorded."""


Prepare = Callable[[], Awaitable[None]]


class Lead(Protocol):
    """Loads the state, and coordinates with it until cancelled. Raises StartError, StoreError before it has started."""

    def __call__(
        self, metadata: ClusterMetadata, *, task_status: trio.TaskStatus[LeadingCoordinator]
    ) -> Awaitable[None]:
        """See the class."""
        ...


class Candidate:
    """See the module. `run` must run. `url`: where this host's coordinator is asked; `prepare`: what this host does
    before it may lead.
    """

    def __init__(
        self,
        member: CandidateHost,
        store: MetadataStore,
        url: str,
        prepare: Prepare,
        lead: Lead,
        report: Report,
        off_load: OffLoad,
    ) -> None:
        self._member = member
        self._store = store
        self._url = url
        self._prepare = prepare
        self._is_prepared = False
        self._lead = lead
        self._report = report
        self._off_load = off_load
        self.view = MetadataView(store, schema.LEADER_KEY)
        """Of the leader's entry, and of what the leader says beside it."""
        self._leading: LeadingCoordinator | None = None
        self._revision = ABSENT
        """Of this host's entry, while it leads."""
        self._lease_id = 0
        self._is_resigning = False
        self._pause_until_s = self._began_s = float("-inf")
        self._told = ""
        """The leader that was reported last."""
        self.awaited = ""
        """What this host waits for while it has the lead and not yet the state, for its log; "": it does not wait."""

    @property
    def leads(self) -> bool:
        """Whether this host's coordinator leads, surely, and has the state."""
        return self._leading is not None and self._is_sure()

    @property
    def followed(self) -> schema.StoredLeader | None:
        """The other host that leads, as far as is known; None: nobody leads, or this host does."""
        leader = self._leader()
        return None if leader is None or self._is_own(leader) else leader

    @property
    def leader_url(self) -> str:
        """Where the coordinator of the host that is followed is asked; "": there is none."""
        leader = self.followed
        return "" if leader is None else leader.url

    @property
    def led(self) -> tuple[int, int]:
        """The revision of this host's entry while it leads, and the lease that the entry lies under."""
        return self._revision, self._lease_id

    async def run(self) -> None:
        """Stand by, and lead when nobody does, until cancelled."""
        self._began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._get_ready)
            await self.view.reached(1)
            while True:
                await self._look()
                with trio.move_on_after(LOOK_S):
                    await self.view.changed()

    async def _follow(self) -> None:
        """Follow the entry, also over times when the store refuses this host: what is known stays meanwhile. The host's
        own views, of the same store, report the refusal.
        """
        while True:
            with suppress(MetadataRefused, MetadataDamaged):
                await self.view.run()
            await trio.sleep(REFUSED_S)

    async def _get_ready(self) -> None:
        await self._prepare()
        self._is_prepared = True

    async def resign(self) -> None:
        """See the module."""
        self._is_resigning = True
        leading, self._leading = self._leading, None
        with trio.move_on_after(RESIGN_S):
            if leading is not None:
                await leading.finish()
            if self._revision != ABSENT:
                await self._take_away(self._revision)

    async def _take_away(self, revision: int) -> None:
        """Let others lead, now; if the store is away the end of the lease does that."""
        with suppress(MetadataError):
            await self._store.commit(schema.lead_no_more(revision))

    # ---- the entry

    def _entry(self) -> Entry | None:
        return self.view.entries.get(schema.LEADER_KEY)

    def _leader(self) -> schema.StoredLeader | None:
        """Who leads, as far as this host knows; None: nobody, or the entry is damaged."""
        entry = self._entry()
        with suppress(MetadataDamaged):
            return None if entry is None else schema.decode(schema.StoredLeader, entry)
        return None

    def _is_own(self, leader: schema.StoredLeader) -> bool:
        return leader.host == self._member.name

    def _is_sure(self) -> bool:
        return self._lease_id != 0 and self._member.lease_id == self._lease_id

    async def _look(self) -> None:
        """Lead, if nobody does and this host may. Returns when it leads no more."""
        leader, entry = self._leader(), self._entry()
        if leader is not None and not self._is_own(leader):
            if leader.host != self._told:
                self._told = leader.host
                self._report(COORDINATOR_FOLLOWS, leader=leader.host, url=leader.url)
            return
        lease_id = self._member.lease_id
        since_s = self._pause_until_s if entry is None else max(self._pause_until_s, self._began_s + SLOT_MS / 1000)
        may_lead = self._is_prepared and not self._is_resigning and trio.current_time() >= since_s
        if not lease_id or not may_lead:
            return
        put = schema.lead(
            schema.StoredLeader(host=self._member.name, start=self._member.start, url=self._url),
            lease_id,
            ABSENT if entry is None else entry.revision,
        )
        try:
            outcome = await self._store.commit(put)
        except MetadataError:
            return  # the next look tries again, and finds what an answer that was lost would have said
        if isinstance(outcome, Committed) and self._is_resigning:
            await self._take_away(outcome.revision)
        elif isinstance(outcome, Committed):
            self._told = ""
            await self._lead_while(outcome.revision, lease_id)

    async def _lead_while(self, revision: int, lease_id: int) -> None:
        """Lead while the entry has this revision."""
        self._revision, self._lease_id = revision, lease_id
        metadata = ClusterMetadata(self._store, Leadership(revision, self._is_sure), self._off_load)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._wait_replaced, revision, metadata, nursery.cancel_scope)
                leading = await self._begin(metadata, nursery)
                self.awaited = ""
                if not self._is_resigning:
                    self._leading = leading
                    self._report(COORDINATOR_LEADS, url=self._url)
        except* StartError as refusals:
            self._report(COORDINATOR_CANNOT_LEAD, why="; ".join(str(refusal) for refusal in leaves(refusals)))
            self._pause_until_s = trio.current_time() + CANNOT_LEAD_S
            await self._take_away(revision)
        finally:
            self._leading, self._revision, self._lease_id, self.awaited = None, ABSENT, 0, ""

    async def _begin(self, metadata: ClusterMetadata, nursery: trio.Nursery) -> LeadingCoordinator:
        """Have the state, as soon as the store gives it. Raises StartError if it gives none for STATE_LIMIT_S."""
        self.awaited, began_s = READING, trio.current_time()
        nursery.start_soon(self._tell_awaited, began_s)
        while trio.current_time() - began_s < STATE_LIMIT_S:
            try:
                leading: LeadingCoordinator = await nursery.start(self._lead, metadata)
            except* StoreError as failures:
                before, self.awaited = self.awaited, "; ".join(str(failure) for failure in leaves(failures))
                if before == READING:
                    self._report_awaited(began_s)
                await trio.sleep(STORE_AWAY_S)
            else:
                return leading
        raise StartError(f"the state could not be read for {STATE_LIMIT_S:g} s: {self.awaited}")

    async def _tell_awaited(self, began_s: float) -> None:
        """Say each TELL_S what is waited for, until this host has the state."""
        while True:
            await trio.sleep(TELL_S)
            if not self.awaited:
                return
            self._report_awaited(began_s)

    def _report_awaited(self, began_s: float) -> None:
        self._report(COORDINATOR_AWAITS_STATE, why=self.awaited, for_s=round(trio.current_time() - began_s))

    async def _wait_replaced(self, revision: int, metadata: ClusterMetadata, scope: trio.CancelScope) -> None:
        """Cancel when the entry is another one, or gone."""
        await self.view.reached(revision)
        while not metadata.is_lost and (entry := self._entry()) is not None and entry.revision == revision:
            with trio.move_on_after(LOOK_S):
                await self.view.changed()
        leading, self._leading = self._leading, None
        if leading is not None:
            leading.stop()
        self._report(COORDINATOR_LEADS_NO_MORE)
        scope.cancel()
