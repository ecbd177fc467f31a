"""HDFS as a sink of operators' checkpoints: the contract of all sinks, Peace's chains, lost DataNodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from scheduler.client import CoordinatorClient
from scheduler.coordinator.testing import running
from spe_adapter.checkpoint.coordinator_registry import CoordinatorRegistry
from spe_adapter.checkpoint.errors import SinkAway
from spe_adapter.checkpoint.hdfs_sink import HdfsSink, HdfsSinkSettings
from spe_adapter.checkpoint.manager import CheckpointManager, ManagerTools
from spe_adapter.checkpoint.names import CheckpointName
from spe_adapter.checkpoint.plans import PeaceRequests
from spe_adapter.checkpoint.recovery import Finder, recover
from spe_adapter.checkpoint.settings import CheckpointSettings, open_sink
from spe_adapter.checkpoint.sinks import Sink
from tests.checkpoint.sink_contract import CONTRACTS, Contract
from tests.checkpoint.state import UNIT, PagedState, rebuilt
from tests.support.hdfs.cluster import HdfsCluster, network
from tests.support.limits import PATIENCE_S


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    """A directory for each test."""
    return "/checkpoint/" + re.sub(r"\W", "-", request.node.name)


@pytest.fixture
def planned(hdfs: HdfsCluster, root: str, tmp_path: Path) -> Iterator[Sink]:
    """The sink with the NameNode's plan table, opened from settings."""
    token = tmp_path / "token"
    token.write_text(hdfs.plan_token)
    url = f"hdfs{hdfs.webhdfs_url.removeprefix('http')}{root}"
    sink = open_sink(CheckpointSettings(url, plans=hdfs.plan_url, plans_token_file=str(token)))
    yield sink
    sink.close()


@pytest.mark.parametrize("contract", CONTRACTS)
def test_hdfs_is_a_sink(contract: Contract, hdfs: HdfsCluster, root: str) -> None:
    """Each promise of the contract, over a plain WebHDFS."""
    contract(HdfsSink(HdfsSinkSettings(hdfs.webhdfs_url, root)))


def test_chunks_travel_along_peaces_chains_and_survive_a_lost_datanode(hdfs: HdfsCluster, planned: Sink) -> None:
    """The NameNode's log has each chunk where the manifest says; without one of these hosts the state comes back."""
    state = PagedState(96, Random(1), 1 << 18)
    with running(network(hdfs.nodes, 4)) as url, CoordinatorClient(url) as client:
        writer = hdfs.nodes[0].name
        tools = ManagerTools(planned, PeaceRequests(client, writer, 3), CoordinatorRegistry(client))
        outcome = CheckpointManager(UNIT, state.freeze, tools).checkpoint()
        assert outcome.is_complete, outcome
        manifest = outcome.manifest
        assert manifest is not None
        assert manifest.is_planned
        near = client.hosts_of_unit(UNIT.name)
    root = "/" + planned.url.split("/", 3)[3]
    placed = hdfs.placements()
    for file in manifest.files:
        assert placed[f"{root}/{manifest.name}/{file.name}"] == [list(file.hosts)]
        assert len(file.hosts) == 3
    assert near[0]["bytes"] > 0
    lost = manifest.files[0].hosts[0]
    hdfs.kill(lost)
    try:
        found = recover(Finder(planned), UNIT, lambda _: True, rebuilt)
        assert found is not None
        assert found[0] == state.versions[1]
    finally:
        hdfs.start_node(lost)


def test_an_hdfs_that_is_away_is_said_so_after_a_bound() -> None:
    """Nobody at the address: SinkAway, with the path, when the patience is over."""
    sink = HdfsSink(HdfsSinkSettings("http://127.0.0.1:1", "/c", patience_s=0.1))
    for call in (sink.names, lambda: sink.claim(CheckpointName("u.0", 1))):
        with pytest.raises(SinkAway, match="/c"):
            call()


def test_a_plan_table_that_is_away_costs_the_plan_alone(hdfs: HdfsCluster, root: str, tmp_path: Path) -> None:
    """Chunks are written where HDFS puts them; the manifest does not claim the planned hosts."""
    token = tmp_path / "token"
    token.write_text("token")
    url = f"webhdfs{hdfs.webhdfs_url.removeprefix('http')}{root}"
    sink = open_sink(CheckpointSettings(url, plans="http://127.0.0.1:1", plans_token_file=str(token)))
    state = PagedState(10, Random(2), 4096)
    with (
        running(network(hdfs.nodes, 4)) as coordinator,
        CoordinatorClient(coordinator, patience_s=PATIENCE_S) as client,
    ):
        tools = ManagerTools(sink, PeaceRequests(client, hdfs.nodes[0].name, 2))
        outcome = CheckpointManager(UNIT, state.freeze, tools).checkpoint()
    assert outcome.is_complete, outcome
    found = recover(Finder(sink), UNIT, lambda _: True, rebuilt)
    assert found is not None
    assert found[0] == state.versions[1]
