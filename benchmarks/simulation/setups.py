"""What is compared: each scheduler with the capacities it plans with, on hosts and links of the same speed.

Invariants:
* Every setup has the same physical cluster; only capacities, which are numbers for the planner, differ.
* Capacities of hosts are the paper's; 5 on links follows from table 8 and the links' rates. None was chosen by its
  result, but the 2 between the racks of "Peace, as in the paper" is a choice of ours that its COMP hangs on: the
  paper gives a 2 for hosts' edges only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scheduler.peace.online import GATHER_MS, Mode, Settings, Stragglers
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.repaired import RepairedPlanner
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.measured import (
    HOST_CAPACITY,
    PAPER,
    PAPER_LINK_CAPACITY,
    WRITER_THREADS,
    Physics,
    link_capacity,
    paper_cluster,
)
from scheduler.simulation.policies import PolicyMaker, hdfs_default, peace, sinbad
from scheduler.topology import Topology

HDFS = "HDFS default"
HDFS_FIVE = "HDFS default, five threads"
FIVE = 5
"""Threads: as many chunks at a time as a host may send under Peace, so the fair twin of its capacity."""
SINBAD = "Sinbad-like"
PAPERS_PEACE = "Peace, as in the paper"
CAREFUL_PEACE = "Cairn's Peace, the paper's hosts"
PEACE = "Cairn's Peace"
REPAIRED_PEACE = "Peace, timesteps of `repaired`"
"""Shown with all capacities only."""
NAMES = (HDFS, HDFS_FIVE, SINBAD, PAPERS_PEACE, CAREFUL_PEACE, PEACE)

ABOUT = {
    HDFS: "default placement of 0.16, never on the writer's disk; all writers at once",
    HDFS_FIVE: "the same, each writer with five threads, as many as fill its link",
    SINBAD: "the least used links among the allowed; all writers at once",
    PAPERS_PEACE: "timesteps that end at 80 %, planner `paper`; send 2, receive 2, link between racks 2",
    CAREFUL_PEACE: "continuous, planner `repaired`; send 2, receive 2 as in the paper, link between racks 5",
    PEACE: "continuous, planner `repaired`; receive 2 (what a disk serves well), all links 5 (their rate ÷ a chain's)",
}


class Setup(NamedTuple):
    """A scheduler, and the network as it knows it."""

    name: str
    policy: PolicyMaker
    network: Callable[[Physics], Topology]

    def cluster(self, physics: Physics = PAPER) -> SimulatedCluster:
        """A new cluster of the given speed."""
        return SimulatedCluster(self.network(physics), physics)


def continuous(name: str = PEACE) -> PolicyMaker:
    """Cairn's Peace: continuous mode, the default planner, gathering as the coordinator does."""
    return peace(name, RepairedPlanner, Settings(gather_ms=GATHER_MS))


def timesteps(name: str = PAPERS_PEACE) -> PolicyMaker:
    """Peace as in the paper: Algorithm 1, timesteps that end when 80 % of their chunks are done.

    Each on the full graph: one reading, as the paper does not say what unfinished chunks take from the next.
    """
    settings = Settings(mode=Mode.TIMESTEPS, finish_fraction=0.8, stragglers=Stragglers.IGNORED)
    return peace(name, PaperPlanner, settings)


def repaired(name: str = REPAIRED_PEACE) -> PolicyMaker:
    """Timesteps with as many chunks in each as a greedy plan, improved, can hold."""
    return peace(name, RepairedPlanner, Settings(mode=Mode.TIMESTEPS, finish_fraction=0.8))


def papers_network(physics: Physics) -> Topology:
    """Capacity 2 everywhere: what the paper says of hosts, and, by our choice, between the racks (gigabit, too)."""
    return paper_cluster(PAPER_LINK_CAPACITY, physics=physics)


def careful_network(physics: Physics) -> Topology:
    """The paper's capacities of hosts; the link between racks as many chunks as fill it."""
    return paper_cluster(physics=physics)


def full_network(physics: Physics) -> Topology:
    """What a disk serves well to receive (the paper), and on every link as many chunks as fill it."""
    return paper_cluster(send=link_capacity(physics), receive=HOST_CAPACITY, physics=physics)


SETUPS = {
    setup.name: setup
    for setup in (
        Setup(HDFS, hdfs_default(WRITER_THREADS), full_network),
        Setup(HDFS_FIVE, hdfs_default(FIVE), full_network),
        Setup(SINBAD, sinbad(WRITER_THREADS), full_network),
        Setup(PAPERS_PEACE, timesteps(), papers_network),
        Setup(CAREFUL_PEACE, continuous(CAREFUL_PEACE), careful_network),
        Setup(PEACE, continuous(), full_network),
    )
}
