"""Bounds of the log made tiny, so that a few hundred bytes roll chunks, index, snapshot and rewrite ledgers."""

import pytest

from tests.crash.tiny import make_tiny


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny(monkeypatch)
