"""The simulator gives back what the paper measured: table 8, and figure 10's end points for HDFS and Peace."""

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pytest

from benchmarks.simulation.experiments import run_once
from benchmarks.simulation.setups import HDFS, PAPERS_PEACE, PEACE, SETUPS
from scheduler.peace.plan import TransferKind
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.engine import simulate
from scheduler.simulation.measured import (
    CLIENTS,
    LINK_BYTES_S,
    MB,
    PAPER,
    TABLE_8_CLIENT_READ,
    TABLE_8_CLIENT_WRITE,
    TABLE_8_NODE_READ,
    TABLE_8_NODE_WRITE,
    TABLE_8_NODE_WRITE_TOTALS_IF_UNFAIR,
    curve,
    link_capacity,
    paper_cluster,
)
from scheduler.simulation.policies import AtOnce, ClusterLoad, Orders, PolicyMaker, Start, hdfs_default
from scheduler.simulation.scenario import Scenario, SimulatedJob

CLUSTER = SimulatedCluster(paper_cluster())
SEEDS = range(1, 6)


class OneNode(AtOnce):
    """Every job is one chunk to host 0, or from it."""

    sample_s: float | None = None

    def submit(self, job: SimulatedJob, now_s: float) -> Orders:
        """At once."""
        way = (job.host, 0) if job.kind is TransferKind.WRITE else (0, job.host)
        return Orders((Start(job.name, 0, way, job.kind),))

    def done(self, start: Start, now_s: float) -> Orders:
        """Nothing more."""
        return Orders()

    def host_lost(self, host: int, broken: Sequence[Start], now_s: float) -> Orders:
        """Never."""
        return Orders()

    def observe(self, view: ClusterLoad) -> None:
        """Not used."""


@pytest.mark.parametrize(
    ("kind", "column"), [(TransferKind.WRITE, TABLE_8_NODE_WRITE), (TransferKind.READ, TABLE_8_NODE_READ)]
)
def test_table_8_data_node(kind: TransferKind, column: tuple[float, ...]) -> None:
    """n clients write a chunk of 64 MB to one node, or read it there, one execution after the other: the same rates."""
    for clients, rate in zip(CLIENTS, column, strict=True):
        sources = ((0,),) if kind is TransferKind.READ else ()
        jobs = tuple(SimulatedJob(f"{host}", host, 1, kind=kind, sources=sources) for host in range(1, clients + 1))
        run = simulate(Scenario(CLUSTER, jobs, memory_full=True), PolicyMaker("one node", lambda *_: OneNode()), 0)
        assert fmean(64 / request.io_s for request in run.requests) == pytest.approx(rate, rel=1e-6)


def test_table_8_client_writes() -> None:
    """1 GB with n threads into an idle cluster: within a fifth, rising with n, above what a disk alone sustains."""
    rates = [
        fmean(
            1024
            / simulate(Scenario(CLUSTER, (SimulatedJob("1 GB", seed % 17, 16),)), hdfs_default(threads), seed).io_s()
            for seed in range(10)
        )
        for threads in CLIENTS
    ]
    assert rates == pytest.approx(TABLE_8_CLIENT_WRITE, rel=0.2)
    assert rates[0] > 1.5 * TABLE_8_NODE_WRITE[0]
    assert rates == sorted(rates)


def test_table_8_client_without_disks() -> None:
    """Its own limits alone, however fast the disks: the table's column."""
    for threads, write, read in zip(CLIENTS, TABLE_8_CLIENT_WRITE, TABLE_8_CLIENT_READ, strict=True):
        assert PAPER.client_write.totals[threads] == pytest.approx(write * MB)
        assert PAPER.client_read.totals[threads] == pytest.approx(read * MB)
        assert read * MB <= LINK_BYTES_S


