"""Topics through the clients' admin interfaces: create, describe, configure, extend, delete, and the errors by name."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import aiokafka.admin
import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic, ResourceType
from kafka.admin import ConfigResource as PythonConfigResource
from kafka.admin import ConfigResourceType

from tests.foreign_clients.adapters import LATEST, ConfluentClient, Message, Refused, confluent_poll, python_admin
from tests.foreign_clients.broker import Broker, eventually, led_partitions
from tests.support.limits import PATIENCE_S


def unused_name() -> str:
    """A topic that is not there."""
    return f"t-{uuid.uuid4().hex[:12]}"


def code_of(call: Callable[[], Future[Any]]) -> int:
    """The error code that an admin call ends with."""
    with pytest.raises(KafkaException) as refused:
        call().result(PATIENCE_S)
    return int(refused.value.args[0].code())


def config_of(broker: Broker, topic: str) -> dict[str, str]:
    """All settings of a topic."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = broker.admin().describe_configs([resource])[resource].result(PATIENCE_S)
    return {name: entry.value for name, entry in entries.items()}


def test_created_topics_are_as_asked(broker: Broker) -> None:
    """Partitions, retention and the largest batch are what the creator asked for, and the rest are Kafka's defaults."""
    topic = broker.create_topic(5, retention_ms="123456", max_message_bytes="54321")
    described = broker.admin().list_topics(topic, timeout=PATIENCE_S).topics[topic]
    assert sorted(described.partitions) == [0, 1, 2, 3, 4]
    config = config_of(broker, topic)
    assert (config["retention.ms"], config["max.message.bytes"]) == ("123456", "54321")
    assert (config["cleanup.policy"], config["message.timestamp.type"]) == ("delete", "CreateTime")


def test_refused_topics(broker: Broker) -> None:
    """What cannot be a topic is refused with Kafka's code for it, and is not there afterwards."""
    admin = broker.admin()
    taken = broker.create_topic()

    def create(name: str, partitions: int = 1, replicas: int = 1, **config: str) -> int:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        return code_of(lambda: admin.create_topics([NewTopic(name, partitions, replicas, config=settings)])[name])

    assert create(taken) == KafkaError.TOPIC_ALREADY_EXISTS
    assert create("no spaces") == KafkaError.TOPIC_EXCEPTION
    assert create("x" * 250) == KafkaError.TOPIC_EXCEPTION
    assert create(unused_name(), partitions=0) == KafkaError.INVALID_PARTITIONS
    assert create(unused_name(), replicas=3) == KafkaError.INVALID_REPLICATION_FACTOR
    assert create(unused_name(), retention_ms="soon") == KafkaError.INVALID_CONFIG
    assert create(unused_name(), no_such_setting="1") == KafkaError.INVALID_CONFIG


def test_validate_only_creates_nothing(broker: Broker) -> None:
    """validate_only answers as creating would, and creates nothing."""
    admin, name = broker.admin(), unused_name()
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(PATIENCE_S)
    assert name not in admin.list_topics(timeout=PATIENCE_S).topics


def test_unsupported_settings_are_refused_by_name(broker: Broker) -> None:
    """There is no compaction, and batches stay as producers compress them: INVALID_CONFIG that names the setting."""
    if broker.is_kafka:
        pytest.skip("Kafka has both")
    for key, value in (("cleanup.policy", "compact"), ("compression.type", "zstd")):
        name = unused_name()
        future = broker.admin().create_topics([NewTopic(name, 1, 1, config={key: value})])[name]
        with pytest.raises(KafkaException) as refused:
            future.result(PATIENCE_S)
        assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
        assert key in refused.value.args[0].str()


