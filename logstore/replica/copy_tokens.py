"""Which of a host's streams may have a chunk copied now: by the plan of copies, or by the host's own tokens.

A stream asks for a copy with a *wish*: the chunk, its target, and the hosts that it may come from. What answers is a
*go*. While a plan is followed, goes come from the coordinator of copies (`cluster.copies.copy_requests`), which knows
the wishes of all hosts. Without a plan, `limit` streams have a go at a time.

Invariants:
* A stream has one wish or one go. Its go is for the chunk and the target of its wish; without a plan the newest one
  counts.
* Without a plan the neediest wish is next: a chunk with fewer live copies before one with more, what lacks copies
  before what only moves; first come, first served among equals.
* A copy without a source moves nothing (its target may have all of it), and asks nobody. Neither does a copy that its
  stream waits for, which is not asked for here at all.
* A go from the plan is for a chunk, whatever its size. Where chunks are small it is *shared*, by SHARED_BYTES of them
  in all and SHARED_CHUNKS at a time: other streams of this host that wish for copies as needy, from the same source to
  the same target, have a go at the same time, and each stream may go on with its next chunk. The plan hears that a
  shared go has ended when its last copy has.
* Copies that share a go are registered together, in one call, where they end within a moment of each other: a stream
  whose copy is whole waits for the others (`awaits_others`), and hears when there are no more to wait for, or when one
  of them has waited for long enough (`registers`): then all that are whole go with that one.
* Goes are pace alone. A go that came from a coordinator that has been replaced does no harm; goes stay when a plan is
  followed, or no longer.
* No clock, no I/O.

Sources: SGuard, section 5 (writes wait until a scheduler says when); HDFS's levels of re-replication (fewest replicas
first).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

COPIES_AT_ONCE: Final = 8
"""Chunks that the owners of one host have copied at a time without a plan: enough to keep several targets at work, and
few enough that orders which are repeated while targets make them wait cost nothing.
"""
SHARED_CHUNKS: Final = 8
"""As many as share the calls of the metadata store that a copy costs."""
SHARED_BYTES: Final = 16 << 20
"""What is copied in two seconds where appends let copies be no faster than they must: others wait no longer than they
do for one chunk of common size.
"""
LEAST_BYTES: Final = 64 << 10
"""What a chunk counts for at least: the smallest ones cost calls and syncs too."""


class CopyWish(NamedTuple):
    """A copy that a stream wants: of the chunk with this epoch, to `target`, from one of `sources`.

    `live`: copies of the chunk that are alive; `is_move`: they are enough, but some are on hosts that leave;
    `size_bytes`: of the chunk, which the plan is not told; 0: it is not known, so it is copied by a go of its own.
    """

    epoch: int
    target: str
    sources: tuple[str, ...]
    live: int
    is_move: bool = False
    size_bytes: int = 0

    @property
    def counted_bytes(self) -> int:
        """What it counts for where a go is shared; as much as there may be if its size is not known."""
        return max(self.size_bytes, LEAST_BYTES) if self.size_bytes else SHARED_BYTES

    @property
    def need(self) -> tuple[bool, int]:
        """What is least is needed most."""
        return (self.is_move, self.live)


class CopyGo(NamedTuple):
    """The chunk of this epoch may be copied now, from `source` ("": the target may have all of it)."""

    epoch: int
    target: str
    source: str


@dataclass(slots=True)
class _SharedGo:
    """A go of the plan: the streams that use it, how many bytes of further chunks it is for, and the streams whose
    copies are whole and not registered yet.
    """

    streams: set[str]
    left_bytes: int
    whole: set[str] = field(default_factory=set)
    due: set[str] = field(default_factory=set)
    """Those of them that wait for nobody any more."""

    def forget(self, stream: str) -> None:
        """The copy of a stream was registered, or given up."""
        self.whole.discard(stream)
        self.due.discard(stream)


C = TypeVar("C", CopyWish, CopyGo)


class CopyTokens:
    """See the module. `wake` is told of a stream that waited and has a go now: its owner is to have a tick."""

    def __init__(self, limit: int = COPIES_AT_ONCE, wake: Callable[[str], None] = lambda stream: None) -> None:
        self._limit = limit
        self._wake = wake
        self._held: dict[str, CopyGo] = {}
        self._waiting: dict[str, CopyWish] = {}
        self._shared: dict[str, _SharedGo] = {}
        """Of streams with a go from the plan."""
        self._last: set[str] = set()
        """Of streams with a go: those whose chunk has one copy left."""
        self._targets: Counter[str] = Counter()
        """How many of both each host is to get: asked for with each choice of a target, of which there are thousands
        when a host is lost.
        """
        self.changed: Callable[[], None] = lambda: None
        """Called when there is another wish, or one less, or one go less."""
        self.is_planned = False
        self.elsewhere: Mapping[str, int] = {}
        """Copies to each host that other hosts wish for or make, as the plan tells."""

    @property
    def counts(self) -> tuple[int, int]:
        """How many streams have a go, and how many wait for one."""
        return len(self._held), len(self._waiting)

    @property
    def held(self) -> Mapping[str, CopyGo]:
        """Goes by stream."""
        return self._held

    @property
    def waiting(self) -> Mapping[str, CopyWish]:
        """Wishes by stream, in the order in which they came."""
        return self._waiting

    def targets(self, without: str = "") -> Counter[str]:
        """How many copies each host is to get, but for those of one stream."""
        found = self._targets + Counter(self.elsewhere)
        for copy in (self._held.get(without), self._waiting.get(without)):
            if copy is not None:
                found[copy.target] -= 1
        return found

    def last_copies(self) -> set[tuple[str, str]]:
        """Source and target of copies that are made of chunks with one copy left."""
        return {(go.source, go.target) for stream in self._last if (go := self._held[stream]).source}

    def take(self, stream: str, wish: CopyWish) -> CopyGo | None:
        """The stream's go for what it wishes; None: it waits for one."""
        held = self._held.get(stream)
        if held is not None and (held.epoch, held.target) == (wish.epoch, wish.target):
            return held
        if not wish.sources or (held is not None and not self.is_planned):
            return self._go(stream, wish)
        if held is not None and self._goes_on(stream, held, wish):
            return self._go(stream, wish, held.source)
        if held is not None:
            self.give_back(stream)
        if not self.is_planned and len(self._held) < self._limit:
            return self._go(stream, wish)
        if self._waiting.get(stream) != wish:
            self._note(self._waiting, stream, wish)
            self.changed()
        return None

    def checked(self, stream: str) -> None:
        """The stream's copy is whole, and is to be registered."""
        shared = self._shared.get(stream)
        if shared is not None:
            shared.whole.add(stream)
            self._look_at(shared)

    def awaits_others(self, stream: str) -> bool:
        """Whether copies that share the stream's go are not whole yet, so that its own may wait to be registered."""
        shared = self._shared.get(stream)
        return shared is not None and stream not in shared.due

    def registers(self, stream: str) -> None:
        """The stream's copy is registered now; what shares its go and is whole goes with it."""
        shared = self._shared.get(stream)
        if shared is not None:
            self._end_waiting(shared)

    def _look_at(self, shared: _SharedGo) -> None:
        if shared.whole >= shared.streams:
            self._end_waiting(shared)

    def _end_waiting(self, shared: _SharedGo) -> None:
        fresh = sorted(shared.whole - shared.due)
        shared.due |= shared.whole
        for each in fresh:
            self._wake(each)

    def made(self, stream: str) -> None:
        """The stream's copy is made, and registered. While there is room in its go, that stays until the stream has
        looked for another chunk, and taken it or given the go back.
        """
        shared = self._shared.get(stream)
        if shared is not None:
            shared.forget(stream)
        if shared is None or not self.is_planned or shared.left_bytes < LEAST_BYTES:
            self.give_back(stream)

    def give_back(self, stream: str) -> None:
        """The stream neither copies nor waits: without a plan, the neediest of the others is next."""
        shared = self._shared.pop(stream, None)
        if shared is not None:
            shared.streams.discard(stream)
            shared.forget(stream)
            self._look_at(shared)
        self._last.discard(stream)
        if not (self._note(self._waiting, stream, None) or self._note(self._held, stream, None)):
            return
        if shared is None or not shared.streams:
            self.changed()
        self._go_on()

    # ---- the plan

    def follow_plan(self, *, is_planned: bool) -> None:
        """Goes come from a plan from now on, or not any more."""
        self.is_planned = is_planned
        if not is_planned:
            self.elsewhere = {}
        self._go_on()

    def granted(self, stream: str, go: CopyGo) -> bool:
        """The plan has a go for a stream; whether it still wants that."""
        wish = self._waiting.get(stream)
        if wish is None or (wish.epoch, wish.target) != (go.epoch, go.target) or go.source not in wish.sources:
            return self._held.get(stream) == go
        streams = self._sharing(stream, wish, go)
        for each in streams:
            self._go(each, self._waiting[each], go.source)
        for each in streams:
            self._wake(each)
        return True

    # ---- goes

    def _sharing(self, stream: str, wish: CopyWish, go: CopyGo) -> list[str]:
        """The streams that use a go of the plan, which is for the first one."""
        streams, left_bytes = [stream], SHARED_BYTES - wish.counted_bytes
        for other, also in self._waiting.items():
            is_alike = also.target == go.target and go.source in also.sources and also.need == wish.need
            if other != stream and is_alike and also.counted_bytes <= left_bytes and len(streams) < SHARED_CHUNKS:
                streams.append(other)
                left_bytes -= also.counted_bytes
        self._shared.update(dict.fromkeys(streams, _SharedGo(set(streams), left_bytes)))
        return streams

    def _goes_on(self, stream: str, held: CopyGo, wish: CopyWish) -> bool:
        """Whether a go of the plan is for another chunk of a stream now."""
        shared = self._shared.get(stream)
        if shared is None or wish.target != held.target or held.source not in wish.sources or not self.is_planned:
            return False
        if wish.counted_bytes > shared.left_bytes:
            return False
        shared.left_bytes -= wish.counted_bytes
        return True

    def _go(self, stream: str, wish: CopyWish, source: str = "") -> CopyGo:
        self._note(self._waiting, stream, None)
        source = source or (wish.sources[0] if wish.sources else "")
        go = CopyGo(wish.epoch, wish.target, source)
        self._note(self._held, stream, go)
        if wish.live <= 1 and not wish.is_move:
            self._last.add(stream)
        else:
            self._last.discard(stream)
        return go

    def _note(self, copies: dict[str, C], stream: str, copy: C | None) -> bool:
        """What a stream has among these copies now; whether it had one before."""
        before = copies.get(stream)
        if before is not None:
            self._targets[before.target] -= 1
        if copy is None:
            copies.pop(stream, None)
        else:
            copies[stream] = copy  # in the place that it had
            self._targets[copy.target] += 1
        return before is not None

    def _go_on(self) -> None:
        """Without a plan: as many goes as there may be."""
        while not self.is_planned and self._waiting and len(self._held) < self._limit:
            stream = min(self._waiting, key=lambda each: self._waiting[each].need)
            self._go(stream, self._waiting[stream])
            self._wake(stream)
