"""A client puts whole blocks of the journal into its records, and the sidecar is killed: none of them counts.

The forger knows everything but the key: the generations to come, where its bytes lie in the journal's file, the
streams' directories and ends, the queries and their incarnations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from logstore.base.events import ignore
from logstore.epochs.ledger_entries import (
    COMMIT_RECORD,
    LAST,
    CommitRecord,
    LastEpoch,
    decode_last_epoch,
    encode_commit_record,
    encode_last_epoch,
)
from logstore.format import journal_block
from logstore.format.batch import patch_base
from logstore.format.journal_block import KEY_BYTES, WITH_LEDGER, PartPlace, encode_head, ledger_place
from logstore.format.ledger_frame import encode_changes
from logstore.format.records import Record, encode_batch
from logstore.interfaces import Buffer
from logstore.log import journal_replay
from logstore.log.journal import DIRECTORY, JournalLimits
from logstore.log.journal_replay import read_journal
from logstore.log.topics import TopicConfig
from logstore.testing.history import History, PromiseBroken, content_of
from logstore.testing.simdisk import CrashBounds, SimDisk
from logstore.testing.world import FIRST_TIMESTAMP, Setup, SimulatedStore
from logstore.verify.directory import verify

pytestmark = pytest.mark.crash

GENERATIONS = range(1, 6)
"""The forger's blocks have each of them. The story's ends with 3."""
VALUE_BYTES = 5_000
MARK = b"forged record"


@dataclass
class Aim:
    """Where the forger's value lies in the journal's file, and the place behind a stream that is not its own."""

    position: int
    place: PartPlace


def setup() -> Setup:
    """A journal whose files are full after a few records more than the forger's, and chunks that have room for all."""
    before = Setup(seed=1)
    limits = JournalLimits(file_bytes=8_000, max_part_bytes=VALUE_BYTES + 500)
    topics = TopicConfig(segment_bytes=1 << 16)
    return replace(before, settings=replace(before.settings, journal=limits, topic_defaults=topics))


def forged_value(aim: Aim) -> bytes:
    """Blocks end to end, for each generation: each at the position that it states, with a record for another's stream
    and the decision of an epoch.
    """
    batch = encode_batch([Record(0, FIRST_TIMESTAMP, None, MARK)])
    patch_base(batch, 0, aim.place.base_offset, 0)
    commit = CommitRecord("q", "run-1", 1, 1, MARK.decode(), (), ())
    decided = encode_changes(
        {
            f"{COMMIT_RECORD}q": encode_commit_record(commit),
            f"{LAST}q": encode_last_epoch(LastEpoch(1, FIRST_TIMESTAMP, False, MARK.decode())),
        }
    )
    value = bytearray()
    parts: list[tuple[PartPlace, list[Buffer]]] = [(aim.place, [batch]), (ledger_place("epochs"), [decided])]
    for generation in GENERATIONS:
        position = aim.position + len(value)
        value += encode_head(generation, position, parts, key=bytes(KEY_BYTES), version=WITH_LEDGER)
        value += bytes(batch) + decided
    assert len(value) <= VALUE_BYTES
    return bytes(value).ljust(VALUE_BYTES, b".")


def story(value: bytes, before_sync: Callable[[SimulatedStore], None] = lambda _: None) -> tuple[SimulatedStore, Aim]:
    """Two streams and a query have something acknowledged; the forger appends its record; the journal goes on until the
    file with that record is used again. What an aim for this value would be is found on the disk.
    """
    world = SimulatedStore(SimDisk(unit_bytes=64), History(), setup())
    world.disk.before_call = lambda call: (
        before_sync(world) if call.kind == "sync" and call.path.startswith(DIRECTORY) else None
    )
    world.create_topic("t", 2)
    world.run()
    for partition in (0, 1, 1):
        world.append("t", partition)
        world.run()
    world.take_over("run-1")
    world.stage("t", 0, "run-1")
    assert world.commit(0, "run-1") == "committed"
    batch = encode_batch([Record(0, FIRST_TIMESTAMP, None, value)])
    world.history.stream("t", 0).send(content_of(batch), 1, FIRST_TIMESTAMP)
    world.send("t", 0, batch)
    world.run()
    position = content(world.disk, f"{DIRECTORY}/1.journal").index(value)
    used: dict[str, int] = {}
    while True:
        world.append("t", 0, value_bytes=200)
        world.run()
        active = world.store.journal._active
        assert active is not None
        if used.setdefault(active.path, active.generation) != active.generation:
            break
    assert (active.path, active.generation) == (f"{DIRECTORY}/1.journal", 3)
    assert content(world.disk, active.path).index(value) == position > active.size_bytes
    stream = world.store.stream("t", 1)
    end = stream._writer.backlog.acked
    place = PartPlace(stream.directory.encode(), stream.chunks[-1].base_offset, end.position, end.next_offset)
    return world, Aim(position, place)


