"""Kinds of requests that a connection treats in a way of their own, as sets of API keys. No I/O."""

from collections.abc import Mapping
from typing import Final

from logstore.access.quotas import CONSUMER, PRODUCER
from logstore.format.epoch_api import SCAN, STAGE
from logstore.kafka import codec, fetch, produce
from logstore.kafka.security.login import LOGIN_KEYS

GREETING_KEYS: Final = LOGIN_KEYS | {codec.API_VERSIONS_KEY}
"""By them a client only introduces itself. Clients may take an end of the connection in front of the first other answer
for a listener of another protocol: franz-go then fails for good what it was to send."""
GROUP_KEYS: Final = frozenset((11, 14))
"""JoinGroup, SyncGroup: they wait for the other members."""
WAITING_KEYS: Final = GROUP_KEYS | {fetch.KEY}
"""Requests that may wait for long, and so do not count in the total of requests; fetches have a limit of their own."""
QUOTAS: Final[Mapping[int, str]] = {produce.KEY: PRODUCER, STAGE: PRODUCER, fetch.KEY: CONSUMER, SCAN: CONSUMER}
"""The requests whose bytes, or whose answers' bytes, count for a quota."""
LONG_ANSWER_KEYS: Final = frozenset((3, 9, 15, 32, 35, 74, 75))
"""Metadata, OffsetFetch, DescribeGroups, DescribeConfigs, DescribeLogDirs, ListConfigResources,
DescribeTopicPartitions: short requests with long answers."""
