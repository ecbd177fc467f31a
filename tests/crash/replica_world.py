"""A store with replicas on a simulated disk, and what the protocol of replication may find of them after a crash.

The model is that of `tests/replica/disk.py`: operations on one chunk are carried out in order; what was confirmed is
there, and of the others any number, the next one perhaps in part, if it is a write. Never a hole, never another byte,
and no crash is damage.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from logstore.events import (
    DURABLE_DATA_DAMAGED,
    DURABLE_DATA_LOST,
    JOURNAL_DAMAGED,
    OFFSETS_LOST,
    QUIET_STREAM_DIFFERS,
)
from logstore.format.batch import iterate_batches
from logstore.format.snapshot import ProducerEntry, decode_snapshots
from logstore.log.producers import ProducerTable
from logstore.log.reading import read_chunk
from logstore.log.replica_chunk import ChunkPrefix
from logstore.log.replicas import ChunkKey
from logstore.log.store import Store
from logstore.log.ticket import Ticket
from logstore.replica.messages import BatchEntry
from logstore.testing.clock import ManualClock
from logstore.testing.driver import JobDriver
from logstore.testing.history import PromiseBroken
from logstore.testing.reports import RecordedReports
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import FIRST_TIMESTAMP, Setup
from tests.cluster.batches import ChunkOfOwner

LOST = (OFFSETS_LOST, DURABLE_DATA_DAMAGED, DURABLE_DATA_LOST, JOURNAL_DAMAGED, QUIET_STREAM_DIFFERS)
"""Reports that no crash and no failed call may bring about."""


class State(NamedTuple):
    """What there is of a chunk: of which incarnation (the copies that were made of it, in order), how many entries."""

    incarnation: int
    length: int
    is_sealed: bool


class Step(NamedTuple):
    """An operation on a chunk: `write` appends entries up to a number, `cut` seals at it, `remove` removes."""

    kind: str
    incarnation: int
    length: int

    def after(self, state: State | None) -> State | None:
        """The state when it is done."""
        if self.kind == "remove":
            return None
        return State(self.incarnation, self.length, self.kind == "cut")

    def partial(self, state: State | None) -> list[State | None]:
        """The states that it may be left in: a write in any of its entries."""
        if self.kind != "write":
            return []
        begun = state.length if state is not None else 0
        return [State(self.incarnation, count, False) for count in range(begun + 1, self.length)]


@dataclass
class ChunkHistory:
    """What was asked of one chunk since its state was known for sure."""

    sent: list[ChunkOfOwner]
    known: State | None = None
    steps: list[Step] = field(default_factory=list)
    done: int = 0

    def fork(self) -> ChunkHistory:
        """A copy that changes independently; what owners have sent only grows."""
        return ChunkHistory(list(self.sent), self.known, list(self.steps), self.done)

    def possible(self) -> set[State | None]:
        """What a crash may leave. A chunk without an entry is none."""
        state = self.known
        for step in self.steps[: self.done]:
            state = step.after(state)
        found: set[State | None] = {state}
        for step in self.steps[self.done :]:
            found.update(step.partial(state))
            state = step.after(state)
            found.add(state)
        return found


@dataclass
class ReplicaHistory:
    """Requests and answers of one host's replicas."""

    chunks: dict[ChunkKey, ChunkHistory] = field(default_factory=dict)
    fences: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each stream the confirmed fence, and the highest that was asked for."""
    version: int = 0

    def fork(self) -> ReplicaHistory:
        """A copy that changes independently."""
        chunks = {key: chunk.fork() for key, chunk in self.chunks.items()}
        return ReplicaHistory(chunks, dict(self.fences), self.version)


class ReplicaWorld:
    """A store on a simulated disk, and the operations of its replicas."""

    def __init__(self, disk: SimDisk, history: ReplicaHistory, setup: Setup) -> None:
        self.disk, self.history, self.setup = disk, history, setup
        self._open()

    def _open(self) -> None:
        self.reports = RecordedReports()
        self.fs = self.setup.plant(self.disk)
        ids = Random(self.disk.calls)
        self.store = Store.open(
            self.fs,
            ManualClock(FIRST_TIMESTAMP),
            self.setup.settings,
            new_id=lambda: uuid.UUID(int=ids.getrandbits(128)),
            report=self.reports,
        )
        order = None if self.setup.seed is None else Random(self.setup.seed)
        self.driver = JobDriver(self.store.queue, self.fs, order, self.setup.rewrite)
        self.check_found()
        prepared = self.store.replicas.prepare()
        self.run()
        prepared.result()

    def run(self, steps: int | None = None) -> None:
        """Run disk work."""
        self.driver.run(steps)

    def restart(self, *, clean: bool) -> None:
        """End this life and start the next."""
        if clean:
            self.store.close()
            self.run()
        self.disk = self.disk.next_life()
        self._open()

    # ---- operations

    def chunk(self, key: ChunkKey) -> ChunkHistory:
        """The history of a chunk, whose owner has sent nothing yet if it is new."""
        if key not in self.history.chunks:
            self.history.chunks[key] = ChunkHistory([ChunkOfOwner(key[1], 5 * key[1], key[0])])
        return self.history.chunks[key]

    def write(
        self, key: ChunkKey, count: int = 1, *, value_bytes: int = 30, group_batches: int = -1, is_copy: bool = False
    ) -> Ticket[None]:
        """Append entries to a chunk: batches, or groups of so many batches. `is_copy`: as a piece of a copy."""
        chunk = self.chunk(key)
        asked = self.asked(chunk)
        incarnation = asked.incarnation if asked is not None else len(chunk.sent) - 1
        owner = chunk.sent[incarnation]
        begun = asked.length if asked is not None else 0
        while len(owner.entries) < begun + count:
            value = b"%d/%d/%d." % (key[1], incarnation, len(owner.entries)) + b"." * value_bytes
            owner.write(value=value, group_batches=group_batches)
        at = owner.ends[begun]
        entries = tuple(owner.entries[begun : begun + count])
        founding = owner.founding if not at.length_bytes else b""
        ticket = self.store.replicas.append(*key, ChunkPrefix(*at), entries, founding, is_copy=is_copy)
        return self._noted(chunk, Step("write", incarnation, begun + count), ticket)

    def cut(self, key: ChunkKey, count: int) -> Ticket[None]:
        """Seal a chunk at a number of entries."""
        chunk = self.chunk(key)
        asked = self.asked(chunk)
        assert asked is not None
        end = chunk.sent[asked.incarnation].ends[count]
        ticket = self.store.replicas.cut(*key, ChunkPrefix(*end))
        return self._noted(chunk, Step("cut", asked.incarnation, count), ticket)

    def remove(self, key: ChunkKey, *, comes_back_other: bool = False) -> Ticket[None]:
        """Remove a chunk; its next copy may have another content."""
        chunk = self.chunk(key)
        ticket = self.store.replicas.remove(*key)
        self._noted(chunk, Step("remove", len(chunk.sent) - 1, 0), ticket)
        if comes_back_other:
            chunk.sent.append(ChunkOfOwner(key[1], 5 * key[1], key[0]))
        return ticket

    def fence(self, stream: str, epoch: int) -> Ticket[None]:
        """Fence a stream."""
        confirmed, asked = self.history.fences.get(stream, (0, 0))
        self.history.fences[stream] = (confirmed, max(asked, epoch))
        self.history.version += 1
        ticket = self.store.replicas.write_fence(stream, epoch)

        def settled(_: object) -> None:
            if ticket.error is None:
                before, now = self.history.fences[stream]
                self.history.fences[stream] = (max(before, epoch), now)
                self.history.version += 1

        ticket.add_callback(settled)
        return ticket

    def forget_fence(self, stream: str) -> None:
        """Remove the fence of a stream, which is fenced no more."""
        self.history.fences[stream] = (0, self.history.fences[stream][1])
        self.history.version += 1
        ticket = self.store.replicas.remove_fence(stream)

        def settled(_: object) -> None:
            if ticket.error is None:
                self.history.fences[stream] = (0, 0)
                self.history.version += 1

        ticket.add_callback(settled)

    def rest(self) -> None:
        """Let the local streams come to rest; runs no disk work."""
        self.store.quiet.rest(at_once=True)

    def tick(self) -> None:
        """What is durable is noted; runs no disk work."""
        self.store.replicas.tick()

    @staticmethod
    def asked(chunk: ChunkHistory) -> State | None:
        """The state of a chunk when all that was asked is done."""
        state = chunk.known
        for step in chunk.steps:
            state = step.after(state)
        return state

    def _noted(self, chunk: ChunkHistory, step: Step, ticket: Ticket[None]) -> Ticket[None]:
        chunk.steps.append(step)
        self.history.version += 1
        number = len(chunk.steps)

        def settled(_: object) -> None:
            if ticket.error is None and number <= len(chunk.steps) and chunk.steps[number - 1] is step:
                if chunk.done != number - 1 and step.kind != "remove":
                    raise PromiseBroken(f"{step} is confirmed, and one in front of it is not")
                chunk.done = number
                self.history.version += 1

        ticket.add_callback(settled)
        return ticket

    # ---- checks

    def check_found(self) -> None:
        """Check what a start has found, and go on from it."""
        for event in LOST:
            if found_lost := self.reports.of(event):
                raise PromiseBroken(f"{event.name}: {found_lost[0]}")
        stored = self.store.replicas.stored()
        for key in stored:
            if key not in self.history.chunks:
                raise PromiseBroken(f"there is a chunk {key} that nobody has made")
        for key, chunk in self.history.chunks.items():
            possible = chunk.possible()
            found = stored.get(key)
            if found is None:
                if None not in possible:
                    raise PromiseBroken(f"{key} is gone; it may be {possible}")
                chunk.known = None
            else:
                if found.is_damaged:
                    raise PromiseBroken(f"{key} is said to be damaged: {self.store.replicas.find(*key)}")
                chunk.known = self._state_of(key, chunk, found.end, found.is_sealed, possible)
            chunk.steps, chunk.done = [], 0
        fences = self.store.replicas.fences()
        for stream, (confirmed, asked) in self.history.fences.items():
            if not confirmed <= fences.get(stream, 0) <= asked:
                raise PromiseBroken(f"the fence of {stream} is {fences.get(stream)}, not {confirmed} to {asked}")
            self.history.fences[stream] = (fences.get(stream, 0), asked)
        self.history.version += 1

    def _state_of(
        self, key: ChunkKey, chunk: ChunkHistory, end: ChunkPrefix, is_sealed: bool, possible: set[State | None]
    ) -> State:
        for state in possible:
            if state is None or state.is_sealed != is_sealed:
                continue
            owner = chunk.sent[state.incarnation]
            if ChunkPrefix(*owner.ends[state.length]) == end:
                self._check_content(key, owner, owner.entries[: state.length])
                return state
        raise PromiseBroken(f"{key} ends at {end}, sealed {is_sealed}; it may be {possible}")

    def _check_content(self, key: ChunkKey, owner: ChunkOfOwner, entries: Sequence[BatchEntry]) -> None:
        """Entries and the state of producers are what the owner has sent; at the start, when the files have all."""
        log = self.store.replicas.log(*key)
        if log is None:
            raise PromiseBroken(f"{key} cannot be read")
        found: list[bytes] = []
        offset = owner.base_offset
        while offset < log.high_watermark:
            view = log.chunk_at(offset)
            if view is None:
                raise PromiseBroken(f"{key}: no file holds offset {offset}")
            piece = read_chunk(self.fs, self.store.indexes, view, offset, 1 << 20, include_control=True)
            found += map(bytes, piece.buffers)
            offset = piece.next_offset
        if b"".join(found) != b"".join(entry.data for entry in entries):
            raise PromiseBroken(f"{key} holds other batches than its owner has sent")
        if _known(log.producers.entries()) != _known(_producers(owner, entries)):
            raise PromiseBroken(f"{key}: the state of producers is {log.producers.entries()}")
        block = self.fs.read(log.chunks[0].producers_path, 0, len(owner.founding))
        if bytes(block) != owner.founding:
            raise PromiseBroken(f"{key}: the founding state is not what the owner has sent")


def _producers(owner: ChunkOfOwner, entries: Sequence[BatchEntry]) -> list[ProducerEntry]:
    table: ProducerTable[object] = ProducerTable()
    table.load(decode_snapshots(owner.founding)[0][0].producers)
    for entry in entries:
        for _, header in iterate_batches(entry.data):
            if header.producer_id >= 0:
                table.synced(header, header.base_offset, 0)
    return table.entries()


def _known(entries: Sequence[ProducerEntry]) -> list[ProducerEntry]:
    return [entry._replace(last_append_ms=0) for entry in entries]
