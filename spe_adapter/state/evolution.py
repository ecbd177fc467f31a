"""How the columns of a state become those of a changed operator: added, renamed, widened, or dropped.

| change | how |
|---|---|
| a column is added | null in the windows that are open, or the value declared for it in `defaults` |
| a column is renamed | declared: `renamed={"former": "now"}` |
| a type is widened | by itself: numbers to types that hold all of their values, decimals to more digits |
| a column is dropped | declared: `dropped=("name",)` |

Invariants:
* No value changes. What could lose a value is refused, with a sentence that names the column and both types.
* Nothing is lost in silence: a column that is gone must be declared as renamed or dropped.
* A declaration may stay: it has an effect only on a state that still has the former column.
* A batch is converted as a whole, by columns.

Source: docs/decisions/0027.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from spe_adapter.cec.control import STATE_PREFIX
from spe_adapter.state.errors import StateSchemaChanged
from spe_adapter.state.layout import take_schema

_WHOLE_BITS: Final = {16: 11, 32: 24, 64: 53}
"""By the width of a float in bits: the width of the whole numbers that it holds without loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """The declared changes of an operator's state.

    `renamed` has the name now by the former name, `dropped` the former names of columns that are given up, `defaults`
    the values that added columns get in open windows (others: null). `formerly` has descriptions that the operator had
    before (`Operator.description`, usually the class's name), whose state is still its own.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    formerly: tuple[str, ...] = ()


class Conversion:
    """From the columns of one state schema to those of another. Raises StateSchemaChanged if there is no way."""

    def __init__(self, former: pa.Schema, now: pa.Schema, declared: Evolution) -> None:
        self._now = now
        self._declared = declared
        self._wanted = take_schema(now)
        self._sources = _sources(former, now, declared)
        self.changes = _changes(former, now, self._sources)
        """What changes, for people; empty if the columns are the same."""

    def converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Windows in the former columns (key, number, expires, the state's with STATE_PREFIX), in those of now.

        Raises StateSchemaChanged for a declared default that its column cannot hold.
        """
        columns = list(batch.select(["key", "number", "expires"]).columns)
        for target in self._now:
            source = self._sources.get(target.name)
            if source is None:
                columns.append(self._default(target, batch.num_rows))
            else:
                column = batch.column(STATE_PREFIX + source)
                columns.append(column if column.type == target.type else column.cast(target.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._wanted)

    def _default(self, target: pa.Field, rows: int) -> pa.Array:
        value = self._declared.defaults.get(target.name)
        try:
            if pa.types.is_integer(target.type) and isinstance(value, float) and not value.is_integer():
                raise ValueError("it is not a whole number")
            return pa.repeat(pa.scalar(value, target.type), rows)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise StateSchemaChanged(
                f"the default of state column {target.name!r} is {value!r}, which a {target.type} cannot hold: {error}"
            ) from None


def state_columns_of(batch: pa.RecordBatch) -> pa.Schema:
    """The state's columns in a batch of windows, without their prefix."""
    state = (column for column in batch.schema if column.name.startswith(STATE_PREFIX))
    return pa.schema([column.with_name(column.name.removeprefix(STATE_PREFIX)) for column in state])


def _sources(former: pa.Schema, now: pa.Schema, declared: Evolution) -> dict[str, str]:
    """The former column of each column of now that has one. Raises StateSchemaChanged."""
    problems = [*_wrong_declarations(now, declared)]
    renamed = {
        name: source
        for source, name in declared.renamed.items()
        if source in former.names and name in now.names and name not in former.names
    }
    used = set(renamed.values())
    kept = {name: name for name in now.names if name not in renamed and name in former.names and name not in used}
    sources = kept | renamed
    problems += [
        f"column {column.name!r} ({column.type}) is gone: declare it as dropped, or what it is renamed to"
        for column in former
        if column.name not in sources.values() and column.name not in declared.dropped
    ]
    for name, source in sources.items():
        kind, wanted = former.field(source).type, now.field(name).type
        if not is_widened(kind, wanted):
            problems.append(f"column {name!r} was {kind} and is {wanted} now, which cannot hold all of its values")
    if problems:
        raise StateSchemaChanged(f"the state in the log does not fit the operator: {'; '.join(problems)}")
    return sources


def _wrong_declarations(now: pa.Schema, declared: Evolution) -> list[str]:
    # Columns that exchange their names look the same before the change and behind it.
    problems = [
        f"renamed has {name!r} as a former name and as one of now: give the column a name that it never had"
        for name in now.names
        if name in declared.renamed and name in declared.renamed.values()
    ]
    problems += [
        f"renamed={{{source!r}: {name!r}}} names no column of the state, which has {', '.join(now.names) or 'none'}"
        for source, name in declared.renamed.items()
        if name not in now.names
    ]
    problems += [
        f"dropped names column {name!r}, which the state has" for name in declared.dropped if name in now.names
    ]
    problems += [
        f"defaults names column {name!r}; the state has {', '.join(now.names) or 'none'}"
        for name in declared.defaults
        if name not in now.names
    ]
    return problems


def _changes(former: pa.Schema, now: pa.Schema, sources: Mapping[str, str]) -> str:
    told: list[str] = []
    for column in now:
        source = sources.get(column.name)
        if source is None:
            told.append(f"adds {column.name} ({column.type})")
            continue
        if source != column.name:
            told.append(f"renames {source} to {column.name}")
        kind = former.field(source).type
        if kind != column.type:
            told.append(f"widens {column.name} from {kind} to {column.type}")
    told += [f"drops {name}" for name in former.names if name not in sources.values()]
    return ", ".join(told)


def is_widened(former: pa.DataType, now: pa.DataType) -> bool:
    """Whether every value of a type is a value of another, so that state can be kept in it instead."""
    if former == now:
        return True
    if pa.types.is_decimal(former) and pa.types.is_decimal(now):
        return bool(now.scale >= former.scale and now.precision - now.scale >= former.precision - former.scale)
    if pa.types.is_floating(now):
        if pa.types.is_floating(former):
            return bool(former.bit_width < now.bit_width)
        return _whole_bits(former) is not None and (_whole_bits(former) or 0) <= _WHOLE_BITS[now.bit_width]
    if pa.types.is_signed_integer(former):
        return bool(pa.types.is_signed_integer(now) and former.bit_width < now.bit_width)
    if pa.types.is_unsigned_integer(former):
        return bool(pa.types.is_integer(now) and former.bit_width < now.bit_width)
    return False


def _whole_bits(kind: pa.DataType) -> int | None:
    """The bits of the largest magnitude of an integer type; None for other types."""
    if pa.types.is_signed_integer(kind):
        return int(kind.bit_width) - 1
    return int(kind.bit_width) if pa.types.is_unsigned_integer(kind) else None
