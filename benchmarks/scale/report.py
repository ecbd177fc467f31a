"""From rows to goals, tables, JSON and a plot.

Invariant: figures come from rows; a gap is only given against an optimum that is proven.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.harness import intervals
from benchmarks.harness.report import Goal, Rows, at_least, at_most, print_goals, print_rows, write_json
from benchmarks.scale.cases import LOADS

NAME = "peace_scale"
Lines = list[dict[str, Any]]
"""Of the summary: one per case and planner."""
TITLE_WIDTH = 50
MAX_MS = 20.0
MAX_GAP = 0.01
MAX_ABOVE = 0.05
LARGE = 10_000
FAST = ("tree", "repaired")
PLANNERS = ("paper", *FAST, "exact")
COLOURS = {"paper": "tab:gray", "tree": "tab:blue", "repaired": "tab:green", "exact": "tab:red"}
NOTES = (
    "A timestep is one call of `plan`: from request objects to chain objects, Python and compiled parts together.",
    "Warm kernels; the garbage collector is run before each call, and what existed before the cases is exempt from it.",
    "A gap is 1 - chunks / chunks of a proven optimum (HiGHS, or exhaustive search on tiny networks).",
    "One chain: a call of `chain` on a network in half use; the call compares its copy of all capacities first.",
    "Memory: resident growth in a process of its own, for the load `two slots`.",
)


def publish(rows: Rows, about: Mapping[str, Any], directory: Path, console: Console) -> list[Goal]:
    """Print the tables, write JSON and plot, give back the goals."""
    goals, lines = find_goals(rows), summary(rows)
    _print_cases(lines, console)
    _print_rest(rows, console)
    print_goals(console, goals)
    for what in about.get("left_out", ()):
        console.print(f"left out: {what}")
    content = {
        **about,
        "goals": [goal._asdict() for goal in goals],
        "notes": list(NOTES),
        "loads": {name: load.title for name, load in LOADS.items()},
        "summary": lines,
        "tiny networks, chunks missing": {name: _missing(rows, name) for name in FAST},
        "bursts": [bursts(rows, levels, spread) for levels in (2, 3) for spread in spreads(rows, levels)],
        "irregular networks": [irregular(rows, name, levels) for name in FAST for levels in (2, 3)],
        "rows": [row for row in rows.all if row["load"] != "tiny"],  # those are counted above
    }
    write_json(directory / f"{NAME}.json", content)
    draw(lines, str(about["mode"]), directory / f"{NAME}.png")
    return goals


def cases(rows: Rows) -> list[tuple[int, int, str]]:
    """(levels, hosts, load), in the order measured."""
    return list(
        dict.fromkeys(
            (row["levels"], row["hosts"], row["load"])
            for row in rows.all
            if row.get("planner") == "tree" and row["load"] in LOADS
        )
    )


def find_goals(rows: Rows) -> list[Goal]:
    """What the planners shall reach."""
    goals = []
    for planner in FAST:
        for levels in (2, 3):
            medians = [
                value
                for at, hosts, load in cases(rows)
                if hosts == LARGE
                and at == levels
                and (value := rows.median("ms", planner=planner, hosts=hosts, load=load, levels=at)) is not None
            ]
            if medians:
                name = f"{planner}: timestep of {LARGE:,} hosts, {levels} levels of switches, median, slowest load"
                goals.append(at_most(name, max(medians), "ms", MAX_MS))
    gaps = [gap for at in cases(rows) if (gap := worst_gap(rows, "repaired", *at)) is not None]
    if gaps:
        goals.append(at_most("repaired: gap from the optimum, worst case and round", max(gaps), "", MAX_GAP))
    for levels in (2, 3):
        found = irregular(rows, "repaired", levels)
        if found["networks"]:
            name = f"repaired: irregular networks of {levels} levels"
            goals.append(at_most(f"{name}, worst gap of {found['proven']}", found["worst_gap"], "", MAX_GAP))
            goals.append(at_least(f"{name} with a proven optimum", found["proven"] / found["networks"], "of all", 0.95))
    for levels in (2, 3):
        for spread in spreads(rows, levels):
            span = bursts(rows, levels, spread)
            even = "equally long chunks" if not spread else f"chunks of ± {spread:.0%}"
            name = f"continuous: burst on {levels} levels, {even}, above the bound"
            goals.append(
                at_most(name, span["mean"], "", MAX_ABOVE)._replace(low=span["low"], high=span["high"], n=span["n"])
            )
    for planner in FAST[1:]:
        most = sum(row["most"] for row in rows.select(load="tiny", planner=planner))
        if most:
            lost = sum(lost * count for lost, count in _missing(rows, planner).items())
            goals.append(at_most(f"{planner}: gap on tiny networks, all together", lost / most, "", MAX_GAP))
    return goals


def irregular(rows: Rows, planner: str, levels: int) -> dict[str, Any]:
    """Gaps on the irregular networks of so many levels, where the optimum is proven."""
    found = rows.select(load="irregular", planner=planner, levels=levels)
    gaps = [1 - row["chunks"] / row["most"] for row in found if row["proven"] and row["most"]]
    return {
        "planner": planner,
        "levels": levels,
        "networks": len(found),
        "proven": len(gaps),
        "optimal": gaps.count(0.0),
        "above_1_percent": sum(gap > MAX_GAP for gap in gaps),
        "worst_gap": max(gaps, default=0.0),
    }


def spreads(rows: Rows, levels: int) -> list[float]:
    """How uneven the chunks of bursts were, each once."""
    return sorted({row["spread"] for row in rows.select(load="burst", levels=levels)})


def bursts(rows: Rows, levels: int, spread: float) -> dict[str, Any]:
    """How far bursts are above the bound: the mean over the networks with its 95 % interval, and all taken together."""
    found = rows.select(load="burst", levels=levels, spread=spread)
    above = intervals.of_values([row["took"] / row["least"] - 1 for row in found])
    together = sum(row["took"] for row in found) / sum(row["least"] for row in found) - 1
    labels = {"levels": levels, "spread": spread, "n": above.n}
    ends = {"low": above.low, "high": above.high} if above.n > 1 else {"low": None, "high": None}
    return {**labels, "together": together, "mean": above.mean, **ends}


def best_known(rows: Rows, levels: int, hosts: int, load: str) -> int | None:
    """The chunks of a proven optimum."""
    found = rows.select(planner="exact", hosts=hosts, load=load, levels=levels, proven=True)
    return int(found[0]["chunks"]) if found else None


def worst_gap(rows: Rows, planner: str, levels: int, hosts: int, load: str) -> float | None:
    """Over all rounds; None where no optimum is known."""
    most = best_known(rows, levels, hosts, load)
    found = rows.select(planner=planner, hosts=hosts, load=load, levels=levels)
    return 1 - min(row["chunks"] for row in found) / most if most and found else None


def summary(rows: Rows) -> Lines:
    """One line per case and planner."""
    lines = []
    for levels, hosts, load in cases(rows):
        for planner in PLANNERS:
            wanted = {"planner": planner, "hosts": hosts, "load": load, "levels": levels}
            found = rows.select(**wanted)
            if not found:
                continue
            gap, most = worst_gap(rows, planner, levels, hosts, load), best_known(rows, levels, hosts, load)
            chunks = rows.median("chunks", **wanted)
            lines.append(
                {
                    **wanted,
                    "rounds": len(found),
                    "median_ms": rows.median("ms", **wanted),
                    "best_ms": min(row["ms"] for row in found),
                    "worst_ms": max(row["ms"] for row in found),
                    "median_cpu_ms": rows.median("cpu_ms", **wanted),
                    "median_us_per_chunk": rows.median("us_per_chunk", **wanted),
                    "median_chunks": chunks,
                    "median_gap": None if most is None or chunks is None else round(1 - chunks / most, 5),
                    "worst_gap": None if gap is None else round(gap, 5),
                }
            )
    return lines


def _missing(rows: Rows, planner: str) -> dict[int, int]:
    """On tiny networks: chunks fewer than there could be, and how often."""
    return dict(
        sorted(Counter(row["most"] - row["chunks"] for row in rows.select(load="tiny", planner=planner)).items())
    )


def _print_cases(lines: Lines, console: Console) -> None:
    table = []
    for line in lines:
        gap = line["worst_gap"]
        table.append(
            (
                f"{line['hosts']:,} hosts, {line['levels']} levels, {line['load']}",
                line["planner"],
                f"{line['median_ms']:,.2f}",
                f"{line['best_ms']:,.2f}",
                f"{line['median_us_per_chunk']:,.1f}",
                f"{line['median_chunks']:,.0f}",
                "–" if gap is None else f"{gap * 100:.2f} %",
            )
        )
    columns = ("case", "planner", "median ms", "best ms", "µs per chunk", "chunks", "worst gap")
    print_rows(console, "One timestep", columns, table)


def _print_rest(rows: Rows, console: Console) -> None:
    chains = [row for row in rows.all if str(row.get("planner", "")).endswith("one chain")]
    lines = [
        (f"{row['hosts']:,} hosts, {row['levels']} levels", row["load"], f"{row['us']:.1f}", f"{row['p99_us']:.1f}")
        for row in chains
    ]
    print_rows(console, "One chain of `tree`", ("network", "load", "median µs", "p99 µs"), lines)
    weighed = [
        (
            f"{row['hosts']:,} hosts",
            row["planner"] + (", compiled from nothing" if row["load"] == "compiled" else ""),
            f"{row['first_plan_s']:.2f}",
            f"{row['network_and_requests_mb']:.1f}",
            f"{row['planner_and_plan_mb']:.1f}",
        )
        for row in rows.all
        if row["load"] in {"weighed", "compiled"}
    ]
    columns = ("a process of its own", "planner", "s to load and plan", "MB of network", "MB of planner and plan")
    print_rows(console, "Memory", columns, weighed)
    for planner in FAST:
        console.print(f"tiny networks, {planner}: chunks missing and how often: {_missing(rows, planner)}")
        for levels in (2, 3):
            found = irregular(rows, planner, levels)
            console.print(
                f"irregular networks of {levels} levels, {planner}: {found['networks']}, optimum proven on "
                f"{found['proven']} and found on {found['optimal']}, worst gap {found['worst_gap'] * 100:.2f} %"
            )


def draw(lines: Lines, mode: str, path: Path) -> None:
    """Time per timestep and per chunk and gap by hosts, one column per load."""
    mpl.use("Agg")
    rounds = max((line["rounds"] for line in lines), default=0)
    figure = Figure(figsize=(15, 10), layout="constrained")
    axes = figure.subplots(3, len(LOADS))
    for column, (load, about) in enumerate(LOADS.items()):
        _draw(axes[0][column], lines, load, "median_ms", "ms per timestep")
        axes[0][column].axhline(MAX_MS, color="black", linestyle="--", linewidth=0.8)
        axes[0][column].set_title(fill(f"{load}: {about.title}", TITLE_WIDTH), fontsize=8)
        _draw(axes[1][column], lines, load, "median_us_per_chunk", "µs per chunk")
        _draw_gap(axes[2][column], lines, load)
    axes[0][0].legend(fontsize=7)
    figure.suptitle(
        f"Planners of 17 to 10,000 hosts ({mode} run; medians of n = {rounds} rounds, `paper` and `exact` n = 1;\n"
        "bars: best and worst round; lines: two levels of switches, crosses: three; dashed: the goal)"
    )
    figure.savefig(path, dpi=100)


def _draw(axis: Axes, lines: Lines, load: str, figure: str, title: str) -> None:
    lines = [line for line in lines if line["load"] == load and line["median_chunks"]]
    for planner in PLANNERS:
        for levels, style in ((2, "o-"), (3, "x")):
            points = [
                (line["hosts"], line[figure])
                for line in lines
                if line["planner"] == planner and line["levels"] == levels
            ]
            label = planner if levels == 2 else None
            if figure == "median_ms":
                for line in (each for each in lines if each["planner"] == planner and each["levels"] == levels):
                    ends = [line["best_ms"], line["worst_ms"]]
                    axis.plot([line["hosts"]] * 2, ends, color=COLOURS[planner], linewidth=0.8)
            axis.plot(
                *zip(*points, strict=True) if points else ([], []),
                style,
                color=COLOURS[planner],
                label=label,
                markersize=4,
            )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("hosts")
    axis.set_ylabel(title)


def _draw_gap(axis: Axes, lines: Lines, load: str) -> None:
    lines = [line for line in lines if line["load"] == load and line["median_gap"] is not None]
    for planner in PLANNERS[:-1]:
        for levels, style in ((2, "o-"), (3, "x")):
            points = [
                (line["hosts"], line["median_gap"] * 100)
                for line in lines
                if line["planner"] == planner and line["levels"] == levels
            ]
            axis.plot(*zip(*points, strict=True) if points else ([], []), style, color=COLOURS[planner], markersize=4)
    axis.axhline(MAX_GAP * 100, color="black", linestyle="--", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xlabel("hosts")
    axis.set_ylabel("% below the optimum, median")
