"""Reads of chunks at other hosts, for readers: asks one member after the other until one answers.

Invariants:
* An answer counts for a read if it is of an asked member and chunk and begins at the read's offset or in front of it;
  it may end in front of it only if the member may show no more. So answers to other reads do no harm. An answer that
  comes late counts as well, as long as the read lasts: over a slow link a mebibyte takes longer than MEMBER_WAIT_S.
* Readers see what a member shows: what is acknowledged, and of a sealed chunk nothing behind its end.
* At most MAX_READS reads are under way of members that answer, and MAX_LATE_READS of others; each ends within
  READ_ROUNDS rounds over all members. So thousands of streams whose hosts are away hold up no read of another one.
* A host that cannot be reached is not asked. If none can, the read lasts as long as links are down for a moment; not
  again for SILENT_S. A member that let somebody wait for SILENT_AFTER_S is
  silent, for SILENT_S or until it answers anything: silent members are asked last and all at once, and only if no other
  one has answered. So what one member costs, it costs once, not each read of each of its chunks. That another one may
  show nothing of a sealed chunk is no answer to who reads it: somebody has all of it.
"""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from logstore.cluster.interfaces import Answering, Links
from logstore.errors import ChunkUnreachable
from logstore.replica.messages import BatchEntry, EntriesRead, ReadEntries, Reason, Refused
from logstore.replica.registrations import ChunkRegistration, Member, Prefix

MAX_READS: Final = 64
"""Each has one answer in memory, of about a mebibyte."""
MAX_LATE_READS: Final = 32
MAX_LOOKS: Final = 8
"""Of these reads are those that ask for thousands of streams what is acknowledged: others need not wait for them."""
MEMBER_WAIT_S: Final = 0.5
READ_ROUNDS: Final = 3
LESS_BITS: Final = 3
"""An eighth of what was asked for in the round before: it may be on a slow way still."""
SILENT_AFTER_S: Final = 0.15
"""Longer than a member's disk and a way around the world and back take."""
SILENT_S: Final = 5.0


class _EntriesQuestion:
    """What one read asks."""

    __slots__ = ("answer", "awaited", "chunk", "is_late", "is_look", "max_bytes", "offset", "owing", "stream", "told")

    def __init__(self, stream: str, chunk: ChunkRegistration, offset: int, max_bytes: int, *, is_look: bool) -> None:
        """`is_look`: what is asked for is not the entries, but what is acknowledged."""
        self.stream, self.chunk, self.offset, self.max_bytes = stream, chunk, offset, max_bytes
        self.is_look = is_look
        self.is_late = False
        """Silent members are asked although others have answered."""
        self.owing: set[Member] = set()
        """Asked members that have not answered."""
        self.awaited: set[Member] = set()
        """Those of them that are waited for now."""
        self.answer: EntriesRead | None = None
        """The newest answer; one with entries ends the read."""
        self.told = trio.Event()
        """There is an answer with entries, or all have answered that are waited for."""

    @property
    def lacks_entries(self) -> bool:
        """Whether those who have answered may show nothing of what somebody else has: the chunk is sealed."""
        answer, end = self.answer, self.chunk.end
        is_there = end is not None and self.offset < end.next_offset and not self.is_look
        return is_there and answer is not None and not answer.entries


