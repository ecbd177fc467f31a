"""The home of epochs: on the host that owns the topic of epochs, the epochs of all queries; on others, nothing.

With each ownership everything is read back from the topic's stream: queries, decisions, and what is staged. Committed
epochs that may lack in some stream are delivered again, and requests are served meanwhile: those of a query wait for
its epoch.

Invariants:
* There are epochs here only while this host owns the stream. Who asked them is given up when that ends (`entered`): the
  next home has all that was acknowledged, and every request may be asked again.
* Nothing is decided on what is not acknowledged: an entry of the ledger, a staged segment.
* Who asks for the state of queries is told so with the same certainty, or with that of an entry that is put then.
* The owner of a stream is told how far it may trim, and whether an epoch is under way, only if the metadata store says
  behind what was found that this host has the epochs: a home that was replaced does not know what was decided since. No
  entry is put for it: a trim makes room where there is none for entries.
* What is staged and not committed holds KEPT_CHUNKS of the stream at most, however little it is: it lies between what
  all other queries stage, and a stream with MAX_CHUNKS takes nothing any more, not even the entries by which it is
  tidied. What a committed epoch needs has to stay, and is moved to the end of the stream, so that it holds no more than
  that. What cannot be read is not moved: from STAGED_CHUNKS on no more is staged, and entries have the rest.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

import trio

from logstore.base.metadata.errors import MetadataError
from logstore.base.metadata.local_watch import ChangeSignal
from logstore.cluster.epochs.askers import Askers
from logstore.cluster.epochs.group_delivery import GroupDelivery
from logstore.cluster.epochs.replicated_ledger import LedgerHome, LedgerServices, ReplicatedLedger
from logstore.cluster.epochs.staged_records import StagedBeside, StagedRecords
from logstore.cluster.streams.owner_calls import (
    EPOCHS_LIMIT,
    IS_UNDER_WAY,
    CallServer,
    OwnerCalls,
    answered,
    certain_home,
)
from logstore.cluster.streams.replicated_stream import ReplicatedStream
from logstore.cluster.streams.topics import EPOCHS_TOPIC
from logstore.epochs.epochs import DEFAULT_STAGED_AGE_MS, Epochs
from logstore.epochs.ledger_entries import Target
from logstore.epochs.parts import EpochParts
from logstore.epochs.remote_publisher import RemotePublisher
from logstore.epochs.replicated_staging import ReplicatedStaging
from logstore.epochs.staging import DEFAULT_LIMIT_BYTES
from logstore.epochs.stream_holds import HeldEpoch, StreamHolds
from logstore.errors import CairnError, NotEnoughReplicas, NotLeader, TryAgain
from logstore.events import LEDGER_NOT_READ
from logstore.format.fields import Fields, decode_fields, get_int, get_name
from logstore.format.staged import AttemptKey
from logstore.interfaces import Buffer
from logstore.replica.registrations import MAX_CHUNKS

TICK_S: Final = 5.0
ASK_METADATA_S: Final = 1.0
TIDY_BYTES: Final = 16 << 20
"""Of entries and staged output: less is not worth writing entries anew, and naming what is staged."""
MAX_WAITING_BYTES: Final = 64 << 20
"""Of staged output that is not given to the stream yet."""
KEPT_CHUNKS: Final = MAX_CHUNKS // 2
"""Of the stream of epochs, behind output that is not committed: 64 GiB of what all queries stage."""
STAGED_CHUNKS: Final = MAX_CHUNKS - MAX_CHUNKS // 8
"""Of the stream of epochs: 112 GiB, and 16 for entries behind them."""
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class StagingLimits(NamedTuple):
    """Bounds of staged output."""

    staging_bytes: int = DEFAULT_LIMIT_BYTES
    staged_age_ms: int = DEFAULT_STAGED_AGE_MS


class EpochsLedger(ReplicatedLedger):
    """The ledger of epochs, and what is staged beside it in the same stream."""

    def __init__(self, stream: ReplicatedStream, services: LedgerServices, limits: StagingLimits) -> None:
        self.records = StagedRecords(self, services.reads)
        self.staging = ReplicatedStaging(self.records.append, self.records.read, limits.staging_bytes)
        beside = StagedBeside(self.staging, self.records)
        super().__init__(stream, services.clock, beside, tidy_bytes=TIDY_BYTES)

    @property
    def is_current(self) -> bool:
        """Whether the ownership lasts in which it was read."""
        return self.stream.ownership == self._ownership

    @property
    def is_untidy(self) -> bool:
        """See ReplicatedLedger; also whether the stream has more than KEPT_CHUNKS chunks that nothing staged holds."""
        first_offset, kept_from = self.staging.first_offset, self._kept_from()
        return super().is_untidy or (kept_from > 0 and (first_offset is None or first_offset >= kept_from))

    def held_for_too_long(self) -> list[AttemptKey]:
        """The attempts that lie in front of the newest KEPT_CHUNKS chunks of the stream."""
        return self.staging.begun_before(self._kept_from())

    def _kept_from(self) -> int:
        """Where the newest KEPT_CHUNKS chunks begin; 0: the stream has no more than these."""
        chunks = self.stream.registration.chunks if self.stream.is_leader else ()
        return chunks[-KEPT_CHUNKS].base_offset if len(chunks) > KEPT_CHUNKS else 0


class StagingRoom:
    """The room for what is to be staged: the disks are looked after by the hosts that keep it (a member without room
    fails), and here the memory of what waits for the stream, and the stream's chunks. What waits does so on when its
    attempt is dropped, or its client is gone: so it counts for itself.
    """

    def __init__(self, ledger: EpochsLedger) -> None:
        self._stream = ledger.stream
        self._records = ledger.records

    def promise(self, promised_bytes: object) -> None:
        """See SpaceAdmission."""

    def when_short(self, make_room: object) -> None:
        """See SpaceAdmission."""

    def admit(self, size_bytes: int, *, promised_bytes: int = 0) -> None:
        """See SpaceAdmission. Raises NotEnoughReplicas."""
        waiting_bytes = self._records.waiting_bytes
        if waiting_bytes and waiting_bytes + size_bytes > MAX_WAITING_BYTES:
            raise NotEnoughReplicas(
                f"{waiting_bytes} bytes of staged output wait for the members of the topic of epochs already; retry"
            )
        if size_bytes and self._stream.chunk_count >= STAGED_CHUNKS:
            raise NotEnoughReplicas(
                f"the topic of epochs has {self._stream.chunk_count} chunks behind an epoch that is committed and not "
                "in all its streams (`cairn queries`); nothing more is staged until it is"
            )


class EpochsHome:
    """See the module. `run` must run."""

    def __init__(self, services: LedgerServices, owners: OwnerCalls, limits: StagingLimits) -> None:
        self._services = services
        self._owners = owners
        self._limits = limits
        self._home = LedgerHome(EPOCHS_TOPIC, services, lambda stream: EpochsLedger(stream, services, limits))
        self._askers = Askers()
        self._ledger: EpochsLedger | None = None
        self._holds = StreamHolds()
        """Of this ownership."""
        self.epochs: Epochs | None = None
        """Of this ownership; None: this host does not own the stream, or has not read it yet."""
        self._changed = ChangeSignal()
        """There are epochs here, or no more."""

    # ---- who has them

    async def is_made(self) -> bool:
        """Whether there is a topic of epochs, as the metadata store says where this host has not heard of it; without
        it, no query has any. Raises TryAgain.
        """
        try:
            return await certain_home(self.known_stream, EPOCHS_TOPIC, self._services.metadata) is not None
        except MetadataError as error:
            raise TryAgain(f"the metadata store does not say whether queries have epochs: {error}") from error

    @property
    def stream(self) -> str | None:
        """The name of the stream; None: the topic is not there, and is being made."""
        if self._services.topics.internal_topic(EPOCHS_TOPIC) is None:
            return None
        return self.known_stream

    @property
    def known_stream(self) -> str | None:
        """The name of the stream; None: this host knows of no topic of epochs."""
        stream = self._home.stream
        return None if stream is None else stream.stream

    async def changed(self) -> None:
        """Wait until the epochs are here, or no more."""
        await self._changed.wait()

    async def topics_changed(self) -> None:
        """Wait until there are other topics than now."""
        await self._services.topics.changed.wait()

    def is_current(self, epochs: Epochs) -> bool:
        """Whether these are the epochs, as far as this host knows."""
        return self.epochs is epochs and self._ledger is not None and self._ledger.is_current

    async def confirm(self, epochs: Epochs) -> bool:
        """Whether these are the epochs for certain: an entry of the ledger is acknowledged that is put now.

        An owner that was replaced may not know it yet, and then has only what was true before.
        """
        if not self.is_current(epochs) or self._ledger is None:
            return False
        return await self._ledger.confirms()

    async def confirm_seen(self, epochs: Epochs) -> bool:
        """The same for who only looks, and may do so because the topic of epochs takes no entries: the metadata store
        says so, or an entry is acknowledged where that store does not answer in ASK_METADATA_S.
        """
        with trio.move_on_after(ASK_METADATA_S):
            try:
                await self._confirm_here(epochs)
            except NotLeader:
                return False
            except TryAgain:
                return await self.confirm(epochs)
            return True
        return await self.confirm(epochs)

    def entered(self) -> AbstractContextManager[trio.CancelScope]:
        """For whoever asks the epochs: the scope is cancelled when they are here no more."""
        return self._askers.entered()

    # ---- ownerships

    async def run(self) -> None:
        """Have the epochs whenever this host owns the stream; until cancelled."""
        await self._home.run(self._serve)

    async def _serve(self, ledger: EpochsLedger) -> None:
        topics, _, _, clock, report = self._services
        delivery = GroupDelivery(topics, self._owners, report)
        async with trio.open_nursery() as nursery:
            ledger.records.nursery = nursery
            await nursery.start(delivery.run)
            holds = StreamHolds()
            try:
                epochs = self._made(ledger, delivery, holds)
            except CairnError as error:
                report(LEDGER_NOT_READ, stream=ledger.stream.name, error=str(error))
                await trio.sleep_forever()  # another host would find the same
            epochs.roll_forward()
            self.epochs, self._ledger, self._holds = epochs, ledger, holds
            self._changed.notify()
            try:
                while True:
                    await trio.sleep(TICK_S)
                    epochs.tick(now_ms=clock.wall_ms())
                    epochs.drop_uncommitted(ledger.held_for_too_long())
                    ledger.staging.move(ledger.held_for_too_long())
                    ledger.staging.tell_dropped()
            finally:
                self.epochs = self._ledger = ledger.records.nursery = None
                self._askers.end_all()
                self._changed.notify()

    def _made(self, ledger: EpochsLedger, delivery: GroupDelivery, holds: StreamHolds) -> Epochs:
        clock, report = self._services.clock, self._services.report
        publisher = RemotePublisher(ledger.staging, delivery, holds, report)
        parts = EpochParts(ledger, ledger.staging, publisher, StagingRoom(ledger), clock)
        return Epochs(parts, report, staged_age_ms=self._limits.staged_age_ms)

    # ---- what owners of streams ask

    def answer_owners(self, calls: CallServer) -> None:
        """Serve calls of kind EPOCHS_LIMIT and IS_UNDER_WAY from now on."""
        calls.handle(EPOCHS_LIMIT, self._trim_limit)
        calls.handle(IS_UNDER_WAY, self._is_under_way)

    async def _trim_limit(self, _: str, payload: memoryview) -> Sequence[Buffer]:
        async def find() -> Mapping[str, object]:
            fields, _ = decode_fields(payload)
            topic_id, partition = get_name(fields, "topic_id"), get_int(fields, "partition", 0, _INT32_MAX)
            wanted, epochs = get_int(fields, "wanted", 0, _INT64_MAX), self._here()
            limit = min(wanted, self._holds.lowest(topic_id, partition, wanted))
            await self._confirm_here(epochs)
            return {"limit": limit}

        return await answered(find)

    async def _is_under_way(self, _: str, payload: memoryview) -> Sequence[Buffer]:
        async def find() -> Mapping[str, object]:
            fields, _ = decode_fields(payload)
            held, epochs = _held(fields), self._here()
            is_under_way = self._holds.is_under_way(held)
            await self._confirm_here(epochs)
            return {"is_under_way": is_under_way}

        return await answered(find)

    def _here(self) -> Epochs:
        if self.epochs is None:
            raise NotLeader("this host does not have the epochs of the cluster's queries")
        return self.epochs

    async def _confirm_here(self, epochs: Epochs) -> None:
        """Raise NotLeader or TryAgain unless these are the epochs for certain."""
        try:
            is_owner = await self._home.is_owner_for_certain()
        except MetadataError as error:
            raise TryAgain(f"the metadata store does not say who has the epochs of queries: {error}") from error
        if not is_owner or not self.is_current(epochs):
            raise NotLeader("this host no longer has the epochs of the cluster's queries")


def _held(fields: Fields) -> HeldEpoch:
    partition, start = get_int(fields, "partition", 0, _INT32_MAX), get_int(fields, "start", 0, _INT64_MAX)
    target = Target(get_name(fields, "topic"), get_name(fields, "topic_id"), partition, start)
    epoch, number = (get_int(fields, key, 0, _INT64_MAX) for key in ("epoch", "run_number"))
    return HeldEpoch(target, get_name(fields, "query"), epoch, number)
