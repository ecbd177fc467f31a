"""Starting: what prevents it is one clear line and an exit status; what is served is what was asked for."""

import importlib.metadata
import json
import re
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from logstore.base.events import ignore
from logstore.base.system import SystemClock
from logstore.disk.files import OsFiles
from logstore.errors import CorruptFile
from logstore.log.data_directory import FORMAT_VERSION
from logstore.log.store import Store, StoreSettings
from logstore.sidecar import FAILED, REFUSED
from logstore.testing.ports import free_port, free_ports
from tests.kafka.wire_client import METADATA, WireClient
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import ROOT, Sidecar


def refused(*flags: str, status: int = REFUSED) -> str:
    """Run `cairn serve` with flags that it must refuse; what it says. `status`: FAILED if that may pass by itself."""
    command = [sys.executable, "-m", "logstore.cli", "serve", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, check=False)
    assert ended.returncode == status, ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    return ended.stderr


def one_line(said: str) -> str:
    """The one line on standard error that is not a log event."""
    (line,) = [line for line in said.splitlines() if line.startswith("cairn: ")]
    return line


def test_a_second_sidecar_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    """One directory, one sidecar: the second says who has it, and the first does not notice."""
    with Sidecar(tmp_path / "data") as first:
        said = refused("--data-dir", str(first.data_dir), "--kafka", "127.0.0.1:0", status=FAILED)
        assert f"process {first.pid}" in one_line(said)
        assert "another --data-dir" in said
        with WireClient(first.port) as client:
            assert client.create_topic("orders") == 0


def test_a_killed_sidecar_does_not_lock_its_directory(tmp_path: Path) -> None:
    """After kill -9 the directory is free again."""
    with Sidecar(tmp_path / "data") as sidecar:
        sidecar.kill()
        sidecar.restart()
        assert sidecar.terminate() == 0


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    """The line names the address; the directory is left as it was."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(
            "--data-dir", str(tmp_path), "--kafka", "127.0.0.1:0", "--kafka", f"127.0.0.1:{port}", status=FAILED
        )
    remedy = "stop the process that uses it (ss -ltnp shows it), or choose another port"
    assert one_line(said) == f"cairn: cannot listen on 127.0.0.1:{port}: Address already in use; {remedy}"


def test_a_name_nobody_knows_is_refused(tmp_path: Path) -> None:
    """A listener on a host that cannot be resolved is named."""
    said = refused("--data-dir", str(tmp_path), "--insecure", "--kafka", "no.such.host.invalid:9092", status=FAILED)
    assert one_line(said).startswith("cairn: cannot listen on no.such.host.invalid:9092: ")


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """A setting out of range is one line, not a traceback, and nothing is made on disk."""
    data_dir = tmp_path / "data"
    said = refused("--data-dir", str(data_dir), "--io-window", "0")
    assert one_line(said) == "cairn: --io-window=0: must be a whole number from 1 to 64"
    assert not data_dir.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--no-such-flag"], "cairn serve: unknown: --no-such-flag; `cairn serve --help` lists the options"),
        (["--data-dir"], "usage: cairn"),
    ],
)
def test_flags_nobody_knows_are_refused(flags: list[str], said: str) -> None:
    """An unknown flag is named, with what to do; argparse's own refusals have the same status."""
    assert said in refused(*flags)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A data directory below a file, or one that is a file, is named with the reason."""
    (tmp_path / "file").touch()
    said = refused("--data-dir", str(tmp_path / "file/data"), "--kafka", "127.0.0.1:0", status=FAILED)
    assert one_line(said) == f"cairn: {tmp_path}/file/data: Not a directory"
    said = refused("--data-dir", str(tmp_path / "file"), "--kafka", "127.0.0.1:0", status=FAILED)
    assert one_line(said) == f"cairn: {tmp_path}/file: is a file, not a directory; choose another --data-dir"


def test_a_directory_nobody_may_write_is_refused() -> None:
    """Where not even root may write, the line says so."""
    said = refused("--data-dir", "/proc/self/cairn", "--kafka", "127.0.0.1:0", status=FAILED)
    assert "/proc/self/cairn" in one_line(said)


def test_a_newer_format_is_refused_by_its_version(tmp_path: Path) -> None:
    """A directory that a newer Cairn wrote is left alone; the line names both versions."""
    with Sidecar(tmp_path) as sidecar:
        assert sidecar.terminate() == 0
    marker = newest_format_file(tmp_path)
    content = json.loads(marker.read_text(encoding="utf-8"))
    marker.write_text(json.dumps({**content, "format": FORMAT_VERSION + 1}), encoding="utf-8")
    before = {path: path.stat().st_size for path in tmp_path.rglob("*") if path.name != "lock"}
    said = refused("--data-dir", str(tmp_path), "--kafka", "127.0.0.1:0")
    assert f"format version {FORMAT_VERSION + 1}, this Cairn knows {FORMAT_VERSION}" in one_line(said)
    assert {path: path.stat().st_size for path in tmp_path.rglob("*") if path.name != "lock"} == before


def test_an_older_format_gets_the_present_version(tmp_path: Path) -> None:
    """An older Cairn's directory is opened, keeps its cluster id, and is refused by that Cairn from then on."""
    with Sidecar(tmp_path) as sidecar:
        assert sidecar.terminate() == 0
    marker = newest_format_file(tmp_path)
    content = json.loads(marker.read_text(encoding="utf-8"))
    del content["journal_key"]
    marker.write_text(json.dumps({**content, "format": 1}), encoding="utf-8")
    with Sidecar(tmp_path) as sidecar:
        assert sidecar.terminate() == 0
    renewed = json.loads(marker.read_text(encoding="utf-8"))
    assert renewed == {**content, "format": FORMAT_VERSION, "journal_key": renewed["journal_key"]}
    assert re.fullmatch("[0-9a-f]{16}", renewed["journal_key"])


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("format", 0, "its format version is 0"),
        ("format", -1, "its format version is -1"),
        ("format", "1", "its format version is '1'"),
        ("format", 1.0, "its format version is 1.0"),
        ("format", True, "its format version is True"),
        ("format", None, "its format version is None"),
        ("cluster_id", 5, "its cluster_id is 5"),
        ("cluster_id", "", "its cluster_id is ''"),
        ("journal_key", None, "its journal_key is not 16 digits 0-9a-f"),
        ("journal_key", "", "its journal_key is not 16 digits 0-9a-f"),
        ("journal_key", 12, "its journal_key is not 16 digits 0-9a-f"),
        ("journal_key", "0123456789abcde", "its journal_key is not 16 digits 0-9a-f"),
        ("journal_key", "0123456789ABCDEF", "its journal_key is not 16 digits 0-9a-f"),
        ("journal_key", "01234567 9abcdef", "its journal_key is not 16 digits 0-9a-f"),
    ],
)
def test_a_format_nobody_wrote_is_refused(tmp_path: Path, field: str, value: object, words: str) -> None:
    """Whatever no Cairn has ever written into cairn.json is named with its value, and nothing is started."""
    files = OsFiles(tmp_path)
    identity = {"format": FORMAT_VERSION, "cluster_id": "abc", "journal_key": "0123456789abcdef", field: value}
    (tmp_path / "cairn.json").write_text(json.dumps(identity), encoding="utf-8")
    with pytest.raises(CorruptFile, match=re.escape(words)):
        Store.open(files, SystemClock(), StoreSettings(), new_id=uuid.uuid4, report=ignore)
    files.close()


