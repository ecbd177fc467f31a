"""Whether a host that stands by has the network that the leader plans on.

The leader says the fingerprint of its network beside its entry, under the same lease; each host that stands by compares
its own. With other networks the plan would change at each takeover, and requests whose hosts the next leader's network
lacks would be cancelled.

Invariants:
* A fingerprint is that of what is planned on: two files that describe the same network, in another order or form, have
  the same.
* What is compared was said by the very host, in the very life, that leads. A leader of a version that says nothing
  differs from nobody.
* Hosts read their files at different moments: a difference is reported when it has lasted for LASTING_S, and once for
  each pair of networks. A host whose network differs stands by all the same.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Final, NamedTuple, Protocol

import trio

from logstore.base.events import Report
from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataDamaged, MetadataError
from logstore.base.metadata.interface import Committed, MetadataStore
from logstore.base.metadata.view import MetadataView
from scheduler.coordinator.log_events import COORDINATOR_NETWORK_AGREES, COORDINATOR_NETWORK_DIFFERS
from scheduler.topology import Topology

LOOK_S: Final = 1.0
LASTING_S: Final = 30.0
"""Twice as long as a change of a file takes to be read and applied, and more."""
SHOWN_CHARACTERS: Final = 12
"""Of a fingerprint, in the log."""


class LeaderView(Protocol):
    """Who leads (`Candidate`)."""

    view: MetadataView

    @property
    def followed(self) -> schema.StoredLeader | None:
        """The other host that leads."""

    @property
    def leads(self) -> bool:
        """Whether this host does."""

    @property
    def led(self) -> tuple[int, int]:
        """The revision of its entry, and the lease that the entry lies under."""


class _Difference(NamedTuple):
    leader: str
    theirs: str
    own: str


class ComparedNetworks:
    """See the module. `own`: the network of this host now; `run` must run."""

    def __init__(
        self, candidate: LeaderView, store: MetadataStore, own: Callable[[], Topology], report: Report
    ) -> None:
        self._candidate = candidate
        self._store = store
        self._own = own
        self._report = report
        self._said: tuple[int, str] | None = None
        """The revision of this host's entry as the leader, and what it has said beside it."""
        self._difference: _Difference | None = None
        self._since_s = 0.0
        self._is_reported = False
        self._known: tuple[Topology, str] | None = None

    @property
    def differ(self) -> bool:
        """Whether this host stands by with another network than the leader's."""
        return self._difference is not None

    async def run(self) -> None:
        """Say and compare, until cancelled."""
        while True:
            if self._candidate.leads:
                await self._say()
            self._compare()
            await trio.sleep(LOOK_S)

    async def _say(self) -> None:
        """Say what this host plans on, if it has not yet; if the store does not take it, the next look tries again."""
        revision, lease_id = self._candidate.led
        topology = self._own()
        fingerprint = self._fingerprint()
        if not lease_id or self._said == (revision, fingerprint):
            return
        network = schema.StoredNetwork(
            revision=revision, fingerprint=fingerprint, hosts=len(topology.servers), links=len(topology.links)
        )
        with suppress(MetadataError):
            if isinstance(await self._store.commit(schema.say_network(network, lease_id)), Committed):
                self._said = (revision, fingerprint)

    def _compare(self) -> None:
        theirs, leader = self._leaders(), self._candidate.followed
        own = self._fingerprint()
        if theirs is None or leader is None:
            self._difference = None
            return
        if theirs.fingerprint == own:
            if self._is_reported:
                self._report(COORDINATOR_NETWORK_AGREES)
            self._difference, self._is_reported = None, False
            return
        found = _Difference(leader.host, theirs.fingerprint, own)
        if found != self._difference:
            self._difference, self._since_s, self._is_reported = found, trio.current_time(), False
        if not self._is_reported and trio.current_time() - self._since_s >= LASTING_S:
            self._is_reported = True
            topology = self._own()
            self._report(
                COORDINATOR_NETWORK_DIFFERS,
                leader=leader.host,
                own=f"{topology.name}, {len(topology.servers)} hosts, {len(topology.links)} links, "
                + own[:SHOWN_CHARACTERS],
                leaders=f"{theirs.hosts} hosts, {theirs.links} links, {theirs.fingerprint[:SHOWN_CHARACTERS]}",
                advice="give all hosts with --coordinate the same file: else the plan changes at each takeover",
            )

    def _leaders(self) -> schema.StoredNetwork | None:
        """The network of the host that is followed; None: it says nothing, or nobody is followed."""
        entries = self._candidate.view.entries
        entry, leader = entries.get(schema.LEADER_NETWORK_KEY), entries.get(schema.LEADER_KEY)
        if entry is None or leader is None or self._candidate.followed is None:
            return None
        with suppress(MetadataDamaged):
            network = schema.decode(schema.StoredNetwork, entry)
            return network if network.revision == leader.revision else None
        return None

    def _fingerprint(self) -> str:
        topology = self._own()
        if self._known is None or self._known[0] is not topology:
            self._known = (topology, fingerprint_of(topology))
        return self._known[1]


def fingerprint_of(topology: Topology) -> str:
    """What tells networks apart that plans tell apart: 64 hexadecimal digits."""
    parts = [
        topology.chunk_bytes,
        sorted(topology.switches),
        sorted(repr(server) for server in topology.servers),
        sorted(repr(link) for link in topology.links),
    ]
    return sha256(json.dumps(parts, ensure_ascii=True).encode("ascii")).hexdigest()
