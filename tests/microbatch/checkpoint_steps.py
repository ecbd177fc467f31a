"""Stands between the I/O services of hosts and their coordinator, and ends processes at chosen steps of a checkpoint.

A service asks the coordinator at each step, so its requests say how far a checkpoint is, and a request that is not
answered yet stops the checkpoint exactly there. The service is the one that tasks start, with nothing changed.

Invariants: faults happen in their order, each once, at the first request that shows the step; whoever is killed has
ended before the next request is looked at.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import psutil

from tests.support.limits import PATIENCE_S

CheckpointStep = Literal["frozen", "granted", "written", "sealed", "registered", "acknowledged", "removed"]


class Shown(NamedTuple):
    """The request that shows a step. `answered`: the coordinator has done what it asks, the service does not know."""

    method: str
    path: re.Pattern[str]
    answered: bool


_ONE: Final = re.compile(r"/v1/units/[^/]+/checkpoints/\d+")
SHOWN: Final[dict[CheckpointStep, Shown]] = {
    "frozen": Shown("POST", re.compile(r"/v1/requests"), False),
    "granted": Shown("POST", re.compile(r"/v1/requests"), True),
    "written": Shown("POST", re.compile(r"/v1/requests/[^/]+/chunks/\d+/done"), False),
    "sealed": Shown("PUT", _ONE, False),
    "registered": Shown("PUT", _ONE, True),
    "acknowledged": Shown("DELETE", _ONE, False),
    "removed": Shown("DELETE", _ONE, True),
}
"""The steps in order. `sealed`: there is a manifest, the registry does not know it; `acknowledged`: an older checkpoint
is about to go; `removed`: the registry has forgotten the older one, whose files are there.
"""
STEPS: Final[tuple[CheckpointStep, ...]] = tuple(SHOWN)


class StepFault(NamedTuple):
    """What ends at which step: the I/O service alone, or the whole host, with Spark."""

    victim: Literal["service", "host"]
    step: CheckpointStep


class SteppedCoordinator:
    """The coordinator at `url` as services see it, with faults. `kill_host` ends Spark with all that it started.
    `noted`: a file that grows with each service that was killed.
    """

    def __init__(self, url: str, faults: Sequence[StepFault], kill_host: Callable[[], None], noted: Path) -> None:
        self._noted = noted
        self._upstream = urlsplit(url).netloc
        self._waiting = list(faults)
        self._kill_host = kill_host
        self._lock = threading.Lock()
        self.fired: list[StepFault] = []

    def is_struck(self, method: str, path: str, port: int, *, answered: bool) -> bool:
        """Whether the sender of this request, whose end of the connection is `port`, was killed instead."""
        with self._lock:
            if not self._waiting:
                return False
            fault = self._waiting[0]
            shown = SHOWN[fault.step]
            if (shown.method, shown.answered) != (method, answered) or not shown.path.fullmatch(path):
                return False
            service = process_at(port)
            if service is None:
                return False  # it was killed with a request under way
            del self._waiting[0]
            self.fired.append(fault)
            kill(service)
            with self._noted.open("a") as target:
                target.write(f"{fault.step}\n")
            if fault.victim == "host":
                self._kill_host()
            return True

    def forwarded(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Status and content of the coordinator's answer."""
        upstream = HTTPConnection(self._upstream, timeout=PATIENCE_S)
        try:
            upstream.request(method, path, body or None, headers)
            answer = upstream.getresponse()
            return answer.status, answer.read()
        finally:
            upstream.close()


def process_at(port: int) -> int | None:
    """The process whose connection has this local port."""
    for connection in psutil.net_connections("tcp4"):
        if connection.laddr and connection.laddr.port == port and connection.pid not in (None, os.getpid()):
            return int(connection.pid)
    return None


def kill(process: int) -> None:
    """SIGKILL, and wait until the process is gone: a service holds a lock in its state directory."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    tick = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if not is_alive(process):
            return
        tick.wait(0.01)
    raise AssertionError(f"process {process} is still there")


def is_alive(process: int) -> bool:
    """Whether a process, which is nobody's child here, still runs."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@contextmanager
def stepped(coordinator: SteppedCoordinator) -> Iterator[str]:
    """Serve it in threads of this process; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        """Passes requests on."""

        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path, port = urlsplit(self.path).path, self.client_address[1]
            self.close_connection = True
            if coordinator.is_struck(self.command, path, port, answered=False):
                return
            try:
                status, content = coordinator.forwarded(self.command, self.path, dict(self.headers.items()), body)
                if coordinator.is_struck(self.command, path, port, answered=True):
                    return
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                self.close_connection = False
            except (OSError, HTTPException):
                return  # one end is gone: the other one sees a closed connection

        do_GET = do_POST = do_PUT = do_DELETE = _pass_on  # noqa: N815 - the names that the base class calls

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            """Nothing is said."""

    class Server(ThreadingHTTPServer):
        """A killed service's connections end with a reset, which is no news."""

        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Nothing is said of it."""
            if not isinstance(sys.exception(), ConnectionError):
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
