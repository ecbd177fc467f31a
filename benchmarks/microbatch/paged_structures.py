"""Structures on pages, beside Python's dict, list and deque, and beside the table that keeps windows today.

`python -m benchmarks.microbatch.paged_structures [--records N] [--batch N] [--rounds N]` prints ns per record of each
operation at N records (1 M), in batches of 10,000, and what it costs to find the windows that are due. No files and no
services; about a minute.

Invariants:
* All take part in turn in each round, in one process; a figure is the median of the rounds.
* Each operation's result is checked once against the others'.
"""

import argparse
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from spe_adapter.pages.manager import PageManager, PageSet
from spe_adapter.pages.structures.hashmap import MapPages, PagedMap
from spe_adapter.pages.structures.layouts import RecordSchema
from spe_adapter.pages.structures.ordered import PagedOrderedMap
from spe_adapter.pages.structures.sequence import PagedList, PagedQueue
from spe_adapter.state.layout import NEVER
from spe_adapter.state.table import Table

VALUES = RecordSchema({"count": "int64", "sum": "float64", "expires": "int64"})
STATE = pa.schema([pa.field("count", pa.int64()), pa.field("sum", pa.float64())])
TIMERS = RecordSchema({"time": "int64", "name": "int64"})

Times = dict[str, list[float]]
"""Nanoseconds per record of each operation, a figure for each round."""


def page_sets(count: int) -> list[PageSet]:
    """Empty page sets in anonymous memory."""
    manager = PageManager.create_file(max_pages=count * 8192)
    return [manager.create(set_id, 8192) for set_id in range(count)]


