"""Tokens: how many chunks may use each resource, how many use it, and the tokens reserved for the head.

Invariants:
* For every resource of a host that is not lost: left − debt = capacity − used − held, where `held` are the tokens of
  the reservation. `left` is never negative; `owed` are the tokens that the reservation still waits for.
* A token that comes back pays debts first, then the tokens owed to the reservation; the rest is free.
* A lost host has no tokens.
"""

from collections.abc import Iterable
from itertools import pairwise
from random import Random

import numpy as np

from scheduler.peace.plan import HostChain, Planner, Request, Residual, Resource, demands
from scheduler.topology import Topology, disk_capacity

_TRIES_FORWARDING = 2
"""Searches among hosts that can forward: a rack with a single such host is a dead end, too."""

Key = tuple[Resource, int]


class Tokens:
    """The tokens of one network. `left`: the free tokens; `whole`: all tokens, as with nothing in flight."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.left = Residual.full(topology)
        self.whole = Residual.full(topology)
        self.soon = Residual(topology, self.left.send, self.left.receive, self.left.disk, self.whole.link)
        """The hosts as they are, all links free: a reservation searches here first, since its hosts need no wait."""
        self._forwarding = Residual(topology, self.left.send, self.left.receive.copy(), self.left.disk, self.left.link)
        """As `left`, but hosts that cannot send cannot receive."""
        self.owed: dict[Key, int] = {}
        self.freed: set[Key] = set()
        self._debt: dict[Key, int] = {}
        self._lost: set[int] = set()

    def chain(self, planner: Planner, request: Request, random: Random) -> HostChain | None:
        """A chain of free tokens, which are taken; None if there is none.

        Algorithm 1 plans one replica at a time. So while many hosts are sending, it chooses hosts that can receive but
        not forward, which are dead ends. The first searches exclude such hosts; the last search allows them, for the
        last replica.
        """
        if len(request.placement) > 1:
            left, narrow = self.left, self._forwarding
            np.multiply(left.receive, left.send > 0, out=narrow.receive)
            for _ in range(_TRIES_FORWARDING):
                chain = planner.chain(request, 0, narrow, random)
                if chain is not None:
                    for source, target in pairwise(chain.hosts):
                        left.receive[target] -= source != target
                    return chain
        return planner.chain(request, 0, self.left, random)

    def free(self, key: Key) -> bool:
        """Whether a token of this resource is free."""
        return bool(self.left.counts(key[0])[key[1]] > 0)

    def give(self, chain: HostChain) -> None:
        """Return the tokens of a chain; those that become free are added to `freed`."""
        for key in demands(chain):
            self._give(key)

    def force(self, chain: HostChain) -> None:
        """Take the tokens of a chain in flight after a restart; tokens that a smaller network lacks become debts."""
        for key in demands(chain):
            if key[1] in self._lost and key[0] is not Resource.LINK:
                continue
            counts = self.left.counts(key[0])
            if counts[key[1]] > 0:
                counts[key[1]] -= 1
            else:
                self._debt[key] = self._debt.get(key, 0) + 1

    def hold(self, keys: Iterable[Key]) -> None:
        """Reserve a token of each resource: a free token, or the next that comes back."""
        for key in keys:
            counts = self.left.counts(key[0])
            if counts[key[1]] > 0:
                counts[key[1]] -= 1
            else:
                self.owed[key] = self.owed.get(key, 0) + 1

    def release(self, keys: Iterable[Key], *, for_good: bool = True) -> None:
        """Undo `hold`. `for_good`: the tokens are free for other requests, and added to `freed`."""
        for key in keys:
            if not self._pay(self.owed, key):
                if key[1] in self._lost and key[0] is not Resource.LINK:
                    continue
                self.left.counts(key[0])[key[1]] += 1
                if for_good:
                    self.freed.add(key)

    def lose(self, host: int) -> None:
        """Remove the tokens of a lost host. The reservation must not use it, and its chunks in flight must end."""
        self._lost.add(host)
        self.left.without(host)
        self.whole.without(host)
        for resource in (Resource.SEND, Resource.RECEIVE, Resource.DISK):
            self._debt.pop((resource, host), None)

    def regain(self, host: int) -> None:
        """Restore the tokens of a host that is back; nothing is in flight there."""
        self._lost.discard(host)
        server = self.topology.servers[host]
        for residual in (self.left, self.whole):
            residual.send[host], residual.receive[host] = server.send, server.receive
            residual.disk[host] = disk_capacity(server)
        self.freed.update((resource, host) for resource in (Resource.SEND, Resource.RECEIVE, Resource.DISK))

    def _give(self, key: Key) -> None:
        if key[1] in self._lost and key[0] is not Resource.LINK:
            return
        if self._pay(self._debt, key) or self._pay(self.owed, key):
            return
        self.left.counts(key[0])[key[1]] += 1
        self.freed.add(key)

    @staticmethod
    def _pay(debts: dict[Key, int], key: Key) -> bool:
        count = debts.get(key)
        if not count:
            return False
        if count == 1:
            del debts[key]
        else:
            debts[key] = count - 1
        return True
