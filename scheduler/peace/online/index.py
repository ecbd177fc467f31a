"""An index of the waiting units by resource: an event wakes only the units that can use the tokens it freed.

A *unit*'s chunks are interchangeable. A *group* holds the units that have the same writer, placement, hosts to avoid
and sources: only its first unit is worth a try. A *class* holds the groups that a planner treats alike but for the
writer (same rack, same placement): if two of its writers find no path, the others are not tried until tokens are freed.
A group whose own resource (its writer's sending side, mostly) is used up is *parked* on it; a class that cannot leave
its rack is parked on the rack's links, a class that finds no host in its rack on the rack, a class whose sources are
all busy on these sources.

Invariants:
* A unit with waiting chunks is in one group; a group is ready in its class, or parked, or set aside by the caller.
* A class with a ready group has one valid place: in `awake`, in `asleep`, or parked.
* Entries of heaps are dropped late: an entry is valid only with its owner's last stamp. The entries of units that no
  longer wait are bounded by TIDY_AFTER and twice the number of waiting units.
"""

from collections.abc import Collection, Hashable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.peace.online.jobs import ChunkUnit, Rank
from scheduler.peace.online.tokens import Key, Tokens
from scheduler.peace.placement import PlacementRule, Relation
from scheduler.peace.plan import Request, Resource, TransferKind

_LEAVE = frozenset({PlacementRule(Relation.OTHER_RACK, 0)})
_STAY = PlacementRule(Relation.SAME_RACK, 0)
TIDY_AFTER = 256

Order = tuple[Rank, int]
"""The order in which units are served: the job's rank, then the unit's first chunk."""


def order_of(unit: ChunkUnit) -> Order:
    """The unit's place in the order of service."""
    return unit.job.rank, unit.first


class UnitGroup:
    """Units that a planner treats alike, in the order of service."""

    __slots__ = ("_units", "key", "own", "ready", "request_class", "stamp")

    def __init__(self, key: Hashable, own: Key | None, request_class: "RequestClass") -> None:
        self.key = key
        self.own = own
        self.request_class = request_class
        self.ready = False
        self.stamp = 0
        self._units: list[tuple[Order, int, ChunkUnit]] = []

    def push(self, unit: ChunkUnit, number: int) -> None:
        """Add a unit that has chunks waiting."""
        unit.group = self
        heappush(self._units, (order_of(unit), number, unit))

    def first(self) -> ChunkUnit | None:
        """The first unit that still waits."""
        units = self._units
        while units:
            unit = units[0][2]
            if unit.group is self and unit.waiting:
                return unit
            heappop(units)
            if unit.group is self:
                unit.group = None
        return None

    def units(self, chunks: int) -> list[ChunkUnit]:
        """The first units that still wait, in order, until they have `chunks` chunks together."""
        found: list[ChunkUnit] = []
        first = self.first()
        if first is None or first.waiting >= chunks or len(self._units) == 1:
            return found if first is None else [first]
        for _, _, unit in sorted(self._units, key=lambda each: each[:2]):
            if chunks > 0 and unit.group is self and unit.waiting:
                found.append(unit)
                chunks -= unit.waiting
        return found

    def tidy(self) -> int:
        """Drop the units that no longer wait; returns the number of the others."""
        self._units[:] = [each for each in self._units if each[2].group is self and each[2].waiting]
        heapify(self._units)
        return len(self._units)


class RequestClass:
    """Groups that a planner treats alike but for the writer."""

    __slots__ = ("groups", "key", "members", "order", "parked", "stamp", "where")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.groups: list[tuple[Order, int, int, UnitGroup]] = []  # a heap
        self.members = 0
        self.stamp = 0
        self.where: list[Any] | None = None
        """The heap that holds its valid entry, which stands at `order`."""
        self.order: Order = ((0, 0), 0)
        self.parked = False

    @property
    def awake(self) -> bool:
        """Whether it has a place in a heap."""
        return self.where is not None


