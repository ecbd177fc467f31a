"""The keys of a cluster: what is written is read again, a replaced owner changes nothing, sizes are as stated."""

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.base.metadata import schema
from logstore.base.metadata.errors import InvalidMetadataCall, MetadataDamaged
from logstore.base.metadata.interface import ABSENT, Conflict, Entry, Lease, MetadataStore, Put, Transaction
from logstore.base.metadata.schema import Member, OpenChunk, SealedChunk, Stream, StreamKey, Topic
from logstore.base.metadata.sqlite import open_sqlite
from logstore.testing.metadata_contract import committed
from tests.metadata.support import EtcdMember, etcd_members, etcd_store, needs_etcd
from tests.support.limits import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
STREAM = StreamKey("0123456789abcdef0123456789abcdef", 7)
NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)
OFFSETS = st.integers(0, (1 << 53) - 1)
REPLICAS = st.lists(NAMES, min_size=1, max_size=5).map(tuple)
TEXTS = st.dictionaries(NAMES, st.from_regex(r"[!-~]{1,200}", fullmatch=True), max_size=16)
CHUNKS = st.builds(OpenChunk, base_offset=OFFSETS, epoch=OFFSETS, replicas=REPLICAS)
VALUES = st.one_of(
    st.builds(Member, disk=NAMES, rack=NAMES, addresses=TEXTS),
    st.builds(Topic, topic_id=NAMES, partitions=st.integers(1, 10_000), replicas=st.integers(1, 5), settings=TEXTS),
    st.builds(Stream, owner=NAMES, epoch=st.integers(1, 1 << 52), chunk=st.none() | CHUNKS),
    st.builds(SealedChunk, end_offset=OFFSETS, epoch=OFFSETS, replicas=REPLICAS),
)


@given(VALUES)
def test_values_come_back(value: schema.Value) -> None:
    """Every value is read as it was written, and damage to it is named with its key, never anything else."""
    data = schema.encode(value)
    kind: Any = type(value)
    assert schema.decode(kind, Entry("k", data, 1)) == value
    for cut in range(0, len(data), 7):
        with pytest.raises(MetadataDamaged, match="'k'"):
            schema.decode(kind, Entry("k", data[:cut], 1))


JSON = st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)


@given(st.binary(max_size=60) | JSON)
def test_other_bytes_are_damage(data: bytes) -> None:
    """Bytes of any kind are refused by name."""
    with pytest.raises(MetadataDamaged, match="'k'"):
        schema.decode(Stream, Entry("k", data, 1))


def test_a_newer_version_and_unknown_fields_are_refused() -> None:
    """What a newer Cairn wrote is not misread."""
    newer = Entry("k", b'{"v":2,"owner":"h1","epoch":1,"chunk":null}', 1)
    with pytest.raises(MetadataDamaged, match=r"v=2: this Cairn knows 1; use a newer one"):
        schema.decode(Stream, newer)
    more = Entry("k", b'{"v":1,"owner":"h1","epoch":1,"chunk":null,"colour":1}', 1)
    with pytest.raises(MetadataDamaged, match="colour: unknown field"):
        schema.decode(Stream, more)


def test_golden_bytes() -> None:
    """The bytes are those of docs/format.md."""
    stream = Stream(owner="h1", epoch=3, chunk=OpenChunk(base_offset=4096, epoch=3, replicas=("h1", "h2", "h3")))
    text = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    for value in (
        Member(disk="d1", rack="r1", addresses={"kafka": "10.0.0.1:9092"}),
        Topic(topic_id=STREAM.topic_id, partitions=12, replicas=3, settings={"retention.ms": "60000"}),
        stream,
        SealedChunk(end_offset=4096, epoch=2, replicas=("h1", "h2", "h3")),
    ):
        assert f"`{schema.encode(value).decode()}`" in text
    assert STREAM.chunk(4096) == f"chunks/{STREAM.topic_id}/7/0000000000001000"
    assert schema.base_offset_of(STREAM.chunk(4096)) == 4096


