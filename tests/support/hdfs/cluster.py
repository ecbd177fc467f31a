"""A real HDFS on one machine: a NameNode and any number of DataNodes in racks, each a small JVM with its own address.

    with HdfsCluster(directory, loopback_nodes(4, racks=2)) as hdfs:
        hdfs.webhdfs_url, hdfs.plan_url, hdfs.plan_token

Invariants:
* Whatever happens (an error, Ctrl-C, kill -9 of this program), every process that was started and every byte that was
  stored is gone afterwards: a keeper process watches over both.
* `nodes` never changes; which of them live is asked of the NameNode.
"""

import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from scheduler.hdfs.errors import HdfsError
from tests.support.hdfs.launch import ADMIN, Daemon, Keeper, Runtime, environment, java_command
from tests.support.hdfs.layout import (
    NAMENODE_HEAP_MB,
    NameNodePlace,
    Node,
    loopback,
    loopback_nodes,
    network,
    start_datanode,
    start_namenode,
    write_layout,
)
from tests.support.hdfs.logs import Allocation, Receipt, allocations, receipts, travelled
from tests.support.hdfs.probe import State, state, wait_state
from tests.support.hdfs.runtime import hadoop
from tests.support.limits import PATIENCE_S

__all__ = ["ClusterOptions", "HdfsCluster", "Node", "loopback_nodes", "network"]

READY_S = float(PATIENCE_S)
ADMIN_S = float(PATIENCE_S)
AT_ONCE = 2
"""DataNodes that start beside the NameNode; the others wait until it listens, or their first try fails and waits."""


@dataclass(frozen=True)
class ClusterOptions:
    """How a cluster differs from the usual.

    `namenode_address` and `namenode_wrapper`: where the NameNode listens and runs (None: a loopback address of its
    own); `settings` add to and replace those of `layout.SETTINGS`; `ready_s`: how long a start may take.
    """

    namenode_address: str | None = None
    namenode_wrapper: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    ready_s: float = READY_S