class Index:
    """The waiting units by the resources they wait for."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._groups: dict[Hashable, UnitGroup] = {}
        self._classes: dict[Hashable, RequestClass] = {}
        self._awake: list[tuple[Order, int, int, RequestClass]] = []
        self._asleep: list[tuple[Order, int, int, RequestClass]] = []
        self._parked_groups: dict[Key, list[UnitGroup]] = {}
        self._parked_classes: dict[Hashable, list[tuple[int, RequestClass]]] = {}
        self._members: dict[int, npt.NDArray[np.int64]] = {}
        self._number = 0
        self._gone, self._tidy_after = 0, TIDY_AFTER

    def add(self, unit: ChunkUnit) -> None:
        """Note that a unit has chunks waiting (again)."""
        if unit.group is not None:
            return
        group = self._groups.get(unit.key)
        if group is None:
            key = self.class_key(unit)
            request_class = self._classes.get(key)
            if request_class is None:
                request_class = self._classes[key] = RequestClass(key)
            request_class.members += 1
            group = self._groups[unit.key] = UnitGroup(unit.key, unit.own, request_class)
        front = group.first()
        self._number += 1
        group.push(unit, self._number)
        if front is None or (group.ready and order_of(unit) < order_of(front)):
            self.ready(group)

    def remove(self, units: Iterable[ChunkUnit]) -> None:
        """Note that these units no longer wait."""
        for unit in units:
            unit.group = None
            self._gone += 1
        if self._gone > self._tidy_after:
            self._tidy()

    def wake(self, freed: Collection[Key]) -> None:
        """Tokens of these resources are free: those that wait for them are worth a try, and those that wait for any."""
        if freed and not self._next_awake():  # else some have not had their turn since they were woken
            self._awake, self._asleep = self._asleep, self._awake
        for key in freed:
            for group in self._parked_groups.pop(key, ()):
                self.ready(group)
            self._unpark(key)
            if key[0] is not Resource.LINK:
                self._unpark(self._tokens.topology.rack_of[key[1]])

    def ready(self, group: UnitGroup) -> None:
        """Note that the group is worth a try, and so is its class."""
        first = group.first()
        if first is None:
            self._forget(group)
            return
        self._push(group, first)
        self._rouse(group.request_class)

    def put_back(self, group: UnitGroup) -> None:
        """Undo `pop`: the group is ready, but nothing new makes it worth a try."""
        first = group.first()
        if first is None:
            self._forget(group)
        else:
            self._push(group, first)

    def pop(self) -> UnitGroup | None:
        """Take out the first group, in the order of service, that is worth a try; None: there is none.

        The caller hands it to `ready`, or keeps it aside for a while and hands it to `put_back`.
        """
        while (request_class := self._next_awake()) is not None:
            group = self._next_ready(request_class)
            if group is None:
                heappop(self._awake)
                request_class.where = None
                request_class.stamp += 1
                continue
            unit = group.first()
            order = heappop(request_class.groups)[0]
            if unit is None:
                self._forget(group)
            elif group.own is not None and not self._tokens.free(group.own):
                group.ready = False
                self._parked_groups.setdefault(group.own, []).append(group)
            elif order_of(unit) != order:  # its first is not what it was
                self._push(group, unit)
            elif order != request_class.order:
                self._push(group, unit)
                self._enter(request_class, self._awake, order)
            else:
                group.ready = False
                return group
        return None

    def sleep(self, request_class: RequestClass, unit: ChunkUnit) -> None:
        """`unit` and so its class found no path: until tokens are freed, or just those that it lacks."""
        cut = self._cut(unit)
        if not cut:
            self._enter(request_class, self._asleep, order_of(unit))
            return
        request_class.where = None
        request_class.parked = True
        request_class.stamp += 1
        for key in cut:
            waiting = self._parked_classes.setdefault(key, [])
            if len(waiting) > 2 * len(self._classes):  # mostly stale
                waiting[:] = [(stamp, other) for stamp, other in waiting if other.stamp == stamp]
            waiting.append((request_class.stamp, request_class))

    def class_key(self, unit: ChunkUnit) -> Hashable:
        """The key of a unit's class."""
        request = unit.request
        if request.kind is not TransferKind.WRITE:
            return unit.key
        return self._tokens.topology.rack_of[request.writer], request.placement, request.avoid

    def _tidy(self) -> None:
        """Drop units that no longer wait: while a chunk that they waited for hangs, no event reaches them."""
        waiting = 0
        for group in list(self._groups.values()):
            waiting += group.tidy()
            if group.first() is None:
                self._forget(group)
        for request_class in self._classes.values():
            request_class.groups[:] = [
                each for each in request_class.groups if each[3].ready and each[2] == each[3].stamp
            ]
            heapify(request_class.groups)
        for heap in (self._awake, self._asleep):
            heap[:] = [each for each in heap if each[2] == each[3].stamp]
            heapify(heap)
        for key, groups in list(self._parked_groups.items()):
            known = [group for group in dict.fromkeys(groups) if self._groups.get(group.key) is group]
            self._parked_groups[key] = [group for group in known if not group.ready]
        for where, classes in list(self._parked_classes.items()):
            self._parked_classes[where] = [each for each in classes if each[0] == each[1].stamp]
        self._gone, self._tidy_after = 0, TIDY_AFTER + 2 * waiting

    def _unpark(self, key: Hashable) -> None:
        """The classes parked on this resource, or rack, are worth a try."""
        for stamp, request_class in self._parked_classes.pop(key, ()):
            if request_class.stamp == stamp:
                request_class.parked = False
                self._rouse(request_class)

    def _push(self, group: UnitGroup, first: ChunkUnit) -> None:
        group.ready = True
        group.stamp += 1
        self._number += 1
        heappush(group.request_class.groups, (order_of(first), self._number, group.stamp, group))

    def _rouse(self, request_class: RequestClass) -> None:
        if request_class.parked or self._next_ready(request_class) is None:
            return
        order = request_class.groups[0][0]
        if request_class.where is not self._awake or order < request_class.order:
            self._enter(request_class, self._awake, order)

    def _enter(
        self, request_class: RequestClass, heap: list[tuple[Order, int, int, RequestClass]], order: Order
    ) -> None:
        request_class.stamp += 1
        request_class.where = heap
        request_class.order = order
        self._number += 1
        heappush(heap, (order, self._number, request_class.stamp, request_class))

    def _next_awake(self) -> RequestClass | None:
        awake = self._awake
        while awake:
            _, _, stamp, request_class = awake[0]
            if request_class.stamp == stamp:
                return request_class
            heappop(awake)
        return None

    @staticmethod
    def _next_ready(request_class: RequestClass) -> UnitGroup | None:
        groups = request_class.groups
        while groups:
            _, _, stamp, group = groups[0]
            if group.ready and group.stamp == stamp:
                return group
            heappop(groups)
        return None

    def _forget(self, group: UnitGroup) -> None:
        """Remove a group without units, and its class if this was its last group."""
        group.ready = False
        if self._groups.get(group.key) is group:
            del self._groups[group.key]
            request_class = group.request_class
            request_class.members -= 1
            if not request_class.members:
                request_class.stamp += 1
                self._classes.pop(request_class.key, None)

    def _cut_of_rack(self, request: Request) -> tuple[Hashable, ...]:
        """For a write: the links out of its rack, or the rack, if none of its hosts can take the first replica."""
        topology, left = self._tokens.topology, self._tokens.left
        rack = topology.rack_of[request.writer]
        if not _LEAVE.isdisjoint(rule for each in request.placement for rule in each):
            keys: tuple[Key, ...] = tuple((Resource.LINK, hop.link) for hop in topology.hops[rack])
            if not any(map(self._tokens.free, keys)):
                return keys
        if _STAY in request.placement[0]:
            members = self._members.get(rack)
            if members is None:
                members = self._members[rack] = np.array(topology.members[rack])
            able = (left.receive[members] > 0) & (left.disk[members] > 0)
            if len(request.placement) > 1:
                able &= left.send[members] > 0
            if not able.any():
                return (rack,)
        return ()

    def _cut(self, unit: ChunkUnit) -> tuple[Hashable, ...]:
        """Resources without tokens such that no chain is possible before one of them is freed; () if none is seen."""
        request, tokens = unit.request, self._tokens
        keys: list[Key] = []
        if request.kind is TransferKind.WRITE:
            return self._cut_of_rack(request)
        for source in unit.sources:
            key: Key = (Resource.DISK, source)
            if tokens.free(key):
                key = (Resource.SEND, source)
                if tokens.free(key) or source == request.writer:
                    return ()
            keys.append(key)
        return tuple(keys)
