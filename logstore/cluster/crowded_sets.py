"""Which chunks have their copies, and more of them in one fault domain than need be: to be counted.

Invariant: as of one moment, that of its making. A chunk that lacks copies is not crowded: it is counted as lacking
them, and its next copy goes where it is to go.
"""

from collections.abc import Mapping
from typing import Final

from logstore.base.metadata import schema
from logstore.replica.placing import Placing
from logstore.replica.registrations import ChunkRegistration, Member
from logstore.replica.spreading import Crowding

MAX_KNOWN: Final = 10_000


class CrowdedSets:
    """See the module. `members`: the hosts that live."""

    def __init__(self, placing: Placing, members: Mapping[str, schema.StoredMember]) -> None:
        self._placing = placing
        self._disks = {host: member.disk for host, member in members.items() if host not in placing.leaving}
        self._crowdings: dict[int, Crowding] = {}
        self._known: dict[tuple[int, tuple[Member, ...]], bool] = {}
        """Whether sets are crowded, at most MAX_KNOWN of them: thousands of chunks have a few sets."""

    def has(self, chunk: ChunkRegistration, copies: int) -> bool:
        """Whether this chunk of a stream that is to have so many copies is crowded."""
        if chunk.is_tiered_alone:
            return False
        found = self._known.get((copies, chunk.members))
        if found is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            found = self._known[copies, chunk.members] = self._is_crowded(chunk.members, copies)
        return found

    def _is_crowded(self, members: tuple[Member, ...], copies: int) -> bool:
        hosts = [member.host for member in members if self._disks.get(member.host) == member.disk]
        if len(hosts) < copies:
            return False
        crowding = self._crowdings.get(copies)
        if crowding is None:
            crowding = self._crowdings[copies] = self._placing.crowding(self._disks, copies)
        return crowding(hosts) > 0
