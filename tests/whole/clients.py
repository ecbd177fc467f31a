"""Clients of a simulated cluster: idempotent producers and readers, which speak Kafka's protocol as bytes.

Invariants:
* A producer sends a batch with the same sequence number until it is acknowledged, to whoever leads the partition then,
  and the next batch only after it. It tells the history before it sends, and when it is acknowledged.
* A reader asks for what follows what it has, from whoever leads, and tells the history all that it gets.
* A request has a time limit; a connection whose request was not answered in time, or that has ended, is used no more.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import trio

from logstore.base.addresses import Address
from logstore.client.errors import MalformedReply
from logstore.client.wire import (
    _HEADER,
    CREATE_TOPICS,
    FETCH,
    METADATA,
    PRODUCE,
    WireReader,
    WireWriter,
    create_topic_reply,
    create_topic_request,
    fetch_reply,
    fetch_request,
    leaders_reply,
    metadata_request,
    produce_reply,
    produce_request,
    request_header,
)
from logstore.errors import CairnError, StagedMissing, StorageFailed, TryAgain
from logstore.format.batch import is_empty, iterate_batches
from logstore.format.epoch_api import (
    EPOCH_COMMIT,
    STAGE,
    EpochCommitRequest,
    Part,
    Reply,
    Request,
    StageRequest,
    TaskOutput,
    decode_reply,
    encode_request,
)
from logstore.format.records import Record, decode_batch, encode_batch
from logstore.format.topic_partition import TopicPartition
from logstore.interfaces import Buffer
from tests.whole.hosts import NAMES, WholeCluster, kafka_address
from tests.whole.machine import NOW_MS
from tests.whole.network import ClientConnection
from tests.whole.promises import ClientHistory

INIT_PRODUCER_ID = 22
PATIENCE_S = 2.0
PAUSE_S = 0.02
TIMEOUT_MS = 1_500
MAX_WAIT_MS = 200
FETCH_BYTES = 1 << 16
EPOCH_RECORDS = 4
"""Of an epoch, in each partition; two tasks write them."""
OUT_OF_ORDER_SEQUENCE, DUPLICATE_SEQUENCE, UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_EPOCH = 45, 46, 59, 47
NEVER = frozenset((OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH, UNKNOWN_PRODUCER_ID))
"""Errors that an idempotent producer alone must not meet: each would make it lose or double a record."""
OFFSET_OUT_OF_RANGE = 1


class NotAnswered(Exception):
    """A request whose outcome the client does not know."""


class SimulatedClient:
    """A client with connections to hosts, and what it knows of who leads. Two of them share nothing."""

    def __init__(self, cluster: WholeCluster, name: str) -> None:
        self._cluster = cluster
        self.name = name
        self._random = Random(f"{name} {cluster.random.getrandbits(64)}")
        self._connections: dict[str, ClientConnection] = {}
        self._leaders: dict[TopicPartition, Address] = {}
        self.outcomes: Counter[str] = Counter()

    async def ask(self, address: Address, api_key: int, body: Buffer, header: bytes | None = None) -> bytes:
        """Ask one host. Raises NotAnswered."""
        request = (header or request_header(api_key, 1, self.name)) + bytes(body)
        with trio.move_on_after(PATIENCE_S):
            try:
                connection = self._connections.get(address.host)
                if connection is None or connection.is_ended:
                    connection = await self._cluster.network.connect(self.name, address)
                    self._connections[address.host] = connection
                return await connection.ask(request)
            except OSError as error:
                self._give_up(address.host)
                self.outcomes[type(error).__name__] += 1
                raise NotAnswered(str(error)) from error
        self._give_up(address.host)
        self.outcomes["too late"] += 1
        raise NotAnswered(f"{address} does not answer")

    def _give_up(self, host: str) -> None:
        connection = self._connections.pop(host, None)
        if connection is not None:
            connection.close()

    async def leader(self, stream: TopicPartition) -> Address:
        """Who leads a partition, as some host says; asks until a host says it."""
        while stream not in self._leaders:
            try:
                body = metadata_request([stream.topic], create=False)
                answer = await self.ask(kafka_address(self._random.choice(NAMES)), METADATA, body)
                self._leaders = leaders_reply(answer)[1]
            except (NotAnswered, MalformedReply):
                pass
            if stream not in self._leaders:
                await trio.sleep(PAUSE_S)
        return self._leaders[stream]

    async def failed(self, what: str) -> None:
        """A request has failed: who leads is asked for anew, after a moment."""
        self.outcomes[what] += 1
        self._leaders.clear()
        await trio.sleep(self._random.uniform(PAUSE_S / 2, PAUSE_S * 2))

    async def create_topic(self, name: str, partitions: int, **settings: str) -> None:
        """Ask until there is the topic."""
        while True:
            try:
                body = create_topic_request(name, partitions, settings, timeout_ms=TIMEOUT_MS)
                answer = await self.ask(kafka_address(self._random.choice(NAMES)), CREATE_TOPICS, body)
            except NotAnswered:
                continue
            created = create_topic_reply(answer)
            if created.error in (0, 36):
                return
            await self.failed(f"create: {created}")

    async def producer_id(self) -> tuple[int, int]:
        """A producer's id and epoch that nobody else has."""
        while True:
            writer = WireWriter()
            writer.string(None)
            writer.int32(60_000)
            header = WireWriter()
            header.data += _HEADER.pack(INIT_PRODUCER_ID, 1, 1)
            header.string(self.name)
            address = kafka_address(self._random.choice(NAMES))
            try:
                answer = await self.ask(address, INIT_PRODUCER_ID, bytes(writer.data), bytes(header.data))
            except NotAnswered:
                await trio.sleep(PAUSE_S)
                continue
            reader = WireReader(answer)
            reader.int32()
            error, found = reader.int16(), (reader.int64(), reader.int16())
            if error == 0:
                return found
            await self.failed(f"producer id: {error}")


