"""The demonstration's parts: purchases and their oracle, appending across crashes, the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from logstore.base.addresses import Address
from logstore.base.system import SystemClock
from logstore.client.blocking import Client
from logstore.client.wire import OffsetInfo, TopicPartition
from spe_adapter.datasource.ranges import limited
from spe_adapter.demo.progress import DONE, PlainLines
from spe_adapter.demo.purchases import (
    CLOSING_ITEM,
    CUSTOMER_WINDOW_MS,
    RECORD_BYTES,
    WATERMARK_MS,
    WINDOW_MS,
    Purchases,
    averages,
    deal,
    from_values,
    generate,
    spendings,
    to_values,
    together,
)
from spe_adapter.demo.report import DemoOutcome, Kill, write_page
from spe_adapter.demo.results import Comparison, DemoResults, parse_average, parse_spending
from spe_adapter.demo.story import BLOCK, PARTITIONS, recovery_line
from spe_adapter.demo.streams import Appender, Follower
from tests.support.sidecar import Sidecar

Prices = dict[tuple[int, int], list[int]]


def naive(blocks: list[Purchases]) -> tuple[Prices, Prices]:
    """The prices in each window of each item and of each customer, one purchase at a time."""
    items: Prices = {}
    customers: Prices = {}
    for block in blocks:
        for item, price, time_ms, customer in zip(*(column.tolist() for column in block), strict=True):
            if item != CLOSING_ITEM:
                items.setdefault((time_ms // WINDOW_MS * WINDOW_MS, item), []).append(price)
                start_ms = time_ms // CUSTOMER_WINDOW_MS * CUSTOMER_WINDOW_MS
                customers.setdefault((start_ms, customer), []).append(price)
    return items, customers


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


def batches_of(dealt: list[tuple[int, Purchases]], started_at: int, max_records: int) -> Iterator[list[Purchases]]:
    """What a query reads in each micro-batch, as its source plans it.

    The query plans its first batch when `started_at` parts are appended, then a batch after each further part, and goes
    on until it has read everything.
    """
    latest = {TopicPartition("purchases", number): 0 for number in range(PARTITIONS)}
    position = dict(latest)
    streams = {
        TopicPartition("purchases", number): [part for to, part in dealt if to == number]
        for number in range(PARTITIONS)
    }
    whole = {stream: together(parts) for stream, parts in streams.items() if parts}
    for appended, (number, part) in enumerate(dealt, 1):
        latest[TopicPartition("purchases", number)] += len(part.items)
        while appended >= started_at and position != latest:
            end = limited(position, latest, max_records)
            yield [
                Purchases(*(column[position[stream] : end[stream]] for column in found))
                for stream, found in whole.items()
            ]
            position = end
            if appended < len(dealt):
                break


@pytest.mark.parametrize(("records", "max_records"), [(1, 1), (2, 1), (9000, 3000), (20_001, 7000), (60_000, 20_000)])
def test_no_purchase_is_late_however_small_the_batches(records: int, max_records: int) -> None:
    """Whenever the query starts, no purchase is behind the watermark that the batches before it have moved.

    The closing purchase moves it past all others, so it is in the last batch.
    """
    dealt = list(deal(generate(records, 5, 1, BLOCK), PARTITIONS))
    for started_at in range(1, len(dealt) + 1):
        newest_ms, read = 0, 0
        for batch in batches_of(dealt, started_at, max_records):
            found = together(batch)
            assert found.times_ms.min() >= newest_ms - WATERMARK_MS, f"late, with {started_at} parts at the start"
            newest_ms, read = max(newest_ms, int(found.times_ms.max())), read + len(found.items)
        assert read == records + 1


def test_purchases_are_dealt_out_whole() -> None:
    """Every purchase goes to one partition, and each partition gets half of every block."""
    blocks = list(generate(50, 5, 1, 20))
    dealt = list(deal(blocks, PARTITIONS))
    assert [(number, len(part.items)) for number, part in dealt] == [(0, 10), (1, 10)] * 2 + [(0, 5), (1, 5), (1, 1)]
    assert spendings(together(part for _, part in dealt)) == spendings(together(blocks))


def test_a_value_of_another_size_is_refused() -> None:
    """A record that is no purchase is an error that says so."""
    values = to_values(next(generate(3, 7, 3, 3))).cast("string").to_pylist()
    with pytest.raises(ValueError, match="a purchase of"):
        from_values(pa.array([values[0].encode() + b"x"]))


def test_the_oracle_agrees_with_the_naive_one() -> None:
    """The vectorised averages and sums are those of a loop over the purchases."""
    blocks = list(generate(100_000, 11, 5, 3000))
    items, customers = naive(blocks)
    assert averages(together(blocks)) == {key: (len(found), sum(found) / len(found)) for key, found in items.items()}
    assert spendings(together(blocks)) == {key: (len(found), sum(found)) for key, found in customers.items()}
    assert len({start_ms for start_ms, _ in customers}) > 1


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
        assert averages(together(found)) == averages(together(blocks))


def test_what_is_appended_between_a_look_and_its_fetch_is_read(tmp_path: Path) -> None:
    """The reader looks where a stream ends, and fetches. An answer that holds records beyond that end costs none."""
    blocks = list(generate(3_000, 5, 1, 1_000))
    with Sidecar(tmp_path / "data") as sidecar, Client([Address("127.0.0.1", sidecar.port)]) as writer:
        writer.partitions("purchases", create=True)
        stream = TopicPartition("purchases", 0)
        appender, left = Appender(writer, stream, SystemClock()), iter(blocks)
        appender.append(next(left))

        class Reader(Client):
            """Another block is appended behind each look, as long as there is one."""

            def offsets(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetInfo]:
                found = super().offsets(timestamps_ms)
                for block in islice(left, 1):
                    appender.append(block)
                return found

        with Reader([Address("127.0.0.1", sidecar.port)]) as client:
            follower = Follower(client, stream)
            found = [from_values(batch.column("value")) for _ in blocks for batch in follower.read_new()]
        assert sum(len(each.items) for each in found) == sum(len(each.items) for each in blocks)
        assert averages(together(found)) == averages(together(blocks))


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    """The page shows verdict and kills, and names no address that a browser would fetch."""
    comparisons = {"averages": Comparison(3, 0, 0, 0), "spendings": Comparison(2, 0, 0, 0)}
    outcome = DemoOutcome(records=10, seconds=5.0, comparisons=comparisons, kills=[Kill("Spark", 1.0, 2.5)])
    outcome.batches["averages"] += [(1.0, 5), (4.0, 5)]
    write_page(outcome, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "exact: 3 results" in page
    assert "Spark killed" in page
    assert "src=" not in page
    assert "href=" not in page


def test_a_wrong_result_is_not_called_exact() -> None:
    """One missing, doubled or wrong result, or none at all, and the verdict says so."""
    exact = Comparison(found=1, missing=0, doubled=0, wrong=0)
    assert DemoOutcome(comparisons={"averages": exact}).is_exact
    assert not DemoOutcome().is_exact
    for other in (
        Comparison(0, 0, 0, 0),
        exact._replace(missing=1),
        exact._replace(found=2, doubled=1),
        exact._replace(wrong=1),
    ):
        assert not DemoOutcome(comparisons={"averages": exact, "spendings": other}).is_exact
        assert other.verdict.startswith("NOT exact")


class Given:
    """Results as they come from a topic."""

    def __init__(self, *values: str) -> None:
        self.values = values

    def read_new(self) -> list[pa.RecordBatch]:
        """All of them."""
        return [pa.record_batch({"value": pa.array([value.encode() for value in self.values])})]


def test_results_are_compared_with_what_must_be_there() -> None:
    """One that lacks, one that comes twice and one that differs are counted as that."""
    results = DemoResults([Given("10,1,2,5.5", "10,1,2,5.5", "10,2,1,7.0", "20,3,1,1.0")], parse_average)  # type: ignore[list-item]
    assert results.read_new() == 4
    expected = {(10, 1): (2, 5.5), (10, 2): (1, 8.0), (20, 3): (1, 1.0), (20, 4): (1, 1.0)}
    assert results.compare(expected) == Comparison(found=4, missing=1, doubled=1, wrong=1)


def test_a_result_of_the_stateful_query_is_read() -> None:
    """Its JSON, with the window's start as a moment."""
    value = '{"customer":"7","window":{"start":"2023-11-14T22:13:00.000Z","end":"…"},"purchases":3,"spent":600}'
    assert parse_spending(value) == (1_699_999_980_000, 7, 3, 600.0)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"checkpoint": 2},
            "70,000 windows: 2 of 2 partitions loaded from checkpoints (4.2 MB) and the log ",
        ),
        ({"checkpoint": 1, "loaded": 1}, "70,000 windows: 1 of 2 partitions loaded from checkpoints (4.2 MB)"),
        ({"loaded": 2}, "70,000 windows: loaded from the log (0.31 MB)"),
        ({"empty": 2}, "70,000 windows: a new state"),
        ({"current": 1, "delta": 1}, "state: current, delta"),
    ],
)
def test_a_start_says_where_state_came_from(how: dict[str, int], said: str) -> None:
    """With windows and bytes."""
    message = {"how": how, "windows": 70_000, "checkpoint_bytes": 4_200_000, "log_bytes": 310_000}
    assert recovery_line(message).startswith(said)


def test_progress_without_a_terminal_is_plain_lines() -> None:
    """What happens is a line at once, how much is done one in EVERY_S at most, and silence one in EVERY_S: each with
    the time, the share, and what is done.
    """
    now_s, lines = [100.0], list[str]()
    progress = PlainLines(lines.append, lambda: now_s[0])
    progress.tell("starting Spark", 0.0)
    for _ in range(12):
        now_s[0] += 1
        progress.tick()
    assert lines == ["   0 s    0%  starting Spark", "   5 s    0%  starting Spark", "  10 s    0%  starting Spark"]
    lines.clear()
    for done in range(1, 11):
        now_s[0] += 1
        progress.tell(f"{done}0 {DONE}", done / 10)
    assert lines == [f"  15 s   30%  30 {DONE}", f"  20 s   80%  80 {DONE}"]
    progress.tell("kill −9: Spark", 1.0)
    assert lines[2:] == ["  22 s  100%  kill −9: Spark"]
