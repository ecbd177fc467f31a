"""The decision of access control lists against a model that tries every entry, and the lists' storage."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.access import authorizer as authorizer_module
from logstore.access import ledger
from logstore.access.acls import (
    ANY_HOST,
    ANY_NAME,
    ANY_PRINCIPAL,
    Acl,
    AclFilter,
    AclIndex,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from logstore.access.authorizer import Authorizer
from logstore.errors import InvalidAcl, TopicAuthorizationFailed
from logstore.kafka.api_types import Caller
from tests.access.world import ALICE, BOB, allow, world

NAMES = ["a", "ab", "abc", "b", "*", "a*"]
PRINCIPALS = [ALICE, BOB, ANY_PRINCIPAL, "User:al*"]
HOSTS = ["10.0.0.1", "10.0.0.2", ANY_HOST]
OPERATIONS = [operation for operation in Operation if operation > Operation.ANY]
ACLS = st.builds(
    Acl,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    st.sampled_from(NAMES),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
IMPLIES = {
    "READ": {"DESCRIBE"},
    "WRITE": {"DESCRIBE"},
    "DELETE": {"DESCRIBE"},
    "ALTER": {"DESCRIBE"},
    "ALTER_CONFIGS": {"DESCRIBE_CONFIGS"},
}


def by_trying_all(
    acls: list[Acl], principal: str, host: str, operation: Operation, kind: ResourceType, name: str
) -> bool:
    """The decision, written from Kafka's documentation: every entry, one after the other."""
    decisions = set()
    for acl in acls:
        fits = acl.name == name or (acl.name == "*" and acl.pattern is PatternType.LITERAL)
        if acl.pattern is PatternType.PREFIXED:
            fits = name[: len(acl.name)] == acl.name
        if acl.resource_type is not kind or not fits:
            continue
        if acl.principal not in {principal, "User:*"} or acl.host not in {host, "*"}:
            continue
        about = {acl.operation.name} | ({each.name for each in OPERATIONS} if acl.operation is Operation.ALL else set())
        if acl.permission is Permission.ALLOW:
            about |= {implied for each in set(about) for implied in IMPLIES.get(each, ())}
        if operation.name in about:
            decisions.add(acl.permission)
    return Permission.ALLOW in decisions and Permission.DENY not in decisions


@given(
    st.lists(ACLS, max_size=12),
    st.lists(st.integers(0, 11), max_size=4),
    st.sampled_from([ALICE, BOB, "User:al*", "User:al"]),
    st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
    st.sampled_from([operation for operation in OPERATIONS if operation is not Operation.ALL]),
    st.sampled_from([*NAMES, "c", "abcd", ""]),
)
def test_decides_as_the_model(
    acls: list[Acl], removed: list[int], principal: str, host: str, operation: Operation, name: str
) -> None:
    """Whatever was added and removed, the index decides as a walk over all entries does, also from memory."""
    index = AclIndex(acls)
    who = Caller("client", host, "h", 1, principal)
    deciding = Authorizer(index, (), lambda: True)
    left = list(dict.fromkeys(acls))
    for number in [None, *removed]:
        if number is not None and number < len(acls):
            index.remove(acls[number])
            left = [acl for acl in left if acl != acls[number]]
        expected = by_trying_all(left, principal, host, operation, ResourceType.TOPIC, name)
        for _ in range(2):
            assert deciding.allows(who, operation, ResourceType.TOPIC, name) is expected
    assert sorted(index) == sorted(left)
    assert len(index) == len(left)


@given(
    st.lists(ACLS, max_size=8),
    st.sampled_from([ALICE, BOB]),
    st.sampled_from([Operation.WRITE, Operation.READ]),
)
def test_any_resource_of_a_type(acls: list[Acl], principal: str, operation: Operation) -> None:
    """What is allowed on some topic is allowed on any; what is allowed on none of many names is not."""
    index = AclIndex(acls)
    names = [*NAMES, "c", "abcd", "zzz", "ax", "bx", "abx", "abcx", "a*x", "*x"]
    somewhere = any(by_trying_all(acls, principal, "h", operation, ResourceType.TOPIC, name) for name in names)
    found = index.allows_any(principal, "h", operation, ResourceType.TOPIC)
    if found:
        assert somewhere or any(acl.permission is Permission.DENY for acl in acls)
    else:
        assert not somewhere


