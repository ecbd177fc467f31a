"""Faults of a cluster of real processes, one after another and two at a time, chosen by a seed.

Invariants:
* The same seed gives the same faults, on the same hosts, for the same times; what clients do meanwhile is theirs.
* A fault goes on until it was seen to be one, for SEEN_S at most: a fault that nobody saw is counted as such.
* A fault that takes a disk away waits until every chunk has all its copies, else the cluster might lose what no cluster
  can keep.
* After each fault everything heals, and each stream, reader, group and query must go on within SERVICE_S.
* A process that ends without having been told to is noted in the history before it is started again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Final, NamedTuple

from benchmarks.checked.kinds import Fault, Kinds
from benchmarks.checked.work import Work
from logstore.client.admin import Admin
from logstore.client.blocking import Client, parse_addresses
from logstore.errors import CairnError
from logstore.format.host_summaries import UNDRAIN
from logstore.testing.cluster import Cluster
from logstore.testing.disks import Disk
from logstore.testing.network import RelayedNetwork
from logstore.testing.processes import ClusterProcess

SERVICE_S: Final = 300.0
"""Within which a healed cluster must go on: five minutes, so that a machine that is busy with other work does not count
as a cluster that stands still."""
COPIES_S: Final = 900.0
"""Within which a healed cluster must have all copies: one that fails again and again is left out for minutes."""
SEEN_S: Final = 120.0
WIPE_S: Final = 120.0
"""How long a wipe waits for all copies; without them it is left out."""
QUIET_S: Final = (0.5, 4.0)
HELD_S: Final = (0.3, 15.0)
"""Shorter and longer than a lease."""
SECOND_CHANCE: Final = 0.2
POLL_S: Final = 0.1
LOG_CHARACTERS: Final = 4_000
"""Of the log of a host that died, in the history; the whole log stays in the directory."""


class NotHealed(Exception):
    """The cluster does not do what it must after all faults have ended; the message says what."""


class Done(NamedTuple):
    """A fault that is over. `seen`: by kind, what showed that it was one. `service_s`: from its end until everything
    went on.
    """

    name: str
    seen: dict[str, str]
    begun_s: float
    service_s: float


class Faults:
    """All faults of a run."""

    def __init__(
        self, cluster: Cluster, network: RelayedNetwork, work: Work, chance: Random, disks: dict[str, Disk]
    ) -> None:
        self._cluster, self._work, self._chance, self._disks = cluster, work, chance, disks
        self._kinds = Kinds(cluster, network, chance, disks, self._note_death)
        self._drained: set[str] = set()
        self._said = ""

    @property
    def kinds(self) -> Sequence[str]:
        """Their names."""
        return self._kinds.names

    def run_one(self, kind: str) -> Done | None:
        """One fault of a kind, perhaps with a second one within it, until everything goes on again. None: there was no
        time for it. Raises NotHealed, NotStarted.
        """
        chance = self._chance
        quiet_s, held_s = chance.uniform(*QUIET_S), chance.uniform(*HELD_S)
        faults = [self._kinds.make(kind)]
        if chance.random() < SECOND_CHANCE:
            second = self._kinds.second(faults[0])
            faults += [second] if second is not None else []
        time.sleep(quiet_s)
        if kind == "wipe" and not self._has_copies(WIPE_S):
            self._work.noted("wipes left out, because chunks lacked copies")
            return None
        name = " + ".join(fault.kind for fault in faults)
        hosts = [host.name for fault in faults for host in fault.hosts]
        call = self._work.recorder.begin("fault", "faults", kind=name, hosts=hosts)
        begun_s = self._work.recorder.at_s
        seen = {}
        for fault in faults:
            fault.begin()
            seen[fault.kind] = self._wait_seen(fault)
            time.sleep(held_s / len(faults))
        for fault in reversed(faults):
            fault.end()
        healed_s = self._work.recorder.at_s
        self.heal()
        self.wait_service()
        call.ok(seen=seen)
        return Done(name, seen, begun_s, self._work.recorder.at_s - healed_s)

    def _wait_seen(self, fault: Fault) -> str:
        if fault.kind == "drain":
            self._drained |= {host.name for host in fault.hosts}
        deadline_s = time.monotonic() + SEEN_S
        while not (seen := fault.seen()) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        return seen

    def heal(self) -> None:
        """Undo what any fault may have left. Raises NotHealed, NotStarted."""
        self._cluster.network.heal()
        for disk in self._disks.values():
            disk.empty()
        self._note_deaths(self._cluster.etcd)
        if not self._cluster.etcd.is_running:
            self._cluster.etcd.start()
        self._cluster.etcd.go_on()
        stopped = []
        for host in self._cluster:
            if host.is_running:
                host.go_on()
            else:
                self._note_deaths(host)
                stopped.append(host)
                host.begin()
        for host in stopped:
            host.wait_ready()
        self._cluster.wait_members()
        self._undrain()

    def _undrain(self) -> None:
        deadline_s = time.monotonic() + SERVICE_S
        while self._drained:
            try:
                with Client(parse_addresses(self._cluster.bootstrap)) as client:
                    Admin(client).change_host(min(self._drained), UNDRAIN)
            except (CairnError, OSError) as error:
                if time.monotonic() > deadline_s:
                    raise NotHealed(f"{min(self._drained)} stays drained: {error}") from error
                time.sleep(POLL_S)
            else:
                self._drained.remove(min(self._drained))

    def stop_all(self) -> None:
        """End the run of all hosts, in order."""
        self._note_deaths(*self._cluster, self._cluster.etcd)
        for host in self._cluster:
            status = host.stop()
            if status:
                self._note_death(host, status, "it was told to stop at the end")

    def _note_deaths(self, *nodes: ClusterProcess) -> None:
        for node in nodes:
            status = node.died
            if status is not None:
                self._note_death(node, status, "it had ended by itself")

    def _note_death(self, node: ClusterProcess, status: int, why: str) -> None:
        log = node.log[-LOG_CHARACTERS:]
        self._work.recorder.add(what="died", host=node.name, status=status, why=why, log=log)

    def wait_service(self) -> None:
        """Until all that must go on has had an answer that is newer. Raises NotHealed."""
        healed_s = self._work.recorder.at_s
        deadline_s = time.monotonic() + SERVICE_S
        while late := [name for name, at_s in tuple(self._work.answered_s.items()) if at_s[-1] <= healed_s]:
            if time.monotonic() > deadline_s:
                raise NotHealed(f"no answer within {SERVICE_S:g} s of healing: {', '.join(late)}")
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
                if reply.is_complete and reply.ownerless == reply.under_replicated == 0:
                    return True
            time.sleep(POLL_S)
        return False


def silences_s(work: Work, begun_s: float, ended_s: float) -> dict[str, float]:
    """For how long each stream acknowledged nothing, at most, between two moments."""
    found = {}
    for name, answered_s in tuple(work.answered_s.items()):
        if name.startswith("stream "):
            times = [begun_s, *(each for each in tuple(answered_s) if begun_s < each < ended_s), ended_s]
            found[name] = max(after - before for before, after in pairwise(times))
    return found
