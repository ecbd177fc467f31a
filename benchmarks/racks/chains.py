"""The experiment with the chunk server: chains of real bytes into real files.

Invariant: a run counts only if every acknowledged chunk lies whole in the file of every host of its chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.racks.experiment import Experiment
from benchmarks.racks.hosts import HostFailed, Hosts
from benchmarks.racks.links import measure
from benchmarks.racks.network import Network
from benchmarks.racks.setting import Setting
from scheduler.simulation.run import ChunkRun


class Chains(Experiment):
    """Chunk servers on all hosts."""

    def prepare(self) -> None:
        """Delete all chunks."""
        self.hosts.ask_all("clear")

    def begin_at(self, at_s: float) -> None:
        """Memories are full, as after a run before."""
        self.hosts.ask_all("fill", at_s=at_s)

    def check(self, chunks: Sequence[ChunkRun]) -> list[ChunkRun]:
        """See Experiment: every acknowledged chunk must lie whole on every host of its chain. Raises HostFailed."""
        held = {name: list(files.values()) for name, files in self.hosts.ask_all("files").items()}
        wanted = dict.fromkeys(self.names, 0)
        for chunk in chunks:
            if chunk.acked:
                for host in chunk.hosts[1:]:
                    wanted[self.names[host]] += 1
        for name, lengths in held.items():
            if lengths != [self.setting.chunk_bytes] * wanted[name]:
                raise HostFailed(f"{name}: {wanted[name]} chunks were acknowledged, but files have {lengths} bytes")
        return list(chunks)


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
