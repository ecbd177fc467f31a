"""The requests of registered readers.

Invariants: an answer is a body of `logstore.format.reader_api`; a CairnError is an error inside it, and closes no
connection. A registration, and an acknowledgement of streams that are new to the reader, is answered once it is
durable. No topic is created. Of what the caller may not describe, names are left out of answers.

`answer` answers a request wherever the readers are; who may ask, and what they see, is decided where the client asks
(`ReaderFront`): in a cluster that may be another host.
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from logstore.errors import CairnError, OffsetOutOfRange
from logstore.format.reader_api import (
    ACKNOWLEDGE,
    DESCRIBE_READERS,
    LOG_START,
    NAMES_PER_REPLY,
    READER_API_KEYS,
    REGISTER_READER,
    REMOVE_READER,
    AcknowledgeRequest,
    DescribeReadersRequest,
    Done,
    ReaderDescription,
    ReaderOffset,
    ReaderReply,
    ReaderRequest,
    RegisterReaderReply,
    RegisterReaderRequest,
    RemoveReaderRequest,
    decode_request,
    encode_reply_body,
)
from logstore.interfaces import Buffer
from logstore.kafka.api_types import Broker, Caller, PrivateApi
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.rights import table
from logstore.log.readers import Readers, StreamId
from logstore.log.store import Store
from logstore.log.ticket import Ticket

LOG_START_TRIES: Final = 5
"""To place a position at the log start, which may be trimmed before it is held."""
Answer = Callable[[ReaderRequest], Awaitable[ReaderReply]]
"""Answers a request of a caller who may ask for it. Raises CairnError."""


class ReaderPlace(Protocol):
    """Where the readers are: on this host alone, or on one host of a cluster."""

    @property
    def readers(self) -> Readers:
        """The readers."""

    def find(self, topic: str, partition: int) -> StreamId:
        """A stream. Raises UnknownTopicOrPartition."""

    def log_start(self, stream: StreamId) -> int:
        """Where a stream begins, without what is being trimmed. Raises UnknownTopicOrPartition."""

    def topic_name(self, topic_id: str) -> str | None:
        """The name of a topic; None: it is gone."""

    async def wait(self, ticket: Ticket[None]) -> None:
        """Wait for a ticket; raises its error."""

    async def confirm(self, positions: Mapping[StreamId, int]) -> None:
        """Check that the records from positions on that are registered now are there. Raises OffsetOutOfRange."""


class LocalReaders:
    """The readers of a host alone (`ReaderPlace`)."""

    def __init__(self, broker: Broker, store: Store) -> None:
        self.readers = store.readers
        self._broker = broker
        self._store = store

    def find(self, topic: str, partition: int) -> StreamId:
        """See ReaderPlace."""
        stream = self._store.stream(topic, partition)
        return StreamId(self._store.topic(topic).topic_id.hex, stream.partition)

    def log_start(self, stream: StreamId) -> int:
        """See ReaderPlace."""
        name = self.topic_name(stream.topic_id)
        return self._store.stream(name or "", stream.partition).start_asked

    def topic_name(self, topic_id: str) -> str | None:
        """See ReaderPlace."""
        topic = self._store.topic_by_id(uuid.UUID(hex=topic_id))
        return None if topic is None else topic.name

    async def wait(self, ticket: Ticket[None]) -> None:
        """See ReaderPlace."""
        await self._broker.engine.wait(ticket)

    async def confirm(self, positions: Mapping[StreamId, int]) -> None:
        """See ReaderPlace: the registration has looked."""


def reader_apis(broker: Broker, store: Store) -> list[PrivateApi]:
    """The handlers of the requests of readers of this store."""
    return ReaderFront(broker, partial(_answer_here, LocalReaders(broker, store))).apis()


class ReaderFront:
    """Takes the requests of clients, and gives them what they may see of the answers."""

    def __init__(self, broker: Broker, ask: Answer) -> None:
        self._broker = broker
        self._ask = ask

    def apis(self) -> list[PrivateApi]:
        """The handlers."""
        return [PrivateApi(key, partial(self._handle, key)) for key in sorted(READER_API_KEYS)]

    async def _handle(
        self, api_key: int, body: memoryview, _: AnswerBudget, caller: Caller
    ) -> tuple[list[Buffer], int]:
        try:
            request = decode_request(api_key, body)
            if self._broker.authorizer.is_active:
                _authorize(self._broker, request, caller)
            reply: ReaderReply | CairnError = await self._answer(request, caller)
        except CairnError as error:
            reply = error
        return encode_reply_body(reply), 0

    async def _answer(self, request: ReaderRequest, caller: Caller) -> ReaderReply:
        if not isinstance(request, DescribeReadersRequest):
            return await self._ask(request)
        if not request.reader:
            return await self._names(request.after, caller)
        found = await self._ask(request)
        if not isinstance(found, ReaderDescription):
            return found
        return replace(found, streams=self._seen(found.streams, caller), released=self._seen(found.released, caller))

    def _seen(self, offsets: tuple[ReaderOffset, ...], caller: Caller) -> tuple[ReaderOffset, ...]:
        return tuple(each for each in offsets if table.allows(self._broker, DESCRIBE_READERS, caller, each.topic, 1))

    async def _names(self, after: str, caller: Caller) -> ReaderReply:
        names: list[str] = []
        while len(names) < NAMES_PER_REPLY:
            found = await self._ask(DescribeReadersRequest("", after))
            some = found.names if isinstance(found, ReaderDescription) else ()
            names += [name for name in some if table.allows(self._broker, DESCRIBE_READERS, caller, name)]
            if len(some) < NAMES_PER_REPLY:
                break
            after = some[-1]
        return ReaderDescription(tuple(names[:NAMES_PER_REPLY]))


async def answer(place: ReaderPlace, request: ReaderRequest) -> ReaderReply:
    """Answer a request of a caller who may ask for it. Raises CairnError."""
    readers = place.readers
    match request:
        case RegisterReaderRequest():
            return await _register(place, request)
        case AcknowledgeRequest():
            positions = {place.find(each.topic, each.partition): each.offset for each in request.streams}
            begun = readers.not_held(request.reader, positions)
            await place.wait(readers.acknowledge(request.reader, positions, request.incarnation_number))
            await place.confirm({stream: positions[stream] for stream in begun})
            return Done()
        case RemoveReaderRequest():
            await place.wait(readers.remove(request.reader))
            return Done()
        case DescribeReadersRequest():
            return _describe(place, request)


def tries_of(request: ReaderRequest) -> int:
    """How often to place the positions of a request: one that is the log start may have been trimmed meanwhile."""
    is_moving = isinstance(request, RegisterReaderRequest | AcknowledgeRequest) and any(
        entry.offset == LOG_START for entry in request.streams
    )
    return LOG_START_TRIES if is_moving else 1


async def _answer_here(place: LocalReaders, request: ReaderRequest) -> ReaderReply:
    """Answer a request where nobody else has the readers. Raises CairnError."""
    tries = tries_of(request)
    while True:
        tries -= 1
        try:
            return await answer(place, request)
        except OffsetOutOfRange:
            if not tries:
                raise


def _authorize(broker: Broker, request: ReaderRequest, caller: Caller) -> None:
    """Raise NotAuthorized unless the caller may use the reader's name as a group, and read its streams."""
    match request:
        case RegisterReaderRequest():
            table.require(broker, REGISTER_READER, caller, request.reader)
            if request.group:
                table.require(broker, REGISTER_READER, caller, request.group)
            for topic in {entry.topic for entry in request.streams}:
                table.require(broker, REGISTER_READER, caller, topic, 1)
        case AcknowledgeRequest():
            table.require(broker, ACKNOWLEDGE, caller, request.reader)
            for topic in {entry.topic for entry in request.streams}:
                table.require(broker, ACKNOWLEDGE, caller, topic, 1)
        case RemoveReaderRequest():
            table.require(broker, REMOVE_READER, caller, request.reader)
        case DescribeReadersRequest():
            if request.reader:
                table.require(broker, DESCRIBE_READERS, caller, request.reader)


