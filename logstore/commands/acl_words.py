"""The words of `cairn acl`: which entries a line of `add` means, and which of those that are there one of `list` or
`remove` does. No I/O.

Invariants: the words are those of Kafka's `kafka-acls.sh`, and what they say together means the same; `--user`,
`--host`, `--deny` and `--prefixed` are short for them. Two things differ, because a right should not come from what
was left out, and an entry not stay for it: `add` wants an operation, where Kafka's tool would allow all of them; and
what `list` and `remove` are not told is any, where Kafka's tool would remove entries of the operation All alone. What
cannot be is UsageError, and names the value.
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
"""Of entries and filters that the words of one line multiply to."""
_USER: Final = "User:"
_OPERATIONS_OF: Final = {**SUPPORTED, ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE)}
"""What there is for a resource of each type; beside it, All."""
_OF_PRODUCERS: Final = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_OF_CONSUMERS: Final = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}


class _Resource(NamedTuple):
    """What a line names; without a name, any."""

    resource_type: ResourceType
    name: str | None
    pattern: PatternType


class _Bearer(NamedTuple):
    """Whom a line names, and what is done to them; None: anybody, or any host."""

    permission: Permission
    principal: str | None
    host: str | None


def word_of(value: IntEnum) -> str:
    """A kind as the documentation writes it: `Topic`, `DescribeConfigs`."""
    return "".join(part.capitalize() for part in value.name.split("_"))


_OPERATION_WORDS: Final = {word_of(operation): operation for operation in Operation if operation > Operation.ANY}
_BY_LETTERS: Final = {word.lower(): operation for word, operation in _OPERATION_WORDS.items()}


def operation_of(text: str) -> Operation:
    """An operation in any spelling: `DescribeConfigs`, `DESCRIBE_CONFIGS`. As argparse's types: ArgumentTypeError."""
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
    """What `add` takes."""
    _add_resources(parser, (PatternType.LITERAL, PatternType.PREFIXED), "literal")
    _add_bearers(parser, "short for --allow-principal User:NAME")
    parser.add_argument("--deny", action="store_true", help="deny the operations to --user, in place of allowing them")
    _add_operations(parser, "what is allowed or denied")
    _add_roles(parser)


def add_filter_arguments(parser: argparse.ArgumentParser, *, pattern: str, has_roles: bool) -> None:
    """What `list` and `remove` take; `pattern` is how a name is meant unless the line says so."""
    patterns = (PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED)
    _add_resources(parser, patterns, pattern)
    _add_bearers(parser, "short for --principal User:NAME")
    parser.add_argument("--principal", action="append", default=[], help="User:NAME, allowed or denied; repeatable")
    parser.add_argument("--deny", action="store_true", help="of --user and --principal only entries that deny")
    _add_operations(parser, "only entries of this operation")
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


def _add_bearers(parser: argparse.ArgumentParser, short: str) -> None:
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
            help=f"where --{permission}-principal connects from; repeatable (default: anywhere)",
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
    """The entries that a line of `add` means. Raises UsageError."""
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
    """The entries that a line of `list` or `remove` means. Raises UsageError."""
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
            f"the line means {len(elements)} entries; at most {MAX_AT_ONCE} can be: use --prefixed, or '*'"
        )
    return elements


def _wanted(arguments: argparse.Namespace, *, must_say: bool) -> list[tuple[_Resource, Sequence[Operation]]]:
    """The resources of a line, each with its operations; `must_say`: both must be named."""
    resources = _resources(arguments)
    if getattr(arguments, "producer", False) or getattr(arguments, "consumer", False):
        return _of_roles(arguments, resources)
    if getattr(arguments, "idempotent", False):
        raise UsageError("--idempotent goes with --producer; by itself it is --operation IdempotentWrite --cluster")
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
    """What --producer and --consumer mean: the same as of Kafka's tool."""
    roles = [f"--{role}" for role in ("producer", "consumer") if getattr(arguments, role)]
    for flag in ("operation", "deny", "deny_principal", "deny_host", "cluster"):
        if getattr(arguments, flag):
            raise UsageError(f"--{flag.replace('_', '-')} does not go with {' and '.join(roles)}")
    if not arguments.topic:
        raise UsageError(f"{' and '.join(roles)}: no --topic is named")
    if arguments.consumer and not arguments.group:
        raise UsageError("--consumer: no --group is named, in which it reads; --group '*' is any")
    if arguments.idempotent and not arguments.producer:
        raise UsageError("--idempotent goes with --producer")
    meant = {ResourceType(kind): list[Operation]() for kind in _OPERATIONS_OF}
    for role, operations_of in (("producer", _OF_PRODUCERS), ("consumer", _OF_CONSUMERS)):
        if getattr(arguments, role):
            for kind, operations in operations_of.items():
                meant[kind] += operations
    wanted: list[tuple[_Resource, Sequence[Operation]]] = []
    for resource in resources:
        if not meant[resource.resource_type]:
            flag = "group" if resource.resource_type is ResourceType.GROUP else "transactional-id"
            raise UsageError(f"--{flag} {resource.name!r} does not go with {' and '.join(roles)}")
        wanted.append((resource, list(dict.fromkeys(meant[resource.resource_type]))))
    if arguments.idempotent:
        cluster = _Resource(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)
        wanted.append((cluster, [Operation.IDEMPOTENT_WRITE]))
    return wanted


def _bearers(arguments: argparse.Namespace, otherwise: Permission) -> list[_Bearer]:
    """Whom a line names; `otherwise` is what --user and --principal mean without --deny."""
    plain = Permission.DENY if arguments.deny else otherwise
    named = [*getattr(arguments, "principal", ()), *map(_principal_of, arguments.user)]
    if arguments.deny and not named and otherwise is Permission.ALLOW:
        raise UsageError("--deny goes with --user; --deny-principal names who is denied something by itself")
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
            raise UsageError(f"--{flag.replace('_', '-')} {given[0]!r} goes with --{permission.name.lower()}-principal")
    return found


def _anybody(arguments: argparse.Namespace, plain: Permission) -> list[_Bearer]:
    """Of a line that names no principal: those of its hosts, or all."""
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
    """A host as entries have it. Raises UsageError for a name: clients are known by their addresses."""
    if host != ANY_HOST and ip_of(host) is None:
        raise UsageError(f"host {host!r} is no IP address: an ACL names the address that a client connects from, or *")
    return canonical_host(host)


def _refuse_star(name: str | None) -> None:
    if name == ANY_NAME:
        raise UsageError(
            "--topic '*' with --prefixed means names that begin with a star, and no topic's does; leave --prefixed out "
            "for all topics"
        )