def test_an_identity_without_the_journal_s_key_is_refused(tmp_path: Path) -> None:
    """A cairn.json of this version has the key: one without it is damaged, not given another key."""
    files = OsFiles(tmp_path)
    (tmp_path / "cairn.json").write_text(json.dumps({"format": FORMAT_VERSION, "cluster_id": "abc"}), encoding="utf-8")
    with pytest.raises(CorruptFile, match=re.escape("cairn.json is damaged: KeyError('journal_key')")):
        Store.open(files, SystemClock(), StoreSettings(), new_id=uuid.uuid4, report=ignore)
    files.close()


def test_a_directory_with_foreign_files_is_refused(tmp_path: Path) -> None:
    """A directory that holds somebody else's files is named with them, and left as it was; so is a foreign name among
    the streams of a directory of ours. Hidden files and a file system's lost+found are no hindrance.
    """
    (tmp_path / "home").mkdir()
    for name in ("thesis.tex", ".hidden", "lost+found"):
        (tmp_path / "home" / name).touch()
    said = one_line(refused("--data-dir", str(tmp_path / "home"), "--kafka", "127.0.0.1:0"))
    assert said.startswith(f"cairn: {tmp_path}/home holds files that are not a sidecar's: 'thesis.tex'")
    assert {path.name for path in (tmp_path / "home").iterdir()} == {"thesis.tex", ".hidden", "lost+found"}
    (tmp_path / "home/thesis.tex").unlink()
    with Sidecar(tmp_path / "home") as sidecar:
        with WireClient(sidecar.port) as client:
            assert client.create_topic("orders") == 0
        assert sidecar.terminate() == 0
        sidecar.restart()
        assert sidecar.terminate() == 0
        (tmp_path / "home/streams/copy of orders").mkdir()
        said = one_line(refused("--data-dir", str(tmp_path / "home"), "--kafka", "127.0.0.1:0"))
        assert "streams holds files that are not a sidecar's: 'copy of orders'" in said
        (tmp_path / "home/streams/copy of orders").rmdir()
        sidecar.restart()


