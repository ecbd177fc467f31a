"""One source for every Hadoop it is said to serve: what the jar holds, and a NameNode of each that places with it."""

from __future__ import annotations

import os
import shutil
import zipfile
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from requests.adapters import HTTPAdapter

from logstore.cli import main
from scheduler.hdfs import jars
from scheduler.hdfs.errors import HdfsError, HdfsUnavailable
from scheduler.hdfs.maven import find_jdk, maven
from scheduler.hdfs.webhdfs import ChunkClient, Timeouts, put
from tests.hdfs.writers import table_of, wait_until
from tests.support.hdfs.cluster import HdfsCluster, loopback_nodes
from tests.support.hdfs.launch import Runtime
from tests.support.hdfs.runtime import hadoop

POLICY_CLASSES = {
    "cairn/hdfs/PlanServer.class",
    "cairn/hdfs/PlanServer$Answer.class",
    "cairn/hdfs/PlanServer$Entry.class",
    "cairn/hdfs/PlanTable.class",
    "cairn/hdfs/PlanTable$Counts.class",
    "cairn/hdfs/PlanTable$Plan.class",
    "org/apache/hadoop/hdfs/server/blockmanagement/PlannedPlacementPolicy.class",
}
CLUSTER_FILES = {
    "cairn/hdfs/LocalAddressSocketFactory.class",
    "webapps/datanode/WEB-INF/web.xml",
    "webapps/hdfs/WEB-INF/web.xml",
}
JAVA_8 = 52
"""The major version of its class files."""
DEFAULT_LINE, *OTHER_LINES = sorted(jars.RELEASES, reverse=True)


class From(HTTPAdapter):
    """Calls that leave from one address, as a writer's on that host do."""

    def __init__(self, address: str) -> None:
        self._address = address
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        """Every connection is bound to the address."""
        super().init_poolmanager(*arguments, source_address=(self._address, 0), **options)


def files(jar: Path) -> dict[str, bytes]:
    """What a jar holds, directories apart."""
    with zipfile.ZipFile(jar) as opened:
        return {name: opened.read(name) for name in opened.namelist() if not name.endswith("/")}


def assert_policy_jar(jar: Path, release: str) -> None:
    """Its name and its manifest name its Hadoop; it holds the policy and the table for Java 8, and nothing else."""
    inside = files(jar)
    assert jar.name == f"cairn-hdfs-hadoop-{release}.jar"
    assert f"Hadoop-Version: {release}" in inside.pop("META-INF/MANIFEST.MF").decode().splitlines()
    assert set(inside) == POLICY_CLASSES
    assert {int.from_bytes(code[6:8], "big") for code in inside.values()} == {JAVA_8}


def assert_places_as_planned(runtime: Runtime) -> None:
    """Chains of three of four DataNodes, each written from a DataNode's host: both logs say that it was followed."""
    with HdfsCluster(None, loopback_nodes(4, racks=2), runtime=runtime) as hdfs, table_of(hdfs) as table:
        chains = [list(chain) for chain in permutations(hdfs.addresses, 3)][::3]
        for number, chain in enumerate(chains):
            path, data = f"/planned/{number}", b"some bytes"
            client = ChunkClient(hdfs.webhdfs_url, "test", Timeouts())
            client._session.mount("http://", From(hdfs.nodes[number % len(hdfs.nodes)].address))
            table.push(path, chain)
            put(client, path, iter([data]), len(data), len(chain))
            client.close()
            assert client.led_to == hdfs.addresses[chain[0]]
            assert hdfs.placements()[path] == [chain]
            counts = table.forget(path)[path]
            assert (counts.used, counts.refused) == (2, 0)
        wanted = {f"/planned/{number}": [chain] for number, chain in enumerate(chains)}
        wait_until(lambda: hdfs.travels() == wanted, "every block's way in the DataNodes' logs")


def test_the_default_jar_is_for_any_namenode_of_its_hadoop(runtime: Runtime) -> None:
    """The laboratory runs with the jar that users get; what only one machine needs is in a jar of its own."""
    policy, cluster, *hadoops = map(Path, runtime.class_path.split(":"))
    assert_policy_jar(policy, jars.RELEASES[DEFAULT_LINE])
    inside = files(cluster)
    del inside["META-INF/MANIFEST.MF"]
    assert set(inside) == CLUSTER_FILES
    assert f"hadoop-hdfs-{jars.RELEASES[DEFAULT_LINE]}.jar" in {jar.name for jar in hadoops}


