"""Consumer groups as clients use them: sharing partitions, rebalancing, committing, and administering groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka.admin
import kafka
import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.foreign_clients.adapters import Client, ConfluentClient, Message, python_admin
from tests.foreign_clients.broker import Broker, eventually
from tests.support.limits import PATIENCE_S

Open = Callable[..., Consumer]


@pytest.fixture
def member(broker: Broker, group: str) -> Iterator[Open]:
    """Opens members of the test's group; all are closed at the end."""
    opened: list[Consumer] = []

    def start(topic: str, **settings: Any) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 200,
                "session.timeout.ms": 60_000,
                "fetch.wait.max.ms": 50,
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        opened.append(consumer)
        consumer.subscribe([topic])
        return consumer

    yield start
    for consumer in opened:
        consumer.close()


def partitions(consumer: Consumer) -> set[int]:
    """What a member is assigned now."""
    return {place.partition for place in consumer.assignment()}


def poll_until(members: list[Consumer], condition: Callable[[], bool]) -> None:
    """Poll all members, which is what moves a rebalance on, until the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, [partitions(consumer) for consumer in members]
        for consumer in members:
            consumer.poll(0.02)


def committed(broker: Broker, group: str, topic: str, partition: int = 0) -> int:
    """The group's committed offset; -1001 when there is none."""
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
    found = broker.admin().list_consumer_group_offsets([request])[group].result(PATIENCE_S)
    return int(found.topic_partitions[0].offset)


def test_a_group_goes_on_where_it_was(client: Client, topic: str, group: str) -> None:
    """The next member of a group starts behind what the one before it committed."""
    client.produce(topic, [Message(value=b"%d" % number) for number in range(10)])
    first = client.consume_as_group(topic, group, 10)
    client.produce(topic, [Message(value=b"%d" % number) for number in range(10, 15)])
    second = client.consume_as_group(topic, group, 5)
    assert [message.offset for message in first + second] == list(range(15))


def test_members_share_the_partitions(broker: Broker, member: Open) -> None:
    """Two members divide the partitions; when one leaves, the other gets them all."""
    topic = broker.create_topic(4)
    first = member(topic)
    poll_until([first], lambda: partitions(first) == {0, 1, 2, 3})
    second = member(topic)
    poll_until([first, second], lambda: len(partitions(first)) == len(partitions(second)) == 2)
    assert partitions(first) | partitions(second) == {0, 1, 2, 3}
    second.unsubscribe()  # a client that is not polled any more does not leave, and its session has to end
    poll_until([first, second], lambda: partitions(first) == {0, 1, 2, 3})


def test_cooperative_members_share_too(broker: Broker, member: Open) -> None:
    """The cooperative-sticky protocol takes only what moves away from a member."""
    topic = broker.create_topic(4)
    first = member(topic, partition_assignment_strategy="cooperative-sticky")
    poll_until([first], lambda: partitions(first) == {0, 1, 2, 3})
    second = member(topic, partition_assignment_strategy="cooperative-sticky")
    poll_until([first, second], lambda: len(partitions(first)) == len(partitions(second)) == 2)
    assert partitions(first) | partitions(second) == {0, 1, 2, 3}


def test_a_record_goes_to_one_member(broker: Broker, member: Open) -> None:
    """While two members share a topic each record reaches exactly one of them."""
    topic = broker.create_topic(4)
    both = [member(topic), member(topic)]
    poll_until(both, lambda: all(len(partitions(consumer)) == 2 for consumer in both))
    sent = [Message(value=b"%d" % number, partition=number % 4) for number in range(40)]
    ConfluentClient(broker.bootstrap).produce(topic, sent)
    got: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(got) < 40:
        assert time.monotonic() < deadline, f"{len(got)} of 40"
        for consumer in both:
            message = consumer.poll(0.05)
            if message is not None and not message.error():
                got.append(message.value())
    assert sorted(got, key=int) == [b"%d" % number for number in range(40)]


def test_static_members_keep_their_partitions(broker: Broker, member: Open) -> None:
    """A static member that comes back within its session gets what it had, without a rebalance of the others."""
    topic = broker.create_topic(4)
    first = member(topic, group_instance_id="one")
    second = member(topic, group_instance_id="two")
    poll_until([first, second], lambda: len(partitions(first)) == len(partitions(second)) == 2)
    had, others = partitions(second), partitions(first)
    second.close()
    again = member(topic, group_instance_id="two")
    poll_until([first, again], lambda: partitions(again) == had)
    assert partitions(first) == others


def test_a_second_member_of_one_name_fences_the_first(broker: Broker, member: Open) -> None:
    """Of two members with one instance id the older is told that it is fenced."""
    topic = broker.create_topic(1)
    first = member(topic, group_instance_id="only")
    poll_until([first], lambda: partitions(first) == {0})
    second = member(topic, group_instance_id="only")
    poll_until([second], lambda: partitions(second) == {0})
    deadline = time.monotonic() + PATIENCE_S
    code = None
    while code is None:
        assert time.monotonic() < deadline
        try:
            message = first.poll(0.1)
            second.poll(0)
        except KafkaException as error:
            code = error.args[0].code()
        else:
            code = message.error().code() if message is not None and message.error() else None
    assert code in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL)


