"""What the parts of a host in a cluster need of each other.

| part | does |
|---|---|
| `Links` | carries messages between hosts |
| `LinkObserver` | takes the messages that arrive, and hears which hosts can be reached |
| `ReplicaFiles` | carries out what replicas ask of the disk, on the streams of the local store |
| `SetPlanner` | says which hosts join a replica set |
| `CopyPlanner` | says which copies may be made now, and from where |
| `StreamOwners` | owns streams, for the streams that clients append to: takes appends and trims, reads chunks |
| `StreamObserver` | the stream that clients append to, on its owner's host: hears what is acknowledged |

Invariants: everything here runs on the event loop's thread. A message may be lost, so `send` never waits and never
fails; whoever needs an answer asks again.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from random import Random
from typing import NamedTuple, Protocol

from logstore.log.stream import Stream
from logstore.log.ticket import Ticket
from logstore.replica.effects import DiskOperation, Load
from logstore.replica.known_replicas import StoredReplicas
from logstore.replica.messages import BatchEntry, EntriesRead, Message
from logstore.replica.registrations import ChunkRegistration, Prefix, StreamRegistration

Spawn = Callable[[Callable[[], Awaitable[None]]], None]
"""Runs a task of the host's."""

Received = Callable[[str, Message], None]
"""Takes a message from a host."""


PeerRefused = Callable[[str], None]
"""Takes the name of a host whose connection was lost and whose address refuses connections."""


class SetPlanner(Protocol):
    """Plans replica sets for hosts at known places (Peace: `scheduler.peace.replica_sets`)."""

    def choose(
        self,
        candidates: Sequence[str],
        held: Sequence[str],
        count: int,
        bytes_s: float,
        loads: Mapping[str, float],
        entering: Mapping[tuple[str, ...], float],
        /,
    ) -> tuple[str, ...]:
        """Hosts among the candidates that join those that are held, in the order of the chain. `loads` of hosts, and
        what is `entering` domains over their links, in bytes a second.
        """

    def crowding(self, hosts: Iterable[str], total: int, /) -> Callable[[Iterable[str]], int]:
        """How crowded any set of `total` members is that may lie on these hosts: see `logstore.replica.spreading`."""


PlanSets = Callable[[Mapping[str, tuple[tuple[str, ...], float]], Mapping[tuple[str, ...], float]], SetPlanner]
"""Makes a planner from hosts' fault domains and disks, in bytes a second, and the links into domains, as far as known.
"""


class CopyPlanner(Protocol):
    """Plans copies of chunks (Peace: `scheduler.peace.copies`). A copy that may begin is a name, a target, a source."""

    def ask(
        self, name: str, target: str, sources: Sequence[str], live: int, now_ms: int, /, *, is_move: bool
    ) -> Sequence[tuple[str, str, str]] | None:
        """Ask for a copy; returns the copies that may begin now. None: it cannot be planned now."""

    def end(self, name: str, now_ms: int, /) -> Sequence[tuple[str, str, str]]:
        """A copy has ended, or is not wanted any more; returns the copies that may begin now."""


PlanCopies = Callable[
    [
        Mapping[str, tuple[tuple[str, ...], float]],
        Mapping[tuple[str, ...], float],
        Iterable[tuple[str, str, str]],
        Random,
        int,
    ],
    CopyPlanner,
]
"""Makes a planner from hosts' places, links into domains, copies that are under way, and the time in milliseconds."""


class Links(Protocol):
    """Connections to the other hosts of the cluster."""

    def send(self, host: str, message: Message) -> None:
        """Send a message soon. It is dropped if the host cannot be reached, or if too much waits for it already."""

    def is_reachable(self, host: str) -> bool:
        """Whether there is a connection to the host now."""

    def is_stranger_to(self, host: str) -> bool:
        """Whether the host has answered, and takes nothing because it does not know this one as a member."""

    def deals(self, host: str) -> bool | None:
        """Whether the host deals streams as this one does (`logstore.cluster.members.deal`), as it said when it was
        connected to last; None: it never was. This host itself does.
        """


class LinkObserver(Protocol):
    """Hears from the links to the other hosts. A call must not wait, and does not come from within `Links.send`."""

    def received(self, host: str, message: Message) -> None:
        """A message of a host, which has proven its name; of this host itself too."""

    def connected(self, host: str) -> None:
        """Messages to the host are sent from now on."""

    def lost(self, host: str) -> None:
        """The connection to the host has ended, and messages under way may be lost. The host is asked at once for
        another connection: `connected` or `refused` follows within a tenth of a second if its machine is alive.
        """

    def refused(self, host: str) -> None:
        """The host's machine answers that nobody listens at the host's address: the host's process has ended, or has
        not begun. Said after each such try, so again and again until `connected`.
        """


class Loaded(NamedTuple):
    """What a `Load` found: entries behind `at`, the offset behind the limit, and the founding state if they are the
    chunk's first.
    """

    at: Prefix
    entries: tuple[BatchEntry, ...]
    limit_offset: int
    founding: bytes


