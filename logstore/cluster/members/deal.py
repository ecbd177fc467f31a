"""Which host should own which stream: streams are dealt so that each host has its share, of each topic and of all.

A hash that gives each stream a host by itself gives three hosts two, none and one of three streams as often as not. So
streams are dealt one after the other, and each goes to the host that has least.

Invariants:
* A host's share is in proportion to what its disk takes. Of each topic a host gets its share, rounded down or up;
  which of the two, what the hosts own in all decides. So of hosts whose disks take as much none owns more than one
  stream more than another, of a topic and of all, as far as all of them can hold them.
* Every host deals alike without asking: from the same counts, in the same order, with ties decided by a hash. A stream
  counts for the host that it was dealt to until it has an owner (`logstore.cluster.claims`): whose claims are seen
  first makes no difference to where the others go.
* A host that holds the last chunk comes before those that do not: it can go on alone. Hosts that leave come last.
* A stream that has an owner moves only where that makes shares more even (`is_better`): each such move brings the
  nearer to an end in which none does. Who moves many makes the moves for the shares of topics first (`of_topic`): most
  of them make those of all streams more even too, so a host that goes or comes moves little besides.
* No I/O, no clock; safety never depends on what is decided here (`logstore.cluster.members.election`).

Costs: memory for an entry of each stream, and of each topic and host that owns something of it.
"""

from collections import Counter
from collections.abc import Collection, Container, Mapping
from math import ceil, floor
from typing import Final, NamedTuple, TypeVar

from logstore.base.metadata import schema
from logstore.cluster.members.election import disk_rates, hash_order, hash_score, holders
from logstore.cluster.members.view import topic_id_of
from logstore.replica.registrations import OwnerId, StreamHead

NOBODY: Final = OwnerId("", "")

K = TypeVar("K")


class OwnedStreams:
    """Which host, in which of its lives, owns each stream or is to own it, and how many each has: of all topics, and of
    each.
    """

    def __init__(self) -> None:
        self._owners: dict[str, OwnerId] = {}
        self._all: Counter[OwnerId] = Counter()
        self._of_topics: Counter[tuple[str, OwnerId]] = Counter()

    def set(self, stream: str, owner: OwnerId | None) -> None:
        """A stream has this owner now, or none."""
        before = self._owners.get(stream)
        if before == owner:
            return
        topic_id = topic_id_of(stream)
        if before is not None:
            del self._owners[stream]
            _take_one(self._all, before)
            _take_one(self._of_topics, (topic_id, before))
        if owner is not None:
            self._owners[stream] = owner
            self._all[owner] += 1
            self._of_topics[topic_id, owner] += 1

    def __len__(self) -> int:
        """How many entries are kept."""
        return len(self._owners) + len(self._all) + len(self._of_topics)

    def owner(self, stream: str) -> OwnerId:
        """Who owns a stream; NOBODY: none does, as far as is known."""
        return self._owners.get(stream, NOBODY)

    def count(self, owner: OwnerId) -> int:
        """How many streams a host owns in this life."""
        return self._all[owner]

    def count_of(self, topic_id: str, owner: OwnerId) -> int:
        """How many of a topic."""
        return self._of_topics[topic_id, owner]


