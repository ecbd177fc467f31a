"""The default partitioners of Kafka's clients, vectorised, against theirs."""

from __future__ import annotations

import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from spe_adapter.codec.partitioner import partitions_of
from tests.support.sidecar import Sidecar
from tests.support.streams import create_topic


@given(st.lists(st.none() | st.binary(max_size=40), min_size=1), st.integers(1, 1000))
def test_keys_go_where_kafka_puts_them(keys: list[bytes | None], partitions: int) -> None:
    """toPositive(murmur2(key)) % partitions, for keys of every length; without a key, where the caller says."""
    expected = [0 if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert partitions_of(pa.array(keys, pa.binary()), len(keys), partitions, 0).tolist() == expected


@pytest.mark.parametrize(
    ("key", "digest"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_the_digests_of_kafkas_own_tests(key: str, digest: int) -> None:
    """Kafka's UtilsTest fixes these values of murmur2."""
    partitions = 2**31 - 1
    assert partitions_of(pa.array([key]), 1, partitions, 0).tolist() == [(digest & 0x7FFFFFFF) % partitions]


@given(st.lists(st.none() | st.binary(max_size=40), min_size=1), st.integers(1, 1000))
def test_keys_go_where_librdkafka_puts_them(keys: list[bytes | None], partitions: int) -> None:
    """crc32(key) % partitions; without a key or with an empty one, where the caller says. Slices and gaps alike."""
    expected = [zlib.crc32(key) % partitions if key else 7 for key in keys]
    column = pa.array([b"in front", *keys], pa.binary())[1:]
    assert partitions_of(column, len(keys), partitions, 7, "consistent_random").tolist() == expected


def test_librdkafka_itself_agrees(tmp_path: Path) -> None:
    """A producer with its default settings, asked where its records went."""
    keys = [b"key-%d" % number for number in range(200)]
    places: dict[bytes, int] = {}
    with Sidecar(tmp_path / "data") as sidecar:
        create_topic(sidecar.address, "keyed", 7)
        producer = Producer({"bootstrap.servers": sidecar.address})
        for key in keys:
            producer.produce(
                "keyed", b"", key, on_delivery=lambda _, message: places.update({message.key(): message.partition()})
            )
        assert producer.flush(60) == 0
    expected = partitions_of(pa.array(keys), len(keys), 7, 0, "consistent_random").tolist()
    assert [places[key] for key in keys] == expected


def test_without_keys_everything_goes_to_the_given_partition() -> None:
    """No key column, or one of nulls only."""
    assert partitions_of(None, 3, 8, 5).tolist() == [5, 5, 5]
    assert partitions_of(pa.array([None, None], pa.binary()), 2, 8, 6).tolist() == [6, 6]
