"""Goals, tables, JSON and plot of benchmarks/peace_real.py.

Invariant: everything is computed from the rows. A goal whose rows were not measured is left out, never assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.harness.report import Goal, Rows, at_least, at_most, print_goals, print_rows, write_json

NAME = "peace_real"
CHAINS, HDFS_PART = "chains", "hdfs"
REAL, SIMULATED = "real", "simulated"
DEFAULT, PEACE, PAPERS_PEACE = "HDFS default", "Cairn's Peace", "Peace, as in the paper"
POLICIES = (DEFAULT, PAPERS_PEACE, PEACE)
NEIGHBOURS = ("links, one less", "links, one more", "disks, one less", "disks, one more")
"""Cairn's Peace with capacities beside those that the calibrator's rule gives (`Setting.neighbours`)."""
NEIGHBOUR_RATIO = 1.05
"""Further above the best neighbour the rule is wrong, with a margin for runs that differ by some percent."""
IO_RATIO, COMP_RATIO = 0.35, 0.8
TOLERANCE = 0.15
"""Between the simulator and the real cluster: what the simulator's HDFS has to match the paper within."""
HDFS_TOLERANCE = 0.1
"""The same with a real HDFS, which shares nothing with the simulator but the links: the independent test."""
HDFS_COMP_RATIO = 1.0
LINK_TOLERANCE = 0.05
BUSY_SHARE = 0.8
"""With less of the CPUs in use, they were not what limited a run."""
PAPER = {DEFAULT: (45.0, 55.0), PAPERS_PEACE: (20.0, 75.0)}
"""IO and COMP in seconds of 16 × 512 MB (section 6.2, figure 10; Peace's IO is "under 20 s")."""
COLOURS = {DEFAULT: "#7f7f7f", PAPERS_PEACE: "#ff7f0e", PEACE: "#1f77b4"}
FIGURES = {"io_s": "IO", "response_s": "from submission", "comp_s": "COMP"}
TITLES = {CHAINS: "chains of real bytes, disks paced by table 8", HDFS_PART: "a real HDFS, disks as they are"}
NOTES = (
    "One tenth: a tenth of the paper's bytes at a tenth of its rates, so that times are comparable with its seconds.",
    (
        "Every link is shaped by tc (htb), each way, acks in front of all else; all 17 hosts share one real disk, so "
        "in `chains` each host's disk and each client are paced to one tenth of the paper's table 8, for as many as "
        "write at that moment, behind a "
        "memory of one chunk which is full when a run begins. Files are real and fsynced before the ack."
    ),
    "The simulator runs the same scenario with the link rates that were measured, the same writers, the same seeds.",
    (
        "`hdfs` is Hadoop with its own DataNodes, disks not paced: links limit it, and the CPUs that 18 JVMs share. "
        "Its default placement is this version's (second and third replica together), with the writer's own DataNode "
        "excluded, as the paper modified it. Under Peace every chunk's replicas were compared with the plan, in order."
    ),
    (
        "Peace plans continuously with planner `repaired`, the default, with as many chunks on a link as fill it and "
        "two on a disk (under HDFS a chain also sends nothing for what a file takes besides its bytes); "
        "Peace as in the paper (round 1 alone) plans in timesteps that end at 80 %, capacity 2 everywhere, which the "
        "paper says of hosts; of the link between the racks it is our reading."
    ),
    (
        "In rounds 1 to 3 of `chains` Peace also runs with one chunk less and one more on all links (those of senders "
        "included), and on all disks: what tells whether the calibrator's rule gives the right capacities."
    ),
    (
        "What a file of HDFS takes besides its bytes is measured before the first round, by the same checkpoints under "
        "Peace with one byte in each chunk; the simulator draws from it, on both sides."
    ),
    "IO is from a writer's first go to its last ack, means over the writers; COMP from the first submission.",
    "busy_cpus counts everything on the machine, own_cpus the hosts' processes without the kernel's work for others.",
)


class Timeline(NamedTuple):
    """When the chunks of a run were acknowledged, and each writer's span from go to the last ack, in seconds."""

    part: str
    source: str
    policy: str
    round: int
    acks_s: list[float]
    spans_s: list[tuple[float, float]]


def publish(
    rows: Rows, timelines: Sequence[Timeline], about: Mapping[str, Any], directory: Path, console: Console | None
) -> list[Goal]:
    """Write JSON and plot; print tables if there is a console; give back the goals."""
    goals = find_goals(rows, about)
    if console is not None:
        for part in (CHAINS, HDFS_PART):
            _print_part(rows, part, console, full=about["mode"] == "full")
        print_goals(console, goals)
        for what in about.get("left_out", ()):
            console.print(f"left out: {what}")
    content = {
        **about,
        "goals": [goal._asdict() for goal in goals],
        "shown_apart": [goal._asdict() for goal in shown_apart(rows)],
        "notes": list(NOTES),
        "paper": {name: dict(zip(("io_s", "comp_s"), values, strict=True)) for name, values in PAPER.items()},
        "medians": medians(rows),
        "rows": rows.all,
        "timelines": [timeline._asdict() for timeline in timelines if timeline.round == 1],
    }
    write_json(directory / f"{NAME}.json", content)
    draw(rows, timelines, str(about["mode"]), directory / f"{NAME}.png")
    return goals


