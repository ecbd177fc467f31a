"""Registrations of many streams at a time: of all streams with a replica here when a host starts, and of all streams of
a topic that is gone. One by one, each would cost a request of the metadata store.

Invariants:
* What is found is what reads of single streams would find. A registration counts if its head has not changed while the
  entries of its chunks were read. A stream counts as gone if nothing of its whole topic is registered, and the topic is
  not known here, and the metadata store is still that of this cluster.
* What is not found so is asked for one by one (`registration_requests`): what changes meanwhile, what cannot be
  decoded, all of it if the metadata store is away.
* Bounded: MAX_ENTRIES chunks are read at a time, in pages; streams behind them are asked for one by one.

Costs: a request for 256 streams of the cluster, and one for 256 sealed chunks of the cluster; two for a topic that is
gone.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final

import trio

from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataError
from logstore.base.metadata.interface import ABSENT, Entry, MetadataStore, end_of_prefix
from logstore.cluster.members.view import topic_id_of
from logstore.cluster.streams.registration_requests import RegistrationRequests
from logstore.errors import CorruptRegister, UnknownFormatVersion
from logstore.replica.register import ReadRegistration, RegistrationRead
from logstore.replica.registrations import HEAD, ChunkRegistration, decode_registration, decode_sealed_chunk
from logstore.replica.stored_registrations import KEPT_CHUNKS, chunks_prefix

FEW: Final = 50
"""So many streams are asked for one by one: a cluster may have many chunks of others."""
MAX_ENTRIES: Final = KEPT_CHUNKS
"""256 pages: two seconds or so."""
ANSWERS_AT_ONCE: Final = 25
"""Given before other tasks run: a millisecond or two."""


Find = Callable[[Collection[str]], Awaitable[Sequence[RegistrationRead]]]


class ManyRegistrations:
    """See the module. `answered` takes what is found; `is_known` says whether a stream's topic is known here. `run`
    must run.
    """

    def __init__(
        self,
        store: MetadataStore,
        requests: RegistrationRequests,
        answered: Callable[[RegistrationRead], None],
        is_known: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._requests = requests
        self._answered = answered
        self._is_known = is_known
        self._wanted: dict[str, None] = {}
        self._gone: dict[str, dict[str, None]] = {}
        """Streams whose topic is not known here, by its id."""
        self._asked = trio.Event()

    def ask_all(self, streams: Iterable[str]) -> None:
        """Find the registrations of all these streams."""
        wanted = list(dict.fromkeys(streams))
        for stream in wanted:
            if not self._is_known(stream):
                self.ask(stream)
            elif len(wanted) > FEW:
                self._wanted[stream] = None
            else:
                self._requests.ask(ReadRegistration(stream))
        self._asked.set()

    def ask(self, stream: str, revision: int = 0) -> None:
        """Find the registration of a stream, which may be gone with its topic, of a revision at least."""
        if self._is_known(stream):
            self._requests.ask(ReadRegistration(stream, revision))
        else:
            self._gone.setdefault(topic_id_of(stream), {})[stream] = None
            self._asked.set()

    async def run(self) -> None:
        """Find what is asked for, until cancelled."""
        while True:
            if not (self._wanted or self._gone):
                self._asked = trio.Event()
                await self._asked.wait()
            if self._wanted:
                wanted, self._wanted = self._wanted, {}
                await self._find(wanted, self._registered)
            if self._gone:
                await self._find(self._gone.pop(next(iter(self._gone))), self._unregistered)

    async def _find(self, streams: Collection[str], find: Find) -> None:
        """Answer what is found of streams, and ask for the others one by one."""
        left = dict.fromkeys(streams)
        try:
            for number, found in enumerate(await find(streams), 1):
                del left[found.stream]
                self._answered(self._requests.registrations.keep_newest(found))
                if number % ANSWERS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
        except MetadataError:
            pass  # reads of single streams wait for the store, or say what is wrong
        for stream in left:
            self._requests.ask(ReadRegistration(stream))

    async def _registered(self, wanted: Collection[str]) -> Sequence[RegistrationRead]:
        """Registrations of streams, without those that change meanwhile. Raises MetadataError."""
        heads: dict[str, Entry] = {}
        chunks: dict[str, dict[str, bytes | ChunkRegistration]] = {}
        changed: set[str] = set()

        def take_head(entry: Entry) -> None:
            stream = entry.key.removeprefix(schema.STREAMS)
            if stream in wanted:
                heads[stream] = entry

        def take_chunk(entry: Entry) -> None:
            stream, _, name = entry.key.removeprefix(schema.CHUNKS).rpartition("/")
            if stream in heads:
                try:
                    chunks.setdefault(stream, {})[name] = decode_sealed_chunk(entry.value)
                except (CorruptRegister, UnknownFormatVersion):
                    changed.add(stream)

        first, _ = await self._read(schema.STREAMS, take_head)
        _, read_to = await self._read(schema.CHUNKS, take_chunk, most=MAX_ENTRIES)
        await self._read(
            schema.STREAMS, lambda entry: changed.add(entry.key.removeprefix(schema.STREAMS)), newer_than=first
        )
        found = []
        for number, (stream, head) in enumerate(heads.items(), 1):
            if stream in changed or end_of_prefix(chunks_prefix(stream)) > read_to:
                continue
            try:
                registration = decode_registration({HEAD: head.value, **chunks.get(stream, {})})
            except (CorruptRegister, UnknownFormatVersion):
                continue
            found.append(RegistrationRead(stream, head.revision, registration))
            if number % ANSWERS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return found

    async def _read(
        self, prefix: str, take: Callable[[Entry], None], *, newer_than: int = 0, most: int | None = None
    ) -> tuple[int, str]:
        """Take the entries under a prefix, page by page, until `most` are there; returns the revision of the first
        page, and the key before which everything was taken. Raises MetadataError.
        """
        page = await self._store.page(prefix, newer_than=newer_than)
        first, taken = page.revision, 0
        while True:
            for entry in page.entries:
                take(entry)
            taken += len(page.entries)
            if not page.more:
                return first, end_of_prefix(prefix)
            if most is not None and taken >= most:
                return first, page.entries[-1].key
            page = await self._store.page(prefix, after=page.entries[-1].key, newer_than=newer_than)

    async def _unregistered(self, streams: Collection[str]) -> Sequence[RegistrationRead]:
        """The streams of a topic, if nothing of it is registered. Raises MetadataError."""
        topic_id = topic_id_of(next(iter(streams)))
        for prefix in (schema.STREAMS, schema.CHUNKS):
            page = await self._store.page(f"{prefix}{topic_id}/", limit=1, beside=schema.CLUSTER_KEY)
            if page.entries:
                return []
            self._requests.registrations.check_cluster(page.beside)
        return [RegistrationRead(stream, ABSENT, None) for stream in streams]
