"""A cluster's life: up with one command, and whatever ends it, no process and no file is left."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hdfs import InsecureClient

from scheduler.hdfs import jars
from scheduler.hdfs.errors import HdfsError, HdfsUnavailable
from scheduler.topology.description import load_topology
from tests.hdfs.writers import wait_until
from tests.support.hdfs.__main__ import main
from tests.support.hdfs.cluster import ClusterOptions, HdfsCluster, Node, loopback_nodes
from tests.support.hdfs.jars import class_path, hadoop_jars
from tests.support.hdfs.keeper import marked
from tests.support.hdfs.launch import Runtime
from tests.support.limits import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
END_MS = PATIENCE_S * 1000


@contextmanager
def command(*options: str) -> Iterator[subprocess.Popen[str]]:
    """The laboratory's command as a developer runs it; killed in the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.hdfs", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def children_of(pid: int) -> list[int]:
    """The processes that a process started: the cluster's daemons and its keeper."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for_end(pidfds: list[int]) -> None:
    """Wait until all these processes are gone."""
    for pidfd in pidfds:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(END_MS), "a process of the cluster is still there"
        os.close(pidfd)


def test_the_command_takes_everything_with_it(runtime: Runtime, tmp_path: Path) -> None:
    """Ctrl-C: all daemons are gone, and so is every file; the topology it wrote is readable."""
    described = tmp_path / "network.toml"
    options = ("--datanodes", "1", "--racks", "1", "--directory", str(tmp_path / "hdfs"), "--json")
    with command(*options, "--topology", str(described)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr is not None else ""
        ready: dict[str, Any] = json.loads(line)
        client = InsecureClient(ready["webhdfs"], user="test")
        client.write("/there", data=b"it is", replication=1)
        assert client.status("/there")["length"] == len(b"it is")
        assert any(Path(ready["directory"]).glob("jetty-*"))  # nor do the daemons' temporary files lie elsewhere
        children = [os.pidfd_open(child) for child in children_of(process.pid)]
        assert len(children) == 3  # NameNode, DataNode, keeper
        process.send_signal(signal.SIGINT)
        assert process.wait(END_MS / 1000) == 0
        wait_for_end(children)
    assert list((tmp_path / "hdfs").iterdir()) == []
    assert [(server.name, server.address) for server in load_topology(described).servers] == [
        (node["name"], node["address"]) for node in ready["datanodes"]
    ]


def test_a_killed_start_leaves_nothing(runtime: Runtime, tmp_path: Path) -> None:
    """kill -9 while a DataNode is being started, of which nobody took note yet: it goes as all the others do."""
    with command("--datanodes", "1", "--racks", "1", "--directory", str(tmp_path)) as process:
        wait_until(lambda: any(tmp_path.glob("hdfs-*/datanode-*.log")), "a DataNode that is being started")
        (directory,) = tmp_path.iterdir()
        children = [os.pidfd_open(child) for child in children_of(process.pid)]
        assert len(children) >= 2  # NameNode, keeper
        process.kill()
        assert process.wait(END_MS / 1000) == -signal.SIGKILL
        wait_for_end(children)
    assert marked(str(directory)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_failed_start_shows_why_and_leaves_nothing(runtime: Runtime, tmp_path: Path) -> None:
    """A setting that no NameNode starts with: the error has the end of its log."""
    options = ClusterOptions(settings={"dfs.namenode.handler.count": "many"})
    cluster = HdfsCluster(tmp_path, loopback_nodes(1, 1), options, runtime)
    with pytest.raises(HdfsError, match=r'(?s)namenode ended.*"many"'), cluster:
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_error_of_the_user_carries_the_logs(runtime: Runtime, tmp_path: Path) -> None:
    """What goes wrong inside the block shows the daemons' last lines; the cluster is gone all the same."""
    with pytest.raises(ZeroDivisionError) as caught, HdfsCluster(tmp_path, loopback_nodes(1, 1), None, runtime) as hdfs:
        raise ZeroDivisionError
    assert len(caught.value.__notes__) == 2
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(HdfsError, match="does not run"):
        hdfs.placements()


def test_bad_options_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and one line that says what may be given."""
    for options, why in (
        (["--datanodes", "0"], "from 1 to 200"),
        (["--racks", "5"], "from 1 to the number of DataNodes, 4"),
        (["--uplink", "0"], "1 or more"),
        (["--set", "x"], "KEY=VALUE"),
        (["--hadoop", "3.2"], "must be one of 3.3, 3.4, 3.5"),
    ):
        assert main(options) == 2
        assert why in capsys.readouterr().err


def test_nodes_that_cannot_be_told_apart_are_refused() -> None:
    """No nodes, a name twice, an address twice."""
    node = Node("a", "127.0.0.9", "rack1")
    for nodes, why in (
        ([], "at least one"),
        ([node, node], "must differ"),
        ([node, Node("b", node.address, "r")], "address"),
    ):
        with pytest.raises(HdfsError, match=why):
            HdfsCluster(None, nodes)


def test_without_java_or_maven_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, with the package that brings it; nothing half made stays in the cache."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HdfsUnavailable, match=r"java.*openjdk-17"):
        class_path(tmp_path / "cache")
    with pytest.raises(HdfsUnavailable, match=r"mvn.*apt-get install maven"):
        hadoop_jars(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]


def test_the_cache_is_where_the_user_keeps_such_things(monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_CACHE_HOME if it is set, else ~/.cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert jars.default_cache() == Path("/somewhere/cairn")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somebody")
    assert jars.default_cache() == Path("/somebody/.cache/cairn")
