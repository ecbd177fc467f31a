"""Kafka's four codecs, unpacked with a bound on what comes out.

Kafka's formats: gzip streams; snappy in xerial's framing (a 16-byte head, then length-prefixed raw blocks) or bare;
LZ4 frames; zstd frames. The work is Arrow's; only xerial's framing is ours.

Invariants: no more than `limit_bytes` come out, whatever the bytes claim; what cannot be unpacked raises CorruptBatch.
"""

import struct
from typing import Final

import pyarrow as pa

from logstore.errors import CorruptBatch
from logstore.interfaces import Buffer

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

MAX_DECOMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""What one batch may unpack to; a few KiB of zeros could otherwise claim all memory."""

_READ_BYTES: Final = 1024 * 1024
_ARROW_NAMES: Final = {GZIP: "gzip", LZ4: "lz4", ZSTD: "zstd"}
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES: Final = 16
_BLOCK_LENGTH: Final = struct.Struct(">i")


def decompress(codec: int, packed: Buffer, limit_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytearray:
    """The bytes that `packed` stands for. Raises CorruptBatch if it stands for none, or for more than `limit_bytes`."""
    if codec == SNAPPY:
        return _decompress_snappy(memoryview(packed), limit_bytes)
    name = _ARROW_NAMES.get(codec)
    if name is None:
        raise CorruptBatch(f"compression codec {codec} is unknown; 0 to {ZSTD} are")
    whole = bytearray()
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(packed)), name) as stream:
            while piece := stream.read(_READ_BYTES):
                if len(whole) + len(piece) > limit_bytes:
                    raise CorruptBatch(f"a batch compressed with {name} unpacks to more than {limit_bytes} bytes")
                whole += piece
    except (OSError, pa.ArrowException) as error:
        raise CorruptBatch(f"a batch compressed with {name} cannot be unpacked: {error}") from error
    return whole


def compress(codec: int, plain: Buffer) -> bytes:
    """`plain` as Kafka's consumers expect it for this codec (not snappy, which has no use here)."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, _ARROW_NAMES[codec]) as stream:
        stream.write(pa.py_buffer(plain))
    return bytes(sink.getvalue())


def _decompress_snappy(packed: memoryview, limit_bytes: int) -> bytearray:
    whole = bytearray()
    if bytes(packed[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        _append_snappy_block(whole, packed, limit_bytes)
        return whole
    at = _XERIAL_HEAD_BYTES
    while at < len(packed):
        if len(packed) - at < _BLOCK_LENGTH.size:
            raise CorruptBatch("a snappy batch ends within a block's length")
        (length,) = _BLOCK_LENGTH.unpack_from(packed, at)
        at += _BLOCK_LENGTH.size
        if not 0 <= length <= len(packed) - at:
            raise CorruptBatch(f"a snappy block of {length} bytes exceeds its batch")
        _append_snappy_block(whole, packed[at : at + length], limit_bytes)
        at += length
    return whole


def _append_snappy_block(whole: bytearray, block: memoryview, limit_bytes: int) -> None:
    size = _snappy_size(block)
    if size > limit_bytes - len(whole):
        raise CorruptBatch(f"a batch compressed with snappy unpacks to more than {limit_bytes} bytes")
    if size == 0:
        return
    try:
        whole += pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise CorruptBatch(f"a snappy block cannot be unpacked: {error}") from error


def _snappy_size(block: memoryview) -> int:
    """The size that a raw snappy block announces in front: a plain varint of at most 32 bits."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise CorruptBatch("a snappy block without a size")
