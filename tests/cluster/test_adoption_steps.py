"""Each step of an adoption may be the last one before a crash; what a cluster cannot hold is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataUnavailable
from logstore.base.metadata.interface import Entry, MetadataStore, Put
from logstore.cluster.adoption.adoption_copy import END_BYTES
from logstore.cluster.adoption.adoption_source import MAX_PIECE_BYTES, READ_BYTES
from logstore.cluster.members.own_files import ADOPTED_FILE, ADOPTION_FILE
from logstore.cluster.streams.stored_access import decode_entry
from logstore.disk.files import OsFiles
from logstore.engine import StoreEngine
from logstore.epochs.ledger_entries import COMMIT_RECORD
from logstore.errors import CairnError
from logstore.format.batch import seal_batch
from logstore.format.records import Record, encode_batch
from logstore.interfaces import Buffer
from logstore.log.ledger import Ledger
from logstore.testing.metadata_contract import changing
from tests.cluster.adoption_world import (
    NOW_MS,
    RECORDS,
    Attempt,
    FailingStore,
    append,
    complete,
    fill,
    give_up,
    made,
    opened,
)
from tests.support.cli import cairn
from tests.support.examples import is_long


async def test_everything_is_taken_over(tmp_path: Path) -> None:
    """Topics with their ids and settings, chunks, log starts, offsets of groups, users, ACLs; the source keeps its
    files, and says where its log is; a second adoption is refused, and so is a change of its users.
    """
    source = tmp_path / "source"
    await fill(source)
    (tmp_path / "password").write_text("secret\n")
    words = ("user", "add", "etl", "--data-dir", str(source), "--password-file", str(tmp_path / "password"))
    assert cairn(*words, "--iterations", "4096").status == 0
    before = {path: path.read_bytes() for path in source.glob("streams/**/*.log")}
    assert len(before) > 2
    attempt = Attempt(tmp_path, source)
    adopted = await attempt.run()
    assert (adopted.topics, adopted.streams, adopted.was_done) == (3, 6, False)
    await complete(attempt)
    assert {path: path.read_bytes() for path in source.glob("streams/**/*.log")} == before
    entries = await attempt.entries()
    access = [
        decode_entry(Entry(key, value, 1, 0))
        for key, value in entries.items()
        if key.startswith("access/") and key != "access/head"
    ]
    assert any(key.startswith("acl/") and "User:etl" in key for key, _ in access)
    listed = await trio.to_thread.run_sync(lambda: cairn("user", "list", "--cluster", f"sqlite:{attempt.metadata}"))
    assert listed.out.startswith("etl: SCRAM-SHA-"), listed.err
    refused = await trio.to_thread.run_sync(lambda: cairn(*words))
    assert refused.status
    assert "Its users are now the cluster's: give --cluster URL" in refused.err
    note = json.loads((source / ADOPTED_FILE).read_text())
    cluster = json.loads(entries[schema.CLUSTER_KEY])
    assert note["cluster_id"] == cluster["cluster_id"]
    label = json.loads((attempt.target / "host.json").read_text())
    assert (label["cluster_id"], label["host"], label["starts"]) == (cluster["cluster_id"], "a", 0)
    assert (await attempt.run()).was_done
    attempt.metadata = tmp_path / "wrong.sqlite"
    assert "of which the metadata store knows nothing" in await attempt.refused()
    attempt.metadata = tmp_path / "target.sqlite"
    other = Attempt(tmp_path, source, "other")
    other.metadata = attempt.metadata
    assert f"adopted before (adopted.json), by cluster {cluster['cluster_id']}, as its host 'a'" in (
        await other.refused()
    )
    assert not list(other.target.iterdir())
    give_up(source)
    assert f"that of cluster {cluster['cluster_id']} already" in await other.refused()


@pytest.mark.parametrize("made", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["not made", "answer lost"])
async def test_a_metadata_store_that_fails_at_any_transaction(tmp_path: Path, made: bool) -> None:
    """An adoption that ends there is taken up again, and completed; a lost answer does not even end it."""
    source = tmp_path / "source"
    await fill(source)
    for at in range(20):
        give_up(source)
        attempt = Attempt(tmp_path, source, f"target{at}")
        failing: list[FailingStore] = []

        def wrap(store: MetadataStore, at: int = at, failing: list[FailingStore] = failing) -> MetadataStore:
            failing.append(FailingStore(store, at, made=made))
            return failing[-1]

        attempt.wrap = wrap
        try:
            await attempt.run()
        except* MetadataUnavailable:
            assert not made
        attempt.wrap = lambda store: store
        if (attempt.target / ADOPTION_FILE).exists():
            await attempt.run()
        if not failing[0].failed:
            assert at > 4
            return
        if at == 3:
            await complete(attempt)
    raise AssertionError("it never ended")


class FailingFiles(OsFiles):
    """Files whose n-th change fails."""

    def __init__(self, root: Path, at: int) -> None:
        super().__init__(root)
        self.left = at

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(5, "Input/output error")

    def create(self, path: str) -> None:
        self._count()
        super().create(path)

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        self._count()
        super().write(path, position, buffers)

    def sync(self, path: str) -> None:
        self._count()
        super().sync(path)

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)


@pytest.mark.parametrize("seed", range(10 if is_long() else 1))
async def test_a_disk_that_fails_at_some_call(tmp_path: Path, seed: int) -> None:
    """Whatever call of the new directory fails, the next run completes it."""
    source, random = tmp_path / "source", Random(seed)
    await fill(source)
    for number in range(4):
        give_up(source)
        attempt = Attempt(tmp_path, source, f"target{number}")
        at = random.randrange(1, 120)
        attempt.files = lambda root, at=at: FailingFiles(root, at)  # type: ignore[misc]
        try:
            await attempt.run()
        except* (CairnError, OSError):
            pass
        attempt.files = OsFiles
        if (attempt.target / ADOPTION_FILE).exists() or not (attempt.target / "host.json").exists():
            await attempt.run()
        await complete(attempt)


async def test_a_source_that_was_used_between_two_tries(tmp_path: Path) -> None:
    """The second try has what the source has then: chunks that are longer, and a later log start."""
    source = tmp_path / "source"
    await fill(source)
    attempt = Attempt(tmp_path, source)
    attempt.wrap = lambda store: FailingStore(store, 1, made=False)
    with pytest.raises(ExceptionGroup) as caught:
        await attempt.run()
    assert caught.group_contains(MetadataUnavailable)
    (source / ADOPTED_FILE).unlink()  # as the refusal to start says
    async with opened(source) as engine:
        for number in range(RECORDS):
            await append(engine, "orders", 1, number)
        await engine.wait(engine.store.stream("orders", 0).delete_records(RECORDS // 2))
    attempt.wrap = lambda store: store
    await attempt.run()
    topic_id = json.loads((await attempt.entries())[schema.topic_key("orders")])["topic_id"]
    first, second = [(await attempt.registrations())[f"{topic_id}/{partition}"] for partition in range(2)]
    assert first.log_start == RECORDS // 2  # whether a chunk is left there depends on whether it was rolled
    ends = [chunk.end.next_offset for chunk in second.chunks if chunk.end]
    assert (second.log_start, ends[-1]) == (0, RECORDS // 2 + RECORDS)


async def test_the_end_of_a_large_chunk_is_a_chunk_of_its_own(tmp_path: Path) -> None:
    """Appends wait until enough hosts have the last chunk: it is short, whatever the size of the source's last one."""
    source = tmp_path / "source"
    async with opened(made(source)) as engine:
        await engine.wait(engine.store.create_topic("large", 1, {}))
        stream = engine.store.stream("large", 0)
        for number in range(40):
            batch = encode_batch([Record(0, NOW_MS, None, bytes([number]) * 65_536)])
            await engine.wait(stream.append(batch, now_ms=NOW_MS))
        size_bytes = stream.size_bytes
    attempt = Attempt(tmp_path, source)
    await attempt.run()
    (registration,) = (await attempt.registrations()).values()
    front, end = (chunk.end for chunk in registration.chunks if chunk.end is not None)
    assert front.length_bytes + end.length_bytes == size_bytes
    assert END_BYTES - 70_000 < end.length_bytes <= END_BYTES
    assert (registration.chunks[1].base_offset, end.next_offset) == (front.next_offset, 40)


