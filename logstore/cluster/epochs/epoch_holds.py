"""What epochs under way hold, as the owners of streams ask the home of epochs for it.

An owner that was lost may have appended the group of an epoch, or not; the next one finds out by its END. So nothing
behind the offset at which an epoch was decided is trimmed until the epoch is over.

Invariants:
* A stream is trimmed no further than the home of epochs says, in an answer that it has given since the trim was wanted.
  If the home cannot be asked, nothing is trimmed.
* Nobody is asked as long as there is no topic of epochs: no epoch was ever decided. Whether there is one, the metadata
  store says, where this host has not heard of it.
* What a trim wants was acknowledged when the home was asked. An epoch that is decided later lies behind it.
"""

import uuid
from collections.abc import Callable
from typing import Final

import trio

from logstore.base.metadata.interface import MetadataStore
from logstore.cluster.interfaces import Spawn
from logstore.cluster.streams.owner_calls import EPOCHS_LIMIT, IS_UNDER_WAY, OwnerCalls, certain_home, fields_of
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.topics import EPOCHS_TOPIC
from logstore.epochs.group_order import GroupOrder
from logstore.errors import CairnError, TryAgain
from logstore.format.fields import Fields, encode_fields, get_bool, get_int
from logstore.log.ticket import Ticket

PATIENCE_S: Final = 20.0
"""How long a client's trim waits for epochs: about as long as a client waits for an answer."""
PAUSE_S: Final = 0.1
"""Between two questions of a trim that waits; each pause is twice as long as the one before."""
MAX_PAUSE_S: Final = 2.0
_INT64_MAX: Final = 2**63 - 1


class EpochHolds:
    """See the module. `home`: the stream of the home of epochs, if this host knows of one; `spawn` runs a task."""

    def __init__(
        self,
        owners: OwnerCalls,
        home: Callable[[], str | None],
        metadata: MetadataStore,
        spawn: Spawn,
    ) -> None:
        self._owners = owners
        self._home = home
        self._metadata = metadata
        self._spawn = spawn

    async def trim_limit(self, stream: ReplicatedStream, wanted: int) -> int:
        """The offset up to which epochs let a stream be trimmed, at most `wanted`. Raises CairnError: it is not known
        now.
        """
        home = await self._found_home()
        if home is None:
            return wanted
        topic_id, _, partition = stream.stream.partition("/")
        asked = {"topic_id": str(uuid.UUID(hex=topic_id)), "partition": int(partition), "wanted": wanted}
        return get_int(await self._ask(home, EPOCHS_LIMIT, asked), "limit", 0, _INT64_MAX)

    def deletable(self, stream: ReplicatedStream, offset: int) -> Ticket[None]:
        """Settles when epochs let the records in front of an offset be deleted. Fails with TryAgain if they do not in
        PATIENCE_S.
        """
        ticket: Ticket[None] = Ticket()

        async def wait() -> None:
            why, pause_s = "", PAUSE_S
            with trio.move_on_after(PATIENCE_S):
                while True:
                    try:
                        limit = await self.trim_limit(stream, offset)
                    except CairnError as error:
                        why = str(error)
                    else:
                        if limit >= offset:
                            ticket.succeed(None)
                            return
                        why = f"an epoch is under way behind offset {limit}"
                    await trio.sleep(pause_s)
                    pause_s = min(2 * pause_s, MAX_PAUSE_S)
            ticket.fail(TryAgain(f"{stream.name}: records before {offset} cannot be deleted now: {why}; retry"))

        self._spawn(wait)
        return ticket

    async def is_under_way(self, order: GroupOrder) -> bool:
        """Whether the epoch of a group may not be in its stream yet. Raises CairnError: it is not known now."""
        home = await self._found_home()
        if home is None:
            return False
        target = order.target
        asked = {"topic": target.topic, "topic_id": target.topic_id, "partition": target.partition}
        asked |= {"start": target.start_offset, "query": order.query, "epoch": order.epoch}
        asked |= {"run_number": order.incarnation_number}
        return get_bool(await self._ask(home, IS_UNDER_WAY, asked), "is_under_way")

    async def _ask(self, home: str, kind: int, asked: Fields) -> Fields:
        return fields_of(await self._owners.call(home, kind, [encode_fields(asked)]))

    async def _found_home(self) -> str | None:
        """The stream of the home of epochs; None: there is none. Raises CairnError, MetadataError."""
        return await certain_home(self._home(), EPOCHS_TOPIC, self._metadata)
