"""One Spark and one sidecar for all tests of this room: both are dear to start. Every test has topics of its own.

Beside the data source, this room has the tests for which Spark itself is the oracle of our operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.microbatch.world import World
from tests.support.sidecar import Sidecar
from tests.support.spark_session import start_spark


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The shared session."""
    session = start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """The shared sidecar."""
    with Sidecar(tmp_path_factory.mktemp("sidecar")) as running:
        yield running


@pytest.fixture
def address(sidecar: Sidecar) -> str:
    """Where it listens."""
    return sidecar.address


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name for a topic that no other test uses."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:200]


@pytest.fixture
def world(spark: SparkSession, address: str, topic: str, tmp_path: Path) -> World:
    """The surroundings of a stateful query that no other test uses."""
    return World(spark, address, topic[:150], tmp_path)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """An empty place for a query's checkpoint."""
    return tmp_path / "checkpoint"