async def test_a_replaced_owner_changes_nothing(tmp_path: Path) -> None:
    """After another host took the stream, the former owner can neither roll nor trim nor take it with what it saw."""
    async with open_sqlite(tmp_path / "a.db", Random(0)) as store:
        one = await committed(store, schema.take_stream(STREAM, None, ABSENT, "h1"))
        first = Stream(owner="h1", epoch=1)
        two = await committed(store, schema.roll_chunk(STREAM, first, one, 0, ["h1", "h2"]))
        opened = schema.decode(Stream, await entry(store, STREAM.key))
        three = await committed(store, schema.roll_chunk(STREAM, opened, two, 100, ["h1", "h3"]))
        before = schema.decode(Stream, await entry(store, STREAM.key))
        assert before.chunk == OpenChunk(base_offset=100, epoch=1, replicas=("h1", "h3"))
        four = await committed(store, schema.take_stream(STREAM, before, three, "h2"))
        taken = schema.decode(Stream, await entry(store, STREAM.key))
        assert (taken.owner, taken.epoch, taken.chunk) == ("h2", 2, before.chunk)
        for late in (
            schema.roll_chunk(STREAM, before, three, 200, ["h1"]),
            schema.trim_chunks(STREAM, three, [0]),
            schema.take_stream(STREAM, before, three, "h3"),
        ):
            assert isinstance(await store.commit(late), Conflict)
        chunk = schema.decode(SealedChunk, await entry(store, STREAM.chunk(0)))
        assert chunk == SealedChunk(end_offset=100, epoch=1, replicas=("h1", "h2"))
        five = await committed(store, schema.roll_chunk(STREAM, taken, four, 100, ["h2", "h3"]))
        assert [each.key for each in (await store.page(STREAM.chunks)).entries] == [STREAM.chunk(0)]
        moved = SealedChunk(end_offset=100, epoch=2, replicas=("h2", "h3"))
        await committed(store, schema.move_chunk(STREAM, 0, three, moved))
        await committed(store, schema.trim_chunks(STREAM, five, [0]))
        assert (await store.page(STREAM.chunks)).entries == ()


async def test_members_and_topics(tmp_path: Path) -> None:
    """A host's name is taken while its lease lasts; a topic is created once and goes with all that belongs to it."""
    async with open_sqlite(tmp_path / "a.db", Random(0)) as store:
        lease: Lease = await store.grant_lease(10)
        member = Member(disk="d1", rack="r1", addresses={"kafka": "127.0.0.1:9092"})
        await committed(store, schema.join("h1", member, lease.lease_id))
        assert isinstance(await store.commit(schema.join("h1", member, lease.lease_id)), Conflict)
        await store.revoke_lease(lease.lease_id)
        assert (await store.page(schema.MEMBERS)).entries == ()
        topic = Topic(topic_id=STREAM.topic_id, partitions=8, replicas=3, settings={})
        revision = await committed(store, schema.create_topic("orders", topic))
        assert isinstance(await store.commit(schema.create_topic("orders", topic)), Conflict)
        await committed(store, schema.take_stream(STREAM, None, ABSENT, "h1"))
        await committed(store, schema.delete_topic("orders", topic, revision))
        assert (await store.page("")).entries == ()


def test_names_that_are_no_keys_are_refused() -> None:
    """Names with a slash, a space or too many characters make no key."""
    for name in ("", "a/b", "a b", "ä", "x" * 250):
        with pytest.raises(InvalidMetadataCall):
            schema.topic_key(name)
        with pytest.raises(InvalidMetadataCall):
            schema.member_key(name)
        with pytest.raises(InvalidMetadataCall):
            StreamKey(name, 0)
    with pytest.raises(InvalidMetadataCall, match="cannot end"):
        chunk = OpenChunk(base_offset=5, epoch=1, replicas=("h1",))
        schema.roll_chunk(STREAM, Stream(owner="h1", epoch=1, chunk=chunk), 1, 4, ["h1"])
    with pytest.raises(InvalidMetadataCall, match="replicas"):
        schema.encode(SealedChunk(end_offset=1, epoch=1, replicas=("h",) * 6))


async def entry(store: MetadataStore, key: str) -> Entry:
    """The entry of a key that is there."""
    found = (await store.get(key)).entry
    assert found is not None
    return found


# ---- what it costs


def stated(pattern: str) -> int:
    """A figure of docs/metadata.md."""
    text = " ".join((ROOT / "docs" / "metadata.md").read_text(encoding="utf-8").split())
    found = re.search(pattern, text)
    assert found is not None, pattern
    return int(found[1].replace(",", ""))


def size_bytes(transaction: Transaction) -> int:
    """The bytes of its keys and values."""
    return sum(len(put.key) + len(put.value) for put in transaction.changes if isinstance(put, Put))


def test_bytes_are_as_stated() -> None:
    """A stream, a roll and a sealed chunk take no more bytes than docs/metadata.md says, with the longest names."""
    longest = tuple(f"{number}".rjust(64, "h") for number in range(5))
    key = StreamKey("f" * 64, 9999)
    chunk = OpenChunk(base_offset=(1 << 53) - 2, epoch=1 << 52, replicas=longest)
    stream = Stream(owner=longest[0], epoch=1 << 52, chunk=chunk)
    roll = schema.roll_chunk(key, stream, 1, (1 << 53) - 1, longest)
    assert len(roll.changes) == stated(r"A roll is one transaction of (\d+) entries")
    entry_bytes = len(key.key) + len(schema.encode(stream))
    assert entry_bytes <= stated(r"A stream's entry has at most ([\d,]+) bytes")
    assert size_bytes(roll) - entry_bytes <= stated(r"a sealed chunk's at most ([\d,]+)")


@needs_etcd
async def test_etcd_grows_as_stated(tmp_path: Path) -> None:
    """Measured on a real etcd: what a roll adds while history is kept, and what is left of it after a compaction."""
    rolls = 1000
    with etcd_members(tmp_path) as members:
        async with etcd_store(members) as store:
            revision = await committed(store, schema.take_stream(STREAM, None, ABSENT, "host-001"))
            stream = Stream(owner="host-001", epoch=1)
            replicas = ("host-001", "host-002", "host-003")
            before = await bytes_in_use(members[0])
            for number in range(rolls):
                offset = number * 60_000
                revision = await committed(store, schema.roll_chunk(STREAM, stream, revision, offset, replicas))
                chunk = OpenChunk(base_offset=offset, epoch=1, replicas=replicas)
                stream = Stream(owner="host-001", epoch=1, chunk=chunk)
            grown = (await bytes_in_use(members[0]) - before) / rolls
            await ask(members[0], "kv/compaction", {"revision": str(revision), "physical": True})
            left = (await bytes_in_use(members[0]) - before) / rolls
            print(f"bytes of etcd's database for a roll: {grown:.0f}, after a compaction {left:.0f}")
            assert grown <= stated(r"A roll adds at most ([\d,]+) bytes")
            assert left <= stated(r"of which at most ([\d,]+) stay")


async def bytes_in_use(member: EtcdMember) -> int:
    """What etcd's database holds, all of it flushed."""
    await ask(member, "maintenance/defragment", {})
    return int((await ask(member, "maintenance/status", {}))["dbSizeInUse"])


async def ask(member: EtcdMember, path: str, body: dict[str, object]) -> dict[str, str]:
    """Ask etcd something that the store does not ask."""
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client:
        answer = await client.post(f"{member.client}/v3/{path}", json=body)
    found: dict[str, str] = answer.raise_for_status().json()
    return found
