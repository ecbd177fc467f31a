"""A lease that is kept alive as long as its holder runs, and the time for which it surely lasts.

Invariants:
* `held` is true only while the store cannot have ended the lease: its time is counted from when a call was sent, not
  from when it was answered, and a part of it (MARGIN) is given away for clocks of different speed. A machine that was
  suspended does not notice that by this clock.
* A call is sent in each third of the lease's time, whether the calls before it are answered or not: an answer that
  comes late, as from a store with too little processor time, counts as well, and a store that holds up one call does
  not hold up the next. CALLS_AT_ONCE wait for answers at most; one whose answer would come too late to count is given
  up.
* The lease has ended when the store says so, or when nothing was heard of it for a lease's time behind the time for
  which it surely lasted. Until then `held` is false, and an answer makes it true again: a holder that stood still, or a
  store that was away for a moment, costs nobody anything if the store kept the lease.
* A store that refuses a call (its user, its certificate) has not ended the lease: it is asked again and again, until
  the lease has ended like that of a store which is silent.
* When it has ended, `run` raises LeaseEnded. When `run` is cancelled, it ends the lease, so a planned stop frees what
  is bound to it at once.
"""

from collections.abc import Callable
from typing import Final

import trio

from logstore.base.metadata.errors import LeaseEnded, MetadataError, MetadataRefused, MetadataUnavailable
from logstore.base.metadata.interface import MetadataStore

MARGIN: Final = 0.1
SHARE_BETWEEN_CALLS: Final = 1 / 3
"""Of the lease's time: two calls may fail before it ends."""
CALLS_AT_ONCE: Final = 3
PAUSE_S: Final = 0.1
"""Between calls that fail at once."""
REFUSED_PAUSE_SHARE: Final = 1 / 6
"""Of the lease's time, before the one call that goes on of those that are refused: each may cost the store a login."""
FAREWELL_S: Final = 1.0
"""How long a cancelled holder tries to end its lease; it ends by itself otherwise."""


class HeldLease:
    """See the module. `lease_id` is 0 until `run` has started."""

    def __init__(self, store: MetadataStore, ttl_s: int) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._surely_until_s = float("-inf")
        self._calls = 0
        """That wait for an answer."""
        self.lease_id = 0

    @property
    def held(self) -> bool:
        """Whether the lease surely lasts at this moment."""
        return trio.current_time() < self._surely_until_s

    @property
    def held_for_s(self) -> float:
        """For how long the lease surely lasts from now on."""
        return max(0.0, self._surely_until_s - trio.current_time())

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take the lease, keep it alive until cancelled. Raises LeaseEnded, and what `MetadataStore` raises."""
        sent_s = trio.current_time()
        lease = await self._store.grant_lease(self._ttl_s)
        self.lease_id = lease.lease_id
        self._lasts(sent_s, lease.ttl_s)
        task_status.started()
        try:
            raise await self._keep_alive(lease.ttl_s)
        finally:
            self._surely_until_s = float("-inf")
            with trio.move_on_after(FAREWELL_S, shield=True):
                await self._farewell()

    async def _keep_alive(self, ttl_s: int) -> MetadataError:
        """Call until the lease has ended; returns why it has."""
        ends: list[MetadataError] = []
        async with trio.open_nursery() as nursery:

            def end(error: MetadataError) -> None:
                ends.append(error)
                nursery.cancel_scope.cancel()

            nursery.start_soon(self._give_up, ttl_s, end)
            nursery.start_soon(self._call_regularly, ttl_s, end, nursery)
        return ends[0]

    async def _call_regularly(self, ttl_s: int, end: Callable[[MetadataError], None], nursery: trio.Nursery) -> None:
        while True:
            await trio.sleep(ttl_s * SHARE_BETWEEN_CALLS)
            if self._calls < CALLS_AT_ONCE:
                nursery.start_soon(self._call, ttl_s, end)

    async def _give_up(self, ttl_s: int, end: Callable[[MetadataError], None]) -> None:
        """Wait until nothing was heard of the lease for too long."""
        while (until_s := self._surely_until_s + ttl_s) > trio.current_time():  # noqa: ASYNC110 - time is no event
            await trio.sleep_until(until_s)
        end(LeaseEnded(self.lease_id))

    async def _call(self, ttl_s: int, end: Callable[[MetadataError], None]) -> None:
        """One call that is answered, or none as long as its answer would count."""
        self._calls += 1
        try:
            with trio.move_on_after(ttl_s * (1 - MARGIN)):
                while True:
                    sent_s = trio.current_time()
                    try:
                        lease = await self._store.keep_alive(self.lease_id)
                    except MetadataUnavailable:
                        await trio.sleep(PAUSE_S)
                        continue
                    except MetadataRefused:
                        if self._calls > 1:
                            return  # another one waits, and tries again if it is refused too
                        await trio.sleep(max(PAUSE_S, ttl_s * REFUSED_PAUSE_SHARE))
                        continue
                    self._lasts(sent_s, lease.ttl_s)
                    return
        except MetadataError as error:
            end(error)
        finally:
            self._calls -= 1

    async def _farewell(self) -> None:
        try:
            await self._store.revoke_lease(self.lease_id)
        except (MetadataUnavailable, MetadataRefused):
            return  # it ends by itself

    def _lasts(self, sent_s: float, ttl_s: int) -> None:
        self._surely_until_s = max(self._surely_until_s, sent_s + ttl_s * (1 - MARGIN))
