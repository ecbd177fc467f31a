"""How hosts claimed streams before they dealt them: each stream goes to the host that comes first by a hash.

For tests of clusters in which hosts of both versions run.
"""

from __future__ import annotations

from logstore.cluster.claims import Claims
from logstore.cluster.members.deal import Deal


class HashClaims(Claims):
    """Claims of a host of the earlier version."""

    def _deal(self) -> Deal:
        return Deal(self._owned, self._hosts.live, self._hosts.placing.leaving, by_hash=True, keeps_order=True)

    async def _uneven(self) -> list[str]:
        return list(self._view.heads)

    def _should_be_mine(self, stream: str) -> bool:
        members = self._holders(stream)
        if self._me.host not in members or self._is_mine(stream) or self.topic_of(stream) is None:
            return False
        if self._deal().order(stream, 1, self._head(stream))[:1] != [self._me.host]:
            return False
        return self._reaches_enough(stream) and self._hosts.reaches(members) == len(members)
