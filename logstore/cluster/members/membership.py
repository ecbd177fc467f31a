"""This host as a member of its cluster: a lease that is kept alive, and the host's entry under it.

Invariants:
* The entry is there only while the lease lasts. When the lease has ended (the metadata store was away, the process was
  stopped for too long), the host goes on serving what it may, and joins again: nothing that it does is safe by the
  lease, see docs/replication.md.
* A host replaces an entry of its own disk, which is of its last life, and never one of another disk or host: that it
  waits for, for the time of some leases, and then ends with HostNameTaken or NodeIdTaken. If another process has
  started the disk since, it has a copy of it: this one ends with DiskRefused. So does a host that was removed while it
  was away: its disk would be refused at the next start, with all that it had taken until then.
  If the whole store is not this cluster's any more, nobody has removed the host: it goes on, and says what is wrong.
* The entry of the disk is put anew by the transaction that makes the host a member, on the condition that it is as it
  was read: a disk that is forgotten has no member, and who forgets one sees that a host has joined with it since
  (`logstore.cluster.members.departures`).
* A host in the first life of its disk that was no member yet is a new one: where the entry of its disk was removed,
  with those of the host's disks before, the joining puts it again. If it may have been a member, for a moment that it
  has not heard of, it is refused.
* `resign` ends the lease now, and the host does not join again. `leave` ends it until `stay`.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import trio

from logstore.base.events import Report
from logstore.base.metadata import schema
from logstore.base.metadata.errors import (
    LeaseEnded,
    MetadataDamaged,
    MetadataRefused,
    MetadataUnavailable,
    OutcomeUnknown,
)
from logstore.base.metadata.held_lease import HeldLease
from logstore.base.metadata.interface import ABSENT, Committed, Entry, MetadataStore
from logstore.base.racks import NOWHERE, HostPlace
from logstore.cluster.members.host_identity import HostIdentity
from logstore.errors import DiskRefused, HostNameTaken, NodeIdTaken
from logstore.events import CLUSTER_JOINED, CLUSTER_LEFT, HOST_NAME_AWAITED, METADATA_AWAITED, METADATA_UNUSABLE

LEASE_S: Final = 3
RETRY_S: Final = 0.2
"""Between tries to join."""
UNUSABLE_S: Final = 2.0
"""After what an operator has to mend."""
PATIENCE_LEASES: Final = 3
"""How many leases' time a host waits for its name: that of a former life on another disk ends by itself."""


