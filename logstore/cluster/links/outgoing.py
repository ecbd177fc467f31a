"""The connection from this host to another one, on which it sends: made, watched, and made again.

Invariants:
* Messages leave at the end of the burst that caused them (`logstore.cluster.links.bursts`), as far as the socket takes
  them; a task sends the rest. They leave in the order of `send`, but for entries that were read (`BULK`): they leave
  when nothing else waits, one message at a time, so that an append waits for one of them at most. What waits has
  `queue_bytes` and one frame at most, entries that were read a quarter of that; what comes while there is no
  connection, or beyond these bounds, is dropped, and so is what waits when the connection ends.
* The first try after the end of a connection that was up for more than `max_pause_s` comes at once; other pauses grow
  from `min_pause_s` to `max_pause_s`. A hello from the host ends the pause.
* A connection is up after both ends have accepted each other's hello, and until its end is noticed: at once when the
  other process ends, after `stall_s` when its machine is silent or the process takes nothing.
* A host that leaves the members keeps its connection as long as the connection lasts, and is not connected to again.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

import trio

from logstore.base.connected_socket import ConnectedSocket
from logstore.base.errors import TlsError
from logstore.cluster.links.connecting import connect, greet
from logstore.cluster.links.hello import STRANGER
from logstore.cluster.links.peers import OwnEnd, Peer
from logstore.cluster.links.wire import encode
from logstore.errors import LinkRefused, MalformedMessage, UnsendableMessage
from logstore.events import PEER_CONNECTED, PEER_LOST, PEER_MESSAGE_UNSENT, PEER_NOT_REACHED, PEER_SLOW, PEER_SLOW_OVER
from logstore.interfaces import Buffer
from logstore.replica.messages import EntriesRead, Message

BULK: Final = EntriesRead
BULK_SHARE: Final = 4
"""Entries that were read may take this part of the queue's bytes."""
BURST_BYTES: Final = 256 * 1024
"""About so much is handed to the socket before other tasks run."""


