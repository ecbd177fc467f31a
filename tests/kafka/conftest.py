"""One real sidecar for all protocol tests: every test has its own topics and connections."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.wire_client import WireClient
from tests.support.sidecar import Sidecar

MAX_FRAME_BYTES = 2 << 20


@pytest.fixture(scope="session")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A running sidecar that takes frames of 2 MiB and gives a new connection two seconds."""
    data_dir: Path = tmp_path_factory.mktemp("kafka")
    with Sidecar(data_dir, "--max-frame-bytes", str(MAX_FRAME_BYTES), "--handshake-s", "2") as running:
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
