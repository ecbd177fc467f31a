"""A rule: the rights that a request needs, and the guard that serves the request as far as they are there.

Invariants:
* A guard hands to the handler only what the caller may do; what is refused is answered beside it, with the code that
  Kafka uses. The order of an answer's parts may change.
* An answer never names what the caller may not describe, unless the request named it, and what was named is refused
  alike whether it exists or not.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from logstore.access.acls import CLUSTER_NAME, Operation, ResourceType
from logstore.access.authorizer import refusal
from logstore.kafka.api_types import Broker, Caller
from logstore.kafka.codec import EncodedAnswer, decode_answer
from logstore.kafka.pace import Pace
from logstore.kafka.wire import respond

NOT_ASKED = -(2**31)
"""Authorized operations that a client did not ask for."""
REFUSED = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}
Handle = Callable[[Any, Caller], Awaitable[ResponsePayload | EncodedAnswer]]


class Right(NamedTuple):
    """An operation on a resource."""

    operation: Operation
    resource_type: ResourceType


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a caller, with the rights that it needs and its handler."""

    broker: Broker
    caller: Caller
    request: Any
    rights: Sequence[Right]
    handle: Handle

    @property
    def version(self) -> int:
        """The version of the request."""
        return int(self.request.__version__)

    def may(self, name: str = CLUSTER_NAME, right: int = 0) -> bool:
        """Whether the caller has the right with this number, on a resource of that name."""
        needed = self.rights[right]
        return self.broker.authorizer.allows(self.caller, needed.operation, needed.resource_type, name)

    def may_topic(self, topic: Any, right: int = 0) -> bool:
        """Whether the caller has the right on a topic that a request names, in newer versions by its id. An id that no
        topic has is for the handler to refuse.
        """
        if hasattr(topic, "name"):
            return self.may(topic.name, right)
        found = None if topic.topic_id is None else self.broker.engine.store.topic_by_id(topic.topic_id)
        return found is None or self.may(found.name, right)

    def code(self, right: int = 0) -> ErrorCode:
        """The error of a missing right."""
        return REFUSED[self.rights[right].resource_type]

    def why(self, name: str = CLUSTER_NAME, right: int = 0) -> str:
        """The text of a missing right, which names it."""
        needed = self.rights[right]
        return refusal(self.caller, needed.operation, needed.resource_type, name)

    async def served(self, **changes: Any) -> Any:
        """The handler's answer to the request, with some of its fields changed."""
        request = replace(self.request, **changes) if changes else self.request
        answer = await self.handle(request, self.caller)
        # What a handler has encoded itself is taken apart again: the guard shows less of it, or more.
        return await decode_answer(request, answer) if isinstance(answer, EncodedAnswer) else answer

    async def refused(self, **values: Any) -> ResponsePayload:
        """An answer without the handler."""
        return await respond(self.request, values)

    async def split(
        self, elements: Iterable[Any], is_allowed: Callable[[Any], bool]
    ) -> tuple[tuple[Any, ...], list[Any]]:
        """The elements that the caller may ask for, and those that are refused."""
        allowed: list[Any] = []
        refused: list[Any] = []
        pace = Pace()
        for element in elements:
            await pace.step()
            (allowed if is_allowed(element) else refused).append(element)
        return tuple(allowed), refused

    async def answer_split(
        self, field: str, is_allowed: Callable[[Any], bool], answers: str, refusal: Callable[[Any], Mapping[str, Any]]
    ) -> Any:
        """Serve the allowed elements of the request's array `field`, and add to the answer's array `answers` a refusal
        for each of the others.
        """
        allowed, refused = await self.split(getattr(self.request, field), is_allowed)
        if not refused:
            return await self.served()
        more = await self.refused(**{answers: [refusal(element) for element in refused]})
        if not allowed:
            return more
        response = await self.served(**{field: allowed})
        return replace(response, **{answers: getattr(response, answers) + getattr(more, answers)})


Guard = Callable[[Asked], Awaitable[Any]]


class Rule(NamedTuple):
    """The rights that a request needs, and its guard; None: its handler checks them itself."""

    rights: tuple[Right, ...]
    guard: Guard | None


async def serve(asked: Asked) -> Any:
    """Nothing is refused."""
    return await asked.served()
