"""Requests about a query's epochs: connect, fence older incarnations, stage output, commit, abort.

Invariants:
* Segments of an attempt are staged in order, one request at a time, numbered from 0. The next segment is made while the
  previous one is being written; `finish` returns when all are durable.
* After `take_over`, the log has the query's last epoch, and no older incarnation can add one.
* Of two drivers of one query only the newer can continue; the older gets FencedIncarnation at its next request, also at
  an acknowledgement of the query's reader that names its `incarnation_number`.
* Once `commit` has returned, the epoch is durable in all of its streams. Without an answer, the epoch may be committed
  or not.
* The sidecar never lets an abort undo a commit.

Source: docs/decisions/0004 and 0007.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from logstore.base.addresses import Address
from logstore.client.blocking import Client, Pending
from logstore.client.network import Network
from logstore.client.security import ClientSecurity
from logstore.client.wire import TopicPartition
from logstore.errors import CairnError, FencedIncarnation, MessageTooLarge
from logstore.format.epoch_api import (
    AbortRequest,
    DescribeReply,
    DescribeRequest,
    EpochCommitReply,
    EpochCommitRequest,
    Rewind,
    StageReply,
    StageRequest,
    TaskOutput,
)
from logstore.interfaces import Buffer
from spe_adapter.codec.compression import NONE
from spe_adapter.codec.encode import DEFAULT_BATCH_BYTES
from spe_adapter.codec.kernels import Int64s
from spe_adapter.epochs.segments import StagedSegment, StreamOutput

ABORT_LIMIT_S: Final = 5.0
"""Short, since a caller that aborts has failed already. The sidecar reclaims by itself what an abort leaves."""

_FENCE_ATTEMPT: Final = "fence"
_IF_STATE_TOO_LARGE: Final = "raise the topic's max.message.bytes (results and the state of a window stay whole)"


class SidecarOptions(Protocol):
    """The options of a connection to a sidecar, which source, sink and stateful queries share."""

    @property
    def servers(self) -> tuple[Address, ...]:
        """The sidecar's addresses."""

    @property
    def limit_s(self) -> float:
        """The longest time of a request, in seconds, all retries included."""

    @property
    def client_id(self) -> str:
        """The client's name in the sidecar's log and metrics."""

    @property
    def security(self) -> ClientSecurity:
        """TLS and the login of its connections."""


def connect(options: SidecarOptions, network: Network, *, limit_s: float | None = None) -> Client:
    """Connect a client, which the caller closes. `limit_s` overrides that of the options."""
    limit_s = options.limit_s if limit_s is None else limit_s
    return Client(options.servers, network, limit_s=limit_s, client_id=options.client_id, security=options.security)


def describe(client: Client, query: str) -> DescribeReply:
    """The query's last committed epoch and its positions; `last_epoch` is None if there is none."""
    return client.describe(DescribeRequest(query))


def take_over(client: Client, query: str, incarnation: str) -> int | None:
    """Fence all older incarnations; the query's last committed epoch, which is in all its streams, or None.

    Raises FencedIncarnation if there is a newer incarnation already.
    """
    client.stage(StageRequest(query, incarnation, 0, 0, _FENCE_ATTEMPT, 0, (), b""))
    epoch = describe(client, query).last_epoch
    if epoch is not None:
        # The same epoch is committed again, since the answer comes only when it is in all streams.
        commit(client, query, incarnation, epoch, ())
    return epoch


def incarnation_number(client: Client, query: str, incarnation: str) -> int:
    """How many incarnations the query has had with this one, which has taken over; 0: the sidecar does not say.

    Raises FencedIncarnation if there is a newer one.
    """
    known = describe(client, query)
    if known.incarnation != incarnation:
        raise FencedIncarnation(
            f"incarnation {incarnation!r} of query {query!r} has been replaced by incarnation {known.incarnation!r}; "
            "stop this one"
        )
    return known.incarnation_number


# ---- staging


