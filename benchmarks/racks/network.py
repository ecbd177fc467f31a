"""Racks of hosts in network namespaces, every link shaped by `tc htb`, and a control network beside them.

A host is a namespace with two interfaces. `data0` leads to its rack's bridge; both ends of that wire are shaped, so the
host's link has its rate each way. The racks' bridges are joined by one wire, shaped at both ends too. `ctl0` leads to a
bridge in the machine's own namespace and is not shaped: the coordinator and the NameNode are reached over it at
CONTROL_ADDRESS, and see the host under its one address, that of its data link.

A link's queue holds 84 ms of bytes, ten times what it would hold at full scale: the rate is a tenth, a frame is not. So
packets that carry next to nothing, acks above all, pass what waits there. Else acks wait behind the chunks of the
opposite direction, and connections, with no more under way than sockets take here, wait for them.

Invariants:
* All names begin with a prefix of our own, and whatever bears it is removed at the start and at the end.
* One network at a time: a second start is refused while a first one lives, and clears up after one that died.
* Addresses are from 198.18.0.0/15, which RFC 2544 sets apart for benchmarks.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

PREFIX = "cpr"
SWITCH = f"{PREFIX}-switch"
"""The namespace of the racks' bridges: no firewall of the machine sees their frames."""
CONTROL = f"{PREFIX}ctl"
CONTROL_ADDRESS = "198.19.0.1"
BURST_BYTES = 128 << 10
"""A frame with segmentation offload has up to 64 KiB; what does not fit into the burst is cut up at a price."""
QUEUE_BYTES = 1 << 20
"""A switch port's buffer: 84 ms at 12.5 MB/s, more than the windows of the chunk server's connections through it."""
QUANTUM_BYTES = 64 << 10
"""What a kind of packets sends when it is its turn: one frame of the largest."""
SMALL_MASK = 0xFF80
"""IP packets of less than 128 bytes, by the bits that their length has not: an ack of TCP has 52, of HDFS 90."""
SMALL_SHARE = 10
"""Small packets are sure of a tenth of a link; what they leave of it is the others'."""
SOCKET_BYTES = (4 << 10, 64 << 10, 256 << 10)
"""Least, usual and most of a socket's buffers where nothing else is set: most of a chunk of 6.7 MB stays outside."""
MAX_HOSTS_IN_RACK = 250
COMMAND_SECONDS = 60.0
_SOCKETS = " && ".join(
    f"echo {' '.join(map(str, SOCKET_BYTES))} > /proc/sys/net/ipv4/{setting}" for setting in ("tcp_rmem", "tcp_wmem")
)


class NetworkUnavailable(RuntimeError):
    """This machine or user cannot have the network; the message says what is missing."""


class Host(NamedTuple):
    """One host: its `name` as in the topology, its namespace, and its one address."""

    name: str
    rack: int
    namespace: str
    address: str

    @property
    def wrapper(self) -> tuple[str, ...]:
        """What in front of a command makes it run on this host."""
        return ("ip", "netns", "exec", self.namespace)


def hosts_in(sizes: Sequence[int]) -> tuple[Host, ...]:
    """The hosts of racks of these sizes, named `r1h1`, `r1h2`, … as in scheduler.topology.racks."""
    for size in sizes:
        if not 1 <= size <= MAX_HOSTS_IN_RACK:
            raise ValueError(f"a rack of {size} hosts: must be from 1 to {MAX_HOSTS_IN_RACK}")
    return tuple(
        Host(f"r{rack}h{host}", rack, f"{PREFIX}-r{rack}h{host}", f"198.18.{rack}.{host}")
        for rack, size in enumerate(sizes, 1)
        for host in range(1, size + 1)
    )


def why_not() -> str | None:
    """Why this machine or user cannot have the network; None if nothing is known against it."""
    if os.geteuid() != 0:
        return "network namespaces need root: run as root (sudo)"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"no command {tool!r}: install iproute2"
    return None


