"""Kafka's own Java tools, unchanged. Each call starts a JVM, so each test takes a whole story."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.foreign_clients.adapters import ConfluentClient, Message
from tests.foreign_clients.broker import Broker
from tests.support.kafka_peer import run_tool
from tests.support.limits import PATIENCE_S

pytestmark = pytest.mark.kafka_peer


def test_topics_tool(broker: Broker) -> None:
    """kafka-topics creates a topic with settings and describes it."""
    name = f"java-{broker.create_topic()}"
    server = ("--bootstrap-server", broker.bootstrap)
    created = run_tool(
        "topics", [*server, "--create", "--topic", name, "--partitions", "3", "--config", "retention.ms=60000"]
    )
    assert f"Created topic {name}" in created
    described = run_tool("topics", [*server, "--describe", "--topic", name])
    assert "PartitionCount: 3" in described
    assert "retention.ms=60000" in described


def test_features_tool(broker: Broker) -> None:
    """kafka-features lists Kafka's features with their levels."""
    described = run_tool("features", ["--bootstrap-server", broker.bootstrap, "describe"])
    found = {line.split()[1] for line in described.splitlines() if line.startswith("Feature: ")}
    assert found >= {"metadata.version", "group.version", "transaction.version"}
    (level,) = [line.split("FinalizedVersionLevel: ")[1] for line in described.splitlines() if "metadata.ver" in line]
    assert level.startswith("4.")


def test_console_tools_and_groups_tool(broker: Broker, topic: str, group: str) -> None:
    """What the console producer sends, the console consumer prints; get-offsets and consumer-groups agree on it."""
    server = ("--bootstrap-server", broker.bootstrap)
    text = "".join(f"key{number}:value{number}\n" for number in range(20))
    properties = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    run_tool("console-producer", [*server, "--topic", topic, *properties], input_text=text)
    consumed = run_tool(
        "console-consumer",
        [
            *(*server, "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "20"),
            *(
                "--timeout-ms",
                "120000",
                "--formatter-property",
                "print.key=true",
                "--formatter-property",
                "key.separator=:",
            ),
        ],
    )
    assert consumed == text
    assert run_tool("get-offsets", [*server, "--topic", topic]).split() == [f"{topic}:0:20"]
    lines = run_tool("consumer-groups", [*server, "--describe", "--group", group]).splitlines()
    columns = next(line.split() for line in lines if topic in line)
    assert columns[:6] == [group, topic, "0", "20", "20", "0"]


def test_performance_tools(broker: Broker, topic: str) -> None:
    """The tools by which Kafka is measured run to their end: idempotent, five requests in flight; then all is read."""
    properties = ("--bootstrap-server", broker.bootstrap, "--command-property", "acks=all")
    sizes = ("--num-records", "20000", "--record-size", "100", "--throughput", "-1")
    produced = run_tool("producer-performance", ["--topic", topic, *sizes, *properties])
    assert "20000 records sent" in produced.splitlines()[-1]
    consumed = run_tool(
        "consumer-performance",
        ["--bootstrap-server", broker.bootstrap, "--topic", topic, "--num-records", "20000", "--timeout", "20000"],
    )
    assert "20000" in [cell.strip() for cell in consumed.splitlines()[-1].split(",")]


def test_groups_tool_resets_offsets(broker: Broker, topic: str, group: str) -> None:
    """kafka-consumer-groups moves a group to a moment, and the next member starts there."""
    client = ConfluentClient(broker.bootstrap)
    client.produce(
        topic, [Message(value=b"%d" % number, timestamp_ms=1_700_000_000_000 + number * 1000) for number in range(10)]
    )
    client.consume_as_group(topic, group, 10)
    moment = ("--to-datetime", "2023-11-14T22:13:26.000")
    arguments = ["--bootstrap-server", broker.bootstrap, "--group", group, "--topic", topic, "--reset-offsets"]
    printed = run_tool("consumer-groups", [*arguments, *moment, "--execute"])
    assert [line.split()[-1] for line in printed.splitlines() if topic in line] == ["6"]
    assert [message.offset for message in client.consume_as_group(topic, group, 4)] == [6, 7, 8, 9]


def test_configs_tool_manages_users(broker: Broker) -> None:
    """kafka-configs sets a SCRAM credential, which another admin client describes, and removes it."""
    user = ("--bootstrap-server", broker.bootstrap, "--entity-type", "users", "--entity-name", "alice")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    run_tool("configs", [*user, "--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=pencil]"])
    described = admin.describe_user_scram_credentials(["alice"])["alice"].result(PATIENCE_S)
    assert [found.iterations for found in described.scram_credential_infos] == [8192]
    run_tool("configs", [*user, "--alter", "--delete-config", "SCRAM-SHA-512"])
    with pytest.raises(KafkaException):
        admin.describe_user_scram_credentials(["alice"])["alice"].result(PATIENCE_S)
