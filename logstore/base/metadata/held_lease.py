"""A lease that is kept alive as long as its holder runs, and the time for which it surely lasts.

Invariants:
* `held` is true only while the store cannot have ended the lease: its time is counted from when a call was sent, not
  from when it was answered, and a part of it (MARGIN) is given away for clocks of different speed. A machine that was
  suspended does not notice that by this clock.
* When the lease has ended, or can no longer be known to last, `run` raises LeaseEnded. When `run` is cancelled, it ends
  the lease, so a planned stop frees what is bound to it at once.
"""

from typing import Final

import trio

from logstore.base.metadata.errors import LeaseEnded, MetadataUnavailable
from logstore.base.metadata.interface import MetadataStore

MARGIN: Final = 0.1
SHARE_BETWEEN_CALLS: Final = 1 / 3
"""Of the lease's time: two calls may fail before it ends."""
PAUSE_S: Final = 0.1
"""Between calls that fail at once."""
FAREWELL_S: Final = 1.0
"""How long a cancelled holder tries to end its lease; it ends by itself otherwise."""


class HeldLease:
    """See the module. `lease_id` is 0 until `run` has started."""

    def __init__(self, store: MetadataStore, ttl_s: int) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._surely_until_s = float("-inf")
        self.lease_id = 0

    @property
    def held(self) -> bool:
        """Whether the lease surely lasts at this moment."""
        return trio.current_time() < self._surely_until_s

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take the lease, keep it alive until cancelled. Raises LeaseEnded, and what `MetadataStore` raises."""
        sent_s = trio.current_time()
        lease = await self._store.grant_lease(self._ttl_s)
        self.lease_id = lease.lease_id
        self._lasts(sent_s, lease.ttl_s)
        task_status.started()
        try:
            while True:
                await trio.sleep(lease.ttl_s * SHARE_BETWEEN_CALLS)
                await self._keep_alive()
        finally:
            self._surely_until_s = float("-inf")
            with trio.move_on_after(FAREWELL_S, shield=True):
                await self._farewell()

    async def _keep_alive(self) -> None:
        """One call that succeeds, while there is time. Raises LeaseEnded."""
        with trio.move_on_at(self._surely_until_s):
            while True:
                sent_s = trio.current_time()
                try:
                    lease = await self._store.keep_alive(self.lease_id)
                except MetadataUnavailable:
                    await trio.sleep(PAUSE_S)
                    continue
                self._lasts(sent_s, lease.ttl_s)
                return
        raise LeaseEnded(self.lease_id)

    async def _farewell(self) -> None:
        try:
            await self._store.revoke_lease(self.lease_id)
        except MetadataUnavailable:
            return  # it ends by itself

    def _lasts(self, sent_s: float, ttl_s: int) -> None:
        self._surely_until_s = sent_s + ttl_s * (1 - MARGIN)
