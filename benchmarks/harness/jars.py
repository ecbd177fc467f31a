"""Jars of Kafka, and of Spark's own connector to it, fetched through Maven once and kept in a cache directory.

Invariants:
* A directory of jars is complete or not there: Maven copies into a temporary one, which is renamed when it is done.
* Nothing but Maven talks to a repository, so its own configuration (mirrors, proxies) holds.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

KAFKA_VERSION = "4.2.0"
SPARK_KAFKA_VERSION = "4.2.0"
"""Spark's connector is released later than PySpark; the one before works with it."""
_CONNECTOR_TOKENS_VERSION = "4.0.0"
_CONNECTOR_CLIENTS_VERSION = "3.9.1"
_CONNECTOR_POOL_VERSION = "2.12.1"
CACHE = Path(__file__).resolve().parents[2] / ".cache"
"""Not under version control; may be deleted at any time."""
FETCH_SECONDS = 600

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>cairn</groupId><artifactId>peer</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = """
    <dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>
      <exclusions>{3}</exclusions></dependency>"""
_EXCLUSION = "<exclusion><groupId>{0}</groupId><artifactId>{1}</artifactId></exclusion>"


class Artifact(NamedTuple):
    """What Maven calls a dependency; `without` are (group, artifact) pairs that it would bring along for nothing."""

    group: str
    name: str
    version: str
    without: tuple[tuple[str, str], ...] = ()


class KafkaUnavailable(RuntimeError):
    """Java or Maven is missing, or Maven could not fetch Kafka; the message says which."""


@functools.cache
def kafka_class_path(version: str = KAFKA_VERSION) -> str:
    """A Java class path with Kafka's server and tools; fetches them the first time. Raises KafkaUnavailable."""
    if shutil.which("java") is None:
        raise KafkaUnavailable("no java on the path: Kafka and its tools need Java 17")
    directory = CACHE / f"kafka-{version}"
    if not directory.exists():
        tools = (Artifact("org.apache.kafka", name, version) for name in ("kafka_2.13", "kafka-tools"))
        _fetch(f"Kafka {version}", list(tools), directory)
    return str(directory / "*")


@functools.cache
def spark_kafka_jars(version: str = SPARK_KAFKA_VERSION) -> list[Path]:
    """Jars of Spark's own Kafka source and sink. Raises KafkaUnavailable."""
    directory = CACHE / f"spark-kafka-{version}"
    if not directory.exists():
        # Named one by one: what else they would bring along, Spark has; and the connector's own build description
        # names repositories that are not everywhere reachable.
        alone = (("*", "*"),)
        artifacts = [
            Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", version, alone),
            Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", _CONNECTOR_TOKENS_VERSION, alone),
            Artifact("org.apache.kafka", "kafka-clients", _CONNECTOR_CLIENTS_VERSION, alone),
            Artifact("org.apache.commons", "commons-pool2", _CONNECTOR_POOL_VERSION, alone),
        ]
        _fetch(f"Spark's Kafka connector {version}", artifacts, directory)
    return sorted(directory.glob("*.jar"))


def _fetch(what: str, artifacts: Sequence[Artifact], directory: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable("no mvn on the path: Kafka's jars come from Maven")
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="fetch-") as name:
        work = Path(name)
        (work / "pom.xml").write_text(_POM.format(dependencies="".join(map(_dependency, artifacts))))
        command = [
            maven,
            "-q",
            "-B",
            "-f",
            str(work / "pom.xml"),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={work / 'jars'}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
        if done.returncode != 0:
            raise KafkaUnavailable(f"Maven could not fetch {what}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        try:
            os.rename(work / "jars", directory)
        except OSError:
            if not directory.exists():  # else another process fetched the same jars meanwhile
                raise


def _dependency(artifact: Artifact) -> str:
    exclusions = "".join(_EXCLUSION.format(*pair) for pair in artifact.without)
    return _DEPENDENCY.format(artifact.group, artifact.name, artifact.version, exclusions)
