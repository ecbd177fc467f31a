"""Look-ups of host names, on threads of their own: a resolver that hangs holds up those who ask it, and nobody else.

Programs call `look_names_up_apart` when their event loop begins. Without that, each look-up takes one of the 40 threads
that trio gives to all who do not ask for others, and keeps it until the resolver gives up, though who asked has long
gone: then looks at certificates, heap and files wait for a thread.

Invariants:
* At most MAX_LOOKUPS threads look names up, and MAX_OF_ONE of them the same name. Who asks when they are all in use
  waits for one, as long as it likes.
* Who asks for a name that is being looked up gets that answer. A look-up that takes longer than AGAIN_S may have lost
  its question on the way, so the next one who asks begins another one, and the first answer is everybody's.
* Waiting can be given up at any moment; the thread goes on until the resolver answers or gives up.
"""

import socket
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import trio

MAX_LOOKUPS: Final = 32
MAX_OF_ONE: Final = 4
AGAIN_S: Final = 1.0
"""As long as a host waits for a connection to another one."""
THREAD: Final = "name look-up"
"""The name of the threads."""
FAILURES: Final = (OSError, ValueError, TypeError)
"""Of a look-up: the latter two are of names that nobody can have."""


Resolve = Callable[[bytes | None, bytes | str | int | None, int, int, int, int], Any]
"""What `socket.getaddrinfo` does. Blocks. Raises OSError."""


def look_names_up_apart(resolve: Resolve = socket.getaddrinfo) -> None:
    """From now on, all look-ups of this run of trio are made as the module says, unless somebody has said otherwise."""
    former = trio.socket.set_custom_hostname_resolver(NameLookups(resolve))
    if former is not None:
        trio.socket.set_custom_hostname_resolver(former)


class _Answer(NamedTuple):
    """What a resolver returned or raised."""

    found: Any = None
    error: Exception | None = None


class _Question:
    """A name that is being looked up, by so many threads; `begun_s`: the last of them."""

    def __init__(self) -> None:
        self.threads = 0
        self.begun_s = 0.0
        self.answered = trio.Event()
        self.answer = _Answer()

    @property
    def may_be_lost(self) -> bool:
        """Whether another thread should ask as well."""
        return self.threads < MAX_OF_ONE and trio.current_time() - self.begun_s >= AGAIN_S


class NameLookups(trio.abc.HostnameResolver):
    """See the module. `threads`: how many look names up."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._questions: dict[Hashable, _Question] = {}
        self._room = trio.lowlevel.ParkingLot()
        self.threads = 0

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,  # noqa: A002  trio's name
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        """See socket.getaddrinfo."""
        key = (host, port, family, type, proto, flags)
        return await self._ask(key, partial(self._resolve, *key))

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        """See socket.getnameinfo."""
        found: tuple[str, str] = await self._ask((sockaddr, flags), partial(socket.getnameinfo, sockaddr, flags))
        return found

    async def _ask(self, key: Hashable, look: Callable[[], Any]) -> Any:
        question = self._question(key, look)
        while question is None:
            await self._room.park()
            question = self._question(key, look)
        await question.answered.wait()
        found, error = question.answer
        if error is not None:
            raise type(error)(*error.args) from error  # each who asked has an error of its own
        return found

    def _question(self, key: Hashable, look: Callable[[], Any]) -> _Question | None:
        """The question to wait for; None: there is none, and no thread to ask it."""
        question = self._questions.get(key)
        if (question is None or question.may_be_lost) and self.threads < MAX_LOOKUPS:
            question = self._questions.setdefault(key, _Question())
            question.threads += 1
            question.begun_s = trio.current_time()
            self.threads += 1
            loop = trio.lowlevel.current_trio_token()
            tell = partial(self._answered, key, question)
            trio.lowlevel.start_thread_soon(partial(_looked, look), partial(_deliver, loop, tell), THREAD)
        return question

    def _answered(self, key: Hashable, question: _Question, answer: Any) -> None:
        self.threads -= 1
        question.threads -= 1
        self._room.unpark_all()
        if not question.answered.is_set():
            del self._questions[key]
            question.answer = answer.unwrap()
            question.answered.set()


# ---- on threads


def _looked(look: Callable[[], Any]) -> _Answer:
    try:
        return _Answer(look())
    except FAILURES as error:
        return _Answer(error=error)


def _deliver(loop: trio.lowlevel.TrioToken, tell: Callable[[Any], None], answer: Any) -> None:
    with suppress(trio.RunFinishedError):
        loop.run_sync_soon(tell, answer)
