"""The requests of replication to the metadata store, and its answers.

This is all that replication needs of the store: a register for each stream (its name is the stream's) that is read and
changed by compare-and-swap on a revision, and the list of live members, which the store keeps by leases.
`registrations` has the bytes of a register.

What a store must keep:
* Swaps of one register are linearizable: of two swaps that expect the same revision at most one is done, and a
  revision is never used twice. A read is not older than its request, but answers may come in another order: each
  carries its revision. An answer reaches only the life of the host that asked: what a host reads after its start shows
  at least what it had answered for before.
* A request may be lost, answered late or repeated. An answer to a swap that was not done carries the registration as it
  is, so that whoever repeated a swap recognizes their own.
* Leases decide when a takeover or a copy is worth a try, never whether it is safe: no promise rests on clocks.

Sources: etcd's transactions with `mod_revision`; ZooKeeper as BookKeeper uses it, for ledgers' metadata.
"""

from dataclasses import dataclass

from logstore.replica.registrations import StreamRegistration


@dataclass(frozen=True, slots=True)
class ReadRegistration:
    """Read a stream's register. `revision`: it has changed up to this one at least, as whoever asks has heard."""

    stream: str
    revision: int = 0


@dataclass(frozen=True, slots=True)
class RegistrationRead:
    """A stream's register. Revision 0 and None: it was never written."""

    stream: str
    revision: int
    registration: StreamRegistration | None


@dataclass(frozen=True, slots=True)
class SwapRegistration:
    """Write a stream's register if its revision is still the expected one."""

    stream: str
    expected_revision: int
    registration: StreamRegistration


@dataclass(frozen=True, slots=True)
class SwapAnswer:
    """The register after the attempt. `is_done`: this request has written it, in this attempt or a former one."""

    stream: str
    expected_revision: int
    is_done: bool
    revision: int
    registration: StreamRegistration | None


@dataclass(slots=True)
class SwapInFlight:
    """What an owner asks for: the registration that it wants, the revision that it expects, and what for."""

    wanted: StreamRegistration
    expected_revision: int
    sent_ms: int
    is_repair: bool = False
    is_trim: bool = False
