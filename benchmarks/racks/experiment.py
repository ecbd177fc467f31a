"""The experiment: everybody's checkpoint at once, by a policy of the simulator's, or as a real coordinator says.

A policy of the simulator (HDFS's default placement) decides here, as a NameNode would, and the hosts write. Under Peace
the writers themselves ask the coordinator, over the control network. What comes out is the simulator's own
`SimulatedRun`, so that both are measured with the same words. How a chunk travels, and
how its arrival is checked, depends on the kind of cluster: `chains` or `real_hdfs`.

Invariants:
* A run ends when every chunk has been acknowledged by its whole chain; one that never was is an error.
* A run counts only if what was acknowledged is found where it should lie.
* Before a run all files of the one before are gone and the real disk is quiet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import NamedTuple

import numpy as np
import psutil

from benchmarks.harness.disks import settle_disks
from benchmarks.racks.hosts import HostFailed, Hosts, sent_from
from benchmarks.racks.links import Rates
from benchmarks.racks.network import Network, drops
from benchmarks.racks.setting import Setting
from benchmarks.racks.writer import Sent
from scheduler.peace.plan import TransferKind
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.policies import ClusterLoad, PolicyMaker, SchedulingPolicy, Start
from scheduler.simulation.run import ChunkRun, RequestRun, SimulatedRun
from scheduler.simulation.scenario import SimulatedJob

START_DELAY_S = 0.3
"""Between the command to write and its beginning, so that all begin at once."""
RUN_SECONDS = 300.0
"""No run takes longer."""
PEACE = "Peace"
BUSY_FIELDS = ("user", "nice", "system", "irq", "softirq", "steal")


class Load(NamedTuple):
    """How busy the machine was: CPUs in use, by all and by the hosts' processes alone; frames that queues dropped."""

    busy_cpus: float
    own_cpus: float
    dropped: int


