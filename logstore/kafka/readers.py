"""The requests of registered readers.

Invariants: an answer is a body of `logstore.format.reader_api`; a CairnError is an error inside it, and closes no
connection. A registration, and an acknowledgement of streams that are new to the reader, is answered once it is
durable. No topic is created.
"""

from collections.abc import Mapping
from functools import partial

from logstore.errors import CairnError
from logstore.format.reader_api import (
    LOG_START,
    NAMES_PER_REPLY,
    READER_API_KEYS,
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
from logstore.kafka.api_types import Broker, PrivateApi
from logstore.kafka.budgets import AnswerBudget
from logstore.log.readers import StreamId
from logstore.log.stream import Stream


def reader_apis(broker: Broker) -> list[PrivateApi]:
    """The handlers of the requests of readers."""
    return [PrivateApi(key, partial(_handle, broker, key)) for key in sorted(READER_API_KEYS)]


async def _handle(broker: Broker, api_key: int, body: memoryview, _: AnswerBudget) -> tuple[list[Buffer], int]:
    try:
        reply: ReaderReply | CairnError = await _answer(broker, decode_request(api_key, body))
    except CairnError as error:
        reply = error
    return encode_reply_body(reply), 0


async def _answer(broker: Broker, request: ReaderRequest) -> ReaderReply:
    readers = broker.engine.store.readers
    match request:
        case RegisterReaderRequest():
            return await _register(broker, request)
        case AcknowledgeRequest():
            positions = {_id_of(broker, entry): entry.offset for entry in request.streams}
            await broker.engine.wait(readers.acknowledge(request.reader, positions, request.incarnation_number))
            return Done()
        case RemoveReaderRequest():
            await broker.engine.wait(readers.remove(request.reader))
            return Done()
        case DescribeReadersRequest():
            return _describe(broker, request)


async def _register(broker: Broker, request: RegisterReaderRequest) -> ReaderReply:
    # Between the look-up of the log starts and the registration nothing else runs.
    placed = tuple(
        ReaderOffset(entry.topic, entry.partition, _stream(broker, entry).start_asked)
        if entry.offset == LOG_START
        else entry
        for entry in request.streams
    )
    positions = {_id_of(broker, entry): entry.offset for entry in placed}
    readers = broker.engine.store.readers
    await broker.engine.wait(
        readers.register(
            request.reader,
            positions,
            request.group,
            keep=request.keep,
            state=request.state,
            incarnation_number=request.incarnation_number,
        )
    )
    return RegisterReaderReply(placed)


def _describe(broker: Broker, request: DescribeReadersRequest) -> ReaderReply:
    store = broker.engine.store
    if not request.reader:
        names = [name for name in store.readers.names() if name > request.after]
        return ReaderDescription(tuple(names[:NAMES_PER_REPLY]))
    state = store.readers.describe(request.reader)

    topics = {topic.topic_id.hex: name for name, topic in store.topics.items()}

    def named(offsets: Mapping[StreamId, int]) -> tuple[ReaderOffset, ...]:
        return tuple(
            ReaderOffset(topics[key.topic_id], key.partition, offset)
            for key, offset in sorted(offsets.items())
            if key.topic_id in topics
        )

    held, released = named(state.held), named(state.released)
    return ReaderDescription(
        (state.name,), state.group, held, released, state.idle_ms, state.state, state.incarnation_number
    )


def _id_of(broker: Broker, entry: ReaderOffset) -> StreamId:
    stream = _stream(broker, entry)
    return StreamId(broker.engine.store.topic(entry.topic).topic_id.hex, stream.partition)


def _stream(broker: Broker, entry: ReaderOffset) -> Stream:
    return broker.engine.store.stream(entry.topic, entry.partition)
