"""The benchmark of produce and consume still works: every stage runs, and leaves what it promises. No timings."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.load import payload, walk
from benchmarks.harness.produce_consume_report import find_goals
from benchmarks.harness.report import Goal, Rows
from tests.support.limits import PROGRAM_S

ROOT = Path(__file__).parents[2]


@pytest.mark.clients
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run against a sidecar prints tables and leaves JSON with machine, versions, rows, goals, and a plot."""
    program = [sys.executable, "benchmarks/produce_consume.py", "--smoke"]
    done = subprocess.run(
        [*program, "--results", str(tmp_path), "--data", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for title in ("Produce (medians)", "Consume, start, memory (medians)", "Goals"):
        assert title in done.stdout
    results = json.loads((tmp_path / "produce_consume.json").read_text())
    assert results["mode"] == "smoke"
    assert {"machine", "versions", "goals", "notes", "rows"} <= results.keys()
    stages = {row["what"] for row in results["rows"]}
    assert stages == {"start", "floor", "produce", "consume", "tail", "beside", "memory", "fill", "restart", "seek"}
    for goal in results["goals"]:
        assert goal.keys() == set(Goal._fields)
        assert isinstance(goal["holds"], bool)
    assert (tmp_path / "produce_consume.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["produce_consume.json", "produce_consume.png"]


def test_ratio_pairs_rounds() -> None:
    """A ratio is the middle of the rounds' own ratios: a slow round is not compared with a fast one."""
    rows = Rows()
    for number, (ours, theirs) in enumerate([(10.0, 5.0), (1.0, 0.5), (300.0, 100.0)]):
        rows.add(server="Cairn", round=number, rate=ours)
        rows.add(server="Kafka", round=number, rate=theirs)
    assert rows.ratio("rate", {"server": "Cairn"}, {"server": "Kafka"}) == 2.0


def test_no_rows_no_goals() -> None:
    """What was not measured is no goal that holds."""
    assert find_goals(Rows()) == []


def test_walk_steps_over_whole_batches() -> None:
    """A fetched buffer whose last batch is cut short yields the whole ones."""
    data = payload(100, batch_bytes=1000)
    both = memoryview(data.batch + data.batch)
    assert walk(both, 0) == (data.records, 2 * len(data.batch))
    assert walk(both[:-1], 7) == (data.records, len(data.batch))
    assert walk(both[:10], 7) == (7, 0)
