"""The base class of operators with named states per key: values, lists, maps and timers.

    class Visits(StatefulOperator):
        states = {"pages": ListState(pa.string(), ttl="1 hour"), "clicks": ValueState(pa.int64())}
        processing_time = True

        def output(self, schema):
            return pa.schema([("clicks", pa.int64())])

        def handle_rows(self, rows, states, timers):
            states.pages.append(rows.window, rows.batch.column("page"))
            states.clicks.set(states.clicks.get() + np.bincount(rows.window, minlength=states.count))
            timers.register(None, timers.now_ms + 60_000)

        def handle_expired(self, expired, states, timers):
            clicks = states.clicks.column(expired.owner)
            return Results(pa.RecordBatch.from_arrays([clicks], names=["clicks"]), expired.owner)

A call gets the rows of many keys. `rows.window` has the owner of each row: the place of its key among the keys of the
call, 0 to `states.count` − 1.

Invariants:
* What a call writes reaches the store when the call has returned; a call that raises changes nothing.
* Rows, states and the two clocks of an epoch are all that states and results depend on.
* An epoch takes rows first, then due timers, then removes what is out of its TTL. Reads never show the latter.

Source: Spark's transformWithState (StatefulProcessor); CEC paper, section II.B.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logstore.errors import InvalidConfig
from spe_adapter.codec.columns import keys_of
from spe_adapter.codec.identity_hash import hashes_of
from spe_adapter.codec.kernels import Int64s
from spe_adapter.operators.base import Emitted, Operator, Rows, State, WindowIdentities
from spe_adapter.operators.clock import WALL, CallTimes, is_wall
from spe_adapter.operators.states.access import Owners
from spe_adapter.operators.states.declared import (
    Declared,
    ListState,
    MapState,
    StateSpec,
    TimeSource,
    ValueState,
    entry_schema,
    specs_of,
)
from spe_adapter.operators.states.identity import (
    EVENT_TIMERS,
    WALL_TIMERS,
    are_joined,
    ids_of,
    routing_keys,
    slots_of,
    split_keys,
    timer_times_ms,
)
from spe_adapter.operators.states.lists import ListAccess
from spe_adapter.operators.states.maps import MapAccess
from spe_adapter.operators.states.timers import ExpiredTimers, Timers
from spe_adapter.operators.states.value import ValueAccess
from spe_adapter.state.columns import distinct
from spe_adapter.state.layout import NEVER
from spe_adapter.state.store import StateStore

_ORDER_SEED: Final = 0
"""The seed of hashes is the same everywhere, unlike the seed of a table."""


class States:
    """The named states of the keys of a call, as `states.total`, or as `states.value("total")` for type checkers.

    Raises InvalidConfig for a name that was not declared.
    """

    def __init__(self, owners: Owners, specs: Mapping[str, StateSpec]) -> None:
        self._owners = owners
        self._specs = specs
        self._made: dict[str, ValueAccess | ListAccess | MapAccess] = {}

    @property
    def count(self) -> int:
        """The number of keys of the call."""
        return self._owners.count

    def key_columns(self) -> list[pa.Array]:
        """The key columns of each owner."""
        return self._owners.codec.decode(self._owners.keys)

    def value(self, name: str) -> ValueAccess:
        """A declared ValueState."""
        return self._access(name, ValueAccess)

    def list(self, name: str) -> ListAccess:
        """A declared ListState."""
        return self._access(name, ListAccess)

    def map(self, name: str) -> MapAccess:
        """A declared MapState."""
        return self._access(name, MapAccess)

    def __getitem__(self, name: str) -> Any:
        """A declared state of any kind."""
        made = self._made.get(name)
        if made is None:
            spec = self._specs.get(name)
            if spec is None:
                raise InvalidConfig(f"state {name!r} was not declared; there is {', '.join(self._specs)}")
            made = self._made[name] = _ACCESS[type(spec.declared)](self._owners, spec)
        return made

    def __getattr__(self, name: str) -> Any:
        """A declared state of any kind."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def _access(self, name: str, kind: type[Any]) -> Any:
        access = self[name]
        if not isinstance(access, kind):
            raise InvalidConfig(f"state {name!r} is declared as a {type(self._specs[name].declared).__name__}")
        return access

    def by_id(self, state_id: int) -> Any:
        """A state by its id; None if the operator no longer has it."""
        return next((self[spec.name] for spec in self._specs.values() if spec.state_id == state_id), None)

    def commit(self) -> None:
        """Move the writes to the store."""
        for access in self._made.values():
            access.commit()


_ACCESS: Final[Mapping[type[Any], Any]] = {ValueState: ValueAccess, ListState: ListAccess, MapState: MapAccess}