class OutgoingLink:
    """Sends to one host."""

    def __init__(self, host: str, peer: Peer, own: OwnEnd) -> None:
        self.host = host
        self._peer = peer
        self._is_member = True
        self._own = own
        self._counts = own.counts_of(host)
        self.is_up = False
        self.is_stranger = False
        """The host can be reached, and takes nothing because it does not know this one as a member."""
        self.deals: bool | None = None
        """What the host's last hello says of that; None: there was none."""
        self._queue: deque[tuple[list[Buffer], int]] = deque()
        self._bulk: deque[tuple[list[Buffer], int]] = deque()
        self._queued_bytes = self._bulk_bytes = 0
        self._dropped = 0
        """Messages that were not sent since the queue was full; not 0: it has not been empty since."""
        self._more = trio.lowlevel.ParkingLot()
        """Where the writer waits for messages."""
        self._pause = trio.CancelScope()
        """Of the pause before the next try."""
        self._link: ConnectedSocket | None = None
        """While the connection is up."""
        self._is_writing = False
        """The task is within a message."""
        self._connection = trio.CancelScope()
        """Of the try, or of the connection, which ends if the host has another address or disk."""
        self._trouble = ""
        """Why the host is not reached, as last reported."""
        self._trouble_since_s: float | None = None
        """Since when no try has led to a connection; None: the last one did, or there was none."""
        self._failures = 0
        """Tries in a row that failed; after a connection, `_short`."""
        self._short = 0
        """Connections in a row that ended early."""

    @property
    def queued_bytes(self) -> int:
        """Of messages that wait, or are being sent."""
        return self._queued_bytes

    def send(self, message: Message) -> None:
        """Send a message soon, or drop it."""
        if not self.is_up:
            return
        limit_bytes, is_bulk = self._own.settings.queue_bytes, isinstance(message, BULK)
        if self._queued_bytes >= limit_bytes or (is_bulk and self._bulk_bytes >= limit_bytes // BULK_SHARE):
            if not self._dropped:
                self._own.report(PEER_SLOW, host=self.host, waiting_bytes=self._queued_bytes)
            self._dropped += 1
            self._counts.dropped_messages += 1
            return
        try:
            parts, size = encode(message, self._own.settings.max_body_bytes)
        except UnsendableMessage as error:
            self._own.report(PEER_MESSAGE_UNSENT, host=self.host, error=str(error))
            return
        (self._bulk if is_bulk else self._queue).append((parts, size))
        self._queued_bytes += size
        self._bulk_bytes += size if is_bulk else 0
        if is_bulk:
            self._more.unpark()
        else:
            self._own.bursts.gather(self._flush)

    def aim(self, peer: Peer | None) -> None:
        """The host is there now; None: it is no member."""
        self._is_member = peer is not None
        if peer is not None and peer != self._peer:
            self._peer = peer
            self._connection.cancel()
            self._pause.cancel()

    def hasten(self) -> None:
        """End a pause: there is a sign that the host can be reached."""
        self._pause.cancel()

    async def run(self) -> None:
        """Connect again and again, until the host is no member and the connection has ended."""
        while self._is_member:
            with trio.CancelScope() as self._connection:
                was_up_s = await self._try(self._peer)
            if self._connection.cancelled_caught:
                self._failures = 0
                continue
            with trio.move_on_after(self._pause_s(was_up_s)) as self._pause:
                await trio.sleep_forever()

    def _pause_s(self, was_up_s: float | None) -> float:
        """How long to wait after a try to connect that failed, or after a connection that was up for so long.

        A connection of less than `max_pause_s` counts as a failure: two hosts that have one name by mistake would take
        the connection from each other without a pause.
        """
        if was_up_s is None:
            self._failures += 1
        elif was_up_s > self._own.settings.max_pause_s:
            self._failures = self._short = 0
            return 0.0
        else:
            self._short += 1
            self._failures = self._short
        longest = self._own.settings.max_pause_s
        return min(longest, self._own.settings.min_pause_s * 2.0 ** min(self._failures - 1, 30))

    async def _try(self, peer: Peer) -> float | None:
        """One connection, to its end; returns for how many seconds it was up, None if it never was."""
        try:
            link = await connect(self._own, peer.address)
        except ConnectionRefusedError:
            self.is_stranger = False
            self._note_trouble(peer, "no process listens there: is the host running?")
            if peer is self._peer:  # otherwise the host has moved meanwhile
                self._own.observer.refused(self.host)
            return None
        except OSError as error:
            self.is_stranger = False
            self._note_trouble(peer, error.strerror or str(error))
            return None
        try:
            self.deals = (await greet(link, self._own, self.host, peer)).deals
            since_s = trio.current_time()
            await self._serve(link, peer)
            return trio.current_time() - since_s
        except (OSError, MalformedMessage, LinkRefused, TlsError) as error:
            self.is_stranger = isinstance(error, LinkRefused) and STRANGER in str(error)
            self._note_trouble(peer, str(error))
            return None
        finally:
            link.close()

    def _note_trouble(self, peer: Peer, why: str) -> None:
        now_s = trio.current_time()
        if self._trouble_since_s is None:
            self._trouble_since_s = now_s
        if why != self._trouble and now_s - self._trouble_since_s >= self._own.settings.trouble_s:
            self._trouble = why
            self._own.report(PEER_NOT_REACHED, host=self.host, address=str(peer.address), why=why)

    async def _serve(self, link: ConnectedSocket, peer: Peer) -> None:
        """Send until the connection ends. Raises OSError."""
        self.is_up, self.is_stranger, self._link = True, False, link
        self._trouble, self._trouble_since_s = "", None
        self._own.report(PEER_CONNECTED, host=self.host, address=str(peer.address))
        self._own.observer.connected(self.host)
        ended: list[str] = []
        self._is_writing = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, link, ended, nursery.cancel_scope)
                nursery.start_soon(self._write, link, ended, nursery.cancel_scope)
        finally:
            self.is_up, self._link = False, None
            self._queue.clear()
            self._bulk.clear()
            self._queued_bytes = self._bulk_bytes = 0
            self._dropped = 0
            if ended:  # otherwise this host stops, or has ended it
                self._own.report(PEER_LOST, host=self.host, address=str(peer.address), why=ended[0])
            self._own.observer.lost(self.host)

    async def _watch(self, link: ConnectedSocket, ended: list[str], scope: trio.CancelScope) -> None:
        """Wait for the end of the connection: behind its hello, the other end sends nothing."""
        try:
            received = await link.receive(memoryview(bytearray(1)))
            ended.append("it violated the protocol" if received else "it ended the connection")
        except OSError as error:
            ended.append(error.strerror or str(error))
        self.is_up = False  # before other tasks run: whoever asks in the same turn is to know it
        scope.cancel()

    def _next_burst(self) -> tuple[list[Buffer], int]:
        """What is sent next, with its bytes: messages up to BURST_BYTES, or one of entries that were read."""
        if not self._queue:
            parts, taken = self._bulk.popleft()
            self._bulk_bytes -= taken
            self._counts.sent_messages += 1
            return parts, taken
        parts, taken = [], 0
        while self._queue and taken < BURST_BYTES:
            message, size = self._queue.popleft()
            parts += message
            taken += size
            self._counts.sent_messages += 1
        return parts, taken

    def _flush(self) -> None:
        """Send messages, as far as the socket takes them at once."""
        if self._link is None or self._is_writing or not self._queue:
            return
        parts, taken = self._next_burst()
        rest: Sequence[Buffer]
        try:
            rest = self._link.send_nowait(parts)
        except OSError:
            rest = parts  # the task meets the same error, and ends the connection
        left = sum(map(len, rest))
        self._queued_bytes -= taken - left
        self._counts.sent_bytes += taken - left
        if left:
            self._queue.appendleft((list(rest), left))
            self._counts.sent_messages -= 1  # counted again when the rest is sent
        if self._queue or self._dropped:
            self._more.unpark()

    async def _write(self, link: ConnectedSocket, ended: list[str], scope: trio.CancelScope) -> None:
        try:
            while True:
                if not self._queue and not self._bulk:
                    if self._dropped:
                        self._own.report(PEER_SLOW_OVER, host=self.host, dropped=self._dropped)
                        self._dropped = 0
                    await self._more.park()
                if not self._queue and not self._bulk:
                    continue
                parts, taken = self._next_burst()
                self._is_writing = True
                await link.send(parts, self._own.settings.stall_s)
                self._is_writing = False
                self._queued_bytes -= taken
                self._counts.sent_bytes += taken
                del parts  # large ones may be the last for long
                if self._queue or self._bulk:
                    await trio.lowlevel.checkpoint()
        except OSError as error:
            ended.append(error.strerror or str(error))
        scope.cancel()
