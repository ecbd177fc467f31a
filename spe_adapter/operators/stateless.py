"""Filter, map and union over Arrow batches, alone or before and behind a stateful operator.

    Pipeline(Filter(pc.field("amount") > 0), Aggregate(Running(), total=agg.sum("amount")), Map(total="total"))

Invariants: a step has no state, keeps the order of rows, and never adds any, so that each result still knows its key.
Steps in front of the stateful operator see the input's columns; those behind it see its results, without the key's.
Expressions are pyarrow's (`pyarrow.compute`), evaluated on whole batches.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import acero

from logstore.errors import InvalidConfig
from spe_adapter.codec.kernels import Int64s
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators.base import (
    Assignment,
    Combining,
    Emitted,
    Input,
    Operator,
    Overlapping,
    Results,
    Rows,
    State,
    Times,
    WindowIdentities,
)
from spe_adapter.operators.clock import CallTimes
from spe_adapter.state.evolution import Evolution
from spe_adapter.state.store import StateStore

_COMPUTED: Final = "computed"

Function = Callable[[pa.RecordBatch], pa.RecordBatch]


class Step(ABC):
    """A stateless step."""

    @abstractmethod
    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns after the step. Raises SchemaRefused."""

    @abstractmethod
    def apply(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Int64s | None]:
        """The rows after the step, and the positions of these rows before the step (None: all rows, in order)."""

    def changes(self, column: str) -> bool:
        """Whether the step may change the values of this column."""
        return True


class Filter(Step):
    """Keeps the rows for which a condition holds; null counts as false. The condition is an expression, or a function
    from a batch to a boolean column.
    """

    def __init__(self, condition: Any) -> None:
        self._condition = condition

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The input's columns."""
        self._mask(_no_rows(schema))
        return schema

    def changes(self, column: str) -> bool:
        """False: a filter keeps or removes whole rows."""
        return False

    def apply(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Int64s | None]:
        """Keep the rows for which the condition holds."""
        kept = np.flatnonzero(self._mask(batch).fill_null(False).to_numpy(zero_copy_only=False))
        return (batch, None) if len(kept) == batch.num_rows else (batch.take(pa.array(kept)), kept)

    def _mask(self, batch: pa.RecordBatch) -> pa.Array:
        mask = _evaluated(batch, self._condition)
        if mask.type != pa.bool_():
            raise SchemaRefused(f"a filter's condition is {mask.type}; it must be boolean")
        return mask


