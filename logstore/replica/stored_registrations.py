"""Registrations in a metadata store: carries out the requests of `register`, and waits for the store.

A stream, which is named `TOPIC-ID/PARTITION`, has its head at `streams/TOPIC-ID/PARTITION` and each sealed chunk at
`chunks/TOPIC-ID/PARTITION/BASE-OFFSET`. docs/format.md has the bytes.

Invariants:
* A swap is one transaction on the condition that the head is as it was read. It writes the head always and the chunks'
  entries that change, at most MAX_CHANGED_CHUNKS; a swap that changes more is refused before anything is written.
* So the head's revision covers all entries: entries of chunks that were read together with a head, in one page or in
  several pages with the same head, belong to that head. A reader that finds two heads reads again; entries that do not
  match their head raise CorruptRegister. A damaged or missing entry never counts as a removed chunk.
* A stream has no registration only if the store is still that of this cluster: hosts remove what they have of streams
  that are gone. A store that was emptied, or is another one, raises MetadataDamaged.
* A swap whose answer was lost is sent again with the same condition, so it takes effect at most once. The whole
  registration shows whether it took effect, not the head: naming a copy changes only a chunk's entry.
* Registrations are cached by revision, up to KEPT_CHUNKS, so that a swap needs no read. A stream never has two
  registrations with the same revision.
* Requests for several streams can be one call (`swap_together`, `read_unchanged`, `read_changed`). Each swap in such a
  transaction has its own condition, and an unknown outcome is settled as for a single swap. A transaction whose answer
  was lost may take effect later, but only if every condition in it still holds, so it never swaps in a stream that has
  changed.
"""

import re
from collections.abc import Sequence
from typing import Final

from logstore.base.metadata.errors import InvalidMetadataCall, MetadataUnavailable, OutcomeUnknown
from logstore.base.metadata.interface import (
    ABSENT,
    MAX_CHANGES,
    MAX_CONDITIONS,
    MAX_PAGE_ENTRIES,
    Change,
    Committed,
    Condition,
    ConditionFailed,
    Delete,
    Entry,
    MetadataStore,
    Put,
    Transaction,
    WantedPage,
)
from logstore.base.metadata.schema import CHUNKS, CLUSTER_KEY, STREAMS, check_cluster
from logstore.errors import CorruptRegister, UnknownFormatVersion
from logstore.replica.register import ReadRegistration, RegistrationRead, SwapAnswer, SwapRegistration
from logstore.replica.registrations import (
    HEAD,
    MAX_CHUNKS,
    SPARE_CHUNKS,
    ChunkRegistration,
    Entries,
    StreamRegistration,
    changed_entries,
    decode_changes,
    decode_registration,
    decode_sealed_chunk,
    encode_registration,
)

MAX_CHANGED_CHUNKS: Final = MAX_CHANGES - 1
"""Of one swap; a transaction has the head too. A roll changes one chunk, a copy one, a trim as many as it drops."""
MOST_CHUNKS: Final = MAX_CHUNKS + SPARE_CHUNKS + 1
"""With an open one behind all spare ones, which takes no batches."""
READ_TRIES: Final = 8
"""A head changes a few times in a second at most, and a read takes milliseconds."""
SWAP_TRIES: Final = 3
"""While answers are lost, each try takes as long as the store waits for an answer."""
KEPT_CHUNKS: Final = 4 * MAX_CHUNKS
"""64 MB at most; a stream counts for one more than its chunks."""
_STREAM: Final = re.compile(r"[A-Za-z0-9._-]{1,64}/[0-9]{1,5}")


def head_key(stream: str) -> str:
    """The key of a stream's head. Raises InvalidMetadataCall."""
    if not _STREAM.fullmatch(stream):
        raise InvalidMetadataCall(f"stream {stream[:80]!r}: must be TOPIC-ID/PARTITION")
    return f"{STREAMS}{stream}"


def chunks_prefix(stream: str) -> str:
    """The prefix of a stream's sealed chunks, whose keys are in the order of their offsets."""
    return f"{CHUNKS}{stream}/"


