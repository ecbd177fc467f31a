"""Messages between hosts as bytes: golden bytes, every message there and back, and whatever else may arrive."""

from __future__ import annotations

import dataclasses
import struct
from contextlib import suppress
from typing import Any, get_args

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from logstore.cluster.links.wire import FRAME, MAX_ENTRIES, MAX_FORWARD, FrameBuffer, decode, encode, frame_head
from logstore.errors import MalformedMessage, UnsendableMessage
from logstore.replica.messages import (
    Append,
    AppendDone,
    BatchEntry,
    CopyChunk,
    CopyDone,
    CopyProgress,
    EntriesRead,
    Fence,
    FenceDone,
    LookAtRegistration,
    Message,
    OutOfOrder,
    ReadEntries,
    Reason,
    Refused,
    StreamRates,
)
from logstore.replica.registrations import Member, Prefix

MAX_BODY = 1 << 20
A = Member("a", "d1")
AT = Prefix(256, 3, 0xDEADBEEF)
_AT_BYTES = "0000000000000100 0000000000000003 deadbeef"
_MEMBER_BYTES = "0161 026431"
_STREAM_BYTES = "03742f30"
APPEND = Append("t/0", "d1", 2, 1, "o", AT, (BatchEntry(b"xy", 2), BatchEntry(b"z", 1)), 128, (A,), b"fo")
GOLDEN: tuple[tuple[Message, str], ...] = (
    (
        APPEND,
        (
            f"01 000e 0000000000000002 0000000000000001 {_AT_BYTES} 0000000000000080 01 00000002 00000002 "
            f"{_STREAM_BYTES} 026431 016f {_MEMBER_BYTES} 00000002 00000002 00000001 00000001 666f 7879 7a"
        ),
    ),
    (AppendDone("t/0", 2, A, AT), f"02 0009 0000000000000002 {_AT_BYTES} {_STREAM_BYTES} {_MEMBER_BYTES}"),
    (
        AppendDone("t/0", 2, A, AT, is_working=True),
        f"0e 0009 0000000000000002 {_AT_BYTES} {_STREAM_BYTES} {_MEMBER_BYTES}",
    ),
    (OutOfOrder("t/0", 2, A, AT), f"03 0009 0000000000000002 {_AT_BYTES} {_STREAM_BYTES} {_MEMBER_BYTES}"),
    (
        Fence("t/0", "d1", 2, 1, 9),
        f"04 0007 0000000000000002 0000000000000001 0000000000000009 {_STREAM_BYTES} 026431",
    ),
    (
        FenceDone("t/0", 2, A, 9, AT, 128),
        f"05 0009 0000000000000002 0000000000000009 {_AT_BYTES} 0000000000000080 {_STREAM_BYTES} {_MEMBER_BYTES}",
    ),
    (
        CopyChunk("t/0", "d1", 2, 1, AT, A, 7),
        (
            f"06 000c 0000000000000002 0000000000000001 {_AT_BYTES} 0000000000000007 01 {_STREAM_BYTES} 026431 "
            f"{_MEMBER_BYTES}"
        ),
    ),
    (
        CopyDone("t/0", 2, A, AT, 7),
        f"07 0009 0000000000000002 {_AT_BYTES} 0000000000000007 {_STREAM_BYTES} {_MEMBER_BYTES}",
    ),
    (
        ReadEntries("t/0", "d1", 2, 3, 4096, True),
        f"08 0007 0000000000000002 0000000000000003 00001000 01 {_STREAM_BYTES} 026431",
    ),
    (
        EntriesRead("t/0", 2, A, AT, (BatchEntry(b"xy", 2),), 8, b"f"),
        (
            f"09 0009 0000000000000002 {_AT_BYTES} 0000000000000008 00000001 00000001 {_STREAM_BYTES} {_MEMBER_BYTES}"
            "00000002 00000002 66 7879"
        ),
    ),
    (
        Refused("t/0", 2, A, Reason.SHORT, 9),
        f"0a 0009 0000000000000002 06 0000000000000009 {_STREAM_BYTES} {_MEMBER_BYTES}",
    ),
    (
        CopyChunk("t/0", "d1", 2, 1, AT, None, 7, is_urgent=True),
        f"06 0007 0000000000000002 0000000000000001 {_AT_BYTES} 0000000000000007 02 {_STREAM_BYTES} 026431",
    ),
    (
        ReadEntries("t/0", "d1", 2, 3, 4096, True, True),
        f"08 0007 0000000000000002 0000000000000003 00001000 03 {_STREAM_BYTES} 026431",
    ),
    (
        CopyProgress("t/0", 2, A, 4096, 7),
        f"0c 0009 0000000000000002 0000000000001000 0000000000000007 {_STREAM_BYTES} {_MEMBER_BYTES}",
    ),
    (
        StreamRates((("t/0", 1024), ("t/1", 0))),
        f"0d 0008 00000002 {_STREAM_BYTES} 03742f31 0000000000000400 0000000000000000",
    ),
    (LookAtRegistration("t/0", 7), f"0b 0004 0000000000000007 {_STREAM_BYTES}"),
)
MESSAGES = [message for message, _ in GOLDEN]