class KeyedState(State):
    """The keys of a call with their named states and timers, in place of the windows of other operators."""

    def __init__(
        self, operator: "StatefulOperator", store: StateStore, identity: WindowIdentities, clock: CallTimes
    ) -> None:
        if identity.keys is None:
            raise InvalidConfig("keyed states need the keys of the call")
        nothing = np.zeros(len(identity.keys), np.int64)
        super().__init__(store, nothing, nothing != 0, identity)
        self._operator = operator
        self._clock = clock
        self._numbers_due = nothing[:0]
        self.expired = ExpiredTimers(nothing[:0], nothing[:0], nothing[:0] == 0)
        """The due timers of these keys."""
        self.newest_ms: Int64s | None = None
        """The newest event time of each key's rows in the call."""

    def opened(self) -> tuple[States, Timers]:
        """The states and timers of a single call; `commit` moves their writes to the store."""
        keys = self.keys
        owners = Owners(self._store, keys, self._clock, self.newest_ms, self._identity.codec)
        self._states = States(owners, self._operator.specs)
        self._timers = Timers(owners, self._operator.clocks)
        return self._states, self._timers

    def expire_timers(self, expired: ExpiredTimers, numbers: Int64s) -> None:
        """Note due timers of these keys."""
        self.expired = expired
        self._numbers_due = numbers

    def timers_due(self) -> tuple[pa.BinaryArray, Int64s]:
        """Keys and numbers of the due timers."""
        return self.keys.take(pa.array(self.expired.owner)), self._numbers_due

    def part(self, which: Int64s) -> "KeyedState":
        """Some of the keys, with their states before the call. Writes to them are discarded."""
        keys = self.keys.take(pa.array(which))
        numbers = np.zeros(len(which), np.int64)
        part = KeyedState(self._operator, self._store, self._identity._replace(keys=keys, numbers=numbers), self._clock)
        place = np.full(self.size, -1, np.int64)
        place[which] = np.arange(len(which))
        kept = place[self.expired.owner] >= 0
        if kept.any():
            due = self.expired
            own = ExpiredTimers(place[due.owner[kept]], due.at_ms[kept], due.is_event[kept])
            part.expire_timers(own, self._numbers_due[kept])
        return part

    def commit(self, *, is_replay: bool = False) -> None:
        """Move the writes of the call to the store."""
        self._states.commit()
        self._timers.commit()