class TaskAttempt(NamedTuple):
    """Identifies an attempt at a task of an epoch, by an incarnation of a query."""

    query: str
    incarnation: str
    epoch: int
    task: int
    attempt: str

    def request(self, position: int, segment: StagedSegment) -> StageRequest:
        """The request that stages the segment number `position`, counted from 0."""
        return StageRequest(*self, position, segment.parts, segment.data)

    def output(self, segments: int) -> TaskOutput:
        """The entry of a commit for this attempt's output of `segments` segments."""
        return TaskOutput(self.task, self.attempt, segments)


class StagedWriter:
    """Stages the segments of one attempt over a connection.

    `if_too_large` is the remedy in the message for a record that its topic refuses. Raises the client's and the
    sidecar's errors.
    """

    def __init__(self, client: Client, attempt: TaskAttempt, if_too_large: str) -> None:
        self._client = client
        self._attempt = attempt
        self._if_too_large = if_too_large
        self._pending: Pending[StageReply] | None = None
        self._segments = 0

    def send(self, segments: Iterable[StagedSegment]) -> None:
        """Send segments, each after the previous one is durable; does not wait for the last answer."""
        for segment in segments:
            self.settle()
            self._pending = self._client.start_stage(self._attempt.request(self._segments, segment))
            self._segments += 1

    def settle(self) -> None:
        """Wait until all segments that were sent are durable; then the connection is free."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            pending.receive()
        except MessageTooLarge as error:
            raise MessageTooLarge(f"{error}; {self._if_too_large}") from error

    def finish(self) -> int:
        """Wait until all segments are durable; the number of segments."""
        self.settle()
        return self._segments


class StagedStream:
    """Stages one attempt's output for one stream with state: results first, then control batches. Raises the client's
    and the sidecar's errors, and InvalidRecord.
    """

    def __init__(
        self,
        client: Client,
        attempt: TaskAttempt,
        stream: TopicPartition,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        codec: int = NONE,
        late: TopicPartition | None = None,
    ) -> None:
        self._writer = StagedWriter(client, attempt, _IF_STATE_TOO_LARGE)
        self._output = StreamOutput(stream, batch_bytes, codec, late)

    def add_results(self, keys: pa.Array, values: pa.Array, timestamps_ms: Int64s) -> None:
        """Add records; full segments are sent."""
        self._writer.send(self._output.add_results(keys, values, timestamps_ms))

    def add_late(self, keys: pa.Array, values: pa.Array, timestamps_ms: Int64s) -> None:
        """Add records to the stream `late`; full segments are sent."""
        self._writer.send(self._output.add_late(keys, values, timestamps_ms))

    def finish(self, controls: Iterable[Buffer]) -> int:
        """Send the rest of the results and the control batches, and wait until all is durable; the segment count."""
        self._writer.send(self._output.finish(controls))
        return self._writer.finish()


# ---- commit and abort


def commit(
    client: Client,
    query: str,
    incarnation: str,
    epoch: int,
    outputs: Sequence[TaskOutput],
    positions: str = "",
    *,
    rewind: Rewind = "error",
    forget: bool = False,
) -> EpochCommitReply:
    """Commit an epoch with the output of exactly these attempts. `positions` is the note on the epoch's input.
    `forget`: no later epoch will follow (a batch job).

    Raises FencedIncarnation, StaleEpoch and StagedMissing.
    """
    return client.commit(EpochCommitRequest(query, incarnation, epoch, rewind, tuple(outputs), positions, forget))


def start_commit(
    client: Client, attempt: TaskAttempt, segments: Sequence[StagedSegment], positions: str
) -> Pending[EpochCommitReply]:
    """Send the segments of an epoch's only attempt and its commit together; the answer means that it is committed."""
    request = EpochCommitRequest(
        attempt.query, attempt.incarnation, attempt.epoch, "error", (attempt.output(len(segments)),), positions, False
    )
    return client.start_commit([attempt.request(at, segment) for at, segment in enumerate(segments)], request)


def abort(options: SidecarOptions, network: Network, query: str, incarnation: str, epoch: int) -> None:
    """Drop the staged output of an epoch; errors are ignored, since the sidecar drops the rest with the incarnation."""
    limit_s = min(options.limit_s, ABORT_LIMIT_S)
    with suppress(CairnError), connect(options, network, limit_s=limit_s) as client:
        client.abort(AbortRequest(query, incarnation, epoch))
