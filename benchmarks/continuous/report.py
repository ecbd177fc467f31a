"""Goals, tables, JSON and plot of benchmarks/cec.py, with the paper's numbers.

Invariant: everything is computed from the rows. A goal whose rows were not measured is left out, never assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.continuous import paper
from benchmarks.harness.report import Goal, Rows, at_least, at_most, print_goals, print_rows, write_json

NAME = "cec"
FAST, SLOW, MANY = "fast windows (1 tuple)", "slow windows (1000 tuples)", "many items (10 tuples)"
NATIVE, NET, DISK, POLICY = "native", "Gopen/Net", "Gopen/Disk", "Gopen and Gcheck"
KINDS = (NATIVE, NET, DISK, POLICY)
NONE = "none"
"""Target of runs without checks."""
OVERHEAD = 0.02
TUPLES_PER_S = 2e6
LEAST_TUPLES = 50_000
"""A smaller load is a matter of milliseconds, and of what a request costs."""
COLOURS = {NATIVE: "#7f7f7f", NET: "#ff7f0e", DISK: "#1f77b4", POLICY: "#2ca02c"}
NOTES = (
    "One machine for source, operator, sink and storage, where the paper has a server for each and a network between.",
    (
        "A beat (50 ms of input in figure 5, 10 ms in the others) is what Cairn commits at once. A window that opens "
        "and closes within a beat leaves at most one control tuple per item, where the paper writes one a window; "
        "so fast windows cost much less than there, and 'Real' is hardly above the results."
    ),
    "Everything is durable (fsynced) before it counts; figure 5's native too.",
    (
        "Figure 5's fourth bar adds checks as in the paper's example (Q = 1,000, U = 1,000,000, CI 5 ms of CP 100 ms); "
        "'many items' is figure 6's workload, where every tenth record opens a window."
    ),
    (
        "Extents count results, footprints and closes, from the oldest footprint that is needed to the end. Bytes "
        "replayed are input records × 100 bytes, as in the paper. The load is the runner's own: fencing, backward scan "
        "over the network, reconstruction, and filling the state."
    ),
    (
        "Response time is from the commit of the beat with a window's first tuple to the commit of the one with its "
        "result, at full speed: it is the time in which ten tuples of an item arrive."
    ),
    "The paper's numbers are those that its text names; its figures' bars and curves are not part of it.",
    "load_average_before and _after say how busy the machine was with other work.",
)


def publish(rows: Rows, about: Mapping[str, Any], directory: Path, console: Console) -> list[Goal]:
    """Print the tables, write JSON and plot, give back the goals."""
    goals = find_goals(rows)
    _print_baseline(rows, console)
    _print_recoveries(rows, console)
    _print_periods(rows, console)
    print_goals(console, goals)
    for what in about.get("left_out", ()):
        console.print(f"left out: {what}")
    content = {
        **about,
        "goals": [goal._asdict() for goal in goals],
        "shown_apart": [goal._asdict() for goal in shown_apart(rows)],
        "notes": list(NOTES),
        "paper": {
            "figure 5": paper.FIGURE_5,
            "figure 6": {"source": "section IV.B, text", "open windows": paper.OPEN_WINDOWS, **_texts(paper.FIGURE_6)},
            "figure 7": {"source": "section IV.B, text", **_texts(paper.FIGURE_7)},
            "figure 8, response s": {"source": "section IV.C, text", **_texts(paper.FIGURE_8)},
            "figure 9": {"source": "section IV.C, text (estimated loads)", **_texts(paper.FIGURE_9)},
        },
        "medians": medians(rows),
        "rows": rows.all,
    }
    write_json(directory / f"{NAME}.json", content)
    draw(rows, str(about["mode"]), directory / f"{NAME}.png")
    return goals


def _texts(numbers: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in numbers.items()}


# ---- goals


def find_goals(rows: Rows) -> list[Goal]:
    """Every goal that this run measured: what checkpoints cost slow windows, and how fast state comes back."""
    goals = _overheads(rows, (SLOW,))
    for target, value in _targets(rows):
        wanted = {"what": "recovery", "target": target, "value": value}
        rate = rows.median("tuples_per_s", **wanted)
        if rate is not None and (rows.median("tuples", **wanted) or 0) >= LEAST_TUPLES:
            name = f"EC reconstruction and load, {_target_title(target, value)}"
            goals.append(at_least(name, rate / 1e6, "M tuples/s", TUPLES_PER_S / 1e6))
    return goals


def shown_apart(rows: Rows) -> list[Goal]:
    """The same for workloads in which a large part of all records opens a window, held to the same bound."""
    return _overheads(rows, (FAST, MANY))


def _overheads(rows: Rows, workloads: Sequence[str]) -> list[Goal]:
    found = []
    for workload in workloads:
        for kind in (DISK, POLICY):
            for figure, what in (("records_per_s", "throughput"), ("cpu_us_per_record", "processor time")):
                overhead = overhead_of(rows, workload, kind, figure)
                if overhead is not None:
                    found.append(at_most(f"{workload}, {kind}: overhead in {what}", overhead, "of native", OVERHEAD))
    return found


def overhead_of(rows: Rows, workload: str, kind: str, figure: str) -> float | None:
    """What a kind costs against native: the middle of each round's own share, negative if it was faster."""
    ratio = rows.ratio(figure, {"kind": kind}, {"kind": NATIVE}, what="baseline", workload=workload)
    if ratio is None:
        return None
    return 1 - ratio if figure == "records_per_s" else ratio - 1


