"""What an owner tells the operator: why the stream waits, and which members of the open chunk have failed.

Invariants: a reason is told once until the next chunk is open, a member until it confirms something or the next chunk
is open. That there are too few hosts is told when it has been so for a while, for hosts start one after the other; and
again if it is so after something was acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable

from logstore.replica.effects import Effect, MemberFailed, StreamUnavailable
from logstore.replica.fencing import Fencing
from logstore.replica.placing import NextSet
from logstore.replica.registrations import MAX_CHUNKS, Member


class OwnerReports:
    """See the module. `patience_ms`: how long there may be too few hosts."""

    def __init__(self, stream: str, patience_ms: int) -> None:
        self._stream = stream
        self._patience_ms = patience_ms
        self._reason = ""
        self._few_since_ms: int | None = None
        self._failed: set[Member] = set()

    def chunk_opened(self) -> None:
        """The stream goes on, with members that may fail anew."""
        self._failed.clear()
        self._reason, self._few_since_ms = "", None

    def confirmed(self, member: Member) -> None:
        """A member of the open chunk goes on."""
        self._failed.discard(member)

    @property
    def has_failed(self) -> bool:
        """Whether a member of the open chunk has failed, and has confirmed nothing since."""
        return bool(self._failed)

    def acknowledged(self) -> None:
        """There are hosts enough."""
        if self._few_since_ms is not None:
            self.enough()

    def enough(self) -> None:
        """There are hosts enough, whether batches wait or not."""
        self._reason, self._few_since_ms = "", None

    def failed(self, epoch: int, members: Iterable[Member], reason: str) -> list[Effect]:
        """Members of the open chunk have failed."""
        news = [member for member in members if member not in self._failed]
        self._failed.update(news)
        return [MemberFailed(self._stream, epoch, member.host, reason) for member in news]

    def damaged(self, epoch: int, members: Iterable[Member]) -> list[Effect]:
        """Members of a chunk that is fenced have lost a part of it."""
        reason = "its copy is shorter than what was acknowledged"
        return [MemberFailed(self._stream, epoch, member.host, reason) for member in members]

    def too_few(self, epoch: int, needed: int, following: NextSet, now_ms: int) -> list[Effect]:
        """Fewer hosts can have the next chunk than it needs."""
        if self._few_since_ms is None:
            self._few_since_ms = now_ms
        if now_ms - self._few_since_ms < self._patience_ms:
            return []
        return self.surely_too_few(epoch, needed, following)

    def surely_too_few(self, epoch: int, needed: int, following: NextSet) -> list[Effect]:
        """The same, and it has been so for a while."""
        able = (*following.own, *following.staying, *following.leaving)
        names = ", ".join(member.host for member in able[: following.size]) or "none"
        reason = f"the next chunk needs {needed} hosts, and these can have it: {names}"
        return self._waits(epoch, f"{reason}; start another host, or lower min.insync.replicas of the topic")

    def no_member(self, fencing: Fencing) -> list[Effect]:
        """No member of the chunk that is fenced answers, or has it."""
        members = ", ".join(
            f"{member.host} (disk {member.disk}) " + fencing.lack_of(member) for member in fencing.chunk.members
        )
        return self._waits(fencing.chunk.epoch, f"no member of the open chunk has it: {members}; bring one back")

    def full(self, epoch: int) -> list[Effect]:
        """The stream has as many chunks as there may be."""
        reason = f"the stream has {MAX_CHUNKS} chunks or more, and gets no further one; trim it, or make chunks larger"
        return self._waits(epoch, reason)

    def _waits(self, epoch: int, reason: str) -> list[Effect]:
        if self._reason == reason:
            return []
        self._reason = reason
        return [StreamUnavailable(self._stream, epoch, reason)]
