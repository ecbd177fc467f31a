"""Forks a query: a new query begins in a new topic with the state, and the position in the input, of an epoch.

The new topic gets one epoch: a footprint of every window that was open at the end of the original's epoch, a mark that
says so (a rebase), and an END with the positions of that epoch. The new checkpoint is rebuilt from the input that the
original noted with the epoch. Both queries then go on independently; no result of the original is copied.

Invariants:
* Nothing of the original is changed, and nobody is fenced: it may run meanwhile.
* Before the first change it is certain that the log, or a checkpoint and the log behind it, has the whole state of the
  epoch, that the log has the input of the epoch, that the new topic
  is missing or empty, and that the checkpoint directory is empty.
* The new query is a registered reader of its topic before its first epoch is there: retention does not take the epoch
  until the query starts, within the limits of every reader.
* The new query's id follows from the original's, the epoch, the topic and the checkpoint: an interrupted fork is made
  complete by the same call. Until then a query on the unfinished checkpoint is refused (`TopicTaken`).

Source: docs/decisions/0030; CEC paper, section II.B; Spark's checkpoint layout.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.client.blocking import Client, TopicPartition
from logstore.client.errors import UNKNOWN_TOPIC_OR_PARTITION, SidecarRefused
from logstore.client.network import Network
from logstore.client.wire import LATEST
from logstore.format.epoch_api import TaskOutput
from logstore.format.reader_api import LOG_START
from spe_adapter.cec.control import EndPositions, Mark, encode_footprints, encode_mark
from spe_adapter.checkpoint.settings import CheckpointSettings
from spe_adapter.epochs.client import StagedStream, TaskAttempt, commit, connect, describe, take_over
from spe_adapter.epochs.lookup import StandingEpoch, only_query, standing_epoch
from spe_adapter.epochs.retention import HeldStreams
from spe_adapter.host import Host, ThisHost
from spe_adapter.microbatch.epoch import log_epoch, reader_name
from spe_adapter.microbatch.errors import ForkRefused
from spe_adapter.microbatch.options import parse_stateful
from spe_adapter.microbatch.state_loader import committed_windows
from spe_adapter.spark_checkpoint.files import LocalCheckpoint, local_path, query_of
from spe_adapter.spark_checkpoint.planned import Planned
from spe_adapter.tools.rebuild import rebuild

_SETTINGS: Final = ("retention.ms", "retention.bytes", "segment.bytes", "max.message.bytes")
"""The settings of the original's topic that the new topic gets."""


class Fork(NamedTuple):
    """The result of a fork: the new query's id, the batch after which it continues, the epoch of the original, and the
    number of open windows that it begins with.
    """

    query: str
    batch: int
    epoch: int
    windows: int


class _Origin(NamedTuple):
    """The state and the input to begin with: of a query in a topic, as of an epoch. `checkpoints`: where those of the
    query are.
    """

    topic: str
    query: str
    at: StandingEpoch
    planned: Planned
    checkpoints: CheckpointSettings | None


class _State(NamedTuple):
    """A partition's mark, and its open windows."""

    mark: Mark
    windows: list[pa.RecordBatch]


def fork(
    *,
    topic: str,
    to: str,
    checkpoint: str | Path,
    query: str | None = None,
    batch: int | None = None,
    epoch: int | None = None,
    options: Mapping[str, str],
    network: Network | None = None,
) -> Fork:
    """Create a new query from the state of `query` (None: the only query in `topic`), as of the end of a Spark batch
    or of an epoch of the log (default: the newest).

    Start the new query with `checkpoint`, a new directory on this machine. The query writes into the topic `to`, which
    this function creates, and continues with the input after that batch. Nothing protects this input from retention.
    Records of the new topic that the query needs are kept until it starts, because the query is registered as a reader,
    unless `options` allow trimming. `options` are the options of the query: `kafka.bootstrap.servers` is required, and
    `checkpoints` if the log begins after a checkpoint. `network` reaches the sidecar; None: the host's network.

    Raises ForkRefused, CheckpointRefused, QueryNotFound, EpochNotFound, StateTrimmed and the sidecar's errors before it
    changes anything. After an interruption, call the function again.
    """
    parsed, host = parse_stateful(options, topic), ThisHost(network)
    root = local_path(str(checkpoint))
    with connect(parsed.sink, host.network) as client:
        query = only_query(client, parsed.topic, query)
        origin = _origin(client, parsed.topic, query, epoch=epoch, batch=batch, checkpoints=parsed.checkpoints)
        fresh = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{origin.query}/{origin.at.epoch}/{to}/{root}"))
        progress = _progress(origin)
        new_epoch = log_epoch(0, progress.batch, closing=progress.closing)
        made = _is_made(client, to, fresh, new_epoch, origin)
        _check_directory(root, fresh)
        states = [_state(client, origin, partition) for partition in range(progress.partitions)]
        if not made:
            _create(client, origin, to)
        if not parsed.allow_trimming:
            needed = {TopicPartition(to, partition): LOG_START for partition in range(progress.partitions)}
            HeldStreams(reader_name(fresh)).register(client, needed)
        if not made:
            _write(client, host, to, fresh, progress, states)
    rebuild(root, fresh, origin.planned)
    windows = sum(mark.open_windows for mark, _ in states)
    return Fork(fresh, progress.batch, origin.at.epoch, windows)


# ---- what is there


