"""The time of the owners on one host, and the ticks of those that are not at rest.

Invariants:
* Owners' time passes with the turns of the event loop, a few ticks' worth in each: while this host stands still, or is
  late with everything, the confirmations that it has not read yet blame nobody. It never goes back.
* While all owners are at rest, time passes as on the clock.
* A tick costs what is due: owners at rest, however many, have none. Ticks that take long come more rarely: a thousand
  owners that wait for hosts leave time for the rest.
"""

from collections.abc import Callable, Iterable, Mapping
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
        self._restless_now = trio.Event()
        self._time = OwnerTime(trio.current_time())

    def __len__(self) -> int:
        """How many owners are not at rest."""
        return len(self._restless)

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
                self._restless_now = trio.Event()
                await self._restless_now.wait()
            await trio.sleep(pause_s)
            begin_s = trio.current_time()
            self._time.turn(begin_s)
            now_ms = self._time.now_ms(begin_s)
            for number, (stream, owner) in enumerate(list(self._restless.items()), start=1):
                if self._owners.get(stream) is owner:
                    self._carry_out(owner.tick(now_ms))
                if owner.is_at_rest or self._owners.get(stream) is not owner:
                    self._restless.pop(stream, None)
                if number % TICKS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            pause_s = max(TICK_S, PAUSE_PER_TICK * (trio.current_time() - begin_s))
            self._time.longest_turn_s = TICKS_PER_TURN * pause_s
