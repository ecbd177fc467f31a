"""A watch over the connections that it needs, one after the other.

Invariants:
* `_position` is the newest revision delivered or queued whole. A connection asks from it on, and what it sends up to it
  is dropped: nothing is lost or delivered twice, whatever a connection cut off or etcd repeats.
* A connection asks from `_position`, not from behind it: etcd 3.4.23 drops a removal whose revision is the one
  compacted to, so that only a watch which begins one earlier is told that something is missing.
* Events of one revision are delivered together, and only once a message says that no more of them follow, or has events
  of a later revision: etcd sends them in the order of revisions. So those of one revision are kept at most, and where
  they are more than MAX_UNFINISHED_BYTES, the watch ends as if they had been compacted: who watches reads again.
* `receive` may be given up at any moment: the connection goes on.
* A connection that is quiet lives only as long as its endpoint answers.
"""

from collections import deque
from typing import Final

import trio

from logstore.base.metadata.errors import Compacted, MetadataError, MetadataRefused, MetadataUnavailable
from logstore.base.metadata.etcd.connections import ConnectionFailed, EtcdExchange
from logstore.base.metadata.etcd.messages import (
    OLD_LOGIN,
    BadAnswer,
    EtcdError,
    Json,
    WatchAnswer,
    get_request,
    grouped,
    header_of,
    watch_answer,
    watch_request,
)
from logstore.base.metadata.etcd.transport import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    AttemptFailed,
    EtcdTransport,
)
from logstore.base.metadata.interface import Changes, Event
from logstore.base.metadata.state import behind

MAX_LINE_BYTES: Final = 16 << 20
"""etcd cuts the messages of a watch at 2 MiB, or at one transaction's events, before they become base64."""
MAX_UNFINISHED_BYTES: Final = 32 << 20
"""Of one revision. A transaction of a host has 1 MiB at most; an operator's may remove a whole namespace."""
EVENT_BYTES: Final = 256
"""What an event takes beside its key and value."""
RANGE: Final = "kv/range"
LOGIN_WORDS: Final = ("permission denied", "auth token", "user name is empty", OLD_LOGIN)
"""etcd gives a watch that it refuses no code, only these words."""


