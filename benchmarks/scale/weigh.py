"""A process of its own that plans once and says what that cost it: `python -m benchmarks.scale.weigh PLANNER HOSTS`.

Prints one JSON object: seconds of its first plan, for 17 hosts (kernels from the cache, or compiled when the directory
NUMBA_CACHE_DIR is empty); resident memory with the kernels, what a network and its requests add, and what the planner
and a plan add.
"""

import json
import sys
import time
from collections.abc import Callable
from random import Random

import psutil

from benchmarks.scale.cases import case
from scheduler.peace.plan import Planner, Residual
from scheduler.peace.repaired import RepairedPlanner
from scheduler.peace.tree import TreePlanner
from scheduler.topology import Topology

PLANNERS: dict[str, Callable[[Topology], Planner]] = {"tree": TreePlanner, "repaired": RepairedPlanner}


def resident_bytes() -> int:
    """Of this process."""
    return int(psutil.Process().memory_info().rss)


def main() -> None:
    """Plan the load `two slots`, for 17 hosts and then for as many as are asked for."""
    planner_name, hosts = sys.argv[1], int(sys.argv[2])
    warm = case("two slots", 17, 2, 1)
    begin = time.perf_counter()
    PLANNERS[planner_name](warm.topology).plan(warm.requests, Residual.full(warm.topology), Random(1))
    first_s = time.perf_counter() - begin
    loaded = resident_bytes()
    topology, requests = case("two slots", hosts, 2, 1)
    described = resident_bytes()
    planner = PLANNERS[planner_name](topology)
    residual = Residual.full(topology)
    plan = planner.plan(requests, residual, Random(1))
    planned = resident_bytes()
    print(
        json.dumps(
            {
                "planner": planner_name,
                "hosts": hosts,
                "chunks": len(plan.chains),
                "first_plan_s": first_s,
                "kernels_loaded_mb": loaded / 1e6,
                "network_and_requests_mb": (described - loaded) / 1e6,
                "planner_and_plan_mb": (planned - described) / 1e6,
            }
        )
    )


if __name__ == "__main__":
    main()
