"""A sidecar's store on a simulated disk and a runner beside it: either may be killed, and the power may be cut.

Not a mock: store, epochs, staging, core and loop are the real ones; only threads, time and the disk are simulated, and
the port calls the store's parts directly where the sidecar would go over a socket.

Invariants: deterministic, given the seed. A runner that survives a sidecar does what the blocking client does: it sends
again what was not answered.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, TypeVar

from logstore.base.events import ignore
from logstore.epochs.epochs import Epochs
from logstore.epochs.parts import of_host
from logstore.epochs.staging import Staging
from logstore.errors import StorageFailed
from logstore.format.batch import iterate_batches
from logstore.format.epoch_api import EpochCommitReply, EpochCommitRequest, StageRequest, TaskOutput
from logstore.format.records import Record, decode_batch, encode_batch
from logstore.log.journal import JournalLimits
from logstore.log.reading import read_chunk
from logstore.log.store import Store, StoreSettings
from logstore.log.stream import Stream
from logstore.log.ticket import Ticket
from logstore.log.topics import TopicConfig
from logstore.testing.clock import ManualClock
from logstore.testing.controls import scan_all
from logstore.testing.driver import JobDriver
from logstore.testing.faults import EIO, Fault, FileCall
from logstore.testing.simdisk import SimDisk
from spe_adapter.cec.policy import Policy
from spe_adapter.continuous.core import Core, FragmentInstance
from spe_adapter.continuous.fragment import CheckedFragment, EpochLimits
from spe_adapter.continuous.loop import Event, FragmentProgress, Loop, UnitCheckpoints
from spe_adapter.continuous.port import FENCE_EPOCH, EpochOutput, Fetch, ScannedBatches

T = TypeVar("T")

SEGMENT_BYTES = 16 * 1024
"""Small chunks, so that scans and fetches cross them."""
TRIM_SHARE = 0.3
"""Of the committed epochs, those behind which upstream trims."""
OFFSET_OUT_OF_RANGE = 1


class RunnerKilled(Exception):
    """kill −9 of the runner."""


class PowerCut(Exception):
    """Everything stops, and the disk forgets what was not synced."""


@dataclass
class Faults:
    """What goes wrong, and when: port calls before or behind which the runner dies, disk calls at which power is cut,
    and disk calls that fail with EIO.

    With `survives`, the runner goes on over a power cut, as if it were on another host.
    """

    kill_before: frozenset[int] = frozenset()
    kill_behind: frozenset[int] = frozenset()
    power: frozenset[int] = frozenset()
    survives: bool = False
    failing: frozenset[int] = frozenset()


@dataclass
class Counts:
    """Over all lives."""

    port_calls: int = 0
    disk_calls: int = 0
    restarts: int = 0
    power_cuts: int = 0
    failures: int = 0
    events: list[Event] = field(default_factory=list)


class Life:
    """One life of a sidecar over a disk."""

    def __init__(self, disk: SimDisk, clock: ManualClock, random: Random) -> None:
        self.disk = disk
        self.clock = clock
        ids = Random(disk.calls + 7)

        # Readers here look into the chunks, so everything goes there at once.
        settings = StoreSettings(
            topic_defaults=TopicConfig(segment_bytes=SEGMENT_BYTES), journal=JournalLimits(file_bytes=0)
        )
        self.store = Store.open(
            disk, clock, settings, new_id=lambda: uuid.UUID(int=ids.getrandbits(128)), report=ignore
        )
        self.staging = Staging.open(disk, self.store.notify, ignore)
        self.epochs = Epochs(of_host(self.store, self.staging, ignore), ignore)
        self.driver = JobDriver(self.store.queue, disk, random)
        for search in self.epochs.searches():
            stream = self.store.stream(search.target.topic, search.target.partition)
            self.epochs.found(search, self.controls(stream, search.from_offset))
        self.epochs.roll_forward()
        self.driver.run()

    def controls(self, stream: Stream, from_offset: int = 0) -> list[tuple[int, bytes]]:
        """Control batches of a stream, oldest first."""
        found: list[tuple[int, bytes]] = []
        for view in stream.chunk_views(from_offset):
            found.extend(scan_all(self.disk, self.store.indexes, view, from_offset))
        return [one for one in found if one[0] < stream.high_watermark]

    def settle(self, ticket: Ticket[T]) -> T:
        """A ticket's result once all disk work is done."""
        self.driver.run()
        return ticket.result()

    def read(self, stream: Stream, offset: int, max_bytes: int, *, include_control: bool) -> bytes:
        """Batches from an offset on."""
        view = stream.chunk_at(offset)
        if view is None or offset >= stream.high_watermark:
            return b""
        indexes = self.store.indexes
        found = read_chunk(self.disk, indexes, view, offset, max_bytes, include_control=include_control)
        return b"".join(bytes(piece) for piece in found.buffers)


