"""Runs of the paper's query: average price of so many tuples of an item, without micro-batches, over a real sidecar.

Invariants:
* What is not durable does not count, and starting up is no part of a run.
* A crash is what it says: the runner stops between two steps and is not told; whatever is under way is lost or not.
* What is under test are the runner's own parts (port, core, loop). Changed are, for Gopen/Net, the commit, and for all
  alike the input: a topic is read again and again, and where a rate is given, no record is asked for before its time.
"""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.continuous.items import TUPLE_BYTES, Source, to_items
from benchmarks.harness.meter import process_clock_s
from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.format.batch import LENGTH_OVERHEAD, parse_header, patch_base
from logstore.format.epoch_api import Part
from logstore.interfaces import Buffer
from spe_adapter.cec.policy import NoChecks, Policy
from spe_adapter.continuous import fragment as fragments
from spe_adapter.continuous.client_port import ClientPort
from spe_adapter.continuous.core import Core, Figures, FragmentInstance
from spe_adapter.continuous.fragment import EpochLimits, Fragment, plan
from spe_adapter.continuous.loop import Event, FragmentProgress, Loop, Recovered
from spe_adapter.continuous.port import EpochOutput, Fetch
from spe_adapter.continuous.runner import Options, prepare
from spe_adapter.epochs.segments import StagedSegment
from spe_adapter.host import ThisHost
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.functions import avg
from spe_adapter.operators.windows import Counting

Float64s = npt.NDArray[np.float64]

FETCH_BYTES = 4 << 20
LIMIT_S = 60.0
_ENDLESS = 2**62
_RECORD_BYTES = 12
"""What a record takes in a batch beside its value, at most."""


class Setting(NamedTuple):
    """One configuration of the query."""

    source: Source
    window: int
    limits: EpochLimits
    checkpoints: bool = True
    persist: bool = True
    """False: footprints are made and encoded, and left out of what is committed (the paper's Gopen/Net)."""


@dataclass
class Timeline:
    """What a run told, epoch by epoch."""

    moments: list[float] = field(default_factory=list)
    epochs: list[FragmentProgress] = field(default_factory=list)
    recovered: Recovered | None = None

    def note(self, event: Event) -> None:
        """Take an event of the loop."""
        if isinstance(event, FragmentProgress):
            self.moments.append(time.perf_counter())
            self.epochs.append(event)
        else:
            self.recovered = event

    @property
    def records(self) -> int:
        """Input records committed so far."""
        return self.epochs[-1].figures.records if self.epochs else 0

    def moments_of(self, records: npt.NDArray[np.int64]) -> Float64s:
        """When the epoch with each input record (by number) was committed."""
        seen = np.array([epoch.figures.records for epoch in self.epochs])
        return np.array(self.moments)[np.minimum(np.searchsorted(seen, records, side="right"), len(seen) - 1)]


class Slice(NamedTuple):
    """A part of a run, from its first step to its last commit."""

    first_record: int
    seconds: float
    records: int
    results: int
    footprints: int
    cpu_s: float
    """Of this process and of the sidecar."""
    sidecar_cpu_s: float


class Ran(NamedTuple):
    """A run up to its end or its crash."""

    setting: Setting
    timeline: Timeline
    slices: tuple[Slice, ...]
    plain_bytes: int
    control_bytes: int

    @property
    def figures(self) -> Figures:
        """Where it stood at the end."""
        return self.timeline.epochs[-1].figures

    @property
    def seconds(self) -> float:
        """Of all slices."""
        return sum(one.seconds for one in self.slices)

    @property
    def rate(self) -> float:
        """Input records a second."""
        return sum(one.records for one in self.slices) / self.seconds

    @property
    def bounds(self) -> npt.NDArray[np.int64]:
        """Input records up to the end of each epoch."""
        return np.array([epoch.figures.records for epoch in self.timeline.epochs], np.int64)


class Loading(NamedTuple):
    """A state brought back as the runner does it: fencing, backward scan over the network, reconstruction, loading."""

    windows: int
    tuples: int
    """Footprints and closes read for them."""
    seconds: float
    cpu_s: float
    """Of this process and the sidecar."""


