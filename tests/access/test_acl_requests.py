"""DescribeAcls, CreateAcls and DeleteAcls through the wire format."""

from pathlib import Path
from typing import Any

import pytest
import trio
from kio.schema.errors import ErrorCode

from logstore.access.acls import Acl, Operation, PatternType, Permission, ResourceType
from logstore.events import ACLS_CHANGED
from logstore.kafka.server import KafkaServer, Listener
from tests.access.world import ALICE, BOB, ROOT_USER, WORLDS, Client, Worlds, allow, cluster, group

wherever_kept = pytest.mark.parametrize("world", WORLDS, ids=["alone", "cluster"])

DESCRIBE, CREATE, DELETE = 29, 30, 31


def creation(acl: Acl, **changes: Any) -> dict[str, Any]:
    """An entry as CreateAcls has it."""
    return {
        "resource_type": int(acl.resource_type),
        "resource_name": acl.name,
        "resource_pattern_type": int(acl.pattern),
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
        **changes,
    }


def wanted(**changes: Any) -> dict[str, Any]:
    """A filter that means every entry, but for the changes."""
    everything = {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1}
    return {
        **everything,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        **changes,
    }


async def described(client: Client, version: int = 3, **changes: Any) -> set[Acl]:
    """The entries that a filter finds."""
    answer = await client.kafka(DESCRIBE, version, **wanted(**changes))
    assert answer.error_code is ErrorCode.none
    return {
        Acl(
            ResourceType(resource.resource_type),
            resource.resource_name,
            PatternType(resource.pattern_type),
            acl.principal,
            acl.host,
            Operation(acl.operation),
            Permission(acl.permission_type),
        )
        for resource in answer.resources
        for acl in resource.acls
    }


async def create(client: Client, *creations: Any, version: int = 3) -> list[ErrorCode]:
    """CreateAcls: the errors."""
    return [result.error_code for result in (await client.kafka(CREATE, version, creations=creations)).results]


@wherever_kept
async def test_created_described_and_deleted_in_every_version(tmp_path: Path, world: Worlds) -> None:
    """What is created is found by filters, again is no error, and is deleted by a filter that names what it matched."""
    prefixed = allow(ALICE, Operation.ALL, "orders-", pattern=PatternType.PREFIXED)
    denied = allow(BOB, Operation.READ, "*", permission=Permission.DENY, host="10.0.0.1")
    mine = group(ALICE, Operation.READ, "g")
    async with world(tmp_path) as here, here.client(ROOT_USER) as client:
        for version in (1, 2, 3):
            acls = [prefixed, denied, mine]
            assert await create(client, *map(creation, acls), version=version) == [ErrorCode.none] * 3
            assert await create(client, creation(mine), version=version) == [ErrorCode.none]
            assert await described(client, version) == set(acls)
            assert await described(client, version, resource_type_filter=3) == {mine}
            by_name = {"resource_type_filter": 2, "resource_name_filter": "orders-1"}
            assert await described(client, version, **by_name, pattern_type_filter=2) == {prefixed, denied}
            assert await described(client, version, **by_name) == set()
            assert await described(client, version, principal_filter=BOB) == {denied}
            filters = [wanted(principal_filter=ALICE), wanted(principal_filter="User:nobody")]
            answer = await client.kafka(DELETE, version, filters=filters)
            found, nothing = answer.filter_results
            assert sorted(acl.resource_name for acl in found.matching_acls) == ["g", "orders-"]
            assert (nothing.error_code, nothing.matching_acls) == (ErrorCode.none, ())
            assert await described(client, version) == {denied}
        assert here.reports.of(ACLS_CHANGED)[0]["by"] == ROOT_USER


@wherever_kept
async def test_what_several_filters_match_is_answered_once(tmp_path: Path, world: Worlds) -> None:
    """Each entry is answered with the first filter that matches it: an answer has no more entries than there are."""
    async with world(tmp_path) as here, here.client(ROOT_USER) as client:
        await create(client, *(creation(allow(ALICE, Operation.READ, f"t{number}")) for number in range(5)))
        answer = await client.kafka(DELETE, 3, filters=[wanted(resource_name_filter="t1"), *[wanted()] * 100])
        assert [len(result.matching_acls) for result in answer.filter_results] == [1, 4, *[0] * 99]
        assert await described(client) == set()


