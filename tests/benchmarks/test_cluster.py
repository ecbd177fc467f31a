"""The benchmark of clusters still works: a tiny run without Kafka measures all three parts."""

from pathlib import Path

import pytest

from benchmarks.harness.report import Rows
from benchmarks.hosts.plan import CAIRN, DEPTHS, KAFKA, KAFKA_FLUSH, PARTITIONS, SIZES
from benchmarks.hosts.report import find_goals
from tests.benchmarks.smoke import run_smoke
from tests.metadata.support import needs_etcd


@needs_etcd
@pytest.mark.clients
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run leaves JSON with a row for each load, a killed leader, a lost disk whose bytes came back, the memory
    of each host, and a plot.
    """
    found = run_smoke("cluster", tmp_path)
    assert found["left_out"] == []
    produced = [row for row in found["rows"] if row["part"] == "produce"]
    assert len(produced) == len(SIZES) * len(PARTITIONS) * len(DEPTHS)
    assert {row["peer"] for row in found["rows"]} == {CAIRN}
    (lost,) = (row for row in found["rows"] if row["part"] == "failover")
    assert (lost["failed_records"], lost["stop_failed_records"]) == (0, 0)
    (copied,) = (row for row in found["rows"] if row["part"] == "copies")
    assert copied["copied_bytes"] >= 0.9 * copied["held_bytes"] > 0
    assert isinstance(copied["has_moved"], bool)
    nodes = {row["node"] for row in found["rows"] if row["part"] == "memory"}
    assert nodes == {1, 2, 3}
    assert len(found["goals"]) == 4


def test_goals_compare_the_rounds_of_both() -> None:
    """A goal's value is the median of the rounds' ratios, and says the lowest and the highest of them."""
    rows = Rows()
    cell = {"partitions": 1, "in_flight": 5, "request_bytes": SIZES[0]}
    for number, (ours, theirs, flushed) in enumerate([(90.0, 100.0, 50.0), (80.0, 100.0, 50.0), (60.0, 100.0, 50.0)]):
        for peer, rate in ((CAIRN, ours), (KAFKA, theirs), (KAFKA_FLUSH, flushed)):
            rows.add(part="produce", round=number, peer=peer, requests_per_s=rate, **cell)
    for peer, seconds in ((CAIRN, 1.0), (KAFKA, 10.0)):
        rows.add(part="failover", round=1, peer=peer, kill_silence_s=seconds)
    flush, plain, silent, ratio = find_goals(rows)
    assert (flush.value, flush.low, flush.high, flush.goal) == (1.6, 1.2, 1.8, "≥ 1")
    assert (plain.value, plain.low, plain.high, plain.holds) == (0.8, 0.6, 0.9, True)
    assert (silent.value, silent.holds) == (1.0, True)
    assert (ratio.value, ratio.holds) == (0.1, True)
