"""The experiments: calibration, figure 10, capacities, and scenarios beyond the paper. Each leaves rows.

Invariants:
* Whatever is compared runs with the same seeds; a seed fixes the writers, their order, and all chance of the policy.
* As the paper's executions, those of figure 10 follow one another: the hosts' memory for written data is full.
* A row is one run. `io_s` is from "go" to the last ack, `response_s` from the submission, `comp_s` all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

from benchmarks.harness.report import Rows
from benchmarks.simulation import setups
from benchmarks.simulation.setups import HDFS, PAPERS_PEACE, PEACE, SETUPS, SINBAD, Setup
from scheduler.peace.plan import TransferKind
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.engine import simulate
from scheduler.simulation.measured import (
    CLIENTS,
    HOST_CAPACITY,
    MB,
    PAPER,
    TABLE_8_NODE_WRITE_TOTALS_IF_UNFAIR,
    WRITER_THREADS,
    Physics,
    curve,
    link_capacity,
    paper_cluster,
)
from scheduler.simulation.policies import Era, hdfs_default
from scheduler.simulation.run import LowerBounds, SimulatedRun, bounds
from scheduler.simulation.scenario import Loss, Scenario, SimulatedJob, checkpoints, spread_writers
from scheduler.topology import Server, Topology, both_ways

WRITERS = (8, 10, 12, 14, 16)
SIZES_MB = (128, 256, 512)
MAX_WRITERS, MAX_MB = 16, 512
CHUNK_MB = 64

SENSITIVITY: dict[str, tuple[int, Physics]] = {
    **{f"writing threads: {threads}": (threads, PAPER) for threads in (1, 2, 4, 8)},
    **{f"memory of {size} MB": (WRITER_THREADS, replace(PAPER, cache_bytes=size * MB)) for size in (0, 34, 90, 256)},
    "links 5 % slower": (WRITER_THREADS, replace(PAPER, link_bytes_s=PAPER.link_bytes_s * 0.95)),
    "disks as if unfair": (
        WRITER_THREADS,
        replace(PAPER, disk_write=curve(CLIENTS, TABLE_8_NODE_WRITE_TOTALS_IF_UNFAIR, total=True)),
    ),
}
"""Other readings of what the paper does not say: HDFS's threads and the physics."""

CAPACITIES = tuple((link, send) for link in (2, 3, 4, 5, 6) for send in (2, 3, 4, 5))


