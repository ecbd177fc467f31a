"""A query whose state is larger than the memory it may take between uses; without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.client.blocking import Client, parse_addresses
from logstore.errors import InvalidConfig
from spe_adapter.microbatch.options import parse_stateful
from spe_adapter.microbatch.topics import prepare_topic
from spe_adapter.pages.resident import lies_in_memory
from spe_adapter.state.errors import StateDirectoryRefused
from spe_adapter.state.segment import HEADER_BYTES
from tests.microbatch.below import PARTITIONS, Query
from tests.microbatch.operators import Model, Row
from tests.microbatch.world import by_key
from tests.state.test_beyond_memory import check_disk, segment_of
from tests.support.sidecar import Sidecar

KEYS = 30_000
SHARE = 10
MEMORY = Path("/dev/shm")


def bases(directory: Path) -> list[Path]:
    """The files with the state of the partitions."""
    return sorted((directory / "state").glob("*/*/base"))


def test_a_state_of_ten_times_its_memory(sidecar: Sidecar, tmp_path: Path) -> None:
    """Behind every epoch a tenth of each base is in memory at most; results are exact, and nothing is read from the log
    again.
    """
    check_disk(tmp_path)
    query, model = Query(sidecar.address, "larger-than-memory", tmp_path), Model()
    with Client(parse_addresses(sidecar.address)) as client:
        prepare_topic(client, query.topic, PARTITIONS, PARTITIONS)
    epochs = [[Row(f"key-{number:08d}", 20_000, number) for number in range(KEYS)]]
    epochs += [[Row(f"key-{number:08d}", 20_000, 7) for number in range(at, KEYS, 101)] for at in range(4)]
    memory_bytes = 0
    for number, rows in enumerate(epochs):
        query.rows += rows
        model.epoch(rows)
        options = {"stateMemory": str(memory_bytes)} if memory_bytes else {}
        query.run(rows_per_batch=len(rows), dies_before_commit=False, **options)
        sizes = [segment_of(base) for base in bases(tmp_path)]
        if number == 1:  # the base is that of the first epoch
            memory_bytes = min(size_bytes for _, size_bytes in sizes) // SHARE
            assert memory_bytes > 1 << 17
        elif number:
            assert all(segment.resident_bytes() <= memory_bytes + HEADER_BYTES for segment, _ in sizes)
    assert by_key(query.told()) == by_key(model.told)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"stateMemory": "1m"},
            "'stateMemory' is '1m', but state is in shared memory; set .*'stateDirectory'",
        ),
        ({"stateMemory": "little", "stateDirectory": "/x"}, "'stateMemory' is 'little'"),
        ({"stateMemory": "0", "stateDirectory": "/x"}, "'stateMemory' is '0'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], said: str) -> None:
    """The message names the option and its value."""
    with pytest.raises(InvalidConfig, match=said):
        parse_stateful({"kafka.bootstrap.servers": "127.0.0.1:1", **options}, "out")


def test_a_directory_in_memory_is_refused(sidecar: Sidecar, tmp_path: Path) -> None:
    """By name, before anything is written there."""
    if not MEMORY.is_dir() or not lies_in_memory(MEMORY):
        pytest.skip(f"{MEMORY} does not lie in memory")
    query = Query(sidecar.address, "memory-in-memory", tmp_path)
    with Client(parse_addresses(sidecar.address)) as client:
        prepare_topic(client, query.topic, PARTITIONS, PARTITIONS)
    query.rows = [Row("k", 20_000, 1)]
    directory = MEMORY / f"cairn-test-{tmp_path.name}"
    with pytest.raises(StateDirectoryRefused, match=rf"'stateMemory' is 1048576 bytes.*{directory}.*tmpfs"):
        query.run(stateMemory="1m", stateDirectory=str(directory))
    assert not directory.exists()
