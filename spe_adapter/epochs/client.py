"""Requests about a query's epochs: connect, fence older incarnations, stage output, commit, abort.

Invariants:
* Segments of an attempt are staged in order, one request at a time, numbered from 0. The next segment is made while the
  previous one is being made durable; `finish` returns only when all are durable.
* Whoever reads the log after `take_over` reads the query's last epoch: no other incarnation can add one.
* Two drivers of one query cannot both go on; the older one gets FencedIncarnation at its next request.
* Once `commit` has returned, the epoch is in all of its streams, whatever happens. An answer that does not come says
  nothing: the epoch may be committed or not.
* Aborting never undoes a commit: the sidecar sees to that.

Source: docs/decisions/0004 and 0007.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from logstore.base.addresses import Address
from logstore.client.blocking import Client, Pending
from logstore.client.network import Network
from logstore.client.wire import TopicPartition
from logstore.errors import CairnError, MessageTooLarge
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
"""Whoever aborts has failed already and must not be kept: what an abort leaves, the sidecar reclaims by itself."""

_FENCE_ATTEMPT: Final = "fence"
_IF_STATE_TOO_LARGE: Final = "raise the topic's max.message.bytes (results and the state of a window stay whole)"


class SidecarOptions(Protocol):
    """How a sidecar is reached: the part that the options of source, sink and stateful queries share."""

    @property
    def servers(self) -> tuple[Address, ...]:
        """The sidecar's addresses."""

    @property
    def limit_s(self) -> float:
        """How long a request may take, all retries included."""

    @property
    def client_id(self) -> str:
        """The name that the sidecar knows the client by."""


def connect(options: SidecarOptions, network: Network, *, limit_s: float | None = None) -> Client:
    """A client, to be closed; `limit_s` instead of the options' own."""
    limit_s = options.limit_s if limit_s is None else limit_s
    return Client(options.servers, network, limit_s=limit_s, client_id=options.client_id)


def describe(client: Client, query: str) -> DescribeReply:
    """The query's last committed epoch and its positions; `last_epoch` is None if there is none."""
    return client.describe(DescribeRequest(query))


def take_over(client: Client, query: str, incarnation: str) -> int | None:
    """Make `incarnation` the query's newest; its last committed epoch, published everywhere, None if there is none.

    Raises FencedIncarnation if there is a newer incarnation already.
    """
    client.stage(StageRequest(query, incarnation, 0, 0, _FENCE_ATTEMPT, 0, (), b""))
    epoch = describe(client, query).last_epoch
    if epoch is not None:
        # The commit that has been made, once more: it is answered when its epoch is in all streams.
        commit(client, query, incarnation, epoch, ())
    return epoch


# ---- staging


class TaskAttempt(NamedTuple):
    """Who stages: an attempt at a task of an epoch, by an incarnation of a query."""

    query: str
    incarnation: str
    epoch: int
    task: int
    attempt: str

    def request(self, position: int, segment: StagedSegment) -> StageRequest:
        """What stages a segment, of which `position` were staged before."""
        return StageRequest(*self, position, segment.parts, segment.data)

    def output(self, segments: int) -> TaskOutput:
        """How a commit names this attempt's output."""
        return TaskOutput(self.task, self.attempt, segments)


class StagedWriter:
    """Stages one attempt's segments over a connection. `if_too_large` tells a user what to do about a record that its
    topic does not take.

    Raises the client's and the sidecar's errors.
    """

    def __init__(self, client: Client, attempt: TaskAttempt, if_too_large: str) -> None:
        self._client = client
        self._attempt = attempt
        self._if_too_large = if_too_large
        self._pending: Pending[StageReply] | None = None
        self._segments = 0

    def send(self, segments: Iterable[StagedSegment]) -> None:
        """Send segments, each when the one before it is durable; the last one's answer is not waited for."""
        for segment in segments:
            self.settle()
            self._pending = self._client.start_stage(self._attempt.request(self._segments, segment))
            self._segments += 1

    def settle(self) -> None:
        """Wait until everything that was sent is durable; the connection is free then."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            pending.receive()
        except MessageTooLarge as error:
            raise MessageTooLarge(f"{error}; {self._if_too_large}") from error

    def finish(self) -> int:
        """Wait until everything that was sent is durable; the number of segments."""
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
    ) -> None:
        self._writer = StagedWriter(client, attempt, _IF_STATE_TOO_LARGE)
        self._output = StreamOutput(stream, batch_bytes, codec)

    def add_results(self, keys: pa.Array, values: pa.Array, timestamps_ms: Int64s) -> None:
        """Take records; full segments are sent on."""
        self._writer.send(self._output.add_results(keys, values, timestamps_ms))

    def finish(self, controls: Iterable[Buffer]) -> int:
        """Send the control batches and the rest, and wait until everything is durable; the number of segments."""
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
    """Commit an epoch with the output of exactly these attempts. `forget`: no later epoch will come (a batch job).

    Raises FencedIncarnation, StaleEpoch and StagedMissing.
    """
    return client.commit(EpochCommitRequest(query, incarnation, epoch, rewind, tuple(outputs), positions, forget))


def start_commit(
    client: Client, attempt: TaskAttempt, segments: Sequence[StagedSegment], positions: str
) -> Pending[EpochCommitReply]:
    """Stage the only attempt of an epoch and commit it, in one go; committed when the answer is there."""
    request = EpochCommitRequest(
        attempt.query, attempt.incarnation, attempt.epoch, "error", (attempt.output(len(segments)),), positions, False
    )
    return client.start_commit([attempt.request(at, segment) for at, segment in enumerate(segments)], request)


def abort(options: SidecarOptions, network: Network, query: str, incarnation: str, epoch: int) -> None:
    """Drop what is staged for an epoch, as far as that succeeds; the rest goes with the incarnation."""
    limit_s = min(options.limit_s, ABORT_LIMIT_S)
    with suppress(CairnError), connect(options, network, limit_s=limit_s) as client:
        client.abort(AbortRequest(query, incarnation, epoch))