class HdfsCluster:
    """See the module. `directory`: where a directory for the cluster is made, None: the system's temporary one."""

    def __init__(
        self,
        directory: Path | None,
        nodes: Sequence[Node],
        options: ClusterOptions | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        names = [node.name for node in nodes]
        if not names or len(set(names)) != len(names):
            raise HdfsError(f"nodes={names}: at least one DataNode is needed, and their names must differ")
        if len({node.address for node in nodes}) != len(nodes):
            raise HdfsError("two DataNodes have one address: HDFS knows a DataNode by its address")
        self.nodes = tuple(nodes)
        self.options = options or ClusterOptions()
        self.plan_token = secrets.token_hex(16)
        self.start_seconds = 0.0
        self._parent = directory
        self._runtime = runtime
        self._directory: Path | None = None
        self._keeper: Keeper | None = None
        self._daemons: dict[str, Daemon] = {}
        address = self.options.namenode_address or loopback(0)
        self._place = NameNodePlace.choose(address, self.options.namenode_wrapper)

    # ---- what users ask

    @property
    def webhdfs_url(self) -> str:
        """The NameNode's HTTP address, for `hdfs.InsecureClient`."""
        return f"http://{self._place.address}:{self._place.http_port}"

    @property
    def plan_url(self) -> str:
        """The plan table, for `PlanTable`."""
        return f"http://{self._place.address}:{self._place.plan_port}"

    @property
    def directory(self) -> Path:
        """Where logs and data lie, while the cluster runs."""
        if self._directory is None:
            raise HdfsError("the cluster does not run")
        return self._directory

    @property
    def addresses(self) -> dict[str, str]:
        """Address by name of DataNode."""
        return {node.name: node.address for node in self.nodes}

    def state(self) -> State | None:
        """The NameNode's own view; None while it does not answer."""
        return state(self.webhdfs_url)

    def pid(self, name: str) -> int:
        """The process of a DataNode, or of `namenode`."""
        return self._daemons[name].pid

    def placements(self) -> dict[str, list[list[str]]]:
        """For each file, for each block that the NameNode's log says it allocated: the DataNodes in pipeline order."""
        found: dict[str, list[list[str]]] = {}
        for block in self._allocations():
            found.setdefault(block.path, []).append([self._name(where) for where in block.replicas])
        return found

    def travels(self) -> dict[str, list[list[str]]]:
        """The same from the DataNodes' logs: who says that it received the block, in the order it went.

        An empty list where the logs contradict each other: a block that was repaired, or copied anew.
        """
        arrivals: dict[str, list[Receipt]] = {}
        for arrival in self._receipts():
            arrivals.setdefault(arrival.block, []).append(arrival)
        found: dict[str, list[list[str]]] = {}
        for block in self._allocations():
            way = travelled(block.block, arrivals.get(block.block, ()))
            found.setdefault(block.path, []).append([self._name(f"{where}:") for where in way])
        return found

    def _allocations(self) -> Iterator[Allocation]:
        return allocations((self.directory / "namenode.log").read_text(errors="replace"))

    def _receipts(self) -> list[Receipt]:
        logs = (self.directory / f"datanode-{node.name}.log" for node in self.nodes)
        return [arrival for log in logs if log.exists() for arrival in receipts(log.read_text(errors="replace"))]

    def _name(self, where: str) -> str:
        address = where.rpartition(":")[0]
        return next((node.name for node in self.nodes if node.address == address), address)

    # ---- life

    def __enter__(self) -> "HdfsCluster":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self._directory is not None:
            for daemon in self._daemons.values():
                error.add_note(f"--- the end of {daemon.log.name}\n{daemon.tail(12)}")
        self.stop()

    def start(self) -> None:
        """Bring everything up; returns when all DataNodes are registered. Raises HdfsError with the logs' ends."""
        if self._runtime is None:
            self._runtime = hadoop()
        started = time.monotonic()
        if self._parent is not None:
            self._parent.mkdir(parents=True, exist_ok=True)
        self._directory = Path(tempfile.mkdtemp(prefix="hdfs-", dir=self._parent)).absolute()
        self._keeper = Keeper(self._directory)
        write_layout(self._directory, self._place, self.nodes, self.options.settings, self.plan_token)
        if self._runtime.archives is not None:
            shutil.copytree(self._runtime.archives / "name", self._directory / "name")
        self._start_namenode()
        for node in self.nodes[:AT_ONCE]:
            self.start_node(node.name, wait=False)
        wait_state(self.webhdfs_url, lambda _: True, [*self._daemons.values()], self.options.ready_s, "NameNode")
        for node in self.nodes[AT_ONCE:]:
            self.start_node(node.name, wait=False)
        self.wait_ready()
        self.start_seconds = time.monotonic() - started

    def stop(self) -> None:
        """Kill all processes and remove the cluster's directory; may be called again."""
        for daemon in self._daemons.values():
            daemon.kill()
        self._daemons.clear()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def wait_ready(self) -> None:
        """Wait until every DataNode that runs can take blocks and the NameNode has left safe mode."""
        up = {node.address for node in self.nodes if node.name in self._daemons}
        self.wait(lambda seen: up <= set(seen.live) and not seen.safe_mode, f"{len(up)} DataNodes ready")

    def wait(self, wanted: Callable[[State], bool], what: str) -> State:
        """Wait until the NameNode's view is as wanted. Raises HdfsError."""
        return wait_state(self.webhdfs_url, wanted, [*self._daemons.values()], self.options.ready_s, what)

    # ---- faults

    def kill(self, name: str) -> None:
        """Kill -9 a DataNode, or `namenode`."""
        daemon = self._daemons.pop(name, None)
        if daemon is None:
            raise HdfsError(f"{name!r} does not run; there are {', '.join(self._daemons)}")
        daemon.kill()

    def start_node(self, name: str, *, wait: bool = True) -> None:
        """Start a DataNode (again), with what it had stored."""
        node = next((node for node in self.nodes if node.name == name), None)
        if node is None or name in self._daemons:
            raise HdfsError(f"{name!r}: no such DataNode, or it runs already")
        seen = self.state()
        before = seen.live.get(node.address) if seen else None
        self._daemons[name] = start_datanode(self._running(), self.directory, node)
        if wait:
            # Its ports are new ones: only the one that was killed is known by the old.
            self.wait(lambda seen: seen.live.get(node.address, before) != before, f"{name} registered")
            self.wait_ready()

    def restart_namenode(self, *, wait: bool = True) -> None:
        """Kill -9 the NameNode (if it runs) and start it again; its plan table is empty afterwards."""
        if "namenode" in self._daemons:
            self.kill("namenode")
        self._start_namenode()
        if wait:
            self.wait_ready()

    def admin(self, *arguments: str) -> str:
        """What `hdfs dfsadmin ARGUMENTS` prints. Raises HdfsError if it fails."""
        command = java_command(self._running(), self.directory, "admin", ADMIN, NAMENODE_HEAP_MB, arguments)
        try:
            done = subprocess.run(
                [*self._place.wrapper, *command],
                capture_output=True,
                text=True,
                timeout=ADMIN_S,
                check=False,
                cwd="/",
                env=environment(self.directory),
            )
        except subprocess.TimeoutExpired as error:
            raise HdfsError(f"dfsadmin {' '.join(arguments)}: no end after {ADMIN_S:.0f} s") from error
        if done.returncode != 0:
            raise HdfsError(f"dfsadmin {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    # ---- parts

    def _running(self) -> Runtime:
        if self._runtime is None:
            raise HdfsError("the cluster does not run")
        return self._runtime

    def _start_namenode(self) -> None:
        self._daemons["namenode"] = start_namenode(self._running(), self.directory, self._place)
