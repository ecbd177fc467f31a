"""A simulated cluster for plans: disks and links as flows, max-min fair, deterministic by seed.

    cluster = Cluster(paper_cluster())
    jobs = checkpoints(cluster, spread_writers(cluster, 16, random), chunks=8)
    run = simulate(Scenario(cluster, jobs), hdfs_default(threads=1), seed=1)
    run.io_s(), run.comp_s(), run.chunks

`measured` has the paper's measurements, `cluster` the resources of a network, `engine` the simulator, `policies` the
schedulers, `run` the outcome and the lower bounds.

Invariants: sans-I/O and without a clock; time is virtual, in seconds; all randomness comes from the seed.
"""

from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.engine import SimulationStuck, simulate
from scheduler.simulation.measured import PAPER, Curve, Physics, curve, link_capacity, paper_cluster
from scheduler.simulation.policies import Era, PolicyMaker, hdfs_default, peace, sinbad
from scheduler.simulation.run import ChunkRun, LowerBounds, RequestRun, SimulatedRun, bounds
from scheduler.simulation.scenario import Loss, Scenario, SimulatedJob, checkpoints, spread_writers

__all__ = [
    "PAPER",
    "ChunkRun",
    "Curve",
    "Era",
    "Loss",
    "LowerBounds",
    "Physics",
    "PolicyMaker",
    "RequestRun",
    "Scenario",
    "SimulatedCluster",
    "SimulatedJob",
    "SimulatedRun",
    "SimulationStuck",
    "bounds",
    "checkpoints",
    "curve",
    "hdfs_default",
    "link_capacity",
    "paper_cluster",
    "peace",
    "simulate",
    "sinbad",
    "spread_writers",
]
