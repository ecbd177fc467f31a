"""Access control lists and quotas through real clients and Kafka's own tools, against a sidecar of its own: the first
list ends that everything is allowed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.support.cli import cairn
from tests.support.kafka_peer import run_tool
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

ANONYMOUS = "User:ANONYMOUS"
Test = Callable[[Sidecar], None]


@pytest.fixture(params=["alone", "cluster"])
def sidecar(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sidecar]:
    """A sidecar of the test's own: alone, or the only host of a cluster."""
    flags: Sequence[str] = ()
    if request.param == "cluster":
        metadata = f"sqlite:{tmp_path / 'metadata'}"
        flags = ("--cluster", metadata, "--host-name", "a", "--node-id", "0", "--peer-listen", "127.0.0.1:0")
    with Sidecar(tmp_path / "data", *flags) as running:
        yield running


def with_java_tools(test: Test) -> Test:
    """A test with Kafka's own tools: against a host alone, and in the long run against a cluster."""
    kinds = ["alone", pytest.param("cluster", marks=pytest.mark.slow)]
    return pytest.mark.kafka_peer(pytest.mark.parametrize("sidecar", kinds, indirect=True)(test))


def binding(
    kind: ResourceType,
    name: str,
    operation: AclOperation,
    *,
    principal: str = ANONYMOUS,
    permission: AclPermissionType = AclPermissionType.ALLOW,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> AclBinding:
    """An entry."""
    return AclBinding(kind, name, pattern, principal, "*", operation, permission)


EVERYTHING = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
ADMINISTRATION = [
    binding(ResourceType.BROKER, "kafka-cluster", operation)
    for operation in (AclOperation.ALTER, AclOperation.CREATE, AclOperation.ALTER_CONFIGS)
]


def create(admin: AdminClient, *bindings: AclBinding) -> None:
    """Create entries."""
    for outcome in admin.create_acls(list(bindings)).values():
        outcome.result(PATIENCE_S)


def produced(bootstrap: str, topic: str, value: bytes = b"x") -> KafkaError | None:
    """The error of one record, or None."""
    errors: list[KafkaError | None] = []

    def note(error: KafkaError | None, _: Message) -> None:
        errors.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2, "client.id": "loader"})
    producer.produce(topic, value, on_delivery=note)
    producer.flush(PATIENCE_S)
    return errors[0]


def test_a_client_meets_its_limits(sidecar: Sidecar) -> None:
    """librdkafka creates lists, finds and deletes them; its producer and consumer fail with the errors of Kafka, and
    work once they are allowed; a restart keeps the lists.
    """
    admin = AdminClient({"bootstrap.servers": sidecar.address, "log_level": 2})
    for outcome in admin.create_topics([NewTopic("mine", 1, 1), NewTopic("other", 1, 1)]).values():
        outcome.result(PATIENCE_S)
    write = binding(ResourceType.TOPIC, "mi", AclOperation.WRITE, pattern=ResourcePatternType.PREFIXED)
    create(admin, *ADMINISTRATION, write)
    assert set(admin.describe_acls(EVERYTHING).result(PATIENCE_S)) == {*ADMINISTRATION, write}
    assert set(admin.list_topics(timeout=PATIENCE_S).topics) == {"mine"}
    assert produced(sidecar.address, "mine") is None
    refused = produced(sidecar.address, "other")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert consumed(sidecar.address, "mine") == KafkaError.GROUP_AUTHORIZATION_FAILED
    create(admin, binding(ResourceType.GROUP, "g", AclOperation.READ))
    assert consumed(sidecar.address, "mine") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    create(admin, binding(ResourceType.TOPIC, "mine", AclOperation.READ))
    assert consumed(sidecar.address, "mine") == b"x"
    sidecar.kill()
    sidecar.restart()
    assert consumed(sidecar.address, "other") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    deny = binding(ResourceType.TOPIC, "mine", AclOperation.ALL, permission=AclPermissionType.DENY)
    create(admin, deny)
    assert consumed(sidecar.address, "mine") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    one = AclBindingFilter(
        ResourceType.TOPIC,
        "mine",
        ResourcePatternType.MATCH,
        ANONYMOUS,
        "*",
        AclOperation.ALL,
        AclPermissionType.DENY,
    )
    (gone,) = admin.delete_acls([one]).values()
    assert set(gone.result(PATIENCE_S)) == {deny}
    assert consumed(sidecar.address, "mine") == b"x"


