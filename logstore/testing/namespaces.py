"""A network namespace for each host of a test cluster, joined by a switch; nft drops packets, tc slows them, as root.

    with Cluster(directory, network=NamespaceNetwork()) as cluster:
        cluster.network.cut("a", "b")

A cut here is what a cut is on a real network: nobody is told, and connections wait for answers that never come.

Invariants:
* All names of namespaces and interfaces begin with PREFIX and the number of the network, and are removed at the end.
* The switch is a namespace too: no firewall of the machine sees the frames between hosts.
* Rules are set inside namespaces, never on the machine itself. Clients reach each host at any time: what is dropped
  between etcd and a host is etcd's port alone.
* Addresses are from 198.19.0.0/16, which RFC 2544 sets apart for benchmarks. Links between hosts are encrypted, for
  sidecars ask for it on addresses other than loopback.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from logstore.testing.certificates import certificate_flags, make_certificates
from logstore.testing.network import ETCD, NetworkUnavailable
from logstore.testing.processes import Etcd, LocalHost, ProcessPlace

PREFIX: Final = "cct"
FIRST_NUMBER: Final = 16
NUMBERS: Final = 200
KAFKA_PORT, PEER_PORT, ETCD_PORT, ETCD_PEER_PORT = 9092, 9099, 2379, 2380
PROGRAMS: Final = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables", "openssl": "openssl"}
TABLE: Final = "inet faults"
NO_LIMIT_BYTES_S: Final = 1e9
MIN_BURST_BYTES: Final = 4_096
"""More than a packet: what is longer than the burst is dropped."""


def why_not() -> str | None:
    """Why this machine or user cannot have namespaces; None if one could be made."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            return f"no program {program}: apt-get install {package}"
    name = f"{PREFIX}-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)  # noqa: S603, S607
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)  # noqa: S603, S607
    return f"no network namespace can be made: {made.stderr.strip()}" if made.returncode else None