# ---- figures


def find_goals(rows: Rows, about: Mapping[str, Any]) -> list[Goal]:
    """Every goal that this run measured."""
    goals = _ratios(rows, CHAINS)
    goals += _against_neighbours(rows)
    goals += _deviations(rows, (DEFAULT, PEACE))
    goals += _deviations(rows, (DEFAULT, PEACE), HDFS_PART, HDFS_TOLERANCE)
    ratio = rows.ratio("comp_s", {"policy": PEACE}, {"policy": DEFAULT}, part=HDFS_PART, source=REAL)
    if ratio is not None:
        goals.append(at_most(f"{HDFS_PART}: COMP, Peace ÷ default", ratio, "", HDFS_COMP_RATIO))
    for part, links in about.get("links", {}).items():
        goals.append(at_most(f"{part}: slowest link below its rate by", links["slowest_below"], "", LINK_TOLERANCE))
    busy = [row["busy_cpus"] / row["cpus"] for row in rows.select(part=CHAINS, source=REAL)]
    if busy:
        goals.append(at_most(f"{CHAINS}: CPUs in use, busiest run", max(busy), "of all", BUSY_SHARE))
    return goals


def shown_apart(rows: Rows) -> list[Goal]:
    """The real HDFS held to the same bounds, though it has no paced disks and 18 JVMs share the CPUs; and the simulator
    beside the one run of Peace as in the paper, whose timesteps hang on chance.
    """
    goals = [*_deviations(rows, (PAPERS_PEACE,)), *_ratios(rows, HDFS_PART)]
    followed = rows.select(part=HDFS_PART, source=REAL, policy=PEACE)
    if followed:
        share = min(row["as_planned"] for row in followed)
        goals.append(at_least(f"{HDFS_PART}: chunks on the planned nodes, in order", share, "of all", 1.0))
    return goals


def _ratios(rows: Rows, part: str) -> list[Goal]:
    goals = []
    for figure, bound in (("io_s", IO_RATIO), ("comp_s", COMP_RATIO)):
        ratio = rows.ratio(figure, {"policy": PEACE}, {"policy": DEFAULT}, part=part, source=REAL)
        if ratio is not None:
            goals.append(at_most(f"{part}: {FIGURES[figure]}, Peace ÷ default", ratio, "", bound))
    return goals


def _against_neighbours(rows: Rows) -> list[Goal]:
    """The rule's capacities held to the neighbour that does best, from the submission and in COMP."""
    goals = []
    for figure in ("response_s", "comp_s"):
        ratios = [
            rows.ratio(figure, {"policy": PEACE}, {"policy": name}, part=CHAINS, source=REAL) for name in NEIGHBOURS
        ]
        known = [ratio for ratio in ratios if ratio is not None]
        if known:
            name = f"{CHAINS}: {FIGURES[figure]}, calibrated capacities ÷ the best of one more or less"
            goals.append(at_most(name, max(known), "", NEIGHBOUR_RATIO))
    return goals


def _deviations(rows: Rows, policies: Sequence[str], part: str = CHAINS, tolerance: float = TOLERANCE) -> list[Goal]:
    found = []
    for policy in policies:
        for figure, name in FIGURES.items():
            off = deviation(rows, part, policy, figure)
            if off is not None:
                where = "" if part == CHAINS else f"{part}: "
                found.append(at_most(f"{where}{policy}, {name}: simulator off by", off, "of the real", tolerance))
    return found


def deviation(rows: Rows, part: str, policy: str, figure: str) -> float | None:
    """How far the simulator's median is from the real one's, as a share of it."""
    real, simulated = (rows.median(figure, part=part, policy=policy, source=source) for source in (REAL, SIMULATED))
    return None if not real or simulated is None else abs(simulated - real) / real


def medians(rows: Rows) -> list[dict[str, Any]]:
    """Of every figure, by part, policy and source, with the number of runs."""
    found = []
    for part in (CHAINS, HDFS_PART):
        for policy in (*POLICIES, *NEIGHBOURS):
            for source in (REAL, SIMULATED):
                wanted = {"part": part, "policy": policy, "source": source}
                runs = len(rows.select(**wanted))
                if runs:
                    values = {figure: rows.median(figure, **wanted) for figure in FIGURES}
                    found.append({**wanted, "runs": runs, **values})
    return found


