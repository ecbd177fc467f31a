"""A sidecar that refuses appends because its disk has too little room says so, wherever an operator looks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.base.system import SystemClock
from logstore.commands.output import show_time
from logstore.format.records import Record, encode_batch
from tests.kafka.front_driver import NOW_MS
from tests.kafka.wire_client import WireClient
from tests.monitoring.browser import IS_THERE, MISSING, chromium
from tests.monitoring.support import ask, http_port, scrape, value, watched
from tests.support.cli import cairn
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

RESERVE_BYTES = 1 << 60
"""More than any disk has: appends are refused from the start on."""
KAFKA_STORAGE_ERROR = 56
BATCH = bytes(encode_batch([Record(0, NOW_MS, None, b"x")]))
STARTED_MS = SystemClock().wall_ms()


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A sidecar with a reserve that no disk can have."""
    data_dir: Path = tmp_path_factory.mktemp("refusing")
    with watched(data_dir, "--disk-reserve-bytes", str(RESERVE_BYTES)) as sidecar:
        with WireClient(sidecar.port) as client:
            client.create_topic("t")
            assert client.produce("t", BATCH).error == KAFKA_STORAGE_ERROR
        yield sidecar


def status(sidecar: Sidecar, *words: str) -> tuple[str, ...]:
    """The command line of `cairn status`."""
    return ("status", "--servers", sidecar.address, "--timeout", str(PATIENCE_S), *words)


def test_the_command_says_since_when_and_what_to_do(refusing: Sidecar) -> None:
    """`cairn status` has a line on it, with the bytes that are to stay free; `--json` has both values."""
    found = cairn(*status(refusing, "--json")).json
    assert STARTED_MS <= found["appends_refused_since_ms"] <= SystemClock().wall_ms()
    assert found["disk_needed_bytes"] == RESERVE_BYTES
    (line,) = (line for line in cairn(*status(refusing)).out.splitlines() if line.startswith("appends"))
    assert f"refused since {show_time(found['appends_refused_since_ms'])}" in line
    assert "disk-reserve-bytes" in line
    assert "lower their retention" in line


def test_metrics_and_the_page_s_figures_say_it(refusing: Sidecar) -> None:
    """One metric to alert on, and the figures behind it; the disk itself takes writes, so health is well."""
    found = scrape(refusing)
    assert value(found, "cairn_appends_refused") == 1
    assert value(found, "cairn_disk_needed_bytes") == RESERVE_BYTES
    disk = ask(http_port(refusing), "/status.json").value["disk"]
    assert STARTED_MS <= disk["refused_since_ms"] <= SystemClock().wall_ms()
    assert disk["needed_bytes"] == RESERVE_BYTES
    assert ask(http_port(refusing), "/health").status == 200


@pytest.mark.skipif(not IS_THERE, reason=MISSING)
def test_the_page_says_it(refusing: Sidecar) -> None:
    """A sentence at the top, and the phase is no good news."""
    with chromium() as browser:
        browser.open(f"http://127.0.0.1:{http_port(refusing)}/")
        read = "return document.getElementById('refusal').innerText"
        browser.wait(read, lambda text: "Appends are refused since 20" in text and "Delete topics" in text)
        assert "bad" in browser.run("return document.getElementById('phase').className")
        assert browser.console() == []


def test_one_that_takes_appends_says_nothing(tmp_path: Path) -> None:
    """No line, null and 0 where there is room."""
    with watched(tmp_path, "--disk-reserve-bytes", "1") as sidecar:
        found = cairn(*status(sidecar, "--json")).json
        assert found["appends_refused_since_ms"] is None
        assert "refused" not in cairn(*status(sidecar)).out
        assert ask(http_port(sidecar), "/status.json").value["disk"]["refused_since_ms"] is None
        assert value(scrape(sidecar), "cairn_appends_refused") == 0
