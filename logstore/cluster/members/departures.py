"""Hosts that an operator drains, removes, or keeps after all: what is written down of it, and what speaks against it.

An entry of the metadata store says that a host is to hold nothing any more. All hosts act on it: owners place chunks
elsewhere and copy what it has (`logstore.replica.repair`), and claim its streams (`logstore.cluster.claims`). So any
host may be asked, and whoever asked may go away meanwhile.

Invariants:
* Nothing here moves or drops anything. Each call may be made again at any time, and at any host, without harm. A host
  of which the metadata store knows nothing is refused: its name may be a wrong one.
* Who lives and who leaves is read from the metadata store, not taken from the view, which may be late; and what is
  changed is changed on the condition that it is still as it was read.
* A host that lives is not removed, and neither is one that has the only copy of a chunk, or may have: of an entry that
  cannot be read nobody knows. A chunk that its entry says to be in the tier was read back there, and needs no copy; one
  that is stored, and not registered yet, is not in the tier.
* The entry of a removed host goes when no chunk names the host, and no disk is its: then nothing of it is left, and its
  name is free. A note stays that it was removed, for the last MAX_NOTES hosts: who asks once more, as a client does
  whose answer was lost, is told that it is done.
* With it go the entries of disks that no chunk names: those of the removed host, and those that hosts which are alive
  have no more, because they were wiped: started before the host joined with another one. A host that was removed comes
  back with an empty directory.
* A disk goes only if its host was no member with it from before the chunks were read until it goes: disks are read
  first, then members, then chunks, and each start and each joining changes the disk's entry
  (`logstore.cluster.members.membership`).

Costs: `remove` reads all disks and members, and the entries of all sealed chunks, 256 a page, one walk at a time; at
last the disks once more.
"""

from collections.abc import AsyncIterator, Container, Iterable, Mapping
from typing import Final, NamedTuple

import trio

from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataDamaged, OutcomeUnknown
from logstore.base.metadata.interface import ABSENT, Committed, Condition, Delete, Entry, MetadataStore, Transaction
from logstore.cluster.members.view import ClusterView
from logstore.errors import CorruptRegister, HostStays, UnknownFormatVersion, UnknownHost
from logstore.replica.registrations import ChunkRegistration, Member, decode_sealed_chunk