class EtcdWatch:
    """See Watch. The caller closes it."""

    def __init__(self, transport: EtcdTransport, prefix: str, after_revision: int) -> None:
        self._transport = transport
        self._namespace = transport.settings.namespace
        self._prefix = prefix
        self._position = after_revision
        self._ready: deque[Changes] = deque()
        self._connection: _WatchConnection | None = None
        self._endpoint = ""
        self._unfinished: list[tuple[int, Event]] = []
        self._end: Compacted | None = None
        self._refused = False
        """The last connection was refused."""
        self._token = ""
        """With which it was opened."""

    async def receive(self) -> Changes:
        """See Watch."""
        await trio.lowlevel.checkpoint()
        pause_s = FIRST_PAUSE_S
        while not self._ready:
            if self._end is not None:
                raise self._end
            try:
                if self._connection is None or not self._connection.is_begun:
                    await self.close()
                    await self._connect()
                await self._listen()
                pause_s = FIRST_PAUSE_S
            except (AttemptFailed, EtcdError) as failure:
                await self.close()
                self._transport.failed(self._endpoint, str(failure))
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return self._ready.popleft()

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        self._unfinished = []  # they come again
        if connection is not None:
            await connection.close()

    # ---- details

    async def _connect(self) -> None:
        """Open a connection, and check that what it will send follows `_position`."""
        transport = self._transport
        self._endpoint = transport.endpoint
        body = watch_request(self._namespace + self._prefix, max(self._position, 1))
        self._connection = connection = _WatchConnection(await transport.open_stream(self._endpoint, "watch", body))
        self._token = transport.token
        answer = None
        with trio.move_on_after(transport.limits.limit_s()):
            answer = await self._next_answer()
        if answer is None or not answer.created:
            raise AttemptFailed(f"{self._endpoint} did not begin a watch", made_perhaps=False)
        self._check_cancelled(answer)
        if answer.header.revision < self._position:
            await self._check_position()
        connection.is_begun = True
        if transport.statistics.away:
            transport.statistics.watches_resumed += 1
        transport.answered()

    async def _check_position(self) -> None:
        """A member may be behind the others, but all together are not. Raises MetadataDamaged, AttemptFailed."""
        try:
            answer = await self._transport.call(RANGE, self._probe())
        except MetadataUnavailable as away:  # a watch waits
            raise AttemptFailed(str(away), made_perhaps=False) from away
        revision = header_of(answer).revision
        if revision < self._position:
            raise behind(self._position, revision)

    async def _listen(self) -> None:
        """Take in one message."""
        answer = await self._next_answer()
        self._check_cancelled(answer)
        self._refused = False
        # Those of `_position` come again on each connection, and may be too many to be kept.
        events = [*self._unfinished, *(event for event in answer.events if event[0] > self._position)]
        newest = events[-1][0] if events and answer.unfinished else None
        self._unfinished = [event for event in events if event[0] == newest]
        for changes in grouped(events[: len(events) - len(self._unfinished)]):
            self._ready.append(changes)
            self._position = changes.revision
        if sum(map(_size, self._unfinished)) > MAX_UNFINISHED_BYTES:
            await self.close()
            self._end = Compacted(self._position, answer.header.revision)

    def _check_cancelled(self, answer: WatchAnswer) -> None:
        """Raises what the end of a watch means: Compacted, MetadataRefused, or AttemptFailed to try again."""
        if answer.cancelled is None:
            return
        if answer.compact_revision:
            self._end = Compacted(self._position, answer.compact_revision)
            raise self._end
        if any(word in answer.cancelled for word in LOGIN_WORDS):
            # Perhaps a token that has ended, so it is tried once more with a new one.
            if self._refused or not self._transport.forget_login(self._token):
                raise MetadataRefused(
                    f"etcd refuses to let {self._namespace + self._prefix!r} be watched: {answer.cancelled}; "
                    f"give a user with rights on {self._namespace!r}"
                )
            self._refused = True
        raise AttemptFailed(f"{self._endpoint} ended a watch: {answer.cancelled}", made_perhaps=False)

    async def _next_answer(self) -> WatchAnswer:
        """The next message of the connection. Raises AttemptFailed."""
        connection = self._connection
        if connection is None:
            raise AttemptFailed(f"the connection to {self._endpoint} was closed", made_perhaps=False)
        while (line := connection.take_line()) is None:
            await self._read_or_ask(connection)
        try:
            answer = watch_answer(self._namespace, line)
        except (BadAnswer, EtcdError) as error:
            raise AttemptFailed(f"{self._endpoint}: {error}", made_perhaps=False) from error
        self._transport.check_cluster(self._endpoint, answer.header)
        return answer

    async def _read_or_ask(self, connection: "_WatchConnection") -> None:
        """Read a part; while none comes, and no other call is answered, ask the endpoint now and then whether it is
        alive. Raises AttemptFailed.
        """
        since_s, is_read = trio.current_time(), False
        while not is_read:
            quiet_s = self._transport.quiet_s(self._endpoint, since_s)
            if quiet_s <= 0:
                is_read = await self._read_beside_question(connection)
                continue
            with trio.move_on_after(quiet_s):
                await connection.read()
                is_read = True

    async def _read_beside_question(self, connection: "_WatchConnection") -> bool:
        """Ask the endpoint whether it is alive; whether a part was read meanwhile. Raises AttemptFailed, and what the
        endpoint answers otherwise: MetadataRefused, MetadataDamaged.
        """
        failures: list[AttemptFailed | MetadataError] = []
        is_read = is_alive = False
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                nonlocal is_read
                try:
                    await connection.read()
                    is_read = True
                except AttemptFailed as failure:
                    failures.append(failure)
                nursery.cancel_scope.cancel()

            nursery.start_soon(read)
            try:
                is_alive = await self._transport.is_alive(self._endpoint, RANGE, self._probe())
            except MetadataError as refusal:  # out of the nursery it would come in a group, which nobody expects
                failures.append(refusal)
            nursery.cancel_scope.cancel()
        if is_read:  # whatever was answered: it is asked again when the watch is quiet again
            return True
        if failures:
            raise failures[0]
        if not is_alive:
            raise AttemptFailed(f"{self._endpoint} is quiet and does not answer", made_perhaps=False)
        return False

    def _probe(self) -> Json:
        """A call whose answer shows that a majority of etcd's members is there."""
        return get_request(self._namespace + self._prefix)


def _size(event: tuple[int, Event]) -> int:
    _, (key, entry) = event
    return EVENT_BYTES + len(key) + (len(entry.value) if entry is not None else 0)


class _WatchConnection:
    """The lines of a streamed answer. `is_begun`: it was told that the watch has begun, where it should."""

    def __init__(self, exchange: EtcdExchange) -> None:
        self._exchange = exchange
        self._received = bytearray()
        self._searched = 0
        self.is_begun = False

    def take_line(self) -> bytes | None:
        """The next whole line, None if it has not arrived. Raises AttemptFailed."""
        end = self._received.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._received)
            if self._searched > MAX_LINE_BYTES:
                raise AttemptFailed(f"a message of a watch above {MAX_LINE_BYTES} bytes", made_perhaps=False)
            return None
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        self._searched = 0
        return line

    async def read(self) -> None:
        """Wait for a part; waiting may be given up and taken up again. Raises AttemptFailed when there will be none."""
        try:
            part = await self._exchange.part()
        except ConnectionFailed as failure:
            raise AttemptFailed(str(failure), made_perhaps=False) from failure
        if not part:
            raise AttemptFailed("the watch has ended", made_perhaps=False)
        self._received += part

    async def close(self) -> None:
        """Close the connection."""
        await self._exchange.end()
