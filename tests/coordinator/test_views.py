"""What people and Prometheus see: the page with its picture, the metrics, the log; all of it escaped and bounded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from random import Random
from xml.etree import ElementTree as ET

import pytest

from logstore.base.events import ignore
from logstore.base.histogram import Histogram
from logstore.base.system import SystemClock
from scheduler.client import CoordinatorClient
from scheduler.coordinator import metrics, page
from scheduler.coordinator.journal import MetadataJournal
from scheduler.coordinator.metadata.on_threads import MetadataOnThreads
from scheduler.coordinator.planners import make_planner
from scheduler.coordinator.registry import BOUNDS_S, Span
from scheduler.coordinator.running import opened
from scheduler.coordinator.service import Coordinator, CoordinatorEnvironment, CoordinatorSettings
from scheduler.coordinator.testing import CoordinatorProcess, running
from scheduler.peace.online import ChunkRecord
from scheduler.topology import racks
from tests.coordinator.support import ask, topology_file

NASTY = "<script>alert(\"1\")</script>&'x'"


@pytest.fixture
def busy() -> Iterator[str]:
    """A coordinator with chunks under way, one done, one waiting, and a host that is lost."""
    with running(racks([4, 4], 4), planner="paper") as url, CoordinatorClient(url) as client:
        next(client.submit("r1h1", chunks=1).goes()).done()
        client.submit("r1h1", chunks=3, name=NASTY)
        client.deregister("r2h4")
        yield url


def test_the_page_shows_who_writes_on_which_link(busy: str) -> None:
    """Hosts that send, the links between the racks, the queue and the capacities; one bar for each way."""
    answer = ask(busy, "GET", "/")
    assert answer.headers["Content-Type"].startswith("text/html")
    picture = ET.fromstring(answer.text[answer.text.index("<svg") : answer.text.index("</svg>") + 6])
    labels = {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"r1h1", "rack1 → core", "core → rack2", "now", "-60 s"} <= labels
    bars = list(picture.iter("{http://www.w3.org/2000/svg}rect"))
    # Three chunks (one is done), each over three hosts and two links.
    assert len(bars) == 3 * 5
    assert "hosts lost: r2h4" in answer.text
    assert "2 of 2" in answer.text


def test_the_page_escapes_what_came_from_outside(busy: str) -> None:
    """A request's name is a stranger's text: it appears, and is never markup."""
    text = ask(busy, "GET", "/").text
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    ET.fromstring(re.sub(r"<!DOCTYPE html>|<meta [^>]*>", "", text))


def test_the_page_says_who_waits_and_what_colours_mean(busy: str) -> None:
    """A legend with each request's colour, how long each has been there, what is stranded; readable on a telephone."""
    with CoordinatorClient(busy) as client:
        long = "a name that goes on and on " * 7
        client.submit("r1h2", chunks=2, name=long)
        for host in ("r2h1", "r2h2", "r2h3"):
            client.deregister(host)
        while "stranded" not in (text := ask(busy, "GET", "/").text):
            pass
    assert '<meta name="viewport" content="width=device-width' in text
    legend = re.findall(r'<li><i style="background:(hsl[^"]+)"></i>([^<]*)</li>', text)
    assert len({colour for colour, _ in legend}) == len(legend) >= 1
    assert all(f'fill="{colour}"' in text for colour, _ in legend), "the colours of the bars"
    rows = re.findall(r"<tr><td>([^<]*)</td>.*?<td class=\"n\">([0-9.]+ s)</td></tr>", text)
    assert {escape(long), escape(NASTY)} <= {name for name, _ in rows}
    assert '<span class="bad">stranded</span>' in text


def test_long_names_fit_into_the_picture() -> None:
    """Hosts and links with names of any length have their room; the whole name is where the pointer rests."""
    host, switch = "h" * 60 + "-1.example.org", "s" * 80
    chunk = ChunkRecord("q", 0, 1, "running", (host, "b"), (((switch, switch + "2"),),), 1000, 0)
    drawn = page.svg(page.Picture([Span(chunk, None)], 2000))
    labels = re.findall(r'text-anchor="end"[^>]*>([^<]*)<title>([^<]*)</title>', drawn)
    assert [title for _, title in labels] == [host, f"{switch} → {switch}2"]
    assert all(len(label) <= page.MAX_LABEL_CHARACTERS for label, _ in labels)
    assert labels[1][0].count(" → ") == 1


def test_durations_are_for_people() -> None:
    """Seconds, then minutes, then hours."""
    assert [page.duration(ms) for ms in (0, 1234, 61_000, 3_725_000)] == ["0.0 s", "1.2 s", "1 min 1 s", "1 h 2 min"]


