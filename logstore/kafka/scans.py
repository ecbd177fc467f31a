"""The scan request: a stream's control batches, newest first.

Invariants: the answer has whole batches up to the high watermark, within the limits of the request, of `MAX_SCAN_BYTES`
and of the budget of unsent answers, but at least one batch if there is any; a failure is an error inside the answer.
Only reader threads read the disk.

Source: CEC paper, section II.B ("Constructing an EC"); docs/format.md, "Private requests".
"""

from functools import partial
from typing import Final

from logstore.errors import CairnError, CorruptChunk, MalformedRequest, StorageFailed
from logstore.events import READ_FAILED
from logstore.format.epoch_api import SCAN, ScanRequest, decode_request, encode_reply_body, encode_scan_reply
from logstore.interfaces import Buffer
from logstore.kafka.api_types import Broker, Caller, PrivateApi
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.rights import table
from logstore.log.served import ServingEngine

MAX_SCAN_BYTES: Final = 16 << 20
"""Limit for any request: bounds the memory that one connection holds."""


def scan_apis(broker: Broker) -> list[PrivateApi]:
    """The handler of the scan request."""
    return [PrivateApi(SCAN, partial(_handle, broker))]


async def _handle(broker: Broker, body: memoryview, answers: AnswerBudget, caller: Caller) -> tuple[list[Buffer], int]:
    try:
        request = decode_request(SCAN, body)
        if not isinstance(request, ScanRequest):
            raise MalformedRequest("not a scan")
        table.require(broker, SCAN, caller, request.topic)
        return await _scan(broker.engine, request, answers)
    except CairnError as error:
        return encode_reply_body(error), 0


async def _scan(engine: ServingEngine, request: ScanRequest, answers: AnswerBudget) -> tuple[list[Buffer], int]:
    stream = engine.store.stream(request.topic, request.partition)
    room = answers.take(min(request.max_bytes, MAX_SCAN_BYTES))
    kept = 0
    try:
        found = await engine.scan_controls(stream, request.before_offset, request.types, room)
        kept = found.size_bytes
    except OSError as error:
        engine.store.report(READ_FAILED, stream=stream.name, offset=request.before_offset, error=str(error))
        raise StorageFailed(f"{stream.name}: {error.strerror or error}") from error
    except CorruptChunk as error:
        engine.store.report(READ_FAILED, stream=stream.name, offset=error.first_offset, error=str(error))
        raise
    finally:
        answers.give(room - kept)
    head = encode_scan_reply(found.next_before, stream.log_start_offset, stream.high_watermark)
    return [head, *found.buffers], kept
