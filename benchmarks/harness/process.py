"""Server processes: starting, waiting until they listen, stopping, killing.

Invariants:
* A process is only ever signalled through the handle of the one that started it.
* A server's output goes to a file, never to a pipe that nobody drains.
* `stop` and `kill` leave nothing behind: they wait for the end of the process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

POLL_SECONDS = 0.01
"""Between two looks at whether a server listens; small against the shortest start that is measured."""
STOP_SECONDS = 30.0


class PeerFailed(RuntimeError):
    """A server ended before it served, or did not serve in time; the message ends with its log's last lines."""


class Peer(Protocol):
    """A server under measurement: Cairn or Kafka."""

    @property
    def name(self) -> str:
        """How tables call it."""
        ...

    @property
    def port(self) -> int:
        """Where it speaks the Kafka protocol, on 127.0.0.1."""
        ...

    @property
    def pid(self) -> int:
        """Its process."""
        ...

    @property
    def data_path(self) -> Path:
        """Where its files are."""
        ...

    def start(self) -> None:
        """Start it and return at once."""
        ...

    def wait_serving(self, timeout_seconds: float = 60.0) -> None:
        """Until it accepts connections."""
        ...

    def stop(self) -> None:
        """A clean shutdown."""
        ...

    def kill(self) -> None:
        """kill -9."""
        ...


class ServerProcess:
    """One server's process and its log file."""

    def __init__(self, command: Sequence[str], log_path: Path, environment: Mapping[str, str] | None = None) -> None:
        self._command = list(command)
        self._log_path = log_path
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process's id; PeerFailed when it does not run."""
        if self._process is None:
            raise PeerFailed(f"not started: {self._command[0]}")
        return self._process.pid

    def start(self) -> None:
        """Start it; its output is appended to the log file."""
        if self._process is not None:
            raise PeerFailed(f"already started: {self._command[0]}")
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self._environment
            )

    def wait_listening(self, port: int, timeout_seconds: float) -> None:
        """Until somebody accepts connections on `port`; PeerFailed if the process ends first or time runs out."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            if self._process is not None and self._process.poll() is not None:
                raise PeerFailed(f"ended with {self._process.returncode} before it served:\n{self.log_tail()}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise PeerFailed(f"not serving on {port} after {timeout_seconds} s:\n{self.log_tail()}") from None
                time.sleep(POLL_SECONDS)
            else:
                return

    def log_tail(self, lines: int = 30) -> str:
        """The last lines that the server wrote."""
        if not self._log_path.exists():
            return ""
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """SIGTERM and wait; SIGKILL when that takes longer than STOP_SECONDS."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL and wait."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
