"""An archive of the classes that Spark loads: with it a JVM of Spark starts with half of the processor time.

Invariants:
* An archive is complete or missing: it is written under a temporary name, and then renamed.
* It is named after Java and Spark, and there is one: it takes 170 MB. A JVM that it does not fit starts without it.
"""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from tests.support.limits import PROGRAM_S

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
"""Not under version control; may be deleted at any time."""
QUICK = "-XX:TieredStopAtLevel=1 -Dspark.sql.streaming.pollingDelay=100ms -Xlog:disable -Xlog:all=warning:stderr"
"""The compiler for programs that run for seconds. A JVM's own warnings, as of an archive that does not fit, do not go
into the program's output. A query without new data asks its sources ten times a second instead
of a hundred times, as each question costs the processor of this machine, which others of the run need.
"""
PROGRAM = """
from tempfile import TemporaryDirectory
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
with TemporaryDirectory() as directory:
    spark = (
        builder.config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.range(100).selectExpr("id % 3 AS k").groupBy("k").count().toPandas()
    stream = spark.readStream.format("rate").load()
    mapped = stream.mapInPandas(lambda frames: frames, "timestamp TIMESTAMP, value LONG")
    query = mapped.writeStream.format("noop").option("checkpointLocation", directory)
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()
"""


@functools.cache
def archive() -> Path | None:
    """Where the archive for this machine's Java and Spark is, or will be; None: no Java is on the path."""
    if shutil.which("java") is None:
        return None
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    name = hashlib.sha256(f"{java}\0{version('pyspark')}\0{sys.prefix}\0{PROGRAM}".encode()).hexdigest()[:16]
    return CACHE / f"spark-{name}.jsa"


def environment() -> Mapping[str, str]:
    """What makes each Spark of a test start quickly; without the archive if there is none."""
    path = archive()
    options = [QUICK, f"-XX:SharedArchiveFile={path}"] if path is not None and path.exists() else [QUICK]
    return {"SPARK_SUBMIT_OPTS": " ".join(options)}


def record() -> None:
    """Write the archive, if it is missing, by a Spark of its own. If that fails, Spark starts without it."""
    path = archive()
    if path is None or path.exists():
        return
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="work-") as work:
        written = Path(work) / path.name
        options = {"SPARK_SUBMIT_OPTS": f"{QUICK} -XX:ArchiveClassesAtExit={written}", "SPARK_LOCAL_IP": "127.0.0.1"}
        # The JVM ends behind the program, and holds its output until then.
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **options, "PYSPARK_PYTHON": sys.executable},
            check=False,
            capture_output=True,
            timeout=PROGRAM_S,
            cwd=work,
        )
        if written.exists():
            for older in CACHE.glob("spark-*.jsa"):
                older.unlink()
            written.rename(path)


if __name__ == "__main__":
    record()
