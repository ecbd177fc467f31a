"""A Spark driver of its own, for tests that kill it: `python driver.py ADDRESS PROXY CHECKPOINT LOCAL_DIR`.

Reads topic `in`, signs each record with who executed it, and writes to topic `out` through the proxy, until the input
is done.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.datasource.test_sink import signed  # noqa: E402
from tests.support.spark_session import read_stream, start_spark, write_stream  # noqa: E402 - the path comes first

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENT = {"kafka.delivery.timeout.ms": "3600000"}
"""Longer than any test holds a request back."""


def run(spark: SparkSession, address: str, proxy: str, checkpoint: Path) -> None:
    """Run the query to its end."""
    frame = signed(read_stream(spark, address, subscribe="in", maxOffsetsPerTrigger="700"))
    write_stream(frame, proxy, checkpoint, topic="out", **PATIENT)


def main() -> None:
    """Run it in a session of its own."""
    address, proxy, checkpoint, local = sys.argv[1:]
    spark = start_spark(Path(local))
    run(spark, address, proxy, Path(checkpoint))
    spark.stop()


if __name__ == "__main__":
    main()
