"""`cairn topology` as a user runs it, and calibrations of a network whose rates are known: links shaped by tc."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from threading import Event

import pytest
import trio

from logstore import cli
from logstore.base.addresses import parse_address
from scheduler.calibration.wire import ask
from scheduler.topology import Topology
from scheduler.topology.description import load_network, load_topology
from tests.calibration.shaped import MB, PORT, PREFIX, SWITCH, ShapedNetwork, agents, cairn, why_not
from tests.support.limits import PATIENCE_S

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "topologies"
PAPER = str(EXAMPLES / "paper.toml")
BUSY, MOST = 0.01, 1.15
"""Shares of a link's rate that a short measurement may find on a machine that does much else."""
QUIET, MAX_LONG = 0.88, 1.04
"""The same with time to measure, on a quiet machine."""


def run(*words: str) -> int:
    """`cairn topology …` in this process."""
    return cli.main(["topology", *words])


# ---- check and draw


def test_check_says_what_was_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Racks, sums, oversubscription, links, and which capacities come from rates."""
    assert run("check", PAPER) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "SGuard's cluster: 17 servers in 2 racks, 2 switches, 2 links between them"
    assert lines[1] == "chunks of 64 MiB, a timestep is 2.98 s; capacities are chunks per timestep"
    assert lines[2] == "a tree with 2 levels of switches: every planner can plan on it"
    assert lines[5].split() == ["rack1", "8", "40", "16", "–", "5", "5", "8", ":", "1", "3.2", ":", "1"]
    assert "  link number 1, 'rack1' to 'rack2': capacity=5" in lines


def test_check_in_other_forms(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As JSON with the overview; as TOML that reads the same."""
    assert run("check", "--json", PAPER) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["overview"]["racks"][1]["over_out"] == 9.0
    assert run("check", "--toml", PAPER) == 0
    copy = tmp_path / "copy.toml"
    copy.write_text(capsys.readouterr().out, encoding="utf-8")
    assert load_topology(copy).servers == load_topology(PAPER).servers


def test_long_lists_are_cut(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """40 racks and links, then how many more; --all has them all."""
    big = tmp_path / "big.toml"
    big.write_text(
        '[[switch]]\nname = "core"\n[[switch]]\nname = "r{n}"\ncount = 60\nparent = "core"\ncapacity = 0\n'
        '[[server]]\nname = "{rack}h{n}"\nrack = "r*"\ncount = 2\n'
    )
    assert run("check", str(big)) == 0
    text = capsys.readouterr().out
    assert "… and 20 more racks (--all lists them)" in text
    assert "… and 80 more links (--all lists them)" in text
    assert "warning: link from 'r1' to 'core' and 119 more: capacity is 0" in text
    assert text.count("warning") == 1
    assert run("check", "--all", str(big)) == 0
    assert "more" not in capsys.readouterr().out.replace("0 or more", "").partition("warning")[0]


def test_draw(capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    """To a file or, as SVG, to standard output; the file's ending decides the form."""
    target = tmp_path / "net.svg"
    assert run("draw", PAPER, "-o", str(target)) == 0
    assert capsysbinary.readouterr().out == f"drawn: {target}\n".encode()
    assert run("draw", PAPER) == 0
    assert capsysbinary.readouterr().out == target.read_bytes()
    for name, start in (("NETWORK.SVG", b"<?xml"), ("net.png", b"\x89PNG"), ("net.pdf", b"%PDF")):
        assert run("draw", PAPER, "-o", str(tmp_path / name)) == 0
        assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["network.jpg", "network", "network.svg.gz"])
def test_other_forms_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    """A file that promises another kind of picture is not written; the message names it and what can be drawn."""
    target = tmp_path / name
    assert run("draw", PAPER, "-o", str(target)) == 1
    assert f"{name}: must end in one of .svg, .png, .pdf" in capsys.readouterr().err
    assert not target.exists()


def test_drawing_without_matplotlib_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`check` needs no matplotlib; `draw` says which package is missing and how to install it."""
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "scheduler.topology.drawing", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_WithoutMatplotlib(), *sys.meta_path])
    assert run("check", PAPER) == 0
    assert run("draw", PAPER) == 1
    error = capsys.readouterr().err
    assert "drawing needs the package matplotlib: pip install '.[scheduler,draw]' in a checkout of Cairn" in error


class _WithoutMatplotlib(MetaPathFinder):
    """Finds every package but matplotlib, as an installation without it would."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Refuse matplotlib; leave the rest to others."""
        if fullname.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


@pytest.mark.parametrize("action", ["check", "draw"])
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, action: str) -> None:
    """A bad description and a missing file: exit status 1 and one line that names the file."""
    bad = tmp_path / "bad.toml"
    bad.write_text('[[server]]\nname = "a"\nrack = "r"\nsend = -1\n')
    for path in (bad, tmp_path / "missing.toml"):
        assert run(action, str(path)) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"cairn topology {action}: ")
        assert str(path) in error
        assert error.count("\n") == 1