def run_once(
    setup: Setup, physics: Physics, writers: int, size_mb: int, seed: int, *, trace: bool = False
) -> SimulatedRun:
    """So many hosts write checkpoints of so many MB at once, in an order that the seed gives."""
    cluster = setup.cluster(physics)
    hosts = spread_writers(cluster, writers, Random(seed))
    jobs = checkpoints(cluster, hosts, size_mb // CHUNK_MB)
    return simulate(Scenario(cluster, jobs, memory_full=True, trace=trace), setup.policy, seed)


def bounds_of(writers: int, size_mb: int) -> LowerBounds:
    """What no scheduler can beat, with memory full as in all runs (the disks' part)."""
    cluster = SETUPS[HDFS].cluster(replace(PAPER, cache_bytes=0.0))
    return bounds(cluster, spread_writers(cluster, writers, Random(0)), size_mb // CHUNK_MB)


def figures(run: SimulatedRun, kind: TransferKind = TransferKind.WRITE) -> dict[str, float]:
    """The figures of a row."""
    return {"io_s": run.io_s(kind), "response_s": run.response_s(kind), "comp_s": run.comp_s(kind)}


class Experiments:
    """All of them, with their rows."""

    def __init__(self, seeds: Sequence[int], say: Callable[[str], None]) -> None:
        self.rows = Rows()
        self._seeds = seeds
        self._say = say

    def figure_10(self, writers: Iterable[int], sizes_mb: Iterable[int]) -> None:
        """IO and COMP of every setup for all numbers of writers and sizes."""
        sizes = tuple(sizes_mb)
        for count in writers:
            for size in sizes:
                for name, setup in SETUPS.items():
                    labels = {"setup": name, "writers": count, "size_mb": size}
                    for seed in self._seeds:
                        run = run_once(setup, PAPER, count, size, seed)
                        self.rows.add(what="figure 10", **labels, round=seed, **figures(run))
            self._say(f"figure 10: {count} writers")

    def sensitivity(self) -> None:
        """HDFS, and Peace beside it, with other readings of what the paper leaves open; 16 × 512 MB."""
        for change, (threads, physics) in SENSITIVITY.items():
            for era in Era:
                setup = Setup(HDFS, hdfs_default(threads, era=era), setups.full_network)
                self._vary(change, physics, f"{HDFS} {era}", setup)
            for name in (PAPERS_PEACE, PEACE):
                self._vary(change, physics, name, SETUPS[name])
        anywhere = Setup(HDFS, hdfs_default(WRITER_THREADS, first_in_rack=False), setups.full_network)
        self._vary("first replica in any rack", PAPER, f"{HDFS} {Era.BEFORE_0_17}", anywhere)
        careless = Setup(HDFS, hdfs_default(WRITER_THREADS, consider_load=False), setups.full_network)
        self._vary("load of hosts not considered", PAPER, f"{HDFS} {Era.BEFORE_0_17}", careless)
        self._say("sensitivity")

    def _vary(self, change: str, physics: Physics, name: str, setup: Setup) -> None:
        for seed in self._seeds:
            run = run_once(setup, physics, MAX_WRITERS, MAX_MB, seed)
            self.rows.add(what="sensitivity", change=change, setup=name, round=seed, **figures(run))

    def capacities(self) -> None:
        """Peace with other capacities of the link between racks and of the hosts' links; 16 × 512 MB."""
        for policy in (setups.timesteps(), setups.repaired(), setups.continuous()):
            for link, send in CAPACITIES:
                network = _network(link, send)
                for seed in self._seeds:
                    run = run_once(Setup(policy.name, policy, network), PAPER, MAX_WRITERS, MAX_MB, seed)
                    labels = {"setup": policy.name, "link": link, "send": send, "round": seed}
                    self.rows.add(what="capacities", **labels, **figures(run), link_used=_link_used(run))
        self._say("capacities")

    def beyond(self) -> None:
        """Scenarios that the paper does not have."""
        for name, scenario in SCENARIOS.items():
            for setup in (SETUPS[HDFS], SETUPS[SINBAD], SETUPS[PEACE]):
                for seed in self._seeds:
                    for kind, values in scenario(setup, seed).items():
                        labels = {"scenario": name, "setup": setup.name, "kind": kind, "round": seed}
                        self.rows.add(what="beyond", **labels, **values)
            self._say(name)


def _network(link: int, send: int) -> Callable[[Physics], Topology]:
    return lambda physics: paper_cluster(link, send=send, physics=physics)


def _link_used(run: SimulatedRun) -> float:
    """The share of the links between racks that was used, until the last ack."""
    cluster = SETUPS[HDFS].cluster()
    links = [cluster.link(number) for number in range(len(cluster.topology.links))]
    return float(run.carried[links].sum() / cluster.capacity[links].sum() / run.comp_s())


# ---- scenarios beyond the paper: each gives figures per kind of request


class Beyond(NamedTuple):
    """Numbers of the scenarios."""

    checkpoints: int = 60
    every_s: float = 2.0  # on average; the links between the racks would be full at 1.15 s
    size_mb: int = 256
    slow_factor: float = 1 / 3
    loss_s: float = 10.0
    read_mb: int = 512
    read_s: float = 5.0
    large_racks: tuple[int, ...] = (20, 20, 20, 20, 20)
    large_links: int = 4


BEYOND = Beyond()


def staggered(setup: Setup, seed: int) -> dict[str, dict[str, float]]:
    """Checkpoints of 256 MB come at random, one every 2 s; hosts in random order, all again and again."""
    cluster = setup.cluster()
    random = Random(seed)
    hosts: list[int] = []
    while len(hosts) < BEYOND.checkpoints:
        hosts.extend(random.sample(range(cluster.hosts), cluster.hosts))
    times, now = [], 0.0
    for _ in range(BEYOND.checkpoints):
        times.append(now)
        now += random.expovariate(1 / BEYOND.every_s)
    jobs = checkpoints(cluster, hosts[: BEYOND.checkpoints], BEYOND.size_mb // CHUNK_MB, at_s=times)
    return {"write": figures(simulate(Scenario(cluster, jobs), setup.policy, seed))}


def slow_host(setup: Setup, seed: int) -> dict[str, dict[str, float]]:
    """One host's disk has a third of the speed, and nobody knows; 16 × 512 MB."""
    topology = setup.network(PAPER)
    slow = topology.servers[seed % len(topology.servers)]
    alone = PAPER.disk_write.per_client(1)
    servers = [
        replace(server, disk_bytes_s=alone * BEYOND.slow_factor) if server is slow else server
        for server in topology.servers
    ]
    cluster = SimulatedCluster(Topology(servers, topology.links, switches=topology.switches))
    jobs = checkpoints(cluster, spread_writers(cluster, MAX_WRITERS, Random(seed)), MAX_MB // CHUNK_MB)
    return {"write": figures(simulate(Scenario(cluster, jobs, memory_full=True), setup.policy, seed))}


def lost_host(setup: Setup, seed: int) -> dict[str, dict[str, float]]:
    """The host that writes nothing fails after 10 s; 3 s later it is known, and its chunks are written again."""
    cluster = setup.cluster()
    writers = spread_writers(cluster, MAX_WRITERS, Random(seed))
    gone = next(host for host in range(cluster.hosts) if host not in writers)
    jobs = checkpoints(cluster, writers, MAX_MB // CHUNK_MB)
    scenario = Scenario(cluster, jobs, (Loss(gone, BEYOND.loss_s),), memory_full=True)
    return {"write": figures(simulate(scenario, setup.policy, seed))}


def recovery(setup: Setup, seed: int) -> dict[str, dict[str, float]]:
    """12 hosts write 256 MB each; after 5 s two others read 512 MB each back. Disks count as 2 for reads and writes."""
    known = setup.network(PAPER)
    servers = [replace(server, disk=HOST_CAPACITY) for server in known.servers]
    cluster = SimulatedCluster(Topology(servers, known.links, switches=known.switches))
    random = Random(seed)
    writers = spread_writers(cluster, 12, random)
    readers = [host for host in range(cluster.hosts) if host not in writers][:2]
    reads = []
    for reader in readers:
        others = [host for host in range(cluster.hosts) if host != reader]
        chunks = BEYOND.read_mb // CHUNK_MB
        sources = tuple(tuple(random.sample(others, 3)) for _ in range(chunks))
        reads.append(
            SimulatedJob(
                f"recovery of host {reader}", reader, chunks, BEYOND.read_s, kind=TransferKind.READ, sources=sources
            )
        )
    jobs = (*checkpoints(cluster, writers, BEYOND.size_mb // CHUNK_MB), *reads)
    run = simulate(Scenario(cluster, jobs, memory_full=True), setup.policy, seed)
    return {kind.value: figures(run, kind) for kind in (TransferKind.WRITE, TransferKind.READ)}


def large(setup: Setup, seed: int) -> dict[str, dict[str, float]]:
    """100 hosts in 5 racks, each with four gigabit links to a switch above; half of the hosts write 512 MB."""
    between = link_capacity(links=BEYOND.large_links)
    model = setup.network(PAPER).servers[0]
    servers = [
        Server(f"r{rack}h{host}", f"rack{rack}", model.send, model.receive, link_bytes_s=PAPER.link_bytes_s)
        for rack, size in enumerate(BEYOND.large_racks, 1)
        for host in range(1, size + 1)
    ]
    names = [f"rack{rack}" for rack in range(1, len(BEYOND.large_racks) + 1)]
    rate = BEYOND.large_links * PAPER.link_bytes_s
    links = [link for name in names for link in both_ways(name, "core", between, bytes_s=rate)]
    cluster = SimulatedCluster(Topology(servers, links, switches=["core", *names]))
    jobs = checkpoints(cluster, spread_writers(cluster, 50, Random(seed)), MAX_MB // CHUNK_MB)
    return {"write": figures(simulate(Scenario(cluster, jobs, memory_full=True), setup.policy, seed))}


SCENARIOS: dict[str, Callable[[Setup, int], dict[str, dict[str, float]]]] = {
    "60 checkpoints of 256 MB, one every 2 s": staggered,
    "a host's disk at a third": slow_host,
    "a host lost after 10 s": lost_host,
    "two recoveries beside 12 × 256 MB": recovery,
    "50 of 100 hosts in 5 racks, 512 MB": large,
}
