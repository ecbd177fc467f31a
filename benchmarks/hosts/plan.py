"""How much is measured, and what it is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.harness import results

FULL: Final = results.FULL
SMOKE: Final = "smoke"
PARTS: Final = ("produce", "failover", "copies")
CAIRN, KAFKA, KAFKA_FLUSH = "Cairn", "Kafka", "Kafka, flush.messages=1"
PEERS: Final = (CAIRN, KAFKA, KAFKA_FLUSH)
DEPTHS: Final = (1, 5, 20)
"""Requests in flight on each connection."""
PARTITIONS: Final = (1, 100)
SIZES: Final = (1024, 16 * 1024)
REPLICAS: Final = 3


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    mode: str
    rounds: int
    """Of `produce`, after one that warms up and is not kept."""
    seconds: float
    """Of each cell."""
    losses: int
    """Rounds of `failover`, and of `copies`."""
    held_mb: int
    """What a host that comes back with an empty disk has lost."""
    steady_s: float
    """Of the steady producer, when all is well."""
    around_s: float = 2.0
    """For how long the producer of `failover` goes on after each loss, return and stop; half of it before."""
    with_kafka: bool = True

    @property
    def first_round(self) -> int:
        """Of `produce`: round 0 warms up. A smoke run has figures that nobody reads, and goes without."""
        return 1 if self.mode == SMOKE else 0


PLANS: Final = {
    plan.mode: plan
    for plan in (
        Plan(FULL, rounds=3, seconds=1.5, losses=3, held_mb=256, steady_s=5.0),
        Plan("quick", rounds=1, seconds=0.5, losses=1, held_mb=64, steady_s=2.0),
        Plan(SMOKE, rounds=1, seconds=0.1, losses=1, held_mb=2, steady_s=0.5, around_s=0.2, with_kafka=False),
    )
}
