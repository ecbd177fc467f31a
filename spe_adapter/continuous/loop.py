"""The loop of one partition: recover, replay, then fetch, process and commit, epoch by epoch.

Invariants:
* The loop does all I/O through the port, so that a simulation runs the same loop.
* State is loaded only after this incarnation has fenced the older ones, so that nothing is committed behind what was
  read.
* After a recovery from a checkpoint, sources and target are held for a recovery without it as well, until the next
  checkpoint is complete.
* At most `in_flight` epochs commit while the next is processed; an epoch that cannot be committed ends the runner, and
  the next one starts from the log.

Source: CEC paper, sections II.B (recovery) and III (foreground and background path).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from logstore.client.errors import NONE, OFFSET_OUT_OF_RANGE, SidecarRefused
from logstore.errors import CairnError
from spe_adapter.cec.control import End, decode
from spe_adapter.cec.reconstruct import EventualCheckpoint, Floor
from spe_adapter.checkpoint.bases import StoredBase
from spe_adapter.checkpoint.errors import CheckpointFailed
from spe_adapter.checkpoint.refusals import newer_than_log
from spe_adapter.continuous.core import Core, Figures, ReplayEpoch
from spe_adapter.continuous.errors import FragmentRefused, InputTrimmed
from spe_adapter.continuous.fragment import CheckedFragment, EpochLimits
from spe_adapter.continuous.inputs import RecordRun, SourceBuffer, choose
from spe_adapter.continuous.paged_state import NO_CHECKPOINT, CheckpointStatus, CoveredVersion
from spe_adapter.continuous.port import FENCE_EPOCH, Port
from spe_adapter.errors import StateTrimmed
from spe_adapter.pages.errors import PagesRefused
from spe_adapter.state.errors import StateDamaged
from spe_adapter.state.table import Table

_MS_PER_S: Final = 1000.0
IDLE_MS: Final = 200
"""How long an idle runner waits until it checks whether it should stop."""


class Recovered(NamedTuple):
    """The event of a recovery: the last committed epoch, the open windows, the footprints and tombstones that were read
    (`tuples`), the epochs and records that were replayed, and the time of loading and of replay. `checkpoint_epoch` is
    that of the checkpoint that was loaded, -1 if the log alone was read.
    """

    epoch: int
    windows: int
    tuples: int
    load_ms: float
    replayed_epochs: int
    replayed_records: int
    replay_ms: float
    checkpoint_epoch: int = -1


class FragmentProgress(NamedTuple):
    """The event of a committed epoch: its figures, and `lag`, the offsets of the sources that were still to be read.
    `checkpoint` says which checkpoint is the newest, and whether the last one failed; always empty without a sink.
    """

    figures: Figures
    lag: int
    checkpoint: CheckpointStatus = CheckpointStatus()


class FetchOutcome(NamedTuple):
    """The source of an answer to a fetch, and whether the answer had records."""

    source: int
    moved: bool


class RecoveryInput(NamedTuple):
    """What a recovery would read: the first offset of each source, and the oldest epoch of the target."""

    offsets: tuple[int, ...]
    target_epoch: int


class _Found(NamedTuple):
    """The state that a recovery starts from. `table` is that of a checkpoint, None if the log alone was read.
    `without` is what a recovery would read without that checkpoint; None if there is none, or the rest is not enough.
    """

    eventual: EventualCheckpoint
    table: Table | None = None
    without: RecoveryInput | None = None


class UnitCheckpoints(Protocol):
    """The checkpoints of a runner's partition."""

    def stored(self) -> Iterable[StoredBase]:
        """Those that are complete, newest first; none if the sink is away."""

    def unused(self, stored: StoredBase, why: str) -> None:
        """A checkpoint of `stored` does not serve."""

    def wait_for_sink(self, lost: StateTrimmed) -> None:
        """The log alone does not suffice: return when `stored` should be asked again. Raises StateAway if the sink
        stays away, and StateTrimmed, with what is known of the checkpoints, if it was read.
        """

    def recovered(self, log_bytes: int, seconds: float, epoch: int) -> None:
        """The state was loaded in so many seconds, from a checkpoint of an epoch (NO_CHECKPOINT: from the log alone)
        and so many bytes of control batches.
        """

    def status(self) -> CheckpointStatus:
        """How the checkpoints stand."""

    def complete(self) -> Sequence[CoveredVersion]:
        """Those that became complete since the last call."""

    def ended(self, log_bytes: int, state_bytes: int) -> None:
        """An epoch has ended, with so many bytes of control batches; the state is at its end now, and may be frozen."""