def test_the_cluster_describes_itself(broker: Broker) -> None:
    """One broker, which is the controller, at the address that clients used."""
    cluster = broker.admin().describe_cluster().result(PATIENCE_S)
    assert [(node.host, node.port) for node in cluster.nodes] == [("127.0.0.1", broker.port)]
    assert cluster.cluster_id
    assert cluster.controller.id == cluster.nodes[0].id
    python = python_admin(broker.bootstrap)
    try:
        assert python.describe_cluster()["cluster_id"] == cluster.cluster_id
    finally:
        python.close()


def test_the_broker_has_settings(broker: Broker) -> None:
    """DescribeConfigs of the broker answers, with the largest message it takes."""
    admin = broker.admin()
    node = admin.describe_cluster().result(PATIENCE_S).nodes[0].id
    resource = ConfigResource(ResourceType.BROKER, str(node))
    entries = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert int(entries["message.max.bytes"].value) == 1_048_588
    assert f"PLAINTEXT://127.0.0.1:{broker.port}" in entries["advertised.listeners"].value.split(",")
    assert entries["node.id"].value == str(node)


def test_topics_have_ids(broker: Broker) -> None:
    """Each topic has an id of its own, and a topic that is created again gets a new one."""
    admin = broker.admin()

    def topic_id(name: str) -> str:
        return str(admin.describe_topics(TopicCollection([name]))[name].result(PATIENCE_S).topic_id)

    first, second = broker.create_topic(), broker.create_topic()
    before = topic_id(first)
    assert before != topic_id(second)
    admin.delete_topics([first])[first].result(PATIENCE_S)
    eventually(lambda: first not in admin.list_topics(timeout=PATIENCE_S).topics)
    admin.create_topics([NewTopic(first, 1, 1)])[first].result(PATIENCE_S)
    eventually(lambda: topic_id(first) not in ("", before))


def test_settings_can_be_changed(broker: Broker) -> None:
    """IncrementalAlterConfigs sets and unsets one setting without touching others; what it cannot set it refuses."""
    topic = broker.create_topic(retention_ms="1000000")
    admin = broker.admin()

    def alter(name: str, value: str | None, how: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=how)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    alter("max.message.bytes", "2000", AlterConfigOpType.SET)
    eventually(lambda: config_of(broker, topic)["max.message.bytes"] == "2000")
    assert config_of(broker, topic)["retention.ms"] == "1000000"
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    eventually(lambda: config_of(broker, topic)["retention.ms"] == "604800000")
    with pytest.raises(KafkaException) as refused:
        alter("retention.ms", "never", AlterConfigOpType.SET)
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG


def test_changed_limits_hold(broker: Broker) -> None:
    """A lowered max.message.bytes refuses what went through before."""
    topic = broker.create_topic()
    client = ConfluentClient(broker.bootstrap)
    client.produce(topic, [Message(value=b"x" * 5000)])
    python = python_admin(broker.bootstrap)
    try:
        python.alter_configs([PythonConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "2000"})])
    finally:
        python.close()

    def refused() -> bool:
        try:
            client.produce(topic, [Message(value=b"x" * 5000)])
        except Refused as error:
            return error.code == KafkaError.MSG_SIZE_TOO_LARGE
        return False

    eventually(refused)


def test_partitions_can_be_added(broker: Broker) -> None:
    """CreatePartitions extends a topic, whose records stay; fewer or as many partitions are refused."""
    topic = broker.create_topic(2)
    client, admin = ConfluentClient(broker.bootstrap), broker.admin()
    client.produce(topic, [Message(value=b"old", partition=1)])
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(PATIENCE_S)
    eventually(lambda: len(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions) == 4)
    client.produce(topic, [Message(value=b"new", partition=3)])
    assert client.consume(topic, 1, partition=1)[0].value == b"old"
    assert client.consume(topic, 1, partition=3)[0].value == b"new"
    assert code_of(lambda: admin.create_partitions([NewPartitions(topic, 4)])[topic]) == KafkaError.INVALID_PARTITIONS
    assert code_of(lambda: admin.create_partitions([NewPartitions(topic, 1)])[topic]) == KafkaError.INVALID_PARTITIONS


