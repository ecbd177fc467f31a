"""What both ends of the links of a host share: who the host is, its limits, and who hears of messages and events."""

import socket
import traceback
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from logstore.base.addresses import Address
from logstore.base.connected_socket import ConnectedSocket
from logstore.base.events import Report
from logstore.base.tls import PeerTls
from logstore.base.tls_handshakes import Handshakes
from logstore.base.tls_socket import TlsSocket
from logstore.base.x509 import certificate_names
from logstore.cluster.interfaces import LinkObserver
from logstore.cluster.links.bursts import Bursts
from logstore.cluster.links.hello import Hello, shown
from logstore.cluster.links.sockets import set_options
from logstore.errors import LinkRefused
from logstore.events import PEER_MESSAGE_CRASHED
from logstore.replica.messages import Message
from logstore.replica.registrations import Member


class Peer(NamedTuple):
    """Another host of the cluster, as the metadata store knows it: where it listens for links, and its disk."""

    address: Address
    disk: str


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Limits of the links of a host."""

    connect_s: float = 1.0
    """For a connection: within one rack a millisecond is usual."""
    handshake_s: float = 3.0
    """For TLS and hello, for strangers too."""
    stall_s: float = 5.0
    """A connection ends when the other end has taken nothing for so long, or its machine does not answer."""
    min_pause_s: float = 0.05
    """Before the second try to connect; each further pause is twice as long."""
    max_pause_s: float = 1.0
    trouble_s: float = 5.0
    """A host that cannot be reached is reported after so long: while hosts start, some do not know others yet."""
    queue_bytes: int = 32 << 20
    """Of messages that wait for one host. Beyond it messages are dropped, so the bound is this and one frame."""
    max_body_bytes: int = 64 << 20
    """Of a frame: 1 MiB of batches, the batch behind them, and the producers' state beside a chunk, some 100 bytes for
    each producer. What cannot be sent is never acknowledged, so batches must be far smaller than this."""
    max_strangers: int = 64
    """Connections that have not said who they are. One more ends the oldest, of the address that has most."""


DEFAULT_SETTINGS: Final = LinkSettings()
MAX_COUNTED: Final = 1_000
"""Hosts with counts of their own."""


@dataclass(slots=True)
class LinkCounts:
    """What went over the links to and from one host since the start; bytes with the heads of frames."""

    sent_messages: int = 0
    sent_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0
    dropped_messages: int = 0
    """Because too much waited for the host."""


@dataclass(frozen=True, slots=True)
class OwnEnd:
    """This host's end of all its links."""

    cluster: str
    me: Member
    observer: LinkObserver
    report: Report
    settings: LinkSettings = field(default=DEFAULT_SETTINGS)
    tls: PeerTls | None = None
    """None: links are plain, and for loopback addresses alone."""
    _incoming_handshakes: Handshakes = field(default_factory=Handshakes)
    _outgoing_handshakes: Handshakes = field(default_factory=Handshakes)
    """Apart, so that strangers do not delay the connections that this host makes."""
    bursts: Bursts = field(default_factory=Bursts)
    counts: dict[str, LinkCounts] = field(default_factory=dict)
    """By host; they outlive its connections."""

    def counts_of(self, host: str) -> LinkCounts:
        """The counts of a host; beyond MAX_COUNTED hosts the rest share those of the empty name."""
        name = host if host in self.counts or len(self.counts) < MAX_COUNTED else ""
        return self.counts.setdefault(name, LinkCounts())

    def wrapped(self, sock: socket.socket, *, is_server: bool) -> ConnectedSocket:
        """A connected socket for a link, without its handshake. Raises OSError, after closing it."""
        try:
            set_options(sock, self.settings.stall_s)
            if self.tls is None:
                return ConnectedSocket(sock)
            if is_server:
                return TlsSocket(sock, self.tls.context, self._incoming_handshakes)
            return TlsSocket(sock, self.tls.client_context, self._outgoing_handshakes, is_server=False)
        except OSError:  # gone already
            sock.close()
            raise

    def check_name(self, link: ConnectedSocket, host: str) -> None:
        """Check that the certificate of the other end is the host's. Raises LinkRefused, TlsError."""
        if self.tls is None:
            return
        certificate = link.certificate
        names = frozenset[str]() if certificate is None else certificate_names(certificate)
        if host not in names:
            raise LinkRefused(
                f"the certificate of host {shown(host)} names {shown(sorted(names))}: give it one whose DNS names have "
                "the host's name"
            )

    def hello_to(self, peer: str, *, for_calls: bool = False) -> Hello:
        """What this host says to another one."""
        return Hello(self.cluster, self.me, peer, for_calls=for_calls)

    def deliver(self, host: str, message: Message) -> bool:
        """Hand over a message; returns False, and reports it, if that met a defect."""
        try:
            self.observer.received(host, message)
        except Exception:  # noqa: BLE001  a defect must not end the links of all other streams
            self.report(PEER_MESSAGE_CRASHED, host=host, message=type(message).__name__, trace=traceback.format_exc())
            return False
        return True
