"""What registered readers hold, as the owners of streams ask for it; and where streams begin, as readers' home asks.

Invariants:
* A stream is trimmed no further than readers' home says, in an answer that it has given since the trim was wanted.
* Who asks where a stream begins is told what the trims will leave that have been wanted before: it waits for those that
  still ask readers' home, and takes those that are being registered for done.
* Nobody is asked before the topic of groups is there: nobody is registered. Whether it is, the metadata store says,
  where this host has not heard of it.
"""

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import trio

from logstore.base.metadata.errors import MetadataError
from logstore.base.metadata.interface import MetadataStore
from logstore.cluster.streams.owner_calls import (
    BOUNDS,
    HOLDERS,
    TRIM_LIMIT,
    CallServer,
    OwnerCalls,
    answered,
    certain_home,
    fields_of,
)
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.topics import GROUPS_TOPIC, ClusterTopics
from logstore.errors import HostUnreachable, MalformedRequest, TryAgain
from logstore.format.fields import Fields, decode_fields, encode_fields, get_int, get_name, get_objects
from logstore.interfaces import Buffer
from logstore.log.readers import HeldRecords, StreamBounds, StreamId

PATIENCE_S: Final = 20.0
"""How long the owners of streams are asked for bounds: less than a request waits for the home."""
PAUSE_S: Final = 0.05
"""Between two tries, unless a stream gets another owner before."""
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class ReaderHolds:
    """See the module; it is what retention asks (`trim_limit`). `home`: the stream of readers' home, if this host knows
    of one.
    """

    def __init__(
        self, topics: ClusterTopics, owners: OwnerCalls, home: Callable[[], str | None], metadata: MetadataStore
    ) -> None:
        self._topics = topics
        self._owners = owners
        self._home = home
        self._metadata = metadata
        self._asking: dict[str, list[trio.Event]] = {}
        """Trims that wait for an answer, by stream."""

    async def is_made(self) -> bool:
        """Whether there is a topic of groups, which has the readers, as the metadata store says where this host has not
        heard of it; without it, nobody is registered. Raises TryAgain.
        """
        try:
            return await certain_home(self._home(), GROUPS_TOPIC, self._metadata) is not None
        except MetadataError as error:
            raise TryAgain(f"the metadata store does not say whether there are readers: {error}") from error

    # ---- trims

    async def trim_limit(self, stream: ReplicatedStream, wanted: int, held: Callable[[int], HeldRecords]) -> int:
        """The offset up to which readers let a stream be trimmed, at most `wanted`; releases those that hold too much.
        `held`: what is held from an offset on. Raises CairnError, MetadataError: it is not known now.
        """
        ended = trio.Event()
        self._asking.setdefault(stream.stream, []).append(ended)
        try:
            home = await certain_home(self._home(), GROUPS_TOPIC, self._metadata)
            return wanted if home is None else await self._limit(home, stream, wanted, held)
        finally:
            self._asking[stream.stream].remove(ended)
            if not self._asking[stream.stream]:
                del self._asking[stream.stream]
            ended.set()

    async def _limit(self, home: str, stream: ReplicatedStream, wanted: int, held: Callable[[int], HeldRecords]) -> int:
        topic_id, _, partition = stream.stream.partition("/")
        asked: dict[str, object] = {"topic_id": topic_id, "partition": int(partition)}
        asked |= {"log_start": stream.log_start_offset, "wanted": wanted}
        answer = fields_of(await self._owners.call(home, HOLDERS, [encode_fields(asked)]))
        positions = answer.get("positions")
        if not isinstance(positions, list):
            raise MalformedRequest("an answer about readers without 'positions'")
        if not positions:
            return wanted
        found = [(int(position), held(int(position))) for position in positions]
        asked["held"] = [
            {"position": position, "bytes": records.size_bytes, "written_ms": records.written_ms}
            for position, records in found
        ]
        answer = fields_of(await self._owners.call(home, TRIM_LIMIT, [encode_fields(asked)]))
        return get_int(answer, "limit", 0, _INT64_MAX)

    # ---- bounds

    def answer_home(self, calls: CallServer) -> None:
        """Serve calls of kind BOUNDS from now on."""
        calls.handle(BOUNDS, self._bounds)

    async def _bounds(self, _: str, payload: memoryview) -> Sequence[Buffer]:
        async def find() -> Mapping[str, object]:
            fields, _ = decode_fields(payload)
            return {"bounds": [await self._bounds_of(each) for each in get_objects(fields, "streams")]}

        return await answered(find)

    async def _bounds_of(self, asked: Fields) -> Mapping[str, object]:
        stream_id = StreamId(get_name(asked, "topic_id"), get_int(asked, "partition", 0, _INT32_MAX))
        stream = self._topics.stream_of(stream_id.topic_id, stream_id.partition)
        if stream is not None:
            await _wait_for_trims(list(self._asking.get(stream.stream, ())))
        if stream is None or not stream.is_leader:
            return {"known": False}
        return {"known": True, "start": stream.start_asked, "end": stream.high_watermark}

    async def bounds_of(self, streams: Collection[StreamId]) -> dict[StreamId, StreamBounds]:
        """Where streams begin and end, as their owners say; without those that are gone. Raises TryAgain."""
        found: dict[StreamId, StreamBounds] = {}
        with trio.move_on_after(PATIENCE_S):
            while missing := [each for each in streams if each not in found and self._name(each) is not None]:
                by_owner: dict[str, list[StreamId]] = {}
                for stream in missing:
                    owner = self._owners.owner_of(_replicated(stream))
                    if owner is not None:
                        by_owner.setdefault(owner, []).append(stream)
                async with trio.open_nursery() as nursery:
                    for owner, some in by_owner.items():
                        nursery.start_soon(self._ask_owner, owner, some, found)
                if all(each in found for each in missing):
                    break
                with trio.move_on_after(PAUSE_S):
                    await self._owners.changed()
            return found
        raise TryAgain(f"the owners of {len(streams)} streams did not all answer in {PATIENCE_S:g} s; retry")

    async def _ask_owner(self, owner: str, streams: Sequence[StreamId], found: dict[StreamId, StreamBounds]) -> None:
        payload = encode_fields({"streams": [stream._asdict() for stream in streams]})
        try:
            answer = fields_of(await self._owners.call_host(owner, _replicated(streams[0]), BOUNDS, [payload]))
        except HostUnreachable:
            return
        for stream, bounds in zip(streams, get_objects(answer, "bounds"), strict=False):
            name = self._name(stream)
            if bounds.get("known") is True and name is not None:
                start, end = get_int(bounds, "start", 0, _INT64_MAX), get_int(bounds, "end", 0, _INT64_MAX)
                found[stream] = StreamBounds(name, start, end)

    def _name(self, stream: StreamId) -> str | None:
        found = self._topics.stream_of(stream.topic_id, stream.partition)
        return None if found is None else found.name


async def _wait_for_trims(asking: Sequence[trio.Event]) -> None:
    for ended in asking:
        await ended.wait()
        await trio.lowlevel.checkpoint()  # what follows from the answer is done by whoever asked


def _replicated(stream: StreamId) -> str:
    return f"{uuid.UUID(hex=stream.topic_id).hex}/{stream.partition}"
