"""The hosts: registered, with an address and a deadline for the next keep-alive; or lost until they register again.

A host that never registered counts as available: the topology names it, and it may run no client of Cairn.

Invariants: sans-I/O, times come in; a registered host has a deadline, a lost one has none. What is known of a host that
the topology has no more is kept, and counts again when the topology has it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from logstore.base.fields import nearest, shown
from scheduler.coordinator.errors import ApiError

NOT_FOUND = 404
CONFLICT = 409


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A stored host."""

    name: str
    address: str | None = None
    registered: bool = False
    lost: bool = False


class Hosts:
    """The hosts of one topology."""

    def __init__(self, addresses: Mapping[str, str | None], deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self._addresses = dict(addresses)
        self._records: dict[str, HostRecord] = {}
        self._deadlines: dict[str, int] = {}
        self._left: set[str] = set()

    def restore(self, records: Collection[HostRecord], now_ms: int) -> None:
        """Restore stored hosts; registered ones get a full deadline."""
        self._records.update({record.name: record for record in records})
        self._begin_deadlines(now_ms)

    def change_topology(self, addresses: Mapping[str, str | None], now_ms: int) -> None:
        """The topology has these hosts from now on; registered ones that return to it get a full deadline."""
        self._left = (self._left | set(self._addresses)) - set(addresses)
        self._addresses = dict(addresses)
        self._deadlines = {name: end_ms for name, end_ms in self._deadlines.items() if name in addresses}
        self._begin_deadlines(now_ms)

    def _begin_deadlines(self, now_ms: int) -> None:
        for record in self.known():
            if record.registered:
                self._deadlines.setdefault(record.name, now_ms + self.deadline_ms)

    def register(self, name: str, address: str | None, now_ms: int) -> HostRecord:
        """Register a host, new or returned. Raises ApiError if the topology has no such host."""
        self.check(name, "name")
        record = HostRecord(name, address, registered=True)
        self._records[name] = record
        self._deadlines[name] = now_ms + self.deadline_ms
        return record

    def alive(self, name: str, now_ms: int) -> HostRecord:
        """Take a keep-alive. Raises ApiError if the host is not registered, or was lost."""
        self.check(name, "name")
        record = self._records.get(name)
        if record is None or not record.registered:
            state = "was lost" if record is not None and record.lost else "is not registered"
            raise ApiError(CONFLICT, f"host {name!r} {state}: register it (POST /v1/hosts)", "name")
        self._deadlines[name] = now_ms + self.deadline_ms
        return record

    def lose(self, name: str) -> HostRecord:
        """Note that a host missed its deadline, or left. Raises ApiError if the topology has no such host."""
        self.check(name, "name")
        self._deadlines.pop(name, None)
        record = replace(self.record(name), registered=False, lost=True)
        self._records[name] = record
        return record

    def overdue_hosts(self, now_ms: int) -> list[str]:
        """The hosts whose deadline has passed."""
        return [name for name, deadline_ms in self._deadlines.items() if deadline_ms < now_ms]

    def extend_deadlines(self, more_ms: int) -> None:
        """Extend all deadlines by the time in which the coordinator could not receive keep-alives."""
        self._deadlines = {name: deadline_ms + more_ms for name, deadline_ms in self._deadlines.items()}

    def check(self, name: str, field: str) -> None:
        """Raises ApiError if the topology has no such host."""
        if name not in self._addresses:
            raise ApiError(
                NOT_FOUND, f"{field}={shown(name)}: no such host in the topology{nearest(name, self._addresses)}", field
            )

    def record(self, name: str) -> HostRecord:
        """The record of a host of the topology."""
        return self._records.get(name) or HostRecord(name)

    def is_known(self, name: str) -> bool:
        """Whether the topology has this host."""
        return name in self._addresses

    def has_left(self, name: str) -> bool:
        """Whether the topology had this host, and has it no more."""
        return name in self._left

    def lost(self, names: Iterable[str]) -> list[str]:
        """Those of these hosts that are lost, or were when they left the topology."""
        return [name for name in names if self.record(name).lost]

    def known(self) -> list[HostRecord]:
        """The records of all hosts of the topology that ever registered or were lost, by name."""
        return [self._records[name] for name in sorted(self._records) if name in self._addresses]

    def address(self, name: str) -> str | None:
        """The address of a host: from its registration, else from the topology."""
        return self.record(name).address or self._addresses.get(name)

    def is_lost(self, name: str) -> bool:
        """Whether a host is lost; a host outside the topology is not."""
        return name in self._addresses and self.record(name).lost

    def names_by_address(self) -> Callable[[str], str]:
        """A function from a host's name or address to its name; what is unknown stays as it is.

        An address with another port is that host's too, if it is the only host there: each service has its own port.
        """
        names: dict[str, str] = {}
        shared: set[str] = set()
        for name in self._addresses:
            address = self.address(name)
            if address is not None:
                names[address] = name
                machine = _machine(address)
                shared |= {machine} if names.get(machine, name) != name else set()
                names.setdefault(machine, name)
        known = {machine: name for machine, name in names.items() if machine not in shared}
        return lambda host: host if host in self._addresses else known.get(host) or known.get(_machine(host)) or host

    def left_ms(self, name: str, now_ms: int) -> int | None:
        """The milliseconds until a host's deadline."""
        deadline_ms = self._deadlines.get(name)
        return None if deadline_ms is None else max(0, deadline_ms - now_ms)


def _machine(address: str) -> str:
    """An address without its port."""
    machine, colon, port = address.rpartition(":")
    return machine if colon and port.isdigit() else address
