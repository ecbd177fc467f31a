"""Compressed records open exactly, up to a bound, and what is not of its codec is a named error."""

import gzip
from contextlib import suppress
from random import Random

import pytest

from logstore.errors import CorruptBatch
from logstore.format.compression import open_records
from tests.support.compressed import CODECS, xerial

PLAIN = Random(1).randbytes(3000) + b"repetitive " * 9000
LIMIT_BYTES = 1 << 20


@pytest.mark.parametrize("name", CODECS)
def test_records_open_as_they_were(name: str) -> None:
    """Every codec and framing gives back the bytes; nothing compressed too."""
    codec, compress = CODECS[name]
    for plain in (PLAIN, b"", b"x"):
        assert bytes(open_records(memoryview(compress(plain)), codec, LIMIT_BYTES)) == plain
    assert bytes(open_records(PLAIN, 0, LIMIT_BYTES)) == PLAIN


def test_gzip_of_several_members_opens() -> None:
    """The members of a gzip stream stand one behind the other."""
    assert bytes(open_records(gzip.compress(b"one ") + gzip.compress(b"two"), 1, LIMIT_BYTES)) == b"one two"


@pytest.mark.parametrize("name", CODECS)
def test_no_more_is_opened_than_the_bound(name: str) -> None:
    """A batch that opens to thousands of times its size gives its first bytes, and takes no more memory than those."""
    codec, compress = CODECS[name]
    bomb = compress(PLAIN + bytes(32 << 20))
    opened = open_records(bomb, codec, 100_000)
    assert len(opened) <= 100_000
    assert PLAIN.startswith(bytes(opened[: len(PLAIN)]))
    # A raw snappy block opens as a whole or not at all.
    assert (len(opened) > 60_000) == (name != "snappy-raw")


@pytest.mark.parametrize("name", CODECS)
def test_cut_and_foreign_bytes_are_named_errors(name: str) -> None:
    """A body that is cut anywhere, or is of another codec, is CorruptBatch, never another error."""
    codec, compress = CODECS[name]
    whole = compress(PLAIN)
    for length in range(0, len(whole) - 1, 97):
        if name == "snappy-xerial" and bytes(whole[:length]) in {xerial(PLAIN[:at]) for at in (0, 32768, 65536)}:
            continue  # a frame with fewer blocks is a frame
        with pytest.raises(CorruptBatch):
            open_records(whole[:length], codec, LIMIT_BYTES)
    random = Random(2)
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        with suppress(CorruptBatch):
            open_records(damaged, codec, LIMIT_BYTES)
    with pytest.raises(CorruptBatch, match=name.split("-")[0]):
        open_records(b"\x00nonsense", codec, LIMIT_BYTES)
    with pytest.raises(CorruptBatch, match="codec 5"):
        open_records(whole, 5, LIMIT_BYTES)
