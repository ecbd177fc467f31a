"""A Spark driver of its own, for tests that kill it: `python driver.py ADDRESS PROXY CHECKPOINT LOCAL_DIR`.

Reads topic `in`, signs each record with who executed it, and writes to topic `out` through the proxy, until the input
is done.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.datasource.test_sink import signed  # noqa: E402
from tests.support.spark_session import read_stream, start_spark, write_stream  # noqa: E402 - the path comes first

PATIENT = {"kafka.delivery.timeout.ms": "3600000"}
"""Longer than any test holds a request back."""


def main() -> None:
    """Run the query to its end."""
    address, proxy, checkpoint, local = sys.argv[1:]
    spark = start_spark(Path(local))
    frame = signed(read_stream(spark, address, subscribe="in", maxOffsetsPerTrigger="700"))
    write_stream(frame, proxy, Path(checkpoint), topic="out", **PATIENT)
    spark.stop()


if __name__ == "__main__":
    main()
