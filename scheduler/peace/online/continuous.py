"""CONTINUOUS mode: the next chunk starts as soon as its path is free; the head of the queue reserves, others backfill.

`scheduler.peace.online` has the rules and the proof of the bound.

Invariants:
* At most one reservation, for the head: the first unit of the queue that has a path in the network as it is.
* While there is a reservation, no other request gets its tokens, nor the tokens owed to it when they come back.
* After `advance`, no chunk of the head can start; requests behind it were tried within the budget of `max_tries`, or of
  MAX_TOGETHER with a planner that plans jointly.
"""

from collections.abc import Hashable
from random import Random

from scheduler.peace.online.index import Index, RequestClass, UnitGroup
from scheduler.peace.online.jobs import ChunkAttempt, ChunkUnit, TransferJob
from scheduler.peace.online.joint_planner import JointPlanner
from scheduler.peace.online.ranked_queue import RankedQueue
from scheduler.peace.online.records import Settings
from scheduler.peace.online.tokens import Key, Tokens
from scheduler.peace.online.unreachable import TRIES, Launch, UnreachableUnits, search, ways
from scheduler.peace.plan import HostChain, Planner, Resource, demands
from scheduler.topology import Topology

_MAX_UNREACHABLE_CLASSES = 4096
"""Classes of requests whose failures are counted; beyond, all counts are dropped, which costs a few tries in vain."""
_TRIES_SOON = 2
_COST_UNTOUCHED = 4
"""The weight of a try in vain for a writer in whose rack nothing was freed: such a try seldom succeeds."""
_TRIES_CLASS = 2
_TRIES_CLASS_SMALL = 8
_RACK_SMALL = 16
"""The number of writers of a rack without a path after which the others of the rack are not tried. In a small rack more
are tried, since each writer lacks just its own host."""

MAX_TOGETHER = 256
"""The number of groups of requests that one event plans together."""
_HOSTS_A_TIME = 1000
"""A joint plan looks at all hosts. In a network of n times as many hosts as this, it is made at every nth event."""


class _Reservation:
    """The head's reservation. `chain`: the reserved chain, None while the head waits for its own resource only."""

    __slots__ = ("chain", "keys", "unit")

    def __init__(self, unit: ChunkUnit, chain: HostChain | None, keys: tuple[Key, ...]) -> None:
        self.unit = unit
        self.chain = chain
        self.keys = keys


