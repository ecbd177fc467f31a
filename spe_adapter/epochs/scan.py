"""The backward scan over a stream: the epochs that ended in it, and a query's state as of one of them.

Invariants:
* Control batches come newest first, several at a time. The next batches are requested before the last ones are decoded.
* A client serves one scan at a time, and no other request during a scan. A scan that ends early frees the connection.
* Any client may write epochs into a stream, so the positions of queries that are not Cairn's are not parsed.

Source: CEC paper, section II.B ("Constructing an EC").
"""

from collections.abc import Generator
from contextlib import closing
from types import TracebackType
from typing import Final, NamedTuple, Self

from logstore.client.blocking import Client, Pending, TopicPartition
from logstore.format.batch import parse_header
from logstore.format.control import END_TYPE, MARK_TYPE
from logstore.format.epoch_api import ScanReply, ScanRequest
from logstore.interfaces import Buffer
from spe_adapter.cec.control import End, EndPositions, Mark, decode, holds_progress
from spe_adapter.cec.reconstruct import EventualCheckpoint, Floor, Reconstruction
from spe_adapter.host import new_seed

SCAN_BYTES: Final = 4 * 1024 * 1024
"""Large enough for the disk and the network, small enough that decoding and reading overlap."""
HEAD_BYTES: Final = 16 * 1024
"""More than the newest END and MARK take."""
END_OF_STREAM: Final = -1
"""The offset from which a scan covers the whole stream."""


class ControlScan:
    """An iterator over the control batches of a stream before an offset, newest first. The caller closes it."""

    def __init__(
        self,
        client: Client,
        stream: TopicPartition,
        *,
        before_offset: int = END_OF_STREAM,
        types: tuple[int, ...] = (),
        first_bytes: int = SCAN_BYTES,
    ) -> None:
        self._client = client
        self._stream = stream
        self._types = types
        self.next_before = before_offset
        """The offset from which the scan continues: all control batches at or above it have been returned."""
        self.log_start_offset = 0
        """Known after the first batches."""
        self._pending: Pending[ScanReply] | None = self._ask(first_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._pending is not None:
            self._pending = None
            self._client.close()  # the next call opens a new connection

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Buffer:
        """The next batches, end to end."""
        while self._pending is not None:
            pending, self._pending = self._pending, None
            reply = pending.receive()
            self.next_before, self.log_start_offset = reply.next_before, reply.log_start_offset
            if reply.next_before > reply.log_start_offset:
                self._pending = self._ask(SCAN_BYTES)
            if len(reply.batches):
                return reply.batches
        raise StopIteration

    def close(self) -> None:
        """Receive the answer to the last request; then the connection is free."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.receive()

    def _ask(self, max_bytes: int) -> Pending[ScanReply]:
        topic, partition = self._stream
        return self._client.start_scan(ScanRequest(topic, partition, self.next_before, self._types, max_bytes))


def reconstruct(
    client: Client, stream: TopicPartition, query: str, as_of: int | None = None, floor: Floor | None = None
) -> EventualCheckpoint:
    """The eventual checkpoint of a query in a stream, as of an epoch (None: the newest), down to `floor`.

    Raises StateTrimmed, StateInconsistent, CorruptBatch and the client's errors.
    """
    reconstruction = Reconstruction(query, as_of, seed=new_seed(), floor=floor)
    with ControlScan(client, stream) as scan:
        for batches in scan:
            if reconstruction.feed(batches):
                break
        else:
            reconstruction.finish(scan.log_start_offset)
    return reconstruction.result


class Ended(NamedTuple):
    """The END of an epoch, and the offset after it."""

    end: End
    next_offset: int


def ends(client: Client, stream: TopicPartition, *, first_bytes: int = SCAN_BYTES) -> Generator[Ended, None, None]:
    """The epochs that ended in a stream, newest first, of any query. A caller that stops early closes the generator."""
    with ControlScan(client, stream, types=(END_TYPE,), first_bytes=first_bytes) as scan:
        for batches in scan:
            position = 0
            while position < len(batches):
                header, control = parse_header(batches, position), decode(batches, position)
                if isinstance(control, End):
                    yield Ended(control, header.base_offset + 1)
                position += header.size_bytes


def standing_epochs(
    client: Client, stream: TopicPartition, query: str
) -> Generator[tuple[End, EndPositions], None, None]:
    """The epochs of a query with state that no reset has undone, newest first.

    A caller that stops early closes the generator.
    """
    undone_after: int | None = None
    with closing(ends(client, stream)) as found:
        for end, _ in found:
            if end.query != query or not holds_progress(end) or (undone_after is not None and end.epoch > undone_after):
                continue
            progress = EndPositions.from_json(end.positions)
            yield end, progress
            undone_after = progress.reset_to if progress.reset_to is not None else undone_after


class Head(NamedTuple):
    """The newest epoch of a query in a stream: its END, the offset after it, and its MARK (None without state)."""

    end: End
    next_offset: int
    mark: Mark | None


def find_head(client: Client, stream: TopicPartition, query: str, *, epoch: int | None = None) -> Head | None:
    """The newest epoch of `query` in a stream, or the given epoch; None if the log does not have it."""
    found: tuple[End, int] | None = None
    with ControlScan(client, stream, types=(END_TYPE, MARK_TYPE), first_bytes=HEAD_BYTES) as scan:
        for batches in scan:
            position = 0
            while position < len(batches):
                header = parse_header(batches, position)
                control = decode(batches, position)
                position += header.size_bytes
                if isinstance(control, End):
                    if found is not None:
                        return Head(*found, None)
                    if control.query == query and (epoch is None or control.epoch <= epoch):
                        if epoch is not None and control.epoch < epoch:
                            return None
                        found = control, header.base_offset + 1
                elif isinstance(control, Mark) and found is not None and control.epoch == found[0].epoch:
                    return Head(*found, control)
    return None if found is None else Head(*found, None)
