"""The clients' tests run against the sidecar, or with `--peer=kafka` against a real Kafka: they expect its answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness.sidecar import SidecarPeer
from tests.foreign_clients.adapters import CLIENTS, Client
from tests.foreign_clients.broker import Broker, connect
from tests.support.kafka_peer import start_kafka
from tests.support.limits import PATIENCE_S

HERE = Path(__file__).parent
THEIR_WARNINGS = (
    "ignore::pytest.PytestUnraisableExceptionWarning",  # kafka-python leaves a pair of sockets to the garbage collector
    "ignore::ResourceWarning",
    "ignore::DeprecationWarning",
)
"""What clients written by others do wrong is not ours to fail on."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here is a client's."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.clients)
            for ignored in THEIR_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One server for all tests of the session; topics and groups have unique names."""
    kind = request.config.getoption("--peer")
    directory = tmp_path_factory.mktemp(kind)
    if kind == "kafka":
        kafka = start_kafka(directory)
        yield connect(kind, kafka.port)
        kafka.stop()
        return
    # A test adds a user, from when on the others would be refused.
    sidecar = SidecarPeer(directory, flags=("--super-users", "User:ANONYMOUS"))
    sidecar.start()
    try:
        sidecar.wait_serving(PATIENCE_S)
        yield connect(kind, sidecar.port)
    finally:
        sidecar.stop()


@pytest.fixture(params=sorted(CLIENTS))
def client(request: pytest.FixtureRequest, broker: Broker) -> Client:
    """Each of the clients in turn."""
    return CLIENTS[request.param](broker.bootstrap)


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic of one partition."""
    return broker.create_topic()


@pytest.fixture
def group() -> str:
    """A group's name that nobody else uses."""
    return f"g-{uuid.uuid4().hex[:12]}"
