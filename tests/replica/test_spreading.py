"""Which copies stay, and which hosts bring them further apart."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from logstore.replica.registrations import Member
from logstore.replica.spreading import better_hosts, hosts_of, least_crowded, never_crowded
from scheduler.peace.replica_sets import Place, ReplicaSets

COPIES = 3


def members(*hosts: str) -> list[Member]:
    """Hosts whose first letter is their rack."""
    return [Member(host, f"disk-{host}") for host in hosts]


def places(hosts: list[str]) -> dict[str, Place]:
    """Where they are."""
    return {host: ((host[0],), 1.0) for host in hosts}


@pytest.mark.parametrize(
    ("racks", "held", "better"),
    [
        ("ab", "a1 a2 a3", "b1 b2 b3"),
        ("ab", "a1 a2 b1", ""),
        ("abc", "a1 a2 b1", "c1 c2 c3"),
        ("abc", "a1 a2 a3", "b1 b2 b3 c1 c2 c3"),
        ("abc", "a1 b1 c1", ""),
        ("a", "a1 a2 a3", ""),
    ],
)
def test_better_hosts_are_in_racks_with_too_few(racks: str, held: str, better: str) -> None:
    """Of two racks one has two copies, of three each one; a host that makes nothing better is not among them."""
    hosts = [f"{rack}{number}" for rack, number in product(racks, (1, 2, 3))]
    crowding = ReplicaSets(places(hosts)).crowding(hosts, COPIES)
    own = held.split()
    others = members(*(host for host in hosts if host not in own))
    assert hosts_of(better_hosts(members(*own), others, crowding)) == better.split()


def test_moves_end() -> None:
    """From any set each move makes the set less crowded, and no set is left that is crowded."""
    hosts = [f"{rack}{number}" for rack, number in product("abc", (1, 2, 3))]
    crowding = ReplicaSets(places(hosts)).crowding(hosts, COPIES)
    for own in combinations(hosts, COPIES):
        held, crowded = members(*own), crowding(own)
        for _ in range(COPIES):
            better = better_hosts(held, members(*(host for host in hosts if host not in hosts_of(held))), crowding)
            if not better:
                break
            held = list(least_crowded([*held, better[-1]], COPIES, crowding))
            assert crowding(hosts_of(held)) < crowded
            crowded = crowding(hosts_of(held))
        assert crowded == 0


def test_the_least_crowded_copies_stay() -> None:
    """Of equals the first ones; never fewer than are asked for."""
    hosts = ["a1", "a2", "a3", "b1", "b2"]
    crowding = ReplicaSets(places(hosts)).crowding(hosts, COPIES)
    assert hosts_of(least_crowded(members(*hosts), COPIES, crowding)) == ["a1", "a2", "b1"]
    assert hosts_of(least_crowded(members(*hosts), COPIES, never_crowded(hosts, COPIES))) == hosts[:COPIES]
    assert hosts_of(least_crowded(members("a1", "a2"), COPIES, crowding)) == ["a1", "a2"]
