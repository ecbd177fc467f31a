"""HDFS's default placement, as the paper modified it: never on the writer's own disk (SGuard, section 6.2, footnote).

The rules are those of Hadoop's ReplicationTargetChooser. Up to 0.16, which is the HDFS of the paper's time, the set is
a first replica on the writer, a second in another rack, a third in the first one's rack. From 0.17 on (HADOOP-2559) the
third lies beside the second. A writer that is excluded is replaced by a random host of its rack, as that code does, or,
for comparison, of the cluster. The pipeline then visits the nearest host first.

Invariants:
* The hosts of a chunk differ, and none is the writer's.
* A host with more than twice the average load in its last report is avoided while there are others: HDFS's
  `dfs.replication.considerLoad`. Hosts report every 3 seconds, HDFS's heartbeat.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from random import Random

from scheduler.peace.plan import TransferKind
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.policies.base import ClusterLoad, PolicyMaker, ThreadedClients
from scheduler.simulation.scenario import SimulatedJob

HEARTBEAT_S = 3.0
LOAD_LIMIT = 2.0


class Era(StrEnum):
    """The version of HDFS's placement."""

    BEFORE_0_17 = "0.16"
    FROM_0_17 = "0.17"


class HdfsDefault(ThreadedClients):
    """Random hosts by rack. `first_in_rack` False: the first replica anywhere, not in the writer's rack."""

    sample_s: float | None = HEARTBEAT_S

    def __init__(
        self,
        cluster: SimulatedCluster,
        random: Random,
        *,
        threads: int,
        era: Era = Era.BEFORE_0_17,
        first_in_rack: bool = True,
        consider_load: bool = True,
    ) -> None:
        super().__init__(cluster, threads)
        self._random = random
        self._era = era
        self._first_in_rack = first_in_rack
        self._consider_load = consider_load
        self._load: Sequence[int] = [0] * cluster.hosts

    def observe(self, view: ClusterLoad) -> None:
        """Take the heartbeats: the number of open chunks of every host."""
        self._load = tuple(view.open_chunks)

    def place(self, job: SimulatedJob, chunk: int) -> tuple[int, ...]:
        """Targets by the rules, in the order of the pipeline; for a read, any host that has the chunk."""
        if job.kind is TransferKind.READ:
            return (self._source(job, chunk), job.host)
        if job.kind is TransferKind.COPY:
            source = self._source(job, chunk)
            return (source, self._pick(None, None, {*job.sources[chunk]}))
        chosen: list[int] = []
        for replica in range(job.replicas):
            near, far = self._racks(job.host, chosen, replica)
            chosen.append(self._pick(near, far, {job.host, *chosen}))
        return (job.host, *self._pipeline(job.host, chosen))

    def _racks(self, writer: int, chosen: Sequence[int], replica: int) -> tuple[int | None, int | None]:
        """The rack that a replica must be in, and the rack that it must not be in; None: no rule."""
        rack_of = self.cluster.topology.rack_of
        if replica == 0:
            return (rack_of[writer] if self._first_in_rack else None), None
        if replica == 1:
            return None, rack_of[chosen[0]]
        if replica == 2:
            if rack_of[chosen[0]] == rack_of[chosen[1]]:
                return None, rack_of[chosen[0]]
            return rack_of[chosen[0] if self._era is Era.BEFORE_0_17 else chosen[1]], None
        return None, None

    def _pick(self, near: int | None, far: int | None, excluded: set[int]) -> int:
        """A random host: of the right rack and not highly loaded; else any not highly loaded; else of the right rack;
        else any.
        """
        hosts = [host for host in range(self.cluster.hosts) if host not in excluded and host not in self.lost]
        rack_of = self.cluster.topology.rack_of
        wanted = [host for host in hosts if (near is None or rack_of[host] == near) and rack_of[host] != far]
        for candidates in (self._idle_enough(wanted), self._idle_enough(hosts), wanted, hosts):
            if candidates:
                return self._random.choice(candidates)
        raise ValueError("fewer hosts than replicas: ask for fewer replicas")

    def _idle_enough(self, hosts: Iterable[int]) -> list[int]:
        limit = LOAD_LIMIT * sum(self._load) / self.cluster.hosts
        return [host for host in hosts if not self._consider_load or self._load[host] <= limit]

    def _pipeline(self, writer: int, chosen: Sequence[int]) -> list[int]:
        """The pipeline's order: each next host is the nearest (same rack first); ties in the order of choice."""
        rack_of = self.cluster.topology.rack_of
        left, order, at = list(chosen), [], writer
        while left:
            at = min(left, key=lambda host: rack_of[host] != rack_of[at])
            left.remove(at)
            order.append(at)
        return order

    def _source(self, job: SimulatedJob, chunk: int) -> int:
        """A host that has the chunk: one in the reader's rack if there is one, as HDFS sorts them."""
        rack_of = self.cluster.topology.rack_of
        alive = [host for host in job.sources[chunk] if host not in self.lost]
        if not alive:
            raise ValueError(f"chunk {chunk} of {job.name!r}: no source is left")
        near = [host for host in alive if job.host >= 0 and rack_of[host] == rack_of[job.host]]
        return self._random.choice(near or alive)


def hdfs_default(
    threads: int, *, era: Era = Era.BEFORE_0_17, first_in_rack: bool = True, consider_load: bool = True
) -> PolicyMaker:
    """HDFS's default placement with `threads` writing threads per client."""

    def make(cluster: SimulatedCluster, random: Random) -> HdfsDefault:
        return HdfsDefault(
            cluster, random, threads=threads, era=era, first_in_rack=first_in_rack, consider_load=consider_load
        )

    return PolicyMaker("HDFS default", make)
