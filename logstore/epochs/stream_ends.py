"""Which epochs a stream of a cluster has: the newest END of each query, as the stream's owner knows them.

Invariants:
* Every END at or behind `known_from` is noted, or a newer one of the same query is. What lies in front has to be
  searched for before a group may be appended whose epoch was decided when the stream ended there.
* `has` is never wrong about an epoch whose decision is newer than what was searched: the epochs of a query come in
  order, each in all its streams before the next is decided; and END of an epoch lies behind the offset where the stream
  ended when the epoch was decided.
* At most MAX_QUERIES are kept: the END that lies furthest back is forgotten first, and `known_from` moves behind it. So
  a search may find more than is kept, in twice that memory; it tells of the queries that it watches.
"""

from typing import Final, NamedTuple

from logstore.format.control import End, decode_control
from logstore.interfaces import Buffer

MAX_QUERIES: Final = 10_000


class NewestEnd(NamedTuple):
    """The newest END of a query: its offset and its epoch."""

    offset: int
    epoch: int


_NONE: Final = NewestEnd(-1, -1)


class EndSearch:
    """What a search for ENDs has found: the newest of each query, at most MAX_QUERIES; and the newest of the queries
    that are watched, MAX_QUERIES at most, whatever comes. `floor`: every END at or behind this offset that was found is
    kept, or a newer one of its query is.
    """

    def __init__(self, *watched: str) -> None:
        self._watched = dict.fromkeys(watched, _NONE)
        self.ends: dict[str, NewestEnd] = {}
        self.floor = 0

    def anew(self, query: str) -> "EndSearch":
        """A search that has found nothing, and watches one query more."""
        return EndSearch(*list(self._watched)[1 - MAX_QUERIES :], query)

    def watches(self, query: str) -> bool:
        """Whether the newest END of a query is known, of all that was found."""
        return query in self._watched

    def watch(self, query: str) -> bool:
        """Watch a query from now on, in place of the one that is watched for longest if there are MAX_QUERIES. False:
        of what was found already, not all is known of it.
        """
        if query in self._watched:
            return True
        if self.floor:
            return False
        if len(self._watched) >= MAX_QUERIES:
            del self._watched[next(iter(self._watched))]
        self._watched[query] = self.ends.get(query, _NONE)
        return True

    def take(self, offset: int, batch: Buffer) -> None:
        """A control batch at an offset. Raises CorruptBatch, UnknownFormatVersion."""
        control = decode_control(batch)
        if not isinstance(control, End):
            return
        end = NewestEnd(offset, control.epoch)
        if control.query in self._watched:
            self._watched[control.query] = max(self._watched[control.query], end)
        known = self.ends.get(control.query)
        if offset < self.floor or (known is not None and known.offset >= offset):
            return
        self.ends[control.query] = end
        if len(self.ends) > 2 * MAX_QUERIES:
            newest = sorted(self.ends.items(), key=lambda each: each[1], reverse=True)
            self.ends = dict(newest[:MAX_QUERIES])
            self.floor = newest[MAX_QUERIES][1].offset + 1

    def has(self, query: str, epoch: int, decided_at: int) -> bool:
        """Whether an epoch of a query that is watched, or a later one, was found at or behind an offset."""
        newest = self._watched.get(query, _NONE)
        return newest.offset >= decided_at and newest.epoch >= epoch


class StreamEnds:
    """See the module. It begins with what lies at or behind an offset, which is nothing yet."""

    def __init__(self, known_from: int) -> None:
        self.known_from = known_from
        self._ends: dict[str, NewestEnd] = {}

    def note(self, query: str, epoch: int, offset: int) -> None:
        """END of an epoch is at this offset."""
        known = self._ends.get(query)
        if known is None or known.offset < offset:
            self._ends[query] = NewestEnd(offset, epoch)
        if len(self._ends) > MAX_QUERIES:
            oldest = min(self._ends, key=lambda each: self._ends[each])
            self.known_from = max(self.known_from, self._ends.pop(oldest).offset + 1)

    def must_search(self, decided_at: int) -> bool:
        """Whether an END at or behind this offset may not be noted."""
        return decided_at < self.known_from

    def searched(self, from_offset: int, search: EndSearch) -> None:
        """A search has found these ENDs, and no others, between an offset and `known_from`."""
        self.known_from = max(min(self.known_from, from_offset), search.floor)
        for query, end in sorted(search.ends.items(), key=lambda each: each[1]):
            self.note(query, end.epoch, end.offset)

    def has(self, query: str, epoch: int, decided_at: int) -> bool:
        """Whether the stream has an epoch that was decided when the stream ended at an offset, or had ended there a
        little before.
        """
        known = self._ends.get(query)
        return known is not None and known.offset >= decided_at and known.epoch >= epoch