@wherever_kept
async def test_hosts_mean_addresses_however_they_are_written(tmp_path: Path, world: Worlds) -> None:
    """An address is shown, found and compared in its shortest form; a client of a listener on all IPv6 addresses has
    its IPv4 address, so that what is denied to it is.
    """
    longer = allow(ALICE, Operation.READ, "t", host="0:0:0:0:0:0:0:1")
    shorter = longer._replace(host="::1")
    denied = allow(ALICE, Operation.READ, "t", host="127.0.0.1", permission=Permission.DENY)
    async with world(tmp_path) as here, here.client(ROOT_USER) as client:
        assert await create(client, creation(longer), creation(denied)) == [ErrorCode.none] * 2
        assert await described(client) == {shorter, denied}
        assert await described(client, host_filter="0::1") == {shorter}
        async with trio.open_nursery() as nursery:
            server = KafkaServer(here.broker, here.handlers)
            (listener,) = await nursery.start(server.serve, [Listener("::", 0)])
            sock = trio.socket.socket()
            await sock.connect(("127.0.0.1", listener.port))
            async with Client(trio.SocketStream(sock)) as mapped:
                await mapped.kafka(18, 0)
                (connection,) = server._connections
                assert connection._caller.host == connection._caller.advertised_host == "127.0.0.1"
            nursery.cancel_scope.cancel()


@wherever_kept
async def test_what_says_nothing_is_refused(tmp_path: Path, world: Worlds) -> None:
    """Each impossible entry is INVALID_REQUEST with its reason; the others of the request are made."""
    good = allow(ALICE, Operation.READ, "t")
    bad: list[dict[str, Any]] = [
        {"resource_type": 1},
        {"resource_type": 6},
        {"resource_name": ""},
        {"resource_pattern_type": 2},
        {"principal": "alice"},
        {"principal": "User:"},
        {"principal": "Group:x"},
        {"host": ""},
        {"operation": 1},
        {"operation": 77},
        {"permission_type": 1},
        {"resource_type": 4, "resource_name": "other-cluster"},
        {"resource_name": "x" * 2_000},
    ]
    async with world(tmp_path) as here, here.client(ROOT_USER) as client:
        codes = await create(client, *(creation(good, **changes) for changes in bad), creation(good))
        assert codes == [*[ErrorCode.invalid_request] * len(bad), ErrorCode.none]
        assert list(here.acls.index) == [good]
        answer = await client.kafka(DESCRIBE, 3, **wanted(resource_type_filter=99))
        assert answer.error_code is ErrorCode.invalid_request


@wherever_kept
async def test_rights_on_the_lists_themselves(tmp_path: Path, world: Worlds) -> None:
    """DESCRIBE on the cluster shows the lists, ALTER changes them; without, nothing is shown and nothing changes."""
    async with world(tmp_path) as here:
        await here.allow(cluster(ALICE, Operation.ALTER), cluster(BOB, Operation.DESCRIBE))
        before = set(here.acls.index)
        new = allow(ALICE, Operation.READ, "t")
        denied = ErrorCode.cluster_authorization_failed
        async with here.client("User:eve") as eve, here.client(BOB) as bob, here.client(ALICE) as alice:
            for version in (1, 2, 3):
                for client in (eve, bob):
                    assert await create(client, creation(new), version=version) == [denied]
                    (result,) = (await client.kafka(DELETE, version, filters=[wanted()])).filter_results
                    assert (result.error_code, result.matching_acls) == (denied, ())
                answer = await eve.kafka(DESCRIBE, version, **wanted())
                assert (answer.error_code, answer.resources) == (denied, ())
            assert await described(bob) == before == set(here.acls.index)
            assert await create(alice, creation(new)) == [ErrorCode.none]
            assert await described(alice) == {*before, new}
