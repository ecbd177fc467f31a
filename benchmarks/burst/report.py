"""Goals, tables, JSON and plot of benchmarks/checkpoint_burst.py.

Invariant: everything is computed from the rows. A goal whose rows were not measured is left out, never assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.burst.cluster import DEFAULT, OWN_DISK, PEACE, Burst
from benchmarks.burst.operating import Epoch
from benchmarks.harness.report import Goal, Rows, at_least, at_most, print_goals, print_rows, write_json

NAME = "checkpoint_burst"
POLICIES = (DEFAULT, OWN_DISK, PEACE)
COLOURS = {DEFAULT: "#7f7f7f", OWN_DISK: "#bcbd22", PEACE: "#1f77b4"}
ONE_RATIO, ALL_RATIO, EPOCH_RATIO, BUSY_SHARE = 0.25, 1.0, 1.1, 0.8
FIGURES = {
    "one_s": "one, from the go, s",
    "one_submitted_s": "one, from submission, s",
    "all_s": "all, s",
    "quiet_p50_ms": "epoch without, p50 ms",
    "quiet_p99_ms": "p99 ms",
    "burst_p50_ms": "epoch in the burst, p50 ms",
    "burst_p99_ms": "p99 ms ",
    "busy_cpus": "CPUs busy",
}
NOTES = (
    (
        "17 hosts as network namespaces in two racks, links shaped to a tenth of a gigabit each way, a real HDFS with "
        "a DataNode on each host; all share the processors and the disk of this machine. 16 hosts, drawn anew in each "
        "round, checkpoint the state of a stateful operator at once."
    ),
    (
        "The product writes: its checkpoint manager in a process beside each operator (as the I/O service is), frozen "
        "pages of the operator's base, its HDFS sink, Peace's plans through the NameNode's plan table, registration "
        "with the coordinator. Every checkpoint is a full one."
    ),
    (
        "From the go: from the freeze whose pages are written to the registration; without Peace the go is the "
        "submission. A checkpoint that failed is written again at once, and its first go counts. All: from the burst's "
        "begin to the last registration."
    ),
    (
        "HDFS's default placement has the writer's own DataNode left out, as the paper modified it and as Peace plans. "
        "Where it is left in (own disk first), each chunk has two copies to send instead of three, and the loss of a "
        "host takes the third copy together with the state."
    ),
    (
        "An epoch opens the state, applies the changes of the epoch before, updates windows and publishes the changes, "
        "as a task does; without Spark and without the log. Its latency counts from when it was due. Waiting for a "
        "processor is what the kernel says of the thread: on real hosts 17 hosts do not share processors."
    ),
)


def figures_of(burst: Burst) -> dict[str, Any]:
    """The row of one run."""
    checkpoints = list(burst.checkpoints.values())
    registered = [entry["registered_s"] for entry in checkpoints]
    return {
        "one_s": _mean(entry["registered_s"] - entry["go_s"] for entry in checkpoints),
        "one_submitted_s": _mean(entry["registered_s"] - entry["submitted_s"] for entry in checkpoints),
        "all_s": max(registered) - burst.begin_s,
        "freeze_ms_most": 1e3 * max(entry["freeze_s"] for entry in checkpoints),
        "bytes": sum(entry["bytes"] for entry in checkpoints),
        "files": sum(entry["files"] for entry in checkpoints),
        "planned": sum(bool(entry["planned"]) for entry in checkpoints),
        "failed": sum(entry["failed"] for entry in checkpoints),
        "lines": sorted({line for entry in checkpoints for line in entry["lines"] if line != "checkpoint_written"}),
        **_epochs("quiet", burst.quiet),
        **_epochs("burst", burst.during),
        **{f"quiet_node_{name}": value for name, value in burst.nodes_quiet._asdict().items()},
        **{f"node_{name}": value for name, value in burst.nodes._asdict().items()},
        **burst.load._asdict(),
    }


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _epochs(name: str, epochs: Sequence[Epoch]) -> dict[str, Any]:
    """Percentiles in milliseconds: of latencies, and of what is left of them without waiting for a processor."""
    latency = np.array([epoch.end_s - epoch.due_s for epoch in epochs]) * 1e3
    own = np.array([epoch.took_s - epoch.waited_s for epoch in epochs]) * 1e3
    found: dict[str, Any] = {f"{name}_epochs": len(epochs)}
    for share in (50, 99):
        found[f"{name}_p{share}_ms"] = float(np.percentile(latency, share))
        found[f"{name}_own_p{share}_ms"] = float(np.percentile(own, share))
    return found


def spans_of(burst: Burst) -> list[dict[str, float]]:
    """Each checkpoint's go and registration, in seconds since the burst's begin."""
    begin = burst.begin_s
    return [
        {"go_s": round(entry["go_s"] - begin, 3), "registered_s": round(entry["registered_s"] - begin, 3)}
        for entry in burst.checkpoints.values()
    ]


def find_goals(rows: Rows, cpus: int) -> list[Goal]:
    """What was to be reached."""
    peace, default = {"policy": PEACE}, {"policy": DEFAULT}
    goals = []
    wanted = (
        ("one checkpoint from the go, Peace ÷ default", "one_s", ONE_RATIO),
        ("all checkpoints, Peace ÷ default", "all_s", ALL_RATIO),
    )
    for name, figure, bound in wanted:
        ratio = rows.ratio(figure, peace, default)
        if ratio is not None:
            goals.append(at_most(name, ratio, "", bound))
    ratio = felt(rows, PEACE, "p99_ms")
    if ratio is not None:
        goals.append(at_most("p99 of an epoch under Peace, in the burst ÷ without", ratio, "", EPOCH_RATIO))
    busy = [row["busy_cpus"] for row in rows.select(**peace)]
    if busy:
        goals.append(at_most("CPUs in use under Peace, busiest run", max(busy) / cpus, "of all", BUSY_SHARE))
    return goals


def shown_apart(rows: Rows) -> list[Goal]:
    """Figures beside the goals, each with a bound that it is compared with."""
    peace, default = {"policy": PEACE}, {"policy": DEFAULT}
    apart = []
    ratio = rows.ratio("one_submitted_s", peace, default)
    if ratio is not None:
        apart.append(at_most("one checkpoint from submission, Peace ÷ default", ratio, "", 1.0))
    for figure, bound in (("one_s", ONE_RATIO), ("all_s", ALL_RATIO)):
        ratio = rows.ratio(figure, peace, {"policy": OWN_DISK})
        if ratio is not None:
            apart.append(at_most(f"{FIGURES[figure]}: Peace ÷ default with the own disk first", ratio, "", bound))
    for policy in POLICIES:
        for figure, what in (("p99_ms", "p99 of an epoch"), ("own_p99_ms", "the same without waiting for a processor")):
            ratio = felt(rows, policy, figure)
            if ratio is not None and (policy, figure) != (PEACE, "p99_ms"):
                apart.append(at_most(f"{policy}: {what}, in the burst ÷ without", ratio, "", EPOCH_RATIO))
    planned = [row["planned"] for row in rows.select(**peace)]
    if planned:
        apart.append(at_least("checkpoints written as Peace planned, fewest in a run", min(planned), "of 16", 16))
    return apart


def felt(rows: Rows, policy: str, figure: str) -> float | None:
    """An epoch's percentile in the burst ÷ the same in the quiet time before: the middle of the runs."""
    values = [row[f"burst_{figure}"] / row[f"quiet_{figure}"] for row in rows.select(policy=policy)]
    return float(np.median(values)) if values else None


