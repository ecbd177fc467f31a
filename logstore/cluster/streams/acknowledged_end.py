"""How far a stream may be read whose new owner has too few members; `logstore.replica.early_reads` says when.

The last chunk was sealed where one of its members ended, perhaps the only one that lives. Batches at its end may have
been acknowledged by nobody, and be on that member alone: readers see them when as many members have them as batches
need. Until then they see what a member has heard to be acknowledged. A host that has started since has heard nothing of
its last chunk, so its readers wait where that begins.
"""

from __future__ import annotations

from typing import Final

import trio

from logstore.cluster.interfaces import StreamOwners
from logstore.errors import CairnError
from logstore.replica.registrations import ChunkRegistration

AGAIN_S: Final = 1.0
"""Behind a look at the members for which none has answered."""


async def acknowledged_end(owners: StreamOwners, stream: str, last: ChunkRegistration, offset: int) -> int | None:
    """Up to where a member knows the last chunk to be acknowledged, which has the offset; None, after a pause: no
    member has answered.
    """
    try:
        found = await owners.read_entries(stream, last, offset, 1)
    except CairnError:
        await trio.sleep(AGAIN_S)
        return None
    return found.limit_offset
