"""What the publication of epochs asks of replicated streams, on the host that owns them.

A *group* is an epoch's output in one stream: BEGIN, the epoch's batches, END, end to end (docs/format.md, append
groups).

Invariants that the streams keep:
* A group is in the log as a whole or not at all, whatever host is lost while it is appended: its batches have offsets
  without a gap, no other batch is between them, and no takeover keeps a part of them.
* Readers see a group when END is acknowledged, and nothing of it before.
"""

from typing import Protocol

from logstore.log.stream_state import AppendTicket


class GroupStream(Protocol):
    """A replicated stream that takes groups (`logstore.cluster.replicated_stream`)."""

    name: str
    stream: str
    high_watermark: int
    led_from: int
    """Where this host's ownership begins: all in front of it is acknowledged when the ownership begins."""

    @property
    def ownership(self) -> int:
        """Another number with each beginning and each end of an ownership."""

    def check_leader(self) -> None:
        """Raise UnknownTopicOrPartition or NotLeader unless this host serves the stream."""

    def append_group(self, group: bytearray, *, now_ms: int) -> AppendTicket:
        """Append a group; its batches get their offsets, `base_offset` of the result is BEGIN's.

        Raises at once, and appends nothing: NotLeader, UnknownTopicOrPartition, MessageTooLarge (above what one group
        may have), NotEnoughReplicas (too much waits already: to be tried again). The ticket fails with NotLeader: the
        group is in the log or not, and the next owner finds out.
        """


class ControlReads(Protocol):
    """Reads control batches of replicated streams (`logstore.cluster.engine`)."""

    async def find_ends(self, stream: GroupStream, from_offset: int, before_offset: int, /) -> list[tuple[int, bytes]]:
        """Base offsets and bytes of the END control batches from one offset on and before another, in any order.

        Offsets in front of the log start are passed over. Raises NotLeader, UnknownTopicOrPartition, CorruptChunk,
        OSError.
        """