class Continuous:
    """The policy of continuous mode: start each chunk as soon as its path is free."""

    step = 0

    def __init__(
        self, topology: Topology, planner: Planner, settings: Settings, random: Random, queue: RankedQueue
    ) -> None:
        self._planner = planner
        self._max_tries = settings.max_tries
        self._random = random
        self._queue = queue
        self._tokens = Tokens(topology)
        self._index = Index(self._tokens)
        self._reservation: _Reservation | None = None
        self._unreachable = UnreachableUnits(queue, planner, random, self._tokens.whole)
        self._unreachable_counts: dict[Hashable, int] = {}
        """For each class, its units that became unreachable since a host came back: later ones are given up sooner."""
        self._in_flight = 0
        self._joint = JointPlanner.of(topology, planner, random, self._tokens.whole)
        self._hosts = len(topology.servers)
        self._events = 0
        """The number of events since the last joint plan."""

    # ---- events

    def enter(self, unit: ChunkUnit) -> None:
        """Note that the unit has a chunk waiting (again)."""
        self._index.add(unit)
        self._invalidate_plan()

    def leave(self, job: TransferJob) -> None:
        """Note that none of the job's units waits any more."""
        self._index.remove(job.units)
        self._unreachable.leave(job.units)
        self._invalidate_plan()
        if self._reservation is not None and self._reservation.unit.job is job:
            self._cancel_reservation()

    def ended(self, flight: ChunkAttempt, *, done: bool) -> None:
        """Note that a chunk is no longer in flight."""
        self._in_flight -= 1
        self._tokens.give(flight.chain)

    def unreachable_jobs(self) -> set[TransferJob]:
        """The jobs with unreachable units."""
        return self._unreachable.jobs()

    def counted_done(self) -> list[ChunkAttempt]:
        """Chunks that are done and still count: there are no timesteps."""
        return []

    def resume_at(self, step: int) -> None:
        """The scheduler is being restored: there are no timesteps."""

    def resume(self, flight: ChunkAttempt, *, done: bool) -> None:
        """Note that a chunk was in flight, or done, when the scheduler was restored."""
        if not done:
            self._in_flight += 1
            self._tokens.force(flight.chain)

    def started(self, flight: ChunkAttempt) -> None:
        """Note that a chunk was launched."""
        self._in_flight += 1

    def lose(self, host: int) -> None:
        """Note that a host is lost; its chunks in flight end next."""
        held = self._reservation
        if held is not None and any(number == host for resource, number in held.keys if resource is not Resource.LINK):
            self._cancel_reservation()
        self._tokens.lose(host)
        self._invalidate_plan()

    def regain(self, host: int) -> None:
        """Note that a lost host is back."""
        self._tokens.regain(host)
        self._invalidate_plan()
        self._unreachable_counts.clear()
        self._unreachable.retry_all()

    # ---- starting chunks

    def advance(self, launch: Launch, events: int) -> None:
        """After `events` events, start what can start: the head, then those behind it with what the head leaves."""
        for unit in self._unreachable.retry_some(idle=not self._in_flight):
            self._unreachable_counts.pop(self._index.class_key(unit), None)
        self._events += events
        together = self._joint is not None and self._events * _HOSTS_A_TIME >= self._hosts
        if together and self._reservation is not None and self._head_may_start() and not self._plan_with_head(launch):
            self._serve_head(launch)
        if together and self._reservation is None:
            self._plan_together(launch, events)
        if self._head_may_start():
            while self._serve_head(launch):
                pass
        if together:
            self._plan_together(launch, events)
        else:
            self._backfill(launch, self._max_tries * events)

    def _serve_head(self, launch: Launch) -> bool:
        """Start the head's next chunk if there is a way; whether the next head is worth a try."""
        unit = self._head()
        if unit is None:
            return False
        chain = self._serve(unit)
        if chain is not None:
            launch(unit, chain)
        return chain is not None or unit.unreachable

    def _plan_with_head(self, launch: Launch) -> bool:
        """Plan as if nothing were reserved; returns False, and changes nothing, if no chunk of the head is planned."""
        held, tokens, index = self._reservation, self._tokens, self._index
        if self._joint is None or held is None or held.unit is not self._head():
            return False
        tokens.release(held.keys, for_good=False)
        index.wake(tokens.freed | {key for key in held.keys if tokens.free(key)})
        groups, candidates = self._candidates(held.unit)
        limit = held.unit.waiting if held.unit.own is None else self._free_tokens(held.unit.own)
        candidates = [(held.unit, min(limit, held.unit.waiting)), *candidates]
        planned = self._joint.plan(candidates, self._queue, tokens.left, first=held.unit) if limit else []
        if not planned:
            tokens.hold(held.keys)
            for group in groups:
                index.ready(group)
            return False
        self._reservation = None
        tokens.freed.clear()
        for unit, chain in planned:
            launch(unit, chain)
        self._park_rest(groups)
        return True

    def _plan_together(self, launch: Launch, events: int) -> None:
        """Plan all groups that can use the freed tokens, with what the head leaves; one plan for each event."""
        if self._joint is None:
            return
        self._events = 0
        tokens, index = self._tokens, self._index
        index.wake(tokens.freed)
        tokens.freed.clear()
        for _ in range(events):
            groups, candidates = self._candidates(self._reservation.unit if self._reservation is not None else None)
            if candidates:
                for unit, chain in self._joint.plan(candidates, self._queue, tokens.left):
                    launch(unit, chain)
            self._park_rest(groups)
            if len(candidates) < MAX_TOGETHER:
                break

    def _candidates(self, excluded: ChunkUnit | None) -> tuple[list[UnitGroup], list[tuple[ChunkUnit, int]]]:
        """The groups that are worth a try, and the chunks to plan of each of their units except `excluded`."""
        groups, candidates = list[UnitGroup](), list[tuple[ChunkUnit, int]]()
        while len(candidates) < MAX_TOGETHER and (group := self._index.pop()) is not None:
            groups.append(group)
            limit = MAX_TOGETHER if group.own is None else self._free_tokens(group.own)
            candidates += [(unit, min(limit, unit.waiting)) for unit in group.units(limit) if unit is not excluded]
        return groups, candidates

    def _free_tokens(self, key: Key) -> int:
        return int(self._tokens.left.counts(key[0])[key[1]])

    def _park_rest(self, groups: list[UnitGroup]) -> None:
        """Park the remaining units of these groups until tokens are freed: a plan was tried."""
        classes = dict[RequestClass, list[UnitGroup]]()
        for group in groups:
            classes.setdefault(group.request_class, []).append(group)
        for request_class, aside in classes.items():
            last = next((first for group in aside if (first := group.first()) is not None), None)
            self._set_back(aside)
            if last is not None and not request_class.awake:
                self._index.sleep(request_class, last)

    def _invalidate_plan(self) -> None:
        if self._joint is not None:
            self._joint.invalidate()

    @property
    def reservation(self) -> tuple[str, HostChain | None] | None:
        """The name of the job with the reservation, and the reserved chain."""
        return None if self._reservation is None else (self._reservation.unit.job.name, self._reservation.chain)

    def _head(self) -> ChunkUnit | None:
        job = self._queue.first
        return None if job is None else job.next_unit()

    def _head_may_start(self) -> bool:
        """Whether something changed for the head: another head, a free token, or all that it was owed."""
        held = self._reservation
        return held is None or bool(self._tokens.freed) or not self._tokens.owed or held.unit is not self._head()

    def _serve(self, unit: ChunkUnit) -> HostChain | None:
        """A chain for the head, or None: then its reservation stands (or the unit is unreachable)."""
        tokens, held = self._tokens, self._reservation
        if held is not None and held.unit is not unit:
            self._cancel_reservation()
            held = None
        if held is not None:
            if held.chain is not None and not tokens.owed:
                self._reservation = None
                return held.chain
            tokens.release(held.keys, for_good=False)
        if unit.own is not None and not tokens.free(unit.own):
            if not tokens.whole.counts(unit.own[0])[unit.own[1]]:
                self._reservation = None
                self._set_unreachable(unit)
                return None
            keys = held.keys if held is not None else (unit.own,)
            tokens.hold(keys)
            self._reservation = held or _Reservation(unit, None, keys)
            return None
        chain = tokens.chain(self._planner, unit.request, self._random)
        if chain is not None:
            if held is not None:  # the rest of its reservation is free for others
                tokens.freed.update(key for key in held.keys if tokens.free(key))
            self._reservation = None
            return chain
        if held is not None and held.chain is not None:
            tokens.hold(held.keys)
            return None
        self._reservation = None
        return self._reserve(unit)

    def _reserve(self, unit: ChunkUnit) -> HostChain | None:
        """Reserve a chain that is not free yet; return it if no token of it is missing."""
        chain = self._future_chain(unit)
        if chain is None:
            self._set_unreachable(unit)
            return None
        keys = tuple(demands(chain))
        self._tokens.hold(keys)
        if not self._tokens.owed:
            return chain
        self._reservation = _Reservation(unit, chain, keys)
        return None

    def _future_chain(self, unit: ChunkUnit) -> HostChain | None:
        """A chain in the network with free links, else with nothing in flight."""
        tokens = self._tokens
        seems_unreachable = self._unreachable_counts.get(self._index.class_key(unit), 0) >= _TRIES_CLASS
        for request in ways(unit):  # waiting is better than a chain through a suspect
            for residual, tries in ((tokens.soon, _TRIES_SOON), (tokens.whole, 1 if seems_unreachable else TRIES)):
                chain = search(self._planner, request, residual, self._random, tries)
                if chain is not None:
                    residual.give(chain)
                    return chain
        return None

    def _cancel_reservation(self) -> None:
        """Cancel the reservation; its tokens are free for others."""
        if self._reservation is not None:
            self._tokens.release(self._reservation.keys)
            self._reservation = None

    def _set_unreachable(self, unit: ChunkUnit) -> None:
        if unit.own is not None and self._tokens.free(unit.own):  # the token may have been held for this unit
            self._tokens.freed.add(unit.own)
        self._unreachable.add(unit)
        key = self._index.class_key(unit)
        if len(self._unreachable_counts) >= _MAX_UNREACHABLE_CLASSES:
            self._unreachable_counts.clear()
        self._unreachable_counts[key] = self._unreachable_counts.get(key, 0) + 1

    def _backfill(self, launch: Launch, tries: int) -> None:
        """Start chunks behind the head, in order, with the tokens that the head leaves, until `tries` searches fail."""
        tokens, index = self._tokens, self._index
        index.wake(tokens.freed)
        rack_of = tokens.topology.rack_of
        touched = {rack_of[number] for resource, number in tokens.freed if resource is not Resource.LINK}
        tokens.freed.clear()
        head = self._reservation.unit if self._reservation is not None else None
        vain = dict[RequestClass, list[UnitGroup]]()
        while tries > 0 and (group := index.pop()) is not None:
            unit, chain = group.first(), None
            if unit is not None and unit is not head:
                chain = tokens.chain(self._planner, unit.request, self._random)
                if chain is None:
                    writer = unit.request.writer
                    tries -= 1 if writer < 0 or rack_of[writer] in touched else _COST_UNTOUCHED
            if unit is not None and chain is not None:
                launch(unit, chain)
                index.ready(group)
                continue
            aside = vain.setdefault(group.request_class, [])
            aside.append(group)
            if unit is not None and len(aside) == self._tries_of(unit):
                self._set_back(aside)
                index.sleep(group.request_class, unit)
        for request_class, aside in vain.items():
            last = aside[-1].first() if aside else None
            self._set_back(aside)
            if last is not None and not request_class.awake:
                index.sleep(request_class, last)

    def _tries_of(self, unit: ChunkUnit) -> int:
        """The number of units of this unit's class that are worth a try at one event."""
        topology, writer = self._tokens.topology, unit.request.writer
        small = writer < 0 or len(topology.members[topology.rack_of[writer]]) <= _RACK_SMALL
        return _TRIES_CLASS_SMALL if small else _TRIES_CLASS

    def _set_back(self, groups: list[UnitGroup]) -> None:
        for group in groups:
            self._index.put_back(group)
        groups.clear()
