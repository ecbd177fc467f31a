"""Random histories of a host's replicas: owners, a disk that fails and fills, kills and power cuts, in any order.

The crash enumerator stops fixed stories at every call; a history has several failures, one behind the other. A seed
gives one history, and always the same.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

import logstore.log.replica_chunk
from logstore.log.replicas import ChunkKey
from logstore.testing.faults import Effect, Fault, FileCall
from logstore.testing.history import PromiseBroken
from logstore.testing.simdisk import SimDisk
from tests.cluster.batches import TOPIC_ID
from tests.crash.histories import KINDS, setup_of
from tests.crash.replica_world import ReplicaHistory, ReplicaWorld
from tests.support.examples import is_long

pytestmark = pytest.mark.crash

SEEDS = range(3000 if is_long() else 120)
STEPS = 60
KEYS: tuple[ChunkKey, ...] = tuple((f"{TOPIC_ID}/{partition}", epoch) for partition in range(2) for epoch in (1, 2))
PLACES = (
    "",
    ".log",
    ".log",
    ".journal",
    ".journal",
    ".index",
    ".producers",
    "ledger/replicas",
    "ledger/quiet",
    "replicas",
)
"""Parts of paths; what is here more than once is hit more often."""


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logstore.log.replica_chunk, "KNOWN_INTERVAL_BYTES", 300)


class RandomHistory:
    """One history. `trace` says what has happened so far."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.trace: list[str] = [f"seed {seed}"]
        setup = setup_of(random, seed)
        self.history = ReplicaHistory()
        self.world = ReplicaWorld(SimDisk(unit_bytes=random.choice([64, 512])), self.history, setup)

    def step(self) -> None:
        """Do one thing."""
        steps: list[tuple[int, Callable[[], None]]] = [
            (16, self.write),
            (4, self.cut),
            (3, self.remove),
            (2, self.fence),
            (3, self.rest),
            (3, self.tick),
            (4, self.bring_into_files),
            (8, self.work),
            (6, self.work_all),
            (6, self.break_disk),
            (3, self.mend_disk),
            (3, self.crash),
            (2, self.kill),
            (1, self.stop),
        ]
        chosen = self.random.choices([do for _, do in steps], [weight for weight, _ in steps])[0]
        self.trace.append(chosen.__name__)
        chosen()

    def end(self) -> None:
        """The disk works again; a last crash, and every chunk can be sealed, removed and written anew."""
        self.crash()
        for key in KEYS:
            found = self.world.asked(self.world.chunk(key))
            if found is not None and not found.is_sealed:
                self.world.cut(key, found.length)
            self.world.remove(key, comes_back_other=True)
            self.world.write(key, 2)
        self.world.run()
        for key in KEYS:
            if self.world.chunk(key).done != len(self.world.chunk(key).steps):
                raise PromiseBroken(f"{key} does not work on a disk that does")
        self.world.restart(clean=True)

    # ---- what happens

    def write(self) -> None:
        """Some entries, few or many bytes."""
        key = self.random.choice(KEYS)
        asked = self.world.asked(self.world.chunk(key))
        if asked is None or not asked.is_sealed:
            size = self.random.choice([10, 40, 40, 150, 300, 700])
            self.trace.append(f"  {key} {size}")
            self.world.write(key, self.random.choice([1, 1, 2, 4]), value_bytes=size)

    def cut(self) -> None:
        """Seal a chunk, at its end or in front of it."""
        key = self.random.choice(KEYS)
        asked = self.world.asked(self.world.chunk(key))
        if asked is not None and not asked.is_sealed:
            count = self.random.choice([asked.length, self.random.randint(1, asked.length)])
            self.trace.append(f"  {key} at {count} of {asked.length}")
            self.world.cut(key, count)

    def remove(self) -> None:
        """Remove a chunk."""
        key = self.random.choice(KEYS)
        self.trace.append(f"  {key}")
        self.world.remove(key, comes_back_other=self.random.random() < 0.5)

    def fence(self) -> None:
        """Fence a stream."""
        self.world.fence(self.random.choice(KEYS)[0], self.random.randint(1, 9))

    def rest(self) -> None:
        """What can rest comes to rest."""
        self.world.rest()

    def tick(self) -> None:
        """What waits in the journal is written out, what is durable is noted."""
        self.world.store.journal.tick()
        self.world.tick()

    def bring_into_files(self) -> None:
        """What only the journal has is written and synced."""
        for log in self.world.store.replicas.logs():
            log.sync_backlog()

    def work(self) -> None:
        """Some disk work."""
        self.world.run(self.random.randrange(12))

    def work_all(self) -> None:
        """All disk work."""
        self.world.run()

    def break_disk(self) -> None:
        """Calls of a kind fail on some files, some of them after they have taken effect."""
        kind, place = self.random.choice(KINDS), self.random.choice(PLACES)
        effect = self.random.choice([Effect.NOTHING, Effect.NOTHING, Effect.PARTIAL, Effect.DONE])
        left = [self.random.choice([1, 1, 2, 5])]
        self.trace.append(f"  {kind} {place!r} {effect} {left[0]}")

        def fault_for(call: FileCall) -> Fault | None:
            if call.kind != kind or place not in call.path or not left[0]:
                return None
            left[0] -= 1
            return Fault(self.random.choice([errno.EIO, errno.ENOSPC]), effect)

        self.world.disk.fault_for = fault_for

    def mend_disk(self) -> None:
        """The disk works again."""
        self.world.disk.fault_for = None

    def crash(self) -> None:
        """A power cut."""
        self.mend_disk()
        self._reopen(self.world.disk.crash(self.random))

    def kill(self) -> None:
        """The process is killed."""
        self.mend_disk()
        self._reopen(self.world.disk.kill_state())

    def _reopen(self, disk: SimDisk) -> None:
        self.world = ReplicaWorld(disk, self.history, self.world.setup)

    def stop(self) -> None:
        """A clean stop."""
        self.mend_disk()
        self.world.restart(clean=True)


def run_history(seed: int, steps: int) -> None:
    """Run one history. Raises PromiseBroken with its trace."""
    history = RandomHistory(seed)
    try:
        for _ in range(steps):
            history.step()
        history.end()
    except Exception as error:
        raise PromiseBroken("\n".join([*history.trace, repr(error)])) from error


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rest", range(4))
def test_no_history_breaks_a_promise(rest: int) -> None:
    """What was confirmed is there, whole and once, or a damage is named; nothing that a disk refuses is damage."""
    for seed in SEEDS[rest::4]:
        run_history(seed, STEPS)
