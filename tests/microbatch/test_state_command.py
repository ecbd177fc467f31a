"""`cairn state`: what it says of a query that keeps its state in a topic, and of what is not there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.cli import main
from spe_adapter.continuous.loop import Event, FragmentProgress
from spe_adapter.continuous.runner import Options, Runner
from spe_adapter.tools.state_command import table_cell
from tests.continuous.processes import WINDOW, Work, create, described, produce
from tests.support.sidecar import Sidecar

KEYS = 40
RECORDS = 1000


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """A query that has summed RECORDS values, WINDOW by WINDOW, and stopped; the values count up from 0. The tests only
    look.
    """
    with Sidecar(tmp_path_factory.mktemp("sidecar")) as sidecar:
        create(sidecar.address, "in")
        produce(sidecar.address, "in", [(b"key-%d" % (n % KEYS), n) for n in range(RECORDS)])
        done = Work(sidecar.address, "sums", RECORDS)
        committed = 0

        def observe(event: Event) -> None:
            nonlocal committed
            if isinstance(event, FragmentProgress):
                committed = event.figures.records

        Runner(described(done), 0, Options(sidecar.address), observe=observe).run(lambda: committed >= RECORDS)
        yield done


def test_show_counts_the_open_windows(work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    """N, the extent and the progress are those of the query."""
    assert main(["state", "show", "out-sums", "--servers", work.servers, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    shown = json.loads(line)
    still_open = sum(1 for key in range(KEYS) if len(range(key, RECORDS, KEYS)) % WINDOW)
    assert (shown["query"], shown["partition"], shown["open_windows"]) == ("sums.0", 0, still_open)
    assert shown["seen"] == RECORDS
    assert shown["positions"] == {"in": {"0": RECORDS}}
    assert shown["extent_records"] >= still_open


def test_show_lists_windows(work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    """Windows are listed with key and state, as many as were asked for, those with the oldest footprints first."""
    assert main(["state", "show", "out-sums", "--servers", work.servers, "--json", "--windows", "5"]) == 0
    windows = json.loads(capsys.readouterr().out)["windows"]
    assert len(windows) == 5
    assert all(window["key"].startswith("key-") for window in windows)
    assert [window["epoch"] for window in windows] == sorted(window["epoch"] for window in windows)


def test_show_prints_a_table(work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json a person reads it: a head and one line per partition."""
    assert main(["state", "show", "out-sums", "--servers", work.servers]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.startswith("query")
    assert line.startswith("sums.0")


def test_a_watermark_is_shown_as_a_time() -> None:
    """A person reads a date, in UTC; a number that no calendar has, such as that before any row, stays a number."""
    assert table_cell("watermark_ms", 1767261900000) == "2026-01-01T10:05:00.000Z"
    assert table_cell("watermark_ms", -(2**63)) == str(-(2**63))
    assert table_cell("extent_records", 1767261900000) == "1767261900000"


def test_a_topic_without_state_says_so(work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    """The input topic holds no query's state."""
    assert main(["state", "show", "in", "--servers", work.servers]) == 0
    assert capsys.readouterr().out == "no query keeps state in in\n"


def test_what_is_not_there_is_an_error_that_names_it(work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    """A batch that the log does not hold, and a topic that does not exist: exit 1 and one line."""
    assert main(["state", "show", "out-sums", "--servers", work.servers, "--batch", "999999"]) == 1
    assert "999999" in capsys.readouterr().err
    assert main(["state", "show", "nowhere", "--servers", work.servers]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_a_query_that_is_not_there_cannot_be_reset(work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1, one line that names the query; nothing is appended."""
    before = _shown(work, capsys)
    reset = ["state", "reset", "out-sums", "--servers", work.servers, "--query", "nobody", "--batch", "1"]
    assert main(reset) == 1
    assert "nobody" in capsys.readouterr().err
    assert _shown(work, capsys) == before


def _shown(work: Work, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["state", "show", "out-sums", "--servers", work.servers, "--json"]) == 0
    return capsys.readouterr().out.splitlines()


def test_memory_of_an_empty_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A host without state says so."""
    assert main(["state", "memory", "--directory", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no query has state in {tmp_path}\n"
