"""Calls to whoever owns a stream: one try each, given up when the stream gets another owner meanwhile.

The kinds of calls between hosts, with their payloads (docs/replication.md, "Calls between hosts"):

| kind | asks the owner of | payload, answer |
|---|---|---|
| APPEND_GROUP | a stream | an order (`logstore.epochs.group_order`); nothing |
| FIND_END | a stream | topic id and partition; where the stream ends |
| FORWARD | the topic of epochs | one of Cairn's own requests of a client, and who it is; the body of the answer |
| ASK_READERS | the topic of groups | a request about readers; the body of the answer |
| HOLDERS | the topic of groups | a stream, and up to where it is to be trimmed; the positions that readers hold below |
| TRIM_LIMIT | the topic of groups | the same, and what each position holds; up to where it may be trimmed |
| BOUNDS | streams | streams; where each begins and ends |
| TELL_WISHES | no stream, but the host that plans copies | wishes and copies of a host; its goes |
| TELL_GOES | streams, from that host | goes; nothing |
| EPOCHS_LIMIT | the topic of epochs | a stream, and up to where it is to be trimmed; up to where epochs let it be |
| IS_UNDER_WAY | the topic of epochs | a stream, and an epoch's group for it; whether that epoch is under way |
| ASK_SLOTS | no stream, but the host whose coordinator leads | copies that come to a host; its slots |

Invariant: an error of the owner comes back as the error's kind and message, in the form of Cairn's own answers
(`logstore.format.epoch_api`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

import trio

from logstore.base.metadata import schema
from logstore.base.metadata.interface import MetadataStore
from logstore.cluster.members.view import ClusterView
from logstore.errors import CairnError, HostUnreachable, MalformedRequest, TryAgain
from logstore.format.epoch_api import decode_error, error_fields
from logstore.format.fields import decode_fields, encode_fields
from logstore.interfaces import Buffer

APPEND_GROUP: Final = 1
FIND_END: Final = 2
FORWARD: Final = 3
ASK_READERS: Final = 4
HOLDERS: Final = 5
TRIM_LIMIT: Final = 6
BOUNDS: Final = 7
TELL_WISHES: Final = 8
TELL_GOES: Final = 9
EPOCHS_LIMIT: Final = 10
IS_UNDER_WAY: Final = 11
ASK_SLOTS: Final = 12


async def certain_home(known: str | None, topic: str, metadata: MetadataStore) -> str | None:
    """The stream of a topic of the cluster's own, if this host knows it; None: there is no such topic, as the metadata
    store says. Raises TryAgain if this host has not heard of it yet, MetadataError.
    """
    if known is None and (await metadata.get(schema.topic_key(topic))).entry is not None:
        raise TryAgain(f"this host has not heard yet of topic {topic!r}, which is there; retry")
    return known


class KnownOwners(Protocol):
    """Who owns a stream, as this host knows it (`logstore.cluster.host`)."""

    def owner_of(self, stream: str, /) -> str | None:
        """The host that owns a stream and lives; None if there is none."""

    @property
    def view(self) -> ClusterView:
        """Tells of each change of hosts, topics and registrations in the metadata store, most of which change no owner.
        It does not tell when a host counts as gone because its address refuses connections: `owner_of` says so at once,
        and who waits for the view hears of it when the lease ends or another host claims.
        """


class Calls(Protocol):
    """See `logstore.cluster.links.calls.HostCalls`."""

    async def call(self, host: str, kind: int, payload: Sequence[Buffer], /) -> memoryview:
        """Call a host, and return the payload of its answer. Raises HostUnreachable."""


Handler = Callable[[str, memoryview], Awaitable[Sequence[Buffer]]]
"""Serves a call of a host: its payload, to keep, to the payload of the answer. An exception is a defect."""


class CallServer(Protocol):
    """See `logstore.cluster.links.calls.HostCalls`."""

    def handle(self, kind: int, handler: Handler, /) -> None:
        """Serve calls of this kind from now on."""


class OwnerCalls:
    """See the module."""

    def __init__(self, owners: KnownOwners, calls: Calls) -> None:
        self._owners = owners
        self._calls = calls

    def owner_of(self, stream: str) -> str | None:
        """The host that owns a stream and lives; None if there is none."""
        return self._owners.owner_of(stream)

    async def changed(self) -> None:
        """Wait for the next change in the metadata store, of whatever stream or host (`KnownOwners.view`). An owner may
        be another one after it, and may be gone before it: wait with a limit, and ask `owner_of`.
        """
        await self._owners.view.changed()

    async def call(self, stream: str, kind: int, payload: Sequence[Buffer]) -> memoryview:
        """Call the owner of a stream. Raises HostUnreachable; there may be another owner now."""
        owner = self._owners.owner_of(stream)
        if owner is None:
            raise HostUnreachable(f"stream {stream} has no owner now")
        return await self.call_host(owner, stream, kind, payload)

    async def call_host(self, owner: str, stream: str, kind: int, payload: Sequence[Buffer]) -> memoryview:
        """Call a host as long as it owns a stream. Raises HostUnreachable."""
        answers: list[memoryview | HostUnreachable] = []

        async def ask() -> None:
            try:
                answers.append(await self._calls.call(owner, kind, payload))
            except HostUnreachable as error:
                answers.append(error)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while self._owners.owner_of(stream) == owner:
                await self._owners.view.changed()
            nursery.cancel_scope.cancel()
        answer = answers[0] if answers else HostUnreachable(f"host {owner!r} no longer owns stream {stream}")
        if isinstance(answer, HostUnreachable):
            raise answer
        return answer


async def answered(work: Callable[[], Awaitable[Mapping[str, object]]]) -> Sequence[Buffer]:
    """The payload of an answer: what `work` returns, or its CairnError or OSError."""
    try:
        return [encode_fields({"error": None, **await work()})]
    except CairnError as error:
        return [encode_fields({"error": error_fields(error)})]
    except OSError as error:
        return [encode_fields({"error": {"kind": "StorageFailed", "message": error.strerror or str(error)}})]


def fields_of(answer: Buffer) -> dict[str, object]:
    """The fields of an answer. Raises the error in it, or MalformedRequest."""
    fields, _ = decode_fields(answer)
    if "error" not in fields:
        raise MalformedRequest("an answer without 'error'")
    if fields["error"] is not None:
        raise decode_error(fields["error"])
    return fields