def publish(
    rows: Rows, spans: Sequence[Mapping[str, Any]], about: Mapping[str, Any], folder: Path, console: Console | None
) -> None:
    """Write JSON and plot; print tables where there is a console."""
    goals, apart = find_goals(rows, about["machine"]["cpus"]), shown_apart(rows)
    medians = [
        {"policy": policy, "runs": len(rows.select(policy=policy))}
        | {figure: rows.median(figure, policy=policy) for figure in FIGURES}
        for policy in POLICIES
        if rows.select(policy=policy)
    ]
    content = {
        **about,
        "goals": [goal._asdict() for goal in goals],
        "shown_apart": [goal._asdict() for goal in apart],
        "notes": NOTES,
        "medians": medians,
        "rows": rows.all,
        "spans": list(spans),
    }
    write_json(folder / f"{NAME}.json", content)
    draw(rows, spans, str(about["mode"]), folder / f"{NAME}.png")
    if console is not None:
        lines = [
            [str(entry["policy"]), str(entry["runs"]), *(f"{entry[name]:.2f}" for name in FIGURES)] for entry in medians
        ]
        print_rows(console, "medians of the runs", ["policy", "runs", *FIGURES.values()], lines)
        print_goals(console, goals)
        print_goals(console, apart)
        console.print(f"results: {folder / NAME}.json")