class ReplicaFiles(Protocol):
    """The chunks and fences of one host, each chunk a stream of the local store."""

    @property
    def stored(self) -> StoredReplicas:
        """What the start has found."""

    def has_room(self, size_bytes: int) -> bool:
        """Whether the disk may take so many bytes of entries now."""

    def perform(self, operation: DiskOperation) -> Ticket[None]:
        """Carry out an operation, from `begin` or `begin_soon` on; the ticket settles when it is durable.

        Operations on one chunk are carried out in order. The ticket fails with StorageFailed if the disk refuses, and
        with CorruptChunk if a cut finds that the bytes do not match their checksum.
        """

    def begin(self) -> None:
        """Begin what was asked for, now if that is good: tickets may settle meanwhile. All is there that is to be
        written together.
        """

    def begin_soon(self) -> None:
        """Begin what was asked for when all tasks that are to run have had their turn."""

    def after_settling(self, callback: Callable[[], None]) -> bool:
        """Call back once all tickets that settle together have settled. False: none settles now, no call follows."""

    async def load(self, load: Load) -> Loaded:
        """Read entries. Raises CorruptChunk, UnknownTopicOrPartition (no such chunk), OSError."""

    def local(self, stream: str, epoch: int) -> Stream | None:
        """The local store's stream with a chunk's records, at their offsets; None if there is none here."""


class Answering(Enum):
    """Who answers a read of a chunk at present, of the hosts that have it."""

    AT_ONCE = "at once"
    LATE = "late"
    """Those that can be reached let readers wait."""
    NOBODY = "nobody"
    """None can be reached."""


class StreamOwners(Protocol):
    """What a stream needs of its host (`logstore.cluster.host`)."""

    def may_append(self, stream: str, size_bytes: int, /) -> bool:
        """Whether `append` takes a batch of this size now."""

    def append(self, stream: str, data: bytes, record_count: int, /) -> int:
        """Append a batch, at `next_offset`, which is returned."""

    def next_offset(self, stream: str, /) -> int:
        """The offset of the next batch."""

    def is_claimed(self, stream: str, /) -> bool:
        """Whether this host owns the stream, or is about to."""

    def trim(self, stream: str, log_start: int, /, *, keeps_last: bool) -> None:
        """Trim the stream's front. Raises NotLeader."""

    def roll(self, stream: str, /) -> None:
        """Seal the open chunk, and open the next one. Raises NotLeader."""

    def reconfigure(self, stream: str, chunk_bytes: int, /) -> None:
        """The topic's settings have changed; chunks are full at this size."""

    def acked(self, stream: str, /) -> Prefix:
        """How much of the open chunk is acknowledged. Raises NotLeader."""

    def registration(self, stream: str, /) -> StreamRegistration:
        """The registration of a stream that this host owns. Raises NotLeader."""

    async def read_entries(self, stream: str, chunk: ChunkRegistration, offset: int, max_bytes: int, /) -> EntriesRead:
        """Read a chunk's batches from any of its members."""

    async def acknowledged_end(self, stream: str, chunk: ChunkRegistration, offset: int, /) -> int | None:
        """Up to where a member knows a chunk to be acknowledged that has the offset; None: no member answers now."""

    def answering(self, chunk: ChunkRegistration, /) -> Answering:
        """Who answers at present of the hosts that have a chunk."""


class StreamObserver(Protocol):
    """Hears of one stream while this host owns it."""

    @property
    def name(self) -> str:
        """TOPIC-PARTITION, as clients know the stream."""

    def founding(self, base_offset: int) -> bytes:
        """The producers' last sequences as of an offset where everything in front is acknowledged, as bytes that
        `logstore.format.snapshot` reads; asked when the first batch of a chunk is sent.
        """

    @property
    def chunk_bytes(self) -> int:
        """The size at which a chunk is full."""

    def written_ms(self) -> int:
        """When the last batch was appended, or later, on the cluster's retention clock; asked to seal a chunk."""

    def registered(self, registration: StreamRegistration) -> None:
        """The registration of the owned stream has changed: a chunk was rolled or copied, or the front was trimmed."""

    def ready(self, epoch: int, high_watermark: int) -> None:
        """This host owns the stream, and takes appends from this offset on."""

    def readable(self, epoch: int, end: int, *, is_settled: bool) -> None:
        """This host owns the stream, takes no appends yet, and serves readers: see `Readable`. `short` follows."""

    def acked(self, high_watermark: int) -> None:
        """All batches below are acknowledged. There may be room for more appends."""

    def room(self) -> None:
        """Batches that were not taken may be offered again: called behind `acked` if one was refused since."""

    def deposed(self, newer_epoch: int) -> None:
        """Another host owns the stream; what is not acknowledged has an unknown fate."""

    def unavailable(self, reason: str) -> None:
        """The stream waits, for this reason."""

    def short(self, needed: int) -> None:
        """The stream has fewer than `needed` members, since longer than a failover takes."""

    def enough(self) -> None:
        """It has enough again."""

    def crowded(self) -> None:
        """A member has refused batches, because its disk has no room: what may go should go now. If other hosts live,
        `registered` follows with a chunk that has other members.
        """
