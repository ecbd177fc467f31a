"""ApiVersions: what is served here, in a form that any client can read.

Invariants: an unknown version is answered in version 0's layout with UNSUPPORTED_VERSION, and the response header is
always version 0 (KIP-35, KIP-511).
"""

from logstore.interfaces import Buffer
from logstore.kafka import fetch, produce
from logstore.kafka.dispatch import Handlers
from logstore.kafka.framing import Writer

KEY = 18
MAX_VERSION = 4
FIRST_FLEXIBLE = 3
PRODUCE_ADVERTISED_FROM = 0
"""Said, not served: librdkafka compresses only if it sees Produce 0 (KAFKA-18659). Kafka 4 does the same."""
_UNSUPPORTED_VERSION = 35


def served_versions(handlers: Handlers) -> list[tuple[int, int, int]]:
    """Key, lowest and highest version of every Kafka request that is served."""
    return sorted(
        [
            (produce.KEY, produce.MIN_VERSION, produce.MAX_VERSION),
            (fetch.KEY, fetch.MIN_VERSION, fetch.MAX_VERSION),
            (KEY, 0, MAX_VERSION),
            *((api.key, api.min_version, api.max_version) for api in handlers.kafka.values()),
        ]
    )


def api_versions_body(handlers: Handlers, version: int) -> list[Buffer]:
    """The body of the answer to an ApiVersions request of any version."""
    offered = served_versions(handlers)
    known = 0 <= version <= MAX_VERSION
    writer = Writer(flexible=known and version >= FIRST_FLEXIBLE)
    writer.int16(0 if known else _UNSUPPORTED_VERSION)
    writer.count(len(offered))
    for key, lowest, highest in offered:
        writer.int16(key)
        writer.int16(PRODUCE_ADVERTISED_FROM if key == produce.KEY else lowest)
        writer.int16(highest)
        writer.tags()
    if known and version >= 1:
        writer.int32(0)
    writer.tags()
    return writer.finish()
