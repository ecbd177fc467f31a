"""Hosts with operators, and the burst: all checkpoint at once, by a policy, while the operators' epochs go on.

Invariants:
* A run has a quiet time first, the same as the burst but for the checkpoints: what epochs take without is measured on
  the same cluster, seconds before.
* A run counts only if every checkpoint was registered, and under Peace written as planned.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import psutil
from hdfs import InsecureClient

from benchmarks.burst.operating import Epoch
from benchmarks.harness.disks import settle_disks
from benchmarks.racks import real_hdfs
from benchmarks.racks.coordinator import coordinating
from benchmarks.racks.experiment import BUSY_FIELDS, Load
from benchmarks.racks.hdfs_host import USER
from benchmarks.racks.hosts import ANSWER_SECONDS, HostFailed, Hosts
from benchmarks.racks.network import Network, drops
from benchmarks.racks.setting import Setting
from scheduler.peace.online import Mode
from scheduler.simulation.run import SimulatedRun
from scheduler.simulation.scenario import spread_writers
from scheduler.topology import Topology
from spe_adapter.state.query import default_root

DEFAULT, OWN_DISK, PEACE = "HDFS default", "HDFS default, own disk allowed", "Peace"
WRITING: Final = "benchmarks.burst.writing"
OPERATING: Final = "benchmarks.burst.operating"
BUILD_SECONDS: Final = 300.0
BURST_SECONDS: Final = 300.0
AHEAD_S: Final = 1.0
"""Between the command to have epochs and the first one."""
SAMPLE_S: Final = 0.5


@dataclass(frozen=True)
class Work:
    """What operators do: `windows` in each one's state, an epoch every `every_s` with `updates`; `quiet_s`: how long
    without checkpoints, before a burst.
    """

    windows: int
    every_s: float
    updates: int
    quiet_s: float


class Nodes(NamedTuple):
    """What DataNodes took: CPUs each, mean and most; resident MB each, mean and most at any moment."""

    cpus_mean: float
    cpus_most: float
    resident_mb_mean: float
    resident_mb_most: float


class Burst(NamedTuple):
    """One run. `checkpoints` by host, as `BurstHost.checkpoint` tells; epochs in the quiet time and in the burst."""

    policy: str
    checkpoints: dict[str, dict[str, Any]]
    quiet: list[Epoch]
    during: list[Epoch]
    nodes_quiet: Nodes
    nodes: Nodes
    load: Load
    begin_s: float


class BurstCluster:
    """A cluster that is up, with operators whose state is built. Use `opened`."""

    def __init__(self, base: real_hdfs.RealHdfs, network: Network, operators: Hosts, work: Work) -> None:
        self.base = base
        self.work = work
        self._network = network
        self._operators = operators
        self._runs = 0
        self._client = InsecureClient(base.hdfs.webhdfs_url, user=USER, timeout=ANSWER_SECONDS)

    @property
    def topology(self) -> Topology:
        """The network that Peace plans on, with the hosts' addresses."""
        base, addresses = self.base.cluster.topology, self.base.hdfs.addresses
        return Topology(
            [replace(server, address=addresses[server.name]) for server in base.servers],
            base.links,
            switches=base.switches,
            name=base.name,
            chunk_bytes=base.chunk_bytes,
        )

    def calibrate(self, seed: int) -> None:
        """Measure what a chunk takes besides its bytes, for the capacities of links."""

        def write() -> tuple[SimulatedRun, Load]:
            with coordinating(self.base.cluster.topology, Mode.CONTINUOUS, seed) as url:
                return self.base.peace(url, seed)

        self.base.calibrate(write)

    def build(self) -> None:
        """Build every operator's state."""
        for host in self._network.hosts:
            self._operators.tell(host.name, "build", windows=self.work.windows)
        hdfs = self.base.hdfs
        own = {
            host.name: {
                "url": hdfs.webhdfs_url,
                "plan_url": hdfs.plan_url,
                "plan_token": hdfs.plan_token,
                "state": self._operators.hear(host.name, BUILD_SECONDS),
            }
            for host in self._network.hosts
        }
        self.base.hosts.ask_each(own, "watch")

    def burst(self, policy: str, seed: int) -> Burst:
        """A quiet time, then everybody's checkpoint at once. Raises HostFailed."""
        self._runs += 1
        root = f"/burst-{self._runs}"
        settle_disks()
        with coordinating(self.topology, Mode.CONTINUOUS, seed) as url:
            writers = self._writers(seed)
            begin_s = time.monotonic() + AHEAD_S
            self._begin_epochs(writers, begin_s)
            _wait_until(begin_s)
            nodes_quiet = self._watched_nodes(self.work.quiet_s)
            load = _Watch(self._network, self.base)
            at_s = time.monotonic() + 0.3
            own = {
                "at_s": at_s,
                "root": root,
                "coordinator": url,
                "replicas": self.base.setting.replicas,
                "planned": policy == PEACE,
                "own_disk": policy == OWN_DISK,
            }
            with _NodesWatch(self._pids()) as nodes:
                answers = self.base.hosts.ask_each(dict.fromkeys(writers, own), "checkpoint", BURST_SECONDS)
            measured = load.end()
            epochs = self._end_epochs(writers)
        self._check(policy, answers)
        self._client.delete(root, recursive=True)
        last_s = max(answer["registered_s"] for answer in answers.values())
        quiet = [epoch for epoch in epochs if epoch.end_s < at_s]
        during = [epoch for epoch in epochs if epoch.end_s >= at_s and epoch.due_s <= last_s]
        return Burst(policy, answers, quiet, during, nodes_quiet, nodes.found(), measured, at_s)

    def _writers(self, seed: int) -> list[str]:
        cluster = self.base.cluster
        chosen = spread_writers(cluster, self.base.setting.writers, Random(seed))
        return [self.base.names[host] for host in chosen]

    def _begin_epochs(self, writers: Sequence[str], begin_s: float) -> None:
        """Epochs of all hosts, spread over the interval as independent queries' are."""
        every_s = self.work.every_s
        own = {
            name: {
                "every_s": every_s,
                "updates": self.work.updates,
                "begin_s": begin_s + every_s * place / len(writers),
            }
            for place, name in enumerate(writers)
        }
        self._operators.ask_each(own, "run")

    def _end_epochs(self, writers: Sequence[str]) -> list[Epoch]:
        answers = self._operators.ask_each({name: {} for name in writers}, "rest")
        return [Epoch(*fields) for name in writers for fields in answers[name]]

    def _check(self, policy: str, answers: Mapping[str, Mapping[str, Any]]) -> None:
        if policy == PEACE:
            unplanned = {name: answer["lines"] for name, answer in answers.items() if not answer["planned"]}
            if unplanned:
                raise HostFailed(f"written without Peace's plan: {unplanned}")

    def _pids(self) -> list[int]:
        return [self.base.hdfs.pid(node.name) for node in self.base.hdfs.nodes]

    def _watched_nodes(self, seconds: float) -> Nodes:
        with _NodesWatch(self._pids()) as nodes:
            _wait_until(time.monotonic() + seconds)
        return nodes.found()