@pytest.mark.slow
@pytest.mark.parametrize("line", OTHER_LINES)
def test_older_hadoops_place_as_planned(line: str, runtime: Runtime) -> None:
    """The same source, built and tested against another release; a NameNode of it follows every plan."""
    other = hadoop(version=jars.hadoop_release(line))
    policy, _, *hadoops = map(Path, other.class_path.split(":"))
    assert_policy_jar(policy, jars.RELEASES[line])
    assert f"hadoop-hdfs-{jars.RELEASES[line]}.jar" in {jar.name for jar in hadoops}
    assert_places_as_planned(other)


@pytest.mark.slow
def test_the_default_hadoop_places_as_planned(runtime: Runtime) -> None:
    """What the older ones are held to holds here too."""
    assert_places_as_planned(runtime)


def test_a_line_of_hadoop_names_its_tested_release() -> None:
    """A line, or any release of it; whatever else is refused with what may be given."""
    assert jars.hadoop_release("3.4") == jars.RELEASES["3.4"]
    assert jars.hadoop_release("3.4.1") == "3.4.1"
    for other in (
        "3",
        "3.2",
        "3.2.4",
        "3.6.0",
        "3.40.1",
        "2.10",
        "3.4.",
        "3.4.1-SNAPSHOT",
        "3.4.1.2",
        "3.4.x",
        "",
        "3.3.٦",
    ):
        with pytest.raises(HdfsError, match=r"must be one of 3\.3, 3\.4, 3\.5, or a release of one of them"):
            jars.hadoop_release(other)


def test_a_hadoop_that_is_not_known_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and one line that says what may be given."""
    assert main(["hdfs-policy", "--hadoop", "latest"]) == 2
    assert "must be one of 3.3, 3.4, 3.5" in capsys.readouterr().err


def script(path: Path, text: str) -> None:
    """A program that a path finds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_without_a_jdk_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A runtime has no compiler, an old JDK is too old: named, with what to install; Maven is not even started."""
    script(tmp_path / "jre" / "bin" / "java", "exit 1")
    script(tmp_path / "old" / "bin" / "javac", "echo javac 1.8.0_402 >&2")
    script(tmp_path / "jre" / "bin" / "mvn", f"touch {tmp_path / 'started'}; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'jre' / 'bin'}:/usr/bin-that-is-not-there")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert main(["hdfs-policy", "--hadoop", "3.3", "--cache", str(tmp_path / "cache")]) == 1
    said = capsys.readouterr().err
    assert "no JDK 17 or newer" in said
    assert f"{tmp_path / 'old'} is older; {tmp_path / 'jre'} has no javac" in said
    assert "apt-get install" in said
    assert not (tmp_path / "started").exists()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]


def test_the_jdk_that_was_found_is_mavens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime in JAVA_HOME does not keep the JDK on the path from being used, by Maven too."""
    script(tmp_path / "jre" / "bin" / "java", "exit 1")
    script(tmp_path / "jdk" / "bin" / "java", "exit 1")
    script(tmp_path / "jdk" / "bin" / "javac", "echo javac 21.0.2")
    script(tmp_path / "bin" / "mvn", f'echo "$JAVA_HOME" >{tmp_path / "home"}')
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(tmp_path / "jdk" / "bin"), str(tmp_path / "bin"), "/usr/bin", "/bin"])
    )
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jre"))
    assert find_jdk() == tmp_path / "jdk"
    maven(["package"], "build", find_jdk())
    assert (tmp_path / "home").read_text() == f"{tmp_path / 'jdk'}\n"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven is not installed")
def test_a_release_that_was_never_made_is_named(tmp_path: Path) -> None:
    """Of a known line, but no repository has it: the error says which, and nothing half made stays."""
    with pytest.raises(HdfsUnavailable, match=r"(?s)build the policy for Hadoop 3\.4\.99.*3\.4\.99"):
        jars.policy_jar(tmp_path / "cache", "3.4.99")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]
