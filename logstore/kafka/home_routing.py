"""Requests of clients about what one host of the cluster has, the home: answered here, or passed on to that host.

A client may ask any host. The host that owns the home's stream has what is asked about; every other one passes the
request on, and gives back the answer.

Invariants:
* A request that a lost host, or a home that is none any more, leaves without an answer is asked again, until PATIENCE_S
  are over: only requests come here that may be asked twice without harm.
* The home serves a request that is passed on no longer than PATIENCE_S: the other host has given it up by then.
* Only members of the cluster pass on.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import trio

from logstore.cluster.streams.owner_calls import OwnerCalls
from logstore.errors import HostUnreachable, MalformedRequest, TryAgain
from logstore.format.epoch_api import encode_reply_body
from logstore.interfaces import Buffer

T = TypeVar("T")

PATIENCE_S: Final = 25.0
"""Less than a client waits for an answer before it connects again."""
FIRST_PAUSE_S: Final = 0.02
MAX_PAUSE_S: Final = 0.5
"""Between two tries, unless the home comes to this host before; each pause is twice as long as the one before."""
TOPIC_WAIT_S: Final = 2.0
"""How long a home may be behind another host in what topics there are."""


class Home(Protocol):
    """Who has what is asked about."""

    @property
    def stream(self) -> str | None:
        """The stream whose owner is the home; None: it is not there, and is being made."""

    async def changed(self) -> None:
        """Wait until this host becomes the home, or is it no more."""


class PassedOn(NamedTuple, Generic[T]):
    """How requests of one kind are passed on. `kind`: of the call between hosts; `what`: the home has, for errors."""

    kind: int
    what: str
    encode: Callable[[T], Sequence[Buffer]]
    decode: Callable[[memoryview], T]
    """Raises MalformedRequest."""


class HomeRouting(Generic[T]):
    """See the module. `answer_here` gives the body of an answer; None: this host is not the home, or is it no more."""

    def __init__(
        self,
        home: Home,
        owners: OwnerCalls,
        passed_on: PassedOn[T],
        answer_here: Callable[[T], Awaitable[list[Buffer] | None]],
    ) -> None:
        self._home = home
        self._owners = owners
        self._form = passed_on
        self._answer_here = answer_here

    async def ask(self, request: T) -> list[Buffer]:
        """The body of the answer to a client's request. Raises TryAgain."""
        pause_s = FIRST_PAUSE_S
        with trio.move_on_after(PATIENCE_S):
            while True:
                answer = await self._try(request)
                if answer is not None:
                    return answer
                with trio.move_on_after(pause_s):
                    await self._home.changed()
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
        raise TryAgain(f"no host of the cluster had {self._form.what} for {PATIENCE_S:g} s; retry")

    async def _try(self, request: T) -> list[Buffer] | None:
        """The answer, or None: ask again."""
        answer = await self._answer_here(request)
        if answer is not None:
            return answer
        stream = self._home.stream
        if stream is None:
            return None
        try:
            found = await self._owners.call(stream, self._form.kind, self._form.encode(request))
        except HostUnreachable:
            return None
        return [found] if len(found) else None

    async def serve(self, _host: str, payload: memoryview) -> Sequence[Buffer]:
        """Answer a request that another host passes on; nothing: this host is not the home."""
        try:
            request = self._form.decode(payload)
        except MalformedRequest as error:
            return encode_reply_body(error)
        answer = None
        with trio.move_on_after(PATIENCE_S):
            answer = await self._answer_here(request)
        return [] if answer is None else answer
