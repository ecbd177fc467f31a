"""What the owners of a host say: brought to the listeners of their streams, and to the operator.

Invariants: a listener hears of its stream only, in the order in which its owner speaks. A listener that was refused
room hears of it when something of its stream is acknowledged.
"""

from collections.abc import Callable

from logstore.base.events import Report
from logstore.cluster.interfaces import StreamListener
from logstore.events import MEMBER_FAILED, STREAM_DEPOSED, STREAM_OWNED, STREAM_UNAVAILABLE
from logstore.replica.effects import Acked, Deposed, MemberFailed, Ready, Registered, Unavailable
from logstore.replica.messages import Reason
from logstore.replica.registrations import UNKNOWN_TIME


class OwnerNews:
    """See the module. `deposed` is called when a stream has another owner, `changed` after all other news.

    `waiting`: why streams that this host owns wait. `full`: streams whose listeners wait for room. `takeovers` and
    `member_failures` are counted since the start.
    """

    def __init__(self, report: Report, deposed: Callable[[str], None], changed: Callable[[], None]) -> None:
        self.listeners: dict[str, StreamListener] = {}
        self.waiting: dict[str, str] = {}
        self.full: set[str] = set()
        self.takeovers = self.member_failures = 0
        self._report = report
        self._deposed = deposed
        self._changed = changed

    # ---- what owners ask

    def founding(self, stream: str, base_offset: int) -> bytes:
        """See StreamListener."""
        listener = self.listeners.get(stream)
        return listener.founding(base_offset) if listener is not None else b""

    def written_ms(self, stream: str) -> int:
        """See StreamListener."""
        listener = self.listeners.get(stream)
        return listener.written_ms() if listener is not None else UNKNOWN_TIME

    def chunk_bytes(self, stream: str, default: int) -> int:
        """See StreamListener."""
        listener = self.listeners.get(stream)
        return listener.chunk_bytes if listener is not None else default

    # ---- what owners say

    def acked(self, effect: Acked) -> None:
        """Batches are acknowledged."""
        listener = self.listeners.get(effect.stream)
        if listener is not None:
            listener.acked(effect.high_watermark)
            if effect.stream in self.full:
                self.full.discard(effect.stream)
                listener.room()

    def tell(self, effect: Ready | Registered | Deposed | Unavailable | MemberFailed) -> None:
        """Anything else."""
        listener, report = self.listeners.get(effect.stream), self._report
        if isinstance(effect, Registered):
            if listener is not None:
                listener.registered(effect.registration)
            return
        if isinstance(effect, Ready | Deposed):
            self.waiting.pop(effect.stream, None)
        if isinstance(effect, Ready):
            self.takeovers += effect.epoch > 1
            report(STREAM_OWNED, stream=effect.stream, epoch=effect.epoch, offset=effect.high_watermark)
            if listener is not None:
                listener.ready(effect.epoch, effect.high_watermark)
        elif isinstance(effect, Deposed):
            report(STREAM_DEPOSED, stream=effect.stream, newer_epoch=effect.newer_epoch, unacked=effect.unacked_offset)
            self._deposed(effect.stream)
            if listener is not None:
                listener.deposed(effect.newer_epoch)
        elif isinstance(effect, Unavailable):
            self.waiting[effect.stream] = effect.reason
            report(STREAM_UNAVAILABLE, stream=effect.stream, epoch=effect.epoch, reason=effect.reason)
            if listener is not None:
                listener.unavailable(effect.reason)
        else:
            self.member_failures += 1
            report(MEMBER_FAILED, stream=effect.stream, epoch=effect.epoch, host=effect.host, reason=effect.reason)
            if listener is not None and effect.reason == Reason.DISK_FULL.value:
                listener.crowded()
        self._changed()

    def stream_deleted(self, stream: str, *, is_owned: bool) -> None:
        """The stream's topic was deleted."""
        self.waiting.pop(stream, None)
        self.full.discard(stream)
        listener = self.listeners.get(stream)
        if is_owned and listener is not None:
            listener.deposed(0)
