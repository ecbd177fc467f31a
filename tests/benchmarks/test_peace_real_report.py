"""What benchmarks/peace_real.py makes of its figures, and that one tenth is one tenth."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from benchmarks import peace_real
from benchmarks.harness.report import Rows
from benchmarks.racks import real_hdfs, report
from benchmarks.racks.experiment import Load
from benchmarks.racks.links import Rates
from benchmarks.racks.network import hosts_in
from benchmarks.racks.report import CHAINS, DEFAULT, HDFS_PART, PEACE, REAL, SIMULATED, Timeline
from benchmarks.racks.setting import Setting
from scheduler.peace.plan import TransferKind
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.engine import simulate
from scheduler.simulation.measured import MB, PAPER, paper_cluster
from scheduler.simulation.policies import hdfs_default
from scheduler.simulation.run import ChunkRun, SimulatedRun
from scheduler.simulation.scenario import Scenario
from scheduler.topology import CHUNK_BYTES

ABOUT = {"mode": "full", "links": {CHAINS: {"slowest_below": 0.01}}}


def measured() -> Rows:
    """Three rounds; machine and writers make each slower than the one before, on both sides."""
    rows = Rows()
    for number, slow in enumerate((1.0, 1.5, 3.0), 1):
        for policy, io_s, comp_s in ((DEFAULT, 40.0, 50.0), (PEACE, 10.0, 35.0)):
            figures = {"response_s": 20.0 * slow, "busy_cpus": 0.5, "cpus": 2}
            wanted = {"part": CHAINS, "policy": policy, "round": number}
            rows.add(source=REAL, **wanted, io_s=io_s * slow, comp_s=comp_s * slow, **figures)
            rows.add(source=SIMULATED, **wanted, io_s=io_s * 1.2, comp_s=comp_s * 1.5, response_s=30.0)
    return rows


def test_goals_follow_from_rows() -> None:
    """Ratios are medians of each round's own, the simulator is held against the medians, and all is judged."""
    goals = {goal.name: goal for goal in report.find_goals(measured(), ABOUT)}
    assert goals["chains: IO, Peace ÷ default"].value == pytest.approx(0.25)
    assert goals["chains: COMP, Peace ÷ default"].value == pytest.approx(0.7)
    off = goals[f"{DEFAULT}, IO: simulator off by"]
    assert off.value == pytest.approx(0.2)
    assert not off.holds
    assert goals[f"{PEACE}, COMP: simulator off by"].value == pytest.approx(0.0)
    assert goals["chains: CPUs in use, busiest run"].value == pytest.approx(0.25)
    assert goals["chains: slowest link below its rate by"].holds


def test_the_rule_is_held_to_its_best_neighbour() -> None:
    """Where one chunk more or less is better by more than the margin, the calibrator's rule misses its goal."""
    rows = measured()
    for number in (1, 2):
        for name, comp_s in zip(report.NEIGHBOURS, (37.0, 33.0, 60.0, 36.0), strict=True):
            slow = (1.0, 1.5)[number - 1]
            figures = {"comp_s": comp_s * slow, "response_s": 19.5 * slow, "io_s": 1.0, "busy_cpus": 0.5, "cpus": 2}
            rows.add(part=CHAINS, source=REAL, policy=name, round=number, **figures)
    found = [goal for goal in report.find_goals(rows, ABOUT) if "calibrated" in goal.name]
    assert [goal.value for goal in found] == pytest.approx([20.0 / 19.5, 35.0 / 33.0], abs=1e-3)
    assert [goal.holds for goal in found] == [True, False]


def test_neighbours_differ_in_planning_alone() -> None:
    """The same hosts and rates; one chunk less and one more on links, then on disks, under the report's names."""
    setting = Setting()
    cluster = setting.cluster()
    found = setting.neighbours(cluster)
    assert tuple(found) == report.NEIGHBOURS
    base = setting.capacity
    told = [
        (other.topology.servers[0].send, other.topology.servers[0].receive, other.topology.links[0].capacity)
        for other in found.values()
    ]
    assert told == [(base - 1, 2, base - 1), (base + 1, 2, base + 1), (base, 1, base), (base, 3, base)]
    for other in found.values():
        assert other.physics == cluster.physics
        assert [server.link_bytes_s for server in other.topology.servers] == [
            server.link_bytes_s for server in cluster.topology.servers
        ]


def test_nothing_measured_no_goals() -> None:
    """What was not measured is no goal, in either part."""
    assert report.find_goals(Rows(), {"mode": "quick"}) == []
    assert report.shown_apart(Rows()) == []


def test_the_real_hdfs_has_goals_of_its_own() -> None:
    """COMP no more than the default's is a goal; the bounds of paced disks stand apart, with the share as planned."""
    rows = Rows()
    for policy, io_s in ((DEFAULT, 40.0), (PEACE, 10.0)):
        rows.add(
            part=HDFS_PART, source=REAL, policy=policy, round=1, io_s=io_s, response_s=1.0, comp_s=40.0, as_planned=1.0
        )
    (goal,) = report.find_goals(rows, {"mode": "full"})
    assert (goal.value, goal.goal, goal.holds) == (1.0, "≤ 1", True)
    apart = report.shown_apart(rows)
    assert [goal.value for goal in apart] == pytest.approx([0.25, 1.0, 1.0])
    assert [goal.holds for goal in apart] == [True, False, True]


