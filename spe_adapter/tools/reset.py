"""Resets a query to an earlier batch, after which Spark runs the later batches again.

A reset is an epoch of a new generation in the log, whose END names the epoch to go back to. The epochs in between are
undone: readers of state ignore them. Their results stay in the log, and the batches that run again add theirs.

Invariants:
* Before the first change it is certain that the log, or a checkpoint and the log behind it, has the whole state of the
  batch, and that Spark's checkpoint (if
  given) can go back to the batch.
* The state goes back first, then the checkpoint, so that an interrupted reset can be repeated.
* The query's former incarnation is fenced.

Source: docs/decisions/0010; Spark's checkpoint layout (offsets, commits and sources, one file per batch).
"""

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from logstore.client.blocking import Client, TopicPartition
from logstore.client.network import Network
from logstore.format.epoch_api import TaskOutput
from logstore.format.reader_api import LOG_START
from spe_adapter.cec.control import End, EndPositions, Mark, encode_mark
from spe_adapter.epochs.client import (
    StagedStream,
    TaskAttempt,
    commit,
    connect,
    describe,
    incarnation_number,
    take_over,
)
from spe_adapter.epochs.retention import EpochOffsets, HeldStreams
from spe_adapter.epochs.scan import find_head, standing_epochs
from spe_adapter.host import Host, ThisHost
from spe_adapter.microbatch.epoch import log_epoch, reader_name
from spe_adapter.microbatch.errors import ResetRefused
from spe_adapter.microbatch.options import StatefulOptions, parse_stateful
from spe_adapter.microbatch.state_loader import committed_windows
from spe_adapter.spark_checkpoint.files import COMMITS, OFFSETS, SOURCES, local_path

_PER_BATCH: Final = re.compile(r"(\d+)(\.compact)?")


class Reset(NamedTuple):
    """The result of a reset: the batch whose state the query has now, the epoch of that batch in the log, the epoch of
    the reset, and the files removed from the checkpoint.
    """

    batch: int
    epoch: int
    reset_epoch: int
    files: tuple[str, ...]


def reset(
    *,
    topic: str,
    query: str,
    batch: int,
    checkpoint: str | Path | None = None,
    options: Mapping[str, str],
    network: Network | None = None,
) -> Reset:
    """Reset the state of `query` (Spark's query id) in `topic` to the end of `batch`.

    The query must not run; a running query fails at its next epoch. `checkpoint` is its checkpoint directory on this
    machine, from which this function removes the files of later batches. If the checkpoint is elsewhere, remove every
    file with a number above `batch` from its directories `offsets` and `commits` before the query starts again; until
    then the query refuses to start. `options` are the options of the query: `kafka.bootstrap.servers` is required, and
    `checkpoints` if the log begins after a checkpoint. `network` reaches the sidecar; None: the host's network.

    Raises ResetRefused, StateTrimmed and the sidecar's errors before it changes anything.
    """
    parsed, host = parse_stateful(options, topic), ThisHost(network)
    sink = parsed.sink
    directory = None if checkpoint is None else local_path(str(checkpoint))
    newer = [] if directory is None else _newer_files(directory, batch)
    with connect(sink, host.network) as client:
        if describe(client, query).last_epoch is None:
            raise ResetRefused(f"query {query} is not known at {client.where}; its id is in the checkpoint's metadata")
        newest, end = _find(client, parsed.topic, query, batch)
        progress = EndPositions.from_json(end.positions)
        held = None if parsed.allow_trimming else _needed(client, parsed.topic, query, end.epoch, progress.partitions)
        reader = HeldStreams(reader_name(query))
        if held is not None:
            # From now on, although the query may still run: its incarnation is not fenced yet, and does not know.
            reader.register(client, held)
        marks = [_whole_mark(client, parsed, partition, query, end.epoch) for partition in range(progress.partitions)]
        incarnation = f"reset-{host.new_token()}"
        found = take_over(client, query, incarnation)
        if held is not None:
            # Whoever idles in an older incarnation would acknowledge its own position again.
            reader.incarnation_number = incarnation_number(client, query, incarnation)
            reader.register(client, held)
        if found != newest.epoch:
            raise ResetRefused(f"query {query} has just committed epoch {found}; stop it, then reset it")
        generation = EndPositions.from_json(newest.positions).generation + 1
        back = replace(progress, generation=generation, reset_to=end.epoch)
        epoch = log_epoch(generation, batch, closing=False)
        outputs = [
            _stage(client, parsed, host, TaskAttempt(query, incarnation, epoch, mark.partition, incarnation), mark)
            for mark in marks
        ]
        commit(client, query, incarnation, epoch, outputs, back.to_json())
    for path in newer:
        path.unlink(missing_ok=True)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return Reset(batch, end.epoch, epoch, tuple(map(str, newer)))


