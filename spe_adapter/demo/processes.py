"""The demonstration's processes: started in sessions of their own, killed whole.

Invariants: `kill` sends SIGKILL to every process of the session, whatever groups they have made (Spark's Python daemon
makes one), and returns when the one we started is gone; nothing outlives `stop_all`.
"""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

STOP_S = 20.0
POLL_S = 0.05
_SESSION_FIELD = 3
"""Of /proc/PID/stat, behind the name in parentheses."""


class Killable:
    """A process with everything that it starts."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.lines: queue.Queue[str] = queue.Queue()
        """What it printed; an empty string says that it has ended."""
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            env={**os.environ, **environment},
        )
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, stdout: IO[str] | None) -> None:
        if stdout is not None:
            with stdout:
                for line in stdout:
                    self.lines.put(line)
        self.lines.put("")

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL for the whole session."""
        for pid in _session_members(self._process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it was faster
        self._finish()

    def stop(self) -> None:
        """Ask it to end, and insist."""
        if self.is_running:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):  # if it does not listen: the kill below
                self._process.wait(STOP_S)
        self.kill()

    def _finish(self) -> None:
        self._process.wait(STOP_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._reader.join(STOP_S)
        self._log.close()


def _session_members(session: int) -> list[int]:
    """Processes of a session; the leader last, so that no process is adopted unseen."""
    members: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[_SESSION_FIELD]) == session:
            members.append(int(entry.name))
    return sorted(members, key=lambda pid: pid == session)


def wait_until_ended(pid: int, limit_s: float) -> bool:
    """Wait until a process that is no child of ours has ended; False: it is still there after `limit_s`."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(POLL_S)
    return False


def sidecar_command(data_dir: Path, port: int) -> list[str]:
    """How the demonstration starts a sidecar."""
    return [sys.executable, "-m", "logstore.cli", "serve", "--data-dir", str(data_dir), "--kafka", f"127.0.0.1:{port}"]
