"""Groups for streams of other owners: what is in them, when they go, and what a failure leaves."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from logstore.epochs import remote_publisher
from logstore.epochs.commit_in_progress import CommitInProgress
from logstore.epochs.group_order import GroupOrder, decode_order, encode_order
from logstore.epochs.ledger_entries import CommitRecord, LastEpoch, Target
from logstore.epochs.remote_publisher import Place, RemotePublisher, StreamEnd, TargetStream
from logstore.epochs.replicated_staging import ReplicatedStaging
from logstore.epochs.stream_holds import StreamHolds
from logstore.errors import (
    CairnError,
    CorruptFile,
    GroupTooLarge,
    InvalidRecord,
    MalformedRequest,
    StorageFailed,
    TryAgain,
    UnknownTopicOrPartition,
)
from logstore.format.batch import iterate_batches
from logstore.format.control import Begin, End, decode_control
from logstore.format.epoch_api import Part, TaskOutput
from logstore.format.records import Record, decode_batch, encode_batch
from logstore.format.staged import AttemptKey
from logstore.log.coroutines import start
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig
from logstore.testing.reports import RecordedReports
from tests.epochs.test_replicated_staging import Stream

TOPIC_ID = "00000000-0000-0000-0000-000000000007"
NOW_MS = 1_700_000_000_000
LARGEST = 5_000


class Owners:
    """The streams of a cluster; a test answers what they are asked."""

    def __init__(self) -> None:
        self.topic_id = TOPIC_ID
        self.orders: list[tuple[GroupOrder, Ticket[bool]]] = []
        self.pauses: list[tuple[int, Sequence[Target], Ticket[Sequence[Target]]]] = []
        self.end_offsets: dict[Place, int] = {}

    def find(self, topic: str, partition: int) -> TargetStream:
        if topic != "out":
            raise UnknownTopicOrPartition(topic)
        return TargetStream(self.topic_id, TopicConfig())

    def check_group(self, name: str, size_bytes: int) -> None:
        if size_bytes > LARGEST:
            raise GroupTooLarge(f"{name}: {size_bytes}")

    def ends(self, places: Sequence[Place]) -> Ticket[Mapping[Place, StreamEnd]]:
        return Ticket.succeeded({place: StreamEnd(self.topic_id, self.end_offsets.get(place, 0)) for place in places})

    def append(self, order: GroupOrder) -> Ticket[bool]:
        ticket: Ticket[bool] = Ticket()
        self.orders.append((order, ticket))
        return ticket

    def ready(self, query: str, targets: Sequence[Target], tries: int) -> Ticket[Sequence[Target]]:
        ticket: Ticket[Sequence[Target]] = Ticket()
        self.pauses.append((tries, targets, ticket))
        return ticket

    def answer(self, *answers: Exception | bool) -> None:
        """Answer the orders that wait, in their order: that their stream has the group, or not, or an error."""
        waiting, self.orders = self.orders, []
        for (_, ticket), answer in zip(waiting, answers or [True] * len(waiting), strict=True):
            if isinstance(answer, bool):
                ticket.succeed(answer)
            else:
                ticket.fail(answer)

    def go_on(self, count: int | None = None) -> None:
        """Groups that wait may be sent again: those for the first streams of each epoch."""
        waiting, self.pauses = self.pauses, []
        for _, targets, ticket in waiting:
            ticket.succeed(targets[:count])

    @property
    def sent_bytes(self) -> int:
        """Of the groups that have no answer."""
        return sum(order.byte_count for order, _ in self.orders)


class World:
    """Two tasks that have staged a batch for each of some partitions, and a commit of theirs."""

    def __init__(self, partitions: int = 3, value_bytes: int = 20, segments: int = 1) -> None:
        self.stream, self.owners, self.reports = Stream(), Owners(), RecordedReports()
        self.staging: ReplicatedStaging = self.stream.owned()
        self.publisher = RemotePublisher(self.staging, self.owners, StreamHolds(), self.reports)
        for task in range(2):
            for segment in range(segments):
                batches = [
                    bytes(
                        encode_batch([Record(0, NOW_MS, None, b"%d/%d/%d" % (task, segment, p) + bytes(value_bytes))])
                    )
                    for p in range(partitions)
                ]
                parts = tuple(Part("out", p, len(batch), 1, 1) for p, batch in enumerate(batches))
                key = AttemptKey("q", "run", 4, task, "a")
                self.staging.stage(key, segment, parts, b"".join(batches), now_ms=NOW_MS)
        self.stream.ack()
        targets = tuple(Target("out", TOPIC_ID, partition, 10 + partition) for partition in range(partitions))
        tasks = tuple(TaskOutput(task, "a", segments) for task in range(2))
        self.record = CommitRecord("q", "run", 3, 4, "pos", tasks, targets)
        self.commit = CommitInProgress(self.record, LastEpoch(4, NOW_MS, False, "pos"))

    def publish(self) -> Ticket[None]:
        return start(self.publisher.publish(self.commit))


def content(group: bytearray) -> tuple[Begin, list[bytes], End]:
    """A group's BEGIN, the beginnings of its values, and its END."""
    batches = [memoryview(group)[at : at + header.size_bytes] for at, header in iterate_batches(group)]
    begin, end = decode_control(batches[0]), decode_control(batches[-1])
    assert isinstance(begin, Begin)
    assert isinstance(end, End)
    values = [record.value or b"" for batch in batches[1:-1] for record in decode_batch(batch)]
    return begin, [value.rstrip(b"\0") for value in values], end


