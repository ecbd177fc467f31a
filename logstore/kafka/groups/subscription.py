"""The topics in a consumer's subscription, the one part of a member's opaque metadata that a coordinator reads.

ConsumerProtocolSubscription (KIP-429, all versions): int16 version, int32 count, count times (int16 length, UTF-8), and
further fields that this module ignores. Invariant: any bytes give a set of names or None, never an exception.
"""

import struct

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Topic names in a member's metadata; None if it is not a consumer's subscription."""
    if len(metadata) < _HEAD.size:
        return None
    version, count = _HEAD.unpack_from(metadata, 0)
    position = _HEAD.size
    if version < 0 or count < 0 or count > (len(metadata) - position) // _LENGTH.size:
        return None
    topics = set()
    for _ in range(count):
        if position + _LENGTH.size > len(metadata):
            return None
        (length,) = _LENGTH.unpack_from(metadata, position)
        position += _LENGTH.size
        if length < 0 or position + length > len(metadata):
            return None
        try:
            topics.add(metadata[position : position + length].decode())
        except UnicodeDecodeError:
            return None
        position += length
    return frozenset(topics)
