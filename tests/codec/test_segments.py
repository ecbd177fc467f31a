"""How the output of an attempt is cut into segments to stage."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.client.wire import TopicPartition
from logstore.errors import InvalidRecord
from logstore.format.batch import iterate_batches
from logstore.format.control import MARK_TYPE, encode_control_record
from logstore.format.epoch_api import Part
from logstore.format.records import decode_batch
from spe_adapter.codec.encode import Columns
from spe_adapter.epochs import segments
from spe_adapter.epochs.segments import SegmentCutter, StagedSegment, StreamOutput

STREAMS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
SEGMENT_BYTES = 1_000
BATCH_BYTES = 300


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterable[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENT_BYTES", SEGMENT_BYTES)
        patch.setattr(segments, "MAX_SEGMENT_BYTES", 2 * SEGMENT_BYTES)
        patch.setattr(segments, "MAX_STAGE_BYTES", 4 * SEGMENT_BYTES)
        yield


def columns(sizes: list[int]) -> Columns:
    """Records with values of these sizes."""
    values = pa.array([bytes([at % 256]) * size for at, size in enumerate(sizes)], pa.binary())
    return Columns(None, values, None, np.arange(len(sizes), dtype=np.int64))


def batches_of(found: Iterable[StagedSegment]) -> dict[TopicPartition, list[bytes]]:
    """The batches of each stream, in order, each part checked against its bytes."""
    batches: dict[TopicPartition, list[bytes]] = {}
    for parts, data in found:
        at = 0
        for part in parts:
            here = bytes(data[at : at + part.length_bytes])
            entries = list(iterate_batches(here))
            records = sum(header.record_count for _, header in entries)
            assert part == Part(part.topic, part.partition, len(here), len(entries), records)
            whole = batches.setdefault(TopicPartition(part.topic, part.partition), [])
            whole += [here[start : start + header.size_bytes] for start, header in entries]
            at += part.length_bytes
        assert at == len(data)
    return batches


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 500)), min_size=1), max_size=4))
def test_no_batch_is_lost_and_no_segment_is_too_large(calls: list[list[tuple[int, int]]]) -> None:
    """Streams keep their records in order; a segment is at most twice SEGMENT_BYTES, or one batch; none is empty."""
    cutter = SegmentCutter(BATCH_BYTES)
    found: list[StagedSegment] = []
    sent: dict[TopicPartition, list[bytes]] = {}
    for call in calls:
        targets = np.array([target for target, _ in call], np.int32)
        records = columns([size for _, size in call])
        found += cutter.add_records(records, targets, STREAMS)
        for (target, _), value in zip(call, records.values.to_pylist(), strict=True):
            sent.setdefault(STREAMS[target], []).append(value)
    found += cutter.rest()
    for parts, data in found:
        assert data
        assert len(data) <= 2 * SEGMENT_BYTES or sum(part.batches for part in parts) == 1
    kept = {
        stream: [record.value for batch in batches for record in decode_batch(batch)]
        for stream, batches in batches_of(found).items()
    }
    assert kept == sent
    assert not list(cutter.rest())


@given(st.lists(st.integers(0, 500), max_size=20), st.integers(0, 5))
def test_results_come_before_control_batches(sizes: list[int], controls: int) -> None:
    """In a stream with state, in whichever segments they are."""
    output = StreamOutput(STREAMS[0], BATCH_BYTES)
    found: list[StagedSegment] = []
    for size in sizes:
        value = pa.array([bytes(size)], pa.binary())
        found += output.add_results(pa.nulls(1, pa.binary()), value, np.zeros(1, np.int64))
    marks = [bytes(encode_control_record(MARK_TYPE, {"n": at}, bytes(200), 0)) for at in range(controls)]
    found += output.finish(marks)
    batches = batches_of(found).get(STREAMS[0], [])
    assert batches[len(batches) - controls :] == marks
    plain = [header for batch in batches[: len(batches) - controls] for _, header in iterate_batches(batch)]
    assert not any(header.is_control for header in plain)
    assert sum(header.record_count for header in plain) == len(sizes)


def test_a_record_that_cannot_be_staged_is_refused() -> None:
    """By its size, before anything of it is sent."""
    cutter = SegmentCutter(BATCH_BYTES)
    with pytest.raises(InvalidRecord, match="at most 4000 can be staged"):
        list(cutter.add_records(columns([5_000]), np.zeros(1, np.int32), STREAMS))
