"""What the HTTP listener answers and refuses, and what it costs whom."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from logstore.format.records import Record, encode_batch
from logstore.monitoring.service import LIMITS
from logstore.testing.ports import free_port
from tests.kafka.front_driver import NOW_MS
from tests.kafka.wire_client import WireClient
from tests.monitoring.support import ask, http_port, watched
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import ROOT, Sidecar
from tests.support.waiting import until

BATCH = bytes(encode_batch([Record(0, NOW_MS, None, b"value")]))


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A sidecar for tests that only ask."""
    with watched(tmp_path_factory.mktemp("service") / "data") as running:
        yield running


def test_every_path_answers_get_and_head(sidecar: Sidecar) -> None:
    """All five paths answer GET; HEAD has the same status and no body. No other site may show or read them."""
    for path in ("/", "/health", "/ready", "/metrics", "/status.json"):
        got, head = (ask(http_port(sidecar), path, method=method) for method in ("GET", "HEAD"))
        assert (got.status, head.status, head.text) == (200, 200, ""), path
        assert got.headers["cache-control"] == "no-store"
        assert got.headers["x-content-type-options"] == "nosniff"
        assert got.headers["x-frame-options"] == "DENY"
        assert not [name for name in got.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("POST", "/metrics", 405, "GET is"),
        ("DELETE", "/", 405, "GET is"),
        ("OPTIONS", "/status.json", 405, "GET is"),
        ("GET", "/metrix", 404, "/metrics"),
        ("GET", "/../etc/passwd", 404, "no such path"),
        ("GET", "/%2e%2e/cairn.json", 404, "no such path"),
        ("GET", "/status.json?limit=0", 400, "limit=0"),
        ("GET", "/status.json?limit=100000", 400, "limit=100000"),
        ("GET", "/status.json?limit=x", 400, "limit='x'"),
        ("GET", "/status.json?search=" + "x" * 300, 400, "at most 249"),
        ("GET", "/status.json?search=%ff", 400, "UTF-8"),
        ("GET", "/status.json?" + "a=b&" * 9, 400, "fields"),
    ],
)
def test_what_is_no_question_is_refused(sidecar: Sidecar, method: str, path: str, status: int, says: str) -> None:
    """Other methods, unknown paths and bad values get a 4xx that says what is possible."""
    answer = ask(http_port(sidecar), path, method=method)
    assert answer.status == status
    assert says in answer.value["error"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]", "10.0.0.1", "["]
)
def test_another_sites_name_is_refused(sidecar: Sidecar, host: str) -> None:
    """A page whose owner gave this machine a name of their own reads nothing: its Host header names another machine."""
    for path in ("/", "/metrics", "/status.json", "/health"):
        answer = ask(http_port(sidecar), path, headers={"Host": host})
        assert answer.status == 400, host
        assert "orders" not in answer.text
    assert ask(http_port(sidecar), "/health", headers={"Host": "localhost:1"}).status == 200


def test_the_page_allows_its_own_script_only(sidecar: Sidecar) -> None:
    """The policy names no source but the page's own style and script, and no other address than the sidecar's."""
    answer = ask(http_port(sidecar), "/")
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"].startswith("'sha256-")
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert policy["connect-src"] == "'self'"
    assert "innerHTML" not in answer.text
    assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", "")


def test_the_busiest_streams_come_first_and_search_finds_others(tmp_path: Path) -> None:
    """Of many streams the status has `limit`, those with most traffic first; a search looks at all."""
    with watched(tmp_path / "data") as sidecar, WireClient(sidecar.port) as client:
        port = http_port(sidecar)
        client.create_topic("quiet", 300)
        client.create_topic("busy", 2)
        ask(port, "/status.json")

        def busiest() -> str:
            assert client.produce("busy", BATCH, partition=1).error == 0
            shown = ask(port, "/status.json?limit=3").value["streams"]["shown"]
            assert len(shown) == 3
            return f"{shown[0]['topic']}-{shown[0]['partition']}" if shown[0]["records_s"] > 0 else ""

        until(lambda: busiest() == "busy-1", "busy-1 is first")
        found = ask(port, "/status.json?search=QUIET-29").value["streams"]
        assert found["found"] == 11  # 29 and 290 to 299
        assert all(entry["topic"] == "quiet" for entry in found["shown"])


def test_idle_and_slow_clients_give_way(tmp_path: Path) -> None:
    """However many connections are held open, silent, half sent or unread, the next client is answered, and Kafka's
    clients are too.
    """
    with watched(tmp_path / "data") as sidecar, ExitStack() as stack:
        port = http_port(sidecar)
        for number in range(2 * LIMITS.max_connections):
            held = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            held.sendall((b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")[number % 3])
        assert ask(port, "/health").status == 200
        client = stack.enter_context(WireClient(sidecar.port))
        client.create_topic("orders")
        assert client.produce("orders", BATCH).error == 0
        assert "connection_refused" not in sidecar.log()


def test_health_has_a_place_of_its_own(tmp_path: Path) -> None:
    """While more clients than there are places ask for metrics without a pause, and others hold connections without a
    question, whoever asks for the health gets it, each time.
    """
    stop = threading.Event()

    refused = threading.Event()

    def hammer(port: int) -> None:
        while not stop.is_set():
            with suppress(OSError, http.client.HTTPException):
                if ask(port, "/metrics").status == 503:
                    refused.set()

    places = LIMITS.max_connections + 16
    with watched(tmp_path / "data") as sidecar, ExitStack() as stack, ThreadPoolExecutor(places) as clients:
        port = http_port(sidecar)
        hammering = [clients.submit(hammer, port) for _ in range(places)]
        try:
            until(lambda: "connection_refused" in sidecar.log(), "all places are taken")
            assert refused.wait(PATIENCE_S), "nobody was told that all places are taken"
            for _ in range(LIMITS.reserved_connections // 2):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            for _ in range(20):
                assert ask(port, "/health").status == 200
                assert ask(port, "/ready").status == 200
        finally:
            stop.set()
        for task in hammering:
            task.result()


def test_headers_and_bodies_are_bounded(sidecar: Sidecar) -> None:
    """A header or a body beyond the limit is refused before it is read."""
    port = http_port(sidecar)
    assert ask(port, "/health", headers={"X-Long": "x" * 5 * LIMITS.max_header_bytes}).status == 431
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/health", headers={"Content-Length": str(1 << 30)})
    assert connection.getresponse().status == 413
    connection.close()


def test_without_the_setting_nothing_listens(tmp_path: Path) -> None:
    """By default there is no HTTP listener, and a sidecar does not load one."""
    with Sidecar(tmp_path / "data") as sidecar:
        assert "http=" not in sidecar.ready_line
        listening = [
            connection.laddr.port
            for connection in psutil.Process(sidecar.pid).net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
        assert listening == [sidecar.port]
    loads = "import logstore.sidecar, sys; print(sorted({'h11', 'logstore.base.http.server'} & set(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", loads], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_a_taken_port_ends_the_start(tmp_path: Path) -> None:
    """An address that another program has is one clear line and status 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sidecar = Sidecar(tmp_path / "data", "--http", f"127.0.0.1:{port}")
        with sidecar._stderr, pytest.raises(RuntimeError, match=f"cannot listen on 127.0.0.1:{port}"):
            sidecar.start()


def test_the_address_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    """A fixed port is listened on, and the ready line says so."""
    port = free_port()
    with Sidecar(tmp_path / "data", "--http", f"127.0.0.1:{port}") as sidecar:
        assert f" http=127.0.0.1:{port} " in sidecar.ready_line
        assert ask(port, "/ready").status == 200
