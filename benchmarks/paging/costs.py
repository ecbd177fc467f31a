"""What pages cost while no checkpoint is taken, what preparing a checkpoint costs, and what reading it back costs.

Invariants:
* All ways take turns within a round, in one process.
* Every state that was read back is compared with the state that was written. Reading back is `recover` into anonymous
  memory: pages and their table, without the state directory's files, and without the log that a task reads behind.
"""

from __future__ import annotations

import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.harness.report import Rows
from benchmarks.paging import state
from benchmarks.paging.kinds import block_of, serialized
from benchmarks.paging.state import Partition, described, random_rows, windows_for
from spe_adapter import WindowJoin
from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.manager import CheckpointManager, ManagerTools
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.recovery import Finder, PageRuns, read_pages, recover
from spe_adapter.checkpoint.sinks import Sink
from spe_adapter.codec.kernels import Int64s
from spe_adapter.operators.base import next_watermark
from spe_adapter.operators.chain import processor_of
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.state.direct import Direct
from spe_adapter.state.paged import PagedBlocks
from spe_adapter.state.storage import load_table
from spe_adapter.state.table import Table, anonymous

MB = 1 << 20
NUMPY, PLAIN, SMALL, LARGE = "numpy", "plain", "pages of 8 KB", "pages of 64 KB"
PAGE_SIZES = {PLAIN: None, SMALL: 8192, LARGE: 65536}
FREEZE, COPY, ARROW, PICKLE, DICT = "freeze", "copy", "Arrow IPC", "pickle of columns", "pickle of a dict"
DICT_LIMIT = 32 * MB
"""A dict of more takes gigabytes of Python objects."""
BATCH_ROWS = 10_000
JOIN_ROWS = 12_000
JOIN_BATCH = 2_000
JOIN_STEP_US = 10
SIDE = pa.struct([pa.field("at", pa.timestamp("us")), pa.field("price", pa.int64())])
JOINED = pa.schema(
    [pa.field("item", pa.int64()), pa.field("side", pa.int8()), pa.field("left", SIDE), pa.field("right", SIDE)]
)
UNIT = Unit("pages", 0)


class Plain(NamedTuple):
    """The aggregate on three plain arrays, an item's number being its place: no keys, no hash table, no windows."""

    counts: Int64s
    lows: Int64s
    highs: Int64s

    def process(self, batch: pa.RecordBatch) -> None:
        """Change the items of a batch."""
        places = batch.column("item").to_numpy() - state.FIRST_ITEM
        prices = batch.column("price").to_numpy()
        np.add.at(self.counts, places, 1)
        np.minimum.at(self.lows, places, prices)
        np.maximum.at(self.highs, places, prices)


