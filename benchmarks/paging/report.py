"""Goals, tables and what the figures of benchmarks/pages.py say.

Invariant: everything is computed from rows. A ratio's interval is over rounds, in which both sides ran in turn; that of
a ratio of percentiles is a bootstrap over rounds, each with all its epochs: epochs of a round share its disturbances.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.harness import intervals
from benchmarks.harness.intervals import Interval
from benchmarks.harness.report import Goal, Rows, at_most, print_goals, print_rows
from benchmarks.paging import paper
from benchmarks.paging.costs import ARROW, COPY, DICT, FREEZE, LARGE, MB, NUMPY, PICKLE, PLAIN, SMALL
from benchmarks.paging.kinds import PAGES, PAGES_PROCESS, TITLES
from benchmarks.paging.tasks import TENTH, UNBOUNDED

P99_RATIO: Final = 1.1
READ_S: Final = 0.5
READ_BYTES: Final = 128 * MB
RUNTIME: Final = 1.03
"""The paper's joins are within 3 % of the original."""
HIT: Final = 10
"""An epoch that takes so many times the median of epochs without a checkpoint was hit: without a checkpoint, by
something else on the machine.
"""
_DRAWS: Final = 2_000

Float64s = NDArray[np.float64]


def quantile(values: Sequence[float] | Float64s, percent: float) -> float:
    """A percentile; the highest value counts as the 100th."""
    return float(np.percentile(values, percent))


def percentile_ratio(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], percent: float) -> Interval | None:
    """The percentile of all first values to that of all second ones, over rounds; the interval is a bootstrap."""
    kept = [(np.asarray(one), np.asarray(other)) for one, other in pairs if len(one) and len(other)]
    if not kept:
        return None

    def ratio(chosen: Sequence[int]) -> float:
        one, other = (np.concatenate([kept[at][side] for at in chosen]) for side in (0, 1))
        return float(np.percentile(one, percent) / np.percentile(other, percent))

    random = np.random.default_rng(0)
    drawn = [ratio(random.integers(0, len(kept), len(kept)).tolist()) for _ in range(_DRAWS)]
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Interval(ratio(range(len(kept))), float(low), float(high), len(kept))


def find_goals(rows: Rows) -> list[Goal]:
    """All goals for which there are figures."""
    return list(_goals(rows))


def _goals(rows: Rows) -> Iterator[Goal]:
    for kind in (PAGES_PROCESS, PAGES):
        for partitions in _values(rows.select(what="latency", kind=kind), "partitions"):
            found = rows.select(what="latency", kind=kind, partitions=partitions)
            ratio = percentile_ratio([(row["during"], row["quiet"]) for row in found], 99)
            noun = "partition" if partitions == 1 else "partitions"
            name = f"p99 of an epoch in a checkpoint / without, {partitions} {noun}, {TITLES[kind]}"
            yield from _bounded(name, ratio, "×", P99_RATIO)
    for count in _values(rows.select(what="task"), "epoch_rows"):
        # Epochs beside a checkpoint that was cancelled count as well: they had its cost.
        found = rows.select(what="task", epoch_rows=count)
        ratio = percentile_ratio([(row["during"], row["quiet"]) for row in found], 99)
        yield from _bounded(
            f"p99 of a Spark task's epoch of {count:,} rows in a checkpoint / without, I/O service",
            ratio,
            "×",
            P99_RATIO,
        )
        lost = sum(row["outcome"] != "acknowledged" for row in found)
        yield at_most(f"checkpoints cancelled beside epochs of {count:,} rows, of {len(found)}", lost, "", 0)
    for cache in ("warm", "cold"):
        read = [row["seconds"] for row in rows.select(what="read", bytes=READ_BYTES, page_bytes=65536, cache=cache)]
        yield from _bounded(
            f"128 MB read back, {cache} files", intervals.of_values(read) if read else None, "s", READ_S
        )
    for what in ("aggregate", "join"):
        for size in _values(rows.select(what=what), "bytes"):
            ratio = _ratio(rows, "ns_per_row", {"what": what, "bytes": size}, ("memory", LARGE, PLAIN))
            yield from _bounded(f"{what} of {size_text(size)}: pages of 64 KB / plain memory", ratio, "×", RUNTIME)


def _bounded(name: str, found: Interval | None, unit: str, most: float) -> Iterator[Goal]:
    if found is not None:
        low, high = (round(end, 4) if np.isfinite(end) else None for end in (found.low, found.high))
        yield at_most(name, found.mean, unit, most)._replace(low=low, high=high, n=found.n)


