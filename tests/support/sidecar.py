"""A real sidecar process for tests: started, killed and restarted as its users' would be."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from logstore.testing.ports import free_port
from tests.support.limits import PATIENCE_S
from tests.support.programs import PYTHON_PATH

ROOT = Path(__file__).resolve().parents[2]


class Sidecar:
    """One `cairn serve` on a data directory, with a listener of `protocol`. Its port stays the same over restarts; 0:
    a port that nobody else is given meanwhile.
    """

    def __init__(self, data_dir: Path, *flags: str, port: int = 0, protocol: str = "PLAINTEXT") -> None:
        self.data_dir = data_dir
        self.flags: Sequence[str] = flags
        self.port = port or free_port()
        self.protocol = protocol
        self.environment: Mapping[str, str] = {}
        """More for its environment, from the next start on."""
        self.ready_line = ""
        self._process: subprocess.Popen[str] | None = None
        self._stderr = tempfile.NamedTemporaryFile(mode="w+", prefix="cairn-stderr-", suffix=".log")  # noqa: SIM115

    def __enter__(self) -> Sidecar:
        """Start it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it if it still runs; show what it said if the test failed."""
        if self._process is not None:
            self.kill()
        if error is not None:
            sys.stderr.write(f"---- sidecar said ----\n{self.log()}")
        self._stderr.close()

    @property
    def address(self) -> str:
        """HOST:PORT of its Kafka listener."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def process(self) -> subprocess.Popen[str]:
        """Its process."""
        if self._process is None:
            raise RuntimeError("the sidecar is not running")
        return self._process

    def log(self) -> str:
        """Everything it has written to standard error."""
        return Path(self._stderr.name).read_text()

    def command(self) -> list[str]:
        """How it is started."""
        command = [sys.executable, "-m", "logstore.cli", "serve", "--data-dir", str(self.data_dir)]
        return [*command, "--kafka", f"{self.protocol}://127.0.0.1:{self.port}", *self.flags]

    def start(self) -> None:
        """Start it and wait until it says that it is ready. Raises RuntimeError with its log if it does not."""
        self.begin()
        self.wait_ready()

    def begin(self) -> None:
        """Start it, without waiting."""
        environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, "PYTHONUNBUFFERED": "1", **self.environment}
        self._process = subprocess.Popen(
            self.command(), stdout=subprocess.PIPE, stderr=self._stderr, text=True, env=environment
        )

    def wait_ready(self) -> None:
        """Wait until it says that it is ready. Raises RuntimeError with its log if it does not."""
        stdout = self.process.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], PATIENCE_S)
        line = stdout.readline() if readable else ""
        if not line.startswith("cairn ready"):
            self.kill()
            raise RuntimeError(f"the sidecar did not start: {line!r}\n{self.log()}")
        self.ready_line = line
        self.port = int(line.split("kafka=")[1].split()[0].rsplit(":", 1)[1])

    def kill(self) -> None:
        """SIGKILL: no chance to write anything down."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """SIGTERM, a clean shutdown; returns the exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process = self.process
        process.send_signal(number)
        status = process.wait(PATIENCE_S)
        if process.stdout is not None:
            process.stdout.close()
        self._process = None
        return status

    def restart(self) -> None:
        """Start it again on the same port."""
        self.start()
