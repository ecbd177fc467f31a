"""The benchmark of a cluster with many partitions still works: a tiny run takes every step."""

from pathlib import Path

import pytest

from benchmarks.cluster_partitions import SMOKE
from tests.benchmarks.smoke import run_smoke
from tests.metadata.support import needs_etcd


@needs_etcd
@pytest.mark.clients
@pytest.mark.slow
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run leaves JSON with a row for each step, and decides both goals."""
    found = run_smoke("cluster_partitions", tmp_path)
    steps = [row["what"] for row in found["rows"]]
    assert (steps[0], steps[-1], len(steps)) == ("create", "delete", 9)
    assert len(found["goals"]) == 2
    created = found["rows"][0]
    assert created["etcd_puts"] >= 2 * SMOKE.partitions
