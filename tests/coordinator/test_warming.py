"""A coordinator that serves has all compiled code: its first burst waits for none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.limits import PATIENCE_S

PROGRAM = """
import sys
from random import Random

from scheduler.coordinator.running import make_planner
from scheduler.peace import levels_kernels, repaired_kernels, tree_kernels
from scheduler.peace.online import Mode, Settings
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.repaired import RepairedPlanner
from scheduler.peace.tree import TreePlanner
from scheduler.simulation.cluster import Cluster
from scheduler.simulation.engine import simulate
from scheduler.simulation.measured import PAPER, paper_cluster
from scheduler.simulation.policies import peace
from scheduler.simulation.scenario import Scenario, checkpoints


def loaded():
    return {
        f"{module.__name__}.{name}"
        for module in (levels_kernels, repaired_kernels, tree_kernels)
        for name, found in vars(module).items()
        if getattr(found, "signatures", None)
    }


name = sys.argv[1]
planners = {"tree": TreePlanner, "paper": PaperPlanner, "repaired": RepairedPlanner}
topology = paper_cluster()
make_planner(name, topology)
before = loaded()
assert before or name == "paper"
for mode in Mode:
    cluster = Cluster(topology, PAPER)
    jobs = checkpoints(cluster, range(16), 8, replicas=3)
    simulate(Scenario(cluster, jobs), peace("burst", planners[name], Settings(mode)), 1)
later = sorted(loaded() - before)
assert not later, f"loaded while writers waited: {later}"
"""


@pytest.mark.parametrize("planner", ["tree", "paper", "repaired"])
def test_a_burst_finds_all_compiled_code(planner: str) -> None:
    """Sixteen checkpoints at once load nothing more, in either mode."""
    subprocess.run([sys.executable, "-c", PROGRAM, planner], check=True, timeout=PATIENCE_S)
