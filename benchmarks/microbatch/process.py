"""The Spark process from outside: start it, ask it, kill it.

Invariants:
* It is a session of its own, and `kill` ends all that it started, Python workers too, before it returns.
* Its log goes to a file, whose end is part of every error.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 30.0
ANSWER_SECONDS = 300.0
"""The slowest engine's slowest epoch takes a third of it."""


class DriverFailed(RuntimeError):
    """The Spark process ended or said that something failed; the message ends with its log's last lines."""


class SparkProcess:
    """A Spark with its queries."""

    def __init__(self, directory: Path, heap: str = "2g", settings: Mapping[str, str] | None = None) -> None:
        """It begins to start at once; `wait_ready` waits for it. `settings` are further ones of Spark."""
        directory.mkdir(parents=True, exist_ok=True)
        self._log_path = directory / "spark.log"
        command = [sys.executable, "-m", "benchmarks.microbatch.driver", "--directory", str(directory), "--heap", heap]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        for name, value in (settings or {}).items():
            command += ["--setting", f"{name}={value}"]
        environment = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
        self.began = time.time()
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment},
                cwd=ROOT,
                start_new_session=True,
                text=True,
            )

    def wait_ready(self) -> float:
        """The moment (Unix time) at which Spark stood."""
        return float(self.hear()["at"])

    def ask(self, do: str, **rest: Any) -> dict[str, Any]:
        """One command and its answer. Raises DriverFailed."""
        self.send(do, **rest)
        return self.hear()

    def send(self, do: str, **rest: Any) -> None:
        """A command whose answer is heard later, or never."""
        if self._process.stdin is None:
            raise DriverFailed("no way to talk to the Spark process")
        try:
            self._process.stdin.write(json.dumps({"do": do, **rest}) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise DriverFailed(f"the Spark process is gone: {error}\n{self._log_tail()}") from error

    def hear(self) -> dict[str, Any]:
        """The answer to the oldest command not yet heard. Raises DriverFailed, also when it takes too long."""
        if self._process.stdout is None:
            raise DriverFailed("no way to hear from the Spark process")
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(ANSWER_SECONDS):
                self.kill()  # or its answer would be taken for that to another question
                raise DriverFailed(f"no answer in {ANSWER_SECONDS:.0f} s:\n{self._log_tail()}")
        line = self._process.stdout.readline()  # one command at a time: nothing else can be in the buffer
        if not line:
            raise DriverFailed(f"the Spark process ended:\n{self._log_tail()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise DriverFailed(f"{answer['error'][:4000]}\n{self._log_tail()}")
        return answer

    def _log_tail(self, lines: int = 30) -> str:
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        """Let it end by itself, and kill what is left."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """kill -9 for the driver, the JVM and all Python workers, at once."""
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(self._process.pid)
            family = [own, *own.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(family, STOP_SECONDS)
        self._process.wait(STOP_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