def test_each_stream_gets_its_batches_in_the_order_of_tasks() -> None:
    """Between BEGIN, which counts them, and END, with the positions."""
    world = World(segments=2)
    done = world.publish()
    assert len(world.owners.orders) == 3
    for partition, (order, _) in enumerate(world.owners.orders):
        assert order.target == world.record.targets[partition]
        begin, values, end = content(order.group(NOW_MS))
        assert values == [b"%d/%d/%d" % (task, segment, partition) for task in range(2) for segment in range(2)]
        assert (begin.attempts, begin.batch_count) == (("0:a", "1:a"), 4)
        assert begin.byte_count == order.byte_count == len(order.batches)
        assert order.record_count == 6
        assert end == End("q", 4, 3, b"pos")
    world.owners.answer()
    assert done.error is None
    assert world.commit.remaining == {}
    assert world.stream.reads == 0, "what was staged just now is in memory"


def test_a_stream_that_was_not_reached_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have the epoch, and are not asked again; one whose topic is gone is over, and reported."""
    world = World()
    done = world.publish()
    world.owners.answer(UnknownTopicOrPartition("gone"), True, StorageFailed("no room"))
    assert isinstance(done.error, StorageFailed)
    assert list(world.commit.remaining) == [world.record.targets[2]]
    assert world.reports.names() == ["epoch_topic_gone", "group_refused"]
    world.publish()
    assert [order.target.partition for order, _ in world.owners.orders] == [2]


@pytest.mark.parametrize("refusal", [GroupTooLarge("out-0: too large"), InvalidRecord("out-0: no BEGIN")])
def test_a_stream_that_refuses_its_group_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, refusal: CairnError
) -> None:
    """All others get theirs, also those whose turn comes later; then the query is told what was refused. It is tried
    again alone, and reported once.
    """
    monkeypatch.setattr(remote_publisher, "MAX_GROUPS_BYTES", 1)
    world = World()
    done = world.publish()
    world.owners.answer(refusal)
    world.owners.answer(False)
    world.owners.answer(True)
    assert done.error is refusal
    assert [target.partition for target in world.commit.remaining] == [0, 1]
    again = world.publish()
    world.owners.answer(refusal)
    world.owners.answer(True)
    assert again.error is refusal
    assert [target.partition for target in world.commit.remaining] == [0]
    assert world.reports.names() == ["group_refused"]
    last = world.publish()
    world.owners.answer(True)
    assert (last.error, world.commit.remaining) == (None, {})


def test_a_home_that_is_none_any_more_reports_no_refusal() -> None:
    """No stream has refused anything: the next home delivers the groups."""
    world = World(partitions=1)
    done = world.publish()
    world.owners.answer(TryAgain("this host has the epochs of queries no more"))
    assert isinstance(done.error, TryAgain)
    assert (len(world.commit.remaining), world.reports.names()) == (1, [])


def test_a_damaged_segment_holds_up_its_own_streams_alone() -> None:
    """Streams that have nothing in it get their groups; those that have are reported, each once."""
    world = World(partitions=2)
    batch = bytes(encode_batch([Record(0, NOW_MS, None, b"sole")]))
    key = AttemptKey("q", "run", 4, 2, "a")
    world.staging.stage(key, 0, (Part("out", 2, len(batch), 1, 1),), batch, now_ms=NOW_MS)
    world.stream.ack()
    targets = (*world.record.targets, Target("out", TOPIC_ID, 2, 12))
    record = replace(world.record, tasks=(*world.record.tasks, TaskOutput(2, "a", 1)), targets=targets)
    world.commit = CommitInProgress(record, world.commit.last)
    world.staging._cache.clear()
    damaged, value = world.stream.records[0]
    world.stream.records[0] = (damaged, value[:-1] + bytes([value[-1] ^ 1]))
    done = world.publish()
    assert [order.target.partition for order, _ in world.owners.orders] == [2]
    world.owners.answer()
    assert isinstance(done.error, CorruptFile)
    assert [target.partition for target in world.commit.remaining] == [0, 1]
    assert isinstance(world.publish().error, CorruptFile)
    assert world.reports.names() == ["group_refused", "group_refused"]


def test_few_bytes_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next groups are made when those before have gone; each segment is read once for all of them."""
    monkeypatch.setattr(remote_publisher, "MAX_GROUPS_BYTES", 3000)
    world = World(partitions=5, value_bytes=500)
    world.staging._cache.clear()
    world.publish()
    taken = []
    while world.owners.orders:
        taken.append([order.target.partition for order, _ in world.owners.orders])
        assert world.stream.reads == 2 * len(taken)
        world.owners.answer()
    assert taken == [[0, 1], [2, 3], [4]]


