"""`cairn acl` against real sidecars: what it adds decides, what it shows is so, what cannot be is named."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from logstore.access.acls import Acl, Operation, PatternType, Permission, ResourceType
from logstore.client.blocking import Client, parse_addresses
from logstore.client.errors import SidecarRefused
from logstore.commands.acl import add_arguments
from logstore.commands.acl_words import MAX_AT_ONCE, entries_of, filters_of
from tests.support.cli import Finished, cairn
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

ANONYMOUS = "User:ANONYMOUS"
TABLE = ("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION")


@pytest.fixture(params=["alone", "cluster"])
def guarded(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sidecar]:
    """A sidecar of the test's own whose anonymous clients are super users: alone, or the only host of a cluster."""
    flags: Sequence[str] = ("--super-users", ANONYMOUS)
    if request.param == "cluster":
        metadata = f"sqlite:{tmp_path / 'metadata'}"
        flags = (*flags, "--cluster", metadata, "--host-name", "a", "--node-id", "0", "--peer-listen", "127.0.0.1:0")
    with Sidecar(tmp_path / "data", *flags) as running:
        yield running


def acl(sidecar: Sidecar, *words: str) -> Finished:
    """`cairn acl` against the sidecar, with a time limit for slow machines."""
    return cairn("acl", *words, "--servers", sidecar.address, "--timeout", str(PATIENCE_S))


def parsed(*words: str) -> argparse.Namespace:
    """The arguments of a line."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def added(*words: str) -> set[Acl]:
    """What a line of `add` means."""
    return set(entries_of(parsed("add", *words)))


def of(
    kind: ResourceType,
    name: str,
    operation: Operation,
    *,
    principal: str = "User:etl",
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    """An entry."""
    return Acl(kind, name, pattern, principal, host, operation, permission)


# ---- what a line means


def test_roles_mean_what_kafkas_tool_means_by_them() -> None:
    """--producer and --consumer, each and together, with --idempotent and a TransactionalId."""
    written = {
        of(ResourceType.TOPIC, "t", operation) for operation in (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
    }
    read = {of(ResourceType.TOPIC, "t", operation) for operation in (Operation.READ, Operation.DESCRIBE)}
    read.add(of(ResourceType.GROUP, "g", Operation.READ))
    assert added("--user", "etl", "--producer", "--topic", "t") == written
    assert added("--user", "etl", "--consumer", "--topic", "t", "--group", "g") == read
    assert added("--user", "etl", "--producer", "--consumer", "--topic", "t", "--group", "g") == written | read
    more = {of(ResourceType.TRANSACTIONAL_ID, "x", operation) for operation in (Operation.WRITE, Operation.DESCRIBE)}
    more.add(of(ResourceType.CLUSTER, "kafka-cluster", Operation.IDEMPOTENT_WRITE))
    line = ("--user", "etl", "--producer", "--topic", "t", "--transactional-id", "x", "--idempotent")
    assert added(*line) == written | more


def test_short_words_mean_kafkas() -> None:
    """--user, --deny, --host and --prefixed mean what Kafka's options do; operations may be written in any way."""
    short = added("--user", "bob", "--deny", "--host", "10.0.0.1", "--operation", "read", "--topic", "t", "--prefixed")
    long = added(
        "--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--operation", "Read", "--topic", "t",
        "--resource-pattern-type", "PREFIXED",
    )  # fmt: skip
    (entry,) = short
    assert short == long
    assert (entry.permission, entry.host, entry.pattern) == (Permission.DENY, "10.0.0.1", PatternType.PREFIXED)
    settings = {
        operation
        for spelling in ("DescribeConfigs", "DESCRIBE_CONFIGS", "describe-configs")
        for (*_, operation, _) in added("--user", "b", "--topic", "t", "--operation", spelling)
    }
    assert settings == {Operation.DESCRIBE_CONFIGS}
    (by_v6,) = added("--user", "b", "--host", "0:0:0:0:0:0:0:1", "--operation", "All", "--cluster", "--prefixed")
    assert (by_v6.host, by_v6.pattern) == ("::1", PatternType.LITERAL)


def test_a_line_means_every_combination() -> None:
    """Each principal from each host may do each operation with each resource, and what is denied is beside it."""
    line = ("--user", "a", "--allow-principal", "User:b", "--operation", "Read", "--operation", "Delete")
    found = added(*line, "--topic", "t", "--topic", "u", "--group", "g", "--deny-principal", "User:c")
    assert len(found) == 3 * 2 * 3
    assert {entry.principal for entry in found if entry.permission is Permission.DENY} == {"User:c"}


