"""Translates Kafka's group requests to calls of `GroupService`, and the results to answers. Waiting happens here.

Invariants:
* A commit or a deletion that is reported as done is synced. If the disk refuses, the client gets
  COORDINATOR_NOT_AVAILABLE and tries again. The same happens after WRITE_LIMIT_S, as in Kafka; the change may then take
  effect later, before the client's repetition.
* If a request names topics by id (OffsetCommit and OffsetFetch from version 10 on), the id of a deleted topic is
  UNKNOWN_TOPIC_ID, even if a new topic has the same name.
* The offered versions are in `apis`. The requests of KIP-848 (ConsumerGroupHeartbeat, ConsumerGroupDescribe) are not
  offered.
"""

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

import trio
from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from logstore.base.clock import Clock
from logstore.errors import StorageFailed
from logstore.format.topic_partition import TopicPartition
from logstore.kafka.api_types import Api, Caller
from logstore.kafka.groups import members
from logstore.kafka.groups.group import ConsumerGroup
from logstore.kafka.groups.offsets import NO_EPOCH, NO_OFFSET, CommittedOffset
from logstore.kafka.groups.service import CommitRequest, GroupService, OffsetToCommit
from logstore.kafka.groups.settings import WRITE_LIMIT_S
from logstore.kafka.groups.state import GroupState
from logstore.kafka.pace import Pace
from logstore.kafka.wire import milliseconds, respond
from logstore.log.ticket import Ticket

T = TypeVar("T")

GROUP_TYPE = "classic"
_ALLOWED_OPERATIONS = sum(1 << code for code in (3, 6, 8, 10, 11))
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: all that Kafka knows for a group; no client is refused."""

_NOT_ASKED = -(2**31)
_NO_ID = uuid.UUID(int=0)
_OFFSETS_BY_ID = 10
"""The version of OffsetFetch from which on topics are named by id."""


class Waiter(Protocol):
    """Waits for a ticket while its work is done (`logstore.engine.StoreEngine.wait`)."""

    async def __call__(self, ticket: Ticket[T], /) -> T:
        """The ticket's result; raises its error."""


class TopicIds(NamedTuple):
    """The ids of topics, both ways; None where there is no such topic."""

    name_of: Callable[[uuid.UUID], str | None]
    id_of: Callable[[str], uuid.UUID | None]


