"""The processes of a test cluster: an etcd and sidecars on this machine, which are started, killed, paused, wiped.

Invariant: a process that was killed or stopped is gone, with all that it had inherited.
"""

import http.client
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple, Protocol

PATIENCE_S: Final = 120.0
"""For a process to start or to end, on a loaded machine."""
POLL_S: Final = 0.02
LONE_ETCD: Final = ("--heartbeat-interval", "20", "--election-timeout", "200")
"""An etcd that has no other members elects itself, once the time of an election has passed: with its defaults that is
up to a second at its first start, and up to two when it starts again.
"""


class NotStarted(Exception):
    """A process did not start; the message has what it said."""


class NotEnded(Exception):
    """A process that was told to end went on; it was killed. The message has what it said."""


class ProcessPlace(NamedTuple):
    """Where a host listens and is reached, as HOST:PORT, and how its process is started."""

    kafka: str
    peer_listen: str
    peer_advertise: str
    etcd: str
    """Where it finds etcd."""
    flags: Sequence[str] = ()
    wrapper: Sequence[str] = ()
    """What stands in front of the command."""


class ClusterProcess(Protocol):
    """An etcd or a sidecar, wherever it runs."""

    name: str

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        ...

    @property
    def pid(self) -> int:
        """Its process id. Raises NotStarted."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether it is frozen."""
        ...

    @property
    def died(self) -> int | None:
        """The exit status of a process that ended without `kill` or `stop`; None if it runs, or was ended by them."""
        ...

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        ...

    def start(self) -> None:
        """Start it. Raises NotStarted."""
        ...

    def kill(self) -> int | None:
        """SIGKILL: no chance to write anything down. Nothing is left of the process. Returns the exit status, −9 if the
        process ran until then; None if there was no process.
        """
        ...

    def stop(self) -> int:
        """SIGTERM; returns the exit status. Raises NotEnded."""
        ...

    def pause(self) -> None:
        """Freeze it: its connections stay open and are silent. It stands still as a whole when this returns."""
        ...

    def go_on(self) -> None:
        """End the pause."""
        ...


class ClusterHostProcess(ClusterProcess, Protocol):
    """A sidecar, wherever it runs. `data_dir`: its directory, as this machine sees it."""

    address: str
    port: int
    data_dir: Path

    def begin(self) -> None:
        """Start it, without waiting."""
        ...

    def wait_ready(self) -> None:
        """Wait until it says that it is ready. Raises NotStarted."""
        ...

    def wipe(self) -> None:
        """Replace its disk by an empty one; it must not run."""
        ...


def freeze(pid: int) -> None:
    """Stop a process of ours. One thread takes the signal and tells the others, which may answer somebody until they
    hear of it: this returns when all stand still, or the process has ended.
    """
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def etcd_answers(endpoint: str, patience_s: float, is_running: Callable[[], bool]) -> bool:
    """Wait until the etcd at HOST:PORT has a leader and answers; False if it ends before, or takes too long."""
    deadline_s = time.monotonic() + patience_s
    while is_running() and time.monotonic() < deadline_s:
        connection = http.client.HTTPConnection(endpoint, timeout=patience_s)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == http.client.OK:
                return True
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(POLL_S)
    return False


class LocalProcess:
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
    def is_paused(self) -> bool:
        """Whether it is stopped by a signal, as the kernel says."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    @property
    def died(self) -> int | None:
        """See ClusterProcess."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def _launch(self, command: Sequence[str]) -> subprocess.Popen[str]:
        log: IO[str]
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()  # of one that ended by itself
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own programs
                command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
            )
        return self._process

    def kill(self) -> int | None:
        """See ClusterProcess."""
        return self._end(signal.SIGKILL)

    def stop(self) -> int:
        """See ClusterProcess."""
        return self._end(signal.SIGTERM) or 0

    def pause(self) -> None:
        """SIGSTOP: its connections stay open and are silent."""
        freeze(self.pid)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(number)
        try:
            return process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            said = f"{self.name} did not end within {PATIENCE_S:g} s of {number.name}, and was killed"
            raise NotEnded(f"{said}\n{self.log[-4000:]}") from error
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


class Etcd(LocalProcess):
    """One etcd process."""

    def __init__(self, directory: Path, endpoint: str, peer: str) -> None:
        super().__init__("etcd", directory / "etcd.log")
        self._directory = directory / "etcd"
        self.endpoint = endpoint
        self._peer = f"http://{peer}"

    def start(self) -> None:
        """Start it, and wait until it answers. Raises NotStarted, also if there is no etcd here."""
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
                *LONE_ETCD,
            ]
        )  # fmt: skip
        if not etcd_answers(self.endpoint, PATIENCE_S, lambda: self.is_running):
            raise NotStarted(f"etcd does not answer at {self.endpoint}\n{self.log[-4000:]}")


class LocalHost(LocalProcess):
    """One sidecar of the cluster."""

    def __init__(self, name: str, directory: Path, place: ProcessPlace, flags: Sequence[str]) -> None:
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
