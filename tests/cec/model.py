"""A naive operator and its log, with dicts and lists: what reconstruction is compared with.

Invariants: the operator adds up integers per window and closes a window after `size` records, so that replay has an
exact outcome; everything that happened is kept, per epoch, in plain Python.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.format.batch import patch_base
from logstore.format.control import encode_control
from logstore.interfaces import Buffer
from spe_adapter.cec.control import (
    Begin,
    End,
    EndPositions,
    Mark,
    encode_footprints,
    encode_mark,
    encode_tombstones,
)

QUERY = "query"
NEVER = 2**63 - 1
GENERATION = 2**40
Identity = tuple[bytes | None, int]


class Window(NamedTuple):
    """State of a window."""

    records: int
    total: int


class Footprint(NamedTuple):
    """The last footprint of an open window."""

    epoch: int
    state: Window


class Stored(NamedTuple):
    """One control batch in the log, and which epoch's; `found` and `closed` are the identities in it."""

    offset: int
    data: bytes
    query: str
    epoch: int
    kind: str
    found: tuple[Identity, ...] = ()
    closed: tuple[Identity, ...] = ()


@dataclass
class State:
    """Everything as of one epoch."""

    epoch: int = -1
    live: dict[Identity, Window] = field(default_factory=dict)
    footprints: dict[Identity, Footprint] = field(default_factory=dict)
    closed: dict[Identity, int] = field(default_factory=dict)
    lineage: tuple[int, ...] = ()
    emitted: int = 0
    seen: int = 0
    mark: Mark | None = None


def footprint_rows(windows: Sequence[tuple[Identity, Window]]) -> pa.RecordBatch:
    """Rows as a table gives them."""
    return pa.record_batch(
        {
            "key": pa.array([identity[0] for identity, _ in windows], pa.binary()),
            "number": pa.array([identity[1] for identity, _ in windows], pa.int64()),
            "expires": pa.array([NEVER] * len(windows), pa.int64()),
            "s_count": pa.array([window.records for _, window in windows], pa.int64()),
            "s_total": pa.array([window.total for _, window in windows], pa.int64()),
            "s_text": pa.array([str(window.total) if window.total % 3 else None for _, window in windows], pa.string()),
        }
    )


def tombstone_rows(identities: Sequence[Identity]) -> pa.RecordBatch:
    """Rows of tombstones."""
    return pa.record_batch(
        {
            "key": pa.array([key for key, _ in identities], pa.binary()),
            "number": pa.array([number for _, number in identities], pa.int64()),
        }
    )


def identities_of(rows: pa.RecordBatch) -> list[Identity]:
    """The identities of some rows."""
    return list(zip(rows.column("key").to_pylist(), rows.column("number").to_pylist(), strict=True))


def windows_of(rows: pa.RecordBatch) -> dict[Identity, Window]:
    """The windows of some rows; their text must fit their total."""
    counts, totals = rows.column("s_count").to_pylist(), rows.column("s_total").to_pylist()
    assert rows.column("s_text").to_pylist() == [str(total) if total % 3 else None for total in totals]
    return dict(zip(identities_of(rows), map(Window, counts, totals), strict=True))


