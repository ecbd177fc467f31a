"""A host as a member: it joins once, comes back after outages, and never takes what another host has."""

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio

from logstore.base.errors import CairnError
from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataRefused, MetadataUnavailable, OutcomeUnknown
from logstore.base.metadata.interface import (
    Committed,
    ConditionFailed,
    Delete,
    Entry,
    Lease,
    MetadataStore,
    Put,
    Transaction,
)
from logstore.base.racks import HostPlace
from logstore.cluster.members.host_identity import HostIdentity, establish_identity
from logstore.cluster.members.membership import Announcement, Membership, MembershipState
from logstore.errors import DiskRefused, HostNameTaken, NodeIdTaken
from logstore.testing.metadata_contract import changing, committed
from logstore.testing.reports import RecordedReports
from logstore.testing.simdisk import SimDisk
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from tests.support.virtual_time import run_virtual

Test = Callable[[SimulatedMetadata, trio.Nursery], Awaitable[None]]


def with_metadata(test: Test, **faults: float) -> None:
    """Run a test with a simulated metadata service, in virtual time."""

    async def main() -> None:
        service = SimulatedMetadata(Random(0), MetadataFaults(max_delay_s=0.01, **faults))
        async with trio.open_nursery() as outer:
            await outer.start(service.serve)
            async with trio.open_nursery() as nursery:
                await test(service, nursery)
                nursery.cancel_scope.cancel()
            outer.cancel_scope.cancel()

    run_virtual(main)


async def identity_of(service: SimulatedMetadata, host: str, disk: SimDisk, seed: int) -> HostIdentity:
    """A start."""
    return await establish_identity(service.store(host), disk, host, Random(seed), RecordedReports())


def membership_of(
    store: MetadataStore, identity: HostIdentity, reports: RecordedReports, node_id: int = 1
) -> Membership:
    """A membership with a lease of three seconds."""
    announced = Announcement(node_id, f"{identity.host}:9192", {"kafka": f"{identity.host}:9092"}, HostPlace("r1"))
    return Membership(store, identity, announced, reports)


async def members(service: SimulatedMetadata) -> dict[str, str]:
    """Hosts and their starts."""
    page = await service.store("x").page(schema.MEMBERS)
    return {
        entry.key.removeprefix(schema.MEMBERS): schema.decode(schema.StoredMember, entry).start
        for entry in page.entries
    }


async def failed(membership: Membership) -> CairnError:
    """The error that a membership ends with."""
    try:
        await membership.run()
    except ExceptionGroup as group:
        found: BaseException = group
        while isinstance(found, ExceptionGroup):
            (found,) = found.exceptions
        assert isinstance(found, CairnError)
        return found
    raise AssertionError("it ended without an error")


def is_held(membership: Membership) -> bool:
    """Whether it is held now; mypy takes a property for constant."""
    return membership.is_held


def test_a_member_comes_back_after_an_outage() -> None:
    """Its lease ends while it is cut off; it joins again by itself, and says both."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        reports = RecordedReports()
        identity = await identity_of(service, "a", SimDisk(), 1)
        membership = membership_of(service.store("a"), identity, reports)
        revision = await nursery.start(membership.run)
        assert revision == membership.joined_revision
        assert is_held(membership)
        for _ in range(3):
            service.cut_off("a")
            await trio.sleep(4)
            assert not is_held(membership)
            assert await members(service) == {}
            service.heal("a")
            await trio.sleep(12)
            assert is_held(membership)
            assert await members(service) == {"a": identity.label.start}
        assert reports.names().count("cluster_joined") == 4
        assert reports.names().count("cluster_left") >= 3

    with_metadata(test)


def test_answers_are_lost() -> None:
    """A host joins, and knows it, whatever answers are lost; it joins again when its lease ends for lack of answers."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        for number in range(10):
            identity = await identity_of(service, f"h{number}", SimDisk(), number)
            membership = membership_of(service.store(f"h{number}"), identity, RecordedReports(), number)
            await nursery.start(membership.run)
            while True:
                if (await members(service)).get(f"h{number}") == identity.label.start and is_held(membership):
                    break

    with_metadata(test, lost_answers=0.3, lost_requests=0.1)


