"""The access control lists in their ledger.

One ledger key per entry, `acl/` and the entry as JSON; the value is empty. Invariants: a change is in effect only once
it is synced, and what is answered as done is in effect; one change is made or refused as a whole; at most MAX_ACLS.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

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
from logstore.errors import CorruptFile, InvalidAcl
from logstore.log.coroutines import start
from logstore.log.ticket import Ticket

MAX_ACLS: Final = 20_000
"""At some 600 bytes each in memory."""
MAX_TEXT_CHARACTERS: Final = 1_000
"""Of a name, a principal or a host."""
_ACL: Final = "acl/"
_FIELDS: Final = 7


class AccessLedger(Protocol):
    """The methods that are needed of a ledger (`logstore.log.ledger.Ledger`)."""

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """All pairs under a prefix."""

    def put(self, changes: Mapping[str, bytes | None]) -> Ticket[None]:
        """Store entries atomically; None deletes. The ticket settles when synced."""


class AclStore:
    """All access control lists: an index in memory of the durable entries."""

    def __init__(self, ledger: AccessLedger) -> None:
        """Raises CorruptFile if an entry cannot be read."""
        self._ledger = ledger
        self.index = AclIndex(_parse(key) for key, _ in ledger.items(_ACL))

    def create(self, acls: Sequence[Acl]) -> Ticket[None]:
        """Add entries. Raises InvalidAcl if they would be too many; the ticket fails with StorageFailed."""
        if len(self.index) + len(set(acls)) > MAX_ACLS:
            raise InvalidAcl(f"there are {len(self.index)} ACLs, and at most {MAX_ACLS} can be; use prefixes or groups")
        return start(self._apply(acls, ()))

    def find(self, wanted: AclFilter) -> list[Acl]:
        """The entries that a filter means, in an order of their own."""
        return sorted(acl for acl in self.index if wanted.matches(acl))

    def delete(self, acls: Sequence[Acl]) -> Ticket[None]:
        """Remove entries. The ticket fails with StorageFailed."""
        return start(self._apply((), acls))

    async def _apply(self, added: Sequence[Acl], removed: Sequence[Acl]) -> None:
        changes: dict[str, bytes | None] = {_key(acl): b"" for acl in added}
        changes |= {_key(acl): None for acl in removed}
        if changes:
            await self._ledger.put(changes)
        for acl in added:
            self.index.add(acl)
        for acl in removed:
            self.index.remove(acl)


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
    except (ValueError, TypeError, InvalidAcl) as error:
        raise CorruptFile(f"the ledger of ACLs has the key {key!r}, which is no ACL: {error}") from error
    return acl
