"""Random histories: safety on every step, then liveness after healing. The seed is in the test's name."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from logstore.replica.known_replicas import TRANSITIONS as REPLICA_TRANSITIONS
from logstore.replica.known_replicas import ReplicaChunk, ReplicaEvent, ReplicaState
from logstore.replica.owner import Owner
from logstore.replica.owner_states import TRANSITIONS as OWNER_TRANSITIONS
from logstore.replica.owner_states import OwnerEvent, OwnerState
from logstore.replica.repair import TRANSITIONS as REPAIR_TRANSITIONS
from logstore.replica.repair import RepairEvent, RepairState
from logstore.replica.replica import Replica
from tests.replica.cluster import Planted
from tests.replica.random_runs import Outcome, run_seed
from tests.replica.stories import FOLDER, play
from tests.support.other_processes import printed_with_other_hashes

SHORT_SEEDS = (*range(24), 68)
RARE_SEEDS = (36, 96)
"""An owner is overtaken while it opens its first chunk; the target of a copy that was found whole fails before the
registration names it.
"""
LONG_SEEDS = range(1_000_000, 1_000_100)
LONG_ACTIONS = 1_500


@cache
def outcome_of(seed: int) -> Outcome:
    """What a short run does: it is the same every time."""
    return run_seed(seed)


@pytest.mark.parametrize("seed", SHORT_SEEDS)
def test_a_random_history_keeps_every_promise(seed: int) -> None:
    """Some thousand steps with every kind of fault; afterwards the cluster heals, repairs itself and goes on."""
    outcome = outcome_of(seed)
    assert outcome.steps > 1_000
    assert outcome.acked > 0


def test_the_faults_happen() -> None:
    """The runs do what they are for: each kind of fault, takeovers and rolls, acknowledgements and reads."""
    faults: Counter[str] = Counter()
    epochs = acked = seen = 0
    for seed in SHORT_SEEDS:
        outcome = outcome_of(seed)
        faults += outcome.faults
        epochs, acked, seen = epochs + outcome.epochs, acked + outcome.acked, seen + outcome.seen
    wanted = {"append", "crash", "start", "pause", "resume", "cut", "isolate", "heal", "lose_metadata", "load"}
    wanted |= {"trim", "roll", "disk_full", "make_room", "usurp", "empty"}
    assert wanted | {"weather", "wipe", "disk_fails", "rot", "snapshot", "restore", "format"} == set(faults)
    assert epochs > 100
    assert acked > 1_000
    assert seen > 1_000
    assert sum(outcome_of(seed).trims for seed in SHORT_SEEDS) > 20
    assert sum(outcome_of(seed).early_reads for seed in SHORT_SEEDS) > 5


@pytest.mark.parametrize("seed", [0, 3])
def test_a_seed_repeats_its_run(seed: int) -> None:
    """Same seed, same trace: every event at the same time, in the same order, with the same content."""
    assert outcome_of(seed) == run_seed(seed)
    assert outcome_of(seed).trace != outcome_of(seed + 1).trace


def test_a_seed_repeats_its_run_in_another_process() -> None:
    """Nothing depends on how Python hashes strings, which differs between processes."""
    program = "from tests.replica.random_runs import run_seed; print(run_seed(5, 60).trace)"
    assert printed_with_other_hashes(program) == {run_seed(5, 60).trace + "\n"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", LONG_SEEDS)
def test_a_long_random_history_keeps_every_promise(seed: int) -> None:
    """Millions of steps over all seeds."""
    run_seed(seed, LONG_ACTIONS)


class WatchedOwner(Owner):
    """Notes the steps that it takes, and those of its repair."""

    steps: set[tuple[OwnerState, OwnerEvent]] = set()  # noqa: RUF012 - of all owners
    repairs: set[tuple[RepairState, RepairEvent]] = set()  # noqa: RUF012

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        step = self._repair._step

        def watched(event: RepairEvent) -> None:
            self.repairs.add((self._repair.state, event))
            step(event)

        self._repair._step = watched  # type: ignore[method-assign]

    def _step(self, event: OwnerEvent) -> None:
        self.steps.add((self.state, event))
        super()._step(event)


def test_every_step_of_the_tables_is_taken() -> None:
    """No row of a table is there for show. A step outside the tables raises, in any run."""
    replica_steps: set[tuple[ReplicaState, ReplicaEvent]] = set()

    class WatchedReplica(Replica):
        def _step(self, chunk: ReplicaChunk, event: ReplicaEvent) -> None:
            replica_steps.add((chunk.state, event))
            super()._step(chunk, event)

    watched = Planted(owner=WatchedOwner, replica=WatchedReplica)
    for path in FOLDER.glob("*.txt"):
        play(path.read_text(encoding="utf-8"), watched)
    for seed in RARE_SEEDS:
        run_seed(seed, planted=watched)
    assert set(OWNER_TRANSITIONS) - WatchedOwner.steps == set()
    assert set(REPAIR_TRANSITIONS) - WatchedOwner.repairs == set()
    assert set(REPLICA_TRANSITIONS) - replica_steps == set()
