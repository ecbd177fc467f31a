"""Aggregates by key over windows.

    Aggregate(Tumbling("5 minutes", time="ts", delay="1 minute"), average=agg.avg("price"), n=agg.count())

| window | results | when |
|---|---|---|
| Tumbling, Sliding | key, window (start, end), aggregates | once, when the watermark reaches the window's end |
| the same in mode update | the same | after each batch, of the windows that changed in it |
| Session | key, session_window (start, end), aggregates | once, when the watermark reaches the session's end |
| Counting | key, aggregates | with the row that fills the window |
| Running | key, aggregates | after each batch, of the keys in it |

Invariants: a window's state is the state of its aggregates and nothing else; results are those of Spark's own windowed
aggregation on the same rows (for windows by event time in the output mode that they name, update mode for running
ones).

Source: CEC paper, section II (the aggregate operator); Spark's StateStoreSaveExec.
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from logstore.errors import InvalidConfig
from spe_adapter.codec.kernels import Int64s
from spe_adapter.operators import counting, sessions
from spe_adapter.operators.aggregation import Aggregation
from spe_adapter.operators.base import (
    Assignment,
    Combining,
    Emitted,
    Operator,
    Overlapping,
    Results,
    Rows,
    State,
    Times,
    ceiling_ms,
    time_index,
)
from spe_adapter.operators.cells import Cells, Slot, arrow_of, fresh, read, write
from spe_adapter.operators.succession import aggregates_problem, column_evolution
from spe_adapter.operators.windows import Counting, Session, Sliding, Window, window_column, window_type
from spe_adapter.state.evolution import Evolution

WINDOW: Final = "window"
"""The result column that has the event-time window."""
SESSION: Final = "session_window"
"""The result column that has the session."""


_Change = Callable[[str, Aggregation, list[Cells]], list[Cells]]
_Changed = Callable[[State, _Change], Emitted]


class Aggregate(Operator):
    """Several aggregates over one kind of window; their keyword names become the result columns."""

    def __init__(self, window: Window, /, **aggregations: Aggregation) -> None:
        if not aggregations:
            raise InvalidConfig("an Aggregate without aggregates; give at least one: Aggregate(window, n=count())")
        self._window = window
        self._aggregations: Mapping[str, Aggregation] = aggregations
        if isinstance(window, Session):
            lacking = [name for name, one in aggregations.items() if not one.merges]
            if lacking:
                raise InvalidConfig(
                    f"sessions are merged, which {', '.join(lacking)} cannot do: give it a method merge"
                )
        if isinstance(window, Sliding | Session):
            self.event_time = window.time
            self.delay_ms = window.delay_ms

    @property
    def description(self) -> str:
        """The aggregates and the windows, as text."""
        what = ", ".join(f"{name}={function!r}" for name, function in self._aggregations.items())
        return f"{self._kind}{what})"

    @property
    def _kind(self) -> str:
        """The description without the aggregates: what the state's windows depend on."""
        return f"Aggregate({self._window.description}, "

    def follows(self, former: str) -> str | None:
        """Follows an Aggregate over the same windows whose aggregates are kept, or declared as renamed or dropped."""
        aggregates = {name: repr(function) for name, function in self._aggregations.items()}
        return aggregates_problem(former, self._kind, aggregates, self.evolution)

    def state_evolution(self, schema: pa.Schema, former: pa.Schema) -> Evolution:
        """Changes are declared by the names of aggregates; a name covers all state columns of its aggregate."""
        return column_evolution(self.evolution, former, self.state_schema(schema))

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The window (of event-time windows), and the aggregates."""
        fields = [pa.field(name, one.result_type(schema)) for name, one in self._aggregations.items()]
        self._slots(schema)
        if isinstance(self._window, Sliding | Session):
            times = schema.field(time_index(schema, self._window.time)).type
            fields.insert(0, pa.field(WINDOW if isinstance(self._window, Sliding) else SESSION, window_type(times)))
        return pa.schema(fields)

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        """The state columns of the aggregates."""
        slots = [pa.field(name, slot.type) for name, slot in self._slots(schema)]
        if isinstance(self._window, Session):
            return sessions.state_schema(slots)
        return counting.state_schema(self._window, slots) if isinstance(self._window, Counting) else pa.schema(slots)

    def columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """The aggregated columns, and the time column of sessions."""
        needed = {column for one in self._aggregations.values() for column in one.columns}
        if isinstance(self._window, Session):
            needed.add(self._window.time)
        return tuple(name for name in schema.names if name in needed)

    def assign(self, batch: pa.RecordBatch, times: Times | None, sequence: Int64s) -> Assignment | Overlapping:
        """The windows of the rows by event time, or one window per key."""
        if isinstance(self._window, Sliding | Session) and times is not None:
            return self._window.assign(times)
        return super().assign(batch, times, sequence)

    def process(self, rows: Rows, state: State) -> Emitted:
        """Fold rows into their windows."""
        if isinstance(self._window, Counting):
            filled = counting.fold(self._window, self._aggregations, rows, state)
            return Results(self._results(filled.cells, state), filled.owner)
        if isinstance(self._window, Session):
            sessions.fold(self._window, self._aggregations, rows, state)
            return None
        return self._changed(state, lambda _, one, cells: one.fold(cells, rows.batch, rows.window))

    def combining(self, schema: pa.Schema) -> Combining | None:
        """Combine rows by window, with two exceptions. The session or counting window of a row is only known at the
        partition of the key, so such rows are not combined. If windows overlap, the rows of a window are combined in
        several groups; their order is lost, so aggregates that depend on it are not combined.
        """
        if isinstance(self._window, Counting | Session):
            return None
        if not all(one.merges for one in self._aggregations.values()):
            return None
        if isinstance(self._window, Sliding) and self._window.overlaps > 1:
            if any(one.is_ordered for one in self._aggregations.values()):
                return None
        return _Combining(self._window, self._aggregations, self._slots(schema), self._changed)

    def _changed(self, state: State, change: _Change) -> Emitted:
        """Store the changed state of each aggregate; returns results."""
        folded = {}
        for name, one in self._aggregations.items():
            slots = one.slots(state.schema)
            cells = change(name, one, [read(state, name + slot.suffix, slot) for slot in slots])
            for slot, cell in zip(slots, cells, strict=True):
                write(state, name + slot.suffix, cell)
            folded[name] = cells
        if isinstance(self._window, Sliding):
            state.expire_at(self._window.ends_ms(state.numbers))
            if self._window.mode == "append":
                return None
            return self._results(folded, state, self._bounds(self._window, state))
        return self._results(folded, state)

    def expire(self, state: State, watermark_ms: int) -> Emitted:
        """The results of windows that have ended."""
        if isinstance(self._window, Session):
            due = sessions.ended(self._aggregations, state, watermark_ms)
            kind = self.output(state.schema).field(SESSION).type
            window = window_column(due.start_us, due.end_us, kind)
            return Results(self._results(due.cells, state, window), due.owner, ceiling_ms(due.end_us))
        if not isinstance(self._window, Sliding) or self._window.mode == "update":
            return None
        cells = {
            name: [read(state, name + slot.suffix, slot) for slot in one.slots(state.schema)]
            for name, one in self._aggregations.items()
        }
        results = self._results(cells, state, self._bounds(self._window, state))
        return Results(results, np.arange(state.size), self._window.ends_ms(state.numbers))

    def _bounds(self, window: Sliding, state: State) -> pa.Array:
        kind = self.output(state.schema).field(WINDOW).type
        return window_column(state.numbers, state.numbers + window.length_us, kind)

    def _results(self, cells: Mapping[str, list[Cells]], state: State, *window: pa.Array) -> pa.RecordBatch:
        schema = self.output(state.schema)
        columns = [one.result(cells[name], schema.field(name).type) for name, one in self._aggregations.items()]
        return pa.RecordBatch.from_arrays([*window, *columns], schema=schema)

    def _slots(self, schema: pa.Schema) -> list[tuple[str, Slot]]:
        return [(name + slot.suffix, slot) for name, one in self._aggregations.items() for slot in one.slots(schema)]


class _Combining(Combining):
    """Combines rows into the state of their window as if the window had no other rows."""

    def __init__(
        self, window: Window, aggregations: Mapping[str, Aggregation], slots: list[tuple[str, Slot]], changed: _Changed
    ) -> None:
        self._window = window
        self._aggregations = aggregations
        self._changed = changed
        self.cells = pa.schema([pa.field(name, slot.type) for name, slot in slots])

    def fold(self, batch: pa.RecordBatch, groups: Int64s, count: int) -> list[pa.Array]:
        """Fold rows into new cells."""
        columns = []
        for one in self._aggregations.values():
            slots = one.slots(batch.schema)
            cells = one.fold([fresh(slot, count) for slot in slots], batch, groups)
            columns += [arrow_of(cell, slot.type) for cell, slot in zip(cells, slots, strict=True)]
        return columns

    def placed(self, numbers: Int64s) -> Assignment | Overlapping:
        """The windows of the groups by event time, or one window per key."""
        return self._window.placed(numbers) if isinstance(self._window, Sliding) else Assignment(numbers)

    def merge(self, rows: Rows, state: State) -> Emitted:
        """Merge combined cells into the cells of the windows."""

        def merged(name: str, one: Aggregation, cells: list[Cells]) -> list[Cells]:
            slots = one.slots(state.schema)
            return one.merge(cells, [rows.batch.column(name + slot.suffix) for slot in slots], rows.window)

        return self._changed(state, merged)
