"""From a request to commit to the commit record: which attempts count, what is published, and whether it may be.

Invariant: whoever commits is asked for once it is settled what is published (`make_record`): anybody who may stage for
the query may stage more while a commit waits for its turn.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator

from logstore.epochs.ledger_entries import CommitRecord
from logstore.epochs.parts import Attempt, Publisher, StagingArea, check_complete
from logstore.format.epoch_api import EpochCommitRequest, TaskOutput
from logstore.format.staged import AttemptKey

MayPublish = Callable[[Collection[str]], None]
"""Raises TopicAuthorizationFailed unless whoever commits may write to all these topics."""


def anybody(topics: Collection[str]) -> None:
    """Everybody may publish."""


def _attempts(request: EpochCommitRequest, staging: StagingArea) -> Iterator[tuple[TaskOutput, Attempt | None]]:
    for task in request.tasks:
        key = AttemptKey(request.query, request.incarnation, request.epoch, task.task, task.attempt)
        yield task, staging.get(key)


def named_places(request: EpochCommitRequest, staging: StagingArea) -> set[tuple[str, int]]:
    """The streams that the attempts of a commit have staged output for, by topic and partition."""
    attempts = [attempt for _, attempt in _attempts(request, staging) if attempt is not None]
    parts = [part for attempt in attempts for segment in attempt.segments for part in segment.header.parts]
    return {(part.topic, part.partition) for part in parts}


def make_record(
    request: EpochCommitRequest,
    incarnation_number: int,
    staging: StagingArea,
    publisher: Publisher,
    may_publish: MayPublish,
) -> CommitRecord:
    """The record of the commit that a request asks for. Raises StagedMissing, UnknownTopicOrPartition, MessageTooLarge,
    TryAgain, and what `may_publish` raises.
    """
    size_bytes: Counter[tuple[str, int]] = Counter()
    for task, attempt in _attempts(request, staging):
        if not task.segments:
            continue
        key = AttemptKey(request.query, request.incarnation, request.epoch, task.task, task.attempt)
        check_complete(key, attempt, task.segments)
        if attempt is not None:
            for part in (part for segment in attempt.segments for part in segment.header.parts):
                size_bytes[part.topic, part.partition] += part.length_bytes
    published = sorted(place for place, group_bytes in size_bytes.items() if group_bytes)
    may_publish({topic for topic, _ in published})
    targets = []
    for place in published:
        targets.append(publisher.target(*place))
        publisher.check_group(targets[-1], size_bytes[place])
    return CommitRecord(
        query=request.query,
        incarnation=request.incarnation,
        incarnation_number=incarnation_number,
        epoch=request.epoch,
        positions=request.positions,
        tasks=tuple(sorted((task for task in request.tasks if task.segments), key=lambda task: task.task)),
        targets=tuple(targets),
    )