def test_between_and_beyond_the_measured_numbers() -> None:
    """A power law between, a constant total beyond; what a client gets never rises with company."""
    disk = PAPER.disk_write
    assert disk.per_client(3) == pytest.approx(22.5 * MB * (9.9 / 22.5) ** 0.5849625)
    assert 32 * disk.per_client(32) == pytest.approx(16 * disk.per_client(16))
    rates = [disk.per_client(clients) for clients in range(1, 40)]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(("clients", "rate", "deviation"), [(4, 9.90, 0.81), (8, 6.03, 3.85), (16, 2.57, 2.48)])
def test_unfair_disks_give_table_8_with_its_deviations(clients: int, rate: float, deviation: float) -> None:
    """Clients weighted log-normally, fair up to 4, ever less so beyond: about the table's means and deviations."""
    totals = curve(CLIENTS, TABLE_8_NODE_WRITE_TOTALS_IF_UNFAIR, total=True).totals / MB
    spread = np.interp(np.log2(np.arange(1, 17)), [2, 3, 4], [0.08, 2.6, 6.0])
    random = np.random.default_rng(1)
    rates = []
    for _ in range(200):
        luck, left, now_s = random.standard_normal(clients), np.full(clients, 64.0), 0.0
        while len(left):
            weights = np.exp(spread[len(left) - 1] * luck)
            speeds = totals[len(left)] * weights / weights.sum()
            step_s = (left / speeds).min()
            now_s, left = now_s + step_s, left - speeds * step_s
            ended = left < 1e-9
            rates += [64 / now_s] * int(ended.sum())
            luck, left = luck[~ended], left[~ended]
    assert np.mean(rates) == pytest.approx(rate, rel=0.1)
    assert np.std(rates) == pytest.approx(deviation, rel=0.6 if clients == 4 else 0.1)


def test_derived_capacities() -> None:
    """A gigabit link carries 111.4 MB/s; chains of 22.5 MB/s fill it from 5 on; four links need 20."""
    assert pytest.approx(111.4, abs=0.05) == LINK_BYTES_S / MB
    assert link_capacity() == 5
    assert link_capacity(links=4) == 20


def figures(name: str) -> tuple[float, float]:
    """IO and COMP of a setup at 16 × 512 MB, means over the seeds."""
    runs = [run_once(SETUPS[name], PAPER, 16, 512, seed) for seed in SEEDS]
    return fmean(run.io_s() for run in runs), fmean(run.comp_s() for run in runs)


def test_hdfs_as_in_figure_10() -> None:
    """16 × 512 MB: IO 45 s and COMP 55 s, each within 15 %."""
    io_s, comp_s = figures(HDFS)
    assert io_s == pytest.approx(45.0, rel=0.15)
    assert comp_s == pytest.approx(55.0, rel=0.15)


def test_peace_as_in_figure_10() -> None:
    """The paper's own Peace: IO under 20 s, COMP 75 s within 15 %."""
    io_s, comp_s = figures(PAPERS_PEACE)
    assert io_s < 20.0
    assert comp_s == pytest.approx(75.0, rel=0.15)


def test_cairns_peace_reaches_its_goals() -> None:
    """At most 0.35 of HDFS's IO and 0.8 of its COMP."""
    (hdfs_io_s, hdfs_comp_s), (io_s, comp_s) = figures(HDFS), figures(PEACE)
    assert io_s <= 0.35 * hdfs_io_s
    assert comp_s <= 0.8 * hdfs_comp_s


def test_reads_slow_writers_down_on_a_busy_disk() -> None:
    """A recovery that reads from a node that others write to gets less than alone, and so do they."""
    read = SimulatedJob("read", 3, 1, kind=TransferKind.READ, sources=((0,),))
    writes = tuple(SimulatedJob(f"write {host}", host, 1) for host in (1, 2))
    one_node = PolicyMaker("one node", lambda *_: OneNode())
    alone, both = (
        simulate(Scenario(CLUSTER, jobs, memory_full=True), one_node, 0) for jobs in ((read,), (read, *writes))
    )
    assert both.io_s(TransferKind.READ) > 2 * alone.io_s(TransferKind.READ)