def measure_aggregate(rows: Rows, sizes: tuple[int, ...], rounds: int, measured_rows: int) -> None:
    """Table 6: nanoseconds per row of an aggregate, by size of its state."""
    for size in sizes:
        windows = windows_for(size)
        ways: dict[str, Any] = {name: Partition(windows, page_bytes) for name, page_bytes in PAGE_SIZES.items()}
        ways[NUMPY] = Plain(*(np.zeros(windows, np.int64) for _ in range(3)))
        random = np.random.default_rng(state.SEED)
        for number in range(-1, rounds):  # the first round warms up
            batches = [random_rows(random, BATCH_ROWS, windows) for _ in range(max(measured_rows // BATCH_ROWS, 1))]
            for name, way in _turned(ways, number):
                started = time.perf_counter()
                for batch in batches:
                    way.process(batch)
                took = time.perf_counter() - started
                if number >= 0:
                    ns = took * 1e9 / (len(batches) * BATCH_ROWS)
                    rows.add(what="aggregate", bytes=size, windows=windows, memory=name, round=number, ns_per_row=ns)
        for name in PAGE_SIZES:
            ways[name].close()


class Joined:
    """A stream joined with itself by a unique number; both sides wait in the state for `waits` rows."""

    def __init__(self, waits: int, page_bytes: int | None) -> None:
        self._join = WindowJoin(f"{waits * JOIN_STEP_US} microseconds", left_time="at", right_time="at")
        self._blocks = None if page_bytes is None else PagedBlocks(page_bytes)
        schema = self._join.state_schema(JOINED)
        self.table = Table.in_memory(schema, 3 * (waits + JOIN_BATCH), state.SEED, self._blocks or anonymous)
        store = Direct(self.table, tells_changes=False, tells_windows=False)
        self._processor = processor_of(self._join, KeyCodec(JOINED, ["item"]), JOINED, store)
        self._watermark_ms = 0
        self.pairs = 0

    def process(self, batch: pa.RecordBatch) -> None:
        """Rows of both sides: pairs come out, rows that no later one can meet go."""
        output = self._processor.process(batch, late_watermark_ms=self._watermark_ms)
        self.pairs += 0 if output is None else output.rows.num_rows
        self._watermark_ms = next_watermark(self._join, self._watermark_ms, self._processor.max_events_ms)
        self._processor.expire(self._watermark_ms)

    def close(self) -> None:
        """Let go of the pages."""
        if self._blocks is not None:
            self._blocks.close()


def both_sides(first: int, count: int) -> pa.RecordBatch:
    """`count` tuples of a stream from a number on, each as a row of the left side and one of the right side."""
    items = np.repeat(np.arange(first, first + count), 2)
    sides = np.tile(np.array([0, 1], np.int8), count)
    times = pa.array(items * JOIN_STEP_US, pa.timestamp("us"))
    struct = [pa.StructArray.from_arrays([times, pa.array(items)], fields=list(SIDE)) for _ in range(2)]
    return pa.RecordBatch.from_arrays([pa.array(items), pa.array(sides), *struct], schema=JOINED)


def measure_join(rows: Rows, sizes: tuple[int, ...], rounds: int) -> None:
    """Table 5: nanoseconds per tuple of a self-join on unique numbers, by size of what waits in the state."""
    per_row = sum(Joined(1, None).table._layout.widths.values()) + state.KEY_BYTES  # noqa: SLF001
    for size in sizes:
        waits = max(size // per_row // 2, 1)
        ways: dict[str, Joined] = {name: Joined(waits, page_bytes) for name, page_bytes in PAGE_SIZES.items()}
        at = state.FIRST_ITEM
        while at < state.FIRST_ITEM + waits:
            for way in ways.values():
                way.process(both_sides(at, JOIN_BATCH))
            at += JOIN_BATCH
        for number in range(-1, rounds):
            batches = [both_sides(at + start, JOIN_BATCH) for start in range(0, JOIN_ROWS, JOIN_BATCH)]
            at += JOIN_ROWS
            for name, way in _turned(ways, number):
                started = time.perf_counter()
                for batch in batches:
                    way.process(batch)
                took = time.perf_counter() - started
                if number >= 0:
                    ns = took * 1e9 / JOIN_ROWS
                    rows.add(what="join", bytes=size, windows=way.table.live, memory=name, round=number, ns_per_row=ns)
        if len({way.pairs for way in ways.values()}) != 1 or not ways[PLAIN].pairs:
            raise RuntimeError(f"the joins differ: {[way.pairs for way in ways.values()]} pairs")
        for way in ways.values():
            way.close()


def _turned(ways: dict[str, Any], number: int) -> list[tuple[str, Any]]:
    """The ways, another one first in each round."""
    items = list(ways.items())
    at = number % len(items)
    return [*items[at:], *items[:at]]


# ---- preparing a checkpoint


def measure_preparing(rows: Rows, sizes: tuple[int, ...], rounds: int) -> None:
    """Figure 6: seconds until the operator may go on."""
    for size in sizes:
        partition, small = Partition(windows_for(size), 65536), Partition(windows_for(size), 8192)
        ways = _preparations(partition, small)
        if size <= DICT_LIMIT:
            ways[DICT] = partial(pickle.dumps, _as_dict(partition), protocol=5)
        for number in range(-1, rounds):
            for name, way in _turned(ways, number):
                started = time.perf_counter()
                result = way()
                took = time.perf_counter() - started
                if hasattr(result, "pages"):
                    result.pages.release()
                del result  # or the next way would be charged for freeing what this one made
                if number >= 0:
                    rows.add(what="prepare", bytes=size, way=name, round=number, seconds=took)
        partition.close()
        small.close()


def _preparations(partition: Partition, small: Partition) -> dict[str, Callable[[], Any]]:
    """The ways to prepare a checkpoint of two partitions of the same windows, the second with pages of 8 KB."""
    room = np.ones(partition.content_bytes, np.uint8)
    return {
        f"{FREEZE} 64 KB": partition.freeze,
        f"{FREEZE} 8 KB": small.freeze,
        COPY: lambda: _copy(partition, room),
        ARROW: lambda: serialized(partition),
        PICKLE: lambda: pickle.dumps(_columns(partition), protocol=5),
    }


def _copy(partition: Partition, room: Any) -> None:
    block, at = block_of(partition), 0
    for start, end in partition.table.content():
        room[at : at + end - start] = block[start:end]
        at += end - start


def _columns(partition: Partition) -> pa.RecordBatch:
    return partition.table.take(partition.table.live_rows())


def _as_dict(partition: Partition) -> dict[bytes, tuple[int, ...]]:
    """The state as a program in Python would keep it."""
    columns = [column.to_pylist() for column in _columns(partition).columns]
    return {key: tuple(values) for key, *values in zip(*columns, strict=True)}


# ---- reading back


class Loaded(NamedTuple):
    """A table that was read back, and how long its parts took."""

    table: Table
    pages_s: float
    rebuild_s: float


def measure_reading(rows: Rows, sizes: tuple[int, ...], rounds: int, directory: Path) -> None:
    """Figure 9: seconds from the sink to a state that can be used, and those of its parts."""
    for size in sizes:
        for page_bytes in (8192, 65536):
            with _written(size, page_bytes, directory) as (partition, sink, manifest):
                wanted = _digest(partition.table)
                for number in range(rounds):
                    for is_cold in (False, True):
                        figures = _read_once(sink, manifest, directory, is_cold=is_cold)
                        if _digest(figures.pop("table")) != wanted:
                            raise RuntimeError("another state was read than was written")
                        cache = "cold" if is_cold else "warm"
                        label = {"bytes": size, "page_bytes": page_bytes, "cache": cache, "round": number}
                        rows.add(what="read", **label, **figures)


@contextmanager
def _written(size: int, page_bytes: int, directory: Path) -> Iterator[tuple[Partition, Sink, Manifest]]:
    """A checkpoint of a state of this size in a directory, as the product writes it."""
    partition = Partition(windows_for(size), page_bytes)
    root = directory / f"checkpoints-{size}-{page_bytes}"
    try:
        sink = DirectorySink(root)
        snapshot = partition.snapshot(partition.freeze())
        outcome = CheckpointManager(UNIT, lambda since: snapshot, ManagerTools(sink)).checkpoint()
        if outcome.manifest is None:
            raise RuntimeError(f"no checkpoint: {outcome}")
        yield partition, sink, outcome.manifest
    finally:
        partition.close()
        shutil.rmtree(root, ignore_errors=True)


def _read_once(sink: Sink, manifest: Manifest, directory: Path, *, is_cold: bool) -> dict[str, Any]:
    _set_cache(directory, is_cold=is_cold)
    started = time.perf_counter()
    for _ in read_pages(sink, manifest):
        pass
    read_s = time.perf_counter() - started
    _set_cache(directory, is_cold=is_cold)
    started = time.perf_counter()

    def build(found: Manifest, runs: PageRuns) -> Loaded:
        began = time.perf_counter()
        ended: list[float] = []

        def counted() -> PageRuns:
            yield from runs
            ended.append(time.perf_counter())

        schema = state.state_schema()
        table = load_table(schema, described(found.header, found.page_bytes), counted(), anonymous)
        return Loaded(table, ended[0] - began, time.perf_counter() - ended[0])

    built = recover(Finder(sink), UNIT, lambda _: True, build)
    took = time.perf_counter() - started
    if built is None:
        raise RuntimeError("no checkpoint could be read")
    loaded = built[0]
    parts = {"read_alone_s": read_s, "pages_s": loaded.pages_s, "rebuild_s": loaded.rebuild_s}
    return {"table": loaded.table, "seconds": took, **parts}


def _set_cache(directory: Path, *, is_cold: bool) -> None:
    """Take the files out of the system's cache, or into it."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                if is_cold:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    while file.read(8 * MB):
                        pass


def _digest(table: Table) -> tuple[int, ...]:
    """Sums over all windows, which two different states hardly share."""
    rows = table.live_rows()
    batch = table.take(rows)
    found = [len(rows)]
    for column in batch.columns:
        if pa.types.is_integer(column.type):
            values = column.to_numpy(zero_copy_only=False)
            found.append(int((np.nan_to_num(values).astype(np.int64) * (np.arange(len(values)) % 1009)).sum()))
    return tuple(found)
