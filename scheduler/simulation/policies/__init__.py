"""Who decides where chunks go in a simulated cluster: HDFS's default, a network-aware greedy, Peace.

Invariants: a policy sees what its real counterpart would see (submissions, acks, reports at intervals), nothing else;
its randomness comes in as an argument.
"""

from scheduler.simulation.policies.base import AtOnce, Orders, SchedulingPolicy, PolicyMaker, Start, ClusterView
from scheduler.simulation.policies.hdfs import Era, HdfsDefault, hdfs_default
from scheduler.simulation.policies.peace import Peace, peace
from scheduler.simulation.policies.sinbad import Sinbad, sinbad

__all__ = [
    "AtOnce",
    "Era",
    "HdfsDefault",
    "Orders",
    "Peace",
    "SchedulingPolicy",
    "PolicyMaker",
    "Sinbad",
    "Start",
    "ClusterView",
    "hdfs_default",
    "peace",
    "sinbad",
]
