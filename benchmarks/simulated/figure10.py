"""The paper's figure 10, drawn again: IO and COMP by the number of writers, a column for each size.

Invariant: drawn from rows only; what was not measured is left out.
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness.report import Rows
from benchmarks.simulated import setups
from benchmarks.simulated.experiments import MAX_MB, MAX_WRITERS, bounds_of

COLOURS = {
    setups.HDFS: "#4d4d4d",
    setups.HDFS_FIVE: "#a0a0a0",
    setups.SINBAD: "#b07aa1",
    setups.PAPERS_PEACE: "#e15759",
    setups.CAREFUL_PEACE: "#59a14f",
    setups.PEACE: "#1f77b4",
}
PAPER = {
    "io_s": {setups.HDFS: 45.0, setups.PAPERS_PEACE: 20.0},
    "comp_s": {setups.HDFS: 55.0, setups.PAPERS_PEACE: 75.0},
}
"""Figure 10's end points, as far as the text names them: 16 writers of 512 MB. Peace's IO is "under 20 s"."""


def draw(rows: Rows, mode: str, path: Path) -> None:
    """Write the plot."""
    measured = rows.select(what="figure 10")
    writers = sorted({row["writers"] for row in measured})
    sizes = sorted({row["size_mb"] for row in measured})
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(4.2 * len(sizes) + 0.6, 7.6), layout="constrained")
        panels = figure.subplots(2, len(sizes), sharex=True, sharey="row", squeeze=False)
        for column, size in enumerate(sizes):
            _times(panels[0][column], rows, "io_s", writers, size)
            _times(panels[1][column], rows, "comp_s", writers, size)
            panels[0][column].set_title(f"{size} MB each", fontsize=11)
            panels[1][column].set_xlabel("writers at once, of 17 hosts")
        panels[0][0].set_ylabel("IO: mean time of a checkpoint, seconds\n(dotted: from its submission, not from “go”)")
        panels[1][0].set_ylabel("COMP: time of all checkpoints, seconds")
        for row in panels:
            row[0].set_ylim(bottom=0)
        handles, labels = panels[1][-1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        title = f"Figure 10 in the simulator: three replicas, racks of 8 and 9 hosts ({mode} run)"
        seeds = len({row["round"] for row in measured})
        figure.suptitle(f"{title}\nmedians of n = {seeds} seeds; bands: all of them", fontsize=12)
        figure.savefig(path, dpi=130)


def _times(axes: Axes, rows: Rows, what: str, writers: list[int], size_mb: int) -> None:
    axes.grid(axis="y", color="#e5e5e5")
    axes.set_axisbelow(True)
    for name, colour in COLOURS.items():
        values = [_median(rows, what, name, count, size_mb) for count in writers]
        axes.plot(writers, values, color=colour, marker="o", markersize=4, label=name)
        fewest, most = zip(*(_ends(rows, what, name, count, size_mb) for count in writers), strict=True)
        axes.fill_between(writers, fewest, most, color=colour, alpha=0.12, linewidth=0)
        if what == "io_s" and name not in (setups.HDFS, setups.HDFS_FIVE, setups.SINBAD):
            waited = [_median(rows, "response_s", name, count, size_mb) for count in writers]
            axes.plot(writers, waited, color=colour, linestyle=":", linewidth=1.2)
    if what == "comp_s":
        least = [bounds_of(count, size_mb).comp_s for count in writers]
        floor = "below what links and disks need"
        axes.fill_between(writers, least, color="#f0e6c8", label=floor, linewidth=0, zorder=0)
    if size_mb == MAX_MB:
        for name, value in PAPER[what].items():
            axes.plot(
                [MAX_WRITERS],
                [value],
                marker="v" if what == "io_s" and name == setups.PAPERS_PEACE else "*",
                markersize=13,
                markerfacecolor="none",
                markeredgecolor=COLOURS[name],
                linestyle="none",
                label=f"the paper's {'HDFS' if name == setups.HDFS else 'Peace'}" if what == "comp_s" else None,
                zorder=5,
                clip_on=False,
            )
        if what == "io_s":
            axes.text(MAX_WRITERS, 3.0, "▽ the paper: under 20 s", ha="right", fontsize=8, color="#555555")
    axes.set_xticks(writers)


def _median(rows: Rows, figure: str, setup: str, writers: int, size_mb: int) -> float:
    value = rows.median(figure, what="figure 10", setup=setup, writers=writers, size_mb=size_mb)
    return math.nan if value is None else value


def _ends(rows: Rows, figure: str, setup: str, writers: int, size_mb: int) -> tuple[float, float]:
    found = rows.select(what="figure 10", setup=setup, writers=writers, size_mb=size_mb)
    values = [row[figure] for row in found]
    return min(values, default=math.nan), max(values, default=math.nan)
