"""The experiment with a real HDFS: a DataNode on every host, the NameNode on the control network, links as shaped.

Invariants:
* Where a chunk lies is read from the NameNode's own log; under Peace it must be the plan, in the plan's order.
* HDFS's default is that of this version, except that a writer's own DataNode is excluded. Disks are not paced.
* What a chunk takes besides its bytes is measured with chunks of one byte, before any run that it is held to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import psutil
from hdfs import InsecureClient

from benchmarks.racks.chunks import Chunk
from benchmarks.racks.experiment import Experiment, Load
from benchmarks.racks.hdfs_host import USER, chunk_path
from benchmarks.racks.hosts import ANSWER_SECONDS, HostFailed, Hosts
from benchmarks.racks.links import Rates, measure
from benchmarks.racks.network import CONTROL_ADDRESS, Network
from benchmarks.racks.setting import Setting
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.policies import PolicyMaker
from scheduler.simulation.policies.base import ThreadedClients
from scheduler.simulation.run import ChunkRun, SimulatedRun
from scheduler.simulation.scenario import SimulatedJob
from tests.support.hdfs.cluster import ClusterOptions, HdfsCluster, Node
from tests.support.hdfs.logs import allocations

READY_SECONDS = 240.0
"""18 JVMs start on two cores."""
PACKETS_IN_FLIGHT = 8
"""Of a chunk, between a client and its last DataNode: a tenth of HDFS's 80, for chunks of a tenth."""
MODULE = "benchmarks.racks.hdfs_host"
CALIBRATIONS = 2
"""The first has the capacity of a cluster whose chunks take nothing besides their bytes, the second that of the first.
"""


class HdfsChooses(ThreadedClients):
    """Clients with threads; the NameNode places."""

    def place(self, job: SimulatedJob, chunk: int) -> tuple[int, ...]:
        """The writer alone: the rest is not known here."""
        return (job.host,)


def hdfs_chooses(threads: int) -> PolicyMaker:
    """HDFS's own placement, with so many writing threads per client."""

    def make(cluster: SimulatedCluster, _: Random) -> HdfsChooses:
        return HdfsChooses(cluster, threads)

    return PolicyMaker("HDFS default", make)


class RealHdfs(Experiment):
    """A DataNode on every host. Use `opened`."""

    def __init__(self, setting: Setting, network: Network, hosts: Hosts, rates: Rates, hdfs: HdfsCluster) -> None:
        super().__init__(setting, network, hosts, rates)
        self.hdfs = hdfs
        self._folder = ""
        self._prepared = 0
        self._client = InsecureClient(hdfs.webhdfs_url, user=USER, timeout=ANSWER_SECONDS)
        self._write(setting.chunk_bytes)

    def calibrate(self, write: Callable[[], tuple[SimulatedRun, Load]]) -> None:
        """Measure what a chunk takes besides its bytes: `write` runs the experiment, with one byte in each chunk.

        As many chunks are under way at a time as there will be, so that they are in each other's way as much.
        """
        self._write(1)
        for _ in range(CALIBRATIONS):
            run, _ = write()
            took_s = tuple(round(chunk.end_s - chunk.start_s, 4) for chunk in run.chunks if chunk.acked)
            self.setting = replace(self.setting, overheads_s=took_s)
            self.cluster = self.cluster_of(self.rates)
        self._write(self.setting.chunk_bytes)

    def _write(self, chunk_bytes: int) -> None:
        """So many bytes a chunk from now on."""
        self.hosts.ask_all(
            "use",
            url=self.hdfs.webhdfs_url,
            plan_url=self.hdfs.plan_url,
            plan_token=self.hdfs.plan_token,
            addresses=self.hdfs.addresses,
            replicas=self.setting.replicas,
            chunk_bytes=chunk_bytes,
        )

    def prepare(self) -> None:
        """Delete the folder of the run before; the next has its own."""
        if self._folder:
            self._client.delete(f"/{self._folder}", recursive=True)
        self._prepared += 1
        self._folder = f"run-{self._prepared}"
        self.hosts.ask_all("begin", run=self._folder)

    def own_cpu_s(self) -> float:
        """See Experiment; with all JVMs."""
        names = ["namenode", *(node.name for node in self.hdfs.nodes)]
        spent = [psutil.Process(self.hdfs.pid(name)).cpu_times() for name in names]
        return super().own_cpu_s() + sum(times.user + times.system for times in spent)

    def check(self, chunks: Sequence[ChunkRun]) -> list[ChunkRun]:
        """See Experiment: replicas as the NameNode allocated them, and as planned where there was a plan."""
        log = (self.hdfs.directory / "namenode.log").read_text(errors="replace")
        number = {address: self.cluster.topology.index[name] for name, address in self.hdfs.addresses.items()}
        placed: dict[str, tuple[int, ...]] = {}
        for block in allocations(log):  # the last attempt's are the last
            file = block.path.rpartition(".")[0]
            placed[file] = tuple(number[replica.rpartition(":")[0]] for replica in block.replicas)
        found = []
        for chunk in chunks:
            if chunk.acked:
                file = chunk_path(self._folder, Chunk(chunk.request, chunk.chunk)).rpartition(".")[0]
                replicas = placed.get(file, ())
                if len(chunk.hosts) > 1 and chunk.hosts[1:] != replicas:
                    raise HostFailed(f"{file}: planned {chunk.hosts[1:]}, but the NameNode allocated {replicas}")
                chunk = chunk._replace(hosts=(chunk.hosts[0], *replicas))
            found.append(chunk)
        return found


@contextmanager
def opened(setting: Setting, network: Network, directory: Path, module: str = MODULE) -> Iterator[RealHdfs]:
    """A real HDFS on all hosts of a network that is up, and its links measured. Writers run `module`."""
    nodes = [Node(host.name, host.address, f"rack{host.rack}", host.wrapper) for host in network.hosts]
    options = ClusterOptions(
        namenode_address=CONTROL_ADDRESS,
        settings={"dfs.client.write.max-packets-in-flight": str(PACKETS_IN_FLIGHT)},
        ready_s=READY_SECONDS,
    )
    with Hosts(network.hosts, directory, module) as hosts:
        rates = measure(hosts)
        with HdfsCluster(directory, nodes, options) as hdfs:
            yield RealHdfs(setting, network, hosts, rates, hdfs)
