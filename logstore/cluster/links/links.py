"""The links of a host: one connection to each other host to send on, one from each to receive on, and itself. Calls
have connections of their own.

Invariants: `send` neither waits nor fails, and never calls the observer; everything runs on the event loop's thread.
Messages leave at the end of the burst that caused them, those to this host itself too
(`logstore.cluster.links.bursts`). Links without TLS are for loopback addresses alone.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

import trio

from logstore.base.addresses import Address, is_loopback
from logstore.base.errors import AddressError
from logstore.cluster.links.calls import HostCalls
from logstore.cluster.links.incoming import IncomingLinks, open_listener
from logstore.cluster.links.outgoing import OutgoingLink
from logstore.cluster.links.peers import LinkCounts, OwnEnd, Peer
from logstore.events import PEER_SLOW
from logstore.replica.messages import Message

LOCAL_TURN: Final = 64
"""Messages of this host to itself that are handed over before other tasks run."""
MAX_LOCAL_MESSAGES: Final = 65_536
"""That wait for this host itself. They share their entries' bytes with whoever sent them."""


class HostLinks:
    """Implements `logstore.cluster.interfaces.Links`."""

    def __init__(self, own: OwnEnd) -> None:
        self._own = own
        self._peers: dict[str, Peer] = {}
        self._outgoing: dict[str, OutgoingLink] = {}
        self.calls = HostCalls(own, self._peers)
        self._incoming = IncomingLinks(own, self._peers, self._greeted, self.calls.serve)
        self._local: deque[Message] = deque()
        self._more_local = trio.lowlevel.ParkingLot()
        self._burst = self._left = 0
        """The last burst in which messages of this host to itself were handed over, and how many more may be."""
        self._nursery: trio.Nursery | None = None

    async def serve(
        self, address: Address, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen, connect and carry messages, until cancelled; reports the address with its real port once it listens.

        Raises AddressError if the address needs TLS and there is none, OSError if the address cannot be listened on.
        """
        if self._own.tls is None and not is_loopback(address.host):
            raise AddressError(f"links without TLS are for loopback addresses alone, not for {address}: give TLS files")
        with await open_listener(address) as listener:
            try:
                async with trio.open_nursery() as self._nursery:
                    self._nursery.start_soon(self._incoming.serve, listener)
                    self._nursery.start_soon(self._own.bursts.run)
                    self._nursery.start_soon(self._deliver_local)
                    self._nursery.start_soon(self.calls.run)
                    for link in self._outgoing.values():
                        self._nursery.start_soon(self._run, link)
                    task_status.started(Address(address.host, listener.getsockname()[1]))
            finally:
                self._nursery = None

    def set_peers(self, peers: Mapping[str, Peer]) -> None:
        """The members of the cluster now; this host may be among them, and is left out.

        A host that is none of them any more keeps its connections while these last. A host with another address or disk
        than before is connected to anew.
        """
        self._peers.clear()
        self._peers.update({host: peer for host, peer in peers.items() if host != self._own.me.host})
        for host, link in self._outgoing.items():
            link.aim(self._peers.get(host))
        for host, peer in self._peers.items():
            if host not in self._outgoing:
                link = self._outgoing[host] = OutgoingLink(host, peer, self._own)
                if self._nursery is not None:
                    self._nursery.start_soon(self._run, link)

    async def _run(self, link: OutgoingLink) -> None:
        await link.run()
        del self._outgoing[link.host]

    def send(self, host: str, message: Message) -> None:
        """Send a message soon; see `Links`."""
        if host == self._own.me.host:
            if len(self._local) < MAX_LOCAL_MESSAGES:
                self._local.append(message)
                self._own.bursts.gather(self._deliver_some)
            else:
                self._own.report(PEER_SLOW, host=host, waiting_messages=len(self._local))
            return
        link = self._outgoing.get(host)
        if link is not None:
            link.send(message)

    def is_reachable(self, host: str) -> bool:
        """Whether messages to the host are sent now; to this host they always are."""
        link = self._outgoing.get(host)
        return host == self._own.me.host or (link is not None and link.is_up)

    def is_stranger_to(self, host: str) -> bool:
        """Whether the host can be reached, and takes nothing because it does not know this one as a member."""
        link = self._outgoing.get(host)
        return link is not None and link.is_stranger

    def deals(self, host: str) -> bool | None:
        """Whether the host deals streams as this one does; None: it was not asked yet."""
        if host == self._own.me.host:
            return True
        link = self._outgoing.get(host)
        return None if link is None else link.deals

    @property
    def counts(self) -> Mapping[str, LinkCounts]:
        """What went over the links since the start, by host."""
        return self._own.counts

    def queued_bytes(self, host: str) -> int:
        """Of messages that wait for a host."""
        link = self._outgoing.get(host)
        return 0 if link is None else link.queued_bytes

    def _greeted(self, host: str) -> None:
        link = self._outgoing.get(host)
        if link is not None:
            link.hasten()

    def _deliver_some(self) -> None:
        """Hand over what waits, LOCAL_TURN in a burst at most: what arrives may cause more."""
        if self._burst != self._own.bursts.number:
            self._burst, self._left = self._own.bursts.number, LOCAL_TURN
        while self._local and self._left:
            self._left -= 1
            self._own.deliver(self._own.me.host, self._local.popleft())
        if self._local:
            self._more_local.unpark()

    async def _deliver_local(self) -> None:
        """What is more than LOCAL_TURN."""
        while True:
            self._own.bursts.begin()
            self._deliver_some()
            self._own.bursts.end()
            if self._local:
                await trio.lowlevel.checkpoint()
            else:
                await self._more_local.park()
