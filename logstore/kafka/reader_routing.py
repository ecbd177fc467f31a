"""Requests about registered readers on a host of a cluster: answered here, or by the host that has the readers.

A client may ask any host; see `logstore.cluster.readers_home`.

Invariants:
* A request that a lost host, or a home that is none any more, leaves without an answer is asked again, until PATIENCE_S
  are over: each of them may be asked twice without harm.
* An answer rests on an entry that was put in the ledger for it, or is confirmed by one: a home that was replaced and
  does not know it answers nothing.
* The home serves a request that is passed on no longer than PATIENCE_S: the other host has given it up by then.
* Rights are checked by the host that the client asks.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from logstore.cluster.owner_calls import ASK_READERS, CallServer, OwnerCalls
from logstore.cluster.reader_holds import ReaderHolds
from logstore.cluster.readers_home import ReadersHome
from logstore.cluster.topics import ClusterTopics
from logstore.errors import CairnError, HostUnreachable, MalformedRequest, OffsetOutOfRange, TryAgain
from logstore.format.fields import decode_fields, encode_fields, get_int
from logstore.format.reader_api import (
    LOG_START,
    READER_API_KEYS,
    AcknowledgeRequest,
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
from logstore.kafka.readers import ReaderFront, answer
from logstore.log.readers import Readers, StreamBounds, StreamId
from logstore.log.ticket import Ticket

PATIENCE_S: Final = 25.0
"""Less than a client waits for an answer before it connects again."""
PAUSE_S: Final = 0.05
"""Between two tries, unless the readers come to this host before."""
TOPIC_WAIT_S: Final = 2.0
"""How long this host may be behind another one in what topics there are."""
REPLACED_TRIES: Final = 5
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


class ReaderRouting:
    """See the module."""

    def __init__(
        self, broker: Broker, topics: ClusterTopics, home: ReadersHome, holds: ReaderHolds, owners: OwnerCalls
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._home = home
        self._holds = holds
        self._owners = owners

    def apis(self) -> list[PrivateApi]:
        """The requests that are served."""
        return ReaderFront(self._broker, self._ask).apis()

    def serve(self, calls: CallServer) -> None:
        """Serve calls of kind ASK_READERS from now on."""
        calls.handle(ASK_READERS, self._passed_on)

    # ---- on the host that a client asks

    async def _ask(self, request: ReaderRequest) -> ReaderReply:
        with trio.move_on_after(PATIENCE_S):
            while True:
                found = await self._try(request)
                if found is not None:
                    return _reply(api_key_of(request), found)
                with trio.move_on_after(PAUSE_S):
                    await self._home.changed()
        raise TryAgain(f"no host of the cluster had the registered readers for {PATIENCE_S:g} s; retry")

    async def _try(self, request: ReaderRequest) -> Buffer | None:
        """The body of the answer, or None: ask again."""
        if not self._home.made():
            return None
        if self._home.readers is not None:
            return await self._answer_here(request)
        stream = self._home.stream
        if stream is None or self._owners.owner_of(stream) is None:
            return None
        _, body = encode_request(request, correlation_id=0)
        payload = [encode_fields({"key": api_key_of(request)}), body]
        try:
            found = await self._owners.call(stream, ASK_READERS, payload)
        except HostUnreachable:
            return None
        return found if len(found) else None

    # ---- on the home

    async def _passed_on(self, host: str, payload: memoryview) -> Sequence[Buffer]:
        try:
            fields, body = decode_fields(payload)
            api_key = get_int(fields, "key", 0, _INT16_MAX)
            if api_key not in READER_API_KEYS:
                raise MalformedRequest(f"{api_key} is no request about readers")
            request = decode_request(api_key, body)
        except MalformedRequest as error:
            return encode_reply_body(error)
        found = None
        with trio.move_on_after(PATIENCE_S):
            found = await self._answer_here(request)
        return [] if found is None else [found]

    async def _answer_here(self, request: ReaderRequest) -> Buffer | None:
        """The body of the answer of the readers here; None: they are here no more."""
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
                return b"".join(encode_reply_body(reply))
        return None

    async def _reply(self, place: _HomeReaders, request: ReaderRequest) -> ReaderReply:
        if not isinstance(request, RegisterReaderRequest | AcknowledgeRequest):
            return await answer(place, request)
        streams = await self._streams(place, request)
        # A position that is the log start, wherever that is, may have been trimmed meanwhile.
        tries = REPLACED_TRIES if any(entry.offset == LOG_START for entry in request.streams) else 1
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


def _reply(api_key: int, body: Buffer) -> ReaderReply:
    """Raises the error in the body of an answer, MalformedRequest."""
    _, reply = decode_reply(api_key, NO_CORRELATION + bytes(body))
    if isinstance(reply, CairnError):
        raise reply
    return reply
