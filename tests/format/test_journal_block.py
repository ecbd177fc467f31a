"""Blocks of the journal in a file: in order, behind damage, over what a reused file held before, and forged."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from logstore.errors import UnknownFormatVersion
from logstore.format.journal_block import (
    WITH_LEDGER,
    PartPlace,
    begins_with_another_key,
    encode_head,
    encode_opening,
    scan_blocks,
)
from tests.format.test_codecs import DECIDED, KEY, PARTS, journal_block

OTHER_KEY = bytes.fromhex("0123456789abcdee")


def _as_next_version(block: bytes) -> bytes:
    """A block with the next version, under a right checksum."""
    changed = bytearray(block)
    changed[5] += 1
    crc = crc32c(bytes(changed[44:]), crc32c(bytes(changed[:40])))
    return bytes(changed[:40]) + crc.to_bytes(4, "big") + bytes(changed[44:])


def _blocks(generation: int, count: int, length: int = 20) -> list[bytes]:
    """Blocks as they follow each other in a file; each part's base offset is its number."""
    blocks: list[bytes] = []
    for number in range(count):
        place = PartPlace(b"s/0", 0, 1000 + number * length, number)
        blocks.append(journal_block(generation, sum(map(len, blocks)), [(place, bytes([65 + number]) * length)]))
    return blocks


def _numbers(data: bytes) -> list[int]:
    return [part.place.base_offset for part in scan_blocks(data, KEY).parts]


@pytest.mark.parametrize("data", [b"", b"\0", b"\0" * 4096, b"CJBK", b"CJBK" + b"\0" * 36, b"CJBK" + b"\xff" * 36])
def test_a_journal_without_blocks(data: bytes) -> None:
    """An empty file, zeros and a head alone hold nothing, and are no damage."""
    assert scan_blocks(data, KEY) == ([], 0, 0, [], {})


def test_a_journal_file_notes_where_others_end() -> None:
    """The block that a file begins with holds no batches; the ends in it are found whatever follows."""
    opening = encode_opening(7, [(5, 900), (6, 1200)], key=KEY)
    place = PartPlace(b"streams/t.00/0", 0, 100, 3)
    block = encode_head(7, len(opening), [(place, [b"batches"])], key=KEY) + b"batches"
    for data in (opening + block, opening + block + bytes(50)):
        found = scan_blocks(data, KEY)
        assert found.ends == {5: 900, 6: 1200}
        assert [(part.place, bytes(part.data)) for part in found.parts] == [(place, b"batches")]
        assert (found.generation, found.end, found.damaged) == (7, len(opening + block), [])
    assert scan_blocks(encode_opening(7, [], key=KEY), KEY) == ([], 7, len(encode_opening(7, [], key=KEY)), [], {})


def test_journal_blocks_in_order() -> None:
    """All blocks up to the zeros behind them."""
    blocks = _blocks(4, 3)
    scan = scan_blocks(b"".join(blocks) + b"\0" * 500, KEY)
    assert [part.place.base_offset for part in scan.parts] == [0, 1, 2]
    assert (scan.generation, scan.end, scan.damaged) == (4, sum(map(len, blocks)), [])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_journal_block_is_named_and_the_others_count(number: int) -> None:
    """Every bit of a block in front of others: its position is reported, and what stands behind it is found."""
    blocks = _blocks(4, 4)
    position = sum(map(len, blocks[:number]))
    for bit in range(8 * len(blocks[number])):
        data = bytearray(b"".join(blocks))
        data[position + bit // 8] ^= 0x80 >> bit % 8
        scan = scan_blocks(bytes(data), KEY)
        assert [part.place.base_offset for part in scan.parts] == [n for n in range(4) if n != number]
        assert (scan.generation, scan.damaged) == (4, [position])


@pytest.mark.parametrize("written", [0, 1, 2])
def test_blocks_of_an_older_generation_do_not_count(written: int) -> None:
    """Behind the blocks of a file's new generation, torn at any byte, those that it held before are not taken."""
    old = b"".join(_blocks(4, 6))
    fresh = _blocks(7, 3, length=27)
    whole = b"".join(fresh[: written + 1])
    start = len(whole) - len(fresh[written])
    for kept in range(start, len(whole)):
        data = whole[:kept] + old[kept:]
        if written:  # before its first block the file is one of the older generation
            assert _numbers(data) == list(range(written)), kept
            assert scan_blocks(data, KEY).generation == 7
        else:
            assert scan_blocks(data, KEY).generation in (0, 4)


def test_a_journal_block_in_another_place_does_not_count() -> None:
    """A block that a batch carries, or that a disk put elsewhere, is none: it states its position."""
    inner = journal_block(4, 0, PARTS)
    block = journal_block(4, 0, [(PartPlace(b"s/0", 0, 1, 1), inner)])
    torn = bytearray(block)
    torn[10] ^= 1
    assert scan_blocks(bytes(torn), KEY).parts == []
    assert scan_blocks(b"\0" * 64 + inner, KEY).parts == []


def test_a_newer_version_is_named() -> None:
    """An intact block of a newer version is no damage: the error says which version it is."""
    with pytest.raises(UnknownFormatVersion, match="3"):
        scan_blocks(_as_next_version(journal_block(3, 0, DECIDED, version=WITH_LEDGER)), KEY)


def test_a_block_with_another_key_is_no_block() -> None:
    """At a file's start, behind its blocks and behind damage: whatever fits but for the key is not taken, nor does an
    unknown version in it stop anybody. A viewer, who gives no key, sees it.
    """
    first = journal_block(4, 0, [PARTS[0]])
    forged = journal_block(4, len(first), [PARTS[1]], key=OTHER_KEY)
    for behind in (forged, _as_next_version(forged)):
        scan = scan_blocks(first + behind, KEY)
        assert [part.place for part in scan.parts] == [PARTS[0][0]]
        assert (scan.end, scan.damaged) == (len(first), [])
        torn = bytearray(first + behind)
        torn[10] ^= 1
        assert scan_blocks(bytes(torn), KEY) == ([], 0, 0, [], {})
    assert [part.place for part in scan_blocks(first + forged, None).parts] == [place for place, _ in PARTS]


def test_a_file_of_another_key_is_told_from_one_without_blocks() -> None:
    """A valid block at the start of a file can only be of whoever wrote the file; bytes further on prove nothing."""
    block, other = journal_block(4, 0, PARTS), journal_block(4, 0, PARTS, key=OTHER_KEY)
    assert begins_with_another_key(other, KEY)
    assert not begins_with_another_key(block, KEY)
    for data in (b"", bytes(4096), other[:-1], b"\0" + other):
        assert not begins_with_another_key(data, KEY)
