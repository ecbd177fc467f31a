"""Users, access control lists and quotas of a cluster: one truth for all hosts, whatever fails on the way to it."""

import json
from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio

from logstore.access.acls import Acl, Operation, PatternType, Permission, ResourceType
from logstore.access.quotas import CONSUMER, PRODUCER, Entity
from logstore.base.metadata.errors import MetadataUnavailable, OutcomeUnknown
from logstore.base.metadata.interface import Delete, Put, Transaction
from logstore.cluster.streams.stored_access import (
    ACCESS,
    HEAD,
    MAX_ACCESS_BYTES,
    StoredAccess,
    encode_entry,
    stored_key,
)
from logstore.errors import AccessFull
from logstore.events import METADATA_ENTRY_DAMAGED
from logstore.kafka.api_types import Caller
from logstore.kafka.security.credentials import credential_of_password
from logstore.kafka.security.stores import CallerStores, open_stores
from logstore.kafka.security.users import CredentialName
from logstore.log.ticket import Ticket
from logstore.testing.reports import RecordedReports
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from tests.support.virtual_time import run_virtual

SHA_256 = "SCRAM-SHA-256"
CREDENTIAL = credential_of_password(SHA_256, "pencil", bytes(range(32)), 4096)
ALICE = Caller("", "::1", "", 0, "User:alice")
ROOT = Caller("", "::1", "", 0, "User:root")


class Host:
    """A host's view of the users, lists and quotas."""

    def __init__(
        self, service: SimulatedMetadata, name: str, nursery: trio.Nursery, max_bytes: int = MAX_ACCESS_BYTES
    ) -> None:
        self.reports = RecordedReports()
        self.access = StoredAccess(service.store(name), self.reports, nursery.start_soon, max_bytes)
        self.secret = name.encode() * 32
        nursery.start_soon(self.access.run)

    async def ready(self) -> "Host":
        """Read everything, and follow it."""
        await self.access.complete()
        self.stores: CallerStores = open_stores(
            self.access, self.access, lambda size: self.secret[:size], lambda: self.access.is_damaged
        )
        self.authorizer = self.stores.authorizer(["User:root"])
        return self

    def may_read(self, caller: Caller) -> bool:
        """Whether a caller may read the topic t."""
        return self.authorizer.allows(caller, Operation.READ, ResourceType.TOPIC, "t")


Test = Callable[[SimulatedMetadata, Host, Host], Awaitable[None]]


def with_two_hosts(test: Test, *, seed: int = 0, max_bytes: int = MAX_ACCESS_BYTES, **faults: float) -> None:
    """Run a test with two hosts of a cluster, in virtual time."""

    async def main() -> None:
        service = SimulatedMetadata(Random(seed), MetadataFaults(max_delay_s=0.01, **faults))
        async with trio.open_nursery() as outer:
            await outer.start(service.serve)
            async with trio.open_nursery() as nursery:
                first, second = (Host(service, name, nursery, max_bytes) for name in "ab")
                await test(service, await first.ready(), await second.ready())
                nursery.cancel_scope.cancel()
            outer.cancel_scope.cancel()

    run_virtual(main, seed=seed)


async def settled(ticket: Ticket[None]) -> None:
    """The outcome of a change."""
    event = trio.Event()
    ticket.add_callback(lambda _: event.set())
    await event.wait()
    ticket.result()


async def until(host: Host, is_so: Callable[[], bool]) -> None:
    """Wait until a host has seen what makes something so."""
    with trio.fail_after(60):
        while not is_so():
            await host.access.changed()


def allow(number: int, permission: Permission = Permission.ALLOW) -> Acl:
    """A list."""
    name = f"t-{number}"
    return Acl(ResourceType.TOPIC, name, PatternType.LITERAL, "User:alice", "*", Operation.READ, permission)


READ_T = Acl(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)


