"""A power cut or a kill at any step of an adoption: the next run completes it, and the source has lost nothing."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import trio

import logstore.cluster.adoption.adoption
import logstore.cluster.adoption.adoption_copy
from logstore.base.events import ignore
from logstore.base.metadata import schema
from logstore.base.metadata.interface import Committed, ConditionFailed, DeletePrefix, MetadataStore, Transaction
from logstore.base.metadata.sqlite import open_sqlite
from logstore.base.system import SystemClock
from logstore.cluster.adoption.adoption import AdoptionEnvironment, AdoptionPlaces, adopt
from logstore.cluster.members.own_files import ADOPTED_FILE, ADOPTION_FILE, LABEL_FILE
from logstore.engine import open_engine
from logstore.format.records import Record, encode_batch
from logstore.interfaces import FileSystem
from logstore.log.store import Store, StoreSettings
from logstore.replica.register import ReadRegistration
from logstore.replica.stored_registrations import StoredRegistrations
from logstore.testing.clock import ManualClock
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
    """The disks of the two directories, and the files of the metadata store by what is added to its name."""

    source: SimDisk
    target: SimDisk
    stored: Mapping[str, bytes]


def new_machine() -> Machine:
    """Empty."""
    return Machine(SimDisk(unit_bytes=512), SimDisk(unit_bytes=512), {})


def stored(metadata: Path) -> dict[str, bytes]:
    """What a metadata store has in its files, between two transactions."""
    found = {suffix: metadata.with_name(metadata.name + suffix) for suffix in ("", "-wal")}
    return {suffix: path.read_bytes() for suffix, path in found.items() if path.exists()}


def restored(machine: Machine, metadata: Path) -> Path:
    """A metadata store with what a machine has."""
    for suffix, data in machine.stored.items():
        metadata.with_name(metadata.name + suffix).write_bytes(data)
    return metadata


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


class NotedStore:
    """A metadata store that says when a transaction begins, and when it is made."""

    def __init__(self, store: MetadataStore, note: Callable[[str], None]) -> None:
        self._store = store
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        what = " ".join(change.prefix if isinstance(change, DeletePrefix) else change.key for change in transaction[1])
        self._note(f"before {what}")
        outcome = await self._store.commit(transaction)
        self._note(f"behind {what}")
        return outcome


def nothing(_: object) -> None:
    """Nobody is told."""


async def run(machine: Machine, metadata: Path, note: Callable[[str], None] = nothing) -> None:
    """An adoption with a metadata store in a file; whatever is chosen at random is the same in each."""
    source, target = shared(machine)

    @asynccontextmanager
    async def opened() -> AsyncIterator[MetadataStore]:
        async with open_sqlite(metadata, Random(3)) as store:
            yield NotedStore(store, note)

    ids = Random(2)
    new_id = lambda: uuid.UUID(int=ids.getrandbits(128))  # noqa: E731
    around = AdoptionEnvironment(ManualClock(NOW_MS), Random(1), new_id, ignore, nothing, nothing)
    with trio.fail_after(PATIENCE_S):
        await adopt(AdoptionPlaces(source, target, opened), "a", 3, around)


async def entries_of(metadata: Path) -> dict[str, bytes]:
    """What a metadata store has."""
    async with open_sqlite(metadata, Random(4)) as store:
        return {entry.key: entry.value for entry in (await store.page("")).entries}


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
            left = [each.crash(random) if random.random() < 0.7 else each.kill_state() for each in machine[:2]]
            states.append(Machine(left[0], left[1], stored(metadata)))

    machine.source.before_call = machine.target.before_call = before
    try:
        yield states
    finally:
        machine.source.before_call = machine.target.before_call = None


STEPS = (
    "before adoption", "behind adoption", "target rename host.json", "source rename adopted.json",
    "before streams/ chunks/ topics/ access/ ledgers/", "before cluster adoption", "behind cluster adoption",
    "target remove adoption.json",
)  # fmt: skip
"""Some of those that an adoption has, in their order."""


async def test_a_kill_at_each_step(tmp_path: Path) -> None:
    """Before and behind each transaction, and at each call that changes a note, a label or a replica's log: the same
    command then makes the same cluster, entry by entry.
    """
    machine, metadata = new_machine(), tmp_path / "m.sqlite"
    await fill(shared(machine)[0])
    before = logs(machine.source)
    steps: list[tuple[str, Machine]] = []

    def note(step: str) -> None:
        steps.append((step, Machine(machine.source.kill_state(), machine.target.kill_state(), stored(metadata))))

    def called(disk: str, call: FileCall) -> None:
        is_note = call.path.removesuffix(".new") in {ADOPTED_FILE, ADOPTION_FILE, LABEL_FILE}
        if call.changes_disk and (is_note or (call.path.startswith("replicas/") and call.kind == "sync")):
            note(f"{disk} {call.kind} {call.path.removesuffix('.new')}")

    machine.source.before_call, machine.target.before_call = partial(called, "source"), partial(called, "target")
    await run(machine, metadata, note)
    machine.source.before_call = machine.target.before_call = None
    await check(machine, metadata, before)
    whole = await entries_of(metadata)
    found = iter(step for step, _ in steps)
    assert all(step in found for step in STEPS), [step for step, _ in steps]
    for number, (step, state) in enumerate(steps):
        again = restored(state, tmp_path / f"m{number}.sqlite")
        await run(state, again)
        await check(state, again, before)
        assert await entries_of(again) == whole, step


@pytest.mark.parametrize("seed", range(40 if is_long() else 1))
async def test_a_crash_at_any_call(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it leaves of both directories, the same command completes the adoption."""
    await crash_everywhere(tmp_path, seed, monkeypatch)


def keep_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that a crash has left open counts as a copy."""
    monkeypatch.setattr(logstore.cluster.adoption.adoption_copy, "_is_whole", lambda replica: True)


def write_without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that must stay the same are written, and not synced."""

    def write(fs: FileSystem, name: str, fields: dict[str, object]) -> None:
        fs.create(name)
        fs.write(name, 0, [json.dumps(fields).encode()])

    monkeypatch.setattr(logstore.cluster.adoption.adoption, "_write", write)


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
    monkeypatch.setattr(logstore.cluster.adoption.adoption_copy, "APPEND_BYTES", 1)  # several appends for each chunk
    machine = new_machine()
    await fill(shared(machine)[0])
    before, metadata = logs(machine.source), tmp_path / "m.sqlite"
    with crashing(machine, metadata, random) as states:
        await run(machine, metadata)
    await check(machine, metadata, before)
    assert len(states) > CRASHES
    copying = [number for number, state in enumerate(states) if state.target.exists("replicas")]
    for number in {*random.sample(range(len(states)), 3), *random.sample(copying, CRASHES), len(states) - 1}:
        state = states[number]
        store = restored(state, tmp_path / f"m{number}.sqlite")
        await run(state, store)
        await check(state, store, before)