class Network:
    """A context manager: the network is there inside, and gone behind it. Raises NetworkUnavailable."""

    def __init__(self, sizes: Sequence[int], link_bytes_s: float, between_bytes_s: float | None = None) -> None:
        """`sizes[i]` hosts in rack i; raw rates of a host's link and of the wire between racks, bytes/s each way."""
        self.hosts = hosts_in(sizes)
        self.racks = len(sizes)
        self.link_bytes_s = link_bytes_s
        self.between_bytes_s = between_bytes_s or link_bytes_s
        self._lock: IO[str] | None = None

    def __enter__(self) -> Network:
        problem = why_not()
        if problem:
            raise NetworkUnavailable(problem)
        self._lock = _lock()
        try:
            remove_all()
            self._build()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        remove_all()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # ---- building

    def _build(self) -> None:
        names = [SWITCH, *(host.namespace for host in self.hosts)]
        _batch("ip", None, [f"netns add {name}" for name in names])
        _batch("ip", None, [f"link add {CONTROL} type bridge forward_delay 0"])
        _quiet_ipv6(CONTROL)
        _batch("ip", None, self._wires())
        _batch("ip", SWITCH, self._switch())
        _batch("tc", SWITCH, self._switch_shapes())
        for host in self.hosts:
            _batch("ip", host.namespace, self._host(host))
            _run(*host.wrapper, "sh", "-c", _SOCKETS)
            _batch("tc", host.namespace, _shape("data0", self.link_bytes_s))
        self._control()

    def _wires(self) -> list[str]:
        """Both wires of every host, and those between a rack's bridge and the first's."""
        lines = []
        for number, host in enumerate(self.hosts):
            lines.append(f"link add data0 netns {host.namespace} type veth peer name {host.name} netns {SWITCH}")
            lines.append(f"link add ctl0 netns {host.namespace} type veth peer name {PREFIX}c{number}")
        joined = range(2, self.racks + 1)
        lines += [f"link add up{rack} netns {SWITCH} type veth peer name down{rack} netns {SWITCH}" for rack in joined]
        return lines

    def _switch(self) -> list[str]:
        lines = [f"link add rack{rack} type bridge forward_delay 0" for rack in range(1, self.racks + 1)]
        lines += [f"link set {host.name} addrgenmode none master rack{host.rack} up" for host in self.hosts]
        for rack in range(2, self.racks + 1):
            lines.append(f"link set up{rack} addrgenmode none master rack{rack} up")
            lines.append(f"link set down{rack} addrgenmode none master rack1 up")
        lines += [f"link set rack{rack} addrgenmode none up" for rack in range(1, self.racks + 1)]
        return lines

    def _switch_shapes(self) -> list[str]:
        """The way down to each host, and both ways between racks: `up2` leaves rack 2's bridge, `down2` rack 1's."""
        lines = [line for host in self.hosts for line in _shape(host.name, self.link_bytes_s)]
        for rack in range(2, self.racks + 1):
            lines += [*_shape(f"up{rack}", self.between_bytes_s), *_shape(f"down{rack}", self.between_bytes_s)]
        return lines

    def _host(self, host: Host) -> list[str]:
        return [
            "link set lo up",
            "link set data0 addrgenmode none up",
            "link set ctl0 addrgenmode none up",
            f"address add {host.address}/16 dev data0",
            f"route add {CONTROL_ADDRESS}/32 dev ctl0 src {host.address}",
        ]

    def _control(self) -> None:
        lines = [f"address add {CONTROL_ADDRESS}/32 dev {CONTROL}", f"link set {CONTROL} up"]
        lines += [
            f"link set {PREFIX}c{number} addrgenmode none master {CONTROL} up" for number in range(len(self.hosts))
        ]
        lines += [f"route add 198.18.0.0/16 dev {CONTROL} src {CONTROL_ADDRESS}"]
        _batch("ip", None, lines)


def drops(network: Network) -> int:
    """Frames that the shaped queues have dropped so far, all together."""
    total = 0
    for namespace in (SWITCH, *(host.namespace for host in network.hosts)):
        found = json.loads(_run("tc", "-n", namespace, "-s", "-j", "qdisc", "show"))
        total += sum(int(entry.get("drops", 0)) for entry in found if entry.get("kind") == "htb")
    return total


def remove_all() -> None:
    """Remove every namespace and interface with our prefix, and end what still runs in those namespaces."""
    for name in namespaces():
        for pid in _run("ip", "netns", "pids", name, check=False).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        _run("ip", "netns", "delete", name, check=False)
    for name in interfaces():
        _run("ip", "link", "delete", name, check=False)


def namespaces() -> list[str]:
    """Our namespaces that exist."""
    lines = _run("ip", "netns", "list").splitlines()
    return [name for name in (line.split()[0] for line in lines if line.strip()) if name.startswith(f"{PREFIX}-")]


def interfaces() -> list[str]:
    """Our interfaces that exist in the machine's own namespace."""
    found = json.loads(_run("ip", "-j", "link", "show"))
    ours = [str(entry["ifname"]) for entry in found]
    return [name for name in ours if name == CONTROL or (name.startswith(f"{PREFIX}c") and name[4:].isdecimal())]


def _lock() -> IO[str]:
    path = Path(tempfile.gettempdir()) / f"{PREFIX}-network.lock"
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise NetworkUnavailable(f"another run has the network (it holds {path}): wait for its end") from None
    return file


def _shape(device: str, bytes_s: float) -> list[str]:
    """Lines for `tc`: the rate, and of what waits the small packets first."""
    rate = round(bytes_s * 8)
    common = f"ceil {rate}bit burst {BURST_BYTES} cburst {BURST_BYTES} quantum {QUANTUM_BYTES}"
    parent = f"class add dev {device} parent 1:1"
    return [
        f"qdisc add dev {device} root handle 1: htb default 20",
        f"class add dev {device} parent 1: classid 1:1 htb rate {rate}bit {common}",
        f"{parent} classid 1:10 htb rate {rate // SMALL_SHARE}bit {common} prio 0",
        f"{parent} classid 1:20 htb rate {rate - rate // SMALL_SHARE}bit {common} prio 1",
        f"qdisc add dev {device} parent 1:20 handle 20: bfifo limit {QUEUE_BYTES}",
        f"filter add dev {device} parent 1: protocol ip prio 1 u32 match u16 0 {SMALL_MASK:#x} at 2 flowid 1:10",
    ]


def _quiet_ipv6(device: str) -> None:
    """No router solicitations on the control bridge."""
    setting = Path(f"/proc/sys/net/ipv6/conf/{device}/disable_ipv6")
    if setting.exists():
        setting.write_text("1")


def _batch(tool: str, namespace: str | None, lines: Sequence[str]) -> None:
    """Many lines of `ip` or `tc` in one process."""
    where = ["-n", namespace] if namespace else []
    _run(tool, *where, "-batch", "-", text="\n".join(lines) + "\n")


def _run(*command: str, text: str = "", check: bool = True) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    if check and done.returncode != 0:
        raise NetworkUnavailable(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}\n{text}".rstrip())
    return done.stdout