def body_of(message: Message) -> bytes:
    """A message's body, without the frame."""
    parts, size = encode(message, MAX_BODY)
    frame = b"".join(parts)
    assert len(frame) == size
    return frame[FRAME.size :]


def framed(body: bytes) -> bytes:
    """A frame with any body."""
    return frame_head(len(body), crc32c(body)) + body


@pytest.mark.parametrize(("message", "expected"), GOLDEN, ids=[type(message).__name__ for message, _ in GOLDEN])
def test_golden_bytes(message: Message, expected: str) -> None:
    """The bytes of each kind of message are those of docs/replication.md, for good."""
    assert body_of(message).hex() == expected.replace(" ", "")
    assert decode(memoryview(body_of(message))) == message


def test_golden_frame() -> None:
    """A frame is length, CRC-32C of the body, CRC-32C of both, and body."""
    parts, _ = encode(MESSAGES[-1], MAX_BODY)
    assert b"".join(parts).hex() == "0000000fa08ec4f25e7097d90b0004000000000000000703742f30"


def test_every_message_has_bytes() -> None:
    """There is no kind of message, and no reason of a refusal, that a link cannot carry."""
    assert {type(message) for message in MESSAGES} == set(get_args(Message))
    for reason in Reason:
        refused = Refused("t/0", 2, A, reason)
        assert decode(memoryview(body_of(refused))) == refused


names = st.text(st.characters(codec="utf-8"), max_size=60)
numbers = st.integers(0, 2**63 - 1)
members = st.builds(Member, names, names)
prefixes = st.builds(Prefix, numbers, numbers, st.integers(0, 2**32 - 1))
entries = st.lists(st.builds(BatchEntry, st.binary(max_size=300), st.integers(0, 2**32 - 1)), max_size=8).map(tuple)
FIELDS: dict[Any, st.SearchStrategy[Any]] = {
    str: names,
    int: numbers,
    bool: st.booleans(),
    bytes: st.binary(max_size=300),
    Member: members,
    Member | None: st.none() | members,
    Prefix: prefixes,
    Reason: st.sampled_from(Reason),
    tuple[BatchEntry, ...]: entries,
    tuple[tuple[str, int], ...]: st.lists(st.tuples(names, numbers), max_size=8).map(tuple),
    tuple[Member, ...]: st.lists(members, max_size=MAX_FORWARD).map(tuple),
}


def any_of(kind: type) -> st.SearchStrategy[Message]:
    """Any message of a kind, by the types of its fields."""
    values = {field.name: FIELDS[field.type] for field in dataclasses.fields(kind)}
    return st.builds(kind, **values | ({"max_bytes": st.integers(0, 2**32 - 1)} if kind is ReadEntries else {}))


messages = st.one_of([any_of(kind) for kind in get_args(Message)])


@given(messages)
def test_there_and_back(message: Message) -> None:
    """Whatever a message holds, its bytes give the same message."""
    assert decode(memoryview(body_of(message))) == message


