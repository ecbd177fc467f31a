"""The jar with the placement policy, built by Maven once for each release of Hadoop and kept in a cache directory.

Invariants:
* A directory in the cache is complete or missing: it is made under a temporary name and then renamed.
* One process at a time builds; others wait and use its result. The remains of a process that died are removed.
* A jar's directory is named after its Hadoop and a hash of its sources: a change of either builds the jar again.
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
from scheduler.hdfs.maven import find_jdk, maven

RELEASES = {"3.3": "3.3.6", "3.4": "3.4.3", "3.5": "3.5.0"}
"""The release lines of Hadoop that the policy supports, and the tested release of each."""
HADOOP_VERSION = RELEASES["3.5"]
"""The release that the policy is built for unless another is named."""
SOURCES = Path(__file__).parent / "java"
"""The parent project of the Maven modules."""
POLICY = SOURCES / "policy"
"""The module with the placement policy and the plan table."""
WORK = "work-"
"""The prefix of temporary directories in the cache."""


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


def policy_jar(cache: Path, version: str = HADOOP_VERSION) -> Path:
    """The jar with the placement policy and the plan table, for a NameNode of this release of Hadoop.

    It is built and tested the first time. Raises HdfsUnavailable: no JDK, no Maven, or no such release.
    """
    return built_jar(cache, POLICY, version)


def built_jar(cache: Path, module: Path, version: str) -> Path:
    """The only jar of a Maven module, whose parent is the project of `SOURCES`. Raises HdfsUnavailable."""

    def build(work: Path) -> Path:
        built = work / "java" / module.name
        shutil.copytree(module, built, ignore=shutil.ignore_patterns("target"))
        shutil.copy(SOURCES / "pom.xml", work / "java")
        maven(maven_arguments(built, version, "package"), f"build the {module.name} for Hadoop {version}", find_jdk())
        (work / "jar").mkdir()
        for jar in (built / "target").glob("*.jar"):
            shutil.copy(jar, work / "jar")
        return work / "jar"

    (jar,) = made_once(cache, f"hdfs-{module.name}-{version}-{_fingerprint(module)}", build).glob("*.jar")
    return jar


def maven_arguments(module: Path, version: str, *goal: str) -> list[str]:
    """Maven's arguments for a goal of a module, against a release of Hadoop."""
    return ["-f", str(module / "pom.xml"), f"-Dhadoop.version={version}", *goal]


def made_once(cache: Path, name: str, make: Callable[[Path], Path]) -> Path:
    """The cache's directory of this name; if missing, `make` builds it in a temporary one and returns its path."""
    directory = cache / name
    if directory.exists():
        return directory
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in cache.glob(f"{WORK}*"):
            shutil.rmtree(left, ignore_errors=True)
        if not directory.exists():  # else another process has built it meanwhile
            with tempfile.TemporaryDirectory(dir=cache, prefix=WORK) as work:
                os.rename(make(Path(work)), directory)
    return directory


def _fingerprint(module: Path) -> str:
    digest = hashlib.sha256((SOURCES / "pom.xml").read_bytes())
    for path in sorted(module.rglob("*")):
        inside = path.relative_to(module)
        if path.is_file() and "target" not in inside.parts:
            digest.update(str(module.name / inside).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
