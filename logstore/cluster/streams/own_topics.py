"""The cluster's own topics: how many copies they have, and how many of these a commit needs. No I/O.

Invariants:
* Both numbers follow from `default-replication-factor` and from the hosts that the cluster has, alive or not
  (`logstore.cluster.streams.growing_topics` counts them), and not from the hosts that are alive when the topic is
  created. They are the numbers of a user's topic without its own, but for one case: a cluster of DEFAULT_REPLICAS hosts
  keeps SAFE_REPLICAS copies, also if its users' topics have one.
* No number falls by itself: what an entry has, it keeps, whichever version wrote it. An operator can lower how many
  copies a commit needs, to the number of a cluster that has as many hosts as this one, and not below (`asked`).
* The entry has the numbers as `replicas` and as the setting `min.insync.replicas`, and no field `hosts`: a host of an
  earlier version reads it, and does not lower anything.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from logstore.base.metadata import schema
from logstore.cluster.members.election import MIN_COPIES_SETTING, default_min_copies, min_copies
from logstore.errors import InvalidConfig, InvalidTopic
from logstore.format import internal_topics

DEFAULT_REPLICAS: Final = 3
SAFE_REPLICAS: Final = 2
"""Of DEFAULT_REPLICAS hosts each may be drained, and has no copy then that is missed."""
INTERNAL_TOPICS: Final = frozenset((internal_topics.GROUPS, internal_topics.EPOCHS))
INTERNAL_CHUNK_BYTES: Final = 8 << 20
"""Small chunks: what lies in front of the live entries goes soon."""
INTERNAL_MESSAGE_BYTES: Final = 16 << 20
"""A commit of all partitions that a request can have."""


def own_topic(topic_id: str, hosts: int, factor: int) -> schema.StoredTopic:
    """A new topic of a cluster that has so many hosts. `factor`: `default-replication-factor`."""
    settings = {
        "max.message.bytes": str(INTERNAL_MESSAGE_BYTES),
        "segment.bytes": str(INTERNAL_CHUNK_BYTES),
        MIN_COPIES_SETTING: "1",
    }
    smallest = schema.StoredTopic(topic_id=topic_id, partitions=1, replicas=factor, settings=settings)
    return grown(smallest, hosts, factor)


def grown(topic: schema.StoredTopic, hosts: int, factor: int) -> schema.StoredTopic:
    """The topic with the numbers of a cluster that has so many hosts; unchanged if it has no smaller ones."""
    copies = max(topic.replicas, factor, SAFE_REPLICAS if hosts >= DEFAULT_REPLICAS else 1)
    least = max(min_copies(topic), default_min_copies(copies, hosts))
    if (copies, least) == (topic.replicas, min_copies(topic)):
        return topic
    return replace(topic, replicas=copies, settings={**topic.settings, MIN_COPIES_SETTING: str(least)})


def asked(topic: schema.StoredTopic, changes: Mapping[str, str | None], hosts: int, factor: int) -> schema.StoredTopic:
    """The topic as an operator asks for it in a cluster of so many hosts; None: with the cluster's own number. Raises
    InvalidTopic for any setting but `min.insync.replicas`, InvalidConfig for another number than the cluster allows.
    """
    others = sorted(changes.keys() - {MIN_COPIES_SETTING})
    if others or not changes:
        raise InvalidTopic(
            f"the topic is internal to the cluster: of its settings only {MIN_COPIES_SETTING} can be changed, not "
            f"{', '.join(others) or 'all'}"
        )
    smallest = grown(replace(topic, settings={**topic.settings, MIN_COPIES_SETTING: "1"}), hosts, factor)
    text = changes[MIN_COPIES_SETTING]
    least = min_copies(smallest)
    wanted = least if text is None else int(text)
    if not least <= wanted <= smallest.replicas:
        raise InvalidConfig(
            f"{MIN_COPIES_SETTING}={wanted}: must be from {least} to {smallest.replicas} for a topic of the cluster's "
            f"own, as the cluster has {hosts} host{'s' * (hosts > 1)}; hosts that are gone for good count until they "
            "are removed (cairn hosts remove)"
        )
    return replace(smallest, settings={**topic.settings, MIN_COPIES_SETTING: str(wanted)})


def may_grow(topic: schema.StoredTopic, factor: int) -> bool:
    """Whether the topic would have larger numbers in a cluster of more hosts."""
    return grown(topic, schema.MAX_REPLICAS, factor) != topic
