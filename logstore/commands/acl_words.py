"""The options of `cairn acl`: the ACLs that a command line of `add` describes, and the filters that a command line of
`list` or `remove` describes. No I/O.

Invariants:
* The options are those of Kafka's `kafka-acls.sh`, with the same meaning. `--user`, `--host`, `--deny` and `--prefixed`
  are short forms.
* Two rules differ from Kafka's tool, so that a missing option neither grants a right nor keeps an ACL. `add` requires
  an operation; Kafka's tool allows all operations. In `list` and `remove`, a missing option matches any value; without
  an operation, Kafka's tool removes only ACLs of the operation All.
* An invalid value raises UsageError, which names the value.
"""

import argparse
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import product
from typing import Final, NamedTuple, TypeVar

from logstore.access.acls import (
    ANY_HOST,
    ANY_NAME,
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from logstore.access.authorizer import SUPPORTED
from logstore.access.ledger import check_acl
from logstore.base.addresses import canonical_host, ip_of
from logstore.base.near_names import near_name
from logstore.commands.output import UsageError
from logstore.errors import InvalidAcl

T = TypeVar("T")
MAX_AT_ONCE: Final = 1_000
"""ACLs or filters that one command line may describe, as the product of its options."""
_USER: Final = "User:"
_OPERATIONS_OF: Final = {**SUPPORTED, ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE)}
"""The operations on a resource of each type, without All."""
_OF_PRODUCERS: Final = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_OF_CONSUMERS: Final = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}


class _Resource(NamedTuple):
    """A resource that a command line names; without a name, any resource."""

    resource_type: ResourceType
    name: str | None
    pattern: PatternType


class _Bearer(NamedTuple):
    """A principal and a host that a command line names, allowed or denied; None: any principal, or any host."""

    permission: Permission
    principal: str | None
    host: str | None


def word_of(value: IntEnum) -> str:
    """A name as the documentation writes it: `Topic`, `DescribeConfigs`."""
    return "".join(part.capitalize() for part in value.name.split("_"))


_OPERATION_WORDS: Final = {word_of(operation): operation for operation in Operation if operation > Operation.ANY}
_BY_LETTERS: Final = {word.lower(): operation for word, operation in _OPERATION_WORDS.items()}


def operation_of(text: str) -> Operation:
    """An operation in any spelling: `DescribeConfigs`, `DESCRIBE_CONFIGS`. Raises ArgumentTypeError, for argparse."""
    found = _BY_LETTERS.get(text.replace("_", "").replace("-", "").lower())
    if found is None:
        near = near_name(text.capitalize(), sorted(_OPERATION_WORDS))
        meant = f"did you mean {near}? " if near else ""
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an operation; {meant}operations are {', '.join(_OPERATION_WORDS)}"
        )
    return found


# ---- the command line


