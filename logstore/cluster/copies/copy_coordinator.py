"""The host that plans the copies of a cluster: whoever holds the entry `copies/coordinator`, under its own lease.

Which host that is does not matter. Who wishes for a copy and finds no coordinator that lives becomes one (`become`);
hosts tell it their wishes, and it tells them their goes (`logstore.cluster.copies.copy_requests`).

Invariants:
* No go is told before it is in the metadata store, in a transaction that needs this host's own entry. So a coordinator
  that was replaced, and does not know it, gives no goes any more; its next try tells it.
* A go is pace, never safety: two coordinators would cost some appends their latency, and nothing else.
* A defect of the planner ends the planning of this host, and nothing else: others may plan, and copies go on anyway.
* While the metadata store is away no new goes are told; those that were told stay.
* In the store there are one entry of at most 62 KiB and one of some 100 bytes; the first is written for copies that
  begin or end, several at once, at most every PAUSE_S and at most WRITE_BYTES_S on the average: former values stay in
  etcd until it compacts them.
* The planner is loaded by name when it is needed first: 14 MB that no other host has. A host without the packages that
  it needs never coordinates.

Sources: SGuard, section 5 (the coordinator calls back when a chunk may be written), sections 2 and 3 (it is
fault-tolerant).
"""

import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from random import Random
from typing import Final, Protocol

import trio

from logstore.base.events import Report
from logstore.base.metadata import schema
from logstore.base.metadata.errors import LeaseEnded, MetadataError, OutcomeUnknown
from logstore.base.metadata.interface import Committed, MetadataStore
from logstore.base.packages import how_to_install
from logstore.cluster.copies import copy_fields
from logstore.cluster.copies.copy_plan import CopyPlan, Going
from logstore.cluster.interfaces import PlanCopies
from logstore.cluster.members.set_choice import links_of, places_of
from logstore.cluster.streams.owner_calls import TELL_GOES, Calls, answered
from logstore.errors import HostUnreachable, MalformedRequest
from logstore.events import COPIES_COORDINATED, COPY_PLANNER_CRASHED, COPY_PLANNER_MISSING, METADATA_ENTRY_DAMAGED
from logstore.format.fields import decode_fields, encode_fields
from logstore.interfaces import Buffer

PLANNER_ROOM: Final = "scheduler.peace.copies"
LOOK_S: Final = 1.0
"""Between two looks at which hosts live and speak."""
PAUSE_S: Final = 0.05
"""Between two plans that are written down."""
WRITE_BYTES_S: Final = 16 << 10
"""58 MB an hour: etcd holds 2 GB, and forgets after an hour as docs/cluster.md has it started."""
TELL_S: Final = 2.0
"""For a call that tells goes; whoever does not hear of a go asks."""


LoadPlanner = Callable[[], Awaitable[PlanCopies | None]]
"""Loads the planner of copies; None: a package that it needs is not installed."""


async def load_planner() -> PlanCopies | None:
    """See LoadPlanner."""
    try:
        room = await trio.to_thread.run_sync(import_module, PLANNER_ROOM)
    except ImportError:  # not there, or a library that it needs is not
        return None
    planner: PlanCopies = room.MAKE
    return planner


class Coordinating(Protocol):
    """Who this host is, and which hosts live (`logstore.cluster.host`)."""

    @property
    def name(self) -> str:
        """The host's name."""

    @property
    def start(self) -> str:
        """The random name of the life that it is in."""

    @property
    def lease_id(self) -> int:
        """The lease under which this host is a member; 0: it is none now."""

    @property
    def live(self) -> Mapping[str, schema.StoredMember]:
        """The hosts that live."""


