"""The time of the owners on one host, and the ticks of those that are not at rest.

Invariants:
* Owners' time passes while the event loop is running (`RunningTime`): a turn counts for two ticks at most, so while
  this host stands still, or is late with everything, the confirmations that it has not read yet blame nobody.
* Behind a turn that came late, nobody is judged before what had arrived by then was read: TURNS_TO_READ turns of the
  loop, each of which reads up to 256 KiB from every other host.
* While all owners are at rest, time passes as on the clock.
* A tick costs what is due: owners at rest, however many, have none, but for one at the time that they name (`wake_ms`),
  when a host that has failed may be chosen again. Ticks that take long come more rarely: a thousand
  owners that wait for hosts leave time for the rest.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Final

import trio

from logstore.base.running_time import RunningTime
from logstore.replica.effects import Effect
from logstore.replica.owner import Owner
from logstore.replica.owner_states import OwnerState

TICK_S: Final = 0.02
TICKS_AT_ONCE: Final = 8
"""Before other tasks run: when a host has come, so many owners that look for their next set take a millisecond."""
PAUSE_PER_TICK: Final = 3
"""Ticks take a quarter of the time at most."""
LONGEST_TURN_S: Final = 2 * TICK_S
"""A turn of the event loop counts for so much of the owners' time at most."""
TURNS_TO_READ: Final = 8
"""Confirmations are short; what lies in front of them is mostly less than these turns read."""


class OwnerTicks:
    """See the module. `owners` are those of this host by stream; `carry_out` takes their effects. `run` must run."""

    def __init__(self, owners: Mapping[str, Owner], carry_out: Callable[[Iterable[Effect]], None]) -> None:
        self._owners = owners
        self._carry_out = carry_out
        self._restless: dict[str, Owner] = {}
        self._wakes_ms: dict[str, int] = {}
        """Owners at rest that are to have a tick at a time of theirs."""
        self._first_wake_ms: float = inf
        """Before this time none of them is."""
        self._restless_now = trio.Event()
        self._time = RunningTime(trio.current_time(), LONGEST_TURN_S)

    def __len__(self) -> int:
        """How many owners are not at rest."""
        return len(self._restless)

    @property
    def sleeping(self) -> int:
        """How many owners are at rest until a time of theirs."""
        return len(self._wakes_ms)

    def now_ms(self) -> int:
        """The owners' time."""
        now_s = trio.current_time()
        if not self._restless:
            self._time.turn(now_s, is_idle=True)
        return int(self._time.at(now_s) * 1000)

    def follow(self, owner: Owner) -> None:
        """Give an owner ticks until it is at rest."""
        if owner.state is not OwnerState.DEPOSED:
            self._restless[owner.stream] = owner
            self._restless_now.set()

    async def run(self) -> None:
        """Tick, until cancelled."""
        pause_s = TICK_S
        while True:
            if not self._restless:
                await self._idle()
            await self._pass_time(pause_s)
            begin_s = trio.current_time()
            now_ms = self._turn()
            self._wake(now_ms)
            for number, (stream, owner) in enumerate(list(self._restless.items()), start=1):
                self._tick(stream, owner, now_ms)
                if number % TICKS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                    self._turn()
            pause_s = max(TICK_S, PAUSE_PER_TICK * (trio.current_time() - begin_s))

    def _turn(self) -> int:
        """Another turn of the event loop has begun; returns the owners' time in ms."""
        return int(self._time.turn(trio.current_time()) * 1000)

    async def _pass_time(self, pause_s: float) -> None:
        """Let the loop run for a while, and, if its last turn came late, read what had arrived by then."""
        until_s = trio.current_time() + pause_s
        late_s = 0.0
        while (now_s := trio.current_time()) < until_s:
            due_s = min(until_s, now_s + TICK_S)
            await trio.sleep_until(due_s)
            self._turn()
            late_s = trio.current_time() - due_s
        if late_s > TICK_S:
            for _ in range(TURNS_TO_READ):
                await trio.lowlevel.checkpoint()
                self._turn()

    async def _idle(self) -> None:
        """Wait until an owner is not at rest, or is to have a tick."""
        self._restless_now = trio.Event()
        with trio.move_on_after(max(0.0, (self._first_wake_ms - self.now_ms()) / 1000)):
            await self._restless_now.wait()
        if not self._restless:
            self._wake(self.now_ms())

    def _wake(self, now_ms: int) -> None:
        if now_ms < self._first_wake_ms:
            return
        for stream in [stream for stream, wake_ms in self._wakes_ms.items() if wake_ms <= now_ms]:
            del self._wakes_ms[stream]
            if stream in self._owners:
                self._restless[stream] = self._owners[stream]
        self._first_wake_ms = min(self._wakes_ms.values(), default=inf)

    def _tick(self, stream: str, owner: Owner, now_ms: int) -> None:
        is_owner = self._owners.get(stream) is owner
        if is_owner:
            self._carry_out(owner.tick(now_ms))
            is_owner = self._owners.get(stream) is owner
        if not is_owner or owner.is_at_rest:
            self._restless.pop(stream, None)
            self._wakes_ms.pop(stream, None)
            if is_owner and (wake_ms := owner.wake_ms) is not None:
                self._wakes_ms[stream] = wake_ms
                self._first_wake_ms = min(self._first_wake_ms, wake_ms)
