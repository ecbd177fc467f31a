"""Options of source and sink: what is allowed, and what the refusals say. No Spark, no sidecar."""

from __future__ import annotations

import pytest

from logstore.base.addresses import Address
from logstore.errors import InvalidConfig
from spe_adapter.datasource.offsets import EARLIEST, LATEST, TopicPartition
from spe_adapter.datasource.options import HARMLESS_SINK_OPTIONS, HARMLESS_SOURCE_OPTIONS, parse_sink, parse_source

BASE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    """Streams start at the latest offset, batches at the earliest; data loss fails the query; no headers."""
    stream, batch = parse_source(BASE, streaming=True), parse_source(BASE, streaming=False)
    assert (stream.starting.everywhere, batch.starting.everywhere) == (LATEST, EARLIEST)
    assert batch.ending.everywhere == LATEST
    assert (stream.fail_on_data_loss, stream.include_headers) == (True, False)
    assert (stream.limits.max_offsets, stream.limits.min_offsets) == (None, None)
    assert stream.limits.max_delay_ms == 15 * 60_000


def test_names_are_found_in_any_case() -> None:
    """Spark hands options over in lower case or as they were written."""
    options = parse_source(
        {"KAFKA.Bootstrap.Servers": "a:1,b:2", "SUBSCRIBE": " b , a,a", "MAXoffsetsPerTrigger": "7"}, streaming=True
    )
    assert options.servers == (Address("a", 1), Address("b", 2))
    assert options.subscription.topics == ("a", "b")
    assert options.limits.max_offsets == 7


def test_one_timestamp_for_all_comes_before_one_for_each_before_offsets() -> None:
    """Spark's order of precedence."""
    given = {
        **BASE,
        "startingOffsets": '{"t":{"0":5}}',
        "startingOffsetsByTimestamp": '{"t":{"0":1000}}',
        "startingTimestamp": "2000",
    }
    assert parse_source(given, streaming=True).starting.everywhere == 2000
    del given["startingTimestamp"]
    assert parse_source(given, streaming=True).starting.each == {T0: 1000}
    del given["startingOffsetsByTimestamp"]
    position = parse_source(given, streaming=True).starting
    assert (position.each, position.is_timestamp) == ({T0: 5}, False)


def test_offsets_for_each_partition() -> None:
    """−2 and −1 stand for earliest and latest."""
    given = {**BASE, "startingOffsets": '{"t": {"0": -2, "1": -1}}'}
    assert parse_source(given, streaming=True).starting.each == {T0: EARLIEST, T1: LATEST}


