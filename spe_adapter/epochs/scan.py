"""Reading a query's state from its streams, backwards: the edge between the sidecar's scan and CEC's protocol.

Invariants:
* Pieces come newest first; the next one is on its way while one is decoded.
* A client serves one scan at a time and nothing else meanwhile; a scan that ends early takes its answer off the wire.

Source: CEC paper, section II.B ("Constructing an EC").
"""

from collections.abc import Generator
from types import TracebackType
from typing import Final, NamedTuple, Self

from logstore.client.blocking import Client, Pending, TopicPartition
from logstore.format.batch import parse_header
from logstore.format.control import END_TYPE, MARK_TYPE
from logstore.format.private import ScanReply, ScanRequest
from logstore.interfaces import Buffer
from spe_adapter.cec.control import End, Mark, decode

SCAN_BYTES: Final = 4 * 1024 * 1024
"""Large enough for the disk and the wire, small enough that decoding and reading overlap."""
HEAD_BYTES: Final = 16 * 1024
"""More than the newest END and MARK take."""
END_OF_STREAM: Final = -1


class Scan:
    """The control batches of a stream in front of an offset, newest first: an iterator over pieces, to be closed."""

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
        self._pending: Pending[ScanReply] | None = self._ask(before_offset, first_bytes)
        self.log_start_offset = 0
        """Known once the first piece is there."""
        self.read_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        if error is None:
            pending.receive()
        else:
            self._client.close()  # the next call begins with a fresh connection

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Buffer:
        """The next piece: whole batches end to end."""
        while self._pending is not None:
            pending, self._pending = self._pending, None
            reply = pending.receive()
            self.log_start_offset = reply.log_start_offset
            self.read_bytes += len(reply.batches)
            if reply.next_before > reply.log_start_offset:
                self._pending = self._ask(reply.next_before, SCAN_BYTES)
            if len(reply.batches):
                return reply.batches
        raise StopIteration

    def _ask(self, before_offset: int, max_bytes: int) -> Pending[ScanReply]:
        request = ScanRequest(self._stream.topic, self._stream.partition, before_offset, self._types, max_bytes)
        return self._client.start_scan(request)


def ends(client: Client, stream: TopicPartition, *, first_bytes: int = SCAN_BYTES) -> Generator[End, None, None]:
    """The epoch markers of a stream, newest first, whichever query they are of. Close it if you stop early."""
    with Scan(client, stream, types=(END_TYPE,), first_bytes=first_bytes) as scan:
        for piece in scan:
            position = 0
            while position < len(piece):
                control = decode(piece, position)
                if isinstance(control, End):
                    yield control
                position += parse_header(piece, position).size_bytes


class Head(NamedTuple):
    """The newest epoch of a query in a stream: its END, the offset behind it, and its MARK (None: it has none here)."""

    end: End
    next_offset: int
    mark: Mark | None


def find_head(client: Client, stream: TopicPartition, query: str, *, epoch: int | None = None) -> Head | None:
    """The newest epoch of `query`, or that one, in a stream; None if the log does not hold any (or it)."""
    found: tuple[End, int] | None = None
    with Scan(client, stream, types=(END_TYPE, MARK_TYPE), first_bytes=HEAD_BYTES) as scan:
        for piece in scan:
            position = 0
            while position < len(piece):
                header = parse_header(piece, position)
                control = decode(piece, position)
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