class SimulatedProducer(SimulatedClient):
    """An idempotent producer of one partition."""

    def __init__(self, cluster: WholeCluster, name: str, stream: TopicPartition, history: ClientHistory) -> None:
        super().__init__(cluster, name)
        self.stream = stream
        self.history = history

    async def run(self) -> None:
        """Produce until cancelled."""
        producer_id, epoch = await self.producer_id()
        sequence = 0
        while True:
            values = [b"%s-%d" % (self.name.encode(), sequence + i) for i in range(self._random.randint(1, 3))]
            now_ms = NOW_MS + int(trio.current_time() * 1000)
            records = [Record(i, now_ms, None, value + b" " * self._random.choice((0, 300))) for i, value in
                       enumerate(values)]  # fmt: skip
            batch = encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
            self.history.sent(self.name, sequence, [record.value or b"" for record in records])
            await self._deliver(bytes(batch), sequence)
            sequence += len(values)
            await trio.sleep(self._random.choice((0.01, 0.1, 0.4)))

    async def _deliver(self, batch: bytes, sequence: int) -> None:
        attempt = 0
        while True:
            attempt += 1
            leader = await self.leader(self.stream)
            body = b"".join(bytes(part) for part in produce_request(self.stream, batch, timeout_ms=TIMEOUT_MS))
            try:
                produced = produce_reply(await self.ask(leader, PRODUCE, body))
            except NotAnswered:
                await self.failed("produce: not answered")
                continue
            if produced.error == 0:
                self.outcomes["produced"] += 1
                self.history.acknowledged(self.name, sequence, produced.base_offset, leader.host, is_first=attempt == 1)
                return
            if produced.error in NEVER:
                self.history.broken(
                    f"{self.name}: error {produced.error} from {leader} for sequence {sequence}, attempt {attempt}"
                )
            await self.failed(f"produce: {produced.error}")


