"""The plan of copies, as the host that coordinates them has it: wishes of all hosts in, goes out. No I/O, no clock.

Hosts say again and again which copies their streams wish for and which they make (`heard`); a `CopyPlanner` says which
of them may begin. The plan is nothing but that: what a host does not say any more is forgotten, what it makes without
a go of this plan counts as a go of it. So a coordinator that begins with a few goes, or with none, has the whole plan
as soon as it has heard every host once.

Invariants:
* A stream has one wish, of the host that spoke last for it.
* What hosts make without a go of this plan, such as small chunks that share one
  (`logstore.replica.copy_tokens`), counts like a go.
* A go lasts until its owner says that it neither makes nor wishes for that copy, or has said nothing for SILENT_MS.
* What cannot be planned for UNPLANNED_MS, because a host is not known here, has a go without tokens: the owner knows
  better, and a plan holds nobody up.
* When hosts come, go or move, the planner is made anew, with the goes that there are and the wishes in their order. So
  it is when streams share a go, but then no more often than takes a tenth of the time or so: every wish is asked again.
  In between nothing begins. A stream that goes on with its next chunk takes the tokens that it had.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import Final, NamedTuple

from logstore.cluster.interfaces import CopyPlanner, PlanCopies
from logstore.replica.copy_tokens import CopyGo, CopyWish

SILENT_MS: Final = 10_000
"""A host that wishes for copies, or makes some, speaks every second."""
UNPLANNED_MS: Final = 10_000
WISHES_A_MS: Final = 2
"""A planner stays for a millisecond for so many wishes: to ask for one takes 40 to 80 microseconds."""
Places = Mapping[str, tuple[tuple[str, ...], float]]
Rates = Mapping[tuple[str, ...], float]


class Going(NamedTuple):
    """A go, and the host that has it: the owner of the stream."""

    owner: str
    stream: str
    go: CopyGo


class _AskedCopy(NamedTuple):
    owner: str
    wish: CopyWish
    since_ms: int


class CopyPlan:
    """See the module. `going`: goes that a former coordinator has given. `move` comes before anything else."""

    def __init__(self, plan_copies: PlanCopies, random: Random, going: Iterable[Going], now_ms: int) -> None:
        self._plan_copies = plan_copies
        self._random = random
        self._going: dict[str, Going] = {each.stream: each for each in going}
        self._asked: dict[str, _AskedCopy] = {}
        self._planned: set[str] = set()
        """Streams whose wishes the planner knows."""
        self._places: Places = {}
        self._links: Rates = {}
        self._planner: CopyPlanner | None = None
        """None: no hosts are known, or it is to be made anew."""
        self._made_ms = now_ms
        self._heard_ms: dict[str, int] = dict.fromkeys({each.owner for each in self._going.values()}, now_ms)

    # ---- what there is

    @property
    def goes(self) -> tuple[Going, ...]:
        """All goes."""
        return tuple(self._going.values())

    @property
    def counts(self) -> tuple[int, int]:
        """How many copies have a go, and how many wait."""
        return len(self._going), len(self._asked)

    def elsewhere(self, owner: str) -> dict[str, int]:
        """How many copies each host is to get by the wishes and goes of all hosts but one."""
        found = Counter(each.go.target for each in self._going.values() if each.owner != owner)
        found.update(asked.wish.target for asked in self._asked.values() if asked.owner != owner)
        return dict(found)

    # ---- events

    def move(self, places: Places, links: Rates, now_ms: int) -> None:
        """The hosts that live, where they are, what their disks take, and the links into domains."""
        self._places, self._links = places, links
        self._anew(now_ms)

    def heard(self, owner: str, wishes: Mapping[str, CopyWish], held: Mapping[str, CopyGo], now_ms: int) -> None:
        """All that a host wishes for and makes now."""
        self._heard_ms[owner] = now_ms
        gone = [stream for stream in self._streams_of(owner) if stream not in held and stream not in wishes]
        made = [Going(owner, stream, go) for stream, go in held.items()]
        adopted = [going for going in made if not self._goes_on(going)]
        if adopted:  # what is made without a go of this plan takes tokens too: all are counted before another begins
            for stream in (*gone, *(going.stream for going in adopted)):
                self._drop(stream)
            self._planner = None
        else:
            for stream in gone:
                self._forget(stream, now_ms)
        self._going.update({going.stream: going for going in made})
        for stream, wish in wishes.items():
            self._wish(owner, stream, wish, now_ms)
        if self._planner is None and now_ms - self._made_ms >= len(self._asked) // WISHES_A_MS:
            self._anew(now_ms)

    def tick(self, now_ms: int) -> None:
        """Forget hosts that say nothing any more; ask again for what could not be planned, or let it begin."""
        for owner in [owner for owner, heard_ms in self._heard_ms.items() if now_ms - heard_ms >= SILENT_MS]:
            del self._heard_ms[owner]
            for stream in self._streams_of(owner):
                self._forget(stream, now_ms)
        if self._planner is None:
            self._anew(now_ms)
        for stream, asked in [each for each in self._asked.items() if each[0] not in self._planned]:
            self._ask(stream, now_ms)
            if stream in self._asked and stream not in self._planned and now_ms - asked.since_ms >= UNPLANNED_MS:
                self._start([(stream, asked.wish.target, asked.wish.sources[0])])

    # ---- goes and wishes

    def _goes_on(self, going: Going) -> bool:
        """Whether a stream has a go that takes the same tokens: of this chunk, or of the one that it had before."""
        known = self._going.get(going.stream)
        return known is not None and known.owner == going.owner and known.go[1:] == going.go[1:]

    def _streams_of(self, owner: str) -> list[str]:
        going = [stream for stream, each in self._going.items() if each.owner == owner]
        return [*going, *(stream for stream, asked in self._asked.items() if asked.owner == owner)]

    def _wish(self, owner: str, stream: str, wish: CopyWish, now_ms: int) -> None:
        asked, going = self._asked.get(stream), self._going.get(stream)
        if asked is not None and asked[:2] == (owner, wish):
            return
        if going is not None and going.owner == owner and _fits(going.go, wish):
            return
        self._forget(stream, now_ms)
        self._asked[stream] = _AskedCopy(owner, wish, now_ms)
        self._ask(stream, now_ms)

    def _ask(self, stream: str, now_ms: int) -> None:
        asked = self._asked.get(stream)
        if self._planner is None or asked is None:
            return
        wish = asked.wish
        started = self._planner.ask(stream, wish.target, wish.sources, wish.live, now_ms, is_move=wish.is_move)
        if started is not None:
            self._planned.add(stream)
            self._start(started)

    def _start(self, started: Iterable[tuple[str, str, str]]) -> None:
        for stream, target, source in started:
            asked = self._asked.pop(stream, None)
            self._planned.discard(stream)
            if asked is not None:
                self._going[stream] = Going(asked.owner, stream, CopyGo(asked.wish.epoch, target, source))

    def _drop(self, stream: str) -> bool:
        """Whether the planner knows what is dropped."""
        is_known = self._going.pop(stream, None) is not None or stream in self._planned
        self._asked.pop(stream, None)
        self._planned.discard(stream)
        return is_known

    def _forget(self, stream: str, now_ms: int) -> None:
        is_known = self._drop(stream)
        if is_known and self._planner is not None:
            self._start(self._planner.end(stream, now_ms))

    def _anew(self, now_ms: int) -> None:
        """A new planner, for the hosts that there are."""
        self._made_ms = now_ms
        if not self._places:
            self._planner = None
            return
        self._planned.clear()
        self._planner = self._plan_copies(self._places, self._links, self._under_way(), self._random, now_ms)
        for stream in list(self._asked):
            self._ask(stream, now_ms)

    def _under_way(self) -> Iterator[tuple[str, str, str]]:
        for stream, (_, _, go) in self._going.items():
            if go.source:
                yield stream, go.target, go.source


def _fits(go: CopyGo, wish: CopyWish) -> bool:
    return (go.epoch, go.target) == (wish.epoch, wish.target) and go.source in wish.sources
