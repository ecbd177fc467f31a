"""A check counts what only the journal holds as a start would, and names what is damaged in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from logstore.base.events import ignore
from logstore.errors import CorruptFile
from logstore.format.journal_block import JournalPart, PartPlace, encode_head, scan_blocks
from logstore.log.data_directory import IDENTITY_FILE
from logstore.log.journal import DIRECTORY, JournalLimits
from logstore.log.journal_replay import read_journal
from logstore.testing.history import History
from logstore.testing.simdisk import CrashBounds, SimDisk
from logstore.testing.world import Setup, SimulatedStore
from logstore.verify.directory import verify
from logstore.verify.findings import Finding
from tests.crash.test_planted_journal_bugs import roomy
from tests.crash.tiny import make_tiny
from tests.verify.stores import contents, flipped

BATCHES = 4


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimDisk:
    """What a kill leaves of a stream, of which the chunk has the first batch and the journal the others."""
    make_tiny(monkeypatch)
    before = Setup()
    settings = replace(before.settings, journal=JournalLimits(file_bytes=1 << 14))
    world = SimulatedStore(SimDisk(), History(), replace(before, settings=settings))
    world.create_topic("t", 1)
    world.run()
    for _ in range(BATCHES):
        world.append("t")
        world.run()
    stream = world.store.stream("t", 0)
    assert stream.has_unwritten
    assert stream.written_offset == 1
    return world.disk.kill_state()


def key_of(disk: SimDisk) -> bytes:
    """The journal's key, as the identity file has it."""
    return bytes.fromhex(json.loads(disk.read(IDENTITY_FILE, 0, disk.size(IDENTITY_FILE)))["journal_key"])


def parts_of(disk: SimDisk) -> Sequence[JournalPart]:
    """What the journal holds of the only stream."""
    (parts,) = read_journal(disk, key_of(disk), ignore).parts.values()
    return parts


def journal_of(disk: SimDisk) -> str:
    """The only file of the journal."""
    (name,) = disk.list_directory(DIRECTORY)
    return f"{DIRECTORY}/{name}"


def rewritten(disk: SimDisk, blocks: Sequence[tuple[int, PartPlace, bytes]]) -> SimDisk:
    """A copy of a disk whose journal has these blocks in place of its own: generation, place, batches."""
    copy, path = disk.kill_state(), journal_of(disk)
    copy.truncate(path, 0)
    position = 0
    for generation, place, data in blocks:
        block = encode_head(generation, position, [(place, [data])], key=key_of(disk)) + data
        copy.write(path, position, [block])
        position += len(block)
    return copy


def damage_of(disk: SimDisk) -> list[Finding]:
    """The damage that is found; checking has changed nothing."""
    before = contents(disk)
    found = verify(disk).damages
    assert contents(disk) == before
    return found


def test_what_only_the_journal_holds_counts(disk: SimDisk) -> None:
    """Its batches are checked like those of the chunk, and nothing is said about the directory."""
    findings = verify(disk)
    assert findings.found == []
    assert findings.counts.batches == BATCHES


def test_a_damaged_block_before_an_intact_one(disk: SimDisk) -> None:
    """The file and the byte are named, and the offsets that are in no chunk and in no intact block."""
    content = contents(disk)[journal_of(disk)]
    assert content is not None
    second = scan_blocks(content, key_of(disk)).parts[1].data
    at = content.index(bytes(second))
    found = damage_of(flipped(disk, journal_of(disk), 8 * (at + 30)))
    assert [(finding.kind, finding.path) for finding in found if finding.kind == "journal-damaged"] == [
        ("journal-damaged", journal_of(disk))
    ]
    (lost,) = [finding for finding in found if finding.kind == "batch-damaged"]
    assert (lost.first_offset, lost.last_offset) == (2, 2)


def test_the_last_block_may_be_torn(disk: SimDisk) -> None:
    """A bit of the last block turned over looks like a write that was under way, which was never acknowledged."""
    content = contents(disk)[journal_of(disk)]
    assert content is not None
    at = content.index(bytes(parts_of(disk)[-1].data))
    assert damage_of(flipped(disk, journal_of(disk), 8 * (at + 30))) == []


def test_a_torn_first_block_of_a_file_that_is_used_again(disk: SimDisk) -> None:
    """Beside a newer file it is no damage: the file was being written from its start again. In the newest one it is."""
    copy, path = disk.kill_state(), journal_of(disk)
    copy.flip_bit(path, 8 * 20)
    assert "journal-damaged" in [finding.kind for finding in damage_of(copy)]
    place = parts_of(disk)[-1].place
    data = bytes(parts_of(disk)[-1].data)
    newer = encode_head(99, 0, [(place, [data])], key=key_of(disk)) + data
    other = f"{DIRECTORY}/77.journal"
    copy.create(other)
    copy.write(other, 0, [newer])
    assert "journal-damaged" not in [finding.kind for finding in damage_of(copy)]


