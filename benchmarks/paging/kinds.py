"""The ways to checkpoint an operator that goes on, side by side: what stops the operator, and what is done beside it.

Invariants:
* Each way leaves the whole state of a partition in a file that is synced.
* `begin` is called on the operator's thread at the end of an epoch; the operator stands still until it returns.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.paging.state import Partition
from logstore.base.events import ignore
from logstore.base.system import SystemClock
from spe_adapter.checkpoint.manager import CheckpointManager, ManagerTools
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.settings import CheckpointSettings
from spe_adapter.checkpoint.sites import open_site
from spe_adapter.codec.kernels import Bytes

NONE, PLAIN = "none", "plain"
PAGES, SMALL_PAGES, PAGES_PROCESS = "pages", "pages_8k", "pages_process"
COPY, SERIALIZED_ASIDE, SERIALIZED, FORK = "copy", "serialized_aside", "serialized", "fork"
PAGE_BYTES = {NONE: 65536, PAGES: 65536, SMALL_PAGES: 8192, PAGES_PROCESS: 65536}
"""Of the kinds whose state lies on pages."""
TITLES = {
    PLAIN: "plain memory, no checkpoint",
    NONE: "pages of 64 KB, no checkpoint",
    PAGES: "pages of 64 KB, written by a thread",
    SMALL_PAGES: "pages of 8 KB, written by a thread",
    PAGES_PROCESS: "pages of 64 KB, written by a process",
    COPY: "asynchronous: copied, then written",
    SERIALIZED_ASIDE: "asynchronous: serialized, then written",
    SERIALIZED: "synchronous: serialized and written",
    FORK: "fork: a child writes",
}


class Checkpointer(ABC):
    """Checkpoints of one operator, one partition at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.durable_s = 0.0
        """When the last checkpoint was durable, by `time.perf_counter`."""
        self.takes_any = True
        self.copied_pages = 0
        """Pages that were copied aside for the last checkpoint."""
        self.all_pages = 0

    @abstractmethod
    def begin(self, number: int, partition: Partition) -> None:
        """Start the checkpoint of a partition; what the operator waits for happens here."""

    def is_done(self) -> bool:
        """Whether the last checkpoint is durable. Raises what its thread raised."""
        if self.error is not None:
            raise self.error
        return self._thread is None or not self._thread.is_alive()

    def close(self) -> None:
        """Wait for what is still going on."""
        if self._thread is not None:
            self._thread.join()

    def beside(self, work: Callable[[], None]) -> None:
        """Do work on a thread beside the operator."""
        self._thread = threading.Thread(target=self._guarded, args=(work,))
        self._thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again where the operator asks
            self.error = error
        self.durable_s = time.perf_counter()

    def path(self, number: int) -> Path:
        """Where the checkpoint of a partition goes."""
        return self.directory / f"partition-{number}"


