"""Registered readers of a cluster: on the host that owns the topic of groups, all of them; on others, nothing.

They are entries of the same ledger as what groups have committed, which readers of a group follow. Who owns a stream
that is to be trimmed asks here how far (`logstore.cluster.epochs.reader_holds`).

Invariants:
* There are readers here only while this host owns the stream. Who asks is given up when that ends (`entered`): the next
  home has all that was durable, and every request may be asked again.
* A trim of a stream and a registration in it see each other: the registration holds from the moment when it is in
  memory, and is confirmed by the stream's owner behind that, who has finished its trims by then; a trim begins with a
  question to this host.
* An owner that wants to trim is answered only if the metadata store says, behind what was found, that this host has the
  readers: a home that was replaced does not know who has registered since. No entry is put for it: a trim makes room
  where there is none for entries.
* What is not known of streams that other hosts own counts as unlimited: who needs their bounds asks before (`known`).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import trio

from logstore.base.events import Report
from logstore.base.metadata.errors import MetadataError
from logstore.base.metadata.local_watch import ChangeSignal
from logstore.cluster.epochs.askers import Askers
from logstore.cluster.epochs.replicated_ledger import LedgerHome, ReplicatedLedger
from logstore.cluster.streams.owner_calls import HOLDERS, TRIM_LIMIT, CallServer, answered
from logstore.cluster.streams.topics import ClusterTopics
from logstore.errors import CairnError, NotLeader, TryAgain
from logstore.events import READER_RELEASED, READER_REMOVED
from logstore.format.fields import decode_fields, get_int, get_name, get_objects
from logstore.interfaces import Buffer
from logstore.log.readers import HeldRecords, HoldLimits, Readers, StreamBounds, StreamId
from logstore.log.ticket import Ticket

SAVE_S: Final = 2.0
"""How often acknowledgements are made durable, as on a host alone."""
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1

Committed = Callable[[str, StreamId], int | None]
"""What a group has committed of a stream."""


class ReadersHome:
    """See the module. `serve` runs beside the groups, with each ownership of their stream."""

    def __init__(
        self,
        topics: ClusterTopics,
        home: LedgerHome[ReplicatedLedger],
        limits: HoldLimits,
        served_ms: Callable[[], int],
        report: Report,
    ) -> None:
        self._topics = topics
        self._home = home
        self._limits = limits
        self._served_ms = served_ms
        self._report = report
        self._known: dict[StreamId, StreamBounds] = {}
        self._users: Counter[StreamId] = Counter()
        self._askers = Askers()
        self._changed = ChangeSignal()
        self._ledger: ReplicatedLedger | None = None
        self.readers: Readers | None = None
        """Of this ownership; None: this host does not own the stream, or has not read it yet."""

    # ---- who has them

    @property
    def stream(self) -> str | None:
        """The name of the stream; None: the topic is not there, and nobody is registered."""
        stream = self._home.stream
        return None if stream is None else stream.stream

    def made(self) -> bool:
        """Whether the topic is there; if it is not, it is being made."""
        return self._topics.groups_topic() is not None

    async def changed(self) -> None:
        """Wait until the readers are here, or no more."""
        await self._changed.wait()

    async def confirm(self, readers: Readers) -> bool:
        """Whether these are the readers for certain: an entry of the ledger is acknowledged that is put now.

        An owner that was replaced may not know it yet, and then has only what was true before.
        """
        ledger = self._ledger
        if self.readers is not readers or ledger is None:
            return False
        return await ledger.confirms()

    def entered(self) -> AbstractContextManager[trio.CancelScope]:
        """For whoever asks the readers: the scope is cancelled when they are here no more."""
        return self._askers.entered()

    # ---- an ownership

    async def serve(self, ledger: ReplicatedLedger, committed: Committed) -> None:
        """Have the readers of a ledger until cancelled."""
        readers = Readers(ledger, self._limits, self._served_ms, self._bounds)
        readers.reconcile()
        readers.follow(committed)
        self.readers, self._ledger = readers, ledger
        self._changed.notify()
        try:
            while True:
                await trio.sleep(SAVE_S)
                self._upkeep(readers)
        finally:
            self.readers = self._ledger = None
            self._askers.end_all()
            self._changed.notify()

    def _upkeep(self, readers: Readers) -> None:
        readers.reconcile()
        readers.save()
        for release in readers.take_releases():
            self._report(READER_RELEASED, **release._asdict())
        for name, removed in readers.remove_idle():
            removed.add_callback(lambda ticket, name=name: self._report_removal(name, ticket))  # type: ignore[misc]

    def _report_removal(self, name: str, removed: Ticket[bool]) -> None:
        if removed.error is None and removed.result():
            self._report(READER_REMOVED, reader=name, why="it held and acknowledged nothing for too long")

    def note_commits(self, group: str, offsets: Mapping[StreamId, int]) -> None:
        """What a group has committed: its readers follow."""
        if self.readers is not None:
            self.readers.note_commits(group, offsets)

    # ---- bounds of streams

    @contextmanager
    def known(self, bounds: Mapping[StreamId, StreamBounds]) -> Iterator[None]:
        """Have the readers see these bounds meanwhile."""
        self._known.update(bounds)
        self._users.update(bounds.keys())
        try:
            yield
        finally:
            for stream in bounds:
                self._users[stream] -= 1
                if not self._users[stream]:
                    del self._users[stream], self._known[stream]

    def learn(self, bounds: Mapping[StreamId, StreamBounds]) -> None:
        """The bounds of streams that are `known` have changed."""
        self._known.update({stream: found for stream, found in bounds.items() if stream in self._known})

    def _bounds(self, stream: StreamId) -> StreamBounds | None:
        found = self._topics.stream_of(stream.topic_id, stream.partition)
        if found is None:
            return None
        return self._known.get(stream) or StreamBounds(found.name, 0, _INT64_MAX)

    # ---- what owners of streams ask

    def answer_owners(self, calls: CallServer) -> None:
        """Serve calls of kind HOLDERS and TRIM_LIMIT from now on."""
        calls.handle(HOLDERS, self._holders)
        calls.handle(TRIM_LIMIT, self._trim_limit)

    def _here(self) -> Readers:
        if self.readers is None:
            raise NotLeader("this host does not have the readers of the cluster")
        return self.readers

    async def _confirm_here(self, readers: Readers) -> None:
        """Raise NotLeader or TryAgain unless these are the readers for certain."""
        try:
            is_owner = await self._home.is_owner_for_certain()
        except MetadataError as error:
            raise TryAgain(f"the metadata store does not say who has the readers of the cluster: {error}") from error
        if not is_owner or self.readers is not readers:
            raise NotLeader("this host no longer has the readers of the cluster")

    async def _holders(self, _: str, payload: memoryview) -> Sequence[Buffer]:
        async def find() -> Mapping[str, object]:
            fields, _ = decode_fields(payload)
            stream, log_start, wanted = _asked(fields)
            readers = self._here()
            positions = readers.holding_below(stream, log_start, wanted)
            await self._confirm_here(readers)
            return {"positions": positions}

        return await answered(find)

    async def _trim_limit(self, _: str, payload: memoryview) -> Sequence[Buffer]:
        async def find() -> Mapping[str, object]:
            readers = self._here()
            fields, _ = decode_fields(payload)
            stream, log_start, wanted = _asked(fields)
            known = {
                get_int(each, "position", 0, _INT64_MAX): HeldRecords(
                    get_int(each, "bytes", 0, _INT64_MAX), get_int(each, "written_ms", -1, _INT64_MAX)
                )
                for each in get_objects(fields, "held")
            }
            # A position that has moved since keeps less than was said of any: it is late another time.
            nothing = HeldRecords(0, self._served_ms())
            limit = readers.trim_limit(stream, log_start, wanted, lambda position: known.get(position, nothing))
            if readers.has_releases:
                for saved in readers.save():
                    await _settled(saved)
            await self._confirm_here(readers)
            return {"limit": limit}

        return await answered(find)


def _asked(fields: Mapping[str, object]) -> tuple[StreamId, int, int]:
    stream = StreamId(get_name(fields, "topic_id"), get_int(fields, "partition", 0, _INT32_MAX))
    return stream, get_int(fields, "log_start", 0, _INT64_MAX), get_int(fields, "wanted", 0, _INT64_MAX)


async def _settled(ticket: Ticket[None]) -> None:
    done = trio.Event()
    ticket.add_callback(lambda _: done.set())
    await done.wait()
    if isinstance(ticket.error, CairnError):
        raise ticket.error