def _find(client: Client, topic: str, query: str, batch: int) -> tuple[End, End]:
    """The newest END of the query, and the END of the batch. Raises ResetRefused if it is missing or was undone."""
    newest: End | None = None
    with closing(standing_epochs(client, TopicPartition(topic, 0), query)) as found:
        for end, progress in found:
            newest = newest or end
            if progress.batch == batch:
                return newest, end
            if progress.batch < batch:
                raise ResetRefused(
                    f"query {query}: batch {batch} is not in topic {topic!r}, the newest there is {progress.batch}"
                )
    raise ResetRefused(
        f"query {query}: the log of topic {topic!r} does not hold batch {batch} (any longer); choose a newer one"
    )


def _needed(client: Client, topic: str, query: str, epoch: int, partitions: int) -> dict[TopicPartition, int]:
    """What a recovery of that epoch reads: the query has acknowledged what its newest epoch does not need."""
    needed: dict[TopicPartition, int] = {}
    for stream in (TopicPartition(topic, partition) for partition in range(partitions)):
        head = find_head(client, stream, query, epoch=epoch)
        offset = None
        if head is not None and head.mark is not None:
            offset = EpochOffsets(stream, query).before(client, head.mark.oldest_epoch)
        needed[stream] = LOG_START if offset is None else offset
    return needed


def _whole_mark(client: Client, options: StatefulOptions, partition: int, query: str, epoch: int) -> Mark:
    """The mark of an epoch, if all windows of that epoch can be recovered. Raises StateTrimmed and ResetRefused."""
    stream = TopicPartition(options.topic, partition)
    mark = committed_windows(client, stream, query, epoch, options.checkpoints).eventual.mark
    if mark is None:
        raise ResetRefused(f"query {query}: stream {stream} holds no mark of epoch {epoch}")
    return mark


def _stage(client: Client, options: StatefulOptions, host: Host, attempt: TaskAttempt, mark: Mark) -> TaskOutput:
    """Stage a mark again, as the mark of the new epoch."""
    stream = TopicPartition(options.topic, mark.partition)
    again = replace(mark, epoch=attempt.epoch, attempt=attempt.attempt, rebase=False)
    return attempt.output(StagedStream(client, attempt, stream).finish([encode_mark(again, host.wall_ms())]))


def _newer_files(checkpoint: Path, batch: int) -> list[Path]:
    """The files of batches after `batch`, newest first. Raises ResetRefused if Spark cannot continue after `batch`."""
    for name in (OFFSETS, COMMITS):
        if not (checkpoint / name / str(batch)).is_file():
            raise ResetRefused(
                f"{checkpoint} does not hold batch {batch} ({name}/{batch} is missing): Spark keeps the last 100 "
                "batches unless spark.sql.streaming.minBatchesToRetain is larger"
            )
    found: list[tuple[int, Path]] = []
    for directory in (checkpoint / OFFSETS, checkpoint / COMMITS, *sorted((checkpoint / SOURCES).glob("*"))):
        for path in directory.iterdir() if directory.is_dir() else ():
            match = _PER_BATCH.fullmatch(path.name)
            if match is None or int(match[1]) <= batch:
                continue
            if match[2] is not None:
                raise ResetRefused(f"{path} mixes batches up to {match[1]}: this source cannot go back to {batch}")
            found.append((int(match[1]), path))
    return [path for _, path in sorted(found, reverse=True)]
