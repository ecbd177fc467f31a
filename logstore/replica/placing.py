"""Where the chunks of a stream may lie: which hosts leave, and which members join a replica set. Decided by the host.

Invariants: what is decided here is never needed for safety. Two placings are equal if the same hosts leave, the same
are awaited and copies may be spread in both: how members are chosen changes no chunk that there is.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from logstore.replica.registrations import Member
from logstore.replica.spreading import MeasureCrowding, never_crowded


class Choose(Protocol):
    """Chooses members that join those that are held, `count` of the candidates or all; candidates come in an order of
    preference. `is_new`: for a new chunk of the stream, not for a copy of an old one.
    """

    def __call__(
        self, stream: str, candidates: Sequence[Member], held: Sequence[Member], count: int, *, is_new: bool
    ) -> tuple[Member, ...]:
        """The members that join."""


def first_ones(  # one of the ways to choose, and the simplest
    stream: str,  # noqa: ARG001
    candidates: Sequence[Member],
    held: Sequence[Member],  # noqa: ARG001
    count: int,
    *,
    is_new: bool,  # noqa: ARG001
) -> tuple[Member, ...]:
    """The first candidates: see Choose."""
    return tuple(candidates[:count])


class NextSet(NamedTuple):
    """Who may be in the set of a stream's next chunk, and how many members it is to have: the owner's own member,
    others that stay, and those that leave.
    """

    own: tuple[Member, ...]
    staying: tuple[Member, ...]
    leaving: tuple[Member, ...]
    size: int

    def is_better_than(self, members: Collection[Member]) -> bool:
        """Whether it has more members than these, or as many without one that leaves."""
        if self.size != len(members):
            return self.size > len(members)
        return len(self.own) + len(self.staying) >= len(members) and any(member in self.leaving for member in members)


@dataclass(frozen=True, slots=True)
class Placing:
    """See the module. `leaving`: hosts that are to hold nothing any more; `removed`: those of them that are gone for
    good. `awaited`: hosts that have gone a moment ago; `is_beginning`: this host has begun a moment ago, so any host
    that is not there may be. `is_steady`: the same hosts have lived for a while, so copies that lie too close together
    may move; never so where no hosts have different fault domains.
    """

    leaving: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    choose: Choose = field(default=first_ones, compare=False)
    awaited: frozenset[str] = frozenset()
    is_beginning: bool = False
    crowding: MeasureCrowding = field(default=never_crowded, compare=False)
    is_steady: bool = False

    @property
    def may_await(self) -> bool:
        """Whether any host is awaited."""
        return bool(self.awaited) or self.is_beginning

    def awaits(self, host: str) -> bool:
        """Whether a host that does not live may be back in a moment, with what it had."""
        return (self.is_beginning or host in self.awaited) and host not in self.leaving

    def staying(self, members: Iterable[Member]) -> tuple[Member, ...]:
        """Those of the members that do not leave."""
        return tuple(member for member in members if member.host not in self.leaving)

    def next_set(
        self, me: str, live: Iterable[Member], usable: Iterable[Member], copies: int, min_copies: int
    ) -> NextSet:
        """What the next chunk of a stream of this host's may lie on: one member for each host, in the order given.

        A host that leaves stands in where fewer hosts stay than there are to be copies. For one that stays and is not
        usable now it stands in only if there were fewer than `min_copies` members without it: what has failed for a
        moment does not keep a host that is drained. What fails again and again is not among `live`.
        """
        by_host: dict[str, Member] = {}
        for member in usable:
            by_host.setdefault(member.host, member)
        own = tuple(member for member in by_host.values() if member.host == me)
        others = [member for member in by_host.values() if member.host != me]
        staying = self.staying(others) if self.leaving else tuple(others)
        leaving = tuple(member for member in others if member.host in self.leaving)
        kept = len(own) + len(staying)
        least = min_copies
        if leaving and len({me} | {member.host for member in self.staying(live)}) < copies:
            least = copies
        return NextSet(own, staying, leaving, max(min(copies, kept), min(least, kept + len(leaving))))

    def members(self, stream: str, following: NextSet) -> tuple[Member, ...]:
        """The members of the next chunk: this host first, hosts that leave last."""
        own, staying, leaving, size = following
        joining = self.choose(stream, staying, own, min(size - len(own), len(staying)), is_new=True)
        return (*own, *joining, *leaving)[:size]


ANYWHERE = Placing()
