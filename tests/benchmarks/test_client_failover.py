"""The benchmark of foreign producers still works, and tells silences, lost and doubled records."""

import time
from pathlib import Path
from random import Random

import pytest

from benchmarks.client_failover import CALM_S, KILL, KILL_LIMITS_S, LIMITS_S, calm_times_s, find_goals
from benchmarks.clients.load import ClientLoad
from benchmarks.clients.producers import clients
from benchmarks.harness.report import Rows
from tests.benchmarks.smoke import run_smoke
from tests.metadata.support import needs_etcd


def test_lost_and_doubled_records_are_counted() -> None:
    """An acknowledged record that is not there is lost; each further copy of a record is doubled, acknowledged or
    not.
    """
    load = ClientLoad()
    for number in range(4):
        load.acknowledged(number, number)
    assert load.lost_and_doubled([0, 1, 2, 3, 4]) == (0, 0)
    assert load.lost_and_doubled([0, 1, 1, 1, 3, 5, 5]) == (1, 3)


def test_a_silence_counts_from_the_loss_to_the_end() -> None:
    """Acknowledgements outside the two moments do not count, and the time to each of the moments does."""
    load = ClientLoad()
    load.times_s = [1.0, 2.0, 2.5, 9.0]
    assert load.silence_s(1.5, 4.0) == 1.5
    assert load.silence_s(2.25, 2.75) == 0.25
    assert load.silence_s(3.0, 8.0) == 5.0


@pytest.mark.parametrize("seed", range(3))
def test_losses_come_early_and_late_behind_the_last_change(seed: int) -> None:
    """Each part of the longest calm time has a loss: a client that may not ask again so soon is met early, too."""
    low_s, high_s = CALM_S
    for rounds in (1, 3, 10):
        part_s = (high_s - low_s) / rounds
        times_s = calm_times_s(rounds, Random(seed))
        assert sorted(int((each_s - low_s) / part_s) for each_s in times_s) == list(range(rounds))
        assert times_s == calm_times_s(rounds, Random(seed))


def test_a_goal_is_held_against_the_longest_round() -> None:
    """One long silence among short ones misses the goal, and one lost record does."""
    rows = Rows()
    for number, silence_s in enumerate((0.1, 0.1, 3.5)):
        rows.add(part="silence", client="x", round=number, **dict.fromkeys(LIMITS_S, silence_s))
    rows.add(part="records", client="x", acknowledged=9, lost=1, doubled=0, failed=0)
    goals = {goal.name: goal.holds for goal in find_goals(rows)}
    assert not goals["x: longest time without an acknowledgement, kill -9"]
    assert not goals["x: records lost"]
    assert goals["x: records doubled"]


def test_each_client_has_its_own_bound_behind_a_kill() -> None:
    """Every client that is measured has one, or the promise: what franz-go's defaults make it wait misses no goal of
    franz-go, and would miss that of any other.
    """
    for client in (*clients(None, Path()), "Spark"):
        rows = Rows()
        rows.add(part="silence", client=client, round=1, **dict.fromkeys(LIMITS_S, 0.1) | {KILL: 5.5})
        (kill, *_) = find_goals(rows)
        assert kill.holds == (client == "franz-go"), client
        assert client in KILL_LIMITS_S or kill.goal == "≤ 3"


@needs_etcd
@pytest.mark.clients
@pytest.mark.slow
def test_smoke_run(tmp_path: Path) -> None:
    """Two clients go on behind each kind of loss, and no record is lost or doubled; JSON has a row for each."""
    begun_s = time.monotonic()
    found = run_smoke("client_failover", tmp_path)
    silences = [row for row in found["rows"] if row["part"] == "silence"]
    assert [row["client"] for row in silences] == ["librdkafka", "aiokafka"]
    assert all(0 < row[way] < time.monotonic() - begun_s for row in silences for way in LIMITS_S)
    for row in found["rows"]:
        if row["part"] == "records":
            assert row["acknowledged"] > 0
            assert (row["lost"], row["doubled"]) == (0, 0)
