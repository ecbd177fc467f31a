"""Hosts that an operator drains, removes, or keeps after all: what is written down of it, and what speaks against it.

An entry of the metadata store says that a host is to hold nothing any more. All hosts act on it: owners place chunks
elsewhere and copy what it has (`logstore.replica.repair`), and claim its streams (`claims`). So any host may be asked,
and whoever asked may go away meanwhile.

Invariants:
* Nothing here moves or drops anything. Each call may be made again at any time, and at any host, without harm.
* A host that lives is not removed, and neither is one that has the only copy of a chunk, or may have: of an entry that
  cannot be read nobody knows. A chunk that its entry says to be in the tier was read back there, and needs no copy; one
  that is stored, and not registered yet, is not in the tier.
* The entry of a removed host goes when no chunk names the host: then nothing of it is left, and its name is free.
* With it go the entries of disks that no chunk names: those of the removed host, and those that hosts which are alive
  have no more, because they were wiped. A host that was removed comes back with an empty directory.

Costs: `remove` reads the entries of all sealed chunks, 256 a page, one walk at a time; at last those of all disks.
"""

from collections.abc import AsyncIterator, Container
from contextlib import suppress
from typing import Final, NamedTuple

import trio

from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataDamaged, OutcomeUnknown
from logstore.base.metadata.interface import ABSENT, Committed, Condition, Delete, MetadataStore, Transaction
from logstore.cluster.members.view import ClusterView
from logstore.errors import CorruptRegister, HostStays, UnknownFormatVersion, UnknownHost
from logstore.replica.registrations import ChunkRegistration, Member, decode_sealed_chunk

TRIES: Final = 5


class Held(NamedTuple):
    """What chunks say of a host: how many name it, how many of these neither the tier has nor another host that lives,
    and where the first of those begins, for people.
    """

    chunks: int = 0
    alone: int = 0
    example: str = ""


