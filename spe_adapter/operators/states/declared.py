"""The declarations of an operator's named states: what a value, a list or a map holds, and how long.

Invariants:
* A declaration has no state: it gives the columns of its entries in the one store, by name.
* All states of an operator share the columns LOW, HIGH and KEY; an entry has null in the columns of other states.

Source: Spark's transformWithState (ValueState, ListState, MapState, TTLConfig).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from logstore.errors import InvalidConfig
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.states.identity import MAX_STATES
from spe_adapter.operators.windows import Duration, duration_us
from spe_adapter.state.errors import StateSchemaRefused

TimeSource = Literal["processing", "event"]
Held: TypeAlias = pa.DataType | Mapping[str, pa.DataType]
"""A type, or the names and types of several columns."""

LOW: Final = "#low"
"""Head of a list: the first slot that may hold an element. Head of a map: the number of empty places."""
HIGH: Final = "#high"
"""Head of a list or map: the next free slot. Entry of a map: the slot of its place."""
KEY: Final = "#key"
"""Place of a map: the map's key, encoded."""
_TIME_SOURCES: Final = ("processing", "event")
_US_PER_MS: Final = 1000
_MAX_TTL_MS: Final = 1 << 47
"""Times of events and of the clock, and TTLs behind them, must not run into each other."""


@dataclass(frozen=True, slots=True)
class ValueState:
    """A value per key, of one type or with several named columns.

    With `ttl`, a value expires this duration after its last `set`, by processing time or event time (`ttl_by`).
    """

    value: Held
    ttl: Duration | None = None
    ttl_by: TimeSource = "processing"


@dataclass(frozen=True, slots=True)
class ListState:
    """A list of elements per key, in the order of their appends. With `ttl`, each element expires this duration after
    its append.
    """

    value: Held
    ttl: Duration | None = None
    ttl_by: TimeSource = "processing"


@dataclass(frozen=True, slots=True)
class MapState:
    """A map per key: from map keys, of one type or with several named columns, to values. A map key can have the types
    of a query's key (see `KeyCodec`). With `ttl`, each entry expires this duration after its last `put`.
    """

    key: Held
    value: Held
    ttl: Duration | None = None
    ttl_by: TimeSource = "processing"


Declared: TypeAlias = ValueState | ListState | MapState


class StateSpec(NamedTuple):
    """A declared state, checked: its name, its id in numbers, the fields of its values as the store has them, the
    fields of a map's keys, the TTL in ms, and whether the values have names.
    """

    name: str
    state_id: int
    declared: Declared
    fields: tuple[pa.Field, ...]
    key_fields: tuple[pa.Field, ...]
    ttl_ms: int | None
    is_named: bool

    @property
    def value_names(self) -> list[str]:
        """The names of the values' columns as the user gave them; that of the state where there is but one type."""
        return list(self.declared.value) if isinstance(self.declared.value, Mapping) else [self.name]


def specs_of(states: Mapping[str, Declared]) -> dict[str, StateSpec]:
    """The declared states, by name. Raises StateSchemaRefused or InvalidConfig, which name the state."""
    if len(states) > MAX_STATES:
        raise StateSchemaRefused(f"{len(states)} states; an operator has at most {MAX_STATES}")
    return {name: _spec(name, at + 1, declared) for at, (name, declared) in enumerate(states.items())}


def entry_schema(specs: Mapping[str, StateSpec]) -> pa.Schema:
    """The columns of all entries: those of each state, and those that lists and maps share."""
    fields = [field for spec in specs.values() for field in spec.fields]
    kinds = {type(spec.declared) for spec in specs.values()}
    if kinds & {ListState, MapState}:
        fields += [pa.field(LOW, pa.int64()), pa.field(HIGH, pa.int64())]
    if MapState in kinds:
        fields.append(pa.field(KEY, pa.binary()))
    return pa.schema(fields)


def _spec(name: str, state_id: int, declared: Declared) -> StateSpec:
    if not str(name).isidentifier():
        raise StateSchemaRefused(f"a state named {name!r}; give a Python name (letters, digits, _)")
    if not isinstance(declared, ValueState | ListState | MapState):
        raise StateSchemaRefused(
            f"state {name!r} is declared as {declared!r}; give a ValueState, ListState or MapState"
        )
    ttl_ms = None
    if declared.ttl is not None:
        ttl_ms = duration_us(declared.ttl) // _US_PER_MS
        if ttl_ms <= 0:
            raise InvalidConfig(f"state {name!r} has a TTL of {declared.ttl!r}; it must be at least 1 ms")
        if ttl_ms > _MAX_TTL_MS:
            raise InvalidConfig(
                f"state {name!r} has a TTL of {declared.ttl!r}; it must be {_MAX_TTL_MS} ms at most (4,459 years). "
                "Omit the TTL for a state that never expires"
            )
    if declared.ttl_by not in _TIME_SOURCES:
        raise InvalidConfig(f"state {name!r} has a TTL by {declared.ttl_by!r} time; it is processing or event")
    key_fields: tuple[pa.Field, ...] = ()
    if isinstance(declared, MapState):
        key_fields = tuple(_fields(name, "key", declared.key))
        KeyCodec(pa.schema(key_fields), [field.name for field in key_fields])
    is_named = isinstance(declared.value, Mapping)
    fields = tuple(
        pa.field(f"{name}.{field.name}", field.type) if is_named else field
        for field in _fields(name, name, declared.value)
    )
    return StateSpec(name, state_id, declared, fields, key_fields, ttl_ms, is_named)


def _fields(state: str, alone: str, held: Held) -> list[pa.Field]:
    given = {alone: held} if isinstance(held, pa.DataType) else held
    if not isinstance(given, Mapping) or not given:
        raise StateSchemaRefused(
            f"state {state!r} holds {held!r}; give an Arrow type (pa.int64()), or names with types"
        )
    for name, kind in given.items():
        if not isinstance(name, str) or not name or not isinstance(kind, pa.DataType):
            raise StateSchemaRefused(f"state {state!r}: column {name!r} is {kind!r}; give an Arrow type: pa.int64()")
    return [pa.field(name, kind) for name, kind in given.items()]
