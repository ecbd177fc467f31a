"""What the daemons of a laboratory run from: Hadoop's own jars, the policy's, and the laboratory's.

Invariant: the class path has always the same order, because the archives of loaded classes depend on it.
"""

from pathlib import Path

from scheduler.hdfs.jars import HADOOP_VERSION, POLICY, built_jar, made_once, maven_arguments, policy_jar
from scheduler.hdfs.maven import maven
from tests.support.hdfs.launch import find_java

LABORATORY = Path(__file__).parent / "java" / "cluster"
"""The module with what only a cluster of many DataNodes on one machine needs."""


def hadoop_jars(cache: Path, version: str = HADOOP_VERSION) -> Path:
    """A directory with all of Hadoop's jars that a NameNode and a DataNode need. Raises HdfsUnavailable."""

    def fetch(work: Path) -> Path:
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={work / 'jars'}"]
        maven(maven_arguments(POLICY, version, *goal), f"fetch the jars of Hadoop {version}")
        return work / "jars"

    return made_once(cache, f"hadoop-{version}", fetch)


def class_path(cache: Path, version: str = HADOOP_VERSION) -> str:
    """Our jars and all of Hadoop's. Raises HdfsUnavailable."""
    find_java()
    ours = [policy_jar(cache, version), built_jar(cache, LABORATORY, version)]
    return ":".join(map(str, [*ours, *sorted(hadoop_jars(cache, version).glob("*.jar"))]))