class SimulatedReader(SimulatedClient):
    """Reads one partition from its start on."""

    def __init__(self, cluster: WholeCluster, name: str, stream: TopicPartition, history: ClientHistory) -> None:
        super().__init__(cluster, name)
        self.stream = stream
        self.history = history
        self.offset = 0
        self.log: dict[int, bytes] = {}
        """All that was read; nothing at offsets that clients are not shown."""

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.read()

    async def read(self) -> None:
        """Ask once for what follows."""
        leader = await self.leader(self.stream)
        body = fetch_request(self.stream, self.offset, max_bytes=FETCH_BYTES, max_wait_ms=MAX_WAIT_MS)
        try:
            fetched = fetch_reply(await self.ask(leader, FETCH, body))
        except NotAnswered:
            await self.failed("fetch: not answered")
            return
        if fetched.error:
            if fetched.error == OFFSET_OUT_OF_RANGE:
                self.history.broken(f"{self.name}: offset {self.offset} is out of range at {leader}")
            await self.failed(f"fetch: {fetched.error}")
            return
        self.outcomes["fetched"] += 1
        where = f"{self.name} from {leader.host}"
        self.history.high_watermark_shown(fetched.high_watermark)
        self._check_end(leader.host, fetched.high_watermark, where)
        for position, header in iterate_batches(fetched.records):
            if header.next_offset > fetched.high_watermark:
                self.history.broken(f"{where}: a batch to {header.next_offset}, the end is {fetched.high_watermark}")
            self.log |= dict.fromkeys(range(header.base_offset, header.next_offset), b"")
            for record in decode_batch(fetched.records, position) if not is_empty(header) else ():
                self.log[record.offset] = record.value or b""
                self.history.read(record.offset, record.value or b"", header.partition_leader_epoch, where)
            self.offset = max(self.offset, header.next_offset)

    def _check_end(self, host: str, high_watermark: int, where: str) -> None:
        """A high watermark says what is acknowledged by all, which the owner knows; that never goes back."""
        running = self._cluster.hosts.get(host)
        if running is not None:
            stream = running.cluster.engine.store.stream(*self.stream).stream
            if running.host.owns(stream) and high_watermark > running.host.owners[stream].high_watermark:
                self.history.broken(
                    f"{where}: a reader was told {high_watermark}, and "
                    f"{running.host.owners[stream].high_watermark} is acknowledged"
                )

    async def read_to(self, offset: int) -> None:
        """Read until everything in front of an offset is there."""
        while self.offset < offset:
            await self.read()


class EpochClient(SimulatedClient):
    """A query: stages and commits one epoch after the other, with records for every partition of a topic."""

    def __init__(self, cluster: WholeCluster, name: str, histories: dict[TopicPartition, ClientHistory]) -> None:
        super().__init__(cluster, name)
        self.histories = histories
        self.committed = 0

    async def run(self) -> None:
        """Commit epochs until cancelled."""
        while True:
            await self._epoch(self.committed)
            for history in self.histories.values():
                history.committed(self.name, self.committed * EPOCH_RECORDS)
            self.committed += 1
            await trio.sleep(self._random.choice((0.1, 0.3, 1)))

    async def _epoch(self, number: int) -> None:
        values = {
            stream: [b"%s-%d-%d" % (self.name.encode(), number, i) for i in range(EPOCH_RECORDS)]
            for stream in self.histories
        }
        for stream, history in self.histories.items():
            history.sent(self.name, number * EPOCH_RECORDS, values[stream])
        for attempt in range(1_000):
            if await self._attempt(number, f"a{number}.{attempt}", values):
                return
        raise AssertionError(f"epoch {number} was never committed: {self.outcomes}")

    async def _attempt(self, number: int, attempt: str, values: dict[TopicPartition, list[bytes]]) -> bool:
        """Run the two tasks of an epoch and commit it; False: what was staged has gone."""
        now_ms, half = NOW_MS + int(trio.current_time() * 1000), EPOCH_RECORDS // 2
        for task in range(2):
            parts, data = list[Part](), b""
            for stream, all_of_it in values.items():
                own = all_of_it[task * half : (task + 1) * half]
                batch = encode_batch([Record(i, now_ms, None, value) for i, value in enumerate(own)])
                parts.append(Part(stream.topic, stream.partition, len(batch), 1, half))
                data += batch
            await self._surely(STAGE, StageRequest(self.name, "run", number, task, attempt, 0, tuple(parts), data))
        tasks = tuple(TaskOutput(task, attempt, 1) for task in range(2))
        commit = EpochCommitRequest(self.name, "run", number, "error", tasks, f"p{number}", False)
        try:
            await self._surely(EPOCH_COMMIT, commit)
        except StagedMissing:
            self.outcomes["staged output gone"] += 1
            return False
        self.outcomes["committed"] += 1
        return True

    async def _surely(self, api_key: int, request: Request) -> Reply:
        """Ask any host, again and again. Raises what is no reason to ask again."""
        whole = b"".join(bytes(part) for part in encode_request(request, correlation_id=1))
        while True:
            try:
                answer = await self.ask(kafka_address(self._random.choice(NAMES)), api_key, b"", whole)
            except NotAnswered:
                continue
            _, reply = decode_reply(api_key, b"\0\0\0\1" + answer)
            if isinstance(reply, TryAgain | StorageFailed):
                await self.failed(f"epoch: {type(reply).__name__}")
            elif isinstance(reply, CairnError):
                raise reply
            else:
                return reply