def medians(rows: Rows) -> list[dict[str, Any]]:
    """The middle of each figure, per case."""
    labels = ("what", "workload", "kind", "target", "value", "period_ms")
    cases = {tuple((label, row[label]) for label in labels if label in row) for row in rows.all}
    found = []
    for case in sorted(cases, key=str):
        wanted = dict(case)
        figures = {
            name for row in rows.select(**wanted) for name, value in row.items() if isinstance(value, int | float)
        }
        figures -= {*wanted, "round"}
        found.append({**wanted, **{name: rows.median(name, **wanted) for name in sorted(figures)}})
    return found


# ---- tables


def _print_baseline(rows: Rows, console: Console) -> None:
    columns = (
        *("windows", "kind", "M records/s", "results/s", "real/s", "overhead %", "CPU overhead %"),
        *("processors", "control B/record"),
    )
    lines = []
    for workload in (FAST, SLOW, MANY):
        for kind in KINDS:
            wanted = {"what": "baseline", "workload": workload, "kind": kind}
            if not rows.select(**wanted):
                continue
            lines.append(
                (
                    workload,
                    kind,
                    _number(rows.median("records_per_s", **wanted), 1e-6, 2),
                    _number(rows.median("results_per_s", **wanted), 1, 0),
                    _number(rows.median("real_per_s", **wanted), 1, 0),
                    _number(overhead_of(rows, workload, kind, "records_per_s"), 100, 1),
                    _number(overhead_of(rows, workload, kind, "cpu_us_per_record"), 100, 1),
                    _number(rows.median("cpus", **wanted), 1, 2),
                    _number(rows.median("control_bytes_per_record", **wanted), 1, 2),
                )
            )
    print_rows(
        console, "Figure 5: throughput (medians; the paper: Net and Disk less than 10 % below native)", columns, lines
    )


def _print_recoveries(rows: Rows, console: Console) -> None:
    columns = (
        *("target", "paper: extent, load, replay", "extent", "checks", "M records/s", "tuples read", "load ms"),
        *("M tuples/s", "per CPU s", "replayed MB", "replay s"),
    )
    lines = []
    for target, value in _targets(rows):
        wanted = {"what": "recovery", "target": target, "value": value}
        theirs = {"Q": paper.FIGURE_6, "U": paper.FIGURE_7}.get(target, {}).get(value)
        said = "–" if theirs is None else f"{theirs['extent']:,}, {theirs['load_s']} s, {theirs['replayed_mb']} MB"
        figures = (
            *(("extent", 1, 0), ("checks", 1, 0), ("records_per_s", 1e-6, 2), ("tuples", 1, 0)),
            *(("runner_load_s", 1000, 0), ("tuples_per_s", 1e-6, 2)),
            *(("tuples_per_cpu_s", 1e-6, 2), ("replayed_bytes", 1e-6, 1), ("replay_s", 1, 2)),
        )
        numbers = [_number(rows.median(name, **wanted), factor, digits) for name, factor, digits in figures]
        lines.append((_target_title(target, value), said, *numbers))
    print_rows(console, "Figures 6 and 7: recovery for each Q and U (medians)", columns, lines)