def each(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """What a function gives for each item, as Python's own containers are used."""
    return [work(item) for item in items]


class Stopwatch:
    """Collects how long operations take, per record."""

    def __init__(self) -> None:
        self.times: Times = {}

    def __call__(self, name: str, records: int, work: Callable[[], Any]) -> Any:
        """Do the work once; its result."""
        started = time.perf_counter_ns()
        result = work()
        self.times.setdefault(name, []).append((time.perf_counter_ns() - started) / max(records, 1))
        return result


def keyed(watch: Stopwatch, records: int, batch: int, random: np.random.Generator) -> None:
    """Maps: insert everything in batches, find and update and remove random batches."""
    numbers = random.permutation(records).astype(np.int64)
    keys = pa.array([b"key %08d" % number for number in numbers.tolist()], pa.binary())
    zeros = np.zeros(records, np.int64)
    paged = PagedMap(MapPages(*page_sets(3)), VALUES, 1)
    table = Table.in_memory(STATE, batch, 1)
    plain: dict[bytes, list[float]] = {}
    parts = [slice(begin, begin + batch) for begin in range(0, records, batch)]
    names = keys.to_pylist()
    arrow = [keys.slice(part.start, batch) for part in parts]

    def insert_plain() -> None:
        for name in names:
            if name not in plain:
                plain[name] = [0, 0.0, 0]

    def insert(target: PagedMap | Table) -> None:
        for some, part in zip(arrow, parts, strict=True):
            target.ensure(some, zeros[part])

    watch("insert, map on pages", records, partial(insert, paged))
    watch("insert, table of windows", records, partial(insert, table))
    watch("insert, dict", records, insert_plain)
    counts = np.arange(batch)
    chosen = [random.choice(records, batch, replace=False) for _ in range(10)]
    for rows in chosen:
        some, some_names = keys.take(pa.array(rows)), [names[row] for row in rows]
        found = watch("find, map on pages", batch, partial(paged.find, some, zeros[:batch]))
        there = watch("find, table of windows", batch, partial(table.find, some, zeros[:batch]))
        values = watch("find, dict", batch, partial(each, plain.get, some_names))
        assert None not in values
        assert (found >= 0).all()
        assert (there >= 0).all()
        watch("set a field, map on pages", batch, partial(paged.set_field, "count", found, counts))
        watch("set a field, table of windows", batch, partial(table.set, "count", there, counts))
    for rows in np.array_split(np.unique(np.concatenate(chosen[:5])), 5):
        some = keys.take(pa.array(rows))
        found, there = paged.find(some, zeros[: len(rows)]), table.find(some, zeros[: len(rows)])
        watch("remove, map on pages", len(rows), partial(paged.remove, found))
        watch("remove, table of windows", len(rows), partial(table.remove, there))
        some_names = [names[row] for row in rows]
        watch("remove, dict", len(rows), partial(each, plain.pop, some_names))
    assert len(paged) == table.live == len(plain)
    watch.times["bytes per record, map on pages"] = [paged.size_bytes / len(paged)]
    watch.times["bytes per record, table of windows"] = [table.size_bytes / table.live]


def in_order(watch: Stopwatch, records: int, batch: int) -> None:
    """Lists and queues: append in batches, read, pop."""
    first, second = page_sets(2)
    values, queue = PagedList(first, VALUES), PagedQueue(second, VALUES)
    plain: list[tuple[int, float, int]] = []
    plain_queue: deque[tuple[int, float, int]] = deque()
    content = VALUES.records(count=np.arange(batch), sum=np.arange(batch) / 2)
    rows = content.tolist()
    for _ in range(0, records, batch):
        watch("append, list on pages", batch, lambda: values.append(content))
        watch("append, list", batch, lambda: plain.extend(rows))
        watch("append, queue on pages", batch, lambda: queue.append(content))
        watch("append, deque", batch, lambda: plain_queue.extend(rows))
    chosen = np.random.default_rng(5).integers(0, len(values), batch)
    places = chosen.tolist()
    for _ in range(10):
        watch("get by row, list on pages", batch, lambda: values.get(chosen))
        watch("get by row, list", batch, partial(each, plain.__getitem__, places))
        watch("set by row, list on pages", batch, lambda: values.set(chosen, content))
    for _ in range(0, records, batch):
        watch("pop, queue on pages", batch, lambda: queue.pop(batch))
        watch("pop, deque", batch, lambda: [plain_queue.popleft() for _ in range(batch)])
    assert len(queue) == len(plain_queue) == 0


def due(watch: Stopwatch, records: int, batch: int, random: np.random.Generator) -> None:
    """Windows that are due, few at a time: a map in order of time, against a scan of all windows."""
    times = random.integers(0, 10**6, records)
    names = np.arange(records)
    ordered = PagedOrderedMap(page_sets(1)[0], TIMERS)
    table = Table.in_memory(STATE, records, 1)
    rows, _ = table.ensure(pa.nulls(records, pa.binary()), names)
    table.set_expires(rows, times)
    title = f"{records:,} windows: "
    for begin in range(0, records, batch):
        part = slice(begin, begin + batch)
        timers = TIMERS.records(time=times[part], name=names[part])
        watch(f"{title}put timers at random times", batch, partial(ordered.put, timers))
    few = max(records // 100_000, 1)
    edges = np.sort(times)[few::few][:50].tolist()
    table.due(-1)
    for edge in edges:
        popped = watch(f"{title}pop what is due, per call", 1, partial(ordered.pop_until, edge))
        found = watch(f"{title}Table.due, per call", 1, partial(table.due, edge))
        assert sorted(popped["name"].tolist()) == sorted(found.tolist())
        table.set_expires(found, NEVER)
    left = np.flatnonzero(times > edges[-1])
    chosen = random.choice(left, min(batch, len(left) // 2), replace=False)
    old = times[chosen]
    watch(f"{title}remove timers", len(chosen), lambda: ordered.remove(old, chosen))
    timers = TIMERS.records(time=old + 10**6, name=chosen)
    watch(f"{title}put timers behind the others", len(chosen), lambda: ordered.put(timers))


def checkpointed(watch: Stopwatch, records: int, batch: int) -> None:
    """A map in a checkpoint: which pages a batch of new keys changes, and how long a recovery takes."""
    sets = page_sets(3)
    manager = sets[0].manager
    paged = PagedMap(MapPages(*sets), VALUES, 1)
    keys = pa.array([b"key %08d" % number for number in range(records + batch)], pa.binary())
    zeros = np.zeros(batch, np.int64)
    for begin in range(0, records, batch):
        paged.ensure(keys.slice(begin, batch), zeros)
    with manager.freeze(copies=manager.max_pages) as frozen:
        since = frozen.number
    paged.ensure(keys.slice(records, batch), zeros)
    with manager.freeze(since=since, copies=manager.max_pages) as frozen:
        changed = frozen.ids >> 32
    watch.times["pages that a batch of new keys changes, records and arena"] = [float(np.count_nonzero(changed != 1))]
    watch.times["pages that a batch of new keys changes, index"] = [float(np.count_nonzero(changed == 1))]
    watch("recover a map, per record", records, lambda: PagedMap(MapPages(*sets), VALUES, 1))
    manager.destroy(1)
    without = MapPages(sets[0], manager.create(1, 8192), sets[2])
    filled = watch("recover a map without its index, per record", records, lambda: PagedMap(without, VALUES, 1))
    assert len(filled) == records + batch


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    watch = Stopwatch()
    for round_number in range(-1, arguments.rounds):
        if not round_number:
            watch.times.clear()  # the round before compiled the loops
        random = np.random.default_rng(17)
        records = arguments.records if round_number >= 0 else 2 * arguments.batch
        keyed(watch, records, arguments.batch, random)
        in_order(watch, records, arguments.batch)
        checkpointed(watch, records, arguments.batch)
        for windows in (10_000, records):
            due(watch, windows, arguments.batch, random)
    for name, figures in watch.times.items():
        print(f"{name:<60}{statistics.median(figures):>14,.1f}")


if __name__ == "__main__":
    main()
