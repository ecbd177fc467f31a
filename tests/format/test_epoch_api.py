"""The private requests as bytes: whole, byte by byte, with something behind, with every bit flipped."""

import pytest

from logstore.base.metadata.errors import MetadataUnavailable, OutcomeUnknown
from logstore.errors import (
    CairnError,
    CorruptChunk,
    FencedIncarnation,
    MalformedRequest,
    OffsetOutOfRange,
    StagePosition,
    TierFull,
    TierUnavailable,
    TryAgain,
)
from logstore.format.epoch_api import (
    ABORT,
    API_KEYS,
    DESCRIBE,
    EPOCH_COMMIT,
    SCAN,
    STAGE,
    AbortReply,
    AbortRequest,
    DescribeReply,
    DescribeRequest,
    EpochCommitReply,
    EpochCommitRequest,
    Part,
    Reply,
    Request,
    ScanReply,
    ScanRequest,
    StageReply,
    StageRequest,
    TaskOutput,
    decode_reply,
    decode_request,
    decode_request_header,
    encode_reply,
    encode_request,
)
from logstore.format.fields import decode_fields, encode_fields

PARTS = (Part("out", 0, 3, 1, 2), Part("täglich", 5, 2, 1, 1))
REQUESTS: list[tuple[int, Request]] = [
    (STAGE, StageRequest("q", "r", 4, 1, "a-0", 2, PARTS, b"abcde")),
    (
        EPOCH_COMMIT,
        EpochCommitRequest("q", "r", 4, "skip", (TaskOutput(0, "a-0", 1), TaskOutput(3, "b", 0)), "{}", True),
    ),
    (ABORT, AbortRequest("q", "r", 2**63 - 1)),
    (DESCRIBE, DescribeRequest("q")),
    (SCAN, ScanRequest("out", 3, -1, (), 1 << 20)),
    (SCAN, ScanRequest("täglich", 0, 2**63 - 1, (1001, 1004), 0)),
]
REPLIES: list[tuple[int, Reply]] = [
    (STAGE, StageReply(3)),
    (EPOCH_COMMIT, EpochCommitReply("duplicate", 4, '{"täglich": 1}')),
    (ABORT, AbortReply(17)),
    (DESCRIBE, DescribeReply(4, "r", "idle", 0, 0, "positions")),
    (DESCRIBE, DescribeReply(None, None, "idle", 0, 0)),
    (SCAN, ScanReply(b"", 0, 0, 0)),
]
SCANNED = ScanReply(b"batches", 5, 3, 2**40)


def body_of(request: Request) -> tuple[int, bytes]:
    """API key and body of an encoded request."""
    frame = b"".join(encode_request(request, correlation_id=9, client_id="test"))
    api_key, version, correlation_id, client_id, position = decode_request_header(frame)
    assert (version, correlation_id, client_id) == (0, 9, "test")
    return api_key, frame[position:]


@pytest.mark.parametrize(("api_key", "request_"), REQUESTS)
def test_a_request_comes_back_as_it_was(api_key: int, request_: Request) -> None:
    """Encoding and decoding are inverses."""
    found_key, body = body_of(request_)
    assert (found_key, decode_request(found_key, body)) == (api_key, request_)


@pytest.mark.parametrize(("api_key", "reply"), REPLIES)
def test_a_reply_comes_back_as_it_was(api_key: int, reply: Reply) -> None:
    """Encoding and decoding are inverses."""
    assert decode_reply(api_key, encode_reply(reply, correlation_id=3)) == (3, reply)