def test_deleted_topics_are_gone(broker: Broker) -> None:
    """A deleted topic is not listed; deleting it again is UNKNOWN_TOPIC_OR_PART; created again, it is empty."""
    topic = broker.create_topic()
    client, admin = ConfluentClient(broker.bootstrap), broker.admin()
    client.produce(topic, [Message(value=b"x")] * 3)
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    eventually(lambda: topic not in admin.list_topics(timeout=PATIENCE_S).topics)
    assert code_of(lambda: admin.delete_topics([topic])[topic]) == KafkaError.UNKNOWN_TOPIC_OR_PART
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
    eventually(lambda: client.offset_at(topic, LATEST) == 0)


def test_kafka_python_administers(broker: Broker) -> None:
    """kafka-python creates, describes, extends, configures and deletes a topic."""
    admin, name = python_admin(broker.bootstrap), unused_name()
    try:
        admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "5000"}}})
        eventually(lambda: name in admin.list_topics())
        with pytest.raises(kafka.errors.TopicAlreadyExistsError):
            admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
        described = admin.describe_topics([name])[0]
        assert len(described["partitions"]) == 2
        admin.create_partitions({name: 3})
        eventually(lambda: len(admin.describe_topics([name])[0]["partitions"]) == 3)
        shown = admin.describe_configs([PythonConfigResource(ConfigResourceType.TOPIC, name)])
        assert "5000" in str(shown)
        admin.alter_configs([PythonConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "-1"})])
        ConfluentClient(broker.bootstrap).produce(name, [Message(value=b"x")] * 4)
        place = kafka.TopicPartition(name, 0)
        assert admin.delete_records({place: 2})[place]["low_watermark"] == 2
        admin.delete_topics([name])
        eventually(lambda: name not in admin.list_topics())
    finally:
        admin.close()


def test_aiokafka_administers(broker: Broker) -> None:
    """aiokafka creates, describes, extends and deletes a topic."""
    name = unused_name()

    async def run() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([aiokafka.admin.NewTopic(name, 2, 1, topic_configs={"retention.ms": "5000"})])
            eventually(lambda: name in broker.admin().list_topics(timeout=PATIENCE_S).topics)
            described = (await admin.describe_topics([name]))[0]
            assert len(described["partitions"]) == 2
            await admin.create_partitions({name: aiokafka.admin.NewPartitions(total_count=3)})
            resource = aiokafka.admin.config_resource.ConfigResource(
                aiokafka.admin.config_resource.ConfigResourceType.TOPIC, name
            )
            assert "5000" in str(await admin.describe_configs([resource]))
            assert name in await admin.list_topics()
            await admin.delete_topics([name])
        finally:
            await admin.close()

    asyncio.run(run())
    eventually(lambda: name not in broker.admin().list_topics(timeout=PATIENCE_S).topics)


def test_a_topic_made_again_is_written_and_read_on(broker: Broker) -> None:
    """A producer and a consumer that know a topic by its id go on when it is deleted and made again under its name: the
    id is unknown from then on, and they ask for the new one.
    """
    topic = broker.create_topic()
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": False})
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "unused",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        producer.produce(topic, b"before", partition=0)
        assert producer.flush(PATIENCE_S) == 0
        assert [message.value for message in confluent_poll(consumer, 1)] == [b"before"]
        admin = broker.admin()
        admin.delete_topics([topic])[topic].result(PATIENCE_S)
        eventually(lambda: topic not in admin.list_topics(timeout=PATIENCE_S).topics)
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
        eventually(lambda: led_partitions(admin, topic) == 1)
        producer.produce(topic, b"after", partition=0)
        producer.produce(topic, b"and more", partition=0)
        assert producer.flush(PATIENCE_S) == 0
        eventually(lambda: b"and more" in {message.value for message in confluent_poll(consumer, 1)})
    finally:
        consumer.close()
