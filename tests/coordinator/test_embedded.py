"""A coordinator inside `cairn serve`: there when it is asked for; otherwise nothing of it is loaded."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from logstore import config
from logstore.base.addresses import parse_address
from logstore.base.events import ignore
from logstore.errors import ConfigError
from logstore.inner_coordinator import told_address
from scheduler.client import CoordinatorClient
from scheduler.coordinator import embedded
from tests.coordinator.support import topology_file
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import ROOT, Sidecar
from tests.support.waiting import until


def test_one_host_runs_both(tmp_path: Path) -> None:
    """The ready line names the coordinator; its state is in the sidecar's directory, and outlives a kill -9. At SIGHUP
    it reads its network again.
    """
    path, _ = topology_file(tmp_path)
    with Sidecar(tmp_path / "data", "--coordinate", str(path), "--coordinator", "127.0.0.1:0") as sidecar:
        with CoordinatorClient(coordinator_of(sidecar)) as client:
            write = client.submit("r1h1", chunks=1, name="one")
            sidecar.kill()
        sidecar.start()
        with CoordinatorClient(coordinator_of(sidecar)) as client:
            assert client.request("one")["state"] == "running"
            again = client.submit("r1h1", chunks=1, name="one")
            assert [go.done() for go in again.goes()] == [True]
            assert write.name == again.name
            topology_file(tmp_path, (4, 5))
            os.kill(sidecar.pid, signal.SIGHUP)
            until(lambda: len(client.topology()["servers"]) == 9, sidecar.log)
        assert sidecar.terminate() == 0
    assert (tmp_path / "data/coordinator/coordinator.db").exists()


def coordinator_of(sidecar: Sidecar) -> str:
    """Where the sidecar's ready line says that its coordinator listens."""
    return "http://" + sidecar.ready_line.split("coordinator=")[1].split()[0]


def test_a_bad_network_is_one_line(tmp_path: Path) -> None:
    """What is wrong with the network's file prevents the sidecar's start, says so, and leaves no traceback."""
    bad = tmp_path / "bad.toml"
    bad.write_text('[[server]]\nname = "a"\nrack = 7\n', encoding="utf-8")
    command = [sys.executable, "-m", "logstore.cli", "serve", "--data-dir", str(tmp_path / "refused")]
    ended = subprocess.run(
        [*command, "--kafka", "127.0.0.1:0", "--coordinate", str(bad)],
        capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("cairn: ")]
    assert "bad.toml" in line


@pytest.mark.parametrize(
    ("listen", "said"),
    [("0.0.0.0:0", "--insecure"), ("192.0.2.1:0", "--insecure")],
)
async def test_it_keeps_to_loopback(tmp_path: Path, listen: str, said: str) -> None:
    """Inside a sidecar too; a sidecar's own `--insecure` counts for both."""
    path, _ = topology_file(tmp_path)
    with pytest.raises(embedded.Refused, match=said):
        await embedded.start(path, parse_address(listen), tmp_path / "data", ignore, embedded.Access())


@pytest.mark.parametrize(
    ("listen", "peers", "told", "refused"),
    [
        ("0.0.0.0:9880", "10.0.0.1:9099", "", True),
        ("[::]:9880", "127.0.0.1:9099", "", True),
        ("127.0.0.1:9880", "10.0.0.1:9099", "", True),
        ("127.0.0.1:9880", "127.0.0.1:9099", "", False),
        ("10.0.0.1:9880", "10.0.0.1:9099", "", False),
        ("0.0.0.0:9880", "10.0.0.1:9099", "a.example:9880", False),
        ("0.0.0.0:9880", "10.0.0.1:9099", "nowhere", True),
    ],
)
def test_hosts_of_a_cluster_name_what_others_reach(listen: str, peers: str, told: str, refused: bool) -> None:
    """Clients are sent to the coordinator that leads: an address that means something else at the client is refused at
    the start, with what to give.
    """
    flags = ["--data-dir", "d", "--coordinate", "f", "--coordinator", listen, "--coordinator-advertise", told]
    flags += ["--cluster", "etcd://e:1/", "--host-name", "a", "--node-id", "1", "--peer-listen", peers]
    flags += ["--peer-certificate", "c", "--peer-key", "k", "--peer-ca", "a"]
    parser = argparse.ArgumentParser()
    config.add_arguments(parser)
    settings = config.parse(parser.parse_args(flags))
    if refused:
        with pytest.raises(ConfigError, match="coordinator-advertise"):
            told_address(settings)
    else:
        assert told_address(settings) == (parse_address(told) if told else None)


def test_a_sidecar_alone_loads_nothing_of_it() -> None:
    """Without `--coordinate` no module of the scheduler, and none that only it needs, is loaded."""
    code = (
        "import sys, json; sys.modules['hypothesis'] = None; import logstore.cli, logstore.sidecar; "
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, check=True
    ).stdout
    assert not {"scheduler", "numpy", "networkx", "numba", "h11", "sqlite3"} & set(json.loads(said))


@pytest.mark.parametrize("missing", ["numpy", "numba"])
def test_what_plans_is_missed_at_the_start(missing: str) -> None:
    """A host that stands by does not load it, and still says at its start what to install, not at a takeover."""
    code = (
        f"import sys; sys.modules['hypothesis'] = sys.modules[{missing!r}] = None\n"
        "from logstore.inner_coordinator import _room\n"
        "try: _room()\nexcept Exception as error: print(type(error).__name__, error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, check=True
    ).stdout
    assert said.startswith(f"ConfigError --coordinate needs the package {missing}: pip install")