class StatefulOperator(Operator):
    """The base class of operators with named states and timers per key; the module has an example.

    `event_time` and `delay_ms` are as in `Operator`. `processing_time` gives the operator a wall clock for timers and
    TTLs by processing time; such a TTL implies it.
    """

    states: Mapping[str, Declared] = {}
    processing_time: bool = False
    keeps_entries = True

    @abstractmethod
    def handle_rows(self, rows: Rows, states: States, timers: Timers) -> Emitted:
        """Update the states with rows (`rows.window` is the owner of each row); returns results. A plain record
        batch as the result has a row for each owner.
        """

    def handle_expired(self, expired: ExpiredTimers, states: States, timers: Timers) -> Emitted:
        """Process due timers. Owners are the keys of these timers; a key may have several timers."""
        return None

    def handle_initial(self, rows: Rows, states: States, timers: Timers) -> None:
        """Process rows of the initial state, before all other rows; their columns are those of the given frame."""
        raise InvalidConfig(f"operator {self.name} was given an initial state and has no method handle_initial")

    # ---- for the Processor

    @property
    def specs(self) -> Mapping[str, StateSpec]:
        """The declared states. Raises StateSchemaRefused or InvalidConfig."""
        return specs_of(self.states)

    @property
    def clocks(self) -> tuple[TimeSource, ...]:
        """The clocks of timers, the default clock first."""
        event: tuple[TimeSource, ...] = () if self.event_time is None else ("event",)
        return (*event, "processing") if self.has_wall_time else event

    @property
    def has_wall_time(self) -> bool:
        """Whether the operator uses processing time."""
        return self.processing_time or any(
            spec.ttl_ms is not None and spec.declared.ttl_by == "processing" for spec in self.specs.values()
        )

    @property
    def description(self) -> str:
        """The name, and the kinds of the states. A TTL may change at any time."""
        return f"{self.name}({self._kinds()})"

    def _kinds(self) -> str:
        return ", ".join(
            f"{spec.name} {type(spec.declared).__name__}"
            + (f" by ({', '.join(f'{field.name} {field.type}' for field in spec.key_fields)})" * bool(spec.key_fields))
            for spec in self.specs.values()
        )

    def follows(self, former: str) -> str | None:
        """As in `Operator`. New states may be added after the former states, which keep name, kind and order."""
        name, _, kinds = former.partition("(")
        kinds = kinds.removesuffix(")")
        if name != self.name and former not in self.evolution.formerly:
            return super().follows(former)
        if kinds and not f"{self._kinds()}, ".startswith(f"{kinds}, "):
            return f"its states were {kinds}, and are {self._kinds()}: keep these in place, and add others after them"
        return None

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of all entries."""
        specs = self.specs
        for spec in specs.values():
            if spec.ttl_ms is not None and spec.declared.ttl_by == "event" and self.event_time is None:
                raise InvalidConfig(f"state {spec.name!r} has a TTL by event time; the operator has no event_time")
        return entry_schema(specs)

    def routing_keys(self, keys: pa.BinaryArray, numbers: Int64s) -> pa.BinaryArray:
        """The routing key of each entry."""
        return routing_keys(keys, numbers)

    def process(self, rows: Rows, state: State) -> Emitted:
        """Call `handle_rows`."""
        keyed = _keyed(state)
        if rows.times_ms is not None:
            newest = np.zeros(keyed.size, np.int64)
            np.maximum.at(newest, rows.window, rows.times_ms)
            keyed.newest_ms = newest
        return self.handle_rows(rows, *keyed.opened())

    def start(self, rows: Rows, state: State) -> Emitted:
        """Call `handle_initial`."""
        self.handle_initial(rows, *_keyed(state).opened())
        return None

    def expire(self, state: State, watermark_ms: int) -> Emitted:
        """Call `handle_expired`."""
        keyed = _keyed(state)
        states, timers = keyed.opened()
        keys, numbers = keyed.timers_due()
        emitted = self.handle_expired(keyed.expired, states, timers)
        timers.drop(keys, numbers)
        return emitted

    def open_entries(self, store: StateStore, identity: WindowIdentities, clock: CallTimes) -> State:
        """The entries of the keys of a call."""
        return KeyedState(self, store, identity, clock)

    def due_entries(self, store: StateStore, identity: WindowIdentities, clock: CallTimes) -> State | None:
        """The entries of the keys with due timers; None if no timer is due."""
        ids = self._due(store, clock)
        numbers = store.numbers(ids)
        state_ids = ids_of(numbers)
        timers = np.flatnonzero((state_ids == EVENT_TIMERS) | (state_ids == WALL_TIMERS))
        if not len(timers):
            return None
        keys, numbers = store.keys(ids[timers]), numbers[timers]
        at_ms, is_event = timer_times_ms(numbers), state_ids[timers] == EVENT_TIMERS
        hashes = hashes_of(keys_of(keys), np.zeros(len(numbers), np.int64), _ORDER_SEED)
        order = np.lexsort((~is_event, hashes, at_ms))
        keys, numbers, at_ms, is_event = keys.take(pa.array(order)), numbers[order], at_ms[order], is_event[order]
        owner, first = distinct(keys, np.zeros(len(order), np.int64), store.seed)
        own = identity._replace(keys=keys.take(pa.array(first)), numbers=np.zeros(len(first), np.int64))
        state = KeyedState(self, store, own, clock)
        state.expire_timers(ExpiredTimers(owner, at_ms, is_event), numbers)
        return state

    def remove_due(self, store: StateStore, identity: WindowIdentities, clock: CallTimes) -> None:
        """Remove entries whose TTL has passed."""
        ids = self._due(store, clock)
        numbers = store.numbers(ids)
        state_ids = ids_of(numbers)
        kept = (state_ids != EVENT_TIMERS) & (state_ids != WALL_TIMERS)
        if not kept.any():
            return
        ids, numbers, state_ids = ids[kept], numbers[kept], state_ids[kept]
        keys = store.keys(ids)
        routing = routing_keys(keys, numbers)
        owner, first = distinct(routing, np.zeros(len(ids), np.int64), store.seed)
        own = identity._replace(keys=routing.take(pa.array(first)), numbers=np.zeros(len(first), np.int64))
        state = KeyedState(self, store, own, clock)
        states, _ = state.opened()
        for state_id in np.unique(state_ids).tolist():
            here = np.flatnonzero(state_ids == state_id)
            access = states.by_id(state_id)
            if isinstance(access, ValueAccess):
                access.clear(owner[here])
            elif isinstance(access, ListAccess):
                access.remove_due(owner[here], numbers[here], slots_of(numbers[here]) - 1)
            elif isinstance(access, MapAccess) and are_joined(numbers[here]).all():
                access.remove_due(owner[here], split_keys(keys.take(pa.array(here))).suffix)
        state.commit()

    def _due(self, store: StateStore, clock: CallTimes) -> Int64s:
        """The ids of entries that either clock has passed. By processing time all that go by event time are looked at,
        as these are below it.
        """
        if not self.has_wall_time:
            return store.due(clock.watermark_ms)
        ids = store.due(WALL + clock.wall_ms)
        expires = store.expires(ids)
        return ids[np.where(is_wall(expires), True, expires <= clock.watermark_ms)]

    def next_wall_ms(self, store: StateStore) -> int | None:
        """The processing time at which the next timer is due, in ms since 1970; None without such a timer."""
        if not self.has_wall_time:
            return None
        ids = store.due(NEVER - 1)
        ids = ids[ids_of(store.numbers(ids)) == WALL_TIMERS]
        return int(store.expires(ids).min()) - WALL if len(ids) else None


def _keyed(state: State) -> KeyedState:
    if not isinstance(state, KeyedState):
        raise InvalidConfig("an operator with named states ran on windows; run it by a Processor")
    return state
