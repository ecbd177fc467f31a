"""Staged output as records of the stream of epochs: appended with bounded bytes under way, and read back.

Invariants:
* Records are appended in the order in which they come. At most MAX_UNDER_WAY_BYTES of them are given to the stream and
  not acknowledged, or one larger one: an entry of the ledger finds room behind them. The others wait here.
* Who stages asks `waiting_bytes` before: nothing here bounds what waits.
* When an append fails, everything that waits fails: the stream has another owner.
* A hold (`held`) lies between two segments: what came before it is acknowledged or has failed, and what comes behind it
  is not appended before it ends.
"""

from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

import trio

from logstore.cluster.epochs.replicated_ledger import ReplicatedLedger
from logstore.cluster.streams.chunk_reads import ChunkReads
from logstore.epochs.replicated_staging import MORE, SEGMENT, ReplicatedStaging
from logstore.errors import CairnError, StorageFailed
from logstore.format.batch import iterate_batches
from logstore.format.records import Record, decode_batch
from logstore.log.stream_state import AppendTicket
from logstore.log.ticket import Ticket

MAX_UNDER_WAY_BYTES: Final = 4 << 20
"""As much as an owner has in flight; half of what a stream lets wait beyond that."""
READ_BYTES: Final = 1 << 20


class _WaitingRecord(NamedTuple):
    """A record that is not given to the stream yet."""

    key: bytes
    value: bytes
    ticket: Ticket[int]


class _Hold:
    """Nothing behind it is appended. `reached`: nothing in front of it is under way."""

    def __init__(self) -> None:
        self.reached = trio.Event()


class StagedRecords:
    """Implements `AppendRecord` and `ReadValues` of `logstore.epochs.replicated_staging`. Reads run in the nursery."""

    def __init__(self, ledger: ReplicatedLedger, reads: ChunkReads) -> None:
        self._ledger = ledger
        self._reads = reads
        self._waiting: deque[_WaitingRecord | _Hold] = deque()
        self._under_way = self._under_way_bytes = 0
        self.waiting_bytes = 0
        """Of the records that are not given to the stream yet."""
        self.nursery: trio.Nursery | None = None

    @property
    def log_start(self) -> int:
        """Where the stream starts."""
        return self._ledger.stream.log_start_offset

    # ---- appending

    def append(self, key: bytes, value: bytes) -> Ticket[int]:
        """Append a record; settles with its offset. Fails with StorageFailed."""
        ticket: Ticket[int] = Ticket()
        self._waiting.append(_WaitingRecord(key, value, ticket))
        self.waiting_bytes += len(value)
        self._offer()
        return ticket

    def _offer(self) -> None:
        while self._waiting:
            waiting = self._waiting[0]
            if isinstance(waiting, _Hold):
                if not self._under_way:
                    waiting.reached.set()
                return
            size_bytes = len(waiting.value)
            if self._under_way_bytes and self._under_way_bytes + size_bytes > MAX_UNDER_WAY_BYTES:
                return
            self._waiting.popleft()
            self.waiting_bytes -= size_bytes
            try:
                appended = self._ledger.append_record(waiting.key, waiting.value)
            except CairnError as error:
                self._fail([waiting], error)
                continue
            self._under_way += 1
            self._under_way_bytes += size_bytes
            appended.add_callback(partial(self._settled, waiting, size_bytes))

    def _settled(self, waiting: _WaitingRecord, size_bytes: int, appended: AppendTicket) -> None:
        self._under_way -= 1
        self._under_way_bytes -= size_bytes
        if appended.error is not None:
            self._fail([waiting], appended.error)
        else:
            waiting.ticket.succeed(appended.result().base_offset)
        self._offer()

    def _fail(self, first: list[_WaitingRecord], error: Exception) -> None:
        failed = [*first, *(each for each in self._waiting if isinstance(each, _WaitingRecord))]
        self._waiting = deque(each for each in self._waiting if isinstance(each, _Hold))
        self.waiting_bytes = 0
        for waiting in failed:
            waiting.ticket.fail(StorageFailed(str(error)))

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Within it, all records that were appended are acknowledged, or have failed, and no more are appended: the
        segments in front of it are whole, or will never be.
        """
        hold = _Hold()
        self._waiting.append(hold)
        self._offer()
        try:
            await hold.reached.wait()
            yield
        finally:
            self._waiting.remove(hold)
            self._offer()

    # ---- reading

    def read(self, offset: int, count: int) -> Ticket[list[bytes]]:
        """The values of so many records of one segment, from an offset on. Fails with CairnError."""
        ticket: Ticket[list[bytes]] = Ticket()

        async def run() -> None:
            try:
                values = await self._read(offset, count)
            except CairnError as error:
                ticket.fail(error)
            except OSError as error:
                ticket.fail(StorageFailed(f"staged output at {offset} cannot be read: {error.strerror or error}"))
            else:
                ticket.succeed(values)

        if self.nursery is None:
            return Ticket.failed(StorageFailed("this host no longer has the epochs of queries; retry"))
        self.nursery.start_soon(run)
        return ticket

    async def _read(self, offset: int, count: int) -> list[bytes]:
        values: list[bytes] = []
        while len(values) < count:
            found = await self._reads.read(self._ledger.stream, offset, READ_BYTES)
            if found.next_offset <= offset:
                raise StorageFailed(f"{self._ledger.stream.name} ends at {offset}, within a segment")
            for buffer in found.buffers:
                for at, header in iterate_batches(buffer):
                    records = decode_batch(memoryview(buffer)[at : at + header.size_bytes])
                    values += [record.value or b"" for record in records if record.key in (SEGMENT, MORE)]
            offset = found.next_offset
        return values[:count]


class StagedBeside:
    """What is staged, beside a ledger (`logstore.cluster.epochs.replicated_ledger.OtherRecords`)."""

    def __init__(self, staging: ReplicatedStaging, records: StagedRecords) -> None:
        self._staging = staging
        self._records = records

    @property
    def first_offset(self) -> int | None:
        """See OtherRecords."""
        return self._staging.first_offset

    @property
    def named_bytes(self) -> int:
        """See OtherRecords."""
        return self._staging.named_bytes

    def take(self, offset: int, record: Record) -> None:
        """See OtherRecords. Raises CorruptFile, UnknownFormatVersion."""
        self._staging.take(offset, record, self._records.log_start)

    def held(self) -> AbstractAsyncContextManager[None]:
        """See OtherRecords."""
        return self._records.held()

    def named(self) -> Iterator[tuple[bytes, bytes]]:
        """See OtherRecords."""
        return self._staging.named()
