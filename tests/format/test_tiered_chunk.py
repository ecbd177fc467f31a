"""Entries of the ledger `tier`: golden bytes, round trips, and what is refused."""

from __future__ import annotations

import pytest

from logstore.errors import CorruptFile, UnknownFormatVersion
from logstore.format.tiered_chunk import (
    ParsedKey,
    StoredObject,
    TieredChunk,
    decode_entry,
    encode_entry,
    object_key,
    parse_key,
)

CHUNK = TieredChunk(
    7, 9, 1_700_000_000_000, 55, "c/t.1/0", "0123456789abcdef", StoredObject(100, 1), StoredObject(20, 2), None, 3
)
GOLDEN = (
    b'{"v":1,"next":9,"newest":1700000000000,"written":55,"place":"c/t.1/0","attempt":"0123456789abcdef",'
    b'"log":[100,1],"index":[20,2],"producers":null,"epoch":3}'
)


def test_an_entry_is_as_the_format_says() -> None:
    """The bytes of a known chunk, both ways."""
    assert encode_entry(CHUNK) == GOLDEN
    assert decode_entry(7, GOLDEN, "here") == CHUNK
    assert CHUNK.all_bytes == 120


def test_what_is_no_entry_is_named() -> None:
    """Bytes of another kind are CorruptFile with their place, a newer version is UnknownFormatVersion."""
    for value in (b"", b"[]", b"{}", b"\xff", GOLDEN[:-1], GOLDEN.replace(b"[100,1]", b"[100]")):
        with pytest.raises(CorruptFile, match="here"):
            decode_entry(7, value, "here")
    with pytest.raises(UnknownFormatVersion, match="version 2"):
        decode_entry(7, GOLDEN.replace(b'"v":1', b'"v":2'), "here")


def test_keys_are_parsed_as_they_are_made() -> None:
    """A key gives place, base offset and attempt, also under its temporary name; any other key gives nothing."""
    key = object_key("c/t.1/0", 7, "0123456789abcdef", ".log")
    assert parse_key(key) == ParsedKey("c/t.1/0", 7, "0123456789abcdef")
    directory, _, name = key.rpartition("/")
    assert parse_key(f"{directory}/_{name}") == ParsedKey("c/t.1/0", 7, "0123456789abcdef")
    for other in ("", "a", "a/b", f"{directory}/readme", "x/00000000000000000007-abc/00000000000000000007.log"):
        assert parse_key(other) is None
