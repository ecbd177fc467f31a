"""Which streams and which offsets a command line means: TOPIC or TOPIC:PARTITION, and an offset by name or by time."""

from typing import Final

from logstore.client.admin import STREAMS_PER_REQUEST
from logstore.client.blocking import Client, TopicPartition
from logstore.client.errors import DESCRIBE_TOPIC, SidecarRefused
from logstore.client.wire import EARLIEST, LATEST
from logstore.commands.output import UsageError, parse_time

_NO_RECORD: Final = -1
MOMENTS: Final = {"earliest": EARLIEST, "latest": LATEST}


def streams_of(client: Client, text: str) -> list[TopicPartition]:
    """All partitions of TOPIC, or the one of TOPIC:PARTITION. Raises UsageError, SidecarRefused."""
    topic, found, partition = text.partition(":")
    count = client.partitions(topic)
    if not found:
        return [TopicPartition(topic, number) for number in range(count)]
    if not (partition.isdecimal() and partition.isascii() and int(partition) < count):
        raise UsageError(f"{text!r}: topic {topic!r} has the partitions 0 to {count - 1}")
    return [TopicPartition(topic, int(partition))]


def parse_moment(text: str) -> int:
    """`earliest`, `latest`, or a time, as a timestamp of the Kafka protocol. Raises UsageError."""
    return MOMENTS[text] if text in MOMENTS else parse_time(text)


def offsets_at(client: Client, streams: list[TopicPartition], moment: int) -> dict[TopicPartition, int]:
    """The first offset at or after a moment; the end of a stream that has no such record. Raises SidecarRefused."""
    found: dict[TopicPartition, int] = {}
    for at in range(0, len(streams), STREAMS_PER_REQUEST):
        some = streams[at : at + STREAMS_PER_REQUEST]
        answers = client.offsets(dict.fromkeys(some, moment))
        for stream in some:
            if answers[stream].error:
                raise SidecarRefused(
                    f"offsets of {stream} at {client.where}", code=answers[stream].error, right=DESCRIBE_TOPIC
                )
            found[stream] = answers[stream].offset
    behind = [stream for stream, offset in found.items() if offset == _NO_RECORD]
    return found | (offsets_at(client, behind, LATEST) if behind else {})
