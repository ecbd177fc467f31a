"""Faults of a cluster of real processes, one after another and two at a time, chosen by a seed.

Invariants:
* The same seed gives the same faults, on the same hosts, for the same times; what clients do meanwhile is theirs.
* A fault that takes a disk away waits until every chunk has all its copies, else the cluster might lose what no cluster
  can keep.
* After each fault everything heals, and each stream must acknowledge again within SERVICE_S.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from itertools import pairwise, permutations
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from benchmarks.checked.work import Work
from logstore.client.admin import Admin
from logstore.client.blocking import Client, parse_addresses
from logstore.errors import CairnError
from logstore.testing.cluster import Cluster, ClusterHostProcess
from logstore.testing.network import ETCD

SERVICE_S: Final = 60.0
"""Within which a healed cluster must acknowledge."""
COPIES_S: Final = 700.0
"""Within which a healed cluster must have all copies: one that fails again and again is left out for minutes."""
WIPE_S: Final = 30.0
"""How long a wipe waits for all copies; without them it is left out."""
NO_FAULT: Final = "none"
QUIET_S: Final = (0.5, 4.0)
HELD_S: Final = (0.3, 6.0)
DISK_MB: Final = 768
POLL_S: Final = 0.1


class NotHealed(Exception):
    """The cluster does not do what it must after all faults have ended; the message says what."""


class Fault(NamedTuple):
    """What is done, and undone, to the hosts that chance chose."""

    kind: str
    hosts: Sequence[ClusterHostProcess]
    begin: Callable[[], None]
    end: Callable[[], None]


class Disk:
    """The data directory of a host on a small file system of its own, which can be filled."""

    def __init__(self, host: ClusterHostProcess) -> None:
        self._path = host.data_dir
        self._is_mounted = False

    def mount(self) -> bool:
        """Whether it could be."""
        self._path.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(self._path)]
        done = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
        self._is_mounted = done
        return done

    def unmount(self) -> None:
        """Give it back."""
        if self._is_mounted:
            subprocess.run(["umount", "--lazy", str(self._path)], capture_output=True, check=False)

    @property
    def _filler(self) -> Path:
        return self._path / "filler"

    def fill(self) -> None:
        """Leave nothing free."""
        with self._filler.open("wb", buffering=0) as file:
            piece = bytes(1 << 20)
            while piece:
                try:
                    file.write(piece)
                except OSError:
                    piece = piece[: len(piece) // 2]

    def empty(self) -> None:
        """Free it again."""
        self._filler.unlink(missing_ok=True)


class Faults:
    """All kinds of faults of a cluster."""

    def __init__(self, cluster: Cluster, work: Work, chance: Random, disks: dict[str, Disk]) -> None:
        self._cluster, self._work, self._chance, self._disks = cluster, work, chance, disks
        self._said = ""
        self._kinds: dict[str, Callable[[], Fault]] = {
            "kill": self._kill,
            "kill two": lambda: self._kill(2),
            "kill all": lambda: self._kill(len(cluster.hosts)),
            "stop": self._stop,
            "pause": self._pause,
            "wipe": self._wipe,
            "cut off": self._cut_off,
            "cut a pair": self._cut_pair,
            "cut one way": self._cut_one_way,
            "cut from etcd": self._cut_from_etcd,
            "slow links": self._slow,
            "etcd killed": self._etcd_killed,
            "etcd paused": self._etcd_paused,
        }
        if disks:
            self._kinds["full disk"] = self._full_disk

    @property
    def kinds(self) -> Sequence[str]:
        """Their names."""
        return tuple(self._kinds)

    def run_one(self, kind: str) -> str:
        """One fault of a kind, perhaps with a second one within it, until there is service again."""
        chance = self._chance
        quiet_s, held_s = chance.uniform(*QUIET_S), chance.uniform(*HELD_S)
        fault = self._kinds[kind]()
        second = None
        if chance.random() < 0.2:
            second = self._kinds[chance.choice(("kill", "pause", "cut one way", "etcd killed"))]()
        time.sleep(quiet_s)
        if kind == "wipe" and not self._has_copies(WIPE_S):
            self._work.noted("wipes left out, because chunks lacked copies")
            return NO_FAULT
        name = kind if second is None else f"{kind} + {second.kind}"
        names = [host.name for each in (fault, second) if each for host in each.hosts]
        call = self._work.recorder.begin("fault", "faults", kind=name, hosts=names)
        begun_s = self._work.recorder.at_s
        fault.begin()
        if second is not None:
            time.sleep(held_s / 2)
            second.begin()
        time.sleep(held_s)
        for each in (second, fault):
            if each is not None:
                each.end()
        self.heal()
        self.wait_service()
        call.ok(begun_s=begun_s)
        return name

    def heal(self) -> None:
        """Undo what any fault may have left."""
        self._cluster.network.heal()
        for disk in self._disks.values():
            disk.empty()
        if not self._cluster.etcd.is_running:
            self._cluster.etcd.start()
        self._cluster.etcd.go_on()
        stopped = [host for host in self._cluster if not host.is_running]
        for host in self._cluster:
            if host.is_running:
                host.go_on()
        for host in stopped:
            host.begin()
        for host in stopped:
            host.wait_ready()
        self._cluster.wait_members()

    def wait_service(self) -> None:
        """Until every stream has acknowledged something that is newer. Raises NotHealed."""
        healed_s = self._work.recorder.at_s
        deadline_s = time.monotonic() + SERVICE_S
        while late := [name for name, acks in self._work.acks_s.items() if acks[-1] <= healed_s]:
            if time.monotonic() > deadline_s:
                raise NotHealed(f"no acknowledgement within {SERVICE_S:g} s of healing: {', '.join(late)}")
            time.sleep(POLL_S)

    def wait_copies(self) -> None:
        """Until every chunk has all its copies. Raises NotHealed."""
        if not self._has_copies(COPIES_S):
            raise NotHealed(f"{COPIES_S:g} s after healing: {self._said}")

    def _has_copies(self, patience_s: float) -> bool:
        deadline_s = time.monotonic() + patience_s
        while time.monotonic() < deadline_s:
            try:
                with Client(parse_addresses(self._cluster.bootstrap)) as client:
                    reply = Admin(client).hosts()
            except (CairnError, OSError) as error:
                self._said = str(error)
            else:
                self._said = f"{reply.ownerless} streams without an owner, {reply.under_replicated} chunks lack copies"
                if reply.ownerless == reply.under_replicated == 0:
                    return True
            time.sleep(POLL_S)
        return False

    def _some(self, number: int = 1) -> list[ClusterHostProcess]:
        return self._chance.sample(list(self._cluster), number)

    def _kill(self, number: int = 1) -> Fault:
        hosts = self._some(number)
        kind = {1: "kill", len(self._cluster.hosts): "kill all"}.get(number, "kill two")

        def begin() -> None:
            for host in hosts:
                host.kill()

        return Fault(kind, hosts, begin, _nothing)

    def _stop(self) -> Fault:
        (host,) = self._some()

        def begin() -> None:
            host.stop()

        return Fault("stop", [host], begin, _nothing)

    def _pause(self) -> Fault:
        (host,) = self._some()

        def begin() -> None:
            if host.is_running:
                host.pause()

        def end() -> None:
            if host.is_running:
                host.go_on()

        return Fault("pause", [host], begin, end)

    def _wipe(self) -> Fault:
        (host,) = self._some()

        def begin() -> None:
            host.kill()
            host.wipe()

        return Fault("wipe", [host], begin, _nothing)

    def _full_disk(self) -> Fault:
        (host,) = self._some()
        disk = self._disks[host.name]
        return Fault("full disk", [host], disk.fill, disk.empty)

    def _cut(self, kind: str, hosts: Sequence[ClusterHostProcess], ways: Sequence[tuple[str, str]]) -> Fault:
        network = self._cluster.network

        def begin() -> None:
            for source, target in ways:
                network.cut(source, target)

        return Fault(kind, hosts, begin, network.heal)

    def _cut_off(self) -> Fault:
        (host,) = self._some()
        others = [each.name for each in self._cluster if each is not host] + [ETCD]
        ways = [way for other in others for way in ((host.name, other), (other, host.name))]
        return self._cut("cut off", [host], ways)

    def _cut_pair(self) -> Fault:
        a, b = self._some(2)
        return self._cut("cut a pair", [a, b], [(a.name, b.name), (b.name, a.name)])

    def _cut_one_way(self) -> Fault:
        a, b = self._some(2)
        return self._cut("cut one way", [a, b], [(a.name, b.name)])

    def _cut_from_etcd(self) -> Fault:
        (host,) = self._some()
        return self._cut("cut from etcd", [host], [(host.name, ETCD), (ETCD, host.name)])

    def _slow(self) -> Fault:
        network, names = self._cluster.network, list(self._cluster.hosts)
        delay_s, bytes_s = self._chance.uniform(0.005, 0.05), self._chance.uniform(0.2e6, 5e6)

        def begin() -> None:
            for source, target in permutations(names, 2):
                network.slow(source, target, delay_s=delay_s, bytes_s=bytes_s)

        return Fault("slow links", list(self._cluster), begin, network.heal)

    def _etcd_killed(self) -> Fault:
        return Fault("etcd killed", [], self._cluster.etcd.kill, _nothing)

    def _etcd_paused(self) -> Fault:
        etcd = self._cluster.etcd

        def end() -> None:
            if etcd.is_running:  # a second fault may have killed it
                etcd.go_on()

        return Fault("etcd paused", [], etcd.pause, end)


def _nothing() -> None:
    """`Faults.heal` starts what does not run."""


def silences_s(work: Work, begun_s: float, ended_s: float) -> dict[str, float]:
    """For how long each stream acknowledged nothing, at most, between two moments."""
    found = {}
    for name, acks in work.acks_s.items():
        times = [begun_s, *(each for each in tuple(acks) if begun_s < each < ended_s), ended_s]
        found[name] = max(after - before for before, after in pairwise(times))
    return found