def test_a_group_that_waits_for_an_owner_is_not_in_memory() -> None:
    """It is read again for the next try; the other streams of its epoch have theirs by then."""
    world = World()
    world.record = replace(world.record, positions="of this test alone")
    world.commit = CommitInProgress(world.record, world.commit.last)
    done = world.publish()
    first = [bytes(order.batches) for order, _ in world.owners.orders]
    world.owners.answer(True, False, True)
    assert [target.partition for target in world.commit.remaining] == [1]
    for tries in range(1, 4):
        gc.collect()
        orders = [each for each in gc.get_objects() if isinstance(each, GroupOrder)]
        assert [order for order in orders if order.positions == world.record.positions] == []
        del orders
        assert [pause[0] for pause in world.owners.pauses] == [tries]
        world.owners.go_on()
        assert [bytes(order.batches) for order, _ in world.owners.orders] == first[1:2]
        world.owners.answer(tries == 3)
    assert (done.done, done.error, world.commit.remaining) == (True, None, {})


def test_streams_without_an_owner_are_not_asked() -> None:
    """Nor are their groups read; those that have one again get theirs."""
    world = World()
    done = world.publish()
    world.owners.answer(False, False, False)
    for partition in range(3):
        assert [tries for tries, _, _ in world.owners.pauses] == [partition + 1]
        world.owners.go_on(1)
        assert [order.target.partition for order, _ in world.owners.orders] == [partition]
        world.owners.answer()
    assert (done.done, done.error, world.commit.remaining) == (True, None, {})