def test_partial_results_are_published(tmp_path: Path) -> None:
    """JSON and plot come out of whatever was measured so far."""
    timeline = Timeline(CHAINS, REAL, DEFAULT, 1, [3.0, 1.0, 2.0], [(0.0, 3.0)])
    report.publish(measured(), [timeline], ABOUT, tmp_path, None)
    results = json.loads((tmp_path / "peace_real.json").read_text())
    assert {"goals", "shown_apart", "notes", "paper", "medians", "rows", "timelines"} <= results.keys()
    assert {(entry["policy"], entry["source"], entry["runs"]) for entry in results["medians"]} == {
        (policy, source, 3) for policy in (DEFAULT, PEACE) for source in (REAL, SIMULATED)
    }
    assert (tmp_path / "peace_real.png").read_bytes().startswith(b"\x89PNG")


def test_a_tenth_takes_the_same_time() -> None:
    """A tenth of the bytes at a tenth of the rates takes the simulator as long as the paper's own cluster."""
    setting = Setting(writers=6, chunks=2)
    small = setting.cluster()
    base = paper_cluster(setting.capacity, send=setting.capacity)
    large = SimulatedCluster(base, PAPER)
    policy = hdfs_default(1)
    times = [
        simulate(Scenario(cluster, setting.jobs(cluster, 4), memory_full=True), policy, 4).comp_s()
        for cluster in (small, large)
    ]
    assert times[0] == pytest.approx(times[1], rel=0.01)
    assert setting.chunk_bytes * 10 == pytest.approx(CHUNK_BYTES, rel=1e-4)
    assert setting.chunk_bytes % 512 == 0
    assert setting.totals(setting.physics.disk_write)[1] == pytest.approx(3.0 * MB)


def test_capacities_follow_from_rates() -> None:
    """Paced disks: five chains fill a link, two a disk; unpaced: two. As in the paper: 2."""
    paced, unpaced = Setting(), replace(Setting(), paced=False)
    assert [(cluster.topology.servers[0].send, cluster.topology.servers[0].receive, cluster.topology.links[0].capacity)
            for cluster in (paced.cluster(), unpaced.cluster(), paced.papers_cluster(paced.cluster()))] == [
        (5, 2, 5), (2, 2, 2), (2, 2, 2)
    ]  # fmt: skip
    assert unpaced.totals(unpaced.physics.disk_write) == []


@pytest.mark.parametrize(("overheads_s", "capacity"), [((0.0,), 2), ((0.01,), 3), ((0.1, 0.3), 3), ((0.2, 1.0), 4)])
def test_a_chain_that_idles_leaves_room_for_others(overheads_s: tuple[float, ...], capacity: int) -> None:
    """Two chains of 1.07 s fill a link; with 0.2 s besides it is 2.37 of them, with 0.6 s 3.1."""
    setting = replace(Setting(), paced=False, overheads_s=overheads_s)
    assert setting.capacity == capacity
    assert setting.cluster().topology.links[0].capacity == capacity
    assert setting.cluster().physics.overheads_s == overheads_s


def test_what_a_chunk_takes_besides_its_bytes_is_measured_with_one_byte() -> None:
    """The last calibration counts, each has the capacity that the one before gave, and then chunks are whole again."""
    setting = replace(Setting(), paced=False)
    asked: list[int] = []
    hosts = SimpleNamespace(ask_all=lambda do, **own: asked.append(own["chunk_bytes"]))
    names = [server.name for server in setting.cluster().topology.servers]
    network = SimpleNamespace(hosts=[SimpleNamespace(name=name) for name in names])
    hdfs = SimpleNamespace(webhdfs_url="http://127.0.0.1:1", plan_url="", plan_token="", addresses={})
    rates = Rates(dict.fromkeys(names, 12e6), (11e6, 12e6))
    cluster = real_hdfs.RealHdfs(setting, cast(Any, network), cast(Any, hosts), rates, cast(Any, hdfs))
    seen: list[int] = []

    def write() -> tuple[SimulatedRun, Load]:
        seen.append(cluster.cluster.topology.links[0].capacity)
        times = [(0.0, 0.5 / len(seen)), (1.0, 1.0 + 1.0 / len(seen))]
        chunks = tuple(ChunkRun("a", number, (0, 1), TransferKind.WRITE, *span) for number, span in enumerate(times))
        return SimulatedRun("peace", 1, (), chunks, np.zeros(0)), Load(0.0, 0.0, 0)

    cluster.calibrate(write)
    assert seen == [2, 4]
    assert asked == [setting.chunk_bytes, 1, setting.chunk_bytes]
    assert cluster.setting.overheads_s == (0.25, 0.5)
    assert (cluster.cluster.topology.links[0].capacity, cluster.cluster.topology.links[0].bytes_s) == (3, 11e6)


def test_hosts_are_the_topologys() -> None:
    """Namespaces and planners call the hosts the same, and every host has an address of its own."""
    setting = Setting()
    hosts = hosts_in(setting.racks)
    assert [host.name for host in hosts] == [server.name for server in setting.cluster().topology.servers]
    assert len({host.address for host in hosts}) == len({host.namespace for host in hosts}) == 17
    with pytest.raises(ValueError, match="a rack of 0 hosts"):
        hosts_in([8, 0])


@pytest.mark.parametrize("option", [["--parts", "chains,disks"], ["--runs", "0"], ["--runs", "many"]])
def test_bad_options_are_named(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An option that makes no sense ends the program with a message that quotes it."""
    with pytest.raises(SystemExit):
        peace_real.main(option)
    assert repr(option[1].rpartition(",")[2]) in capsys.readouterr().err


def test_machine_that_cannot_is_told_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without root, or without `ip` and `tc`, the program says so at once and leaves nothing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"need root|no command 'ip': install iproute2"):
        peace_real.main(["--results", str(tmp_path), "--data", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []
