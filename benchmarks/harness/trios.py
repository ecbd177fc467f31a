"""Clusters of three hosts on loopback: Cairn's sidecars with an etcd, and Kafka's brokers, behind one interface.

Invariants:
* Hosts are known by their node numbers, 1 to 3, in both.
* What a host keeps of a topic is measured by the same rule: the bytes of its files.
* Three brokers are three controllers too: three hosts are all that there is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

from benchmarks.harness.kafka import KafkaPeer, Quorum, new_cluster_id
from logstore.testing.cluster import Cluster
from logstore.testing.ports import free_ports

NODES = (1, 2, 3)


class Trio(Protocol):
    """Three hosts under measurement."""

    name: str

    def start(self, stack: ExitStack) -> None:
        """Start all; they are ended with the stack."""
        ...

    def ports(self) -> list[int]:
        """Where those that run listen."""
        ...

    def pids(self) -> dict[int, int]:
        """The processes of those that run, by node."""
        ...

    def kill(self, node: int) -> None:
        """kill -9."""
        ...

    def stop(self, node: int) -> None:
        """SIGTERM, and wait for its end."""
        ...

    def wipe(self, node: int) -> None:
        """Give a host that does not run an empty disk."""
        ...

    def begin(self, node: int) -> None:
        """Start it, and return at once."""
        ...

    def wait_ready(self, node: int) -> None:
        """Until it serves."""
        ...

    def kept_bytes(self, node: int, topic: str) -> int:
        """The bytes of records that a host's files hold; of one topic, where files tell topics apart."""
        ...


class CairnTrio:
    """Three sidecars and an etcd. `host_flags`: further flags of single hosts, `a`, `b` and `c`."""

    def __init__(self, directory: Path, host_flags: Mapping[str, Sequence[str]] | None = None) -> None:
        self.name = "Cairn"
        self._cluster = Cluster(directory / "cairn", host_flags=host_flags)

    def start(self, stack: ExitStack) -> None:
        """See Trio."""
        stack.enter_context(self._cluster)

    def ports(self) -> list[int]:
        """See Trio."""
        return [host.port for host in self._cluster if host.is_running]

    def pids(self) -> dict[int, int]:
        """See Trio."""
        return {node: host.pid for node in NODES if (host := self._cluster.by_node(node)).is_running}

    def kill(self, node: int) -> None:
        """See Trio."""
        self._cluster.by_node(node).kill()

    def stop(self, node: int) -> None:
        """See Trio."""
        self._cluster.by_node(node).stop()

    def wipe(self, node: int) -> None:
        """See Trio."""
        self._cluster.by_node(node).wipe()

    def begin(self, node: int) -> None:
        """See Trio."""
        self._cluster.by_node(node).begin()

    def wait_ready(self, node: int) -> None:
        """See Trio."""
        self._cluster.by_node(node).wait_ready()

    def kept_bytes(self, node: int, topic: str) -> int:
        """See Trio. The folders of replicas have topics' ids, not their names: all topics count."""
        return file_bytes(self._cluster.by_node(node).data_dir / "replicas")


class KafkaTrio:
    """Three nodes of Kafka, each broker and controller, with Kafka's defaults."""

    def __init__(self, directory: Path) -> None:
        self.name = "Kafka"
        controllers = tuple(free_ports(len(NODES)))
        cluster_id = new_cluster_id()
        self._peers: dict[int, KafkaPeer] = {}
        for node in NODES:
            home = directory / f"kafka-{node}"
            home.mkdir(parents=True)
            self._peers[node] = KafkaPeer(home, quorum=Quorum(node, controllers, cluster_id))
        self._running: set[int] = set()

    def start(self, stack: ExitStack) -> None:
        """See Trio."""
        for node in NODES:
            self.begin(node)
            stack.callback(self.kill, node)
        for node in NODES:
            self.wait_ready(node)

    def ports(self) -> list[int]:
        """See Trio."""
        return [self._peers[node].port for node in sorted(self._running)]

    def pids(self) -> dict[int, int]:
        """See Trio."""
        return {node: self._peers[node].pid for node in sorted(self._running)}

    def kill(self, node: int) -> None:
        """See Trio."""
        self._running.discard(node)
        self._peers[node].kill()

    def stop(self, node: int) -> None:
        """See Trio."""
        self._running.discard(node)
        self._peers[node].stop()

    def wipe(self, node: int) -> None:
        """See Trio."""
        shutil.rmtree(self._peers[node].data_path)

    def begin(self, node: int) -> None:
        """See Trio."""
        self._peers[node].start()
        self._running.add(node)

    def wait_ready(self, node: int) -> None:
        """See Trio."""
        self._peers[node].wait_serving()

    def kept_bytes(self, node: int, topic: str) -> int:
        """See Trio."""
        return file_bytes(self._peers[node].data_path, f"{topic}-")


def file_bytes(directory: Path, prefix: str = "") -> int:
    """The sizes of the logs in a directory's folders whose names begin so, together; what goes meanwhile does not
    count. It is asked for again and again beside what is measured, so it costs no more than the kernel's answers.
    """
    size = 0
    with suppress(FileNotFoundError), os.scandir(directory) as folders:
        for folder in folders:
            if folder.name.startswith(prefix):
                size += _log_bytes(folder.path)
    return size


def _log_bytes(folder: str) -> int:
    size = 0
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as files:
        for file in files:
            if file.name.endswith(".log"):
                with suppress(FileNotFoundError):
                    size += file.stat().st_size
    return size


TRIOS: dict[str, Callable[[Path], Trio]] = {"Cairn": CairnTrio, "Kafka": KafkaTrio}
