"""The sidecar as a process: start, refusal to start, and end."""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.format.records import Record, encode_batch
from tests.kafka.wire_client import METADATA, WireClient
from tests.support.sidecar import ROOT, Sidecar

START_LIMIT_S = 20.0
REFUSED = 2


def serve(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run `cairn serve` to its end."""
    command = [sys.executable, "-m", "logstore.cli", "serve", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=START_LIMIT_S, check=False)


def batch() -> bytes:
    """One record of now."""
    return bytes(encode_batch([Record(0, int(time.time() * 1000), None, b"value", ())]))


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    """A running sidecar."""
    with Sidecar(tmp_path / "data") as running:
        yield running


def test_second_sidecar_on_a_directory_is_refused(sidecar: Sidecar) -> None:
    """Two sidecars would destroy each other's data: the second says who holds the directory, and ends with status 2."""
    second = serve("--data-dir", str(sidecar.data_dir), "--kafka", "127.0.0.1:0")
    assert second.returncode == REFUSED
    assert "in use by another sidecar" in second.stderr
    assert str(sidecar.pid) in second.stderr
    assert "Traceback" not in second.stderr


def test_port_in_use(sidecar: Sidecar, tmp_path: Path) -> None:
    """The message names the address; the status is 2."""
    other = serve("--data-dir", str(tmp_path / "other"), "--kafka", sidecar.address)
    assert other.returncode == REFUSED
    assert sidecar.address in other.stderr
    assert "in use" in other.stderr
    assert "Traceback" not in other.stderr


def test_bad_flags(tmp_path: Path) -> None:
    """A wrong setting is one line and status 2, and nothing is made."""
    refused = serve("--data-dir", str(tmp_path / "data"), "--io-window", "1000")
    assert refused.returncode == REFUSED
    assert refused.stderr.strip() == "cairn: --io-window=1000: must be from 1 to 64"
    assert not (tmp_path / "data").exists()


def test_newer_data_directory_is_refused(tmp_path: Path) -> None:
    """A directory of a newer format version is not touched; the message says which it is and which is known."""
    with Sidecar(tmp_path / "data") as first:
        first.terminate()
    identity = tmp_path / "data" / "cairn.json"
    content = json.loads(identity.read_text())
    identity.write_text(json.dumps({**content, "format": content["format"] + 1}))
    refused = serve("--data-dir", str(tmp_path / "data"), "--kafka", "127.0.0.1:0")
    assert refused.returncode == REFUSED
    assert re.search(r"format version 2.* knows 1", refused.stderr)


def test_clean_stop_leaves_nothing_to_scan_and_everything_there(tmp_path: Path) -> None:
    """SIGTERM answers what was appended, exits with 0 and says so; what was acknowledged is there afterwards."""
    with Sidecar(tmp_path / "data") as sidecar:
        with WireClient(sidecar.port) as client:
            assert client.create_topic("kept") == 0
            for _ in range(50):
                client.send_produce("kept", batch())
            assert client.receive_produced().base_offset == 0
            assert sidecar.terminate() == 0
        assert "event=stopped" in sidecar.log()
        assert "cut" not in sidecar.log()
        sidecar.restart()
        with WireClient(sidecar.port) as client:
            assert client.latest("kept") >= 1
        assert "cut" not in sidecar.log()


def test_several_listeners_with_advertised_addresses(tmp_path: Path) -> None:
    """Each listener tells its clients its own address, or the one that it was given."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ["--kafka", f"127.0.0.1:{port}", "--advertise", "inside.example:1111"]
    with Sidecar(tmp_path / "data", *flags) as sidecar:
        told = []
        for listening in (sidecar.port, port):
            with WireClient(listening) as client:
                broker = client.request(METADATA, 5, topics=[]).brokers[0]
                told.append((broker.host, broker.port))
    assert told == [("inside.example", 1111), ("127.0.0.1", port)]


def test_structured_log(tmp_path: Path) -> None:
    """Every line of standard error is an event: with --log-format json, a JSON object with time, level and event."""
    with Sidecar(tmp_path / "data", "--log-format", "json") as sidecar:
        sidecar.terminate()
        events = [json.loads(line) for line in sidecar.log().splitlines()]
    assert [event["event"] for event in events] == ["recovered", "stopping", "stopped"]
    assert all({"time", "level", "event"} <= set(event) for event in events)


def test_small_and_quick(sidecar: Sidecar) -> None:
    """Neither Arrow, numpy, numba nor a test tool is loaded, and less than 100 MB are resident."""
    maps = Path(f"/proc/{sidecar.pid}/maps").read_text()
    assert not re.search(r"numpy|pyarrow|numba|llvmlite", maps)
    resident = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{sidecar.pid}/status").read_text())
    assert resident is not None
    assert int(resident[1]) < 100 * 1024
