"""What tests of clusters share: clients written by others leave sockets, which end in whatever test runs when they are
collected.

kafka-python leaves the socket of each connection that was refused in a cycle, which log records and threads of its own
may hold beyond the test. So no test of this folder minds a socket that was not closed.
"""

from __future__ import annotations

import pytest

IGNORED = ("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if item.path.parent.name == "cluster":
            for ignored in IGNORED:
                item.add_marker(pytest.mark.filterwarnings(ignored))