class NamespaceNetwork:
    """See the module."""

    def __init__(self) -> None:
        number = FIRST_NUMBER + os.getpid() % NUMBERS
        self._prefix = f"{PREFIX}{number}"
        self._switch = f"{self._prefix}-switch"
        self._subnet = f"198.19.{number}"
        self._names: list[str] = []
        self._folder = Path()
        self._is_made = False

    def plan(self, names: Sequence[str]) -> None:
        """See ClusterNetwork."""
        self._names = list(names)
        self._folder = Path(tempfile.mkdtemp(prefix="cairn-certificates-"))

    def start(self) -> None:
        """See ClusterNetwork."""
        problem = why_not()
        if problem:
            raise NetworkUnavailable(problem)
        self._is_made = True
        self._remove()
        make_certificates(self._folder, self._names)
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "bridge", "up")
        _run("ip", "link", "add", self._prefix, "type", "veth", "peer", "name", "machine", "netns", self._switch)
        _run("ip", "-n", self._switch, "link", "set", "machine", "master", "bridge", "up")
        _run("ip", "address", "add", f"{self._subnet}.1/24", "dev", self._prefix)
        _run("ip", "link", "set", self._prefix, "up")
        for name in self._names:
            space, wire = self._space(name), f"host{self._names.index(name)}"
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", wire, "netns", self._switch)
            _run("ip", "-n", self._switch, "link", "set", wire, "master", "bridge", "up")
            _run("ip", "-n", space, "address", "add", f"{self._address(name)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _run("ip", "-n", space, "link", "set", link, "up")
            self._inside(name, "nft", f"add table {TABLE}")
            for hook in ("input", "output"):
                self._inside(name, "nft", f"add chain {TABLE} {hook} {{ type filter hook {hook} priority 0; }}")

    def stop(self) -> None:
        """See ClusterNetwork."""
        if self._is_made:
            self._remove()
            self._is_made = False
        shutil.rmtree(self._folder, ignore_errors=True)

    def make_etcd(self, directory: Path) -> Etcd:
        """See ClusterNetwork."""
        return Etcd(directory, f"{self._subnet}.1:{ETCD_PORT}", f"{self._subnet}.1:{ETCD_PEER_PORT}")

    def make_host(self, name: str, directory: Path, flags: Sequence[str]) -> LocalHost:
        """See ClusterNetwork."""
        address = self._address(name)
        place = ProcessPlace(
            f"{address}:{KAFKA_PORT}",
            f"{address}:{PEER_PORT}",
            f"{address}:{PEER_PORT}",
            f"{self._subnet}.1:{ETCD_PORT}",
            ("--insecure", *certificate_flags(str(self._folder), name)),
            ("ip", "netns", "exec", self._space(name)),
        )
        return LocalHost(name, directory, place, flags)

    def cut(self, source: str, target: str) -> None:
        """See ClusterNetwork."""
        if source == ETCD:
            rule = f"input ip saddr {self._subnet}.1 tcp sport {ETCD_PORT}"
        elif target == ETCD:
            rule = f"output ip daddr {self._subnet}.1 tcp dport {ETCD_PORT}"
        else:
            rule = f"input ip saddr {self._address(source)}"
        self._inside(source if target == ETCD else target, "nft", f"add rule {TABLE} {rule} drop")

    def slow(self, source: str, target: str, *, delay_s: float = 0.0, bytes_s: float = 0.0) -> None:
        """See ClusterNetwork. Slows all that source sends, to whomever; a delay needs netem in the kernel."""
        if source == ETCD:
            raise NetworkUnavailable("etcd's link is the machine's own: slow what hosts send")
        self._inside(source, "tc", "qdisc", "replace", "dev", "eth0", "root", *shape(delay_s, bytes_s))

    def heal(self) -> None:
        """See ClusterNetwork."""
        for name in self._names:
            self._inside(name, "nft", f"flush table {TABLE}")
            subprocess.run(  # noqa: S603  no shell; there is nothing to remove where nothing was slow
                ["ip", "netns", "exec", self._space(name), "tc", "qdisc", "del", "dev", "eth0", "root"],  # noqa: S607
                capture_output=True, check=False,
            )  # fmt: skip

    def _address(self, name: str) -> str:
        if name not in self._names:
            raise NetworkUnavailable(f"{name!r} is not a host of this network: {', '.join((*self._names, ETCD))} are")
        return f"{self._subnet}.{10 + self._names.index(name)}"

    def _space(self, name: str) -> str:
        return f"{self._prefix}-host-{name}"

    def _inside(self, name: str, *command: str) -> None:
        self._address(name)
        _run("ip", "netns", "exec", self._space(name), *command)

    def _remove(self) -> None:
        for space in (*map(self._space, self._names), self._switch):
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)  # noqa: S603, S607
        subprocess.run(["ip", "link", "delete", self._prefix], capture_output=True, check=False)  # noqa: S603, S607


def shape(delay_s: float, bytes_s: float) -> Sequence[str]:
    """A queue of `tc` that delays packets, or lets so many bytes through a second (0: no limit), and at most a fiftieth
    of a second's at once.
    """
    if delay_s:
        rate = ("rate", f"{bytes_s * 8:.0f}bit") if bytes_s else ()
        return ("netem", "delay", f"{delay_s * 1000:.3f}ms", *rate)
    rate_bytes_s = bytes_s or NO_LIMIT_BYTES_S
    burst = max(MIN_BURST_BYTES, round(rate_bytes_s / 50))
    return ("tbf", "rate", f"{rate_bytes_s * 8:.0f}bit", "burst", str(burst), "latency", "500ms")


def _run(*command: str) -> None:
    """Raises NetworkUnavailable with what the command said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  no shell
    if done.returncode:
        raise NetworkUnavailable(f"{' '.join(command)}: {done.stderr.strip()}")
