"""An append group as one entry of a replicated stream: its batches end to end, from BEGIN to END.

Invariant: an entry is one message between hosts, so a group has at most MAX_GROUP_BYTES bytes beside its BEGIN and END,
whose sizes requests bound. Whoever decides an epoch asks `check_group_bytes` before: a decided epoch whose group is
refused could never be published.

Source: docs/format.md, "Append groups"; docs/decisions/0044-replicated-chunks.md.
"""

from typing import Final, NamedTuple

from logstore.errors import GroupTooLarge, InvalidRecord
from logstore.format.batch import iterate_batches, parse_header, patch_base, stamp_append_time
from logstore.format.control import Begin, decode_control
from logstore.format.index import NO_TIMESTAMP
from logstore.log.stream_state import AppendGroup

MAX_GROUP_BYTES: Final = 16 << 20
"""Of a group's batches between BEGIN and END: a quarter of what a member keeps unsynced, and of a link's frame."""


class GroupKey(NamedTuple):
    """Which epoch a group publishes."""

    query: str
    epoch: int
    incarnation: int


class GroupEntry(NamedTuple):
    """A whole group whose batches have no offsets yet."""

    buffer: bytearray
    record_count: int


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


def group_key(begin: bytearray) -> GroupKey:
    """The epoch that a group's BEGIN names. Raises InvalidRecord."""
    found = decode_control(begin)
    if not isinstance(found, Begin):
        raise InvalidRecord("an append group does not begin with a BEGIN")
    return GroupKey(found.query, found.epoch, found.incarnation)


async def gathered(stream: str, group: AppendGroup, begin: bytearray, now_ms: int) -> GroupEntry:
    """All batches of a group. Raises GroupTooLarge, and the errors of `next_batches`."""
    buffer = bytearray(begin)
    while (batches := await group.next_batches()) is not None:
        buffer += batches
        check_group_bytes(stream, len(buffer) - len(begin))
    buffer += group.end(now_ms)
    return GroupEntry(buffer, sum(header.last_offset_delta + 1 for _, header in iterate_batches(buffer)))


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
