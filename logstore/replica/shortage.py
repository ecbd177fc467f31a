"""Whether a stream has been without enough members for so long that its producers should hear of it.

A stream is short when its open chunk lacks members that `min_copies` wants, and the next chunk cannot have so many
either. A batch that it takes then is acknowledged nowhere before a host returns.

Invariants: what is short for less than `short_after_ms` is never told, so a failover without errors stays so; nor for
less than `slow_after_ms` while as many hosts live, and refuse nothing, as are needed: a member may only be late then.
It is told once for each number of members that are needed, to the operator too, and its end is told once if its
beginning was. Hosts that can have the next chunk and take nothing of it, as those whose disks are full, do not end it:
while batches wait, it ends when one is acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection

from logstore.replica.appending import Appending, OwnerLimits
from logstore.replica.effects import Effect, EnoughMembers, TooFewMembers
from logstore.replica.owner_reports import OwnerReports
from logstore.replica.placing import NextSet
from logstore.replica.registrations import Member


class Shortage:
    """Of one stream; see the module."""

    def __init__(self, stream: str, limits: OwnerLimits, appending: Appending, reports: OwnerReports) -> None:
        self._stream = stream
        self._limits = limits
        self._appending = appending
        self._reports = reports
        self._since_ms: int | None = None
        """Since when the stream is short; None: it is not."""
        self._acked_at = 0
        """Up to where batches were acknowledged when it became so, or when it was told."""
        self._told_needed: int | None = None
        """How many members the stream needed when it was told last; None: it was not told."""
        self._has_hosts = False
        """As many hosts live, and refuse nothing, as the stream needs: as of the last look."""

    @property
    def wake_ms(self) -> int | None:
        """When it has to be told; None: there is nothing to tell."""
        return None if self._since_ms is None or self._told_needed is not None else self._since_ms + self._after_ms

    @property
    def _after_ms(self) -> int:
        return self._limits.slow_after_ms if self._has_hosts else self._limits.short_after_ms

    def lacks_members(self, live: Collection[Member], needed: int) -> bool:
        """Whether the open chunk lacks members: it has fewer than `needed`, one does not live, or batches wait for one
        that has failed. `live`: empty where it is not known who lives.
        """
        members, has_late = self._appending.progress, self._reports.has_failed and not self._appending.window.is_empty
        return has_late or len(members) < needed or any(bool(live) and member not in live for member in members)

    def look(
        self, epoch: int, needed: int, live: Collection[Member], following: NextSet | None, now_ms: int
    ) -> list[Effect]:
        """Whether the stream is short now, of how many members; returns what is to be told. `following`: who can have
        the next chunk; None: the open one lacks nobody.
        """
        window = self._appending.window
        acked = window.acked.next_offset
        is_short = following is not None and following.size < needed
        if not is_short and (self._since_ms is None or window.is_empty or acked != self._acked_at):
            was_told, self._since_ms, self._told_needed = self._told_needed is not None, None, None
            if not was_told:
                return []
            self._reports.enough()
            return [EnoughMembers(self._stream)]
        if self._since_ms is None:
            self._since_ms, self._acked_at = now_ms, acked
        refused = {member.host for member, of in self._appending.progress.items() if of.has_refused}
        self._has_hosts = len({member.host for member in live} - refused) >= needed
        is_early = self._told_needed is None and now_ms - self._since_ms < self._after_ms
        if following is None or not is_short or self._told_needed == needed or is_early:
            return []
        if self._told_needed is None:
            self._acked_at = acked
        self._told_needed = needed
        return [TooFewMembers(self._stream, epoch, needed), *self._reports.surely_too_few(epoch, needed, following)]
