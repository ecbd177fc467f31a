"""The type of a request handler, and the table of all handlers.

Invariants: each API key has one handler; ApiVersions offers exactly the versions in the table, and those of Produce,
Fetch and ApiVersions, which are not in it. A handler gets a decoded kio request and returns a kio response of the same
version (`logstore.kafka.wire.respond` builds the response from plain values), or one that it has encoded itself; an
exception from a handler is a bug, except `CairnError` where the handler's module documents it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.static.protocol import ResponsePayload

from logstore.access.authorizer import Authorizer
from logstore.access.quotas import Quotas
from logstore.base.clock import Clock
from logstore.interfaces import Buffer
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.codec import EncodedAnswer
from logstore.kafka.request_meter import RequestMeter
from logstore.log.served import ServingEngine
from logstore.log.topics import TopicConfig

if TYPE_CHECKING:
    from logstore.cluster.members.placement import Placement


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Limits and options of the Kafka protocol's server. Sizes in bytes, times in seconds."""

    max_frame_bytes: int = 16 << 20
    max_connections: int = 10_000
    max_connections_per_address: int = 100
    connection_in_flight_bytes: int = 8 << 20
    total_in_flight_bytes: int = 32 << 20
    total_answer_bytes: int = 32 << 20
    handshake_s: float = 10.0
    idle_s: float = 600.0
    auto_create_topics: bool = True
    default_partitions: int = 1
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)


_SERVED_APART: Final = (0, 1, 18)
"""Produce, Fetch and ApiVersions, which have no handler in the table."""
ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a client that has not said who it is; Kafka's name for it."""


class Caller(NamedTuple):
    """The sender of a request: its client id, its address, the address that its listener advertises, and its principal
    (`User:NAME`, as Kafka writes it).
    """

    client_id: str
    host: str
    advertised_host: str
    advertised_port: int
    principal: str = ANONYMOUS


class Broker(NamedTuple):
    """The parts of the broker that every handler needs: the engine, the clock, the settings, the rights of callers
    (without ACLs and users: all), their quotas, and where the streams of a cluster are (None: all are here).
    """

    engine: ServingEngine
    clock: Clock
    settings: BrokerSettings
    authorizer: Authorizer = Authorizer()
    quotas: Quotas = Quotas()
    placement: Placement | None = None

    @property
    def has_checks(self) -> bool:
        """Whether a request is looked at for rights or quotas before it is served."""
        return self.authorizer.is_active or self.quotas.is_active


class Api(NamedTuple):
    """One Kafka request: key, versions, handler."""

    key: int
    min_version: int
    max_version: int
    handle: Callable[[Any, Caller], Awaitable[ResponsePayload | EncodedAnswer]]


class PrivateApi(NamedTuple):
    """One of Cairn's own requests: its key and its handler. The handler takes the bytes of the body, and checks the
    caller's rights itself; it returns the buffers of the answer's body, and how many bytes of the budget the answer
    holds until it is sent.
    """

    key: int
    handle: Callable[[memoryview, AnswerBudget, Caller], Awaitable[tuple[list[Buffer], int]]]


class ApiHandlers(NamedTuple):
    """All handlers by API key, and the times of all requests."""

    kafka: Mapping[int, Api]
    private: Mapping[int, PrivateApi]
    meter: RequestMeter


def compose(kafka: Iterable[Api], private: Iterable[PrivateApi]) -> ApiHandlers:
    """Build the table. Raises ValueError if a key has two handlers."""
    apis, own = list(kafka), list(private)
    keys = [api.key for api in apis] + [api.key for api in own]
    doubled = {key for key in keys if keys.count(key) > 1}
    if doubled:
        raise ValueError(f"API keys {sorted(doubled)} have more than one handler")
    meter = RequestMeter({*keys, *_SERVED_APART})
    return ApiHandlers({api.key: api for api in apis}, {api.key: api for api in own}, meter)
