"""What a stateful query tells of its last epoch.

Invariant: sums over partitions where they make sense, the worst partition otherwise; nothing here is used to decide
anything.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from spe_adapter.microbatch.driver import Committed
from spe_adapter.microbatch.epoch import Seconds


@dataclass(frozen=True, slots=True)
class EpochProgress:
    """An epoch. Sums over the partitions: `windows` (N), `records`, `moved` (rows that the shuffle carried: fewer than
    `records` where they were combined), `late`, `results`, `footprints`, `state_bytes`, `delta_bytes`. Of the worst
    partition: `extent` (q), `load_seconds` and each of `task_seconds`. `how` counts partitions by where their state
    came from; `started_ms` is when the first task began, by its host's clock. All of it but what the log says of the
    epoch is empty or 0 until this run has had one.
    """

    batch: int
    epoch: int
    closing: bool
    watermark_ms: int
    late_ms: int
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


def progress_of(last: Committed) -> EpochProgress:
    """The progress that a committed epoch makes."""
    reports = last.reports
    names = Seconds.__slots__
    return EpochProgress(
        batch=last.progress.batch,
        epoch=last.epoch,
        closing=last.progress.closing,
        watermark_ms=last.progress.watermark_ms,
        late_ms=last.progress.late_ms,
        windows=sum(report.open_windows for report in reports),
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
    )