def swap_transaction(before: StreamRegistration | None, swap: SwapRegistration) -> Transaction:
    """What a swap writes if the register is still `before`, None if it was never written.

    Raises InvalidMetadataCall for a change that no single transaction holds, AssertionError for a broken invariant.
    """
    after = swap.registration
    after.check(before)
    if len(after.chunks) > MOST_CHUNKS:
        raise InvalidMetadataCall(f"{swap.stream}: {len(after.chunks)} chunks, at most {MOST_CHUNKS} are kept; trim it")
    written, removed = (encode_registration(after), []) if before is None else changed_entries(before, after)
    key, prefix = head_key(swap.stream), chunks_prefix(swap.stream)
    changes: list[Change] = [Put(key, written.pop(HEAD))]
    changes += [Put(prefix + name, value) for name, value in written.items()]
    changes += [Delete(prefix + name) for name in removed]
    if len(changes) > MAX_CHANGES:
        raise InvalidMetadataCall(
            f"{swap.stream}: a swap changes {len(changes) - 1} sealed chunks, at most {MAX_CHANGED_CHUNKS} are taken; "
            "change them in several swaps"
        )
    return Transaction((Condition(key, swap.expected_revision),), tuple(changes))


class StoredRegistrations:
    """The registers of all streams in a metadata store.

    Methods raise what `MetadataStore`'s do; CorruptRegister and UnknownFormatVersion with the stream's name.
    """

    def __init__(self, store: MetadataStore, cluster_id: str = "") -> None:
        """`cluster_id`: whose the store must be where it lacks a registration; empty: whosever it is."""
        self._store = store
        self._cluster_id = cluster_id
        self._kept: dict[str, RegistrationRead] = {}
        self._kept_chunks = 0

    def known(self, stream: str) -> RegistrationRead | None:
        """The newest registration of a stream that this object has seen and kept; it may be old."""
        return self._kept.get(stream)

    def check_cluster(self, found: Entry | None) -> None:
        """Take the entry of CLUSTER_KEY, or None. Raises MetadataDamaged if the store is not this cluster's: then
        nothing is known to be gone.
        """
        if self._cluster_id:
            check_cluster(found, self._cluster_id)

    def keep_newest(self, read: RegistrationRead) -> RegistrationRead:
        """Keep what was read of a stream otherwise, unless something newer is kept; returns the newer one."""
        known = self._kept.get(read.stream)
        if read.registration is not None and known is not None and known.revision > read.revision:
            return known
        return self._keep(read)

    async def create(self, stream: str, first: StreamRegistration, topic: Condition) -> bool:
        """Write the first registration of a stream, if it has none and its topic's entry is as it was seen. Returns
        whether that was done, now or in an attempt whose answer was lost.
        """
        key = head_key(stream)
        entries = encode_registration(first)
        made = Transaction((Condition(key, ABSENT), topic), (Put(key, entries[HEAD]),))
        outcome = await self._store.commit(made)
        if isinstance(outcome, Committed):
            self._keep(RegistrationRead(stream, outcome.revision, first))
            return True
        return outcome.found[0] is not None

    async def read(self, request: ReadRegistration) -> RegistrationRead:
        """A stream's registration, as of now at every host: a read of the head if it is as it was kept, which is not
        tried if it has changed as the request says. Otherwise a page for 256 sealed chunks, or for 256 that have
        changed since the kept one, each with the head beside it.
        """
        stream, key, known = request.stream, head_key(request.stream), self._kept.get(request.stream)
        if known is not None and known.registration is None:
            known = None
        if known is not None and known.revision >= request.revision:
            if (await self._store.get(key)).entry_revision == known.revision:
                return known
        for _ in range(READ_TRIES):
            entries, head = await self._entries(stream, 0 if known is None else known.revision)
            revision = ABSENT if head is None else head.revision
            if entries is None:
                continue  # the head has changed between two pages
            if known is None:
                read = _decoded(stream, revision, entries)
                if read.registration is None and self._cluster_id:
                    self.check_cluster((await self._store.get(CLUSTER_KEY)).entry)
                return self._keep(read)
            if revision == known.revision:
                return known
            found = _changed(known, revision, entries) if revision > known.revision else None
            if found is not None:
                return self._keep(found)
            known = None  # it does not follow from what was kept: read everything
        raise MetadataUnavailable(f"{stream}: its head changed during {READ_TRIES} reads of its chunks; read it again")

    def is_kept(self, request: ReadRegistration) -> bool:
        """Whether a registration is kept that may be the newest one, as far as whoever asks has heard."""
        return self.keeps(request.stream) and self._kept[request.stream].revision >= request.revision

    def keeps(self, stream: str) -> bool:
        """Whether a registration of the stream is kept."""
        known = self._kept.get(stream)
        return known is not None and known.registration is not None

    async def read_unchanged(self, requests: Sequence[ReadRegistration]) -> list[RegistrationRead]:
        """The registrations of different streams that are as they were kept, as of one moment: one call. The others
        are to be read alone.
        """
        kept = [self._kept[request.stream] for request in requests if self.keeps(request.stream)]
        conditions = tuple(Condition(head_key(known.stream), known.revision) for known in kept)
        outcome = await self._store.commit(Transaction(conditions, ()))
        if isinstance(outcome, Committed):
            return kept
        found = zip(kept, outcome.found, strict=True)
        return [known for known, entry in found if entry is not None and entry.revision == known.revision]

    async def read_changed(self, requests: Sequence[ReadRegistration]) -> list[RegistrationRead]:
        """The registrations of different streams, by what has changed since they were kept, or by all entries of those
        that are not, as of one moment: one call. Those that are missing are to be read alone.
        """
        kept = [self._kept[each.stream] if self.keeps(each.stream) else None for each in requests]
        since = [0 if known is None else known.revision for known in kept]
        limit = MAX_PAGE_ENTRIES // max(1, len(requests))
        wanted = [
            WantedPage(chunks_prefix(each.stream), "", limit, revision, head_key(each.stream))
            for each, revision in zip(requests, since, strict=True)
        ]
        found: list[RegistrationRead] = []
        for request, known, page in zip(requests, kept, await self._store.pages(wanted), strict=True):
            if page.beside is None or page.more:
                continue
            if known is not None and page.beside.revision == known.revision:
                found.append(known)
                continue
            prefix = chunks_prefix(request.stream)
            entries = {entry.key.removeprefix(prefix): entry.value for entry in page.entries}
            entries[HEAD] = page.beside.value
            try:
                read = _decoded_since(request.stream, known, page.beside.revision, entries)
            except (CorruptRegister, UnknownFormatVersion):
                continue  # a read says so when it is made alone
            if read is not None:
                found.append(self.keep_newest(read))
        return found

    async def swap_together(self, requests: Sequence[SwapRegistration]) -> list[SwapAnswer]:
        """Swaps of different streams in one transaction, as many as fit; returns the answers of those that were made.
        The others are to be made alone: all of them, if the condition of a single one does not hold.

        OutcomeUnknown, or cancelled: each of them was made, or not, or will be, whatever became of the others.
        """
        chosen: list[SwapRegistration] = []
        conditions: tuple[Condition, ...] = ()
        changes: tuple[Change, ...] = ()
        for request in requests:
            known = self._kept.get(request.stream)
            if known is None or known.revision != request.expected_revision:
                continue
            try:
                made = swap_transaction(known.registration, request)
            except InvalidMetadataCall:
                continue  # it says so when it is made alone
            if len(changes) + len(made.changes) <= MAX_CHANGES and len(conditions) < MAX_CONDITIONS:
                chosen.append(request)
                conditions, changes = conditions + made.conditions, changes + made.changes
        if not chosen:
            return []
        outcome = await self._commit(chosen[0].stream, Transaction(conditions, changes))
        if not isinstance(outcome, Committed):
            return []
        made_now = [RegistrationRead(each.stream, outcome.revision, each.registration) for each in chosen]
        return [_answer(request, self._keep(read)) for request, read in zip(chosen, made_now, strict=True)]

    async def swap(self, request: SwapRegistration) -> SwapAnswer:
        """Write a registration if its revision is the expected one: one transaction if this object knows that revision.

        OutcomeUnknown, or cancelled: it was made, or not, or will be. The same call again settles it.
        """
        known = self._kept.get(request.stream)
        if known is None or known.revision != request.expected_revision:
            known = await self.read(ReadRegistration(request.stream))
            if known.revision != request.expected_revision:
                return _answer(request, known)
        outcome = await self._commit(request.stream, swap_transaction(known.registration, request))
        if isinstance(outcome, Committed):
            known = self._keep(RegistrationRead(request.stream, outcome.revision, request.registration))
        else:
            known = await self._read_after_conflict(request)
        return _answer(request, known)

    # ---- details

    async def _commit(self, stream: str, transaction: Transaction) -> Committed | ConditionFailed:
        """Make a transaction of a stream, and perhaps others, again if the answer is lost."""
        for tries in range(1, SWAP_TRIES + 1):
            try:
                return await self._store.commit(transaction)
            except OutcomeUnknown:
                if tries == SWAP_TRIES:
                    raise
            except MetadataUnavailable as error:
                if tries == 1:
                    raise
                raise _unknown(stream, error) from error
        raise AssertionError("the last try returns or raises")

    async def _read_after_conflict(self, request: SwapRegistration) -> RegistrationRead:
        """What is there instead. A lost answer and a store that is away leave the outcome unknown."""
        try:
            return await self.read(ReadRegistration(request.stream))
        except MetadataUnavailable as error:
            raise _unknown(request.stream, error) from error

    async def _entries(self, stream: str, newer_than: int) -> tuple[Entries | None, Entry | None]:
        """The sealed chunks whose entries have revisions above one, by name, with the head, and the head's entry; None
        if the head has changed meanwhile. Each page is decoded when it comes, so other tasks run in between.

        Raises CorruptRegister, also if a stream may not have so many.
        """
        prefix, key = chunks_prefix(stream), head_key(stream)
        entries: dict[str, bytes | ChunkRegistration] = {}
        after, more, head = "", True, None
        while more:
            page = await self._store.page(prefix, after=after, newer_than=newer_than, beside=key)
            if after and page.beside != head:
                return None, page.beside
            head = page.beside
            for entry in page.entries:
                entries[entry.key.removeprefix(prefix)] = _decoded_chunk(stream, entry)
            if len(entries) > MOST_CHUNKS:
                raise CorruptRegister(f"{stream}: more than {MOST_CHUNKS} sealed chunks below {prefix!r}; restore it")
            more = page.more
            after = page.entries[-1].key if page.entries else ""
        if head is not None:
            entries[HEAD] = head.value
        return entries, head

    def _keep(self, read: RegistrationRead) -> RegistrationRead:
        """Keep the newest of a stream; the streams that were asked for longest ago go."""
        known = self._kept.pop(read.stream, None)
        self._kept_chunks -= _weight(known)
        self._kept[read.stream] = read
        self._kept_chunks += _weight(read)
        while self._kept_chunks > KEPT_CHUNKS and len(self._kept) > 1:
            self._kept_chunks -= _weight(self._kept.pop(next(iter(self._kept))))
        return read