class Departures:
    """See the module."""

    def __init__(self, view: ClusterView, store: MetadataStore) -> None:
        self._view = view
        self._store = store
        self._walking = trio.Lock()

    async def drain(self, host: str) -> None:
        """Have a host that lives give away what it has. Raises UnknownHost, HostStays, MetadataError."""
        if host not in self._view.members:
            raise UnknownHost(
                f"host {host!r} is not alive: start it, or, if it is gone for good, `cairn hosts remove {host}`"
            )
        if not any(other != host and other not in self._view.leaving for other in self._view.members):
            raise HostStays(f"host {host!r} has nobody to give its chunks to: start another host first")
        await self._write(host, schema.DRAIN)

    async def undrain(self, host: str) -> None:
        """Take back what was said of a host. Raises UnknownHost, MetadataError."""
        for _ in range(TRIES):
            entry = (await self._store.get(schema.leaving_key(host))).entry
            if entry is None:
                if host not in self._view.members:
                    raise UnknownHost(f"host {host!r} is not alive, and nobody drains or removes it")
                return
            if await self._commit(schema.stay(host, entry.revision)):
                return
        raise HostStays(f"what is said of host {host!r} changes all the time: try again")

    async def remove(self, host: str) -> int:
        """Have all chunks forget a host that is gone for good; returns how many still name it. 0: it is done.

        Raises UnknownHost, HostStays, MetadataError.
        """
        if host in self._view.members:
            raise HostStays(
                f"host {host!r} is alive: `cairn hosts drain {host}`, stop it when it holds nothing, then remove it"
            )
        named: set[Member] = set()
        async with self._walking:
            held = await self._held(host, named)
        if held.alone:
            raise HostStays(
                f"host {host!r} cannot be removed: of {held.alone} chunks no other host that is alive has a copy, the "
                f"first is {held.example}; bring the host back, or another one that has them"
            )
        await self._write(host, schema.REMOVE)
        if not held.chunks:
            await self._forget_disks(host, named)
            with suppress(UnknownHost):  # somebody else has
                await self.undrain(host)  # all hosts have seen that it was removed, and forget it
        return held.chunks

    # ---- the entry

    async def _write(self, host: str, how: str) -> None:
        for _ in range(TRIES):
            entry = (await self._store.get(schema.leaving_key(host))).entry
            if entry is not None and schema.decode(schema.Leaving, entry).how == how:
                return
            revision = ABSENT if entry is None else entry.revision
            if await self._commit(schema.leave(host, schema.Leaving(how=how), revision)):
                return
        raise HostStays(f"what is said of host {host!r} changes all the time: try again")

    async def _commit(self, transaction: Transaction) -> bool:
        """Whether it was made surely, and this host has seen it; if not, the entry is read again."""
        try:
            outcome = await self._store.commit(transaction)
        except OutcomeUnknown:
            return False
        if isinstance(outcome, Committed):
            await self._view.leaving_reached(outcome.revision)
            return True
        return False

    # ---- disks

    async def _forget_disks(self, removed: str, named: Container[Member]) -> None:
        """Delete the entries of disks that nobody has any more. One that a start has changed meanwhile stays."""
        after, more = "", True
        while more:
            page = await self._store.page(schema.DISKS, after=after)
            for entry in page.entries:
                disk = entry.key.removeprefix(schema.DISKS)
                try:
                    host = schema.decode(schema.Disk, entry).host
                except MetadataDamaged:
                    continue  # whose it is nobody knows
                alive = self._view.members.get(host)
                is_replaced = alive is not None and alive.disk != disk
                is_gone = alive is None and host == removed
                if (is_replaced or is_gone) and Member(host, disk) not in named:
                    conditions = [Condition(entry.key, entry.revision)]
                    if is_gone:  # it may have joined since, as this host will hear
                        conditions.append(Condition(schema.member_key(host), ABSENT))
                    await self._store.commit(Transaction(tuple(conditions), (Delete(entry.key),)))
            after, more = page.entries[-1].key if page.entries else "", page.more

    # ---- chunks

    async def _held(self, host: str, named: set[Member]) -> Held:
        """What a host has; adds all members that chunks name."""
        held = Held()
        async for stream, chunk in self._chunks():
            named.update((*chunk.members, *chunk.candidates))
            if not any(member.host == host for member in (*chunk.members, *chunk.candidates)):
                continue
            is_held = any(member.host != host and self._is_alive(member) for member in chunk.members)
            is_alone = chunk.tiered is None and not is_held
            example = held.example or (f"{self._named(stream)}, from offset {chunk.base_offset}" if is_alone else "")
            held = Held(held.chunks + 1, held.alone + is_alone, example)
        return held

    async def _chunks(self) -> AsyncIterator[tuple[str, ChunkRegistration]]:
        """All chunks that are registered, with their streams. Raises HostStays for an entry that cannot be read."""
        heads = await self._view.newest_heads()
        damaged = sorted(key for key in self._view.damaged if key.startswith(schema.STREAMS))
        if damaged:
            raise _unreadable(damaged[0], "it is damaged")
        for stream, known in heads.items():
            if known.head.open_chunk is not None:
                yield stream, known.head.open_chunk
        after = ""
        while True:
            page = await self._store.page(schema.CHUNKS, after=after)
            for entry in page.entries:
                try:
                    chunk = decode_sealed_chunk(entry.value)
                except (CorruptRegister, UnknownFormatVersion) as error:
                    raise _unreadable(entry.key, str(error)) from error
                yield entry.key.removeprefix(schema.CHUNKS).rpartition("/")[0], chunk
            if not page.more:
                return
            after = page.entries[-1].key

    def _is_alive(self, member: Member) -> bool:
        found = self._view.members.get(member.host)
        return found is not None and found.disk == member.disk

    def _named(self, stream: str) -> str:
        topic_id, _, partition = stream.partition("/")
        return f"{self._view.names.get(topic_id, topic_id)}-{partition}"


def _unreadable(key: str, why: str) -> HostStays:
    return HostStays(
        f"which hosts have copies is not known: the entry {key!r} of the metadata store cannot be read ({why}); "
        "restore it first"
    )
