"""One real sidecar for all protocol tests: every test has its own topics and connections."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.wire_client import WireClient
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

MAX_FRAME_BYTES = 2 << 20
HASTE_S = 2


@pytest.fixture(scope="session")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A running sidecar that takes frames of 2 MiB; its clients may be slow."""
    data_dir: Path = tmp_path_factory.mktemp("kafka")
    with Sidecar(data_dir, "--max-frame-bytes", str(MAX_FRAME_BYTES), "--handshake-s", str(PATIENCE_S)) as running:
        yield running


@pytest.fixture(scope="session")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """One that gives a new connection HASTE_S."""
    with Sidecar(tmp_path_factory.mktemp("hasty"), "--handshake-s", str(HASTE_S)) as running:
        yield running


@pytest.fixture
def client(sidecar: Sidecar) -> Iterator[WireClient]:
    """A connection of the test's own."""
    with WireClient(sidecar.port) as connection:
        yield connection


@pytest.fixture
def topic(client: WireClient) -> str:
    """A topic of the test's own, with one partition."""
    name = f"t-{uuid.uuid4().hex}"
    assert client.create_topic(name) == 0
    return name