class Model:
    """The operator and its log."""

    def __init__(self, size: int, *, footprint_changes: bool) -> None:
        """Windows close after `size` records; with `footprint_changes` every change is footprinted (micro-batch)."""
        self.size = size
        self.footprint_changes = footprint_changes
        self.state = State()
        self.states: dict[int, State] = {-1: State()}
        self.inputs: dict[int, list[tuple[Identity, int]]] = {}
        self.log: list[Stored] = []
        self.offset = 0
        self.generation = 0
        self.batch = 0
        self.newest_epoch = -1
        self.reset_to: int | None = None

    # ---- the log

    def append(self, data: Buffer, query: str, epoch: int, kind: str, **identities: tuple[Identity, ...]) -> None:
        """Put a control batch at the end of the log."""
        whole = bytearray(data)
        patch_base(whole, 0, self.offset, 0)
        self.log.append(Stored(self.offset, bytes(whole), query, epoch, kind, **identities))
        self.offset += 1

    def group(self, query: str, epoch: int, attempt: str, content: Iterable[tuple[bytes, Mapping[str, Any]]]) -> None:
        """Everything of a group but its END."""
        self.append(encode_control(Begin(query, epoch, 1, (attempt,), 0, 0), timestamp_ms=1), query, epoch, "begin")
        self.offset += 3  # results, which no scan sees
        for data, about in content:
            self.append(data, query, epoch, **about)

    def end(self, query: str, epoch: int, positions: bytes) -> None:
        """END."""
        self.append(encode_control(End(query, epoch, 1, positions), timestamp_ms=1), query, epoch, "end")

    def foreign(self, identities: Sequence[Identity]) -> None:
        """A group of another query, with state of the same identities."""
        rows = footprint_rows([(identity, Window(1, -1)) for identity in identities])
        opened = np.ones(len(identities), np.bool_)
        batches = [(data, {"kind": "footprints"}) for data in encode_footprints("other", 7, rows, opened, 1)]
        self.group("other", 7, "0:x", batches)
        self.end("other", 7, b"not ours")

    # ---- the operator

    def epoch(
        self,
        inputs: Sequence[tuple[Identity, int]],
        *,
        checks: int = 0,
        cuts: int = 1,
        attempt: str = "a",
        torn: bool = False,
        rebase: bool = False,
    ) -> None:
        """Process inputs and publish what changed; `checks` more windows are checked, batches are cut into `cuts`.

        A `torn` epoch stops before its END, and leaves the operator as it was.
        """
        before, state = self.state, copy.deepcopy(self.state)
        epoch = self.generation * GENERATION + 2 * self.batch
        changed: dict[Identity, None] = {}
        closed: dict[Identity, None] = {}
        results = 0
        for identity, value in inputs:
            window = state.live.get(identity, Window(0, 0))
            window = Window(window.records + 1, window.total + value)
            changed[identity] = None
            if window.records >= self.size:
                state.live.pop(identity, None)
                closed[identity] = None
                results += 1
            else:
                state.live[identity] = window
        reopened = {identity for identity in closed if identity in state.live}
        gone = [identity for identity in closed if identity not in state.live]
        if self.footprint_changes:
            gone = [identity for identity in gone if identity in before.live]
        opened = {identity for identity in changed if identity in state.live and identity not in before.live} | reopened
        slowest = sorted(
            (identity for identity in state.live if identity not in opened),
            key=lambda identity: before.footprints[identity].epoch,
        )
        chosen = dict.fromkeys([*opened, *slowest[:checks]])
        if self.footprint_changes:
            chosen.update((identity, None) for identity in changed if identity in state.live)
        if rebase:
            chosen.update((identity, None) for identity in state.live)
        for identity in closed:
            state.footprints.pop(identity, None)
            state.closed[identity] = epoch
        if self.footprint_changes:  # those that nobody was told of
            for identity in closed:
                if identity not in gone:
                    state.closed[identity] = before.closed.get(identity, -1)
        for identity in chosen:
            state.footprints[identity] = Footprint(epoch, state.live[identity])
        state.emitted += results + len(chosen)
        state.seen += len(inputs)
        state.epoch = epoch
        state.lineage = (*before.lineage, epoch)
        state.mark = self._mark(state, attempt, rebase)
        self.group(QUERY, epoch, f"3:{attempt}", self._content(state, list(chosen), opened, gone, cuts))
        if torn:
            return
        self.end(QUERY, epoch, self._progress().to_json().encode())
        self.state = state
        self.states[epoch] = state
        self.inputs[epoch] = list(inputs)
        self.newest_epoch = epoch
        self.batch += 1
        self.reset_to = None

    def reset(self, epoch: int) -> None:
        """Go back to an epoch (-1: to the beginning); what comes next is a new generation."""
        self.state = self.states[epoch]
        self.reset_to = epoch
        self.generation += 1
        self.batch = 0

    def _content(
        self, state: State, chosen: list[Identity], opened: set[Identity], gone: list[Identity], cuts: int
    ) -> Iterable[tuple[bytes, Mapping[str, Any]]]:
        for part in _cut(chosen, cuts):
            rows = footprint_rows([(identity, state.live[identity]) for identity in part])
            kinds = np.array([identity in opened for identity in part])
            for data in encode_footprints(QUERY, state.epoch, rows, kinds, 1):
                yield data, {"kind": "footprints", "found": tuple(part)}
        for part in _cut(gone, cuts):
            for data in encode_tombstones(QUERY, state.epoch, tombstone_rows(part), 1):
                yield data, {"kind": "closes", "closed": tuple(part)}
        assert state.mark is not None
        yield encode_mark(state.mark, 1), {"kind": "mark"}

    def _mark(self, state: State, attempt: str, rebase: bool) -> Mark:
        return Mark(
            query=QUERY,
            epoch=state.epoch,
            attempt=attempt,
            partition=3,
            partitions=4,
            layout=0,
            operator="sum",
            open_windows=len(state.live),
            emitted=state.emitted,
            seen=state.seen,
            sequence=state.seen,
            max_event_ms=None,
            watermark_ms=0,
            positions={"in": {0: state.seen}},
            runs=((0, 0, state.seen),),
            oldest_epoch=min((footprint.epoch for footprint in state.footprints.values()), default=state.epoch),
            rebase=rebase,
        )

    def _progress(self) -> EndPositions:
        return EndPositions(
            generation=self.generation,
            batch=self.batch,
            closing=False,
            late_watermark_ms=0,
            watermark_ms=0,
            max_event_ms=None,
            partitions=4,
            layout=0,
            reset_to=self.reset_to,
        )

    # ---- what reconstruction should find

    def oldest_epoch(self, epoch: int) -> int:
        """T as of an epoch."""
        return min((footprint.epoch for footprint in self.states[epoch].footprints.values()), default=epoch)

    def skips(self, epoch: int) -> dict[Identity, int]:
        """Identities closed behind T and not open, with the epoch."""
        state, oldest = self.states[epoch], self.oldest_epoch(epoch)
        return {
            identity: epoch for identity, epoch in state.closed.items() if epoch > oldest and identity not in state.live
        }

    def needed_offset(self, epoch: int) -> int:
        """The offset of the last control batch that a scan as of an epoch has to read."""
        state = self.states[epoch]
        missing = set(state.live)
        gone: set[Identity] = set()
        for stored in reversed(self.log):
            if stored.query != QUERY or stored.epoch not in state.lineage or not self._has_end(stored):
                continue
            gone.update(stored.closed)
            missing.difference_update(set(stored.found) - gone)
            gone.update(stored.found)
            if not missing and stored.kind != "end":
                return stored.offset
        raise AssertionError("the model's own log lacks a window")

    def _has_end(self, stored: Stored) -> bool:
        """Whether a batch is of a group that was finished (a torn group's epoch may come again)."""
        for other in self.log[self.log.index(stored) :]:
            if other.kind == "end":
                return (other.query, other.epoch) == (stored.query, stored.epoch)
            if other.kind == "begin" and other is not stored:
                return False
        return False

    def replay(
        self, windows: dict[Identity, Footprint], skips: dict[Identity, int], epoch: int
    ) -> dict[Identity, Window]:
        """The state at an epoch from an eventual checkpoint; a window that closes on the way is an error."""
        live = {identity: footprint.state for identity, footprint in windows.items()}
        known = {identity: footprint.epoch for identity, footprint in windows.items()} | skips
        oldest = min((footprint.epoch for footprint in windows.values()), default=epoch)
        for replayed in self.states[epoch].lineage:
            if replayed <= oldest:
                continue
            for identity, value in self.inputs[replayed]:
                if replayed <= known.get(identity, -1):
                    continue
                window = live.get(identity, Window(0, 0))
                live[identity] = Window(window.records + 1, window.total + value)
                assert live[identity].records < self.size, f"{identity} would give its result twice"
        return live


def _cut(items: list[Identity], cuts: int) -> Iterable[list[Identity]]:
    step = max(1, -(-len(items) // cuts))
    for start in range(0, len(items), step):
        yield items[start : start + step]
