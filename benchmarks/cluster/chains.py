"""The experiment with the chunk server: everybody's checkpoint at once, by a policy of the simulator's or by Peace.

A policy of the simulator (HDFS's default placement) decides here, as a NameNode would, and the hosts write. Under Peace
the writers themselves ask a real coordinator, over the control network. What comes out is the simulator's own `Run`, so
that both are measured with the same words.

Invariants:
* A run ends when every chunk has been acknowledged by its whole chain, and counts only if each lies whole in the file
  of every host of its chain.
* Before a run all files of the one before are gone and the real disk is quiet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks.cluster.hosts import HostFailed, Hosts, sent_from
from benchmarks.cluster.links import Rates, measure
from benchmarks.cluster.network import Network, drops
from benchmarks.cluster.setting import Setting
from benchmarks.cluster.writer import Sent
from scheduler.peace.plan import Kind
from scheduler.simulation.policies import Policy, PolicyMaker, Start, View
from scheduler.simulation.run import ChunkRun, RequestRun, Run
from scheduler.simulation.scenario import Job

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


class Chains:
    """The cluster of chunk servers, up and measured. Use `opened`."""

    def __init__(self, setting: Setting, network: Network, hosts: Hosts, rates: Rates) -> None:
        self.setting = setting
        self.rates = rates
        self._network = network
        self._hosts = hosts
        names = [host.name for host in network.hosts]
        self.cluster = setting.cluster([rates.hosts[name] for name in names], min(rates.between))

    def default(self, maker: PolicyMaker, seed: int) -> tuple[Run, Load]:
        """One run under a policy of the simulator."""
        jobs = self._prepare(seed)
        policy = maker.make(self.cluster, Random(seed))
        with self._watched() as load:
            sent, submitted = self._drive(policy, jobs)
        return self._run(maker.name, seed, jobs, sent, submitted), load[0]

    def peace(self, url: str, seed: int, name: str = PEACE) -> tuple[Run, Load]:
        """One run in which the writers ask the coordinator at `url`."""
        jobs = self._prepare(seed)
        hosts = self._names
        with self._watched() as load:
            at_s = time.monotonic() + START_DELAY_S
            own = {
                hosts[job.host]: {
                    "request": f"{name}-{seed}-{time.monotonic_ns()}-{job.host}",
                    "chunks": job.chunks,
                    "replicas": job.replicas,
                    "at_s": at_s,
                    "url": url,
                }
                for job in jobs
            }
            answers = self._hosts.ask_each(own, "write_planned", RUN_SECONDS)
        sent = {job.name: [sent_from(fields) for fields in answers[hosts[job.host]]["sent"]] for job in jobs}
        submitted = {job.name: float(answers[hosts[job.host]]["submitted_s"]) for job in jobs}
        return self._run(name, seed, jobs, sent, submitted), load[0]

    @property
    def _names(self) -> list[str]:
        return [server.name for server in self.cluster.topology.servers]

    def _prepare(self, seed: int) -> tuple[Job, ...]:
        self._hosts.ask_all("clear")
        os.sync()
        return self.setting.jobs(self.cluster, seed)

    def _drive(self, policy: Policy, jobs: Sequence[Job]) -> tuple[dict[str, list[Sent]], dict[str, float]]:
        """Let the policy decide until all is written."""
        names, begin = self._names, time.monotonic()
        open_chunks = [0] * len(names)
        under_way: dict[tuple[str, int], Start] = {}

        def begin_all(starts: Sequence[Start]) -> None:
            for start in starts:
                under_way[start.request, start.chunk] = start
                for host in start.hosts[1:]:
                    open_chunks[host] += 1
                chain = [names[host] for host in start.hosts]
                self._hosts.start(chain[0], start.request, start.chunk, start.attempt, chain)

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
            for request, chunk in self._hosts.events(observe_at - time.monotonic()):
                if chunk.error is not None:
                    raise HostFailed(f"chunk {chunk.chunk} of {request}: {chunk.error}")
                start = under_way.pop((request, chunk.chunk))
                for host in start.hosts[1:]:
                    open_chunks[host] -= 1
                sent[request].append(chunk)
                begin_all(policy.done(start, time.monotonic() - begin).start)
            if time.monotonic() >= observe_at:
                rates = np.zeros(self.cluster.resources)  # nobody measures links here; HDFS looks at open chunks alone
                policy.observe(View(time.monotonic() - begin, rates, tuple(open_chunks)))
                observe_at += sample_s
        return sent, submitted

    @contextmanager
    def _watched(self) -> Iterator[list[Load]]:
        """How busy the machine is meanwhile; the list has one entry afterwards."""
        own, dropped = sum(self._hosts.ask_all("usage").values()), drops(self._network)
        before, begin = psutil.cpu_times(), time.monotonic()
        found: list[Load] = []
        yield found
        after, seconds = psutil.cpu_times(), time.monotonic() - begin
        spent = sum(getattr(after, field) - getattr(before, field) for field in BUSY_FIELDS)
        own = sum(self._hosts.ask_all("usage").values()) - own
        found.append(Load(spent / seconds, own / seconds, drops(self._network) - dropped))

    def _check_files(self, run: Run) -> None:
        """Every acknowledged chunk must lie whole on every host of its chain. Raises HostFailed."""
        held = {name: list(files.values()) for name, files in self._hosts.ask_all("files").items()}
        wanted = dict.fromkeys(self._names, 0)
        for chunk in run.chunks:
            if chunk.acked:
                for host in chunk.hosts[1:]:
                    wanted[self._names[host]] += 1
        for name, lengths in held.items():
            if lengths != [self.setting.chunk_bytes] * wanted[name]:
                raise HostFailed(f"{name}: {wanted[name]} chunks were acknowledged, but files have {lengths} bytes")

    def _run(
        self,
        policy: str,
        seed: int,
        jobs: Sequence[Job],
        sent: dict[str, list[Sent]],
        submitted: dict[str, float],
    ) -> Run:
        """The simulator's words for what happened; times from the first submission."""
        begin = min(submitted.values())
        number = self.cluster.topology.index
        chunks, requests = [], []
        carried = np.zeros(self.cluster.resources)
        for job in jobs:
            own = sent[job.name]
            acked = {chunk.chunk for chunk in own if chunk.error is None}
            if acked != set(range(job.chunks)):
                missing = sorted(set(range(job.chunks)) - acked)
                errors = [chunk.error for chunk in own if chunk.error]
                raise HostFailed(f"{job.name}: chunks {missing} were never acknowledged: {errors[:3]}")
            for chunk in own:
                hosts = tuple(number[name] for name in chunk.hosts)
                good = chunk.error is None
                times = (chunk.go_s - begin, chunk.end_s - begin)
                chunks.append(ChunkRun(job.name, chunk.chunk, hosts, Kind.WRITE, *times, good))
                for use in self.cluster.uses(hosts, Kind.WRITE) if good else ():
                    carried[use.resource] += self.setting.chunk_bytes
            go, last = min(chunk.go_s for chunk in own), max(chunk.end_s for chunk in own)
            times3 = (submitted[job.name] - begin, go - begin, last - begin)
            requests.append(RequestRun(job.name, job.host, Kind.WRITE, *times3))
        run = Run(policy, seed, tuple(requests), tuple(chunks), carried)
        self._check_files(run)
        return run


@contextmanager
def opened(setting: Setting, network: Network, directory: Path) -> Iterator[Chains]:
    """Chunk servers on all hosts of a network that is up, and its links measured."""
    with Hosts(network.hosts, directory) as hosts:
        rates = measure(hosts)
        own: dict[str, dict[str, Any]] = {
            host.name: {
                "disk": setting.totals(setting.physics.disk_write),
                "client": setting.totals(setting.physics.client_write),
                "ahead_bytes": setting.physics.cache_bytes,
                "chunk_bytes": setting.chunk_bytes,
                "seed": number,
            }
            for number, host in enumerate(network.hosts)
        }
        hops = hosts.ask_each(own, "serve")
        hosts.ask_all("know", hops=[*hops.values()])
        yield Chains(setting, network, hosts, rates)
