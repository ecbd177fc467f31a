"""Runs of the paper's query: average price of so many tuples of an item, without micro-batches, over a real sidecar.

Invariants:
* A run is timed between two committed beats: what is not durable does not count, and starting up is no part of it.
* A crash is what it says: the runner stops between two steps and is not told; whatever is under way is lost or not.
* What is under test are the runner's own parts (port, core, loop); nothing is replaced but, for Gopen/Net, the commit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.continuous.items import TUPLE_BYTES, to_items
from benchmarks.harness.meter import cpu_seconds
from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.format.batch import parse_header
from logstore.format.private import Part
from spe_adapter.cec.policy import Policy
from spe_adapter.continuous.client_port import ClientPort
from spe_adapter.continuous.core import Core, Place
from spe_adapter.continuous.fragment import Fragment, Limits, Source, plan
from spe_adapter.continuous.loop import Event, Loop, Progress, Recovered
from spe_adapter.continuous.port import Group, Piece
from spe_adapter.host import ThisHost
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.functions import avg
from spe_adapter.operators.windows import Counting

Float64s = npt.NDArray[np.float64]

FETCH_BYTES = 4 << 20
LIMIT_S = 60.0


class Setting(NamedTuple):
    """One configuration of the query."""

    source: str
    window: int
    records: int
    limits: Limits
    checkpoints: bool = True
    persist: bool = True
    """False: footprints are made and encoded, and left out of what is committed (the paper's Gopen/Net)."""


@dataclass
class Timeline:
    """What a run told, beat by beat."""

    moments: list[float] = field(default_factory=list)
    beats: list[Progress] = field(default_factory=list)
    recovered: Recovered | None = None

    def note(self, event: Event) -> None:
        """Take an event of the loop."""
        if isinstance(event, Progress):
            self.moments.append(time.perf_counter())
            self.beats.append(event)
        else:
            self.recovered = event

    @property
    def records(self) -> int:
        """Input records committed so far."""
        return self.beats[-1].figures.records if self.beats else 0

    def moments_of(self, records: npt.NDArray[np.int64]) -> Float64s:
        """When the beat with each input record (by number) was committed."""
        seen = np.array([beat.figures.records for beat in self.beats])
        return np.array(self.moments)[np.minimum(np.searchsorted(seen, records, side="right"), len(seen) - 1)]


class Ran(NamedTuple):
    """A run up to its end or its crash."""

    timeline: Timeline
    seconds: float
    records: int
    """Input records in those seconds."""
    emitted: int
    """Records written in those seconds: results, footprints and closes."""
    whole_s: float
    """From the first step to the end; what follows is of all that time."""
    cpu_s: float
    sidecar_cpu_s: float
    plain_bytes: int
    control_bytes: int

    @property
    def rate(self) -> float:
        """Input records a second."""
        return self.records / self.seconds if self.seconds else 0.0


class Recovery(NamedTuple):
    """A recovery behind a crash, first in pieces, then as the runner does it."""

    tuples: int
    loaded_windows: int
    scan_s: float
    reconstruct_s: float
    load_s: float
    cpu_s: float
    """Of this process, for the three of them."""
    runner_load_s: float
    """The runner's: fencing, scan, reconstruction and loading, as one."""
    replayed_records: int
    replay_s: float

    @property
    def replayed_bytes(self) -> int:
        """The paper's bytes replayed: its tuples have 100."""
        return self.replayed_records * TUPLE_BYTES


class _Port(ClientPort):
    """The runner's port, which counts bytes and, for Gopen/Net, commits results only."""

    persist = True
    plain_bytes = 0
    control_bytes = 0

    def commit(self, group: Group) -> None:
        """Count, and leave out what is not to be persisted."""
        split = [divided(piece) for piece in group.pieces]
        self.plain_bytes += sum(len(plain.data) for plain, _ in split if plain is not None)
        self.control_bytes += sum(size for _, size in split)
        if not self.persist:
            group = group._replace(pieces=tuple(plain for plain, _ in split if plain is not None))
        super().commit(group)


def divided(piece: Piece) -> tuple[Piece | None, int]:
    """The plain batches of a piece (None if it has none), and the bytes of its control batches."""
    kept, at, batches, records = [], 0, 0, 0
    while at < len(piece.data):
        header = parse_header(piece.data, at)
        if not header.is_control:
            kept.append(memoryview(piece.data)[at : at + header.size_bytes])
            batches += 1
            records += header.record_count
        at += header.size_bytes
    data = kept[0] if len(kept) == 1 else b"".join(kept)
    part = Part(piece.part.topic, piece.part.partition, len(data), batches, records)
    return (Piece(part, data) if kept else None), at - len(data)


class Query:
    """The paper's query under one name, which can be run, crashed and recovered."""

    def __init__(self, address: str, sidecar_pid: int, name: str, setting: Setting) -> None:
        """Its output topic is new."""
        self._addresses = parse_addresses(address)
        self._sidecar_pid = sidecar_pid
        self._setting = setting
        self._fragment = Fragment(
            query=name,
            sources=(Source(setting.source, (to_items,)),),
            key=("item_id",),
            operator=Aggregate(Counting(setting.window), average=avg("item_price")),
            topic=f"{name}-output",
            checkpoints=setting.checkpoints,
        )
        self._plan = plan(self._fragment)
        self._host = ThisHost()
        with Client(self._addresses) as client:
            client.partitions(self._fragment.topic, create=True)

    def remove(self) -> None:
        """Trim its output away: nobody reads it again, and there are many runs."""
        with Client(self._addresses) as client:
            client.delete_records(TopicPartition(self._fragment.topic, 0), -1)

    def _parts(self, policy: Policy, timeline: Timeline) -> tuple[_Port, Core, Loop]:
        run = self._host.new_token()
        port = _Port(self._addresses, self._fragment, 0, run, self._host, fetch_bytes=FETCH_BYTES, limit_s=LIMIT_S)
        port.persist = self._setting.persist
        core = Core(self._plan, Place(0, 1, run), policy, port.monotonic_ms)
        return port, core, Loop(core, self._plan, port, self._setting.limits, timeline.note)

    def run(self, policy: Policy, *, crash: bool = False) -> Ran:
        """Process the setting's records; then finish, or crash."""
        timeline = Timeline()
        port, _, loop = self._parts(policy, timeline)
        with port:
            loop.recover()
            began = time.perf_counter()
            before_s, before_sidecar_s = time.process_time(), cpu_seconds(self._sidecar_pid)
            while timeline.records < self._setting.records:
                loop.step()
            cpu_s = time.process_time() - before_s
            sidecar_cpu_s = cpu_seconds(self._sidecar_pid) - before_sidecar_s
            if not crash:
                loop.finish()
        whole_s = time.perf_counter() - began
        first, last = timeline.beats[0].figures, timeline.beats[-1].figures
        alone = len(timeline.beats) == 1
        return Ran(
            timeline,
            whole_s if alone else timeline.moments[-1] - timeline.moments[0],
            last.records - (0 if alone else first.records),
            last.emitted - (0 if alone else first.emitted),
            whole_s,
            cpu_s,
            sidecar_cpu_s,
            port.plain_bytes,
            port.control_bytes,
        )

    def recover(self, policy: Policy) -> Recovery:
        """Bring the state back twice: step by step, to see what takes how long, and as the runner does."""
        timeline = Timeline()
        port, core, _ = self._parts(policy, timeline)
        with port:
            last = port.fence()
            reconstruction, before = core.reconstruction(), -1
            scan_s = reconstruct_s = 0.0
            before_s = time.process_time()
            done = False
            while not done:
                moment = time.perf_counter()
                piece = port.scan(before)
                scanned = time.perf_counter()
                scan_s += scanned - moment
                done = reconstruction.feed(piece.batches)
                reconstruct_s += time.perf_counter() - scanned
                before = piece.next_before
                if not done and before <= piece.log_start_offset:
                    reconstruction.finish(piece.log_start_offset)
                    done = True
            moment = time.perf_counter()
            core.load(reconstruction.result, last)
            load_s = time.perf_counter() - moment
            cpu_s = time.process_time() - before_s
        port, _, loop = self._parts(policy, timeline)
        with port:
            loop.recover()
        recovered = timeline.recovered
        if recovered is None:
            raise RuntimeError("the runner did not say that it recovered")
        return Recovery(
            recovered.tuples,
            recovered.windows,
            scan_s,
            reconstruct_s,
            load_s,
            cpu_s,
            recovered.load_ms / 1000,
            recovered.replayed_records,
            recovered.replay_ms / 1000,
        )


def settled(beats: Sequence[Progress]) -> Sequence[Progress]:
    """The second half of a run, in which windows are in all stages of their lives."""
    return beats[len(beats) // 2 :]
