"""Looks up offsets by position or time: ListOffsets and OffsetForLeaderEpoch.

Invariants: the latest offset is the high watermark, so no client ever sees an offset that is not durable. What clients
have seen is never cut, so no leader epoch ends in front of what a client has read of it. An offset comes with the
leader epoch that wrote its record, or -1, and the latest with the stream's. A failed look-up is an error of its
partition alone.

Sources: Kafka protocol guide; KIP-79 (by timestamp), KIP-101 and KIP-320 (ends of leader epochs), KIP-207 (an end that
is not known yet), KIP-734 (max timestamp), KIP-405, KIP-1005 and KIP-1023 (tiered storage).
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import trio
from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from logstore.errors import CairnError, ChunkUnreachable, EndNotKnown, StorageFailed, TierUnavailable
from logstore.events import LOOK_UP_FAILED
from logstore.kafka.api_types import Api, Broker, Caller
from logstore.kafka.errors import error_code
from logstore.kafka.pace import Pace
from logstore.kafka.wire import respond
from logstore.log.read_patience import ReadPatience
from logstore.log.served import ServedStream

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
_SINCE_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_UNKNOWN = -1
_FIRST_WITH_NOT_AVAILABLE = 5
"""From this version on clients know OFFSET_NOT_AVAILABLE (KIP-207)."""
LOOK_UP_S: Final = 1.0
"""For a look-up by time, when the tier or hosts did not answer another one of the same request: more than the disk
needs."""
EPOCHS_S: Final = 1.0
"""For all that one request reads to find leader epochs: ends of epochs that take longer are told as later ones."""
LOOK_UPS_S, LEAST_LOOK_UP_S = 5.0, 0.005
"""For all look-ups behind that one together, and for each when that is over: of thousands, those that find it on this
host's disk are answered.
"""


class OffsetHandlers:
    """Handlers of requests that look up offsets."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def apis(self) -> list[Api]:
        """The requests served here."""
        return [Api(2, 1, 11, self.list_offsets), Api(23, 2, 4, self.offset_for_leader_epoch)]

    async def list_offsets(self, request: Any, _: Caller) -> ResponsePayload:
        """ListOffsets 1 to 11."""
        asked = [(topic.name, part.partition_index) for topic in request.topics for part in topic.partitions]
        doubled = {where for where, count in Counter(asked).items() if count > 1}
        pace, search = Pace(), _TimeSearch(self._broker)
        topics = []
        for topic in request.topics:
            partitions = []
            for part in topic.partitions:
                await pace.step()
                if (topic.name, part.partition_index) in doubled:
                    answer: Mapping[str, Any] = {"error_code": ErrorCode.invalid_request}
                else:
                    answer = await self._offset(topic.name, part, request.__version__, search)
                partitions.append({"partition_index": part.partition_index, **answer})
            topics.append({"name": topic.name, "partitions": partitions})
        return await respond(request, {"topics": topics})

    async def _offset(self, topic: str, part: Any, version: int, search: "_TimeSearch") -> Mapping[str, Any]:
        try:
            stream = self._broker.engine.store.stream(topic, part.partition_index)
            refused = refuse_leader_epoch(stream, getattr(part, "current_leader_epoch", _UNKNOWN))
            if refused is not ErrorCode.none:
                return {"error_code": refused}
            if part.timestamp < 0 and _SINCE_VERSION.get(part.timestamp, version + 1) > version:
                return {"error_code": ErrorCode.unsupported_version}
            offset, timestamp = await search.find(stream, part.timestamp)
            epoch = await search.epoch(stream, part.timestamp, offset)
        except EndNotKnown:
            is_known = version >= _FIRST_WITH_NOT_AVAILABLE
            return {"error_code": ErrorCode.offset_not_available if is_known else ErrorCode.leader_not_available}
        except CairnError as error:
            if error_code(error) is ErrorCode.kafka_storage_error:
                self._broker.engine.store.report(
                    LOOK_UP_FAILED, stream=f"{topic}-{part.partition_index}", error=str(error)
                )
            return {"error_code": error_code(error)}
        except OSError as error:
            self._broker.engine.store.report(LOOK_UP_FAILED, stream=f"{topic}-{part.partition_index}", error=str(error))
            return {"error_code": error_code(StorageFailed(str(error)))}
        return {
            "error_code": ErrorCode.none,
            "timestamp": timestamp,
            "offset": offset,
            "leader_epoch": epoch,
        }

    async def offset_for_leader_epoch(self, request: Any, _: Caller) -> ResponsePayload:
        """OffsetForLeaderEpoch 2 to 4: the end of a leader epoch, from which clients detect that logs diverged."""
        pace, patience = Pace(), ReadPatience(EPOCHS_S)
        topics = []
        for topic in request.topics:
            partitions = []
            for part in topic.partitions:
                await pace.step()
                found = await self._epoch_end(topic.topic, part, patience)
                partitions.append({"partition": part.partition, **found})
            topics.append({"topic": topic.topic, "partitions": partitions})
        return await respond(request, {"topics": topics})

    async def _epoch_end(self, topic: str, part: Any, patience: ReadPatience) -> Mapping[str, Any]:
        try:
            stream = self._broker.engine.store.stream(topic, part.partition)
            refused = refuse_leader_epoch(stream, part.current_leader_epoch)
            if refused is not ErrorCode.none:
                return {"error_code": refused}
            found = await self._broker.engine.end_of_epoch(stream, part.leader_epoch, patience)
        except CairnError as error:
            return {"error_code": error_code(error)}
        return {"error_code": ErrorCode.none, **({} if found is None else found._asdict())}


