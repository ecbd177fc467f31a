"""Hadoop's jars and ours, fetched and built by Maven once and kept in a cache directory.

Ours are two: the policy's goes into any NameNode of its Hadoop, the cluster's is what only `HdfsCluster` needs.

Invariants:
* A directory in the cache is complete or not there: everything is made in a temporary one, which is renamed when done.
* One process at a time makes something; others wait for it and find what it made. What one left that died is removed.
* A jar's directory is named after its Hadoop and its sources: a change of them builds it again.
"""

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from scheduler.hdfs.errors import HdfsError
from scheduler.hdfs.launch import find_java
from scheduler.hdfs.maven import find_jdk, maven

RELEASES = {"3.3": "3.3.6", "3.4": "3.4.3", "3.5": "3.5.0"}
"""The lines of Hadoop that the policy is built for, and the release of each that it is tested with."""
HADOOP_VERSION = RELEASES["3.5"]
"""What clusters on one machine run."""
SOURCES = Path(__file__).parent / "java"
POLICY, CLUSTER = "policy", "cluster"
"""The two modules of `SOURCES`."""
WORK = "work-"
"""How temporary directories in the cache are named."""


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/cairn`, or `~/.cache/cairn`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cairn"


def hadoop_release(wanted: str) -> str:
    """The release that a line (`3.4`) or a release (`3.4.1`) of Hadoop names. Raises HdfsError for any other."""
    if wanted in RELEASES:
        return RELEASES[wanted]
    if re.fullmatch(r"\d+\.\d+\.\d+", wanted, flags=re.ASCII) and wanted.rpartition(".")[0] in RELEASES:
        return wanted
    lines = ", ".join(RELEASES)
    raise HdfsError(f"Hadoop {wanted}: must be one of {lines}, or a release of one of them, such as {RELEASES['3.4']}")


def hadoop_jars(cache: Path, version: str = HADOOP_VERSION) -> Path:
    """A directory with all of Hadoop's jars that a NameNode and a DataNode need. Raises HdfsUnavailable."""

    def fetch(work: Path) -> Path:
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={work / 'jars'}"]
        maven(_project(SOURCES, POLICY, version, *goal), f"fetch the jars of Hadoop {version}")
        return work / "jars"

    return made_once(cache, f"hadoop-{version}", fetch)


def policy_jar(cache: Path, version: str = HADOOP_VERSION) -> Path:
    """The jar with the placement policy and the plan table, for a NameNode of this release of Hadoop.

    Built and tested against it the first time. Raises HdfsUnavailable: no JDK, no Maven, or no such release.
    """
    return _jar(cache, POLICY, version)


def class_path(cache: Path, version: str = HADOOP_VERSION) -> str:
    """Our jars and all of Hadoop's, always in the same order: archives of loaded classes depend on it."""
    find_java()
    ours = [_jar(cache, module, version) for module in (POLICY, CLUSTER)]
    return ":".join(map(str, [*ours, *sorted(hadoop_jars(cache, version).glob("*.jar"))]))


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


def _jar(cache: Path, module: str, version: str) -> Path:
    """The jar of one module, the only file in its directory."""

    def build(work: Path) -> Path:
        sources = shutil.copytree(SOURCES, work / "java", ignore=shutil.ignore_patterns("target"))
        jdk = find_jdk()
        maven(_project(sources, module, version, "package"), f"build the {module} for Hadoop {version}", jdk)
        (work / "jar").mkdir()
        for jar in (sources / module / "target").glob("*.jar"):
            shutil.copy(jar, work / "jar")
        return work / "jar"

    (jar,) = made_once(cache, f"hdfs-{module}-{version}-{_fingerprint(module)}", build).glob("*.jar")
    return jar


def _project(sources: Path, module: str, version: str, *goal: str) -> list[str]:
    return ["-f", str(sources / "pom.xml"), "-pl", module, f"-Dhadoop.version={version}", *goal]


def _fingerprint(module: str) -> str:
    digest = hashlib.sha256((SOURCES / "pom.xml").read_bytes())
    for path in sorted((SOURCES / module).rglob("*")):
        if path.is_file() and "target" not in path.relative_to(SOURCES).parts:
            digest.update(str(path.relative_to(SOURCES)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