class _Watch:
    """How busy the machine is."""

    def __init__(self, network: Network, base: real_hdfs.RealHdfs) -> None:
        self._network, self._base = network, base
        self._own, self._dropped = base.own_cpu_s(), drops(network)
        self._before, self._begin = psutil.cpu_times(), time.monotonic()

    def end(self) -> Load:
        """The load since the start."""
        after, seconds = psutil.cpu_times(), time.monotonic() - self._begin
        spent = sum(getattr(after, field) - getattr(self._before, field) for field in BUSY_FIELDS)
        own = self._base.own_cpu_s() - self._own
        return Load(spent / seconds, own / seconds, drops(self._network) - self._dropped)


class _NodesWatch:
    """Samples the DataNodes' memory within a `with` block, and their processor time over it."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self._ended = threading.Event()
        self._resident: list[list[int]] = []
        self._thread = threading.Thread(target=self._sample, name="samples DataNodes", daemon=True)
        self._spent: list[float] = []
        self._seconds = 0.0

    def __enter__(self) -> _NodesWatch:
        self._spent = self._cpu_s()
        self._begin_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._seconds = time.monotonic() - self._begin_s
        self._spent = [after - before for before, after in zip(self._spent, self._cpu_s(), strict=True)]
        self._ended.set()
        self._thread.join()

    def found(self) -> Nodes:
        """What they took."""
        cpus = [spent / self._seconds for spent in self._spent]
        means = [sum(sample) / len(sample) / 1e6 for sample in self._resident]
        most = max(max(sample) for sample in self._resident) / 1e6
        return Nodes(sum(cpus) / len(cpus), max(cpus), sum(means) / len(means), most)

    def _cpu_s(self) -> list[float]:
        return [sum(process.cpu_times()[:2]) for process in self._processes]

    def _sample(self) -> None:
        while True:
            self._resident.append([process.memory_info().rss for process in self._processes])
            if self._ended.wait(SAMPLE_S):
                return


def _wait_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))


@contextmanager
def opened(setting: Setting, network: Network, directory: Path, work: Work) -> Iterator[BurstCluster]:
    """Operators, their writers and a real HDFS on all hosts of a network that is up. State lies in shared memory, as it
    does by default.
    """
    default_root().mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=default_root(), prefix="burst-") as states,
        real_hdfs.opened(setting, network, directory, WRITING) as base,
        Hosts(network.hosts, Path(states), OPERATING) as operators,
    ):
        yield BurstCluster(base, network, operators, work)
