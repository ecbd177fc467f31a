"""An operator that does to its states what its rows say, and the same in plain Python, one key at a time.

A call does all commands of one kind before those of the next, in the order of KINDS; commands of one kind in the order
of the rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spe_adapter.operators.base import Emitted, Results, Rows
from spe_adapter.operators.states.declared import Declared, ListState, MapState, TimeSource, ValueState
from spe_adapter.operators.states.operator import StatefulOperator, States
from spe_adapter.operators.states.timers import ExpiredTimers, Timers

Row = dict[str, Any]

KINDS: Final = (
    *("clear value", "set", "clear list", "append", "replace", "clear map", "put", "remove", "register", "delete"),
)
SCHEMA: Final = pa.schema(
    [("key", pa.string()), ("ts", pa.timestamp("ms")), ("kind", pa.string()), ("n", pa.int64()), ("s", pa.string())]
)
OUTPUT: Final = pa.schema([("what", pa.string()), ("json", pa.string())])
CLOCKS: Final[tuple[TimeSource, ...]] = ("event", "processing")
TTL_MS: Final = {"value": 30, "items": 20, "map": 10}


class Commands(StatefulOperator):
    """Does what rows say, and gives all states of the keys in them. With a TTL if `ttl_by` says so."""

    event_time = "ts"
    processing_time = True

    def __init__(self, ttl_by: TimeSource | None) -> None:
        def ttl(name: str) -> Any:
            return {} if ttl_by is None else {"ttl": f"{TTL_MS[name]} milliseconds", "ttl_by": ttl_by}

        self.states: dict[str, Declared] = {
            "value": ValueState({"n": pa.int64(), "s": pa.string()}, **ttl("value")),
            "items": ListState(pa.string(), **ttl("items")),
            "map": MapState({"n": pa.int64(), "s": pa.string()}, pa.int64(), **ttl("map")),
        }

    def output(self, schema: pa.Schema) -> pa.Schema:
        """What happened, and the states as JSON."""
        return OUTPUT

    def handle_rows(self, rows: Rows, states: States, timers: Timers) -> Emitted:
        """All commands, kind by kind."""
        kinds = rows.batch.column("kind").to_numpy(zero_copy_only=False)
        for kind in KINDS:
            here = np.flatnonzero(kinds == kind)
            if len(here):
                batch = rows.batch.take(pa.array(here))
                self._do(kind, rows.window[here], batch, states, timers)
        return _told(states, timers, np.arange(states.count), ["rows"] * states.count)

    def _do(self, kind: str, owner: Any, batch: pa.RecordBatch, states: States, timers: Timers) -> None:
        number, text = batch.column("n"), batch.column("s")
        both = {"n": number, "s": text}
        if kind.startswith("clear"):
            states[{"value": "value", "list": "items", "map": "map"}[kind.split()[1]]].clear(np.unique(owner))
        elif kind == "set":
            states.value("value").set(both, owner)
        elif kind == "append":
            states.items.append(owner, text)
        elif kind == "replace":
            states.list("items").replace(owner, text)
        elif kind == "put":
            states.map("map").put(owner, both, number)
        elif kind == "remove":
            states["map"].remove(owner, both)
        else:
            is_event = text.to_numpy(zero_copy_only=False) < "m"
            for clock in CLOCKS:
                which = np.flatnonzero(is_event if clock == "event" else ~is_event)
                act = timers.register if kind == "register" else timers.delete
                act(owner[which], number.to_numpy()[which], clock=clock)

    def handle_expired(self, expired: ExpiredTimers, states: States, timers: Timers) -> Emitted:
        """The states of the keys, and every third timer anew."""
        told = [
            f"{'event' if is_event else 'wall'} {at}"
            for at, is_event in zip(expired.at_ms.tolist(), expired.is_event.tolist(), strict=True)
        ]
        again = np.flatnonzero(expired.at_ms % 3 == 0)
        timers.register(expired.owner[again], expired.at_ms[again] + 1, clock="event")
        return _told(states, timers, expired.owner, told)


def _told(states: States, timers: Timers, owner: Any, what: list[str]) -> Results:
    value, items, entries = states.value("value"), states.list("items").read(), states["map"].entries()
    lists: list[list[Any]] = [[] for _ in range(states.count)]
    maps: list[list[Any]] = [[] for _ in range(states.count)]
    for at, item in zip(items.owner.tolist(), items.values.column(0).to_pylist(), strict=True):
        lists[at].append(item)
    keys = entries.keys.to_pylist()
    for at, key, held in zip(entries.owner.tolist(), keys, entries.values.column(0).to_pylist(), strict=True):
        maps[at].append([key["n"], key["s"], held])
    registered: list[list[Any]] = [[] for _ in range(states.count)]
    for clock in CLOCKS:
        known = timers.registered(clock=clock)
        for at, at_ms in zip(known.owner.tolist(), known.at_ms.tolist(), strict=True):
            registered[at].append([clock, at_ms])
    there = value.exists().tolist()
    columns = [value.column(column=name).to_pylist() for name in ("n", "s")]
    assert states["map"].exists().tolist() == [bool(held) for held in maps]
    assert states.list("items").exists().tolist() == [bool(held) for held in lists]
    texts = [
        json.dumps([[columns[0][at], columns[1][at]] if there[at] else None, lists[at], maps[at], registered[at]])
        for at in owner.tolist()
    ]
    return Results(pa.RecordBatch.from_pydict({"what": what, "json": texts}, schema=OUTPUT), owner)


@dataclass
class Model:
    """One key's states."""

    value: tuple[Any, int] | None = None
    items: list[tuple[str, int]] = field(default_factory=list)
    entries: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    timers: set[tuple[str, int]] = field(default_factory=set)


