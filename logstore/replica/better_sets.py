"""Whether a stream should go on with another set than that of its open chunk, while no member of that has failed.

A set is better if it has more members, if it has as many without one that leaves (`NextSet.is_better_than`), or if it
is less crowded (`spreading`), as when a rack is back that was away when the chunk was opened.

Invariants:
* The set of an open chunk is crowded only if all its members may be in the next one: of members that have failed,
  leave or are awaited, other rules decide.
* For distance alone a chunk ends only when the same hosts have lived for a while (`Placing.is_steady`), and the chunk
  behind one that was crowded rests for REST_MS. So a rack that comes and goes, or has no room, costs a stream a chunk
  in ten minutes at most.

Costs: two comparisons of tuples in each look, where hosts have racks; a crowding when hosts or set are others.
"""

from collections.abc import Collection
from typing import Final

from logstore.replica.placing import NextSet, Placing
from logstore.replica.registrations import Member
from logstore.replica.spreading import hosts_of

REST_MS: Final = 600_000


class BetterSets:
    """Of the owner of one stream; see the module."""

    def __init__(self) -> None:
        self._rest_until_ms: int | None = None
        """The open chunk does not end for distance before; None: it may."""
        self._is_crowded = False
        """Whether the open chunk is, as of the last look."""
        self._seen: tuple[NextSet, tuple[Member, ...], Placing] | None = None

    def is_better(
        self, following: NextSet, members: Collection[Member], least: int, placing: Placing, now_ms: int
    ) -> bool:
        """Whether what may follow is better than the members of the open chunk, and has as many as are needed."""
        if self._rest_until_ms is not None and now_ms >= self._rest_until_ms:
            self._rest_until_ms = None
        self._look(following, tuple(members), placing)
        if following.size < least:
            return False
        return following.is_better_than(members) or (self._is_crowded and self._rest_until_ms is None)

    def begun(self, now_ms: int) -> None:
        """The next chunk is open."""
        if self._is_crowded:
            self._is_crowded, self._seen, self._rest_until_ms = False, None, now_ms + REST_MS

    @property
    def wake_ms(self) -> int | None:
        """When the open chunk, which is crowded, may end for that; None: nothing is due by time alone."""
        return self._rest_until_ms if self._is_crowded else None

    def _look(self, following: NextSet, members: tuple[Member, ...], placing: Placing) -> None:
        if not placing.is_steady:
            self._is_crowded, self._seen = False, None
            return
        seen = self._seen
        if seen is not None and seen[2] is placing and seen[1] == members and seen[0] == following:
            return
        self._seen = following, members, placing
        able = (*following.own, *following.staying)
        is_judged = following.size == len(members) and all(member in able for member in members)
        self._is_crowded = is_judged and placing.crowding(hosts_of(able), len(members))(hosts_of(members)) > 0
