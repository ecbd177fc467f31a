"""A small network to measure: hosts in network namespaces, behind two switches, every link shaped by `tc tbf`.

Everything is named with a prefix of ours and removed at the end; who comes while another run has the network waits for
its end. Addresses are from 198.18.0.0/15 (RFC 2544: tests).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO

PREFIX = "tpa"
SWITCH = f"{PREFIX}-switch"
"""The namespace of both switches; the calibrator runs there, beside the shaped links."""
SWITCH_ADDRESS = "198.18.77.254"
PORT = 9881
MB = 1_000_000


def why_not() -> str:
    """Why this machine or user cannot have the network; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} (iproute2) is not installed"
    name = f"try-{PREFIX}-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return "" if made.returncode == 0 else f"no network namespaces here: {made.stderr.strip()}"


class ShapedNetwork:
    """Racks of hosts. `hosts[name]`: rack (0 or 1), what it may send and receive, bytes/s; `between`: what the link
    from the first rack to the second carries, and the one back.
    """

    def __init__(self, hosts: dict[str, tuple[int, float, float]], between: tuple[float, float]) -> None:
        self.hosts = hosts
        self.between = between
        self._lock: IO[str] | None = None

    def __enter__(self) -> ShapedNetwork:
        self._lock = (Path(tempfile.gettempdir()) / f"{PREFIX}-network.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._clear()
            self._build()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def address(self, name: str) -> str:
        """A host's address."""
        return f"198.18.77.{list(self.hosts).index(name) + 1}"

    def _build(self) -> None:
        ip("netns", "add", SWITCH)
        for rack in (0, 1):
            ip("-n", SWITCH, "link", "add", f"br{rack}", "type", "bridge")
            ip("-n", SWITCH, "link", "set", f"br{rack}", "up")
        ip("-n", SWITCH, "link", "add", "over0", "type", "veth", "peer", "name", "over1")
        for rack in (0, 1):
            ip("-n", SWITCH, "link", "set", f"over{rack}", "master", f"br{rack}", "up")
            shape(SWITCH, f"over{rack}", self.between[rack])
        ip("-n", SWITCH, "addr", "add", f"{SWITCH_ADDRESS}/24", "dev", "br0")
        ip("-n", SWITCH, "link", "set", "lo", "up")
        for number, (name, (rack, send, receive)) in enumerate(self.hosts.items()):
            space, port = f"{PREFIX}-{name}", f"port{number}"
            ip("netns", "add", space)
            ip("-n", SWITCH, "link", "add", port, "type", "veth", "peer", "name", "data0", "netns", space)
            ip("-n", SWITCH, "link", "set", port, "master", f"br{rack}", "up")
            ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "data0")
            ip("-n", space, "link", "set", "data0", "up")
            ip("-n", space, "link", "set", "lo", "up")
            shape(space, "data0", send)
            shape(SWITCH, port, receive)

    def _clear(self) -> None:
        found = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
        ours = [line.split()[0] for line in found.splitlines() if line.startswith(f"{PREFIX}-")]
        for space in ours:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def ip(*words: str) -> None:
    """Run ip."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def shape(space: str, device: str, bytes_s: float) -> None:
    """What leaves a device, leaves it at this rate."""
    rate = f"{round(bytes_s * 8)}bit"
    words = ["qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "65536", "limit", str(1 << 20)]
    subprocess.run(["tc", "-n", space, *words], check=True, capture_output=True, text=True)


def cairn(*words: str | Path, space: str | None = None) -> list[str]:
    """The command line of `cairn topology …`, in a namespace."""
    inside = ["ip", "netns", "exec", space] if space else []
    return [*inside, sys.executable, "-m", "logstore.cli", "topology", *map(str, words)]


@contextmanager
def agents(commands: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Agents that run; the lines with which they said that they are ready. All are stopped at the end."""
    with ExitStack() as stack:
        running = []
        for command in commands:
            agent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.callback(agent.wait, 20)
            stack.callback(agent.terminate)
            if agent.stdout is not None:
                stack.callback(agent.stdout.close)
            running.append(agent)
        yield [agent.stdout.readline() if agent.stdout else "" for agent in running]
