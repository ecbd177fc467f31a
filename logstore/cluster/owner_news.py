"""What the owners of a host say: brought to the observers of their streams, and to the operator.

Invariants: an observer hears of its stream only, in the order in which its owner speaks. An observer that was refused
room hears of it when something of its stream is acknowledged.
"""

from collections.abc import Callable, Collection

from logstore.base.events import Report
from logstore.cluster.interfaces import StreamObserver
from logstore.events import MEMBER_FAILED, STREAM_DEPOSED, STREAM_OWNED, STREAM_UNAVAILABLE
from logstore.replica.effects import (
    Acked,
    Deposed,
    EnoughMembers,
    MemberFailed,
    Readable,
    Ready,
    Registered,
    StreamUnavailable,
    TooFewMembers,
)
from logstore.replica.messages import Reason
from logstore.replica.owner import Owner
from logstore.replica.registrations import UNKNOWN_TIME


class OwnerNews:
    """See the module. `deposed` is called when a stream has another owner, `changed` after all other news.

    `waiting`: why streams that this host owns wait. `readable`: those that take no appends yet, and may be read.
    `short`: how many members those need that have too few. `full`: streams whose observers wait for room. `takeovers`
    and `member_failures` are counted since the start.
    """

    def __init__(self, report: Report, deposed: Callable[[str], None], changed: Callable[[], None]) -> None:
        self.observers: dict[str, StreamObserver] = {}
        self.waiting: dict[str, str] = {}
        self.readable: dict[str, Readable] = {}
        self.short: dict[str, int] = {}
        self.full: set[str] = set()
        self.takeovers = self.member_failures = 0
        self._report = report
        self._deposed = deposed
        self._changed = changed

    @property
    def figures(self) -> tuple[int, int, Collection[str], Collection[str]]:
        """Takeovers and members that failed since the start, streams that refuse producers, and streams that wait."""
        return self.takeovers, self.member_failures, self.short.keys(), self.waiting.keys()

    # ---- what owners ask

    def founding(self, stream: str, base_offset: int) -> bytes:
        """See StreamObserver."""
        observer = self.observers.get(stream)
        return observer.founding(base_offset) if observer is not None else b""

    def written_ms(self, stream: str) -> int:
        """See StreamObserver."""
        observer = self.observers.get(stream)
        return observer.written_ms() if observer is not None else UNKNOWN_TIME

    def chunk_bytes(self, stream: str, default: int) -> int:
        """See StreamObserver."""
        observer = self.observers.get(stream)
        return observer.chunk_bytes if observer is not None else default

    # ---- what owners say

    def acked(self, effect: Acked) -> None:
        """Batches are acknowledged."""
        observer = self.observers.get(effect.stream)
        if observer is not None:
            observer.acked(effect.high_watermark)
            if effect.stream in self.full:
                self.full.discard(effect.stream)
                observer.room()

    def tell_short(self, stream: str) -> None:
        """Tell the observer of a stream if it has too few members."""
        observer, needed = self.observers.get(stream), self.short.get(stream)
        if observer is not None and needed is not None:
            observer.short(needed)

    def tell_waiting(self, stream: str, owner: Owner | None) -> None:
        """Tell the observer of a stream that takes no appends why it waits, and whether it may be read."""
        observer, readable = self.observers.get(stream), self.readable.get(stream)
        if observer is not None and stream in self.waiting:
            observer.unavailable(self.waiting[stream])
        if observer is not None and readable is not None and owner is not None:
            observer.registered(owner.registration)
            observer.readable(readable.epoch, readable.end, is_settled=readable.is_settled)
            self.tell_short(stream)

    def _tell_shortage(self, effect: TooFewMembers | EnoughMembers) -> None:
        if isinstance(effect, TooFewMembers):
            self.short[effect.stream] = effect.needed
            self.tell_short(effect.stream)
            return
        self.short.pop(effect.stream, None)
        self.waiting.pop(effect.stream, None)
        observer = self.observers.get(effect.stream)
        if observer is not None:
            observer.enough()

    def _begins(self, effect: Ready | Readable) -> None:
        """This host owns a stream, and serves all its clients or its readers."""
        observer = self.observers.get(effect.stream)
        if isinstance(effect, Readable):
            self.readable[effect.stream] = effect
            if observer is not None:
                observer.readable(effect.epoch, effect.end, is_settled=effect.is_settled)
            return
        self.takeovers += effect.epoch > 1
        names = {"stream": effect.stream, **({} if observer is None else {"partition": observer.name})}
        self._report(STREAM_OWNED, **names, epoch=effect.epoch, offset=effect.high_watermark)
        if observer is not None:
            observer.ready(effect.epoch, effect.high_watermark)

    def tell(
        self,
        effect: Ready
        | Readable
        | Registered
        | Deposed
        | StreamUnavailable
        | TooFewMembers
        | EnoughMembers
        | MemberFailed,
    ) -> None:
        """Anything else."""
        observer, report = self.observers.get(effect.stream), self._report
        names = {"stream": effect.stream, **({} if observer is None else {"partition": observer.name})}
        if isinstance(effect, Registered):
            if observer is not None:
                observer.registered(effect.registration)
            return
        if isinstance(effect, TooFewMembers | EnoughMembers):
            self._tell_shortage(effect)
            return
        if isinstance(effect, Ready | Deposed):
            self._forget_wait(effect.stream)
        if isinstance(effect, Ready | Readable):
            self._begins(effect)
        elif isinstance(effect, Deposed):
            report(STREAM_DEPOSED, **names, newer_epoch=effect.newer_epoch, unacked=effect.unacked_offset)
            self._deposed(effect.stream)
            if observer is not None:
                observer.deposed(effect.newer_epoch)
        elif isinstance(effect, StreamUnavailable):
            self.waiting[effect.stream] = effect.reason
            report(STREAM_UNAVAILABLE, **names, epoch=effect.epoch, reason=effect.reason)
            if observer is not None:
                observer.unavailable(effect.reason)
        else:
            self.member_failures += 1
            report(MEMBER_FAILED, **names, epoch=effect.epoch, host=effect.host, reason=effect.reason)
            if observer is not None and effect.reason == Reason.DISK_FULL.value:
                observer.crowded()
        self._changed()

    def _forget_wait(self, stream: str) -> None:
        for told in (self.waiting, self.readable, self.short):
            told.pop(stream, None)

    def stream_deleted(self, stream: str, *, is_owned: bool) -> None:
        """The stream's topic was deleted."""
        self._forget_wait(stream)
        self.full.discard(stream)
        observer = self.observers.get(stream)
        if is_owned and observer is not None:
            observer.deposed(0)
