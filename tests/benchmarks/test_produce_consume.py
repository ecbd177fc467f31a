"""The benchmark of produce and consume still works: every stage runs, and leaves what it promises. No timings."""

import json
import threading
from pathlib import Path

import pytest

from benchmarks.harness.cells import ALL, Cell, instant_server
from benchmarks.harness.generator import generate
from benchmarks.harness.instant import answer
from benchmarks.harness.load import payload, walk
from benchmarks.harness.produce_consume_report import find_goals
from benchmarks.harness.raw import RawConnection, RawFailed, produced_error
from benchmarks.harness.report import Goal, Rows
from benchmarks.harness.sidecar import SidecarPeer
from benchmarks.produce_consume import shuffled, wait_gone
from tests.benchmarks.smoke import run_benchmark, start_benchmark
from tests.support.limits import PATIENCE_S


@pytest.mark.clients
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run against a sidecar prints tables and leaves JSON with machine, versions, rows, goals, and a plot."""
    results, printed = run_benchmark("produce_consume", tmp_path, "--smoke", "--data", tmp_path)
    for title in ("Produce (medians)", "Consume, start, memory (medians)", "Goals"):
        assert title in printed
    assert results["mode"] == "smoke"
    assert {"machine", "versions", "goals", "notes", "rows"} <= results.keys()
    stages = {row["what"] for row in results["rows"]}
    expected = {"start", "floor", "produce", "consume", "tail", "beside", "memory", "fill", "restart", "seek"}
    assert stages == expected | {"cell", "generator"}
    consumers = {row["client"] for row in results["rows"] if row["what"] == "consume"}
    assert consumers == {"raw", "confluent-kafka", "kafka-python", "aiokafka"}, "Java's are left out of a tiny run"
    assert any(goal["name"].startswith("the load generator") for goal in results["goals"])
    for goal in results["goals"]:
        assert goal.keys() == set(Goal._fields)
        assert isinstance(goal["holds"], bool)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["produce_consume.json", "produce_consume.png"]


@pytest.mark.clients
def test_one_cell_alone(tmp_path: Path) -> None:
    """`--only` measures what it names and nothing else; a name that nothing has is refused with the names there are."""
    options = ("produce_consume", "--smoke", "--results", tmp_path, "--only")
    done = start_benchmark(*options, "refused, 16 × 5")
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads((tmp_path / "produce_consume.json").read_text())["rows"]
    assert {row["cell"] for row in rows if row["what"] == "cell"} == {"refused, 16 × 5, 1 KB"}
    assert {row["what"] for row in rows} == {"start", "cell", "memory"}
    done = start_benchmark(*options, "nonsense")
    assert done.returncode == 2
    assert "--only nonsense" in done.stderr
    assert "refused, 16 × 5, 1 KB" in done.stderr


def test_a_stage_begins_when_the_files_of_the_one_before_are_gone(tmp_path: Path) -> None:
    """A server removes files of deleted topics later, as Kafka does, or in the background, as we do: both are waited
    for, and other topics are not.
    """
    for kept in ("streams/other.1234/0", "tail-0", "other-0.12ab-delete"):
        (tmp_path / kept).mkdir(parents=True)
    wait_gone(tmp_path, "tail", 0)
    for left in ("streams/tail.1234", "tail-0.12ab-delete"):
        (tmp_path / left).mkdir()
        with pytest.raises(TimeoutError, match="tail"):
            wait_gone(tmp_path, "tail", 0)
        remover = threading.Thread(target=(tmp_path / left).rmdir)
        remover.start()
        wait_gone(tmp_path, "tail", PATIENCE_S)
        remover.join()
        assert not (tmp_path / left).exists()


@pytest.mark.clients
def test_topics_that_a_sidecar_deletes_leave_no_files(tmp_path: Path) -> None:
    """What is waited for is what a sidecar calls its files."""
    peer = SidecarPeer(tmp_path)
    try:
        peer.start()
        peer.wait_serving(PATIENCE_S)
        with RawConnection(peer.port) as connection:
            connection.create_topic("gone")
            assert list(peer.data_path.glob("streams/gone.*"))
            connection.delete_topic("gone")
        wait_gone(peer.data_path, "gone", PATIENCE_S)
    finally:
        peer.kill()


def test_the_generator_checks_every_answer() -> None:
    """Against a server that acknowledges everything: as many requests as answers, and any other code is an error."""
    cell = Cell(3, 2, 4, 1024)
    with instant_server(cell) as (port, _):
        orders = cell.orders(port, 0.05)
        generated = generate(orders)
        assert generated.requests > 0
        assert len(generated.latencies_s) <= generated.requests
        with pytest.raises(RawFailed, match=r"error codes \[0\]; all were to have 3"):
            generate(orders._replace(error=3))


def test_a_request_of_the_instant_server_is_a_request() -> None:
    """Its answer is read by the same client code as any other server's."""
    answered = memoryview(answer("some-topic"))
    assert int.from_bytes(answered[:4], "big") == len(answered) - 4
    assert produced_error(answered[4:], "some-topic") == 0


def test_ratio_pairs_rounds() -> None:
    """A ratio is the middle of the rounds' own ratios: a slow round is not compared with a fast one."""
    rows = Rows()
    for number, (ours, theirs) in enumerate([(10.0, 5.0), (1.0, 0.5), (300.0, 100.0)]):
        rows.add(server="Cairn", round=number, rate=ours)
        rows.add(server="Kafka", round=number, rate=theirs)
    assert rows.ratio("rate", {"server": "Cairn"}, {"server": "Kafka"}) == 2.0


def test_no_cell_always_follows_the_same_one() -> None:
    """Every round has all cells, in an order of its own, which each run repeats: what a server has left to do for one
    load is paid by another cell in each round.
    """
    rounds = [shuffled(ALL, number) for number in range(5)]
    assert all(sorted(order) == sorted(ALL) for order in rounds)
    assert rounds == [shuffled(ALL, number) for number in range(5)]
    for cell in ALL:
        before = {order[order.index(cell) - 1] for order in rounds}
        assert len(before) > 1, f"{cell.name} always follows {before}"


def test_no_rows_no_goals() -> None:
    """What was not measured is no goal that holds."""
    assert find_goals(Rows()) == []


def test_walk_steps_over_whole_batches() -> None:
    """A fetched buffer whose last batch is cut short yields the whole ones."""
    data = payload(100, batch_bytes=1000)
    both = memoryview(data.batch + data.batch)
    assert walk(both, 0) == (data.records, 2 * len(data.batch))
    assert walk(both[:-1], 7) == (data.records, len(data.batch))
    assert walk(both[:10], 7) == (7, 0)