async def test_producers_of_deleted_records(tmp_path: Path) -> None:
    """A partition whose records are all deleted keeps the sequences of its producers: a chunk in front of the log
    start has them.
    """
    source = tmp_path / "source"
    async with opened(made(source)) as engine:
        await engine.wait(engine.store.create_topic("gone", 2, {}))
        for partition in range(2):
            stream = engine.store.stream("gone", partition)
            for number in range(7):
                data = encode_batch(
                    [Record(0, NOW_MS, None, b"x")] * 2, producer_id=5 + partition, producer_epoch=0,
                    base_sequence=2 * number,
                )  # fmt: skip
                await engine.wait(stream.append(data, now_ms=NOW_MS))
            await engine.wait(stream.delete_records(-1))
        known = engine.store.stream("gone", 1).producers.entries()
    async with opened(source) as engine:
        assert all(stream.high_watermark == 14 for stream in engine.store.topic("gone").partitions)
    attempt = Attempt(tmp_path, source)
    await attempt.run()
    registrations = await attempt.registrations()
    assert {found.log_start for found in registrations.values()} == {14}
    async with opened(attempt.target) as engine:
        for name, found in registrations.items():
            log = engine.store.replicas.log(name, found.epoch)
            assert log is not None
            assert log.high_watermark == 14
            (entry,) = log.producers.entries()
            assert [each.last_sequence for each in entry.batches] == [5, 7, 9, 11, 13]
            if entry.producer_id == known[0].producer_id:
                assert entry.batches == known[0].batches


