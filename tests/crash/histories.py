"""Random histories of a store: clients, an operator, a disk that fails and fills, kills and power cuts, in any order.

The crash enumerator stops fixed stories at every call; the faults of `test_faults` come one at a time. A history has
several of both, one behind the other: a failed call, then another of another kind, a kill in the middle of the recovery
that follows, then a power cut. A seed gives one history, and always the same.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from random import Random

from logstore.errors import CairnError
from logstore.events import (
    DURABLE_DATA_DAMAGED,
    DURABLE_DATA_LOST,
    JOURNAL_DAMAGED,
    OFFSETS_LOST,
    QUIET_TABLE_DAMAGED,
)
from logstore.format.epoch_api import AbortRequest
from logstore.log.topics import TopicConfig
from logstore.testing.clock import ManualClock
from logstore.testing.faults import Effect, Fault, FileCall
from logstore.testing.history import History, PromiseBroken, content_of
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import FIRST_TIMESTAMP, Setup, SimulatedStore, journaled
from logstore.verify.directory import verify

PARTITIONS = 3
EPOCH_PARTITIONS = 4
PRODUCER = 42
KINDS = ("write", "sync", "create", "remove", "rename", "truncate", "sync_directory", "make_directory")
PLACES = (
    *("", ".log", ".log", ".log", ".journal", ".journal", ".index", ".producers", ".cleaned"),
    *("ledger/", "ledger/quiet", "journal", "streams/"),
)
"""Parts of paths; what is here more than once is hit more often."""
DAY_MS = 24 * 3600 * 1000
LOST = (OFFSETS_LOST, DURABLE_DATA_DAMAGED, DURABLE_DATA_LOST, JOURNAL_DAMAGED, QUIET_TABLE_DAMAGED)
"""Reports that no crash and no failed call may bring about."""


class QueryAtWork:
    """A query as its driver sees it: its newest incarnation, the epoch that is due, and its attempts so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = ""
        self.due = self.attempts = 0
        self.staged: list[tuple[int, str, int]] = []
        """Epochs, attempts and numbers of tasks that were staged by this incarnation."""


class Killed(Exception):
    """The process ends here."""


def setup_of(random: Random, seed: int) -> Setup:
    """A store with a small journal, or without one."""
    setup = Setup(seed=seed)
    if random.random() >= 0.8:
        return setup
    setup = journaled(setup)
    limits = replace(setup.settings.journal, file_bytes=random.choice([900, 2500]))
    return replace(setup, settings=replace(setup.settings, journal=limits))