def test_a_host_that_starts_anew_takes_its_place_at_once() -> None:
    """The entry of its last life, whose lease has not ended, is replaced, and stays when that lease ends."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        disk = SimDisk()
        with trio.CancelScope() as first_life:
            identity = await identity_of(service, "a", disk, 1)
            async with trio.open_nursery() as life:
                await life.start(membership_of(service.store("a"), identity, RecordedReports()).run)
                service.cut_off("a")
                first_life.cancel()
        service.heal("a")
        before_s = trio.current_time()
        again = await identity_of(service, "a", disk, 2)
        await nursery.start(membership_of(service.store("a"), again, RecordedReports()).run)
        assert trio.current_time() - before_s < 1
        for _ in range(10):
            await trio.sleep(1)
            assert await members(service) == {"a": again.label.start}

    with_metadata(test)


def test_names_and_numbers_are_taken_once() -> None:
    """A second host of a name, and of a node id, waits for a lease, and ends with an error that names the first."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        first = await identity_of(service, "a", SimDisk(), 1)
        await nursery.start(membership_of(service.store("a"), first, RecordedReports()).run)
        same_name = await identity_of(service, "a", SimDisk(), 2)
        begin_s = trio.current_time()
        error = await failed(membership_of(service.store("x"), same_name, RecordedReports(), 2))
        assert isinstance(error, HostNameTaken)
        assert first.label.disk in str(error)
        assert trio.current_time() - begin_s > 3
        same_number = await identity_of(service, "b", SimDisk(), 3)
        error = await failed(membership_of(service.store("b"), same_number, RecordedReports(), 1))
        assert isinstance(error, NodeIdTaken)
        assert "taken by host 'a'" in str(error)
        assert await members(service) == {"a": first.label.start}

    with_metadata(test)


def test_a_name_is_free_when_its_lease_has_ended() -> None:
    """A host whose disk was wiped waits for the lease of its last life, and joins."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        identity = await identity_of(service, "a", SimDisk(), 1)
        with trio.CancelScope() as first_life:
            async with trio.open_nursery() as life:
                await life.start(membership_of(service.store("a"), identity, RecordedReports()).run)
                service.cut_off("a")
                first_life.cancel()
        service.heal("a")
        wiped = await identity_of(service, "a", SimDisk(), 2)
        await nursery.start(membership_of(service.store("a"), wiped, RecordedReports()).run)
        assert await members(service) == {"a": wiped.label.start}

    with_metadata(test)


def test_a_disk_that_is_in_use_twice() -> None:
    """Of two processes with copies of one disk the one that started first ends when it has to join again."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        disk = SimDisk()
        identity = await identity_of(service, "a", disk, 1)
        errors: list[CairnError] = []

        async def live(membership: Membership, task_status: trio.TaskStatus[None]) -> None:
            task_status.started()
            errors.append(await failed(membership))

        first = membership_of(service.store("a"), identity, RecordedReports())
        await nursery.start(live, first)
        await trio.sleep(1)
        again = await identity_of(service, "a", disk, 2)
        second = membership_of(service.store("b"), again, RecordedReports())
        await nursery.start(second.run)
        service.cut_off("a")
        await trio.sleep(5)
        service.heal("a")
        await trio.sleep(15)
        assert [type(error) for error in errors] == [DiskRefused]
        assert is_held(second)

    with_metadata(test)


async def forget_disk(service: SimulatedMetadata, identity: HostIdentity) -> None:
    """The last step of a removal of the host."""
    disk = schema.disk_key(identity.label.disk)
    assert isinstance(await service.store("b").commit(Transaction((), (Delete(disk),))), Committed)


@pytest.mark.parametrize("has_joined", [False, True])
def test_a_host_that_was_removed_while_it_was_away(*, has_joined: bool) -> None:
    """With its disk, which nobody knows any more, it is no member, not for a moment: not behind a start that takes
    long, and not behind an outage, also if that start was its first. It would take chunks, and be refused with them at
    its next start.
    """

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        disk = SimDisk()
        identity = await identity_of(service, "a", disk, 1)
        if not has_joined:
            identity = await identity_of(service, "a", disk, 2)
        membership = membership_of(service.store("a"), identity, RecordedReports())
        errors: list[CairnError] = []

        async def live() -> None:
            errors.append(await failed(membership))

        if has_joined:
            nursery.start_soon(live)
            await trio.sleep(1)
            assert is_held(membership)
            service.cut_off("a")
            await trio.sleep(5)
        await forget_disk(service, identity)
        service.heal("a")
        if not has_joined:
            nursery.start_soon(live)
        for _ in range(150):
            await trio.sleep(0.1)
            assert await members(service) == {}
        assert [type(error) for error in errors] == [DiskRefused]
        assert "the host was removed from the cluster while it was away" in str(errors[0])

    with_metadata(test)