def _take_one(counts: Counter[K], key: K) -> None:
    """One less, and no entry of nothing."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


class _Share(NamedTuple):
    """What a host should own of a topic: its share, rounded down and up."""

    least: int
    most: int

    def excess(self, count: int) -> int:
        """How far so many are away from the share."""
        return max(0, self.least - count, count - self.most)


class Deal:
    """Streams as they are dealt to the hosts that live, on paper: see the module. `leaving`: hosts that get nothing
    that others can have. What changes while streams are dealt does not count.

    `by_hash`: a host that lives claims by the hash alone, so that all do. `keeps_order`: one may, so that a stream that
    has an owner goes only to hosts that come before this by the hash, unless it leaves.
    """

    def __init__(
        self,
        owned: OwnedStreams,
        live: Mapping[str, schema.StoredMember],
        leaving: Container[str] = frozenset(),
        *,
        by_hash: bool = False,
        keeps_order: bool = False,
    ) -> None:
        self._by_hash = by_hash
        self._keeps_order = keeps_order
        self._owned = owned
        self.live = live
        self._leaving = leaving
        self._rates = disk_rates(live)
        self._staying_rate = sum(rate for host, rate in self._rates.items() if host not in leaving)
        self._all = {host: owned.count(OwnerId(host, member.start)) for host, member in live.items()}
        self._of_topics: dict[tuple[str, str], int] = {}
        """How many a host has on paper, by topic id and host: as many as it owned when it was asked for first."""

    def order(self, stream: str, partitions: int, head: StreamHead | None) -> list[str]:
        """The hosts in the order in which they should claim a stream of a topic with so many."""
        if self._by_hash:
            return hash_order(stream, head, self.live, self._leaving)
        return self._sorted(self.live, stream, partitions, holders(head, self.live))

    def better(
        self, stream: str, partitions: int, owner: str, hosts: Collection[str], *, of_topic: bool = False
    ) -> str | None:
        """Which of some hosts should own a stream in place of its owner, who lives; None: none that lives should.
        `of_topic`: only for the shares of its topic.
        """
        able = [host for host in hosts if host in self.live and host not in self._leaving and host != owner]
        able = [host for host in able if self.is_better(stream, partitions, owner, host, of_topic=of_topic)]
        return next(iter(self._sorted(able, stream, partitions, able)), None)

    def is_better(self, stream: str, partitions: int, owner: str, other: str, *, of_topic: bool = False) -> bool:
        """Whether shares are more even if the other host owns a stream: those of its topic, or else those of all."""
        if self._keeps_order and owner not in self._leaving and not self._precedes(stream, other, owner):
            return False
        topic_id = topic_id_of(stream)
        has, gets = self._count_of(topic_id, owner), self._count_of(topic_id, other)
        share, other_share = self._share(owner, partitions), self._share(other, partitions)
        gain = share.excess(has) - share.excess(has - 1) + other_share.excess(gets) - other_share.excess(gets + 1)
        if gain or share.excess(has - 1) > share.excess(has):
            return gain > 0  # not from who would have too little of the topic then, for the sake of all
        return not of_topic and self._evens_all(owner, other)

    def is_uneven(self) -> bool:
        """Whether a stream of some host that moved to another, whatever its topic, would make the shares of all streams
        more even.
        """
        staying = [host for host in self.live if host not in self._leaving]
        return any(self._evens_all(owner, other) for owner in self.live for other in staying if owner != other)

    def _evens_all(self, owner: str, other: str) -> bool:
        return (2 * self._all[other] + 1) * self._rates[owner] < (2 * self._all[owner] - 1) * self._rates[other]

    def give(self, stream: str, host: str, owner: str | None = None) -> None:
        """A host has the stream on paper, which its owner had, if there is one."""
        topic_id = topic_id_of(stream)
        for each, change in ((host, 1), (owner, -1)):
            if each is not None:
                self._of_topics[topic_id, each] = self._count_of(topic_id, each) + change
                self._all[each] += change

    def lives(self, owner: OwnerId) -> bool:
        """Whether an owner is in the life that it owns in."""
        return owner.host in self.live and self.live[owner.host].start == owner.start

    def _count_of(self, topic_id: str, host: str) -> int:
        count = self._of_topics.get((topic_id, host))
        if count is None:
            count = self._owned.count_of(topic_id, OwnerId(host, self.live[host].start))
            self._of_topics[topic_id, host] = count
        return count

    def _share(self, host: str, partitions: int) -> _Share:
        if host in self._leaving or not self._staying_rate:
            return _Share(0, 0)
        exact = partitions * self._rates[host] / self._staying_rate
        return _Share(floor(exact), ceil(exact))

    def _precedes(self, stream: str, host: str, other: str) -> bool:
        return self._hash_place(stream, host) < self._hash_place(stream, other)

    def _hash_place(self, stream: str, host: str) -> tuple[float, str]:
        return hash_score(stream, host) / self._rates[host], host

    def _sorted(self, hosts: Collection[str], stream: str, partitions: int, holding: Container[str]) -> list[str]:
        topic_id = topic_id_of(stream)

        def place(host: str) -> tuple[bool, bool, int, float, float, str]:
            count, share, rate = self._count_of(topic_id, host), self._share(host, partitions), self._rates[host]
            is_enough = (count >= share.least) + (count >= share.most)
            more = (2 * self._all[host] + 1) / rate
            return host in self._leaving, host not in holding, is_enough, more, *self._hash_place(stream, host)

        return sorted(hosts, key=place)