class RandomHistory:
    """One history. `trace` says what has happened so far."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.trace: list[str] = [f"seed {seed}"]
        setup = setup_of(random, seed)
        segment_bytes = random.choice([512, 900, 4096, 8192])
        self.setup = replace(
            setup, settings=replace(setup.settings, topic_defaults=TopicConfig(segment_bytes=segment_bytes))
        )
        self.clock = ManualClock(FIRST_TIMESTAMP)
        self.history = History()
        self.group = self.sequence = self.incarnations = 0
        self.queries = [QueryAtWork("q"), QueryAtWork("p")]
        self.unacked: list[bytearray] = []
        self.forgotten = False
        self.world = SimulatedStore(SimDisk(unit_bytes=random.choice([64, 512])), self.history, self.setup, self.clock)
        self.world.create_topic("t", PARTITIONS)
        self.world.create_topic("e", EPOCH_PARTITIONS)
        self.world.run()
        self.world.store.alter_topic("e", {"retention.ms": "-1"})  # committed epochs are looked for until the end
        self.world.run()

    # ---- one step

    def step(self) -> None:
        """Do one thing, and check."""
        steps: list[tuple[int, Callable[[], None]]] = [
            (16, self.append),
            (3, self.append_group),
            (5, self.produce),
            (3, self.whole_epoch),
            (2, self.take_over),
            (5, self.stage),
            (5, self.commit),
            (1, self.abort),
            (3, self.append_beside_epochs),
            (3, self.trim),
            (1, self.retain),
            (2, self.clean),
            (3, self.rest),
            (3, self.tick),
            (4, self.bring_into_chunk),
            (1, self.recreate),
            (2, self.put),
            (8, self.work),
            (5, self.work_all),
            (4, self.break_disk),
            (1, self.fill_disk),
            (2, self.mend_disk),
            (3, self.crash),
            (2, self.restart),
            (1, self.roll),
        ]
        chosen = self.random.choices([do for _, do in steps], [weight for weight, _ in steps])[0]
        self.trace.append(chosen.__name__)
        try:
            chosen()
        except CairnError as error:
            self.trace.append(f"  refused: {error}")
        self.world.check(epochs=False)

    def end(self) -> None:
        """The disk works again, and so does every stream; then a last crash."""
        self.mend_disk()
        self.serve()
        self.commit_all()
        self.crash()

    # ---- clients

    def append(self) -> None:
        """Some batches."""
        for _ in range(self.random.choice([1, 1, 2, 4])):
            partition = self.random.choice([0, 2])
            size = self.random.choice([10, 40, 40, 150, 300, 700])
            self.trace.append(f"  append t-{partition} {size}")
            self.world.append("t", partition, records=self.random.choice([1, 1, 3]), value_bytes=size)

    def append_group(self) -> None:
        """A group."""
        self.group += 1
        self.world.append_group(
            "t",
            self.random.choice([0, 2]),
            self.group,
            self.random.randrange(4),
            self.random.choice([10, 60, 300]),
            states=self.random.choice([0, 0, 1, 3]),
        )

    def produce(self) -> None:
        """The idempotent producer sends what is not acknowledged once more, then new batches."""
        known = self.history.stream("t", 1)
        self.forget_acked()
        if len(self.unacked) < 4:
            batch, newest = self.world.make_batch(known, 1, 30, (PRODUCER, 0, self.sequence))
            known.send(content_of(batch), 1, newest)
            self.sequence += 1
            self.unacked.append(batch)
        for batch in list(self.unacked):
            self.world.send("t", 1, bytearray(batch))
        if self.random.random() < 0.7:
            self.world.run()

    def forget_acked(self) -> None:
        """What is acknowledged need not be sent again."""
        known = self.history.stream("t", 1)
        self.unacked = [batch for batch in self.unacked if known.sent[content_of(batch)].offset is None]

    def whole_epoch(self) -> None:
        """An epoch of a new incarnation, or of the one before, one request behind the other."""
        query = self.random.choice(self.queries)
        if not query.incarnation or self.random.random() < 0.5:
            self.begin_incarnation(query)
            self.world.run()
        self.begin_stage(query)
        self.world.run()
        self.begin_commit(query)
        if self.random.random() < 0.8:
            self.world.run()

    def take_over(self) -> None:
        """A new incarnation comes, whatever the one before has under way."""
        self.begin_incarnation(self.random.choice(self.queries))

    def begin_incarnation(self, query: QueryAtWork) -> None:
        """A new incarnation asks for the last epoch."""
        self.incarnations += 1
        query.incarnation, query.staged = f"run-{self.incarnations}", []
        self.trace.append(f"  {query.name} is {query.incarnation}")
        self.world.take_over(query.incarnation, query.name)

    def stage(self) -> None:
        """A query stages the epoch that is due, while other work goes on."""
        query = self.random.choice(self.queries)
        if query.incarnation:
            self.begin_stage(query)

    def begin_stage(self, query: QueryAtWork) -> None:
        """One to three tasks stage for some streams, little or much."""
        query.attempts += 1
        attempt, tasks = f"a{query.attempts}", self.random.choice([1, 1, 2, 3])
        self.trace.append(f"  {query.name} stages {query.due} as {attempt}, {tasks} tasks")
        for task in range(tasks):
            self.world.begin_stage(
                "e",
                query.due,
                query.incarnation,
                partitions=self.random.sample(range(EPOCH_PARTITIONS), self.random.randint(1, EPOCH_PARTITIONS)),
                task=task,
                value_bytes=self.random.choice([20, 20, 30, 30, 100, 500]),
                query=query.name,
                attempt=attempt,
            )
        query.staged.append((query.due, attempt, tasks))

    def commit(self) -> None:
        """A query commits what it staged last, or something that it staged before."""
        query = self.random.choice(self.queries)
        if query.incarnation and query.staged:
            self.begin_commit(query)

    def begin_commit(self, query: QueryAtWork) -> None:
        """Commit an epoch; the answer, if there is one, says which is due next."""
        epoch, attempt, tasks = query.staged[-1] if self.random.random() < 0.8 else self.random.choice(query.staged)
        self.trace.append(f"  {query.name} commits {epoch} as {attempt}")
        ticket = self.world.begin_commit(epoch, query.incarnation, tasks=tasks, query=query.name, attempt=attempt)

        def settled(_: object) -> None:
            outcome = ticket.error or ticket.result().outcome
            self.trace.append(f"    {query.name} {epoch}: {outcome}")
            if outcome in ("committed", "duplicate", "skipped"):
                query.due = max(query.due, epoch + 1)

        ticket.add_callback(settled)

    def abort(self) -> None:
        """A query drops what it staged for an epoch."""
        query = self.random.choice(self.queries)
        if query.staged:
            epoch, *_ = self.random.choice(query.staged)
            self.trace.append(f"  {query.name} aborts {epoch}")
            self.world.epochs.abort(AbortRequest(query.name, query.incarnation, epoch))

    def append_beside_epochs(self) -> None:
        """Batches for streams that epochs go to."""
        for _ in range(self.random.choice([1, 2])):
            self.world.append(
                "e", self.random.randrange(EPOCH_PARTITIONS), value_bytes=self.random.choice([10, 40, 150])
            )

    def trim(self) -> None:
        """Delete records of a stream, often all of them."""
        topic, partition = self.random.choice([("t", 0), ("t", 1), ("t", 2)])
        stream = self.world.store.stream(topic, partition)
        share = self.random.choice([self.random.random(), 1.0])
        self.trace.append(f"  trim {topic}-{partition} to {int(share * stream.high_watermark)}")
        self.world.trim(topic, partition, int(share * stream.high_watermark))

    def clean(self) -> None:
        """A reader needs no state before some offset, and records of state go."""
        partition = self.random.choice([0, 2])
        stream = self.world.store.stream("t", partition)
        self.world.own_state("t", partition, self.random.randint(stream.log_start_offset, stream.high_watermark))
        if self.random.random() < 0.5:
            self.world.run(self.random.randrange(8))
        self.world.store.clean()

    def retain(self) -> None:
        """Time passes, retention trims whole chunks and seals old ones."""
        self.clock.advance(self.random.choice([0, DAY_MS // 4, 8 * DAY_MS]))
        self.world.retain()
        self.forgotten = True

    def roll(self) -> None:
        """Seal the last chunk of a stream."""
        self.world.store.roll_soon(self.world.store.stream("t", self.random.randrange(PARTITIONS)))

    def rest(self) -> None:
        """Streams come to rest."""
        self.world.rest()

    def tick(self) -> None:
        """What the sidecar does every few seconds."""
        self.world.store.save_readers()
        self.world.epochs.tick(now_ms=self.world.clock.wall_ms())

    def bring_into_chunk(self) -> None:
        """What the journal has of a stream goes to its chunk, and is synced there or not."""
        stream = self.world.store.stream("t", self.random.randrange(PARTITIONS))
        if self.random.random() < 0.6:
            stream.sync_backlog()
        else:
            stream.write_backlog()

    def recreate(self) -> None:
        """A topic comes and goes, with appends on their way."""
        if self.world.disk.fault_for is not None or "u" in self.history.topics_unsure:
            return
        if "u" in self.history.topics_acked:
            self.world.append("u")
            self.world.delete_topic("u")
            return
        self.world.run()
        self.world.create_topic("u", 1)
        self.world.run()
        if "u" in self.history.topics_acked:
            for _ in range(self.random.randrange(4)):
                self.world.append("u")
                self.world.run(self.random.randrange(8))

    def put(self) -> None:
        """A ledger entry, a producer id."""
        self.world.put()
        self.world.allocate()

    # ---- the disk

    def work(self) -> None:
        """The disk does some of its work."""
        self.world.run(self.random.randrange(1, 15))

    def work_all(self) -> None:
        """The disk does all of its work."""
        self.world.run()

    def fault(self) -> tuple[str, Callable[[FileCall], Fault | None]]:
        """A rule that lets a few calls fail."""
        random = self.random
        kind, place = random.choice((*KINDS, *["sync"] * 4, "write", "create")), random.choice(PLACES)
        effect, number = random.choice(list(Effect)), random.choice([errno.EIO, errno.ENOSPC])
        skip, left = random.choice([0, 0, 1, 3]), random.choice([1, 1, 2, 5])

        def rule(call: FileCall) -> Fault | None:
            nonlocal skip, left
            if call.kind != kind or place not in call.path or not left:
                return None
            if skip:
                skip -= 1
                return None
            left -= 1
            self.trace.append(f"    fails: {call.kind} {call.path} ({effect.value})")
            return Fault(number, effect)

        return f"{kind} of {place!r} fails, {effect.value}, behind {skip}, {left} times", rule

    def break_disk(self) -> None:
        """Some of the next calls fail."""
        text, self.world.disk.fault_for = self.fault()
        self.trace.append(f"  {text}")

    def fill_disk(self) -> None:
        """Little room is left."""
        disk = self.world.disk
        used = sum(len(content) for _, content in disk.files() if content is not None)
        disk.capacity_bytes = used + self.random.choice([0, 100, 300, 1000, 3000])

    def mend_disk(self) -> None:
        """All calls work, and there is room."""
        self.world.disk.fault_for = None
        self.world.disk.capacity_bytes = None

    def serve(self) -> None:
        """A disk that works serves all: what was refused is tried again, then nothing is refused."""
        world = self.world
        for _ in range(2):
            world.store.save_readers()
            world.store.space.look()
            world.run()
            streams = [stream for stream in world.store.streams() if stream.name != "t-1"]
            tickets = [world.append(stream.topic, stream.partition) for stream in streams]
            world.run()
        for ticket in tickets:
            if not ticket.done or ticket.error is not None:
                raise PromiseBroken(f"the disk works, an append is refused: {ticket.error if ticket.done else 'waits'}")
        world.check(epochs=False)

    def commit_all(self) -> None:
        """With a disk that works, every query can be taken over, and commits an epoch."""
        for query in self.queries:
            self.world.epochs.tick(now_ms=self.world.clock.wall_ms())
            self.world.run()
            self.begin_incarnation(query)
            self.begin_stage(query)
            self.world.run()
            epoch, attempt, tasks = query.staged[-1]
            outcome = self.world.commit(epoch, query.incarnation, tasks=tasks, query=query.name, attempt=attempt)
            self.trace.append(f"  {query.name} {epoch}: {outcome}")
            if outcome not in ("committed", "duplicate"):
                raise PromiseBroken(f"the disk works, epoch {epoch} of {query.name} is not committed: {outcome}")
        self.world.check()

    # ---- ends and starts

    def crash(self) -> None:
        """The process is killed or the power goes, perhaps several times while the next life starts."""
        disk, what = self.left_by(self.world.disk)
        self.trace.append(f"  {what}")
        while self.random.random() < 0.4:
            disk, what = self.interrupted_start(disk)
            self.trace.append(f"  then {what}")
        damages = verify(disk.kill_state()).damages
        if damages:
            raise PromiseBroken(f"a check calls it damage: {damages[0]}")
        self.world = SimulatedStore(disk, self.history, self.setup, self.clock)
        self.started()

    def left_by(self, disk: SimDisk) -> tuple[SimDisk, str]:
        """What a crash leaves."""
        left = disk.crash(self.random) if self.random.random() < 0.6 else disk.kill_state()
        left.capacity_bytes = None
        return left, f"crash: {left.origin}"

    def interrupted_start(self, disk: SimDisk) -> tuple[SimDisk, str]:
        """What is left if a start is ended at some call, by a kill, a power cut or a fault."""
        ends_at = disk.calls + self.random.randrange(1, 120)
        style = self.random.random()

        def before(call: FileCall) -> None:
            if call.number >= ends_at:
                raise Killed

        if style < 0.7:
            disk.before_call = before
        else:
            _, disk.fault_for = self.fault()
        how = "done"
        try:
            world = SimulatedStore(disk, self.history, self.setup, self.clock)
            world.run()
        except (Killed, OSError, CairnError) as error:
            how = f"{error!r}"
        disk.before_call = disk.fault_for = None
        left, what = self.left_by(disk)
        return left, f"a start that ended with {how}, {what}"

    def restart(self) -> None:
        """A clean stop, or as clean as the disk lets it be, and the next life."""
        closed = self.world.store.close()
        self.world.run()
        if not closed.done:
            raise PromiseBroken("a stop does not end")
        disk = self.world.disk.next_life()
        disk.fault_for, disk.capacity_bytes = None, None
        damages = verify(disk.kill_state()).damages
        if damages:
            raise PromiseBroken(f"a check calls it damage: {damages[0]}")
        self.world = SimulatedStore(disk, self.history, self.setup, self.clock)
        self.started()

    def started(self) -> None:
        """Check a new life."""
        for event in LOST:
            if found := self.world.reports.of(event):
                raise PromiseBroken(f"{event.name}: {found[0]}")
        self.world.check()
        self.world.adopt()
        self.forget_acked()
        self.look_at_epochs()
        if self.random.random() < 0.3:
            self.serve()

    def look_at_epochs(self) -> None:
        """The drivers of the queries ask which epoch is last; half of them start again, the others lost an answer."""
        for query in self.queries:
            last = self.world.epochs.describe(query.name).last_epoch
            if query.incarnation and self.random.random() < 0.5:
                query.due = 0 if last is None else last + 1
                self.begin_incarnation(query)


def run_history(seed: int, steps: int) -> None:
    """Run one history. Raises PromiseBroken with its trace."""
    found = RandomHistory(seed)
    try:
        for _ in range(steps):
            found.step()
        found.end()
    except Exception as error:
        trace = "\n".join(found.trace[-60:])
        raise PromiseBroken(f"{error!r}\n{trace}") from error
