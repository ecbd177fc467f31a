"""The states of a consumer group, as a table.

Invariants: a group changes its state only along `TRANSITIONS`; `Dead` is final. Kafka's clients and tools show the same
names. The table alone defines the transitions (KIP-848 calls this protocol "classic").

    Empty ──join──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──leader's sync──▶ Stable
      ▲                │   ▲   ▲                            │                                 │
      └─no member left─┘   │   └────── join, leave, expiry ─┘                                 │
                           └────────────────────── join, leave, expiry ───────────────────────┘
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class GroupState(Enum):
    """The state of a group; the value is its name on the wire (DescribeGroups, ListGroups)."""

    EMPTY = "Empty"
    """The group has no members; it may have committed offsets."""
    PREPARING = "PreparingRebalance"
    """Members are asked to join again; joins wait until all members have joined, or the time is up."""
    COMPLETING = "CompletingRebalance"
    """A generation is formed; its members wait for the leader's assignment."""
    STABLE = "Stable"
    """Every member may fetch its assignment."""
    DEAD = "Dead"
    """Deleted; code that still holds the group must look it up again."""


TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = MappingProxyType(
    {
        GroupState.EMPTY: frozenset({GroupState.PREPARING, GroupState.DEAD}),
        GroupState.PREPARING: frozenset({GroupState.COMPLETING, GroupState.EMPTY, GroupState.DEAD}),
        GroupState.COMPLETING: frozenset({GroupState.STABLE, GroupState.PREPARING, GroupState.DEAD}),
        GroupState.STABLE: frozenset({GroupState.PREPARING, GroupState.DEAD}),
        GroupState.DEAD: frozenset(),
    }
)

CAN_REBALANCE = frozenset({GroupState.EMPTY, GroupState.COMPLETING, GroupState.STABLE})
"""States from which a rebalance begins; in `PREPARING` one is under way."""