async def test_a_source_is_read_once(tmp_path: Path) -> None:
    """Its chunks are read from when on progress is shown, and each byte once; also of a last chunk that becomes two."""
    source = tmp_path / "source"
    async with opened(made(source)) as engine:
        await engine.wait(engine.store.create_topic("large", 1, {}))
        for number in range(40):
            batch = encode_batch([Record(0, NOW_MS, None, bytes([number]) * 65_536)])
            await engine.wait(engine.store.stream("large", 0).append(batch, now_ms=NOW_MS))
    read: list[int] = []

    class CountingFiles(OsFiles):
        def read(self, path: str, position: int, length: int, *, drop_cache: bool = False) -> bytes:
            data = super().read(path, position, length, drop_cache=drop_cache)
            read.append(len(data) if path.endswith(".log") else 0)
            return data

    attempt = Attempt(tmp_path, source)
    attempt.source_files = CountingFiles
    shown: list[tuple[int, int]] = []
    attempt.planned = lambda size_bytes: shown.append((size_bytes, sum(read)))
    await attempt.run()
    ((size_bytes, before),) = shown
    assert before < size_bytes // 20
    assert sum(read) - before <= size_bytes + READ_BYTES


async def refuse_after(
    tmp_path: Path,
    change: Callable[[StoreEngine], Any],
    prepare: Callable[[Attempt], None] = lambda _: None,
    *,
    is_left_alone: bool = True,
) -> str:
    """What is said of a source that was changed. `is_left_alone`: before the metadata store has anything, so that a
    cluster may be made there all the same.
    """
    source = tmp_path / "source"
    await fill(source)
    async with opened(source) as engine:
        await change(engine)
    attempt = Attempt(tmp_path, source)
    prepare(attempt)
    why = await attempt.refused()
    assert not (source / ADOPTED_FILE).exists()
    left = await attempt.entries()
    assert not left if is_left_alone else list(left) == [schema.ADOPTION_KEY]
    return why


async def test_an_epoch_that_is_not_in_all_streams(tmp_path: Path) -> None:
    """The sidecar has to complete it first."""

    async def decide(engine: StoreEngine) -> None:
        await engine.wait(engine.store.epochs.put({f"{COMMIT_RECORD}etl": b"{}"}))

    assert "the last epoch of 1 queries ('etl') is committed, and perhaps not" in await refuse_after(tmp_path, decide)


