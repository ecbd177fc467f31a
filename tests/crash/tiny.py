"""The log's size constants, scaled down by some thousands: the same code paths with a few hundred bytes of data."""

import pytest

import logstore.log.chunk_writer
import logstore.log.chunks
import logstore.log.ledger
import logstore.log.recovery
import logstore.log.stream
import logstore.verify.window

SIZES = (
    (logstore.log.chunks, "INDEX_INTERVAL_BYTES", 200),
    (logstore.log.stream, "WRITE_BYTES", 400),
    (logstore.log.chunk_writer, "SNAPSHOT_INTERVAL_BYTES", 300),
    (logstore.log.chunk_writer, "SNAPSHOT_SHARE", 1),
    (logstore.log.ledger, "ROLL_BYTES", 400),
    (logstore.log.chunks, "MAX_WRITE_BYTES", 2048),
    (logstore.log.recovery, "MAX_WRITE_BYTES", 2048),
    (logstore.log.recovery, "WINDOW_BYTES", 300),
    (logstore.verify.window, "WINDOW_BYTES", 200),
    (logstore.verify.window, "AHEAD_BYTES", 300),
)


def make_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale them down for one test."""
    for module, name, value in SIZES:
        monkeypatch.setattr(module, name, value)
