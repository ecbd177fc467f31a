"""What both ends of the links of a host share: who the host is, its limits, and who hears of messages and events."""

import traceback
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from logstore.base.addresses import Address
from logstore.base.events import Report
from logstore.cluster.hello import Hello
from logstore.cluster.interfaces import LinkObserver
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
    queue_bytes: int = 32 << 20
    """Of messages that wait for one host. Beyond it messages are dropped, so the bound is this and one frame."""
    max_body_bytes: int = 32 << 20
    """Of a frame: 1 MiB of batches, the batch behind them, and the state of the producers beside a chunk."""
    max_strangers: int = 64
    """Connections that have not said who they are. One more ends the oldest, of the address that has most."""


DEFAULT_SETTINGS: Final = LinkSettings()


@dataclass(frozen=True, slots=True)
class OwnEnd:
    """This host's end of all its links."""

    cluster: str
    me: Member
    observer: LinkObserver
    report: Report
    settings: LinkSettings = field(default=DEFAULT_SETTINGS)

    def hello_to(self, peer: str) -> Hello:
        """What this host says to another one."""
        return Hello(self.cluster, self.me, peer)

    def deliver(self, host: str, message: Message) -> bool:
        """Hand over a message; returns False, and reports it, if that met a defect."""
        try:
            self.observer.received(host, message)
        except Exception:  # noqa: BLE001  a defect must not end the links of all other streams
            self.report(PEER_MESSAGE_CRASHED, host=host, message=type(message).__name__, trace=traceback.format_exc())
            return False
        return True
