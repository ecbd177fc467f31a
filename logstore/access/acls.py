"""Access control lists as Kafka's, and the decision that they make.

Invariants:
* A DENY that matches wins over every ALLOW; what no ALLOW matches is denied.
* An ALLOW of READ, WRITE, DELETE or ALTER allows DESCRIBE, and one of ALTER_CONFIGS allows DESCRIBE_CONFIGS; a DENY
  denies its own operation alone. ALL stands for every operation in both.
* The only wildcards are the resource name `*` of a LITERAL pattern, the principal `User:*` and the host `*`, each as a
  whole. Every other character stands for itself.
* The numbers are those of the protocol.

Sources: KIP-11, KIP-290 (prefixes), KIP-679 (rights on any resource of a type); Kafka's StandardAuthorizer.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple


class ResourceType(IntEnum):
    """What an ACL is about."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class PatternType(IntEnum):
    """How the name of an ACL's resource is meant; ANY and MATCH are for filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What a principal does with a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Permission(IntEnum):
    """Whether an ACL allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""
ANY_NAME: Final = "*"
ANY_PRINCIPAL: Final = "User:*"
ANY_HOST: Final = "*"
IMPLIED_BY: Final = {
    Operation.DESCRIBE: frozenset((Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)),
    Operation.DESCRIBE_CONFIGS: frozenset((Operation.ALTER_CONFIGS,)),
}
"""The operations whose ALLOW allows the operation as well."""
_NOTHING: Final = frozenset[Operation]()


class Acl(NamedTuple):
    """One access control list entry: a principal on a host may, or may not, do an operation on resources."""

    resource_type: ResourceType
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def is_for(self, principal: str, host: str) -> bool:
        """Whether the entry is about this principal on this host."""
        return self.principal in (principal, ANY_PRINCIPAL) and self.host in (host, ANY_HOST)

    def covers(self, operation: Operation) -> bool:
        """Whether the entry, by its permission, decides about the operation."""
        if self.operation in (operation, Operation.ALL):
            return True
        return self.permission is Permission.ALLOW and self.operation in IMPLIED_BY.get(operation, _NOTHING)


class AclFilter(NamedTuple):
    """Which entries are meant; None and ANY match everything. With the pattern MATCH, the name is that of a resource,
    and all patterns that apply to it are meant.
    """

    resource_type: ResourceType
    name: str | None
    pattern: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def matches(self, acl: Acl) -> bool:
        """Whether an entry is meant."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, acl.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern is not PatternType.MATCH:
            return self.name == acl.name
        if acl.pattern is PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name in (self.name, ANY_NAME)


_Place = tuple[ResourceType, PatternType, str]


class AclIndex:
    """All entries, found by the resource that they apply to."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._places: dict[_Place, dict[Acl, None]] = {}
        self._prefix_lengths: dict[ResourceType, dict[int, int]] = {}
        self.size = 0
        """How many entries there are."""
        self.revision = 0
        """Counts the changes."""
        for acl in acls:
            self.add(acl)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Acl]:
        for acls in self._places.values():
            yield from acls

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._places.get((acl.resource_type, acl.pattern, acl.name), ())

    def add(self, acl: Acl) -> None:
        """Add an entry; an entry that is there stays as it is."""
        if acl in self:
            return
        place = acl.resource_type, acl.pattern, acl.name
        if place not in self._places:
            self._places[place] = {}
            self._count_prefix(acl, 1)
        self._places[place][acl] = None
        self.size += 1
        self.revision += 1

    def remove(self, acl: Acl) -> None:
        """Remove an entry, if it is there."""
        if acl not in self:
            return
        place = acl.resource_type, acl.pattern, acl.name
        del self._places[place][acl]
        self.size -= 1
        self.revision += 1
        if not self._places[place]:
            del self._places[place]
            self._count_prefix(acl, -1)

    def _count_prefix(self, acl: Acl, change: int) -> None:
        if acl.pattern is PatternType.PREFIXED:
            lengths = self._prefix_lengths.setdefault(acl.resource_type, {})
            lengths[len(acl.name)] = lengths.get(len(acl.name), 0) + change
            if not lengths[len(acl.name)]:
                del lengths[len(acl.name)]

    def applying(self, resource_type: ResourceType, name: str) -> Iterator[Acl]:
        """The entries that apply to a resource."""
        for literal in (name, ANY_NAME) if name != ANY_NAME else (name,):
            yield from self._places.get((resource_type, PatternType.LITERAL, literal), ())
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name):
                yield from self._places.get((resource_type, PatternType.PREFIXED, name[:length]), ())

    def allows(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether a principal on a host may do this with a resource."""
        is_allowed = False
        for acl in self.applying(resource_type, name):
            if acl.is_for(principal, host) and acl.covers(operation):
                if acl.permission is Permission.DENY:
                    return False
                is_allowed = True
        return is_allowed

    def allows_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether a principal on a host may do this with any resource of a type, existing or not.

        As in Kafka, a denied name is not looked for below an allowed prefix: only a DENY of the whole prefix counts.
        """
        mine = [
            acl
            for acl in self
            if acl.resource_type is resource_type
            and acl.is_for(principal, host)
            and acl.operation in (operation, Operation.ALL)
        ]
        denied = [acl for acl in mine if acl.permission is Permission.DENY]
        return any(acl.permission is Permission.ALLOW and not _is_denied(acl, denied) for acl in mine)


def _is_denied(allowed: Acl, denied: Iterable[Acl]) -> bool:
    """Whether entries that deny leave nothing of what an entry allows."""
    is_all = allowed.pattern is PatternType.LITERAL and allowed.name == ANY_NAME
    for acl in denied:
        if acl.pattern is PatternType.PREFIXED:
            if not is_all and allowed.name.startswith(acl.name):
                return True
        elif acl.name == ANY_NAME or (allowed.pattern is PatternType.LITERAL and allowed.name == acl.name):
            return True
    return False
