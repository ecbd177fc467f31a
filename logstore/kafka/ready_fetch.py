"""A fetch whose answer was read ahead: from the frame to the answer at once, without a turn of the event loop.

A reader that catches up asks for one partition again and again, and finds the next batches read by then. Every other
fetch (several partitions, sessions, more than one byte as the least, nothing read ahead) is left to `fetch`, and so is
everything that is malformed or refused: `start` then says False, and has done nothing.

Invariants:
* The answer is byte for byte what the general way leads to, and its bytes are taken from the same budget.
* Rights and quotas are not looked at here: the connection takes this way only while there are none.
* All earlier requests of the connection are answered; later ones find the place of this one in the line.

Source: Kafka protocol guide, Fetch 4 to 18.
"""

import struct
import uuid
from functools import lru_cache
from typing import NamedTuple

from logstore.base.histogram import Histogram
from logstore.interfaces import Buffer
from logstore.kafka import fetch
from logstore.kafka.answers import SLOT_BYTES, AnswerLine, AnswerSlot
from logstore.kafka.api_types import Broker
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.framing import uvarint
from logstore.kafka.topic_keys import TopicKey, find_topic
from logstore.log.reading import compact

_HEAD = struct.Struct(">hhih")
"""API key, version, correlation id, length of the client id (-1: null)."""
_FLEXIBLE_END = b"\x00\x00\x00"
"""No tagged fields of partition, topic and answer."""
LAYOUTS = 256
"""Layouts of answers that are remembered: one for each version and length of a topic's name."""


class WantedBatches(NamedTuple):
    """A fetch of this form. `name` are the bytes of the topic's name or id, `key`."""

    version: int
    correlation_id: int
    max_bytes: int
    name: bytes
    key: TopicKey
    partition: int
    leader_epoch: int
    offset: int
    partition_max_bytes: int


def decode(request: memoryview) -> WantedBatches | None:
    """The request in a frame; None if it has another form, or is malformed."""
    try:
        return _decode(request)
    except (struct.error, UnicodeDecodeError):
        return None


def _decode(request: memoryview) -> WantedBatches | None:
    api_key, version, correlation_id, client_bytes = _HEAD.unpack_from(request)
    if api_key != fetch.KEY or not fetch.MIN_VERSION <= version <= fetch.MAX_VERSION:
        return None
    limits, part = _requested(version)
    at = _HEAD.size + max(client_bytes, 0)
    str(request[_HEAD.size : at], "utf-8")  # where the client's id is none, the general way says so
    if version >= fetch.FIRST_FLEXIBLE:
        tags, min_bytes, max_bytes, session_id, session_epoch, topics = limits.unpack_from(request, at)
        is_usual = not tags and topics == 2
    elif version >= 7:
        min_bytes, max_bytes, session_id, session_epoch, topics = limits.unpack_from(request, at)
        is_usual = topics == 1
    else:
        min_bytes, max_bytes, topics = limits.unpack_from(request, at)
        session_id, session_epoch, is_usual = 0, -1, topics == 1
    if client_bytes < -1 or not is_usual or session_id or session_epoch > 0 or min_bytes > 1:
        return None
    at += limits.size
    name_at, name_bytes = _name(request, at, version)
    at = name_at + name_bytes
    partitions, *numbers = part.unpack_from(request, at)
    if version >= fetch.FIRST_FLEXIBLE:
        if name_bytes < 0 or partitions != 2 or numbers.pop() or numbers.pop() or numbers.pop(3) >= 0:
            return None  # also of a client whose log may differ: its last epoch is looked up
    elif name_bytes < 0 or partitions != 1:
        return None
    if version < 9:
        numbers.insert(1, -1)
    name = bytes(request[name_at:at])
    key = name.decode() if version < fetch.FIRST_WITH_IDS else uuid.UUID(bytes=name)
    return WantedBatches(version, correlation_id, max_bytes, name, key, *numbers)


def _name(request: memoryview, at: int, version: int) -> tuple[int, int]:
    """Where a topic's name or id is, and its bytes; -1: it is null, or longer than usual."""
    if version >= fetch.FIRST_WITH_IDS:
        return at, 16
    if version >= fetch.FIRST_FLEXIBLE:
        size = request[at] if at < len(request) else 0
        return at + 1, size - 1 if size < 0x80 else -1
    (size,) = struct.unpack_from(">h", request, at)
    return at + 2, size