def test_a_chunk_that_only_the_journal_knows(disk: SimDisk) -> None:
    """The journal names only chunks that were durable: the offsets of one that is gone are lost."""
    part = parts_of(disk)[-1]
    place = part.place._replace(chunk_offset=50, base_offset=52)
    (found,) = [
        finding
        for finding in damage_of(rewritten(disk, [(5, place, bytes(part.data))]))
        if finding.kind == "offsets-missing"
    ]
    assert (found.first_offset, found.last_offset) == (50, 52)


def test_a_directory_that_only_the_journal_knows(disk: SimDisk) -> None:
    """The directory of a stream is gone, of which the journal has records: damage, and no sidecar starts with it."""
    directory = parts_of(disk)[0].place.directory.decode()
    copy = disk.kill_state()
    for name in copy.list_directory(directory):
        copy.remove(f"{directory}/{name}")
    copy.remove_directory(directory)
    (found,) = damage_of(copy)
    assert (found.kind, found.path) == ("stream-missing", directory)
    with pytest.raises(CorruptFile, match="the journal has records"):
        SimulatedStore(copy, History(), Setup())


def with_identity(disk: SimDisk, fields: dict[str, object]) -> SimDisk:
    """A copy of a disk with these fields in its identity file; None: without the field."""
    copy = disk.kill_state()
    identity = json.loads(copy.read(IDENTITY_FILE, 0, copy.size(IDENTITY_FILE))) | fields
    copy.truncate(IDENTITY_FILE, 0)
    kept = {name: value for name, value in identity.items() if value is not None}
    copy.write(IDENTITY_FILE, 0, [json.dumps(kept).encode()])
    return copy


@pytest.mark.parametrize("fields", [{"journal_key": "0123456789abcdef"}, {"format": 1, "journal_key": None}])
def test_a_journal_of_another_identity(disk: SimDisk, fields: dict[str, object]) -> None:
    """The journal's blocks have the key of another cairn.json, or this one is older than the journal: damage, and no
    sidecar starts, which would remove the records that only the journal has. Neither says the key.
    """
    copy = with_identity(disk, fields)
    (found,) = damage_of(copy)
    assert (found.kind, found.path) == ("journal-foreign", DIRECTORY)
    with pytest.raises(CorruptFile, match=r"1\.journal was not written with the journal_key in cairn\.json") as refused:
        SimulatedStore(copy, History(), Setup())
    for key in (key_of(disk).hex(), "0123456789abcdef"):
        assert key not in f"{refused.value}{found}"


@pytest.mark.parametrize("key", [None, 5, "", "0123456789abcde", "0123456789ABCDEF"])
def test_a_malformed_journal_key(disk: SimDisk, key: object) -> None:
    """The identity is damaged and named; nothing that hangs on the key is said to be wrong for that."""
    (found,) = damage_of(with_identity(disk, {"journal_key": key}))
    assert (found.kind, found.path) == ("identity-damaged", IDENTITY_FILE)


def two_files() -> tuple[SimulatedStore, list[SimDisk]]:
    """A store with two streams whose blocks differ in size, and its disk before each sync of a file of the journal.

    A unit of the disk holds the block that a file begins with, as each sector does.
    """
    world = SimulatedStore(SimDisk(unit_bytes=128), History(), roomy())
    world.create_topic("t", 2)
    world.run()
    found: list[SimDisk] = []
    world.disk.before_call = lambda call: (
        found.append(world.disk.kill_state()) if call.kind == "sync" and call.path.startswith(DIRECTORY) else None
    )
    for number in range(24):
        world.append("t", 0, value_bytes=10 + number * 37 % 200)
        if number % 3 == 1:
            world.append("t", 1, value_bytes=200)
        world.run()
        if number % 4 == 3:
            for stream in world.store.streams():
                stream.sync_backlog()
            world.run()
    return world, found


def test_a_power_cut_while_a_file_is_used_again_is_no_damage() -> None:
    """Whatever units of a new block lie over older blocks: nothing that was needed is damaged, and nothing is said."""
    _, disks = two_files()
    tried = 0
    for disk in disks:
        for state in disk.crash_states(CrashBounds(states=150, file_states=150, torn_bytes=8)):
            assert damage_of(state) == []
            tried += 1
    assert tried > 1000


def test_the_last_block_of_a_file_behind_which_another_was_begun() -> None:
    """It had been synced, so it is no torn write: the next file notes where this one ended."""
    _, disks = two_files()
    checked = 0
    for disk in disks:
        files = [disk.read(f"{DIRECTORY}/{name}", 0, 1 << 16) for name in disk.list_directory(DIRECTORY)]
        ends = [scan_blocks(content, key_of(disk)) for content in files]
        if len(ends) < 2 or ends[0].generation not in ends[1].ends:
            continue
        assert damage_of(disk) == []
        (found,) = damage_of(flipped(disk, f"{DIRECTORY}/1.journal", 8 * (ends[0].end - 10)))
        assert (found.kind, found.path) == ("journal-damaged", f"{DIRECTORY}/1.journal")
        checked += 1
    assert checked
