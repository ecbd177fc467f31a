"""The access control lists and their entries.

One key per list, `acl/` and the list as JSON; the value is empty. Invariants: a change is in effect only once it is
durable, and what is answered as done is in effect; at most MAX_ACLS. What forbids comes first: a change that is made in
part (in a cluster, one that is larger than a transaction) allows nothing that the whole change does not.
"""

import json
from collections.abc import Sequence
from typing import Final

from logstore.access.acls import (
    ANY_PRINCIPAL,
    CLUSTER_NAME,
    Acl,
    AclFilter,
    AclIndex,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from logstore.access.entries import AccessEntries, EntryChanges
from logstore.errors import CorruptFile, InvalidAcl
from logstore.log.ticket import Ticket

MAX_ACLS: Final = 20_000
"""At some 600 bytes each in memory."""
MAX_TEXT_CHARACTERS: Final = 1_000
"""Of a name, a principal or a host."""
_ACL: Final = "acl/"
_FIELDS: Final = 7


class AclStore:
    """All access control lists: an index in memory of the durable entries."""

    def __init__(self, entries: AccessEntries) -> None:
        """Raises CorruptFile if an entry cannot be read."""
        self._entries = entries
        self.index = AclIndex()
        entries.follow(_ACL, self._changed)

    def _changed(self, key: str, value: bytes | None) -> None:
        acl = _parse(key)
        if value is None:
            self.index.remove(acl)
        else:
            self.index.add(acl)

    def create(self, acls: Sequence[Acl]) -> Ticket[None]:
        """Add lists. The ticket fails with InvalidAcl if they would be too many, and as `AccessEntries` says."""

        def compute() -> EntryChanges:
            if len(self.index) + sum(acl not in self.index for acl in set(acls)) > MAX_ACLS:
                raise InvalidAcl(
                    f"there are {len(self.index)} ACLs, and at most {MAX_ACLS} are allowed; use prefixes or groups"
                )
            return dict.fromkeys(map(_key, sorted(acls, key=_forbids, reverse=True)), b"")

        return self._entries.change(compute)

    def find(self, wanted: AclFilter) -> list[Acl]:
        """The entries that a filter means, in an order of their own."""
        return sorted(acl for acl in self.index if wanted.matches(acl))

    def delete(self, acls: Sequence[Acl]) -> Ticket[None]:
        """Remove lists. The ticket fails as `AccessEntries` says."""
        gone = dict.fromkeys(map(_key, sorted(acls, key=_forbids)))
        return self._entries.change(lambda: gone)


def check_acl(acl: Acl) -> None:
    """Raise InvalidAcl unless an entry can be stored: it names one thing to allow or to deny."""
    if acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise InvalidAcl(f"resource type {acl.resource_type.name}: must be TOPIC, GROUP, CLUSTER or TRANSACTIONAL_ID")
    if acl.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidAcl(f"pattern type {acl.pattern.name}: must be LITERAL or PREFIXED")
    if acl.operation in (Operation.UNKNOWN, Operation.ANY):
        raise InvalidAcl(f"operation {acl.operation.name}: must be one operation, or ALL")
    if acl.permission not in (Permission.ALLOW, Permission.DENY):
        raise InvalidAcl(f"permission type {acl.permission.name}: must be ALLOW or DENY")
    if acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        raise InvalidAcl(f"the only resource of type CLUSTER is named {CLUSTER_NAME!r}, not {acl.name!r}")
    kind, colon, name = acl.principal.partition(":")
    if kind != "User" or not colon or not name:
        raise InvalidAcl(f"principal {acl.principal!r}: must be User:NAME, or {ANY_PRINCIPAL} for everybody")
    for what, text in (("resource name", acl.name), ("principal", acl.principal), ("host", acl.host)):
        if not 0 < len(text) <= MAX_TEXT_CHARACTERS:
            raise InvalidAcl(f"a {what} of {len(text)} characters; 1 to {MAX_TEXT_CHARACTERS} are allowed")


def _forbids(acl: Acl) -> bool:
    return acl.permission is Permission.DENY


def _key(acl: Acl) -> str:
    return _ACL + json.dumps(acl, separators=(",", ":"), ensure_ascii=False)


def _parse(key: str) -> Acl:
    try:
        resource_type, name, pattern, principal, host, operation, permission = json.loads(key.removeprefix(_ACL))
        acl = Acl(
            ResourceType(resource_type),
            str(name),
            PatternType(pattern),
            str(principal),
            str(host),
            Operation(operation),
            Permission(permission),
        )
        check_acl(acl)
    except (ValueError, TypeError, RecursionError, InvalidAcl) as error:
        raise CorruptFile(f"the ledger of ACLs has the key {key!r}, which is not an ACL: {error}") from error
    return acl
