"""The worked example of docs/security.md, run by Spark against a secured sidecar; what Spark shows of its secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from pyspark.sql import SparkSession

from tests.security.conftest import PASSWORD, USER, Secured
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import ROOT
from tests.support.spark_session import start_spark

pytestmark = pytest.mark.spark
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of this module's own."""
    session = start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


def example() -> str:
    """The page's Python example."""
    (found,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_example_runs(spark: SparkSession, secured: Secured, tmp_path: Path) -> None:
    """What clients produced over TLS goes through source and sink, with logins in driver and tasks; the password is in
    no plan and no progress.
    """
    producer = confluent_kafka.Producer({"bootstrap.servers": secured.address("PLAINTEXT")})
    for number in range(100):
        producer.produce("purchases", f"tea {number}")
    assert producer.flush(PATIENCE_S) == 0
    code = example().replace("queue.example.org:9092", secured.address("SASL_SSL"))
    code = code.replace("/etc/cairn/ca.pem", str(secured.certificates.ca))
    assert f'username="{USER}"' in code
    names: dict[str, object] = {"spark": spark, "checkpoint": str(tmp_path / "checkpoint"), "password": PASSWORD}
    exec(compile(code, "docs/security.md", "exec"), names)
    query, secured_options = names["query"], names["secured"]
    try:
        query.processAllAvailable()  # type: ignore[attr-defined]
        shown = str(query.lastProgress) + str(query.recentProgress) + str(query.status)  # type: ignore[attr-defined]
        shown += query._jsq.explainInternal(True)  # type: ignore[attr-defined]
    finally:
        query.stop()  # type: ignore[attr-defined]
    results = (
        spark.read.format("cairn")
        .options(**secured_options)  # type: ignore[arg-type]
        .option("subscribe", "shouted")
        .load()
    )
    assert {bytes(row.value) for row in results.collect()} == {b"TEA %d" % number for number in range(100)}
    shown += results._jdf.queryExecution().toString()
    for path in (tmp_path / "checkpoint").rglob("*"):
        shown += path.read_text(errors="replace") if path.is_file() else ""
    assert PASSWORD not in shown
    assert PASSWORD not in secured.sidecar.log()
