"""Requests of every version offered, as kio's dataclasses, through encoded answers, in virtual time."""

import io
import uuid
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
import trio.testing
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from logstore.disk.files import OsFiles
from logstore.kafka.api_types import Caller
from logstore.kafka.codec import EncodedAnswer
from logstore.kafka.groups.coordinator import GroupCoordinator
from logstore.kafka.groups.handlers import GroupHandlers, TopicIds
from logstore.kafka.groups.offsets import OffsetStore
from logstore.kafka.groups.service import GroupService, OffsetSettings
from logstore.kafka.groups.settings import GroupSettings
from logstore.kafka.pace import STEPS
from logstore.kafka.wire import build
from logstore.log.jobs import JobQueue
from logstore.log.ledger import DIRECTORY, Ledger
from logstore.log.ticket import Ticket
from tests.kafka.groups.driver import subscription

T = TypeVar("T")
CALLER = Caller("tool", "127.0.0.1", "localhost", 9092)
MILLISECONDS = 1000
MANY = 20_000
ORDERS_ID, WIDE_ID, NO_TOPICS_ID = (uuid.UUID(int=number) for number in (1, 2, 3))


class TrioClock:
    """The clock of the trio run: virtual under `autojump_clock`."""

    def wall_ms(self) -> int:
        """Milliseconds since an epoch."""
        return 1_700_000_000_000 + int(trio.current_time() * MILLISECONDS)

    def monotonic_s(self) -> float:
        """Seconds."""
        return trio.current_time()


class Front:
    """Handlers over a real ledger; `ask` sends a request and reads the answer's bytes back."""

    def __init__(self, root: Path) -> None:
        self.files = OsFiles(root)
        self.files.make_directory(DIRECTORY)
        self.queue = JobQueue(io_window=1)
        ledger = Ledger.open(self.files, "groups", self.queue.ready)
        clock = TrioClock()
        numbers = iter(range(1000))
        coordinator = GroupCoordinator(GroupSettings(), lambda: str(next(numbers)))
        self.topics = {"orders": ("id-1", 3), "wide": ("id-2", MANY)}
        service = GroupService(
            coordinator, OffsetStore(ledger), self.topics.get, OffsetSettings(), now_s=clock.monotonic_s()
        )
        service.recover_at_once(clock.monotonic_s())
        self.ids = {"orders": ORDERS_ID, "wide": WIDE_ID}
        self.handlers = GroupHandlers(service, clock, self.wait, TopicIds(self.name_of, self.ids.get))
        self.apis = {api.key: api for api in self.handlers.apis()}

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """The topic with this id."""
        return next((name for name, found in self.ids.items() if found == topic_id), None)

    async def wait(self, ticket: Ticket[T], /) -> T:
        """Work the disk off and wait."""
        while (job := self.queue.next_job()) is not None:
            self.queue.finished(job, job.run(self.files))
        settled = trio.Event()
        ticket.add_callback(lambda _: settled.set())
        await settled.wait()
        return ticket.result()

    async def ask(self, key: int, version: int, values: Mapping[str, Any]) -> Any:
        """Send a request; fields that its version lacks are left out."""
        request = build(load_request_schema(key, version), values)
        answer = await self.apis[key].handle(request, CALLER)
        assert not isinstance(answer, EncodedAnswer)
        assert answer.__version__ == version
        encoded = io.BytesIO()
        entity_writer(type(answer))(encoded, answer)
        decoded, size = entity_reader(type(answer))(memoryview(encoded.getvalue()).toreadonly(), 0)
        assert (decoded, size) == (answer, len(encoded.getvalue()))
        return decoded


JOIN, HEARTBEAT, LEAVE, SYNC, COMMIT, FETCH = 11, 12, 13, 14, 8, 9
DESCRIBE, LIST, DELETE, OFFSET_DELETE = 15, 16, 42, 47


def join_values(member_id: str = "", *, session_ms: int = 10_000) -> dict[str, Any]:
    """A JoinGroup of any version."""
    milliseconds = duration(session_ms)
    return {
        "group_id": "g",
        "session_timeout": milliseconds,
        "rebalance_timeout": milliseconds,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("orders")}],
    }


