"""The metrics that only a sidecar with a tier has, in one table, as `logstore.monitoring.metrics` has all others.

Invariant: one sample of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.base.prometheus import Metric, Sample

if TYPE_CHECKING:
    from logstore.tier.service import TierMeter


class TierMetricEntry(NamedTuple):
    """One metric of the table. `read` gives its value."""

    name: str
    kind: str
    says: str
    read: Callable[[TierMeter], float]

    @property
    def labels(self) -> tuple[str, ...]:
        """It has none."""
        return ()


TIER_METRICS: Final[tuple[TierMetricEntry, ...]] = (
    TierMetricEntry("cairn_tier_chunks", "gauge", "chunks in the tier", lambda x: x.tiering.held_chunks),
    TierMetricEntry("cairn_tier_bytes", "gauge", "bytes of the chunks in the tier", lambda x: x.tiering.held_bytes),
    TierMetricEntry("cairn_tier_waiting_chunks", "gauge", "sealed chunks that wait to be stored in the tier",
                    lambda x: x.tiering.waiting_chunks),
    TierMetricEntry("cairn_tier_left_out_streams", "gauge", "streams with a chunk that cannot be stored or registered",
                    lambda x: x.tiering.left_out_streams),
    TierMetricEntry("cairn_tier_stored_bytes_total", "counter",
                    "bytes stored in the tier and verified by reading them back",
                    lambda x: x.figures.stored_bytes),
    TierMetricEntry("cairn_tier_removed_chunks_total", "counter", "chunks removed from the tier",
                    lambda x: x.figures.removed_chunks),
    TierMetricEntry("cairn_tier_swept_keys_total", "counter",
                    "objects removed that a crash or a failure had left behind",
                    lambda x: x.figures.swept_keys),
    TierMetricEntry("cairn_tier_dropped_bytes_total", "counter", "bytes of local copies removed, as the tier has them",
                    lambda x: x.figures.dropped_bytes),
    TierMetricEntry("cairn_tier_fetched_bytes_total", "counter", "bytes read from the tier for readers",
                    lambda x: x.cache.fetched_bytes),
    TierMetricEntry("cairn_tier_cache_bytes", "gauge", "memory used to cache reads from the tier",
                    lambda x: x.cache.used_bytes),
    TierMetricEntry("cairn_tier_failures_total", "counter", "rounds that ended because the tier was away or full",
                    lambda x: x.figures.failures),
    TierMetricEntry("cairn_tier_away", "gauge", "1: the tier is away or full, and chunks wait",
                    lambda x: int(x.figures.away_since_ms is not None)),
)  # fmt: skip


def read_tier(tier: TierMeter) -> list[Metric]:
    """All metrics of the tier with their samples."""
    return [Metric(entry.name, entry.kind, entry.says, [Sample({}, entry.read(tier))]) for entry in TIER_METRICS]
