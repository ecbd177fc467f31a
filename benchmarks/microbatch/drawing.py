"""The plot of benchmarks/stateful_spark.py: every bar with its single measurements, its 95 % interval and n.

Invariant: bars of epochs are geometric means, as their ratios in the goals are; bars of recoveries are means.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness import intervals
from benchmarks.harness.intervals import Interval
from benchmarks.harness.report import Row, Rows
from benchmarks.microbatch.engines import CAIRN, ENGINES, ROCKSDB_CHANGELOG, ROCKSDB_PLAIN, TRANSFORM_ROW
from benchmarks.microbatch.figures import COLD, WARM, keys_of, recoveries_of

COLOURS = {
    CAIRN: "#1f77b4",
    ROCKSDB_PLAIN: "#ff7f0e",
    ROCKSDB_CHANGELOG: "#bcbd22",
    TRANSFORM_ROW: "#d62728",
    "transform_pandas": "#9467bd",
    "apply_pandas": "#8c564b",
}
START_COLOUR = "#d3d3d3"
SHORT = {ROCKSDB_PLAIN: "RocksDB", ROCKSDB_CHANGELOG: "RocksDB, changelog"}
"""What a tick has room for; the legend has the titles."""
_DOTS: Any = {
    "marker": "o",
    "linestyle": "",
    "color": "black",
    "markersize": 3.5,
    "markeredgecolor": "white",
    "zorder": 3,
}
_ASIDE, _BESIDE = 0.025, 0.15
"""How far dots and whiskers stand from the middle of an upright bar, and of a lying one: neither hides the other."""
_WHISKERS: Any = {"color": "black", "capsize": 2, "linewidth": 0.8, "zorder": 2}


def draw(rows: Rows, mode: str, path: Path) -> None:
    """All figures on one page."""
    mpl.use("Agg")
    page = Figure(figsize=(16, 9.5), layout="constrained")
    axes: Any = page.subplots(2, 3)
    _epochs(axes[0][0], rows, "update", "trigger_s", "seconds (logarithmic)", "An epoch of 100,000 rows, as a whole")
    _epochs(axes[0][1], rows, "update", "written_bytes", "bytes (logarithmic)", "Written by it for recovery")
    _epochs(axes[0][2], rows, "close", "wall_s", "seconds (logarithmic)", "All windows closed, to the last result")
    _recoveries(
        axes[1][0], rows, COLD, "query_s", "spark_start_s", "From kill −9 to the first correct results, new Spark"
    )
    _recoveries(axes[1][1], rows, WARM, "query_s", None, "The same in a Spark that is in use")
    _recoveries(axes[1][2], rows, COLD, "ours_s", None, "Of it, from Cairn's first task, new Spark")
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        handles.update(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    if handles:
        page.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=9)
    page.suptitle(
        f"Windowed average in Spark, local[2] ({mode} run; dots: single measurements, whiskers: 95 %, numbers: n)"
    )
    page.savefig(path, dpi=100)


def _epochs(axis: Axes, rows: Rows, what: str, figure: str, unit: str, title: str) -> None:
    """Engines side by side, for each number of keys."""
    keys = keys_of(rows, what)
    measured = _values(rows.select(what=what), figure)
    if measured:
        axis.set_yscale("log")
        axis.set_ylim(min(measured) / 2, max(measured) * 2)
    tops: list[float] = []
    for place, number in enumerate(keys):
        for index, engine in enumerate(ENGINES):
            values = _values(rows.select(what=what, keys=number, engine=engine), figure)
            if not values:
                continue
            found = intervals.of_ratios(values, [1.0] * len(values))
            x = place + 0.14 * (index - 2.5)
            axis.bar([x], [found.mean], 0.13, color=COLOURS[engine], label=ENGINES[engine].title)
            axis.plot([x - _ASIDE] * len(values), values, **_DOTS)
            if found.n > 1:
                axis.errorbar([x + _ASIDE], [found.mean], yerr=_ends(found), **_WHISKERS)
            top = max([*values, found.mean + _ends(found)[1][0]])
            axis.annotate(str(found.n), (x, top), (0, 4), textcoords="offset points", ha="center", fontsize=7)
            tops.append(top)
    if tops:
        axis.set_ylim(top=max(tops) * 2)
    axis.set_xticks(range(len(keys)), [f"{number:,}" for number in keys])
    axis.set_xlim(-0.5, max(len(keys), 1) - 0.5)
    axis.set_xlabel("keys")
    axis.set_ylabel(unit)
    axis.set_title(title, fontsize=11)


def _recoveries(axis: Axes, rows: Rows, spark: str, figure: str, before: str | None, title: str) -> None:
    """One bar a case, behind that of the figure `before`."""
    ticks, place, longest = [], 0, 0.0
    for keys in keys_of(rows, "recovery"):
        for engine, memory in recoveries_of(rows, keys):
            found = rows.select(what="recovery", keys=keys, engine=engine, memory=memory, spark=spark)
            both = [row for row in found if figure in row and (before is None or before in row)]
            if not both:
                continue
            starts = [0.0 if before is None else row[before] for row in both]
            totals = [start + row[figure] for start, row in zip(starts, both, strict=True)]
            start, total = intervals.of_values(starts), intervals.of_values(totals)
            if before is not None:
                axis.barh([place], [start.mean], color=START_COLOUR, label="Spark's own start")
            axis.barh(
                [place],
                [total.mean - start.mean],
                left=[start.mean],
                color=COLOURS[engine],
                label=ENGINES[engine].title,
            )
            axis.plot(totals, [place - _BESIDE] * len(totals), **_DOTS)
            if total.n > 1:
                axis.errorbar([total.mean], [place + _BESIDE], xerr=_ends(total), **_WHISKERS)
            right = max([*totals, total.mean + _ends(total)[1][0]])
            axis.annotate(str(len(totals)), (right, place), (5, 0), textcoords="offset points", va="center", fontsize=7)
            longest = max(longest, right)
            ticks.append((place, f"{keys:,} keys\n{_tick(engine, memory)}"))
            place += 1
    axis.set_yticks([at for at, _ in ticks], [text for _, text in ticks], fontsize=7)
    axis.set_ylim(max(place, 1) - 0.5, -0.5)
    axis.set_xlim(0, longest * 1.08 or 1.0)
    axis.set_xlabel("seconds")
    axis.set_title(title, fontsize=11)


def _tick(engine: str, memory: str) -> str:
    return SHORT.get(engine, f"Cairn, {memory}")


def _values(found: Sequence[Row], figure: str) -> list[float]:
    return [row[figure] for row in found if figure in row]


def _ends(found: Interval) -> list[list[float]]:
    """How far the interval reaches to both sides; one measurement has none."""
    if found.n < 2:
        return [[0.0], [0.0]]
    return [[max(found.mean - found.low, 0.0)], [max(found.high - found.mean, 0.0)]]