@pytest.mark.parametrize(
    ("options", "streaming", "what"),
    [
        ({}, True, "'kafka.bootstrap.servers' is missing"),
        ({"kafka.bootstrap.servers": "h:1"}, True, "exactly one of the options assign, subscribe, subscribePattern"),
        ({**BASE, "assign": '{"t":[0]}'}, True, "there are assign, subscribe"),
        ({**BASE, "kafka.bootstrap.servers": "h:port"}, True, "'kafka.bootstrap.servers': 'h:port' is not an address"),
        ({**BASE, "subscribe": " , "}, True, "'subscribe' names no topic"),
        ({"kafka.bootstrap.servers": "h:1", "subscribePattern": "("}, True, "no regular expression"),
        ({"kafka.bootstrap.servers": "h:1", "assign": '{"t":["x"]}'}, True, "'assign'"),
        ({"kafka.bootstrap.servers": "h:1", "assign": "{}"}, True, "'assign' names no partition"),
        ({**BASE, "startingOffsets": "lastest"}, True, "allowed: earliest, latest, or JSON"),
        ({**BASE, "startingOffsets": '{"t":{"0":-3}}'}, True, "allowed: -2, -1, or an offset from 0"),
        ({**BASE, "startingOffsets": '{"t":'}, True, "is not JSON"),
        ({**BASE, "startingOffsets": '{"t":{"0":-1}}'}, False, "-1 (latest)"),
        ({**BASE, "endingOffsets": "earliest"}, False, "allowed: latest, or JSON"),
        ({**BASE, "endingOffsets": '{"t":{"0":-2}}'}, False, "-2 (earliest)"),
        ({**BASE, "endingOffsets": "latest"}, True, "'endingOffsets' is for batch queries"),
        ({**BASE, "maxOffsetsPerTrigger": "5"}, False, "'maxOffsetsPerTrigger' is for streaming queries"),
        ({**BASE, "maxOffsetsPerTrigger": "0"}, True, "a whole number of at least 1"),
        ({**BASE, "maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, True, "above 'maxOffsetsPerTrigger' 5"),
        ({**BASE, "maxTriggerDelay": "15 parsecs"}, True, "a number and one of ms, s, m, h, d"),
        ({**BASE, "startingTimestamp": "yesterday"}, True, "'startingTimestamp' is 'yesterday'"),
        ({**BASE, "startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, True, "milliseconds from 0"),
        ({**BASE, "startingOffsetsByTimestampStrategy": "guess"}, True, "allowed: error, latest"),
        ({**BASE, "failOnDataLoss": "maybe"}, True, "allowed: true, false"),
        ({**BASE, "kafka.security.protocol": "TLS"}, True, "allowed: PLAINTEXT, SSL"),
        ({**BASE, "kafka.auto.offset.reset": "latest"}, True, "'kafka.auto.offset.reset' is not one of"),
        ({**BASE, "maxOffsetPerTrigger": "5"}, True, "source's (did you mean maxOffsetsPerTrigger?): "),
        ({**BASE, "maxOffsetPerTrigger": "5"}, True, "option 'maxOffsetPerTrigger' is not one of"),
        ({**BASE, "kafka.isolation.level": "serializable"}, True, "allowed: read_uncommitted, read_committed"),
    ],
)
def test_source_options_refused(options: dict[str, str], streaming: bool, what: str) -> None:
    """The message names the option and what is allowed."""
    with pytest.raises(InvalidConfig) as caught:
        parse_source(options, streaming=streaming)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"topic": " "}, "'topic' is empty"),
        ({"kafka.batch.size": "2000000"}, "allowed: 1 to"),
        ({"kafka.compression.type": "snappy"}, "allowed: none, gzip, lz4, zstd"),
        ({"kafka.enable.idempotence": "false"}, "allowed: true"),
        ({"subscribe": "t"}, "'subscribe' is not one of the cairn sink's"),
        ({"kafka.transactional.id": "x"}, "'kafka.transactional.id' is not one of"),
    ],
)
def test_sink_options_refused(options: dict[str, str], what: str) -> None:
    """The message names the option and what is allowed."""
    with pytest.raises(InvalidConfig) as caught:
        parse_sink({"kafka.bootstrap.servers": "h:1", **options})
    assert what in str(caught.value)


def test_client_settings_without_meaning_here_are_accepted() -> None:
    """Settings that tune a Kafka client, each with its reason, and what Spark itself hands on."""
    harmless = dict.fromkeys(HARMLESS_SOURCE_OPTIONS, "1")
    parse_source({**BASE, "checkpointLocation": "/c", "path": "p", **harmless}, streaming=True)
    parse_sink({"kafka.bootstrap.servers": "h:1", "queryName": "q", **dict.fromkeys(HARMLESS_SINK_OPTIONS, "1")})
    assert all(HARMLESS_SOURCE_OPTIONS.values())
    assert all(HARMLESS_SINK_OPTIONS.values())


def test_times_have_units() -> None:
    """maxTriggerDelay as Spark writes times."""
    for text, milliseconds in (("250", 250), ("250ms", 250), ("3s", 3000), ("15m", 900_000), ("2 h", 7_200_000)):
        assert parse_source({**BASE, "maxTriggerDelay": text}, streaming=True).limits.max_delay_ms == milliseconds
