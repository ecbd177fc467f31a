"""Group requests at a host that does not coordinate, in every version; and when it begins to, and ends."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, cast

import pytest
import trio
import trio.testing
from kio.schema.errors import ErrorCode

from logstore.base.system import SystemClock
from logstore.cluster.epochs.replicated_ledger import LedgerHome, ReplicatedLedger
from logstore.kafka import codec
from logstore.kafka.api_types import Api
from logstore.kafka.groups.coordination import GroupCoordination
from logstore.kafka.groups.coordinator import RECOVER_BYTES, RECOVER_GROUPS, GroupCoordinator
from logstore.kafka.groups.generations import PREFIX, KeptGenerations
from logstore.kafka.groups.handlers import GroupHandlers, TopicIds
from logstore.kafka.groups.offsets import LOAD_STEP, OffsetLedger, OffsetStore
from logstore.kafka.groups.service import GroupService, OffsetSettings
from logstore.kafka.groups.settings import GroupSettings
from logstore.kafka.wire import build
from logstore.log.ticket import Ticket
from logstore.testing.clock import ManualClock
from tests.cluster.support import Front, MemoryOwner
from tests.cluster.test_generations import GOLDEN
from tests.kafka.node import CALLER, over_the_wire


async def nothing_beside(ledger: ReplicatedLedger, handlers: GroupHandlers) -> None:
    """Nothing else is in the ledger."""


class Home:
    """Gives the ledger when a test says so."""

    def __init__(self) -> None:
        self.is_leader = self.waits_for_members = False
        self.begin = trio.Event()
        self.end = trio.Event()

    async def run(self, serve: Callable[[ReplicatedLedger], Awaitable[None]]) -> None:
        await self.begin.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, ReplicatedLedger(Front(MemoryOwner()).stream, ManualClock()))
            await self.end.wait()
            nursery.cancel_scope.cancel()


async def wait(ticket: Ticket[Any]) -> Any:
    """Wait for a ticket."""
    done = trio.Event()
    ticket.add_callback(lambda _: done.set())
    await done.wait()
    return ticket.result()


def make(ledger: OffsetLedger) -> GroupHandlers:
    """Groups over a ledger, without topics."""
    ids = iter(range(1000))
    coordinator = GroupCoordinator(GroupSettings(), lambda: f"m{next(ids)}")
    service = GroupService(coordinator, OffsetStore(ledger), lambda _: None, OffsetSettings(), 0.0)
    return GroupHandlers(service, SystemClock(), wait, TopicIds(lambda _: None, lambda _: None))


class Empty:
    """A ledger without entries."""

    def items(self, prefix: str = "") -> Any:
        return iter(())

    def put(self, changes: Any) -> Ticket[None]:
        return Ticket.succeeded(None)


KNOWN = make(Empty()).apis()
VERSIONS = [(api.key, version) for api in KNOWN for version in range(api.min_version, api.max_version + 1)]
PARTITION = {"partition_index": 3, "committed_offset": 5, "committed_metadata": ""}
VALUES: dict[str, Any] = {
    "group_id": "g",
    "member_id": "m",
    "session_timeout": timedelta(seconds=10),
    "rebalance_timeout": timedelta(seconds=10),
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
}
ASKED: dict[int, dict[str, Any]] = {
    8: {"generation_id_or_member_epoch": 1, "topics": [{"name": "t", "topic_id": None, "partitions": [PARTITION]}]},
    9: {
        "topics": [{"name": "t", "partition_indexes": (3,)}],
        "groups": [{"group_id": "g", "topics": [{"name": "t", "topic_id": None, "partition_indexes": (3,)}]}],
    },
    15: {"groups": ("g",)},
    42: {"groups_names": ("g",)},
    47: {"topics": [{"name": "t", "partitions": [{"partition_index": 3}]}]},
}


async def ask(coordination: GroupCoordination, key: int, version: int, **values: Any) -> Any:
    """Send a request; returns the answer as a client decodes it."""
    apis: dict[int, Api] = {api.key: api for api in coordination.apis()}
    request = over_the_wire(build(codec.request_type(key, version), {**VALUES, **ASKED.get(key, {}), **values}))
    return over_the_wire(await apis[key].handle(request, CALLER))


def codes(answer: Any) -> set[ErrorCode]:
    """All error codes in an answer."""
    if isinstance(answer, tuple):
        return {code for part in answer for code in codes(part)}
    names = getattr(type(answer), "__dataclass_fields__", {})
    found = {code for name in names for code in codes(getattr(answer, name))}
    return found | ({answer.error_code} if hasattr(answer, "error_code") else set())


@pytest.mark.parametrize(("key", "version"), VERSIONS)
async def test_a_host_that_does_not_coordinate_says_so(key: int, version: int) -> None:
    """So clients look for the coordinator; only lists of groups are empty, because every host is asked for its own.
    While it reads the ledger, or cannot own it for want of members, clients come again later, also for the list:
    members go on, and who waits for an assignment joins anew.
    """
    home = Home()
    coordination = GroupCoordination(cast(LedgerHome[ReplicatedLedger], home), make, KNOWN, nothing_beside)
    expected = ErrorCode.none if key == 16 else ErrorCode.not_coordinator
    found = codes(await ask(coordination, key, version))
    assert expected in found
    assert found <= {expected, ErrorCode.none}
    home.waits_for_members = True
    members_go_on = {12: ErrorCode.none, 14: ErrorCode.rebalance_in_progress}
    found = codes(await ask(coordination, key, version))
    assert members_go_on.get(key, ErrorCode.coordinator_not_available) in found
    home.is_leader, home.waits_for_members = True, False
    loading = {12: ErrorCode.none, 14: ErrorCode.rebalance_in_progress}
    assert loading.get(key, ErrorCode.coordinator_load_in_progress) in codes(await ask(coordination, key, version))


OFFSET_GROUPS = LOAD_STEP + 10


class Filled(Empty):
    """A ledger with many groups: of some the members are known, and of others the offsets."""

    entries = {f"{PREFIX}m{number}": GOLDEN for number in range(2 * RECOVER_GROUPS)} | {
        f"offset/o{number % OFFSET_GROUPS}/t/{number}": b'{"offset":1,"time":2,"topic":"ab"}'
        for number in range(3 * LOAD_STEP)
    }
    entries[f"{PREFIX}large"] = GOLDEN.replace(b"YS1pZDE=", b"YS1p" * (RECOVER_BYTES // 3))

    def items(self, prefix: str = "") -> Any:
        return iter([pair for pair in self.entries.items() if pair[0].startswith(prefix)])


def test_groups_are_recovered_in_steps() -> None:
    """No step takes long, whatever there is; members have a whole session behind the last one."""
    clock = ManualClock()
    offsets = OffsetStore(Filled())
    generations = KeptGenerations(Filled(), clock)
    coordinator = GroupCoordinator(GroupSettings(), lambda: "x", generations=generations)
    service = GroupService(coordinator, offsets, lambda _: None, OffsetSettings(), 0.0)
    steps, known = 0, (0, 0)
    for _ in service.recover(clock.monotonic_s):
        steps, before = steps + 1, known
        known = sum(len(offsets.of_group(group)) for group, _ in offsets.groups()), len(list(coordinator.groups()))
        assert known[0] - before[0] <= LOAD_STEP
        assert known[1] - before[1] <= (RECOVER_GROUPS if steps <= 6 else LOAD_STEP)
        clock.advance(1_000 if steps <= 6 else 0)
    assert steps == 3 + 2 + 1 + 2 + 1
    assert len(list(coordinator.groups())) == 2 * RECOVER_GROUPS + 1 + OFFSET_GROUPS
    assert coordinator.next_deadline() == clock.monotonic_s() + 10


async def test_a_host_that_recovers_groups_does_all_else_as_well() -> None:
    """Other tasks run in between: links to other hosts, say, and signs of life."""
    home = Home()

    def make_filled(_: OffsetLedger) -> GroupHandlers:
        return make(Filled())

    coordination = GroupCoordination(cast(LedgerHome[ReplicatedLedger], home), make_filled, KNOWN, nothing_beside)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(coordination.run)
        home.begin.set()
        turns = 0
        while not coordination.services():
            turns += 1
            await trio.lowlevel.checkpoint()
        assert turns >= 3
        (service,) = coordination.services()
        assert service.coordinator.find("o9") is not None
        nursery.cancel_scope.cancel()


async def test_requests_that_wait_are_answered_when_the_coordinator_ends(autojump_clock: Any) -> None:
    """A member that waits for others does not wait for a coordinator that is none any more."""
    home = Home()
    coordination = GroupCoordination(cast(LedgerHome[ReplicatedLedger], home), make, KNOWN, nothing_beside)
    answers: list[Any] = []

    async def join() -> None:
        answers.append(await ask(coordination, 11, 3, member_id=""))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(coordination.run)
        home.begin.set()
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(join)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        home.end.set()
        await trio.testing.wait_all_tasks_blocked()
        assert [answer.error_code for answer in answers] == [ErrorCode.not_coordinator]
        nursery.cancel_scope.cancel()