def test_the_groups_of_many_queries_have_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many queries wait for owners, and for whatever. Groups that are sent for the first time have room
    of their own.
    """
    monkeypatch.setattr(remote_publisher, "FIRST_TRIES_BYTES", 4000)
    monkeypatch.setattr(remote_publisher, "MORE_TRIES_BYTES", 1000)
    world = World(partitions=1, value_bytes=400)
    size_bytes = sum(attempt.segments[0].header.data_bytes for attempt in world.staging.all_attempts())
    assert 900 < size_bytes < 1000
    commits = [CommitInProgress(world.record, world.commit.last) for _ in range(20)]
    done = [start(world.publisher.publish(commit)) for commit in commits]
    while world.owners.orders:
        assert world.owners.sent_bytes <= 4000
        world.owners.answer(*[False] * len(world.owners.orders))
    assert len(world.owners.pauses) == 20
    world.owners.go_on()
    assert len(world.owners.orders) == 1, "the others wait for their turn, on the disk"
    last = CommitInProgress(world.record, world.commit.last)
    done.append(start(world.publisher.publish(last)))
    assert len(world.owners.orders) == 2, "a new one does not wait for those"
    while world.owners.orders:
        assert world.owners.sent_bytes <= 2000
        world.owners.answer()
    assert all(each.done and each.error is None for each in done)


def test_segments_are_read_back_one_at_a_time() -> None:
    """And the next one is read when reading one has failed, too."""
    world = World(partitions=1)
    world.staging._cache.clear()
    read, waiting = world.staging._read, list[Ticket[list[bytes]]]()

    def slow(offset: int, count: int) -> Ticket[list[bytes]]:
        waiting.append(Ticket())
        return waiting[-1]

    world.staging._read = slow
    done = [start(world.publisher.publish(CommitInProgress(world.record, world.commit.last))) for _ in range(2)]
    assert len(waiting) == 1
    waiting[0].fail(StorageFailed("no member answers"))
    assert isinstance(done[0].error, StorageFailed)
    assert len(waiting) == 2
    world.staging._read = read
    segment = world.staging.all_attempts()[0].segments[0]
    waiting[1].succeed(read(segment.offset, segment.pieces).result())
    world.owners.answer()
    assert done[1].error is None


def test_staged_output_that_is_gone_is_told() -> None:
    """Nothing of the epoch is sent."""
    world = World()
    world.staging.drop([AttemptKey("q", "run", 4, 1, "a")])
    done = world.publish()
    assert isinstance(done.error, CorruptFile)
    assert "task 1, attempt 'a'" in str(done.error)
    assert world.owners.orders == []


def test_a_target_is_what_its_owner_said_last() -> None:
    """Without that, or if the topic is another one since, the commit is to be asked for again."""
    world = World()
    with pytest.raises(TryAgain):
        world.publisher.target("out", 1)
    world.owners.end_offsets["out", 1] = 77
    assert start(world.publisher.locate([("out", 1)])).error is None
    assert world.publisher.target("out", 1) == Target("out", TOPIC_ID, 1, 77)
    world.owners.topic_id = TOPIC_ID.replace("7", "8")
    with pytest.raises(TryAgain):
        world.publisher.target("out", 1)
    with pytest.raises(GroupTooLarge, match=r"out-1: 5001"):
        world.publisher.check_group(Target("out", TOPIC_ID, 1, 77), LARGEST + 1)


def test_an_order_as_bytes() -> None:
    """What is sent is what the owner appends; docs/replication.md has the fields."""
    world = World()
    world.publish()
    order = world.owners.orders[0][0]
    sent = b"".join(encode_order(order))
    found = decode_order(sent)
    assert found.group(NOW_MS) == order.group(NOW_MS)
    assert (found.target, found.query, found.epoch) == (order.target, "q", 4)
    assert sent[4:].startswith(
        b'{"topic":"out","topic_id":"00000000-0000-0000-0000-000000000007","partition":0,"start":10,'
    )
    for length in (0, 3, 4, 40):
        with pytest.raises(MalformedRequest):
            decode_order(sent[:length])
    with pytest.raises(MalformedRequest, match="attempts"):
        decode_order(sent.replace(b'"attempts":["0:a","1:a"]', b'"attempts":[1,2]        '))