def test_what_a_filter_is_not_told_is_any() -> None:
    """`list` and `remove` without words mean everything, `--user` what allows or denies; names are meant as they apply
    to a resource in `list`, as they are written in `remove`.
    """
    (everything,) = filters_of(parsed("remove"))
    assert everything == (ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)
    (of_bob,) = filters_of(parsed("remove", "--user", "bob"))
    assert (of_bob.principal, of_bob.permission, of_bob.host) == ("User:bob", Permission.ANY, None)
    (denied,) = filters_of(parsed("list", "--principal", "User:bob", "--deny"))
    assert denied.permission is Permission.DENY
    (allowed,) = filters_of(parsed("remove", "--allow-host", "10.0.0.1"))
    assert (allowed.permission, allowed.principal, allowed.host) == (Permission.ALLOW, None, "10.0.0.1")
    assert [
        wanted.pattern for action in ("list", "remove") for wanted in filters_of(parsed(action, "--topic", "t"))
    ] == [
        PatternType.MATCH,
        PatternType.LITERAL,
    ]
    roles = filters_of(parsed("remove", "--user", "bob", "--producer", "--topic", "t"))
    assert {wanted.operation for wanted in roles} == {Operation.WRITE, Operation.DESCRIBE, Operation.CREATE}


SAID = {
    ("add", "--topic", "t", "--operation", "Read"): "no principal is named",
    ("add", "--user", "b", "--operation", "Read"): "no resource is named",
    ("add", "--user", "b", "--topic", "t"): "no operation is named",
    ("add", "--user", "User:b", "--topic", "t", "--operation", "Read"): "--user 'User:b': write the name without User:",
    ("add", "--allow-principal", "bob", "--topic", "t", "--operation", "Read"): "principal 'bob': must be User:NAME",
    ("add", "--user", "b", "--topic", "t", "--operation", "Raed"): "'Raed' is not an operation; did you mean Read?",
    (
        "add",
        "--user",
        "b",
        "--group",
        "g",
        "--operation",
        "Write",
    ): "--operation Write does not apply to a Group; use",
    ("add", "--user", "b", "--topic", "t", "--operation", "Read", "--host", "a.example"): "host 'a.example' is not",
    ("add", "--user", "b", "--topic", "", "--operation", "Read"): "--topic is empty",
    ("add", "--user", "b", "--topic", "*", "--prefixed", "--operation", "Read"): "--topic '*' with --prefixed",
    ("add", "--user", "b", "--producer", "--topic", "t", "--operation", "Read"): "--operation cannot be combined with",
    ("add", "--user", "b", "--deny", "--producer", "--topic", "t"): "--deny cannot be combined with --producer",
    ("add", "--user", "b", "--producer", "--topic", "t", "--group", "g"): "--group 'g' cannot be combined with",
    ("add", "--user", "b", "--producer"): "--producer needs --topic",
    ("add", "--user", "b", "--consumer", "--topic", "t"): "--consumer needs --group",
    ("add", "--user", "b", "--idempotent", "--cluster", "--operation", "All"): "--idempotent needs --producer",
    ("add", "--deny", "--allow-principal", "User:b", "--topic", "t", "--operation", "Read"): "--deny needs --user",
    (
        "add",
        "--deny-principal",
        "User:b",
        "--allow-host",
        "::1",
        "--topic",
        "t",
        "--operation",
        "All",
    ): "--allow-host '::",
    ("add", "--user", "b", "--resource-pattern-type", "match", "--topic", "t", "--operation", "All"): "'match'",
    ("list", "--group", "g", "--operation", "Alter"): "--operation Alter does not apply to a Group; use",
}


@pytest.mark.parametrize("words", SAID, ids=" ".join)
def test_what_cannot_be_is_named_before_anything_is_sent(words: tuple[str, ...]) -> None:
    """Exit status 2, with the value that is wrong, though no sidecar is there."""
    finished = cairn("acl", *words, "--servers", "127.0.0.1:1", "--timeout", "0.1")
    assert finished.status == 2
    assert SAID[words] in finished.err
    assert finished.out == ""


def test_a_line_is_bounded() -> None:
    """A line that multiplies to more entries than one request should have is refused, with the number."""
    topics = [word for number in range(MAX_AT_ONCE) for word in ("--topic", f"t{number}")]
    finished = cairn("acl", "add", "--user", "b", "--operation", "Read", "--operation", "Write", *topics)
    assert (finished.status, finished.out) == (2, "")
    assert f"{2 * MAX_AT_ONCE} ACLs, the maximum is {MAX_AT_ONCE}" in finished.err


