"""How a host's cluster is, at a glance: how many hosts there are, how many of them are away, and what that stops here.

Invariants: nothing is changed, and the metadata store is not asked. One look runs at a time; a look at many streams
lets other tasks run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from logstore.cluster.short_streams import ShortStreams
from logstore.format.host_summaries import ClusterGlance

if TYPE_CHECKING:
    from logstore.cluster.host import ClusterHost
    from logstore.cluster.survey import Survey


class GlanceTaker:
    """See the module."""

    def __init__(self, host: ClusterHost, survey: Survey) -> None:
        self._host = host
        self._survey = survey
        self._short = ShortStreams(host)
        self._looking = trio.Lock()

    async def look(self) -> ClusterGlance:
        """How it is now."""
        async with self._looking:
            names = await self._survey.hosts_at_hand()
            away = len(names - self._host.view.members.keys())
            return ClusterGlance(len(names), away, (await self._short.count()).under_min, self._host.name)
