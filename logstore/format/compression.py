"""Decompresses the records of a batch, up to a limit.

Invariants: decompression produces at most `limit_bytes`, whatever the batch claims; a larger result is returned as a
prefix. (The window of the codec comes on top: it is never larger than the bytes produced.)

Sources: Kafka's documentation, "Record Batch" (codecs 1 to 4); KIP-110 (zstd); xerial's snappy-java for the framing
that the Java client adds to snappy blocks.
"""

import struct
import zlib
from collections.abc import Callable

import cramjam

from logstore.errors import CorruptBatch
from logstore.interfaces import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
_GZIP_WBITS = 31
_GZIP_INPUT_BYTES = 64 * 1024
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_LENGTH = struct.Struct(">i")


def open_records(body: Buffer, codec: int, limit_bytes: int) -> memoryview:
    """The bytes of a batch's records from `body`, the bytes after the batch's header: all of them, or the first
    `limit_bytes` if there are more. Uncompressed records are returned whole, without a copy.

    A raw snappy block that states more than `limit_bytes` gives an empty prefix, because it can only be decompressed as
    a whole.

    Raises CorruptBatch for an unknown codec, and for bytes that the codec cannot decompress.
    """
    if codec == NONE:
        return memoryview(body)
    opener = _OPENERS.get(codec)
    if opener is None:
        raise CorruptBatch(f"compression codec {codec} is unknown; known are 0 to {ZSTD}")
    try:
        return opener(memoryview(body), limit_bytes)
    except (zlib.error, cramjam.DecompressionError, struct.error) as error:
        raise CorruptBatch(f"{CODEC_NAMES[codec]} records do not open: {error}") from error


def _open_gzip(body: memoryview, limit_bytes: int) -> memoryview:
    opened = bytearray()
    inflater = zlib.decompressobj(wbits=_GZIP_WBITS)
    at, waiting = 0, b""
    while len(opened) < limit_bytes:
        if not waiting:
            waiting = bytes(body[at : at + _GZIP_INPUT_BYTES])
            at += len(waiting)
        opened += inflater.decompress(waiting, limit_bytes - len(opened))
        waiting = inflater.unconsumed_tail
        if inflater.eof:
            waiting = inflater.unused_data
            if not waiting and at >= len(body):
                return memoryview(opened)
            inflater = zlib.decompressobj(wbits=_GZIP_WBITS)  # gzip allows several members, one after the other
        elif not waiting and at >= len(body):
            raise CorruptBatch(f"gzip records end too early, after {len(opened)} bytes")
    return memoryview(opened)


def _open_snappy(body: memoryview, limit_bytes: int) -> memoryview:
    """Raw snappy (librdkafka), or blocks in xerial's framing (Java)."""
    if bytes(body[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return memoryview(_open_snappy_block(body, limit_bytes) or b"")
    opened = bytearray()
    at = _XERIAL_HEADER_BYTES
    while at < len(body):
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if not 0 < length <= len(body) - at:
            raise CorruptBatch(f"snappy block of {length} bytes at {at} exceeds its batch")
        block = _open_snappy_block(body[at : at + length], limit_bytes - len(opened))
        if block is None:
            return memoryview(opened)
        opened += block
        at += length
    return memoryview(opened)


def _open_snappy_block(block: memoryview, limit_bytes: int) -> bytes | None:
    """The decompressed block; None, without decompression, if the block states more than `limit_bytes`."""
    if cramjam.snappy.decompress_raw_len(block) > limit_bytes:
        return None
    return bytes(cramjam.snappy.decompress_raw(block))


def _open_into(decompress_into: Callable[[memoryview, bytearray], int]) -> Callable[[memoryview, int], memoryview]:
    def opener(body: memoryview, limit_bytes: int) -> memoryview:
        """Decompress into a buffer of a batch's usual size; only if that is too small, into one of `limit_bytes`."""
        size = min(limit_bytes, _USUAL_RATIO * len(body) + _SMALLEST_BYTES)
        while True:
            target = bytearray(size)
            try:
                filled = decompress_into(body, target)
            except cramjam.DecompressionError as error:
                if _NO_ROOM not in str(error):
                    raise
                if size == limit_bytes:
                    return memoryview(target)
                size = limit_bytes
            else:
                return memoryview(target)[:filled]

    return opener


_USUAL_RATIO = 16
_SMALLEST_BYTES = 64 * 1024
_NO_ROOM = "failed to write whole buffer"
"""The error of cramjam for a full output; the output then holds the first bytes."""

_OPENERS: dict[int, Callable[[memoryview, int], memoryview]] = {
    GZIP: _open_gzip,
    SNAPPY: _open_snappy,
    LZ4: _open_into(cramjam.lz4.decompress_into),
    ZSTD: _open_into(cramjam.zstd.decompress_into),
}
