"""When the pieces of the copies that this host makes are asked for: tokens in flight, and the host's pace.

A replica asks for the next piece of a chunk when it has the one before (`logstore.replica.replica`). Here that waits
for its turn: there are PIECES_IN_FLIGHT tokens for this host, one beside appends, and SOURCE_PIECES for each host that
pieces come from. A token is taken when a piece is asked for, and given back when the piece is durable, or was not sent
within PIECE_S.

Invariants:
* First come, first served, but for copies that a stream waits for, which go first, for hosts whose tokens are taken,
  and for the chunk that pieces from a host came of last, which goes on for GO_ON_BYTES. So of many small chunks one is
  whole after the other, not all at last, and what begins and ends a chunk is spread over the time. A chunk has one
  piece in flight or waiting: what is asked for again meanwhile is dropped.
* Pieces from hosts from which copies may not be faster (`copy_speed`) have the least rate together.
* What is in memory of pieces is bounded by tokens: pieces have MAX_PIECE_BYTES and one batch at most.
* No I/O: the caller says what time it is, and sends what `due` gives.

Sources: SGuard, section 5 (as many writes at a time as there are resources for); decision 0011 (tokens in flight).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from logstore.cluster.copies.copy_pace import CopyPace
from logstore.cluster.copies.copy_speed import CopySpeed
from logstore.log.replicas import ChunkKey
from logstore.replica.messages import ReadEntries

SOURCE_PIECES: Final = 1
"""From one host: its disk and its link serve readers and appends too."""
GO_ON_BYTES: Final = 8 << 20
"""One second where copies have the least rate: others that are to come from the same host wait so long for it."""
PIECE_S: Final = 5.0
"""A piece that has not come, or is not durable, after so long is lost: the order that is repeated asks again."""


class _InFlight(NamedTuple):
    source: str
    asked_s: float
    is_fast: bool
    arrived_s: float | None = None


class _Going(NamedTuple):
    """The chunk that a host's last piece was of, and how many bytes of it come before others have their turn."""

    key: ChunkKey
    left_bytes: int


class AskedPiece(NamedTuple):
    """A request for a piece, and the host that it goes to."""

    source: str
    message: ReadEntries


class CopyFlow:
    """See the module."""

    def __init__(self, pace: CopyPace, speed: CopySpeed | None = None) -> None:
        self._pace = pace
        self.speed = speed or CopySpeed()
        self._waiting: dict[ChunkKey, AskedPiece] = {}
        self._in_flight: dict[ChunkKey, _InFlight] = {}
        self._going: dict[str, _Going] = {}
        """By host; forgotten when nothing waits and nothing is under way."""
        self.copied_bytes = 0
        """Made durable here since the start."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._waiting and not self._in_flight

    @property
    def waiting_chunks(self) -> int:
        """Chunks that wait for their next piece's turn."""
        return len(self._waiting)

    def is_waiting(self, stream: str, epoch: int) -> bool:
        """Whether the next piece of a chunk waits for its turn."""
        return (stream, epoch) in self._waiting

    def is_in_flight(self, stream: str, epoch: int) -> bool:
        """Whether a piece of a chunk is on its way, or is being written."""
        return (stream, epoch) in self._in_flight

    def ask(self, source: str, message: ReadEntries) -> None:
        """A replica wants a piece of a chunk."""
        key = (message.stream, message.epoch)
        if key not in self._in_flight:
            self._waiting[key] = AskedPiece(source, message)

    def due(self, now_s: float) -> list[AskedPiece]:
        """The requests to send now; their tokens are taken."""
        self._forget_lost(now_s)
        return list(self._take(now_s))

    def _take(self, now_s: float) -> Iterator[AskedPiece]:
        for key, asked in sorted(self._waiting.items(), key=self._rank):
            if len(self._in_flight) >= self._pace.pieces_at_once(now_s):
                return
            is_urgent, is_fast = asked.message.is_urgent, self.speed.may_be_fast(asked.source, now_s)
            if not is_urgent and self._pace.wait_s(now_s, is_fast=is_fast) > 0:
                continue
            if sum(piece.source == asked.source for piece in self._in_flight.values()) < SOURCE_PIECES:
                del self._waiting[key]
                self._in_flight[key] = _InFlight(asked.source, now_s, is_fast or is_urgent)
                size = self._pace.next_piece_bytes(now_s)
                yield asked._replace(message=replace(asked.message, max_bytes=min(asked.message.max_bytes, size)))

    def _rank(self, waiting: tuple[ChunkKey, AskedPiece]) -> tuple[bool, bool]:
        """What is least goes first."""
        key, asked = waiting
        going = self._going.get(asked.source)
        return not asked.message.is_urgent, going is None or going.key != key or going.left_bytes <= 0

    def _note_going(self, key: ChunkKey, source: str, size_bytes: int) -> None:
        """A piece of a chunk is durable here."""
        going = self._going.get(source)
        left_bytes = going.left_bytes if going is not None and going.key == key else GO_ON_BYTES
        self._going[source] = _Going(key, left_bytes - size_bytes)

    def wait_s(self, now_s: float) -> float | None:
        """After how many seconds `due` may have something by time alone; None: not before something happens."""
        lost_s = min((piece.asked_s + PIECE_S - now_s for piece in self._in_flight.values()), default=None)
        if not self._waiting or len(self._in_flight) >= self._pace.pieces_at_once(now_s):
            return lost_s
        sources = {asked.source for asked in self._waiting.values()}
        paced = [self._pace.wait_s(now_s, is_fast=self.speed.may_be_fast(source, now_s)) for source in sources]
        paced_s = min((wait_s for wait_s in paced if wait_s > 0), default=None)
        if paced_s is None:  # a host's token is what they wait for
            return lost_s
        return paced_s if lost_s is None else min(paced_s, lost_s)

    # ---- what becomes of pieces

    def arrived(self, stream: str, epoch: int, now_s: float) -> None:
        """A piece has come, and is being written."""
        piece = self._in_flight.get((stream, epoch))
        if piece is not None and piece.arrived_s is None:
            self._in_flight[stream, epoch] = piece._replace(arrived_s=now_s)
            self._pace.piece_begun()

    def ended(self, stream: str, epoch: int, size_bytes: int, now_s: float) -> bool:
        """A chunk's write is durable, or its copy has ended (0 bytes). Returns whether it was a piece."""
        piece = self._in_flight.pop((stream, epoch), None)
        if piece is None:
            return False
        if piece.arrived_s is not None:
            self._pace.piece_ended(size_bytes, piece.arrived_s, now_s, is_fast=piece.is_fast)
            if size_bytes:
                self._pace.piece_written(size_bytes, now_s - piece.arrived_s)
            self.copied_bytes += size_bytes
        if self.is_idle:
            self._going.clear()
        elif size_bytes:
            self._note_going((stream, epoch), piece.source, size_bytes)
        return True

    def _forget_lost(self, now_s: float) -> None:
        for (stream, epoch), piece in list(self._in_flight.items()):
            if piece.asked_s + PIECE_S <= now_s:  # as `wait_s` has it: the difference may be rounded below PIECE_S
                self.ended(stream, epoch, 0, now_s)
