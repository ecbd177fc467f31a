"""Coordinators for tests and benchmarks: `running` in a thread of this process, `CoordinatorProcess` as a process.

Invariant: threads and processes that are started here have ended when their context ends.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

import trio

from logstore.base.addresses import Address
from logstore.base.events import ignore
from logstore.base.system import SystemClock
from scheduler.coordinator.metadata.interface import BlockingMetadata
from scheduler.coordinator.planners import make_planner
from scheduler.coordinator.running import RunningCoordinator, ServeSettings, opened, serve
from scheduler.coordinator.service import CoordinatorEnvironment, CoordinatorSettings
from scheduler.peace.online import GATHER_MS, Settings
from scheduler.topology import Topology

DEADLINE_S = 300.0
"""The time limit of a start or a stop; a busy machine needs seconds."""


@contextmanager
def running(
    topology: Topology,
    *,
    planner: str | None = None,
    settings: CoordinatorSettings | None = None,
    data_dir: Path | None = None,
    seed: int = 0,
    port: int = 0,
    **scheduling: Any,
) -> Iterator[str]:
    """A coordinator in a thread of this process; gives its URL. `port`: 0 for any that is free.

    `scheduling`: settings of the online scheduler, such as `mode` or `finish_fraction`. Without `data_dir` its state
    goes to a temporary directory.
    """
    chosen = settings or CoordinatorSettings(scheduler=Settings(**{"gather_ms": GATHER_MS, **scheduling}))
    served = ServeSettings(Address("127.0.0.1", port), chosen)
    with ExitStack() as stack:
        directory = data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coordinator-")))
        metadata = stack.enter_context(opened(directory))
        clock = SystemClock()
        environment = CoordinatorEnvironment(topology, make_planner(planner, topology), clock, Random(seed), ignore)  # noqa: S311
        yield stack.enter_context(in_thread(environment, metadata, served))


@contextmanager
def in_thread(
    environment: CoordinatorEnvironment, metadata: BlockingMetadata, settings: ServeSettings
) -> Iterator[str]:
    """Serve in a thread; gives the URL. Raises the error that prevents the start."""
    thread = _Thread(environment, metadata, settings)
    thread.start()
    try:
        scheme = "http" if settings.security.tls is None else "https"
        yield f"{scheme}://{thread.address()}"
    finally:
        thread.stop()


class _Thread(threading.Thread):
    """An event loop with one coordinator on it."""

    def __init__(
        self, environment: CoordinatorEnvironment, metadata: BlockingMetadata, settings: ServeSettings
    ) -> None:
        super().__init__(name="coordinator", daemon=True)
        self._parts = (environment, metadata, settings)
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._over: trio.Event | None = None
        self._running: RunningCoordinator | None = None
        self._failure: BaseException | None = None

    def run(self) -> None:
        """The thread."""
        try:
            trio.run(self._main)
        except BaseException as failure:  # noqa: BLE001  handed to the thread that waits for it
            self._failure = failure
        finally:
            self._ready.set()

    def address(self) -> Address:
        """Wait until it serves; returns the address. Raises the error that prevents the start."""
        self._ready.wait(DEADLINE_S)
        if self._failure is not None:
            raise self._failure
        if self._running is None:
            raise TimeoutError("the coordinator did not start")
        return self._running.address

    def stop(self) -> None:
        """Drain and end. Raises the error of the thread, if there is one."""
        if self._token is not None and self._over is not None:
            # The loop may have ended by itself, even between the check of the thread and this call.
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._over.set)
        self.join(DEADLINE_S)
        if self._failure is not None and self._running is not None:
            raise self._failure

    async def _main(self) -> None:
        self._token, self._over = trio.lowlevel.current_trio_token(), trio.Event()
        async with trio.open_nursery() as nursery:
            self._running = await nursery.start(serve, *self._parts)
            self._ready.set()
            await self._over.wait()
            await self._running.drain()


class CoordinatorProcess:
    """One `cairn coordinate` on a data directory. Its port stays the same over restarts."""

    def __init__(self, topology_file: Path, data_dir: Path, *flags: str, port: int = 0) -> None:
        self.topology_file = topology_file
        self.data_dir = data_dir
        self.flags: Sequence[str] = flags
        self.port = port
        self._process: subprocess.Popen[str] | None = None
        self._stderr = tempfile.NamedTemporaryFile(mode="w+", prefix="cairn-stderr-", suffix=".log")  # noqa: SIM115

    def __enter__(self) -> "CoordinatorProcess":
        """Start it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it if it still runs; print its log if the context failed."""
        if self._process is not None:
            self.kill()
        if error is not None:
            sys.stderr.write(f"---- coordinator said ----\n{self.log()[-20_000:]}")
        self._stderr.close()

    @property
    def url(self) -> str:
        """The URL of the coordinator."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id."""
        if self._process is None:
            raise RuntimeError("the coordinator is not running")
        return self._process.pid

    def log(self) -> str:
        """Everything that it wrote to standard error."""
        return Path(self._stderr.name).read_text(encoding="utf-8")

    def start(self) -> None:
        """Start it and wait until its log says that it is ready. Raises RuntimeError with the log if it is not."""
        command = [sys.executable, "-m", "logstore.cli", "coordinate", "--topology", str(self.topology_file)]
        command += ["--data-dir", str(self.data_dir), "--listen", f"127.0.0.1:{self.port}", *self.flags]
        root = str(Path(__file__).resolve().parents[2])
        environment = {**os.environ, "PYTHONPATH": root, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(  # noqa: S603  our own command
            command, stdout=subprocess.PIPE, stderr=self._stderr, text=True, env=environment
        )
        stdout = self._process.stdout
        readable = select.select([stdout], [], [], DEADLINE_S)[0] if stdout is not None else []
        line = stdout.readline() if stdout is not None and readable else ""
        if not line.startswith("cairn ready"):
            self.kill()
            raise RuntimeError(f"the coordinator did not start: {line!r}\n{self.log()}")
        self.port = int(line.split("coordinator=")[1].split()[0].rsplit(":", 1)[1])

    def kill(self) -> None:
        """Send SIGKILL: it cannot store anything more."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """SIGTERM, a clean shutdown; returns the exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        if process is None:
            raise RuntimeError("the coordinator is not running")
        process.send_signal(number)
        status = process.wait(DEADLINE_S)
        if process.stdout is not None:
            process.stdout.close()
        self._process = None
        return status
