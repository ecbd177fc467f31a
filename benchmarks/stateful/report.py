"""Goals, tables, JSON and plot of benchmarks/stateful_spark.py.

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

from benchmarks.continuous import intervals
from benchmarks.harness.report import Goal, Rows, at_least, at_most, print_goals, print_rows, write_json
from benchmarks.stateful.engines import CAIRN, ENGINES, ROCKSDB_CHANGELOG, ROCKSDB_PLAIN, TRANSFORM_ROW

NAME = "stateful_spark"
KEPT, LOST = "memory kept", "memory lost"
"""What becomes of the state in the host's shared memory when Spark is killed: it outlives its processes, or the host
is a new one. Spark's own engines always load from their checkpoint.
"""
COLOURS = {
    CAIRN: "#1f77b4",
    ROCKSDB_PLAIN: "#ff7f0e",
    ROCKSDB_CHANGELOG: "#bcbd22",
    TRANSFORM_ROW: "#d62728",
    "transform_pandas": "#9467bd",
    "apply_pandas": "#8c564b",
}
AGAINST_BUILTIN = {1_000: 1.0, 100_000: 0.4, 1_000_000: 0.2}
"""Keys, and which part of the time of Spark's own aggregation an epoch may take."""
AGAINST_TRANSFORM = {100_000: 20.0}
BYTES = 1.0
"""Of the bytes that RocksDB with its changelog leaves in an epoch, what Cairn may write, staged output included."""
RECOVERY = 0.5
"""Of the time that the better of RocksDB plain and with its changelog takes."""
RECOVERIES = (("query_s", "warm", "Spark in use"),)
OURS_KEYS = 1_000_000
OURS_S = 0.5
"""From a stateful task's first line in a new Spark to the last of the first results: the part that is not Spark's."""
NOTES = (
    (
        "One query: average price per key and tumbling event-time window, one result when a window closes (append "
        "mode); every engine's results were compared with averages computed apart from them, to the last bit."
    ),
    "Source for all: a directory of Parquet files, one file (100,000 rows) an epoch; local[2], two state partitions.",
    (
        "'update' epochs change windows and close none; 'close' closes all: one epoch of 1,000 rows moves the "
        "watermark, and the next, empty one emits. Its time is from the file's appearance to the last result."
    ),
    (
        "Spark's engines end in its noop sink and checkpoint to a local directory without fsync; Cairn's results and "
        "state are durable (fsynced) in the sidecar before the epoch counts, and their bytes are on the same disk."
    ),
    (
        "Event time stands still while windows are updated, so Spark runs no empty epoch after each; with moving "
        "event time its engines would run one more after each epoch."
    ),
    (
        "Recovery is from the start of the new Spark process (the old one is dead by then) to the last of the first "
        "results; 'query' is the part of it after Spark's own start. 'memory lost': shared memory was emptied first. "
        "'Spark in use': the new Spark ran a small query of the same engine before, so loading classes is no part."
    ),
    (
        "'update after a pause': a query that had waited more than 30 s for slower ones. Spark ends Python workers "
        "after a minute without work, so this epoch may start new ones; the one behind it, side by side with the "
        "others', counts."
    ),
    "load_average_before and _after say how busy the machine was with other work.",
)

WHY = {
    "recovery": "After kill -9 a new Spark loads and compiles classes for most of the time, the same for both sides: "
    "see 'Spark in use' for what is left without that, and load_s in the rows for the state itself.",
    "epoch, 1": "An epoch has a floor that does not depend on state: source, shuffle, and the hand-over between Spark "
    "and its Python workers; task_… in the rows tells Cairn's steps.",
}
"""What is said in the results about a goal that falls short, by the beginning of its name."""


def publish(rows: Rows, about: Mapping[str, Any], directory: Path, console: Console) -> list[Goal]:
    """Print the tables, write JSON and plot, give back the goals."""
    goals = find_goals(rows)
    _print_epochs(rows, console)
    _print_recovery(rows, console)
    print_goals(console, goals)
    for what in about.get("left_out", ()):
        console.print(f"left out: {what}")
    for what in about.get("failures", ()):
        console.print(f"[red]failed:[/] {what}")
    content = {
        **about,
        "goals": [goal._asdict() for goal in goals],
        "intervals": spreads(rows),
        "notes": notes_on(goals),
        "medians": medians(rows),
        "rows": rows.all,
    }
    write_json(directory / f"{NAME}.json", content)
    draw(rows, str(about["mode"]), directory / f"{NAME}.png")
    return goals


def notes_on(goals: Sequence[Goal]) -> list[str]:
    """What to know when reading the figures, and why goals fall short that do."""
    missed = [goal.name for goal in goals if not goal.holds]
    return [*NOTES, *(f"{name} …: {why}" for name, why in WHY.items() if any(each.startswith(name) for each in missed))]