@pytest.mark.parametrize(
    ("topic", "config", "why"),
    [
        ("__cairn_groups", {}, "the name of a cluster's internal topic"),
        ("strict", {"min.insync.replicas": "4"}, "min.insync.replicas=4, more than 3 copies"),
    ],
)
async def test_topics_that_no_cluster_has(tmp_path: Path, topic: str, config: Mapping[str, str], why: str) -> None:
    """Each with its name and with what to do."""

    async def create(engine: StoreEngine) -> None:
        await engine.wait(engine.store.create_topic(topic, 1, config))

    assert why in await refuse_after(tmp_path, create)


async def test_a_batch_that_no_host_can_send(tmp_path: Path) -> None:
    """With its stream, its size and its offset."""

    async def large(engine: StoreEngine) -> None:
        await engine.wait(engine.store.create_topic("large", 1, {"max.message.bytes": str(MAX_PIECE_BYTES * 2)}))
        batch = seal_batch(encode_batch([Record(0, NOW_MS, None, bytes(MAX_PIECE_BYTES))]))
        await engine.wait(engine.store.stream("large", 0).append(batch, now_ms=NOW_MS))

    why = await refuse_after(tmp_path, large, is_left_alone=False)
    assert why.startswith("large-0 has ")
    assert "near offset 0" in why


async def test_damage_in_a_chunk(tmp_path: Path) -> None:
    """A flipped bit is found before a cluster has it, with its stream and file."""
    source = tmp_path / "source"
    await fill(source)
    path = sorted(source.glob("streams/orders*/1/*.log"))[0]
    data = bytearray(path.read_bytes())
    data[150] ^= 1
    path.write_bytes(data)
    attempt = Attempt(tmp_path, source)
    why = await attempt.refused()
    assert "orders-1: " in why
    assert "is damaged near offset" in why
    assert "cairn verify" in why


async def test_places_that_are_in_use(tmp_path: Path) -> None:
    """A metadata store with anything in it, a directory with files, an adoption of another host, a host's directory; a
    file system of its own is none.
    """
    source = tmp_path / "source"
    await fill(source)
    attempt = Attempt(tmp_path, source)
    async with attempt.open() as store:
        await store.commit(changing(Put("access/head", b"{}")))
    assert "the metadata store is not empty, it has the entry 'access/head'" in await attempt.refused()
    attempt.host = "b"
    assert "for host 'a', was begun there" in await attempt.refused()
    used = Attempt(tmp_path, source, "used")
    (made(used.target) / "x").touch()
    assert "--into is not empty, it has 'x'" in await used.refused()
    give_up(source)
    mounted = Attempt(tmp_path, source, "mounted")
    (made(mounted.target) / "lost+found").mkdir()
    assert (await mounted.run()).topics == 3
    (source / "host.json").write_text("{}")
    assert "that of a host of a cluster already" in await Attempt(tmp_path, source, "third").refused()


def test_the_command_line(tmp_path: Path) -> None:
    """What cannot be is refused before anything is opened; what a source has is said by a start of it."""
    (tmp_path / "empty").mkdir()
    url = f"sqlite:{tmp_path / 'm.sqlite'}"
    words = ["adopt", str(tmp_path / "empty"), "--cluster", url, "--host-name", "a", "--into"]
    assert "is not a sidecar's data directory" in cairn(*words, str(tmp_path / "new")).err
    trio.run(fill, tmp_path / "source")
    words[1] = str(tmp_path / "source")
    assert "neither may contain the other" in cairn(*words, str(tmp_path / "source" / "new")).err
    assert cairn(*words, str(tmp_path / "new"), "--replication-factor", "6").status == 2
    done = cairn(*words, str(tmp_path / "new"), "--json")
    assert (done.status, done.json["topics"], done.json["was_done"]) == (0, 3, False), done.err
    users = Ledger.open(OsFiles(tmp_path / "source"), "users", lambda _: None)
    assert list(users.items()) == []
    assert "--etcd-key" not in cairn(*words, str(tmp_path / "x"), "--etcd-key", "k").out