# ---- against a sidecar


def test_what_is_added_is_shown_and_removed(guarded: Sidecar) -> None:
    """The table and the JSON say what was added; the first ACL and the last are told; several are removed with --yes
    only, one without; what is there already is counted apart.
    """
    first = acl(guarded, "add", "--user", "etl", "--producer", "--topic", "orders-", "--prefixed")
    assert first.status == 0
    assert "these are the first ACLs" in first.err
    assert first.out.splitlines()[0].split() == list(TABLE)
    assert first.out.splitlines()[-1] == "added: 3 ACLs"
    more = acl(guarded, "add", "--user", "etl", "--operation", "Write", "--operation", "Read", "--topic", "orders-",
               "--prefixed")  # fmt: skip
    assert (more.err, more.out.splitlines()[-1]) == ("", "added: 1 ACL; 1 existed before")
    assert (
        acl(guarded, "add", "--user", "bob", "--deny", "--host", "::1", "--operation", "All", "--cluster").status == 0
    )
    listed = acl(guarded, "list", "--json").json["acls"]
    assert len(listed) == 5
    denied = {
        "resource_type": "Cluster",
        "name": "kafka-cluster",
        "pattern_type": "LITERAL",
        "principal": "User:bob",
        "host": "::1",
        "operation": "All",
        "permission": "DENY",
    }
    assert denied in listed
    assert len(acl(guarded, "list", "--topic", "orders-new", "--json").json["acls"]) == 4
    assert acl(guarded, "list", "--topic", "other").out == "there are no ACLs\n"
    refused = acl(guarded, "remove", "--topic", "orders-", "--prefixed")
    assert (refused.status, refused.out) == (2, "")
    assert "this would remove 4 ACLs; add --yes to remove them" in refused.err
    nothing = acl(guarded, "remove", "--topic", "orders-")
    assert nothing.status == 1
    assert "no ACL matches" in nothing.err
    gone = acl(guarded, "remove", "--topic", "orders-", "--prefixed", "--yes")
    assert (gone.status, gone.err, gone.out.splitlines()[-1]) == (0, "", "removed: 4 ACLs")
    last = acl(guarded, "remove", "--user", "bob", "--json")
    assert last.json["removed"] == [denied]
    assert "no ACL is left" in last.err
    assert acl(guarded, "list").out == "there are no ACLs\n"


def test_what_is_added_decides(tmp_path: Path) -> None:
    """An anonymous client that may only write is refused what else it asks for, `cairn acl` as well, which names the
    right that is missing.
    """
    with Sidecar(tmp_path / "data") as sidecar, Client(parse_addresses(sidecar.address), limit_s=PATIENCE_S) as client:
        client.create_topic("t", 1)
        client.create_topic("u", 1)
        assert acl(sidecar, "add", "--user", "ANONYMOUS", "--operation", "Write", "--topic", "t").status == 0
        assert set(client.topics()) == {"t"}
        with pytest.raises(SidecarRefused, match="AUTHORIZATION"):
            client.partitions("u")
        refused = acl(sidecar, "list")
        assert refused.status == 1
        assert "CLUSTER_AUTHORIZATION_FAILED; ask for an ACL that allows Describe on the cluster" in refused.err
        assert "Describe on the cluster" in acl(sidecar, "add", "--user", "b", "--operation", "All", "--cluster").err


def test_every_acl_goes_only_with_all(guarded: Sidecar) -> None:
    """`remove` without an option that selects ACLs removes nothing, not even with --yes; `--all` goes alone."""
    acl(guarded, "add", "--user", "bob", "--operation", "Read", "--topic", "orders")
    refused = acl(guarded, "remove", "--yes")
    assert refused.status == 2
    assert "--all removes every ACL" in refused.err
    for pattern in ("any", "match"):
        refused = acl(guarded, "remove", "--resource-pattern-type", pattern, "--yes")
        assert "--all removes every ACL" in refused.err
    mixed = acl(guarded, "remove", "--all", "--user", "bob", "--yes")
    assert mixed.status == 2
    assert "--all cannot be combined" in mixed.err
    assert len(acl(guarded, "--json").json["acls"]) == 1
    gone = acl(guarded, "remove", "--all", "--yes", "--json")
    assert (gone.status, len(gone.json["removed"])) == (0, 1)
