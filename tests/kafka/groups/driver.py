"""Groups in virtual time: clients as small objects that call the coordinator, so that tests read as stories.

Invariant: time moves only by `World.advance`, which stops at every deadline on its way, as a sidecar's loop would.
"""

import itertools
import struct
from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from logstore.kafka.groups.coordinator import GroupCoordinator
from logstore.kafka.groups.generation_log import GenerationLog
from logstore.kafka.groups.group import ConsumerGroup
from logstore.kafka.groups.members import JoinRequest, JoinResult, Leaver, Protocol, SyncRequest, SyncResult
from logstore.kafka.groups.settings import GroupSettings
from logstore.log.ticket import Ticket

GROUP = "readers"
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def subscription(*topics: str) -> bytes:
    """ConsumerProtocolSubscription version 0, without user data."""
    encoded = [topic.encode() for topic in topics]
    names = b"".join(struct.pack(">h", len(name)) + name for name in encoded)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


class World:
    """A coordinator and its clock. `first_id`: the number in the first member id."""

    def __init__(self, generations: GenerationLog | None = None, first_id: int = 1, **settings: int) -> None:
        counter = itertools.count(first_id)
        self.coordinator = GroupCoordinator(
            GroupSettings(**settings), lambda: f"id{next(counter)}", generations=generations
        )
        self.now_s = 1000.0

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        until_s = self.now_s + seconds
        while (deadline_s := self.coordinator.next_deadline()) is not None and deadline_s <= until_s:
            self.now_s = max(self.now_s, deadline_s)
            self.coordinator.expire(self.now_s)
        self.now_s = until_s

    @property
    def group(self) -> ConsumerGroup:
        """The group all stories are about."""
        group = self.coordinator.find(GROUP)
        if group is None:
            raise LookupError(GROUP)
        return group


class Client:
    """A consumer that knows what the coordinator told it, and no more."""

    def __init__(self, world: World, name: str, *, instance: str | None = None, version: int = 9) -> None:
        self.world = world
        self.name = name
        self.instance = instance
        self.version = version
        self.member_id = ""
        self.generation = -1
        self.session_ms = SESSION_MS
        self.rebalance_ms = REBALANCE_MS
        self.protocols: tuple[Protocol, ...] = (Protocol("range", subscription("orders")),)
        self.protocol_type = "consumer"
        self.joining: Ticket[JoinResult] = Ticket()
        self.syncing: Ticket[SyncResult] = Ticket()

    def join(self) -> "Client":
        """Send JoinGroup, with the second try that version 4 and later ask of a new member."""
        self._send_join()
        if self.joining.done and self.joining.result().error is ErrorCode.member_id_required:
            self.member_id = self.joining.result().member_id
            self._send_join()
        return self

    def _send_join(self) -> None:
        request = JoinRequest(
            group_id=GROUP,
            member_id=self.member_id,
            instance_id=self.instance,
            client_id=self.name,
            client_host="/127.0.0.1",
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            protocol_type=self.protocol_type,
            protocols=self.protocols,
            require_member_id=self.version >= 4,
            may_skip_assignment=self.version >= 9,
        )
        self.joining = self.world.coordinator.join(request, self.world.now_s)

    def joined(self) -> JoinResult:
        """The answer to the join, which must be there and be good."""
        result = self.joining.result()
        if result.error is not ErrorCode.none:
            raise AssertionError(f"{self.name}: {result.error.name}")
        self.member_id, self.generation = result.member_id, result.generation_id
        return result

    def sync(self, assignments: dict[str, bytes] | None = None) -> "Client":
        """Send SyncGroup."""
        request = SyncRequest(GROUP, self.generation, self.member_id, self.instance, None, None, assignments or {})
        self.syncing = self.world.coordinator.sync(request, self.world.now_s)
        return self

    def heartbeat(self) -> ErrorCode:
        """Send Heartbeat."""
        return self.world.coordinator.heartbeat(GROUP, self.generation, self.member_id, self.instance, self.world.now_s)

    def leave(self) -> ErrorCode:
        """Send LeaveGroup."""
        (error,) = self.world.coordinator.leave(GROUP, [Leaver(self.member_id, self.instance)], self.world.now_s)
        return error

    def may_commit(self) -> ErrorCode:
        """Ask what an OffsetCommit would be told."""
        return self.world.coordinator.check_commit(
            GROUP, self.generation, self.member_id, self.instance, self.world.now_s
        )


def settle(world: World, clients: Sequence[Client]) -> dict[str, bytes]:
    """Bring joined clients to a stable generation, each assigned its own member id; returns what they got."""
    results = [client.joined() for client in clients]
    leader = next(client for client in clients if client.member_id == results[0].leader)
    assignments = {client.member_id: client.member_id.encode() for client in clients}
    for client in clients:
        if client is not leader:
            client.sync()
    leader.sync(assignments)
    return {client.name: client.syncing.result().assignment for client in clients}


def stable(world: World, *names: str) -> list[Client]:
    """A stable group of these clients."""
    clients = [Client(world, name).join() for name in names]
    world.advance(1.0)
    settle(world, clients)
    return clients
