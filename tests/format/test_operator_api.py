"""Operators' requests and answers: exact inverses, and bytes that are none of them are MalformedRequest."""

from __future__ import annotations

import json

import pytest

from logstore.errors import CairnError, MalformedRequest, StorageFailed
from logstore.format.epoch_api import decode_request_header
from logstore.format.host_summaries import (
    DRAIN,
    HOST_ACTIONS,
    REMOVE,
    ClusterGlance,
    HostChanged,
    HostsReply,
    HostSummary,
    PlacesReply,
    PlaceSummary,
    WaitSummary,
)
from logstore.format.operator_api import (
    DESCRIBE_QUERIES,
    ChangeHostRequest,
    DescribeHostsRequest,
    DescribePlacesRequest,
    DescribeQueriesRequest,
    DescribeSidecarRequest,
    ForgetProducersRequest,
    OperatorReply,
    OperatorRequest,
    ProducersForgotten,
    QueriesReply,
    QuerySummary,
    SidecarReply,
    api_key_of,
    decode_reply,
    decode_request,
    encode_reply_body,
    encode_request,
)

FRESH = QuerySummary("q", "run-1", 1, 5, None, None, "idle", 0, 0, 0, is_batch_job=False)
OLD = QuerySummary("r", "run-2", 9, 6, 0, 7, "stuck", 3, 100, 2, is_batch_job=True, topics=("t", "u"))
SIDECAR = SidecarReply("1.2.3", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, None)
REFUSING = SidecarReply("1.2.3", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ("t-1", "t-2"))
OF_CLUSTER = SidecarReply("1.2.3", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, None, cluster=ClusterGlance(3, 2, 5))


HERE = HostSummary("a", 1, "r1", "a:9", ("a:1", "a:2"), "alive", None, 3, 4, 0)
GONE = HostSummary("b", None, "", "", (), "gone", 7, 0, 2, 0)
DRAINED = HostSummary("c", 3, "r1", "c:9", (), "unreachable", None, 3, 4, 0, DRAIN, 2)
REMOVED = HostSummary("d", None, "", "", (), "gone", None, 0, 1, 0, REMOVE)
HOSTS = HostsReply("a", (HERE, GONE, DRAINED, REMOVED), 3, 1, 6, 2, is_complete=False, crowded=1)
PLACE = PlaceSummary(0, "a", "a:1", 4, 3, ("a", "b"), ("b",), 5, 2)
LOST = PlaceSummary(1, "", "", 0, 3, (), (), 0, 0)
WAIT = WaitSummary(5, 7, 100, 200, "c/t.1/0/100-0123", "it is missing", is_lost=True)
OF_EPOCH = WaitSummary(6, 8, 200, 300, "", "nobody has it", is_lost=False, query="q", epoch=3)
WAITS = PlaceSummary(2, "a", "a:1", 4, 3, ("a", "b"), (), 5, 2, 2, (WAIT, OF_EPOCH))


@pytest.mark.parametrize(
    "request_",
    [
        DescribeQueriesRequest(),
        DescribeQueriesRequest("q"),
        DescribeSidecarRequest(),
        DescribeHostsRequest(),
        DescribePlacesRequest("t"),
        DescribePlacesRequest("t", 1_000),
        *(ChangeHostRequest("a", action) for action in HOST_ACTIONS),
        ForgetProducersRequest("t", 3, 7),
        ForgetProducersRequest("t", 3, 0, even_if_away=True),
        ForgetProducersRequest("t", 3, 7, repeat_epochs=True),
    ],
)
def test_requests_come_back(request_: OperatorRequest) -> None:
    """What is encoded is decoded as the same, under its key."""
    frame = b"".join(encode_request(request_, correlation_id=7))
    key, version, correlation_id, client_id, at = decode_request_header(frame)
    assert (key, version, correlation_id, client_id) == (api_key_of(request_), 0, 7, "cairn")
    assert decode_request(key, frame[at:]) == request_


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (DescribeQueriesRequest(), QueriesReply(())),
        (DescribeQueriesRequest(), QueriesReply((FRESH, OLD))),
        (DescribeSidecarRequest(), SIDECAR),
        (DescribeSidecarRequest(), REFUSING),
        (DescribeSidecarRequest(), OF_CLUSTER),
        (DescribeHostsRequest(), HOSTS),
        (ChangeHostRequest("a", REMOVE), HostChanged("a", 7)),
        (DescribePlacesRequest("t"), PlacesReply((PLACE, LOST, WAITS), is_complete=True)),
        (ForgetProducersRequest("t", 0, 7), ProducersForgotten(WAIT)),
        (ForgetProducersRequest("t", 0, 8), ProducersForgotten(OF_EPOCH)),
    ],
)
def test_replies_come_back(request_: OperatorRequest, reply: OperatorReply) -> None:
    """So is every answer; an error is an answer too."""
    for sent in (reply, StorageFailed("full")):
        frame = (7).to_bytes(4, "big") + b"".join(bytes(part) for part in encode_reply_body(sent))
        correlation_id, found = decode_reply(api_key_of(request_), frame)
        assert correlation_id == 7
        if isinstance(sent, CairnError):
            assert isinstance(found, StorageFailed)
        else:
            assert found == sent


@pytest.mark.parametrize("fields", [{}, {"after": 5}, {"after": "x" * 100_000}])
def test_what_is_no_request_is_refused(fields: dict[str, object]) -> None:
    """Missing, of another type, too long: MalformedRequest and nothing else."""
    text = json.dumps(fields).encode()
    with pytest.raises(MalformedRequest):
        decode_request(DESCRIBE_QUERIES, len(text).to_bytes(4, "big") + text)


def test_a_reply_cut_anywhere_is_refused() -> None:
    """Every prefix of an answer is MalformedRequest."""
    frame = (7).to_bytes(4, "big") + b"".join(bytes(part) for part in encode_reply_body(QueriesReply((OLD,))))
    for length in range(len(frame)):
        with pytest.raises(MalformedRequest):
            decode_reply(DESCRIBE_QUERIES, frame[:length])


def test_answers_of_the_version_before_are_read() -> None:
    """A sidecar that names no waiting streams has none, a query that names no topics has none, and a partition without
    the field waits for nothing.
    """
    for request, reply, gone in (
        (DescribeSidecarRequest(), SIDECAR, b',"waiting":[]'),
        (DescribeQueriesRequest(), QueriesReply((FRESH,)), b',"topics":[]'),
        (DescribePlacesRequest("t"), PlacesReply((PLACE,), is_complete=True), b',"waits":[]'),
    ):
        body = b"".join(bytes(part) for part in encode_reply_body(reply))[4:]
        assert gone in body
        old = body.replace(gone, b"")
        assert decode_reply(api_key_of(request), b"\0\0\0\7" + len(old).to_bytes(4, "big") + old) == (7, reply)
