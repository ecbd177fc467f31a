"""Timers of keys, by event time (the watermark) or by processing time (the wall time of epochs).

Invariants:
* A timer is a key, a clock and a time: to register a timer that is there changes nothing.
* A timer is due when its clock reaches its time, as in Spark 4.3.
* A due timer is called once, in the epoch in which it is due, and is gone behind the call. What the call itself
  registers is called in a later epoch at the earliest, though its time may have come.

Source: Spark's StatefulProcessorHandle (registerTimer, deleteTimer, listTimers) and TimerStateImpl.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from spe_adapter.codec.kernels import Bools, Int64s
from spe_adapter.operators.clock import WALL
from spe_adapter.operators.states.access import Owners
from spe_adapter.operators.states.declared import TimeSource
from spe_adapter.operators.states.identity import (
    EVENT_TIMERS,
    WALL_TIMERS,
    ids_of,
    timer_numbers,
    timer_times_ms,
)
from spe_adapter.operators.states.section import Section
from spe_adapter.state import exact
from spe_adapter.state.columns import distinct
from spe_adapter.state.errors import StateValueRefused
from spe_adapter.state.layout import NEVER
from spe_adapter.state.table import Table

_MILLISECOND: Final = pa.timestamp("ms")
_IDS: Final = {"event": EVENT_TIMERS, "processing": WALL_TIMERS}
_ALL: Final = NEVER - 1


class ExpiredTimers(NamedTuple):
    """Due timers: the owner, the time (ms since 1970) and the clock (`is_event`: event time) of each, ordered by time.
    The order of timers with the same time is fixed, without a meaning.
    """

    owner: Int64s
    at_ms: Int64s
    is_event: Bools


class RegisteredTimers(NamedTuple):
    """Registered timers, by owner and time (ms since 1970)."""

    owner: Int64s
    at_ms: Int64s


class Timers:
    """The timers of the keys of a call, and the times of the call.

    The parameter `clock` is "event" or "processing". The default is event time if the operator has event time.
    """

    def __init__(self, owners: Owners, clocks: tuple[TimeSource, ...]) -> None:
        self._owners = owners
        self._clocks = clocks
        self._section = Section(owners.store, (), None)

    @property
    def watermark_ms(self) -> int:
        """The watermark of this epoch, in ms since 1970: the epoch closes windows and timers that are due at it."""
        return self._owners.clock.watermark_ms

    @property
    def now_ms(self) -> int:
        """The processing time of the epoch, in ms since 1970: the same for all calls and tasks of an epoch."""
        if "processing" not in self._clocks:
            raise StateValueRefused("the operator has no processing time; declare processing_time = True")
        return self._owners.clock.wall_ms

    def register(self, owner: Any, at_ms: Any, *, clock: TimeSource | None = None) -> None:
        """Register timers for these owners (None: all), who may repeat, at one time or at a time for each, in ms since
        1970.

        A timer in the past is due in the same epoch. Raises StateValueRefused.
        """
        keys, numbers, times_ms = self._named(owner, at_ms, clock)
        rows = self._section.rows(keys, numbers)
        new = ~self._section.alive(rows)
        base = WALL if self._clock(clock) == "processing" else 0
        self._section.write(rows[new], base + times_ms[new])

    def delete(self, owner: Any, at_ms: Any, *, clock: TimeSource | None = None) -> None:
        """Delete timers; timers that are not registered are ignored. Raises StateValueRefused."""
        keys, numbers, _ = self._named(owner, at_ms, clock)
        self._section.drop(self._section.rows(keys, numbers))

    def registered(self, owner: Any = None, *, clock: TimeSource | None = None) -> RegisteredTimers:
        """The timers of some keys (each key once). Reads the key of each timer of the partition."""
        at = self._owners.distinct("timers", owner)
        table = Table.in_memory(pa.schema([]), len(at), self._owners.store.seed)
        table.ensure(self._owners.keys_of(at), np.zeros(len(at), np.int64))
        ids = self._owners.store.due(_ALL)
        numbers = self._owners.store.numbers(ids)
        kept = ids_of(numbers) == _IDS[self._clock(clock)]
        ids, numbers = ids[kept], numbers[kept]
        # Only timers of these keys are copied into the section.
        keys = self._owners.store.keys(ids)
        mine = _places(table, keys) >= 0
        self._section.rows(keys.filter(pa.array(mine)), numbers[mine])
        rows = self._section.alive_rows()
        numbers = self._section.numbers(rows)
        kept = ids_of(numbers) == _IDS[self._clock(clock)]
        rows, numbers = rows[kept], numbers[kept]
        found = _places(table, self._section.keys(rows))
        mine = found >= 0
        of, at_ms = at[found[mine]], timer_times_ms(numbers[mine])
        order = np.lexsort((at_ms, of))
        return RegisteredTimers(of[order], at_ms[order])

    def drop(self, keys: pa.BinaryArray, numbers: Int64s) -> None:
        """Remove timers that are being called."""
        self._section.drop(self._section.rows(keys, numbers))

    def commit(self) -> None:
        """Move the writes to the store."""
        self._section.commit()

    def _clock(self, clock: TimeSource | None) -> TimeSource:
        if clock is None and self._clocks:
            return self._clocks[0]
        if clock not in self._clocks or clock is None:
            has = " and ".join(self._clocks) or "no"
            raise StateValueRefused(
                f"a timer by {clock or 'any'} time; the operator has {has} time. Declare event_time, or "
                "processing_time = True"
            )
        return clock

    def _named(self, owner: Any, at_ms: Any, clock: TimeSource | None) -> tuple[pa.BinaryArray, Int64s, Int64s]:
        """Keys, numbers and times of timers, each once."""
        at = self._owners.checked("timers", owner)
        given = at_ms if np.ndim(at_ms) else np.broadcast_to(np.asarray(at_ms), (len(at),))
        times_ms, _ = exact.fixed("timers: the times in ms", _MILLISECOND, given, None, len(at))
        numbers = timer_numbers(_IDS[self._clock(clock)], times_ms)
        _, first = distinct(self._owners.keys_of(at), numbers, self._owners.store.seed)
        return self._owners.keys_of(at[first]), numbers[first], times_ms[first]


def _places(table: Table, keys: pa.BinaryArray) -> Int64s:
    """The position of each key in a table of keys; -1 if the table lacks the key."""
    return table.find(keys, np.zeros(len(keys), np.int64))