@given(st.lists(messages, max_size=6), st.data())
def test_frames_in_any_pieces(sent: list[Message], data: st.DataObject) -> None:
    """However a stream of frames is cut into pieces, the same messages come out, with a buffer of any size."""
    stream = b"".join(b"".join(encode(message, MAX_BODY)[0]) for message in sent)
    frames = FrameBuffer(MAX_BODY, data.draw(st.sampled_from((16, 100, 5000))))
    found, at = [], 0
    while at < len(stream):
        room = frames.room()
        size = data.draw(st.integers(1, min(len(room), len(stream) - at)))
        room[:size] = stream[at : at + size]
        frames.add(size)
        at += size
        while (body := frames.next()) is not None:
            found.append(decode(body))
    assert found == sent


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_cut_and_trailing(message: Message) -> None:
    """A body that is cut anywhere, or goes on behind its end, is no message."""
    body = body_of(message)
    for length in range(len(body)):
        with pytest.raises(MalformedMessage):
            decode(memoryview(body[:length]))
    with pytest.raises(MalformedMessage):
        decode(memoryview(body + b"\x00"))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_bit_flipped(message: Message) -> None:
    """A flipped bit in a frame is found; in a body with a right checksum it makes another message or none at all."""
    frame = bytearray(framed(body_of(message)))
    for at in range(len(frame) * 8):
        frame[at // 8] ^= 1 << at % 8
        frames = FrameBuffer(MAX_BODY, 4096)
        frames.room()[: len(frame)] = frame
        frames.add(len(frame))
        with pytest.raises(MalformedMessage):
            frames.next()
        with suppress(MalformedMessage):
            decode(memoryview(frame)[FRAME.size :])
        frame[at // 8] ^= 1 << at % 8


@given(st.binary(max_size=400))
def test_any_bytes(body: bytes) -> None:
    """Bytes are a message or MalformedMessage, and what they make is encoded again to the same bytes."""
    with suppress(MalformedMessage):
        assert body_of(decode(memoryview(body))) == body


NO_NAMES = bytes(3)
"""The shortest names that an append can have."""


def append_body(forward: int, founding_bytes: int, entries: int, rest: bytes = b"") -> bytes:
    """An append that claims to have these numbers of things."""
    fixed = struct.pack(">BHqqqqIqBII", 1, 3, 1, 1, 1, 1, 1, 1, forward, founding_bytes, entries)
    return fixed + NO_NAMES + rest


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "a message of 0 bytes"),
        (b"\x00", "kind 0"),
        (b"\x0f", "kind 15"),
        (struct.pack(">BHq", 11, 1, -1) + b"\x00", "negative: -1"),
        (struct.pack(">BHq", 11, 2, 1) + b"\x01\xff", "not UTF-8"),
        (struct.pack(">BHq", 11, 2, 1) + b"\x02\xff", "a name of 2 bytes exceeds the 2 bytes"),
        (struct.pack(">BHq", 11, 3, 1) + b"\x00", "names of 3 bytes exceed"),
        (struct.pack(">BHq", 11, 2, 1) + b"\x00\x00", "2 names, not 1"),
        (struct.pack(">BHq", 11, 0, 1), "0 names, not 1"),
        (struct.pack(">BHqBq", 10, 3, 1, 99, 0) + NO_NAMES, "reason 99"),
        (struct.pack(">BHqqIB", 8, 2, 1, 1, 1, 4) + bytes(2), "of a read are 4, not 0 to 3"),
        (append_body(MAX_FORWARD + 1, 0, 0), "more members"),
        (append_body(0, 0, 2**32 - 1), "4294967295 entries"),
        (append_body(0, 2**32 - 1, 0), "of 4294967295 bytes"),
        (append_body(0, 0, 1, struct.pack(">II", 9, 1)), "entries of 9 bytes"),
        (append_body(0, 0, MAX_ENTRIES + 1, bytes(9 * MAX_ENTRIES + 9)), f"{MAX_ENTRIES + 1} entries"),
    ],
)
def test_hostile_bodies(body: bytes, why: str) -> None:
    """What cannot be is refused with the value that is wrong, before anything is made of it."""
    with pytest.raises(MalformedMessage, match=why):
        decode(memoryview(body))


def test_a_frame_has_a_bound() -> None:
    """A frame above the bound is refused by its length alone; one that is announced takes no memory."""
    frames = FrameBuffer(1000, 64)
    frames.room()[: FRAME.size] = frame_head(1001, 0)
    frames.add(FRAME.size)
    with pytest.raises(MalformedMessage, match="a frame of 1001 bytes, at most 1000"):
        frames.next()
    frames = FrameBuffer(1 << 30, 64)
    frames.room()[: FRAME.size] = frame_head(1 << 30, 0)
    frames.add(FRAME.size)
    assert frames.next() is None
    assert len(frames.room()) < 64


def test_memory_follows_what_arrives() -> None:
    """A buffer grows with the bytes of a long frame, never beyond the longest one, and shrinks behind it."""
    body = bytes(1000)
    frames = FrameBuffer(1000, 64)
    whole = framed(body)
    at = 0
    while at < len(whole):
        room = frames.room()
        assert len(room) <= max(64, at + 64)
        size = min(10, len(room), len(whole) - at)
        room[:size] = whole[at : at + size]
        frames.add(size)
        at += size
    found = frames.next()
    assert found is not None
    assert bytes(found) == body
    assert len(frames.room()) == 64


def test_what_cannot_be_sent() -> None:
    """A message beyond a limit names the limit and the stream; it is not sent as something else."""
    entry = BatchEntry(bytes(1000), 1)
    big = dataclasses.replace(APPEND, entries=(entry,) * 20)
    with pytest.raises(UnsendableMessage, match=r"Append of stream 't/0' has 2.* bytes, a frame at most 10000"):
        encode(big, 10_000)
    for wrong in (
        dataclasses.replace(APPEND, entries=(BatchEntry(b"", 1),) * (MAX_ENTRIES + 1)),
        dataclasses.replace(APPEND, forward=(A,) * (MAX_FORWARD + 1)),
        dataclasses.replace(APPEND, disk="d" * 256),
        dataclasses.replace(APPEND, epoch=2**63),
        dataclasses.replace(APPEND, entries=(BatchEntry(b"x", 2**32),)),
    ):
        with pytest.raises(UnsendableMessage):
            encode(wrong, MAX_BODY)


def test_entries_are_not_copied() -> None:
    """The parts of a frame are the entries' own bytes."""
    entry = BatchEntry(bytes(1000), 1)
    parts, _ = encode(dataclasses.replace(APPEND, entries=(entry,)), MAX_BODY)
    assert any(part is entry.data for part in parts)
