"""Where the chunks of a stream may lie: which hosts leave, and which members join a replica set. Decided by the host.

Invariants: what is decided here is never needed for safety. Two placings are equal if the same hosts leave: how members
are chosen changes no chunk that there is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from logstore.replica.registrations import Member


class Choose(Protocol):
    """Chooses members that join those that are held, `count` of the candidates or all; candidates come in an order of
    preference. `is_new`: for a new chunk of the stream, not for a copy of an old one.
    """

    def __call__(
        self, stream: str, candidates: Sequence[Member], held: Sequence[Member], count: int, *, is_new: bool
    ) -> tuple[Member, ...]:
        """The members that join."""


def first_ones(  # one of the ways to choose, and the simplest
    stream: str,  # noqa: ARG001
    candidates: Sequence[Member],
    held: Sequence[Member],  # noqa: ARG001
    count: int,
    *,
    is_new: bool,  # noqa: ARG001
) -> tuple[Member, ...]:
    """The first candidates: see Choose."""
    return tuple(candidates[:count])


@dataclass(frozen=True, slots=True)
class Placing:
    """See the module. `leaving`: hosts that are to hold nothing any more; `removed`: those of them that are gone for
    good.
    """

    leaving: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    choose: Choose = field(default=first_ones, compare=False)

    def staying(self, members: Iterable[Member]) -> tuple[Member, ...]:
        """Those of the members that do not leave."""
        return tuple(member for member in members if member.host not in self.leaving)


ANYWHERE = Placing()