class World:
    """The disk, the sidecar's lives on it, and when they end."""

    def __init__(self, seed: int, faults: Faults | None = None) -> None:
        self.random = Random(seed)
        self.faults = Faults()
        self.counts = Counts()
        self.clock = ManualClock()
        self.life = Life(SimDisk(unit_bytes=512), self.clock, self.random)
        self._planned = faults or Faults()

    def create(self, topic: str, partitions: int = 1) -> None:
        """Make a topic."""
        self.life.settle(self.life.store.create_topic(topic, partitions, {}))

    def produce(self, topic: str, batches: Iterable[Sequence[Record]], partition: int = 0) -> None:
        """Append batches of records, durably."""
        for records in batches:
            batch = encode_batch(list(records))
            self.life.settle(self.life.store.stream(topic, partition).append(batch, now_ms=self.clock.wall_ms()))

    def start_faults(self) -> None:
        """From now on things go wrong."""
        self.faults = self._planned
        self._hook(self.life.disk)

    def _hook(self, disk: SimDisk) -> None:
        def before(call: FileCall) -> None:
            if call.changes_disk:
                self.counts.disk_calls += 1
                if self.counts.disk_calls in self.faults.power:
                    raise PowerCut(str(call))

        def fault(call: FileCall) -> Fault | None:
            fails = call.changes_disk and self.counts.disk_calls in self.faults.failing
            self.counts.failures += fails
            return EIO if fails else None

        disk.before_call = before
        disk.fault_for = fault

    def cut_power(self) -> None:
        """What is left of the disk, and the next sidecar on it; power may fail while it starts."""
        while True:
            self.counts.power_cuts += 1
            disk = self.life.disk.crash(self.random)
            self._hook(disk)
            self.life.disk = disk
            try:
                self._start()
            except PowerCut:
                continue
            return

    def restart_sidecar(self) -> None:
        """kill −9 of the sidecar: what it had written is still in the page cache."""
        try:
            self._start()
        except PowerCut:
            self.cut_power()

    def _start(self) -> None:
        """The next sidecar on the disk; one that cannot open its files is started again."""
        while True:
            self.life.disk = self.life.disk.next_life()
            try:
                self.life = Life(self.life.disk, self.clock, self.random)
            except OSError:
                continue
            return

    def consume(self, topic: str, partition: int = 0) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values that a consumer of the stream reads."""
        stream = self.life.store.stream(topic, partition)
        found: list[tuple[bytes | None, bytes | None]] = []
        offset = stream.log_start_offset
        while offset < stream.high_watermark:
            data = self.life.read(stream, offset, 1 << 20, include_control=True)
            for position, header in iterate_batches(data):
                if not header.is_control:
                    found += [(record.key, record.value) for record in decode_batch(data, position)]
                offset = header.next_offset
        return found


class SimPort:
    """`spe_adapter.continuous.port.Port` over the world's present life."""

    def __init__(self, world: World, plan: CheckedFragment, partition: int, incarnation: str) -> None:
        self._world = world
        self._query = plan.fragment.name_in(partition)
        self._topic = plan.fragment.topic
        self._sources = [source.topic for source in plan.fragment.sources]
        self._partition = partition
        self._incarnation = incarnation
        self._wanted: deque[tuple[int, int]] = deque()
        self._groups: deque[EpochOutput] = deque()
        self._sent: Ticket[EpochCommitReply] | None = None
        """Of the first group: one commit is on the wire at a time, as with the real port."""

    def _call(self, do: Callable[[], T]) -> T:
        """Do something of the port, unless the runner dies or the power goes."""
        world = self._world
        world.counts.port_calls += 1
        number = world.counts.port_calls
        if number in world.faults.kill_before:
            raise RunnerKilled(f"before port call {number}")
        while True:
            try:
                result = do()
                break
            except PowerCut:
                if not world.faults.survives:
                    raise
                world.cut_power()
                self._send_again()
        if number in world.faults.kill_behind:
            raise RunnerKilled(f"behind port call {number}")
        return result

    def _send_again(self) -> None:
        """What the client does when a sidecar came back: send what was not answered."""
        while self._sent is not None:
            try:
                self._sent = self._send(self._groups[0])
                return
            except PowerCut:
                self._world.cut_power()

    @property
    def _life(self) -> Life:
        return self._world.life

    def wall_ms(self) -> int:
        """See Port."""
        return self._world.clock.wall_ms()

    def monotonic_ms(self) -> float:
        """See Port."""
        return self._world.clock.monotonic_s() * 1000

    def fence(self) -> int:
        """See Port."""
        request = EpochCommitRequest(self._query, self._incarnation, FENCE_EPOCH, "skip", (), "{}", False)

        def do() -> int:
            ticket = self._life.epochs.commit(request, now_ms=self.wall_ms())
            return self._life.settle(ticket).last_epoch

        return self._call(do)

    def scan(self, before_offset: int) -> ScannedBatches:
        """See Port: a few batches at a time."""

        def do() -> ScannedBatches:
            stream = self._life.store.stream(self._topic, self._partition)
            before = stream.high_watermark if before_offset < 0 else before_offset
            older = [one for one in self._life.controls(stream, stream.log_start_offset) if one[0] < before]
            taken = older[-self._world.random.randint(1, 5) :]
            next_before = taken[0][0] if taken else stream.log_start_offset
            if len(taken) == len(older):
                next_before = stream.log_start_offset
            return ScannedBatches(b"".join(batch for _, batch in reversed(taken)), next_before, stream.log_start_offset)

        return self._call(do)

    def offset(self, source: int, moment: str) -> int:
        """See Port."""
        stream = self._life.store.stream(self._sources[source], self._partition)
        return stream.log_start_offset if moment == "earliest" else stream.high_watermark

    def fetch(self, source: int, offset: int) -> None:
        """See Port."""
        self._wanted.append((source, offset))

    def fetched(self, wait_ms: float) -> Fetch | None:
        """See Port. Nothing is waited for: what is not there will not come."""

        def do() -> Fetch | None:
            self._world.clock.advance(1)
            for _ in range(len(self._wanted)):
                source, offset = self._wanted.popleft()
                stream = self._life.store.stream(self._sources[source], self._partition)
                low, high = stream.log_start_offset, stream.high_watermark
                if not low <= offset <= high:
                    return Fetch(source, OFFSET_OUT_OF_RANGE, high, low, b"")
                data = _first_batch(self._life.read(stream, offset, 1, include_control=False))
                if data:
                    return Fetch(source, 0, high, low, data)
                self._wanted.append((source, offset))
            return None

        return self._call(do)

    def commit(self, group: EpochOutput) -> None:
        """See Port."""
        self._groups.append(group)
        self._call(self._send_next)

    def _send_next(self) -> None:
        if self._sent is None and self._groups:
            self._sent = self._send(self._groups[0])

    def _send(self, group: EpochOutput) -> Ticket[EpochCommitReply]:
        life, attempt, now_ms = self._life, str(group.epoch), self.wall_ms()
        staged = []
        for position, (parts, data) in enumerate(group.segments):
            request = StageRequest(
                self._query, self._incarnation, group.epoch, 0, attempt, position, parts, bytes(data)
            )
            staged.append(life.epochs.stage(request, now_ms=now_ms))
        life.driver.run()
        for ticket in staged:
            ticket.result()
        tasks = (TaskOutput(0, attempt, len(group.segments)),)
        commit = EpochCommitRequest(self._query, self._incarnation, group.epoch, "error", tasks, group.positions, False)
        return life.epochs.commit(commit, now_ms=now_ms)

    def committed(self, *, wait: bool) -> int | None:
        """See Port: disk work goes on a little, or until the oldest commit is through."""

        def do() -> int | None:
            if self._sent is None:
                return None
            self._life.driver.run(None if wait else self._world.random.randint(0, 6))
            if not self._sent.done:
                return None
            reply, self._sent = self._sent.result(), None
            epoch = self._groups.popleft().epoch
            assert reply.last_epoch == epoch
            return epoch

        epoch = self._call(do)
        if epoch is not None:
            self._call(self._send_next)
        return epoch