async def _register(place: ReaderPlace, request: RegisterReaderRequest) -> ReaderReply:
    # Between the look-up of the log starts and the registration nothing else runs.
    found = {entry: place.find(entry.topic, entry.partition) for entry in request.streams}
    placed = tuple(
        ReaderOffset(entry.topic, entry.partition, place.log_start(stream)) if entry.offset == LOG_START else entry
        for entry, stream in found.items()
    )
    positions = {stream: entry.offset for stream, entry in zip(found.values(), placed, strict=True)}
    registered = place.readers.register(
        request.reader,
        positions,
        request.group,
        keep=request.keep,
        state=request.state,
        incarnation_number=request.incarnation_number,
    )
    await place.wait(registered)
    await place.confirm(positions)
    return RegisterReaderReply(placed)


def _describe(place: ReaderPlace, request: DescribeReadersRequest) -> ReaderReply:
    if not request.reader:
        names = [name for name in place.readers.names() if name > request.after]
        return ReaderDescription(tuple(names[:NAMES_PER_REPLY]))
    state = place.readers.describe(request.reader)
    topics = {key.topic_id: place.topic_name(key.topic_id) for key in (*state.held, *state.released)}

    def named(offsets: Mapping[StreamId, int]) -> tuple[ReaderOffset, ...]:
        return tuple(
            ReaderOffset(name, key.partition, offset)
            for key, offset in sorted(offsets.items())
            if (name := topics[key.topic_id]) is not None
        )

    held, released = named(state.held), named(state.released)
    return ReaderDescription(
        (state.name,), state.group, held, released, state.idle_ms, state.state, state.incarnation_number
    )
