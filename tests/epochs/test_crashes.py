"""Power cuts and kills between any two disk operations: each epoch everywhere or nowhere, never twice."""

import pytest

from logstore.format.epoch_api import EpochCommitReply
from logstore.testing.clock import ManualClock
from logstore.testing.simdisk import CrashBounds, SimDisk
from tests.epochs import power_cuts
from tests.epochs.power_cuts import PowerCut, cut_at, interrupted, set_up
from tests.epochs.stage_set import Sidecar, commit, commit_request, segment, stage

EPOCHS = 3


def output(incarnation: str, epoch: int, task: int) -> dict[int, list[str]]:
    """What one execution of a task writes: different in every incarnation, and spread over both partitions."""
    return {partition: [f"{epoch}:{incarnation}:{task}:{partition}"] for partition in (0, 1)}


def run_epochs(sidecar: Sidecar, incarnation: str, first: int, acked: dict[int, str]) -> None:
    """A query's driver and tasks, from epoch `first` on. `acked` gets the incarnation of each acked epoch."""
    for epoch in range(first, EPOCHS):
        for task in (0, 1):
            stage(sidecar, segment(output(incarnation, epoch, task), incarnation=incarnation, epoch=epoch, task=task))
        reply = commit(sidecar, commit_request((0, "a0", 1), (1, "a0", 1), incarnation=incarnation, epoch=epoch))
        if reply.outcome == "committed":
            acked[epoch] = incarnation


def check_whole(sidecar: Sidecar, acked: dict[int, str]) -> None:
    """Each epoch is in both streams exactly once, in order, from one execution: the acked one if there is."""
    executions: list[list[str]] = []
    for partition in (0, 1):
        records = [value.split(":") for value in sidecar.records("out", partition)]
        assert [int(record[0]) for record in records] == [epoch for epoch in range(EPOCHS) for _ in (0, 1)]
        assert [record[2] for record in records] == ["0", "1"] * EPOCHS
        incarnations = [record[1] for record in records]
        assert incarnations[::2] == incarnations[1::2]
        executions.append(incarnations[::2])
        markers = [value for value in sidecar.values("out", partition) if value.startswith("<")]
        assert markers == [mark for epoch in range(EPOCHS) for mark in (f"<Begin {epoch}>", f"<End {epoch}>")]
    assert executions[0] == executions[1]
    for epoch, incarnation in acked.items():
        assert executions[0][epoch] == incarnation


def check_all_or_nothing(sidecar: Sidecar) -> None:
    """After rolling forward, before any client is back: both streams hold the same whole epochs."""
    seen = [[value.rsplit(":", 1)[0] for value in sidecar.records("out", partition)] for partition in (0, 1)]
    assert seen[0] == seen[1]
    assert sidecar.epochs.describe("query-1").state == "idle"


def recover(disk: SimDisk) -> Sidecar:
    """The next life of the sidecar, ready to serve, and checked."""
    sidecar = power_cuts.recover(disk)
    check_all_or_nothing(sidecar)
    return sidecar


def first_epoch(acked: dict[int, str]) -> int:
    """Where Spark starts again: at the epoch whose commit was not answered, committed or not."""
    return len(acked)


def test_power_cut_anywhere_and_a_new_run() -> None:
    """Whatever a power cut leaves, the restarted query finds each epoch once, acked ones as they were acked."""
    points = 0
    for number, disk, acked in interrupted(run_epochs):
        points += 1
        for state in disk.crash_states(CrashBounds(states=6, file_states=4, torn_bytes=4, seed=number)):
            sidecar = recover(state)
            later = dict(acked)
            run_epochs(sidecar, "run-2", first_epoch(acked), later)
            check_whole(sidecar, {**later, **acked})
    assert points > 30


def test_a_kill_anywhere_and_the_same_client_goes_on() -> None:
    """The sidecar alone is killed: the client stages again what was not acked and commits; nothing is lost."""
    for _, disk, acked in interrupted(run_epochs):
        sidecar = recover(disk.kill_state())
        run_epochs(sidecar, "run-1", len(acked), acked)
        check_whole(sidecar, acked)


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_a_second_crash_while_rolling_forward(every: int) -> None:
    """Crashing again at every step of the roll-forward changes nothing; each eighth of them in a short run."""
    rolled = 0
    for number, disk, acked in interrupted(run_epochs):
        state = next(iter(disk.crash_states(CrashBounds(states=1, file_states=1, torn_bytes=1, seed=number))))
        if not Sidecar(state.kill_state(), ManualClock()).epochs.searches():
            continue
        rolled += 1
        if rolled % every:
            continue
        step = 0
        while True:
            again = state.kill_state()
            cut_at(again, step)
            try:
                Sidecar(again, ManualClock()).roll_forward()
            except PowerCut:
                step += 1
            else:
                break
            for left in again.crash_states(CrashBounds(states=1, file_states=1, torn_bytes=1, seed=step)):
                sidecar = recover(left)
                later = dict(acked)
                run_epochs(sidecar, "run-2", first_epoch(acked), later)
                check_whole(sidecar, {**later, **acked})
    assert rolled > 4 * every


@pytest.mark.slow
def test_power_cut_anywhere_in_depth() -> None:
    """The same with many more states of the disk."""
    for number, disk, acked in interrupted(run_epochs):
        for state in disk.crash_states(CrashBounds(states=500, seed=number)):
            sidecar = recover(state)
            later = dict(acked)
            run_epochs(sidecar, "run-2", first_epoch(acked), later)
            check_whole(sidecar, {**later, **acked})


def test_a_commit_acked_before_the_crash_is_a_duplicate_after() -> None:
    """The acked epoch of a former incarnation, committed again by the next, is answered as a duplicate."""
    disk = set_up()
    sidecar = Sidecar(disk, ManualClock())
    run_epochs(sidecar, "run-1", 0, {})
    revived = recover(disk.kill_state())
    last = EPOCHS - 1
    assert commit(revived, commit_request(incarnation="run-2", epoch=last)) == EpochCommitReply(
        "duplicate", last, f"positions of {last}"
    )
