"""A writer of checkpoints: single chunks through given chains, or a whole checkpoint as the coordinator says.

Invariants:
* A chunk counts as written when the whole chain has acknowledged it; what failed is tried again only where a
  coordinator plans it anew.
* Times are the machine's monotonic clock, the same in every process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.racks.chunks import Chunk, ChunkFailed
from scheduler.client import Go

Send = Callable[[Chunk, Sequence[str]], object]
"""Sends a chunk through a chain of hosts, writer first, and returns when all have it. Raises ChunkFailed."""


class Sent(NamedTuple):
    """One attempt to write a chunk; `error` None: all have it."""

    chunk: int
    attempt: int
    hosts: tuple[str, ...]
    go_s: float
    end_s: float
    error: str | None = None


def write_planned(request: str, goes: Iterable[Go], send: Send) -> list[Sent]:
    """Write each chunk when and where the coordinator says, and report what became of it."""
    sent: list[Sent] = []
    errors: list[BaseException] = []

    def one(go: Go) -> None:
        try:
            result = write_one(Chunk(request, go.chunk, go.attempt), tuple(go.hosts), send, go)
        except Exception as error:  # noqa: BLE001 - raised again where the thread is waited for
            errors.append(error)
            return
        sent.append(result)

    threads = []
    for go in _until(goes, errors):
        thread = threading.Thread(target=one, args=(go,), name=f"{request} {go.chunk}", daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sent


def _until(goes: Iterable[Go], errors: Sequence[BaseException]) -> Iterator[Go]:
    """The goes, until something has gone wrong."""
    for go in goes:
        if errors:
            return
        yield go


def write_one(chunk: Chunk, hosts: tuple[str, ...], send: Send, go: Go | None = None) -> Sent:
    """Write a chunk through `hosts` (writer first), and tell `go`, if there is one, what became of it."""
    begin = time.monotonic()
    try:
        send(chunk, hosts)
    except ChunkFailed as failed:
        if go is not None:
            go.failed(suspects=failed.suspects)
        return Sent(chunk.number, chunk.attempt, hosts, begin, time.monotonic(), str(failed))
    end = time.monotonic()
    if go is not None:
        go.done()
    return Sent(chunk.number, chunk.attempt, hosts, begin, end)
