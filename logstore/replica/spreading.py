"""How far apart the copies of a chunk lie: which of them stay, and which hosts would bring them further apart.

A set of members is *crowded* by as many members as fault domains have beyond their share, the shares being those of a
set that is spread over all hosts that live and stay. A set that is not crowded loses as few copies with a domain as can
be.

Invariants:
* As many members are kept as are asked for, if there are so many. Among equals the first ones are.
* A host is better only if the set, with it and without another member, is strictly less crowded. So while the same
  hosts live a chunk moves at most as often as its set is crowded, and then rests.

Costs: a crowding for each member that might go and each host that might come, some microseconds each.

Sources: SGuard, section 5 (replicas on different racks); HDFS, which copies a mis-replicated block to another rack.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from logstore.replica.registrations import Member

Crowding = Callable[[Iterable[str]], int]
"""How crowded a set of hosts is; 0: its members lie as far apart as they can."""


class MeasureCrowding(Protocol):
    """Gives the crowding of sets of `copies` members, where these hosts may be members."""

    def __call__(self, hosts: Iterable[str], copies: int) -> Crowding:
        """The crowding of any set of them."""


def never_crowded(hosts: Iterable[str], copies: int) -> Crowding:  # noqa: ARG001  of hosts without fault domains
    """See MeasureCrowding."""
    return lambda members: 0


def hosts_of(members: Iterable[Member]) -> list[str]:
    """The hosts of members."""
    return [member.host for member in members]


def least_crowded(members: Sequence[Member], count: int, crowding: Crowding) -> tuple[Member, ...]:
    """So many of the members, or all if there are no more, in their order."""
    left = list(members)
    while len(left) > count:
        without = [crowding(hosts_of((*left[:at], *left[at + 1 :]))) for at in range(len(left))]
        last_best = max(at for at, crowded in enumerate(without) if crowded == min(without))
        del left[last_best]
    return tuple(left)


def better_hosts(members: Sequence[Member], others: Iterable[Member], crowding: Crowding) -> list[Member]:
    """Those of the other members with which, in place of one that is there, the set is strictly less crowded."""
    before = crowding(hosts_of(members))
    if not before:
        return []
    return [
        other
        for other in others
        if crowding(hosts_of(least_crowded((*members, other), len(members), crowding))) < before
    ]
