"""An append group as one entry of a replicated stream: its batches end to end, from BEGIN to END.

Invariant: an entry is one message between hosts, so a group has at most MAX_GROUP_BYTES bytes beside its BEGIN and END,
whose sizes requests bound. Whoever decides an epoch asks `check_group_bytes` before: a decided epoch whose group is
refused could never be published.

Source: docs/format.md, "Append groups"; docs/decisions/0044-replicated-chunks.md.
"""

from typing import Final, NamedTuple

from logstore.errors import GroupTooLarge, InvalidRecord
from logstore.format.batch import iterate_batches, parse_header, patch_base, stamp_append_time
from logstore.format.control import END_TYPE, Begin, decode_control, known_type
from logstore.format.index import NO_TIMESTAMP

MAX_GROUP_BYTES: Final = 16 << 20
"""Of a group's batches between BEGIN and END: a quarter of what a member keeps unsynced, and of a link's frame."""


class GroupKey(NamedTuple):
    """Which epoch a group publishes."""

    query: str
    epoch: int
    incarnation: int


def check_group_bytes(stream: str, size_bytes: int) -> None:
    """Raise GroupTooLarge for a group of so many bytes, BEGIN and END not counted, that no stream of a cluster takes.
    `stream`: its name, for the message.
    """
    if size_bytes > MAX_GROUP_BYTES:
        raise GroupTooLarge(
            f"{stream}: an epoch has {size_bytes} bytes for it, and a stream of a cluster takes {MAX_GROUP_BYTES} at "
            "once; make epochs smaller (maxOffsetsPerTrigger, or what the source has in its place), or write to a "
            "topic with more partitions"
        )


def check_group(stream: str, group: bytearray) -> tuple[GroupKey, int]:
    """Which epoch a whole group publishes, and its number of offsets. Raises GroupTooLarge, CorruptBatch,
    InvalidRecord.
    """
    count = 0
    begin = end = 0
    for at, header in iterate_batches(group):
        begin, end = begin or header.size_bytes, at
        count += header.last_offset_delta + 1
    found = decode_control(memoryview(group)[:begin]) if begin else None
    if not isinstance(found, Begin) or known_type(memoryview(group)[end:]) != END_TYPE:
        raise InvalidRecord(f"{stream}: an append group begins with a BEGIN, and ends with an END")
    check_group_bytes(stream, end - begin)
    return GroupKey(found.query, found.epoch, found.incarnation), count


def place_batches(buffer: bytearray | memoryview, base_offset: int, leader_epoch: int, append_ms: int) -> None:
    """Give batches that stand end to end their offsets, and their time of append unless it is NO_TIMESTAMP."""
    view, at, offset = memoryview(buffer), 0, base_offset
    while at < len(view):
        header = parse_header(view, at)
        if append_ms != NO_TIMESTAMP and not header.is_control:
            stamp_append_time(view[at : at + header.size_bytes], header, append_ms)
        patch_base(view, at, offset, leader_epoch)
        offset += header.last_offset_delta + 1
        at += header.size_bytes
