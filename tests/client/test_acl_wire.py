"""Replies about access control lists that are cut off, or are none: MalformedReply and no other error."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from logstore.client.acl_wire import (
    AclEntry,
    AclOutcome,
    create_acls_reply,
    delete_acls_reply,
    describe_acls_reply,
)
from logstore.client.errors import MalformedReply
from logstore.interfaces import Buffer


def text(value: str) -> bytes:
    """A string on the wire."""
    return struct.pack(f">h{len(value)}s", len(value), value.encode())


NO_TEXT = struct.pack(">h", -1)
ONE = struct.pack(">i", 1)
ENTRY = AclEntry(2, "t", 4, "User:a", "*", 3, 3)
WHO = text("User:a") + text("*") + bytes((3, 3))
WHERE = b"\x02" + text("t") + b"\x04"
HEAD = struct.pack(">i", 0)
DONE = struct.pack(">h", 0) + NO_TEXT
DESCRIBED = HEAD + DONE + ONE + WHERE + ONE + WHO
CREATED = HEAD + ONE + struct.pack(">h", 42) + text("no")
DELETED = HEAD + ONE + DONE + ONE + struct.pack(">h", 56) + text("disk") + WHERE + WHO


def test_replies_are_decoded() -> None:
    """Entries, errors and words are what the protocol guide says; what could not be deleted fails its filter."""
    assert describe_acls_reply(DESCRIBED) == AclOutcome(0, "", (ENTRY,))
    assert create_acls_reply(CREATED) == [AclOutcome(42, "no")]
    assert delete_acls_reply(DELETED) == [AclOutcome(56, "disk", (ENTRY,))]


@pytest.mark.parametrize(
    ("reply", "decode"),
    [(DESCRIBED, describe_acls_reply), (CREATED, create_acls_reply), (DELETED, delete_acls_reply)],
    ids=["describe", "create", "delete"],
)
def test_a_reply_that_is_cut_off_is_malformed(reply: bytes, decode: Callable[[Buffer], object]) -> None:
    """At every byte, and where it counts more elements than it holds."""
    for length in range(len(reply)):
        with pytest.raises(MalformedReply):
            decode(reply[:length])
    with pytest.raises(MalformedReply):
        decode(reply.replace(ONE, struct.pack(">i", 1 << 30), 1))