class _TopicNamed(NamedTuple):
    """A topic of a request: its name (None: no topic has the id), its id if the request names it so, its partitions."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: Sequence[Any]


class GroupHandlers:
    """Answers group requests when the groups are recovered, at once or by `recover`; `run` must run beside it."""

    def __init__(self, service: GroupService, clock: Clock, wait: Waiter, topic_ids: TopicIds) -> None:
        self._service = service
        self._topic_ids = topic_ids
        self._clock = clock
        self._wait = wait
        self._woken = trio.Event()
        self._planned_s = math.inf

    @property
    def service(self) -> GroupService:
        """The groups themselves."""
        return self._service

    def apis(self) -> list[Api]:
        """What to offer in ApiVersions, and how to answer it."""
        return [
            Api(8, 2, 10, self.offset_commit),
            Api(9, 1, 10, self.offset_fetch),
            Api(11, 0, 9, self.join_group),
            Api(12, 0, 4, self.heartbeat),
            Api(13, 0, 5, self.leave_group),
            Api(14, 0, 5, self.sync_group),
            Api(15, 0, 6, self.describe_groups),
            Api(16, 0, 5, self.list_groups),
            Api(42, 0, 2, self.delete_groups),
            Api(47, 0, 0, self.offset_delete),
        ]

    async def recover(self) -> None:
        """Take up what the ledger has, and let other tasks run in between. Raises CorruptFile."""
        for _ in self._service.recover(self._clock.monotonic_s):
            await trio.lowlevel.checkpoint()

    async def run(self) -> None:
        """Act on deadlines as they come, until cancelled."""
        while True:
            self._service.expire(self._clock.monotonic_s(), self._clock.wall_ms())
            self._planned_s = self._service.next_deadline()
            with trio.move_on_after(max(0.0, self._planned_s - self._clock.monotonic_s())):
                await self._woken.wait()
                self._woken = trio.Event()

    def _replan(self) -> None:
        if self._service.next_deadline() < self._planned_s:
            self._woken.set()

    # ---- membership

    async def join_group(self, request: Any, caller: Caller) -> ResponsePayload:
        """JoinGroup 0 to 9."""
        version = request.__version__
        session_ms = milliseconds(request.session_timeout)
        joining = members.JoinRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=getattr(request, "group_instance_id", None),
            client_id=caller.client_id,
            client_host=f"/{caller.host}",  # as Java prints an address
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=milliseconds(request.rebalance_timeout) if version >= 1 else session_ms,
            protocol_type=request.protocol_type,
            protocols=tuple(members.Protocol(offer.name, offer.metadata) for offer in request.protocols),
            require_member_id=version >= 4,
            may_skip_assignment=version >= 9,
        )
        ticket = self._service.coordinator.join(joining, self._clock.monotonic_s())
        self._replan()
        result = await self._wait(ticket)
        self._replan()  # the session of a static member that waited begins with the answer
        return await respond(
            request,
            {
                "error_code": result.error,
                "generation_id": result.generation_id,
                "protocol_type": result.protocol_type,
                "protocol_name": result.protocol_name,
                "leader": result.leader,
                "skip_assignment": result.skip_assignment,
                "member_id": result.member_id,
                "members": [
                    {"member_id": m.member_id, "group_instance_id": m.instance_id, "metadata": m.metadata}
                    for m in result.members
                ],
            },
        )

    async def sync_group(self, request: Any, _: Caller) -> ResponsePayload:
        """SyncGroup 0 to 5; from version 5 the protocol must be named (KIP-559)."""
        if request.__version__ >= 5 and (request.protocol_type is None or request.protocol_name is None):
            return await respond(request, {"error_code": ErrorCode.inconsistent_group_protocol, "assignment": b""})
        syncing = members.SyncRequest(
            group_id=request.group_id,
            generation_id=request.generation_id,
            member_id=request.member_id,
            instance_id=getattr(request, "group_instance_id", None),
            protocol_type=getattr(request, "protocol_type", None),
            protocol_name=getattr(request, "protocol_name", None),
            assignments={part.member_id: part.assignment for part in request.assignments},
        )
        ticket = self._service.coordinator.sync(syncing, self._clock.monotonic_s())
        self._replan()
        result = await self._wait(ticket)
        self._replan()  # the sessions of members that waited begin with the answer
        return await respond(
            request,
            {
                "error_code": result.error,
                "protocol_type": result.protocol_type,
                "protocol_name": result.protocol_name,
                "assignment": result.assignment,
            },
        )

    async def heartbeat(self, request: Any, _: Caller) -> ResponsePayload:
        """Heartbeat 0 to 4."""
        error = self._service.coordinator.heartbeat(
            request.group_id,
            request.generation_id,
            request.member_id,
            getattr(request, "group_instance_id", None),
            self._clock.monotonic_s(),
        )
        self._replan()
        return await respond(request, {"error_code": error})

    async def leave_group(self, request: Any, _: Caller) -> ResponsePayload:
        """LeaveGroup 0 to 5: one member up to version 2, any number from version 3."""
        if request.__version__ >= 3:
            leavers = [members.Leaver(one.member_id, one.group_instance_id) for one in request.members]
        else:
            leavers = [members.Leaver(request.member_id, None)]
        errors = self._service.coordinator.leave(request.group_id, leavers, self._clock.monotonic_s())
        self._replan()
        answers = [
            {"member_id": leaver.member_id, "group_instance_id": leaver.instance_id, "error_code": error}
            for leaver, error in zip(leavers, errors, strict=True)
        ]
        top = ErrorCode.none if request.__version__ >= 3 else errors[0]
        return await respond(request, {"error_code": top, "members": answers})

    # ---- offsets

    async def offset_commit(self, request: Any, _: Caller) -> ResponsePayload:
        """OffsetCommit 2 to 10; answered once the offsets are synced."""
        retention = getattr(request, "retention_time", None)
        committing = CommitRequest(
            group_id=request.group_id,
            generation_id=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            instance_id=getattr(request, "group_instance_id", None),
            retention_ms=-1 if retention is None else milliseconds(retention),
        )
        positions: dict[TopicPartition, OffsetToCommit] = {}
        pace = Pace()
        topics: list[_TopicNamed] = []
        for asked in request.topics:
            await pace.step()
            topics.append(topic := self._named_topic(asked))
            for part in topic.partitions if topic.name is not None else ():
                await pace.step()
                positions[TopicPartition(topic.name or "", part.partition_index)] = OffsetToCommit(
                    part.committed_offset,
                    getattr(part, "committed_leader_epoch", NO_EPOCH),
                    part.committed_metadata or "",
                )
        # Other tasks ran meanwhile: a topic may be gone, and another called by its name.
        gone = {topic.name for topic in topics if self._is_gone(topic)}
        if gone:
            topics = [topic._replace(name=None) if topic.name in gone else topic for topic in topics]
            positions = {where: position for where, position in positions.items() if where.topic not in gone}
        now_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        refused, ticket = self._service.commit(committing, positions, now_s, now_ms)
        if request.__version__ < 9:  # clients of that age do not know that a commit can miss its group
            refused = {
                where: ErrorCode.illegal_generation if error is ErrorCode.group_id_not_found else error
                for where, error in refused.items()
            }
        self._replan()
        accepted = await self._settled(ticket)
        return await respond(
            request, {"topics": await _by_partition(topics, lambda where: refused.get(where, accepted))}
        )

    def _named_topic(self, asked: Any) -> _TopicNamed:
        """A topic that a request names by its name, or by its id."""
        if hasattr(asked, "name"):
            return _TopicNamed(asked.name, None, asked.partitions)
        topic_id = asked.topic_id or _NO_ID
        return _TopicNamed(self._topic_ids.name_of(topic_id), topic_id, asked.partitions)

    def _is_gone(self, topic: _TopicNamed) -> bool:
        return topic.topic_id is not None and self._topic_ids.name_of(topic.topic_id) != topic.name

    async def offset_fetch(self, request: Any, _: Caller) -> ResponsePayload:
        """OffsetFetch 1 to 10: one group up to version 7, any number from version 8; topics by id from version 10."""
        pace = Pace()
        if request.__version__ >= 8:
            groups = []
            # A group that is named twice is answered once: an answer may have all that the group has committed.
            for wanted in {wanted.group_id: wanted for wanted in request.groups}.values():
                if request.__version__ >= _OFFSETS_BY_ID:
                    topics = await self._fetched_by_id(wanted.group_id, wanted.topics, pace)
                else:
                    topics = await self._fetched(wanted.group_id, wanted.topics, pace)
                groups.append({"group_id": wanted.group_id, "topics": topics, "error_code": ErrorCode.none})
            return await respond(request, {"groups": groups})
        topics = await self._fetched(request.group_id, request.topics, pace)
        return await respond(request, {"topics": topics, "error_code": ErrorCode.none})

    async def _fetched(self, group_id: str, topics: Sequence[Any] | None, pace: Pace) -> list[Mapping[str, Any]]:
        """What a group has committed, for these topics or (None) all, as of one moment."""
        answers: dict[str, Mapping[str, Any]] = {}
        wanted = None if topics is None else await _named(topics, answers, pace)
        # All of it is taken at once, so its steps come first: a turn lies between two groups that have much.
        await pace.step(1 + self._service.count(group_id) if wanted is None else 1)
        taken = self._service.committed(group_id, wanted)
        for where in taken.known if wanted is None else wanted:
            await pace.step()
            committed = taken.of(where)
            if committed is not None or wanted is not None:
                _partitions(answers, where.topic).append(_position(where.partition, committed))
        return list(answers.values())

    async def _fetched_by_id(self, group_id: str, topics: Sequence[Any] | None, pace: Pace) -> list[Mapping[str, Any]]:
        """As `_fetched`; the partitions of an unknown id are UNKNOWN_TOPIC_ID. Asked for all, topics that are gone are
        left out.
        """
        if topics is None:
            return await self._all_fetched_by_id(group_id, pace)
        answers: list[Mapping[str, Any]] = []
        for topic_id, indexes in (await _by_id(topics, pace)).items():
            # The look-ups of one topic lie in one turn: its id means one topic in all of them.
            await pace.step(1 + len(indexes))
            name = self._topic_ids.name_of(topic_id)
            partitions: list[Mapping[str, Any]] = []
            if name is None:
                unknown = {"error_code": ErrorCode.unknown_topic_id}
                partitions = [{**_position(index, None), **unknown} for index in indexes]
            else:
                taken = self._service.committed(group_id, [TopicPartition(name, index) for index in indexes])
                partitions = [_position(index, taken.of(TopicPartition(name, index))) for index in indexes]
            answers.append({"topic_id": topic_id, "partitions": partitions})
        return answers

    async def _all_fetched_by_id(self, group_id: str, pace: Pace) -> list[Mapping[str, Any]]:
        await pace.step(1 + self._service.count(group_id))
        taken = self._service.committed(group_id, None)
        # In the same turn as the offsets: they belong to these ids.
        ids = {name: self._topic_ids.id_of(name) for name in {where.topic for where in taken.known}}
        answers: dict[str, dict[str, Any]] = {}
        for where in taken.known:
            await pace.step()
            topic_id, committed = ids[where.topic], taken.of(where)
            if topic_id is not None and committed is not None:
                answer = answers.setdefault(where.topic, {"topic_id": topic_id, "partitions": []})
                answer["partitions"].append(_position(where.partition, committed))
        return list(answers.values())

    async def offset_delete(self, request: Any, _: Caller) -> ResponsePayload:
        """OffsetDelete 0."""
        partitions = [
            TopicPartition(topic.name, p.partition_index) for topic in request.topics for p in topic.partitions
        ]
        top, errors, ticket = self._service.delete_offsets(request.group_id, partitions)
        if top is not ErrorCode.none:
            return await respond(request, {"error_code": top, "topics": []})
        deleted = await self._settled(ticket)
        named = [self._named_topic(topic) for topic in request.topics]
        topics = await _by_partition(named, lambda where: errors[where] or deleted)
        return await respond(request, {"error_code": ErrorCode.none, "topics": topics})

    # ---- administration

    async def delete_groups(self, request: Any, _: Caller) -> ResponsePayload:
        """DeleteGroups 0 to 2."""
        pace = Pace()
        attempts = []
        for group_id in dict.fromkeys(request.groups_names):
            await pace.step()
            attempts.append((group_id, *self._service.delete_group(group_id)))
        results, until_s = [], trio.current_time() + WRITE_LIMIT_S
        for group_id, error, ticket in attempts:
            await pace.step()
            settled = await self._settled(ticket, until_s)
            results.append({"group_id": group_id, "error_code": error or settled})
        return await respond(request, {"results": results})

    async def describe_groups(self, request: Any, _: Caller) -> ResponsePayload:
        """DescribeGroups 0 to 6. A group that is not there is Dead, and from version 6 an error as well."""
        operations = _ALLOWED_OPERATIONS if getattr(request, "include_authorized_operations", False) else _NOT_ASKED
        groups: list[Mapping[str, Any]] = []
        pace = Pace()
        # A group that is named twice is answered once: an answer has all of its members.
        for group_id in dict.fromkeys(request.groups):
            await pace.step()
            group = self._service.coordinator.find(group_id)
            if group is not None:
                await pace.step(len(group.members))
                groups.append({**_described(group), "authorized_operations": operations})
                continue
            missing = request.__version__ >= 6
            groups.append(
                {
                    "error_code": ErrorCode.group_id_not_found if missing else ErrorCode.none,
                    "error_message": f"Group {group_id} not found." if missing else None,
                    "group_id": group_id,
                    "group_state": GroupState.DEAD.value,
                    "protocol_type": "",
                    "protocol_data": "",
                    "members": [],
                    "authorized_operations": _NOT_ASKED if missing else operations,
                }
            )
        return await respond(request, {"groups": groups})

    async def list_groups(self, request: Any, _: Caller) -> ResponsePayload:
        """ListGroups 0 to 5, filtered by states (version 4) and types (version 5)."""
        states = {state.lower() for state in getattr(request, "states_filter", ())}
        kinds = {kind.lower() for kind in getattr(request, "types_filter", ())}
        groups = [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state.value,
                "group_type": GROUP_TYPE,
            }
            for group in self._service.coordinator.groups()
            if (not states or group.state.value.lower() in states) and (not kinds or GROUP_TYPE in kinds)
        ]
        return await respond(request, {"error_code": ErrorCode.none, "groups": groups})

    async def _settled(self, ticket: Ticket[None], until_s: float | None = None) -> ErrorCode:
        """What is answered when a ticket has settled, or at a time of the event loop; None: WRITE_LIMIT_S from now."""
        if not ticket.done:
            with trio.move_on_at(trio.current_time() + WRITE_LIMIT_S if until_s is None else until_s):
                with suppress(StorageFailed):
                    await self._wait(ticket)
        is_written = ticket.done and ticket.error is None
        return ErrorCode.none if is_written else ErrorCode.coordinator_not_available


async def _named(topics: Sequence[Any], answers: dict[str, Mapping[str, Any]], pace: Pace) -> Iterable[TopicPartition]:
    """The partitions that an OffsetFetch asks for, each once; its topics get their places in the answers."""
    wanted: dict[TopicPartition, None] = {}
    for topic in topics:
        await pace.step()
        _partitions(answers, topic.name)
        for index in topic.partition_indexes:
            await pace.step()
            wanted[TopicPartition(topic.name, index)] = None
    return wanted


def _partitions(answers: dict[str, Mapping[str, Any]], topic: str) -> list[Mapping[str, Any]]:
    """Those of a topic's answer, which is made if there is none."""
    if topic not in answers:
        answers[topic] = {"name": topic, "partitions": []}
    found: list[Mapping[str, Any]] = answers[topic]["partitions"]
    return found