class CopyCoordinator:
    """See the module. `run` must run."""

    def __init__(
        self,
        host: Coordinating,
        store: MetadataStore,
        calls: Calls,
        random: Random,
        report: Report,
        load: LoadPlanner = load_planner,
    ) -> None:
        self._host = host
        self._store = store
        self._calls = calls
        self._random = random
        self._report = report
        self._load = load
        self._is_loaded = False
        self._plan_copies: PlanCopies | None = None
        self._plan: CopyPlan | None = None
        self._revision = 0
        """Of this host's entry."""
        self._live: Mapping[str, schema.StoredMember] = {}
        self._stored: tuple[Going, ...] = ()
        """The goes that are in the metadata store."""
        self._told: set[Going] = set()
        self._turn = trio.Lock()
        self._free_s = float("-inf")
        """When the next plan may be written down."""
        self._nursery: trio.Nursery | None = None

    @property
    def coordinates(self) -> bool:
        """Whether this host plans copies, as far as it knows."""
        return self._plan is not None

    @property
    def live(self) -> Mapping[str, schema.StoredMember]:
        """The hosts that live."""
        return self._host.live

    @property
    def counts(self) -> tuple[int, int]:
        """How many copies have a go of this host's plan, and how many wait."""
        return (0, 0) if self._plan is None else self._plan.counts

    async def run(self) -> None:
        """Look at the plan now and then, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            while True:
                await trio.sleep(LOOK_S)
                if self._plan is not None:
                    self._safely(partial(self._look, self._plan))
                    with suppress(MetadataError):  # it is away: the next look writes
                        await self._write_down()

    async def become(self, revision: int) -> bool:
        """Coordinate from now on, if the entry of who does has this revision; whether this host does now.

        Raises MetadataError.
        """
        if not self._is_loaded:
            self._plan_copies, self._is_loaded = await self._load(), True
            if self._plan_copies is None:
                self._report(COPY_PLANNER_MISSING, install=how_to_install("cluster"))
        async with self._turn:
            return await self._become(revision)

    async def _become(self, revision: int) -> bool:
        lease_id = self._host.lease_id
        if self._plan_copies is None or not lease_id:
            return False
        try:
            own = schema.StoredCopyCoordinator(host=self._host.name, start=self._host.start)
            outcome = await self._store.commit(schema.coordinate_copies(own, lease_id, revision))
        except (OutcomeUnknown, LeaseEnded):
            return False  # whoever asks next finds out
        if not isinstance(outcome, Committed):
            return False
        going = await self._kept()
        self._revision, self._stored, self._told = outcome.revision, tuple(going), set(going)
        plan = CopyPlan(self._plan_copies, self._random, going, _now_ms())
        self._live, self._plan = {}, plan
        self._safely(partial(self._look, plan))
        self._report(COPIES_COORDINATED, goes=len(going))
        return self.coordinates

    async def _kept(self) -> list[Going]:
        """The goes of the last plan; none if they cannot be read: hosts say which they have."""
        entry = (await self._store.get(schema.COPY_PLAN_KEY)).entry
        if entry is None:
            return []
        try:
            return copy_fields.decode_plan(entry.value)
        except MalformedRequest as error:
            self._report(METADATA_ENTRY_DAMAGED, key=entry.key, error=error)
            return []

    # ---- what hosts say

    async def serve(self, owner: str, payload: memoryview) -> Sequence[Buffer]:
        """A host tells its wishes and gets its goes."""
        return await answered(lambda: self._answer(owner, payload))

    async def _answer(self, owner: str, payload: memoryview) -> Mapping[str, object]:
        return await self._told_by(owner, decode_fields(payload)[0])

    async def _told_by(self, owner: str, fields: Mapping[str, object]) -> dict[str, object]:
        wishes, held = copy_fields.read_told(fields)
        if self._plan is None:
            async with self._turn:  # it may be named, and about to plan: who is told that it does not takes its place
                pass
        if self._plan is not None:
            self._safely(partial(self._plan.heard, owner, wishes, held, _now_ms()))
            await self._write_down()
        plan = self._plan
        if plan is None:
            return {"coordinates": False}
        goes = [(each.stream, each.go) for each in self._stored if each.owner == owner]
        self._told.update(each for each in self._stored if each.owner == owner)
        return {"coordinates": True, "goes": copy_fields.goes_fields(goes), "elsewhere": plan.elsewhere(owner)}

    # ---- the plan

    def _safely(self, work: Callable[[], None]) -> None:
        """Do a step of the plan."""
        try:
            work()
        except Exception:  # noqa: BLE001  a defect must not end this host, and the next one that plans
            self._plan = self._plan_copies = None
            self._report(COPY_PLANNER_CRASHED, trace=traceback.format_exc())

    def _look(self, plan: CopyPlan) -> None:
        """Forget hosts that say nothing, and plan anew if others live now."""
        live = self._host.live
        if live is not self._live:
            self._live = live
            plan.move(places_of(live), links_of(live), _now_ms())
        plan.tick(_now_ms())

    async def _write_down(self) -> None:
        """Have the plan in the metadata store, then tell goes to the hosts that have not asked for them just now.

        Raises MetadataError.
        """
        async with self._turn:
            plan = self._plan
            if plan is None or plan.goes == self._stored:
                return
            if not self._host.lease_id:
                self._plan = None  # the entry may have gone with the lease; if it has not, who is told so replaces it
                return
            await trio.sleep_until(self._free_s)
            goes = plan.goes
            value = copy_fields.encode_plan(goes)
            self._free_s = trio.current_time() + max(PAUSE_S, len(value) / WRITE_BYTES_S)
            try:
                outcome = await self._store.commit(schema.keep_copy_plan(value, self._revision))
            except OutcomeUnknown:  # nothing is told, and the next try writes all; a late write is only an older plan
                return
            if not isinstance(outcome, Committed):
                self._plan = None  # another host coordinates
                return
            self._stored = goes
            self._told &= set(goes)
            for owner in {each.owner for each in goes if each not in self._told}:
                if self._nursery is not None:
                    self._nursery.start_soon(self._tell_goes, owner)

    async def _tell_goes(self, owner: str) -> None:
        fresh = [each for each in self._stored if each.owner == owner and each not in self._told]
        if not fresh:
            return
        self._told.update(fresh)
        goes = copy_fields.goes_fields((each.stream, each.go) for each in fresh)
        with trio.move_on_after(TELL_S):
            try:
                await self._calls.call(owner, TELL_GOES, [encode_fields({"goes": goes})])
            except HostUnreachable:
                return  # the host asks


def _now_ms() -> int:
    return int(trio.current_time() * 1000)
