"""Reads of chunks at other hosts, for readers: asks one member after the other until one answers.

Invariants:
* An answer counts for a read if it is of the asked member and chunk and begins at the read's offset or in front of it;
  it may end in front of it only if the member may show no more. So answers to other reads do no harm.
* Readers see what a member shows: what is acknowledged, and of a sealed chunk nothing behind its end.
* At most MAX_READS reads are under way; each ends within READ_ROUNDS rounds over all members.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import trio

from logstore.cluster.interfaces import Links
from logstore.errors import ChunkUnreachable
from logstore.replica.messages import BatchEntry, EntriesRead, ReadEntries, Reason, Refused
from logstore.replica.registrations import ChunkRegistration, Member, Prefix

MAX_READS: Final = 64
"""Each has one answer in memory, of about a mebibyte."""
MEMBER_WAIT_S: Final = 0.5
READ_ROUNDS: Final = 3


class _AskedEntries(NamedTuple):
    """A question that waits for its answer."""

    stream: str
    epoch: int
    member: Member
    offset: int


class _EntriesQuestion:
    __slots__ = ("answer", "asked", "done", "is_open")

    def __init__(self, asked: _AskedEntries, *, is_open: bool) -> None:
        self.asked = asked
        self.is_open = is_open
        self.answer: EntriesRead | None = None
        self.done = trio.Event()


class EntryReads:
    """See the module. `name` is that of this host, which is asked first; then come hosts that can be reached, then the
    rest. `is_ambiguous` says whether entries of a chunk may be on their way to this host for a copy: the chunk is
    sealed then, and a reader that takes it for open reads its registration again.
    """

    def __init__(self, name: str, links: Links, is_ambiguous: Callable[[str, int], bool]) -> None:
        self._name = name
        self._links = links
        self._is_ambiguous = is_ambiguous
        self._questions: dict[tuple[str, int], list[_EntriesQuestion]] = {}
        self._limiter = trio.CapacityLimiter(MAX_READS)

    async def read(self, stream: str, chunk: ChunkRegistration, offset: int, max_bytes: int) -> EntriesRead:
        """Entries from an offset on, from any member. Raises ChunkUnreachable."""
        nothing: EntriesRead | None = None
        async with self._limiter:
            for _ in range(READ_ROUNDS):
                for member in self._order((*chunk.members, *chunk.candidates)):
                    asked = _AskedEntries(stream, chunk.epoch, member, offset)
                    answer = await self._ask(asked, max_bytes, is_open=chunk.is_open)
                    if answer is not None and answer.entries:
                        return _up_to_the_end(answer, chunk)
                    nothing = answer or nothing  # it may not know yet what is acknowledged; another one may
                if nothing is not None:
                    return _up_to_the_end(nothing, chunk)
        hosts = ", ".join(member.host for member in chunk.members)
        raise ChunkUnreachable(
            f"{stream}: no member of the chunk from offset {chunk.base_offset} on has answered ({hosts}); "
            "bring one of these hosts back"
        )

    def received(self, message: EntriesRead | Refused) -> None:
        """A member's message: the answer to a question, or to something else."""
        for question in self._questions.get((message.stream, message.epoch), ()):
            if question.asked.member != message.member:
                continue
            if isinstance(message, Refused):
                if message.reason is Reason.ABSENT and question.is_open:
                    question.answer = _nothing(question.asked)
                question.done.set()
            elif self._answers(message, question):
                question.answer = message
                question.done.set()

    # ---- details

    def _order(self, members: Sequence[Member]) -> list[Member]:
        def distance(member: Member) -> int:
            return 0 if member.host == self._name else 1 if self._links.is_reachable(member.host) else 2

        return sorted(members, key=distance)

    def _answers(self, message: EntriesRead, question: _EntriesQuestion) -> bool:
        offset = question.asked.offset
        if message.at.next_offset > offset or (question.is_open and self._is_ambiguous(message.stream, message.epoch)):
            return False
        end = message.at.next_offset + sum(entry.record_count for entry in message.entries)
        return end > offset or not message.entries

    async def _ask(self, asked: _AskedEntries, max_bytes: int, *, is_open: bool) -> EntriesRead | None:
        """One member's answer; None if it refuses, or is silent for MEMBER_WAIT_S."""
        question = _EntriesQuestion(asked, is_open=is_open)
        key = (asked.stream, asked.epoch)
        self._questions.setdefault(key, []).append(question)
        try:
            self._links.send(
                asked.member.host,
                ReadEntries(asked.stream, asked.member.disk, asked.epoch, asked.offset, max_bytes, for_copy=False),
            )
            with trio.move_on_after(MEMBER_WAIT_S):
                await question.done.wait()
        finally:
            self._questions[key].remove(question)
            if not self._questions[key]:
                del self._questions[key]
        return question.answer


def _nothing(asked: _AskedEntries) -> EntriesRead:
    """A member of an open chunk that has nothing of it: nothing of it is acknowledged."""
    at = Prefix.empty(asked.offset)
    return EntriesRead(asked.stream, asked.epoch, asked.member, at, (), asked.offset)


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
