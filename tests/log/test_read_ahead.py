"""Read-ahead serves what a plain read would, once, within its bound."""

from hypothesis import given
from hypothesis import strategies as st

from logstore.format.batch import iterate_batches
from logstore.format.records import Record, encode_batch
from logstore.log.read_ahead import MAX_POSITIONS, ReadAhead, ReadPosition, split
from logstore.log.reading import KEPT_TIMES, ReadResult, compact

SIZES = st.lists(st.integers(1, 400), min_size=1, max_size=12)


def result_of(sizes: list[int], joined: int) -> ReadResult:
    """Batches of one record each with values of these sizes, the first `joined` of them in one buffer."""
    batches = [bytes(encode_batch([Record(0, 0, None, b"v" * size)], base_offset=at)) for at, size in enumerate(sizes)]
    buffers = [b"".join(batches[:joined]), *batches[joined:]] if joined else list(batches)
    return ReadResult([buffer for buffer in buffers if buffer], len(sizes), sum(map(len, batches)))


@given(SIZES, st.integers(0, 12), st.integers(1, 3000))
def test_a_split_is_at_a_batch_and_loses_nothing(sizes: list[int], joined: int, max_bytes: int) -> None:
    """Both halves together are the whole; the first has at least one batch, and is within the limit if it can be."""
    whole = result_of(sizes, min(joined, len(sizes)))
    served, rest = split(whole, max_bytes)
    assert b"".join([*served.buffers, *rest.buffers]) == b"".join(whole.buffers)
    assert served.size_bytes == sum(map(len, served.buffers))
    assert rest.size_bytes == sum(map(len, rest.buffers))
    offsets = [header.base_offset for _, header in iterate_batches(b"".join(served.buffers))]
    assert offsets == list(range(served.next_offset))
    assert served.size_bytes <= max_bytes or len(offsets) == 1
    assert rest.next_offset == len(sizes)


@given(SIZES, st.lists(st.integers(1, 2000), min_size=20, max_size=20))
def test_taking_piece_by_piece_gives_the_whole(sizes: list[int], wants: list[int]) -> None:
    """A reader that takes as it likes gets every batch once, in order; then nothing is left."""
    ahead = ReadAhead(1 << 20)
    whole = result_of(sizes, 0)
    ahead.put(ReadPosition("s", 0, False), whole)
    place, got = ReadPosition("s", 0, False), b""
    for want in wants:
        taken = ahead.take(place, want)
        if taken is None:
            break
        got += b"".join(taken.buffers)
        place = place._replace(offset=taken.next_offset)
    rest = ahead.take(place, 1 << 20)
    got += b"".join(rest.buffers) if rest is not None else b""
    assert got == b"".join(whole.buffers)
    assert not ahead.holds(place)


def kept_bytes(result: ReadResult) -> int:
    """Bytes of memory that a result keeps from being used again."""
    owners = [memoryview(buffer).obj for buffer in result.buffers]
    return sum({id(owner): memoryview(owner).nbytes for owner in owners}.values())


def test_a_part_of_a_piece_keeps_no_more_memory_than_it_counts() -> None:
    """A few of many batches that were read at once, whether they are copied to be served later or left for later, are
    not all of them.
    """
    one = result_of([100], 0).size_bytes
    whole, ahead, place = result_of([100] * 100, 100), ReadAhead(1 << 20), ReadPosition("s", 0, False)
    for wanted in (one, 10 * one, 90 * one, 99 * one):
        served, rest = split(whole, wanted)
        ahead.put(place, rest)
        kept = ahead.take(place, whole.size_bytes) or ReadResult([], 0, 0)
        assert b"".join(kept.buffers) == b"".join(rest.buffers)
        assert kept_bytes(compact(served)) <= KEPT_TIMES * served.size_bytes
        assert kept_bytes(kept) <= KEPT_TIMES * kept.size_bytes


def test_as_many_pieces_are_kept_as_places_of_readers() -> None:
    """However small they are: each costs more than its bytes."""
    one = result_of([1], 0)
    ahead = ReadAhead(1 << 20)
    places = [ReadPosition("s", number, False) for number in range(MAX_POSITIONS + 10)]
    for place in places:
        ahead.put(place, one)
    assert [place for place in places if ahead.holds(place)] == places[10:]


def test_the_oldest_goes_when_there_is_no_room() -> None:
    """The bound holds over all readers; what was put first goes first."""
    one = result_of([100], 0)
    ahead = ReadAhead(3 * one.size_bytes)
    places = [ReadPosition("s", number, False) for number in range(5)]
    for place in places:
        ahead.put(place, one)
    assert [ahead.holds(place) for place in places] == [False, False, True, True, True]


def test_only_who_reads_on_is_sequential() -> None:
    """A place is sequential if somebody was served up to exactly there."""
    ahead = ReadAhead(1000)
    ahead.note(ReadPosition("s", 0, False), 7)
    assert ahead.is_sequential(ReadPosition("s", 7, False))
    assert not ahead.is_sequential(ReadPosition("s", 8, False))
    assert not ahead.is_sequential(ReadPosition("s", 7, True))