def duration(milliseconds: int) -> timedelta:
    """A duration as kio has it."""
    return timedelta(milliseconds=milliseconds)


async def joined(front: Front, version: int) -> Any:
    """Join, with the second try if it is asked for."""
    answer = await front.ask(JOIN, version, join_values())
    if answer.error_code is ErrorCode.member_id_required:
        answer = await front.ask(JOIN, version, join_values(answer.member_id))
    return answer


@pytest.mark.parametrize("version", range(11))
async def test_a_consumer_of_every_version(
    version: int, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Join, sync, heartbeat, commit, fetch, describe and leave, each in the version of that age."""
    front = Front(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(front.handlers.run)
        member = await joined(front, min(version, 9))
        assert (member.error_code, member.generation_id, member.protocol_name) == (ErrorCode.none, 1, "range")
        me = {"group_id": "g", "generation_id": 1, "member_id": member.member_id}
        assignments = [{"member_id": member.member_id, "assignment": b"all"}]
        named = {"protocol_type": "consumer", "protocol_name": "range"}
        synced = await front.ask(SYNC, min(version, 5), {**me, **named, "assignments": assignments})
        assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"all")
        assert (await front.ask(HEARTBEAT, min(version, 4), me)).error_code is ErrorCode.none
        commit = {
            **me,
            "generation_id_or_member_epoch": 1,
            "retention_time": duration(-1),
            "topics": [
                {
                    "name": "orders",
                    "topic_id": ORDERS_ID,
                    "partitions": [
                        {"partition_index": index, "committed_offset": 7, "committed_metadata": "m"} for index in (0, 9)
                    ],
                }
            ],
        }
        (topic,) = (await front.ask(COMMIT, max(version, 2), commit)).topics
        assert [p.error_code for p in topic.partitions] == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
        await fetch_back(front, max(version, 1))
        (group,) = (
            await front.ask(
                DESCRIBE,
                min(version, 6),
                {
                    "groups": ("g",),
                },
            )
        ).groups
        assert (group.group_state, group.members[0].member_assignment) == ("Stable", b"all")
        assert group.members[0].client_host == "/127.0.0.1"
        left = await front.ask(LEAVE, min(version, 5), {**me, "members": [{"member_id": member.member_id}]})
        assert left.error_code is ErrorCode.none
        nursery.cancel_scope.cancel()


async def fetch_back(front: Front, version: int) -> None:
    """Fetch what was committed and what was not."""
    wanted = [{"name": "orders", "topic_id": ORDERS_ID, "partition_indexes": (0, 1)}]
    request = {"group_id": "g", "topics": wanted, "groups": [{"group_id": "g", "topics": wanted}]}
    answer = await front.ask(FETCH, version, request)
    (topic,) = answer.groups[0].topics if version >= 8 else answer.topics
    assert [(p.partition_index, p.committed_offset, p.metadata) for p in topic.partitions] == [(0, 7, "m"), (1, -1, "")]
    if version >= 2:
        everything = {"group_id": "g", "topics": None, "groups": [{"group_id": "g", "topics": None}]}
        answer = await front.ask(FETCH, version, everything)
        (topic,) = answer.groups[0].topics if version >= 8 else answer.topics
        assert [(p.partition_index, p.committed_offset) for p in topic.partitions] == [(0, 7)]


def commit_by_id(*wanted: tuple[uuid.UUID, int]) -> dict[str, Any]:
    """A tool's commit of offset 7 for partition 0 and others of topics, by their ids."""
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [
            {
                "topic_id": topic_id,
                "partitions": [
                    {"partition_index": index, "committed_offset": 7, "committed_metadata": ""}
                    for index in range(count)
                ],
            }
            for topic_id, count in wanted
        ],
    }


