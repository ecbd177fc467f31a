"""Limits and delays of groups."""

from dataclasses import dataclass
from typing import Final

WRITE_LIMIT_S: Final = 5.0
"""offsets.commit.timeout.ms: how long a request waits for what it writes. It may be written all the same later."""
REFUSED_S: Final = 1.0
"""Before a member hears that its generation, or its new id, cannot be kept now: it joins again, perhaps at once."""
GROUP_ID_MAX_BYTES: Final = 1024
"""Group ids become keys of a ledger held in memory. Kafka allows 32,767 bytes; no client needs that."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Limits and delays; the names in the docstrings are Kafka's."""

    min_session_timeout_ms: int = 6_000
    """group.min.session.timeout.ms"""
    max_session_timeout_ms: int = 1_800_000
    """group.max.session.timeout.ms"""
    initial_rebalance_delay_ms: int = 100
    """group.initial.rebalance.delay.ms. Kafka's 3000 waits for a fleet to start; one host's consumers start together,
    and 100 ms lets them share the first rebalance without a noticeable wait."""
    max_members: int = 1_000
    """group.max.size. Kafka's default is no limit. As in Kafka, it counts members that have joined: in a rebalance, new
    members may take the places of members that do not return, so that a group may briefly have up to twice as many."""
    max_groups: int = 10_000
    """Number of groups, empty groups with offsets included."""
    max_bytes: int = 32 << 20
    """Memory of the members of all groups, with their metadata and assignments."""
