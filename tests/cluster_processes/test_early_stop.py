"""A host that waits for the metadata store at its start can be stopped, and one that waits for its name; one that does
not get its name leaves its directory as it was.
"""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from logstore.testing.ports import free_ports
from logstore.testing.processes import Etcd
from tests.metadata.support import needs_etcd
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until


def serve(data_dir: Path, etcd: int, kafka: int, peer: int, node_id: int, *flags: str, name: str = "a") -> list[str]:
    """The command of a host."""
    return [
        sys.executable, "-m", "logstore.cli", "serve", "--data-dir", str(data_dir),
        "--kafka", f"127.0.0.1:{kafka}", "--cluster", f"etcd://127.0.0.1:{etcd}",
        "--host-name", name, "--node-id", str(node_id), "--peer-listen", f"127.0.0.1:{peer}", *flags,
    ]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_host_that_waits_for_etcd_ends_at_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    """No etcd is there: at SIGTERM or SIGINT the host says that it stops, and ends with status 0, never having been
    ready; a hangup before that does not end it.
    """
    etcd, kafka, peer = free_ports(3)
    log = tmp_path / "log"
    command = serve(tmp_path / "data", etcd, kafka, peer, 1)
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


@needs_etcd
def test_a_host_that_ends_while_it_joins_gives_its_lease_back(tmp_path: Path) -> None:
    """A second host waits for a name that is taken, and holds a lease meanwhile: at SIGTERM it ends the lease, which
    would last for a minute, and then ends with status 0.
    """
    client, peer, kafka, link, other_kafka, other_link = free_ports(6)
    etcd = Etcd(tmp_path, f"127.0.0.1:{client}", f"127.0.0.1:{peer}")
    etcd.start()

    def leases() -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{client}/v3/lease/leases", b"{}")
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return len(json.load(answer).get("leases", []))

    first = serve(tmp_path / "one", client, kafka, link, 1, "--lease-s", "60")
    second = serve(tmp_path / "two", client, other_kafka, other_link, 2, "--lease-s", "60")
    with (
        (tmp_path / "one.log").open("w") as one,
        (tmp_path / "two.log").open("w") as two,
        subprocess.Popen(first, stdout=one, stderr=one) as holder,
    ):
        try:
            until(lambda: "cairn ready" in (tmp_path / "one.log").read_text(), what="the first host is a member")
            held = leases()
            with subprocess.Popen(second, stdout=two, stderr=two) as joining:
                try:
                    log = tmp_path / "two.log"
                    until(lambda: "event=host_name_awaited" in log.read_text(), what="the second waits, with a lease")
                    assert leases() > held
                    joining.send_signal(signal.SIGTERM)
                    assert joining.wait(PATIENCE_S) == 0
                finally:
                    joining.kill()
            assert leases() == held
        finally:
            holder.kill()
            etcd.kill()
    said = (tmp_path / "two.log").read_text()
    assert "event=stopping signal=SIGTERM" in said
    assert "Traceback" not in said


@needs_etcd
def test_a_host_whose_name_or_number_is_taken_leaves_its_directory_free(tmp_path: Path) -> None:
    """The second host of a name, or of a node id, waits for three leases, ends with status 2 and says who has it; with
    another name it starts on the same directory, as it was told. A name for the directory of another host is refused
    with the path of the label.
    """
    client, peer, kafka, link, other_kafka, other_link, third_kafka, third_link = free_ports(8)
    etcd = Etcd(tmp_path, f"127.0.0.1:{client}", f"127.0.0.1:{peer}")
    etcd.start()
    first = serve(tmp_path / "one", client, kafka, link, 1, "--lease-s", "2")
    second = serve(tmp_path / "two", client, other_kafka, other_link, 2, "--lease-s", "2")
    third = serve(tmp_path / "three", client, third_kafka, third_link, 1, "--lease-s", "2", name="d")
    logs = [tmp_path / f"{number}.log" for number in range(2)]
    with (
        logs[0].open("w") as one,
        logs[1].open("w") as two,
        subprocess.Popen(first, stdout=one, stderr=one) as holder,
    ):
        try:
            until(lambda: "cairn ready" in logs[0].read_text(), what="the first host is a member")
            by_name, by_number = ended_together(second, third)
            assert by_name.returncode == by_number.returncode == 2
            assert "host name 'a' is taken" in by_name.stderr
            assert "node id 1 is taken by host 'a'" in by_number.stderr
            for name in ("two", "three"):
                assert not (tmp_path / name / "host.json").exists()
            second[second.index("--host-name") + 1] = "b"
            with subprocess.Popen(second, stdout=two, stderr=two) as named:
                try:
                    until(lambda: "cairn ready" in logs[1].read_text(), what="the second host is a member")
                finally:
                    named.kill()
            second[second.index("--host-name") + 1] = "c"
            (refused,) = ended_together(second)
            assert f"{tmp_path / 'two' / 'host.json'}: the data directory belongs to host 'b'" in refused.stderr
        finally:
            holder.kill()
            etcd.kill()


def ended_together(*commands: Sequence[str]) -> list[subprocess.CompletedProcess[str]]:
    """What processes that run at the same time say until they end by themselves."""

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(run, commands))
