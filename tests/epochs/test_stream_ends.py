"""What the owner of a stream knows of the epochs in it: the newest END of each query, from an offset on."""

import pytest

from logstore.epochs import stream_ends
from logstore.epochs.stream_ends import EndSearch, StreamEnds
from logstore.format.control import Begin, End, encode_control


def end(query: str, epoch: int) -> bytes:
    """An END control batch."""
    return bytes(encode_control(End(query, epoch, 1, b""), timestamp_ms=0))


def test_an_epoch_is_there_if_its_end_or_a_later_one_lies_behind_its_decision() -> None:
    """One that lies in front of the decision is of an earlier life of the query's name."""
    ends = StreamEnds(0)
    assert not ends.has("q", 0, 0)
    ends.note("q", 5, 100)
    assert ends.has("q", 5, 100)
    assert ends.has("q", 4, 90)
    assert not ends.has("q", 6, 90)
    assert not ends.has("other", 5, 0)
    assert not ends.has("q", 0, 101)


def test_what_lies_in_front_is_searched_for_once() -> None:
    """Then everything from there on is known."""
    ends = StreamEnds(1000)
    assert ends.must_search(999)
    assert not ends.must_search(1000)
    begin = bytes(encode_control(Begin("q", 7, 1, (), 0, 0), timestamp_ms=0))
    search = EndSearch("q")
    for offset, batch in [(500, end("q", 6)), (450, end("p", 1)), (900, end("q", 7)), (899, begin)]:
        search.take(offset, batch)
    assert search.has("q", 7, 900)
    assert not search.has("q", 7, 901)
    assert not search.has("q", 8, 0)
    assert not search.has("p", 1, 0), "nobody asked for it"
    ends.searched(400, search)
    assert not ends.must_search(400)
    assert ends.must_search(399)
    assert ends.has("q", 7, 600)
    assert ends.has("p", 1, 400)


def test_of_many_queries_the_one_that_ended_first_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in front of its END has to be searched again then; nothing is known wrongly."""
    monkeypatch.setattr(stream_ends, "MAX_QUERIES", 3)
    ends = StreamEnds(0)
    for number in range(4):
        ends.note(f"q{number}", 1, 10 * number)
    assert ends.must_search(0)
    assert not ends.must_search(1)
    assert not ends.has("q0", 1, 0)
    assert ends.has("q1", 1, 1)


@pytest.mark.parametrize("is_newest_first", [True, False])
def test_a_search_keeps_little_and_knows_what_it_was_made_for(
    monkeypatch: pytest.MonkeyPatch, *, is_newest_first: bool
) -> None:
    """Whatever a stream has: the newest queries are known from where all are, and the one that was asked for is known
    though it lies further back; nothing is known wrongly.
    """
    monkeypatch.setattr(stream_ends, "MAX_QUERIES", 10)
    search, found = EndSearch("q3"), [(number, f"q{number // 2}") for number in range(200)]
    for offset, query in reversed(found) if is_newest_first else found:
        search.take(offset, end(query, offset))
        assert len(search.ends) <= 20
    assert search.has("q3", 7, 0)
    assert not search.has("q3", 8, 0)
    assert not EndSearch("q").has("q", 0, 0)
    ends = StreamEnds(200)
    ends.searched(0, search)
    assert 170 < ends.known_from <= 181
    for number in range(90, 100):
        assert ends.has(f"q{number}", 2 * number + 1, ends.known_from)
    for offset in range(200):
        assert ends.must_search(offset) == (offset < ends.known_from)
        if not ends.must_search(offset):
            assert ends.has(f"q{offset // 2}", offset, offset)
