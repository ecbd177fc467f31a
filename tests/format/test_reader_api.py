"""The messages of registered readers as bytes: whole, cut, with something behind, with every bit flipped."""

import pytest

from logstore.errors import CairnError, MalformedRequest, ReaderReleased, UnknownReader
from logstore.format import reader_api
from logstore.format.epoch_api import decode_request_header, encode_reply
from logstore.format.fields import encode_fields
from logstore.format.reader_api import (
    LOG_START,
    REGISTER_READER,
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
    api_key_of,
    decode_reply,
    decode_request,
    encode_reply_body,
    encode_request,
)

STREAMS = (ReaderOffset("out", 0, 3), ReaderOffset("täglich", 5, 2**63 - 1))
REQUESTS: list[ReaderRequest] = [
    RegisterReaderRequest("räder", "", (*STREAMS, ReaderOffset("x", 0, LOG_START))),
    RegisterReaderRequest("r", "group", ()),
    RegisterReaderRequest("r", "", STREAMS, keep=True),
    RegisterReaderRequest("r", "", STREAMS, state="query"),
    RegisterReaderRequest("r", "", STREAMS, incarnation_number=3),
    AcknowledgeRequest("r", STREAMS),
    AcknowledgeRequest("r", STREAMS, 2**63 - 1),
    RemoveReaderRequest("r"),
    DescribeReadersRequest("r"),
    DescribeReadersRequest("", "after"),
]
REPLIES: list[tuple[int, ReaderReply | CairnError]] = [
    (reader_api.REGISTER_READER, RegisterReaderReply(STREAMS)),
    (reader_api.ACKNOWLEDGE, Done()),
    (reader_api.REMOVE_READER, Done()),
    (reader_api.DESCRIBE_READERS, ReaderDescription(("a", "b"))),
    (reader_api.DESCRIBE_READERS, ReaderDescription(("a",), "g", STREAMS, STREAMS[:1], 17)),
    (reader_api.DESCRIBE_READERS, ReaderDescription(("a",), "", STREAMS, (), 17, "query")),
    (reader_api.DESCRIBE_READERS, ReaderDescription(("a",), "", STREAMS, (), 17, incarnation_number=4)),
]


def frame_of(request: ReaderRequest) -> bytes:
    """A request without its frame size."""
    return b"".join(bytes(part) for part in encode_request(request, correlation_id=7, client_id="me"))


def reply_frame(reply: ReaderReply | CairnError) -> bytes:
    """A response without its frame size."""
    return b"\x00\x00\x00\x07" + b"".join(bytes(part) for part in encode_reply_body(reply))


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_requests_come_out_as_they_went_in(request_: ReaderRequest) -> None:
    """Header and body; each cut and each addition is refused, and each flipped bit gives a request or a refusal."""
    frame = frame_of(request_)
    key, version, correlation_id, client_id, at = decode_request_header(frame)
    assert (key, version, correlation_id, client_id) == (api_key_of(request_), 0, 7, "me")
    body = frame[at:]
    assert decode_request(key, body) == request_
    for end in range(len(body)):
        with pytest.raises(MalformedRequest):
            decode_request(key, body[:end])
    with pytest.raises(MalformedRequest, match="behind"):
        decode_request(key, body + b"x")
    for bit in range(len(body) * 8):
        flipped = bytearray(body)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            decode_request(key, flipped)
        except MalformedRequest:
            continue


@pytest.mark.parametrize(("key", "reply"), REPLIES)
def test_replies_come_out_as_they_went_in(key: int, reply: ReaderReply) -> None:
    """An answer of each kind; a cut is refused."""
    frame = reply_frame(reply)
    assert decode_reply(key, frame) == (7, reply)
    for end in range(len(frame)):
        with pytest.raises(MalformedRequest):
            decode_reply(key, frame[:end])


@pytest.mark.parametrize("error", [UnknownReader("who"), ReaderReleased("gone")])
def test_errors_are_replies(error: CairnError) -> None:
    """The class and the message of an error arrive."""
    found = decode_reply(reader_api.ACKNOWLEDGE, encode_reply(error, correlation_id=7))[1]
    assert type(found) is type(error)
    assert str(found) == str(error)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"reader": ""}, "'reader' is empty"),
        ({"reader": "x" * 257}, "'reader'"),
        ({"streams": None}, "'streams' is not a list"),
        ({"streams": [{"topic": "t", "partition": 0, "offset": -2}]}, "'offset'"),
        ({"streams": [{"topic": "t", "partition": 0, "offset": 1}] * 2}, "names a stream twice"),
        ({"streams": [{"topic": "t", "partition": n, "offset": 1} for n in range(1_001)]}, "1001 streams"),
        ({"reader": "a\x1b[2J"}, r"'reader' has the character '\\x1b', which cannot be printed"),
        ({"reader": "a\nb"}, "'reader' has the character"),
        ({"group": "a\0b"}, r"'group' has the character '\\x00'"),
        ({"keep": 1}, "'keep' is neither true nor false"),
    ],
)
def test_wrong_values_are_named(change: dict[str, object], why: str) -> None:
    """A refusal names the field."""
    fields: dict[str, object] = {"reader": "r", "group": "", "streams": [], **change}
    with pytest.raises(MalformedRequest, match=why):
        decode_request(REGISTER_READER, encode_fields(fields))


def test_requests_of_an_older_library_are_read() -> None:
    """One that names neither other streams' fate, nor a state, nor an incarnation, has none; and a newer one's field
    that is not known is passed over.
    """
    old = {"reader": "r", "group": "", "streams": [{"topic": "out", "partition": 0, "offset": 3}]}
    wanted = RegisterReaderRequest("r", "", STREAMS[:1], keep=False, state="", incarnation_number=0)
    assert decode_request(REGISTER_READER, encode_fields(old)) == wanted
    assert decode_request(REGISTER_READER, encode_fields({**old, "later": [1]})) == wanted


def test_the_largest_reader_can_be_described() -> None:
    """A reader may have more streams than a request names; `pieces` divides them."""
    streams = tuple(ReaderOffset("t", partition, 1) for partition in range(reader_api.STREAMS_PER_READER))
    description = ReaderDescription(("a",), "", streams[1:], streams[:1], 17)
    assert decode_reply(reader_api.DESCRIBE_READERS, reply_frame(description)) == (7, description)
    pieces = reader_api.pieces(streams)
    assert {len(piece) for piece in pieces} == {reader_api.MAX_STREAMS}
    assert sum(pieces, ()) == streams
    assert reader_api.pieces(()) == [()]
