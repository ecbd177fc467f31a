"""How long an owner waits for the members of its open chunk before it goes on without them.

| a member has failed | if |
|---|---|
| it is silent | it has a batch, and its host has confirmed nothing of any stream for `silent_ms` |
| it is late | it has not confirmed a batch after `wait_ms`, whatever its host confirms otherwise |

Both bounds follow what the host is seen to take: `TIMES_LONGEST` times the longest silence, or wait, that has ended
with a confirmation in the last `LATELY_MS` to twice that; never less than `least_…_ms`, never more than `longest_ms`.
So hosts that get too little processor time all together are slow, and do not fail in turns; one that confirms in
milliseconds, as on a machine with room, is given up after the least time as soon as it confirms nothing.

Invariants:
* A silence that nothing has ended teaches nothing: a host that is dead, cut off or whose disk hangs is waited for as
  before. One beyond `longest_ms` does not either: that was no slowness.
* A member that was given up teaches when it confirms what it was given up for: that it lives, and how long it took.
* Each roll of the stream for slowness doubles its least bounds, for `CALM_MS`. The waits begin anew with each roll; so
  with bounds of 300 ms and 5 s an owner makes at most 15 such rolls in any minute, whatever its members do.
* No clock: times are those of the owners (`logstore.cluster.owner_ticks`), which pass only while the owners' host runs.

Sources: the phi accrual failure detector (a bound that follows what was seen); TCP's timer for repetitions (what was
given up too early has to teach as well, and doubles the bound until then).
"""

from collections import deque
from typing import Final, NamedTuple

from logstore.replica.host_state import HostProgress
from logstore.replica.messages import AppendDone
from logstore.replica.registrations import Member

TIMES_LONGEST: Final = 3
CALM_MS: Final = 60_000
MAX_ROLLS_KEPT: Final = 16
"""Further doublings lead beyond any bound."""
MAX_GIVEN_UP: Final = 16
"""Members whose confirmation teaches still, the latest."""


class PatienceLimits(NamedTuple):
    """See the module."""

    least_silent_ms: int
    least_wait_ms: int
    longest_ms: int


class _GivenUp(NamedTuple):
    """A member was given up for silence since a time, with so many bytes of a chunk."""

    epoch: int
    length_bytes: int
    silent_since_ms: int


class MemberPatience:
    """Of the owner of one stream. See the module. `hosts` is shared by all owners of this host."""

    def __init__(self, limits: PatienceLimits, hosts: HostProgress) -> None:
        self._limits = limits
        self._hosts = hosts
        self._rolled_ms: deque[int] = deque(maxlen=MAX_ROLLS_KEPT)
        self._given_up: dict[Member, _GivenUp] = {}

    # ---- bounds

    @property
    def least_ms(self) -> int:
        """Nobody fails in less time."""
        return min(self._limits.least_silent_ms, self._limits.longest_ms)

    def silent_ms(self, host: str, now_ms: int) -> int:
        """How long a host may confirm nothing."""
        return self._bound(self._hosts.silences.of(host, now_ms), self._limits.least_silent_ms, now_ms)

    def wait_ms(self, host: str, now_ms: int) -> int:
        """How long a host may keep a batch."""
        return self._bound(self._hosts.waits.of(host, now_ms), self._limits.least_wait_ms, now_ms)

    def _bound(self, longest_lately_ms: int, least_ms: int, now_ms: int) -> int:
        longest_ms = self._limits.longest_ms
        while self._rolled_ms and now_ms - self._rolled_ms[0] >= CALM_MS:
            self._rolled_ms.popleft()
        return min(max(TIMES_LONGEST * longest_lately_ms, least_ms << len(self._rolled_ms)), longest_ms)

    def rolled(self, now_ms: int) -> None:
        """The stream goes on without members that were slow."""
        self._rolled_ms.append(now_ms)

    # ---- what is seen

    def confirmed(self, host: str, since_ms: int, now_ms: int) -> None:
        """A host has confirmed what it had since a time. Called in front of `HostProgress.note`."""
        waited_ms, silent_ms = now_ms - since_ms, self._hosts.silent_ms(host, since_ms, now_ms)
        self._learn(host, silent_ms, waited_ms, now_ms)

    def gave_up(self, member: Member, epoch: int, length_bytes: int, since_ms: int, now_ms: int) -> None:
        """A member with so many bytes of a chunk has failed, because it was slow."""
        silent_ms = self._hosts.silent_ms(member.host, since_ms, now_ms)
        self._given_up.pop(member, None)
        self._given_up[member] = _GivenUp(epoch, length_bytes, now_ms - silent_ms)
        if len(self._given_up) > MAX_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]

    def answered(self, message: AppendDone, now_ms: int) -> bool:
        """A member has confirmed something of a chunk behind which the stream went on without it. Returns whether that
        is what it was given up for: then it was slow.
        """
        given_up = self._given_up.get(message.member)
        if given_up is None or message.epoch != given_up.epoch or message.durable.length_bytes <= given_up.length_bytes:
            return False
        del self._given_up[message.member]
        took_ms = now_ms - given_up.silent_since_ms
        self._learn(message.member.host, took_ms, took_ms, now_ms)
        self._hosts.note(message.member.host, now_ms)
        return True

    def _learn(self, host: str, silent_ms: int, waited_ms: int, now_ms: int) -> None:
        longest_ms, hosts = self._limits.longest_ms, self._hosts
        if TIMES_LONGEST * silent_ms > self._limits.least_silent_ms and silent_ms <= longest_ms:
            hosts.silences.note(host, silent_ms, now_ms)
        if TIMES_LONGEST * waited_ms > self._limits.least_wait_ms and waited_ms <= longest_ms:
            hosts.waits.note(host, waited_ms, now_ms)
