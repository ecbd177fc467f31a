"""The benchmark of lost hosts still works: a tiny run kills a host in each of its roles."""

from pathlib import Path

import pytest

from benchmarks.query_losses import ROLES
from tests.benchmarks.smoke import run_smoke
from tests.metadata.support import needs_etcd


@needs_etcd
@pytest.mark.spark
@pytest.mark.slow
def test_smoke_run(tmp_path: Path) -> None:
    """A query that runs on commits epochs after each kill; JSON has a row for each role, and a plot is beside it."""
    found = run_smoke("query_losses", tmp_path)
    assert [row["lost"] for row in found["rows"]] == list(ROLES.values())
    assert all(row["lost"] in row["roles"] and row["gap_s"] > 0 for row in found["rows"])
