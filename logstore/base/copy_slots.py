"""What a host of a cluster asks the coordinator of checkpoints for copies of log chunks, and what that answers.

Between `logstore.cluster.copies` and `scheduler.coordinator`, which know nothing else of each other.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

SLOT_MS: Final = 1_500
"""The longest time of a slot: half of the shortest lease, and some chunks at the rate of a disk."""
MAX_SOURCES: Final = 64
"""Hosts from which one host wants, or has, slots, as one call says."""
MAX_NEEDY: Final = 64
"""Pairs of hosts between which there are copies of chunks with one copy left, as one call says."""


class SlotAsk(NamedTuple):
    """From which hosts copies to `target` should be faster, and from which they are; source and target of copies of
    chunks that have one copy left. `life`: of the target; `number`: its calls of one life count up. `addresses` of all
    hosts that are named here, as far as they are members.
    """

    target: str
    life: str
    number: int
    wanted: Sequence[str]
    held: Sequence[str]
    needy: Sequence[tuple[str, str]]
    addresses: Mapping[str, str]


class SlotAnswer(NamedTuple):
    """For how many milliseconds from now on copies from which hosts may be faster; and from which hosts they may be
    because the coordinator does not plan this pair of hosts.
    """

    slots: Mapping[str, int]
    unplanned: Sequence[str]


class GivesSlots(Protocol):
    """The coordinator that leads here."""

    async def ask(self, ask: SlotAsk, /) -> SlotAnswer | None:
        """Answer a host. None: it does not lead, or can give nothing now."""
        ...


class SlotDesk(Protocol):
    """Where hosts ask: the sidecar that the coordinator is in."""

    @property
    def sure_ms(self) -> int:
        """For how long this host surely has its lease; 0: it surely has none."""
        ...

    def serve_by(self, coordinator: GivesSlots | None, /) -> None:
        """Have a coordinator answer hosts from now on; None: nobody."""
        ...
