"""Random histories of a cluster: appends, reads and every fault, from one seed; then healing, and every check.

Invariants: a disk is lost, or a bit flipped, only while every chunk that it is in has another member whose copy is
whole: the promise is for the loss of fewer than all members of a chunk's set. Everything else is without limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from logstore.replica.owner_states import TAKING
from logstore.replica.registrations import Member, Prefix
from logstore.testing.simnet import NetRules
from tests.replica.cluster import LIMITS, STREAM, TICK_US, Cluster, ClusterShape, Planted
from tests.replica.disk import ReplicaDisk
from tests.replica.metadata import META

CALM = NetRules()
ROUGH = NetRules(loss=0.05, repetition=0.05, slowness=0.05)
STORMY = NetRules(loss=0.25, repetition=0.2, slowness=0.2, max_delay_us=5_000)
SHAPES = (
    ClusterShape(),
    ClusterShape(("a", "b", "c", "d", "e")),
    ClusterShape(("a", "b", "c")),
    ClusterShape(("a", "b", "c", "d"), copies=2, min_copies=1),
    ClusterShape(("a", "b", "c", "d", "e", "f"), copies=5, min_copies=3),
)
SETTLE_MS = 30_000
USURP_MS = 120
"""A little longer than a claim waits for members that do not answer."""
BATCH_BYTES = len(b"batch 000001.")
HASTY = replace(LIMITS, short_after_ms=300, slow_after_ms=1_000)
"""What waits for members is told while the actions last."""


class NotLive(AssertionError):
    """After healing, the cluster did not come to an end of its work."""


@dataclass
class Outcome:
    """What happened in a run."""

    steps: int
    trace: str
    acked: int
    seen: int
    epochs: int
    faults: Counter[str] = field(default_factory=Counter)
    trims: int = 0
    early_reads: int = 0


class RandomRun:
    """One run."""

    def __init__(self, seed: int, planted: Planted | None = None) -> None:
        self.seed = seed
        self.random = Random(f"actions {seed}")
        shape = replace(self.random.choice(SHAPES), rules=self.random.choice((CALM, ROUGH)), limits=HASTY)
        self.cluster = Cluster(seed, shape, planted)
        self.faults: Counter[str] = Counter()
        self._is_loaded = False
        self._snapshots: dict[str, ReplicaDisk] = {}
        self._actions: list[tuple[int, Callable[[str], bool]]] = [
            (60, self._append),
            (3, self._crash),
            (6, self._start),
            (2, self._pause),
            (5, self._resume),
            (3, self._cut),
            (1, self._isolate),
            (2, self._lose_metadata),
            (3, self._load),
            (3, self._heal),
            (2, self._weather),
            (2, self._wipe),
            (1, self._disk_fails),
            (1, self._rot),
            (2, self._snapshot),
            (4, self._restore),
            (8, self._format),
            (6, self._trim),
            (2, self._roll),
            (1, self._disk_full),
            (3, self._make_room),
            (4, self._usurp),
            (2, self._empty),
        ]
        self.cluster.keeps_last = self.random.random() < 0.7

    def run(self, actions: int) -> Outcome:
        """Take some actions, heal, check. Raises PromiseBroken, NotLive, or what an assertion of the product raises."""
        weights = [weight for weight, _ in self._actions]
        for _ in range(actions):
            (action,) = self.random.choices([action for _, action in self._actions], weights)
            host = self.random.choice(self.cluster.shape.hosts)
            if action(host):
                self.faults[action.__name__.removeprefix("_")] += 1
            self._pass_time(self.random.choice((0, 500, 2_000, 10_000, 50_000, 200_000)))
        self._heal_everything()
        cluster = self.cluster
        history = cluster.history
        return Outcome(
            cluster.net.steps, cluster.net.trace, history.acked, history.seen, cluster.registration.epoch, self.faults,
            history.trims, cluster.early_reads,
        )  # fmt: skip

    def _pass_time(self, duration_us: int) -> None:
        """Let time pass; under load, clients append meanwhile."""
        until_us = self.cluster.net.now_us + duration_us
        while self._is_loaded and self.cluster.net.now_us < until_us:
            self._append("")
            self.cluster.net.run(min(self.random.randint(200, 5_000), until_us - self.cluster.net.now_us))
        self.cluster.net.run(until_us - self.cluster.net.now_us)

    def _heal_everything(self) -> None:
        cluster = self.cluster
        cluster.net.heal()
        cluster.net.rules = CALM
        for disk in cluster.disks.values():
            disk.is_full = False
        for name in (*cluster.shape.hosts, META):
            if cluster.net.is_paused(name):
                cluster.net.resume(name)
        for name in cluster.shape.hosts:
            self._start(name)
            if cluster.disks[name].fails:
                self._restart(name)
        cluster.net.run(2_000_000)
        for name in cluster.shape.hosts:
            if cluster.hosts[name].refused is not None:
                self._replace(name)
        if not cluster.settle(SETTLE_MS):
            raise NotLive(f"seed {self.seed}: {cluster.registration}; {cluster.events[-5:]}")
        owner = cluster.owner_host()
        before = cluster.history.acked
        if owner is None or not cluster.append(owner.name) or not cluster.settle(SETTLE_MS):
            raise NotLive(f"seed {self.seed}: nothing is appended after healing; {cluster.registration}")
        if cluster.history.acked == before:
            raise NotLive(f"seed {self.seed}: nothing is acknowledged after healing; {cluster.registration}")
        cluster.net.run(2_000_000)
        self._fill_beside_store()
        cluster.scrub()
        if not cluster.settle(SETTLE_MS):
            raise NotLive(f"seed {self.seed}: damage is not repaired; {cluster.registration}")
        cluster.check()

    def _fill_beside_store(self) -> None:
        """Nothing is amiss, and the metadata store goes away: a chunk that becomes full meanwhile takes batches on."""
        cluster = self.cluster
        host = cluster.owner_host()
        if host is None or host.owner is None or host.owner._appending.end.is_due:
            return
        before = cluster.registration.epoch
        cluster.net.pause(META)
        size_bytes = host.owner.acked.length_bytes
        while size_bytes <= LIMITS.chunk_bytes:
            if not cluster.append(host.name):
                raise NotLive(f"seed {self.seed}: no batch is taken while the metadata store is away")
            size_bytes += BATCH_BYTES
            cluster.net.run(3_000)
        cluster.net.run(2 * TICK_US)
        appended = cluster.append(host.name)
        cluster.net.run(2 * TICK_US)
        if not appended or host.pending:
            raise NotLive(f"seed {self.seed}: a full chunk waits for the metadata store; {cluster.registration}")
        cluster.net.resume(META)
        if not cluster.settle(SETTLE_MS):
            raise NotLive(f"seed {self.seed}: the metadata store came back, and nothing is settled")
        cluster.net.run(500_000)
        if cluster.registration.epoch == before:
            raise NotLive(f"seed {self.seed}: a full chunk is not followed by another one; {cluster.registration}")

    # ---- actions: True if it was possible

    def _append(self, host: str) -> bool:
        names = [name for name in self.cluster.shape.hosts if name in self.cluster.hosts]
        takers = [name for name in names if self.cluster.hosts[name].takes]
        if not takers:
            return False
        return self.cluster.append(self.random.choice(takers), self.random.choice((1, 1, 3)))

    def _crash(self, host: str) -> bool:
        if host not in self.cluster.hosts:
            return False
        self.cluster.crash(host)
        if self.random.random() < 0.3:
            self._snapshot(host)
        return True

    def _start(self, host: str) -> bool:
        if host in self.cluster.hosts:
            return False
        self.cluster.start(host)
        return True

    def _restart(self, host: str) -> None:
        self.cluster.crash(host)
        self.cluster.start(host)

    def _replace(self, host: str) -> None:
        """An operator formats the disk that a host has refused."""
        self.cluster.crash(host)
        self.cluster.wipe(host)
        self.cluster.start(host)

    def _pause(self, host: str) -> bool:
        target = META if self.random.random() < 0.1 else host
        if not self.cluster.net.is_up(target) or self.cluster.net.is_paused(target):
            return False
        self.cluster.net.pause(target)
        return True

    def _resume(self, host: str) -> bool:
        paused = [name for name in (*self.cluster.shape.hosts, META) if self.cluster.net.is_paused(name)]
        if not paused:
            return False
        self.cluster.net.resume(self.random.choice(paused))
        return True

    def _cut(self, host: str) -> bool:
        other = self.random.choice([name for name in (*self.cluster.shape.hosts, META) if name != host])
        first, second = self.random.sample((host, other), 2)
        self.cluster.net.cut(first, second)
        if self.random.random() < 0.5:
            self.cluster.net.cut(second, first)
        return True

    def _isolate(self, host: str) -> bool:
        self.cluster.net.isolate(host)
        return True

    def _lose_metadata(self, host: str) -> bool:
        """A host no longer reaches the metadata store, and goes on otherwise."""
        self.cluster.net.cut(host, META)
        if self.random.random() < 0.5:
            self.cluster.net.cut(META, host)
        return True

    def _load(self, host: str) -> bool:
        """Clients begin to append all the time, or no longer do."""
        self._is_loaded = not self._is_loaded
        return self._is_loaded

    def _heal(self, host: str) -> bool:
        self.cluster.net.heal()
        return True

    def _weather(self, host: str) -> bool:
        self.cluster.net.rules = self.random.choice((CALM, CALM, ROUGH, STORMY))
        return True

    def _wipe(self, host: str) -> bool:
        if host in self.cluster.hosts or not self._may_lose(host):
            return False
        self.cluster.wipe(host)
        return True

    def _disk_fails(self, host: str) -> bool:
        if host not in self.cluster.hosts:
            return False
        self.cluster.disks[host].fails = True
        return True

    def _trim(self, host: str) -> bool:
        """A client deletes records at a host that believes it owns the stream: some, all, or more than there are."""
        owner = self.cluster.hosts[host].owner if host in self.cluster.hosts else None
        if owner is None or owner.state not in TAKING or self.cluster.net.is_paused(host):
            return False
        start, end = owner.registration.log_start, owner.next_offset
        self.cluster.hosts[host].trim(self.random.choice((end, end + 5, self.random.randint(start, max(start, end)))))
        return True

    def _roll(self, host: str) -> bool:
        """A chunk has come of age."""
        if host not in self.cluster.hosts or self.cluster.hosts[host].owner is None:
            return False
        if self.cluster.net.is_paused(host):
            return False
        self.cluster.hosts[host].roll()
        return True

    def _usurp(self, host: str) -> bool:
        """A host claims the stream that reaches one of its members alone; the owner takes batches, and hears of nothing
        from the metadata store. The member may crash just behind its answer to the fence, and start again at once.
        """
        cluster, net = self.cluster, self.cluster.net
        owner, chunk = cluster.owner_host(), cluster.registration.open_chunk
        if owner is None or chunk is None or net.is_paused(owner.name):
            return False
        others = [member.host for member in chunk.members if member.host != owner.name]
        able = [name for name in self._able_hosts() if name != owner.name]
        if not able or not others:
            return False
        claimer = self.random.choice([name for name in able if name not in others] or able)
        reached = self.random.choice(others)
        net.heal()
        self._sever(owner.name, META)
        for name in (owner.name, *others):
            if name not in (reached, claimer):
                net.cut(claimer, name)
        crashes = self.random.random() < 0.5
        if not crashes and self.random.random() < 0.5:
            net.cut(reached, owner.name)
            net.cut(META, reached)
        was_loaded, self._is_loaded = self._is_loaded, True
        cluster.fenced.clear()
        cluster.hosts[claimer].claim(cluster.meta.live())
        for _ in range(USURP_MS):
            self._pass_time(1_000)
            if crashes and reached in cluster.fenced and reached in cluster.hosts:
                self._restart(reached)
                crashes = False
        self._is_loaded = was_loaded
        return True

    def _able_hosts(self) -> list[str]:
        """Hosts that may claim the stream."""
        up = [name for name in self.cluster.shape.hosts if name in self.cluster.hosts]
        return [name for name in up if self.cluster.hosts[name].replica and not self.cluster.net.is_paused(name)]

    def _sever(self, first: str, second: str) -> None:
        self.cluster.net.cut(first, second)
        self.cluster.net.cut(second, first)

    def _empty(self, host: str) -> bool:
        """Input stops for a while, everything is deleted, and a host claims the stream. It may crash when it has sealed
        what the last owner left open, before it opens a chunk of its own.
        """
        cluster, owner = self.cluster, self.cluster.owner_host()
        if owner is None or owner.owner is None or cluster.net.is_paused(owner.name):
            return False
        owner.roll()
        cluster.net.run(5 * TICK_US)
        if cluster.owner_host() is owner:
            owner.trim(owner.owner.next_offset)
            cluster.net.run(5 * TICK_US)
        able = [name for name in self._able_hosts() if name != owner.name]
        if able:
            claimer = self.random.choice(able)
            cluster.hosts[claimer].claim(cluster.meta.live())
            if self.random.random() < 0.5:
                self._crash_before_opening(claimer)
            cluster.net.run(USURP_MS * 1_000)
        return True

    def _crash_before_opening(self, host: str) -> None:
        until_us = self.cluster.net.now_us + USURP_MS * 1_000
        while self.cluster.net.now_us < until_us and self.cluster.net.step():
            registration = self.cluster.registration
            if registration.owner == self.cluster.hosts[host].me and registration.open_chunk is None:
                self._restart(host)
                return

    def _disk_full(self, host: str) -> bool:
        self.cluster.disks[host].is_full = True
        return True

    def _make_room(self, host: str) -> bool:
        full = [disk for disk in self.cluster.disks.values() if disk.is_full]
        for disk in full:
            disk.is_full = False
        return bool(full)

    def _rot(self, host: str) -> bool:
        disk = self.cluster.disks[host]
        keys = [
            key
            for key, chunk in disk.chunks.items()
            if chunk.entries and (chunk.is_sealed or host not in self.cluster.hosts)
        ]
        if not keys or not self._may_lose(host, only_live=True):
            return False
        key = self.random.choice(keys)
        disk.rot(key, self.random.randrange(len(disk.chunks[key].entries)))
        return True

    def _snapshot(self, host: str) -> bool:
        if host in self.cluster.hosts:
            return False
        self._snapshots[host] = self.cluster.disks[host].copy()
        return True

    def _restore(self, host: str) -> bool:
        """An old copy of the disk is put into a host, which is down then; the disk itself is gone."""
        snapshot = self._snapshots.get(host)
        disk = self.cluster.disks[host]
        if snapshot is None or not self._may_lose(host):
            return False
        registered = self.cluster.meta.disks.get(snapshot.label.disk)
        if registered is None or registered.starts <= snapshot.label.starts or snapshot.label.disk != disk.label.disk:
            return False  # it would not be told apart: docs/replication.md, "what is not promised"
        if host in self.cluster.hosts:
            self.cluster.crash(host)
        self.cluster.disks[host] = snapshot.copy()
        return True

    def _format(self, host: str) -> bool:
        """An operator formats a disk that was refused."""
        refused = [name for name, up in self.cluster.hosts.items() if up.refused is not None]
        for name in refused:
            self._replace(name)
        return bool(refused)

    def _may_lose(self, host: str, *, only_live: bool = False) -> bool:
        """Whether every chunk has a whole copy on another member's disk. `only_live`: damage that nobody has found is
        not lost yet, so a member that is away may leave the registration while it is there.

        A disk that is gone is chosen for a chunk as long as its lease holds: where it may be the only member, not yet.
        """
        if self.cluster.shape.min_copies == 1 and not only_live:
            if self.cluster.disks[host].label.member in self.cluster.meta.live():
                return False
        for chunk in self.cluster.registration.chunks:
            others = [other for other in chunk.members if other.host != host]
            if only_live:
                live = self.cluster.meta.live()
                others = [other for other in others if other in live and other.host in self.cluster.hosts]
            if not any(self._is_whole(other, chunk.epoch, chunk.end) for other in others):
                return False
        return True

    def _is_whole(self, member: Member, epoch: int, end: Prefix | None) -> bool:
        disk = self.cluster.disks[member.host]
        registered = self.cluster.meta.disks.get(member.disk)
        if disk.label.disk != member.disk or (registered is not None and disk.label.starts < registered.starts):
            return False
        chunk = disk.chunks.get((STREAM, epoch))
        if chunk is not None and any(b"!" in entry.data for entry in chunk.entries):
            return False
        return end is None or (chunk is not None and end in chunk.prefixes)


def run_seed(seed: int, actions: int = 150, planted: Planted | None = None) -> Outcome:
    """One run from its seed."""
    return RandomRun(seed, planted).run(actions)