@lru_cache(LAYOUTS)
def _requested(version: int) -> tuple[struct.Struct, struct.Struct]:
    """The fields in front of the topic, and those of the partition, with what is not looked at left out."""
    if version >= fetch.FIRST_FLEXIBLE:
        replica = "" if version >= fetch.FIRST_WITHOUT_REPLICA else "4x"
        return struct.Struct(f">B{replica}4xiixiiB"), struct.Struct(">Biiqi8xiBB")
    sessions = "ii" if version >= 7 else ""
    leader, start = "i" if version >= 9 else "", "8x" if version >= 5 else ""
    return struct.Struct(f">4x4xiix{sessions}i"), struct.Struct(f">ii{leader}q{start}i")


@lru_cache(LAYOUTS)
def _layout(version: int, name_bytes: int) -> struct.Struct:
    """An answer in front of its records' size: length, correlation id, one topic with one partition."""
    start = "q" if version >= 5 else ""
    if version >= fetch.FIRST_FLEXIBLE:
        name = "16s" if version >= fetch.FIRST_WITH_IDS else f"B{name_bytes}s"
        return struct.Struct(f">iiB4x2x4xB{name}Bi2xqq{start}Bi")
    session = "2x4x" if version >= 7 else ""
    replica = "i" if version >= 11 else ""
    return struct.Struct(f">ii4x{session}ih{name_bytes}sii2xqq{start}4x{replica}i")


class ReadyFetch(AnswerSlot):
    """The place of an answer, and what is in it."""

    __slots__ = ("parts",)

    parts: list[Buffer]

    def add_to(self, parts: list[Buffer]) -> str | None:
        """Append the buffers of the answer's frame to `parts`."""
        parts += self.parts
        return None


def encode(
    wanted: WantedBatches, high_watermark: int, start_offset: int, found: list[Buffer], size: int
) -> list[Buffer]:
    """The answer's frame."""
    version, name = wanted.version, wanted.name
    layout = _layout(version, len(name))
    offsets = (high_watermark, high_watermark, start_offset) if version >= 5 else (high_watermark, high_watermark)
    if version >= fetch.FIRST_FLEXIBLE:
        size_field = uvarint(size + 1)
        length = layout.size - 4 + len(size_field) + size + len(_FLEXIBLE_END)
        named = (name,) if version >= fetch.FIRST_WITH_IDS else (len(name) + 1, name)
        head = layout.pack(length, wanted.correlation_id, 0, 2, *named, 2, wanted.partition, *offsets, 1, -1)
        return [head + size_field, *found, _FLEXIBLE_END]
    replica = (-1,) if version >= 11 else ()
    length = layout.size - 4 + size
    head = layout.pack(length, wanted.correlation_id, 1, len(name), name, 1, wanted.partition, *offsets, *replica, size)
    return [head, *found]


def start(broker: Broker, line: AnswerLine, meter: Histogram, request: memoryview, answers: AnswerBudget) -> bool:
    """Answer a request of this form in `line`, and count its time in `meter`. False: it is to be served by `fetch`."""
    engine = broker.engine
    if line.request_bytes or not engine.has_read_ahead:
        return False
    since_s = broker.clock.monotonic_s()
    wanted = decode(request)
    topic = None if wanted is None else find_topic(engine.store, wanted.key)
    if wanted is None or topic is None or not 0 <= wanted.partition < len(topic.partitions):
        return False
    stream = topic.partitions[wanted.partition]
    if stream.deleted or 0 <= wanted.leader_epoch != stream.leader_epoch:
        return False
    room = answers.take(min(max(0, wanted.max_bytes), fetch.MAX_RESPONSE_BYTES))
    size = 0
    try:
        result = engine.read_ahead_of(stream, wanted.offset, max(1, min(wanted.partition_max_bytes, room)))
        if result is None:
            return False
        if not line.sends_at_once:
            result = compact(result)
        slot = ReadyFetch(wanted.correlation_id, len(request) + SLOT_BYTES, is_shared=False)
        slot.parts = encode(wanted, stream.high_watermark, stream.log_start_offset, result.buffers, result.size_bytes)
        size = slot.reserved_bytes = result.size_bytes
    finally:
        answers.give(room - size)
    stream.fetched_bytes += size
    line.push(slot)
    meter.add(broker.clock.monotonic_s() - since_s)
    line.mark_ready(slot)
    return True
