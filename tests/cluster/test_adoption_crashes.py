"""A power cut or a kill at any call of an adoption: the next run completes it, and the source has lost nothing."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import trio

import logstore.cluster.adoption
import logstore.cluster.adoption_copy
from logstore.base.events import ignore
from logstore.base.metadata import schema
from logstore.base.metadata.interface import MetadataStore
from logstore.base.metadata.sqlite import open_sqlite
from logstore.base.system import SystemClock
from logstore.cluster.adoption import AdoptionEnvironment, AdoptionPlaces, adopt
from logstore.cluster.host_identity import ADOPTED_FILE, ADOPTION_FILE, LABEL_FILE
from logstore.engine import open_engine
from logstore.format.records import Record, encode_batch
from logstore.interfaces import FileSystem
from logstore.log.store import Store, StoreSettings
from logstore.replica.register import ReadRegistration
from logstore.replica.stored_registrations import StoredRegistrations
from logstore.testing.faults import FileCall
from logstore.testing.simdisk import SimDisk
from tests.support.examples import is_long
from tests.support.limits import PATIENCE_S

NOW_MS = 1_700_000_000_000
RECORDS = 12
CRASHES = 12
"""Of one run, at calls that a seed chooses."""


class SharedDisk:
    """A simulated disk for the threads of an engine: one call at a time."""

    def __init__(self, disk: SimDisk, lock: threading.RLock) -> None:
        self.disk = disk
        self._lock = lock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.disk, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                return found(*arguments, **named)

        return call


class Machine(NamedTuple):
    """The disks of the two directories, and whether the metadata store has the cluster."""

    source: SimDisk
    target: SimDisk
    is_published: bool


def shared(machine: Machine) -> tuple[FileSystem, FileSystem]:
    """Both disks for threads, with one lock."""
    lock = threading.RLock()
    return SharedDisk(machine.source, lock), SharedDisk(machine.target, lock)


async def fill(disk: FileSystem) -> None:
    """Two streams with some chunks each; a clean stop."""
    store = Store.open(disk, SystemClock(), StoreSettings(), new_id=uuid.uuid4, report=ignore)
    async with open_engine(store, disk) as engine:
        await engine.wait(store.create_topic("orders", 2, {"segment.bytes": "1024"}))
        for number in range(RECORDS):
            batch = encode_batch([Record(0, NOW_MS, None, b"%0200d" % number)])
            await engine.wait(store.stream("orders", number % 2).append(batch, now_ms=NOW_MS))


def logs(disk: SimDisk) -> dict[str, bytes | None]:
    """The records of the source, by file."""
    return {path: data for path, data in disk.files() if path.endswith(".log")}


async def run(machine: Machine, metadata: Path) -> None:
    """An adoption with a metadata store in a file."""
    source, target = shared(machine)

    @asynccontextmanager
    async def opened() -> AsyncIterator[MetadataStore]:
        async with open_sqlite(metadata, Random(3)) as store:
            yield store

    def nothing(_: int) -> None:
        pass

    around = AdoptionEnvironment(SystemClock(), Random(1), uuid.uuid4, ignore, nothing, nothing)
    with trio.fail_after(PATIENCE_S):
        await adopt(AdoptionPlaces(source, target, opened), "a", 3, around)


async def check(machine: Machine, metadata: Path, before: dict[str, bytes | None]) -> None:
    """The cluster's chunks are on the target, all of them sealed; the source is as it was."""
    assert {path: data for path, data in logs(machine.source).items() if path in before} == before
    assert machine.source.exists(ADOPTED_FILE)
    assert machine.target.exists(LABEL_FILE)
    assert not machine.target.exists(ADOPTION_FILE)
    store = Store.open(machine.target, SystemClock(), StoreSettings(), new_id=uuid.uuid4, report=ignore)
    stored = store.replicas.stored()
    assert all(found.is_sealed for found in stored.values())
    replicas = {key: (found.base_offset, *found.end) for key, found in stored.items()}
    registered: dict[tuple[str, int], tuple[int, ...]] = {}
    async with open_sqlite(metadata, Random(4)) as entries:
        assert (await entries.get(schema.CLUSTER_KEY)).entry is not None
        registrations = StoredRegistrations(entries)
        for entry in (await entries.page(schema.STREAMS)).entries:
            stream = entry.key.removeprefix(schema.STREAMS)
            found = (await registrations.read(ReadRegistration(stream))).registration
            assert found is not None
            registered |= {(stream, chunk.epoch): (chunk.base_offset, *(chunk.end or ())) for chunk in found.chunks}
    assert replicas == registered
    assert sum(end[2] - base for base, *end in [(each[0], *each) for each in registered.values()]) == RECORDS


