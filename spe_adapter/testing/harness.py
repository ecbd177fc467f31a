"""Tests for a user's operator without Spark and without a sidecar.

    harness = OperatorHarness(Alarm(), key="customer", schema=schema)
    rows = [{"customer": "x", "cents": 100}, {"customer": "x", "cents": 5000}]
    assert harness.send(rows) == [{"customer": "x", "cents": 5000, "mean_cents": 100.0}]
    harness.crash_and_recover()                  # from the control records that the epochs so far have written
    assert harness.state() == [{"customer": "x", "payments": 2, "paid_cents": 5100}]
    check_any_batches(lambda: OperatorHarness(Alarm(), key="customer", schema=schema), [rows], random.Random(7))

Each `send` is one epoch, with the watermark as Spark has it: rows not newer than the previous epoch's watermark are
dropped; windows close by the newest event time of the epochs before, minus the delay. So results by event time come one
`send` later, or with `advance_watermark`.

Invariants: the Processor, the state tables and the control records are those of a query. An epoch in which the operator
fails has no effect.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.errors import CairnError, InvalidConfig
from logstore.format.batch import patch_base
from logstore.format.control import Begin, End, encode_control
from spe_adapter.cec.control import EndPositions, Mark
from spe_adapter.cec.extent import Counters
from spe_adapter.cec.reconstruct import EventualCheckpoint, Reconstruction
from spe_adapter.codec.kernels import Bools
from spe_adapter.epochs.marks import OpenWindows, StatePartition, control_batches, epoch_mark
from spe_adapter.operators.base import Operator, next_watermark
from spe_adapter.operators.chain import processor_of
from spe_adapter.operators.clock import CallTimes
from spe_adapter.operators.errors import OperatorChanged
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.output import Output, to_records
from spe_adapter.operators.replay import Replay, SkipPoints
from spe_adapter.state.direct import Direct
from spe_adapter.state.evolution import Conversion, state_columns_of
from spe_adapter.state.layout import NEVER
from spe_adapter.state.overlay import Overlay
from spe_adapter.state.store import StateStore, WindowChanges
from spe_adapter.state.table import Table

Row = Mapping[str, Any]

_QUERY: Final = "harness"
_SEED: Final = 0
"""The seed of hashes; a test needs no secret one."""
_RANDOM_CUTS: Final = 5


class NotReproduced(CairnError):
    """Recovery, or the same rows in other batches, gave another state or other results; the message has both."""


class _Epoch(NamedTuple):
    """The input of an epoch, for a replay."""

    batches: tuple[pa.RecordBatch, ...]
    late_watermark_ms: int
    watermark_ms: int
    wall_ms: int = 0
    initial: pa.RecordBatch | None = None


class OperatorHarness:
    """A state partition of an operator, for tests that supply the rows.

    `schema` is the schema of the input; rows are dicts, or a record batch of that schema. As in a micro-batch query,
    each epoch works on a copy-on-write view of the last committed state, and writes footprints of the changed windows.
    With `checks`, the harness works as the continuous runner: it changes the state in place, and writes a footprint of
    each window that opens and, in each epoch, of the `checks` windows with the oldest footprints; recovery then replays
    input. Raises the errors of the operator's Processor.
    """

    def __init__(
        self, operator: Operator, *, key: str | Sequence[str], schema: pa.Schema, checks: int | None = None
    ) -> None:
        self._operator = operator
        self._schema = schema
        self._checks = checks
        self._key = [key] if isinstance(key, str) else list(key)
        self._codec = KeyCodec(operator.prepared(schema), self._key)
        self._epochs: list[_Epoch] = []
        self._log: list[bytes] = []
        self._outputs: list[Output] = []
        self._emitted = 0
        self._watermark_ms = 0
        self._now_ms = 0
        self._max_events_ms: list[int | None] = [None] * len(operator.inputs())
        self._late = 0
        self._store: StateStore
        self._table = Table.in_memory(operator.state_schema(schema))
        self._begin(0, 0)

    @property
    def watermark_ms(self) -> int:
        """The watermark in ms: windows that end at or before the watermark are closed."""
        return self._watermark_ms

    @property
    def late(self) -> int:
        """The number of dropped late rows; with sliding windows, a row counts once for each window."""
        return self._late

    def start(self, initial: pa.RecordBatch) -> list[dict[str, Any]]:
        """Run the epoch of the initial state, before all other epochs; returns its results."""
        return self._run(_Epoch((), 0, 0, self._now_ms, initial))

    def send(
        self, rows: Sequence[Row] | pa.RecordBatch, *, cuts: Sequence[int] = (), now_ms: int | None = None
    ) -> list[dict[str, Any]]:
        """Process one epoch; its results. `cuts` are the positions at which its rows are cut into batches, `now_ms` is
        its processing time in ms (None: that of the epoch before; 0 in the first).
        """
        self._now_ms = self._now_ms if now_ms is None else max(now_ms, self._now_ms)
        batch = (
            rows if isinstance(rows, pa.RecordBatch) else pa.RecordBatch.from_pylist(list(rows), schema=self._schema)
        )
        bounds = [0, *sorted(cuts), batch.num_rows]
        parts = tuple(batch.slice(start, end - start) for start, end in pairwise(bounds))
        return self._run(
            _Epoch(
                parts,
                self._watermark_ms,
                next_watermark(self._operator, self._watermark_ms, self._max_events_ms),
                self._now_ms,
            )
        )

    def advance_watermark(self, watermark_ms: int) -> list[dict[str, Any]]:
        """Run an epoch without rows that closes all windows due at this watermark; returns its results."""
        return self._run(_Epoch((), self._watermark_ms, max(self._watermark_ms, watermark_ms), self._now_ms))

    def advance_time(self, now_ms: int) -> list[dict[str, Any]]:
        """Run an epoch without rows at this processing time, which must not go back; returns its results."""
        self._now_ms = max(now_ms, self._now_ms)
        return self._run(_Epoch((), self._watermark_ms, self._watermark_ms, self._now_ms))

    def results(self) -> list[dict[str, Any]]:
        """All results so far."""
        return [row for output in self._outputs for row in output.rows.to_pylist()]

    def outputs(self) -> list[Output]:
        """All results so far, as Arrow data."""
        return list(self._outputs)

    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        """All results so far, as records of the output topic: key and value."""
        records: list[tuple[bytes | None, bytes | None]] = []
        for output in self._outputs:
            keys, values = to_records(output)
            records += zip(keys.to_pylist(), values.to_pylist(), strict=True)
        return records

    def state(self) -> list[dict[str, Any]]:
        """The open windows, ordered by key and number: key columns, `number` if it is not 0, `expires_ms` if it is set,
        and the state. For an operator that keeps entries, its entries, with the bytes that identify each (`entry`).
        """
        ids = self._store.all_rows()
        routing = self._operator.routing_keys(self._store.keys(ids), self._store.numbers(ids))
        columns = dict(zip([field.name for field in self._codec.fields], self._codec.decode(routing), strict=True))
        if self._operator.keeps_entries:
            columns["entry"] = self._store.keys(ids)
        numbers, expires = self._store.numbers(ids), self._store.expires(ids)
        if numbers.any():
            columns["number"] = pa.array(numbers)
        if (expires != NEVER).any():
            columns["expires_ms"] = pa.array(expires, mask=expires == NEVER)
        for field in self._store.schema:
            columns[field.name] = self._store.get_arrow(field.name, ids)
        rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)).to_pylist()
        keys = self._store.keys(ids).to_pylist()
        order = sorted(range(len(ids)), key=lambda at: (keys[at] is not None, keys[at] or b"", int(numbers[at])))
        return [rows[at] for at in order]

    def crash_and_recover(self) -> None:
        """Discard everything except the log and the input, and recover from them. Raises NotReproduced if the recovered
        state differs.
        """
        before = self.state()
        processor = self._processor
        self._recover()
        after = self.state()
        if not _equal(before, after):
            raise NotReproduced(f"recovered state differs: {_difference(before, after)}")
        if (processor.sequence, processor.seen) != (self._processor.sequence, self._processor.seen):
            raise NotReproduced(f"{self._processor.sequence} rows after recovery, {processor.sequence} before")

    def evolve(self, operator: Operator) -> None:
        """Continue with an operator that follows the current operator, like a query that is started with a changed
        operator. The state is read from the log, and written with the new columns in an epoch without rows.

        Raises OperatorChanged or StateSchemaChanged if the operator does not follow, and InvalidConfig with `checks`:
        the replay of the continuous runner needs the operator that processed the earlier rows.
        """
        if self._checks is not None:
            raise InvalidConfig("a harness with checks has no other operator; the continuous runner refuses it")
        problem = operator.follows(self._operator.description)
        if problem is not None:
            raise OperatorChanged(f"operator {operator.name}: {problem}")
        former, self._operator = self._operator, operator
        try:
            self._recover()
        except CairnError:
            self._operator = former
            self._recover()
            raise
        self._epochs.append(_Epoch((), self._watermark_ms, self._watermark_ms))
        everything = self._table.take(self._table.live_rows())
        none = self._store.changes()
        self._store = Overlay(self._table)
        opened = np.ones(everything.num_rows, np.bool_)
        self._write(len(self._epochs), none._replace(footprints=everything, opened=opened), rebase=True)

    # ---- epochs

    def _run(self, epoch: _Epoch) -> list[dict[str, Any]]:
        self._processor.epoch = len(self._epochs) + 1
        late = self._processor.late
        try:
            outputs = self._feed(epoch, None)
        except CairnError:
            self._recover()
            raise
        self._epochs.append(epoch)
        self._late += self._processor.late - late
        self._watermark_ms = epoch.watermark_ms
        self._max_events_ms = [
            _newest(*pair) for pair in zip(self._max_events_ms, self._processor.max_events_ms, strict=True)
        ]
        self._outputs += outputs
        self._emitted += sum(output.rows.num_rows for output in outputs)
        self._write(len(self._epochs), self._store.changes())
        return [row for output in outputs for row in output.rows.to_pylist()]

    def _feed(self, epoch: _Epoch, replay: Replay | None) -> list[Output]:
        self._processor.clock = CallTimes(epoch.watermark_ms, epoch.wall_ms, epoch.late_watermark_ms)
        if epoch.initial is not None:
            self._processor.start(epoch.initial, KeyCodec(epoch.initial.schema, self._key))
        given = [
            self._processor.process(batch, late_watermark_ms=epoch.late_watermark_ms, replay=replay)
            for batch in epoch.batches
        ]
        given.append(self._processor.expire(epoch.watermark_ms, replay=replay))
        return [output for output in given if output is not None]

    # ---- the log

    def _write(self, number: int, changes: WindowChanges, *, rebase: bool = False) -> None:
        sequence, seen = self._processor.sequence, self._processor.seen
        footprints, opened = self._chosen(changes)
        closed = [changes.closed] if self._checks is None else [changes.closed, changes.transient]
        closes = pa.Table.from_batches(closed).combine_chunks().to_batches()
        self._emitted += footprints.num_rows
        if self._checks is None:
            self._table.remove(
                self._table.find(changes.closed.column("key"), changes.closed.column("number").to_numpy())
            )
        self._table.put(footprints, (number, self._emitted, seen))
        written = changes._replace(footprints=footprints, opened=opened, closed=closes[0] if closes else changes.closed)
        batches = [*control_batches(self._mark(number, rebase=rebase), written, 0)]
        begin = Begin(_QUERY, number, 1, ("a",), sum(map(len, batches)), len(batches))
        end = End(_QUERY, number, 1, self._progress(number).to_json().encode())
        first, last = encode_control(begin, timestamp_ms=0), encode_control(end, timestamp_ms=0)
        for batch in (first, *map(bytearray, batches), last):
            patch_base(batch, 0, len(self._log), 0)
            self._log.append(bytes(batch))
        if self._checks is None:
            self._begin(sequence, seen)

    def _begin(self, sequence: int, seen: int) -> None:
        """Start a processor on the committed state."""
        self._store = Overlay(self._table) if self._checks is None else Direct(self._table)
        self._processor = processor_of(
            self._operator, self._codec, self._schema, self._store, sequence, seen, len(self._epochs)
        )

    def _chosen(self, changes: WindowChanges) -> tuple[pa.RecordBatch, Bools]:
        """The footprints to write, and which of them are of new windows."""
        if self._checks is None:
            return changes.footprints, changes.opened
        table = self._table
        chosen = np.ones(len(changes.opened), np.bool_) if self._operator.keeps_entries else changes.opened
        new = table.find(
            changes.footprints.column("key").filter(pa.array(chosen)),
            changes.footprints.column("number").to_numpy()[chosen],
        )
        checked = np.setdiff1d(table.oldest(self._checks + len(new)), new)[: self._checks]
        return table.take(np.concatenate((new, checked))), np.append(
            changes.opened[chosen], np.zeros(len(checked), np.bool_)
        )

    def _mark(self, number: int, *, rebase: bool) -> Mark:
        oldest = self._table.oldest_window_version()
        return epoch_mark(
            StatePartition(_QUERY, "a", 0, 1, 1, self._operator.name),
            number,
            Counters(self._emitted, self._processor.seen),
            OpenWindows(self._table.live, number if oldest is None else oldest[0]),
            self._processor,
            watermark_ms=self._watermark_ms,
            rebase=rebase,
        )

    def _progress(self, number: int) -> EndPositions:
        return EndPositions(
            generation=0,
            batch=number,
            closing=False,
            late_watermark_ms=self._epochs[-1].late_watermark_ms,
            watermark_ms=self._watermark_ms,
            max_event_ms=self._processor.max_event_ms,
            partitions=1,
            layout=1,
        )

    # ---- recovery

    def _recover(self) -> None:
        self._table = table = Table.in_memory(self._operator.state_schema(self._schema))
        if not self._log:
            self._begin(0, 0)
            return
        scan = Reconstruction(_QUERY, seed=_SEED)
        for batch in reversed(self._log):
            if scan.feed(batch):
                break
        eventual = scan.finish(0)
        skips = SkipPoints()
        skips.add(eventual.skips.keys, eventual.skips.numbers, eventual.skips.epochs)
        for mark, batches in eventual.windows:
            for batch in batches:
                rows = table.put(self._in_columns_of_now(batch), (mark.epoch, mark.emitted, mark.seen))
                skips.add(table.keys(rows), table.numbers(rows), mark.epoch)
        start = self._start(eventual)
        self._begin(start.sequence, start.seen)
        for number in range(start.epoch + 1, len(self._epochs) + 1):
            self._feed(self._epochs[number - 1], skips.at(number))
        self._store.changes()

    def _in_columns_of_now(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        former = state_columns_of(batch)
        declared = self._operator.state_evolution(self._schema, former)
        return Conversion(former, self._operator.state_schema(self._schema), declared).converted(batch)

    def _start(self, eventual: EventualCheckpoint) -> Mark:
        """The mark after which input is replayed: the last one if the windows are as of that epoch."""
        operator = self._operator
        up_to_date = self._checks is None or operator.windows_never_change or operator.keeps_entries
        return eventual.marks[-1 if up_to_date else 0]


def check_any_batches(
    make: Callable[[], OperatorHarness], epochs: Sequence[Sequence[Row]], random: Random, *, results: bool = True
) -> None:
    """Process the same epochs as whole batches, row by row, and several times in random batches.

    Raises NotReproduced unless the state is the same each time, and the results are the same in any order. Use
    `results=False` for operators that give results after each batch: then results are not compared.
    """
    whole = _fed(make(), epochs, lambda rows: ())
    plans: list[Callable[[int], Sequence[int]]] = [lambda rows: range(1, rows)]
    plans += [lambda rows: random.sample(range(rows + 1), random.randint(0, rows))] * _RANDOM_CUTS
    for plan in plans:
        other = _fed(make(), epochs, plan)
        if not _equal(whole.state(), other.state()):
            raise NotReproduced(f"state depends on how rows are cut: {_difference(whole.state(), other.state())}")
        if results and sorted(map(repr, whole.records())) != sorted(map(repr, other.records())):
            raise NotReproduced(f"results depend on how rows are cut: {_difference(whole.records(), other.records())}")


def _fed(
    harness: OperatorHarness, epochs: Sequence[Sequence[Row]], cuts: Callable[[int], Sequence[int]]
) -> OperatorHarness:
    for rows in epochs:
        harness.send(rows, cuts=cuts(len(rows)))
    return harness


def _newest(one: int | None, other: int | None) -> int | None:
    known = [time for time in (one, other) if time is not None]
    return max(known) if known else None


def _equal(one: object, other: object) -> bool:
    """By text, for which NaN equals NaN."""
    return repr(one) == repr(other)


def _difference(one: Sequence[object], other: Sequence[object]) -> str:
    """The first entries that differ."""
    for mine, theirs in zip(one, other, strict=False):
        if not _equal(mine, theirs):
            return f"{mine!r} against {theirs!r}"
    return f"{len(one)} entries against {len(other)}"
