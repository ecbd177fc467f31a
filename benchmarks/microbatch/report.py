"""Goals, tables and JSON of benchmarks/stateful_spark.py.

Invariants:
* Everything is computed from the rows. A goal whose rows were not measured is left out, never assumed, and has a name.
* One statistic: a ratio is the geometric mean over the rounds in which both sides ran, a time the mean of its rounds,
  and each has its 95 % confidence interval and n beside it. What is judged is the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.harness import intervals
from benchmarks.harness.intervals import Interval
from benchmarks.harness.report import Goal, Rows, at_least, at_most, print_goals, print_rows, write_json
from benchmarks.microbatch import drawing
from benchmarks.microbatch.engines import CAIRN, ENGINES, ROCKSDB_CHANGELOG, ROCKSDB_PLAIN, TRANSFORM_ROW
from benchmarks.microbatch.figures import COLD, KEPT, LOST, WARM, keys_of, recoveries_of, recovery_title
from benchmarks.microbatch.plans import Plan

NAME = "stateful_spark"
AGAINST_BUILTIN = {1_000: 1.0, 100_000: 0.4, 1_000_000: 0.2}
"""Keys, and which part of the time of Spark's own aggregation an epoch may take."""
AGAINST_TRANSFORM = {100_000: 20.0}
BYTES = 1.0
"""Of the bytes that RocksDB with its changelog leaves in an epoch, what Cairn may write, staged output included."""
RECOVERY = 0.5
"""Of the time that the better of RocksDB plain and with its changelog takes, in a Spark that is in use."""
RECOVERY_KEYS = (100_000, 1_000_000)
EPOCHS = {"addBatch_s": "epoch's work (addBatch)", "trigger_s": "epoch as a whole (trigger)"}
"""Figure → what it is: what Spark's addBatch took, and with planning, Spark's own logs and its commit of the source."""
OURS_KEYS = 1_000_000
OURS_S = 0.5
"""From a stateful task's first line in a new Spark to the last of the first results: the part that is not only Spark's
own start. Two epochs with what Spark does between them, as the first moves the watermark by which the second closes.
"""
NOTES = (
    (
        "One query: average price per key and tumbling event-time window, one result when a window closes (append "
        "mode); every engine's results were compared with averages computed apart from them, to the last bit."
    ),
    "Source for all: a directory of Parquet files, one file (100,000 rows) an epoch; local[2], two state partitions.",
    (
        "'update' epochs change windows and close none; 'close' closes all: one epoch of 1,000 rows moves the "
        "watermark, and the next, empty one emits. Its time is from the file's appearance to the last result, with "
        "Cairn's closingDelay of 0.3 s, for which input must pause. 'fill again' opens all windows anew between two."
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
        "results; 'query' is the part of it after Spark's own start. Input goes on: one epoch moves the watermark, the "
        "next closes what is due by it, without a pause; ours_s in the rows is from the first task of the one to the "
        "last result, ours_last_epoch_s from that of the other. 'memory lost': shared memory was emptied first. "
        "'Spark in use': the new Spark ran small queries of all engines before, so loading classes is no part; the "
        "queries recover in it one by one, in another order each round, after one kill -9 for all."
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
    "epoch": "An epoch has a floor that does not depend on state: source, shuffle, and the hand-over between Spark "
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
    for what in about.get("stopped", ()):
        console.print(f"stopped: {what}")
    for what in about.get("failures", ()):
        console.print(f"[red]failed:[/] {what}")
    write(rows, about, directory)
    drawing.draw(rows, str(about["mode"]), directory / f"{NAME}.png")
    return goals


def path_in(directory: Path) -> Path:
    """Of the JSON."""
    return directory / f"{NAME}.json"


def write(rows: Rows, about: Mapping[str, Any], directory: Path) -> None:
    """The JSON alone."""
    goals = find_goals(rows)
    content = {
        **about,
        "goals": [goal._asdict() for goal in goals],
        "intervals": spreads(rows),
        "notes": notes_on(goals),
        "medians": medians(rows),
        "rows": rows.all,
    }
    write_json(path_in(directory), content)


def notes_on(goals: Sequence[Goal]) -> list[str]:
    """What to know when reading the figures, and why goals fall short that do."""
    missed = [goal.name for goal in goals if not goal.holds]
    return [*NOTES, *(f"{name} …: {why}" for name, why in WHY.items() if any(each.startswith(name) for each in missed))]


# ---- goals


class _Judged(NamedTuple):
    """A goal; `goal` is None if it was not measured. `planned`: how many rounds of it a plan has."""

    name: str
    goal: Goal | None
    planned: Callable[[Plan], int]


def find_goals(rows: Rows) -> list[Goal]:
    """Every goal that this run measured."""
    return [judged.goal for judged in _all_goals(rows) if judged.goal is not None]


def missing_goals(rows: Rows) -> list[str]:
    """The names of the goals that it did not measure."""
    return [judged.name for judged in _all_goals(rows) if judged.goal is None]


def thin_goals(rows: Rows, plan: Plan) -> list[str]:
    """The goals that it measured in fewer rounds than it was to, and in how many."""
    measured = [(name, goal.n or 0, planned(plan)) for name, goal, planned in _all_goals(rows) if goal is not None]
    return [f"{name}: n = {found} of {wanted}" for name, found, wanted in measured if found < wanted]


def _all_goals(rows: Rows) -> Iterator[_Judged]:
    """Every goal, measured or not."""
    for figure, title in EPOCHS.items():
        for keys, bound in AGAINST_TRANSFORM.items():
            name = f"{title}, {keys:,} keys: transformWithState / Cairn"
            goal = _goal(name, ratio_of(rows, figure, keys, TRANSFORM_ROW, CAIRN), "×", least=bound)
            yield _Judged(name, goal, partial(_epochs_of_both, keys, TRANSFORM_ROW, CAIRN))
        for keys, bound in AGAINST_BUILTIN.items():
            for engine in (ROCKSDB_PLAIN, ROCKSDB_CHANGELOG):
                name = f"{title}, {keys:,} keys: Cairn / {ENGINES[engine].title}"
                goal = _goal(name, ratio_of(rows, figure, keys, CAIRN, engine), "×", most=bound)
                yield _Judged(name, goal, partial(_epochs_of_both, keys, CAIRN, engine))
    for keys in AGAINST_BUILTIN:
        name = f"bytes written by an epoch, {keys:,} keys: Cairn / {ENGINES[ROCKSDB_CHANGELOG].title}"
        goal = _goal(name, ratio_of(rows, "written_bytes", keys, CAIRN, ROCKSDB_CHANGELOG), "×", most=BYTES)
        yield _Judged(name, goal, partial(_epochs_of_both, keys, CAIRN, ROCKSDB_CHANGELOG))
    for keys in RECOVERY_KEYS:
        for memory in (KEPT, LOST):
            name = f"recovery, {keys:,} keys, {memory}, Spark in use: Cairn / the better of the two RocksDBs"
            goal = _goal(name, recovery_ratio(rows, keys, memory), "×", most=RECOVERY)
            yield _Judged(name, goal, partial(_recoveries_of, keys, WARM))
    for memory in (KEPT, LOST):
        name = f"recovery, {OURS_KEYS:,} keys, {memory}, new Spark: from the first task to the first results"
        wanted = {"what": "recovery", "engine": CAIRN, "keys": OURS_KEYS, "memory": memory, "spark": COLD}
        took = [row["ours_s"] for row in rows.select(**wanted) if "ours_s" in row]
        goal = _goal(name, intervals.of_values(took) if took else None, "s", most=OURS_S)
        yield _Judged(name, goal, partial(_recoveries_of, OURS_KEYS, COLD))


def _epochs_of_both(keys: int, one: str, other: str, plan: Plan) -> int:
    """The planned epochs that update windows in which both engines take part."""
    groups = [group.epochs for group in (*plan.first, *plan.last) if group.keys == keys]
    return sum(min(epochs.get(one, 0), epochs.get(other, 0)) for epochs in groups)


def _recoveries_of(keys: int, spark: str, plan: Plan) -> int:
    rounds = plan.warm_rounds if spark == WARM else plan.cold_rounds
    return rounds if keys in plan.recovery_keys else 0


def _goal(
    name: str, found: Interval | None, unit: str, *, most: float | None = None, least: float | None = None
) -> Goal | None:
    if found is None:
        return None
    goal = at_most(name, found.mean, unit, most) if most is not None else at_least(name, found.mean, unit, least or 0.0)
    return goal._replace(**_interval(found))


def _interval(found: Interval) -> dict[str, Any]:
    """Its ends, rounded, and n; of one sample there are none, and JSON has no word for infinity."""
    ends = (round(found.low, 4), round(found.high, 4)) if found.n > 1 else (None, None)
    return {"low": ends[0], "high": ends[1], "n": found.n}


def ratio_of(rows: Rows, figure: str, keys: int, upper: str, lower: str, what: str = "update") -> Interval | None:
    """Of two engines' figure over the rounds in which both took part; None: there was none."""
    above, below = (_by_round(rows, figure, what=what, keys=keys, engine=engine) for engine in (upper, lower))
    return _paired(above, below)


def recovery_ratio(rows: Rows, keys: int, memory: str) -> Interval | None:
    """Of Cairn's recovery in a Spark in use to that of the better RocksDB; None unless all three were measured."""
    wanted = {"what": "recovery", "keys": keys, "spark": WARM}
    ours = _by_round(rows, "query_s", **wanted, engine=CAIRN, memory=memory)
    theirs = [_by_round(rows, "query_s", **wanted, engine=engine) for engine in (ROCKSDB_PLAIN, ROCKSDB_CHANGELOG)]
    # Larger against the better one, by definition.
    found = [ratio for ratio in (_paired(ours, each) for each in theirs) if ratio is not None]
    return max(found) if len(found) == len(theirs) else None


def _by_round(rows: Rows, figure: str, **wanted: Any) -> dict[int, float]:
    return {row["round"]: row[figure] for row in rows.select(**wanted) if figure in row}


def _paired(above: Mapping[int, float], below: Mapping[int, float]) -> Interval | None:
    both = sorted(at for at in above.keys() & below.keys() if above[at] > 0 and below[at] > 0)
    return intervals.of_ratios([above[at] for at in both], [below[at] for at in both]) if both else None


def spreads(rows: Rows) -> list[dict[str, Any]]:
    """Ratios that are no goals: what closing all windows takes, from the file's appearance to the last result."""
    found = []
    for keys in keys_of(rows, "close"):
        for engine in ENGINES:
            ratio = ratio_of(rows, "wall_s", keys, CAIRN, engine, what="close") if engine != CAIRN else None
            if ratio is not None:
                name = f"close, {keys:,} keys: Cairn / {ENGINES[engine].title}"
                found.append({"name": name, "mean": round(ratio.mean, 4), **_interval(ratio)})
    return found


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
    for keys in keys_of(rows, "update"):
        for engine, described in ENGINES.items():
            wanted = {"engine": engine, "keys": keys}
            took = rows.median("addBatch_s", what="update", **wanted)
            if took is None:
                continue
            times = ratio_of(rows, "addBatch_s", keys, engine, CAIRN)
            lines.append(
                (
                    f"{keys:,}",
                    described.title,
                    f"{took * 1000:,.0f}",
                    _number(rows.median("trigger_s", what="update", **wanted), 1000, 0),
                    _number(rows.median("written_bytes", what="update", **wanted), 1e-6, 3),
                    _number(rows.median("wall_s", what="close", **wanted), 1, 2),
                    _number(rows.median("addBatch_s", what="fill", **wanted), 1, 2),
                    _number(times.mean if times is not None else None, 1, 2),
                )
            )
    print_rows(console, "Epochs of 100,000 rows (medians; × Cairn: geometric mean over the rounds)", columns, lines)


def _print_recovery(rows: Rows, console: Console) -> None:
    columns = (
        "keys",
        "engine",
        "new Spark: total s",
        "its start s",
        "query s",
        "first epoch s",
        "state load s",
        "first task to results s",
        "Spark in use: query s",
        "n",
    )
    lines = []
    for keys in keys_of(rows, "recovery"):
        for engine, memory in recoveries_of(rows, keys):
            wanted = {"what": "recovery", "engine": engine, "keys": keys, "memory": memory}
            figures = ("total_s", "spark_start_s", "query_s", "addBatch_s", "load_s", "ours_s")
            numbers = [_number(rows.median(figure, **wanted, spark=COLD), 1, 2) for figure in figures]
            numbers.append(_number(rows.median("query_s", **wanted, spark=WARM), 1, 2))
            rounds = "+".join(str(len(rows.select(**wanted, spark=spark))) for spark in (COLD, WARM))
            lines.append((f"{keys:,}", recovery_title(engine, memory), *numbers, rounds))
    print_rows(console, "From kill -9 to the first correct result (medians)", columns, lines)


def _number(value: float | None, factor: float, digits: int) -> str:
    return "–" if value is None else f"{value * factor:,.{digits}f}"
