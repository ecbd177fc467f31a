"""Carries out what owners and replicas ask of the metadata store: reads, swaps and first registrations of streams.

Invariants:
* At most WORKERS requests are under way, and for each stream at most one of each kind; a request that is asked for
  again while it is under way is not made twice at a time. So what waits is bounded by the number of streams.
* A swap goes in front of reads. A swap that failed is not made again by itself: its owner's tick asks again. A read and
  a first registration are made again until they succeed.
* After a failure nothing of that stream and kind is asked of the store for a moment.
* Up to GATHERED requests of different streams that wait at the same time are one call: swaps, reads of what is probably
  as it was kept, or other reads. What such a call does not settle, because another host has changed
  one of the streams, say, is carried out alone behind it: no stream fails because of another one.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import trio

from logstore.base.events import Report
from logstore.base.metadata.errors import MetadataError, MetadataUnavailable, OutcomeUnknown
from logstore.base.metadata.interface import Condition
from logstore.errors import CorruptRegister, UnknownFormatVersion
from logstore.events import METADATA_UNUSABLE
from logstore.replica.register import ReadRegistration, RegistrationRead, SwapAnswer, SwapRegistration
from logstore.replica.registrations import StreamRegistration
from logstore.replica.stored_registrations import StoredRegistrations

WORKERS: Final = 16
GATHERED: Final = 8
"""Most of what a call costs is saved with so few; the answers of more would hold up the event loop."""
ANSWERED_AT_ONCE: Final = 2
"""Streams that hear of what has changed before other tasks run: to open a chunk, or to seal a copy, takes tenths of a
millisecond. That nothing has changed is told at once, so that the swaps that follow are made together too.
"""
PAUSE_S: Final = 0.1
"""After a call to a store that is away: the call has waited already."""
DELAY_KEPT: Final = 0.8
"""Of the longest delay, with each request: a dozen quick ones forget it."""
LONG_PAUSE_S: Final = 2.0
"""After a failure that an operator has to mend."""


class FirstRegistration(NamedTuple):
    """A stream's first registration, and the condition that its topic still exists."""

    registration: StreamRegistration
    topic: Condition


class CreateRegistration(NamedTuple):
    """Write the first registration of a stream; `first` says which, None if it is not wanted any more."""

    stream: str
    first: Callable[[], FirstRegistration | None]


Request = SwapRegistration | ReadRegistration | CreateRegistration
Answer = RegistrationRead | SwapAnswer
Answered = Callable[[Answer], None]
Together = Callable[[Sequence[Any]], Awaitable[Sequence[Answer]]]
"""Carries out requests of one kind; returns the answers of those that it settles."""
Key = tuple[type, str]


