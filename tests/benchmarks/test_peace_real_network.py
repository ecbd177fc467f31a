"""The network of namespaces: it is there as described, shaped both ways, and gone whatever happens. Needs root."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.racks import chains
from benchmarks.racks.network import SWITCH, Network, NetworkUnavailable, interfaces, namespaces, why_not
from benchmarks.racks.setting import Setting
from scheduler.simulation.policies import hdfs_default
from tests.support.limits import PROGRAM_S

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
QUICK = (sys.executable, "-u", "benchmarks/peace_real.py", "--quick", "--parts", "chains")
HOLDER = """
import sys
from benchmarks.racks.network import Network
with Network([2, 2], 5e6):
    print("up", flush=True)
    sys.stdin.read()
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


def gone() -> bool:
    """Nothing with our prefix is left."""
    return not namespaces() and not interfaces()


def holder() -> "subprocess.Popen[str]":
    """A process that has the network until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_links_are_shaped_both_ways(tmp_path: Path) -> None:
    """Every link carries its rate each way while all are busy, and chunks lie where the chains say; nothing is left."""
    setting = Setting(writers=4, chunks=1, paced=False)
    with Network(setting.racks, setting.link_bytes_s) as network, chains.opened(setting, network, tmp_path) as cluster:
        wanted = setting.link_bytes_s * 1448 / 1514
        rates = [*cluster.rates.hosts.values(), *cluster.rates.between]
        assert len(rates) == 19
        assert max(rates) < 1.05 * wanted
        assert sorted(rates)[len(rates) // 2] > 0.9 * wanted
        shown = subprocess.run(
            ["tc", "-n", SWITCH, "-s", "class", "show", "dev", "up2"], capture_output=True, text=True, check=True
        )
        found = re.findall(r"class htb 1:(10|20) .*?Sent (\d+) bytes (\d+) pkt", shown.stdout, re.DOTALL)
        sent = {kind: (int(size), int(packets)) for kind, size, packets in found}
        assert 0 < sent["10"][0] < 142 * sent["10"][1]  # acks have a queue of their own, in front of all else
        assert sent["20"][0] > 1000 * sent["20"][1]
        run, _ = cluster.default(hdfs_default(1), 1)
        assert len(run.chunks) == 4
        assert run.comp_s() >= setting.chunk_bytes / wanted / 1.05
    assert gone()


def test_second_start_is_refused_while_the_first_lives() -> None:
    """Two networks at a time would share names: the second says so, and does not harm the first."""
    first = holder()
    try:
        with pytest.raises(NetworkUnavailable, match="another run has the network"):
            Network([1, 1], 5e6).__enter__()
        assert len(namespaces()) == 5
    finally:
        first.communicate("", timeout=PROGRAM_S)
    assert first.returncode == 0
    assert gone()


@pytest.mark.crash
def test_leftovers_of_a_killed_run_are_removed() -> None:
    """After kill -9 of the first, the next start clears up, processes in the namespaces included."""
    first = holder()
    command = ["ip", "netns", "exec", "cpr-r1h1", "sh", "-c", "echo in; exec sleep 600"]
    inside = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert inside.stdout is not None
    assert inside.stdout.readline() == "in\n"
    first.kill()
    first.communicate(timeout=PROGRAM_S)
    assert len(namespaces()) == 5
    with Network([1, 1], 5e6):
        assert inside.wait(PROGRAM_S) == -signal.SIGKILL
        inside.stdout.close()
        assert len(namespaces()) == 3
    assert gone()


@pytest.mark.crash
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM in mid-run: the program says so, and nothing of it is left, files included."""
    data = tmp_path / "data"
    data.mkdir()
    process = subprocess.Popen(
        [*QUICK, "--results", str(tmp_path), "--data", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    line = ""
    while "links" not in line:  # from here on chunks are written
        line = process.stdout.readline()
        assert line, "it ended before it was interrupted"
    process.send_signal(number)
    _, errors = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 1
    assert "interrupted" in errors
    assert gone()
    assert list(data.iterdir()) == []


def test_quick_run_leaves_results(tmp_path: Path) -> None:
    """A quick run of the chains leaves JSON with goals, rows of reality and simulator, and a plot; nothing else."""
    data = tmp_path / "data"
    data.mkdir()
    results = tmp_path / "results"
    done = subprocess.run(
        [*QUICK, "--results", str(results), "--data", str(data)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((results / "peace_real.json").read_text())
    assert {"machine", "versions", "plan", "settings", "links", "goals", "notes", "paper", "rows"} <= found.keys()
    assert {(row["policy"], row["source"]) for row in found["rows"]} == {
        (policy, source) for policy in ("HDFS default", "Cairn's Peace") for source in ("real", "simulated")
    }
    assert (results / "peace_real.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in results.iterdir()) == ["peace_real.json", "peace_real.png"]
    assert list(data.iterdir()) == []
    assert gone()
