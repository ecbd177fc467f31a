"""The time of the owners on one host, and the ticks of those that are not at rest.

Invariants:
* Owners' time passes with the turns of the event loop, a few ticks' worth in each: while this host stands still, or is
  late with everything, the confirmations that it has not read yet blame nobody. It never goes back.
* While all owners are at rest, time passes as on the clock.
* A tick costs what is due: owners at rest, however many, have none, but for one at the time that they name (`wake_ms`),
  when a host that has failed may be chosen again. Ticks that take long come more rarely: a thousand
  owners that wait for hosts leave time for the rest.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Final

import trio

from logstore.replica.effects import Effect
from logstore.replica.owner import Owner
from logstore.replica.owner_states import OwnerState

TICK_S: Final = 0.02
TICKS_AT_ONCE: Final = 64
PAUSE_PER_TICK: Final = 3
"""Ticks take a quarter of the time at most."""
TICKS_PER_TURN: Final = 2
"""Time that a turn of the event loop counts for at most, in pauses between ticks."""


class OwnerTime:
    """Time in seconds that passes with turns; see the module. No clock of its own."""

    def __init__(self, now_s: float) -> None:
        self._time_s = self._turn_s = now_s
        self._latest_ms = 0
        self.longest_turn_s = TICKS_PER_TURN * TICK_S

    def now_ms(self, now_s: float) -> int:
        """The owners' time in the turn that has begun last."""
        now_ms = int((self._time_s + min(now_s - self._turn_s, self.longest_turn_s)) * 1000)
        self._latest_ms = max(self._latest_ms, now_ms)
        return self._latest_ms

    def turn(self, now_s: float, *, is_idle: bool = False) -> None:
        """Another turn begins. `is_idle`: until now nobody waited for anything."""
        passed_s = now_s - self._turn_s
        self._time_s += passed_s if is_idle else min(passed_s, self.longest_turn_s)
        self._turn_s = now_s


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
        self._time = OwnerTime(trio.current_time())

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
        return self._time.now_ms(now_s)

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
            await trio.sleep(pause_s)
            begin_s = trio.current_time()
            self._time.turn(begin_s)
            now_ms = self._time.now_ms(begin_s)
            self._wake(now_ms)
            for number, (stream, owner) in enumerate(list(self._restless.items()), start=1):
                self._tick(stream, owner, now_ms)
                if number % TICKS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            pause_s = max(TICK_S, PAUSE_PER_TICK * (trio.current_time() - begin_s))
            self._time.longest_turn_s = TICKS_PER_TURN * pause_s

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