@contextmanager
def crashing(machine: Machine, metadata: Path, random: Random) -> Iterator[list[Machine]]:
    """States that crashes leave at calls of either disk, while something runs."""
    states: list[Machine] = []

    def before(call: FileCall) -> None:
        if call.changes_disk:
            is_published = metadata.exists() and machine.target.exists(LABEL_FILE) and is_cluster(metadata)
            left = [each.crash(random) if random.random() < 0.7 else each.kill_state() for each in machine[:2]]
            states.append(Machine(left[0], left[1], is_published))

    machine.source.before_call = machine.target.before_call = before
    try:
        yield states
    finally:
        machine.source.before_call = machine.target.before_call = None


def is_cluster(metadata: Path) -> bool:
    """Whether the transaction that makes the cluster is in the file."""
    wal = metadata.with_name(f"{metadata.name}-wal")
    return b"cluster_id" in metadata.read_bytes() + (wal.read_bytes() if wal.exists() else b"")


@pytest.mark.parametrize("seed", range(40 if is_long() else 1))
async def test_a_crash_at_any_call(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it leaves of both directories, the same command completes the adoption."""
    await crash_everywhere(tmp_path, seed, monkeypatch)


def keep_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that a crash has left open counts as a copy."""
    monkeypatch.setattr(
        logstore.cluster.adoption_copy, "_is_copy", lambda replica, chunk: replica.base_offset == chunk.base_offset
    )


def write_without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that must stay the same are written, and not synced."""

    def write(fs: FileSystem, name: str, fields: dict[str, object]) -> None:
        fs.create(name)
        fs.write(name, 0, [json.dumps(fields).encode()])

    monkeypatch.setattr(logstore.cluster.adoption, "_write", write)


@pytest.mark.slow
@pytest.mark.parametrize("plant", [keep_what_is_open, write_without_sync])
async def test_planted_bugs_are_found(
    tmp_path: Path, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crashes find what is wrong with a copy that is not whole, and with a note that is not durable."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, ExceptionGroup)):
        for seed in range(5):
            (tmp_path / f"{seed}").mkdir()
            await crash_everywhere(tmp_path / f"{seed}", seed, monkeypatch)


async def crash_everywhere(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adoption, and one more from each of some states that crashes of it leave."""
    random = Random(seed)
    monkeypatch.setattr(logstore.cluster.adoption_copy, "APPEND_BYTES", 1)  # several appends for each chunk
    machine = Machine(SimDisk(unit_bytes=512), SimDisk(unit_bytes=512), is_published=False)
    await fill(shared(machine)[0])
    before, metadata = logs(machine.source), tmp_path / "m.sqlite"
    with crashing(machine, metadata, random) as states:
        await run(machine, metadata)
    await check(machine, metadata, before)
    assert len(states) > CRASHES
    copying = [number for number, state in enumerate(states) if state.target.exists("replicas")]
    for number in {*random.sample(range(len(states)), 3), *random.sample(copying, CRASHES), len(states) - 1}:
        state = states[number]
        store = metadata if state.is_published else tmp_path / f"m{number}.sqlite"
        await run(state, store)
        await check(state, store, before)
