"""One Spark and one sidecar for all tests of this room: both are dear to start. Every test has topics of its own."""

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
def world(request: pytest.FixtureRequest, spark: SparkSession, sidecar: Sidecar, tmp_path: Path) -> World:
    """Topics, a checkpoint and a state directory that no other test uses."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:150]
    return World(spark, sidecar.address, name, tmp_path)
