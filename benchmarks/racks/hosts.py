"""The processes on the hosts, as the benchmark sees them: started, asked, all at once, and ended.

Invariants:
* A command goes to a host only when its answer to the one before has been read; `start` has no answer, its events come
  whenever its chunk has ended.
* Every answer has a deadline; a host that ends or falls silent is an error that shows the end of its log.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from benchmarks.racks.network import Host
from benchmarks.racks.writer import Sent

ROOT = Path(__file__).parents[2]
START_SECONDS = 60.0
ANSWER_SECONDS = 60.0
END_SECONDS = 10.0


class HostFailed(RuntimeError):
    """A host's process answered with an error, ended, or did not answer in time."""


class Hosts:
    """A process on each host; a context manager that ends them."""

    def __init__(self, hosts: Sequence[Host], directory: Path, module: str = "benchmarks.racks.host") -> None:
        """Each runs `module` and keeps its files in a directory of its own below `directory`."""
        self.hosts = tuple(hosts)
        self._directory = directory
        self._module = module
        self._processes: dict[str, _Process] = {}

    def __enter__(self) -> Hosts:
        try:
            for host in self.hosts:
                self._processes[host.name] = _Process(host, self._directory, self._module)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.close()
        for process in self._processes.values():
            process.end()
        self._processes.clear()

    def ask(self, name: str, do: str, **arguments: Any) -> Any:
        """One host's answer."""
        return self.ask_each({name: arguments}, do)[name]

    def ask_all(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Everybody's answers to the same command."""
        return self.ask_each({host.name: arguments for host in self.hosts}, do)

    def ask_each(
        self, arguments: Mapping[str, Mapping[str, Any]], do: str, seconds: float = ANSWER_SECONDS
    ) -> dict[str, Any]:
        """The answers of some hosts, each to its own arguments; all work at once. Raises HostFailed."""
        for name, own in arguments.items():
            self.tell(name, do, **own)
        return {name: self.hear(name, seconds) for name in arguments}

    def tell(self, name: str, do: str, **arguments: Any) -> None:
        """Give a command; `hear` its answer before the next."""
        self._processes[name].tell({"do": do, **arguments})

    def hear(self, name: str, seconds: float = ANSWER_SECONDS) -> Any:
        """The answer to the last command. Raises HostFailed."""
        return self._processes[name].hear(seconds)

    def start(self, name: str, request: str, chunk: int, attempt: int, hosts: Sequence[str]) -> None:
        """Have a host begin to write a chunk through `hosts`; `events` tells its end."""
        self._processes[name].tell(
            {"do": "start", "request": request, "chunk": chunk, "attempt": attempt, "hosts": list(hosts)}
        )

    def events(self, seconds: float) -> list[tuple[str, Sent]]:
        """What has ended, waiting up to `seconds` for something: request and chunk. Raises HostFailed."""
        pipes = {process.pipe: process for process in self._processes.values()}
        ready = select.select(list(pipes), [], [], max(0.0, seconds))[0]
        ended = []
        for pipe in ready:
            for line in pipes[pipe].lines():
                request, sent = line["event"]
                ended.append((str(request), sent_from(sent)))
        return ended

    def pids(self) -> list[int]:
        """The processes, for who measures them."""
        return [process.pid for process in self._processes.values()]


def sent_from(fields: Sequence[Any]) -> Sent:
    """What JSON made a list of."""
    chunk, attempt, hosts, go_s, end_s, error = fields
    return Sent(int(chunk), int(attempt), tuple(map(str, hosts)), float(go_s), float(end_s), error)


class _Process:
    def __init__(self, host: Host, directory: Path, module: str) -> None:
        self._name = host.name
        own = directory / host.name
        own.mkdir(parents=True, exist_ok=True)
        self._log = directory / f"{host.name}.log"
        command = [*host.wrapper, sys.executable, "-m", module, host.name, host.address, str(own)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,  # Ctrl-C reaches the benchmark alone, which ends them in order
            )
        self._heard = bytearray()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, command: Mapping[str, Any]) -> None:
        pipe = self._process.stdin
        if pipe is None:
            raise HostFailed(f"{self._name}: no pipe")
        try:
            pipe.write(json.dumps(command).encode() + b"\n")
            pipe.flush()
        except OSError as error:
            raise self._failed(str(error)) from error

    @property
    def pipe(self) -> IO[bytes]:
        """Where it speaks."""
        if self._process.stdout is None:
            raise HostFailed(f"{self._name}: no pipe")
        return self._process.stdout

    def hear(self, seconds: float) -> Any:
        until = time.monotonic() + seconds
        while b"\n" not in self._heard:
            if not select.select([self.pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                raise self._failed(f"no answer in {seconds:g} s")
            self._listen()
        line, _, rest = bytes(self._heard).partition(b"\n")
        self._heard = bytearray(rest)
        return self._checked(line)["result"]

    def lines(self) -> list[Any]:
        """Every whole line that has come, after reading what is there."""
        self._listen()
        *lines, rest = bytes(self._heard).split(b"\n")
        self._heard = bytearray(rest)
        return [self._checked(line) for line in lines]

    def _listen(self) -> None:
        piece = os.read(self.pipe.fileno(), 1 << 16)
        if not piece:
            raise self._failed("it ended")
        self._heard += piece

    def _checked(self, line: bytes) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failed(answer["error"])
        return answer

    def close(self) -> None:
        """Close its input, which ends it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # it is gone already, and what was written to it with it
                    continue

    def end(self) -> None:
        """Wait until it has ended behind `close`; kill it if that does not help."""
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _failed(self, why: str) -> HostFailed:
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-10:])
        return HostFailed(f"{self._name}: {why}\n{tail}".rstrip())