def test_the_picture_is_bounded() -> None:
    """However many hosts and links: a bounded number of rows, and it says how many are left out."""
    spans = [
        Span(ChunkRecord(f"r{n}", 0, 1, "running", (f"h{n}", f"g{n}"), (((f"s{n}", "core"),),), 1000, 0), None)
        for n in range(500)
    ]
    drawn = page.svg(page.Picture(spans, 2000))
    assert drawn.count("<text") == page.MAX_ROWS + page.TICKS + 1
    assert "940 more" in drawn
    assert "Nothing" in page.svg(page.Picture([Span(spans[0].chunk, 1500)], 10_000_000))


def test_metrics_are_prometheus_text(busy: str) -> None:
    """Every line is a comment or a sample; types are declared once; the numbers are those of the status."""
    answer = ask(busy, "GET", "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    samples: dict[str, float] = {}
    for line in answer.text.splitlines():
        if not line.startswith("# "):
            found = re.fullmatch(r'([a-z_]+(?:\{(?:[a-z]+="[^"\n]*",?)+\})?) (\S+)', line)
            assert found is not None, line
            samples[found[1]] = float(found[2])
    prefix = "cairn_coordinator_"
    assert samples[prefix + 'requests{state="finished"}'] == 1
    assert samples[prefix + "chunks_in_flight"] == 2
    assert 0 < samples[prefix + "oldest_chunk_age_seconds"] < samples[prefix + "chunk_deadline_seconds"] == 600
    assert samples[prefix + "requests_stranded"] == 0
    for name, count in (("waiting", samples[prefix + 'events_total{event="go"}']), ("writing", 1)):
        histogram = f"{prefix}chunk_{name}_seconds"
        assert samples[histogram + '_count{kind="write"}'] == count
        assert samples[histogram + '_bucket{kind="write",le="+Inf"}'] == count
        assert 0 <= samples[histogram + '_sum{kind="write"}'] < 600 * count
        assert samples[histogram + '_count{kind="read"}'] == 0
    assert samples[prefix + "chunks_waiting"] == 1
    assert samples[prefix + 'hosts{state="lost"}'] == 1
    assert samples[prefix + 'events_total{event="go"}'] >= 3
    assert samples[prefix + 'answers_total{operation="submitRequest",status="201"}'] == 2
    assert samples[prefix + 'capacity_total{resource="send"}'] == 16  # the lost one too: it may come back
    names = re.findall(r"^# TYPE (\S+)", answer.text, flags=re.MULTILINE)
    assert len(names) == len(set(names))


def test_histograms_are_cumulative() -> None:
    """Each bucket counts what was at most so long; what is longer than all bounds is in the last; the sum is exact."""
    histogram = Histogram(BOUNDS_S)
    for duration_ms in (-5, 0, 50, 51, 999, 1000, 7_000_000):
        histogram.add(duration_ms / 1000)
    buckets = dict(histogram.buckets())
    assert [buckets[bound] for bound in ("0.05", "0.1", "0.5", "1", "1800", "+Inf")] == [3, 4, 4, 6, 6, 7]
    assert histogram.sum_s == pytest.approx(7_002.1)


def test_large_counters_are_whole(tmp_path: Path) -> None:
    """A counter is told to the last digit: rates are made of small differences between large numbers."""
    environment = CoordinatorEnvironment(
        racks([4, 4], 4), make_planner("paper", racks([4, 4], 4)), SystemClock(), Random(0), ignore
    )
    with opened(tmp_path) as metadata:
        found = Coordinator(environment, CoordinatorSettings(), MetadataJournal(MetadataOnThreads(metadata), ignore))
        found.journal.commits = 123_456_789
        assert "\ncairn_coordinator_commits_total 123456789\n" in metrics.text(found, _NoTraffic())


class _NoTraffic:
    """A server that was never asked."""

    def answered(self) -> dict[tuple[str, int], int]:
        """See metrics.Traffic."""
        return {}

    def connections(self) -> tuple[int, int]:
        """See metrics.Traffic."""
        return 0, 0


def test_the_log_is_one_line_for_each_event(tmp_path: Path) -> None:
    """logfmt on standard error: who was told what, and quoting that cannot be broken out of."""
    path, _ = topology_file(tmp_path)
    with CoordinatorProcess(path, tmp_path / "data", "--planner", "paper", "--seed", "7") as process:
        with CoordinatorClient(process.url) as client:
            for go in client.submit("r1h1", chunks=1, name='a "b" level=error').goes():
                go.done()
        assert process.terminate() == 0
        lines = process.log().splitlines()
    fields = [dict(re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', line)) for line in lines]
    assert [one["event"] for one in fields] == ["starting", "submitted", "go", "finished", "stopping", "stopped"]
    assert fields[0]["seed"] == "7"
    assert json.loads(fields[2]["request"]) == 'a "b" level=error'
    assert all(one["level"] == "info" for one in fields)