def _print_periods(rows: Rows, console: Console) -> None:
    columns = ("CP", "paper: response", "response s", "× without CEC", "extent", "checks", "M records/s")
    lines = []
    for period in _periods(rows):
        wanted = {"what": "period", "period_ms": period}
        ratio = rows.ratio("response_s", {"period_ms": period}, {"period_ms": None}, what="period")
        theirs = paper.FIGURE_8.get(period)
        lines.append(
            (
                _period_title(period),
                "–" if theirs is None else f"{theirs} s (× {theirs / paper.FIGURE_8[None]:.2f})",
                _number(rows.median("response_s", **wanted), 1, 3),
                _number(ratio, 1, 2),
                _number(rows.median("extent_mean", **wanted), 1, 0),
                _number(rows.median("checks", **wanted), 1, 0),
                _number(rows.median("records_per_s", **wanted), 1e-6, 2),
            )
        )
    print_rows(console, "Figures 8 and 9: response time and extent for each CP (CI 10 ms; medians)", columns, lines)


def _number(value: float | None, factor: float, digits: int) -> str:
    return "–" if value is None else f"{value * factor:,.{digits}f}"


def _targets(rows: Rows) -> list[tuple[str, int]]:
    return sorted({(row["target"], row["value"]) for row in rows.select(what="recovery")})


def _target_title(target: str, value: int) -> str:
    if target == NONE:
        return "no checks"
    return f"Q = {value} × open" if target == "Q" else f"U = {value:,}"


def _periods(rows: Rows) -> list[int | None]:
    found = {row["period_ms"] for row in rows.select(what="period")}
    return sorted(found, key=lambda period: -1 if period is None else period)


def _period_title(period: int | None) -> str:
    return "without CEC's checks" if period is None else f"{period} ms"


# ---- plot


def draw(rows: Rows, mode: str, path: Path) -> None:
    """All figures on one sheet."""
    mpl.use("Agg")
    figure = Figure(figsize=(15, 11), layout="constrained")
    axes = figure.subplots(3, 4)
    for axis, workload in zip(axes[0], (FAST, SLOW, MANY), strict=False):
        _draw_baseline(axis, rows, workload)
    _draw_load(axes[0][3], rows)
    metrics = (
        ("checks", "Gchecks until the crash", 1.0, None),
        ("extent", "extent, tuples", 1.0, "extent"),
        ("runner_load_s", "EC load, s (logarithmic)", 1.0, "load_s"),
        ("replayed_bytes", "MB replayed", 1e-6, "replayed_mb"),
    )
    # Figure 6 and 7 side by side in each panel: Q on the left, U on the right.
    for axis, (name, unit, factor, theirs) in zip(axes[1], metrics, strict=True):
        _draw_targets(axis, rows, name, unit, factor, theirs)
    _draw_periods(axes[2][0], rows, "response_s", "Figure 8: response time, s", paper.FIGURE_8)
    _draw_periods(axes[2][1], rows, "extent_mean", "Figure 9: extent, tuples", {})
    _draw_periods(axes[2][2], rows, "records_per_s", "M records/s for each CP", {})
    axes[2][3].axis("off")
    figure.suptitle(
        f"Continuous eventual checkpoints, the paper's figures 5 to 9 ({mode} run; crosses: the paper's text)"
    )
    figure.savefig(path, dpi=100)