def content(disk: SimDisk, path: str) -> bytes:
    """A whole file."""
    return disk.read(path, 0, disk.size(path))


def check(disk: SimDisk, history: History) -> None:
    """A check finds no damage, and a start has nothing but what was asked for: in streams and in the ledger."""
    assert verify(disk).damages == []
    world = SimulatedStore(disk, history, setup())
    world.check()
    last = world.store.epochs.get(f"{LAST}q")
    assert last is None or decode_last_epoch("q", last).epoch == 0


def attacked(before_sync: Callable[[SimulatedStore], None] = lambda _: None) -> tuple[SimulatedStore, Aim]:
    """The story with blocks that are forged for exactly the places where they come to lie."""
    _, aim = story(b"#" * VALUE_BYTES)
    world, hit = story(forged_value(aim), before_sync)
    assert hit == aim
    return world, aim


def killed_while_the_file_is_used_again() -> None:
    """The forged blocks lie behind the first one of the file's new generation."""
    world, aim = attacked()
    disk = world.disk.kill_state()
    key = world.store.journal.key
    found = read_journal(disk, key, ignore)
    assert found.damaged == []
    assert aim.place not in [part.place for parts in found.parts.values() for part in parts]
    decided = [changes for changes in found.changes_of("epochs") if changes.get(f"{LAST}q") is not None]
    assert all(decode_last_epoch("q", changes[f"{LAST}q"] or b"").epoch == 0 for changes in decided)
    check(disk, world.history)


def torn_anywhere() -> None:
    """A power cut leaves any part of what was being written: the block around the forged ones, or over them."""
    taken: list[tuple[SimDisk, History]] = []
    attacked(lambda world: taken.append((world.disk.kill_state(), world.history.fork())))
    tried = 0
    for disk, history in taken:
        for state in disk.crash_states(CrashBounds(states=12, file_states=12, torn_bytes=4)):
            check(state, history.fork())
            tried += 1
    assert tried > 100


STORIES = (killed_while_the_file_is_used_again, torn_anywhere)


@pytest.mark.parametrize("attack", STORIES, ids=lambda attack: attack.__name__)
def test_forged_blocks_do_not_count(attack: Callable[[], None]) -> None:
    """Neither a stream nor the ledger of epochs gets anything of a block that a record carries, and nothing is called
    damage for it, when the process is killed or the power is cut.
    """
    attack()


@pytest.mark.parametrize("attack", STORIES, ids=lambda attack: attack.__name__)
def test_they_would_count_without_the_key(attack: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The forger's aim is good: to a start that does not compare keys its blocks are blocks."""
    original = journal_block.scan_blocks

    def scan(buffer: Any, _key: bytes | None) -> Any:
        return original(buffer, None)

    monkeypatch.setattr(journal_replay, "scan_blocks", scan)
    monkeypatch.setattr(journal_replay, "begins_with_another_key", lambda *_: False)
    with pytest.raises((AssertionError, PromiseBroken)):
        attack()


def test_without_the_key_a_start_would_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is the key that keeps them out: without it the stream has the forged record, and the query its epoch."""
    world, _ = attacked()
    original = journal_block.scan_blocks
    monkeypatch.setattr(journal_replay, "scan_blocks", lambda buffer, _key: original(buffer, None))
    after = SimulatedStore(world.disk.kill_state(), world.history, setup())
    stream = after.store.stream("t", 1)
    assert MARK in b"".join(bytes(batch.data) for batch in after.read(stream))
    last = after.store.epochs.get(f"{LAST}q")
    assert last is not None
    assert decode_last_epoch("q", last).epoch == 1
