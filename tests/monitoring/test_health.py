"""`/health`, `/ready` and the first metrics of a real sidecar."""

from pathlib import Path

from logstore.format.records import Record, encode_batch
from tests.kafka.front_driver import NOW_MS
from tests.kafka.wire_client import WireClient
from tests.monitoring.support import ask, http_port, samples, value, watched


def test_a_running_sidecar_is_healthy_and_ready(tmp_path: Path) -> None:
    """Both answer 200 with JSON once the sidecar says that it is ready."""
    with watched(tmp_path / "data") as sidecar:
        health, ready = (ask(http_port(sidecar), path) for path in ("/health", "/ready"))
    assert (health.status, ready.status) == (200, 200)
    assert health.value["status"] == "ok"
    assert health.value["disk"] == {"writable": True, "error": None}
    assert ready.value == {"status": "ready"}


def test_metrics_count_what_was_produced(tmp_path: Path) -> None:
    """Records, bytes and requests of a topic are counted from the start of the sidecar."""
    batch = bytes(encode_batch([Record(0, NOW_MS, None, b"x" * 100), Record(1, NOW_MS, None, b"y")]))
    with watched(tmp_path / "data") as sidecar, WireClient(sidecar.port) as client:
        client.create_topic("orders")
        for _ in range(3):
            client.produce("orders", batch)
        answer = ask(http_port(sidecar), "/metrics")
    found = samples(answer.text)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert value(found, "kafka_server_brokertopicmetrics_messagesin_total", topic="orders") == 6
    assert value(found, "kafka_server_brokertopicmetrics_bytesin_total", topic="orders") == 3 * len(batch)
    assert value(found, "kafka_network_requestmetrics_requests_total", request="Produce") == 3