# ---- goals


def find_goals(rows: Rows) -> list[Goal]:
    """Every goal that this run measured."""
    goals: list[Goal] = []
    for keys, bound in AGAINST_TRANSFORM.items():
        ratio = _epoch_ratio(rows, keys, TRANSFORM_ROW, CAIRN)
        if ratio is not None:
            goals.append(at_least(f"epoch, {keys:,} keys: transformWithState / Cairn", ratio, "×", bound))
    for keys, bound in AGAINST_BUILTIN.items():
        for engine in (ROCKSDB_PLAIN, ROCKSDB_CHANGELOG):
            ratio = _epoch_ratio(rows, keys, CAIRN, engine)
            if ratio is not None:
                goals.append(at_most(f"epoch, {keys:,} keys: Cairn / {ENGINES[engine].title}", ratio, "×", bound))
    for keys in _keys(rows, "update"):
        ours = rows.median("written_bytes", what="update", keys=keys, engine=CAIRN)
        theirs = rows.median("written_bytes", what="update", keys=keys, engine=ROCKSDB_CHANGELOG)
        if ours is not None and theirs:
            name = f"bytes written by an epoch, {keys:,} keys: Cairn / {ENGINES[ROCKSDB_CHANGELOG].title}"
            goals.append(at_most(name, ours / theirs, "×", BYTES))
    return goals + _recovery_goals(rows)


def _recovery_goals(rows: Rows) -> list[Goal]:
    goals = []
    for keys in _keys(rows, "recovery"):
        for memory in (KEPT, LOST):
            for figure, spark, title in RECOVERIES:
                wanted = {"what": "recovery", "keys": keys, "spark": spark}
                ours = rows.median(figure, **wanted, engine=CAIRN, memory=memory)
                theirs = [rows.median(figure, **wanted, engine=engine) for engine in (ROCKSDB_PLAIN, ROCKSDB_CHANGELOG)]
                known = [each for each in theirs if each is not None]
                if ours is not None and known:
                    name = f"recovery, {keys:,} keys, {memory}, {title}: Cairn / the better of the two RocksDBs"
                    goals.append(at_most(name, ours / min(known), "×", RECOVERY))
            own = rows.median("ours_s", what="recovery", keys=keys, engine=CAIRN, memory=memory, spark="cold")
            if own is not None and keys == OURS_KEYS:
                name = f"recovery, {keys:,} keys, {memory}, new Spark: from the first task to the first results"
                goals.append(at_most(name, own, "s", OURS_S))
    return goals


def spreads(rows: Rows) -> list[dict[str, Any]]:
    """Of each ratio of epochs: the mean over rounds in which both took part, and its 95 % interval."""
    found = []
    for keys in _keys(rows, "update"):
        for engine in (ROCKSDB_PLAIN, ROCKSDB_CHANGELOG):
            ours, theirs = (
                {row["round"]: row["addBatch_s"] for row in rows.select(what="update", keys=keys, engine=name)}
                for name in (CAIRN, engine)
            )
            both = sorted(ours.keys() & theirs.keys())
            if len(both) > 1:
                ratio = intervals.of_ratios([ours[at] for at in both], [theirs[at] for at in both])
                name = f"epoch, {keys:,} keys: Cairn / {ENGINES[engine].title}"
                found.append({"name": name, **ratio._asdict()})
    return found


def _epoch_ratio(rows: Rows, keys: int, upper: str, lower: str) -> float | None:
    return rows.ratio("addBatch_s", {"engine": upper}, {"engine": lower}, what="update", keys=keys)


def medians(rows: Rows) -> list[dict[str, Any]]:
    """The middle of each figure, per case, engine and number of keys."""
    labels = ("what", "keys", "engine", "memory", "spark")
    cases = {tuple((label, row[label]) for label in labels if label in row) for row in rows.all}
    found = []
    for case in sorted(cases, key=str):
        wanted = dict(case)
        names = {name for row in rows.select(**wanted) for name, value in row.items() if isinstance(value, int | float)}
        figures = names - {*wanted, "round"}
        found.append({**wanted, **{name: rows.median(name, **wanted) for name in sorted(figures)}})
    return found


# ---- tables


def _print_epochs(rows: Rows, console: Console) -> None:
    columns = ("keys", "engine", "update ms", "trigger ms", "MB an epoch", "close s", "first epoch s", "× Cairn")
    lines = []
    for keys in _keys(rows, "update"):
        for engine, described in ENGINES.items():
            wanted = {"engine": engine, "keys": keys}
            took = rows.median("addBatch_s", what="update", **wanted)
            if took is None:
                continue
            times = _epoch_ratio(rows, keys, engine, CAIRN)
            lines.append(
                (
                    f"{keys:,}",
                    described.title,
                    f"{took * 1000:,.0f}",
                    _number(rows.median("trigger_s", what="update", **wanted), 1000, 0),
                    _number(rows.median("written_bytes", what="update", **wanted), 1e-6, 3),
                    _number(rows.median("wall_s", what="close", **wanted), 1, 2),
                    _number(rows.median("addBatch_s", what="fill", **wanted), 1, 2),
                    _number(times, 1, 2),
                )
            )
    print_rows(console, "Epochs of 100,000 rows (medians)", columns, lines)


