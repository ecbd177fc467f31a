"""The requests of registered readers.

Invariants: an answer is a body of `logstore.format.reader_api`; a CairnError is an error inside it, and closes no
connection. A registration, and an acknowledgement of streams that are new to the reader, is answered once it is
durable. No topic is created. Of what the caller may not describe, names are left out of answers.
"""

from collections.abc import Mapping
from functools import partial

from logstore.errors import CairnError
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
from logstore.log.readers import StreamId
from logstore.log.store import Store
from logstore.log.stream import Stream


def reader_apis(broker: Broker, store: Store) -> list[PrivateApi]:
    """The handlers of the requests of readers of this store."""
    return [PrivateApi(key, partial(_handle, broker, store, key)) for key in sorted(READER_API_KEYS)]


async def _handle(
    broker: Broker, store: Store, api_key: int, body: memoryview, _: AnswerBudget, caller: Caller
) -> tuple[list[Buffer], int]:
    try:
        reply: ReaderReply | CairnError = await _answer(broker, store, decode_request(api_key, body), caller)
    except CairnError as error:
        reply = error
    return encode_reply_body(reply), 0


async def _answer(broker: Broker, store: Store, request: ReaderRequest, caller: Caller) -> ReaderReply:
    readers = store.readers
    if broker.authorizer.is_active:
        _authorize(broker, request, caller)
    match request:
        case RegisterReaderRequest():
            return await _register(broker, store, request)
        case AcknowledgeRequest():
            positions = {_id_of(store, entry): entry.offset for entry in request.streams}
            await broker.engine.wait(readers.acknowledge(request.reader, positions, request.incarnation_number))
            return Done()
        case RemoveReaderRequest():
            await broker.engine.wait(readers.remove(request.reader))
            return Done()
        case DescribeReadersRequest():
            return _describe(broker, store, request, caller)


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


async def _register(broker: Broker, store: Store, request: RegisterReaderRequest) -> ReaderReply:
    # Between the look-up of the log starts and the registration nothing else runs.
    placed = tuple(
        ReaderOffset(entry.topic, entry.partition, _stream(store, entry).start_asked)
        if entry.offset == LOG_START
        else entry
        for entry in request.streams
    )
    positions = {_id_of(store, entry): entry.offset for entry in placed}
    await broker.engine.wait(
        store.readers.register(
            request.reader,
            positions,
            request.group,
            keep=request.keep,
            state=request.state,
            incarnation_number=request.incarnation_number,
        )
    )
    return RegisterReaderReply(placed)


def _describe(broker: Broker, store: Store, request: DescribeReadersRequest, caller: Caller) -> ReaderReply:
    if not request.reader:
        names = [
            name
            for name in store.readers.names()
            if name > request.after and table.allows(broker, DESCRIBE_READERS, caller, name)
        ]
        return ReaderDescription(tuple(names[:NAMES_PER_REPLY]))
    state = store.readers.describe(request.reader)

    topics = {topic.topic_id.hex: name for name, topic in store.topics.items()}

    def named(offsets: Mapping[StreamId, int]) -> tuple[ReaderOffset, ...]:
        return tuple(
            ReaderOffset(topics[key.topic_id], key.partition, offset)
            for key, offset in sorted(offsets.items())
            if key.topic_id in topics and table.allows(broker, DESCRIBE_READERS, caller, topics[key.topic_id], 1)
        )

    held, released = named(state.held), named(state.released)
    return ReaderDescription(
        (state.name,), state.group, held, released, state.idle_ms, state.state, state.incarnation_number
    )


def _id_of(store: Store, entry: ReaderOffset) -> StreamId:
    stream = _stream(store, entry)
    return StreamId(store.topic(entry.topic).topic_id.hex, stream.partition)


def _stream(store: Store, entry: ReaderOffset) -> Stream:
    return store.stream(entry.topic, entry.partition)
