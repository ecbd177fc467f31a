"""This host's copies as requests to the plan of the cluster: wishes go to the coordinator, goes come back.

Invariants:
* While this host's streams wish for copies or make some, it tells the coordinator all of them, at once when something
  has changed and every TELL_AGAIN_S. While they do not, it asks nobody, and reads nothing from the metadata store.
* Who coordinates is read from the metadata store when it is not known, does not live, or does not answer. If nobody
  does, or the host that is named says that it does not, this host tries to.
* Without an answer for AWAY_S, while there are wishes, copies go on without a plan, by this host's own tokens; with the
  next answer by the plan again. What is under way goes on in either case.
* Goes come as answers and as calls; either may be late or come twice.
"""

from collections.abc import Sequence
from typing import Final

import trio

from logstore.base.events import Report
from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataError
from logstore.base.metadata.interface import ABSENT, MetadataStore
from logstore.cluster.copies import copy_fields
from logstore.cluster.copies.copy_coordinator import CopyCoordinator
from logstore.cluster.members.view import ClusterView
from logstore.cluster.streams.owner_calls import TELL_WISHES, Calls, answered, fields_of
from logstore.errors import CairnError, HostUnreachable
from logstore.events import COPIES_PLANNED, COPIES_UNPLANNED
from logstore.format.fields import decode_fields, encode_fields
from logstore.interfaces import Buffer
from logstore.replica.copy_tokens import CopyTokens

AWAY_S: Final = 10.0
"""Three times the shortest lease, and some: another host has taken over by then, if any can."""
TELL_AGAIN_S: Final = 1.0
RETRY_S: Final = 0.5
GATHER_S: Final = 0.02
"""Changes that come together are told together."""
CALL_S: Final = 3.0


class CopyRequests:
    """See the module. `run` must run."""

    def __init__(
        self,
        name: str,
        tokens: CopyTokens,
        coordinator: CopyCoordinator,
        store: MetadataStore,
        calls: Calls,
        view: ClusterView,
        report: Report,
    ) -> None:
        self._name = name
        self._tokens = tokens
        self._coordinator = coordinator
        self._store = store
        self._calls = calls
        self._view = view
        self._report = report
        self._found = ""
        """The coordinator, as far as this host knows."""
        self._idle = ""
        """The host that is named and does not coordinate, as it has just said."""
        self._changed = trio.Event()
        tokens.changed = self._note
        tokens.follow_plan(is_planned=True)

    def _note(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Tell and listen, until cancelled."""
        while True:
            if not (self._tokens.waiting or self._tokens.held):
                self._changed = trio.Event()
                await self._changed.wait()
            await self._while_wanted()

    async def _while_wanted(self) -> None:
        """Tell the coordinator, as long as this host has something to tell, and once more."""
        answered_s = trio.current_time()
        while True:
            is_last = not (self._tokens.waiting or self._tokens.held)
            self._changed = trio.Event()
            if await self._tell():
                answered_s = trio.current_time()
                self._follow(is_planned=True)
                pause_s = TELL_AGAIN_S
            else:
                if trio.current_time() - answered_s >= AWAY_S:
                    self._follow(is_planned=False)
                pause_s = RETRY_S
            if is_last:
                return
            with trio.move_on_after(pause_s):
                await self._changed.wait()
            await trio.sleep(GATHER_S)

    def _follow(self, *, is_planned: bool) -> None:
        if self._tokens.is_planned != is_planned:
            self._report(COPIES_PLANNED if is_planned else COPIES_UNPLANNED, coordinator=self._found)
            self._tokens.follow_plan(is_planned=is_planned)

    # ---- the coordinator

    async def _tell(self) -> bool:
        """Tell the coordinator what this host wishes for and makes; whether one has answered."""
        with trio.move_on_after(CALL_S):
            try:
                coordinator = self._found or await self._find()
                if coordinator and await self._ask(coordinator):
                    self._found = coordinator
                    return True
                self._idle = coordinator
            except (HostUnreachable, MetadataError, CairnError):
                pass
        self._found = ""
        return False

    async def _ask(self, coordinator: str) -> bool:
        told = copy_fields.told_fields(self._tokens.waiting, self._tokens.held)
        payload = encode_fields(told)
        answer = copy_fields.read_answer(fields_of(await self._calls.call(coordinator, TELL_WISHES, [payload])))
        if answer.coordinates:
            self._tokens.elsewhere = answer.elsewhere
            for stream, go in answer.goes.items():
                self._tokens.granted(stream, go)
        return answer.coordinates

    async def _find(self) -> str:
        """The coordinator; this host, if there is none that lives; "" if that is not known yet."""
        entry = (await self._store.get(schema.COPY_COORDINATOR_KEY)).entry
        if entry is not None:
            known = schema.decode(schema.StoredCopyCoordinator, entry)
            member = self._view.members.get(known.host)
            idle, self._idle = self._idle, ""
            does_plan = (
                known.host != idle
                and member is not None
                and member.start == known.start
                and known.host in self._coordinator.live
            )
            if does_plan and (known.host != self._name or self._coordinator.coordinates):
                return known.host
        became = await self._coordinator.become(ABSENT if entry is None else entry.revision)
        return self._name if became else ""

    async def serve(self, _: str, payload: memoryview) -> Sequence[Buffer]:
        """A coordinator tells goes."""

        async def take() -> dict[str, object]:
            for stream, go in copy_fields.read_goes(decode_fields(payload)[0]).items():
                self._tokens.granted(stream, go)
            return {}

        return await answered(take)
