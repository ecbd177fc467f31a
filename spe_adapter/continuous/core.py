"""One partition of a fragment, without I/O: processes runs of records, ends epochs, and recovers from a checkpoint.

Invariants:
* The effect of an epoch depends only on the state before it and on its runs of records. The watermark moves between
  runs, and the epoch's mark names the runs, so that a replay is the same execution.
* The output of an epoch holds the results, then footprints, then tombstones. A footprint is written for every identity
  in which a window opened in the epoch and is still open, and for every window that the policy chose. A tombstone is
  written for every identity that had an open window in the epoch and has none at its end. A replay skips rows up to
  either. All count windows of a key share one identity; any other window has its own.
* u is at most the age of the oldest open window, in input records, plus one epoch, whatever the policy.
* A replay writes no footprint, no tombstone and no result: the log has them.
* `needed` never decreases. It follows the committed epochs, not the processed ones.

Source: CEC paper, sections II.B, III and III.A.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.client.wire import TopicPartition
from logstore.interfaces import Buffer
from spe_adapter.cec.control import EndPositions, Mark, encode_footprints, encode_mark, encode_tombstones
from spe_adapter.cec.extent import Counters
from spe_adapter.cec.policy import NoChecks, Policy, View
from spe_adapter.cec.reconstruct import EventualCheckpoint, Floor, Reconstruction
from spe_adapter.checkpoint.snapshot import Snapshot
from spe_adapter.codec.kernels import Int64s
from spe_adapter.codec.partitioner import PARTITIONERS, partitions_of
from spe_adapter.continuous.candidates import MAX_CHECKS, Candidates
from spe_adapter.continuous.errors import FragmentRefused, ReplayDiverged, WrongPartition
from spe_adapter.continuous.fragment import DEFAULT_STATE_BYTES, CheckedFragment, apply, fingerprint
from spe_adapter.continuous.inputs import RecordRun
from spe_adapter.continuous.paged_state import CoveredVersion, PagedState, bring_up
from spe_adapter.continuous.port import FENCE_EPOCH, EpochOutput
from spe_adapter.epochs.marks import OpenWindows, StatePartition, epoch_mark
from spe_adapter.epochs.segments import StagedSegment, StreamOutput
from spe_adapter.operators.base import next_watermark
from spe_adapter.operators.chain import processor_of
from spe_adapter.operators.clock import CallTimes
from spe_adapter.operators.output import Output, to_records
from spe_adapter.operators.replay import Replay, SkipPoints
from spe_adapter.state.direct import Direct
from spe_adapter.state.errors import StateTooLarge
from spe_adapter.state.store import WindowChanges
from spe_adapter.state.table import Table

_MIN_WINDOWS: Final = 1024
_MS_PER_S: Final = 1000.0
_NOTHING: Final = np.empty(0, np.int64)


class Records(NamedTuple):
    """Results as Kafka records: keys (null: none) and values, in the order of emission."""

    keys: pa.Array
    values: pa.Array


class FragmentInstance(NamedTuple):
    """The partition of a fragment that a core processes, the number of partitions, and the name of its attempts."""

    partition: int
    partitions: int
    attempt: str


class ReplayEpoch(NamedTuple):
    """The number of an epoch to be replayed, and the runs of records that it processed."""

    number: int
    runs: tuple[RecordRun, ...]


class Figures(NamedTuple):
    """The figures of a partition at the end of an epoch.

    `windows` is N, the number of identities with open windows. `extent` is q, the results and footprints since the
    oldest footprint. `to_replay` is u, the input records that a recovery would replay. `records` (of the input) and
    `emitted` (of the output stream, footprints included) are counted from the start of the query; `opens` and `checks`
    (the two kinds of footprints) and `tombstones` from the start of this runner. `state_bytes` is the memory of the
    state.
    """

    epoch: int
    windows: int
    extent: int
    to_replay: int
    opens: int
    checks: int
    tombstones: int
    records: int
    emitted: int
    watermark_ms: int
    state_bytes: int


class _RecoveryPoint(NamedTuple):
    """An epoch from which a recovery might start: the next offset of each source, the epoch from which a recovery of it
    replays, and the epoch of the oldest footprint that it reads.
    """

    number: int
    positions: tuple[int, ...]
    oldest_epoch: int
    oldest_footprint: int


class Core:
    """One partition of a query. A new query starts with `begin`, a recovery with `load`, `replay` and `end_replay`."""

    def __init__(
        self,
        plan: CheckedFragment,
        instance: FragmentInstance,
        policy: Policy,
        monotonic_ms: Callable[[], float],
        state_limit_bytes: int = DEFAULT_STATE_BYTES,
        seed: int = 0,
        *,
        is_paged: bool = False,
    ) -> None:
        """`seed` keys the hashes of windows: a number that the producers of keys do not know. Nothing else follows from
        it. `is_paged`: the state lies on pages, so that it can be frozen for a checkpoint.
        """
        self._plan = plan
        self._instance = instance
        self._policy = policy
        self._monotonic_ms = monotonic_ms
        self._state_limit_bytes = state_limit_bytes
        self._seed = seed
        self._operator = plan.fragment.operator
        self._name = plan.fragment.name_in(instance.partition)
        self._fingerprint = fingerprint(plan)
        schema = self._operator.state_schema(plan.input_schema)
        self.state = PagedState(schema, self._fingerprint, self._charge, is_paged=is_paged)
        self.control_bytes = 0
        """Bytes of the control batches of the epoch that ended last."""
        self._adopt(0)
        self._skips = SkipPoints(seed)
        self._last: Mark | None = None
        self._epoch = FENCE_EPOCH
        self._emitted = 0
        self._seen = 0
        self._opens = 0
        self._checks = 0
        self._tombstones = 0
        self._watermark_ms = 0
        self._wall_ms = 0
        self._next_wall_ms: int | None = None
        self._results: list[Records] = []
        self._runs: list[RecordRun] = []
        self._recovery_points: deque[_RecoveryPoint] = deque()
        self._needed_epoch = FENCE_EPOCH
        self._processing_ms = 0.0
        self._record_s = 0.0
        self.epoch_records = 0
        """Input records of the open epoch."""
        self.epoch_bytes = 0
        """Bytes of the results of the open epoch."""
        self.is_empty = True
        """Whether nothing has happened in the open epoch: no input, and no timer was due."""

    def _adopt(self, windows: int, table: Table | None = None) -> None:
        """Start with a table, or with an empty one that has room for one and a half times this number of windows."""
        plan = self._plan
        room = max(_MIN_WINDOWS, windows + windows // 2)
        self._table = self.state.empty(room, self._seed) if table is None else table
        keeps = self._operator.keeps_entries and plan.fragment.checkpoints
        self.store = Direct(self._table, tells_changes=keeps, tells_windows=plan.fragment.checkpoints)
        self._candidates = Candidates(self._table)
        self._processor = processor_of(self._operator, plan.key_codec, plan.input_schema, self.store)

    def _charge(self, size_bytes: int) -> None:
        """Allow so much memory for the state. Raises StateTooLarge."""
        if size_bytes > self._state_limit_bytes:
            raise StateTooLarge(
                f"query {self._name!r}: its state needs {size_bytes} bytes of memory, state_bytes allows "
                f"{self._state_limit_bytes}. Raise the limit, use more partitions, or close windows sooner"
            )

    @property
    def partition(self) -> int:
        """The partition of the sources and of the target."""
        return self._instance.partition

    @property
    def windows(self) -> int:
        """N, the number of open windows."""
        return self.store.live

    @property
    def is_replaying(self) -> bool:
        """Whether `load` has been called and `end_replay` has not."""
        return self._last is not None

    @property
    def positions(self) -> list[int]:
        """The next offset to read of each source; after `load`, as of the epoch of the oldest footprint."""
        return list(self._recovery_points[0].positions)

    @property
    def needed(self) -> tuple[int, ...]:
        """Per source, the first offset that a recovery from the last committed epoch would read."""
        return self._recovery_points[0].positions

    @property
    def needed_epoch(self) -> int:
        """The oldest epoch whose group a recovery from the last committed epoch would read in the target."""
        return self._needed_epoch

    # ---- working

    def process(self, run: RecordRun, batch: pa.RecordBatch) -> None:
        """Process a run in the open epoch; the results are kept until the epoch ends.

        Raises WrongPartition, and the errors of the operator and the steps.
        """
        started_ms = self._monotonic_ms()
        if self._plan.fragment.check_keys:
            self._check_keys(run, batch)
        for output in self._execute(run, batch, None):
            self._take_results(output)
        self._processing_ms += self._monotonic_ms() - started_ms
        self.is_empty = False
        self._runs.append(run)
        self._seen += run.records
        self.epoch_records += run.records

    def open_epoch(self, now_ms: int) -> None:
        """Decide the processing time of the epoch, before its first run; it never runs backwards."""
        self._wall_ms = max(self._wall_ms, now_ms)

    def take_timers(self, now_ms: int) -> bool:
        """Have timers by processing time called that are due, in an epoch without input so far; whether there were
        any.
        """
        if self._next_wall_ms is None or now_ms < self._next_wall_ms or not self.is_empty:
            return False
        self.open_epoch(now_ms)
        for output in self._expired(self._watermark_ms, None):
            self._take_results(output)
        self.is_empty = False
        return True

    def _expired(self, late_ms: int, replay: Replay | None) -> Iterator[Output]:
        self._processor.clock = CallTimes(self._watermark_ms, self._wall_ms, late_ms)
        output = self._processor.expire(self._watermark_ms, replay=replay)
        if output is not None:
            yield output

    def _execute(self, run: RecordRun, batch: pa.RecordBatch, replay: Replay | None) -> Iterator[Output]:
        """Pass one run through the steps and the operator, then move the watermark."""
        rows = apply(self._plan.fragment.sources[run.source].steps, batch)
        processor = self._processor
        late_ms = self._watermark_ms
        processor.clock = CallTimes(late_ms, self._wall_ms, late_ms)
        if rows.num_rows:
            output = processor.process(rows, late_watermark_ms=self._watermark_ms, replay=replay)
            if output is not None:
                yield output
        if processor.max_events_ms:
            # Even if the watermark does not move: a window that is due at once must close in the run that opened it, as
            # it does in a replay.
            self._watermark_ms = next_watermark(self._operator, self._watermark_ms, processor.max_events_ms)
        if processor.max_events_ms or self._operator.keeps_entries:
            yield from self._expired(late_ms, replay)

    def _take_results(self, output: Output) -> None:
        """Pass results through the steps after the operator, and keep them as records."""
        if self._plan.output_keys is not None:
            rows = apply(self._plan.fragment.after, output.rows)
            output = output._replace(keys=self._plan.output_keys.encode(rows), rows=rows)
        if output.rows.num_rows:
            records = Records(*to_records(output))
            self._results.append(records)
            self.epoch_bytes += records.keys.nbytes + records.values.nbytes

    def _check_keys(self, run: RecordRun, batch: pa.RecordBatch) -> None:
        """Check that the partitioner puts every key of a run into this partition. Raises WrongPartition."""
        partition, partitions = self._instance.partition, self._instance.partitions
        rows = apply(self._plan.fragment.sources[run.source].steps, batch)
        keys = self._plan.key_codec.encode(self._operator.prepare(rows))
        fragment = self._plan.fragment
        found = partitions_of(keys, len(keys), partitions, partition, fragment.partitioner)
        wrong = np.flatnonzero(found != partition)
        if len(wrong):
            key = keys[int(wrong[0])].as_py()
            topic = fragment.sources[run.source].topic
            others = [
                other
                for other in PARTITIONERS
                if (partitions_of(keys, len(keys), partitions, partition, other) == partition).all()
            ]
            hint = (
                f"all keys here match {others[0]}: give the fragment partitioner={others[0]!r}, or the producer "
                f"partitioner={fragment.partitioner}"
                if others
                else "let the producer use the operator's key as the record key, with that partitioner"
            )
            raise WrongPartition(
                f"query {fragment.query!r}: key {key[:80]!r} is in {topic}-{partition}, {fragment.partitioner} puts "
                f"it into partition {int(found[wrong[0]])} of {partitions}; {hint}. The Java client's default is "
                "murmur2_random, librdkafka's (confluent-kafka, kcat) consistent_random"
            )

    # ---- the end of an epoch

    def begin(self, positions: list[int]) -> None:
        """Start a query that has no state. `positions`: the first offset to read of each source."""
        self._recovery_points.append(_RecoveryPoint(FENCE_EPOCH, tuple(positions), FENCE_EPOCH, FENCE_EPOCH))

    def end_epoch(self, positions: list[int], now_ms: int) -> tuple[EpochOutput, Figures]:
        """End the open epoch and start the next one; the output and the figures of the ended epoch.

        `positions` are the next offsets of the sources; `now_ms` is the wall time that the output is stamped with.
        """
        self._epoch += 1
        if self.epoch_records:
            self._record_s = self._processing_ms / _MS_PER_S / self.epoch_records
        self._processor.epoch = self._epoch + 1
        self._emitted += sum(len(records.values) for records in self._results)
        controls: list[Buffer] = []
        oldest = None
        if self._plan.fragment.checkpoints:
            controls += self._footprints(now_ms)
            self._candidates.refresh()
            oldest = self._candidates.oldest()
        # A footprint of a window that never changes is the whole window, so nothing is replayed for it.
        replays = oldest is not None and self.replays
        self._recovery_points.append(
            _RecoveryPoint(
                self._epoch,
                tuple(positions),
                oldest.epoch if oldest and replays else self._epoch,
                oldest.epoch if oldest else self._epoch,
            )
        )
        if self._plan.fragment.checkpoints:
            controls.append(encode_mark(self._mark(), now_ms))
        self.control_bytes = sum(len(batch) for batch in controls)
        output = EpochOutput(self._epoch, tuple(self._segments(controls, now_ms)), self._progress())
        figures = Figures(
            epoch=self._epoch,
            windows=self.store.live,
            extent=self._emitted - oldest.ordinal if oldest else 0,
            to_replay=self._seen - oldest.seen if oldest and replays else 0,
            opens=self._opens,
            checks=self._checks,
            tombstones=self._tombstones,
            records=self._seen,
            emitted=self._emitted,
            watermark_ms=self._watermark_ms,
            state_bytes=self._table.size_bytes,
        )
        self._results, self._runs = [], []
        self.epoch_records = self.epoch_bytes = 0
        self.is_empty = True
        self._next_wall_ms = self._processor.next_wall_ms
        self._processing_ms = 0.0
        return output, figures

    @property
    def replays(self) -> bool:
        """Whether a recovery replays input: not where each footprint is the whole window, or each change has one."""
        return not self._operator.windows_never_change and not self._operator.keeps_entries

    def _footprints(self, now_ms: int) -> list[bytes]:
        """The footprints and tombstones of the epoch as control batches; notes the footprints in the table."""
        chosen = self._chosen()
        started_ms = self._monotonic_ms()
        changes = self.store.changes(chosen, with_changed=self._operator.keeps_entries)
        gone = self._gone(changes)
        footprints = changes.footprints.num_rows
        self._emitted += footprints
        self._opens += footprints - len(chosen)
        self._checks += len(chosen)
        self._tombstones += sum(batch.num_rows for batch in gone)
        self._table.set_window_versions(changes.ids, self._epoch, self._emitted, self._seen)
        self._candidates.add(changes.ids, self._emitted)
        batches: list[bytes] = []
        if footprints:
            batches += encode_footprints(self._name, self._epoch, changes.footprints, changes.opened, now_ms)
        if len(chosen):
            self._policy.took(len(chosen), (self._monotonic_ms() - started_ms) * len(chosen) / footprints)
        for identities in gone:
            if identities.num_rows:
                batches += encode_tombstones(self._name, self._epoch, identities, now_ms)
        return batches

    def _segments(self, controls: list[Buffer], now_ms: int) -> Iterator[StagedSegment]:
        """The output of the epoch as staged segments, stamped with `now_ms`."""
        output = StreamOutput(TopicPartition(self._plan.fragment.topic, self.partition))
        for keys, values in self._results:
            yield from output.add_results(keys, values, np.full(len(values), now_ms, np.int64))
        yield from output.finish(controls)

    def _chosen(self) -> Int64s:
        """The table rows of the windows that the policy chooses for a check."""
        if isinstance(self._policy, NoChecks):
            return _NOTHING
        front = self._candidates.front()
        while len(front.rows):
            seens = front.seens if self.replays else np.full(len(front.rows), self._seen)
            now_ms = self._monotonic_ms()
            view = View(
                self._emitted, self._seen, self.store.live, front.ordinals, seens, front.fresh, now_ms, self._record_s
            )
            checks = self._policy.checks(view)
            if checks < len(front.rows) or view.is_whole or len(front.rows) >= MAX_CHECKS:
                return front.rows[:checks]
            front = self._candidates.longer_front()
        return _NOTHING

    def _gone(self, changes: WindowChanges) -> list[pa.RecordBatch]:
        """The identities that get a tombstone, in batches."""
        return [changes.closed, changes.transient] if self.replays else [changes.closed]

    def _progress(self) -> str:
        return EndPositions(
            generation=0,
            batch=self._epoch,
            closing=False,
            late_watermark_ms=self._watermark_ms,
            watermark_ms=self._watermark_ms,
            max_event_ms=self._processor.max_event_ms,
            partitions=self._instance.partitions,
            layout=0,
            wall_ms=self._wall_ms if self._operator.has_wall_time else None,
        ).to_json()

    def _mark(self) -> Mark:
        partition = self._instance.partition
        sources = self._plan.fragment.sources
        positions: dict[str, dict[int, int]] = {}
        for source, offset in zip(sources, self._recovery_points[-1].positions, strict=True):
            positions[source.topic] = {partition: offset}
        return epoch_mark(
            StatePartition(
                self._name, self._instance.attempt, partition, self._instance.partitions, 0, self._fingerprint
            ),
            self._epoch,
            Counters(self._emitted, self._seen),
            OpenWindows(self.store.live, self._recovery_points[-1].oldest_epoch),
            self._processor,
            watermark_ms=self._watermark_ms,
            max_events_ms=tuple(self._processor.max_events_ms),
            positions=positions,
            runs=tuple((run.source, partition, run.records) for run in self._runs),
        )

    def committed(self, epoch: int) -> None:
        """Note that an epoch is committed: a recovery needs no input that only older epochs needed."""
        point = next(known for known in self._recovery_points if known.number == epoch)
        self._needed_epoch = point.oldest_footprint
        while len(self._recovery_points) > 1 and self._recovery_points[1].number <= point.oldest_epoch:
            self._recovery_points.popleft()

    # ---- checkpoints: called between the end of an epoch and the next record

    def freeze(self, since: object) -> Snapshot | None:
        """Freeze the state as of the epoch that ended last (see `PagedState.freeze`)."""
        version = CoveredVersion(self._epoch, self._emitted, self._seen)
        return self.state.freeze(since, self._table, version, self._instance.attempt)

    def cover(self, version: CoveredVersion) -> None:
        """Note a complete checkpoint: the policy need not write what it covers, a recovery replays what follows it."""
        if self.state.cover(self._table, version):
            self._candidates = Candidates(self._table)
            self._candidates.refresh()

    # ---- recovery

    def reconstruction(self, floor: Floor | None = None) -> Reconstruction:
        """A reconstruction of this query's eventual checkpoint from the output stream, down to `floor`."""
        return Reconstruction(self._name, seed=self._seed, floor=floor)

    def load(self, eventual: EventualCheckpoint, last_epoch: int, table: Table | None = None) -> list[ReplayEpoch]:
        """Load an eventual checkpoint; the epochs to replay, whose input starts at `positions`. `table` is that of the
        checkpoint at the floor of `eventual`, if that was reached.

        Raises FragmentRefused if the checkpoint belongs to another fragment, or to other settings of this one.
        """
        mark = self._checked(eventual.mark, last_epoch)
        self._adopt(mark.open_windows, table)
        if table is not None:
            bring_up(table, eventual)
            floor = eventual.marks[0]
            self.state.loaded_at(CoveredVersion(floor.epoch, floor.emitted, floor.seen))
        for windows in eventual.windows:
            for batch in windows.batches:
                self._table.put(batch, (windows.mark.epoch, windows.mark.emitted, windows.mark.seen))
        skips = eventual.skips
        self._skips.add(skips.keys, skips.numbers, skips.epochs)
        self._candidates.refresh()
        marks = eventual.marks if self.replays else eventual.marks[-1:]
        for one in marks:
            point = _RecoveryPoint(one.epoch, self.offsets_of(one), one.oldest_epoch, eventual.oldest_epoch)
            self._recovery_points.append(point)
        self._needed_epoch = eventual.oldest_epoch
        first = marks[0]
        self._epoch, self._emitted, self._seen = mark.epoch, mark.emitted, mark.seen
        self._watermark_ms = first.watermark_ms
        if eventual.progress is not None:
            self._wall_ms = eventual.progress.wall_ms or 0
        self._processor.sequence = first.sequence
        if first.max_events_ms:
            self._processor.max_events_ms = list(first.max_events_ms)
        self._last = mark
        return [
            ReplayEpoch(one.epoch, tuple(RecordRun(source, records) for source, _, records in one.runs))
            for one in marks[1:]
        ]

    def _checked(self, mark: Mark | None, last_epoch: int) -> Mark:
        name, instance = self._name, self._instance
        if mark is None or mark.epoch != last_epoch:
            found = "nothing" if mark is None else f"epoch {mark.epoch}"
            raise FragmentRefused(
                f"query {name!r} has committed epoch {last_epoch}, but stream {self._plan.fragment.topic}-"
                f"{self.partition} holds {found} of it: the query wrote to another topic, or without checkpoints. "
                "Bring the stream back, or start under another query name"
            )
        if mark.partitions != instance.partitions:
            raise FragmentRefused(
                f"query {name!r} has its state in {mark.partitions} partitions, the sources now have "
                f"{instance.partitions}: keys have moved. Start under another query name"
            )
        if mark.operator != self._fingerprint:
            raise FragmentRefused(
                f"query {name!r} has state of {mark.operator}; the operator is now {self._fingerprint}. Bring the "
                "operator back, or start under another query name"
            )
        return mark

    def offsets_of(self, mark: Mark) -> tuple[int, ...]:
        """The next offset of each source at a mark. Raises FragmentRefused if the query had other sources."""
        partition = self._instance.partition
        offsets = []
        for source in self._plan.fragment.sources:
            offset = mark.positions.get(source.topic, {}).get(partition)
            if offset is None:
                raise FragmentRefused(
                    f"query {self._name!r} has read {', '.join(sorted(mark.positions))} so far, not {source.topic}; a "
                    "query keeps its sources. Start under another query name"
                )
            offsets.append(offset)
        return tuple(offsets)

    def replay(self, epoch: int, run: RecordRun, batch: pa.RecordBatch) -> None:
        """Process a run of a committed epoch again; windows skip the rows that their footprints include.

        Raises ReplayDiverged if the run gives results.
        """
        self._processor.epoch = epoch
        for _ in self._execute(run, batch, Replay(epoch, self._covered)):
            raise ReplayDiverged(f"query {self._name!r}: the replay of epoch {epoch} gave results")

    def _covered(self, keys: pa.Array, numbers: Int64s) -> Int64s:
        """The last epoch whose rows each window includes: from the table if it is open, from its skip point if not."""
        rows = self._table.find(keys, numbers)
        epochs = np.where(rows >= 0, self._table.window_versions(np.maximum(rows, 0))[0], 0)
        gone = np.flatnonzero(rows < 0)
        if len(gone):
            epochs[gone] = self._skips.covered(keys.take(pa.array(gone)), numbers[gone])
        return epochs

    def end_replay(self, positions: list[int]) -> None:
        """Check that state and counters after the replay are those of the last mark. Raises ReplayDiverged."""
        mark = self._last
        if mark is None:
            return
        changes = self.store.changes(_NOTHING)
        found = {
            "windows opened": changes.footprints.num_rows,
            "windows closed": changes.closed.num_rows + changes.transient.num_rows,
            "open windows": self.store.live - mark.open_windows,
            "rows": self._processor.sequence - mark.sequence,
            "watermark": self._watermark_ms - mark.watermark_ms,
            "positions": sum(at > logged for at, logged in zip(positions, self.offsets_of(mark), strict=True)),
        }
        wrong = [f"{what} differ by {by}" for what, by in found.items() if by]
        if wrong:
            raise ReplayDiverged(
                f"query {self._name!r}: the replay up to epoch {mark.epoch} did not repeat what was done before "
                f"({', '.join(wrong)}). The operator or a step gives different results for the same input; make it "
                "deterministic, or start under another query name"
            )
        self._last = None
        self._skips = SkipPoints(self._seed)
        self._next_wall_ms = self._processor.next_wall_ms