def test_errors_come_back_with_their_class() -> None:
    """The client raises what the sidecar raised, with what it carries; an unknown kind keeps its name."""
    _, error = decode_reply(STAGE, encode_reply(StagePosition("no", length=4), correlation_id=3))
    assert isinstance(error, StagePosition)
    assert (str(error), error.length) == ("no", 4)
    _, fenced = decode_reply(EPOCH_COMMIT, encode_reply(FencedIncarnation("newer"), correlation_id=3))
    assert isinstance(fenced, FencedIncarnation)
    assert b'"kind":"FencedRun"' in encode_reply(FencedIncarnation("newer"), correlation_id=3)  # as in version 0
    damage = CorruptChunk("chunk is damaged", first_offset=7, last_offset=9)
    _, damaged = decode_reply(SCAN, encode_reply(damage, correlation_id=3))
    assert isinstance(damaged, CorruptChunk)
    assert (str(damaged), damaged.first_offset, damaged.last_offset) == ("chunk is damaged", 7, 9)
    for away in (TierUnavailable("away"), TierFull("away"), MetadataUnavailable("away"), OutcomeUnknown("away")):
        _, again = decode_reply(SCAN, encode_reply(away, correlation_id=3))
        assert type(again) is TryAgain  # which clients retry
    _, outside = decode_reply(SCAN, encode_reply(OffsetOutOfRange("t-0", 9, 2, 5), correlation_id=3))
    assert isinstance(outside, OffsetOutOfRange)
    assert str(outside) == str(OffsetOutOfRange("t-0", 9, 2, 5))
    _, other = decode_reply(EPOCH_COMMIT, encode_reply(CairnError("what"), correlation_id=3))
    assert isinstance(other, CairnError)
    assert str(other) == "what"


def test_replies_of_a_sidecar_that_noted_no_positions_are_read() -> None:
    """A sidecar of a former version answers without positions: there are none."""
    committed = encode_fields({"error": None, "outcome": "duplicate", "last_epoch": 4})
    assert decode_reply(EPOCH_COMMIT, b"\0\0\0\3" + committed) == (3, EpochCommitReply("duplicate", 4, ""))


@pytest.mark.parametrize(("api_key", "request_"), REQUESTS)
def test_fields_of_a_newer_library_are_passed_over(api_key: int, request_: Request) -> None:
    """A sidecar takes a request with a field that it does not know for the same without it."""
    fields, raw = decode_fields(body_of(request_)[1])
    assert decode_request(api_key, encode_fields({**fields, "later": [1]}) + bytes(raw)) == request_


@pytest.mark.parametrize(("api_key", "reply"), REPLIES)
def test_fields_of_a_newer_sidecar_are_passed_over(api_key: int, reply: Reply) -> None:
    """The library takes an answer with a field that it does not know for the same without it."""
    frame = encode_reply(reply, correlation_id=3)
    fields, raw = decode_fields(frame[4:])
    assert decode_reply(api_key, frame[:4] + encode_fields({**fields, "later": [1]}) + bytes(raw)) == (3, reply)


@pytest.mark.parametrize(("api_key", "request_"), REQUESTS)
def test_a_cut_or_longer_request_is_malformed(api_key: int, request_: Request) -> None:
    """Every prefix, and anything behind the end, is MalformedRequest."""
    _, body = body_of(request_)
    for length in range(len(body)):
        with pytest.raises(MalformedRequest):
            decode_request(api_key, body[:length])
    with pytest.raises(MalformedRequest):
        decode_request(api_key, body + b"\0")


@pytest.mark.parametrize(("api_key", "reply"), REPLIES)
def test_a_cut_or_longer_reply_is_malformed(api_key: int, reply: Reply) -> None:
    """Every prefix, and anything behind the end, is MalformedRequest."""
    frame = encode_reply(reply, correlation_id=3)
    for length in range(len(frame)):
        with pytest.raises(MalformedRequest):
            decode_reply(api_key, frame[:length])
    if api_key != SCAN:
        with pytest.raises(MalformedRequest):
            decode_reply(api_key, frame + b"\0")


def test_a_scan_carries_batches_as_they_are() -> None:
    """What follows the fields is the batches, whatever they are; an error carries none. Nothing is copied."""
    frame = encode_reply(SCANNED, correlation_id=3)
    assert decode_reply(SCAN, frame) == (3, SCANNED)
    _, found = decode_reply(SCAN, frame)
    assert isinstance(found, ScanReply)
    assert memoryview(found.batches).obj is frame
    for length in range(len(frame) - len(SCANNED.batches)):
        with pytest.raises(MalformedRequest):
            decode_reply(SCAN, frame[:length])
    refusal = encode_reply(FencedIncarnation("no"), correlation_id=3)
    with pytest.raises(MalformedRequest):
        decode_reply(SCAN, refusal + b"\0")


