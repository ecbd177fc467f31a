"""The topic of a stateful query: made, checked and trimmed, so that it never loses state that is still needed.

Invariants:
* A topic that trims itself by age or size is refused unless the user says that it may: it would forget open windows.
* The driver trims nothing that an open window or the last epoch needs.

Source: CEC paper, section II.B (the extent is what recovery reads); Kafka's topic settings.
"""

from collections.abc import Mapping
from typing import Final

from logstore.client.blocking import Client, TopicPartition
from logstore.client.errors import UNKNOWN_TOPIC_OR_PARTITION, Refused
from logstore.errors import InvalidConfig, InvalidPartitions, TopicExists
from logstore.format.batch import parse_header
from logstore.format.control import END_TYPE
from spe_adapter.cec.control import End, decode
from spe_adapter.microbatch.logscan import Scan

_KEEP_ALL: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}


def prepare_topic(client: Client, topic: str, partitions: int | None, default: int, *, allow_trimming: bool) -> int:
    """Make the topic if there is none; the number of state partitions (given, or the topic's, or `default`).

    Raises InvalidPartitions (too few) or InvalidConfig (a topic that trims itself).
    """
    info = client.topics([topic])[topic]
    if info.error == UNKNOWN_TOPIC_OR_PARTITION:
        try:
            client.create_topic(topic, partitions or default, _KEEP_ALL)
        except TopicExists:
            return prepare_topic(client, topic, partitions, default, allow_trimming=allow_trimming)
        return partitions or default
    if info.error:
        raise Refused(f"topic {topic!r} at {client.where}", code=info.error)
    there = len(info.partitions)
    if partitions is not None and partitions > there:
        raise InvalidPartitions(
            f"{partitions} state partitions, but topic {topic!r} has {there}; a state partition is a partition of its "
            f"topic: use at most {there}, or give the topic more partitions"
        )
    settings = client.topic_configs(topic)
    trims = {name: settings[name] for name in _KEEP_ALL if settings.get(name, "-1") != "-1"}
    if trims and not allow_trimming:
        said = ", ".join(f"{name}={value}" for name, value in sorted(trims.items()))
        raise InvalidConfig(
            f"topic {topic!r} trims itself ({said}), which can cost the state of open windows: set these to -1 and use "
            "the option 'retention', which keeps what is needed; or set 'allowTrimming' to true if no window stays "
            "open for so long"
        )
    return partitions if partitions is not None else there


def trim(client: Client, stream: TopicPartition, query: str, oldest_epoch: int, before_ms: int) -> int:
    """Delete records older than `before_ms` that no window open in the state needs: those in front of the group of
    `oldest_epoch`. The new start of the stream.
    """
    info = client.offsets({stream: before_ms})[stream]
    needed = _end_before(client, stream, query, oldest_epoch)
    if info.error or needed is None:
        return -1
    # No record is that young: everything is old, but what is needed stays.
    before_offset = needed if info.offset < 0 else min(needed, info.offset)
    return client.delete_records(stream, before_offset) if before_offset > 0 else 0


def _end_before(client: Client, stream: TopicPartition, query: str, epoch: int) -> int | None:
    """The offset behind the last END of the query in front of that epoch's group; None if nothing is older."""
    with Scan(client, stream, types=(END_TYPE,)) as scan:
        for piece in scan:
            position = 0
            while position < len(piece):
                header = parse_header(piece, position)
                control = decode(piece, position)
                if isinstance(control, End) and control.query == query and control.epoch < epoch:
                    return header.base_offset + 1
                position += header.size_bytes
    return None
