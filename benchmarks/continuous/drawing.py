"""The plot of benchmarks/cec.py: every bar and point with its 95 % interval and n; crosses are the paper's numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.continuous import figures, paper
from benchmarks.continuous.figures import FULL_SPEED, KINDS, LOADS, NATIVE, PAPER_RATE, POLICY
from benchmarks.harness import intervals
from benchmarks.harness.intervals import Interval
from benchmarks.harness.report import Rows

COLOURS = {NATIVE: "#7f7f7f", figures.NET: "#ff7f0e", figures.DISK: "#1f77b4", POLICY: "#2ca02c"}
SPEEDS = {PAPER_RATE: 0.9, FULL_SPEED: 0.5}
"""How strong the bars of a speed are."""
TITLE_CHARACTERS = 45
"""What fits above a plot, at its width and font: longer titles run into their neighbours."""


def draw(rows: Rows, mode: str, path: Path) -> None:
    """All figures on one page, as a file."""
    paged(rows, mode).savefig(path, dpi=90)


def paged(rows: Rows, mode: str) -> Figure:
    """All figures on one page; what was not measured stays empty."""
    mpl.rcParams["font.size"] = 8
    page = Figure(figsize=(19, 17), layout="constrained")
    axes: Any = page.subplots(4, 4)
    for axis, load in zip(axes[0], LOADS, strict=False):
        _overheads(axis, rows, load)
    for axis, load in zip(axes[1], LOADS, strict=False):
        _throughputs(axis, rows, load)
    _loading(axes[0][3], rows)
    _loads_by_extent(axes[1][3], rows)
    metrics = (
        ("checks", "G_checks until the crash", None),
        ("extent_mean", "extent, tuples (mean)", "extent"),
        ("to_replay_most", "records to replay, at most", None),
    )
    for axis, (name, unit, theirs) in zip(axes[2], metrics, strict=False):
        _targets(axis, rows, name, unit, theirs)
    _target_loads(axes[2][3], rows)
    _curves(axes[3][0], rows)
    _responses(axes[3][1], rows)
    _extents(axes[3][2], rows)
    _trade_off(axes[3][3], rows)
    page.suptitle(
        f"Continuous eventual checkpoints, the paper's figures 5 to 9 ({mode} run; whiskers: 95 %; crosses: the paper)"
    )
    return page


def _title(axis: Axes, text: str) -> None:
    """A title no wider than its plot; n stays beside its number."""
    text = text.replace("; n = ", "; n\xa0=\xa0")
    axis.set_title(textwrap.fill(text, TITLE_CHARACTERS), fontsize=8)


def _legend(axis: Axes) -> None:
    """Of what there is."""
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7)


def _bar(axis: Axes, place: float, found: Interval, scale: float, width: float = 0.8, **look: Any) -> None:
    """A bar with its interval; one sample alone has none."""
    low, high = ((found.mean - found.low) * scale, (found.high - found.mean) * scale) if found.n > 1 else (0.0, 0.0)
    axis.bar([place], [found.mean * scale], width, yerr=[[low], [high]], capsize=3, **look)


def _overheads(axis: Axes, rows: Rows, load: str) -> None:
    samples = 0
    for at, (speed, alpha) in enumerate(SPEEDS.items()):
        for place, kind in enumerate(KINDS[1:]):
            found = figures.overhead_of(rows, load, speed, kind)
            if found is None:
                continue
            samples = found.n
            x = place + 0.42 * at
            _bar(axis, x, found, 100, 0.38, color=COLOURS[kind], alpha=alpha)
            axis.annotate(
                f"{found.mean * 100:+.1f}",
                (x, max(found.high, 0) * 100 if found.n > 1 else 0),
                ha="center",
                va="bottom",
            )
    for speed, style in ((PAPER_RATE, "--"), (FULL_SPEED, ":")):
        bound = figures.OVERHEAD[speed] * 100
        axis.axhline(bound, color="red", linestyle=style, linewidth=0.8, label=f"goal, {speed}: {bound:g} %")
    axis.axhline(0, color="black", linewidth=0.6)
    axis.set_xticks([place + 0.21 for place in range(3)], KINDS[1:])
    axis.set_ylabel("processor time against native, %")
    axis.margins(y=0.15)
    _legend(axis)
    _title(axis, f"Figure 5, {load}: left the paper's rate, right full speed; n = {samples} blocks")


def _throughputs(axis: Axes, rows: Rows, load: str) -> None:
    samples = 0
    for place, kind in enumerate(KINDS):
        for at, figure in enumerate(("results", "real")):
            found = figures.throughput_of(rows, load, FULL_SPEED, kind, figure)
            if found is not None:
                samples = found.n
                hatch = "//" if figure == "real" else None
                _bar(axis, place + 0.42 * at, found, 1e-3, 0.38, color=COLOURS[kind], alpha=0.8, hatch=hatch)
    axis.set_xticks([place + 0.21 for place in range(len(KINDS))], KINDS)
    axis.set_ylabel("thousand tuples/s at the sink")
    _title(axis, f"Figure 5, {load}, full speed: results, and Real (hatched); n = {samples} slices")


def _loading(axis: Axes, rows: Rows) -> None:
    for place, storage in enumerate((figures.COLD, figures.WARM)):
        found = figures.loading_of(rows, storage)
        if found is not None:
            _bar(axis, place, found, 1e-6, color="#1f77b4")
            values = [row["windows_per_s"] / 1e6 for row in rows.select(what="loading", storage=storage)]
            axis.plot([place] * len(values), values, ".", color="black", alpha=0.4, label=f"{storage}: n = {found.n}")
    axis.axhline(figures.WINDOWS_PER_S / 1e6, color="red", linestyle="--", linewidth=0.8, label="goal, warm")
    axis.set_xticks([0, 1], [figures.COLD, figures.WARM])
    axis.set_ylabel("M windows/s")
    axis.set_ylim(bottom=0)
    _legend(axis)
    _title(axis, "Windows loaded a second")


def _loads_by_extent(axis: Axes, rows: Rows) -> None:
    points = [(row["tuples"], row["seconds"]) for row in rows.select(what="load")]
    axis.plot([tuples for tuples, _ in points], [seconds for _, seconds in points], "o", label="Cairn, each load")
    theirs = [(each["extent"], each["load_s"]) for each in paper.FIGURE_6.values() if "extent" in each]
    axis.plot([tuples for tuples, _ in theirs], [seconds for _, seconds in theirs], "x", color="red", label="paper")
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(lambda tuples, _: f"{tuples / 1000:,.0f} k")
    axis.set_xlabel("tuples read")
    axis.set_ylabel("EC load, s (logarithmic)")
    _legend(axis)
    _title(axis, "Figures 6 and 7: load by extent")


def _target_axis(axis: Axes, rows: Rows) -> list[tuple[float, str, int]]:
    """Ticks of figures 6 and 7; place, target and value of each run."""
    runs = [(row["target"], row["value"]) for row in figures.recoveries(rows)]
    axis.set_xticks(range(len(runs)), [figures.target_title(*run) for run in runs], rotation=60, ha="right", fontsize=7)
    return [(place, *run) for place, run in enumerate(runs)]


def _targets(axis: Axes, rows: Rows, name: str, unit: str, theirs: str | None) -> None:
    for place, target, value in _target_axis(axis, rows):
        (row,) = rows.select(what="recovery", target=target, value=value)
        axis.bar([place], [row[name]], color=_target_colour(target))
        said = {"Q": paper.FIGURE_6, "U": paper.FIGURE_7}.get(target, {}).get(value)
        if theirs is not None and said is not None and theirs in said:
            axis.plot([place], [said[theirs]], "x", color="red")
        bound = value * row["q_unit"] if target == "Q" else value
        if (name.startswith("extent") and target == "Q") or (name.startswith("to_replay") and target == "U"):
            axis.plot([place - 0.4, place + 0.4], [bound, bound], color="black", linestyle="--", linewidth=1)
    axis.yaxis.set_major_formatter(lambda number, _: f"{number / 1000:,.0f} k")
    axis.set_ylabel(unit)
    _title(axis, f"Figures 6 and 7: {unit.split(',')[0]} (dashed: the target; n = 1 run)")


def _target_loads(axis: Axes, rows: Rows) -> None:
    samples = 0
    for place, target, value in _target_axis(axis, rows):
        found = figures.loads_of(rows, target, value)
        if found is not None:
            samples = found.n
            _bar(axis, place, found, 1000, color=_target_colour(target))
    axis.set_ylabel("EC load, ms")
    _title(axis, f"Figures 6 and 7: EC load (the paper: 2,500 to 27,000 ms); n = {samples} loads")


def _target_colour(target: str) -> str:
    return {"Q": "#1f77b4", "U": "#ff7f0e", figures.COST: "#2ca02c"}.get(target, "#7f7f7f")


def _curves(axis: Axes, rows: Rows) -> None:
    for period in figures.periods(rows):
        (row, *_) = rows.select(what="period", period_ms=period)
        means: Mapping[Any, float] = row["response_by_second_s"]
        label = "no checks" if period is None else f"CP {period} ms"
        axis.plot([int(second) for second in means], list(means.values()), "o-", markersize=3, label=label)
    axis.set_xlabel("seconds of the run (first turn)")
    axis.set_ylabel("response time, s")
    axis.set_ylim(bottom=0)
    _legend(axis)
    _title(axis, "Figure 8: response time over time, means of each second")


def _responses(axis: Axes, rows: Rows) -> None:
    shown = [period for period in figures.periods(rows) if period is not None]
    samples = 0
    for place, period in enumerate(shown):
        found = figures.response_of(rows, period)
        if found is not None:
            samples = found.n
            _bar(axis, place, found, 1, color="#1f77b4")
        axis.plot([place], [paper.FIGURE_8[period] / paper.FIGURE_8[None]], "x", color="red")
    axis.set_xticks(range(len(shown)), [f"CP {period} ms" for period in shown])
    axis.set_ylabel("response time, × without checks")
    _title(axis, f"Figure 8: response time by CP, CI 10 ms; n = {samples} turns")


def _extents(axis: Axes, rows: Rows) -> None:
    shown = figures.periods(rows)
    samples = 0
    for place, period in enumerate(shown):
        values = [row["extent_mean"] for row in rows.select(what="period", period_ms=period)]
        found = intervals.of_values(values)
        samples = found.n
        _bar(axis, place, found, 1, color="#1f77b4")
        axis.plot([place] * len(values), values, ".", color="black", alpha=0.6)
    axis.set_xticks(range(len(shown)), ["no checks" if period is None else f"CP {period} ms" for period in shown])
    axis.yaxis.set_major_formatter(lambda number, _: f"{number / 1000:,.0f} k")
    axis.set_ylabel("extent, tuples")
    _title(axis, f"Figure 9: extent by CP; n = {samples} turns (dots)")


def _trade_off(axis: Axes, rows: Rows) -> None:
    for period in figures.periods(rows):
        found = rows.select(what="period", period_ms=period)
        label = "no checks" if period is None else f"CP {period} ms"
        axis.plot([row["response_s"] for row in found], [row["extent_mean"] for row in found], "o", label=label)
    axis.yaxis.set_major_formatter(lambda number, _: f"{number / 1000:,.0f} k")
    axis.set_xlabel("response time, s")
    axis.set_ylabel("extent, tuples")
    _legend(axis)
    _title(axis, "Figures 8 and 9: what response time buys, each turn")