@pytest.mark.parametrize("when", ["before it is read", "before it is put"])
def test_a_new_host_whose_disk_is_forgotten_while_it_starts(when: str) -> None:
    """The removal of the host's last life takes the entry of its new disk along: it joins as a new host, and its disk
    is known then, so that its next start is accepted as well.
    """

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        disk, store, conflicts = SimDisk(), service.store("a"), 0
        identity = await identity_of(service, "a", disk, 1)
        commit = store.commit

        async def late(transaction: Transaction) -> Committed | ConditionFailed:
            nonlocal conflicts
            if when == "before it is put" and not conflicts:
                await forget_disk(service, identity)
            outcome = await commit(transaction)
            conflicts += isinstance(outcome, ConditionFailed)
            return outcome

        store.commit = late  # type: ignore[method-assign]
        if when == "before it is read":
            await forget_disk(service, identity)
        membership = membership_of(store, identity, RecordedReports())
        await nursery.start(membership.run)
        assert conflicts == (when == "before it is put")
        assert await members(service) == {"a": identity.label.start}
        entry = await entry_at(service.store("x"), schema.disk_key(identity.label.disk))
        assert schema.decode(schema.StoredDisk, entry) == schema.StoredDisk(
            host="a", starts=2, start=identity.label.start
        )
        membership.resign()
        again = await identity_of(service, "a", disk, 2)
        assert (again.member, again.label.starts) == (identity.member, 4)

    with_metadata(test)


def test_a_new_host_that_may_have_been_a_member() -> None:
    """The answer to its joining was lost, and then its disk was forgotten: it may have been in use, and is refused."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        store = service.store("a")
        identity = await identity_of(service, "a", SimDisk(), 1)

        async def lost(transaction: Transaction) -> Committed | ConditionFailed:
            await forget_disk(service, identity)
            raise OutcomeUnknown("the answer was lost")

        store.commit = lost  # type: ignore[method-assign]
        error = await failed(membership_of(store, identity, RecordedReports()))
        assert isinstance(error, DiskRefused)
        assert "give it an empty directory" in str(error)
        assert await members(service) == {}

    with_metadata(test)


def test_a_joining_changes_the_entry_of_the_disk() -> None:
    """Also when its lease has ended and it joins again, and whatever answers are lost: who has read the entry before,
    to forget the disk, finds that it has changed.
    """

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        store = service.store("x")
        identity = await identity_of(service, "a", SimDisk(), 1)
        key = schema.disk_key(identity.label.disk)
        before = await entry_at(store, key)
        service.faults.lost_answers = 0.3
        membership = membership_of(service.store("a"), identity, RecordedReports())
        await nursery.start(membership.run)
        for _ in range(3):
            joined = await entry_at(store, key)
            assert (joined.value, joined.revision > before.revision) == (before.value, True)
            before = joined
            service.cut_off("a")
            await trio.sleep(5)
            assert await members(service) == {}
            service.heal("a")
            with trio.fail_after(60):
                while not await members(service):  # noqa: ASYNC110  time is virtual
                    await trio.sleep(0.1)

    with_metadata(test)


def test_resigning_and_leaving() -> None:
    """Who resigns is gone at once, for good; who leaves is back when asked to stay."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        identity = await identity_of(service, "a", SimDisk(), 1)
        membership = membership_of(service.store("a"), identity, RecordedReports())
        await nursery.start(membership.run)
        membership.leave()
        await trio.sleep(0.3)
        assert await members(service) == {}
        assert membership.state is MembershipState.ASIDE
        await trio.sleep(10)
        membership.stay()
        await trio.sleep(0.5)
        assert await members(service) == {"a": identity.label.start}
        membership.resign()
        await trio.sleep(0.3)
        assert await members(service) == {}
        membership.stay()
        await trio.sleep(10)
        assert await members(service) == {}
        assert membership.state.value == "resigned"

    with_metadata(test)