@given(ACLS, st.sampled_from([None, *NAMES]), st.sampled_from(list(PatternType)[1:]))
def test_filters(acl: Acl, name: str | None, pattern: PatternType) -> None:
    """A filter means what Kafka's means: ANY the name as written, MATCH every pattern that applies to the name."""
    wanted = AclFilter(acl.resource_type, name, pattern, None, None, Operation.ANY, Permission.ANY)
    if name is None:
        expected = pattern in (PatternType.ANY, PatternType.MATCH, acl.pattern)
    elif pattern is PatternType.MATCH:
        place = allow(ALICE, Operation.READ, acl.name, kind=acl.resource_type, pattern=acl.pattern)
        expected = by_trying_all([place], ALICE, "h", Operation.READ, acl.resource_type, name)
    else:
        expected = pattern in (PatternType.ANY, acl.pattern) and name == acl.name
    assert wanted.matches(acl) is expected
    for other in (
        wanted._replace(principal="User:nobody"),
        wanted._replace(host="1.1.1.1"),
        wanted._replace(permission=Permission.UNKNOWN),
    ):
        assert not other.matches(acl)


def test_a_super_user_may_do_what_is_denied() -> None:
    """A DENY for everybody does not reach a super user; a principal that only looks like one is no super user."""
    deny = allow(ANY_PRINCIPAL, Operation.ALL, ANY_NAME, permission=Permission.DENY)
    deciding = Authorizer(AclIndex([deny]), ["User:root"])
    for principal, may in (("User:root", True), ("User:ROOT", False), ("User:root ", False), ("Group:root", False)):
        who = Caller("c", "h", "h", 1, principal)
        assert deciding.allows(who, Operation.READ, ResourceType.TOPIC, "t") is may
        if not may:
            with pytest.raises(TopicAuthorizationFailed):
                deciding.require(who, Operation.READ, ResourceType.TOPIC, "t")


def test_remembered_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a client makes up take no more memory than MAX_REMEMBERED decisions."""
    monkeypatch.setattr(authorizer_module, "MAX_REMEMBERED", 10)
    deciding = Authorizer(AclIndex([allow(ALICE, Operation.READ, "t")]))
    who = Caller("c", "h", "h", 1, ALICE)
    for number in range(100):
        assert not deciding.allows(who, Operation.READ, ResourceType.TOPIC, f"made-up-{number}")
        assert deciding.allows(who, Operation.READ, ResourceType.TOPIC, "t")
    assert len(deciding._remembered) <= 10


def test_decisions_about_long_names_are_not_remembered() -> None:
    """Clients may name 32 KiB long topics that there are not: decisions about them are right, and take no memory."""
    found = Authorizer(AclIndex([allow(ALICE, Operation.READ, "x", pattern=PatternType.PREFIXED)]))
    long = "x" * (authorizer_module.MAX_REMEMBERED_CHARACTERS + 1)
    for name in (long[1:], long):
        assert found.allows(Caller("", "::1", "", 0, ALICE), Operation.READ, ResourceType.TOPIC, name)
        assert not found.allows(Caller("", "::1", "", 0, BOB), Operation.READ, ResourceType.TOPIC, name)
    assert {key[-1] for key in found._remembered} == {long[1:]}


async def test_kept_over_a_restart_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was created and not deleted is there after a restart, whatever characters it has; there is a most."""
    kept, gone = allow("User:ü/\"'\\", Operation.READ, "a/b\n*"), allow(ALICE, Operation.READ, "t")
    async with world(tmp_path) as here:
        await here.allow(kept, gone)
        await here.forbid(gone)
    async with world(tmp_path) as here:
        assert list(here.acls.index) == [kept]
        monkeypatch.setattr(ledger, "MAX_ACLS", 1)
        with pytest.raises(InvalidAcl, match="at most 1"):
            await here.allow(gone)
