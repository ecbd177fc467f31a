"""How many kills, and from which seed."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --kills and --kill-seed: `pytest tests/kill9 --kills 2000`."""
    parser.addoption("--kills", type=int, help="kills of a real sidecar under load")
    parser.addoption("--kill-seed", type=int, default=None, help="repeat the moments of an earlier run")