async def test_offsets_of_an_unknown_id_are_refused_and_the_others_are_kept(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Commits and look-ups by an id that no topic has are UNKNOWN_TOPIC_ID under that id, beside those of known ids."""
    front = Front(tmp_path)
    known, unknown = (await front.ask(COMMIT, 10, commit_by_id((ORDERS_ID, 1), (NO_TOPICS_ID, 2)))).topics
    assert (known.topic_id, [p.error_code for p in known.partitions]) == (ORDERS_ID, [ErrorCode.none])
    assert (unknown.topic_id, [p.error_code for p in unknown.partitions]) == (
        NO_TOPICS_ID,
        [ErrorCode.unknown_topic_id] * 2,
    )
    wanted = [{"topic_id": one, "partition_indexes": (0, 0)} for one in (NO_TOPICS_ID, ORDERS_ID, ORDERS_ID)]
    answer = await front.ask(FETCH, 10, {"groups": [{"group_id": "g", "topics": wanted}]})
    found = [
        (topic.topic_id, [(p.partition_index, p.committed_offset, p.error_code) for p in topic.partitions])
        for topic in answer.groups[0].topics
    ]
    assert found == [
        (NO_TOPICS_ID, [(0, -1, ErrorCode.unknown_topic_id)]),
        (ORDERS_ID, [(0, 7, ErrorCode.none)]),
    ]


async def test_a_topic_that_goes_while_its_offsets_are_read_gets_none_of_them(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """While a long commit by id is read, its topic is deleted and another gets its name: nothing is committed there."""
    front = Front(tmp_path)
    request = build(load_request_schema(COMMIT, 10), commit_by_id((WIDE_ID, MANY), (ORDERS_ID, 1)))
    answers: list[Any] = []

    async def committed() -> None:
        answers.append(await front.apis[COMMIT].handle(request, CALLER))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(committed)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        assert not answers
        front.ids["wide"] = NO_TOPICS_ID
    wide, orders = answers[0].topics
    assert {part.error_code for part in wide.partitions} == {ErrorCode.unknown_topic_id}
    assert len(wide.partitions) == MANY
    assert [part.error_code for part in orders.partitions] == [ErrorCode.none]
    answer = await front.ask(FETCH, 10, {"groups": [{"group_id": "g", "topics": None}]})
    assert [topic.topic_id for topic in answer.groups[0].topics] == [ORDERS_ID]


@pytest.mark.parametrize("version", range(6))
async def test_administration_of_every_version(
    version: int, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A tool commits without membership, lists, filters, deletes an offset, then the group, which is then not found."""
    front = Front(tmp_path)
    partitions = [{"partition_index": index, "committed_offset": 3, "committed_metadata": None} for index in (0, 1)]
    commit = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": duration(-1),
        "topics": [{"name": "orders", "partitions": partitions}],
    }
    await front.ask(COMMIT, 9, commit)
    listed = await front.ask(LIST, version, {"states_filter": ("empty",), "types_filter": ("classic",)})
    assert [(group.group_id, group.protocol_type) for group in listed.groups] == [("g", "")]
    if version >= 4:
        assert (await front.ask(LIST, version, {"states_filter": ("Stable",)})).groups == ()
    doomed = [{"name": "orders", "partitions": partitions[:1]}]
    (topic,) = (await front.ask(OFFSET_DELETE, 0, {"group_id": "g", "topics": doomed})).topics
    assert [p.error_code for p in topic.partitions] == [ErrorCode.none]
    for expected in (ErrorCode.none, ErrorCode.group_id_not_found):
        (result,) = (await front.ask(DELETE, min(version, 2), {"groups_names": ("g",)})).results
        assert result.error_code is expected
    (group,) = (await front.ask(DESCRIBE, version, {"groups": ("g",)})).groups
    assert (group.group_state, group.error_code) == ("Dead", ErrorCode.none)
    (group,) = (await front.ask(DESCRIBE, 6, {"groups": ("g",)})).groups
    assert group.error_code is ErrorCode.group_id_not_found


