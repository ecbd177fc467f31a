"""The metadata store of the simulation: one linearizable service on the network, with registers, leases and disks.

Its map is that of the real stores, and a swap is the transaction that it is there. It keeps what it has when it is cut
off or paused, as a store of several hosts does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from logstore.base.metadata.interface import ABSENT
from logstore.base.metadata.state import MetadataState, Update
from logstore.replica.identity import DiskLabel
from logstore.replica.register import ReadRegistration, RegistrationRead, SwapAnswer, SwapRegistration
from logstore.replica.registrations import HEAD, Member, StreamRegistration, decode_registration
from logstore.replica.stored_registrations import chunks_prefix, head_key, swap_transaction
from logstore.testing.simnet import SimNet
from tests.replica.history import History

META = "meta"
LEASE_US = 400_000


@dataclass(frozen=True)
class ReadDisk:
    """Read the register of a disk."""

    disk: str


@dataclass(frozen=True)
class SwapDisk:
    """Write the register of a disk if it is still as expected."""

    expected: DiskLabel | None
    label: DiskLabel


@dataclass(frozen=True)
class DiskRead:
    """The register of a disk, after a read or a swap."""

    disk: str
    registered: DiskLabel | None


@dataclass(frozen=True)
class KeepAlive:
    """A member renews its lease, and asks for news."""

    member: Member
    stream: str


@dataclass(frozen=True)
class LiveMembers:
    """The members whose leases hold, in the order in which replica sets should prefer them."""

    members: tuple[Member, ...]


@dataclass(frozen=True)
class News:
    """The live members and the stream's registration: a watch, in the simulation."""

    live: LiveMembers
    read: RegistrationRead


@dataclass(frozen=True)
class Request:
    """A request with the life of the host that asks."""

    start: str
    content: Any


@dataclass(frozen=True)
class Answer:
    """An answer for the life that asked."""

    start: str
    content: Any


class MetadataService:
    """A host of the simulation."""

    def __init__(self, net: SimNet, seen: History, lease_us: int = LEASE_US) -> None:
        self.net = net
        self._lease_us = lease_us
        self.seen = seen
        self.state = MetadataState(0)
        self.disks: dict[str, DiskLabel] = {}
        self.leases: dict[Member, int] = {}
        self.history: dict[str, list[StreamRegistration]] = {}
        self.rotation: int | None = 0
        """Grows with each swap, so that sets differ; None: members are preferred in the order of their names."""

    def create(self, stream: str, registration: StreamRegistration) -> None:
        """A stream is made."""
        assert self._write(SwapRegistration(stream, ABSENT, registration))

    def _write(self, swap: SwapRegistration) -> bool:
        """Write what changes, as on a real store, if the revision is the expected one."""
        stream = swap.stream
        if swap.expected_revision != self._revision(stream):
            return False
        before = self.history[stream][-1] if stream in self.history else None
        update = self.state.prepare_commit(swap_transaction(before, swap))
        assert isinstance(update, Update)
        self.state.install(update, 0)
        prefix = chunks_prefix(stream)
        entries = {
            HEAD if key == head_key(stream) else key.removeprefix(prefix): entry.value
            for key, entry in self.state.entries.items()
            if key == head_key(stream) or key.startswith(prefix)
        }
        assert decode_registration(entries) == swap.registration, "the entries are the registration"
        self.history.setdefault(stream, []).append(swap.registration)
        self.seen.start_registered(swap.registration.log_start)
        return True

    def _revision(self, stream: str) -> int:
        return self.state.get(head_key(stream)).entry_revision

    def registration(self, stream: str) -> StreamRegistration:
        """A stream's registration, now."""
        return self.history[stream][-1]

    def live(self) -> tuple[Member, ...]:
        """The members whose leases hold; each change of a registration lets others be preferred."""
        members = sorted(member for member, until_us in self.leases.items() if until_us > self.net.now_us)
        turn = self.rotation % len(members) if members and self.rotation is not None else 0
        return (*members[turn:], *members[:turn])

    def receive(self, sender: str, message: Any) -> None:
        """A request."""
        assert isinstance(message, Request)
        self.net.send(META, sender, Answer(message.start, self._answer(message.content)))

    def _answer(self, message: Any) -> Any:
        if isinstance(message, ReadDisk):
            return DiskRead(message.disk, self.disks.get(message.disk))
        if isinstance(message, SwapDisk):
            disk = message.label.disk
            if self.disks.get(disk) == message.expected:
                self.disks[disk] = message.label
            return DiskRead(disk, self.disks[disk])
        if isinstance(message, KeepAlive):
            self.leases[message.member] = self.net.now_us + self._lease_us
            return News(LiveMembers(self.live()), self._read(message.stream))
        if isinstance(message, SwapRegistration):
            return self._swap(message)
        assert isinstance(message, ReadRegistration)
        return self._read(message.stream)

    def wake(self, reason: Any) -> None:
        """It has no timers."""

    def _read(self, stream: str) -> RegistrationRead:
        return RegistrationRead(stream, self._revision(stream), self.registration(stream))

    def _swap(self, message: SwapRegistration) -> SwapAnswer:
        is_done = self._write(message)
        if is_done:
            self.rotation = None if self.rotation is None else self.rotation + 1
        found = self._read(message.stream)
        return SwapAnswer(message.stream, message.expected_revision, is_done, found.revision, found.registration)