def _weight(read: RegistrationRead | None) -> int:
    return 0 if read is None else 1 + (0 if read.registration is None else len(read.registration.chunks))


def _answer(request: SwapRegistration, known: RegistrationRead) -> SwapAnswer:
    """No two owners ever write the same registration, so an equal one was written by this request."""
    is_done = known.registration == request.registration
    return SwapAnswer(request.stream, request.expected_revision, is_done, known.revision, known.registration)


def _unknown(stream: str, error: MetadataUnavailable) -> OutcomeUnknown:
    return OutcomeUnknown(f"{stream}: it is not known whether a swap was made ({error}); ask for it again")


def _decoded_chunk(stream: str, entry: Entry) -> ChunkRegistration:
    try:
        return decode_sealed_chunk(entry.value)
    except (CorruptRegister, UnknownFormatVersion) as error:
        raise type(error)(f"stream {stream}: {entry.key}: {error}") from error


def _changed(known: RegistrationRead, revision: int, entries: Entries) -> RegistrationRead | None:
    """A registration that follows from a kept one; None if it does not, or is gone."""
    if known.registration is None or HEAD not in entries:
        return None
    registration = decode_changes(known.registration, entries)
    return None if registration is None else RegistrationRead(known.stream, revision, registration)


def _decoded_since(
    stream: str, known: RegistrationRead | None, revision: int, entries: Entries
) -> RegistrationRead | None:
    """A registration by the entries that are newer than a kept one; None if it does not follow from that."""
    if known is None:
        return _decoded(stream, revision, entries)
    return _changed(known, revision, entries) if revision > known.revision else None


def _decoded(stream: str, revision: int, entries: Entries) -> RegistrationRead:
    if revision == ABSENT and not entries:
        return RegistrationRead(stream, ABSENT, None)
    try:
        return RegistrationRead(stream, revision, decode_registration(entries))
    except (CorruptRegister, UnknownFormatVersion) as error:
        raise type(error)(f"stream {stream}: {error}") from error
