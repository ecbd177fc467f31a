"""Bounds the number of connections, in total and per address, and chooses the connection to end for a new one.

A new connection is never refused. Invariants:
* There are never more than `limit` connections, and never more than `per_address` from one address except loopback.
* When all places are taken, the new connection gets a place of the address that has the most: so a client from an
  address with few connections always gets a place, however many another address has. Of that address, a connection that
  has sent no request yet is ended first, the longest connected first; then the one whose last request is the oldest.
* All of loopback counts as one address, and so does an IPv6 /64 network, because a host that has one address of it can
  use all.
"""

from collections import OrderedDict
from collections.abc import Callable

from logstore.base.addresses import LOOPBACK, address_group

End = Callable[[], None]
"""Ends a connection; this module uses it as the connection's identity."""


class _Address:
    """The connections of one address: those without a request, then the others, each in the order in which they end."""

    __slots__ = ("greeted", "silent")

    def __init__(self) -> None:
        self.silent: OrderedDict[End, None] = OrderedDict()
        self.greeted: OrderedDict[End, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.silent) + len(self.greeted)

    def first(self) -> End:
        """The connection to end first."""
        return next(iter(self.silent or self.greeted))


class Places:
    """The places of one server. Every operation takes constant time."""

    def __init__(self, limit: int, per_address: int) -> None:
        self._limit = limit
        self._per_address = per_address
        self._addresses: dict[str, _Address] = {}
        self._by_size: dict[int, dict[str, None]] = {}
        self._largest = 0
        self._groups: dict[End, str] = {}
        self.given_way = 0
        """Connections that were ended for a new one."""

    def __len__(self) -> int:
        return len(self._groups)

    def enter(self, host: str, end: End) -> None:
        """Give a new connection a place; ends another connection if no place is free."""
        group = address_group(host)
        held = len(self._addresses.get(group, ()))
        if group != LOOPBACK and held >= self._per_address:
            self._give_way(group)
        elif len(self._groups) >= self._limit:
            self._give_way(next(iter(self._by_size[self._largest])))
        self._resize(group, +1)
        self._groups[end] = group
        self._addresses[group].silent[end] = None

    def touch(self, end: End) -> None:
        """A connection has sent a request."""
        group = self._groups.get(end)
        if group is not None:
            address = self._addresses[group]
            address.silent.pop(end, None)
            address.greeted[end] = None
            address.greeted.move_to_end(end)

    def leave(self, end: End) -> None:
        """A connection has ended; no effect if `enter` ended it."""
        group = self._groups.pop(end, None)
        if group is not None:
            address = self._addresses[group]
            address.silent.pop(end, None)
            address.greeted.pop(end, None)
            self._resize(group, -1)

    def _give_way(self, group: str) -> None:
        self.given_way += 1
        end = self._addresses[group].first()
        self.leave(end)
        end()

    def _resize(self, group: str, change: int) -> None:
        """Keep addresses grouped by number of connections. Call it before adding (+1) or after removing (-1) one."""
        before = len(self._addresses.setdefault(group, _Address())) - min(change, 0)
        after = before + change
        if before:
            del self._by_size[before][group]
            if not self._by_size[before]:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[group] = None
        else:
            del self._addresses[group]
        # One connection more or less: the largest number changes by one at most.
        if after > self._largest:
            self._largest = after
        elif self._largest not in self._by_size:
            self._largest -= 1