def _print_recovery(rows: Rows, console: Console) -> None:
    columns = (
        "keys",
        "engine",
        "new Spark: total s",
        "its start s",
        "query s",
        "first epoch s",
        "state load s",
        "Spark in use: query s",
    )
    lines = []
    for keys in _keys(rows, "recovery"):
        for engine, memory in _recoveries(rows, keys):
            wanted = {"what": "recovery", "engine": engine, "keys": keys, "memory": memory}
            figures = ("total_s", "spark_start_s", "query_s", "addBatch_s", "load_s")
            numbers = [_number(rows.median(figure, **wanted, spark="cold"), 1, 2) for figure in figures]
            numbers.append(_number(rows.median("query_s", **wanted, spark="warm"), 1, 2))
            lines.append((f"{keys:,}", _recovery_title(engine, memory), *numbers))
    print_rows(console, "From kill -9 to the first correct result (medians)", columns, lines)


def _number(value: float | None, factor: float, digits: int) -> str:
    return "–" if value is None else f"{value * factor:,.{digits}f}"


def _keys(rows: Rows, what: str) -> list[int]:
    return sorted({row["keys"] for row in rows.select(what=what)})


def _recoveries(rows: Rows, keys: int) -> list[tuple[str, str]]:
    found = {(row["engine"], row["memory"]) for row in rows.select(what="recovery", keys=keys)}
    return sorted(found, key=lambda each: (list(ENGINES).index(each[0]), each[1]))


def _recovery_title(engine: str, memory: str) -> str:
    return f"{ENGINES[engine].title}, {memory}" if engine == CAIRN else ENGINES[engine].title


# ---- plot


def draw(rows: Rows, mode: str, path: Path) -> None:
    """Epoch times, bytes and recoveries side by side."""
    mpl.use("Agg")
    figure = Figure(figsize=(13, 4.8), layout="constrained")
    epochs, size, recovery = figure.subplots(1, 3)
    _draw_bars(epochs, rows, "addBatch_s", "seconds (logarithmic)", "An epoch of 100,000 rows")
    _draw_bars(size, rows, "written_bytes", "bytes (logarithmic)", "Written by it for recovery")
    if epochs.get_legend_handles_labels()[0]:
        figure.legend(*epochs.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    _draw_recovery(recovery, rows)
    figure.suptitle(f"Windowed average in Spark, local[2] ({mode} run; dots: single epochs)")
    figure.savefig(path, dpi=110)


def _draw_bars(axis: Axes, rows: Rows, figure: str, unit: str, title: str) -> None:
    keys = _keys(rows, "update")
    named: set[str] = set()
    for place, number in enumerate(keys):
        for index, engine in enumerate(ENGINES):
            values = [row[figure] for row in rows.select(what="update", keys=number, engine=engine)]
            middle = rows.median(figure, what="update", keys=number, engine=engine)
            if middle is None:
                continue
            x = place + 0.13 * (index - 2.5)
            label = ENGINES[engine].title if engine not in named else None
            named.add(engine)
            axis.bar([x], [middle], 0.12, color=COLOURS[engine], label=label)
            axis.plot([x] * len(values), values, ".", color="black", alpha=0.4, markersize=3)
    axis.set_yscale("log")
    axis.set_xticks(range(len(keys)), [f"{number:,} keys" for number in keys], fontsize=8)
    axis.set_ylabel(unit)
    axis.set_title(title)


def _draw_recovery(axis: Axes, rows: Rows) -> None:
    ticks, place = [], 0
    for keys in _keys(rows, "recovery"):
        for engine, memory in _recoveries(rows, keys):
            wanted = {"what": "recovery", "keys": keys, "engine": engine, "memory": memory, "spark": "cold"}
            start = rows.median("spark_start_s", **wanted) or 0.0
            rest = rows.median("query_s", **wanted) or 0.0
            axis.barh([place], [start], color="lightgrey", label=None if place else "Spark's own start")
            axis.barh([place], [rest], left=[start], color=COLOURS[engine])
            ticks.append((place, f"{keys:,}: {_recovery_title(engine, memory)}"))
            place += 1
    axis.set_yticks([at for at, _ in ticks], [text for _, text in ticks], fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel("seconds (grey: Spark's own start)")
    axis.set_title("From kill −9 to the first correct result", fontsize=10)
