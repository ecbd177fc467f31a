"""The worked example of docs/security.md, run by Spark against a secured sidecar; what Spark shows of its secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spe_adapter import Aggregate, Tumbling, agg, stateful
from tests.security.conftest import PASSWORD, USER, Secured, cairn, make_certificates, tls_flags
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import ROOT, Sidecar
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


def rights() -> str:
    """The Python example of docs/acls.md, which gives bob the rights of its table."""
    (found,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/acls.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return str(found)


@pytest.mark.slow
def test_the_rights_of_the_page_are_enough(
    spark: SparkSession, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With the rights of docs/acls.md, given as the page's Python gives them, a user's source, sink and stateful query
    make their topics and commit, and start again; without them the sink is refused, and the error names the right.
    """
    found = make_certificates(tmp_path_factory.mktemp("pems"))
    for user in ("alice", "bob"):
        added = cairn("user", "add", user, "--data-dir", str(tmp_path / "data"), text=f"{PASSWORD}\n")
        assert added.returncode == 0, added.stderr
    flags = (*tls_flags(found, "none"), "--super-users", "User:alice")
    with Sidecar(tmp_path / "data", *flags, protocol="SASL_SSL") as sidecar:
        address = f"127.0.0.1:{sidecar.port}"
        login = {
            "bootstrap.servers": address, "security.protocol": "SASL_SSL", "ssl.ca.location": str(found.ca),
            "sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": PASSWORD,
        }  # fmt: skip
        producer = confluent_kafka.Producer(login)
        for number in range(10):
            producer.produce("purchases", f"tea {number}")
        assert producer.flush(PATIENCE_S) == 0
        code = rights().replace("queue.example.org:9092", address).replace("/etc/cairn/ca.pem", str(found.ca))
        exec(compile(code, "docs/acls.md", "exec"), {"password": PASSWORD})
        jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        bob = {
            "kafka.bootstrap.servers": address, "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512", "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(found.ca),
            "kafka.sasl.jaas.config": f'{jaas} username="bob" password="{PASSWORD}";',
        }  # fmt: skip
        source = {**bob, "subscribe": "purchases", "startingOffsets": "earliest"}
        rows = spark.readStream.format("cairn").options(**source).load()

        def sink(topic: str) -> Any:
            written = rows.select("key", "value").writeStream.format("cairn").options(**bob).option("topic", topic)
            return written.option("checkpointLocation", str(tmp_path / topic)).start()

        def counted() -> Any:
            operator = Aggregate(Tumbling("1 minute", time="timestamp"), n=agg.count())
            query = stateful(rows.select("value", "timestamp"), key="value", operator=operator, partitions=1)
            query = query.options(**bob).option("allowOtherQueries", "true")
            return query.start(topic="shouted", checkpointLocation=str(tmp_path / "counted"))

        starts: list[Callable[[], Any]] = [partial(sink, "shouted"), counted, counted]
        for start in starts:
            query: Any = start()
            try:
                query.processAllAvailable()
            finally:
                query.stop()
            producer.produce("purchases", "more")
            assert producer.flush(PATIENCE_S) == 0
        refused = sink("other")
        with pytest.raises(StreamingQueryException, match=r"topic 'other'.*Create|may not CREATE topic 'other'"):
            refused.processAllAvailable()
