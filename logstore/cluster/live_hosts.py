"""Which hosts of the cluster live and can be reached, as this host sees it.

| a host | lives | is chosen for chunks |
|---|---|---|
| is a member, and reachable | yes | yes |
| is a member, and not reachable for less than UNREACHABLE_S | yes | yes |
| is a member, and not reachable for longer | yes | no |
| is a member, and refused a connection after it was lost (its process is gone) | no | no |
| is no member: its lease has ended | no | no |
| is to leave, and lives | yes | where there are too few others |

Copies may be moved to lie further apart (`logstore.replica.spreading`) when the same hosts, in the same racks, have
been usable for `grace_s`, and for STEADY_S at least, and are not all in one place.

A host that lived and could be reached, and now is gone, is *awaited* for `grace_s`: chunks that lack its copies alone
wait for it (`logstore.replica.repair`). When this host itself has begun, any host that is not there is awaited for as
long.

Invariants:
* This host itself is always chosen: it knows that it lives.
* A host that refused is back when it is reachable, or has started anew.
* For how long a host is not reachable counts while this host was running (`RunningTime`): one that stood still has made
  no connection meanwhile either, and neither gives up the others nor leaves the cluster for that.
* No promise rests on any of this: it decides what is tried, and when.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import trio

from logstore.base.metadata import schema
from logstore.base.running_time import RunningTime
from logstore.cluster.copies.copy_pace import DEFAULT_GRACE_S
from logstore.cluster.interfaces import Links
from logstore.cluster.members import election
from logstore.cluster.members.membership import Membership
from logstore.cluster.members.view import ClusterView
from logstore.replica.placing import ANYWHERE, Placing
from logstore.replica.registrations import Member

LOOK_S: Final = 0.2
"""Between two looks at which hosts are reachable."""
UNREACHABLE_S: Final = 1.0
"""A connection that was lost for a moment changes no replica set."""
ISOLATED_S: Final = 3.0
"""A host that reaches none of several others for so long leaves the cluster, so that they take over its streams."""
STEADY_S: Final = 10.0
"""Hosts that are on their way back take so long at most to be seen, one after the other."""
MIN_HOSTS_TO_LEAVE: Final = 3
"""Of two hosts that lose their link both would leave."""


def placing_of(leaving: Mapping[str, schema.Leaving], before: Placing) -> Placing:
    """What the metadata store says of hosts that leave, as owners take it; the rest as before."""
    removed = frozenset(host for host, entry in leaving.items() if entry.how == schema.REMOVE)
    return replace(before, leaving=frozenset(leaving), removed=removed)


class LiveHosts:
    """See the module. `changed` is called when any of it has changed. `watch_links` must run."""

    def __init__(
        self,
        name: str,
        view: ClusterView,
        links: Links,
        membership: Membership,
        changed: Callable[[], None],
        placing: Placing = ANYWHERE,
        grace_s: float = DEFAULT_GRACE_S,
    ) -> None:
        self._grace_s = grace_s
        self._began_s = self._steady_since_s = trio.current_time()
        self._running = RunningTime(self._began_s, 2 * LOOK_S)
        self._usable: frozenset[str] = frozenset()
        self._racks: dict[str, str] = {}
        """Of the usable hosts, since `_steady_since_s`."""
        self._gone_s: dict[str, float] = {}
        """Hosts that are awaited, and when they went."""
        self._name = name
        self._view = view
        self._links = links
        self._membership = membership
        self._changed = changed
        self._refusing: dict[str, str] = {}
        """Hosts that refused, in which of their lives."""
        self._lost_since_s: dict[str, float] = {}
        self._lost: frozenset[str] = frozenset()
        self._live: dict[str, schema.StoredMember] = {}
        self.live: Mapping[str, schema.StoredMember] = MappingProxyType({})
        self.placing = replace(placing, is_beginning=grace_s > 0)
        """Which hosts leave, as an operator has said, and who joins replica sets."""
        self.changed_s = trio.current_time()
        """When `live` or `placing` has changed last, not counting that hosts are steady now."""

    def placement(self, stream: str) -> tuple[Member, ...]:
        """The members that are chosen for chunks, in the order in which a stream's sets should prefer them."""
        usable = {host: member for host, member in self.live.items() if host not in self._lost}
        return election.placement(stream, self._name, {**usable, self._name: self._membership.member})

    def reaches(self, hosts: set[str]) -> int:
        """How many of these hosts can be reached; this host itself can."""
        return sum(host == self._name or self._links.is_reachable(host) for host in hosts)

    @property
    def all_deal(self) -> bool:
        """Whether all that live are known to deal streams as this host does."""
        return all(self._links.deals(host) for host in self.live)

    @property
    def has_earlier(self) -> bool:
        """Whether one that lives is known to be of an earlier version, which claims streams by the hash alone."""
        return any(self._links.deals(host) is False for host in self.live)

    def members_changed(self) -> None:
        """The view's members have changed."""
        members = self._view.members
        for host, start in list(self._refusing.items()):
            if host not in members or members[host].start != start:
                del self._refusing[host]
        live = {host: member for host, member in members.items() if host not in self._refusing}
        placing = placing_of(self._view.leaving, self._awaiting(frozenset(live) - self._lost))
        is_other = live != self.live or placing != replace(self.placing, is_steady=placing.is_steady)
        if is_other:
            self.changed_s = trio.current_time()
        if is_other or placing != self.placing:
            self.live, self.placing = MappingProxyType(live), placing
        self._changed()

    def _awaiting(self, usable: frozenset[str]) -> Placing:
        """The placing, with the hosts that are awaited now."""
        now_s = trio.current_time()
        self._gone_s.update(dict.fromkeys(self._usable - usable, now_s))
        members = self._view.members
        racks = {host: members[host].rack for host in usable if host in members}
        if racks != self._racks:
            self._racks, self._steady_since_s = racks, now_s
        self._gone_s = {
            host: since_s
            for host, since_s in self._gone_s.items()
            if host not in usable and now_s - since_s < self._grace_s
        }
        self._usable = usable
        is_beginning = now_s - self._began_s < self._grace_s
        is_steady = now_s - self._steady_since_s >= max(self._grace_s, STEADY_S) and len(set(racks.values())) > 1
        return replace(self.placing, awaited=frozenset(self._gone_s), is_beginning=is_beginning, is_steady=is_steady)

    def refused(self, host: str) -> None:
        """A host's connection was lost, and its address refuses connections: its process is gone."""
        member = self._view.members.get(host)
        if member is not None and host != self._name and self._refusing.get(host) != member.start:
            self._refusing[host] = member.start
            self.members_changed()

    async def watch_links(self) -> None:
        """Look at which hosts are reachable, until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            self._look()

    def _look(self) -> None:
        now_s = self._running.turn(trio.current_time())
        hosts = [host for host in self._view.members if host != self._name]
        reachable = {host for host in hosts if self._links.is_reachable(host)}
        is_back = bool(reachable & self._refusing.keys())
        for host in reachable:
            self._refusing.pop(host, None)
        self._lost_since_s = {host: self._lost_since_s.get(host, now_s) for host in hosts if host not in reachable}
        lost = frozenset(host for host, since_s in self._lost_since_s.items() if now_s - since_s >= UNREACHABLE_S)
        is_moved, self._lost = lost != self._lost, lost
        awaiting = self._awaiting(self._usable)
        if is_back or is_moved or awaiting != self.placing:
            self.members_changed()
        self._leave_if_isolated(hosts, now_s)

    def _leave_if_isolated(self, hosts: list[str], now_s: float) -> None:
        """Leave while no other host can be reached, and join again when one can be: also when one says that it would
        take messages of a member, or when there is no other one any more that could take over.
        """
        is_reached = len(self._lost_since_s) < len(hosts) or any(map(self._links.is_stranger_to, hosts))
        if is_reached or not hosts:
            self._membership.stay()
        elif len(hosts) >= MIN_HOSTS_TO_LEAVE - 1 and now_s - max(self._lost_since_s.values()) >= ISOLATED_S:
            self._membership.leave()
