"""The two counters by which CEC measures distance in a stream: records emitted and input records seen.

Invariants:
* Both counters only grow, except that a reset goes back to the counters of an older mark.
* All emissions of an epoch count as of its end, so all footprints of an epoch have the same counters.

Source: CEC paper, section III.A (q and u).
"""

from typing import NamedTuple

from spe_adapter.cec.control import Mark


class Counters(NamedTuple):
    """Records of the output stream (results and footprints) and of the input, up to the end of an epoch.

    Tombstones are not counted: the paper's log has none, because there a result says that its window closed.
    """

    emitted: int = 0
    seen: int = 0

    @classmethod
    def of(cls, mark: Mark | None) -> "Counters":
        """The counters of a mark; zeros for None, a query that has not begun."""
        return cls() if mark is None else cls(mark.emitted, mark.seen)

    def after(self, *, results: int = 0, footprints: int = 0, records: int = 0) -> "Counters":
        """The counters at the end of an epoch with these numbers of results, footprints and input records."""
        return Counters(self.emitted + results + footprints, self.seen + records)

    def extent(self, oldest_ordinal: int) -> int:
        """q: records emitted after the epoch of the oldest footprint."""
        return self.emitted - oldest_ordinal

    def replay(self, oldest_seen: int) -> int:
        """u: input records that a recovery replays."""
        return self.seen - oldest_seen