class EntryReads:
    """See the module. `name` is that of this host, which is asked first; then come the other hosts that can be
    reached. `is_ambiguous` says whether entries of a chunk may be on their way to this host for a copy: the chunk is
    sealed then, and a reader that takes it for open reads its registration again.
    """

    def __init__(self, name: str, links: Links, is_ambiguous: Callable[[str, int], bool]) -> None:
        self._name = name
        self._links = links
        self._is_ambiguous = is_ambiguous
        self._questions: dict[tuple[str, int], list[_EntriesQuestion]] = {}
        self._limiter = trio.CapacityLimiter(MAX_READS)
        self._late_limiter = trio.CapacityLimiter(MAX_LATE_READS)
        self._looks = trio.CapacityLimiter(MAX_LOOKS)
        self._silent: dict[Member, float] = {}
        """Members that have let somebody wait, and until when they count as silent: some for each host."""

    async def read(self, stream: str, chunk: ChunkRegistration, offset: int, max_bytes: int) -> EntriesRead:
        """Entries from an offset on, from any member. Raises ChunkUnreachable; at once if the tier has the chunk and
        no member can be reached.
        """
        if chunk.tiered is not None and not any(map(self._is_reachable, chunk.members)):
            raise ChunkUnreachable(f"{stream}: the chunk from {chunk.base_offset} on is on no host that can be reached")
        return await self._in_turn(_EntriesQuestion(stream, chunk, offset, max_bytes, is_look=False))

    async def _in_turn(self, question: _EntriesQuestion) -> EntriesRead:
        if self.answering(question.chunk) is Answering.AT_ONCE:
            async with self._limiter:
                if self.answering(question.chunk) is Answering.AT_ONCE:  # while it waited for its turn too
                    answer = await self._read(question)
                    if not (question.lacks_entries and self._order(question.chunk)[1]):
                        return answer
        question.is_late = True
        async with self._late_limiter:
            return await self._read(question)

    async def _read(self, question: _EntriesQuestion) -> EntriesRead:
        stream, chunk = question.stream, question.chunk
        key = (stream, chunk.epoch)
        self._questions.setdefault(key, []).append(question)
        try:
            answer = await self._rounds(question)
        finally:
            self._questions[key].remove(question)
            if not self._questions[key]:
                del self._questions[key]
        if answer is not None:
            return _up_to_the_end(answer, chunk)
        hosts = ", ".join(member.host for member in chunk.members)
        raise ChunkUnreachable(
            f"{stream}: no member of the chunk from offset {chunk.base_offset} on has answered ({hosts}); "
            "bring one of these hosts back"
        )

    async def acknowledged_end(self, stream: str, chunk: ChunkRegistration, offset: int) -> int | None:
        """Up to where a member knows a chunk to be acknowledged that has the offset; None: no member answers now."""
        async with self._looks:
            if self.answering(chunk) is not Answering.AT_ONCE:
                return None
            try:
                return (await self._in_turn(_EntriesQuestion(stream, chunk, offset, 1, is_look=True))).limit_offset
            except ChunkUnreachable:
                return None

    def answering(self, chunk: ChunkRegistration) -> Answering:
        """Who answers at present of the hosts that have a chunk."""
        members = list(filter(self._is_reachable, _holders(chunk)))
        if not members:
            return Answering.NOBODY
        return Answering.LATE if all(map(self._is_silent, members)) else Answering.AT_ONCE

    def received(self, message: EntriesRead | Refused) -> None:
        """A member's message: the answer to a question, or to something else."""
        self._silent.pop(message.member, None)
        for question in self._questions.get((message.stream, message.epoch), ()):
            if message.member not in question.owing:
                continue
            if isinstance(message, Refused):
                if message.reason is Reason.ABSENT and question.chunk.is_open:
                    question.answer = question.answer or _nothing(question, message.member)
            elif not self._answers(message, question):
                continue
            elif message.entries or question.answer is None:
                question.answer = message
            question.owing.discard(message.member)
            question.awaited.discard(message.member)
            if not question.awaited or (question.answer is not None and question.answer.entries):
                question.told.set()

    # ---- details

    def _is_reachable(self, member: Member) -> bool:
        return member.host == self._name or self._links.is_reachable(member.host)

    def _is_silent(self, member: Member) -> bool:
        until_s = self._silent.get(member)
        if until_s is not None and trio.current_time() >= until_s:
            del self._silent[member]
            return False
        return until_s is not None

    def _order(self, chunk: ChunkRegistration) -> tuple[list[Member], list[Member]]:
        """The members that can be reached, this host first: those that answer at once, and the silent ones."""
        reachable = filter(self._is_reachable, _holders(chunk))
        members = sorted(reachable, key=lambda member: member.host != self._name)
        silent = list(filter(self._is_silent, members))
        return [member for member in members if member not in silent], silent

    async def _rounds(self, question: _EntriesQuestion) -> EntriesRead | None:
        is_asked = False
        for number in range(READ_ROUNDS):
            members, silent = self._order(question.chunk)
            max_bytes = question.max_bytes >> number * LESS_BITS
            for member in members:
                await self._ask(question, [member], max_bytes)
                if question.answer is not None and question.answer.entries:
                    return question.answer
            if silent and (question.answer is None or (question.is_late and question.lacks_entries)):
                await self._ask(question, silent, max_bytes)
            if question.answer is not None:
                return question.answer  # without entries: nobody knows more yet of what is acknowledged
            is_asked = is_asked or bool(members or silent)
            if not (members or silent):
                if all(map(self._is_silent, _holders(question.chunk))):
                    return None
                await trio.sleep(MEMBER_WAIT_S)
        if not is_asked:
            self._silent.update(dict.fromkeys(_holders(question.chunk), trio.current_time() + SILENT_S))
        return None

    def _answers(self, message: EntriesRead, question: _EntriesQuestion) -> bool:
        offset = question.offset
        if message.at.next_offset > offset or (
            question.chunk.is_open and self._is_ambiguous(message.stream, message.epoch)
        ):
            return False
        end = message.at.next_offset + sum(entry.record_count for entry in message.entries)
        return end > offset or not message.entries

    async def _ask(self, question: _EntriesQuestion, members: Sequence[Member], max_bytes: int) -> None:
        """Ask members, and wait for MEMBER_WAIT_S at most; an answer of somebody who was asked before will do too."""
        question.told, question.awaited = trio.Event(), set(members)
        question.owing |= question.awaited
        begun_s = trio.current_time()
        for member in members:
            asked = (question.stream, member.disk, question.chunk.epoch, question.offset, max(1, max_bytes))
            self._links.send(member.host, ReadEntries(*asked, for_copy=False))
        try:
            with trio.move_on_after(MEMBER_WAIT_S):
                await question.told.wait()
        finally:
            now_s = trio.current_time()
            if now_s - begun_s >= SILENT_AFTER_S:
                self._silent.update(dict.fromkeys(question.awaited, now_s + SILENT_S))


def _holders(chunk: ChunkRegistration) -> Sequence[Member]:
    """Who has a chunk, or may have a part of it."""
    return (*chunk.members, *chunk.candidates)


def _nothing(question: _EntriesQuestion, member: Member) -> EntriesRead:
    """A member of an open chunk that has nothing of it: nothing of it is acknowledged."""
    at = Prefix.empty(question.offset)
    return EntriesRead(question.stream, question.chunk.epoch, member, at, (), question.offset)


def _up_to_the_end(answer: EntriesRead, chunk: ChunkRegistration) -> EntriesRead:
    """A member that has not been cut yet may have more than the chunk."""
    if chunk.end is None:
        return answer
    offset, kept = answer.at.next_offset, list[BatchEntry]()
    for entry in answer.entries:
        if offset >= chunk.end.next_offset:
            break
        kept.append(entry)
        offset += entry.record_count
    limit = min(answer.limit_offset, chunk.end.next_offset)
    return EntriesRead(answer.stream, answer.epoch, answer.member, answer.at, tuple(kept), limit, answer.founding)