class Experiment:
    """A cluster that is up: its hosts, its links as measured."""

    def __init__(self, setting: Setting, network: Network, hosts: Hosts, rates: Rates) -> None:
        self.setting = setting
        self.rates = rates
        self.hosts = hosts
        self._network = network
        self._runs = 0
        self.cluster = self.cluster_of(rates)

    def cluster_of(self, rates: Rates) -> SimulatedCluster:
        """The cluster for planners and the simulator, with these rates of its links."""
        return self.setting.cluster([rates.hosts[host.name] for host in self._network.hosts], min(rates.between))

    def prepare(self) -> None:
        """Delete what the run before left."""
        raise NotImplementedError

    def own_cpu_s(self) -> float:
        """CPU seconds of the cluster's processes so far."""
        return sum(map(float, self.hosts.ask_all("usage").values()))

    def begin_at(self, at_s: float) -> None:
        """The run will begin at this moment."""

    def check(self, chunks: Sequence[ChunkRun]) -> list[ChunkRun]:
        """Whether everything lies where it was acknowledged; the chunks, with their true hosts. Raises HostFailed."""
        raise NotImplementedError

    def default(self, maker: PolicyMaker, seed: int) -> tuple[SimulatedRun, Load]:
        """One run under a policy of the simulator."""
        jobs = self._prepare(seed, maker.name)
        policy = maker.make(self.cluster, Random(seed))
        with self._watched() as load:
            sent, submitted = self._drive(policy, jobs)
        return self._run(maker.name, seed, jobs, sent, submitted), load[0]

    def peace(self, url: str, seed: int, name: str = PEACE) -> tuple[SimulatedRun, Load]:
        """One run in which the writers ask the coordinator at `url`."""
        jobs = self._prepare(seed, name)
        hosts = self.names
        with self._watched() as load:
            at_s = self._soon()
            own = {
                hosts[job.host]: {
                    "request": job.name,
                    "chunks": job.chunks,
                    "replicas": job.replicas,
                    "at_s": at_s,
                    "url": url,
                }
                for job in jobs
            }
            answers = self.hosts.ask_each(own, "write_planned", RUN_SECONDS)
        sent = {job.name: [sent_from(fields) for fields in answers[hosts[job.host]]["sent"]] for job in jobs}
        submitted = {job.name: float(answers[hosts[job.host]]["submitted_s"]) for job in jobs}
        return self._run(name, seed, jobs, sent, submitted), load[0]

    @property
    def names(self) -> list[str]:
        """The hosts, by number."""
        return [server.name for server in self.cluster.topology.servers]

    def _prepare(self, seed: int, policy: str) -> tuple[SimulatedJob, ...]:
        """A clean slate, and jobs whose names no other run has."""
        self.prepare()
        settle_disks()
        self._runs += 1
        jobs = self.setting.jobs(self.cluster, seed)
        return tuple(replace(job, name=f"{policy} {self._runs}: {job.name}") for job in jobs)

    def _soon(self) -> float:
        """The moment at which all begin."""
        at_s = time.monotonic() + START_DELAY_S
        self.begin_at(at_s)
        return at_s

    def _drive(
        self, policy: SchedulingPolicy, jobs: Sequence[SimulatedJob]
    ) -> tuple[dict[str, list[Sent]], dict[str, float]]:
        """Let the policy decide until all is written."""
        names, begin = self.names, self._soon()
        open_chunks = [0] * len(names)
        under_way: dict[tuple[str, int], Start] = {}

        def begin_all(starts: Sequence[Start]) -> None:
            for start in starts:
                under_way[start.request, start.chunk] = start
                for host in start.hosts[1:]:
                    open_chunks[host] += 1
                chain = [names[host] for host in start.hosts]
                self.hosts.start(chain[0], start.request, start.chunk, start.attempt, chain)

        time.sleep(max(0.0, begin - time.monotonic()))
        sent: dict[str, list[Sent]] = {job.name: [] for job in jobs}
        submitted: dict[str, float] = {}
        for job in jobs:
            submitted[job.name] = time.monotonic()
            begin_all(policy.submit(job, 0.0).start)
        sample_s = policy.sample_s or RUN_SECONDS
        observe_at = begin + sample_s
        while under_way:
            if time.monotonic() > begin + RUN_SECONDS:
                raise HostFailed(f"not all written in {RUN_SECONDS:g} s; still under way: {sorted(under_way)[:5]} …")
            for request, chunk in self.hosts.events(observe_at - time.monotonic()):
                if chunk.error is not None:
                    raise HostFailed(f"chunk {chunk.chunk} of {request}: {chunk.error}")
                start = under_way.pop((request, chunk.chunk))
                for host in start.hosts[1:]:
                    open_chunks[host] -= 1
                sent[request].append(chunk)
                begin_all(policy.done(start, time.monotonic() - begin).start)
            if time.monotonic() >= observe_at:
                rates = np.zeros(self.cluster.resources)  # nobody measures links here; HDFS looks at open chunks alone
                policy.observe(ClusterLoad(time.monotonic() - begin, rates, tuple(open_chunks)))
                observe_at += sample_s
        return sent, submitted

    @contextmanager
    def _watched(self) -> Iterator[list[Load]]:
        """How busy the machine is meanwhile; the list has one entry afterwards."""
        own, dropped = self.own_cpu_s(), drops(self._network)
        before, begin = psutil.cpu_times(), time.monotonic()
        found: list[Load] = []
        yield found
        after, seconds = psutil.cpu_times(), time.monotonic() - begin
        spent = sum(getattr(after, field) - getattr(before, field) for field in BUSY_FIELDS)
        own = self.own_cpu_s() - own
        found.append(Load(spent / seconds, own / seconds, drops(self._network) - dropped))

    def _run(
        self,
        policy: str,
        seed: int,
        jobs: Sequence[SimulatedJob],
        sent: dict[str, list[Sent]],
        submitted: dict[str, float],
    ) -> SimulatedRun:
        """The simulator's words for what happened; times from the first submission."""
        begin = min(submitted.values())
        number = self.cluster.topology.index
        chunks, requests = [], []
        for job in jobs:
            own = sent[job.name]
            acked = {chunk.chunk for chunk in own if chunk.error is None}
            if acked != set(range(job.chunks)):
                missing = sorted(set(range(job.chunks)) - acked)
                errors = [chunk.error for chunk in own if chunk.error]
                raise HostFailed(f"{job.name}: chunks {missing} were never acknowledged: {errors[:3]}")
            for chunk in own:
                hosts = tuple(number[name] for name in chunk.hosts)
                span = (chunk.go_s - begin, chunk.end_s - begin)
                chunks.append(ChunkRun(job.name, chunk.chunk, hosts, TransferKind.WRITE, *span, chunk.error is None))
            go, last = min(chunk.go_s for chunk in own), max(chunk.end_s for chunk in own)
            times = (submitted[job.name] - begin, go - begin, last - begin)
            requests.append(RequestRun(job.name, job.host, TransferKind.WRITE, *times))
        found = self.check(chunks)
        carried = np.zeros(self.cluster.resources)
        for one in found:
            for use in self.cluster.uses(one.hosts, TransferKind.WRITE) if one.acked else ():
                carried[use.resource] += self.setting.chunk_bytes
        return SimulatedRun(policy, seed, tuple(requests), tuple(found), carried)
