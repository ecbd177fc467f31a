"""What the members of a fenced chunk answered, and the length at which the chunk is sealed.

One fenced member is enough: an acknowledgement takes every member, and the fenced one takes no more appends. Every
member has at least what was acknowledged, so the shortest of those that answered is long enough; what it has behind
the acknowledged length was never acknowledged, and is kept because nobody can tell.

A member that has less than another one knows to be acknowledged has lost what it had confirmed (a disk set back to an
older state, say): it does not count, and is not named as a holder. Nor does one that ends in front of the log start,
below which all was acknowledged, or that finds its copy damaged.

Sources: Apache BookKeeper's issues 2614 (every read of a recovery has to fence: here a length is never asked for
without a fence), 2612 and 2908 (a member that lost its data, or cannot read it, must not pass for one that never had
it); Apache BookKeeper's recovery of a ledger. It reads on from the last confirmed entry and writes to the ensemble
what it finds; here the end is agreed in the metadata store, so nothing is written to an open chunk.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from logstore.replica.messages import FenceDone
from logstore.replica.registrations import ChunkRegistration, Member, Prefix


class SealPlan(NamedTuple):
    """Where the chunk ends, who has all of it, and who may have."""

    end: Prefix
    holders: tuple[Member, ...]
    candidates: tuple[Member, ...]
    damaged: tuple[Member, ...]


@dataclass(slots=True)
class Fencing:
    """The members of one chunk, while a new owner fences them."""

    chunk: ChunkRegistration
    fence_epoch: int
    log_start: int = 0
    answers: dict[Member, FenceDone] = field(default_factory=dict)
    gone: dict[Member, None] = field(default_factory=dict)
    """Members whose disk is another one now, or whose copy is damaged."""

    def answered(self, message: FenceDone) -> None:
        """Take a member's answer."""
        if message.member in self.chunk.members and message.fence_epoch == self.fence_epoch:
            self.answers[message.member] = message

    def waiting(self) -> list[Member]:
        """The members that have not answered."""
        return [member for member in self.chunk.members if member not in self.answers and member not in self.gone]

    def lack_of(self, member: Member) -> str:
        """Why a member is no holder, for the operator."""
        if member in self.gone:
            return "has another disk now, or a damaged copy"
        return "has less than was acknowledged" if member in self.answers else "does not answer"

    @property
    def is_lost(self) -> bool:
        """Whether no member has a copy that is whole."""
        return all(member in self.gone for member in self.chunk.members)

    def plan(self) -> SealPlan | None:
        """The end of the chunk by the answers so far; None without any."""
        if not self.answers:
            return None
        acked_bytes = max(answer.acked_bytes for answer in self.answers.values())
        whole = {
            member: answer
            for member, answer in self.answers.items()
            if answer.durable.length_bytes >= acked_bytes and answer.durable.next_offset >= self.log_start
        }
        if not whole:
            return None
        end = min((answer.durable for answer in whole.values()), key=lambda durable: durable.length_bytes)
        members = self.chunk.members
        return SealPlan(
            end,
            tuple(member for member in members if member in whole),
            tuple(member for member in members if member not in self.answers and member not in self.gone),
            tuple(member for member in members if member in self.answers and member not in whole),
        )