def draw(rows: Rows, spans: Sequence[Mapping[str, Any]], mode: str, path: Path) -> None:
    """Times of one and of all checkpoints, who writes when, and what epochs take."""
    with mpl.rc_context({"font.size": 9}):
        figure = Figure(figsize=(14, 4.8), layout="constrained")
        axes = figure.subplots(1, 3)
        _bars(axes[0], rows, {"one_s": "one, from\nthe go", "one_submitted_s": "one, from\nsubmission", "all_s": "all"})
        axes[0].set_ylabel("seconds")
        axes[0].set_title("time of a checkpoint, medians and single runs")
        _spans(axes[1], spans)
        latencies = {"quiet_p50_ms": "p50\nwithout", "burst_p50_ms": "p50\nin the burst"}
        latencies |= {"quiet_p99_ms": "p99\nwithout", "burst_p99_ms": "p99\nin the burst"}
        _bars(axes[2], rows, latencies)
        axes[2].set_ylabel("milliseconds")
        axes[2].set_title("an operator's epoch, from when it was due")
        figure.suptitle(f"16 of 17 hosts checkpoint at once into a real HDFS ({mode})")
        figure.savefig(path, dpi=130)


def _bars(axes: Axes, rows: Rows, figures: Mapping[str, str]) -> None:
    policies = [policy for policy in POLICIES if rows.select(policy=policy)]
    width = 0.8 / max(len(policies), 1)
    for number, policy in enumerate(policies):
        for place, figure in enumerate(figures):
            at = place + (number - (len(policies) - 1) / 2) * width
            value = rows.median(figure, policy=policy) or 0.0
            axes.bar(at, value, 0.95 * width, color=COLOURS[policy], label=policy if not place else None)
            axes.text(at, value, f"{value:.3g}", ha="center", va="bottom", fontsize=7)
            dots = [row[figure] for row in rows.select(policy=policy)]
            axes.plot([at] * len(dots), dots, ".", color="black", markersize=3)
    axes.set_xticks(range(len(figures)), list(figures.values()), fontsize=8)
    if policies:
        axes.legend(fontsize=7)


def _spans(axes: Axes, spans: Sequence[Mapping[str, Any]]) -> None:
    """Each writer's time from go to registration in the first run of each policy."""
    row = 0
    for policy in POLICIES:
        for run in [entry for entry in spans if entry["policy"] == policy][:1]:
            ordered = sorted(run["spans"], key=lambda span: float(span["registered_s"]))
            lengths = [span["registered_s"] - span["go_s"] for span in ordered]
            places = range(row, row + len(ordered))
            axes.barh(places, lengths, left=[span["go_s"] for span in ordered], color=COLOURS[policy], height=0.8)
            row += len(ordered) + 2
    axes.invert_yaxis()
    axes.set_yticks([])
    axes.set_xlabel("seconds since the burst's begin")
    axes.set_title("one bar per checkpoint, from go to registration (first run)")
