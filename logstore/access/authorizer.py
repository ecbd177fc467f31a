"""Asks the access control lists for the request handlers: may this caller do that?

Invariants:
* While there is neither a user nor an ACL, everything is allowed and nothing is looked up (`is_active`).
* A super user may do everything, whatever is denied.
* While any entry of users, ACLs or quotas cannot be read, nobody else may do anything: it may be one that forbids.
* A remembered decision is one that the lists make now: every change of the lists forgets all of them. What is
  remembered is bounded in number and in bytes.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from logstore.access.acls import CLUSTER_NAME, AclIndex, Operation, ResourceType
from logstore.errors import (
    CairnError,
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)

MAX_REMEMBERED: Final = 20_000
"""Decisions in memory, at some 300 bytes each; beyond that all are forgotten."""
MAX_REMEMBERED_CHARACTERS: Final = 249
"""Of a resource's name, as long as a topic's may be. Clients may send names of 32 KiB: decisions about longer ones are
made anew each time."""
SUPPORTED: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
"""The operations that Kafka knows for a resource: those that answers with authorized operations are about."""
_REFUSALS: Final[dict[ResourceType, tuple[type[CairnError], str]]] = {
    ResourceType.TOPIC: (TopicAuthorizationFailed, "topic"),
    ResourceType.GROUP: (GroupAuthorizationFailed, "group"),
    ResourceType.CLUSTER: (ClusterAuthorizationFailed, "cluster"),
    ResourceType.TRANSACTIONAL_ID: (TransactionalIdAuthorizationFailed, "transactional id"),
}


MAX_SHOWN_CHARACTERS: Final = 249
"""Of a name in an answer: Kafka's texts of errors have 32 KiB at most."""


class Subject(Protocol):
    """Who asks."""

    @property
    def principal(self) -> str:
        """`User:NAME`."""

    @property
    def host(self) -> str:
        """The address that the request comes from."""


def refusal(who: Subject, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> str:
    """Who lacks which right."""
    _, word = _REFUSALS[resource_type]
    shown = "the cluster" if resource_type is ResourceType.CLUSTER else f"{word} {name[:MAX_SHOWN_CHARACTERS]!r}"
    return f"{who.principal[:MAX_SHOWN_CHARACTERS]} may not {operation.name} {shown}"


def _nobody() -> bool:
    return False


class Authorizer:
    """Decides by the lists, the super users and whether there are users at all."""

    def __init__(
        self,
        acls: AclIndex | None = None,
        super_users: Iterable[str] = (),
        has_users: Callable[[], bool] = _nobody,
        is_damaged: Callable[[], bool] = _nobody,
    ) -> None:
        """`super_users`: principals, such as `User:admin`. `has_users`: whether any user is known;
        `is_damaged`: whether an entry cannot be read. Both must be cheap.
        """
        self._acls = acls if acls is not None else AclIndex()
        self._super_users = frozenset(super_users)
        self._has_users = has_users
        self._is_damaged = is_damaged
        self._revision = self._acls.revision
        self._remembered: dict[tuple[str, str, Operation, ResourceType, str], bool] = {}

    @property
    def is_active(self) -> bool:
        """Whether anything can be refused."""
        return self._acls.size > 0 or self._has_users() or self._is_damaged()

    def allows(self, who: Subject, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Whether `who` may do this."""
        if not self.is_active or who.principal in self._super_users:
            return True
        if self._is_damaged():
            return False
        if len(name) > MAX_REMEMBERED_CHARACTERS:
            return self._acls.allows(who.principal, who.host, operation, resource_type, name)
        if self._revision != self._acls.revision or len(self._remembered) >= MAX_REMEMBERED:
            self._revision = self._acls.revision
            self._remembered.clear()
        key = (who.principal, who.host, operation, resource_type, name)
        found = self._remembered.get(key)
        if found is None:
            found = self._remembered[key] = self._acls.allows(*key)
        return found

    def allows_any(self, who: Subject, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether `who` may do this with any resource of the type."""
        if not self.is_active or who.principal in self._super_users:
            return True
        return not self._is_damaged() and self._acls.allows_any(who.principal, who.host, operation, resource_type)

    def allows_creation(self, who: Subject, topic: str) -> bool:
        """Whether `who` may create a topic: CREATE on the cluster, or on the topic."""
        return self.allows(who, Operation.CREATE, ResourceType.CLUSTER) or self.allows(
            who, Operation.CREATE, ResourceType.TOPIC, topic
        )

    def require(
        self, who: Subject, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME
    ) -> None:
        """Raise the error of the resource's type (TopicAuthorizationFailed, …) unless `who` may do this."""
        if not self.allows(who, operation, resource_type, name):
            kind, _ = _REFUSALS[resource_type]
            raise kind(f"{refusal(who, operation, resource_type, name)}; ask for an ACL that allows it")

    def operations(self, who: Subject, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """What `who` may do with a resource, as the bits of Kafka's answers."""
        return sum(
            1 << operation for operation in SUPPORTED[resource_type] if self.allows(who, operation, resource_type, name)
        )