class Recovery(NamedTuple):
    """A recovery behind a crash, by the runner itself, with the source at full speed."""

    tuples: int
    windows: int
    load_s: float
    replayed_records: int
    replay_s: float

    @property
    def replayed_bytes(self) -> int:
        """The paper's bytes replayed: its tuples have 100."""
        return self.replayed_records * TUPLE_BYTES


class _Port(ClientPort):
    """The runner's port, which counts bytes and, for Gopen/Net, commits results only; see the module."""

    persist = True
    plain_bytes = 0
    control_bytes = 0
    lap = 0
    """Records of the source's topic."""
    batch_records = 0
    rate = 0.0
    _wanted: int | None = None
    """The offset of a fetch that is not due yet."""
    _lap_began = 0
    """What is added to the offsets of the fetch under way."""
    _began_s: float | None = None
    _began_at = 0
    _paused_s: float | None = None

    def fetch(self, source: int, offset: int) -> None:
        """See Port; sent when a batch more is due."""
        self._wanted = offset
        self._fetch_if_due()

    def fetched(self, wait_ms: float) -> Fetch | None:
        """See Port."""
        if self._wanted is not None and not self._fetch_if_due():
            # The next batch is due before the runner's patience ends, or behind it.
            super().fetched(min(wait_ms, self._due_in_s() * 1000))
            self._fetch_if_due()
            return None
        answer = super().fetched(wait_ms)
        if answer is None:
            return None
        records = _moved(answer.records, self._lap_began) if self._lap_began else answer.records
        return answer._replace(records=records, high_watermark=_ENDLESS)

    def pause(self) -> None:
        """No records come from now on."""
        self._paused_s = time.perf_counter()

    def resume(self) -> None:
        """They come again, those that the pause held back not at once."""
        if self._paused_s is not None and self._began_s is not None:
            self._began_s += time.perf_counter() - self._paused_s
        self._paused_s = None

    def restart(self, rate: float) -> None:
        """From the next record on, so many come a second."""
        self.rate, self._began_s = rate, None

    def _due_in_s(self) -> float:
        """Until the batch that is wanted has come."""
        if not self.rate or self._wanted is None:
            return 0.0
        if self._began_s is None:
            self._began_s, self._began_at = time.perf_counter(), self._wanted
        due_s = (self._wanted + self.batch_records - self._began_at) / self.rate
        return max(0.0, self._began_s + due_s - time.perf_counter())

    def _fetch_if_due(self) -> bool:
        if self._wanted is None or self._due_in_s() > 0:
            return False
        offset, self._wanted = self._wanted, None
        self._lap_began = offset - offset % self.lap
        if self.rate and self._began_s is not None:
            arrived = (time.perf_counter() - self._began_s) * self.rate + self._began_at - offset
            batches = max(1, int(arrived) // self.batch_records)
            self._fetch_bytes = min(FETCH_BYTES, batches * self.batch_records * (TUPLE_BYTES + _RECORD_BYTES))
        super().fetch(0, offset % self.lap)
        return True

    def commit(self, group: EpochOutput) -> None:
        """Count, and leave out what is not to be persisted."""
        split = [divided(segment) for segment in group.segments]
        self.plain_bytes += sum(len(plain.data) for plain, _ in split if plain is not None)
        self.control_bytes += sum(size for _, size in split)
        if not self.persist:
            group = group._replace(segments=tuple(plain for plain, _ in split if plain is not None))
        super().commit(group)


def _moved(records: Buffer, by: int) -> Buffer:
    """Batches with a number added to their offsets; the last one may be torn."""
    moved = bytearray(records)
    at = 0
    while at + LENGTH_OVERHEAD <= len(moved):
        size_bytes = LENGTH_OVERHEAD + int.from_bytes(moved[at + 8 : at + LENGTH_OVERHEAD], "big")
        if at + size_bytes > len(moved):
            break
        header = parse_header(moved, at)
        patch_base(moved, at, header.base_offset + by, 0)
        at += size_bytes
    return memoryview(moved)[:at]


def divided(segment: StagedSegment) -> tuple[StagedSegment | None, int]:
    """The plain batches of a segment (None if it has none), and the bytes of its control batches."""
    (of,), whole = segment
    kept, at, batches, records = [], 0, 0, 0
    while at < len(whole):
        header = parse_header(whole, at)
        if not header.is_control:
            kept.append(memoryview(whole)[at : at + header.size_bytes])
            batches += 1
            records += header.record_count
        at += header.size_bytes
    data = kept[0] if len(kept) == 1 else b"".join(kept)
    part = Part(of.topic, of.partition, len(data), batches, records)
    return (StagedSegment((part,), data) if kept else None), at - len(data)


class Run:
    """A run under way, which goes on in each slice where the last one ended."""

    def __init__(
        self, setting: Setting, timeline: Timeline, port: _Port, core: Core, loop: Loop, sidecar_pid: int
    ) -> None:
        """Recovered, nothing processed yet."""
        self._setting = setting
        self._timeline = timeline
        self._port = port
        self._core = core
        self._loop = loop
        self._sidecar_pid = sidecar_pid
        self._slices: list[Slice] = []

    def close(self) -> None:
        """Stop as a crash would."""
        self._port.close()

    def warm_up(self, records: int, settle_s: float = 0.0) -> None:
        """Process so many records at full speed, then what comes in `settle_s` at the source's rate: neither is part of
        any slice.
        """
        rate, self._port.rate = self._port.rate, 0.0
        self.slice(math.inf, records=records)
        self._port.restart(rate)
        if settle_s:
            self.slice(settle_s)
        self._slices.clear()

    def slice(self, seconds: float, *, records: int | None = None, finish: bool = True, settle_s: float = 0.0) -> Slice:
        """Process for so long, or so many records; `finish`: then commit the open epoch. What the sidecar still does in
        `settle_s` behind it is counted, the time itself is not.
        """
        before, cpu_s, sidecar_s = self._stand(), time.process_time(), process_clock_s(self._sidecar_pid)
        target = math.inf if records is None else self._timeline.records + records
        self._port.resume()
        began = time.perf_counter()
        while time.perf_counter() - began < seconds and self._timeline.records < target:
            self._loop.step()
        if finish:
            self._loop.finish()
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
        self._port.pause()
        time.sleep(settle_s)
        sidecar_s = process_clock_s(self._sidecar_pid) - sidecar_s
        records, results, footprints = (now - then for now, then in zip(self._stand(), before, strict=True))
        self._slices.append(Slice(before[0], took_s, records, results, footprints, cpu_s + sidecar_s, sidecar_s))
        return self._slices[-1]

    def _stand(self) -> tuple[int, int, int]:
        """Records, results and footprints committed so far."""
        if not self._timeline.epochs:
            return 0, 0, 0
        figures = self._timeline.epochs[-1].figures
        footprints = figures.opens + figures.checks
        return figures.records, figures.emitted - footprints, footprints

    def ran(self) -> Ran:
        """What came of it."""
        port = self._port
        return Ran(self._setting, self._timeline, tuple(self._slices), port.plain_bytes, port.control_bytes)


class Query:
    """The paper's query under one name, which can be run, crashed and recovered."""

    def __init__(self, address: str, sidecar_pid: int, name: str, setting: Setting) -> None:
        """Its output topic is new."""
        self._addresses = parse_addresses(address)
        self._sidecar_pid = sidecar_pid
        self._setting = setting
        self.fragment = Fragment(
            query=name,
            sources=(fragments.TopicSource(setting.source.topic, (to_items,)),),
            key=("item_id",),
            operator=Aggregate(Counting(setting.window), average=avg("item_price")),
            topic=f"{name}-output",
            checkpoints=setting.checkpoints,
        )
        self._plan = plan(self.fragment)
        self._host = ThisHost()
        prepare(self.fragment, Options(address), self._host)

    def moved(self, sidecar_pid: int) -> None:
        """The sidecar was started anew."""
        self._sidecar_pid = sidecar_pid

    def remove(self) -> None:
        """Trim its output away: nobody reads it again, and there are many runs."""
        with Client(self._addresses) as client:
            client.delete_records(TopicPartition(self.fragment.topic, 0), -1)

    def _parts(self, policy: Policy, timeline: Timeline) -> tuple[_Port, Core, Loop]:
        incarnation = self._host.new_token()
        connect = partial(Client, self._addresses, limit_s=LIMIT_S)
        port = _Port(connect, self.fragment, 0, incarnation, self._host, fetch_bytes=FETCH_BYTES)
        source = self._setting.source
        port.persist = self._setting.persist
        port.lap, port.batch_records, port.rate = source.records, source.batch_records, source.rate
        core = Core(self._plan, FragmentInstance(0, 1, incarnation), policy, port.monotonic_ms)
        return port, core, Loop(core, self._plan, port, self._setting.limits, timeline.note)

    def start(self, policy: Policy) -> Run:
        """Start it, to run slice by slice."""
        timeline = Timeline()
        port, core, loop = self._parts(policy, timeline)
        loop.recover()
        return Run(self._setting, timeline, port, core, loop, self._sidecar_pid)

    def run(
        self,
        policy: Policy,
        *,
        seconds: float = math.inf,
        records: int | None = None,
        warm_records: int = 0,
        settle_s: float = 0.0,
    ) -> Ran:
        """Process for so long, or so many records, behind those of the warm-up; then crash."""
        with closing(self.start(policy)) as started:
            if warm_records:
                started.warm_up(warm_records, settle_s)
            started.slice(seconds, records=records, finish=False)
            return started.ran()

    def load(self) -> Loading:
        """Bring the state back, without the replay behind it."""
        port, core, _ = self._parts(NoChecks(), Timeline())
        with closing(port):
            cpu_s, sidecar_s = time.process_time(), process_clock_s(self._sidecar_pid)
            began = time.perf_counter()
            last = port.fence()
            reconstruction, before, done = core.reconstruction(), -1, False
            while not done:
                piece = port.scan(before)
                done = reconstruction.feed(piece.batches)
                before = piece.next_before
                if not done and before <= piece.log_start_offset:
                    reconstruction.finish(piece.log_start_offset)
                    done = True
            core.load(reconstruction.result, last)
            took_s = time.perf_counter() - began
            cpu_s = time.process_time() - cpu_s + process_clock_s(self._sidecar_pid) - sidecar_s
            return Loading(core.windows, reconstruction.result.scanned.tuples, took_s, cpu_s)

    def recover(self) -> Recovery:
        """Bring the state back and replay, as the runner does."""
        timeline = Timeline()
        port, _, loop = self._parts(NoChecks(), timeline)
        port.rate = 0.0
        with closing(port):
            loop.recover()
        found = timeline.recovered
        if found is None:
            raise RuntimeError("the runner did not say that it recovered")
        return Recovery(
            found.tuples, found.windows, found.load_ms / 1000, found.replayed_records, found.replay_ms / 1000
        )


def standing(ran: Ran) -> dict[str, Any]:
    """Where a run stood at its end, and at every epoch since its warm-up. What is `most` leaves out what the epoch
    itself brought, which a policy sees only at the epoch's end.
    """
    told = [epoch.figures for epoch in ran.timeline.epochs]
    records, emitted, extents, replays = (
        np.array([getattr(figures, name) for figures in told], np.int64)
        for name in ("records", "emitted", "extent", "to_replay")
    )
    judged = records >= ran.slices[0].first_record
    extents, replays = extents[judged], replays[judged]
    at_end = ran.figures
    return {
        "windows": at_end.windows,
        "checks": at_end.checks,
        "closes": at_end.tombstones,
        "extent": at_end.extent,
        "extent_mean": float(extents.mean()),
        "extent_most": int((extents - np.diff(emitted, prepend=0)[judged]).max()),
        "to_replay": at_end.to_replay,
        "to_replay_most": int((replays - np.diff(records, prepend=0)[judged]).max()),
        "beats": int(judged.sum()),
    }
