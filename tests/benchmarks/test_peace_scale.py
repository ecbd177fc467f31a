"""The benchmark of planners at scale still works: its networks, gaps and goals, and a tiny run."""

from pathlib import Path

import pytest

from benchmarks.harness.report import Rows
from benchmarks.scale import report
from benchmarks.scale.cases import LOADS, case, rack_sizes, tiny
from tests.benchmarks.smoke import run_benchmark


@pytest.mark.slow
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run prints its tables and leaves JSON with all loads and planners, and a plot; nothing else."""
    results, printed = run_benchmark("peace_scale", tmp_path, "--smoke")
    for title in ("One timestep", "One chain", "Memory", "Goals"):
        assert title in printed
    assert {"machine", "versions", "plan", "goals", "notes", "summary", "left_out"} <= results.keys()
    assert {line["planner"] for line in results["summary"]} == {"paper", "tree", "repaired", "exact"}
    assert {line["load"] for line in results["summary"]} == set(LOADS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["peace_scale.json", "peace_scale.png"]


@pytest.mark.parametrize("levels", [2, 3])
@pytest.mark.parametrize("load", LOADS)
def test_a_case_follows_from_its_seed(load: str, levels: int) -> None:
    """The same network and requests again for the same seed; every host is there, every writer known."""
    first, second = case(load, 400, levels, 3), case(load, 400, levels, 3)
    assert first.requests == second.requests
    assert first.topology.servers == second.topology.servers
    assert len(first.topology.servers) == 400
    assert first.topology.tree is not None
    assert max(first.topology.tree.depth) == levels - 1
    assert tiny(5).requests == tiny(5).requests


def test_racks() -> None:
    """The paper's 8 and 9, then 40."""
    assert rack_sizes(17) == [8, 9]
    assert rack_sizes(68) == [8, 9] * 4
    assert rack_sizes(10_000) == [40] * 250


def test_gaps_count_against_proven_optima_only() -> None:
    """The worst round counts; where the optimum is not proven there is no gap."""
    rows, about = Rows(), {"hosts": 17, "levels": 2}
    for load, proven in (("mixed", True), ("one slot", False)):
        rows.add(**about, load=load, planner="exact", chunks=10, proven=proven, ms=1.0, us_per_chunk=1.0)
        for chunks in (10, 9, 10):
            for planner in ("tree", "repaired"):
                rows.add(**about, load=load, planner=planner, chunks=chunks, ms=2.0, us_per_chunk=1.0)
    assert report.worst_gap(rows, "repaired", 2, 17, "mixed") == pytest.approx(0.1)
    assert report.worst_gap(rows, "repaired", 2, 17, "one slot") is None
    goals = {goal.name: goal for goal in report.find_goals(rows)}
    assert not goals["repaired: gap from the optimum, worst case and round"].holds


def test_irregular_networks_are_goals() -> None:
    """The worst network with a proven optimum decides, and too few proven ones fail."""
    rows = Rows()
    for chunks, proven in ((10, True), (9, True), (5, False)):
        rows.add(load="irregular", planner="repaired", levels=3, hosts=20, chunks=chunks, most=10, proven=proven)
    gap, proven_share = (goal for goal in report.find_goals(rows) if "irregular networks of 3" in goal.name)
    assert (gap.value, gap.holds) == (0.1, False)
    assert proven_share.value == pytest.approx(2 / 3, abs=1e-3)
    assert not proven_share.holds
    assert report.irregular(rows, "repaired", 3)["optimal"] == 1


def test_bursts_are_goals() -> None:
    """The mean over networks decides, with its interval; of one network alone nothing is known of the spread."""
    rows = Rows()
    for took in (10.2, 11.0):
        rows.add(load="burst", levels=2, spread=0.0, took=took, least=10)
    rows.add(load="burst", levels=3, spread=0.02, took=10.1, least=10)
    two, three = (goal for goal in report.find_goals(rows) if "burst" in goal.name)
    assert (two.value, two.holds, two.n) == (0.06, False, 2)
    assert two.low is not None
    assert (three.value, three.holds, three.low) == (0.01, True, None)
