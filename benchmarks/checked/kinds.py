"""The kinds of faults: what is done to which hosts, what shows that it was a fault, and how it ends.

Invariants:
* Hosts and extents are chosen from the seed when a fault is made; nothing is chosen while it is under way.
* A fault is seen when something other than the harness's own call shows it: an exit status, the kernel's state of the
  process, bytes that met it on the way, an answer or a log line of a host. `seen` is empty until then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from random import Random
from typing import Final

from logstore.client.admin import Admin
from logstore.client.blocking import Client, parse_addresses
from logstore.errors import CairnError
from logstore.format.host_summaries import DRAIN
from logstore.testing.cluster import Cluster, ClusterHostProcess
from logstore.testing.disks import Disk
from logstore.testing.network import ETCD, RelayedNetwork
from logstore.testing.processes import ClusterProcess

KILLED: Final = -9
SECOND: Final = {"kill": 1, "pause": 1, "cut one way": 2, "etcd killed": 0}
"""Kinds that come within another one, and how many hosts each strikes."""


@dataclass
class Fault:
    """See the module. `of_etcd`: it takes etcd, so a second fault does not."""

    kind: str
    hosts: Sequence[ClusterHostProcess]
    begin: Callable[[], None]
    end: Callable[[], None] = lambda: None
    seen: Callable[[], str] = lambda: ""
    of_etcd: bool = False


@dataclass
class _Ended:
    """Processes that a fault ended, and with which status."""

    statuses: dict[str, int | None] = field(default_factory=dict)

    def seen(self) -> str:
        """Their statuses."""
        return ", ".join(f"{name} ended: {status}" for name, status in self.statuses.items())


class Kinds:
    """All kinds. `died` is told of a process that had ended before a fault could end it, or otherwise than it should:
    the process, its status, and why that is wrong.
    """

    def __init__(
        self, cluster: Cluster, network: RelayedNetwork, chance: Random, disks: dict[str, Disk],
        died: Callable[[ClusterProcess, int, str], None],
    ) -> None:  # fmt: skip
        self._cluster, self._network, self._chance, self._disks = cluster, network, chance, disks
        self._died = died
        self._makers: dict[str, Callable[[], Fault]] = {
            "kill": self._kill,
            "kill two": lambda: self._kill(2),
            "kill all": lambda: self._kill(len(cluster.hosts)),
            "stop": self._stop,
            "restart all": self._restart_all,
            "pause": self._pause,
            "wipe": self._wipe,
            "drain": self._drain,
            "cut off": self._cut_off,
            "cut a pair": self._cut_pair,
            "cut one way": self._cut_one_way,
            "cut from etcd": self._cut_from_etcd,
            "slow links": self._slow,
            "slow etcd": self._slow_etcd,
            "etcd killed": self._etcd_killed,
            "etcd paused": self._etcd_paused,
        }
        if disks:
            self._makers["full disk"] = self._full_disk

    @property
    def names(self) -> Sequence[str]:
        """All of them."""
        return tuple(self._makers)

    def make(self, kind: str) -> Fault:
        """A fault of a kind."""
        return self._makers[kind]()

    def second(self, first: Fault) -> Fault | None:
        """A fault of other hosts for the time of another one; None if that one leaves nothing to strike."""
        kind, taken = self._chance.choice(list(SECOND)), {host.name for host in first.hosts}
        if len(taken) + SECOND[kind] > len(self._cluster.hosts) or (first.of_etcd and kind == "etcd killed"):
            return None
        while True:
            fault = self.make(kind)
            if not taken & {host.name for host in fault.hosts}:
                return fault

    def _some(self, number: int = 1) -> list[ClusterHostProcess]:
        return self._chance.sample(list(self._cluster), number)

    # ---- processes

    def _end(self, ended: _Ended, node: ClusterProcess, *, kill: bool) -> None:
        """End a process, and note one that was gone already, or did not end as it was told."""
        gone = node.died
        status = node.kill() if kill else node.stop()
        wanted = KILLED if kill else 0
        if gone is not None:
            self._died(node, gone, "it had ended by itself")
        elif status == wanted:
            ended.statuses[node.name] = status
        else:
            self._died(node, status or 0, "it was killed" if kill else "it was told to stop")

    def _kill(self, number: int = 1) -> Fault:
        hosts, ended = self._some(number), _Ended()
        kind = {1: "kill", len(self._cluster.hosts): "kill all"}.get(number, "kill two")

        def begin() -> None:
            for host in hosts:
                self._end(ended, host, kill=True)

        return Fault(kind, hosts, begin, seen=ended.seen)

    def _stop(self) -> Fault:
        (host,), ended = self._some(), _Ended()
        return Fault("stop", [host], lambda: self._end(ended, host, kill=False), seen=ended.seen)

    def _restart_all(self) -> Fault:
        """An operator stops one host after another, and then etcd: the last hosts have nobody to hand over to."""
        hosts, ended = self._some(len(self._cluster.hosts)), _Ended()

        def begin() -> None:
            for host in hosts:
                self._end(ended, host, kill=False)
            self._end(ended, self._cluster.etcd, kill=True)

        return Fault("restart all", hosts, begin, seen=ended.seen, of_etcd=True)

    def _pause(self) -> Fault:
        (host,) = self._some()
        return self._paused("pause", host, [host])

    def _paused(
        self, kind: str, node: ClusterProcess, hosts: Sequence[ClusterHostProcess], *, of_etcd: bool = False
    ) -> Fault:
        said = _Ended()

        def begin() -> None:
            if node.is_running:
                node.pause()

        def end() -> None:
            if node.is_running:
                node.go_on()

        def seen() -> str:
            if not said.statuses and node.is_running and node.is_paused:
                said.statuses[node.name] = 0
            return f"the kernel says that {node.name} is stopped" if said.statuses else ""

        return Fault(kind, hosts, begin, end, seen, of_etcd)

    def _wipe(self) -> Fault:
        (host,), ended = self._some(), _Ended()

        def begin() -> None:
            self._end(ended, host, kill=True)
            host.wipe()

        def seen() -> str:
            is_empty = not host.data_dir.exists() or not any(host.data_dir.iterdir())
            return f"{ended.seen()}, its disk is empty" if ended.statuses and is_empty else ""

        return Fault("wipe", [host], begin, seen=seen)

    def _etcd_killed(self) -> Fault:
        ended = _Ended()
        return Fault(
            "etcd killed", [], lambda: self._end(ended, self._cluster.etcd, kill=True), seen=ended.seen, of_etcd=True
        )

    def _etcd_paused(self) -> Fault:
        return self._paused("etcd paused", self._cluster.etcd, [], of_etcd=True)

    # ---- what operators and disks do

    def _drain(self) -> Fault:
        (host,) = self._some()

        def begin() -> None:
            try:
                with Client(parse_addresses(self._cluster.bootstrap)) as client:
                    Admin(client).change_host(host.name, DRAIN)
            except (CairnError, OSError):
                return  # it may have been carried out; `seen` asks, and begins anew

        def seen() -> str:
            try:
                with Client(parse_addresses(self._cluster.bootstrap)) as client:
                    found = next((each for each in Admin(client).hosts().hosts if each.host == host.name), None)
            except (CairnError, OSError):
                return ""
            if found is None or found.leaving != DRAIN:
                begin()
                return ""
            return f"{host.name} leads no stream" if not found.streams else ""

        return Fault("drain", [host], begin, seen=seen)

    def _full_disk(self) -> Fault:
        """`again`: when the host has made room for what must be written, that is taken, too."""
        (host,) = self._some()
        disk, again = self._disks[host.name], self._chance.random() < 0.5
        taken = 0

        def begin() -> None:
            nonlocal taken
            taken = disk.fill()

        def seen() -> str:
            if not taken or not _is_low(host.log):
                return ""
            more = disk.fill() if again else 0
            return f"{taken} and then {more} bytes of {disk.kind} taken, {host.name} says disk_low"

        return Fault("full disk", [host], begin, disk.empty, seen)

    # ---- networks

    def _on_ways(
        self, kind: str, hosts: Sequence[ClusterHostProcess], ways: Sequence[tuple[str, str]],
        strike: Callable[[str, str], None],
    ) -> Fault:  # fmt: skip
        def begin() -> None:
            for source, target in ways:
                strike(source, target)

        def seen() -> str:
            found = {way: self._network.touched_bytes(*way) for way in ways}
            return ", ".join(f"{a} to {b}: {size} bytes" for (a, b), size in found.items() if size)

        return Fault(kind, hosts, begin, self._network.heal, seen)

    def _cut_off(self) -> Fault:
        (host,) = self._some()
        others = [each.name for each in self._cluster if each is not host] + [ETCD]
        ways = [way for other in others for way in ((host.name, other), (other, host.name))]
        return self._on_ways("cut off", [host], ways, self._network.cut)

    def _cut_pair(self) -> Fault:
        a, b = self._some(2)
        return self._on_ways("cut a pair", [a, b], [(a.name, b.name), (b.name, a.name)], self._network.cut)

    def _cut_one_way(self) -> Fault:
        a, b = self._some(2)
        return self._on_ways("cut one way", [a, b], [(a.name, b.name)], self._network.cut)

    def _cut_from_etcd(self) -> Fault:
        """Both ways, or one of them: what it asks does not arrive, or the answers do not."""
        (host,) = self._some()
        asks, answers = (host.name, ETCD), (ETCD, host.name)
        ways = self._chance.choice(([asks, answers], [asks], [answers]))
        return self._on_ways("cut from etcd", [host], ways, self._network.cut)

    def _slow(self) -> Fault:
        ways = list(permutations(self._cluster.hosts, 2))
        return self._slowed("slow links", ways, self._chance.uniform(0.2e6, 5e6))

    def _slow_etcd(self) -> Fault:
        ways = [way for name in self._cluster.hosts for way in ((name, ETCD), (ETCD, name))]
        return self._slowed("slow etcd", ways, self._chance.uniform(20e3, 200e3))

    def _slowed(self, kind: str, ways: Sequence[tuple[str, str]], bytes_s: float) -> Fault:
        delay_s = self._chance.uniform(0.005, 0.05)

        def strike(source: str, target: str) -> None:
            self._network.slow(source, target, delay_s=delay_s, bytes_s=bytes_s)

        return self._on_ways(kind, [], ways, strike)


def _is_low(log: str) -> bool:
    """Whether a host has said in its present life that its disk is full, and not that this is over."""
    life = log.rpartition("event=recovered ")[2]
    return life.rfind("event=disk_low ") > life.rfind("event=disk_low_over ")
