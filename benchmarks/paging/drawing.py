"""The plot of benchmarks/pages.py; dashed lines and crosses are the paper's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness.report import Rows
from benchmarks.paging import paper
from benchmarks.paging.costs import ARROW, COPY, DICT, FREEZE, LARGE, MB, PICKLE, PLAIN, SMALL
from benchmarks.paging.kinds import TITLES
from benchmarks.paging.report import READ_S, size_text
from benchmarks.paging.tasks import TENTH, UNBOUNDED

ENOUGH = 500
"""Epochs of which a 99th percentile is drawn."""

WAYS = (f"{FREEZE} 64 KB", f"{FREEZE} 8 KB", COPY, ARROW, PICKLE, DICT)


def draw(rows: Rows, mode: str, path: Path) -> None:
    """All figures on one page, as a file."""
    paged(rows, mode).savefig(path, dpi=90)


def paged(rows: Rows, mode: str) -> Figure:
    """All figures on one page; what was not measured stays empty."""
    mpl.rcParams["font.size"] = 8
    page = Figure(figsize=(18, 14), layout="constrained")
    axes: Any = page.subplots(3, 3)
    for axis, what, title in ((axes[0][0], "join", "Table 5: join"), (axes[0][1], "aggregate", "Table 6: aggregate")):
        _costs(axis, rows, what, title)
    _preparing(axes[0][2], rows)
    for axis, partitions in zip(axes[1], (1, 4, 64), strict=True):
        _latencies(axis, rows, partitions)
    _tasks(axes[2][0], rows)
    _reading(axes[2][1], rows)
    _bounded(axes[2][2], rows)
    page.suptitle(f"State on pages, beside SGuard's tables 5 to 7 and figures 6 to 9 ({mode} run)")
    return page


def _costs(axis: Any, rows: Rows, what: str, title: str) -> None:
    sizes = sorted({row["bytes"] for row in rows.select(what=what)})
    for at, memory in enumerate((PLAIN, SMALL, LARGE)):
        heights = [rows.median("ns_per_row", what=what, bytes=size, memory=memory) or 0 for size in sizes]
        axis.bar(np.arange(len(sizes)) + 0.27 * (at - 1), np.array(heights) / 1000, 0.25, label=memory)
    axis.set_xticks(range(len(sizes)), [size_text(size) for size in sizes])
    axis.set_title(f"{title}, µs a tuple")
    _legend(axis)


def _preparing(axis: Any, rows: Rows) -> None:
    for way in WAYS:
        sizes = sorted({row["bytes"] for row in rows.select(what="prepare", way=way)})
        seconds = [rows.median("seconds", what="prepare", bytes=size, way=way) or 0 for size in sizes]
        if sizes:
            axis.loglog(np.array(sizes) / MB, np.array(seconds) * 1000, "o-", label=way)
    axis.set_title("Figure 6: ms to prepare a checkpoint, by MB")
    _legend(axis)


def _latencies(axis: Any, rows: Rows, partitions: int) -> None:
    """All values during checkpoints, one column of points for each kind, and the 99th percentile without."""
    names = []
    for at, kind in enumerate(TITLES):
        of = rows.select(what="latency", partitions=partitions, kind=kind)
        if of:
            values = np.concatenate([row["during"] for row in of])
            quiet = np.concatenate([row["quiet"] for row in of])
            axis.plot(at + np.linspace(-0.3, 0.3, len(values)), values, ".", markersize=3)
            axis.plot([at - 0.35, at + 0.35], [np.percentile(quiet, 99)] * 2, "k-")
            if len(values) >= ENOUGH:
                axis.plot([at - 0.35, at + 0.35], [np.percentile(values, 99)] * 2, "r-")
            names.append(kind.replace("_", "\n") + f"\nn={len(values)}")
        else:
            names.append(kind.replace("_", "\n") + "\nnot measured")
    axis.set_xticks(range(len(names)), names)
    axis.set_yscale("log")
    theirs = ", ".join(f"{name} {by[partitions][0]:g}" for name, by in paper.LATENCY_MS.items())
    lines = "black: p99 without; red: with; plain, none: a second block without"
    axis.set_title(
        f"{partitions} partitions: ms of epochs in checkpoints\n({lines})\npaper, means: {theirs}",
        fontsize=6,
    )


def _tasks(axis: Any, rows: Rows) -> None:
    for count in sorted({row["epoch_rows"] for row in rows.select(what="task")}):
        for phase in ("quiet", "during"):
            values = sorted(each for row in rows.select(what="task", epoch_rows=count) for each in row[phase])
            if values:
                axis.plot(values, np.arange(1, len(values) + 1) / len(values), label=f"{count:,} rows, {phase}")
    axis.set_xscale("log")
    axis.set_title("Epochs of Spark's tasks, ms: share that took at most so long")
    _legend(axis)


def _reading(axis: Any, rows: Rows) -> None:
    for page_bytes in (8192, 65536):
        for cache in ("warm", "cold"):
            wanted = {"what": "read", "page_bytes": page_bytes, "cache": cache}
            sizes = sorted({row["bytes"] for row in rows.select(**wanted)})
            seconds = [rows.median("seconds", **wanted, bytes=size) or 0 for size in sizes]
            axis.plot(np.array(sizes) / MB, seconds, "o-", label=f"{page_bytes // 1024} KB, {cache}")
    axis.plot([128], [paper.READ_128MB_S], "kx", label="paper: below")
    axis.plot([128], [READ_S], "k_", markersize=12, label="goal")
    axis.set_title("Figure 9: seconds to read back, by MB")
    _legend(axis)


def _bounded(axis: Any, rows: Rows) -> None:
    for at, memory in enumerate((UNBOUNDED, TENTH)):
        heights = [
            rows.median("seconds", what="bounded", items=items, memory=memory) or 0 for items in ("all", "a tenth")
        ]
        axis.bar(np.arange(2) + 0.4 * at, heights, 0.38, label=memory)
    axis.set_xticks((0.2, 1.2), ("rows of all items", "of a tenth"))
    axis.set_title("State beyond memory: seconds of an epoch")
    _legend(axis)


def _legend(axis: Any) -> None:
    """A legend, where there is something to name."""
    if axis.get_legend_handles_labels()[0]:
        axis.legend()
