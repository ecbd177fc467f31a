"""The two counters by which CEC measures distance in a stream: records emitted and input records seen.

Invariants:
* Both only grow, except that a reset goes back to those of an older mark.
* All emissions of an epoch count as of its end, so all footprints of an epoch have the same mark.

Source: CEC paper, section III.A (q and u).
"""

from typing import NamedTuple

from spe_adapter.cec.control import Mark


class Counters(NamedTuple):
    """Records of the output stream (results and footprints) and of the input, up to the end of an epoch.

    Tombstones are not counted, as the paper's log has none: there a result says that its window closed.
    """

    emitted: int = 0
    seen: int = 0

    @classmethod
    def of(cls, mark: Mark | None) -> "Counters":
        """Those of a mark; without one, of a query that has not begun."""
        return cls() if mark is None else cls(mark.emitted, mark.seen)

    def after(self, *, results: int = 0, footprints: int = 0, records: int = 0) -> "Counters":
        """Those at the end of an epoch with so many results and footprints, from so many input records."""
        return Counters(self.emitted + results + footprints, self.seen + records)

    def extent(self, oldest_ordinal: int) -> int:
        """q: records emitted behind the epoch of the oldest footprint."""
        return self.emitted - oldest_ordinal

    def replay(self, oldest_seen: int) -> int:
        """u: input records to replay."""
        return self.seen - oldest_seen