class Nothing(Checkpointer):
    """No checkpoints."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.takes_any = False

    def begin(self, number: int, partition: Partition) -> None:
        """Nothing to do."""


class FromPages(Checkpointer):
    """Pages are frozen; the product's checkpoint manager writes them on threads of the operator's process."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._tools = product_tools(directory, None)

    def begin(self, number: int, partition: Partition) -> None:
        """Freeze."""
        table = partition.table
        self.all_pages = -(-table.tracked_bytes // PAGE_BYTES[PAGES])
        frozen = partition.freeze()
        snapshot = partition.snapshot(frozen)
        unit = Unit("pages", number)
        manager = CheckpointManager(unit, lambda since: snapshot, self._tools)

        def write() -> None:
            outcome = manager.checkpoint()
            if not outcome.is_complete:
                raise RuntimeError(f"the checkpoint came to nothing: {outcome}")

        self.beside(write)


class FromPagesElsewhere(Checkpointer):
    """Pages are frozen; the product's checkpoint manager writes them in a process of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        command = [sys.executable, "-m", "benchmarks.paging.page_writer", str(directory)]
        self._writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def begin(self, number: int, partition: Partition) -> None:
        """Freeze, and tell the writer."""
        frozen = partition.freeze()
        told = (number, frozen.pages.handle, frozen.pages.ids, partition.header())
        pipe: Any = self._writer.stdin
        answers: Any = self._writer.stdout
        pickle.dump(told, pipe)
        pipe.flush()

        def wait() -> None:
            answer = answers.readline()
            frozen.pages.release()
            if answer != b"complete\n":
                raise RuntimeError(f"the writer says {answer!r}")

        self.beside(wait)

    def close(self) -> None:
        """End the writer."""
        super().close()
        self._writer.communicate()


class Copied(Checkpointer):
    """The block is copied to memory that is kept for it, then written."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._room: Bytes = np.ones(0, np.uint8)

    def begin(self, number: int, partition: Partition) -> None:
        """Copy."""
        content = partition.table.content()
        size = sum(end - start for start, end in content)
        if len(self._room) < size:
            self._room = np.ones(size, np.uint8)
        block = block_of(partition)
        at = 0
        for start, end in content:
            self._room[at : at + end - start] = block[start:end]
            at += end - start
        self.beside(lambda: write(self.path(number), self._room[:at].data))


class SerializedAside(Checkpointer):
    """The windows are serialized in Arrow's format, then written beside the operator."""

    def begin(self, number: int, partition: Partition) -> None:
        """Serialize."""
        data = serialized(partition)
        self.beside(lambda: write(self.path(number), memoryview(data)))


class Serialized(Checkpointer):
    """The windows are serialized in Arrow's format and written, and the operator waits for both."""

    def begin(self, number: int, partition: Partition) -> None:
        """Serialize, write, sync."""
        write(self.path(number), memoryview(serialized(partition)))
        self.durable_s = time.perf_counter()


class Forked(Checkpointer):
    """A forked child writes the block; the system copies pages that change meanwhile."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._child = 0

    def begin(self, number: int, partition: Partition) -> None:
        """Fork."""
        block = block_of(partition)
        parts = [block[start:end].data for start, end in partition.table.content()]
        path = os.fsencode(self.path(number))
        child = os.fork()
        if child == 0:  # nothing here may take a lock: other threads of the operator were not forked
            status = 1
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                for part in parts:
                    while part:
                        part = part[os.write(descriptor, part) :]
                os.fdatasync(descriptor)
                status = 0
            finally:
                os._exit(status)
        self._child = child

        def wait() -> None:
            _, how = os.waitpid(child, 0)
            if how:
                raise RuntimeError(f"the child that writes ended with {how}")

        self.beside(wait)


def product_tools(directory: Path, pool: Executor | None) -> ManagerTools:
    """What a manager works with below a directory by the settings that a user gets."""
    settings = CheckpointSettings(directory.absolute().as_uri())
    return open_site(settings, SystemClock(), ignore, threading.Event(), pool).tools


MAKE: dict[str, Callable[[Path], Checkpointer]] = {
    PLAIN: Nothing,
    NONE: Nothing,
    PAGES: FromPages,
    SMALL_PAGES: FromPages,
    PAGES_PROCESS: FromPagesElsewhere,
    COPY: Copied,
    SERIALIZED_ASIDE: SerializedAside,
    SERIALIZED: Serialized,
    FORK: Forked,
}


def block_of(partition: Partition) -> Bytes:
    """The table's memory, from its first byte on."""
    counters: Any = partition.table._counters  # noqa: SLF001 - the table gives its rows out, not its memory
    base = counters
    while isinstance(base.base, np.ndarray):
        base = base.base
    start = counters.ctypes.data - base.ctypes.data
    block: Bytes = base.view(np.uint8)[start:]
    return block


def serialized(partition: Partition) -> pa.Buffer:
    """All windows in Arrow's format for files and sockets."""
    table = partition.table
    batch = table.take(table.live_rows())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def write(path: Path, data: memoryview) -> None:
    """Write and sync a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        left = data.cast("B")
        while left:
            left = left[os.write(descriptor, left[: 8 << 20]) :]
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
