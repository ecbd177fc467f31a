"""From rates to capacities: the paper's own numbers give the paper's capacities."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.calibration.rules import (
    DEFAULT_SHARE,
    HostRates,
    LinkRate,
    Measured,
    calibrate,
    chunks_per_timestep,
    concurrency,
    pairs,
    sample,
    sides,
    spread,
)
from scheduler.topology import Link, Server, Topology, both_ways, racks
from tests.topology.test_topology_file import networks

MB = 1e6
DATA_NODE_WRITES = {1: 30.0 * MB, 2: 22.5 * MB, 4: 9.90 * MB, 8: 6.03 * MB, 16: 2.57 * MB}
"""Table 8, per client."""
DATA_NODE_READS = {1: 42.7 * MB, 2: 6.16 * MB, 4: 3.04 * MB, 8: 1.29 * MB, 16: 0.63 * MB}
CLIENT_WRITES = {
    count: total * MB / count for count, total in {1: 63.7, 2: 91.3, 4: 102.0, 8: 104.0, 16: 105.0}.items()
}
"""Table 8 has the client's total: here what each of its parallel writes gets."""


def test_table_8_gives_the_papers_capacity_of_a_disk() -> None:
    """Two writers of a disk, as section 6.2 concludes; and any share from 0.34 to 0.74."""
    for share in (0.34, 0.5, DEFAULT_SHARE, 0.74):
        assert concurrency(DATA_NODE_WRITES, share) == 2
    assert concurrency(DATA_NODE_READS) == 1  # its disks bore no parallel reads


def test_the_papers_cluster_calibrated() -> None:
    """Table 8 and Gigabit links as measurements of its 17 hosts: what fills a link (5) to send and between the
    racks, and the disk's knee (2) to receive: the capacities that are shipped, and that the benchmark judges.
    """
    rough = racks([8, 9], 99, send=7)
    rates = HostRates(117 * MB, 117 * MB, DATA_NODE_WRITES, CLIENT_WRITES)
    links = {number: LinkRate(117 * MB, True, 4) for number in range(len(rough.links))}
    result = calibrate(rough, Measured({server.name: rates for server in rough.servers}, links))
    assert {(server.send, server.receive, server.disk) for server in result.topology.servers} == {(5, 2, 2)}
    assert {link.capacity for link in result.topology.links} == {5}
    assert result.timestep_s == pytest.approx((64 << 20) / (22.5 * MB), rel=0.01)
    assert {server.disk_bytes_s for server in result.topology.servers} == {22.5 * MB}
    assert result.notes == ()


def test_parallel_writes_share_the_link_and_bound_a_sender_only_if_they_cannot_fill_it() -> None:
    """Each of four writes gets a quarter of a full link: the link decides. A host that writes 50 MB/s in all: that."""
    for each, send in (({1: 104 * MB, 4: 26 * MB}, 4), ({1: 45 * MB, 4: 12.5 * MB}, 2)):
        rates = HostRates(104 * MB, 104 * MB, DATA_NODE_WRITES, each)
        (server,) = calibrate(Topology([Server("a", "r")]), Measured({"a": rates})).topology.servers
        assert server.send == send


def test_without_parallel_writes_the_link_decides() -> None:
    """Rates alone let a host send what its link carries: the 4 that table 8's client reaches at most."""
    rates = HostRates(104 * MB, 104 * MB, DATA_NODE_WRITES)
    (server,) = calibrate(Topology([Server("a", "r")]), Measured({"a": rates})).topology.servers
    assert (server.send, server.receive, server.disk) == (4, 2, 2)


def test_fast_disks_leave_it_to_the_links() -> None:
    """Where links are slower than disks, a timestep is a chunk's time on the link; an uplink carries ten of them."""
    rough = racks([4, 4], 1)
    rates = HostRates(118 * MB, 119 * MB, {1: 900 * MB, 2: 800 * MB})
    links = {number: LinkRate(1180 * MB, True, 4) for number in range(len(rough.links))}
    made = calibrate(rough, Measured({server.name: rates for server in rough.servers}, links)).topology
    assert {(server.send, server.receive, server.disk) for server in made.servers} == {(1, 1, 2)}
    assert {link.capacity for link in made.links} == {10}


def test_who_was_not_measured_gets_its_racks_median() -> None:
    """Three of a rack's hosts stand for the fourth; a rack nobody measured keeps its values."""
    rough = racks([4, 2], 3)
    disks = {"r1h1": 10 * MB, "r1h2": 20 * MB, "r1h3": 40 * MB}
    measured = Measured({name: HostRates(100 * MB, 100 * MB, {1: rate}) for name, rate in disks.items()})
    made = {server.name: server for server in calibrate(rough, measured).topology.servers}
    assert made["r1h4"].disk_bytes_s == 20 * MB
    assert made["r2h1"] == Server("r2h1", "rack2", 2, 2)


