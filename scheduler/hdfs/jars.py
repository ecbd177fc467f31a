"""Hadoop's jars and our placement policy's, fetched and built by Maven once and kept in a cache directory.

Invariants:
* A directory in the cache is complete or not there: everything is made in a temporary one, which is renamed when done.
* One process at a time makes something; others wait for it and find what it made. What one left that died is removed.
* Nothing but Maven talks to a repository, so its own configuration (mirrors, proxies) holds.
* The policy's directory is named after its sources: a change of them builds it again.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from scheduler.hdfs.errors import HdfsUnavailable
from scheduler.hdfs.launch import find_java

HADOOP_VERSION = "3.5.0"
SOURCES = Path(__file__).parent / "java"
MAVEN_SECONDS = 900
"""68 MB of jars: 30 s with a near mirror."""
WORK = "work-"
"""How temporary directories in the cache are named."""


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/cairn`, or `~/.cache/cairn`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cairn"


def hadoop_jars(cache: Path) -> Path:
    """A directory with all of Hadoop's jars that a NameNode and a DataNode need. Raises HdfsUnavailable."""

    def fetch(work: Path) -> Path:
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={work / 'jars'}"]
        maven(["-f", str(SOURCES / "pom.xml"), f"-Dhadoop.version={HADOOP_VERSION}", *goal], "fetch Hadoop's jars")
        return work / "jars"

    return made_once(cache, f"hadoop-{HADOOP_VERSION}", fetch)


def policy_jar(cache: Path) -> Path:
    """The jar with the placement policy and the plan table; built and tested the first time. Raises HdfsUnavailable."""

    def build(work: Path) -> Path:
        shutil.copytree(SOURCES, work / "java", ignore=shutil.ignore_patterns("target"))
        maven(["-f", str(work / "java" / "pom.xml"), "package"], "build the placement policy")
        (work / "policy").mkdir()
        shutil.copy(work / "java" / "target" / "cairn-hdfs.jar", work / "policy")
        return work / "policy"

    return made_once(cache, f"hdfs-policy-{_fingerprint()}", build) / "cairn-hdfs.jar"


def class_path(cache: Path) -> str:
    """The policy's jar and all of Hadoop's, always in the same order: archives of loaded classes depend on it."""
    find_java()
    policy = policy_jar(cache)
    return ":".join([str(policy), *map(str, sorted(hadoop_jars(cache).glob("*.jar")))])


def maven(arguments: Sequence[str], what: str) -> None:
    """Run Maven, without the network if it has all it needs. Raises HdfsUnavailable with what it printed."""
    program = shutil.which("mvn")
    if program is None:
        raise HdfsUnavailable(
            f"no mvn on the path: Maven must {what} (Debian: apt-get install maven openjdk-17-jdk-headless)"
        )
    for offline in (["-o"], []):
        command = [program, "-q", "-B", *offline, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise HdfsUnavailable(f"Maven could not {what} in {MAVEN_SECONDS} s") from error
        if done.returncode == 0:
            return
    raise HdfsUnavailable(f"Maven could not {what}: {done.stdout[-3000:]}{done.stderr[-1000:]}")


def made_once(cache: Path, name: str, make: Callable[[Path], Path]) -> Path:
    """The cache's directory of this name; if it is missing, `make` makes it in a temporary one and says where."""
    directory = cache / name
    if directory.exists():
        return directory
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in cache.glob(f"{WORK}*"):
            shutil.rmtree(left, ignore_errors=True)
        if not directory.exists():  # else another process has made it meanwhile
            with tempfile.TemporaryDirectory(dir=cache, prefix=WORK) as work:
                os.rename(make(Path(work)), directory)
    return directory


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        if path.is_file() and "target" not in path.relative_to(SOURCES).parts:
            digest.update(str(path.relative_to(SOURCES)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
