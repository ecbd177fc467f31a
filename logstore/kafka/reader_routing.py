"""Requests about registered readers on a host of a cluster: answered here, or by the host that has the readers.

See `logstore.cluster.epochs.readers_home`.

Invariants:
* An answer rests on an entry that was put in the ledger for it, or is confirmed by one: a home that was replaced and
  does not know it answers nothing. Where there is no topic of readers nobody is registered; who only looks makes none.
* Rights are checked by the host that the client asks.
"""

import uuid
from collections.abc import Mapping
from typing import Final

import trio

from logstore.cluster.epochs.reader_holds import ReaderHolds
from logstore.cluster.epochs.readers_home import ReadersHome
from logstore.cluster.streams.owner_calls import ASK_READERS, CallServer, OwnerCalls
from logstore.cluster.streams.topics import ClusterTopics
from logstore.errors import CairnError, MalformedRequest, OffsetOutOfRange, UnknownReader
from logstore.format.fields import decode_fields, encode_fields, get_int
from logstore.format.reader_api import (
    READER_API_KEYS,
    AcknowledgeRequest,
    DescribeReadersRequest,
    ReaderDescription,
    ReaderOffset,
    ReaderReply,
    ReaderRequest,
    RegisterReaderRequest,
    api_key_of,
    decode_reply,
    decode_request,
    encode_reply_body,
    encode_request,
)
from logstore.interfaces import Buffer
from logstore.kafka.api_types import Broker, PrivateApi
from logstore.kafka.home_routing import TOPIC_WAIT_S, HomeRouting, PassedOn
from logstore.kafka.readers import ReaderFront, answer, tries_of
from logstore.log.readers import Readers, StreamBounds, StreamId
from logstore.log.ticket import Ticket

NO_CORRELATION: Final = bytes(4)
_INT16_MAX: Final = 2**15 - 1


class _HomeReaders:
    """The readers of the cluster, for one request (`ReaderPlace`); `bounds`: of the request's streams."""

    def __init__(
        self, broker: Broker, topics: ClusterTopics, holds: ReaderHolds, home: ReadersHome, readers: Readers
    ) -> None:
        self.readers = readers
        self.bounds: dict[StreamId, StreamBounds] = {}
        self._broker = broker
        self._topics = topics
        self._holds = holds
        self._home = home

    def find(self, topic: str, partition: int) -> StreamId:
        """See ReaderPlace."""
        stream = self._topics.stream(topic, partition)
        return StreamId(self._topics.topic(topic).topic_id.hex, stream.partition)

    def log_start(self, stream: StreamId) -> int:
        """See ReaderPlace."""
        return self.bounds[stream].log_start

    def topic_name(self, topic_id: str) -> str | None:
        """See ReaderPlace."""
        topic = self._topics.topic_by_id(uuid.UUID(hex=topic_id))
        return None if topic is None else topic.name

    async def wait(self, ticket: Ticket[None]) -> None:
        """See ReaderPlace."""
        await self._broker.engine.wait(ticket)

    async def confirm(self, positions: Mapping[StreamId, int]) -> None:
        """See ReaderPlace: a trim may have been under way, as the owner of a stream knows."""
        if positions:
            self._home.learn(await self._holds.bounds_of(positions))
            self.readers.check_placed(positions)


class _HomeToAsk:
    """The home of readers, whose topic is made when somebody asks."""

    def __init__(self, home: ReadersHome) -> None:
        self._home = home

    @property
    def stream(self) -> str | None:
        """See Home."""
        return self._home.stream if self._home.made() else None

    async def changed(self) -> None:
        """See Home."""
        await self._home.changed()


class ReaderRouting:
    """See the module."""

    def __init__(
        self, broker: Broker, topics: ClusterTopics, home: ReadersHome, holds: ReaderHolds, owners: OwnerCalls
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._home = home
        self._holds = holds
        form = PassedOn(ASK_READERS, "the registered readers", _encode, _decode)
        self._routing = HomeRouting(_HomeToAsk(home), owners, form, self._answer_here)

    def apis(self) -> list[PrivateApi]:
        """The requests that are served."""
        return ReaderFront(self._broker, self._ask).apis()

    def serve(self, calls: CallServer) -> None:
        """Serve calls of kind ASK_READERS from now on."""
        calls.handle(ASK_READERS, self._routing.serve)

    async def _ask(self, request: ReaderRequest) -> ReaderReply:
        if isinstance(request, DescribeReadersRequest) and not await self._holds.is_made():
            if request.reader:
                raise UnknownReader(f"no reader is registered as {request.reader!r}; register it first")
            return ReaderDescription(())
        body = b"".join(await self._routing.ask(request))
        _, reply = decode_reply(api_key_of(request), NO_CORRELATION + body)
        if isinstance(reply, CairnError):
            raise reply
        return reply

    # ---- on the home

    async def _answer_here(self, request: ReaderRequest) -> list[Buffer] | None:
        """The body of the answer of the readers here; None: they are not here, or no more."""
        readers = self._home.readers
        if readers is None:
            return None
        with self._home.entered():
            place = _HomeReaders(self._broker, self._topics, self._holds, self._home, readers)
            try:
                reply: ReaderReply | CairnError = await self._reply(place, request)
            except CairnError as error:
                reply = error
            if await self._home.confirm(readers):
                return encode_reply_body(reply)
        return None

    async def _reply(self, place: _HomeReaders, request: ReaderRequest) -> ReaderReply:
        if not isinstance(request, RegisterReaderRequest | AcknowledgeRequest):
            return await answer(place, request)
        streams = await self._streams(place, request)
        tries = tries_of(request)
        while True:
            place.bounds = await self._holds.bounds_of(streams)
            tries -= 1
            with self._home.known(place.bounds):
                try:
                    return await answer(place, request)
                except OffsetOutOfRange:
                    if not tries:
                        raise

    async def _streams(
        self, place: _HomeReaders, request: RegisterReaderRequest | AcknowledgeRequest
    ) -> list[StreamId]:
        """The streams of a request; one that this host does not know yet may come. Raises UnknownTopicOrPartition."""
        with trio.move_on_after(TOPIC_WAIT_S):
            while not all(self._is_known(entry) for entry in request.streams):
                await self._topics.changed.wait()
        return [place.find(entry.topic, entry.partition) for entry in request.streams]

    def _is_known(self, entry: ReaderOffset) -> bool:
        topic = self._topics.topics.get(entry.topic)
        return topic is not None and 0 <= entry.partition < len(topic.partitions)


def _encode(request: ReaderRequest) -> list[Buffer]:
    _, body = encode_request(request, correlation_id=0)
    return [encode_fields({"key": api_key_of(request)}), body]


def _decode(payload: memoryview) -> ReaderRequest:
    """Raises MalformedRequest."""
    fields, body = decode_fields(payload)
    api_key = get_int(fields, "key", 0, _INT16_MAX)
    if api_key not in READER_API_KEYS:
        raise MalformedRequest(f"{api_key} is not a request about readers")
    return decode_request(api_key, body)