def test_a_slow_disk_does_less_in_a_timestep() -> None:
    """Two writers at half the usual rate write one chunk in a timestep; at twice the rate there are still two."""
    disks = {"a": 20 * MB, "b": 20 * MB, "c": 20 * MB, "slow": 10 * MB, "fast": 40 * MB}
    topology = Topology([Server(name, "r") for name in disks])
    rates = {name: HostRates(disk={1: rate, 2: rate, 4: rate / 10}) for name, rate in disks.items()}
    made = {server.name: server.disk for server in calibrate(topology, Measured(rates)).topology.servers}
    assert made == {"a": 2, "b": 2, "c": 2, "slow": 1, "fast": 2}


def test_what_cannot_be_measured_is_said() -> None:
    """Links with other ways around them keep their capacity; links that were not filled are noted."""
    servers = [Server(f"h{rack}", rack) for rack in "abc"]
    ring = Topology(servers, [link for a, b in ("ab", "bc", "ca") for link in both_ways(a, b, 7)])
    assert [sides(ring, link) for link in ring.links] == [None] * 6
    result = calibrate(ring, Measured({"ha": HostRates(MB, MB)}))
    assert [link.capacity for link in result.topology.links] == [7] * 6
    assert len([note for note in result.notes if "other ways" in note]) == 6
    pair = Topology(servers[:2], both_ways("a", "b", 7))
    result = calibrate(pair, Measured({"ha": HostRates(MB, MB)}, {0: LinkRate(MB, False, 1), 1: LinkRate(MB, True, 1)}))
    assert [note for note in result.notes if "at least" in note] == [
        "a → b: at least this much; 1 pairs of hosts could not fill it"
    ]


def test_nothing_measured_changes_nothing() -> None:
    """No rates, no new capacities, and it is said."""
    rough = racks([2, 2], 3)
    result = calibrate(rough, Measured())
    assert (result.topology.servers, result.topology.links) == (rough.servers, rough.links)
    assert "capacities stay" in result.notes[0]


@given(st.dictionaries(st.integers(1, 64), st.floats(0.001, 1e9), min_size=1), st.floats(0.01, 1))
def test_the_chosen_concurrency_is_good(each: dict[int, float], share: float) -> None:
    """It was tested, it and all smaller ones keep the share, and the next one does not."""
    chosen = concurrency(each, share)
    tested = sorted(each)
    alone = each[tested[0]]
    assert all(each[count] >= share * alone for count in tested if tested[0] < count <= chosen)
    after = [count for count in tested if count > chosen]
    assert not after or each[after[0]] < share * alone


def test_measuring_errors_are_granted() -> None:
    """1.96 chunks per timestep are 2, 1.89 are 1, and none is 1."""
    assert [chunks_per_timestep(rate, 1.0, 100) for rate in (196.0, 189.0, 1.0)] == [2, 1, 1]


@settings(max_examples=40)
@given(networks(), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
def test_samples_and_pairs(topology: Topology, most: int, partners: int, seed: int) -> None:
    """At most so many of each rack, every rack is there, all take part, nobody sends to itself."""
    chosen = sample(topology, most, Random(seed))
    assert chosen == sample(topology, most, Random(seed))
    for rack in topology.racks:
        size = len(topology.members[rack])
        assert sum(server.rack == topology.switches[rack] for server in chosen) == min(most, size)
    found = pairs(chosen, partners)
    assert all(source != target for source, target in found)
    if len(chosen) > 1:
        for server in chosen:
            assert sum(source == server for source, _ in found) >= partners
            assert sum(target == server for _, target in found) >= partners
    assert {server.name for server in spread(topology.servers)} == set(topology.index)


def test_the_sides_of_a_link() -> None:
    """Those below a switch on one side, all others on the other; the way back has them swapped."""
    topology = racks([2, 1, 1], 3)
    up = next(link for link in topology.links if link.source == "rack1")
    found = sides(topology, up)
    assert found is not None
    assert [[server.name for server in side] for side in found] == [["r1h1", "r1h2"], ["r2h1", "r3h1"]]
    down = sides(topology, Link(up.target, up.source, 1))
    assert down == (found[1], found[0])


def test_pairs_are_spread_over_racks() -> None:
    """One of each rack before the second of any."""
    assert [server.name for server in spread(racks([2, 1, 2], 3).servers)] == ["r1h1", "r2h1", "r3h1", "r1h2", "r3h2"]
