"""Which hosts get the chunks and copies of this host's streams: the planner, fed with places and loads of all hosts.

Invariants:
* Each host chooses for the streams that it owns, without asking. What it needs to know of the others they say: where
  they are and what their disks take, in their entries of the metadata store; what their streams write, over the links,
  every TELL_S as far as it has changed. A message that is lost costs nothing but that, and is made up for later.
* A choice takes no I/O and well below a millisecond. Without a planner, and for hosts that it does not know, it is the
  order of the candidates.
* A copy of an old chunk counts at its target from the moment at which it is asked for until it is made, this host's and
  those that the plan of copies tells of. There it counts as much as the disk that is loaded most: copies made at a time
  spread over hosts in proportion to their disks, and loads decide between hosts with as many copies.
* Replica sets are chosen anew when a chunk ends, never for a better balance of load: so no copy is made for it. For
  copies that lie too close together one is (`logstore.replica.spreading`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import trio

from logstore.base.metadata import schema
from logstore.base.racks import domains
from logstore.cluster.interfaces import Links, PlanSets, SetPlanner
from logstore.cluster.members import election
from logstore.cluster.members.view import KnownHead
from logstore.cluster.stream_rates import HostLoads
from logstore.replica import messages
from logstore.replica.copy_tokens import CopyTokens
from logstore.replica.registrations import Member
from logstore.replica.spreading import Crowding, never_crowded

TELL_S: Final = 2.0
COPY_BYTES_S: Final = 1 << 20
"""What a copy counts at the least: of so many hosts without any load none gets two copies before all have one."""


class SetChoice:
    """See the module. `live` gives the hosts that live. `run` must run."""

    def __init__(
        self,
        me: str,
        live: Callable[[], Mapping[str, schema.StoredMember]],
        links: Links,
        plan_sets: PlanSets | None,
        copies: CopyTokens | None = None,
    ) -> None:
        self._copies = copies or CopyTokens()
        self._me = me
        self._live = live
        self._links = links
        self._plan_sets = plan_sets
        self._planned: Mapping[str, schema.StoredMember] = {}
        self._planner: SetPlanner | None = None
        self.rates = HostLoads()

    def choose(
        self, stream: str, candidates: Sequence[Member], held: Sequence[Member], count: int, *, is_new: bool
    ) -> tuple[Member, ...]:
        """See `logstore.replica.placing.Choose`."""
        by_host = {member.host: member for member in candidates}
        holders = [member.host for member in held]
        hosts: list[str] = []
        planner = self._current_planner()
        if planner is not None:
            rate = self.rates.rate(stream) if is_new else self._copy_rate()
            loads = self.rates.loads(without=stream) if is_new else self._loads_with_copies(stream, rate)
            entering = self.rates.entering(without=stream if is_new else "")
            hosts += planner.choose(list(by_host), holders, count, rate, loads, entering)
        hosts += [host for host in by_host if host not in hosts][: count - len(hosts)]
        if is_new:
            self.rates.placed(stream, [*holders, *hosts])
        return tuple(by_host[host] for host in hosts)

    def crowding(self, hosts: Iterable[str], copies: int) -> Crowding:
        """See `logstore.replica.spreading.MeasureCrowding`."""
        planner = self._current_planner()
        return (never_crowded if planner is None else planner.crowding)(hosts, copies)

    def _copy_rate(self) -> int:
        return COPY_BYTES_S + max(self.rates.loads().values(), default=0)

    def _loads_with_copies(self, stream: str, rate: int) -> Counter[str]:
        loads = self.rates.loads()
        for host, copies in self._copies.targets(without=stream).items():
            loads[host] += copies * rate
        return loads

    def head_changed(self, stream: str, now: KnownHead | None) -> None:
        """A stream's registration has changed."""
        if now is None:
            self.rates.gone(stream)
            return
        chunk = now.head.open_chunk
        self.rates.placed(stream, () if chunk is None else [member.host for member in chunk.members])

    def heard(self, _: str, message: messages.StreamRates) -> None:
        """A host says what its streams write."""
        for stream, bytes_s in message.rates:
            self.rates.told(stream, bytes_s)

    async def run(self) -> None:
        """Measure, and tell the other hosts, until cancelled."""
        last_s = trio.current_time()
        while True:
            await trio.sleep(TELL_S)
            last_s, passed_s = trio.current_time(), trio.current_time() - last_s
            self.rates.measure(passed_s)
            told = self.rates.to_tell()
            for host in self._live() if told else ():
                if host != self._me:
                    self._links.send(host, messages.StreamRates(tuple(told)))

    def _current_planner(self) -> SetPlanner | None:
        """The planner for the hosts that live now."""
        live = self._live()
        if self._plan_sets is not None and live is not self._planned:
            places, links = places_of(live), links_of(live)
            self._planner, self._planned = self._plan_sets(places, links), live
            ways = {host: _linked(way, links) for host, (way, _) in places.items()} if links else {}
            self.rates.place_hosts(ways)
        return self._planner


def _linked(way: tuple[str, ...], links: Mapping[tuple[str, ...], float]) -> list[tuple[str, ...]]:
    """The domains of a host whose links are known."""
    return [way[:depth] for depth in range(1, len(way) + 1) if way[:depth] in links]


def places_of(live: Mapping[str, schema.StoredMember]) -> dict[str, tuple[tuple[str, ...], float]]:
    """The domains of hosts, and what their disks take."""
    rates = election.disk_rates(live)
    return {host: (domains(member.rack), rates[host]) for host, member in live.items()}


def links_of(live: Mapping[str, schema.StoredMember]) -> dict[tuple[str, ...], float]:
    """What hosts say of the links into their domains: of several that speak of one, the least."""
    found: dict[tuple[str, ...], float] = {}
    for member in live.values():
        way = domains(member.rack)
        for depth, bytes_s in enumerate(member.link_rates[: len(way)], 1):
            if bytes_s:
                found[way[:depth]] = min(float(bytes_s), found.get(way[:depth], float(bytes_s)))
    return found
