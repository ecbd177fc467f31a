"""One sidecar for all tests of operators' commands; each test has topics and names of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.client.blocking import Client, parse_addresses
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar


@pytest.fixture(scope="session")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A running sidecar."""
    data_dir: Path = tmp_path_factory.mktemp("commands") / "data"
    with Sidecar(data_dir, "--segment-bytes", "4096") as running:
        yield running


@pytest.fixture
def client(sidecar: Sidecar) -> Iterator[Client]:
    """A client of it."""
    with Client(parse_addresses(sidecar.address), limit_s=PATIENCE_S) as connected:
        yield connected
