"""Where a real host of a cluster is: read again at a signal, and refused where nothing says it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.testing.cluster import Cluster
from logstore.testing.ports import free_port
from logstore.testing.processes import Etcd
from tests.metadata.support import needs_etcd
from tests.support.cli import cairn
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until

LEASE_S = "60"
"""Longer than a machine stands still: a host that loses its lease is in no rack for a moment."""


@needs_etcd
@pytest.mark.clients
def test_a_process_reads_it_again(tmp_path: Path) -> None:
    """A sidecar finds itself in a file, and moves at SIGHUP, without a restart; `cairn hosts` shows both."""
    path = tmp_path / "racks"
    path.write_text("Rack: /dc/r1\n   10.0.0.1:9866 (a)\n")
    with Cluster(tmp_path / "cluster", ("a",), "--topology", str(path), "--lease-s", LEASE_S) as cluster:
        (host,) = cluster

        def rack() -> str:
            said = cairn("hosts", "--servers", host.address, "--timeout", str(PATIENCE_S), "--json").json
            return str(said["hosts"][0]["rack"]) if said["hosts"] else ""

        until(lambda: rack() == "/dc/r1", "the host has joined, and is in its rack")
        path.write_text("Rack: /dc/r2\n   10.0.0.1:9866 (a)\n")
        os.kill(host.pid, signal.SIGHUP)
        until(lambda: rack() == "/dc/r2", "the host is in the other rack")
        assert "cluster_left" not in host.log


@needs_etcd
@pytest.mark.clients
def test_a_host_that_finds_no_place_leaves_nothing_behind(tmp_path: Path) -> None:
    """It is no host of the cluster, which would count it for good, and its directory may be another host's."""
    path = tmp_path / "racks"
    path.write_text("Rack: /dc/r1\n   10.0.0.1:9866 (a)\n")
    with Cluster(tmp_path / "cluster", ("a",), "--topology", str(path), "--lease-s", LEASE_S) as cluster:
        (host,) = cluster
        assert isinstance(cluster.etcd, Etcd)
        words = ["serve", "--data-dir", str(tmp_path / "d"), "--cluster", f"etcd://{cluster.etcd.endpoint}"]
        words += ["--host-name", "d", "--node-id", "4", "--kafka", f"127.0.0.1:{free_port()}"]
        words += ["--peer-listen", f"127.0.0.1:{free_port()}", "--topology", str(path)]
        done = subprocess.run(
            [sys.executable, "-m", "logstore.cli", *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 2
        assert "names none of 'd'" in done.stderr
        assert not (tmp_path / "d" / "host.json").exists()
        said = cairn("hosts", "--servers", host.address, "--timeout", str(PATIENCE_S), "--json").json
        assert [each["host"] for each in said["hosts"]] == ["a"]
