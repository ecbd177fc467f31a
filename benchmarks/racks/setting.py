"""The paper's experiment at one tenth: its cluster, its checkpoints, and how this machine stands in for both.

A tenth of the bytes at a tenth of the rates takes the paper's seconds. Links are shaped; disks and clients are paced by
the paper's table 8 (scheduler.simulation.measured), or not at all.

Invariant: the simulator and the real cluster are given the same numbers from here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean

from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.measured import (
    GIGABIT_BYTES_S,
    HOST_CAPACITY,
    PAPER,
    PAPER_LINK_CAPACITY,
    RACKS,
    Curve,
    Physics,
    curve,
    link_capacity,
    paper_cluster,
)
from scheduler.simulation.scenario import SimulatedJob, checkpoints, spread_writers
from scheduler.topology import CHUNK_BYTES, Link, Topology

SCALE = 0.1
BYTES_PER_CHECKSUM = 512
"""HDFS takes block sizes that are multiples of this."""
MAX_USERS = 64
UNPACED = curve((1,), (1e6,), total=True)
"""A thousand GB/s: faster than anything here."""


@dataclass(frozen=True)
class Setting:
    """How much is written, and on what. `paced`: disks and clients as slow as the paper's, at `scale`.

    `overheads_s`: what chunks were measured to take besides their bytes.
    """

    writers: int = 16
    chunks: int = 8
    replicas: int = 3
    racks: tuple[int, ...] = RACKS
    scale: float = SCALE
    paced: bool = True
    chunk_bytes: int = int(CHUNK_BYTES * SCALE) // BYTES_PER_CHECKSUM * BYTES_PER_CHECKSUM
    overheads_s: tuple[float, ...] = ()

    @property
    def link_bytes_s(self) -> float:
        """A link's raw rate each way."""
        return GIGABIT_BYTES_S * self.scale

    @property
    def physics(self) -> Physics:
        """Table 8 at this scale; a host's memory holds as much of a chunk as the paper's hosts did."""
        if not self.paced:
            return replace(
                PAPER,
                disk_write=UNPACED,
                disk_read=UNPACED,
                client_write=UNPACED,
                client_read=UNPACED,
                cache_bytes=0.0,
                overheads_s=self.overheads_s,
            )
        return Physics(
            disk_write=_scaled(PAPER.disk_write, self.scale),
            disk_read=_scaled(PAPER.disk_read, self.scale),
            client_write=_scaled(PAPER.client_write, self.scale),
            client_read=_scaled(PAPER.client_read, self.scale),
            link_bytes_s=PAPER.link_bytes_s * self.scale,
            cache_bytes=PAPER.cache_bytes / CHUNK_BYTES * self.chunk_bytes,
            overheads_s=self.overheads_s,
        )

    @property
    def capacity(self) -> int:
        """Chunks that fill a link: its rate by the mean rate of one chain, rounded up, as in the simulated setup.

        A chain goes as fast as a host serves each of as many writers as it may receive from: by its disk, or unpaced
        by its link; and it sends nothing for what a chunk takes besides its bytes.
        """
        if self.paced:
            return link_capacity(PAPER)
        moving_s = HOST_CAPACITY * self.chunk_bytes / self.link_bytes_s
        besides_s = fmean(self.overheads_s) if self.overheads_s else 0.0
        return math.ceil(HOST_CAPACITY * (moving_s + besides_s) / moving_s)

    def cluster(
        self, hosts_bytes_s: Sequence[float] | None = None, between_bytes_s: float | None = None
    ) -> SimulatedCluster:
        """The cluster for planners and the simulator; rates as measured, or as they should be.

        Capacities: `capacity` on all links, and the two that a disk serves well to receive.
        """
        physics = replace(PAPER, link_bytes_s=self.physics.link_bytes_s)
        base = paper_cluster(self.capacity, send=self.capacity, receive=HOST_CAPACITY, physics=physics)
        rates = hosts_bytes_s or [self.physics.link_bytes_s] * len(base.servers)
        servers = [replace(server, link_bytes_s=rate) for server, rate in zip(base.servers, rates, strict=True)]
        links = [Link(link.source, link.target, link.capacity, link.cost, between_bytes_s) for link in base.links]
        topology = Topology(
            servers,
            links if between_bytes_s else base.links,
            switches=base.switches,
            name="the paper's cluster at one tenth",
            chunk_bytes=self.chunk_bytes,
        )
        return SimulatedCluster(topology, self.physics)

    def papers_cluster(self, cluster: SimulatedCluster) -> SimulatedCluster:
        """The same with the capacities that the paper planned with: two everywhere."""
        return self.with_capacities(cluster, HOST_CAPACITY, HOST_CAPACITY, PAPER_LINK_CAPACITY)

    def neighbours(self, cluster: SimulatedCluster) -> dict[str, SimulatedCluster]:
        """The same with other capacities than the calibrator's rule gives: on all links, or on all disks, one chunk
        less and one more.
        """
        return {
            f"{where}, {'one less' if step < 0 else 'one more'}": self.with_capacities(
                cluster,
                self.capacity + step * on_links,
                HOST_CAPACITY + step * (not on_links),
                self.capacity + step * on_links,
            )
            for where, on_links in (("links", True), ("disks", False))
            for step in (-1, 1)
        }

    def with_capacities(self, cluster: SimulatedCluster, send: int, receive: int, link: int) -> SimulatedCluster:
        """The same cluster, as planners know it with these capacities of hosts and of links between switches."""
        base = cluster.topology
        return SimulatedCluster(
            Topology(
                [replace(server, send=send, receive=receive) for server in base.servers],
                [replace(one, capacity=link) for one in base.links],
                switches=base.switches,
                name=base.name,
                chunk_bytes=base.chunk_bytes,
            ),
            cluster.physics,
        )

    def jobs(self, cluster: SimulatedCluster, seed: int) -> tuple[SimulatedJob, ...]:
        """Everybody's checkpoint, all at once; the seed says who writes."""
        return checkpoints(
            cluster, spread_writers(cluster, self.writers, Random(seed)), self.chunks, replicas=self.replicas
        )

    def totals(self, curve: Curve) -> list[float]:
        """A table of total rates for the chunk server, by number of users; empty when unpaced."""
        return [float(rate) for rate in curve.totals[:MAX_USERS]] if self.paced else []


def _scaled(curve: Curve, scale: float) -> Curve:
    return Curve(tuple((users, rate * scale) for users, rate in curve.points))