def _ratio(rows: Rows, figure: str, wanted: dict[str, Any], sides: tuple[str, str, str]) -> Interval | None:
    label, upper, lower = sides
    above, below = (
        {row["round"]: row[figure] for row in rows.select(**wanted, **{label: side})} for side in (upper, lower)
    )
    both = sorted(above.keys() & below.keys())
    return intervals.of_ratios([above[at] for at in both], [below[at] for at in both]) if both else None


def _values(rows: Sequence[dict[str, Any]], label: str) -> list[Any]:
    return sorted({row[label] for row in rows})


def size_text(size: int) -> str:
    """Bytes as the paper writes them."""
    return f"{size // 1024} KB" if size < MB else f"{size // MB} MB"


# ---- what the figures say


def summary(rows: Rows) -> list[dict[str, Any]]:
    """Per case the figures over all rounds."""
    found = []
    for partitions in _values(rows.select(what="latency"), "partitions"):
        for kind in TITLES:
            of = rows.select(what="latency", partitions=partitions, kind=kind)
            if of:
                found.append({"partitions": partitions, "kind": kind, **_latencies(of)})
    return found


def _latencies(of: Sequence[dict[str, Any]]) -> dict[str, Any]:
    everything = np.concatenate([row["all"] for row in of])
    found: dict[str, Any] = {"mean_ms": float(everything.mean()), "sd_ms": float(everything.std())}
    for phase in ("quiet", "during"):
        values = np.concatenate([row[phase] for row in of])
        found[f"{phase}_n"] = len(values)
        if len(values):
            named = (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100))
            found |= {f"{phase}_{name}_ms": quantile(values, at) for name, at in named}
    usual = np.median(np.concatenate([row["quiet"] for row in of]))
    for phase in ("quiet", "during"):
        found[f"{phase}_hits"] = sum(int(np.sum(np.asarray(row[phase]) > HIT * usual)) for row in of)
    ratio = percentile_ratio([(row["during"], row["quiet"]) for row in of], 99)
    if ratio is not None:
        found |= {"p99_ratio": ratio.mean, "p99_ratio_low": ratio.low, "p99_ratio_high": ratio.high}
    stops = np.concatenate([row["stops"] for row in of])
    found["stop_p50_ms"] = float(np.median(stops)) if len(stops) else 0.0
    found["stop_ms"] = float(stops.max()) if len(stops) else 0.0
    found["checkpoint_s"] = float(np.median(np.concatenate([row["checkpoint_s"] for row in of])))
    return {name: round(value, 3) for name, value in found.items()}


NOTES: Final = (
    """Pages replace what stops an operator while its state is serialized. They compete here with one copy of the table:
    its columns are arrays in one block, which is copied as it lies in memory.""",
    """Rows of random items change some words in nearly all pages of the changed columns. The words are kept with their
    old values; to copy the pages aside would take the first epoch behind a freeze some twenty times as long.""",
    """Latencies count from the moment at which an epoch was due, as the paper's from end to end: a stop delays all
    epochs behind it, as far as it reaches into them; see stop_ms for the stop itself. The mean over a whole turn has
    a third of its time or more in checkpoints, where the paper has one a minute.""",
    """An epoch is in a checkpoint if any of its time is between the begin of the freeze and the moment at which the
    checkpoint is durable. Epochs without are the same operator's in the same process, a fraction of a second before or
    behind, in an order that a seed draws. A turn's first three epochs, and one or two behind each checkpoint, do not
    count.""",
    """A hit is an epoch that takes more than ten times the median of epochs without a checkpoint. Hits without a
    checkpoint are the machine's; hits beyond as many in checkpoints are the checkpoint's.""",
    """Of a kind without checkpoints, "during" is another block of the same: what the ratio says where there is nothing
    to find.""",
    """The files of pages carry checksums and a manifest, and are named durably; the others are written as they are.""",
    """A 99th percentile of fewer than a hundred epochs is nearly their maximum: see during_n and quiet_n.""",
)


def print_tables(rows: Rows, goals: Sequence[Goal], console: Console) -> None:
    """All tables."""
    _print_costs(rows, console)
    _print_preparing(rows, console)
    _print_latencies(rows, console)
    _print_tasks(rows, console)
    _print_reading(rows, console)
    _print_bounded(rows, console)
    print_goals(console, goals)


def _print_costs(rows: Rows, console: Console) -> None:
    lines = []
    for what, theirs in (("join", paper.JOIN_US), ("aggregate", paper.AGGREGATE_US)):
        for size in _values(rows.select(what=what), "bytes"):
            figures = []
            for memory in (NUMPY, PLAIN, SMALL, LARGE):
                ns = rows.median("ns_per_row", what=what, bytes=size, memory=memory)
                figures.append("–" if ns is None else f"{ns / 1000:,.3f}")
            known = theirs.get(size_text(size))
            lines.append((what, size_text(size), *figures, "–" if known is None else " / ".join(map(str, known))))
    columns = ("operator", "state", "numpy", "plain µs", "8 KB", "64 KB", "paper: plain / 8 / 64 KB")
    print_rows(console, "Tables 5 and 6: µs per tuple (medians)", columns, lines)


