"""A cluster of real sidecar processes on one machine, with an etcd of its own: started, killed, paused, wiped, cut off.

    with Cluster(directory) as cluster:
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
        cluster["a"].kill()

`network` (network.py) says how the hosts reach each other; without it they are on loopback addresses, and nothing can
be cut between them.

Invariants: nothing listens where other machines reach it. At the end of the context every process is gone. A host keeps
its addresses over restarts. Needs `etcd` in the PATH (Debian's `etcd-server`), and the extra `cluster`.
"""

import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from logstore.testing.network import HostPlace, Loopback, Network, NotStarted

__all__ = ["Cluster", "ClusterHostProcess", "Etcd", "NotStarted"]
PATIENCE_S = 60.0
"""For a process to start or to end, on a loaded machine."""


class _Process:
    """A process with a log file, and signals."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log_path = log
        self._process: subprocess.Popen[str] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started and not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        if self._process is None:
            raise NotStarted(f"{self.name} does not run")
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def _launch(self, command: Sequence[str]) -> subprocess.Popen[str]:
        log: IO[str]
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own programs
                command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
            )
        return self._process

    def kill(self) -> None:
        """SIGKILL: no chance to write anything down. Nothing is left of the process."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        return self._end(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: its connections stay open and are silent."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


class Etcd(_Process):
    """One etcd process."""

    def __init__(self, directory: Path, endpoint: str, peer: str) -> None:
        super().__init__("etcd", directory / "etcd.log")
        self._directory = directory / "etcd"
        self.endpoint = endpoint
        self._peer = f"http://{peer}"

    def start(self) -> None:
        """Start it. Raises NotStarted if there is no etcd here."""
        etcd = shutil.which("etcd")
        if etcd is None:
            raise NotStarted("no etcd is installed: apt-get install etcd-server")
        client = f"http://{self.endpoint}"
        self._launch(
            [
                etcd, "--name", "e", "--data-dir", str(self._directory), "--logger", "zap",
                "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer,
                "--initial-cluster", f"e={self._peer}", "--log-outputs", str(self.log_path),
            ]
        )  # fmt: skip


class ClusterHostProcess(_Process):
    """One sidecar of the cluster."""

    def __init__(self, name: str, directory: Path, place: HostPlace, flags: Sequence[str]) -> None:
        super().__init__(name, directory / f"{name}.log")
        self.data_dir = directory / name
        self.address = place.kafka
        self.port = int(place.kafka.rpartition(":")[2])
        self._wrapper = place.wrapper
        self._flags = [
            *("--cluster", f"etcd://{place.etcd}", "--host-name", name, "--peer-listen", place.peer_listen),
            *("--peer-advertise", place.peer_advertise, *place.flags, *flags),
        ]

    def start(self) -> None:
        """Start it, and wait until it is ready. Raises NotStarted."""
        self.begin()
        self.wait_ready()

    def begin(self) -> None:
        """Start it, without waiting."""
        command = [sys.executable, "-m", "logstore.cli", "serve", "--data-dir", str(self.data_dir)]
        self._launch([*self._wrapper, *command, "--kafka", self.address, *self._flags])

    def wait_ready(self) -> None:
        """Wait until it says that it is ready. Raises NotStarted."""
        process = self._process
        if process is None or process.stdout is None:
            raise NotStarted(f"host {self.name} was not begun")
        readable, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        line = process.stdout.readline() if readable else ""
        if not line.startswith("cairn ready"):
            self.kill()
            raise NotStarted(f"host {self.name} did not start: {line!r}\n{self.log[-4000:]}")

    def wipe(self) -> None:
        """Replace its disk by an empty one; it must not run."""
        if self.is_running:
            raise NotStarted(f"host {self.name} runs: stop it before its disk is replaced")
        shutil.rmtree(self.data_dir, ignore_errors=True)


class Cluster:
    """See the module. `flags` are further flags of every host."""

    def __init__(
        self, directory: Path, names: Sequence[str] = ("a", "b", "c"), *flags: str, network: Network | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.network = network or Loopback()
        self.network.plan(names)
        self.etcd = Etcd(directory, *self.network.etcd)
        self.hosts = {
            name: ClusterHostProcess(name, directory, self.network.place(name), ["--node-id", str(number), *flags])
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
