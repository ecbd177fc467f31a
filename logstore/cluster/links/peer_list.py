"""Tells the links of a host who the other members of the cluster are, as the metadata store says.

Invariant: a member whose address cannot be parsed is reported once for each such address, and left out: this host does
not connect to it.
"""

from logstore.base.addresses import parse_address
from logstore.base.errors import AddressError
from logstore.base.events import Report
from logstore.cluster.links.links import HostLinks
from logstore.cluster.links.peers import Peer
from logstore.cluster.members.view import ClusterView, KnownHead, KnownTopic
from logstore.events import PEER_NOT_REACHED


class PeerList:
    """See the module. It observes the view from its making on."""

    def __init__(self, view: ClusterView, links: HostLinks, report: Report) -> None:
        self._view = view
        self._links = links
        self._report = report
        self._unusable: dict[str, str] = {}
        """Addresses that were reported, by host."""
        view.add_observer(self)

    def members_changed(self) -> None:
        """See ViewObserver."""
        peers: dict[str, Peer] = {}
        unusable: dict[str, str] = {}
        for name, member in self._view.members.items():
            try:
                peers[name] = Peer(parse_address(member.link), member.disk)
            except AddressError as error:
                unusable[name] = member.link
                if self._unusable.get(name) != member.link:
                    why = f"{error}; start that host with another --peer-listen or --peer-advertise"
                    self._report(PEER_NOT_REACHED, host=name, address=member.link, why=why)
        self._unusable = unusable
        self._links.set_peers(peers)

    def topic_changed(self, name: str, before: KnownTopic | None, now: KnownTopic | None) -> None:
        """See ViewObserver."""

    def head_changed(self, stream: str, now: KnownHead | None) -> None:
        """See ViewObserver."""