def _origin(
    client: Client,
    topic: str,
    query: str,
    *,
    epoch: int | None,
    batch: int | None,
    checkpoints: CheckpointSettings | None,
) -> _Origin:
    at = standing_epoch(client, TopicPartition(topic, 0), query, epoch=epoch, batch=batch)
    planned = at.progress.planned
    if planned is None or planned.offsets is None:
        raise ForkRefused(
            f"query {query}: the log of topic {topic!r} does not record the input of epoch {at.epoch}, so no "
            "checkpoint can be made of it (the continuous runner has none; a list of offsets may be too long to be "
            "noted)"
        )
    if planned.files:
        raise ForkRefused(
            f"query {query} reads files, and the list of files it has read is only in its own checkpoint: a query "
            "over files cannot be forked"
        )
    return _Origin(topic, query, at, planned, checkpoints)


def _is_made(client: Client, to: str, fresh: str, new_epoch: int, origin: _Origin) -> bool:
    """Whether the new topic has the new query's first epoch already. Raises ForkRefused if it has something else."""
    known = describe(client, fresh).last_epoch
    if known is not None:
        if known != new_epoch:
            raise ForkRefused(
                f"query {origin.query} was forked into topic {to!r} before, as query {fresh}, which has gone on to "
                f"epoch {known}; name another topic and checkpoint"
            )
        return True
    info = client.topics([to])[to]
    if info.error == UNKNOWN_TOPIC_OR_PARTITION:
        return False
    if info.error:
        raise SidecarRefused(f"topic {to!r} at {client.where}", code=info.error)
    partitions = origin.at.progress.partitions
    if len(info.partitions) < partitions:
        raise ForkRefused(f"topic {to!r} has {len(info.partitions)} partitions; the state has {partitions}")
    ends = client.offsets(dict.fromkeys((TopicPartition(to, partition) for partition in info.partitions), LATEST))
    used = [str(stream) for stream, found in ends.items() if found.offset]
    if used:
        raise ForkRefused(f"topic {to!r} is not empty ({', '.join(used)} has records); a fork starts in a new topic")
    return False


def _check_directory(root: Path, fresh: str) -> None:
    owner = query_of(LocalCheckpoint(root))
    if owner != fresh and root.is_dir() and any(root.iterdir()):
        whose = "is not empty" if owner is None else f"is the checkpoint of query {owner}"
        raise ForkRefused(f"{root} {whose}; a fork starts with a new checkpoint")


# ---- the new query's first epoch


def _progress(origin: _Origin) -> EndPositions:
    """The positions of the new query's first epoch: those of the original's, without its history."""
    former = origin.at.progress
    return EndPositions(
        generation=0,
        batch=former.batch,
        closing=former.closing,
        late_watermark_ms=former.late_watermark_ms,
        watermark_ms=former.watermark_ms,
        max_event_ms=former.max_event_ms,
        partitions=former.partitions,
        layout=former.layout,
        planned=former.planned,
        results=former.results,
        wall_ms=former.wall_ms,
    )


def _state(client: Client, origin: _Origin, partition: int) -> _State:
    """The original's mark of a partition, and its open windows. Raises StateTrimmed and StateInconsistent."""
    stream = TopicPartition(origin.topic, partition)
    state = committed_windows(client, stream, origin.query, origin.at.epoch, origin.checkpoints)
    mark = state.eventual.mark
    if mark is None:
        raise ForkRefused(f"query {origin.query}: stream {stream} holds no mark of epoch {origin.at.epoch}")
    return _State(mark, [batch for group in state.groups for batch in group.batches])


def _create(client: Client, origin: _Origin, to: str) -> None:
    """Create the new topic, unless it is there."""
    if client.topics([to])[to].error == UNKNOWN_TOPIC_OR_PARTITION:
        settings = client.topic_configs(origin.topic)
        own: dict[str, str] = {name: settings[name] for name in _SETTINGS if name in settings}
        client.create_topic(to, origin.at.progress.partitions, own)


def _write(client: Client, host: Host, to: str, fresh: str, progress: EndPositions, states: Sequence[_State]) -> None:
    """Write and commit the new query's first epoch."""
    incarnation = f"fork-{host.new_token()}"
    take_over(client, fresh, incarnation)
    epoch = log_epoch(0, progress.batch, closing=progress.closing)
    outputs = []
    for mark, windows in states:
        attempt = TaskAttempt(fresh, incarnation, epoch, mark.partition, incarnation)
        outputs.append(_stage(client, host, TopicPartition(to, mark.partition), attempt, mark, windows))
    commit(client, fresh, incarnation, epoch, outputs, progress.to_json())


def _stage(
    client: Client,
    host: Host,
    stream: TopicPartition,
    attempt: TaskAttempt,
    mark: Mark,
    windows: list[pa.RecordBatch],
) -> TaskOutput:
    """Stage a partition's windows and its mark, as of the new epoch."""
    written = sum(batch.num_rows for batch in windows)
    whole = replace(
        mark,
        query=attempt.query,
        epoch=attempt.epoch,
        attempt=attempt.attempt,
        emitted=mark.emitted + written,
        oldest_epoch=attempt.epoch,
        rebase=True,
    )
    now_ms = host.wall_ms()
    controls = [
        control
        for batch in windows
        for control in encode_footprints(attempt.query, attempt.epoch, batch, np.ones(batch.num_rows, np.bool_), now_ms)
    ]
    return attempt.output(StagedStream(client, attempt, stream).finish([*controls, encode_mark(whole, now_ms)]))
