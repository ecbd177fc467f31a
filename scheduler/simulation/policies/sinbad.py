"""A network-aware greedy in the manner of Sinbad (Chowdhury et al., 2013): replicas go where the links are least used.

It obeys the same placement as Peace (first replica in the writer's rack, second in another, third beside the second).
Of the allowed hosts it takes the host whose path has the lowest peak utilisation: the measurement of each second, plus
the chunks placed since. Like Sinbad it considers links only and starts every chunk at once; it has no queue.

Invariants: the hosts of a chunk differ, and none is the writer's.
"""

from random import Random

import numpy as np

from scheduler.peace.placement import Relation, default_placement
from scheduler.peace.plan import TransferKind
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.policies.base import ClusterLoad, PolicyMaker, ThreadedClients
from scheduler.simulation.scenario import SimulatedJob

SAMPLE_S = 1.0


class Sinbad(ThreadedClients):
    """Least used links first, ties at random."""

    sample_s: float | None = SAMPLE_S

    def __init__(self, cluster: SimulatedCluster, random: Random, *, threads: int) -> None:
        super().__init__(cluster, threads)
        self._random = random
        self._rates = np.zeros(cluster.resources)

    def observe(self, view: ClusterLoad) -> None:
        """Replace all estimates by a new measurement."""
        self._rates = view.rates.copy()

    def place(self, job: SimulatedJob, chunk: int) -> tuple[int, ...]:
        """The hosts of a chunk, over the least used links."""
        if job.kind is TransferKind.READ:
            hosts = [host for host in job.sources[chunk] if host not in self.lost]
            return self._taken((self._least(hosts, job.host, towards=True), job.host), job.kind)
        if job.kind is TransferKind.COPY:
            source = self._random.choice([host for host in job.sources[chunk] if host not in self.lost])
            others = set(range(self.cluster.hosts)) - set(job.sources[chunk]) - self.lost
            return self._taken((source, self._least(sorted(others), source)), job.kind)
        rack_of = self.cluster.topology.rack_of
        chain = [job.host]
        for rules in default_placement(job.replicas, len(self.cluster.topology.racks)):
            free = [host for host in range(self.cluster.hosts) if host not in chain and host not in self.lost]
            allowed = [
                host
                for host in free
                if all((rack_of[host] == rack_of[chain[r.of]]) == (r.relation is Relation.SAME_RACK) for r in rules)
            ]
            chain.append(self._least(allowed or free, chain[-1]))
        return self._taken(tuple(chain), job.kind)

    def _least(self, hosts: list[int], near: int, *, towards: bool = False) -> int:
        """The host with the least used path from `near` (`towards`: to it)."""
        if not hosts:
            raise ValueError("no host is left for a replica: ask for fewer replicas")
        peaks = [self._peak(host, near) if towards else self._peak(near, host) for host in hosts]
        lowest = min(peaks) * (1 + 1e-9)
        return self._random.choice([host for host, peak in zip(hosts, peaks, strict=True) if peak <= lowest])

    def _peak(self, source: int, target: int) -> float:
        """The highest utilisation of the links from one host to another, the sender's own left out."""
        cluster = self.cluster
        links = [*(cluster.link(link) for link in cluster.route(source, target)), cluster.down(target)]
        return float(np.max(self._rates[links] / cluster.capacity[links]))

    def _taken(self, chain: tuple[int, ...], kind: TransferKind) -> tuple[int, ...]:
        """Count a placed chunk as traffic until the next measurement: its bytes over that time."""
        for use in self.cluster.uses(chain, kind):
            self._rates[use.resource] += self.cluster.topology.chunk_bytes / SAMPLE_S
        return chain


def sinbad(threads: int) -> PolicyMaker:
    """The network-aware greedy with `threads` writing threads per client."""
    return PolicyMaker("Sinbad-like", lambda cluster, random: Sinbad(cluster, random, threads=threads))
