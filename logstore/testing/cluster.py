"""A cluster of real sidecar processes on one machine, with an etcd of its own: started, killed, paused, wiped, cut off.

    with Cluster(directory) as cluster:
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
        cluster["a"].kill()

`network` (network.py) says how the hosts reach each other; without it they are on loopback addresses, and nothing can
be cut between them.

Invariants: nothing listens where other machines reach it. At the end of the context every process is gone. A host keeps
its addresses over restarts. Needs `etcd` in the PATH (Debian's `etcd-server`).
"""

import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from logstore.testing.network import ClusterNetwork, Loopback
from logstore.testing.processes import PATIENCE_S, ClusterHostProcess, NotStarted

__all__ = ["PATIENCE_S", "Cluster", "ClusterHostProcess", "NotStarted"]


class Cluster:
    """See the module. `flags` are further flags of every host, and `host_flags` those of single hosts, by name."""

    def __init__(
        self,
        directory: Path,
        names: Sequence[str] = ("a", "b", "c"),
        *flags: str,
        network: ClusterNetwork | None = None,
        host_flags: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        own = host_flags or {}
        if unknown := sorted(own.keys() - set(names)):
            raise ValueError(f"host_flags={unknown}: no hosts of this cluster, which has {', '.join(names)}")
        directory.mkdir(parents=True, exist_ok=True)
        self.network = network or Loopback()
        self.network.plan(names)
        self.etcd = self.network.make_etcd(directory)
        self.hosts = {
            name: self.network.make_host(name, directory, ["--node-id", str(number), *flags, *own.get(name, ())])
            for number, name in enumerate(names, 1)
        }

    def __enter__(self) -> "Cluster":
        """Start the etcd, then all hosts at once."""
        try:
            self.network.start()
            self.etcd.start()
            for host in self:
                host.begin()
            for host in self:
                host.wait_ready()
            self.wait_members()
        except BaseException:
            self._kill_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill what still runs; show what the hosts said if something failed."""
        self._kill_all()
        if error is not None:
            for host in self:
                sys.stderr.write(f"---- host {host.name} said ----\n{host.log[-20_000:]}")

    def wait_members(self) -> None:
        """Wait until every host that runs knows all that run. Raises NotStarted."""
        running = [host for host in self if host.is_running]
        deadline_s = time.monotonic() + PATIENCE_S
        for host in running:
            while (found := _brokers(host.address)) != len(running):
                if time.monotonic() > deadline_s:
                    raise NotStarted(f"host {host.name} knows {found} members, {len(running)} run")
                time.sleep(0.02)

    def _kill_all(self) -> None:
        for process in (*self, self.etcd):
            process.kill()
        self.network.stop()

    def __iter__(self) -> Iterator[ClusterHostProcess]:
        return iter(self.hosts.values())

    def __getitem__(self, name: str) -> ClusterHostProcess:
        return self.hosts[name]

    @property
    def bootstrap(self) -> str:
        """The addresses of all hosts, for clients."""
        return ",".join(host.address for host in self)

    def by_node(self, node_id: int) -> ClusterHostProcess:
        """The host that clients know by this number."""
        return list(self)[node_id - 1]


def _brokers(address: str) -> int:
    """How many brokers a host tells its clients of: Metadata 1, about no topics."""
    request = struct.pack(">hhihi", 3, 1, 0, -1, 0)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answer:
            (size,) = struct.unpack(">i", answer.read(4))
            return int.from_bytes(answer.read(size)[4:8], "big")
