"""Goals, tables and the plot of benchmarks/long_state.py.

Invariant: everything is computed from rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.harness import intervals
from benchmarks.harness.meter import median
from benchmarks.harness.report import Goal, Rows, at_most, print_goals, print_rows
from benchmarks.lasting.running import CHECKPOINTS, LOG_ALONE, ROCKSDB

OWN_S: Final = 10.0
OWN_KEYS: Final = 10_000_000
BYTES: Final = 1.0
GROWTH: Final = 1.1
"""A log that stays within a tenth of its size has stopped growing."""
SIDES: Final = (CHECKPOINTS, LOG_ALONE, ROCKSDB)


def keys_of(rows: Rows) -> list[int]:
    """The numbers of keys that were measured."""
    return sorted({row["keys"] for row in rows.all})


class Written(NamedTuple):
    """Bytes that an epoch of updates makes a side write: those of every epoch, and those of its checkpoints or
    snapshots, which come in bursts. `bursts` is how many epochs had one; 0: `burst_bytes` are unknown.
    """

    steady_bytes: float
    burst_bytes: float
    bursts: int

    @property
    def total_bytes(self) -> float:
        """All of them."""
        return self.steady_bytes + self.burst_bytes


def written(rows: Rows, keys: int, side: str) -> Written | None:
    """What an epoch writes; None without epochs.

    A burst is what is written beyond twice the middle epoch. The first checkpoint of each partition holds what was
    filled, and does not count, as RocksDB's first snapshot, which comes before the updates, does not. From there to the
    last burst there are whole intervals: it does not matter when the updates began and ended.
    """
    found = [row for what in ("update", "after") for row in rows.select(what=what, keys=keys, side=side)]
    count = len(rows.select(what="update", keys=keys, side=side))
    if not count:
        return None
    of_fill = max((row.get("first_bytes", 0) for row in rows.select(what="fill", keys=keys, side=side)), default=0)
    middle = median([row["written_bytes"] for row in found[:count]])
    first, began, total, last, bursts = of_fill, 0, 0.0, 0, 0
    steady = 0.0
    for number, row in enumerate(found, 1):
        size, grown = row["written_bytes"], max(row.get("first_bytes", 0) - first, 0)
        if grown:
            first, began, total, bursts = first + grown, number, 0.0, 0
            size -= grown
        more = size - middle if size > 2 * middle else 0.0
        steady += size - more
        if more and not grown:
            total, last, bursts = total + more, number, bursts + 1
    return Written(steady / count, total / (last - began) if bursts else 0.0, bursts)


def facts(rows: Rows) -> list[dict[str, Any]]:
    """What is no goal: the pace, the kinds of bytes of an epoch, and those that the goal leaves out."""
    found = []
    for keys in keys_of(rows):
        theirs = written(rows, keys, ROCKSDB)
        for side in SIDES:
            updates, ours = rows.select(what="update", keys=keys, side=side), written(rows, keys, side)
            if ours is None:
                continue
            fact: dict[str, Any] = {"keys": keys, "side": side, "epochs": len(updates)}
            fact["epoch_every_s"] = round((updates[-1]["at_s"] - updates[0]["at_s"]) / max(len(updates) - 1, 1), 3)
            fact |= {"steady_bytes_an_epoch": round(ours.steady_bytes), "burst_bytes_an_epoch": round(ours.burst_bytes)}
            fact["epochs_with_bursts"] = ours.bursts
            for name in ("checkpoint_bytes", "sidecar_bytes", "spark_bytes", "control_bytes", "local_bytes"):
                if any(name in row for row in updates):
                    fact[f"{name}_an_epoch"] = round(sum(row.get(name, 0) for row in updates) / len(updates))
            fact["first_checkpoint_bytes"] = max(row.get("first_bytes", 0) for row in updates)
            if side == CHECKPOINTS and theirs is not None:
                count = len(rows.select(what="update", keys=keys, side=ROCKSDB))
                local = sum(row.get("local_bytes", 0) for row in rows.select(what="update", keys=keys, side=ROCKSDB))
                whole = ours.total_bytes + fact["first_checkpoint_bytes"] / len(updates)
                fact["over_rocksdb_with_first_checkpoint"] = round(whole / theirs.total_bytes, 4)
                with_local = theirs.total_bytes + local / count
                fact["over_rocksdb_with_its_local_files"] = round(ours.total_bytes / with_local, 4)
            found.append(fact)
    return found


def growth(rows: Rows, keys: int, side: str) -> float | None:
    """The largest log in the last third of the epochs to the largest in the third before; None with too few epochs."""
    sizes = [row["log_bytes"] for row in rows.select(what="update", keys=keys, side=side) if "log_bytes" in row]
    third = len(sizes) // 3
    if third < 1:
        return None
    return max(sizes[-third:]) / max(max(sizes[-2 * third : -third]), 1)


def find_goals(rows: Rows) -> list[Goal]:
    """All goals for which there are figures."""
    return list(_goals(rows))


def _goals(rows: Rows) -> Iterator[Goal]:
    for keys in keys_of(rows):
        theirs = written(rows, keys, ROCKSDB)
        for side in (CHECKPOINTS, LOG_ALONE):
            ours = written(rows, keys, side)
            if ours is not None and theirs is not None:
                name = f"bytes written an epoch, {keys:,} keys: {side} / {ROCKSDB}"
                yield at_most(name, ours.total_bytes / theirs.total_bytes, "×", BYTES)
        grown = growth(rows, keys, CHECKPOINTS)
        if grown is not None:
            name = f"largest log of the last third / of the third before, {keys:,} keys, with checkpoints"
            yield at_most(name, grown, "×", GROWTH)
        took = [row["own_s"] for row in rows.select(what="recovery", keys=keys, side=CHECKPOINTS) if "own_s" in row]
        if took:
            found = intervals.of_values(took)
            goal = at_most(f"recovery, {keys:,} keys, from the first task to the results", found.mean, "s", OWN_S)
            ends = (round(found.low, 3), round(found.high, 3)) if found.n > 1 else (None, None)
            yield goal._replace(low=ends[0], high=ends[1], n=found.n)


def print_tables(rows: Rows, goals: list[Goal], console: Console) -> None:
    """All tables."""
    lines: list[tuple[str, ...]] = []
    for keys in keys_of(rows):
        for side in SIDES:
            wanted: dict[str, Any] = {"keys": keys, "side": side}
            updates = rows.select(what="update", **wanted)
            if not updates:
                continue
            last, ours = updates[-1], written(rows, keys, side)
            logs = [row.get("log_bytes", 0) for row in updates]
            lines.append(
                (
                    f"{keys:,}", side, str(len(updates)), _text(rows.median("wall_s", what="update", **wanted), 1, 2),
                    _text(None if ours is None else ours.total_bytes, 1e-6, 2),
                    f"{sum(row['checkpoint_bytes'] for row in updates) / 1e6:,.0f}",
                    f"{max(logs) / 1e6:,.0f}", f"{logs[-1] / 1e6:,.0f}", f"{last['sink_bytes'] / 1e6:,.0f}",
                )
            )  # fmt: skip
    columns = (
        "keys",
        "side",
        "epochs",
        "epoch s",
        "MB written an epoch",
        "MB of checkpoints",
        "log MB at most",
        "log MB",
    )
    print_rows(console, "Updates", (*columns, "checkpoints MB"), lines)
    lines.clear()
    for keys in keys_of(rows):
        for side in SIDES:
            wanted = {"what": "recovery", "keys": keys, "side": side}
            of = rows.select(**wanted)
            if of:
                seconds = [_text(rows.median(name, **wanted), 1, 2) for name in ("query_s", "own_s", "load_s")]
                read = [_text(rows.median(f"read_{name}_bytes", **wanted), 1e-6, 1) for name in ("checkpoint", "log")]
                how = ", ".join(sorted({str(row.get("state_from", "–")) for row in of}))
                lines.append((f"{keys:,}", side, *seconds, *read, how, str(len(of))))
    of_recoveries = ("keys", "side", "query s", "own s", "load s", "checkpoint MB", "log MB", "from", "n")
    print_rows(
        console, "Recovery from kill -9 with the host's memory lost, to the first correct results", of_recoveries, lines
    )
    print_goals(console, goals)


def _text(value: float | None, factor: float, digits: int) -> str:
    return "–" if value is None else f"{value * factor:,.{digits}f}"


def draw(rows: Rows, mode: str, path: Path) -> None:
    """Sizes over time, bytes written, recoveries, as a file."""
    mpl.rcParams["font.size"] = 8
    page = Figure(figsize=(15, 8), layout="constrained")
    axes: Any = page.subplots(2, 3)
    for line, keys in zip(axes, (keys_of(rows) * 2)[:2], strict=False):
        _sizes(line[0], rows, keys)
        _written(line[1], rows, keys)
        _recoveries(line[2], rows, keys)
    page.suptitle(f"Large states under updates ({mode} run)")
    page.savefig(path, dpi=90)


def _sizes(axis: Any, rows: Rows, keys: int) -> None:
    for side in (CHECKPOINTS, LOG_ALONE):
        updates = rows.select(what="update", keys=keys, side=side)
        for name, style in (("log_bytes", "-"), ("sink_bytes", "--")):
            values = [row.get(name, 0) / 1e6 for row in updates]
            if any(values):
                axis.plot(range(1, len(values) + 1), values, style, label=f"{side}: {name.split('_')[0]}")
    _finish(axis, f"{keys:,} keys: MB of log and checkpoints, by epochs")


def _written(axis: Any, rows: Rows, keys: int) -> None:
    for side in SIDES:
        total, numbers, sums = 0.0, [], []
        updates = rows.select(what="update", keys=keys, side=side)
        for count, row in enumerate(updates, 1):
            total += row["written_bytes"] / 1e6
            numbers.append(row["round"])
            sums.append((total - min(row.get("first_bytes", 0) / 1e6, total)) / count)
        if sums:
            axis.plot(numbers, sums, label=side)
    _finish(axis, f"{keys:,} keys: MB written an epoch, mean so far, without the first checkpoint")


def _recoveries(axis: Any, rows: Rows, keys: int) -> None:
    for at, side in enumerate(SIDES):
        for name, mark in (("query_s", "o"), ("own_s", "x"), ("load_s", "+")):
            values = [row[name] for row in rows.select(what="recovery", keys=keys, side=side) if name in row]
            axis.plot([at] * len(values), values, mark, label=f"{side}: {name}" if values else None)
    axis.axhline(OWN_S, linestyle=":")
    _finish(axis, f"{keys:,} keys: seconds of recoveries")


def _finish(axis: Any, title: str) -> None:
    axis.set_title(title)
    if axis.get_legend_handles_labels()[0]:
        axis.legend()