@pytest.mark.parametrize("lost", [0.0, 0.3])
def test_what_one_host_is_told_all_hosts_do(lost: float) -> None:
    """A user, a list and a quota that one host has answered as made are in effect on the other soon, and so are their
    removals; from the first user on, both refuse what is not allowed. Lost messages change nothing of that.
    """

    async def test(_: SimulatedMetadata, first: Host, second: Host) -> None:
        assert first.may_read(ALICE)
        assert second.may_read(ALICE)
        name = CredentialName("alice", SHA_256)
        await settled(first.stores.users.change((), {name: CREDENTIAL}))
        assert not first.may_read(ALICE)
        await until(second, lambda: not second.may_read(ALICE))
        assert second.stores.users.credential_or_decoy(name) == (CREDENTIAL, True)
        await settled(second.stores.acls.create([READ_T]))
        assert second.may_read(ALICE)
        await until(first, lambda: first.may_read(ALICE))
        await settled(first.stores.quotas.alter(Entity("alice"), {PRODUCER: 5.0}))
        await until(second, lambda: second.stores.quotas.quotas.of(Entity("alice")) == {PRODUCER: 5.0})
        await settled(second.stores.quotas.alter(Entity("alice"), {PRODUCER: None}))
        await settled(first.stores.acls.delete([READ_T]))
        await settled(first.stores.users.change([name], {}))
        await until(second, lambda: second.stores.is_empty)
        assert first.stores.is_empty
        assert second.may_read(ALICE)

    with_two_hosts(test, lost_requests=lost, lost_answers=lost)


@pytest.mark.parametrize("seed", range(5))
def test_hosts_that_change_the_same_at_once_lose_nothing(seed: int) -> None:
    """Two hosts are asked for the two quotas of one user at the same time: the user has both."""

    async def test(_: SimulatedMetadata, first: Host, second: Host) -> None:
        alice = Entity("alice")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(settled, first.stores.quotas.alter(alice, {PRODUCER: 1.0}))
            nursery.start_soon(settled, second.stores.quotas.alter(alice, {CONSUMER: 2.0}))
        both = {PRODUCER: 1.0, CONSUMER: 2.0}
        for host in (first, second):
            await until(host, lambda host=host: host.stores.quotas.quotas.of(alice) == both)  # type: ignore[misc]

    with_two_hosts(test, seed=seed, lost_answers=0.2)


def test_a_large_change_forbids_first() -> None:
    """A request with more lists than a transaction takes is made in parts, the lists that deny first; removing
    them, the lists that allow go first. So a part allows nothing that the whole does not.
    """

    async def test(service: SimulatedMetadata, first: Host, second: Host) -> None:
        acls = [allow(number, list(Permission)[2 + number % 2]) for number in range(200)]
        denied = {acl for acl in acls if acl.permission is Permission.DENY}
        seen: list[set[Acl]] = []

        async def watch() -> None:
            while True:
                seen.append(set(second.stores.acls.index))
                await second.access.changed()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await settled(first.stores.acls.create(acls))
            await until(second, lambda: len(second.stores.acls.index) == 200)
            await settled(first.stores.acls.delete(acls))
            await until(second, lambda: not len(second.stores.acls.index))
            nursery.cancel_scope.cancel()
        assert len(seen) > 4
        for lists in seen:
            assert lists <= denied or denied <= lists

    with_two_hosts(test)


def test_rights_outlast_the_metadata_store() -> None:
    """While the metadata store is away, what a host knows stays in effect, and a change fails."""

    async def test(service: SimulatedMetadata, first: Host, second: Host) -> None:
        await settled(first.stores.users.change((), {CredentialName("alice", SHA_256): CREDENTIAL}))
        await settled(first.stores.acls.create([READ_T]))
        await until(second, lambda: second.may_read(ALICE))
        service.stop()
        await trio.sleep(60)
        assert second.may_read(ALICE)
        assert not second.authorizer.allows(ALICE, Operation.WRITE, ResourceType.TOPIC, "t")
        with pytest.raises((MetadataUnavailable, OutcomeUnknown)):
            await settled(second.stores.acls.delete([READ_T]))
        service.start()
        assert second.may_read(ALICE)
        await settled(second.stores.acls.delete([READ_T]))
        await until(first, lambda: not first.may_read(ALICE))

    with_two_hosts(test)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[]",
        b'{"v":2,"key":"acl/x","text":""}',
        b'{"v":1,"key":"acl/y","text":""}',
        b'{"v":1,"key":"acl/x","text":""}',
        b'{"v":1,"key":"acl/x"}',
        b"\xff",
    ],
)
def test_what_cannot_be_read_may_forbid(value: bytes) -> None:
    """An entry that is damaged, or of a newer version, is reported by its key; until it is mended only super users are
    served, on a cluster that was open too.
    """

    async def test(service: SimulatedMetadata, first: Host, second: Host) -> None:
        await settled(second.stores.acls.create([READ_T]))
        await until(first, lambda: first.may_read(ALICE))
        key, store = stored_key("acl/x"), service.store("operator")
        await store.commit(Transaction((), (Put(key, value),)))
        await until(first, lambda: not first.may_read(ALICE))
        assert first.authorizer.is_active
        assert first.may_read(ROOT)
        assert not first.authorizer.allows_any(ALICE, Operation.READ, ResourceType.TOPIC)
        assert key in str(first.reports.of(METADATA_ENTRY_DAMAGED))
        await until(second, lambda: second.access.is_damaged)
        await second.ready()
        assert not second.may_read(ALICE)
        await store.commit(Transaction((), (Delete(key),)))
        await until(first, lambda: first.may_read(ALICE))
        await until(second, lambda: second.may_read(ALICE))

    with_two_hosts(test)


