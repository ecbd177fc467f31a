"""The status page in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.client.blocking import Client, parse_addresses
from logstore.format.epoch_api import EpochCommitRequest
from logstore.format.records import Record, encode_batch
from tests.kafka.front_driver import NOW_MS
from tests.kafka.wire_client import WireClient
from tests.monitoring.browser import IS_THERE, MISSING, chromium
from tests.monitoring.support import http_port, watched

pytestmark = pytest.mark.skipif(not IS_THERE, reason=MISSING)
BATCH = bytes(encode_batch([Record(number, NOW_MS, None, b"x" * 100) for number in range(50)]))
HOSTILE = "<img src=x onerror=\"document.title='taken'\"></td><script>document.title='taken'</script>&amp;'`${1}"
ROW = "return [...document.querySelectorAll('#streams tr')].map(row => row.innerText)"


def test_the_page_shows_what_is_produced_and_runs_nothing_else(tmp_path: Path) -> None:
    """A topic appears and its rate moves while it is produced to; a search leaves others out; a name that is a script
    is a text; the console has nothing to say; a sidecar that is gone is said to be.
    """
    with watched(tmp_path / "data") as sidecar, WireClient(sidecar.port) as client, chromium() as browser:
        client.create_topic("orders")
        client.create_topic("other")
        with Client(parse_addresses(sidecar.address), limit_s=120) as own:
            own.commit(EpochCommitRequest(HOSTILE, "r", 0, "error", (), "", forget=False))
        browser.open(f"http://127.0.0.1:{http_port(sidecar)}/")

        def is_moving(rows: list[str]) -> bool:
            client.produce("orders", BATCH)
            return any(row.startswith("orders-0\t") and row.split("\t")[1] not in ("0", "–") for row in rows)

        browser.wait(ROW, is_moving)
        browser.wait("return document.getElementById('records').innerText", lambda text: text[0] not in "0–")
        assert HOSTILE in browser.run("return document.getElementById('queries').innerText")
        browser.run("document.getElementById('search').value = 'OTHER'")
        browser.wait(ROW, lambda rows: [row.split("\t")[0] for row in rows] == ["other-0"])
        assert browser.run("return document.title") == "Cairn"
        assert browser.run("return document.querySelectorAll('#page img, #page script, #page iframe').length") == 0
        assert browser.run("return document.getElementById('phase').innerText") == "ready"
        assert browser.console() == []
        sidecar.kill()
        browser.wait("return document.getElementById('alarm').innerText", lambda text: "No answer" in text)
        sidecar.start()


def test_the_policy_stops_what_escaping_would_miss(tmp_path: Path) -> None:
    """A script that gets into the document all the same does not run, and nothing is sent to another address."""
    with watched(tmp_path / "data") as sidecar, chromium() as browser:
        browser.open(f"http://127.0.0.1:{http_port(sidecar)}/")
        browser.wait("return document.getElementById('phase').innerText", lambda text: text == "ready")
        browser.run("document.body.insertAdjacentHTML('beforeend', arguments[0])", HOSTILE)
        browser.run("const s = document.createElement('script'); s.text = 'document.title=1'; document.body.append(s)")
        browser.wait("return performance.now() > 500")
        assert browser.run("return document.title") == "Cairn"
        said = " ".join(browser.console())
        assert "Content Security Policy" in said
