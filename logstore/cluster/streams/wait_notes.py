"""What operators see of takeovers and epochs that wait for a chunk, and may change of them (`takeover_waits`).

Invariants:
* An entry counts while the host that wrote it, in its life, owns the stream, and until an operator has ended the wait.
* What an operator says is for the stream and the chunk that were named, and for nothing else. It is put on the
  condition that neither the entry nor the head of the registration has changed since it was looked at: if the takeover
  has gone on, nothing is changed.
* It is refused where nothing is lost, unless the operator has said that this is known: of a takeover, that whoever has
  the chunk may come back; of an epoch, that it may be in the stream twice then.
* This owns nothing, and any host has all of it.
"""

from dataclasses import replace
from typing import Final

from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataDamaged
from logstore.base.metadata.interface import Committed, Condition, MetadataStore, Put, Transaction
from logstore.cluster.members.view import ClusterView, stream_name
from logstore.cluster.streams.takeover_waits import NOTE_AFTER_S, owner_of
from logstore.errors import NothingLost, TryAgain, UnknownTopicOrPartition
from logstore.replica.registrations import decode_head
from logstore.replica.stored_registrations import head_key

TRIES: Final = 8
MAX_NAMED: Final = 20
"""Streams that wait and are named in one answer."""


class WaitNotes:
    """See the module."""

    def __init__(self, metadata: MetadataStore, view: ClusterView) -> None:
        self._metadata = metadata
        self._view = view

    async def of_topic(self, topic_id: str) -> dict[int, list[schema.Wait]]:
        """What waits in the partitions of a topic, by partition: a takeover first, then epochs, by their chunks. Raises
        MetadataError.
        """
        found = await self._current(f"{schema.WAITS}{topic_id}/")
        return {
            int(stream.rpartition("/")[2]): sorted(waits, key=lambda wait: (wait.is_for_epoch, wait.chunk))
            for stream, waits in found.items()
        }

    async def names(self) -> tuple[str, ...]:
        """Streams in which something waits, the first MAX_NAMED. Raises MetadataError."""
        named = []
        for stream in await self._current(schema.WAITS):
            topic_id, _, partition = stream.partition("/")
            named.append(f"{self._view.names.get(topic_id, topic_id)}-{partition}")
        return tuple(sorted(named)[:MAX_NAMED])

    async def _current(self, prefix: str) -> dict[str, list[schema.Wait]]:
        """The waits that count, by stream; entries that cannot be read are left out."""
        found: dict[str, list[schema.Wait]] = {}
        after, more = "", True
        while more:
            page = await self._metadata.page(prefix, after=after)
            for entry in page.entries:
                stream, chunk = schema.wait_place(entry.key)
                known = self._view.heads.get(stream)
                try:
                    wait = schema.decode(schema.Wait, entry)
                except MetadataDamaged:
                    continue
                is_current = known is not None and known.head.owner == owner_of(wait) and wait.chunk == chunk
                if is_current and not (wait.ended or wait.is_let_go):
                    found.setdefault(stream, []).append(wait)
            after, more = page.entries[-1].key if page.entries else "", page.more
        return found

    async def forget(
        self, topic: str, partition: int, chunk: int, *, even_if_away: bool, repeat_epochs: bool
    ) -> schema.Wait:
        """Let what waits in a stream for the chunk of an epoch go on without it; returns what waited. `even_if_away`: a
        takeover also if a host or a store that has the chunk may come back. `repeat_epochs`: epochs as well, which are
        in the stream twice if the chunk has them and comes back. May be asked again.

        Raises UnknownTopicOrPartition, NothingLost, TryAgain, MetadataError, CorruptRegister, UnknownFormatVersion.
        """
        known, name = self._view.topics.get(topic), f"{topic[:80]}-{partition}"
        if known is None or not 0 <= partition < known.topic.partitions:
            raise UnknownTopicOrPartition(f"there is no partition {name}")
        stream = stream_name(known.topic.topic_id, partition)
        key, head = schema.wait_key(stream, chunk), head_key(stream)
        for _ in range(TRIES):
            entry, head_entry = (await self._metadata.get(key)).entry, (await self._metadata.get(head)).entry
            wait = None if entry is None else schema.decode(schema.Wait, entry)
            if entry is None or wait is None or head_entry is None:
                raise _nothing_lost(name, chunk)
            if decode_head(head_entry.value).owner != owner_of(wait):
                raise _nothing_lost(name, chunk)
            said = replace(
                wait,
                forgotten=wait.forgotten or not wait.is_for_epoch,
                repeat_epochs=wait.repeat_epochs or wait.is_for_epoch or repeat_epochs,
            )
            if said == wait:
                return wait
            if wait.ended:
                raise _nothing_lost(name, chunk)
            _check_said(name, wait, even_if_away=even_if_away, repeat_epochs=repeat_epochs)
            conditions = (Condition(key, entry.revision), Condition(head, head_entry.revision))
            put = Put(key, schema.encode(said))
            if isinstance(await self._metadata.commit(Transaction(conditions, (put,))), Committed):
                return wait
        raise TryAgain(f"{name}: its owner keeps changing; try again")


def _check_said(name: str, wait: schema.Wait, *, even_if_away: bool, repeat_epochs: bool) -> None:
    """Raise NothingLost if waiting loses nothing, and the operator has not said that this is known."""
    offsets = f"offsets {wait.first} to {wait.end - 1}, which may come back: {wait.error}; start their host, or"
    if wait.lost:
        return
    if wait.is_for_epoch and not repeat_epochs:
        raise NothingLost(
            f"epoch {wait.epoch} of query {wait.query!r} waits in {name} for {offsets} say --repeat-epochs, and it is "
            "in the stream twice if they have it"
        )
    if not (wait.is_for_epoch or even_if_away):
        raise NothingLost(f"{name} waits for {offsets} say --even-if-away")


def _nothing_lost(name: str, chunk: int) -> NothingLost:
    return NothingLost(
        f"neither a takeover of {name} nor an epoch has waited for {NOTE_AFTER_S:g} s for the chunk of epoch {chunk} "
        f"because it cannot be read; nothing was changed (`cairn topics describe {name.rpartition('-')[0]}`)"
    )