def _draw_baseline(axis: Axes, rows: Rows, workload: str) -> None:
    for place, kind in enumerate(KINDS):
        wanted = {"what": "baseline", "workload": workload, "kind": kind}
        values = [row["records_per_s"] / 1e6 for row in rows.select(**wanted)]
        middle = rows.median("records_per_s", **wanted)
        if middle is None:
            continue
        axis.bar([place], [middle / 1e6], color=COLOURS[kind])
        axis.plot([place] * len(values), values, ".", color="black", alpha=0.4)
        overhead = overhead_of(rows, workload, kind, "records_per_s")
        if overhead is not None:
            axis.text(place, 0, f"{-overhead * 100:+.1f} %", ha="center", va="bottom", color="white")
    axis.set_xticks(range(len(KINDS)), KINDS, fontsize=7, rotation=15)
    axis.set_ylabel("M input records/s")
    axis.set_title(f"Figure 5: {workload}", fontsize=9)


def _draw_load(axis: Axes, rows: Rows) -> None:
    points = [(row["tuples"], row["runner_load_s"]) for row in rows.select(what="recovery")]
    axis.plot([tuples for tuples, _ in points], [seconds for _, seconds in points], "o", label="Cairn")
    theirs = [(each["extent"], each["load_s"]) for each in paper.FIGURE_6.values()]
    axis.plot([tuples for tuples, _ in theirs], [seconds for _, seconds in theirs], "x", color="red", label="paper")
    most = max([tuples for tuples, _ in [*points, *theirs]], default=1)
    goal = [most * part / 100 for part in range(1, 101)]
    axis.plot(goal, [tuples / TUPLES_PER_S for tuples in goal], "--", color="grey", label="goal: 2 M tuples/s")
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(lambda tuples, _: f"{tuples / 1000:,.0f} k")
    axis.set_xlabel("control tuples read")
    axis.set_ylabel("EC load, s (logarithmic)")
    axis.legend(fontsize=7)
    axis.set_title("EC reconstruction and load", fontsize=9)


def _draw_targets(axis: Axes, rows: Rows, name: str, unit: str, factor: float, theirs: str | None) -> None:
    ticks: list[str] = []
    for place, (target, value) in enumerate(_targets(rows)):
        wanted = {"what": "recovery", "target": target, "value": value}
        middle = (rows.median(name, **wanted) or 0.0) * factor
        colour = {"Q": "#1f77b4", "U": "#ff7f0e"}.get(target, "#7f7f7f")
        axis.bar([place], [middle], color=colour)
        said = {"Q": paper.FIGURE_6, "U": paper.FIGURE_7}.get(target, {}).get(value)
        if theirs is not None and said is not None:
            axis.plot([place], [said[theirs]], "x", color="red")
        ticks.append(_target_title(target, value))
    axis.set_xticks(range(len(ticks)), ticks, rotation=60, ha="right", fontsize=7)
    if "logarithmic" in unit:
        axis.set_yscale("log")
    axis.set_ylabel(unit)
    axis.set_title(f"Figures 6 and 7: {unit.split(',')[0]}", fontsize=9)


def _draw_periods(axis: Axes, rows: Rows, name: str, title: str, theirs: Mapping[int | None, float]) -> None:
    periods = _periods(rows)
    factor = 1e-6 if name == "records_per_s" else 1.0
    values = [(rows.median(name, what="period", period_ms=period) or 0.0) * factor for period in periods]
    axis.plot(range(len(periods)), values, "o-", label="Cairn")
    said: Sequence[tuple[int, float]] = [(at, theirs[period]) for at, period in enumerate(periods) if period in theirs]
    if said:
        axis.plot([at for at, _ in said], [value for _, value in said], "x", color="red", label="paper")
        axis.set_yscale("log")
        axis.legend(fontsize=7)
    else:
        axis.set_ylim(bottom=0)
    axis.set_xticks(
        range(len(periods)), ["no checks" if each is None else f"CP {each} ms" for each in periods], fontsize=7
    )
    axis.set_title(title, fontsize=9)
