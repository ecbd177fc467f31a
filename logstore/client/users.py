"""Requests about users, for `cairn user`: DescribeUserScramCredentials 0 and AlterUserScramCredentials 0. No I/O.

Invariant: a reply that cannot be decoded raises MalformedReply and no other error. kio is loaded here, not in
`logstore.client.wire`, because only this command needs it.
"""

import io
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from kio.schema.alter_user_scram_credentials.v0.request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kio.schema.alter_user_scram_credentials.v0.response import AlterUserScramCredentialsResponse
from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest
from kio.schema.describe_user_scram_credentials.v0.response import DescribeUserScramCredentialsResponse
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.primitive import i8, i32

from logstore.client.errors import MalformedReply, SidecarRefused

_NO_TAGS: Final = b"\0"
"""The end of a flexible header, in front of the body."""


class NewCredential(NamedTuple):
    """A credential to set: Kafka's number of the mechanism, and the salted password."""

    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


def describe_request() -> list[bytes]:
    """Ask for all users."""
    return _encoded(DescribeUserScramCredentialsRequest(users=None))


def describe_reply(body: memoryview) -> dict[str, dict[int, int]]:
    """Iterations by mechanism's number, for each user. Raises SidecarRefused, MalformedReply."""
    reply = _decoded(DescribeUserScramCredentialsResponse, body)
    if reply.error_code.value:
        raise SidecarRefused(reply.error_message or "users cannot be listed", code=reply.error_code.value)
    return {
        result.user: {info.mechanism: info.iterations for info in result.credential_infos} for result in reply.results
    }


def alter_request(user: str, removed: Sequence[int], given: Sequence[NewCredential]) -> list[bytes]:
    """Remove and set credentials of a user."""
    return _encoded(
        AlterUserScramCredentialsRequest(
            deletions=tuple(ScramCredentialDeletion(name=user, mechanism=i8(number)) for number in removed),
            upsertions=tuple(
                ScramCredentialUpsertion(
                    name=user,
                    mechanism=i8(credential.mechanism),
                    iterations=i32(credential.iterations),
                    salt=credential.salt,
                    salted_password=credential.salted_password,
                )
                for credential in given
            ),
        )
    )


def check_altered(body: memoryview) -> Mapping[str, None]:
    """The users that were changed. Raises SidecarRefused, MalformedReply."""
    reply = _decoded(AlterUserScramCredentialsResponse, body)
    for result in reply.results:
        if result.error_code.value:
            raise SidecarRefused(result.error_message or f"user {result.user!r}", code=result.error_code.value)
    return dict.fromkeys(result.user for result in reply.results)


def _encoded(request: Any) -> list[bytes]:
    target = io.BytesIO()
    cast(Callable[[io.BytesIO, Any], None], entity_writer(type(request)))(target, request)
    return [_NO_TAGS, target.getvalue()]


def _decoded(kind: type, body: memoryview) -> Any:
    if not len(body) or body[0]:
        raise MalformedReply(f"a reply of {len(body)} bytes has no header")
    try:
        reply, _ = cast(Any, entity_reader(kind))(body.toreadonly(), len(_NO_TAGS))
    except (SerialError, ValueError, TypeError, IndexError, struct.error, OverflowError, EOFError) as error:
        raise MalformedReply(f"a reply that cannot be decoded: {error}") from error
    return reply
