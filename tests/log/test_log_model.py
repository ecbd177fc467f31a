"""The log against a naive list, through crashes, failed syncs, trims, retention, retries (a Hypothesis state machine).

The list is `logstore.testing.history`: what was sent in what order, and what was acknowledged where. Partition 0 has
ordinary appends and groups; partition 1 belongs to one idempotent producer that sends again what was not acknowledged.
"""

from __future__ import annotations

import errno
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from logstore.errors import OffsetOutOfRange
from logstore.format.batch import check_batch
from logstore.testing.faults import Effect, Fault, FileCall
from logstore.testing.history import History, content_of
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import READ_BYTES, Setup, SimulatedStore, journaled
from tests.crash.tiny import make_tiny

PRODUCER = 42
TOPIC = "t"


class LogMachine(RuleBasedStateMachine):
    """Clients, a sidecar that dies now and then, and a disk that fails now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0
        self.sequence = 0
        self.unacked: list[bytearray] = []
        """The producer's batches that were not acknowledged, oldest first."""
        self.forgotten = False

    @initialize(seed=st.integers(0, 1 << 16), unit_bytes=st.sampled_from([64, 512]), has_journal=st.booleans())
    def found(self, seed: int, unit_bytes: int, has_journal: bool) -> None:
        """A topic of two partitions."""
        self.random = Random(seed)
        setup = journaled(Setup(seed=seed)) if has_journal else Setup(seed=seed)
        self.world = SimulatedStore(SimDisk(unit_bytes=unit_bytes), History(), setup)
        self.world.create_topic(TOPIC, 2)
        self.world.run()

    # ---- clients

    @rule(records=st.integers(1, 3), value_bytes=st.sampled_from([10, 40, 300]))
    def append(self, records: int, value_bytes: int) -> None:
        """Send a batch and do not wait."""
        self.world.append(TOPIC, 0, records=records, value_bytes=value_bytes)

    @rule(batches=st.integers(0, 3), value_bytes=st.sampled_from([10, 300]))
    def append_group(self, batches: int, value_bytes: int) -> None:
        """Send a group."""
        self.world.append_group(TOPIC, 0, self.epoch, batches, value_bytes)
        self.epoch += 1

    @rule(count=st.integers(1, 3))
    def produce(self, count: int) -> None:
        """The idempotent producer sends what is not acknowledged once more, then new batches, and waits."""
        known = self.world.history.stream(TOPIC, 1)
        if len(self.unacked) < 4:
            for _ in range(count):
                batch, newest = self.world.make_batch(known, 1, 30, (PRODUCER, 0, self.sequence))
                known.send(content_of(batch), 1, newest)
                self.sequence += 1
                self.unacked.append(batch)
        for batch in list(self.unacked):
            self.world.send(TOPIC, 1, bytearray(batch))
        self.world.run()
        self.forgotten = self.forgotten and bool(self.unacked)
        self.forget_acked()

    def forget_acked(self) -> None:
        """What is acknowledged need not be sent again."""
        known = self.world.history.stream(TOPIC, 1)
        self.unacked = [batch for batch in self.unacked if known.sent[content_of(batch)].offset is None]

    @rule()
    def produce_a_duplicate(self) -> None:
        """The last acknowledged batch again: answered with its offset, not written (`SimulatedStore.send` compares)."""
        known = self.world.history.stream(TOPIC, 1)
        self.world.run()
        self.world.disk.fault_for = None
        self.forget_acked()
        if not known.acked or self.unacked or self.forgotten:
            return
        stream = self.world.store.stream(TOPIC, 1)
        content = known.acked[-1]
        offset = known.sent[content].offset
        assert offset is not None
        if offset < stream.log_start_offset:
            return
        batch = next(found.data for found in self.world.read(stream) if found.header.base_offset == offset)
        before = stream.end_offset
        ticket = self.world.send(TOPIC, 1, bytearray(batch))
        self.world.run()
        assert ticket.result().duplicate  # type: ignore[attr-defined]
        assert stream.end_offset == before

    @rule(share=st.floats(0, 1), partition=st.integers(0, 1))
    def delete_records(self, share: float, partition: int) -> None:
        """Trim up to some offset."""
        stream = self.world.store.stream(TOPIC, partition)
        self.world.trim(TOPIC, partition, int(share * stream.high_watermark))

    @rule(days=st.sampled_from([0, 1, 8]))
    def retain(self, days: int) -> None:
        """Time passes, retention trims whole chunks."""
        self.world.clock.advance(days * 24 * 3600 * 1000)
        self.world.retain()
        # The store forgets idempotent producers after a day, as Kafka does.
        self.forgotten = self.forgotten or days > 0

    @rule(partition=st.integers(0, 1), is_synced=st.booleans())
    def bring_into_chunk(self, partition: int, is_synced: bool) -> None:
        """What the journal has of a stream goes to its chunk, and is synced there or not."""
        stream = self.world.store.stream(TOPIC, partition)
        if is_synced:
            stream.sync_backlog()
        else:
            stream.write_backlog()

    @rule()
    def tick(self) -> None:
        """What waited since the last tick is written out; a journal that failed is used again."""
        self.world.store.save_readers()

    @rule(appends=st.integers(1, 4))
    def a_topic_comes_and_goes(self, appends: int) -> None:
        """A topic shares the journal's blocks, and is deleted with some of its appends on their way."""
        self.world.run()
        if self.world.disk.fault_for is not None or "u" in self.world.history.topics_unsure:
            return
        self.world.create_topic("u", 1)
        self.world.run()
        self.world.append("u")
        self.world.run()
        for _ in range(appends):
            self.world.append("u")
        self.world.delete_topic("u")

    @rule()
    def put(self) -> None:
        """A ledger entry."""
        self.world.put()

    # ---- readers

    @rule(share=st.floats(0, 1.2), partition=st.integers(0, 1))
    def read_from(self, share: float, partition: int) -> None:
        """From any offset, memory and disk give the same batches; outside the log, an error."""
        stream = self.world.store.stream(TOPIC, partition)
        offset = int(share * stream.high_watermark)
        if not stream.log_start_offset <= offset <= stream.high_watermark:
            with pytest.raises(OffsetOutOfRange):
                stream.check_offset(offset)
            return
        stream.check_offset(offset)
        on_disk = [batch.data for batch in self.world.read(stream, offset)]
        in_memory = stream.read_tail(offset, READ_BYTES)
        if in_memory is not None:
            assert [bytes(entry.buffer) for entry in in_memory] == on_disk
        if on_disk:
            first = check_batch(on_disk[0])
            assert first.base_offset <= offset < first.next_offset

    # ---- the world

    @rule(steps=st.integers(1, 12))
    def work(self, steps: int) -> None:
        """The disk does some of its work."""
        self.world.run(steps)

    @rule()
    def work_all(self) -> None:
        """The disk does all of its work."""
        self.world.run()

    @rule(kind=st.sampled_from(["sync", "write"]), effect=st.sampled_from(list(Effect)), skip=st.integers(0, 3))
    def break_disk(self, kind: str, effect: Effect, skip: int) -> None:
        """One of the next writes or syncs fails."""
        left = skip

        def fault(call: FileCall) -> Fault | None:
            nonlocal left
            if call.kind != kind:
                return None
            left -= 1
            return Fault(errno.EIO, effect) if left == -1 else None

        self.world.disk.fault_for = fault

    @rule(name=st.sampled_from([".log", ".journal"]), effect=st.sampled_from(list(Effect)))
    def break_a_sync(self, name: str, effect: Effect) -> None:
        """The next sync of a chunk or of the journal fails."""
        is_due = True

        def fault(call: FileCall) -> Fault | None:
            nonlocal is_due
            if not is_due or call.kind != "sync" or not call.path.endswith(name):
                return None
            is_due = False
            return Fault(errno.EIO, effect)

        self.world.disk.fault_for = fault

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        """The sidecar is killed, or the power goes; the next life finds what that leaves."""
        old = self.world
        disk = old.disk.crash(self.random) if power else old.disk.kill_state()
        self.world = SimulatedStore(disk, old.history, old.setup, old.clock)
        self.world.check()
        self.world.adopt()
        self.forget_acked()

    @precondition(lambda self: self.world.disk.fault_for is None)
    @rule()
    def restart(self) -> None:
        """A clean shutdown and the next life."""
        self.world.run()
        self.world.restart(clean=True)
        self.world.check()
        self.world.adopt()
        self.forget_acked()

    @invariant()
    def nothing_is_broken(self) -> None:
        """All promises, at any moment."""
        if hasattr(self, "world"):
            self.world.check()


def test_log_against_a_naive_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever clients do and the disk suffers: acknowledged records are there, in order, once, and nothing else is."""
    make_tiny(monkeypatch)
    profile = settings.get_profile(settings.get_current_profile_name())
    examples = profile.max_examples if profile.max_examples > 100 else 400
    run_state_machine_as_test(LogMachine, settings=settings(profile, max_examples=examples, stateful_step_count=40))
