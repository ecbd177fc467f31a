"""Errors of the client: no sidecar answers, or the answer is an error.

Invariant: the message of a lost or refused connection names the address, so that a reader of a Spark driver's log knows
which sidecar to check. For errors that a sidecar reports on Cairn's own requests, the client raises the classes of
`logstore.errors` instead.
"""

from typing import Final

from logstore.errors import CairnError

NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
REQUEST_TIMED_OUT: Final = 7
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER: Final = 6
TOPIC_AUTHORIZATION_FAILED: Final = 29
TOPIC_ALREADY_EXISTS: Final = 36
INVALID_PARTITIONS: Final = 37
INVALID_CONFIG: Final = 40

_NAMES: Final = {
    -1: "UNKNOWN_SERVER_ERROR",
    OFFSET_OUT_OF_RANGE: "OFFSET_OUT_OF_RANGE",
    CORRUPT_MESSAGE: "CORRUPT_MESSAGE",
    UNKNOWN_TOPIC_OR_PARTITION: "UNKNOWN_TOPIC_OR_PARTITION",
    LEADER_NOT_AVAILABLE: "LEADER_NOT_AVAILABLE",
    NOT_LEADER: "NOT_LEADER_OR_FOLLOWER",
    REQUEST_TIMED_OUT: "REQUEST_TIMED_OUT",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
    19: "NOT_ENOUGH_REPLICAS",
    20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    14: "COORDINATOR_LOAD_IN_PROGRESS",
    15: "COORDINATOR_NOT_AVAILABLE",
    16: "NOT_COORDINATOR",
    22: "ILLEGAL_GENERATION",
    24: "INVALID_GROUP_ID",
    25: "UNKNOWN_MEMBER_ID",
    27: "REBALANCE_IN_PROGRESS",
    TOPIC_AUTHORIZATION_FAILED: "TOPIC_AUTHORIZATION_FAILED",
    30: "GROUP_AUTHORIZATION_FAILED",
    31: "CLUSTER_AUTHORIZATION_FAILED",
    32: "INVALID_TIMESTAMP",
    35: "UNSUPPORTED_VERSION",
    TOPIC_ALREADY_EXISTS: "TOPIC_ALREADY_EXISTS",
    INVALID_PARTITIONS: "INVALID_PARTITIONS",
    38: "INVALID_REPLICATION_FACTOR",
    INVALID_CONFIG: "INVALID_CONFIG",
    42: "INVALID_REQUEST",
    56: "KAFKA_STORAGE_ERROR",
    68: "NON_EMPTY_GROUP",
    69: "GROUP_ID_NOT_FOUND",
    74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH",
    78: "OFFSET_NOT_AVAILABLE",
    87: "INVALID_RECORD",
}
DESCRIBE_TOPIC: Final = "Describe on the topic, as Read and Write do"
READ_TOPIC: Final = "Read on the topic"
DESCRIBE_OR_CREATE: Final = f"{DESCRIBE_TOPIC}, and Create where the topic is to be made"
_ASK_FOR_RIGHTS: Final = "ask for an ACL that allows it"
_HINTS: Final = {
    UNKNOWN_TOPIC_OR_PARTITION: "`cairn topics` lists the topics, `cairn topics create NAME` creates one",
    15: "in a cluster this happens while too few hosts with the groups are alive: `cairn hosts` shows which are away",
    TOPIC_AUTHORIZATION_FAILED: _ASK_FOR_RIGHTS,
    30: _ASK_FOR_RIGHTS,
    31: _ASK_FOR_RIGHTS,
}
ASK_HOSTS: Final = (
    "the host could not do it in time: in a cluster this happens while the metadata store is away; `cairn hosts` "
    "says whether it is"
)
# The same request may succeed later: the server is starting, the topic is being created, the disk was full.
NOT_COORDINATING: Final = frozenset((14, 15, 16))
RETRIABLE: Final = frozenset(
    (LEADER_NOT_AVAILABLE, NOT_LEADER, REQUEST_TIMED_OUT, *NOT_COORDINATING, 19, 20, 56, 74, 75, 78)
)
ELSEWHERE: Final = frozenset((LEADER_NOT_AVAILABLE, NOT_LEADER, 74, 75))
"""Another host may lead the stream: its leader is looked up before the request is sent again."""


def name_of(code: int) -> str:
    """Kafka's name of an error code."""
    return _NAMES.get(code, f"error {code}")


class Unavailable(CairnError):
    """No sidecar answered within the time the caller allowed."""


def unanswered(where: str, limit_s: float, failure: Exception) -> Unavailable:
    """The error of a call that reached its time limit, with what to check. A server that closes connections exists: it
    expects other TLS or login settings, or it is an older sidecar that does not know the request. A server that
    answered has named the cause itself.
    """
    if isinstance(failure, CairnError):
        return Unavailable(f"{where} could not do this within {limit_s:g} s ({failure})")
    if isinstance(failure, ConnectionResetError | BrokenPipeError):
        return Unavailable(
            f"{where} closes the connection: its listener may require other TLS or login settings, or it is older than "
            f"this client (tried for {limit_s:g} s: {failure})"
        )
    if isinstance(failure, TimeoutError):
        advice = (
            "is the sidecar running there? A host of a cluster does not answer this while its metadata store is away "
            "(metadata_away in its log), or while too few hosts are alive (stream_unavailable; see `cairn hosts`)"
        )
    else:
        advice = "is the sidecar running there?"
    return Unavailable(f"no answer from {where} within {limit_s:g} s ({failure}); {advice}")


class SidecarRefused(CairnError):
    """A sidecar answered with one of Kafka's error codes. For the commonest, the message says what to do; `right` is
    that which the request needs, where the answer does not name it. `is_bare`: the answer has a code and no words.
    """

    def __init__(self, message: str, *, code: int, right: str = "", is_bare: bool = False) -> None:
        hint = ASK_HOSTS if is_bare and code == REQUEST_TIMED_OUT else _HINTS.get(code)
        if hint == _ASK_FOR_RIGHTS and right:
            hint = f"ask for an ACL that allows {right}"
        super().__init__(f"{message}: {name_of(code)}" + (f"; {hint}" if hint else ""))
        self.code = code


class SecurityFailed(CairnError):
    """A server that is not trusted, or that refuses the client's login; the same would happen again."""


class MalformedReply(CairnError):
    """A server's reply cannot be decoded, or answers a different request."""
