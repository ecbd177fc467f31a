"""The share of catch-up reads beside writes: spaced while streams are written, and never held up otherwise."""

from __future__ import annotations

from logstore.log.read_share import BESIDE_S, BYTES_PER_S, ReadShare

NOW_S = 1_000.0
SIZE_BYTES = 1 << 20
COST_S = SIZE_BYTES / BYTES_PER_S


def beside_writes() -> ReadShare:
    """A share while a stream is written, at NOW_S."""
    share = ReadShare()
    write(share, NOW_S)
    return share


def write(share: ReadShare, now_s: float, took_s: float = 0.0) -> None:
    """A write that is synced."""
    share.begin_write(now_s)
    share.end_write(now_s + took_s)


def read(share: ReadShare, size_bytes: int, now_s: float) -> None:
    """A read of up to a MiB that gives so many bytes, and ends at once."""
    share.end_read(share.begin_read(SIZE_BYTES, now_s), size_bytes)


def test_nobody_waits_without_writes() -> None:
    """However much is read: before the first write, and a while after the last."""
    share = ReadShare()
    for _ in range(1000):
        read(share, SIZE_BYTES, NOW_S)
        assert share.wait_s(NOW_S) == 0
    write(share, NOW_S)
    read(share, SIZE_BYTES, NOW_S)
    assert share.wait_s(NOW_S) > 0
    assert share.wait_s(NOW_S + 2 * BESIDE_S) == 0


def test_what_was_read_without_writes_is_not_paid_for_when_a_write_begins() -> None:
    """A reader that got a second's share in a fifth of a second is not held up for the rest of it by one write."""
    share = ReadShare()
    for step in range(1000):
        read(share, SIZE_BYTES, NOW_S + step * COST_S / 5)
    end_s = NOW_S + 1000 * COST_S / 5
    write(share, end_s)
    assert share.wait_s(end_s) == 0
    read(share, SIZE_BYTES, end_s)
    assert abs(share.wait_s(end_s) - COST_S) < COST_S / 1000


def test_a_read_that_began_without_writes_gives_nothing_back() -> None:
    """Of many reads that find little, those that were not paid for do not shorten the wait of others."""
    share = ReadShare()
    paid_bytes = [share.begin_read(SIZE_BYTES, NOW_S) for _ in range(10)]
    write(share, NOW_S)
    for _ in range(5):
        read(share, SIZE_BYTES, NOW_S)
    for paid in paid_bytes:
        share.end_read(paid, 100)
    assert abs(share.wait_s(NOW_S) - 5 * COST_S) < COST_S / 1000


def test_beside_writes_a_read_begins_when_those_before_are_paid_for() -> None:
    """The reads of all readers add up; so a burst of several is followed by a pause for all of them."""
    share = beside_writes()
    assert share.wait_s(NOW_S) == 0
    for count in range(1, 5):
        read(share, SIZE_BYTES, NOW_S)
        assert abs(share.wait_s(NOW_S) - count * COST_S) < COST_S / 1000
    assert share.wait_s(NOW_S + 4.001 * COST_S) == 0


def test_a_read_that_has_not_ended_is_paid_for() -> None:
    """While a disk takes its time for a read, those that wait do not all begin behind the payment of the one before."""
    share = beside_writes()
    paid_bytes = share.begin_read(SIZE_BYTES, NOW_S)
    assert share.wait_s(NOW_S + 0.5 * COST_S) > 0
    share.end_read(paid_bytes, 2 * SIZE_BYTES)
    assert abs(share.wait_s(NOW_S) - 2 * COST_S) < COST_S / 1000


def test_a_reader_that_comes_later_than_its_share_allows_does_not_wait() -> None:
    """A slow reader is not slowed down, and time without reads is not saved for a burst."""
    share = beside_writes()
    for step in range(10):
        assert share.wait_s(NOW_S + 2 * COST_S * step) == 0
        read(share, SIZE_BYTES, NOW_S + 2 * COST_S * step)
    assert share.wait_s(NOW_S + 18 * COST_S) > COST_S / 2


def test_small_reads_of_many_streams_hardly_wait() -> None:
    """A fetch from a hundred partitions that gets a few bytes of each is not spaced like a hundred large reads."""
    share = beside_writes()
    for _ in range(100):
        read(share, 100, NOW_S)
    assert share.wait_s(NOW_S) < COST_S / 100


def test_every_write_prolongs_the_time_in_which_reads_are_spaced() -> None:
    """As long as a producer sends, its requests find the event loop free most of the time."""
    share = beside_writes()
    for step in range(20):
        now_s = NOW_S + step * BESIDE_S * 0.9
        read(share, SIZE_BYTES, now_s)
        assert share.wait_s(now_s) > 0
        write(share, now_s)


def test_a_write_counts_for_as_long_as_it_takes() -> None:
    """While a disk takes seconds for a sync, readers keep to their share: at full speed they would make it slower. It
    counts for BESIDE_S behind its end, whichever of several ends first.
    """
    share, end_s = ReadShare(), NOW_S + 100 * BESIDE_S
    share.begin_write(NOW_S)
    share.begin_write(NOW_S)
    share.end_write(NOW_S)
    for now_s in (NOW_S + 2 * BESIDE_S, end_s):
        read(share, SIZE_BYTES, now_s)
        assert abs(share.wait_s(now_s) - COST_S) < COST_S / 1000
    share.end_write(end_s)
    assert share.is_beside_writes(end_s + 0.9 * BESIDE_S)
    assert not share.is_beside_writes(end_s + 1.1 * BESIDE_S)


def test_a_read_that_fails_gives_back_what_it_has_paid() -> None:
    """Reads that give nothing hold no other one up."""
    share = beside_writes()
    for _ in range(100):
        read(share, 0, NOW_S)
    assert share.wait_s(NOW_S) == 0
