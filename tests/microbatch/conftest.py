"""One Spark and one sidecar for all tests of this room: both are dear to start. Every test has topics of its own.

Another sidecar, whose retention is eager, is lent to one test after the other, and emptied between them. Spark forks
its Python workers from Cairn's daemon; the drivers of their own that tests start, and other rooms, have Spark's own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from logstore.client.blocking import Client, parse_addresses
from spe_adapter.microbatch import checkpoint_watch, checkpoints, registration
from tests.microbatch.below import EAGER_FLAGS
from tests.microbatch.world import World
from tests.support.sidecar import Sidecar
from tests.support.spark_session import start_spark
from tests.support.streams import delete_topic


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The shared session."""
    session = start_spark(tmp_path_factory.mktemp("spark"), daemon="spe_adapter.daemon")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """The shared sidecar."""
    with Sidecar(tmp_path_factory.mktemp("sidecar")) as running:
        yield running


@pytest.fixture
def world(request: pytest.FixtureRequest, spark: SparkSession, sidecar: Sidecar, tmp_path: Path) -> World:
    """Topics, a checkpoint and a state directory that no other test uses."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:150]
    return World(spark, sidecar.address, name, tmp_path)


@pytest.fixture(scope="session")
def eager_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """The process that `eager` lends."""
    with Sidecar(tmp_path_factory.mktemp("eager"), *EAGER_FLAGS) as running:
        yield running


@pytest.fixture
def eager(eager_of_all: Sidecar) -> Iterator[Sidecar]:
    """A sidecar without topics and readers, which applies retention, and cleans, all the time."""
    yield eager_of_all
    with Client(parse_addresses(eager_of_all.address)) as client:
        for reader in client.reader_names():
            client.remove_reader(reader)
        for topic in client.topics():
            delete_topic(eager_of_all.address, topic)


@pytest.fixture
def client(eager: Sidecar) -> Iterator[Client]:
    """A client of it."""
    with Client(parse_addresses(eager.address)) as connected:
        yield connected


@pytest.fixture
def checkpoints_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Checkpoints are looked for, and positions acknowledged, with every epoch. Services end behind the test."""
    monkeypatch.setattr(registration, "ACKNOWLEDGE_S", 0.0)
    monkeypatch.setattr(checkpoint_watch, "WATCH_S", 0.0)
    monkeypatch.setattr(checkpoints, "RECOVERY_PATIENCE_S", 0.0)
    yield
    shutil.rmtree(tmp_path / "state", ignore_errors=True)
