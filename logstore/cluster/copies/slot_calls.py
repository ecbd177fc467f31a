"""Calls for copy slots: this host's own, while copies come here, and those of others, for the coordinator that leads.

Invariants:
* While no copies come here, and this host's streams have none made of chunks with one copy left, nobody is asked, and
  nothing is read from the metadata store.
* One call is under way at a time, so an answer is of the newest call, or is not read.
* Who gives slots is read from the metadata store when it is not known, or has not answered; every NOBODY_S while nobody
  ever has. No host is asked that has not said there that it knows the call.
* A host answers for its coordinator alone, and as long as its lease surely lasts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import trio

from logstore.base.copy_slots import MAX_NEEDY, GivesSlots, SlotAnswer, SlotAsk
from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataError
from logstore.base.metadata.interface import MetadataStore
from logstore.cluster.copies import slot_fields
from logstore.cluster.copies.copies import Copies
from logstore.cluster.streams.owner_calls import ASK_SLOTS, Calls, answered, fields_of
from logstore.errors import CairnError, HostUnreachable
from logstore.format.fields import decode_fields, encode_fields
from logstore.interfaces import Buffer
from logstore.replica.copy_tokens import CopyTokens

CALL_S: Final = 1.0
WAITING_S: Final = 0.25
"""Between two calls while a slot is waited for."""
RESTING_S: Final = 0.5
"""Between two calls at most: copies from another host may have begun."""
RETRY_S: Final = 0.5
NOBODY_S: Final = 1.0
LOOK_S: Final = 1.0
"""Between two looks at whether there is anything to ask for."""


class SlotHost(Protocol):
    """This host, and the others (`logstore.cluster.host`)."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def start(self) -> str:
        """The life that it is in."""

    @property
    def live(self) -> Mapping[str, schema.StoredMember]:
        """The hosts that live."""

    @property
    def copies(self) -> Copies:
        """Copies that are made here."""

    @property
    def copy_tokens(self) -> CopyTokens:
        """Copies of this host's streams."""


class SlotRequests:
    """This host's own calls. `run` must run."""

    def __init__(self, host: SlotHost, store: MetadataStore, calls: Calls) -> None:
        self._host = host
        self._store = store
        self._calls = calls
        self._found = ""
        """Who gives slots, as far as this host knows."""
        self._revision = 0
        """Of the entry that says so, as it was read last."""
        self._number = 0
        self._speed = host.copies.flow.speed
        self._speed.begin()

    async def run(self) -> None:
        """Ask while there is something to ask for, until cancelled."""
        while True:
            if not self._asks():
                with trio.move_on_after(LOOK_S):
                    await self._host.copies.wanted()
                continue
            pause_s = await self._ask()
            await trio.sleep(pause_s)

    def _asks(self) -> bool:
        return bool(self._wanted() or self._host.copy_tokens.last_copies())

    def _wanted(self) -> list[str]:
        now_s, copies = trio.current_time(), self._host.copies
        return self._speed.wanted(now_s) if copies.pace.is_held_back(now_s) else []

    async def _ask(self) -> float:
        """One call; returns for how long to wait before the next one."""
        now_s, speed, wanted = trio.current_time(), self._speed, self._wanted()
        answer: SlotAnswer | None = None
        with trio.move_on_after(CALL_S):
            try:
                self._found = self._found or await self._find()
                if not self._found:
                    speed.nobody_gives()
                    self._host.copies.look_again()
                    return NOBODY_S
                answer = await self._call(wanted)
            except (HostUnreachable, MetadataError, CairnError):
                pass
        if answer is None:
            self._found = ""
            speed.unanswered(self._revision, trio.current_time())
            return RETRY_S
        speed.answered(answer, wanted, now_s)
        self._host.copies.look_again()
        now_s = trio.current_time()
        if speed.counts(now_s)[1]:
            return WAITING_S
        end_s = speed.next_end_s(now_s)
        return RESTING_S if end_s is None else min(end_s - now_s, RESTING_S)

    async def _call(self, wanted: Sequence[str]) -> SlotAnswer | None:
        self._number += 1
        needy = self._host.copy_tokens.last_copies()
        held = self._speed.held(trio.current_time())
        ask = SlotAsk(self._host.name, self._host.start, self._number, wanted, held, list(needy)[:MAX_NEEDY], {})
        payload = encode_fields(slot_fields.ask_fields(ask))
        return slot_fields.read_answer(fields_of(await self._calls.call(self._found, ASK_SLOTS, [payload])))

    async def _find(self) -> str:
        """Who gives slots; "": nobody. Raises MetadataError, HostUnreachable if it does not live."""
        entry = (await self._store.get(schema.COPY_SLOTS_KEY)).entry
        if entry is None:
            return ""
        self._revision = entry.revision
        known = schema.decode(schema.StoredCopyCoordinator, entry)
        member = self._host.live.get(known.host)
        if member is None or member.start != known.start:
            raise HostUnreachable(f"host {known.host!r}, which gives slots for copies, does not live")
        return known.host


class SlotCounter:
    """Where others ask; implements SlotDesk. `sure_s`: for how long this host surely has its lease."""

    def __init__(self, host: SlotHost, sure_s: Callable[[], float]) -> None:
        self._host = host
        self._sure_s = sure_s
        self._coordinator: GivesSlots | None = None

    @property
    def sure_ms(self) -> int:
        """See SlotDesk."""
        return int(self._sure_s() * 1000)

    def serve_by(self, coordinator: GivesSlots | None) -> None:
        """See SlotDesk."""
        self._coordinator = coordinator

    async def serve(self, asking: str, payload: memoryview) -> Sequence[Buffer]:
        """A host asks."""
        return await answered(lambda: self._answer(asking, payload))

    async def _answer(self, asking: str, payload: memoryview) -> Mapping[str, object]:
        addresses = {name: member.link for name, member in self._host.live.items()}
        ask = slot_fields.read_ask(asking, decode_fields(payload)[0], addresses)
        coordinator = self._coordinator
        return slot_fields.answer_fields(None if coordinator is None else await coordinator.ask(ask))
