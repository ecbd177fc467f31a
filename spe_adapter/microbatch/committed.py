"""The last committed epoch of a stateful query: for the driver, from the log, and for the user.

Invariants:
* An epoch is read from the log as a whole: an END and a mark of every partition, all of one epoch. Anything else is an
  error that names what is missing.
* The user's figures are sums over partitions, or the largest value of a partition. Nothing depends on them.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from logstore.client.blocking import Client, TopicPartition
from logstore.client.wire import EARLIEST
from spe_adapter.cec.control import EndPositions
from spe_adapter.epochs.retention import how_lost
from spe_adapter.epochs.scan import find_head
from spe_adapter.errors import StateInconsistent, StateTrimmed
from spe_adapter.microbatch.epoch import Parent, Seconds, TaskReport, newest_of, reader_name
from spe_adapter.microbatch.errors import BatchesMissing


@dataclass(frozen=True, slots=True)
class CommittedEpoch:
    """The last committed epoch: the positions in its END, and for each of its partitions the attempt that counts and
    the epoch of the oldest footprint of an open window. `open_windows`: N of all partitions, as the log has it.
    """

    epoch: int
    progress: EndPositions
    parents: tuple[Parent, ...]
    oldest_epochs: tuple[int, ...]
    max_events_ms: tuple[int | None, ...]
    reports: tuple[TaskReport, ...] = ()
    seconds: float = 0.0
    open_windows: int = 0


def read_committed(client: Client, topic: str, query: str, last_epoch: int) -> CommittedEpoch:
    """The last committed epoch, from the topic. Raises BatchesMissing or StateInconsistent if the topic lacks it."""
    head = find_head(client, TopicPartition(topic, 0), query)
    if head is None or head.end.epoch != last_epoch:
        _check_not_trimmed(client, TopicPartition(topic, 0), query, last_epoch)
        found = "none" if head is None else f"epoch {head.end.epoch}"
        raise BatchesMissing(
            f"query {query}: its last committed epoch is {last_epoch}, but topic {topic!r} holds {found}; write to the "
            "topic that the query wrote to before, or start with a new checkpoint and a new topic"
        )
    progress = EndPositions.from_json(head.end.positions)
    parents, oldest_epochs, max_events_ms, open_windows = [], [], tuple[int | None, ...](), 0
    for partition in range(progress.partitions):
        own = find_head(client, TopicPartition(topic, partition), query)
        if own is None or own.mark is None or own.end.epoch != last_epoch:
            _check_not_trimmed(client, TopicPartition(topic, partition), query, last_epoch)
            raise StateInconsistent(f"query {query}: stream {topic}-{partition} holds no mark of epoch {last_epoch}")
        mark = own.mark
        parents.append(Parent(mark.attempt, mark.emitted, mark.seen, mark.sequence))
        oldest_epochs.append(mark.oldest_epoch)
        open_windows += mark.open_windows
        max_events_ms = newest_of(max_events_ms, mark.max_events_ms)
    return CommittedEpoch(
        last_epoch, progress, tuple(parents), tuple(oldest_epochs), max_events_ms, open_windows=open_windows
    )


def _check_not_trimmed(client: Client, stream: TopicPartition, query: str, last_epoch: int) -> None:
    """Raise StateTrimmed if a stream that lacks the query's last epoch has lost records at its start."""
    start = client.offsets({stream: EARLIEST})[stream].offset
    if start > 0:
        raise StateTrimmed(
            f"query {query}: topic {stream.topic!r} was trimmed: partition {stream.partition} starts at offset {start} "
            f"and no longer holds the query's last epoch, {last_epoch}, so its state is lost. "
            f"{how_lost(client, reader_name(query), stream)}. Start with a new checkpoint and a new topic"
        )


# ---- for the user


@dataclass(frozen=True, slots=True)
class EpochProgress:
    """The figures of an epoch.

    * Sums over the partitions: `windows` (N), `records`, `moved` (rows in the shuffle; fewer than `records` if rows
      were combined), `late`, `results`, `footprints`, `state_bytes`, `delta_bytes`, `checkpoint_bytes` and `log_bytes`
      (bytes that were read from checkpoints and from the log to open state).
    * The largest value of a partition: `extent` (q), `load_seconds` and each of `task_seconds`.
    * `how` counts partitions by the origin of their state. `started_ms` is the start of the first task, by the clock of
      its host.
    * `checkpoint_epoch`: the driver knows a complete checkpoint of every partition up to this epoch; None without.
    * `checkpoint_error` names the first partition whose host cannot write checkpoints or whose last checkpoint failed,
      with the reason; empty without such a partition.

    Before the first epoch of this incarnation, fields that the log does not have are empty or 0.
    """

    batch: int
    epoch: int
    closing: bool
    watermark_ms: int
    late_watermark_ms: int
    windows: int
    extent: int
    records: int
    moved: int
    late: int
    results: int
    footprints: int
    state_bytes: int
    delta_bytes: int
    how: Mapping[str, int]
    load_seconds: float
    task_seconds: Seconds
    started_ms: int
    seconds: float
    checkpoint_epoch: int | None = None
    checkpoint_bytes: int = 0
    log_bytes: int = 0
    checkpoint_error: str = ""


def progress_of(last: CommittedEpoch) -> EpochProgress:
    """A committed epoch as its user sees it."""
    reports = last.reports
    names = Seconds.__slots__
    return EpochProgress(
        batch=last.progress.batch,
        epoch=last.epoch,
        closing=last.progress.closing,
        watermark_ms=last.progress.watermark_ms,
        late_watermark_ms=last.progress.late_watermark_ms,
        windows=sum(report.open_windows for report in reports) if reports else last.open_windows,
        extent=max((report.extent for report in reports), default=0),
        records=sum(report.records for report in reports),
        moved=sum(report.moved for report in reports),
        late=sum(report.late for report in reports),
        results=sum(report.results for report in reports),
        footprints=sum(report.footprints for report in reports),
        state_bytes=sum(report.state_bytes for report in reports),
        delta_bytes=sum(report.delta_bytes for report in reports),
        how=Counter(report.how for report in reports),
        load_seconds=max((report.load_seconds for report in reports), default=0.0),
        task_seconds=Seconds(
            *(max((getattr(report.seconds, name) for report in reports), default=0.0) for name in names)
        ),
        started_ms=min((report.started_ms for report in reports), default=0),
        seconds=last.seconds,
        checkpoint_epoch=_checkpoint_epoch(last.progress),
        checkpoint_bytes=sum(report.checkpoint_bytes for report in reports),
        log_bytes=sum(report.log_bytes for report in reports),
        checkpoint_error=next(
            (
                f"partition {report.partition}, host {report.host}: {report.checkpoint_error}"
                for report in reports
                if report.checkpoint_error
            ),
            "",
        ),
    )


def _checkpoint_epoch(progress: EndPositions) -> int | None:
    known = [checkpoint for checkpoint in progress.checkpoints if checkpoint is not None]
    return min(epoch for _, epoch in known) if known and len(known) == progress.partitions else None