def _print_part(rows: Rows, part: str, console: Console, *, full: bool) -> None:
    lines = []
    for entry in medians(rows):
        if entry["part"] == part:
            seconds = [f"{entry[figure]:.1f}" for figure in FIGURES]
            paper = PAPER.get(entry["policy"], ()) if part == CHAINS and full else ()
            lines.append(
                [entry["policy"], entry["source"], str(entry["runs"]), *seconds, " / ".join(f"{x:g}" for x in paper)]
            )
    if lines:
        columns = ["policy", "source", "runs", *(f"{name} s" for name in FIGURES.values()), "paper: IO / COMP s"]
        print_rows(console, f"{part}: {TITLES[part]}", columns, lines)


# ---- plot


def draw(rows: Rows, timelines: Sequence[Timeline], mode: str, path: Path) -> None:
    """Medians of reality and simulator, chunks over time in both, who writes when, and the real HDFS."""
    with mpl.rc_context({"font.size": 9}):
        figure = Figure(figsize=(13, 9), layout="constrained")
        axes = figure.subplots(2, 2)
        _bars(axes[0][0], rows, CHAINS, PAPER if mode == "full" else {})
        _progress(axes[0][1], timelines)
        _spans(axes[1][0], timelines)
        _bars(axes[1][1], rows, HDFS_PART, {})
        figure.suptitle(f"Writing checkpoints on 17 real hosts, one tenth of the paper's scale ({mode})")
        figure.savefig(path, dpi=130)


def _bars(axes: Axes, rows: Rows, part: str, paper: Mapping[str, tuple[float, float]]) -> None:
    """IO and COMP of each policy, real beside simulated, with the single runs as dots and the paper's as diamonds."""
    labels, place = [], 0
    for policy in POLICIES:
        if not rows.select(part=part, policy=policy):
            continue
        for figure in ("io_s", "comp_s"):
            for shift, source in ((-0.2, REAL), (0.2, SIMULATED)):
                wanted = {"part": part, "policy": policy, "source": source}
                value = rows.median(figure, **wanted)
                if value is None:
                    continue
                alpha, hatch = (1.0, "") if source == REAL else (0.35, "//")
                axes.bar(place + shift, value, 0.38, color=COLOURS[policy], alpha=alpha, hatch=hatch)
                axes.text(place + shift, value, f"{value:.1f}", ha="center", va="bottom")
                dots = [row[figure] for row in rows.select(**wanted)]
                axes.plot([place + shift] * len(dots), dots, ".", color="black", markersize=3)
            if policy in paper:
                seconds = paper[policy][0 if figure == "io_s" else 1]
                axes.plot(place, seconds, "D", color="black", markerfacecolor="none")
            labels.append("\n".join([*policy.split(", "), FIGURES[figure]]))
            place += 1
    axes.set_xticks(range(place), labels, fontsize=8)
    axes.set_ylabel("seconds")
    n = len(rows.select(part=part, policy=PEACE, source=REAL))
    marks = f"medians of n = {n}, solid: real, hatched: simulated, dots: single runs" + (
        ", diamonds: the paper's" if paper else ""
    )
    axes.set_title(f"{TITLES[part]}\n{marks}", fontsize=9)


def _progress(axes: Axes, timelines: Sequence[Timeline]) -> None:
    """The share of all chunks acknowledged, over time."""
    named: set[tuple[str, str]] = set()
    for timeline in timelines:
        if timeline.part != CHAINS or timeline.policy not in POLICIES:
            continue
        key = (timeline.policy, timeline.source)
        label = f"{timeline.policy}, {timeline.source}" if key not in named else None
        named.add(key)
        share = np.arange(1, len(timeline.acks_s) + 1) / len(timeline.acks_s)
        style = "-" if timeline.source == REAL else "--"
        axes.plot(sorted(timeline.acks_s), share, style, color=COLOURS[timeline.policy], lw=0.9, alpha=0.8, label=label)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds since the submission")
    axes.set_ylabel("share of all chunks acknowledged")
    axes.set_title("chunks over time: reality (solid) and simulator (dashed), every run")
    if named:
        axes.legend(loc="lower right", fontsize=8)


def _spans(axes: Axes, timelines: Sequence[Timeline]) -> None:
    """Each writer's time from go to the last ack in the first real run, sorted by its end."""
    row = 0
    for policy in POLICIES:
        chosen = [t for t in timelines if (t.part, t.source, t.policy, t.round) == (CHAINS, REAL, policy, 1)]
        for timeline in chosen[:1]:
            spans = sorted(timeline.spans_s, key=lambda span: span[1])
            rows = range(row, row + len(spans))
            lengths = [end - go for go, end in spans]
            axes.barh(rows, lengths, left=[go for go, _ in spans], color=COLOURS[policy], height=0.8, label=policy)
            row += len(spans) + 2
    axes.invert_yaxis()
    axes.set_yticks([])
    axes.set_xlabel("seconds since the submission")
    axes.set_title("one bar per writer, from go to last ack (first real run of each)")
    if row:
        axes.legend(loc="upper right", fontsize=8)