def _first_batch(data: bytes) -> bytes:
    """A batch at a time: how input is cut into runs must not depend on where a runner began to fetch."""
    for position, header in iterate_batches(data):
        return data[position : position + header.size_bytes]
    return b""


class Outcome(NamedTuple):
    """What came of a whole story: what a consumer reads, the state at the end, and the state a recovery then finds."""

    results: list[tuple[bytes | None, bytes | None]]
    state: list[dict[str, object]]
    recovered: list[dict[str, object]]
    counts: Counts


def state_of(core: Core) -> list[dict[str, object]]:
    """All open windows, sorted."""
    batch = core.store.table.take(core.store.table.live_rows())
    return sorted(batch.to_pylist(), key=lambda row: (row["key"] is None, row["key"] or b"", row["number"]))


class RunnerLife(NamedTuple):
    """One life of a runner."""

    core: Core
    loop: Loop


def start_runner(
    world: World,
    plan: CheckedFragment,
    policy: Callable[[], Policy],
    limits: EpochLimits,
    incarnation: str,
    kind: type[Core] = Core,
    checkpoints: Callable[[Core], UnitCheckpoints] | None = None,
) -> RunnerLife:
    """A runner over the world's store, not yet recovered. Upstream trims whatever it may, now and then."""
    port = SimPort(world, plan, 0, incarnation)
    core = kind(
        plan, FragmentInstance(0, 1, incarnation), policy(), port.monotonic_ms, is_paged=checkpoints is not None
    )

    def observe(event: Event) -> None:
        world.counts.events.append(event)
        if isinstance(event, FragmentProgress) and world.random.random() < TRIM_SHARE:
            for topic, offset in loop.needed_offsets().items():
                stream = world.life.store.stream(topic, 0)
                if offset > stream.log_start_offset:
                    stream.delete_records(offset)

    loop = Loop(core, plan, port, limits, observe, None if checkpoints is None else checkpoints(core))
    return RunnerLife(core, loop)


def run_story(
    world: World,
    plan: CheckedFragment,
    policy: Callable[[], Policy],
    limits: EpochLimits,
    kind: type[Core] = Core,
    checkpoints: Callable[[Core], UnitCheckpoints] | None = None,
) -> Outcome:
    """Run a fragment until all input is processed and committed, starting anew whenever something killed it."""
    world.start_faults()
    while True:
        incarnation = f"run-{world.counts.restarts}"
        core, loop = start_runner(world, plan, policy, limits, incarnation, kind, checkpoints)
        try:
            loop.recover()
            while loop.step():
                pass
            loop.finish()
            break
        except RunnerKilled:
            world.counts.restarts += 1
        except PowerCut:
            world.counts.restarts += 1
            world.cut_power()
        except StorageFailed:
            # Somebody frees the disk and starts everything again.
            world.counts.restarts += 1
            world.restart_sidecar()
    world.faults = Faults()
    last = start_runner(world, plan, policy, limits, "the last", kind, checkpoints)
    last.loop.recover()
    return Outcome(world.consume(plan.fragment.topic), state_of(core), state_of(last.core), world.counts)


__all__ = ["Faults", "Outcome", "PowerCut", "RunnerKilled", "SimPort", "World", "run_story", "start_runner"]
