"""The process that runs on each host: a chunk server, a writer, and a probe of the links, steered over its pipes.

`python -m benchmarks.racks.host NAME ADDRESS DIRECTORY`; one command per line of standard input, one answer per line
of standard output, both JSON. `start` has no answer but an event when its chunk has ended; many may be under way.

Invariants:
* A line is written whole.
* The end of standard input is the end of the process, so nothing outlives the program that started it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.racks.chunks import BLOCK_BYTES, Chunk, ChunkServer, Hop, send_chunk
from benchmarks.racks.pace import Pace, TotalRate
from benchmarks.racks.writer import write_one, write_planned
from scheduler.client import CoordinatorClient

PROBE_SECONDS = 20.0
"""Longest wait of a probe for its peer."""


class HostProcess:
    """One host's state: its server, its data to write, its probe."""

    def __init__(self, name: str, address: str, directory: Path) -> None:
        self.name = name
        self.address = address
        self._directory = directory
        self._server: ChunkServer | None = None
        self._disk = self._client = Pace(None, 0, time.monotonic, time.sleep)
        self.data = memoryview(b"")
        self._hops: dict[str, Hop] = {}
        self._probe: socket.socket | None = None
        self.commands: dict[str, Callable[..., Any]] = {
            "serve": self.serve,
            "know": self.know,
            "write_planned": self.write_planned,
            "files": self.files,
            "clear": self.clear,
            "fill": self.fill,
            "listen": self.listen,
            "receive": self.receive,
            "flood": self.flood,
            "usage": self.usage,
        }

    def serve(self, disk: list[float], client: list[float], ahead_bytes: float, chunk_bytes: int, seed: int) -> Hop:
        """Start the chunk server. `disk[n]`, `client[n]`: bytes/s of n writers in all; empty: unpaced."""
        self._disk = Pace(_total(disk), ahead_bytes, time.monotonic, time.sleep)
        self._client = Pace(_total(client), BLOCK_BYTES, time.monotonic, time.sleep)
        self.data = memoryview(Random(seed).randbytes(chunk_bytes))
        self._server = ChunkServer(self.name, self._directory, self._disk, (self.address, 0), log=_log)
        return self._server.hop

    def know(self, hops: Sequence[Sequence[Any]]) -> None:
        """Where everybody's chunk server is."""
        self._hops = {str(hop[0]): Hop(str(hop[0]), str(hop[1]), int(hop[2])) for hop in hops}

    def start(self, request: str, chunk: int, attempt: int, hosts: list[str]) -> None:
        """Begin to write one chunk through `hosts`, writer first; an event tells its end."""

        def write() -> None:
            sent = write_one(Chunk(request, chunk, attempt), tuple(hosts), self.send_chunk)
            say({"event": [request, sent]})

        threading.Thread(target=write, name=f"{request} {chunk}", daemon=True).start()

    def write_planned(self, request: str, chunks: int, replicas: int, at_s: float, url: str) -> dict[str, Any]:
        """Ask the coordinator at `url`, from the moment `at_s` on, and write as it says."""
        with CoordinatorClient(url) as coordinator:
            _sleep_until(at_s)
            submitted = time.monotonic()
            write = coordinator.submit(name=request, writer=self.name, chunks=chunks, replicas=replicas)
            sent = write_planned(request, write.goes(), self.send_chunk)
        return {"submitted_s": submitted, "sent": sent}

    def send_chunk(self, chunk: Chunk, hosts: Sequence[str]) -> None:
        """Send a chunk through `hosts`, this one first. Raises ChunkFailed."""
        send_chunk(chunk, self.data, [self._hops[name] for name in hosts[1:]], self._client)

    def files(self) -> dict[str, int]:
        """The chunks here, and their lengths."""
        return {path.name: path.stat().st_size for path in self._directory.iterdir()}

    def clear(self) -> None:
        """Delete all chunks."""
        for path in self._directory.iterdir():
            path.unlink()

    def fill(self, at_s: float) -> None:
        """The memory for written data is full at `at_s`, as after a run before."""
        self._disk.fill(at_s)

    def listen(self) -> int:
        """Open the probe's port."""
        self._probe = socket.socket()
        self._probe.settimeout(PROBE_SECONDS)
        self._probe.bind((self.address, 0))
        self._probe.listen(1)
        return int(self._probe.getsockname()[1])

    def receive(self, seconds: float) -> float:
        """Bytes/s that come from whoever connects, over `seconds` after a start that is not counted."""
        if self._probe is None:
            raise ValueError("receive: call listen first")
        with self._probe as probe, probe.accept()[0] as sock:
            sock.settimeout(PROBE_SECONDS)
            buffer = bytearray(BLOCK_BYTES)
            until = time.monotonic() + seconds / 2
            while time.monotonic() < until:
                if not sock.recv_into(buffer):
                    raise ConnectionError("the probe was cut")
            begin, count = time.monotonic(), 0
            while (now := time.monotonic()) < begin + seconds:
                got = sock.recv_into(buffer)
                if not got:
                    raise ConnectionError("the probe was cut")
                count += got
        return count / (now - begin)

    def flood(self, address: str, port: int) -> None:
        """Begin to send to a receiving probe, until it has enough."""
        sock = socket.create_connection((address, port), timeout=PROBE_SECONDS)

        def pour() -> None:
            block = bytes(BLOCK_BYTES)
            until = time.monotonic() + PROBE_SECONDS
            with sock:
                try:
                    while time.monotonic() < until:
                        sock.sendall(block)
                except OSError:
                    return  # it has enough

        threading.Thread(target=pour, name="probe", daemon=True).start()

    def usage(self) -> float:
        """CPU seconds of this process so far."""
        return sum(os.times()[:2])


def _total(rates: Sequence[float]) -> TotalRate | None:
    """A total rate from a table; beyond its end the total stays as it is."""
    if not rates:
        return None
    return lambda users: rates[min(users, len(rates) - 1)]


def _sleep_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))


_saying = threading.Lock()


def say(line: dict[str, Any]) -> None:
    """One line of standard output; threads take turns."""
    with _saying:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def obey(process: HostProcess) -> None:
    """Do what standard input says until it ends."""
    for line in sys.stdin:
        command = json.loads(line)
        do = command.pop("do")
        try:
            if do == "start":
                process.start(**command)
            else:
                say({"result": process.commands[do](**command)})
        except Exception as error:  # noqa: BLE001 - who asked must know
            say({"error": f"{process.name}: {do}: {type(error).__name__}: {error}"})
    os._exit(0)  # threads under way are not waited for


def main(arguments: Sequence[str]) -> None:
    """The process of a chain's host."""
    name, address, directory = arguments
    obey(HostProcess(name, address, Path(directory)))


if __name__ == "__main__":
    main(sys.argv[1:])
