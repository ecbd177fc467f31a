"""The benchmark of epochs still works: a tiny run without Kafka measures every number of partitions."""

from pathlib import Path

import pytest

from benchmarks.epoch_commits import CAIRN, ONE_BY_ONE, PARTITIONS
from tests.benchmarks.smoke import run_smoke


@pytest.mark.clients
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run leaves JSON with a row for each server and number of partitions, their syncs counted, and a plot."""
    found = run_smoke("epoch_commits", tmp_path)
    measured = {(row["peer"], row["partitions"]) for row in found["rows"]}
    assert measured == {(peer, partitions) for peer in (CAIRN, ONE_BY_ONE) for partitions in PARTITIONS}
    assert all(row["syncs"] >= 1 for row in found["rows"])
    assert [goal["name"] for goal in found["goals"]] == [
        f"syncs of an epoch, {count} partitions" for count in PARTITIONS
    ]
