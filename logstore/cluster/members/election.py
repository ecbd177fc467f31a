"""Which hosts should hold a stream's chunks, and when a host claims a stream whose owner is gone; no I/O, no clock of
its own. Who should own it, `logstore.cluster.members.deal` says.

Invariants:
* Safety never depends on what is decided here: a claim is a swap, and two hosts that claim at once are told apart by it
  (`logstore.replica.owner`). An order only saves work.
* Every host computes the same order from the same members, without asking. Orders are by rendezvous hash, so a host
  that comes or goes moves only what it has, and streams spread in proportion to what hosts' disks take.
"""

from collections.abc import Container, Mapping
from functools import lru_cache
from hashlib import blake2b
from math import log
from typing import Final

from logstore.base.metadata import schema
from logstore.replica.registrations import Member, StreamHead

CLAIM_STEP_MS: Final = 300
"""Between the claims of two hosts: a claim that succeeds is seen by all in less."""
MAX_WAIT_MS: Final = 5_000
"""For one host in front: it claims some hundred streams in a second, and may be stuck with one of them."""
MAX_WAIT_STEPS: Final = 3
KEPT_SCORES: Final = 1 << 16
"""An order of hosts is asked for again and again while a stream waits for an owner: 10 MB at most."""
MIN_COPIES_SETTING: Final = "min.insync.replicas"


def preferred(stream: str, hosts: Mapping[str, schema.StoredMember]) -> list[str]:
    """Hosts in an order of their own for each stream: first in as many as is in proportion to their disks."""
    rates = disk_rates(hosts)
    return sorted(hosts, key=lambda host: (hash_score(stream, host) / rates[host], host))


def disk_rates(hosts: Mapping[str, schema.StoredMember]) -> dict[str, float]:
    """What each host's disk takes, in bytes per second; a host that does not say counts as the middle one of the rest,
    and as 1 if none says.
    """
    known = sorted(member.disk_rate for member in hosts.values() if member.disk_rate)
    middle = known[len(known) // 2] if known else 1
    return {host: float(member.disk_rate or middle) for host, member in hosts.items()}


@lru_cache(maxsize=KEPT_SCORES)
def hash_score(stream: str, host: str) -> float:
    """A time of an exponential distribution: the smallest one, each divided by a rate, is a host's as often as is in
    proportion to the rates (weighted rendezvous hashing).
    """
    drawn = int.from_bytes(blake2b(f"{stream}@{host}".encode(), digest_size=8).digest(), "big")
    return -log((drawn + 1) / (1 << 64))


def holders(head: StreamHead | None, live: Mapping[str, schema.StoredMember]) -> set[str]:
    """The members of the open chunk that live, each on its disk."""
    chunk = head.open_chunk if head is not None else None
    members = chunk.members if chunk is not None else ()
    return {member.host for member in members if member.host in live and live[member.host].disk == member.disk}


def hash_order(
    stream: str,
    head: StreamHead | None,
    live: Mapping[str, schema.StoredMember],
    leaving: Container[str] = frozenset(),
) -> list[str]:
    """The hosts in the order in which those of earlier versions claim a stream: a host that comes first claims it.

    The members of the open chunk come first, each on its disk, then all others; behind all of them those that leave.
    """
    holding = holders(head, live)
    return sorted(preferred(stream, live), key=lambda host: (host in leaving, host not in holding))


def is_owner_gone(head: StreamHead | None, live: Mapping[str, schema.StoredMember]) -> bool:
    """Whether the stream has no owner that lives: never had one, its lease has ended, or it has started anew."""
    if head is None:
        return True
    owner = live.get(head.owner.host)
    return owner is None or owner.start != head.owner.start


def placement(stream: str, me: str, live: Mapping[str, schema.StoredMember]) -> tuple[Member, ...]:
    """The members in the order in which the stream's replica sets should prefer them: this host first, then such that
    the first ones lie in as many racks as possible.
    """
    order = sorted(preferred(stream, live), key=lambda host: host != me)
    chosen: list[str] = []
    used: set[str] = set()
    while order:
        host = next((host for host in order if live[host].rack not in used or not live[host].rack), None)
        if host is None:
            used.clear()
            continue
        order.remove(host)
        chosen.append(host)
        used.add(live[host].rack)
    return tuple(Member(host, live[host].disk) for host in chosen)


def min_copies(topic: schema.StoredTopic) -> int:
    """Without that many live hosts a chunk of the topic is not opened: `min.insync.replicas`, at most the replicas.
    If it is not set: half of the replicas, rounded up, of which a cluster that never had so many hosts has one each.
    """
    text = topic.settings.get(MIN_COPIES_SETTING, "")
    is_set = text.isascii() and text.isdigit()
    wanted = int(text) if is_set else default_min_copies(topic.replicas, topic.hosts or topic.replicas)
    return max(1, min(wanted, topic.replicas))


def default_min_copies(replicas: int, hosts: int) -> int:
    """Half of the replicas that a cluster which has had so many hosts can have, rounded up."""
    return (min(replicas, hosts) + 1) // 2


class Vacancies:
    """The streams that have no owner that lives, as one host sees them, and when it should claim which of them.

    A host that is not the first one for a stream waits its time from the last claim of any stream on: who claims many
    is at work. Not longer than MAX_WAIT_MS or MAX_WAIT_STEPS, though.

    Memory: an entry for each such stream.
    """

    def __init__(self) -> None:
        self._since_ms: dict[str, int] = {}
        self._claimed_ms = 0

    def __len__(self) -> int:
        return len(self._since_ms)

    def set(self, stream: str, *, is_vacant: bool, now_ms: int) -> None:
        """What is known of a stream now."""
        if is_vacant:
            self._since_ms.setdefault(stream, now_ms)
        elif self._since_ms.pop(stream, None) is not None:
            self._claimed_ms = now_ms

    def __contains__(self, stream: str) -> bool:
        return stream in self._since_ms

    def streams(self) -> list[str]:
        """The streams, those first that have had no owner for longest."""
        return list(self._since_ms)

    def is_due(self, stream: str, rank: int | None, now_ms: int, step_ms: int = CLAIM_STEP_MS) -> bool:
        """Whether to claim a stream now. `rank`: how many hosts should claim it before, None if this one must not;
        `step_ms`: the time for each of them.
        """
        since_ms = self._since_ms.get(stream)
        return since_ms is not None and rank is not None and self._is_due(rank, since_ms, now_ms, step_ms)

    def _is_due(self, rank: int, since_ms: int, now_ms: int, step_ms: int) -> bool:
        waited_ms = now_ms - max(since_ms, self._claimed_ms)
        longest_ms = max(MAX_WAIT_MS, MAX_WAIT_STEPS * step_ms)
        return rank == 0 or waited_ms >= rank * step_ms or now_ms - since_ms >= rank * longest_ms