async def _by_id(topics: Sequence[Any], pace: Pace) -> Mapping[uuid.UUID, Mapping[int, None]]:
    """The partitions that an OffsetFetch asks for by their topics' ids, each once."""
    wanted: dict[uuid.UUID, dict[int, None]] = {}
    for topic in topics:
        await pace.step(1 + len(topic.partition_indexes))
        wanted.setdefault(topic.topic_id or _NO_ID, {}).update(dict.fromkeys(topic.partition_indexes))
    return wanted


async def _by_partition(
    topics: Iterable[_TopicNamed], error_of: Callable[[TopicPartition], ErrorCode]
) -> list[Mapping[str, Any]]:
    pace = Pace()
    answers: list[Mapping[str, Any]] = []
    for topic in topics:
        partitions: list[Mapping[str, Any]] = []
        for part in topic.partitions:
            await pace.step()
            error = ErrorCode.unknown_topic_id
            if topic.name is not None:
                error = error_of(TopicPartition(topic.name, part.partition_index))
            partitions.append({"partition_index": part.partition_index, "error_code": error})
        answers.append({"name": topic.name, "topic_id": topic.topic_id, "partitions": partitions})
    return answers


def _position(partition: int, committed: CommittedOffset | None) -> Mapping[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": NO_OFFSET if committed is None else committed.offset,
        "committed_leader_epoch": NO_EPOCH if committed is None else committed.leader_epoch,
        "metadata": "" if committed is None else committed.metadata,
        "error_code": ErrorCode.none,
    }


def _described(group: ConsumerGroup) -> Mapping[str, Any]:
    is_stable = group.state is GroupState.STABLE
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": (group.protocol_name or "") if is_stable else "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(group.protocol_name) if is_stable else b"",
                "member_assignment": member.assignment,
            }
            for member in group.members.values()
        ],
    }