@pytest.mark.parametrize("value", [b"{}", b"", b'{"v":2}'])
def test_an_entry_that_cannot_be_read(value: bytes) -> None:
    """It is reported, and not replaced: an operator puts it right, and the host joins."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        store = service.store("x")
        identity = await identity_of(service, "a", SimDisk(), 1)
        await committed(store, changing(Put(schema.member_key("a"), value)))
        error = await failed(membership_of(service.store("a"), identity, RecordedReports()))
        assert "members/a" in str(error)

    with_metadata(test)


def test_a_move_goes_on_over_what_operators_do() -> None:
    """Its number was removed by hand, and the store refuses the host for a while: it is at the new place in the end."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        store, reports = service.store("a"), RecordedReports()
        membership = membership_of(store, await identity_of(service, "a", SimDisk(), 1), reports)
        await nursery.start(membership.run)
        node = (await store.get(schema.node_key(1))).entry
        assert node is not None
        await committed(store, changing(Delete(node.key)))
        with trio.fail_after(60):
            await membership.move(HostPlace("r2"))
        assert schema.decode(schema.StoredMember, await entry_at(store, schema.member_key("a"))).rack == "r2"
        assert schema.decode(schema.StoredNode, await entry_at(store, schema.node_key(1))).host == "a"
        commit, refusals = store.commit, [MetadataRefused("no right to write")]

        async def refusing(transaction: Transaction) -> Committed | ConditionFailed:
            if refusals:
                raise refusals.pop()
            return await commit(transaction)

        store.commit = refusing  # type: ignore[method-assign]
        with trio.fail_after(60):
            await membership.move(HostPlace("r3"))
        assert schema.decode(schema.StoredMember, await entry_at(store, schema.member_key("a"))).rack == "r3"
        assert reports.names().count("metadata_unusable") == 1

    with_metadata(test)


def test_a_move_waits_for_a_lease_that_is_not_sure_for_a_moment() -> None:
    """The store has kept it, so the host does not join anew: its entry says the new place all the same."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        store, reports = service.store("a"), RecordedReports()
        membership = membership_of(store, await identity_of(service, "a", SimDisk(), 1), reports)
        await nursery.start(membership.run)
        keep_alive = store.keep_alive

        async def unanswered(lease_id: int) -> Lease:
            await keep_alive(lease_id)
            raise MetadataUnavailable("the answer was lost")

        store.keep_alive = unanswered  # type: ignore[method-assign]
        await trio.sleep(3)
        assert not is_held(membership)
        nursery.start_soon(membership.move, HostPlace("r2"))
        await trio.sleep(0.5)
        store.keep_alive = keep_alive  # type: ignore[method-assign]
        await trio.sleep(5)
        assert is_held(membership)
        assert reports.names().count("cluster_joined") == 1
        assert schema.decode(schema.StoredMember, await entry_at(store, schema.member_key("a"))).rack == "r2"

    with_metadata(test)


def test_a_move_while_the_host_joins() -> None:
    """What it has asked the store to put is the old place: it says the new one behind that."""

    async def test(service: SimulatedMetadata, nursery: trio.Nursery) -> None:
        store, gate = service.store("a"), trio.Event()
        membership = membership_of(store, await identity_of(service, "a", SimDisk(), 1), RecordedReports())
        commit = store.commit

        async def late(transaction: Transaction) -> Committed | ConditionFailed:
            await gate.wait()
            return await commit(transaction)

        store.commit = late  # type: ignore[method-assign]
        nursery.start_soon(membership.run)
        await trio.sleep(1)
        nursery.start_soon(membership.move, HostPlace("r2"))
        await trio.sleep(1)
        gate.set()
        await trio.sleep(1)
        assert schema.decode(schema.StoredMember, await entry_at(store, schema.member_key("a"))).rack == "r2"

    with_metadata(test)


async def entry_at(store: MetadataStore, key: str) -> Entry:
    """An entry that is there."""
    entry = (await store.get(key)).entry
    assert entry is not None
    return entry
