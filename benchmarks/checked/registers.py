"""What was written last: offsets that groups commit, settings of topics. Pure.

A register takes writes and answers. A write whose call has failed may have been carried out, or may be carried out
within LATE_S; an answer is a value that was the last one at some moment between the answer's begin and end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

NEVER: Final = float("inf")
LATE_S: Final = 600.0
"""A request that nobody waits for any more lies in buffers of connections that live; it is not carried out later."""


class Write(NamedTuple):
    """`ended_s`: from then on it cannot take effect any more; NEVER: it still may."""

    begun_s: float
    ended_s: float
    is_acked: bool
    value: int


class Answer(NamedTuple):
    """What was there; None: nothing was."""

    begun_s: float
    ended_s: float
    value: int | None


@dataclass
class Register:
    """All writes and answers of one."""

    writes: list[Write] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def write(self, begun_s: float, ended_s: float, value: int, *, is_acked: bool) -> None:
        """A call that has ended, or never did (`ended_s` is NEVER)."""
        self.writes.append(Write(begun_s, ended_s if is_acked else ended_s + LATE_S, is_acked, value))

    def wrong_answers(self) -> list[Answer]:
        """The answers that cannot have been the last value."""
        by_value: defaultdict[int, list[Write]] = defaultdict(list)
        for write in self.writes:
            by_value[write.value].append(write)
        acked = sorted((write.ended_s, write.begun_s) for write in self.writes if write.is_acked)
        ends_s = [ended_s for ended_s, _ in acked]
        last_begun_s = [-1.0, *accumulate((begun_s for _, begun_s in acked), max)]

        def is_right(answer: Answer) -> bool:
            # Of the writes that were over before the question: the one that began last.
            newest_s = last_begun_s[bisect_left(ends_s, answer.begun_s)]
            if answer.value is None:
                return newest_s < 0
            return any(write.begun_s < answer.ended_s and write.ended_s >= newest_s for write in by_value[answer.value])

        return [answer for answer in self.answers if not is_right(answer)]

    @property
    def is_answered(self) -> bool:
        """Whether somebody was told the value after the last write that was acknowledged."""
        last_s = max((write.ended_s for write in self.writes if write.is_acked), default=-1.0)
        return last_s < 0 or any(answer.begun_s >= last_s for answer in self.answers)
