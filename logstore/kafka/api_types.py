"""The type of a request handler, and the table of all handlers.

Invariants: each API key has one handler; ApiVersions offers exactly the versions in the table, and those of Produce,
Fetch and ApiVersions, which are not in it. A handler gets a decoded kio request and returns a kio response of the same
version (`logstore.kafka.wire.respond` builds the response from plain values); an exception from a handler is a bug,
except `CairnError` where the handler's module documents it.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kio.static.protocol import ResponsePayload

from logstore.base.clock import Clock
from logstore.engine import StoreEngine
from logstore.interfaces import Buffer
from logstore.kafka.budgets import AnswerBudget
from logstore.log.topics import TopicConfig


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Limits and options of the Kafka protocol's server. Sizes in bytes, times in seconds."""

    max_frame_bytes: int = 16 << 20
    max_connections: int = 10_000
    max_connections_per_address: int = 100
    connection_in_flight_bytes: int = 16 << 20
    total_in_flight_bytes: int = 32 << 20
    total_answer_bytes: int = 32 << 20
    handshake_s: float = 10.0
    idle_s: float = 600.0
    auto_create_topics: bool = True
    default_partitions: int = 1
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)


class Caller(NamedTuple):
    """The sender of a request: its client id, its address, and the address that its listener advertises."""

    client_id: str
    host: str
    advertised_host: str
    advertised_port: int


class Broker(NamedTuple):
    """The parts of the broker that every handler needs: the engine, the clock and the settings."""

    engine: StoreEngine
    clock: Clock
    settings: BrokerSettings


class Api(NamedTuple):
    """One Kafka request: key, versions, handler."""

    key: int
    min_version: int
    max_version: int
    handle: Callable[[Any, Caller], Awaitable[ResponsePayload]]


class PrivateApi(NamedTuple):
    """One of Cairn's own requests: its key and its handler. The handler takes the bytes of the body; it returns the
    buffers of the answer's body, and how many bytes of the budget the answer holds until it is sent.
    """

    key: int
    handle: Callable[[memoryview, AnswerBudget], Awaitable[tuple[list[Buffer], int]]]


class ApiHandlers(NamedTuple):
    """All handlers by API key."""

    kafka: Mapping[int, Api]
    private: Mapping[int, PrivateApi]


def compose(kafka: Iterable[Api], private: Iterable[PrivateApi]) -> ApiHandlers:
    """Build the table. Raises ValueError if a key has two handlers."""
    apis, own = list(kafka), list(private)
    keys = [api.key for api in apis] + [api.key for api in own]
    doubled = {key for key in keys if keys.count(key) > 1}
    if doubled:
        raise ValueError(f"API keys {sorted(doubled)} have more than one handler")
    return ApiHandlers({api.key: api for api in apis}, {api.key: api for api in own})
