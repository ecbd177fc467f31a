"""The metadata of a stream: its steps, its invariants, its bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c

from logstore.errors import CorruptRegister, UnknownFormatVersion
from logstore.replica.registrations import (
    HEAD,
    MAX_DROPPED,
    UNKNOWN_TIME,
    ChunkRegistration,
    Member,
    OwnerId,
    Prefix,
    StreamRegistration,
    TieredCopy,
    changed_entries,
    decode_head,
    decode_registration,
    encode_registration,
)

A, B, C = Member("a", "disk1"), Member("b", "disk2"), Member("c", "disk3")
FIRST = StreamRegistration(3, 2).claimed(OwnerId("a", "a.1")).opened((A, B, C), 0)
END = Prefix(100, 7, 12345)
ROLLED = FIRST.rolled(END, (A, B), (C,), (A, B))
TRIMMED = FIRST.rolled(END, (A, B), (C,), (A, B), 5000).trimmed(3, keeps_last=True)
HEAD_BYTES = (
    b'a92e6ae5{"v":2,"copies":[3,2],"epoch":2,"owner":["a","a.1"],"open":{"epoch":2,"base":7,'
    b'"members":[["a","disk1"],["b","disk2"]],"candidates":[],"end":null},"sealed":[1,0,[100,7,12345]],"start":3}'
)
CHUNK_BYTES = (
    b'786155e4{"v":2,"epoch":1,"base":0,"members":[["a","disk1"],["b","disk2"]],'
    b'"candidates":[["c","disk3"]],"end":[100,7,12345],"written":5000}'
)

COPY = TieredCopy("0000000001000000", 1_700_000_000_000, (40, 11), (60, 12))
TIERED = TRIMMED.with_tiered(1, COPY)
TIERED_BYTES = (
    b'247d8781{"v":3,"epoch":1,"base":0,"members":[["a","disk1"],["b","disk2"]],"candidates":[["c","disk3"]],'
    b'"end":[100,7,12345],"written":5000,"tier":["0000000001000000",1700000000000,[40,11],[60,12]]}'
)


def test_every_set_has_an_epoch_of_its_own() -> None:
    """A roll opens the next chunk with a higher epoch, where the sealed one ends, also if nothing was in it."""
    assert (FIRST.epoch, ROLLED.epoch) == (1, 2)
    assert ROLLED.chunks == (ChunkRegistration(1, 0, (A, B), END, (C,)), ChunkRegistration(2, 7, (A, B)))
    empty = FIRST.rolled(Prefix.empty(0), (A,), (), (B, C))
    assert empty.chunks == (ChunkRegistration(2, 0, (B, C)),)


def test_a_claim_takes_the_next_epoch_and_its_chunk_has_it() -> None:
    """The epoch of a claim is that of the chunk which the new owner opens; a later chunk has a higher one."""
    claimed = ROLLED.claimed(OwnerId("b", "b.1"))
    assert claimed.epoch == 3
    assert claimed.open_chunk == ROLLED.open_chunk
    sealed = claimed.sealed(Prefix(10, 9, 1), (B,))
    opened = sealed.opened((B, C), 9)
    assert [chunk.epoch for chunk in opened.chunks] == [1, 2, 3]
    with pytest.raises(AssertionError, match="a chunk is open"):
        opened.opened((B, C), 9)
    with pytest.raises(AssertionError, match="no chunk is open"):
        sealed.sealed(Prefix(10, 9, 1), (B,))


def test_readers_see_what_lies_in_front_of_the_last_chunk() -> None:
    """A last chunk that is sealed is not for readers yet: too few hosts may have what was never acknowledged in it."""
    assert (FIRST.settled_offset, ROLLED.settled_offset) == (0, 7)
    sealed = ROLLED.sealed(Prefix(10, 9, 1), (A,))
    assert sealed.settled_offset == 7
    assert sealed.chunk_at(8) is sealed.last_chunk
    assert sealed.chunk_at(9) is None


@pytest.mark.parametrize(
    "broken",
    [
        replace(ROLLED, epoch=1),
        replace(ROLLED, chunks=(ROLLED.chunks[0], replace(ROLLED.chunks[1], base_offset=8))),
        replace(ROLLED, chunks=(ROLLED.chunks[0], replace(ROLLED.chunks[1], epoch=1))),
        replace(ROLLED, chunks=(ROLLED.chunks[0], replace(ROLLED.chunks[1], members=()))),
        replace(ROLLED, chunks=(ROLLED.chunks[0], replace(ROLLED.chunks[1], members=(A, A)))),
        replace(ROLLED, chunks=(ROLLED.chunks[0], replace(ROLLED.chunks[1], candidates=(C,)))),
        replace(ROLLED, chunks=(replace(ROLLED.chunks[0], end=None), ROLLED.chunks[1])),
        replace(ROLLED, chunks=(replace(ROLLED.chunks[0], end=Prefix(0, 7, 0)), ROLLED.chunks[1])),
        replace(ROLLED, chunks=(replace(ROLLED.chunks[0], members=()), ROLLED.chunks[1])),
        replace(TIERED, chunks=(replace(TIERED.chunks[0], members=()), TIERED.chunks[1])),
        replace(TIERED, chunks=(TIERED.chunks[0], replace(TIERED.chunks[1], tiered=COPY))),
        replace(ROLLED, chunks=ROLLED.chunks[1:]),
        replace(ROLLED, chunks=ROLLED.chunks[:1], log_start=8),
    ],
)
def test_a_registration_that_breaks_an_invariant_is_not_written(broken: StreamRegistration) -> None:
    """What `check` refuses: epochs that fall, gaps, two open chunks, no or the same members, empty sealed chunks."""
    with pytest.raises(AssertionError, match="chunk"):
        broken.check()


def test_the_last_chunk_may_lie_in_the_tier_alone() -> None:
    """As a takeover finds it when its members were removed, and nothing was appended behind it: the next chunk begins
    where it ends.
    """
    alone = replace(TIERED, chunks=(replace(TIERED.chunks[0], members=(), candidates=()),), epoch=2)
    alone.check()
    assert decode_registration(encode_registration(alone)) == alone
    opened = alone.opened((A, B), 7)
    opened.check(alone)
    assert [chunk.base_offset for chunk in opened.chunks] == [0, 7]


def test_the_bytes_of_a_registration() -> None:
    """The entries of a registration are these bytes, and are read back."""
    entries = encode_registration(TRIMMED)
    assert entries == {
        HEAD: HEAD_BYTES,
        "00000000000000000000": CHUNK_BYTES,
    }
    assert decode_registration(entries) == TRIMMED
    assert decode_registration(encode_registration(StreamRegistration(1, 1))) == StreamRegistration(1, 1)
    nothing_left = FIRST.rolled(END, (A, B), (), (A, B)).trimmed(7, keeps_last=False)
    assert decode_registration(encode_registration(nothing_left)) == nothing_left


def test_entries_of_the_first_version_are_read() -> None:
    """They have no log start, which was 0, and do not say when a chunk was written."""
    entries = {
        HEAD: b'465a0c9d{"v":1,"copies":[3,2],"epoch":2,"owner":["a","a.1"],"open":{"epoch":2,"base":7,"members":'
        b'[["a","disk1"],["b","disk2"]],"candidates":[],"end":null},"sealed":[1,0,[100,7,12345]]}',
        "00000000000000000000": b'429a85ee{"v":1,"epoch":1,"base":0,"members":[["a","disk1"],["b","disk2"]],'
        b'"candidates":[["c","disk3"]],"end":[100,7,12345]}',
    }
    assert decode_registration(entries) == ROLLED
    assert (ROLLED.log_start, ROLLED.chunks[0].written_ms) == (0, UNKNOWN_TIME)
    claimed = ROLLED.claimed(OwnerId("b", "b.1"))
    written, _ = changed_entries(ROLLED, claimed)
    assert decode_registration({**entries, **written}) == claimed
    assert decode_head(entries[HEAD]).log_start == 0


def long_registration(count: int) -> StreamRegistration:
    """A registration with so many sealed chunks of ten records."""
    registration = FIRST
    for number in range(count):
        registration = registration.rolled(Prefix(100, 10 * number + 10, number), (A, B), (), (A, B), 1_000 * number)
    return registration


def test_a_trim_drops_chunks_without_records_behind_the_log_start() -> None:
    """The chunk in which the log starts stays, and so does the open one."""
    registration = long_registration(4)
    assert registration.trimmed(9, keeps_last=True).chunks == registration.chunks
    trimmed = registration.trimmed(25, keeps_last=True)
    assert (trimmed.log_start, trimmed.chunks) == (25, registration.chunks[2:])
    assert trimmed.trimmed(20, keeps_last=True) == trimmed, "a log start never goes back"
    everything = registration.trimmed(40, keeps_last=True)
    assert (everything.log_start, everything.chunks) == (40, registration.chunks[3:])
    assert everything.trimmed(40, keeps_last=False).chunks == registration.chunks[4:]
    for each in (trimmed, everything):
        each.check()


def test_a_trim_is_bounded_and_goes_on() -> None:
    """Each step is one transaction, and readers see the whole trim at once."""
    registration = long_registration(150)
    steps = [registration.trimmed(1_405, keeps_last=True)]
    while (after := steps[-1].trimmed(1_405, keeps_last=True)) != steps[-1]:
        steps.append(after)
    assert [len(step.chunks) for step in steps] == [91, 31, 11]
    assert {step.log_start for step in steps} == {1_405}
    for step in steps:
        step.check()


def test_an_empty_stream_goes_on_at_its_log_start() -> None:
    """All is trimmed, and the open chunk is sealed without batches: the next one begins where the log starts."""
    registration = long_registration(1).trimmed(10, keeps_last=False)
    sealed = registration.claimed(OwnerId("b", "b.1")).sealed(Prefix.empty(10), (A,))
    sealed.check()
    assert (sealed.chunks, sealed.settled_offset) == ((), 10)
    assert decode_registration(encode_registration(sealed)) == sealed


def test_a_chunk_in_the_tier_has_an_entry_of_the_third_version() -> None:
    """It says where the chunk lies; all other entries are of the second version, which older hosts read, and a host
    that reads no third version says so.
    """
    entries = encode_registration(TIERED)
    assert entries == {HEAD: HEAD_BYTES, "00000000000000000000": TIERED_BYTES}
    assert decode_registration(entries) == TIERED
    written, removed = changed_entries(TRIMMED, TIERED)
    assert (written, removed) == (entries, [])
    without = replace(
        TIERED, chunks=(replace(TIERED.chunks[0], tiered=COPY._replace(producers_sum=None)), *TIERED.chunks[1:])
    )
    assert decode_registration(encode_registration(without)) == without
    newer = b'{"v":4' + TIERED_BYTES[14:]
    with pytest.raises(UnknownFormatVersion, match="at most 3"):
        decode_registration({**entries, "00000000000000000000": b"%08x" % crc32c(newer) + newer})


def test_what_says_where_a_chunk_lies_is_written_once() -> None:
    """A second attempt, an open chunk and one that is not listed change nothing."""
    other = COPY._replace(attempt="0000000002000000")
    for epoch, before in ((1, TIERED), (2, TRIMMED), (7, TRIMMED)):
        assert before.with_tiered(epoch, other) == before
    assert TIERED.with_copies(1, (A, B, C)).chunks[0].tiered == COPY


def test_copies_go_where_the_tier_has_the_chunk() -> None:
    """In front of an offset, as many as a swap takes; never those of the last sealed chunk, nor of one that is not in
    the tier.
    """
    registration = long_registration(100)
    for chunk in registration.chunks[:-1]:
        if chunk.epoch != 3:
            registration = registration.with_tiered(chunk.epoch, COPY)
    assert registration.without_members(9) == registration
    first = registration.without_members(2_000)
    assert [chunk.epoch for chunk in first.chunks if chunk.is_tiered_alone] == [1, 2, *range(4, MAX_DROPPED + 2)]
    second = first.without_members(2_000)
    assert [chunk.epoch for chunk in second.chunks if not chunk.is_tiered_alone] == [3, 100, 101]
    assert second.without_members(2_000) == second
    for before, after in ((registration, first), (first, second)):
        after.check(before)
        written, removed = changed_entries(before, after)
        assert (len(written) <= MAX_DROPPED + 1, removed) == (True, [])
    assert decode_registration(encode_registration(second)) == second
    assert second.trimmed(45, keeps_last=True).chunks == second.chunks[4:]


def test_a_swap_writes_what_has_changed() -> None:
    """A roll writes the head and one chunk, however many there are; entries of what is gone are removed."""
    registration = ROLLED
    for number in range(50):
        offset = 10 + number
        registration = registration.rolled(Prefix(100, offset, number), (A, B), (), (A, B))
    rolled = registration.rolled(Prefix(100, 70, 1), (A, B), (), (A, C))
    written, removed = changed_entries(registration, rolled)
    assert sorted(written) == [f"{registration.chunks[-1].base_offset:020d}", HEAD]
    assert removed == []
    written, removed = changed_entries(rolled, rolled.trimmed(10, keeps_last=True))
    assert list(written) == [HEAD]
    assert removed == [f"{chunk.base_offset:020d}" for chunk in rolled.chunks[:2]]
    copied = rolled.with_copies(rolled.chunks[30].epoch, (A, B, C))
    written, removed = changed_entries(rolled, copied)
    assert (sorted(written), removed) == ([f"{rolled.chunks[30].base_offset:020d}", HEAD], [])


def test_every_flipped_bit_is_found() -> None:
    """A flipped bit in any entry is CorruptRegister: a replica removes what a registration does not list."""
    entries = encode_registration(ROLLED)
    for name, value in entries.items():
        for bit in range(8 * len(value)):
            damaged = bytearray(value)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(CorruptRegister):
                decode_registration({**entries, name: bytes(damaged)})


@pytest.mark.parametrize("name", sorted(encode_registration(ROLLED)))
def test_a_missing_entry_is_found(name: str) -> None:
    """So is an entry that is missing, or that belongs to an older registration."""
    entries = encode_registration(ROLLED)
    with pytest.raises(CorruptRegister):
        decode_registration({other: value for other, value in entries.items() if other != name})
    older = encode_registration(FIRST.rolled(Prefix(90, 6, 1), (A,), (), (A, B)))
    with pytest.raises(CorruptRegister):
        decode_registration({**entries, name: older[name]})


def test_an_unknown_version_is_named() -> None:
    """A registration of a newer version is refused by name; garbage is never another error."""
    from logstore.replica.registrations import _entry

    with pytest.raises(UnknownFormatVersion, match="version 3"):
        decode_registration({HEAD: _entry({"v": 3})})
    for fields in (
        {},
        {"v": 1},
        {"v": 2},
        {"v": 1, "sealed": [0], "open": 3, "copies": 1, "epoch": "x", "owner": None},
    ):
        with pytest.raises((CorruptRegister, UnknownFormatVersion)):
            decode_registration({HEAD: _entry(fields)})
    for value in (b"", b"00000000", b"00000000[1]"):
        with pytest.raises(CorruptRegister):
            decode_registration({HEAD: value})
