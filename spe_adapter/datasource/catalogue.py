"""The catalogue of a source, for the driver: the streams that the source reads, and their offsets.

Invariants:
* The offsets of a stream come from the sidecar, at the time of the call.
* An option that gives a position for each stream must name exactly the streams that are read.
"""

import re
from collections.abc import Iterable, Mapping

from logstore.client.blocking import Client
from logstore.client.errors import READ_TOPIC, UNKNOWN_TOPIC_OR_PARTITION, SidecarRefused
from logstore.errors import InvalidConfig
from spe_adapter.datasource.offsets import EARLIEST, LATEST, Offsets, TopicPartition, names
from spe_adapter.datasource.options import SourcePosition, Strategy, Subscription


class Catalogue:
    """Looks up streams and offsets. Raises the client's errors, and InvalidConfig for options that contradict the
    streams of the sidecar.
    """

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription

    def streams(self, known: Iterable[TopicPartition] = ()) -> list[TopicPartition]:
        """The streams to read now, sorted. A missing topic is left out if it is in `known` (it was deleted), and
        refused otherwise.
        """
        if self._subscription.assign:
            return list(self._subscription.assign)
        wanted = self._subscription.topics
        found = self._client.topics(wanted or None)
        if not wanted:
            pattern = re.compile(self._subscription.pattern)
            found = {
                name: info
                for name, info in found.items()
                if not info.internal and not info.error and pattern.fullmatch(name)
            }
        known_topics = {stream.topic for stream in known}
        streams: list[TopicPartition] = []
        for name, info in sorted(found.items()):
            if info.error and not (info.error == UNKNOWN_TOPIC_OR_PARTITION and name in known_topics):
                raise SidecarRefused(
                    f"option 'subscribe' names topic {name!r}, at {self._client.where}",
                    code=info.error,
                    right=READ_TOPIC,
                )
            streams += (TopicPartition(name, partition) for partition in info.partitions)
        return streams

    def earliest(self, streams: Iterable[TopicPartition]) -> Offsets:
        """The first offset of each stream that has not been trimmed."""
        return self._lookup(dict.fromkeys(streams, EARLIEST))

    def latest(self, streams: Iterable[TopicPartition]) -> Offsets:
        """The offset that the next record of each stream will get. Deleted streams are left out."""
        found = self._client.offsets(dict.fromkeys(streams, LATEST))
        offsets: Offsets = {}
        for stream, info in found.items():
            if info.error == UNKNOWN_TOPIC_OR_PARTITION:
                continue
            if info.error:
                raise SidecarRefused(f"offsets of {stream} at {self._client.where}", code=info.error, right=READ_TOPIC)
            offsets[stream] = info.offset
        return offsets

    def resolve(self, position: SourcePosition, streams: Iterable[TopicPartition], strategy: Strategy) -> Offsets:
        """The offset of each stream for a position in the options.

        `strategy` applies to streams without a record at or after a timestamp. Raises InvalidConfig and the client's
        errors.
        """
        streams = list(streams)
        wanted = position.each if position.each is not None else dict.fromkeys(streams, position.everywhere or 0)
        missing, extra = set(streams) - set(wanted), set(wanted) - set(streams)
        if missing or extra:
            raise InvalidConfig(
                f"option {position.option!r} must name exactly the partitions that are read ({names(streams)}); "
                f"missing: {names(missing) or 'none'}, too many: {names(extra) or 'none'}"
            )
        if position.is_timestamp:
            return self._by_timestamp(position, wanted, strategy)
        fixed = {stream: offset for stream, offset in wanted.items() if offset >= 0}
        return fixed | self._lookup({stream: offset for stream, offset in wanted.items() if offset < 0})

    def _by_timestamp(
        self, position: SourcePosition, wanted: Mapping[TopicPartition, int], strategy: Strategy
    ) -> Offsets:
        offsets = self._lookup(wanted)
        behind = {stream for stream, offset in offsets.items() if offset < 0}
        if behind and strategy == "error":
            raise InvalidConfig(
                f"option {position.option!r}: {names(behind)} has no record at or after that timestamp; "
                "set 'startingOffsetsByTimestampStrategy' to 'latest' to start at the end there"
            )
        return offsets | self._lookup(dict.fromkeys(behind, LATEST))

    def _lookup(self, timestamps_ms: Mapping[TopicPartition, int]) -> Offsets:
        offsets: Offsets = {}
        for stream, info in self._client.offsets(timestamps_ms).items():
            if info.error:
                raise SidecarRefused(f"offsets of {stream} at {self._client.where}", code=info.error, right=READ_TOPIC)
            offsets[stream] = info.offset
        return offsets
