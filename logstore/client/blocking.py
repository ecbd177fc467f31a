"""A blocking client of one sidecar: topics, offsets, raw record batches, and the epochs of an exactly-once sink.

Invariants:
* A call stops trying at the client's time limit; its last attempt may take a connection and an unanswered request more.
* Every request except `produce` may be sent twice without harm: after a lost connection the client backs off,
  reconnects and sends it again, until the time limit. `produce` is never sent again once its bytes may have arrived.
* Only one thread may use a client. The first bootstrap address that answers serves every request. When a host of a
  cluster answers that another host leads a stream, requests for that stream go to its leader, also after takeovers.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Self, TypeVar

from logstore.base.addresses import Address
from logstore.client import wire
from logstore.client.connections import Connections, parse_addresses, secured
from logstore.client.errors import (
    DESCRIBE_OR_CREATE,
    ELSEWHERE,
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    LEADER_NOT_AVAILABLE,
    RETRIABLE,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_OR_PARTITION,
    MalformedReply,
    SidecarRefused,
    Unavailable,
    name_of,
    unanswered,
)
from logstore.client.network import HostNetwork, Network
from logstore.client.pending import Pending
from logstore.client.security import PLAINTEXT, ClientSecurity
from logstore.client.wire import DEFAULT_REPLICATION, Fetched, OffsetInfo, TopicInfo, TopicPartition
from logstore.errors import (
    CairnError,
    InvalidConfig,
    InvalidPartitions,
    MalformedRequest,
    NotLeader,
    TopicExists,
    TryAgain,
)
from logstore.format import epoch_api, operator_api, reader_api
from logstore.interfaces import Buffer

DEFAULT_LIMIT_S: Final = 60.0
"""How long a call may retry: a sidecar restarts in about a second, a host in less than a minute."""
REQUEST_TIMEOUT_S: Final = 30.0
"""How long the client waits for the sidecar to send or take bytes before the connection counts as dead."""
ANSWER_SHARE: Final = 0.8
"""The share of that time in which the sidecar must answer a change. The answer then names the cause of a failure."""
FETCH_WAIT_MS: Final = 500
CREATION_WAIT_S: Final = 5.0
"""How long a topic that is created on demand may take to appear."""

_FIRST_BACKOFF_S: Final = 0.02
_MAX_BACKOFF_S: Final = 0.5
_LENGTH: Final = struct.Struct(">i")
_CORRELATION_BYTES: Final = 4
_MAX_CORRELATION: Final = 2**31 - 1

T = TypeVar("T")
R = TypeVar("R", bound=epoch_api.Reply)


class Client:
    """A client with a time limit for each call. Raises the errors of `logstore.client.errors` and `logstore.errors`."""

    def __init__(
        self,
        addresses: Sequence[Address],
        network: Network | None = None,
        *,
        limit_s: float = DEFAULT_LIMIT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        client_id: str = "cairn",
        security: ClientSecurity = PLAINTEXT,
        is_strict: bool = False,
    ) -> None:
        """`is_strict`: no call takes longer than `limit_s`; else its last attempt may take `request_timeout_s` more."""
        self._network = secured(network or HostNetwork(), security, client_id)
        self._connections = Connections(addresses, self._network, request_timeout_s)
        self._limit_s = limit_s
        self._is_strict = is_strict
        self._answer_ms = int(request_timeout_s * ANSWER_SHARE * 1000)
        self._client_id = client_id
        self._correlation_id = 0
        self._asked_for: TopicPartition | None = None
        """The stream of the request under way; None: any host can answer the request."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def where(self) -> str:
        """The addresses, for messages."""
        return self._connections.where

    def fileno(self) -> int:
        """The file descriptor of the last request's connection, to wait for several connections at the same time; -1
        without a connection.
        """
        return self._connections.at.fileno()

    def close(self) -> None:
        """Close all connections; the next call opens a new one."""
        self._connections.close()

    # ---- topics and offsets

    def topics(self, names: Sequence[str] | None = None, *, create: bool = False) -> dict[str, TopicInfo]:
        """Topics by name (None: all). A topic that does not exist has an error code instead of partitions."""
        body = wire.metadata_request(names, create=create)
        return self._retry(lambda: wire.metadata_reply(self._ask(wire.METADATA, [body])))

    def partitions(self, topic: str, *, create: bool = False) -> int:
        """The number of a topic's partitions; `create`: create a missing topic if allowed. Raises SidecarRefused."""
        patience_s = self._network.monotonic_s() + (CREATION_WAIT_S if create else 0.0)
        while True:
            info = self.topics([topic], create=create).get(topic)
            if info is None:
                raise MalformedReply(f"{self.where} left {topic!r} out of its answer")
            if not info.error:
                return len(info.partitions)
            # A Kafka broker that creates a topic on demand first answers that the topic does not exist.
            waits = info.error in RETRIABLE or (create and info.error == UNKNOWN_TOPIC_OR_PARTITION)
            if not waits or self._network.monotonic_s() >= patience_s:
                raise SidecarRefused(f"topic {topic!r} at {self.where}", code=info.error, right=DESCRIBE_OR_CREATE)
            self._network.sleep(_MAX_BACKOFF_S / 5)

    def offsets(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetInfo]:
        """Per stream, the first offset at or after a timestamp (or EARLIEST, LATEST), or the stream's own error."""
        known: dict[TopicPartition, OffsetInfo] = {}

        def ask() -> dict[TopicPartition, OffsetInfo]:
            left = [stream for stream in timestamps_ms if stream not in known]
            failure: SidecarRefused | None = None
            while left:
                some = self._led_together(left)
                body = wire.list_offsets_request({stream: timestamps_ms[stream] for stream in some})
                found = wire.list_offsets_reply(self._ask(wire.LIST_OFFSETS, [body], some[0]))
                self._asked_for = None  # several: each that went astray is noted here
                for stream in some:
                    info = found.get(stream)
                    if info is None:
                        raise MalformedReply(f"{self.where} left {stream} out of its answer")
                    if info.error in RETRIABLE:
                        failure = SidecarRefused(f"offsets of {stream} at {self.where}", code=info.error)
                        if info.error in ELSEWHERE:
                            self._connections.stray(stream)
                    else:
                        known[stream] = info
                left = [stream for stream in left if stream not in some]
            if failure is not None:
                raise failure
            return {stream: known[stream] for stream in timestamps_ms}

        return self._retry(ask)

    def _led_together(self, streams: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The first stream, and the other streams whose known leader is the same host."""
        self._find_leader(streams[0])
        leader = self._connections.leader(streams[0])
        return [
            stream
            for stream in streams
            if self._connections.leader(stream) == leader and not self._connections.is_astray(stream)
        ]

    def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str] | None = None, replicas: int = DEFAULT_REPLICATION
    ) -> None:
        """Create a topic. Raises TopicExists if the name is taken (after a lost connection, perhaps by this same call),
        InvalidConfig for an invalid setting, SidecarRefused for any other error.
        """
        body = wire.create_topic_request(name, partitions, configs or {}, timeout_ms=self._answer_ms, replicas=replicas)

        def ask() -> None:
            created = wire.create_topic_reply(self._ask(wire.CREATE_TOPICS, [body]))
            what = created.message.rstrip(".") or f"topic {name!r}"
            if created.error == TOPIC_ALREADY_EXISTS:
                raise TopicExists(f"{what}, at {self.where}")
            if created.error == INVALID_CONFIG:
                raise InvalidConfig(f"{what}, at {self.where}")
            if created.error:
                raise SidecarRefused(f"{what}, at {self.where}", code=created.error)

        self._retry(ask)

    def create_partitions(self, name: str, count: int) -> None:
        """Give a topic more partitions, `count` in total. Raises InvalidPartitions if it has at least `count` (after a
        lost connection, perhaps by this very call), SidecarRefused for any other error.
        """
        body = wire.create_partitions_request(name, count, timeout_ms=self._answer_ms)

        def ask() -> None:
            created = wire.create_topic_reply(self._ask(wire.CREATE_PARTITIONS, [body]))
            what = created.message.rstrip(".") or f"topic {name!r}"
            if created.error == INVALID_PARTITIONS:
                raise InvalidPartitions(f"{what}, at {self.where}")
            if created.error:
                raise SidecarRefused(f"{what}, at {self.where}", code=created.error)

        self._retry(ask)

    def topic_configs(self, name: str) -> dict[str, str]:
        """The settings in effect for a topic, defaults included. Raises SidecarRefused."""
        body = wire.describe_topic_request(name)

        def ask() -> dict[str, str]:
            found = wire.describe_topic_reply(self._ask(wire.DESCRIBE_CONFIGS, [body]))
            if found.error:
                raise SidecarRefused(found.message or f"settings of topic {name!r} at {self.where}", code=found.error)
            return found.values

        return self._retry(ask)

    def delete_records(self, stream: TopicPartition, before_offset: int) -> int:
        """Trim the records before an offset (-1: all records); returns the new start offset of the stream.

        Raises SidecarRefused (OFFSET_OUT_OF_RANGE for an offset above the high watermark).
        """
        body = wire.delete_records_request(stream, before_offset, timeout_ms=self._answer_ms)

        def ask() -> int:
            trimmed = wire.delete_records_reply(self._ask(wire.DELETE_RECORDS, [body], stream))
            if trimmed.error:
                raise SidecarRefused(f"trimming {stream} at {self.where}", code=trimmed.error, is_bare=True)
            return trimmed.log_start_offset

        return self._retry(ask)

    # ---- batches

    def start_fetch(self, stream: TopicPartition, offset: int, max_bytes: int) -> "Pending[Fetched]":
        """Send a fetch and return at once; read its answer before the next request of this client."""
        body = wire.fetch_request(stream, offset, max_bytes=max_bytes, max_wait_ms=FETCH_WAIT_MS)

        def receive(correlation_id: int) -> Fetched:
            fetched = wire.fetch_reply(self._receive_reply(correlation_id))
            if fetched.error in RETRIABLE:
                raise SidecarRefused(f"fetch of {stream} at {self.where}", code=fetched.error)
            return fetched

        return Pending(self, lambda: self._send_request(wire.FETCH, [body], stream), receive)

    def produce(self, stream: TopicPartition, records: Buffer) -> int:
        """Append batches; returns the base offset. The request is never sent twice: after Unavailable, the batches may
        or may not have been appended. Raises SidecarRefused.
        """
        self._retry(partial(self._reach_leader, stream))
        try:
            body = self._ask(wire.PRODUCE, wire.produce_request(stream, records, timeout_ms=self._answer_ms), stream)
        except OSError as error:
            self._connections.fail()
            raise Unavailable(f"{self.where}: lost during a produce to {stream} ({error})") from error
        produced = wire.produce_reply(body)
        if produced.error in ELSEWHERE:
            self._connections.stray(stream)
        if produced.error:
            raise SidecarRefused(f"produce to {stream} at {self.where}", code=produced.error)
        return produced.base_offset

    def _reach_leader(self, stream: TopicPartition) -> None:
        self._find_leader(stream)
        self._connections.use_leader(stream)
        self._connections.at.connected()

    # ---- epochs

    def start_stage(self, request: epoch_api.StageRequest) -> "Pending[epoch_api.StageReply]":
        """Send a segment of an epoch's output and return at once; the segment is durable once its answer arrives."""
        return Pending(
            self,
            lambda: self._send_epoch(request),
            lambda correlation_id: self._receive_epoch(epoch_api.STAGE, correlation_id, epoch_api.StageReply),
        )

    def stage(self, request: epoch_api.StageRequest) -> epoch_api.StageReply:
        """Stage a segment of an epoch's output; the segment is durable when the call returns."""
        return self.start_stage(request).receive()

    def commit(self, request: epoch_api.EpochCommitRequest) -> epoch_api.EpochCommitReply:
        """Commit an epoch; once the call returns, the epoch is published and survives any crash."""
        return self._ask_epoch(epoch_api.EPOCH_COMMIT, request, epoch_api.EpochCommitReply)

    def start_commit(
        self, segments: Sequence[epoch_api.StageRequest], commit: epoch_api.EpochCommitRequest
    ) -> "Pending[epoch_api.EpochCommitReply]":
        """Send the segments of an epoch and its commit together, and return at once; the answer confirms the commit.

        The sidecar handles them in order: if a segment cannot be staged, the commit fails because the segment is
        missing.
        """
        kinds = (*(epoch_api.STAGE for _ in segments), epoch_api.EPOCH_COMMIT)

        def send() -> int:
            requests: list[epoch_api.Request] = [*segments, commit]
            sent = [self._send_epoch(request) for request in requests]
            return sent[0]

        def receive(correlation_id: int) -> epoch_api.EpochCommitReply:
            failure: CairnError | None = None
            for index, key in enumerate(kinds):
                expected = (correlation_id + index) % _MAX_CORRELATION
                try:
                    if key == epoch_api.STAGE:
                        self._receive_epoch(key, expected, epoch_api.StageReply)
                    else:
                        reply = self._receive_epoch(key, expected, epoch_api.EpochCommitReply)
                except MalformedReply:
                    raise
                except CairnError as error:  # the later answers still arrive and must be read
                    failure = failure or error
            if failure is not None:
                raise failure
            return reply

        return Pending(self, send, receive)

    def abort(self, request: epoch_api.AbortRequest) -> epoch_api.AbortReply:
        """Discard the staged data of an epoch; a committed epoch stays committed."""
        return self._ask_epoch(epoch_api.ABORT, request, epoch_api.AbortReply)

    def describe(self, request: epoch_api.DescribeRequest) -> epoch_api.DescribeReply:
        """The state of a query in the sidecar."""
        return self._ask_epoch(epoch_api.DESCRIBE, request, epoch_api.DescribeReply)

    # ---- control batches

    def start_scan(self, request: epoch_api.ScanRequest) -> "Pending[epoch_api.ScanReply]":
        """Send a scan and return at once: the sidecar reads the next batches while the caller decodes these batches."""
        stream = TopicPartition(request.topic, request.partition)
        return Pending(
            self,
            lambda: self._send_epoch(request, stream),
            lambda correlation_id: self._receive_epoch(epoch_api.SCAN, correlation_id, epoch_api.ScanReply),
        )

    def scan(self, request: epoch_api.ScanRequest) -> epoch_api.ScanReply:
        """A stream's control batches before an offset, newest first; the reply has the offset to continue from.

        Raises OffsetOutOfRange (an offset above the high watermark), CorruptChunk (with the offsets that are lost),
        UnknownTopicOrPartition.
        """
        return self.start_scan(request).receive()

    # ---- registered readers

    def register_reader(
        self,
        reader: str,
        streams: Sequence[reader_api.ReaderOffset],
        *,
        group: str = "",
        keep: bool = False,
        state: str = "",
        incarnation_number: int = 0,
    ) -> tuple[reader_api.ReaderOffset, ...]:
        """Register a reader, or replace its streams and positions. Retention keeps all records that the reader has not
        acknowledged. Returns the positions, which are durable.

        With a `group`, the positions follow the offsets that this Kafka consumer group commits. With `keep`, the other
        streams of a registered reader stay as they are; they also stay if there are more than MAX_STREAMS streams,
        which take several requests. `state` is a query whose state the reader owns: control records of the state that
        no reader holds may then be removed. `incarnation_number` is the incarnation of the query that reads: older
        incarnations cannot change the reader any more. Raises FencedIncarnation if a newer incarnation is registered;
        OffsetOutOfRange, TooManyReaders, UnknownTopicOrPartition.
        """
        pieces = reader_api.pieces(streams)
        placed: list[reader_api.ReaderOffset] = []
        for piece in pieces:
            request = reader_api.RegisterReaderRequest(
                reader, group, piece, keep or len(pieces) > 1, state, incarnation_number
            )
            placed += self._ask_readers(request, reader_api.RegisterReaderReply).streams
        return tuple(placed)

    def acknowledge(
        self, reader: str, streams: Sequence[reader_api.ReaderOffset], *, incarnation_number: int = 0
    ) -> None:
        """Report that a reader needs no record before these positions. Streams that are new to the reader are durable.

        More than MAX_STREAMS streams take several requests. Raises UnknownReader; FencedIncarnation if the reader
        belongs to a newer incarnation; ReaderReleased if records after a position are gone; OffsetOutOfRange above
        the high watermark; TooManyReaders, UnknownTopicOrPartition.
        """
        for piece in reader_api.pieces(streams):
            self._ask_readers(reader_api.AcknowledgeRequest(reader, piece, incarnation_number), reader_api.Done)

    def remove_reader(self, reader: str) -> None:
        """Remove a reader; the records that it held may be trimmed. Raises UnknownReader."""
        self._ask_readers(reader_api.RemoveReaderRequest(reader), reader_api.Done)

    def describe_reader(self, reader: str) -> reader_api.ReaderDescription:
        """The positions and properties of a reader. Raises UnknownReader."""
        return self._ask_readers(reader_api.DescribeReadersRequest(reader), reader_api.ReaderDescription)

    def reader_names(self) -> list[str]:
        """The names of all readers, sorted."""
        found: list[str] = []
        while True:
            request = reader_api.DescribeReadersRequest("", found[-1] if found else "")
            names = self._ask_readers(request, reader_api.ReaderDescription).names
            found.extend(names)
            if len(names) < reader_api.NAMES_PER_REPLY:
                return found

    def _ask_readers(self, request: reader_api.ReaderRequest, kind: type[T]) -> T:
        def ask() -> T:
            self._choose(None)
            correlation_id = self._next_correlation()
            self._send(reader_api.encode_request(request, correlation_id=correlation_id, client_id=self._client_id))
            decode = partial(reader_api.decode_reply, reader_api.api_key_of(request))
            return self._receive_own(decode, correlation_id, kind)

        return self._retry(ask)

    def _ask_epoch(self, api_key: int, request: epoch_api.Request, kind: type[R]) -> R:
        return self._retry(lambda: self._receive_epoch(api_key, self._send_epoch(request), kind))

    def _send_epoch(self, request: epoch_api.Request, stream: TopicPartition | None = None) -> int:
        self._choose(stream)
        correlation_id = self._next_correlation()
        self._send(epoch_api.encode_request(request, correlation_id=correlation_id, client_id=self._client_id))
        return correlation_id

    def _receive_epoch(self, api_key: int, correlation_id: int, kind: type[R]) -> R:
        return self._receive_own(partial(epoch_api.decode_reply, api_key), correlation_id, kind)

    def _receive_own(self, decode: Callable[[memoryview], tuple[int, object]], correlation_id: int, kind: type[T]) -> T:
        """The reply to one of Cairn's own requests. Raises the error in the reply, or MalformedReply."""
        try:
            found, reply = decode(self._connections.at.receive())
        except MalformedRequest as error:
            raise MalformedReply(f"{self.where} does not answer as a Cairn sidecar: {error}") from error
        if found != correlation_id:
            raise MalformedReply(f"{self.where} answered request {found} where {correlation_id} was asked")
        if isinstance(reply, CairnError):
            raise reply
        if not isinstance(reply, kind):
            raise MalformedReply(f"{self.where} answered with {type(reply).__name__} where {kind.__name__} was due")
        return reply

    # ---- operators' requests (`logstore.client.admin` has them all)

    def call(self, api_key: int, body: Buffer, decode: Callable[[Buffer], T]) -> T:
        """The decoded answer to any request of `wire.VERSIONS` that may be sent twice without harm."""
        return self._retry(lambda: decode(self._ask(api_key, [body])))

    def call_once(self, api_key: int, body: Buffer, decode: Callable[[Buffer], T], at: Address | None) -> T:
        """The decoded answer of a host (None: any host) to a single attempt, for `retry_until`. Also raises OSError."""
        self._connections.use_host(at)
        self._asked_for = None
        return decode(self._receive_reply(self._send_kafka(api_key, [body])))

    def call_operator(self, request: operator_api.OperatorRequest, kind: type[T]) -> T:
        """The answer to one of Cairn's requests for operators."""

        def ask() -> T:
            self._choose(None)
            correlation_id = self._next_correlation()
            self._send(operator_api.encode_request(request, correlation_id=correlation_id, client_id=self._client_id))
            decode = partial(operator_api.decode_reply, operator_api.api_key_of(request))
            return self._receive_own(decode, correlation_id, kind)

        return self._retry(ask)

    # ---- requests and replies

    def ask(self, api_key: int, body: Iterable[Buffer]) -> memoryview:
        """Send a request of `wire.VERSIONS` that may be sent twice; returns the reply after its correlation id."""
        return self._retry(lambda: self._ask(api_key, body))

    def _ask(self, api_key: int, body: Iterable[Buffer], stream: TopicPartition | None = None) -> memoryview:
        return self._receive_reply(self._send_request(api_key, body, stream))

    def _send_request(self, api_key: int, body: Iterable[Buffer], stream: TopicPartition | None = None) -> int:
        self._choose(stream)
        return self._send_kafka(api_key, body)

    def _send_kafka(self, api_key: int, body: Iterable[Buffer]) -> int:
        correlation_id = self._next_correlation()
        self._send([wire.request_header(api_key, correlation_id, self._client_id), *body])
        return correlation_id

    def _receive_reply(self, correlation_id: int) -> memoryview:
        frame = self._connections.at.receive()
        if len(frame) < _CORRELATION_BYTES:
            raise MalformedReply(f"a reply of {len(frame)} bytes from {self.where}")
        (found,) = _LENGTH.unpack_from(frame)
        if found != correlation_id:
            raise MalformedReply(f"{self.where} answered request {found} where {correlation_id} was asked")
        return frame[_CORRELATION_BYTES:]

    def _next_correlation(self) -> int:
        self._correlation_id = (self._correlation_id + 1) % _MAX_CORRELATION
        return self._correlation_id

    def _send(self, pieces: Sequence[Buffer]) -> None:
        self._connections.at.send(pieces)

    # ---- whom to ask in a cluster

    def _choose(self, stream: TopicPartition | None) -> None:
        """Direct the next request to the leader of a stream, or to any host."""
        if stream is None:
            self._connections.use_home()
        else:
            self._find_leader(stream)
            self._connections.use_leader(stream)
        self._asked_for = stream

    def _find_leader(self, stream: TopicPartition) -> None:
        """Look up the leaders of a topic's streams, if this stream's leader is unknown. Raises SidecarRefused."""
        if not self._connections.is_astray(stream):
            return
        self._connections.use_home()
        body = wire.metadata_request([stream.topic], create=False)
        hosts, leaders = wire.leaders_reply(self._receive_reply(self._send_kafka(wire.METADATA, [body])))
        self._connections.learn(leaders, hosts)
        if self._connections.is_astray(stream):
            raise SidecarRefused(f"leader of {stream} at {self.where}", code=LEADER_NOT_AVAILABLE)

    # ---- trying again

    def _retry(self, ask: Callable[[], T]) -> T:
        return self.retry_until(ask, self._network.monotonic_s() + self._limit_s)

    def deadline_s(self) -> float:
        """The end of the time limit of a call that starts now, in monotonic seconds."""
        return self._network.monotonic_s() + self._limit_s

    def retry_until(self, ask: Callable[[], T], deadline_s: float) -> T:
        """Call `ask` until it succeeds or its error is final. Raises Unavailable at the deadline."""
        with self._connections.waiting.until(deadline_s if self._is_strict else None):
            return self._retry_until(ask, deadline_s)

    def _retry_until(self, ask: Callable[[], T], deadline_s: float) -> T:
        backoff_s, told = _FIRST_BACKOFF_S, None
        while True:
            try:
                return ask()
            except SidecarRefused as error:
                if error.code not in RETRIABLE:
                    raise
                self._note_elsewhere(is_so=error.code in ELSEWHERE)
                failure: Exception = error
                told = error
            except TryAgain as error:
                self._note_elsewhere(is_so=isinstance(error, NotLeader))
                failure = error
            except OSError as error:
                failure = error
                self._connections.fail()
            except MalformedReply:
                self.close()
                raise
            if self._network.monotonic_s() + backoff_s >= deadline_s:
                if self._is_strict and isinstance(failure, TimeoutError):
                    failure = told or failure  # that attempt had less time than the server takes for an answer
                raise unanswered(self.where, self._limit_s, failure) from failure
            self._network.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    def _note_elsewhere(self, *, is_so: bool) -> None:
        """Note that the host that answered does not lead the stream."""
        if is_so and self._asked_for is not None:
            self._connections.stray(self._asked_for)


__all__ = ["Client", "Pending", "SidecarRefused", "TopicPartition", "Unavailable", "name_of", "parse_addresses"]