@pytest.mark.parametrize(
    ("own_key", "value"),
    [
        ("credential/SCRAM-SHA-256/bob", b'{"iterations":1e999,"salt":"","stored_key":"","server_key":""}'),
        ('quota/{"user":"bob"}', b'{"producer_byte_rate":1%s}' % (b"0" * 400)),
    ],
)
def test_a_number_without_bounds_is_damage(own_key: str, value: bytes) -> None:
    """It is reported as any entry that cannot be read, and ends no host."""

    async def test(service: SimulatedMetadata, first: Host, second: Host) -> None:
        key = stored_key(own_key)
        await service.store("operator").commit(Transaction((), (Put(key, encode_entry(own_key, value)),)))
        await until(first, lambda: first.access.is_damaged)
        assert key in str(first.reports.of(METADATA_ENTRY_DAMAGED))
        await until(second, lambda: second.access.is_damaged)

    with_two_hosts(test)


def test_the_room_is_bounded() -> None:
    """What all entries take together is bounded; a change beyond it is refused, and removals are made always."""

    async def test(_: SimulatedMetadata, first: Host, second: Host) -> None:
        acls = [allow(number) for number in range(100)]
        with pytest.raises(AccessFull, match="at most 10000"):
            await settled(first.stores.acls.create(acls))
        await settled(first.stores.acls.create(acls[:40]))
        with pytest.raises(AccessFull):
            await settled(second.stores.acls.create(acls[40:80]))
        await settled(second.stores.acls.delete(acls[:40]))
        await settled(second.stores.acls.create(acls[40:80]))

    with_two_hosts(test, max_bytes=10_000)


def test_decoys_are_the_same_on_every_host() -> None:
    """Who asks several hosts about a name that is no user's is told the same by all, once there are users, and after
    further changes by any host: nobody learns from differences who is a user.
    """

    async def test(_: SimulatedMetadata, first: Host, second: Host) -> None:
        nobody = CredentialName("nobody", SHA_256)
        async with trio.open_nursery() as nursery:
            for host, user in ((first, "alice"), (second, "bob")):
                name = CredentialName(user, SHA_256)
                nursery.start_soon(settled, host.stores.users.change((), {name: CREDENTIAL}))
        await until(first, lambda: len(first.stores.users) == 2)
        await until(second, lambda: len(second.stores.users) == 2)
        assert first.stores.users.credential_or_decoy(nobody) == second.stores.users.credential_or_decoy(nobody)

    with_two_hosts(test)


def test_entries_are_written_as_documented() -> None:
    """A user's entry as docs/format.md shows it: its key, the entry's own key and the credential in it, no password."""

    async def test(service: SimulatedMetadata, first: Host, second: Host) -> None:
        await settled(first.stores.users.change((), {CredentialName("alice", SHA_256): CREDENTIAL}))
        page = await service.store("operator").page(ACCESS)
        entries = {entry.key: entry.value for entry in page.entries}
        assert json.loads(entries[HEAD]) == {"v": 1, "changes": 1}
        found = json.loads(entries[stored_key(f"credential/{SHA_256}/alice")])
        assert found.pop("text") == CREDENTIAL.encode().decode()
        assert found == {"v": 1, "key": f"credential/{SHA_256}/alice"}
        assert b"pencil" not in b"".join(entries.values())
        decoy = json.loads(entries[stored_key("decoy-key")])
        assert decoy.keys() <= {"v", "key", "hex", "text"}

    with_two_hosts(test)