class MembershipState(Enum):
    """Whether this host is a member."""

    JOINING = "joining"
    JOINED = "joined"
    ASIDE = "aside"
    RESIGNED = "resigned"


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a host says of itself. `link`: where other hosts reach it; `addresses`: its listeners by name."""

    node_id: int
    link: str
    addresses: dict[str, str]
    place: HostPlace = NOWHERE


class Membership:
    """See the module. `run` must run."""

    def __init__(
        self,
        store: MetadataStore,
        identity: HostIdentity,
        announced: Announcement,
        report: Report,
        lease_s: int = LEASE_S,
    ) -> None:
        self._store = store
        self._identity = identity
        self._report = report
        self._lease_s = lease_s
        self._scope = trio.CancelScope()
        self._lease_scope = trio.CancelScope()
        self._may_join = trio.Event()
        self._may_join.set()
        self._lease: HeldLease | None = None
        self._is_new = identity.is_first_life
        """No host can have been a member with this disk."""
        self.state = MembershipState.JOINING
        self.joined_revision = 0
        """Of the host's entry, as it was put last."""
        self.member = schema.StoredMember(
            disk=identity.label.disk,
            start=identity.label.start,
            node_id=announced.node_id,
            link=announced.link,
            rack=announced.place.rack,
            addresses=announced.addresses,
            disk_rate=announced.place.disk_rate,
            link_rates=announced.place.link_rates,
        )

    @property
    def never_joined(self) -> bool:
        """Whether no host can have been a member with this disk, this one included."""
        return self._is_new

    @property
    def is_held(self) -> bool:
        """Whether this host surely is a member now."""
        return self.state is MembershipState.JOINED and self._lease is not None and self._lease.held

    @property
    def lease_id(self) -> int:
        """The lease under which this host is a member; 0: it surely is none now."""
        return self._lease.lease_id if self.is_held and self._lease is not None else 0

    @property
    def lease_for_s(self) -> float:
        """For how long this host surely is a member from now on."""
        return self._lease.held_for_s if self.is_held and self._lease is not None else 0.0

    async def run(self, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Join, and stay a member until cancelled or resigned. Started with the revision of the first joining.

        Raises, in groups, HostNameTaken, NodeIdTaken, DiskRefused.
        """
        with self._scope:
            while True:
                await self._may_join.wait()
                try:
                    with trio.CancelScope() as self._lease_scope:
                        await self._hold_one_lease(task_status)
                except* LeaseEnded as ended:
                    self._report(CLUSTER_LEFT, host=self._identity.host, error=ended.exceptions[0])
                except* MetadataUnavailable as away:
                    self._report(METADATA_AWAITED, error=away.exceptions[0])
                except* (MetadataRefused, MetadataDamaged) as unusable:
                    if not self.joined_revision:
                        raise
                    self._report(METADATA_UNUSABLE, error=unusable.exceptions[0])
                self.state = MembershipState.JOINING if self._may_join.is_set() else MembershipState.ASIDE
                await trio.sleep(RETRY_S)
        self.state = MembershipState.RESIGNED

    async def _hold_one_lease(self, task_status: trio.TaskStatus[int]) -> None:
        """Join under a new lease, and keep it. Ends with an error only."""
        lease = self._lease = HeldLease(self._store, self._lease_s)
        async with trio.open_nursery() as nursery:
            await nursery.start(lease.run)
            is_first = not self.joined_revision
            self.joined_revision = await self._join(lease.lease_id)
            self.state = MembershipState.JOINED
            self._report(CLUSTER_JOINED, host=self._identity.host, disk=self.member.disk)
            if is_first:
                task_status.started(self.joined_revision)

    async def move(self, place: HostPlace) -> None:
        """Say that this host is at another place: in its entry as soon as it surely is a member and the store takes it,
        and when it joins again. Waits for that, unless this host has left.
        """
        rack, disk_rate, link_rates = place
        self.member = replace(self.member, rack=rack, disk_rate=disk_rate, link_rates=link_rates)
        node_revision = self.joined_revision
        while self.state in (MembershipState.JOINING, MembershipState.JOINED):
            if not self.is_held or self._lease is None:
                # An answer may make the lease sure again: then the host does not join anew. And if it joins, it may
                # have asked for that with the old place.
                await trio.sleep(RETRY_S)
                continue
            lease_id = self._lease.lease_id
            try:
                outcome = await self._store.commit(
                    schema.move(self._identity.host, self.member, lease_id, self.joined_revision, node_revision)
                )
            except OutcomeUnknown:
                continue  # the same again, with the same conditions
            except (MetadataUnavailable, LeaseEnded) as away:
                self._report(METADATA_AWAITED, error=away)
                await trio.sleep(RETRY_S)
                continue
            except (MetadataRefused, MetadataDamaged) as unusable:
                self._report(METADATA_UNUSABLE, error=unusable)
                await trio.sleep(UNUSABLE_S)
                continue
            if isinstance(outcome, Committed):
                self.joined_revision = outcome.revision
                return
            member, node = outcome.found
            if any(entry is not None and entry.lease_id != lease_id for entry in outcome.found) or member is None:
                return  # it joins anew, with the new place
            self.joined_revision = member.revision  # a former answer was lost, or somebody removed the number
            node_revision = ABSENT if node is None else node.revision

    def resign(self) -> None:
        """End the lease, and stay no member. `run` returns when that is done, or the store does not answer."""
        self._scope.cancel()

    def leave(self) -> None:
        """End the lease, until `stay`: others take over what this host owns, which it serves until then."""
        if self._may_join.is_set() and self.joined_revision:
            self._may_join = trio.Event()
            self._report(CLUSTER_LEFT, host=self._identity.host, error="no other host can be reached")
            self._lease_scope.cancel()

    def stay(self) -> None:
        """Join again, if this host has left."""
        self._may_join.set()

    async def _join(self, lease_id: int) -> int:
        """Put the host's entry; returns the revision. Raises LeaseEnded, HostNameTaken, NodeIdTaken, MetadataError."""
        deadline_s = trio.current_time() + self._lease_s * PATIENCE_LEASES
        member_revision = node_revision = ABSENT
        is_told = False
        while True:
            disk = await self._own_disk()
            was_new, self._is_new = self._is_new, False
            try:
                outcome = await self._store.commit(
                    schema.join(self._identity.host, self.member, lease_id, member_revision, node_revision, disk)
                )
            except OutcomeUnknown:
                continue  # if it was made, the next one finds an entry with this lease
            except (MetadataUnavailable, LeaseEnded):
                self._is_new = was_new
                raise
            if isinstance(outcome, Committed):
                return outcome.revision
            self._is_new = was_new
            member, node, _ = outcome.found
            if member is not None and member.lease_id == lease_id:
                return member.revision  # the answer to this joining was lost
            taken = self._obstacle(member, node)
            if taken is None:
                member_revision = ABSENT if member is None else member.revision
                node_revision = ABSENT if node is None else node.revision
                continue
            if trio.current_time() >= deadline_s:
                raise taken
            if not is_told:
                self._report(HOST_NAME_AWAITED, host=self._identity.host, error=taken)
                is_told = True
            await trio.sleep(RETRY_S)

    async def _own_disk(self) -> Entry:
        """The entry of the disk, or what it is to be. Raises DiskRefused if the disk was started again since, by
        another process, or was removed with its host, and MetadataDamaged if the whole store is not this cluster's.
        """
        label = self._identity.label
        entry = (await self._store.get(schema.disk_key(label.disk))).entry
        if entry is None:
            cluster = await self._store.get(schema.CLUSTER_KEY)
            schema.check_cluster(cluster.entry, self._identity.cluster_id)
            if self._is_new:
                return self._identity.disk_entry
            raise DiskRefused(
                f"disk {label.disk} of host {label.host!r} is no longer known: the host was removed from the "
                "cluster while it was away; give it an empty directory"
            )
        if schema.decode(schema.StoredDisk, entry).start != label.start:
            raise DiskRefused(
                f"disk {label.disk} of host {label.host!r} was started by another process since: a copy of it is in "
                "use; stop one of the two, and give it an empty directory"
            )
        return entry

    def _obstacle(self, member: Entry | None, node: Entry | None) -> HostNameTaken | NodeIdTaken | None:
        """Why the host may not put its entry in the place of what is there."""
        host, mine = self._identity.host, self.member
        if member is not None:
            other = schema.decode(schema.StoredMember, member)
            if other.disk != mine.disk:
                return HostNameTaken(
                    f"host name {host!r} is taken: {other.link} has it, on disk {other.disk}; stop that host, or give "
                    "this one another --host-name"
                )
        if node is not None:
            holder = schema.decode(schema.StoredNode, node).host
            if holder != host:
                return NodeIdTaken(
                    f"node id {mine.node_id} is taken by host {holder!r}; give host {host!r} another --node-id"
                )
        return None
