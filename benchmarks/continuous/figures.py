"""What benchmarks/cec.py's rows say: overheads, throughputs, response times, loads, each with its interval.

Invariant: everything is computed from the rows; what was not measured is None.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.continuous import paper
from benchmarks.harness import intervals
from benchmarks.harness.intervals import Interval
from benchmarks.harness.report import Row, Rows

FAST, SLOW, MANY = "fast windows (1 tuple)", "slow windows (1000 tuples)", "many items (10 tuples)"
LOADS = (FAST, SLOW, MANY)
PAPER_RATE, FULL_SPEED = "paper's rate", "full speed"
NATIVE, NET, DISK, POLICY = "native", "Gopen/Net", "Gopen/Disk", "default policy"
KINDS = (NATIVE, NET, DISK, POLICY)
NONE, COST = "none", "cost-benefit"
"""Targets of runs without checks, and with those that pay."""
COLD, WARM = "cold", "warm"
OVERHEAD = {PAPER_RATE: 0.02, FULL_SPEED: 0.05}
"""Of native's processor time."""
COUNTS = ("beats", "results", "opens", "checks", "closes")
WINDOWS_PER_S = 2e6
RESPONSE: dict[int, float] = {
    period: seconds / paper.FIGURE_8[None] if period < 250 else 1.05
    for period, seconds in paper.FIGURE_8.items()
    if period is not None
}
"""Response time with checks against without, by CP: the paper's; 5 % stands for its "approximates" at 250 ms."""


def percent(interval: Interval) -> str:
    """An overhead as people read it."""
    return f"{interval.mean * 100:+.1f} % ({interval.low * 100:+.1f} to {interval.high * 100:+.1f})"


def overhead_of(rows: Rows, workload: str, speed: str, kind: str) -> Interval | None:
    """What a kind costs in processor time per record, as a part of native's; None if it was not measured."""
    ours, theirs = (per_block(rows, workload, speed, name) for name in (kind, NATIVE))
    both = [at for at in ours if at in theirs]
    if not both:
        return None
    return intervals.of_ratios([ours[at] for at in both], [theirs[at] for at in both]).shifted(-1)


def per_block(rows: Rows, workload: str, speed: str, kind: str) -> dict[int, float]:
    """Processor seconds per record of each block."""
    found: dict[int, float] = {}
    slices = rows.select(what="slice", workload=workload, speed=speed, kind=kind)
    for block in {row["round"] for row in slices}:
        part = [row for row in slices if row["round"] == block]
        found[block] = sum(row["cpu_s"] for row in part) / sum(row["records"] for row in part)
    return found


def throughput_of(rows: Rows, workload: str, speed: str, kind: str, figure: str = "results") -> Interval | None:
    """Results (or records, or with `real` results and footprints) a second, over the slices."""
    slices = rows.select(what="slice", workload=workload, speed=speed, kind=kind)
    if not slices:
        return None
    counts = [row["results"] + row["footprints"] if figure == "real" else row[figure] for row in slices]
    return intervals.of_values([count / row["seconds"] for count, row in zip(counts, slices, strict=True)])


def counts_of(rows: Rows, workload: str, speed: str, kind: str) -> dict[str, int]:
    """What the runs of a kind wrote, all rounds together; nothing if it was not measured."""
    found = rows.select(what="counts", workload=workload, speed=speed, kind=kind)
    return {name: sum(row[name] for row in found) for name in COUNTS} if found else {}


def miscounts(rows: Sequence[Row]) -> int:
    """By how many G_opens and results these runs differ from what their items demand."""
    return sum(abs(row[name] - row[f"{name}_wanted"]) for row in rows for name in ("opens", "results"))


def is_comparable(rows: Rows, workload: str, speed: str, kind: str) -> bool:
    """Whether a kind's runs and native's wrote what their items demand."""
    return not any(
        miscounts(rows.select(what="counts", workload=workload, speed=speed, kind=name)) for name in (kind, NATIVE)
    )


def overheads(rows: Rows) -> list[Row]:
    """All of them, with their intervals."""
    found = []
    for workload in LOADS:
        for speed in (PAPER_RATE, FULL_SPEED):
            for kind in KINDS[1:]:
                overhead = overhead_of(rows, workload, speed, kind)
                if overhead is not None:
                    written = counts_of(rows, workload, speed, kind)
                    found.append({"workload": workload, "speed": speed, "kind": kind, **overhead._asdict(), **written})
    return found


def response_of(rows: Rows, period: int) -> Interval | None:
    """Response time with checks against without, round by round."""
    theirs = {row["round"]: row["response_s"] for row in rows.select(what="period", period_ms=None)}
    ours = {row["round"]: row["response_s"] for row in rows.select(what="period", period_ms=period)}
    both = [at for at in ours if at in theirs]
    return intervals.of_ratios([ours[at] for at in both], [theirs[at] for at in both]) if both else None


def loads_of(rows: Rows, target: str, value: int) -> Interval | None:
    """Seconds to bring back the state of a run of figures 6 and 7."""
    found = [row["seconds"] for row in rows.select(what="load", target=target, value=value)]
    return intervals.of_values(found) if found else None


def loading_of(rows: Rows, storage: str) -> Interval | None:
    """Windows loaded a second, of the large state."""
    found = [row["windows_per_s"] for row in rows.select(what="loading", storage=storage)]
    return intervals.of_values(found) if found else None


def recoveries(rows: Rows) -> list[Row]:
    """The runs of figures 6 and 7: none, Q, U, cost-benefit, each from the smallest value on."""
    return sorted(
        rows.select(what="recovery"), key=lambda row: ((NONE, "Q", "U", COST).index(row["target"]), row["value"])
    )


def target_title(target: str, value: int) -> str:
    """How a run of figures 6 and 7 is called."""
    if target == NONE:
        return "no checks"
    if target == COST:
        return f"cost-benefit, a failure in {value:,} s"
    return f"Q = {value} × N" if target == "Q" else f"U = {value:,}"


def periods(rows: Rows) -> list[int | None]:
    """The CPs that were run, without checks first, then longest first."""
    found = {row["period_ms"] for row in rows.select(what="period")}
    return sorted(found, key=lambda period: (period is not None, -(period or 0)))