def test_committed_offsets_are_told(client: Client, broker: Broker, topic: str, group: str) -> None:
    """What one client commits, another one's admin call shows."""
    client.produce(topic, [Message(value=b"x")] * 6)
    assert committed(broker, group, topic) == -1001
    client.consume_as_group(topic, group, 6)
    assert committed(broker, group, topic) == 6


def test_metadata_of_commits_is_kept(broker: Broker, member: Open, topic: str) -> None:
    """A commit's own text comes back with it."""
    ConfluentClient(broker.bootstrap).produce(topic, [Message(value=b"x")] * 3)
    consumer = member(topic)
    poll_until([consumer], lambda: partitions(consumer) == {0})
    consumer.commit(offsets=[TopicPartition(topic, 0, 2, metadata="half way")], asynchronous=False)
    found = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)[0]
    assert (found.offset, found.metadata) == (2, "half way")


def test_groups_are_listed_and_described(broker: Broker, member: Open, group: str) -> None:
    """List and describe show a group's state, its members and what each is assigned."""
    topic = broker.create_topic(2)
    admin: AdminClient = broker.admin()
    consumer = member(topic, client_id="describer")
    poll_until([consumer], lambda: partitions(consumer) == {0, 1})
    listed = {one.group_id: one.state for one in admin.list_consumer_groups().result(PATIENCE_S).valid}
    assert listed[group] == ConsumerGroupState.STABLE
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    assert described.state == ConsumerGroupState.STABLE
    assert [one.client_id for one in described.members] == ["describer"]
    assert {place.partition for place in described.members[0].assignment.topic_partitions} == {0, 1}
    consumer.unsubscribe()
    deadline = time.monotonic() + PATIENCE_S
    while admin.describe_consumer_groups([group])[group].result(PATIENCE_S).state == ConsumerGroupState.STABLE:
        assert time.monotonic() < deadline
        consumer.poll(0.05)


def test_groups_in_use_are_not_deleted(broker: Broker, member: Open, group: str, topic: str) -> None:
    """Deleting a group with members is NON_EMPTY_GROUP; without members it is gone, with its offsets."""
    ConfluentClient(broker.bootstrap).produce(topic, [Message(value=b"x")] * 3)
    consumer, admin = member(topic), broker.admin()
    poll_until([consumer], lambda: partitions(consumer) == {0})
    consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups([group])[group].result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    consumer.close()  # it does not wait for the answer that it has left for longer than five seconds
    eventually(lambda: admin.delete_consumer_groups([group])[group].result(PATIENCE_S) is None)
    assert committed(broker, group, topic) == -1001
    with pytest.raises(KafkaException) as unknown:
        admin.delete_consumer_groups([group])[group].result(PATIENCE_S)
    assert unknown.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


def test_offsets_can_be_set_from_outside(broker: Broker, topic: str, group: str) -> None:
    """An admin sets a group's offset; the next member starts there."""
    client = ConfluentClient(broker.bootstrap)
    client.produce(topic, [Message(value=b"%d" % number) for number in range(8)])
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 5)])
    broker.admin().alter_consumer_group_offsets([request])[group].result(PATIENCE_S)
    assert [message.offset for message in client.consume_as_group(topic, group, 3)] == [5, 6, 7]


def test_offsets_can_be_deleted(broker: Broker, topic: str, group: str) -> None:
    """OffsetDelete forgets one partition's commit and keeps the others (kafka-python)."""
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0)])
    broker.admin().alter_consumer_group_offsets([request])[group].result(PATIENCE_S)
    assert committed(broker, group, topic) == 0
    admin = python_admin(broker.bootstrap)
    try:
        assert group in {one["group_id"] for one in admin.list_groups()}
        place = kafka.TopicPartition(topic, 0)
        assert admin.list_group_offsets({group: [place]})[group][place].offset == 0
        admin.delete_group_offsets(group, [place])
        admin.describe_groups([group])
    finally:
        admin.close()
    assert committed(broker, group, topic) == -1001


def test_aiokafka_describes_groups(broker: Broker, member: Open, topic: str, group: str) -> None:
    """aiokafka lists a group, describes it and reads its offsets."""
    consumer = member(topic)
    poll_until([consumer], lambda: partitions(consumer) == {0})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)

    async def look() -> tuple[bool, str, int]:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            listed = await admin.list_consumer_groups()
            described = await admin.describe_consumer_groups([group])
            offsets = await admin.list_consumer_group_offsets(group)
            state = described[0].groups[0][2]
            return group in {one[0] for one in listed}, state, offsets[aiokafka.TopicPartition(topic, 0)].offset
        finally:
            await admin.close()

    assert asyncio.run(look()) == (True, "Stable", 0)


def test_members_of_different_clients_share(broker: Broker, member: Open, group: str) -> None:
    """librdkafka and kafka-python in one group agree on an assignment."""
    topic = broker.create_topic(4)
    first = member(topic, partition_assignment_strategy="range")
    second = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap,
        bootstrap_timeout_ms=PATIENCE_S * 1000,
        group_id=group,
        heartbeat_interval_ms=200,
        session_timeout_ms=60_000,
        partition_assignment_strategy=[kafka.coordinator.assignors.range.RangePartitionAssignor],
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while len(second.assignment()) != 2 or len(partitions(first)) != 2:
            assert time.monotonic() < deadline
            second.poll(timeout_ms=1_000)  # a short one may miss its assignment
            first.poll(0.02)
        shared = {place.partition for place in second.assignment()} | partitions(first)
        assert shared == {0, 1, 2, 3}
    finally:
        second.close()