Event = Recovered | FragmentProgress
Observe = Callable[[Event], None]


class Loop:
    """Drives a core: call `recover` once, then `step` repeatedly, then `finish`. `observe` gets the events.

    Raises InputTrimmed, StateTrimmed, StateAway, ReplayDiverged, WrongPartition, CommitLost, FencedIncarnation (a newer
    runner has taken over), what the operator and the steps raise, and what the port raises.
    """

    def __init__(
        self,
        core: Core,
        plan: CheckedFragment,
        port: Port,
        limits: EpochLimits,
        observe: Observe,
        checkpoints: UnitCheckpoints | None = None,
    ) -> None:
        self._core = core
        self._checkpoints = checkpoints
        self._plan = plan
        self._port = port
        self._limits = limits
        self._observe = observe
        self._inputs: list[SourceBuffer] = []
        self._asked = [False for _ in plan.fragment.sources]
        self._high_watermarks = [0 for _ in plan.fragment.sources]
        self._epoch_started_ms = 0.0
        self._in_flight: deque[FragmentProgress] = deque()
        self._held: RecoveryInput | None = None
        """What is held for a recovery without the checkpoint that this life was recovered from."""

    # ---- starting

    def recover(self) -> None:
        """Fence older runners, load the eventual checkpoint, and replay the epochs that it does not cover."""
        started_ms = self._port.monotonic_ms()
        last = self._port.fence()
        if last == FENCE_EPOCH:
            self._refuse_taken()
            start = self._plan.fragment.start
            self._open([self._port.offset(source, start) for source in range(len(self._asked))])
            self._core.begin([buffer.position for buffer in self._inputs])
            self._observe(Recovered(0, 0, 0, 0.0, 0, 0, 0.0))
            return
        if not self._plan.fragment.checkpoints:
            raise FragmentRefused(
                f"query {self._plan.fragment.query!r} has committed epoch {last} and runs without checkpoints: it "
                "cannot continue. Start under another query name"
            )
        eventual, table, self._held = self._reconstructed(last)
        epochs = self._core.load(eventual, last, table)
        loaded_ms = self._port.monotonic_ms()
        checkpoint_epoch = NO_CHECKPOINT if table is None else eventual.oldest_epoch
        if self._checkpoints is not None:
            seconds = (loaded_ms - started_ms) / _MS_PER_S
            self._checkpoints.recovered(eventual.scanned.control_bytes, seconds, checkpoint_epoch)
        self._open(self._core.positions)
        records = self._replay(epochs)
        self._core.end_replay([buffer.position for buffer in self._inputs])
        replayed_ms = self._port.monotonic_ms()
        self._observe(
            Recovered(
                last, self._core.windows, eventual.scanned.tuples, loaded_ms - started_ms, len(epochs), records,
                replayed_ms - loaded_ms, checkpoint_epoch,
            )
        )  # fmt: skip

    def _refuse_taken(self) -> None:
        """Refuse to start a new query after another query's epochs: under a mistyped name every result would come
        twice.
        """
        fragment = self._plan.fragment
        if fragment.allow_other_queries or not fragment.checkpoints:
            return
        scanned = self._port.scan(-1).batches
        newest = decode(scanned) if len(scanned) else None
        if isinstance(newest, End):
            raise FragmentRefused(
                f"query {fragment.query!r} is new, but partition {self._core.partition} of topic {fragment.topic!r} "
                f"holds the state or output of {newest.query!r}, up to epoch {newest.epoch}. Use the query's former "
                "name, or another topic; or set allow_other_queries=True if both may write here"
            )

    def _reconstructed(self, last: int) -> _Found:
        """The eventual checkpoint; with the table of a checkpoint, where the log alone does not give all sooner. A
        sink that is away is waited for only if the log alone does not suffice.
        """
        checkpoints = self._checkpoints
        if checkpoints is None:
            return _Found(self._reconstruct())
        while True:
            found = self._from_checkpoint(checkpoints, last)
            if found is not None:
                return found
            try:
                return _Found(self._reconstruct())
            except StateTrimmed as error:
                checkpoints.wait_for_sink(error)

    def _from_checkpoint(self, checkpoints: UnitCheckpoints, last: int) -> _Found | None:
        """The state by way of the newest checkpoint that serves, None if there is none. A checkpoint that cannot be
        read, or is of another way than the log's, costs itself.
        """
        usable = self._usable(checkpoints, last)
        for stored in usable:
            try:
                eventual = self._down_to(stored, checkpoints)
                if eventual is None:
                    continue
                if not eventual.floor_reached:
                    return _Found(eventual)
                table = self._core.state.loaded(stored.described, stored.runs())
            except (StateDamaged, PagesRefused, CheckpointFailed, StateTrimmed, OSError) as error:
                stored.refused(error)
            else:
                return _Found(eventual, table, self._needed_without(usable, checkpoints))
        return None

    def _usable(self, checkpoints: UnitCheckpoints, last: int) -> Iterator[StoredBase]:
        """The checkpoints of this operator's state up to the last epoch, newest first."""
        fingerprint = self._core.state.fingerprint
        for stored in checkpoints.stored():
            described = stored.described
            if described.tag.epoch > last:
                checkpoints.unused(stored, newer_than_log(described.tag.epoch, last))
            elif described.fingerprint != fingerprint:
                checkpoints.unused(stored, "is of another operator's state, or of other columns")
            else:
                yield stored

    def _down_to(
        self, stored: StoredBase, checkpoints: UnitCheckpoints, *, keep_windows: bool = True
    ) -> EventualCheckpoint | None:
        """What the log has down to a checkpoint; None if the log has not its epoch."""
        tag = stored.described.tag
        eventual = self._reconstruct(Floor(*tag), keep_windows=keep_windows)
        if eventual.floor_reached or eventual.oldest_epoch >= tag.epoch:
            return eventual
        # Its epoch was lost before it was durable, and the log has another. What the log alone needs may be trimmed, if
        # the checkpoint before this one counts.
        checkpoints.unused(stored, f"is of epoch {tag.epoch}, which the log does not have")
        return None

    def _needed_without(self, older: Iterator[StoredBase], checkpoints: UnitCheckpoints) -> RecoveryInput | None:
        """What a recovery would read without the newest checkpoint: from one of the older ones, or from the log alone;
        None if neither has all, or the log cannot be read so far back: this recovery does not need that. The files of a
        checkpoint are not read.
        """
        for stored in older:
            with suppress(CairnError):
                eventual = self._down_to(stored, checkpoints, keep_windows=False)
                if eventual is not None:
                    return self._there(eventual)
        with suppress(CairnError):
            return self._there(self._reconstruct(keep_windows=False))
        return None

    def _there(self, eventual: EventualCheckpoint) -> RecoveryInput | None:
        """What a recovery from an eventual checkpoint reads; None if the sources have that no more."""
        mark = eventual.marks[0] if self._core.replays else eventual.marks[-1]
        needed = RecoveryInput(self._core.offsets_of(mark), eventual.oldest_epoch)
        starts = [self._port.offset(source, "earliest") for source in range(len(self._asked))]
        is_there = all(start <= offset for start, offset in zip(starts, needed.offsets, strict=True))
        return needed if is_there else None

    def _reconstruct(self, floor: Floor | None = None, *, keep_windows: bool = True) -> EventualCheckpoint:
        """Read the output stream backwards until every open window is found, or down to the version of a checkpoint.
        Without `keep_windows` the result has none.
        """
        reconstruction = self._core.reconstruction(floor)
        before = -1
        while True:
            scanned = self._port.scan(before)
            is_done = reconstruction.feed(scanned.batches)
            if not keep_windows:
                reconstruction.drain()
            if is_done:
                return reconstruction.result
            before = scanned.next_before
            if before <= scanned.log_start_offset:
                found = reconstruction.finish(scanned.log_start_offset)
                if not found.found and scanned.log_start_offset > 0:
                    fragment = self._plan.fragment
                    raise StateTrimmed(
                        f"query {fragment.query!r}: {fragment.topic}-{self._core.partition} starts at offset "
                        f"{scanned.log_start_offset} and no longer holds an epoch of the query; it was trimmed too far"
                    )
                return found

    def _open(self, offsets: list[int]) -> None:
        partition = self._core.partition
        self._inputs = [
            SourceBuffer(source.topic, partition, offset)
            for source, offset in zip(self._plan.fragment.sources, offsets, strict=True)
        ]

    def _replay(self, epochs: list[ReplayEpoch]) -> int:
        """Replay the runs of these epochs; the number of records."""
        records = 0
        for epoch in epochs:
            for run in epoch.runs:
                self._wait_for(run)
                self._core.replay(epoch.number, run, self._inputs[run.source].take(run.records))
                records += run.records
        return records

    def _wait_for(self, run: RecordRun) -> None:
        """Fetch until all records of a run have arrived. Raises InputTrimmed if the source ends before them."""
        held = self._inputs[run.source]
        while held.records < run.records:
            self._request()
            answer = self._receive(IDLE_MS)
            if (
                answer == FetchOutcome(run.source, moved=False)
                and held.fetch_offset >= self._high_watermarks[run.source]
            ):
                end = self._port.offset(run.source, "latest")  # known, unlike what a host shows that lacks others
                if held.fetch_offset >= end:
                    raise self._too_short(run.source, end)

    # ---- working

    def step(self) -> bool:
        """Take the answers that have arrived, process one run, and end the epoch if it is due; False if there was no
        work.
        """
        self._reap(wait=False)
        self._request()
        while (arrived := self._receive(0)) is not None and arrived.moved:
            self._request()
        run = choose(self._inputs, self._room())
        if run is None:
            if self._core.take_timers(self._port.wall_ms()):
                self._epoch_started_ms = self._port.monotonic_ms()
                return True
            arrived = self._receive(self._patience_ms())
            return self._end_epoch_if_due() or arrived is not None
        if self._core.is_empty:
            self._epoch_started_ms = self._port.monotonic_ms()
            self._core.open_epoch(self._port.wall_ms())
        self._core.process(run, self._inputs[run.source].take(run.records))
        self._end_epoch_if_due()
        return True

    def finish(self) -> None:
        """Commit the open epoch, and wait until all epochs are committed."""
        self.end_epoch()
        while self._in_flight:
            self._reap(wait=True)

    def end_epoch(self) -> bool:
        """Commit the open epoch, unless it is empty; waits while `in_flight` epochs are being committed."""
        if self._core.is_empty:
            return False
        positions = [buffer.position for buffer in self._inputs]
        lag = sum(max(0, high - at) for high, at in zip(self._high_watermarks, positions, strict=True))
        output, figures = self._core.end_epoch(positions, self._port.wall_ms())
        while len(self._in_flight) >= self._limits.in_flight:
            self._reap(wait=True)
        self._port.commit(output)
        checkpoint = CheckpointStatus() if self._checkpoints is None else self._checkpoints.status()
        self._in_flight.append(FragmentProgress(figures, lag, checkpoint))
        if self._checkpoints is not None:
            for version in self._checkpoints.complete():
                self._core.cover(version)
                if self._core.state.is_covered:
                    self._held = None
            self._checkpoints.ended(self._core.control_bytes, figures.state_bytes)
        return True

    def _end_epoch_if_due(self) -> bool:
        core, limits = self._core, self._limits
        if core.is_empty:
            return False
        full = core.epoch_records >= limits.epoch_records or core.epoch_bytes >= limits.epoch_bytes
        if full or self._port.monotonic_ms() - self._epoch_started_ms >= limits.epoch_ms:
            return self.end_epoch()
        return False

    def _room(self) -> int:
        return min(self._limits.run_records, self._limits.epoch_records - self._core.epoch_records)

    def _patience_ms(self) -> float:
        """The longest time to wait for input: until the open epoch is due, or until the next check for a stop."""
        if self._core.is_empty:
            return IDLE_MS
        return max(0.0, self._epoch_started_ms + self._limits.epoch_ms - self._port.monotonic_ms())

    def _reap(self, *, wait: bool) -> None:
        while self._in_flight:
            epoch = self._port.committed(wait=wait)
            if epoch is None:
                return
            self._core.committed(epoch)
            self._observe(self._in_flight.popleft())
            if wait:
                return

    # ---- input

    @property
    def needed(self) -> RecoveryInput:
        """What a recovery would read now; records below may be trimmed."""
        core = self._core
        if self._held is None:
            return RecoveryInput(core.needed, core.needed_epoch)
        offsets = tuple(min(pair) for pair in zip(core.needed, self._held.offsets, strict=True))
        return RecoveryInput(offsets, min(core.needed_epoch, self._held.target_epoch))

    def needed_offsets(self) -> dict[str, int]:
        """Per source topic, the first offset that a recovery would read now; records below it may be trimmed."""
        topics = [source.topic for source in self._plan.fragment.sources]
        return dict(zip(topics, self.needed.offsets, strict=True))

    def _request(self) -> None:
        """Start a fetch for every source with few records left."""
        for source, held in enumerate(self._inputs):
            if not self._asked[source] and held.records <= self._limits.run_records:
                self._port.fetch(source, held.fetch_offset)
                self._asked[source] = True

    def _receive(self, wait_ms: float) -> FetchOutcome | None:
        """Take one answer to a fetch, waiting at most `wait_ms`; None if none has arrived."""
        answer = self._port.fetched(wait_ms)
        if answer is None:
            return None
        self._asked[answer.source] = False
        held = self._inputs[answer.source]
        if answer.error == OFFSET_OUT_OF_RANGE:
            raise self._out_of_range(answer.source)
        if answer.error != NONE:
            raise SidecarRefused(f"fetch of {self._where(answer.source)}", code=answer.error)
        self._high_watermarks[answer.source] = answer.high_watermark
        return FetchOutcome(answer.source, held.add(answer.records))

    def _out_of_range(self, source: int) -> InputTrimmed:
        wanted = self._inputs[source].fetch_offset
        first, end = (self._port.offset(source, moment) for moment in ("earliest", "latest"))
        if wanted > end:
            return self._too_short(source, end)
        why = "its state was last written before that" if self._core.is_replaying else "it was not read before that"
        return InputTrimmed(
            f"{self._where(source)} is needed from offset {wanted} on but holds {first} to {end - 1}: {why}. Retain "
            "the sources from needed_offsets() on (a smaller U needs less), restore the records, or start under "
            "another query name"
        )

    def _too_short(self, source: int, end: int) -> InputTrimmed:
        return InputTrimmed(
            f"{self._where(source)} ends at offset {end}, but this query has already read beyond that: records are "
            "lost. Restore the stream, or start under another query name"
        )

    def _where(self, source: int) -> str:
        held = self._inputs[source]
        return f"query {self._plan.fragment.query!r}: source {held.topic}-{held.partition}"
