"""Removes what is left of waits for chunks that nobody can read (`takeover_waits`), and operators' words on them, when
their reason is gone: nobody is to go on without a chunk because of what was said of an earlier loss of it.

Invariants:
* The owner of a stream removes entries of its stream, and nobody else, while it leads; under the head that names it.
* What an operator has said is kept while it is needed and the chunk cannot be read. A takeover needs a chunk until a
  record is acknowledged behind it; an epoch while one is under way that was decided in front of the chunk's end, as the
  home of epochs says. What is not known, because somebody does not answer, is kept.
* Nothing is removed that is waited for now, but for what an earlier owner has left.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

import trio

from logstore.base.metadata import schema
from logstore.base.metadata.interface import Condition, Delete, Entry, MetadataStore, Transaction
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.takeover_waits import TakeoverWaits
from logstore.errors import CairnError
from logstore.log.scanning import TakeEnd
from logstore.replica.registrations import ChunkRegistration, decode_head
from logstore.replica.stored_registrations import head_key

TIDY_S: Final = 300.0
"""Between two looks: one page of the metadata store, and one try to read each chunk of which an operator has said
something.
"""


class ProducerReads(Protocol):
    """Reads what takeovers need of a chunk (`chunk_reads`)."""

    async def read_producers(self, stream: ReplicatedStream, chunk: ChunkRegistration, /) -> None:
        """Raises CairnError or OSError if it cannot be read."""


class EndReads(Protocol):
    """Reads what searches for epochs need (`logstore.cluster.engine`)."""

    async def find_ends(
        self, stream: ReplicatedStream, from_offset: int, before_offset: int, /, *, take: TakeEnd
    ) -> None:
        """Raises CairnError or OSError if it cannot be read."""


class HeldByEpochs(Protocol):
    """Knows what epochs under way hold (`logstore.cluster.epochs.epoch_holds`)."""

    async def trim_limit(self, stream: ReplicatedStream, wanted: int, /) -> int:
        """The offset from which on epochs under way may need a stream, at most `wanted`. Raises CairnError."""


class WaitTidying:
    """See the module. `streams`: all that this host knows."""

    def __init__(
        self,
        metadata: MetadataStore,
        streams: Callable[[], Iterable[ReplicatedStream]],
        producers: ProducerReads,
        ends: EndReads,
        epochs: HeldByEpochs,
        waits: TakeoverWaits,
    ) -> None:
        self._metadata = metadata
        self._streams = streams
        self._producers = producers
        self._ends = ends
        self._epochs = epochs
        self._waits = waits

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await trio.sleep(TIDY_S)
            try:
                await self.round()
            except CairnError:
                continue  # the metadata store reports that it is away

    async def round(self) -> None:
        """Look at all entries once. Raises MetadataError."""
        after, more = "", True
        while more:
            page = await self._metadata.page(schema.WAITS, after=after)
            led = {stream.stream: stream for stream in self._streams() if stream.is_leader} if page.entries else {}
            for entry in page.entries:
                stream = led.get(schema.wait_place(entry.key)[0])
                if stream is not None:
                    await self._look_at(stream, entry)
            after, more = page.entries[-1].key if page.entries else "", page.more

    async def _look_at(self, stream: ReplicatedStream, entry: Entry) -> None:
        try:
            if await self._is_over(stream, entry):
                await self._remove(stream, entry)
        except (CairnError, OSError):
            return  # the chunk cannot be read, or it is not known whether it is needed: the next round looks again

    async def _is_over(self, stream: ReplicatedStream, entry: Entry) -> bool:
        """Whether the reason of an entry is gone. Raises CairnError, OSError: no, or it is not known."""
        _, epoch = schema.wait_place(entry.key)
        chunk = None if epoch is None else stream.registration.chunk(epoch)
        if chunk is None or chunk.end is None:
            return True  # the chunk was trimmed, or a host of an earlier version has put it, which named no chunk
        if self._waits.is_waited_for(stream, chunk):
            return False
        wait, end_offset = schema.decode(schema.Wait, entry), chunk.end.next_offset
        if wait.forgotten and stream.high_watermark <= end_offset:
            await self._producers.read_producers(stream, chunk)
        if wait.is_said and await self._epochs.trim_limit(stream, end_offset) < end_offset:
            await self._ends.find_ends(stream, chunk.base_offset, end_offset, take=_pass_over)
        return True

    async def _remove(self, stream: ReplicatedStream, entry: Entry) -> None:
        head = (await self._metadata.get(head_key(stream.stream))).entry
        if head is None or decode_head(head.value).owner != stream.registration.owner:
            return
        conditions = (Condition(entry.key, entry.revision), Condition(head.key, head.revision))
        await self._metadata.commit(Transaction(conditions, (Delete(entry.key),)))


def _pass_over(_: int, __: bytes) -> None:
    """An END that is there."""
