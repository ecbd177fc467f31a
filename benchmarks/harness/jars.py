"""Kafka's jars, fetched through Maven once and kept in a cache directory.

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
from pathlib import Path

KAFKA_VERSION = "4.2.0"
CACHE = Path(__file__).resolve().parents[2] / ".cache"
"""Not under version control; may be deleted at any time."""
FETCH_SECONDS = 600

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>cairn</groupId><artifactId>peer</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{version}</version></dependency>
  </dependencies>
</project>
"""


class KafkaUnavailable(RuntimeError):
    """Java or Maven is missing, or Maven could not fetch Kafka; the message says which."""


@functools.cache
def kafka_class_path(version: str = KAFKA_VERSION) -> str:
    """A Java class path with Kafka's server and tools; fetches them the first time. Raises KafkaUnavailable."""
    if shutil.which("java") is None:
        raise KafkaUnavailable("no java on the path: Kafka and its tools need Java 17")
    directory = CACHE / f"kafka-{version}"
    if not directory.exists():
        _fetch(version, directory)
    return str(directory / "*")


def _fetch(version: str, directory: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable("no mvn on the path: Kafka's jars come from Maven")
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="fetch-") as name:
        work = Path(name)
        (work / "pom.xml").write_text(_POM.format(version=version))
        command = [maven, "-q", "-B", "-f", str(work / "pom.xml"), "dependency:copy-dependencies", f"-DoutputDirectory={work / 'jars'}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
        if done.returncode != 0:
            raise KafkaUnavailable(f"Maven could not fetch Kafka {version}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        try:
            os.rename(work / "jars", directory)
        except OSError:
            if not directory.exists():  # else another process fetched the same jars meanwhile
                raise