async def test_the_loop_expires_sessions(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A member that falls silent is gone after its session, without any request to remind the sidecar."""
    front = Front(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(front.handlers.run)
        member = await joined(front, 9)
        assignments = [{"member_id": member.member_id, "assignment": b"all"}]
        me = {"group_id": "g", "generation_id": 1, "member_id": member.member_id}
        refused = await front.ask(SYNC, 5, {**me, "assignments": assignments})
        assert refused.error_code is ErrorCode.inconsistent_group_protocol
        await front.ask(SYNC, 4, {**me, "assignments": assignments})
        await trio.sleep(10.1)
        (group,) = (await front.ask(DESCRIBE, 6, {"groups": ("g",)})).groups
        assert group.group_state == "Empty"
        assert (await front.ask(HEARTBEAT, 4, me)).error_code is ErrorCode.unknown_member_id
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("version", "expected"), [(8, ErrorCode.illegal_generation), (9, ErrorCode.group_id_not_found)]
)
async def test_a_commit_that_misses_its_group(version: int, expected: ErrorCode, tmp_path: Path) -> None:
    """Told in the words its version knows; an unknown partition is told before that."""
    front = Front(tmp_path)
    commit = {
        "group_id": "none",
        "generation_id_or_member_epoch": 3,
        "member_id": "m",
        "topics": [
            {
                "name": "orders",
                "partitions": [
                    {"partition_index": index, "committed_offset": 7, "committed_metadata": ""} for index in (0, 9)
                ],
            }
        ],
    }
    (topic,) = (await front.ask(COMMIT, version, commit)).topics
    assert [p.error_code for p in topic.partitions] == [expected, ErrorCode.unknown_topic_or_partition]


LARGE: dict[str, tuple[int, int, Mapping[str, Any]]] = {
    "OffsetCommit": (
        COMMIT,
        5,
        {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "topics": [{"name": "orders", "partitions": [{"partition_index": n} for n in range(MANY)]}],
        },
    ),
    "OffsetDelete": (
        OFFSET_DELETE,
        0,
        {"group_id": "g", "topics": [{"name": "orders", "partitions": [{"partition_index": n} for n in range(MANY)]}]},
    ),
    "OffsetFetch": (FETCH, 8, {"groups": [{"group_id": f"g{n}", "topics": None} for n in range(MANY)]}),
    "DeleteGroups": (DELETE, 1, {"groups_names": [f"g{n}" for n in range(MANY)]}),
}


@pytest.mark.parametrize("name", LARGE)
async def test_a_request_of_many_parts_gives_way(tmp_path: Path, name: str) -> None:
    """While a request of 20,000 parts is served, others run after every hundred of them."""
    front = Front(tmp_path)
    await front.ask(COMMIT, 5, {**LARGE["OffsetCommit"][2], "topics": [{"name": "orders", "partitions": [{}]}]})
    key, version, values = LARGE[name]
    request = build(load_request_schema(key, version), values)
    steps = Steps(trio.lowlevel.current_task())
    trio.lowlevel.add_instrument(steps)
    await front.apis[key].handle(request, CALLER)
    trio.lowlevel.remove_instrument(steps)
    assert steps.taken >= MANY // STEPS


async def commit_wide(front: Front, offsets: Mapping[int, int]) -> None:
    """Commit offsets of partitions of the topic that has many."""
    parts = [{"partition_index": where, "committed_offset": offset} for where, offset in offsets.items()]
    topics = [{"name": "wide", "partitions": parts}]
    await front.ask(COMMIT, 5, {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": topics})


class Takings:
    """The moments at which a service is asked what a group has committed, and how many steps there were by then."""

    def __init__(self, front: Front, steps: "Steps", monkeypatch: pytest.MonkeyPatch) -> None:
        self.over = trio.Event()
        self.steps: list[int] = []
        take = front.handlers.service.committed

        def committed(*arguments: Any) -> Any:
            self.steps.append(steps.taken)
            self.over.set()
            return take(*arguments)

        monkeypatch.setattr(front.handlers.service, "committed", committed)


@pytest.mark.parametrize("named", [False, True])
async def test_a_group_that_has_committed_much_is_told_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    """OffsetFetch lets others run after every hundred partitions, whether it names them or asks for all; what is
    committed behind the moment that it tells of is not in the answer, nor does it matter that the topic is another one
    by then.
    """
    front = Front(tmp_path)
    await commit_wide(front, {n: n for n in range(MANY)})
    topics = [{"name": "wide", "partition_indexes": list(range(MANY))}] if named else None
    request = build(load_request_schema(FETCH, 5), {"group_id": "g", "topics": topics})
    steps = Steps(trio.lowlevel.current_task())
    takings = Takings(front, steps, monkeypatch)

    async def change_later() -> None:
        await takings.over.wait()
        await commit_wide(front, dict.fromkeys(range(MANY - 3, MANY), 7_000_000))
        front.topics["wide"] = ("id-3", MANY)

    trio.lowlevel.add_instrument(steps)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(change_later)
        answer: Any = await front.apis[FETCH].handle(request, CALLER)
    trio.lowlevel.remove_instrument(steps)
    assert steps.taken - takings.steps[0] >= MANY // STEPS
    (topic,) = answer.topics
    assert [part.committed_offset for part in topic.partitions] == list(range(MANY))
    again: Any = await front.apis[FETCH].handle(request, CALLER)
    assert {part.committed_offset for topic in again.topics for part in topic.partitions} == ({-1} if named else set())


async def test_all_of_a_group_is_taken_behind_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many groups a request asks for: others run between the copies of two that have committed much."""
    front = Front(tmp_path)
    await commit_wide(front, {n: n for n in range(STEPS)})
    steps = Steps(trio.lowlevel.current_task())
    takings = Takings(front, steps, monkeypatch)
    wanted = [{"group_id": name, "topics": None} for name in ("none", "g", "never")]
    request = build(load_request_schema(FETCH, 8), {"groups": wanted})
    trio.lowlevel.add_instrument(steps)
    await front.apis[FETCH].handle(request, CALLER)
    trio.lowlevel.remove_instrument(steps)
    before, of_group, behind = takings.steps
    assert before < of_group < behind


async def test_who_names_partitions_waits_for_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OffsetFetch of a few partitions does not walk over everything that the group has committed."""
    front = Front(tmp_path)
    await commit_wide(front, {n: n for n in range(10)})
    of_group = OffsetStore.of_group
    monkeypatch.setattr(OffsetStore, "of_group", lambda store, group_id: OnlyLookedUp(of_group(store, group_id)))
    for indexes in ((3, 11, 3), ()):
        topics = [{"name": "wide", "partition_indexes": indexes}, {"name": "none", "partition_indexes": (0,)}]
        answer = await front.ask(FETCH, 8, {"groups": [{"group_id": "g", "topics": topics}]})
        wide, none = answer.groups[0].topics
        found = [(part.partition_index, part.committed_offset) for part in wide.partitions]
        assert found == ([(3, 3), (11, -1)] if indexes else [])
        assert [part.committed_offset for part in none.partitions] == [-1]


class OnlyLookedUp(dict[Any, Any]):
    """Nobody may walk over it."""

    def __iter__(self) -> Any:
        raise AssertionError("walked over")

    keys = values = items = copy = __iter__


@pytest.mark.parametrize(
    "topics",
    [
        [{"name": "wide", "partition_indexes": [0] * MANY}],
        [{"name": "wide", "partition_indexes": []}] * MANY,
        [{"name": f"t{number}", "partition_indexes": []} for number in range(MANY)],
    ],
    ids=["a partition again and again", "a topic again and again", "topics without partitions"],
)
async def test_what_is_named_for_nothing_gives_way_too(tmp_path: Path, topics: list[Mapping[str, Any]]) -> None:
    """An OffsetFetch whose answer is short lets others run as well while what it names is looked through."""
    front = Front(tmp_path)
    request = build(load_request_schema(FETCH, 5), {"group_id": "g", "topics": topics})
    steps = Steps(trio.lowlevel.current_task())
    trio.lowlevel.add_instrument(steps)
    answer: Any = await front.apis[FETCH].handle(request, CALLER)
    trio.lowlevel.remove_instrument(steps)
    assert steps.taken >= MANY // STEPS
    assert len(answer.topics) == len({topic["name"] for topic in topics})
    assert sum(len(topic.partitions) for topic in answer.topics) <= 1


class Steps(trio.abc.Instrument):
    """Counts how often a task goes on."""

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self._task = task
        self.taken = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """See Instrument."""
        self.taken += task is self._task