def consumed(bootstrap: str, topic: str) -> bytes | int:
    """The value of the first record of a topic, read in the group `g`, or the error's code."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "log_level": 2}
    # Whether a host that is killed still writes down that a member has left is chance: if not, the next one waits until
    # its session has ended, for 45 s unless told otherwise.
    consumer = Consumer({**settings, "enable.auto.commit": False, "session.timeout.ms": 6000})
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None:
                error = message.error()
                return error.code() if error is not None else message.value()
    except KafkaException as failure:
        return failure.args[0].code()
    finally:
        consumer.close()
    raise AssertionError(f"neither a record of {topic} nor an error")


def test_refused_administration(sidecar: Sidecar) -> None:
    """Without rights on the cluster, the admin client gets CLUSTER_AUTHORIZATION_FAILED and nothing is shown."""
    admin = AdminClient({"bootstrap.servers": sidecar.address, "log_level": 2})
    create(admin, binding(ResourceType.TOPIC, "t", AclOperation.READ, principal="User:alice"))
    # Not an error: this client does not pass on the one that it gets.
    assert admin.describe_acls(EVERYTHING).result(PATIENCE_S) == []
    for attempt in (
        lambda: create(admin, *ADMINISTRATION),
        lambda: next(iter(admin.describe_configs([ConfigResource(ResourceType.BROKER, "0")]).values())).result(
            PATIENCE_S
        ),
    ):
        with pytest.raises(KafkaException) as caught:
            attempt()
        assert caught.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert TopicPartition("t", 0).topic not in admin.list_topics(timeout=PATIENCE_S).topics


@with_java_tools
def test_acls_tool(sidecar: Sidecar) -> None:
    """kafka-acls adds, lists and removes entries, with its shorthands for producers and consumers."""
    server = ("--bootstrap-server", sidecar.address)
    everybody = ("--allow-principal", ANONYMOUS)
    run_tool("acls", [*server, "--add", *everybody, "--operation", "All", "--cluster"])
    prefix = ("--topic", "orders-", "--resource-pattern-type", "prefixed")
    run_tool("acls", [*server, "--add", "--allow-principal", "User:alice", "--producer", *prefix])
    consumer = ("--consumer", "--topic", "orders", "--group", "billing")
    run_tool(
        "acls",
        [
            *server,
            "--add",
            "--deny-principal",
            "User:bob",
            "--deny-host",
            "10.0.0.1",
            "--operation",
            "Read",
            "--topic",
            "*",
        ],
    )
    run_tool("acls", [*server, "--add", "--allow-principal", "User:bob", *consumer])
    listed = run_tool("acls", [*server, "--list"])
    assert "patternType=PREFIXED" in listed
    for shown in (
        "(principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW)",
        "(principal=User:alice, host=*, operation=CREATE, permissionType=ALLOW)",
        "(principal=User:bob, host=10.0.0.1, operation=READ, permissionType=DENY)",
        "(principal=User:bob, host=*, operation=READ, permissionType=ALLOW)",
    ):
        assert shown in listed
    run_tool("acls", [*server, "--remove", "--force", *prefix])
    assert "User:alice" not in run_tool("acls", [*server, "--list"])
    assert "User:bob" in run_tool("acls", [*server, "--list", "--topic", "orders"])


def listed(sidecar: Sidecar) -> set[tuple[str, ...]]:
    """All entries, as `cairn acl list` shows them."""
    found = cairn("acl", "list", "--servers", sidecar.address, "--timeout", str(PATIENCE_S), "--json")
    return {tuple(entry.values()) for entry in found.json["acls"]}


LINES = (
    ("--allow-principal", "User:a", "--producer", "--topic", "t"),
    ("--allow-principal", "User:a", "--producer", "--idempotent", "--topic", "t", "--transactional-id", "x"),
    ("--allow-principal", "User:a", "--consumer", "--topic", "t", "--group", "g", "--allow-host", "10.0.0.1"),
    ("--allow-principal", "User:a", "--producer", "--consumer", "--topic", "t", "--group", "*"),
    ("--allow-principal", "User:a", "--operation", "Read", "--topic", "t-", "--group", "g-", "--resource-pattern-type",
     "prefixed"),
    ("--deny-principal", "User:*", "--deny-host", "0:0:0:0:0:0:0:1", "--operation", "All", "--cluster", "--topic", "*"),
    ("--allow-principal", "User:CN=a,O=Sun\\, Inc.", "--deny-principal", "User:b", "--operation", "DescribeConfigs",
     "--operation", "Alter", "--topic", "t", "--allow-host", "10.0.0.1", "--allow-host", "10.0.0.2"),
)  # fmt: skip


@with_java_tools
def test_cairn_acl_means_what_kafkas_tool_means(sidecar: Sidecar) -> None:
    """The same words make the same entries, line by line; and what one tool has made the other removes."""
    server = ("--bootstrap-server", sidecar.address)
    asked = ("--servers", sidecar.address, "--timeout", str(PATIENCE_S))
    everybody = ("--allow-principal", ANONYMOUS, "--operation", "All", "--cluster")
    assert cairn("acl", "add", *everybody, *asked).status == 0
    before = listed(sidecar)
    for words in LINES:
        run_tool("acls", [*server, "--add", *words])
        by_kafka = listed(sidecar) - before
        finished = cairn("acl", "remove", *words, "--yes", *asked)
        assert finished.status == 0, (words, finished.err)
        assert listed(sidecar) == before, words
        finished = cairn("acl", "add", *words, *asked)
        assert finished.status == 0, (words, finished.err)
        assert listed(sidecar) - before == by_kafka, words
        run_tool("acls", [*server, "--remove", "--force", *words])
        assert listed(sidecar) == before, words


@with_java_tools
def test_configs_tool_sets_quotas(sidecar: Sidecar) -> None:
    """kafka-configs sets, shows and deletes quotas of users and client ids; librdkafka's producer is then throttled."""
    server = ("--bootstrap-server", sidecar.address)
    client = ("--entity-type", "clients", "--entity-name", "loader")
    both = ("--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-name", "reader")
    run_tool("configs", [*server, "--alter", *client, "--add-config", "producer_byte_rate=100000"])
    run_tool("configs", [*server, "--alter", *both, "--add-config", "consumer_byte_rate=5000,producer_byte_rate=7"])
    assert "producer_byte_rate=100000.0" in run_tool("configs", [*server, "--describe", *client])
    shown = run_tool("configs", [*server, "--describe", *both])
    assert "consumer_byte_rate=5000.0" in shown
    throttles: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": sidecar.address,
            "client.id": "loader",
            "throttle_cb": lambda event: throttles.append(event.throttle_time),
            "log_level": 2,
        }
    )
    for _ in range(12):
        producer.produce("loaded", bytes(100_000))
        producer.flush(PATIENCE_S)
    producer.poll(1)
    assert max(throttles) > 0
    run_tool("configs", [*server, "--alter", *client, "--delete-config", "producer_byte_rate"])
    assert "producer_byte_rate" not in run_tool("configs", [*server, "--describe", *client])