def test_open_files_bound_the_connections(tmp_path: Path) -> None:
    """The soft limit of open files is raised to the hard one; connections it does not allow are left out, with a line
    that names the figures.
    """
    serve = f"{sys.executable} -m logstore.cli serve --data-dir {tmp_path}/data --kafka 127.0.0.1:0 --log-format json"
    command = ["sh", "-c", f"ulimit -Sn 64 && ulimit -Hn 700 && exec {serve}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("cairn ready")
        limits = Path(f"/proc/{process.pid}/limits").read_text(encoding="ascii")
        process.terminate()
        events = [json.loads(line) for line in process.stderr.read().splitlines()]
    assert re.search(r"Max open files +700 +700", limits)
    (fewer,) = [event for event in events if event["event"] == "fewer_connections"]
    assert (fewer["max_connections"], fewer["wanted"], fewer["open_files"]) == (188, 10_000, 700)


def test_the_version_is_told() -> None:
    """`cairn --version` prints the version that is installed."""
    command = [sys.executable, "-m", "logstore.cli", "--version"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, check=True)
    assert ended.stdout == f"cairn {importlib.metadata.version('cairn')}\n"


def test_log_level_leaves_lines_out(tmp_path: Path) -> None:
    """With `log-level` at warning an ordinary life writes no line; at info it says that it is ready."""
    for level, expected in (("warning", []), ("info", ["recovered", "ready", "stopping", "stopped"])):
        with Sidecar(tmp_path / level, "--log-format", "json", "--log-level", level) as sidecar:
            assert sidecar.terminate() == 0
            assert [json.loads(line)["event"] for line in sidecar.log().splitlines()] == expected


def newest_format_file(data_dir: Path) -> Path:
    """The file that says which format the directory has."""
    (found,) = [path for path in data_dir.iterdir() if path.is_file() and b'"format"' in path.read_bytes()]
    return found


def has_ipv6() -> bool:
    """Whether this machine has an IPv6 loopback."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def brokers(port: int) -> list[tuple[str, int]]:
    """The addresses that Metadata tells a client of this listener."""
    with WireClient(port) as client:
        answer = client.request(METADATA, 5, topics=[])
        return [(broker.host, broker.port) for broker in answer.brokers]


def test_every_listener_tells_its_own_address(tmp_path: Path) -> None:
    """Clients of each listener are told that listener's advertised address, or the one they used if it has none."""
    second, third = free_ports(2)
    flags = ["--kafka", f"127.0.0.1:{second}", "--kafka", f"0.0.0.0:{third}", "--insecure"]
    with Sidecar(tmp_path, *flags, "--advertise", "inside:1111", "--advertise", "outside:2222") as sidecar:
        assert brokers(sidecar.port) == [("inside", 1111)]
        assert brokers(second) == [("outside", 2222)]
        assert brokers(third) == [("127.0.0.1", third)]


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_ipv6_is_an_address_like_any_other(tmp_path: Path) -> None:
    """[::1]:PORT is listened on and told to clients."""
    port = free_port("::1")
    with Sidecar(tmp_path, "--kafka", f"[::1]:{port}") as sidecar:
        with WireClient(sidecar.port) as client:
            assert client.create_topic("orders") == 0
        with socket.create_connection(("::1", port), timeout=PATIENCE_S) as connection:
            connection.sendall(b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff")
            assert connection.recv(8)[4:8] == b"\x00\x00\x00\x07"


@pytest.mark.parametrize("log_format", ["json", "logfmt"])
def test_every_log_line_can_be_parsed(tmp_path: Path, log_format: str) -> None:
    """Each line on standard error is one event with time, level and event, from start to stop."""
    with Sidecar(tmp_path, "--log-format", log_format) as sidecar:
        with socket.create_connection(("127.0.0.1", sidecar.port), timeout=PATIENCE_S) as rude:
            rude.sendall(b'GET / HTTP/1.1\r\nHost: "me"\r\n\r\n')
            assert rude.recv(1) == b""
        assert sidecar.terminate() == 0
        lines = sidecar.log().splitlines()
    if log_format == "json":
        events = [json.loads(line) for line in lines]
        assert all({"time", "level", "event"} <= set(event) for event in events)
        names = [event["event"] for event in events]
    else:
        assert all(line.startswith("time=") and " level=" in line for line in lines)
        names = [line.split(" event=")[1].split(" ")[0].strip('"') for line in lines]
    assert names[0] == "recovered"
    assert names[-1] == "stopped"
    assert any(name.startswith("connection") for name in names)


def test_it_starts_fast_and_small(tmp_path: Path) -> None:
    """An idle sidecar has no Arrow, numba, numpy or Spark in it, and stays below 60 MB."""
    with Sidecar(tmp_path) as sidecar:
        status = Path(f"/proc/{sidecar.pid}/status").read_text(encoding="ascii")
        maps = Path(f"/proc/{sidecar.pid}/maps").read_text(encoding="utf-8")
    resident_kb = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))
    assert resident_kb < 60_000
    assert not any(name in maps for name in ("pyarrow", "numba", "numpy", "pyspark"))
