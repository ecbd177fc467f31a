"""Checks the chunks of a directory in several processes: one interpreter keeps one processor busy.

The processes are forked, so that they have the plan without a copy, and wait for shares of its pieces.

Invariants: a result is that of `check_pieces`, whichever process made it; each process has one share at a time; the
processes end with the one that made them, however that ends, and hold its lock of the directory no longer.
"""

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from types import TracebackType
from typing import Final, Self

from logstore.errors import CairnError
from logstore.interfaces import FileSystem
from logstore.verify.chunk import ChunkResult
from logstore.verify.directory import ChunkToCheck, Plan, check_pieces

SHARE_BYTES: Final = 64 << 20
SHARE_PIECES: Final = 256
"""A share has at most so many bytes, unless one chunk has more, and so many pieces: a fraction of a second's work."""
MAX_PROCESSES: Final = 64
DEFAULT_PROCESSES: Final = 8
"""At most, by default: 8 processes read faster than most disks."""
NOTICE_BYTES: Final = 8 << 20
"""How often a process says how much it has read."""


class CheckerLost(CairnError):
    """A process that checked chunks has ended before its time."""


def usable_processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


class ChunkCheckers:
    """The processes that check a plan's pieces; none where there is too little to check for two.

    They start when the context begins, which must be before this process has threads, and end with it.
    """

    def __init__(self, files: FileSystem, planned: Plan, processes: int) -> None:
        self._files = files
        self._planned = planned
        self._shares = _shares(planned.pieces)
        count = min(processes, len(self._shares))
        self._count = count if count > 1 else 0
        self._processes: list[ForkProcess] = []
        self._connections: list[Connection] = []

    def __enter__(self) -> Self:
        # Ctrl-C waits until the processes are told to leave it alone, and this one knows them all.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for number in range(self._count):
                self._start(number)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def _start(self, number: int) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        self._connections.append(ours)
        arguments = (self._files, self._planned, theirs, self._connections)
        process = context.Process(target=_work, args=arguments, name=f"cairn-verify-{number}", daemon=True)
        process.start()
        theirs.close()
        self._processes.append(process)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.terminate()  # there is nothing that it could leave half done
        for process in self._processes:
            process.join()

    def results(self, progress: Callable[[int], None]) -> Iterator[tuple[ChunkToCheck, ChunkResult]]:
        """The result for each piece, in the order of the plan. `progress` is told how many bytes were read.

        Raises what `check_pieces` raises, and CheckerLost.
        """
        pieces = self._planned.pieces
        if not self._processes:
            yield from zip(pieces, check_pieces(self._files, self._planned, pieces, progress), strict=True)
            return
        found: dict[int, ChunkResult] = {}
        waiting = deque(self._shares)
        busy: list[Connection] = []
        for connection in self._connections:
            connection.send(waiting.popleft())
            busy.append(connection)
        while busy:
            ready = wait(busy)
            for connection in [connection for connection in busy if connection in ready]:
                message = self._received(connection)
                if isinstance(message, int):
                    progress(message)
                    continue
                found.update(message)
                if waiting:
                    connection.send(waiting.popleft())
                else:
                    busy.remove(connection)
        yield from ((piece, found[number]) for number, piece in enumerate(pieces))

    def _received(self, connection: Connection) -> int | dict[int, ChunkResult]:
        try:
            message: int | dict[int, ChunkResult] | Exception = connection.recv()
        except (EOFError, OSError):
            process = self._processes[self._connections.index(connection)]
            process.join()
            raise CheckerLost(
                f"process {process.name} ended with status {process.exitcode}; if the kernel killed it because memory "
                "ran out, use --processes 1"
            ) from None
        if isinstance(message, Exception):
            raise message
        return message


def _shares(pieces: Sequence[ChunkToCheck]) -> list[list[int]]:
    """Numbers of pieces, the largest first, so that no process is left alone with a long piece at the end."""
    shares: list[list[int]] = []
    size_bytes = SHARE_BYTES
    for number in sorted(range(len(pieces)), key=lambda at: -pieces[at].size_bytes):
        piece_bytes = pieces[number].size_bytes
        if size_bytes + piece_bytes > SHARE_BYTES or len(shares[-1]) == SHARE_PIECES:
            shares.append([])
            size_bytes = 0
        shares[-1].append(number)
        size_bytes += piece_bytes
    return shares


# ---- in a process of its own


def _work(files: FileSystem, planned: Plan, connection: Connection, foreign: Sequence[Connection]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for other in foreign:  # the first process' ends: with these open, nobody would notice its end
        other.close()
    with suppress(EOFError, ConnectionError):
        while True:
            _check_share(files, planned, connection.recv(), connection)


def _check_share(files: FileSystem, planned: Plan, numbers: Sequence[int], connection: Connection) -> None:
    unsaid_bytes = 0

    def note_read(count: int) -> None:
        nonlocal unsaid_bytes
        unsaid_bytes += count
        if unsaid_bytes >= NOTICE_BYTES:
            connection.send(unsaid_bytes)
            unsaid_bytes = 0

    results: dict[int, ChunkResult] | Exception
    try:
        pieces = [planned.pieces[number] for number in numbers]
        results = dict(zip(numbers, check_pieces(files, planned, pieces, note_read), strict=True))
    except Exception as error:  # noqa: BLE001  whatever it is, the first process has to say it
        error.add_note(traceback.format_exc())
        results = error
    connection.send(unsaid_bytes)
    connection.send(results)