class Map(Step):
    """Computes columns: from expressions (a name is a column), or with a function from a batch to a batch with the same
    number of rows.

    With `keep`, the other columns of the input stay.
    """

    def __init__(self, function: Function | None = None, /, *, keep: bool = False, **columns: Any) -> None:
        if (function is None) == (not columns):
            raise InvalidConfig("a Map takes one function, or columns by name")
        self._function = function
        self._columns = columns
        self._keep = keep

    def changes(self, column: str) -> bool:
        """Whether the step computes the column; True if a function computes the columns."""
        given = self._columns.get(column, column if self._keep else None)
        return self._function is not None or not isinstance(given, str) or given != column

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the result, found with a batch without rows."""
        return self.apply(_no_rows(schema))[0].schema

    def apply(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Int64s | None]:
        """Compute the columns."""
        if self._function is not None:
            mapped = self._function(batch)
            if mapped.num_rows != batch.num_rows:
                raise SchemaRefused(f"a map made {mapped.num_rows} rows of {batch.num_rows}; it must keep each")
            return mapped, None
        columns = dict(zip(batch.schema.names, batch.columns, strict=True)) if self._keep else {}
        for name, expression in self._columns.items():
            columns[name] = _evaluated(batch, pc.field(expression) if isinstance(expression, str) else expression)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)), None


class Pipeline(Operator):
    """Steps around at most one stateful operator. Without a stateful operator, results carry the keys of the rows."""

    def __init__(self, *steps: Step | Operator) -> None:
        places = [place for place, step in enumerate(steps) if isinstance(step, Operator)]
        if len(places) > 1:
            raise InvalidConfig(
                "a Pipeline has at most one stateful operator; send its results to the next one through a topic"
            )
        middle = places[0] if places else len(steps)
        self._before: Sequence[Any] = steps[:middle]
        self._after: Sequence[Any] = steps[middle + 1 :]
        inner = steps[middle] if places else _Passing()
        if not isinstance(inner, Operator):
            raise InvalidConfig("a Pipeline is made of steps and an operator")
        self._inner = inner
        self.state = inner.state
        self.event_time = inner.event_time
        self.delay_ms = inner.delay_ms
        self.windows_never_change = inner.windows_never_change
        self.stateless = inner.stateless
        self.keeps_entries = inner.keeps_entries

    @property
    def name(self) -> str:
        """The name of the stateful operator."""
        return self._inner.name

    @property
    def inner(self) -> Operator:
        """The stateful operator."""
        return self._inner

    @property
    def description(self) -> str:
        """The description of the stateful operator. A change of the steps does not affect the state."""
        return self._inner.description

    def prepared(self, schema: pa.Schema) -> pa.Schema:
        """The schema that the stateful operator gets."""
        for step in self._before:
            schema = step.schema(schema)
        return schema

    def prepare(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Apply the steps before the stateful operator."""
        for step in self._before:
            batch, _ = step.apply(batch)
        return batch

    def combining(self, schema: pa.Schema) -> Combining | None:
        """How the stateful operator combines rows, after the steps before it."""
        return self._inner.combining(self.prepared(schema))

    def changes(self, column: str) -> bool:
        """Whether a step before the stateful operator changes this column."""
        return any(step.changes(column) for step in self._before)

    def conclude(self, results: Results) -> Results:
        """Apply the steps after the stateful operator."""
        rows, window, times_ms = self._inner.conclude(results)
        for step in self._after:
            rows, kept = step.apply(rows)
            if kept is not None:
                window = window[kept]
                times_ms = None if times_ms is None else times_ms[kept]
        return Results(rows, window, times_ms)

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns after the last step."""
        schema = self._inner.output(self.prepared(schema))
        for step in self._after:
            schema = step.schema(schema)
        return schema

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        """The state columns of the stateful operator."""
        return self._inner.state_schema(self.prepared(schema))

    def evolving(
        self,
        *,
        renamed: Mapping[str, str] | None = None,
        dropped: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
        formerly: Sequence[str] = (),
    ) -> Self:
        """The same steps, and the stateful operator with declared changes of its state."""
        inner = self._inner.evolving(renamed=renamed, dropped=dropped, defaults=defaults, formerly=formerly)
        changed = copy(self)
        vars(changed).update(_inner=inner)
        return changed

    def follows(self, former: str) -> str | None:
        """As the stateful operator; a change of the steps does not affect the state."""
        return self._inner.follows(former)

    def state_evolution(self, schema: pa.Schema, former: pa.Schema) -> Evolution:
        """The changes that the stateful operator declares."""
        return self._inner.state_evolution(self.prepared(schema), former)

    def columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """The columns that the stateful operator reads."""
        return self._inner.columns(schema)

    def inputs(self) -> tuple[Input, ...]:
        """The inputs of the stateful operator."""
        return self._inner.inputs()

    def times(self, batch: pa.RecordBatch) -> Times | None:
        """The event times of the stateful operator."""
        return self._inner.times(batch)

    def sources(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        """The inputs of rows, by the stateful operator."""
        return self._inner.sources(batch)

    def assign(self, batch: pa.RecordBatch, times: Times | None, sequence: Int64s) -> Assignment | Overlapping:
        """The windows of the stateful operator."""
        return self._inner.assign(batch, times, sequence)

    def process(self, rows: Rows, state: State) -> Emitted:
        """Process rows with the stateful operator."""
        return self._inner.process(rows, state)

    def expire(self, state: State, watermark_ms: int) -> Emitted:
        """Expire windows with the stateful operator."""
        return self._inner.expire(state, watermark_ms)

    @property
    def has_wall_time(self) -> bool:
        """Whether the stateful operator uses processing time."""
        return self._inner.has_wall_time

    def routing_keys(self, keys: pa.BinaryArray, numbers: Int64s) -> pa.BinaryArray:
        """The routing keys of the stateful operator."""
        return self._inner.routing_keys(keys, numbers)

    def start(self, rows: Rows, state: State) -> Emitted:
        """Start the stateful operator from an initial state. The steps do not apply to the initial state."""
        return self._inner.start(rows, state)

    def open_entries(self, store: StateStore, identity: WindowIdentities, clock: CallTimes) -> State:
        """The entries of the stateful operator."""
        return self._inner.open_entries(store, identity, clock)

    def due_entries(self, store: StateStore, identity: WindowIdentities, clock: CallTimes) -> State | None:
        """The due entries of the stateful operator."""
        return self._inner.due_entries(store, identity, clock)

    def remove_due(self, store: StateStore, identity: WindowIdentities, clock: CallTimes) -> None:
        """Remove expired entries of the stateful operator."""
        self._inner.remove_due(store, identity, clock)

    def next_wall_ms(self, store: StateStore) -> int | None:
        """The next processing time of the stateful operator."""
        return self._inner.next_wall_ms(store)


class _Passing(Operator):
    """An operator without state: passes on the rows with their keys."""

    stateless = True

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the input."""
        return schema

    def process(self, rows: Rows, state: State) -> Emitted:
        """All rows."""
        return Results(rows.batch, rows.window)


def union(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of several inputs, one input after the other. Columns are matched by name; a column that an input lacks
    is null there. Raises SchemaRefused for columns of one name and two types.
    """
    if not batches:
        raise InvalidConfig("a union of nothing; give it one batch at least")
    try:
        schema = pa.unify_schemas([batch.schema for batch in batches])
    except pa.ArrowException as error:
        raise SchemaRefused(f"inputs that cannot be united: {error}") from error
    columns = []
    for field in schema:
        parts = [
            batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
            for batch in batches
        ]
        columns.append(pa.concat_arrays(parts))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _evaluated(batch: pa.RecordBatch, expression: Any) -> pa.Array:
    """The column that an expression or a function computes from a batch."""
    if not isinstance(expression, pc.Expression):
        return expression(batch)
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))),
            acero.Declaration("project", acero.ProjectNodeOptions([expression], [_COMPUTED])),
        ]
    )
    column = plan.to_table(use_threads=False).column(_COMPUTED)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
