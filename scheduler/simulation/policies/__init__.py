"""Scheduling policies of the simulated cluster: HDFS's default, a network-aware greedy, Peace.

Invariants: a policy sees only the input of its real counterpart (submissions, acks, reports at intervals); its
randomness comes in as an argument.
"""

from scheduler.simulation.policies.base import AtOnce, ClusterLoad, Orders, PolicyMaker, SchedulingPolicy, Start
from scheduler.simulation.policies.hdfs import Era, HdfsDefault, hdfs_default
from scheduler.simulation.policies.peace import Peace, peace
from scheduler.simulation.policies.sinbad import Sinbad, sinbad

__all__ = [
    "AtOnce",
    "ClusterLoad",
    "Era",
    "HdfsDefault",
    "Orders",
    "Peace",
    "PolicyMaker",
    "SchedulingPolicy",
    "Sinbad",
    "Start",
    "hdfs_default",
    "peace",
    "sinbad",
]
