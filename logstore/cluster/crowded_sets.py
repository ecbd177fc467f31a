"""Which chunks have their copies, and more of them in one fault domain than need be: to be counted.

Invariant: as of one moment, that of its making. A chunk that lacks copies is not crowded: it is counted as lacking
them, and its next copy goes where it is to go.
"""

from collections.abc import Mapping

from logstore.base.metadata import schema
from logstore.replica.placing import Placing
from logstore.replica.registrations import ChunkRegistration
from logstore.replica.spreading import Crowding


class CrowdedSets:
    """See the module. `members`: the hosts that live."""

    def __init__(self, placing: Placing, members: Mapping[str, schema.StoredMember]) -> None:
        self._placing = placing
        self._disks = {host: member.disk for host, member in members.items() if host not in placing.leaving}
        self._crowdings: dict[int, Crowding] = {}

    def has(self, chunk: ChunkRegistration, copies: int) -> bool:
        """Whether this chunk of a stream that is to have so many copies is crowded."""
        if chunk.is_tiered_alone:
            return False
        hosts = [member.host for member in chunk.members if self._disks.get(member.host) == member.disk]
        if len(hosts) < copies:
            return False
        crowding = self._crowdings.get(copies)
        if crowding is None:
            crowding = self._crowdings[copies] = self._placing.crowding(self._disks, copies)
        return crowding(hosts) > 0
