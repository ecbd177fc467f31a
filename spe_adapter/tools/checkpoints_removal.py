"""Removes all checkpoints of a query that is gone: the registry's entries, then the files.

Invariants:
* Of each unit the registry is asked first: a removal that is interrupted leaves files without an entry, never an entry
  without files. The same call goes on with what is left.
* In a sink the newest checkpoint of a unit goes first, so that what is left builds on nothing that is gone.
* Checkpoints of other queries are never touched, however alike their names are.

Source: docs/decisions/0024-checkpoints-of-state.md and 0028-registry-of-checkpoints.md.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from logstore.client.blocking import Client
from logstore.format.reader_api import ReaderDescription
from scheduler.client import CoordinatorClient
from spe_adapter.checkpoint.names import CheckpointName, Unit
from spe_adapter.checkpoint.sinks import Sink
from spe_adapter.continuous.runner import READER_PREFIX
from spe_adapter.microbatch.epoch import reader_name


class RemovedCheckpoint(NamedTuple):
    """A checkpoint whose files are gone, and their bytes; 0 if the sink did not have the checkpoint any more."""

    name: CheckpointName
    size_bytes: int


def holding_readers(client: Client, query: str) -> list[ReaderDescription]:
    """The readers as which a stateful query or its runners hold records, as they do for as long as they may come back.

    Raises what the client raises.
    """
    found = []
    for name in client.reader_names():
        partition = name.removeprefix(f"{READER_PREFIX}{query}.")
        if name == reader_name(query) or (partition != name and partition.isdecimal()):
            described = client.describe_reader(name)
            if described.streams:
                found.append(described)
    return found


def remove_query(sink: Sink, client: CoordinatorClient | None, query: str) -> Iterator[RemovedCheckpoint]:
    """Remove a query's checkpoints, complete or not, from the registry of `client` (None: there is none) and from the
    sink; each as it is gone.

    Raises SinkFailed, CoordinatorError; then the rest is still there.
    """
    units: dict[str, set[int]] = defaultdict(set)
    for name in sink.names():
        if is_of(name.unit, query):
            units[name.unit].add(name.seq)
    for known in [] if client is None else client.units():
        if is_of(known["unit"], query):
            units[known["unit"]] |= set()
    for unit in sorted(units, key=lambda name: int(name.rpartition(".")[2])):
        registered = [] if client is None else [int(entry["seq"]) for entry in client.checkpoints(unit)]
        if client is not None:
            client.forget_unit(unit)
        for seq in sorted({*units[unit], *registered}, reverse=True):
            name = CheckpointName(unit, seq)
            size_bytes = sum(sink.files(name).values()) if seq in units[unit] else 0
            if seq in units[unit]:
                sink.remove(name)
            yield RemovedCheckpoint(name, size_bytes)


def is_of(unit: str, query: str) -> bool:
    """Whether a unit, by its name in paths, is a partition of a query."""
    own, _, partition = unit.rpartition(".")
    return partition.isdecimal() and own == Unit(query, 0).name.rpartition(".")[0]