TRIES: Final = 5
MAX_NOTES: Final = 100
"""Of hosts that were removed."""
SEEN_S: Final = 5.0
"""How long who asked waits for this host to see what was said: `cairn hosts` then shows it. It is said all the same."""


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
        for _ in range(TRIES):
            members, leaving = await self._entries(schema.MEMBERS), await self._entries(schema.LEAVING)
            if host not in members:
                if not await self._is_remembered(host):
                    raise await self._not_there(host, members)
                raise UnknownHost(
                    f"host {host!r} is not alive: start it, or, if it is gone for good, `cairn hosts remove {host}`"
                )
            other = next((other for other in members if other != host and other not in leaving), None)
            if other is None:
                raise HostStays(f"host {host!r} has no other host to move its chunks to: start another host first")
            as_read = (
                Condition(schema.member_key(host), members[host].revision),
                Condition(schema.member_key(other), members[other].revision),
                Condition(schema.leaving_key(other), ABSENT),
            )
            if await self._say(host, schema.DRAIN, leaving.get(host), as_read) is not None:
                return
        raise _unsettled(host)

    async def undrain(self, host: str) -> None:
        """Take back what was said of a host. Raises UnknownHost, HostStays, MetadataError."""
        for _ in range(TRIES):
            said = (await self._store.get(schema.leaving_key(host))).entry
            if said is None:
                if (await self._store.get(schema.member_key(host))).entry is None:
                    raise UnknownHost(f"host {host!r} is not alive, and is not being drained or removed")
                return
            if await self._commit(schema.stay(host, said.revision)) is not None:
                return
        raise _unsettled(host)

    async def remove(self, host: str) -> int:
        """Have all chunks forget a host that is gone for good; returns how many still name it. 0: it is done.

        Raises UnknownHost, HostStays, MetadataError.
        """
        async with self._walking:
            for _ in range(TRIES):
                disks = await self._entries(schema.DISKS)
                members = await self._entries(schema.MEMBERS)
                if host in members:
                    raise await self._alive(host)
                named: set[Member] = set()
                held = await self._held(host, {name: _decoded(entry) for name, entry in members.items()}, named)
                if held.alone:
                    raise HostStays(
                        f"host {host!r} cannot be removed: of {held.alone} chunks no other host that is alive has a "
                        f"copy, the first is {held.example}; start the host again, or another host that has them"
                    )
                said = (await self._store.get(schema.leaving_key(host))).entry
                if said is None and not held.chunks and not any(_host_of(entry) == host for entry in disks.values()):
                    if await self._was_removed(host):
                        return 0
                    raise _never_seen(host, members)
                revision = await self._say(host, schema.REMOVE, said, (_is_away(host),))
                if revision is None:
                    continue  # somebody says something else, or the host is back
                if held.chunks:
                    return held.chunks
                await self._forget_disks(host, disks, members, named)
                if await self._is_forgotten(host, revision):
                    await self._drop_old_notes()
                    return 0
        raise _unsettled(host)

    async def _is_remembered(self, host: str) -> bool:
        """Whether the metadata store has a disk of a host, or that it leaves."""
        disks = await self._entries(schema.DISKS)
        if any(_host_of(entry) == host for entry in disks.values()):
            return True
        return (await self._store.get(schema.leaving_key(host))).entry is not None

    # ---- the entry

    async def _say(self, host: str, how: str, said: Entry | None, conditions: tuple[Condition, ...]) -> int | None:
        """Say of a host how it leaves, in the place of what is said of it; returns the revision of the entry. None:
        something is not as it was read, or may not be.
        """
        if said is not None and schema.decode(schema.Leaving, said).how == how:
            return said.revision
        revision = ABSENT if said is None else said.revision
        return await self._commit(schema.leave(host, schema.Leaving(how=how), revision, conditions))

    async def _commit(self, transaction: Transaction) -> int | None:
        """The revision, if it was made surely; this host has seen it then, or will. If not, all is read again."""
        try:
            outcome = await self._store.commit(transaction)
        except OutcomeUnknown:
            return None
        if isinstance(outcome, Committed):
            with trio.move_on_after(SEEN_S):
                await self._view.leaving_reached(outcome.revision)
            return outcome.revision
        return None

    async def _alive(self, host: str) -> HostStays:
        """Why a host that lives is not removed."""
        said = (await self._store.get(schema.leaving_key(host))).entry
        is_said = said is not None and schema.decode(schema.Leaving, said).how == schema.REMOVE
        kept = f"; its removal was requested before: `cairn hosts undrain {host}` cancels that" if is_said else ""
        return HostStays(
            f"host {host!r} is alive: `cairn hosts drain {host}`, stop it when it holds nothing, then remove it; a "
            f"killed host is alive until its lease has expired (lease-s){kept}"
        )

    async def _is_forgotten(self, host: str, revision: int) -> bool:
        """Take back that a host is removed, which was said with this revision, if nothing of the host is left: all
        hosts have seen it, and forget it. Whether that is so.
        """
        disks = await self._entries(schema.DISKS)
        if any(_host_of(entry) == host for entry in disks.values()):
            return False  # it has started meanwhile
        if await self._commit(schema.forget(host, revision, (_is_away(host),))) is not None:
            return True
        places = [await self._store.get(key) for key in (schema.leaving_key(host), schema.member_key(host))]
        return all(place.entry is None for place in places)  # somebody else has

    async def _not_there(self, host: str, members: Iterable[str]) -> UnknownHost:
        if await self._was_removed(host):
            return UnknownHost(f"host {host!r} was removed from the cluster")
        return _never_seen(host, members)

    async def _was_removed(self, host: str) -> bool:
        return (await self._store.get(schema.removed_key(host))).entry is not None

    async def _drop_old_notes(self) -> None:
        notes = sorted((await self._entries(schema.REMOVED)).values(), key=lambda note: note.revision)
        for note in notes[:-MAX_NOTES]:
            await self._store.commit(Transaction((Condition(note.key, note.revision),), (Delete(note.key),)))

    # ---- disks

    async def _forget_disks(
        self, removed: str, disks: Mapping[str, Entry], members: Mapping[str, Entry], named: Container[Member]
    ) -> None:
        """Delete the entries of disks that nobody has any more. One that a start or a joining has changed stays."""
        for disk, entry in disks.items():
            host = _host_of(entry)
            if host is None or Member(host, disk) in named:
                continue
            member = members.get(host)
            if member is None:
                is_over, as_read = host == removed, _is_away(host)
            else:
                is_older = entry.revision < member.revision  # with a newer one the host starts, and is to join yet
                is_over = _decoded(member).disk != disk and is_older
                as_read = Condition(member.key, member.revision)
            if is_over:
                conditions = (Condition(entry.key, entry.revision), as_read)
                await self._store.commit(Transaction(conditions, (Delete(entry.key),)))

    async def _entries(self, prefix: str) -> dict[str, Entry]:
        """All entries under a prefix, without it in their names."""
        found: dict[str, Entry] = {}
        after, more = "", True
        while more:
            page = await self._store.page(prefix, after=after)
            found.update((entry.key.removeprefix(prefix), entry) for entry in page.entries)
            after, more = page.entries[-1].key if page.entries else "", page.more
        return found

    # ---- chunks

    async def _held(self, host: str, members: Mapping[str, schema.StoredMember], named: set[Member]) -> Held:
        """What a host has; adds all members that chunks name. `members`: who lives."""
        held = Held()
        async for stream, chunk in self._chunks():
            named.update((*chunk.members, *chunk.candidates))
            if not any(member.host == host for member in (*chunk.members, *chunk.candidates)):
                continue
            others = [member for member in chunk.members if member.host != host and member.host in members]
            is_held = any(members[member.host].disk == member.disk for member in others)
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

    def _named(self, stream: str) -> str:
        topic_id, _, partition = stream.partition("/")
        return f"{self._view.names.get(topic_id, topic_id)}-{partition}"


def _is_away(host: str) -> Condition:
    return Condition(schema.member_key(host), ABSENT)


def _decoded(member: Entry) -> schema.StoredMember:
    return schema.decode(schema.StoredMember, member)


def _host_of(disk: Entry) -> str | None:
    """The host of a disk; None: whose it is nobody knows."""
    try:
        return schema.decode(schema.StoredDisk, disk).host
    except MetadataDamaged:
        return None


def _unsettled(host: str) -> HostStays:
    return HostStays(
        f"the entry of host {host!r} keeps changing, or the host keeps restarting: look at `cairn hosts`, and try again"
    )


def _never_seen(host: str, members: Iterable[str]) -> UnknownHost:
    return UnknownHost(
        f"there is no host {host!r}: it has no disk and no chunk; alive are {', '.join(sorted(members)) or 'none'}"
    )


def _unreadable(key: str, why: str) -> HostStays:
    return HostStays(
        f"the hosts that have copies are unknown: the entry {key!r} of the metadata store cannot be read ({why}); "
        "restore it first"
    )
