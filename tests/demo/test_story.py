"""The demonstration itself, small: one kill of Spark in the middle, and the exact result."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from logstore.client.wire import TopicPartition
from logstore.format.records import Record, encode_batch
from spe_adapter.demo.story import DemoPlan, Story, said
from tests.support.limits import PROGRAM_S

PLAIN_LINE = re.compile(r" *\d+ s +\d+%  .+")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.spark
def test_the_demonstration_ends_exact(tmp_path: Path) -> None:
    """`cairn demo` with a kill ends with status 0, an exact result and a page. Without a terminal it says in plain
    lines what it does.
    """
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "logstore.cli", "demo", "--records", "60000", "--batch", "20000", "--kills", "1"]
    done = subprocess.run(
        [*command, "--heap", "512m", "--report", str(page)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = page.read_text(encoding="utf-8")
    assert "exact" in text
    assert "windows: " in text.partition("Starts of the stateful query")[2]
    lines = [line for line in done.stdout.splitlines() if PLAIN_LINE.fullmatch(line)]
    for event in ("starting a sidecar", "starting Spark", "kill −9: Spark", "waiting for the last results"):
        assert any(event in line for line in lines), done.stdout
    assert "\x1b" not in done.stdout
    assert not list(tmp_path.glob("cairn-demo-*")), "an exact run leaves nothing behind"


def test_what_a_jvm_says_is_no_message() -> None:
    """A line that the query's JVM writes into the same output says nothing of the query, and ends nothing."""
    assert said("[0.123s][warning][cds] shared class paths mismatch") == {}
    assert said("2026") == {}
    assert said('{"query": "averages", "rows": 5}') == {"query": "averages", "rows": 5}


def test_what_was_committed_before_a_kill_does_not_answer_it(tmp_path: Path) -> None:
    """A result that a query had in the log by the moment of its kill is not the first result after the kill."""
    told: list[str] = []

    def tell(event: str, _: float) -> None:
        told.append(event)
        with story._client() as client:
            now_ms = int(time.time() * 1000)
            batch = encode_batch([Record(0, now_ms, None, b"60000,1,2,5.5", ())])
            assert client.produce(TopicPartition("averages", 0), bytes(batch)) is not None

    plan = DemoPlan(records=1, items=1, batch=1, kills=1, seed=1, port=0, heap="512m")
    story = Story(plan, tmp_path, tell)
    try:
        story._start_sidecar()
        with story._client() as client:
            for topic in ("purchases", "averages", "spendings"):
                client.partitions(topic, create=True)
        story._kill("Spark and sidecar")
        assert told == ["kill −9: Spark and sidecar; starting again"]
        assert len(story._results["averages"]) == 1
        assert story._follow() == 0
        assert story.outcome.kills[0].first_result_s is None
    finally:
        story._stop()


def test_a_batch_that_a_killed_query_did_not_tell_of_is_finished(tmp_path: Path) -> None:
    """What a query has committed counts from its next start on: no kill waits for a report that will not come.

    A batch that is only planned does not count: the query runs it again, and tells of it.
    """
    checkpoint = tmp_path / "checkpoints" / "averages"
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
    for batch, ends in enumerate(('"0": 1500, "1": 1499', '"0": 3000, "1": 2999', '"0": 4500, "1": 4499')):
        began = '"(began)": {"purchases-0": 0, "purchases-1": 0}, ' if batch == 0 else ""
        text = f'v1\n{{"batchWatermarkMs":0}}\n{{{began}"purchases": {{{ends}}}}}'
        (checkpoint / "offsets" / str(batch)).write_text(text)
    for batch in range(2):
        (checkpoint / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (checkpoint / "commits" / f".{batch}.crc").write_bytes(b"crc")
    plan = DemoPlan(records=9000, items=1, batch=3000, kills=4, seed=1, port=0, heap="512m")
    story = Story(plan, tmp_path, lambda _event, _share: None)
    try:
        story._start_query()
        assert story._rows == {"averages": 5999, "spendings": 0}
    finally:
        story._stop()
