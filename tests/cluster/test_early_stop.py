"""A host that waits for the metadata store at its start can be stopped."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.testing.ports import free_ports
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_host_that_waits_for_etcd_ends_at_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    """No etcd is there: at SIGTERM or SIGINT the host says that it stops, and ends with status 0, never having been
    ready; a hangup before that does not end it.
    """
    etcd, kafka, peer = free_ports(3)
    log = tmp_path / "log"
    command = [
        sys.executable, "-m", "logstore.cli", "serve", "--data-dir", str(tmp_path / "data"),
        "--kafka", f"127.0.0.1:{kafka}", "--cluster", f"etcd://127.0.0.1:{etcd}",
        "--host-name", "a", "--node-id", "1", "--peer-listen", f"127.0.0.1:{peer}",
    ]  # fmt: skip
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as host:
        try:
            until(lambda: "event=metadata_away" in log.read_text(), what="the host waits for etcd")
            host.send_signal(signal.SIGHUP)
            host.send_signal(number)
            assert host.wait(PATIENCE_S) == 0
        finally:
            host.kill()
    said = log.read_text()
    assert f"event=stopping signal={number.name}" in said
    assert "event=stopped" in said
    assert "cairn ready" not in said