class _TimeSearch:
    """The look-ups of one request."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._left_s = math.inf
        """For further look-ups by time: limited when somebody did not answer one."""
        self._patience = ReadPatience(EPOCHS_S)

    async def epoch(self, stream: ServedStream, timestamp: int, offset: int) -> int:
        """The leader epoch that comes with an offset that was found for a timestamp. Raises CairnError."""
        if offset == _UNKNOWN or timestamp == LATEST:
            return _UNKNOWN if offset == _UNKNOWN else stream.leader_epoch
        return await self._broker.engine.leader_epoch_at(stream, offset, self._patience)

    async def find(self, stream: ServedStream, timestamp: int) -> tuple[int, int]:
        """Offset and timestamp, -1 where there is none. Raises CairnError, OSError; EndNotKnown if it may lie behind
        what this host shows: a client that has seen more would take an earlier end for a loss.
        """
        if timestamp in (LATEST, MAX_TIMESTAMP):
            stream.check_end()
        if timestamp == LATEST:
            return stream.high_watermark, _UNKNOWN
        if timestamp == EARLIEST:
            return stream.log_start_offset, _UNKNOWN
        if timestamp in (EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return _in_tier(stream, timestamp), _UNKNOWN
        engine = self._broker.engine
        is_limited, begun_s = self._left_s < math.inf, trio.current_time()
        limit_s = max(LEAST_LOOK_UP_S, min(LOOK_UP_S, self._left_s)) if is_limited else math.inf
        with trio.move_on_after(limit_s):
            try:
                if timestamp == MAX_TIMESTAMP:
                    found = await engine.max_timestamp(stream)
                else:
                    found = await engine.find_timestamp(stream, timestamp)
            except (TierUnavailable, ChunkUnreachable):
                self._left_s = min(self._left_s, LOOK_UPS_S)
                raise
            finally:
                self._left_s -= (trio.current_time() - begun_s) * is_limited
            if found is None:
                stream.check_end()
                return _UNKNOWN, _UNKNOWN
            return found.offset, found.timestamp
        raise TierUnavailable(
            f"{stream.name}: the tier or other hosts did not answer a look-up of the same request, and this one was "
            f"not over in {limit_s:g} s; ask again"
        )


def _in_tier(stream: ServedStream, timestamp: int) -> int:
    """What KIP-405 and its followers ask of a stream; -1: nothing is in the tier, or nothing goes there."""
    if timestamp == EARLIEST_LOCAL:
        return stream.local_start_offset
    if timestamp == LATEST_TIERED:
        return stream.tiered_end_offset - 1 if stream.tiered_end_offset >= 0 else _UNKNOWN
    return max(stream.tiered_end_offset, stream.log_start_offset) if stream.config.is_tiered else _UNKNOWN


def refuse_leader_epoch(stream: ServedStream, current: int) -> ErrorCode:
    """The error for a client whose leader epoch is not the stream's (-1: the client gave none); `none` if it is."""
    if not stream.is_readable:
        return ErrorCode.not_leader_or_follower
    if stream.leader_epoch < current <= stream.newest_epoch:
        return ErrorCode.none
    if current in (_UNKNOWN, stream.leader_epoch):
        return ErrorCode.none
    return ErrorCode.fenced_leader_epoch if current < stream.leader_epoch else ErrorCode.unknown_leader_epoch
