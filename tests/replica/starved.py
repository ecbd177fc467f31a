"""Hosts that get too little processor time: each stands still for half a second to two seconds, again and again.

Nobody is dead, and nothing is lost: whoever is given up here was slow. What counts is that the stream goes on, how
often it rolls to go on without somebody, and that every promise is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from logstore.replica.appending import OwnerLimits
from logstore.replica.effects import MemberFailed
from tests.replica.cluster import Cluster, ClusterShape, Planted
from tests.replica.metadata import META
from tests.replica.random_runs import SETTLE_MS, NotLive

LIMITS = replace(OwnerLimits(), chunk_bytes=1 << 20)
"""The product's times; chunks do not fill, so a roll has to do with members."""
SHAPE = ClusterShape(("a", "b", "c", "d"), limits=LIMITS, lease_us=3_000_000)
STEP_US = 100_000
STALL_MS = (500, 2_000)
RUN_MS = (200, 2_000)
STORE_STALL_MS = (100, 1_000)
"""The metadata store has a processor too few as well."""


@dataclass
class Starved:
    """What happened."""

    given_up: int = 0
    """How often a member was, because it was slow."""
    epochs: int = 0
    acked: int = 0
    stalls: int = 0
    longest_wait_steps: int = 0
    """Without an acknowledgement."""
    trace: str = ""


class StarvedRun:
    """One run."""

    def __init__(self, seed: int, planted: Planted | None = None, shape: ClusterShape = SHAPE) -> None:
        self.random = Random(f"starved {seed}")
        self.cluster = Cluster(seed, shape, planted)
        self._turns_us: dict[str, int] = {}
        """When a host stops, or goes on."""

    def run(self, seconds: int) -> Starved:
        """Let clients append while hosts stand still in turns; then let all run, and check every promise."""
        cluster, found = self.cluster, Starved()
        if not cluster.settle(SETTLE_MS):
            raise NotLive(f"it does not begin: {cluster.registration}")
        acked, waited = 0, 0
        for _ in range(seconds * 1_000_000 // STEP_US):
            found.stalls += sum(map(self._turn, (*cluster.shape.hosts, META)))
            owner = cluster.owner_host()
            if owner is not None:
                cluster.append(owner.name)
            cluster.net.run(STEP_US)
            waited = 0 if cluster.history.acked > acked else waited + 1
            acked = cluster.history.acked
            found.longest_wait_steps = max(found.longest_wait_steps, waited)
        failures = [effect for _, _, effect in cluster.events if isinstance(effect, MemberFailed)]
        found.given_up = sum(effect.reason.startswith("no confirmation") for effect in failures)
        found.epochs, found.acked, found.trace = cluster.registration.epoch, acked, cluster.net.trace
        self._check()
        return found

    def _turn(self, name: str) -> bool:
        """Stop a host, or let it go on, when its time has come; returns whether it stops now."""
        net = self.cluster.net
        if name not in self._turns_us:
            self._turns_us[name] = net.now_us + self.random.randint(0, RUN_MS[1]) * 1_000
        if net.now_us < self._turns_us[name]:
            return False
        is_stalled = net.is_paused(name)
        (net.resume if is_stalled else net.pause)(name)
        stall_ms = STORE_STALL_MS if name == META else STALL_MS
        self._turns_us[name] = net.now_us + self.random.randint(*(RUN_MS if is_stalled else stall_ms)) * 1_000
        return not is_stalled

    def _check(self) -> None:
        cluster = self.cluster
        for name in (*cluster.shape.hosts, META):
            if cluster.net.is_paused(name):
                cluster.net.resume(name)
        if not cluster.settle(SETTLE_MS):
            raise NotLive(f"its copies never come to an end: {cluster.registration}; {cluster.events[-5:]}")
        cluster.check()
