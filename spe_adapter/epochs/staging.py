"""Staging: one attempt's segments, made durable by the sidecar and visible by nothing yet.

Invariants:
* Segments of an attempt are staged in order, one request at a time, numbered from 0.
* The next segment is made while the previous one is being made durable; `finish` returns only when all are durable.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import pyarrow as pa

from logstore.client.blocking import Client, Pending
from logstore.client.wire import TopicPartition
from logstore.errors import MessageTooLarge
from logstore.format.epoch_api import StageReply, StageRequest, TaskOutput
from logstore.interfaces import Buffer
from spe_adapter.codec.compression import NONE
from spe_adapter.codec.encode import DEFAULT_BATCH_BYTES
from spe_adapter.codec.kernels import Int64s
from spe_adapter.epochs.segments import StagedSegment, StreamOutput

_IF_STATE_TOO_LARGE: Final = "raise the topic's max.message.bytes (results and the state of a window stay whole)"


class Attempt(NamedTuple):
    """Who stages: an attempt at a task of an epoch of a run of a query."""

    query: str
    run: str
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

    def __init__(self, client: Client, attempt: Attempt, if_too_large: str) -> None:
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
        attempt: Attempt,
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
