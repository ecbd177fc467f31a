"""Asks hosts for a sign of life, before a client is told that one of them leads a partition.

A process that is killed closes its connections one after the other, and on a busy machine some milliseconds pass
between two of them: a client whose connection has ended may ask another host, whose link to the process is open still.
That host would name a leader that is gone, and librdkafka, which takes that for an answer, asks again after a second.

Invariants:
* A sign of life counts if it was asked for after the client had asked: what a process has sent before says nothing.
* Nobody waits longer than PATIENCE_S, nor for a host whose link has ended. A host that gives no sign in that time, as
  one that is busy or cut off does, is not asked again for SILENT_S.
* One question to a host is under way at a time; all who come meanwhile share the next one. It is not given up with
  those who wait for it: a call that is given up in the middle of its bytes ends the connection, and with it all other
  calls to a host that is only busy.

The question is a call of kind BOUNDS about no stream (`logstore.cluster.streams.owner_calls`).
"""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

import trio

from logstore.cluster.streams.owner_calls import BOUNDS, Calls
from logstore.errors import HostUnreachable
from logstore.format.fields import encode_fields

PATIENCE_S: Final = 0.1
SILENT_S: Final = 1.0
LOOK_S: Final = 0.005
"""Between two looks at a link, while its host gives no sign."""


class _LifeQuestion:
    """To one host; it ends without an answer if the call has failed."""

    def __init__(self) -> None:
        self.has_begun = self.is_answered = False
        self.ended = trio.Event()


class SignsOfLife:
    """See the module. `me`: this host, which is not asked; `is_reachable`: whether the link to a host is up; `spawn`
    runs a task of the host's.
    """

    def __init__(
        self,
        me: str,
        calls: Calls,
        is_reachable: Callable[[str], bool],
        spawn: Callable[[Callable[[], Awaitable[None]]], object],
    ) -> None:
        self._spawn = spawn
        self._me = me
        self._calls = calls
        self._is_reachable = is_reachable
        self._questions: dict[str, _LifeQuestion] = {}
        """The last one to each host."""
        self._turns: dict[str, trio.Lock] = {}
        self._silent_s: dict[str, float] = {}
        """Hosts that gave no sign, and when."""

    async def wait(self, hosts: Iterable[str]) -> None:
        """Wait until each of these hosts has given a sign of life, or its link has ended, or PATIENCE_S is over."""
        linked = [host for host in hosts if host != self._me and self._is_reachable(host)]
        asked = [host for host in linked if not self._is_silent(host)]
        if not asked:
            return
        seen: set[str] = set()
        with trio.move_on_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for host in asked:
                    nursery.start_soon(self._wait_for, host, seen)
        self._silent_s.update(dict.fromkeys((host for host in asked if host not in seen), trio.current_time()))

    def _is_silent(self, host: str) -> bool:
        since_s = self._silent_s.get(host)
        if since_s is not None and trio.current_time() - since_s >= SILENT_S:
            del self._silent_s[host]
            return False
        return since_s is not None

    async def _wait_for(self, host: str, seen: set[str]) -> None:
        """Until it has given a sign, or its link has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask, host, nursery.cancel_scope)
            await self._link_ended(host)
            nursery.cancel_scope.cancel()
        seen.add(host)

    async def _link_ended(self, host: str) -> None:
        while True:
            if not self._is_reachable(host):
                return
            await trio.sleep(LOOK_S)

    async def _ask(self, host: str, scope: trio.CancelScope) -> None:
        """Share the next question to a host, or ask it; when it is answered, the scope ends."""
        is_answered = False
        while not is_answered:
            question = self._questions.get(host)
            if question is None or question.has_begun:
                question = self._questions[host] = _LifeQuestion()
                self._spawn(partial(self._put, host, question))
            await question.ended.wait()
            is_answered = question.is_answered
        scope.cancel()

    async def _put(self, host: str, question: _LifeQuestion) -> None:
        try:
            async with self._turns.setdefault(host, trio.Lock()):
                question.has_begun = True
                question.is_answered = await self._is_answered(host)
        finally:
            question.has_begun = True
            question.ended.set()

    async def _is_answered(self, host: str) -> bool:
        """Call a host. If that fails, whoever waits still asks again."""
        try:
            await self._calls.call(host, BOUNDS, [encode_fields({"streams": []})])
        except HostUnreachable:
            await trio.sleep(LOOK_S)
            return False
        return True
