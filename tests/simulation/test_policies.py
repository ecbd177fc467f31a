"""The baselines' rules: where HDFS's default and the network-aware greedy may put replicas, and in which order."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from scheduler.peace.plan import TransferKind
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.measured import paper_cluster
from scheduler.simulation.policies import ClusterLoad, Era, HdfsDefault, Sinbad
from scheduler.simulation.scenario import SimulatedJob
from scheduler.topology import racks

CLUSTER = SimulatedCluster(paper_cluster())
THREE_RACKS = SimulatedCluster(racks((4, 4, 4), 4))
Placer = Callable[[SimulatedCluster, Random], HdfsDefault | Sinbad]


def hdfs(era: Era, *, first_in_rack: bool = True) -> Placer:
    """A maker of HDFS's default."""
    return lambda cluster, random: HdfsDefault(cluster, random, threads=1, era=era, first_in_rack=first_in_rack)


def ways(make: Placer, cluster: SimulatedCluster, count: int = 300) -> list[tuple[int, ...]]:
    """Ways of many chunks, of writers in turn."""
    policy = make(cluster, Random(7))
    return [policy.place(SimulatedJob("job", number % cluster.hosts, 1), 0) for number in range(count)]


def racks_of(cluster: SimulatedCluster, way: tuple[int, ...]) -> list[int]:
    """The racks on a way."""
    return [cluster.topology.rack_of[host] for host in way]


def greedy(cluster: SimulatedCluster, random: Random) -> Sinbad:
    """The network-aware greedy."""
    return Sinbad(cluster, random, threads=1)


PLACERS = [
    hdfs(Era.BEFORE_0_17),
    hdfs(Era.FROM_0_17),
    hdfs(Era.BEFORE_0_17, first_in_rack=False),
    hdfs(Era.FROM_0_17, first_in_rack=False),
    greedy,
]


@pytest.mark.parametrize("cluster", [CLUSTER, THREE_RACKS])
@pytest.mark.parametrize("make", PLACERS)
def test_hosts_differ_and_two_racks_hold_a_chunk(make: Placer, cluster: SimulatedCluster) -> None:
    """Three hosts, none the writer's, in exactly two racks."""
    for way in ways(make, cluster):
        assert len(set(way)) == 4
        assert len(set(racks_of(cluster, way[1:]))) == 2


@pytest.mark.parametrize("cluster", [CLUSTER, THREE_RACKS])
def test_before_0_17_two_replicas_stay_in_the_writers_rack(cluster: SimulatedCluster) -> None:
    """The pipeline visits both of them before it leaves for the other rack."""
    for way in ways(hdfs(Era.BEFORE_0_17), cluster):
        writer, first, second, third = racks_of(cluster, way)
        assert writer == first == second != third


@pytest.mark.parametrize("make", [hdfs(Era.FROM_0_17), greedy])
def test_from_0_17_two_replicas_lie_in_the_other_rack(make: Placer) -> None:
    """One in the writer's rack, then two beside each other elsewhere; so does the greedy."""
    for way in ways(make, THREE_RACKS):
        writer, first, second, third = racks_of(THREE_RACKS, way)
        assert writer == first != second == third


def test_a_first_replica_anywhere_uses_all_racks() -> None:
    """Without the rule for the first, the writer's rack holds one replica of a chunk or two, about as often."""
    near = [
        racks_of(CLUSTER, way)[1:].count(racks_of(CLUSTER, way)[0])
        for way in ways(hdfs(Era.FROM_0_17, first_in_rack=False), CLUSTER, 500)
    ]
    assert set(near) == {1, 2}
    assert 0.4 < near.count(1) / len(near) < 0.65


@pytest.mark.parametrize("make", PLACERS)
def test_every_host_gets_its_share(make: Placer) -> None:
    """Idle hosts are chosen at random: over many chunks none is left out, none has double the average."""
    counts = np.bincount([host for way in ways(make, CLUSTER, 425) for host in way[1:]], minlength=CLUSTER.hosts)
    assert counts.min() > 35
    assert counts.max() < 150


def test_hdfs_passes_over_a_busy_host_until_its_next_heartbeat() -> None:
    """More than twice the average load as last reported: not chosen; afterwards again."""
    policy = HdfsDefault(CLUSTER, Random(1), threads=1)
    busy = [2] * CLUSTER.hosts
    busy[3] = 9
    policy.observe(ClusterLoad(3.0, np.zeros(CLUSTER.resources), busy))
    job = SimulatedJob("job", 0, 1)
    assert all(3 not in policy.place(job, 0) for _ in range(200))
    policy.observe(ClusterLoad(6.0, np.zeros(CLUSTER.resources), [2] * CLUSTER.hosts))
    assert any(3 in policy.place(job, 0) for _ in range(200))


def test_the_greedy_avoids_the_links_that_are_used() -> None:
    """With all links down but one in each rack busy, replicas go to those two first."""
    policy = Sinbad(CLUSTER, Random(1), threads=1)
    rates = np.zeros(CLUSTER.resources)
    rates[[CLUSTER.down(host) for host in range(CLUSTER.hosts) if host not in (4, 12)]] = 1e7
    policy.observe(ClusterLoad(1.0, rates, [0] * CLUSTER.hosts))
    way = policy.place(SimulatedJob("job", 0, 1), 0)
    assert way[1] == 4
    assert way[2] == 12


def test_the_greedy_counts_what_it_placed_since_the_last_measurement() -> None:
    """Two chunks placed at once do not go to the same hosts."""
    policy = Sinbad(CLUSTER, Random(1), threads=1)
    first, second = (policy.place(SimulatedJob("job", 0, 2), chunk) for chunk in range(2))
    assert not set(first[1:]) & set(second[1:])


@pytest.mark.parametrize("make", [hdfs(Era.BEFORE_0_17), greedy])
def test_lost_hosts_are_not_chosen(make: Placer) -> None:
    """Neither for replicas nor as sources; a copy never lands on a source."""
    policy = make(CLUSTER, Random(3))
    policy.host_lost(5, (), 0.0)
    for chunk in range(50):
        assert 5 not in policy.place(SimulatedJob("write", 0, 50), chunk)
    read = SimulatedJob("read", 0, 1, kind=TransferKind.READ, sources=((5, 9),))
    assert policy.place(read, 0) == (9, 0)
    for _ in range(50):
        source, target = policy.place(SimulatedJob("copy", -1, 1, kind=TransferKind.COPY, sources=((5, 9),)), 0)
        assert source == 9
        assert target not in (5, 9)


def test_threads_deal_out_chunks_like_cards() -> None:
    """Two threads of five chunks: 0 and 1 at once, then 2 after 0, 3 after 1, 4 after 2, and nothing after 3 and 4."""
    policy = HdfsDefault(CLUSTER, Random(1), threads=2)
    begun = policy.submit(SimulatedJob("job", 0, 5), 0.0).start
    assert [start.chunk for start in begun] == [0, 1]
    follow = {0: [2], 1: [3], 2: [4], 3: [], 4: []}
    for chunk, expected in follow.items():
        orders = policy.done(begun[0]._replace(chunk=chunk), 1.0)
        assert [start.chunk for start in orders.start] == expected
