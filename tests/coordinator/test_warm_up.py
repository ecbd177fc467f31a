"""A coordinator that serves has all compiled code: its first burst waits for none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.limits import PATIENCE_S

PROGRAM = """
import sys
from random import Random

import trio

from logstore.base.events import ignore
from scheduler.coordinator.planners import make_planner
from scheduler.coordinator.warm_up import warm_up_planner
from scheduler.peace import levels_kernels, repaired_kernels, tree_kernels
from scheduler.peace.online import Mode, Settings
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.placement import default_placement
from scheduler.peace.plan import Request, Residual, TransferKind
from scheduler.peace.repaired import RepairedPlanner
from scheduler.peace.tree import TreePlanner
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.engine import simulate
from scheduler.simulation.measured import PAPER, paper_cluster
from scheduler.simulation.policies import peace
from scheduler.simulation.scenario import Scenario, checkpoints
from scheduler.topology import Server, Topology, both_ways


def loaded():
    return {
        (f"{module.__name__}.{name}", str(signature))
        for module in (levels_kernels, repaired_kernels, tree_kernels)
        for name, found in vars(module).items()
        for signature in getattr(found, "signatures", ())
    }


def pods():
    names = [f"p{pod}r{rack}" for pod in range(2) for rack in range(3)]
    links = [link for pod in ("p0", "p1") for link in both_ways(pod, "core", 2)]
    links += [link for name in names for link in both_ways(name, name[:2], 2)]
    servers = [Server(f"{name}h{host}", name, 1, 1) for name in names for host in range(4)]
    return Topology(servers, links, switches=["core", "p0", "p1", *names])


def requests(topology):
    hosts = range(len(topology.servers))
    three, anywhere, beside = default_placement(3), ((),), default_placement(1)
    held = tuple((host % 5, 5 + host % 3) for host in hosts[:2])
    yield [Request(str(host), host, 2, three) for host in hosts]
    yield [Request(str(host), host, 2, three, avoid=frozenset((host + 1, host + 3))) for host in hosts[:-3]]
    yield [Request(str(host), host, 2, (), TransferKind.READ, held) for host in hosts[8:]]
    yield [Request(str(host), -1, 2, anywhere, TransferKind.COPY, held, avoid=frozenset((9,))) for host in hosts[8:]]
    yield [
        Request("w", 1, 4, three, numbers=(3, 5, 6, 9)),
        Request("r", 9, 2, (), TransferKind.READ, held),
        Request("c", -1, 2, beside, TransferKind.COPY, held),
        Request("one", 2, 1, beside, avoid=frozenset((3,))),
    ]


name = sys.argv[1]
planners = {"tree": TreePlanner, "paper": PaperPlanner, "repaired": RepairedPlanner}
topology = paper_cluster()
trio.run(warm_up_planner, make_planner(name, topology), ignore)
before = loaded()
assert before or name == "paper"
for mode in Mode:
    cluster = SimulatedCluster(topology, PAPER)
    jobs = checkpoints(cluster, range(16), 8, replicas=3)
    simulate(Scenario(cluster, jobs), peace("burst", planners[name], Settings(mode)), 1)
for network in (topology, pods()):
    planner = planners[name](network)
    for asked in requests(network):
        left = Residual.full(network)
        planner.plan(asked, left, Random(1))
        for request in asked:
            planner.chain(request, 0, left, Random(1))
later = sorted(loaded() - before)
assert not later, f"loaded while writers waited: {later}"
"""


@pytest.mark.parametrize("planner", ["tree", "paper", "repaired"])
def test_a_burst_finds_all_compiled_code(planner: str) -> None:
    """Sixteen checkpoints at once load nothing more, in either mode; nor do reads, copies, requests that avoid hosts,
    and networks of three levels. What a kernel was compiled for counts, not that it was.
    """
    subprocess.run([sys.executable, "-c", PROGRAM, planner], check=True, timeout=PATIENCE_S)