def add_entry_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `add`."""
    _add_resources(parser, (PatternType.LITERAL, PatternType.PREFIXED), "literal")
    _add_bearers(parser, "short for --allow-principal User:NAME", "address that --{}-principal connects from")
    parser.add_argument("--deny", action="store_true", help="deny the operations to --user, in place of allowing them")
    _add_operations(parser, "operation to allow or deny")
    _add_roles(parser)


def add_filter_arguments(parser: argparse.ArgumentParser, *, pattern: str, has_roles: bool) -> None:
    """The options of `list` and `remove`; `pattern` is the default pattern type of names."""
    patterns = (PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED)
    _add_resources(parser, patterns, pattern)
    _add_bearers(parser, "short for --principal User:NAME", "only ACLs that {} clients from this address")
    parser.add_argument("--principal", action="append", default=[], help="User:NAME, allowed or denied; repeatable")
    parser.add_argument("--deny", action="store_true", help="of --user and --principal only ACLs that deny")
    _add_operations(parser, "only ACLs of this operation")
    if has_roles:
        _add_roles(parser)


def _add_resources(parser: argparse.ArgumentParser, patterns: Sequence[PatternType], default: str) -> None:
    for name, what in (("topic", "TOPIC"), ("group", "GROUP"), ("transactional-id", "ID")):
        parser.add_argument(
            f"--{name}",
            action="append",
            default=[],
            metavar=what,
            help=f"name of a {name.replace('-', ' ')}, or '*' for all; repeatable",
        )
    parser.add_argument("--cluster", action="store_true", help="the sidecar or its cluster as a whole")
    words = [pattern.name.lower() for pattern in patterns]
    parser.add_argument(
        "--resource-pattern-type",
        type=str.lower,
        choices=words,
        metavar="TYPE",
        help=f"how names match: {', '.join(words)} (default: {default})",
    )
    parser.add_argument(
        "--prefixed",
        action="store_const",
        const="prefixed",
        dest="resource_pattern_type",
        help="short for --resource-pattern-type prefixed: all names with this prefix",
    )
    parser.set_defaults(default_pattern=default)


def _add_bearers(parser: argparse.ArgumentParser, short: str, host: str) -> None:
    """The options for principals and hosts; `host` is the help of a host, {} stands for allow or deny."""
    parser.add_argument("--user", action="append", default=[], metavar="NAME", help=f"{short}; repeatable")
    for permission in ("allow", "deny"):
        parser.add_argument(
            f"--{permission}-principal", action="append", default=[], metavar="PRINCIPAL", help="User:NAME; repeatable"
        )
        parser.add_argument(
            f"--{permission}-host",
            action="append",
            default=[],
            metavar="ADDRESS",
            help=f"{host.format(permission)}; repeatable (default: any address)",
        )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="--allow-host and --deny-host together; repeatable",
    )


def _add_operations(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--operation",
        action="append",
        default=[],
        type=operation_of,
        metavar="OPERATION",
        help=f"{what}: {', '.join(_OPERATION_WORDS)}; repeatable",
    )


def _add_roles(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--producer", action="store_true", help="what a producer to the topics needs")
    parser.add_argument("--consumer", action="store_true", help="what a consumer of the topics in the groups needs")
    parser.add_argument("--idempotent", action="store_true", help="with --producer: IdempotentWrite on the cluster")


# ---- what a line means


def entries_of(arguments: argparse.Namespace) -> list[Acl]:
    """The ACLs that a command line of `add` describes. Raises UsageError."""
    bearers = [
        _Bearer(bearer.permission, bearer.principal, ANY_HOST if bearer.host is None else _address(bearer.host))
        for bearer in _bearers(arguments, Permission.ALLOW)
    ]
    if any(bearer.principal is None for bearer in bearers):
        raise UsageError("no principal is named: give --user NAME, --allow-principal or --deny-principal")
    entries: list[Acl] = []
    for resource, operations in _wanted(arguments, must_say=True):
        if resource.resource_type is ResourceType.TOPIC and resource.pattern is PatternType.PREFIXED:
            _refuse_star(resource.name)
        for (permission, principal, host), operation in product(bearers, operations):
            acl = Acl(
                resource.resource_type, resource.name or "", resource.pattern, principal or "", host or "", operation,
                permission,
            )  # fmt: skip
            _check(acl)
            entries.append(acl)
    return list(dict.fromkeys(_bounded(entries)))


def filters_of(arguments: argparse.Namespace) -> list[AclFilter]:
    """The filters that a command line of `list` or `remove` describes. Raises UsageError."""
    filters = [
        AclFilter(
            resource.resource_type,
            resource.name,
            resource.pattern,
            bearer.principal,
            None if bearer.host is None else canonical_host(bearer.host),
            operation,
            bearer.permission,
        )
        for resource, operations in _wanted(arguments, must_say=False)
        for bearer, operation in product(_bearers(arguments, Permission.ANY), operations)
    ]
    return list(dict.fromkeys(_bounded(filters)))


def _bounded(elements: list[T]) -> list[T]:
    if len(elements) > MAX_AT_ONCE:
        raise UsageError(
            f"the command line describes {len(elements)} ACLs, the maximum is {MAX_AT_ONCE}: use --prefixed, or '*'"
        )
    return elements


def _wanted(arguments: argparse.Namespace, *, must_say: bool) -> list[tuple[_Resource, Sequence[Operation]]]:
    """The resources of a command line, each with its operations; `must_say`: both are required."""
    resources = _resources(arguments)
    if getattr(arguments, "producer", False) or getattr(arguments, "consumer", False):
        return _of_roles(arguments, resources)
    if getattr(arguments, "idempotent", False):
        raise UsageError("--idempotent needs --producer; alone, use --operation IdempotentWrite --cluster")
    operations: list[Operation] = arguments.operation
    if must_say and not resources:
        raise UsageError("no resource is named: give --topic, --group, --transactional-id or --cluster")
    if must_say and not operations:
        raise UsageError(
            "no operation is named: give --operation, --producer or --consumer (--operation All: every operation)"
        )
    for resource, operation in product(resources, operations):
        _check_operation(operation, resource.resource_type)
    pattern = PatternType[(arguments.resource_pattern_type or "any").upper()]
    if pattern is PatternType.MATCH:  # what applies to any name is any entry: the line must not look like a choice
        pattern = PatternType.ANY
    anything = _Resource(ResourceType.ANY, None, pattern)
    return [(resource, operations or [Operation.ANY]) for resource in resources or [anything]]


def _resources(arguments: argparse.Namespace) -> list[_Resource]:
    pattern = PatternType[(arguments.resource_pattern_type or arguments.default_pattern).upper()]
    named = (
        (ResourceType.TOPIC, arguments.topic),
        (ResourceType.GROUP, arguments.group),
        (ResourceType.TRANSACTIONAL_ID, arguments.transactional_id),
    )
    found = [_Resource(kind, name, pattern) for kind, names in named for name in names]
    return [*found, _Resource(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)] if arguments.cluster else found


def _of_roles(
    arguments: argparse.Namespace, resources: Sequence[_Resource]
) -> list[tuple[_Resource, Sequence[Operation]]]:
    """The resources and operations of --producer and --consumer, as in Kafka's tool."""
    roles = [f"--{role}" for role in ("producer", "consumer") if getattr(arguments, role)]
    for flag in ("operation", "deny", "deny_principal", "deny_host", "cluster"):
        if getattr(arguments, flag):
            raise UsageError(f"--{flag.replace('_', '-')} cannot be combined with {' and '.join(roles)}")
    if not arguments.topic:
        raise UsageError(f"{' and '.join(roles)} needs --topic")
    if arguments.consumer and not arguments.group:
        raise UsageError("--consumer needs --group, the consumer's group; --group '*' is every group")
    if arguments.idempotent and not arguments.producer:
        raise UsageError("--idempotent needs --producer")
    meant = {ResourceType(kind): list[Operation]() for kind in _OPERATIONS_OF}
    for role, operations_of in (("producer", _OF_PRODUCERS), ("consumer", _OF_CONSUMERS)):
        if getattr(arguments, role):
            for kind, operations in operations_of.items():
                meant[kind] += operations
    wanted: list[tuple[_Resource, Sequence[Operation]]] = []
    for resource in resources:
        if not meant[resource.resource_type]:
            flag = "group" if resource.resource_type is ResourceType.GROUP else "transactional-id"
            raise UsageError(f"--{flag} {resource.name!r} cannot be combined with {' and '.join(roles)}")
        wanted.append((resource, list(dict.fromkeys(meant[resource.resource_type]))))
    if arguments.idempotent:
        cluster = _Resource(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)
        wanted.append((cluster, [Operation.IDEMPOTENT_WRITE]))
    return wanted