class RegistrationRequests:
    """See the module. `answered` is called on the event loop. `run` must run."""

    def __init__(self, registrations: StoredRegistrations, answered: Answered, report: Report) -> None:
        self.registrations = registrations
        self._answered = answered
        self._report = report
        self._waiting: dict[Key, Request] = {}
        self._swaps: dict[Key, Request] = {}
        self._running: dict[Key, Request] = {}
        self._again: dict[Key, Request] = {}
        self._alone: set[Key] = set()
        """What was not settled together with others."""
        self._asked = trio.Event()
        self._asked_s: dict[Key, float] = {}
        """Since when each request waits, the longest first."""
        self._delay_s = 0.0

    @property
    def delay_s(self) -> float:
        """How long requests take at present: the longest of those answered lately, and of those that wait."""
        waiting_s = trio.current_time() - next(iter(self._asked_s.values())) if self._asked_s else 0.0
        return max(self._delay_s, waiting_s)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not (self._waiting or self._swaps or self._running)

    def ask(self, request: Request) -> None:
        """Carry out a request soon."""
        key = (type(request), request.stream)
        running = self._running.get(key)
        if running is None:
            self._asked_s.setdefault(key, trio.current_time())
            self._queue_of(request)[key] = request
            self._asked.set()
        elif not _is_same_swap(running, request):
            self._again[key] = request

    async def run(self) -> None:
        """Carry out requests until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(self._work, nursery)

    # ---- details

    def _queue_of(self, request: Request) -> dict[Key, Request]:
        return self._swaps if isinstance(request, SwapRegistration) else self._waiting

    def _take(self) -> tuple[Together | None, dict[Key, Request]]:
        """The next request, and others that are made together with it, and how; they are under way from now on."""
        queue = self._swaps or self._waiting
        first = list(islice(queue, GATHERED))
        together = [self._together(key, queue[key]) for key in first]
        keys = [key for key, way in zip(first, together, strict=True) if way is not None and way == together[0]]
        taken = {key: queue.pop(key) for key in keys or first[:1]}
        self._alone.difference_update(taken)
        self._running.update(taken)
        return (together[0] if len(taken) > 1 else None), taken

    def _together(self, key: Key, request: Request) -> Together | None:
        """How a request is made together with others; None: it is made alone."""
        registrations = self.registrations
        if key in self._alone or isinstance(request, CreateRegistration):
            return None
        if isinstance(request, SwapRegistration):
            return registrations.swap_together
        return registrations.read_unchanged if registrations.is_kept(request) else registrations.read_changed

    async def _work(self, nursery: trio.Nursery) -> None:
        while True:
            make, taken = self._take()
            if not taken:
                self._asked = trio.Event() if self._asked.is_set() else self._asked
                await self._asked.wait()
                continue
            pause_s, left = await self._perform_together(make, taken)
            for key in taken:
                if key in left:
                    self._alone.add(key)
                    self._queue_of(taken[key])[key] = self._running.pop(key)
                    self._asked.set()
                    continue
                took_s = trio.current_time() - self._asked_s.pop(key)
                if pause_s:  # a store that is away is not slow
                    nursery.start_soon(self._rest, key, pause_s)
                else:
                    self._delay_s = max(took_s, self._delay_s * DELAY_KEPT)
                    self._end(key)

    async def _rest(self, key: Key, pause_s: float) -> None:
        await trio.sleep(pause_s)
        self._end(key)

    def _end(self, key: Key) -> None:
        del self._running[key]
        again = self._again.pop(key, None)
        if again is not None and not self._is_answered(again):
            self.ask(again)

    def _is_answered(self, request: Request) -> bool:
        """Whether a read that was asked for meanwhile would find nothing new: a change is heard of from its owner and
        from the store.
        """
        known = self.registrations.known(request.stream)
        return isinstance(request, ReadRegistration) and known is not None and 0 < request.revision <= known.revision

    async def _perform_together(
        self, make: Together | None, taken: dict[Key, Request]
    ) -> tuple[float, Collection[Key]]:
        """Returns the seconds until the next requests of these streams and their kind, and what is to be made alone."""
        requests = list(taken.values())
        if make is None:
            return await self._perform(requests[0]), ()
        try:
            answers = await make(requests)
        except (MetadataUnavailable, OutcomeUnknown):
            for request in requests:
                self._ask_again(request)
            return PAUSE_S, ()
        except MetadataError:
            return 0, taken  # each says what is wrong
        for number, answer in enumerate(answers, 1):
            self._answered(answer)
            if make != self.registrations.read_unchanged and number % ANSWERED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        settled = {answer.stream for answer in answers}
        return 0, [key for key, request in taken.items() if request.stream not in settled]

    async def _perform(self, request: Request) -> float:
        """Returns the seconds until the next request of this stream and kind."""
        try:
            if isinstance(request, CreateRegistration):
                return await self._create(request)
            answer: Answer
            if isinstance(request, SwapRegistration):
                answer = await self.registrations.swap(request)
            else:
                answer = await self.registrations.read(request)
        except (MetadataUnavailable, OutcomeUnknown):
            self._ask_again(request)
            return PAUSE_S
        except (MetadataError, CorruptRegister, UnknownFormatVersion) as error:
            self._report(METADATA_UNUSABLE, stream=request.stream, error=error)
            self._ask_again(request)
            return LONG_PAUSE_S
        self._answered(answer)
        return 0

    def _ask_again(self, request: Request) -> None:
        if not isinstance(request, SwapRegistration):
            self._again.setdefault((type(request), request.stream), request)

    async def _create(self, request: CreateRegistration) -> float:
        first = request.first()
        if first is None:
            return 0
        if await self.registrations.create(request.stream, first.registration, first.topic):
            known = self.registrations.known(request.stream)
            if known is not None:
                self._answered(known)
            else:
                self.ask(ReadRegistration(request.stream))
            return 0
        self._ask_again(request)  # the topic has changed meanwhile, or is gone
        return PAUSE_S


def _is_same_swap(running: Request, request: Request) -> bool:
    """Whether a swap is asked for again while it is under way: an owner repeats the same object."""
    if isinstance(running, SwapRegistration) and isinstance(request, SwapRegistration):
        is_same = running.registration is request.registration
        return is_same and running.expected_revision == request.expected_revision
    return isinstance(request, CreateRegistration)
