"""How far a stream may be read whose new owner has too few members; `logstore.replica.early_reads` says when.

The last chunk was sealed where one of its members ended, perhaps the only one that lives. Batches at its end may have
been acknowledged by nobody, and be on that member alone: readers see them when as many members have them as batches
need. Until then they see what a member has heard to be acknowledged. A host that has started since has heard nothing of
its last chunk, so its readers wait where that begins.

Invariants: members are asked again and again, each time later, for another one may come back that has heard of more; a
host that has thousands of such streams, as the only one that is left, has next to nothing to do for them. Nobody waits
for members that are away (`EntryReads.acknowledged_end`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from logstore.cluster.interfaces import StreamOwners
from logstore.replica.registrations import ChunkRegistration

AGAIN_S: Final = 1.0
"""Behind the first look at the members; each further pause is twice as long."""
SELDOM_S: Final = 30.0
"""The longest pause: ten thousand streams ask three hundred times in a second."""


async def follow_acknowledged(
    owners: StreamOwners, stream: str, last: ChunkRegistration, offset: int, show: Callable[[int], bool]
) -> None:
    """Tell `show` up to where a member knows the last chunk to be acknowledged, at least up to the offset, until it
    returns False: all is shown, or nobody wants to know.
    """
    pause_s = AGAIN_S
    while True:
        found = await owners.acknowledged_end(stream, last, offset)
        offset = max(offset, found or 0)
        if not show(offset):
            return
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, SELDOM_S)