def _bearers(arguments: argparse.Namespace, otherwise: Permission) -> list[_Bearer]:
    """The principals of a command line; `otherwise`: the permission of --user and --principal without --deny."""
    plain = Permission.DENY if arguments.deny else otherwise
    named = [*getattr(arguments, "principal", ()), *map(_principal_of, arguments.user)]
    if arguments.deny and not named and otherwise is Permission.ALLOW:
        raise UsageError("--deny needs --user; --deny-principal needs no --deny")
    hosts: list[str] = arguments.host
    hosts_of = {
        Permission.ALLOW: [*hosts, *arguments.allow_host],
        Permission.DENY: [*hosts, *arguments.deny_host],
    }
    found = [
        _Bearer(permission, principal, host)
        for permission, principals in (
            (plain, named),
            (Permission.ALLOW, arguments.allow_principal),
            (Permission.DENY, arguments.deny_principal),
        )
        for principal, host in product(principals, hosts_of.get(permission, hosts) or [None])
    ]
    if not found:
        return _anybody(arguments, plain)
    for permission, flag in ((Permission.ALLOW, "allow_host"), (Permission.DENY, "deny_host")):
        given: list[str] = getattr(arguments, flag)
        if given and all(bearer.permission is not permission for bearer in found):
            raise UsageError(f"--{flag.replace('_', '-')} {given[0]!r} needs --{permission.name.lower()}-principal")
    return found


def _anybody(arguments: argparse.Namespace, plain: Permission) -> list[_Bearer]:
    """For a command line without principals: any principal from its hosts, or from any host."""
    found = [_Bearer(plain, None, host) for host in arguments.host]
    found += [_Bearer(Permission.ALLOW, None, host) for host in arguments.allow_host]
    found += [_Bearer(Permission.DENY, None, host) for host in arguments.deny_host]
    return found or [_Bearer(plain, None, None)]


def _principal_of(user: str) -> str:
    if user.startswith(_USER):
        raise UsageError(f"--user {user!r}: write the name without {_USER}")
    return f"{_USER}{user}"


# ---- what cannot be


def _check(acl: Acl) -> None:
    try:
        check_acl(acl)
    except InvalidAcl as error:
        raise UsageError(str(error)) from error
    _check_operation(acl.operation, acl.resource_type)


def _check_operation(operation: Operation, kind: ResourceType) -> None:
    known = _OPERATIONS_OF[kind]
    if operation is not Operation.ALL and operation not in known:
        words: Iterable[str] = map(word_of, (*known, Operation.ALL))
        raise UsageError(
            f"--operation {word_of(operation)} does not apply to a {word_of(kind)}; use {', '.join(words)}"
        )


def _address(host: str) -> str:
    """A host as an ACL has it. Raises UsageError for a host name: an ACL has the address of a client."""
    if host != ANY_HOST and ip_of(host) is None:
        raise UsageError(f"host {host!r} is not an IP address: an ACL names the address of a client, or *")
    return canonical_host(host)


def _refuse_star(name: str | None) -> None:
    if name == ANY_NAME:
        raise UsageError(
            "--topic '*' with --prefixed matches names that begin with *, and no topic has such a name; omit "
            "--prefixed for all topics"
        )
