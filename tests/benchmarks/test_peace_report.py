"""What benchmarks/peace.py makes of its rows."""

from __future__ import annotations

from benchmarks.harness.report import Rows
from benchmarks.simulation.report import ranges
from benchmarks.simulation.setups import HDFS, PEACE
from scheduler.simulation.policies import Era


def test_a_range_has_the_best_and_the_worst_of_all_changes() -> None:
    """Ratios are those of each round, and each end names the change that it came out under."""
    rows = Rows()
    for change, ours in (("slow disks", 30.0), ("fast links", 10.0), ("neither", 20.0)):
        for number in (1, 2, 3):
            for setup, seconds in ((f"{HDFS} {Era.BEFORE_0_17}", 40.0 * number), (PEACE, ours * number)):
                rows.add(what="sensitivity", change=change, setup=setup, round=number, comp_s=seconds)
    (found,) = ranges(rows)
    assert (found["measure"], found["least"], found["with"]) == ("COMP", 0.25, "fast links")
    assert (found["most"], found["most_with"]) == (0.75, "slow disks")
