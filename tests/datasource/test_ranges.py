"""Admission control and splitting, as pure functions: nothing twice, nothing left out, nobody starved."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spe_adapter.datasource.offsets import Offsets, TopicPartition, from_json, to_json
from spe_adapter.datasource.ranges import StreamRange, available, limited, split

STREAMS = st.builds(TopicPartition, st.sampled_from(["a", "b", "ü"]), st.integers(0, 30))
POSITIONS = st.dictionaries(STREAMS, st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1)


def offsets(positions: dict[TopicPartition, tuple[int, int]]) -> tuple[Offsets, Offsets]:
    """Starts, and ends at or behind them."""
    return (
        {stream: start for stream, (start, _) in positions.items()},
        {stream: start + more for stream, (start, more) in positions.items()},
    )


@given(POSITIONS, st.integers(1, 5000))
def test_a_limit_is_shared_out_and_starves_nobody(
    positions: dict[TopicPartition, tuple[int, int]], max_offsets: int
) -> None:
    """No stream passes its end or stands still with something to read; in all about `max_offsets`, one more per tiny
    share at most.
    """
    start, latest = offsets(positions)
    end = limited(start, latest, max_offsets)
    assert set(end) == set(latest)
    for stream, offset in end.items():
        assert start[stream] <= offset <= latest[stream]
        assert offset > start[stream] or latest[stream] == start[stream]
    assert available(start, end) <= max_offsets + len(end)


@given(POSITIONS, st.integers(1, 5000))
def test_repeated_steps_reach_the_end(positions: dict[TopicPartition, tuple[int, int]], max_offsets: int) -> None:
    """A query that ends where the streams did gets there."""
    position, latest = offsets(positions)
    for _ in range(available(position, latest) + 1):
        position = limited(position, latest, max_offsets)
    assert position == latest


@given(POSITIONS, st.none() | st.integers(1, 64), st.none() | st.integers(1, 300))
def test_pieces_cover_their_ranges_exactly(
    positions: dict[TopicPartition, tuple[int, int]], min_parts: int | None, max_records: int | None
) -> None:
    """Each offset in exactly one piece, none empty, none too large."""
    start, end = offsets(positions)
    ranges = [StreamRange(stream, start[stream], end[stream]) for stream in start]
    pieces = split(ranges, min_parts, max_records)
    assert all(piece.size > 0 for piece in pieces)
    if max_records is not None:
        assert all(piece.size <= max_records for piece in pieces)
    covered: dict[TopicPartition, int] = dict(start)
    for piece in pieces:
        assert piece.start == covered[piece.stream]
        covered[piece.stream] = piece.end
    assert covered == end


def test_few_streams_are_split_by_their_size() -> None:
    """As Spark's Kafka source does: small ranges stay whole, large ones share the rest."""
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    pieces = split([StreamRange(a, 0, 10), StreamRange(b, 0, 990)], 4, None)
    assert pieces == [
        StreamRange(a, 0, 10),
        StreamRange(b, 0, 330),
        StreamRange(b, 330, 660),
        StreamRange(b, 660, 990),
    ]


@given(st.dictionaries(STREAMS, st.integers(-2, 2**62)))
def test_offsets_survive_json_and_equal_offsets_are_equal_texts(given_offsets: Offsets) -> None:
    """Spark compares the texts, so order must not depend on how a dictionary was filled."""
    assert from_json(to_json(given_offsets)) == given_offsets
    shuffled = dict(reversed(given_offsets.items()))
    assert str(to_json(shuffled)) == str(to_json(given_offsets))
