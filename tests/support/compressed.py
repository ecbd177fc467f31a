"""Compressed batches as clients make them: each codec, and both framings of snappy."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Mapping

import cramjam
import lz4.frame

from logstore.format.batch import HEADER, HEADER_BYTES, parse_header, seal_batch

XERIAL_BLOCK_BYTES = 32 * 1024


def xerial(body: bytes) -> bytes:
    """Snappy as the Java client frames it."""
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for at in range(0, len(body), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(body[at : at + XERIAL_BLOCK_BYTES]))
        framed += struct.pack(">i", len(block)) + block
    return framed


CODECS: Mapping[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (1, gzip.compress),
    "snappy-raw": (2, lambda body: bytes(cramjam.snappy.compress_raw(body))),
    "snappy-xerial": (2, xerial),
    "lz4": (3, lambda body: bytes(lz4.frame.compress(body, block_linked=False))),
    "zstd": (4, lambda body: bytes(cramjam.zstd.compress(body))),
}
"""By name: the codec's number in a batch's attributes, and a compressor."""


def compressed(batch: bytes | bytearray, name: str) -> bytearray:
    """An uncompressed batch, compressed."""
    codec, compress = CODECS[name]
    return with_body(batch, codec, compress(bytes(batch[HEADER_BYTES:])))


def with_body(batch: bytes | bytearray, codec: int, body: bytes) -> bytearray:
    """A batch with the header of another, and a body that is said to be of that codec."""
    header = parse_header(batch)
    return seal_batch(bytearray(HEADER.pack(*header._replace(attributes=header.attributes | codec))) + body)
