"""What tests of clusters share: sockets that kafka-python leaves are nobody's fault here.

kafka-python leaves the socket of each connection that was refused in a cycle, which log records may hold beyond the
test. It ends in whatever test runs when it is collected, or behind the last one.
"""

from __future__ import annotations

import sys

import pytest

from tests.support.cluster_network import choose_containers
from tests.support.images import NotBuilt, build_images


def pytest_configure(config: pytest.Config) -> None:
    """In tests: a mark of each would not do, for the collector runs when it likes. Choose containers, if asked."""
    config.addinivalue_line("filterwarnings", "ignore::ResourceWarning")
    if config.getoption("--docker"):
        try:
            build_images(lambda line: print(line, file=sys.stderr, flush=True))
        except NotBuilt as error:
            raise pytest.UsageError(f"--docker: {error}") from error
        choose_containers()


def pytest_sessionstart() -> None:
    """Between and behind tests."""
    passed_on = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, ResourceWarning):
            passed_on(unraisable)

    sys.unraisablehook = hook
