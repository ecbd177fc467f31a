"""What tests of clusters share: clients written by others leave sockets, which must not end in somebody else's test."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _sockets_of_clients(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect what a client has left while the filters of the test that used it hold: kafka-python leaves the socket of
    each connection that was refused in a cycle.
    """
    yield
    if request.node.get_closest_marker("clients") is not None:
        gc.collect()
