"""Which hosts get the chunks and copies of this host's streams: the planner, fed with places and loads of all hosts.

Invariants:
* Each host chooses for the streams that it owns, without asking. What it needs to know of the others they say: where
  they are and what their disks take, in their entries of the metadata store; what their streams write, over the links,
  every TELL_S as far as it has changed. A message that is lost costs nothing but that, and is made up for later.
* A choice takes no I/O and well below a millisecond. Without a planner, and for hosts that it does not know, it is the
  order of the candidates.
* Replica sets are chosen anew when a chunk ends, never for a better balance alone: so no copy is made for it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio

from logstore.base.metadata import schema
from logstore.base.racks import domains
from logstore.cluster import election
from logstore.cluster.interfaces import Links, PlanSets, SetPlanner
from logstore.cluster.stream_rates import StreamRates
from logstore.cluster.view import KnownHead
from logstore.replica import messages
from logstore.replica.registrations import Member

TELL_S: Final = 2.0


class SetChoice:
    """See the module. `live` gives the hosts that live. `run` must run."""

    def __init__(
        self, me: str, live: Callable[[], Mapping[str, schema.Member]], links: Links, plan_sets: PlanSets | None
    ) -> None:
        self._me = me
        self._live = live
        self._links = links
        self._plan_sets = plan_sets
        self._planned: Mapping[str, schema.Member] = {}
        self._planner: SetPlanner | None = None
        self.rates = StreamRates()

    def choose(
        self, stream: str, candidates: Sequence[Member], held: Sequence[Member], count: int, *, is_new: bool
    ) -> tuple[Member, ...]:
        """See `logstore.replica.placing.Choose`."""
        by_host = {member.host: member for member in candidates}
        holders = [member.host for member in held]
        hosts: list[str] = []
        planner = self._current_planner()
        if planner is not None:
            rate = self.rates.rate(stream) if is_new else 0
            loads = self.rates.loads(without=stream if is_new else "")
            hosts += planner.choose(list(by_host), holders, count, rate, loads)
        hosts += [host for host in by_host if host not in hosts][: count - len(hosts)]
        if is_new:
            self.rates.placed(stream, [*holders, *hosts])
        return tuple(by_host[host] for host in hosts)

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
            rates = election.disk_rates(live)
            places = {host: (domains(member.rack), rates[host]) for host, member in live.items()}
            self._planner, self._planned = self._plan_sets(places, _links(live)), live
        return self._planner


def _links(live: Mapping[str, schema.Member]) -> dict[tuple[str, ...], float]:
    """What hosts say of the links into their domains: of several that speak of one, the least."""
    found: dict[tuple[str, ...], float] = {}
    for member in live.values():
        way = domains(member.rack)
        for depth, bytes_s in enumerate(member.link_rates[: len(way)], 1):
            if bytes_s:
                found[way[:depth]] = min(float(bytes_s), found.get(way[:depth], float(bytes_s)))
    return found
