"""The demonstration's parts: purchases and their oracle, appending across crashes, the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from logstore.client.blocking import Client
from logstore.client.network import Address
from logstore.client.wire import TopicPartition
from logstore.disk.clock import SystemClock
from spe_adapter.demo.purchases import (
    CLOSING_ITEM,
    RECORD_BYTES,
    WINDOW_MS,
    Purchases,
    averages,
    from_values,
    generate,
    to_values,
)
from spe_adapter.demo.report import Kill, Outcome, write_page
from spe_adapter.demo.streams import Appender, Follower
from tests.support.sidecar import Sidecar


def naive_averages(blocks: list[Purchases]) -> dict[tuple[int, int], tuple[int, float]]:
    """The same averages, one purchase at a time."""
    prices: dict[tuple[int, int], list[int]] = {}
    for block in blocks:
        for item, price, time_ms in zip(*(column.tolist() for column in block), strict=True):
            if item != CLOSING_ITEM:
                prices.setdefault((time_ms // WINDOW_MS * WINDOW_MS, item), []).append(price)
    return {key: (len(found), sum(found) / len(found)) for key, found in prices.items()}


def test_purchases_are_a_hundred_bytes_and_come_back() -> None:
    """Every purchase is 100 bytes, and reading its value gives it back; the same seed gives the same ones."""
    blocks = list(generate(5000, 7, 3, 999))
    for block, again in zip(blocks, generate(5000, 7, 3, 999), strict=True):
        values = to_values(block)
        assert {len(value) for value in values.to_pylist()} == {RECORD_BYTES}
        back = from_values(values)
        for ours, theirs, repeated in zip(block, back, again, strict=True):
            np.testing.assert_array_equal(ours, theirs)
            np.testing.assert_array_equal(ours, repeated)


def test_a_value_of_another_size_is_refused() -> None:
    """A record that is no purchase is an error that says so."""
    values = to_values(next(generate(3, 7, 3, 3))).cast("string").to_pylist()
    with pytest.raises(ValueError, match="a purchase of"):
        from_values(pa.array([values[0].encode() + b"x"]))


def test_the_oracle_agrees_with_the_naive_one() -> None:
    """The vectorised averages are those of a loop over the purchases."""
    blocks = list(generate(20_000, 11, 5, 3000))
    assert averages(iter(blocks)) == naive_averages(blocks)


def test_appending_goes_on_across_a_kill(tmp_path: Path) -> None:
    """A sidecar killed between blocks costs no purchase and doubles none."""
    with Sidecar(tmp_path / "data") as sidecar, Client([Address("127.0.0.1", sidecar.port)]) as client:
        client.partitions("purchases", create=True)
        stream = TopicPartition("purchases", 0)
        appender = Appender(client, stream, SystemClock())
        blocks = list(generate(30_000, 5, 1, 10_000))
        for number, block in enumerate(blocks):
            appender.append(block)
            if number == 1:
                sidecar.kill()
                sidecar.restart()
        found = [from_values(batch.column("value")) for batch in Follower(client, stream).read_new()]
        assert averages(iter(found)) == averages(iter(blocks))


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    """The page shows verdict and kills, and names no address that a browser would fetch."""
    outcome = Outcome(records=10, results=3, seconds=5.0, kills=[Kill("Spark", 1.0, 2.5)], batches=[(1.0, 5), (4.0, 5)])
    write_page(outcome, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "exact: 3 results" in page
    assert "Spark killed" in page
    assert "src=" not in page
    assert "href=" not in page


def test_a_wrong_result_is_not_called_exact() -> None:
    """One missing, doubled or wrong result, or none at all, and the verdict says so."""
    assert Outcome(results=1).is_exact
    for outcome in (
        Outcome(),
        Outcome(results=1, missing=1),
        Outcome(results=2, doubled=1),
        Outcome(results=1, wrong=1),
    ):
        assert not outcome.is_exact
        assert outcome.verdict.startswith("NOT exact")