def _print_preparing(rows: Rows, console: Console) -> None:
    lines = []
    ways = (f"{FREEZE} 64 KB", f"{FREEZE} 8 KB", COPY, ARROW, PICKLE, DICT)
    for size in _values(rows.select(what="prepare"), "bytes"):
        seconds = [rows.median("seconds", what="prepare", bytes=size, way=way) for way in ways]
        lines.append((size_text(size), "", *("–" if each is None else f"{each * 1000:,.2f}" for each in seconds)))
    print_rows(console, "Figure 6: ms to prepare a checkpoint (medians)", ("state", "", *ways), lines)


def _print_latencies(rows: Rows, console: Console) -> None:
    names = ("mean_ms", "sd_ms", "stop_p50_ms", "stop_ms", "checkpoint_s")
    lines = [
        (
            str(each["partitions"]),
            TITLES[each["kind"]],
            *(_percentiles(each, phase) for phase in ("quiet", "during")),
            "{p99_ratio:.2f} ({p99_ratio_low:.2f} to {p99_ratio_high:.2f})".format(**each)
            if "p99_ratio" in each
            else "–",
            *(f"{each[name]:,.1f}" for name in names),
            *(f"{each[f'{phase}_n']}, {each[f'{phase}_hits']}" for phase in ("quiet", "during")),
        )
        for each in summary(rows)
    ]
    title = "Table 7, figures 7 and 8: latency of epochs, ms: p50 / p90 / p99 / max; epochs, and how many were hit"
    shown = (*(name.replace("_", " ") for name in names), "without", "in one")
    print_rows(console, title, ("partitions", "kind", "without", "in a checkpoint", "p99 ratio", *shown), lines)


def _p99_ratio(of: dict[str, Any]) -> str:
    if "p99_ratio" not in of:
        return "–"
    return f"{of['p99_ratio']:.2f} ({of['p99_ratio_low']:.2f} to {of['p99_ratio_high']:.2f})"


def _percentiles(of: dict[str, Any], phase: str) -> str:
    names = [f"{phase}_{name}_ms" for name in ("p50", "p90", "p99", "max")]
    return " / ".join(f"{of[name]:,.1f}" if name in of else "–" for name in names)


def _print_tasks(rows: Rows, console: Console) -> None:
    lines = []
    for count in _values(rows.select(what="task"), "epoch_rows"):
        of = rows.select(what="task", epoch_rows=count)
        for phase in ("quiet", "during"):
            values = [each for row in of for each in row[phase]]
            if values:
                figures = [f"{quantile(values, at):,.1f}" for at in (50, 99, 100)]
                failed = sum(row["outcome"] != "acknowledged" for row in of)
                lines.append((f"{count:,}", phase, *figures, str(len(values)), f"{failed} of {len(of)}"))
    columns = ("rows", "", "p50 ms", "p99 ms", "max ms", "epochs", "checkpoints cancelled")
    print_rows(console, "Epochs of Spark's tasks, checkpointed by another process", columns, lines)


def _print_reading(rows: Rows, console: Console) -> None:
    lines = []
    for size in _values(rows.select(what="read"), "bytes"):
        for page_bytes in (8192, 65536):
            for cache in ("warm", "cold"):
                wanted = {"what": "read", "bytes": size, "page_bytes": page_bytes, "cache": cache}
                figures = [rows.median(name, **wanted) for name in ("seconds", "read_alone_s", "pages_s", "rebuild_s")]
                texts = ("–" if each is None else f"{each:.3f}" for each in figures)
                lines.append((size_text(size), f"{page_bytes // 1024} KB, {cache}", *texts))
    columns = ("state", "pages, files", "all s", "read alone s", "read into place s", "rebuild s")
    print_rows(console, "Figure 9: a checkpoint read back (medians)", columns, lines)


def _print_bounded(rows: Rows, console: Console) -> None:
    lines = []
    for items in ("all", "a tenth"):
        wanted = {"what": "bounded", "items": items}
        seconds = [rows.median("seconds", **wanted, memory=name) for name in (UNBOUNDED, TENTH)]
        ratio = _ratio(rows, "seconds", wanted, ("memory", TENTH, UNBOUNDED))
        if ratio is not None:
            texts = [f"{each:.3f}" for each in seconds if each is not None]
            lines.append((f"rows of {items} of the items", "", *texts, f"{ratio.mean:.1f}"))
    columns = ("epochs", "", f"{UNBOUNDED} s", f"{TENTH} s", "×")
    print_rows(console, "State beyond memory: seconds of an epoch (medians)", columns, lines)
