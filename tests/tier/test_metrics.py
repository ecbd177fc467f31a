"""The metrics of a tier say what has happened in it."""

from __future__ import annotations

from pathlib import Path

from logstore.errors import TierUnavailable
from logstore.monitoring.tier_metrics import TIER_METRICS, read_tier
from logstore.tier.service import TierService
from tests.tier.test_reads import filled, running, until


def figures(tier: TierService) -> dict[str, float]:
    """The metrics by name."""
    return {metric.name: metric.samples[0].value for metric in read_tier(tier)}


async def test_every_metric_moves_with_its_cause(tmp_path: Path) -> None:
    """Chunks are stored, leave the disk, are read and removed; the store is away; a failure's remains are swept."""
    for name in ("data", "tier"):
        (tmp_path / name).mkdir()
    async with running(tmp_path) as at:
        first = figures(at.tier)
        assert set(first.values()) == {0}
        stream = await filled(at)
        await at.values(stream)
        seen = {name for name, value in figures(at.tier).items() if value}
        gone = f"{at.engine.store.cluster_id}/t.{'0' * 32}/0/{0:020d}-{'0' * 16}/{0:020d}.log"
        at.objects.put(gone, 1, [b"x"])

        def fail(method: str, key: str) -> None:
            if method == "put":
                raise TierUnavailable(f"{key}: away")

        at.objects.before = fail
        for number in range(8):
            await at.append(stream, number)
        await until(lambda: at.tier.figures.failures > 0)
        seen |= {name for name, value in figures(at.tier).items() if value}
        waiting = stream.chunk_at(max(stream.tiered.end_offset, 0))
        assert waiting is not None
        path = tmp_path / "data" / waiting.log_path
        whole = path.read_bytes()
        path.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
        at.objects.before = lambda *_: None
        await until(lambda: at.tier.tiering.left_out_streams > 0)
        seen |= {name for name, value in figures(at.tier).items() if value}
        await until(lambda: at.tier.figures.swept_keys > 0)
        await at.engine.wait(stream.delete_records(stream.local_start_offset))
        await until(lambda: at.tier.figures.removed_chunks > 0)
        seen |= {name for name, value in figures(at.tier).items() if value}
        assert seen == {entry.name for entry in TIER_METRICS}