class Naive:
    """All keys, in plain Python."""

    def __init__(self, ttl_by: TimeSource | None) -> None:
        self._ttl_by = ttl_by
        self._keys: dict[str | None, Model] = {}
        self._newest = 0
        self._watermark = 0
        self._wall = 0

    def epoch(self, calls: Sequence[Sequence[Row]], wall_ms: int) -> list[Row]:
        """The results of an epoch with these calls."""
        self._wall = max(self._wall, wall_ms)
        late_ms, self._watermark = self._watermark, max(self._watermark, self._newest)
        results = []
        for rows in calls:
            self._newest = max([self._newest, *(row["ts"] for row in rows)])
            results += self._call([row for row in rows if row["ts"] > late_ms])
        return results + self._due()

    def _call(self, rows: list[Row]) -> list[Row]:
        order = list(dict.fromkeys(row["key"] for row in rows))
        for key in order:
            mine = [row for row in rows if row["key"] == key]
            now = self._watermark if self._ttl_by == "event" else self._wall
            if self._ttl_by == "event":
                now = max(now, *(row["ts"] for row in mine))
            for kind in KINDS:
                self._do(kind, self._keys.setdefault(key, Model()), [row for row in mine if row["kind"] == kind], now)
        return [self._told(key, "rows") for key in order]

    def _do(self, kind: str, model: Model, rows: list[Row], now: int) -> None:
        def expires(name: str) -> int:
            return now + TTL_MS[name] if self._ttl_by else 2**62

        self._hide(model)
        if rows and kind in ("clear list", "replace"):
            model.items.clear()
        for row in rows:
            both = (row["n"], row["s"])
            timer = ("event" if row["s"] < "m" else "processing", row["n"])
            if kind == "clear value":
                model.value = None
            elif kind == "set":
                before = model.value[1] if model.value and self._ttl_by == "event" else 0
                model.value = (list(both), max(before, expires("value")))
            elif kind in ("append", "replace"):
                model.items.append((row["s"], expires("items")))
            elif kind == "clear map":
                model.entries.clear()
            elif kind == "put":
                model.entries[both] = (row["n"], expires("map"))
            elif kind == "remove":
                model.entries.pop(both, None)
            elif kind == "register":
                model.timers.add(timer)
            elif kind == "delete":
                model.timers.discard(timer)

    def _hide(self, model: Model) -> None:
        now = self._watermark if self._ttl_by == "event" else self._wall
        if model.value is not None and model.value[1] <= now:
            model.value = None
        model.items = [item for item in model.items if item[1] > now]
        model.entries = {key: held for key, held in model.entries.items() if held[1] > now}

    def _told(self, key: str | None, what: str) -> Row:
        model = self._keys[key]
        self._hide(model)
        told = [
            model.value[0] if model.value else None,
            [item for item, _ in model.items],
            [[*name, held] for name, (held, _) in model.entries.items()],
            [list(timer) for timer in sorted(model.timers)],
        ]
        return {"key": key, "what": what, "json": json.dumps(told)}

    def _due(self) -> list[Row]:
        due = [
            (at, clock, key)
            for key, model in self._keys.items()
            for clock, at in model.timers
            if at <= (self._watermark if clock == "event" else self._wall)
        ]
        fresh = []
        for at, _, key in due:
            if at % 3 == 0:
                model = self._keys[key]
                if ("event", at + 1) not in model.timers:
                    fresh.append((key, ("event", at + 1)))
                    model.timers.add(("event", at + 1))
        results = [self._told(key, f"{'event' if clock == 'event' else 'wall'} {at}") for at, clock, key in due]
        for at, clock, key in due:
            self._keys[key].timers.discard((clock, at))
        return results
