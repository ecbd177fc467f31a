"""The states of a consumer group, as a table.

Invariants: a group moves only along `TRANSITIONS`; `Dead` is final. The names are the ones Kafka's clients and tools
show. The table, not the code around it, is what says which moves exist (KIP-848 calls this protocol "classic").

    Empty ──join──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──leader's sync──▶ Stable
      ▲                │   ▲   ▲                            │                                 │
      └──nobody left───┘   │   └────── join, leave, expiry ─┘                                 │
                           └────────────────────── join, leave, expiry ───────────────────────┘
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class GroupState(Enum):
    """Where a group is; the value is the name on the wire (DescribeGroups, ListGroups)."""

    EMPTY = "Empty"
    """No members; there may be committed offsets."""
    PREPARING = "PreparingRebalance"
    """Members are asked to join again; joins are held back until all have, or time is up."""
    COMPLETING = "CompletingRebalance"
    """A generation is formed; its members wait for the leader's assignment."""
    STABLE = "Stable"
    """Everybody may fetch an assignment."""
    DEAD = "Dead"
    """Deleted; whoever still holds it must look the group up again."""


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
