"""ApiVersions: the served requests and versions, in a form that any client can read.

Invariants: an unknown version is answered in version 0's layout with UNSUPPORTED_VERSION, and the response header is
always version 0 (KIP-35, KIP-511). Features are Kafka's own, each at the only level that Cairn supports (KIP-584):
level 0 means that Cairn does not have the feature, and a feature at level 0 is not listed as finalized.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from logstore.interfaces import Buffer
from logstore.kafka import fetch, produce
from logstore.kafka.api_types import ApiHandlers
from logstore.kafka.framing import Writer
from logstore.kafka.security.login import HANDSHAKE_KEY

KEY = 18
MAX_VERSION = 4
FIRST_FLEXIBLE = 3
ADVERTISED_FROM: Final = {produce.KEY: 0, HANDSHAKE_KEY: 0}
"""The lowest version that is said to be served, where a higher one is the lowest served; Kafka 4 says the same.
librdkafka compresses only if it sees Produce 0 (KAFKA-18659), and until 2.8 at least it logs in only if it sees
SaslHandshake 0, though it then sends version 1.
"""
_UNSUPPORTED_VERSION = 35


class Feature(NamedTuple):
    """A feature of Kafka's, and the only level that Cairn supports."""

    name: str
    level: int


FEATURES = (
    Feature("eligible.leader.replicas.version", 0),
    Feature("group.version", 0),  # 1: groups of KIP-848
    Feature("kraft.version", 0),
    Feature("metadata.version", 29),  # 4.2-IV1: the requests served here are a subset of Kafka 4.2's
    Feature("share.version", 0),
    Feature("streams.version", 0),
    Feature("transaction.version", 0),
)
FEATURES_EPOCH = 0
"""Counts changes of the levels; they never change in a running sidecar."""
FIRST_WITH_LEVEL_0 = 4
"""Clients of version 3 cannot read a level 0 (KAFKA-17011)."""
_SUPPORTED_TAG, _EPOCH_TAG, _FINALIZED_TAG = 0, 1, 2


def served_versions(handlers: ApiHandlers) -> list[tuple[int, int, int]]:
    """Key, lowest and highest version of every served Kafka request."""
    return sorted(
        [
            (produce.KEY, produce.MIN_VERSION, produce.MAX_VERSION),
            (fetch.KEY, fetch.MIN_VERSION, fetch.MAX_VERSION),
            (KEY, 0, MAX_VERSION),
            *((api.key, api.min_version, api.max_version) for api in handlers.kafka.values()),
        ]
    )


def api_versions_body(handlers: ApiHandlers, version: int) -> list[Buffer]:
    """The body of the answer to an ApiVersions request of any version."""
    offered = served_versions(handlers)
    known = 0 <= version <= MAX_VERSION
    writer = Writer(flexible=known and version >= FIRST_FLEXIBLE)
    writer.int16(0 if known else _UNSUPPORTED_VERSION)
    writer.count(len(offered))
    for key, lowest, highest in offered:
        writer.int16(key)
        writer.int16(ADVERTISED_FROM.get(key, lowest))
        writer.int16(highest)
        writer.tags()
    if known and version >= 1:
        writer.int32(0)
    if known and version >= FIRST_FLEXIBLE:
        _features(writer, version)
    else:
        writer.tags()
    return writer.finish()


def _features(writer: Writer, version: int) -> None:
    """Write the tagged fields at the end of an answer."""
    supported = [feature for feature in FEATURES if feature.level > 0 or version >= FIRST_WITH_LEVEL_0]
    finalized = [feature for feature in FEATURES if feature.level > 0]
    epoch = Writer(flexible=True)
    epoch.int64(FEATURES_EPOCH)
    tagged = ((_SUPPORTED_TAG, _levels(supported)), (_EPOCH_TAG, epoch), (_FINALIZED_TAG, _levels(finalized)))
    writer.uvarint(len(tagged))
    for tag, field in tagged:
        content = b"".join(field.finish())
        writer.uvarint(tag)
        writer.uvarint(len(content))
        writer.raw(content)


def _levels(features: Sequence[Feature]) -> Writer:
    """Features with their lowest and highest level: an array of SupportedFeatureKey, or of FinalizedFeatureKey."""
    writer = Writer(flexible=True)
    writer.count(len(features))
    for feature in features:
        writer.string(feature.name)
        writer.int16(feature.level)
        writer.int16(feature.level)
        writer.tags()
    return writer
