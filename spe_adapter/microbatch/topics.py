"""The topic of a stateful query: creates, checks and trims it, without losing state that is needed.

Invariants:
* A topic that a query creates keeps results for Kafka's seven days; what open windows need stays, as the query is a
  registered reader (`microbatch.registration`).
* The driver trims no record that an open window or the last epoch needs.
* A topic gets more partitions only if no key of another writer moves.

Source: CEC paper, section II.B (the extent is what recovery reads); Kafka's topic settings.
"""

import logging
from collections.abc import Mapping
from contextlib import closing, suppress

from logstore.client.blocking import Client, TopicPartition
from logstore.client.errors import DESCRIBE_OR_CREATE, UNKNOWN_TOPIC_OR_PARTITION, SidecarRefused
from logstore.client.wire import LATEST
from logstore.errors import InvalidPartitions, TopicExists
from logstore.format.control import MARK_TYPE
from spe_adapter.cec.control import holds_progress
from spe_adapter.epochs.retention import KEEP_ALL, NEW_TOPIC
from spe_adapter.epochs.scan import HEAD_BYTES, ControlScan, ends
from spe_adapter.errors import TopicTaken
from spe_adapter.spark_checkpoint.planned import rebuild_command

_log = logging.getLogger(__name__)


def prepare_topic(
    client: Client, topic: str, partitions: int | None, default: int, settings: Mapping[str, str] = NEW_TOPIC
) -> int:
    """Create the topic if it is missing, and add partitions if it has too few; the number of state partitions.

    That number is `partitions`, or else that of the topic, or else `default`. Raises InvalidPartitions (too few in a
    topic that others use).
    """
    info = client.topics([topic])[topic]
    if info.error == UNKNOWN_TOPIC_OR_PARTITION:
        try:
            client.create_topic(topic, partitions or default, settings)
        except TopicExists:
            return prepare_topic(client, topic, partitions, default, settings)
        return partitions or default
    if info.error:
        raise SidecarRefused(f"topic {topic!r} at {client.where}", code=info.error, right=DESCRIBE_OR_CREATE)
    there = len(info.partitions)
    if partitions is None:
        return there
    if partitions > there:
        _grow(client, topic, there, partitions, client.topic_configs(topic))
    return partitions


def prepare_late_topic(client: Client, topic: str, partitions: int) -> None:
    """Create the topic for late rows if it is missing. Raises InvalidPartitions if it has too few partitions."""
    info = client.topics([topic])[topic]
    if info.error == UNKNOWN_TOPIC_OR_PARTITION:
        with suppress(TopicExists):
            client.create_topic(topic, partitions, NEW_TOPIC)
            return
        info = client.topics([topic])[topic]
    if info.error:
        raise SidecarRefused(f"topic {topic!r} at {client.where}", code=info.error, right=DESCRIBE_OR_CREATE)
    if len(info.partitions) < partitions:
        raise InvalidPartitions(
            f"{partitions} state partitions, but topic {topic!r}, for late rows, has {len(info.partitions)}; give it "
            "more partitions (kafka-topics.sh --alter --partitions), or name another topic"
        )


def _grow(client: Client, topic: str, there: int, partitions: int, settings: Mapping[str, str]) -> None:
    """Add partitions up to the number of the query's state partitions, if that moves no key of another writer.

    The query's next epoch redistributes the state (`epoch.Rebase`). The topic must hold this state alone: it must have
    the settings that queries give topics, now or formerly, and each stream must be empty or have a mark.
    """
    others = min(
        ([name for name, value in made.items() if settings.get(name) != value] for made in (NEW_TOPIC, KEEP_ALL)),
        key=len,
    )
    if not others:
        others = [
            f"the records in partition {partition}"
            for partition in range(there)
            if not _is_a_querys(client, TopicPartition(topic, partition))
        ]
    if others:
        raise InvalidPartitions(
            f"{partitions} state partitions, but topic {topic!r} has {there}, and other writers use it (see "
            f"{others[0]}): more partitions would move their keys. Use at most {there}, give the topic more "
            "partitions yourself (kafka-topics.sh --alter --partitions), or write to a topic of its own"
        )
    try:
        client.create_partitions(topic, partitions)
    except InvalidPartitions:
        # Another driver added them, or the answer to a first request was lost.
        if client.partitions(topic) < partitions:
            raise
    _log.info("topic %r has %d partitions now, %d before", topic, partitions, there)


def _is_a_querys(client: Client, stream: TopicPartition) -> bool:
    """Whether a stream is empty, or has a mark of a stateful query."""
    if client.offsets({stream: LATEST})[stream].offset == 0:
        return True
    with ControlScan(client, stream, types=(MARK_TYPE,)) as scan:
        return next(scan, None) is not None


def refuse_taken(client: Client, topic: str, query: str) -> None:
    """Refuse a topic into which another query has written last. Raises TopicTaken.

    A query without epochs is new: its checkpoint is new, or was lost. If it was lost, all results would be written a
    second time, and Spark does not notice.
    """
    for partition in range(client.partitions(topic)):
        with closing(ends(client, TopicPartition(topic, partition), first_bytes=HEAD_BYTES)) as found:
            newest = next((end for end, _ in found), None)
        if newest is None or newest.query == query:
            continue
        kept = "state and results" if holds_progress(newest) else "output"
        raise TopicTaken(
            f"query {query} is new (its checkpoint is empty), but topic {topic!r} holds the {kept} of query "
            f"{newest.query}, up to epoch {newest.epoch} (partition {partition}). If this is the same query with a "
            f"lost checkpoint, rebuild the checkpoint: {rebuild_command(newest.query)}. Otherwise write to a new "
            "topic, or delete this one; or, if both queries may write here, set the option 'allowOtherQueries' to true"
        )


def trim(client: Client, stream: TopicPartition, query: str, oldest_epoch: int, before_ms: int) -> int:
    """Delete the records that are older than `before_ms` and before the group of `oldest_epoch`, so that no open window
    needs them; the new start of the stream, -1 if it is unknown, 0 if nothing was deleted.
    """
    info = client.offsets({stream: before_ms})[stream]
    needed = _end_before(client, stream, query, oldest_epoch)
    if info.error or needed is None:
        return -1
    # A negative offset: all records are older than `before_ms`.
    before_offset = needed if info.offset < 0 else min(needed, info.offset)
    return client.delete_records(stream, before_offset) if before_offset > 0 else 0


def _end_before(client: Client, stream: TopicPartition, query: str, epoch: int) -> int | None:
    """The offset after the last END of the query before that epoch; None without an older END."""
    with closing(ends(client, stream)) as found:
        return next((offset for end, offset in found if end.query == query and end.epoch < epoch), None)