# ---- agent and calibrate


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["agent", "--listen", "0.0.0.0:0", "--directory", "."], "give --token-file, or --insecure"),
        (["agent", "--listen", "[::]:0", "--directory", "."], "give --token-file, or --insecure"),
        (["agent", "--listen", "nonsense:port", "--directory", "."], "is not an address"),
        (["agent", "--directory", "/nowhere"], "/nowhere: not a directory"),
        (["agent", "--directory", ".", "--token-file", "/dev/null"], "must have 1 to 4096 bytes"),
        (["agent", "--directory", ".", "--max-disk", "much"], "--max-disk much: must be a size"),
        (["calibrate", PAPER, "-o", "out", "--agent", "r9=h:1"], "--agent r9=h:1: use NAME=HOST:PORT"),
        (["calibrate", PAPER, "-o", "out"], "server 'r1h1' has no address"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    """What is insecure, missing or unreadable is refused before anything runs."""
    assert run(*words) == 1
    assert message in capsys.readouterr().err


def test_bad_numbers_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """With the value and what is allowed."""
    for option, value, message in (
        ("--seconds", "soon", "a duration such as"), ("--share", "2", "above 0, up to 1"),
        ("--sample", "0", "from 1 to 10000"), ("--file-size", "-1", "a size such as"),
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            run("calibrate", PAPER, "-o", "out", f"{option}={value}")
        assert message in capsys.readouterr().err


def test_an_agent_follows_its_token(tmp_path: Path) -> None:
    """At SIGHUP it takes a new token, and the former one beside it; a file that is gone changes nothing."""
    token = tmp_path / "token"
    token.write_text("first secret\n")
    command = cairn("agent", "--listen", "127.0.0.1:0", "--directory", tmp_path, "--token-file", token)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stdout is not None
            assert agent.stderr is not None
            address = parse_address(agent.stdout.readline().split()[3].rstrip(","))
            token.write_text("another secret\n")
            agent.send_signal(signal.SIGHUP)
            line = next(line for line in agent.stderr if "secret" in line)
            assert "event=secret_loaded of=token-file former_accepted_s=600" in line
            token.unlink()
            agent.send_signal(signal.SIGHUP)
            line = next(line for line in agent.stderr if "secret" in line)
            assert "event=secret_unusable of=token-file" in line
            for secret in (b"first secret", b"another secret"):
                assert "free_bytes" in trio.run(ask, address, secret, {"do": "hello"}, PATIENCE_S)
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(PATIENCE_S) == 130
        finally:
            agent.kill()


def test_calibrate_on_loopback(tmp_path: Path) -> None:
    """Two agents on one machine: progress, a summary, a description that reads; interrupted, nothing is written."""
    description = tmp_path / "net.toml"
    description.write_text('[[server]]\nname = "h{n}"\nrack = "r"\ncount = 2\n')
    one = cairn("agent", "--listen", "127.0.0.1:0", "--directory", tmp_path)
    with agents([one, one]) as ready:
        where = [line.split()[3].rstrip(",") for line in ready]
        named = [f"--agent=h{number}={address}" for number, address in enumerate(where, 1)]
        out = tmp_path / "out.toml"
        command = cairn("calibrate", description, "-o", out, "--file-size", "50 kB", *named)
        slow = subprocess.Popen([*command, "--seconds", "30"], stderr=subprocess.PIPE, text=True)
        assert slow.stderr is not None
        with slow:
            try:
                assert _is_up(slow, where[0])
                slow.send_signal(signal.SIGINT)  # the first measurement takes 30 s
                assert slow.wait(PATIENCE_S) == 130
                assert "interrupted: nothing was written" in slow.stderr.read()
            finally:
                slow.kill()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["net.toml"]
        done = subprocess.run(
            [*command, "--seconds", "100 ms"], capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
    assert "[1/12] h1 → h2: " in done.stderr
    assert f"written: {out}" in done.stdout
    network = load_network(out)
    assert network.timestep_s is not None
    assert network.derived == ()
    assert all(server.link_bytes_s and server.disk_bytes_s for server in network.topology.servers)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.toml", "out.toml"]


def measure_shaped(tmp_path: Path, seconds: str, partners: int) -> tuple[Topology, str]:
    """Calibrate four hosts behind two switches whose links are shaped."""
    hosts = {
        "a1": (0, 24.0 * MB, 16.0 * MB), "a2": (0, 24.0 * MB, 16.0 * MB),
        "b1": (1, 10.0 * MB, 20.0 * MB), "b2": (1, 10.0 * MB, 20.0 * MB),
    }  # fmt: skip
    token = tmp_path / "token"
    token.write_text("a secret\n")
    with ShapedNetwork(hosts, (8.0 * MB, 12.0 * MB)) as network:
        description = tmp_path / "net.toml"
        description.write_text(
            '[[switch]]\nname = "ra"\n[[switch]]\nname = "rb"\n'
            '[[link]]\nfrom = "ra"\nto = "rb"\ncapacity = 9\nboth_ways = true\n'
            + "".join(
                f'[[server]]\nname = "{name}"\nrack = "r{name[0]}"\naddress = "{network.address(name)}"\n'
                for name in hosts
            )
        )
        options: list[str | Path] = ["--token-file", token]
        commands = [
            cairn(
                "agent", "--listen", f"{network.address(name)}:{PORT}", "--directory", tmp_path, *options, space=space
            )
            for name, space in ((name, f"{PREFIX}-{name}") for name in hosts)
        ]
        with agents(commands):
            out = tmp_path / "out.toml"
            options += ["--seconds", seconds, "--partners", str(partners), "--file-size", "200 kB"]
            command = cairn("calibrate", description, "-o", out, *options, space=SWITCH)
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S * 3, check=False)
            assert done.returncode == 0, done.stderr
            return load_topology(out), done.stderr


def check_shaped(topology: Topology, log: str, least: float, most: float) -> None:
    """Every rate is the shaped one's: at most `most` of it, and at least `least`."""
    links = {server.name: server.link_bytes_s or 0 for server in topology.servers}
    expected = {"a1": 16 * MB, "a2": 16 * MB, "b1": 10 * MB, "b2": 10 * MB}  # the slower of both ways
    for name, rate in expected.items():
        assert rate * least < links[name] < rate * most, (name, links[name], log)
    between = {(link.source, link.target): link.bytes_s or 0 for link in topology.links}
    for pair, rate in {("ra", "rb"): 8 * MB, ("rb", "ra"): 12 * MB}.items():
        assert rate * least < between[pair] < rate * most, (pair, between[pair], log)


needs_namespaces = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


@needs_namespaces
def test_shaped_links_are_measured(tmp_path: Path) -> None:
    """Each way of each link, a moment each: never faster than it is, however busy this machine; that slows only."""
    check_shaped(*measure_shaped(tmp_path, "300 ms", 1), BUSY, MOST)


@needs_namespaces
@pytest.mark.slow
def test_shaped_links_are_measured_well(tmp_path: Path) -> None:
    """With two seconds each and the best of three, on a quiet machine: closely, and the links between are filled."""
    topology, log = measure_shaped(tmp_path, "2 s", 3)
    check_shaped(topology, log, QUIET, MAX_LONG)
    assert "at least" not in log


def _is_up(process: subprocess.Popen[str], address: str) -> bool:
    """Whether the calibrator has got as far as its signal handler: it is connected to an agent."""
    port = int(address.rpartition(":")[2])
    while process.poll() is None:
        table = Path("/proc/net/tcp").read_text(encoding="ascii")
        if any(row.split()[2].endswith(f":{port:04X}") and row.split()[3] == "01" for row in table.splitlines()[1:]):
            return True
        Event().wait(0.01)  # the calibrator needs this machine too
    return False