def test_the_bytes_of_a_scan() -> None:
    """docs/format.md, private requests: the layout does not change without a new version."""
    fields = b'{"topic":"out","partition":3,"before":-1,"types":[1001],"max_bytes":1048576}'
    sent = b"".join(encode_request(ScanRequest("out", 3, -1, (1001,), 1 << 20), correlation_id=9, client_id="c"))
    assert sent == bytes.fromhex("7534000000000009000163") + len(fields).to_bytes(4, "big") + fields
    answer = b'{"error":null,"next_before":5,"log_start_offset":3,"high_watermark":1099511627776}'
    assert encode_reply(SCANNED, correlation_id=9) == (
        b"\0\0\0\x09" + len(answer).to_bytes(4, "big") + answer + b"batches"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"types": [1001] * 65},
        {"types": [-1]},
        {"types": [2**15]},
        {"types": ["1001"]},
        {"types": [True]},
        {"types": 1001},
        {"types": None},
        {"before": -2},
        {"before": 2**63},
        {"partition": -1},
        {"max_bytes": -1},
        {"topic": ""},
    ],
)
def test_a_scan_that_cannot_be_is_malformed(fields: dict[str, object]) -> None:
    """Every field is bounded."""
    good = {"topic": "t", "partition": 0, "before": -1, "types": [], "max_bytes": 1}
    assert decode_request(SCAN, encode_fields(good)) == ScanRequest("t", 0, -1, (), 1)
    with pytest.raises(MalformedRequest):
        decode_request(SCAN, encode_fields(good | fields))


def test_every_flipped_bit_is_understood_or_malformed() -> None:
    """No flipped bit raises anything but MalformedRequest, and no request is read as two different kinds."""
    for api_key, request in REQUESTS:
        frame = b"".join(encode_request(request, correlation_id=9))
        for bit in range(len(frame) * 8):
            flipped = bytearray(frame)
            flipped[bit // 8] ^= 0x80 >> bit % 8
            try:
                found_key, _, _, _, position = decode_request_header(flipped)
                decode_request(api_key if found_key in API_KEYS else found_key, memoryview(flipped)[position:])
            except MalformedRequest:
                continue
    for api_key, reply in REPLIES:
        frame = encode_reply(reply, correlation_id=9)
        for bit in range(len(frame) * 8):
            flipped = bytearray(frame)
            flipped[bit // 8] ^= 0x80 >> bit % 8
            try:
                decode_reply(api_key, flipped)
            except MalformedRequest:
                continue


@pytest.mark.parametrize(
    "fields",
    [
        b"[" * 100_000,
        b'{"query": "\\ud800", "run": "r", "epoch": 0}',
        b'{"query": "q", "run": "r", "epoch": ' + b"9" * 5000 + b"}",
        b'{"query": "q", "run": "r", "epoch": true}',
        b'{"query": "q", "run": "r", "epoch": -1}',
        b'{"query": "", "run": "r", "epoch": 1}',
        b'{"query": "' + b"q" * 300 + b'", "run": "r", "epoch": 1}',
        b"NaN",
        b"\xff\xfe",
    ],
)
def test_hostile_json_is_malformed(fields: bytes) -> None:
    """Deep nesting, lone surrogates, endless digits and wrong types never raise anything else."""
    with pytest.raises(MalformedRequest):
        decode_request(ABORT, len(fields).to_bytes(4, "big") + fields)


def test_a_commit_names_each_task_once() -> None:
    """Two attempts of one task cannot both count."""
    tasks = [{"task": 1, "attempt": "a", "frames": 1}, {"task": 1, "attempt": "b", "frames": 1}]
    fields = {"query": "q", "run": "r", "epoch": 0, "rewind": "error", "tasks": tasks, "positions": "", "forget": False}
    with pytest.raises(MalformedRequest, match="twice"):
        decode_request(EPOCH_COMMIT, encode_fields(fields))
