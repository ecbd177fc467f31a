"""A ledger of groups that takes nothing which would wait for long: its stream lacks members, or what was put waits.

Kafka refuses such writes with NOT_ENOUGH_REPLICAS, which its coordinator passes on as COORDINATOR_NOT_AVAILABLE;
clients look for the coordinator again, and ask again.

Invariants: what is refused is not written, neither now nor later. What was put stays, also if whoever asked for it was
answered early; so no more waits than is put within WRITE_LIMIT_S, whatever clients send again meanwhile.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from logstore.base.clock import Clock
from logstore.errors import StorageFailed
from logstore.kafka.groups.offsets import OffsetLedger
from logstore.kafka.groups.settings import WRITE_LIMIT_S
from logstore.log.ticket import Ticket


class LimitedLedger:
    """The ledger in `ledger`; `lacks_members`: whether it is known that what is put now has to wait for a host."""

    def __init__(self, ledger: OffsetLedger, lacks_members: Callable[[], bool], clock: Clock) -> None:
        self._ledger = ledger
        self._lacks_members = lacks_members
        self._clock = clock
        self._put_s: deque[float] = deque()
        """When each put that has not settled was made: they settle in order."""

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """See OffsetLedger."""
        return self._ledger.items(prefix)

    def put(self, changes: Mapping[str, bytes | None]) -> Ticket[None]:
        """See OffsetLedger. The ticket fails at once if the ledger takes nothing now."""
        now_s = self._clock.monotonic_s()
        if self._lacks_members():
            return Ticket.failed(StorageFailed("too few hosts live that can have the topic of groups; start another"))
        if self._put_s and now_s - self._put_s[0] >= WRITE_LIMIT_S:
            return Ticket.failed(StorageFailed(f"the topic of groups has confirmed nothing for {WRITE_LIMIT_S:g} s"))
        written = self._ledger.put(changes)
        if not written.done:
            self._put_s.append(now_s)
            written.add_callback(self._settled)
        return written

    def _settled(self, _: Ticket[None]) -> None:
        self._put_s.popleft()
