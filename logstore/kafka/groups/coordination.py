"""Groups of a cluster: the owner of the internal stream that keeps their offsets coordinates all of them.

Invariants:
* On the coordinator a request is answered by `GroupHandlers` over the ledger as of this ownership; on every other host
  it is NOT_COORDINATOR, at which clients look for the coordinator again.
* While the ledger is read, a heartbeat is answered well, and SyncGroup asks to join again, as in Kafka: clients do not
  expect COORDINATOR_LOAD_IN_PROGRESS there, and some end by it. All other requests are answered so, ListGroups too:
  a list without the groups would say that there are none. Groups are then
  recovered from it in steps of some milliseconds, and all other tasks run in between.
* A host that has claimed the stream, and cannot lead it for want of members, is named as the coordinator, and answers
  a heartbeat well: so members read on. All else is COORDINATOR_NOT_AVAILABLE, as what is written where the coordinator
  lives; SyncGroup asks to join again. Clients that are told of no coordinator fare worse: some read nothing more.
* When the ownership ends, requests that wait are answered so at once. The next coordinator has the generations that
  were formed (`generations`), and their members go on; a rebalance that was under way begins anew.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio
from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from logstore.cluster.epochs.replicated_ledger import LedgerHome, ReplicatedLedger
from logstore.kafka.api_types import Api, Caller
from logstore.kafka.codec import EncodedAnswer
from logstore.kafka.groups.handlers import GroupHandlers
from logstore.kafka.groups.offsets import NO_EPOCH, NO_OFFSET
from logstore.kafka.groups.service import GroupService
from logstore.kafka.wire import respond

OFFSET_COMMIT, OFFSET_FETCH, DESCRIBE, LIST, DELETE, OFFSET_DELETE = 8, 9, 15, 16, 42, 47
HEARTBEAT, SYNC = 12, 14
_WHILE_LOADING: Final = {HEARTBEAT: ErrorCode.none, SYNC: ErrorCode.rebalance_in_progress}
_BY_GROUP: Final = 8
"""The version of OffsetFetch from which on a request has several groups."""

Answer = ResponsePayload | EncodedAnswer
Beside = Callable[[ReplicatedLedger, GroupHandlers], Awaitable[None]]


class _Coordinating:
    """The handlers of one ownership, and the requests that they have."""

    def __init__(self, handlers: GroupHandlers) -> None:
        self.handlers = handlers
        self.by_key = {api.key: api.handle for api in handlers.apis()}
        self.requests: dict[trio.CancelScope, None] = {}

    def end(self) -> None:
        for scope in self.requests:
            scope.cancel()


class GroupCoordination:
    """Answers group requests on every host; `run` must run. `make` makes the handlers over a ledger; `beside` runs with
    them: what else is in the ledger.
    """

    def __init__(
        self,
        home: LedgerHome[ReplicatedLedger],
        make: Callable[[ReplicatedLedger], GroupHandlers],
        known: Sequence[Api],
        beside: Beside,
    ) -> None:
        self._home = home
        self._make = make
        self._known = known
        self._beside = beside
        self._now: _Coordinating | None = None

    def apis(self) -> list[Api]:
        """What to offer in ApiVersions, and how to answer it."""
        return [api._replace(handle=partial(self._handle, api.key)) for api in self._known]

    def services(self) -> Sequence[GroupService]:
        """The groups that this host coordinates now."""
        return () if self._now is None else (self._now.handlers.service,)

    async def run(self) -> None:
        """Coordinate while this host owns the stream; until cancelled."""
        await self._home.run(self._serve)

    async def _serve(self, ledger: ReplicatedLedger) -> None:
        handlers = self._make(ledger)
        await handlers.recover()
        now = self._now = _Coordinating(handlers)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._beside, ledger, now.handlers)
                await now.handlers.run()
        finally:
            self._now = None
            now.end()

    async def _handle(self, key: int, request: Any, caller: Caller) -> Answer:
        now = self._now
        if now is None:
            return await _refused(key, request, self._code(key))
        handle: Callable[[Any, Caller], Awaitable[Answer]] = now.by_key[key]
        with trio.CancelScope() as scope:
            now.requests[scope] = None
            try:
                return await handle(request, caller)
            finally:
                now.requests.pop(scope, None)
        return await _refused(key, request, ErrorCode.not_coordinator)

    def _code(self, key: int) -> ErrorCode:
        """How a request is answered while this host coordinates nothing."""
        if self._home.is_leader:
            return _WHILE_LOADING.get(key, ErrorCode.coordinator_load_in_progress)
        if self._home.waits_for_members:
            return _WHILE_LOADING.get(key, ErrorCode.coordinator_not_available)
        return ErrorCode.not_coordinator


async def _refused(key: int, request: Any, code: ErrorCode) -> ResponsePayload:
    """The answer of a host that does not coordinate."""
    if key == OFFSET_COMMIT:
        topics = [_topic(topic, [_commit(part, code) for part in topic.partitions]) for topic in request.topics]
        return await respond(request, {"topics": topics})
    if key == OFFSET_FETCH and request.__version__ >= _BY_GROUP:
        groups = [{"group_id": group.group_id, "topics": [], "error_code": code} for group in request.groups]
        return await respond(request, {"groups": groups})
    if key == OFFSET_FETCH:
        topics = [_topic(topic, _positions(topic, code)) for topic in request.topics or ()]
        return await respond(request, {"topics": topics if request.__version__ < 2 else [], "error_code": code})
    if key == DESCRIBE:
        described = [{"group_id": group_id, "error_code": code} for group_id in request.groups]
        return await respond(request, {"groups": described})
    if key == LIST:  # asked of every host: the groups are those of all answers together
        shown = ErrorCode.none if code is ErrorCode.not_coordinator else code
        return await respond(request, {"error_code": shown, "groups": []})
    if key == DELETE:
        results = [{"group_id": group_id, "error_code": code} for group_id in request.groups_names]
        return await respond(request, {"results": results})
    if key == OFFSET_DELETE:
        return await respond(request, {"error_code": code, "topics": []})
    return await respond(request, {"error_code": code, "assignment": b"", "members": []})


def _topic(topic: Any, partitions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    key = "name" if hasattr(topic, "name") else "topic_id"
    return {key: getattr(topic, key), "partitions": partitions}


def _commit(part: Any, code: ErrorCode) -> Mapping[str, Any]:
    return {"partition_index": part.partition_index, "error_code": code}


def _positions(topic: Any, code: ErrorCode) -> Sequence[Mapping[str, Any]]:
    nothing = {"committed_offset": NO_OFFSET, "committed_leader_epoch": NO_EPOCH, "metadata": "", "error_code": code}
    return [{"partition_index": index, **nothing} for index in topic.partition_indexes]
