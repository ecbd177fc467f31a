"""The keys of a cluster: what is written is read again, names are taken once."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.base.metadata import schema
from logstore.base.metadata.errors import InvalidMetadataCall, MetadataDamaged
from logstore.base.metadata.interface import ABSENT, ConditionFailed, Delete, Entry, Lease, Put, Transaction
from logstore.base.metadata.schema import StoredMember, StoredTopic
from logstore.base.metadata.sqlite import open_sqlite
from logstore.replica.register import SwapRegistration
from logstore.replica.registrations import OwnerId, StreamRegistration
from logstore.replica.stored_registrations import StoredRegistrations
from logstore.testing.metadata_contract import committed

ROOT = Path(__file__).resolve().parents[2]
TOPIC_ID = "0123456789abcdef0123456789abcdef"
MEMBER = StoredMember(
    disk="d1", start="s3", node_id=1, link="10.0.0.1:9192", rack="r1", addresses={"kafka": "10.0.0.1:9092"}
)
WAIT = schema.Wait(
    host="h1",
    start="s3",
    chunk=7,
    first=100,
    end=200,
    object="",
    error="no host has it",
    lost=False,
    since_ms=1_700_000_000_000,
    query="totals",
    epoch=3,
    forgotten=True,
)
NETWORK = schema.StoredNetwork(revision=7, fingerprint="0f" * 32, hosts=40, links=8)
NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)
TEXTS = st.dictionaries(NAMES, st.from_regex(r"[!-~]{1,200}", fullmatch=True), max_size=16)
VALUES = st.one_of(
    st.builds(
        StoredMember, disk=NAMES, start=NAMES, node_id=st.integers(0, 1000), link=NAMES, rack=NAMES, addresses=TEXTS
    ),
    st.builds(schema.StoredDisk, host=NAMES, starts=st.integers(1, 1 << 40), start=NAMES),
    st.builds(schema.StoredCluster, cluster_id=NAMES),
    st.builds(schema.StoredNode, host=NAMES),
    st.builds(schema.StoredLeader, host=NAMES, start=NAMES, url=NAMES),
    st.builds(
        schema.StoredNetwork,
        revision=st.integers(1, 1 << 60),
        fingerprint=NAMES,
        hosts=st.integers(0, 1 << 20),
        links=st.integers(0, 1 << 20),
    ),
    st.builds(schema.StoredPlanHead, writes=st.integers(0, 1 << 60), batch=st.integers(0, 1 << 20)),
    st.builds(
        StoredTopic, topic_id=NAMES, partitions=st.integers(1, 10_000), replicas=st.integers(1, 5), settings=TEXTS
    ),
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
        schema.decode(StoredTopic, Entry("k", data, 1))


def test_a_newer_version_and_unknown_fields_are_refused() -> None:
    """What a newer Cairn wrote is not misread."""
    newer = Entry("k", b'{"v":2,"host":"h1"}', 1)
    with pytest.raises(MetadataDamaged, match=r"v=2: this Cairn knows 1; use a newer one"):
        schema.decode(schema.StoredNode, newer)
    more = Entry("k", b'{"v":1,"host":"h1","colour":1}', 1)
    with pytest.raises(MetadataDamaged, match="colour: unknown field"):
        schema.decode(schema.StoredNode, more)


def test_golden_bytes() -> None:
    """The bytes are those of docs/format.md."""
    text = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    for value in (
        MEMBER,
        schema.StoredCluster(cluster_id="c1"),
        schema.StoredDisk(host="h1", starts=3, start="s3"),
        schema.StoredNode(host="h1"),
        schema.StoredLeader(host="h1", start="s3", url="http://10.0.0.1:9880"),
        NETWORK,
        schema.Removal(),
        schema.StoredPlanHead(writes=12, batch=3),
        StoredTopic(topic_id=TOPIC_ID, partitions=12, replicas=3, settings={"retention.ms": "60000"}),
        WAIT,
    ):
        assert f"`{schema.encode(value).decode()}`" in text


def test_who_waits_is_in_the_key() -> None:
    """A wait is that of a stream for a chunk; a key of the version before names no chunk."""
    for chunk in (0, 7, 1 << 62):
        assert schema.wait_place(schema.wait_key(f"{TOPIC_ID}/12", chunk)) == (f"{TOPIC_ID}/12", chunk)
    assert schema.wait_place(f"{schema.WAITS}{TOPIC_ID}/12") == (f"{TOPIC_ID}/12", None)
    for stream, chunk in ((TOPIC_ID, 1), (f"{TOPIC_ID}/x", 1), ("/1", 1), (f"{TOPIC_ID}/1", -1)):
        with pytest.raises(InvalidMetadataCall):
            schema.wait_key(stream, chunk)


@pytest.mark.parametrize(
    ("query", "lost", "forgotten", "repeat_epochs", "is_let_go"),
    [
        ("", False, False, False, False),
        ("", False, True, False, True),
        ("", True, False, True, False),
        ("q", False, True, False, False),
        ("q", True, True, False, True),
        ("q", False, False, True, True),
    ],
)
def test_what_an_operator_has_said(
    query: str, *, lost: bool, forgotten: bool, repeat_epochs: bool, is_let_go: bool
) -> None:
    """What was said of a takeover counts for an epoch if the chunk is lost; if it may come back, it does not."""
    wait = replace(WAIT, query=query, lost=lost, forgotten=forgotten, repeat_epochs=repeat_epochs)
    assert (wait.is_let_go, wait.is_for_epoch) == (is_let_go, bool(query))


async def test_members_and_topics(tmp_path: Path) -> None:
    """A host's name is taken while its lease lasts, and its disk's entry is put anew when it joins; a topic is created
    once and goes with all that belongs to it.
    """
    async with open_sqlite(tmp_path / "a.db", Random(0)) as store:
        lease: Lease = await store.grant_lease(10)
        key, known = schema.disk_key(MEMBER.disk), schema.encode(schema.StoredDisk(host="h1", starts=3, start="s3"))
        disk = Entry(key, known, await committed(store, Transaction((), (Put(key, known),))))
        joined = await committed(store, schema.join("h1", MEMBER, lease.lease_id, ABSENT, ABSENT, disk))
        assert (await store.get(key)).entry == Entry(key, known, joined)
        disk = Entry(key, known, joined)
        for host, why in (("h1", "its name"), ("h2", "its node id")):
            again = schema.join(host, MEMBER, lease.lease_id, ABSENT, ABSENT, disk)
            assert isinstance(await store.commit(again), ConditionFailed), why
        await store.revoke_lease(lease.lease_id)
        assert (await store.page(schema.MEMBERS)).entries == ()
        lease = await store.grant_lease(10)
        await committed(store, Transaction((), (Delete(key),)))
        forgotten = schema.join("h1", MEMBER, lease.lease_id, ABSENT, ABSENT, disk)
        assert isinstance(await store.commit(forgotten), ConditionFailed)
        topic = StoredTopic(topic_id=TOPIC_ID, partitions=8, replicas=3, settings={})
        revision = await committed(store, schema.create_topic("orders", topic))
        assert isinstance(await store.commit(schema.create_topic("orders", topic)), ConditionFailed)
        registrations = StoredRegistrations(store)
        first = StreamRegistration(3, 2).claimed(OwnerId("h1", "h1.1"))
        for partition in range(3):
            await registrations.swap(SwapRegistration(f"{TOPIC_ID}/{partition}", ABSENT, first))
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
            schema.create_topic("t", StoredTopic(topic_id=name, partitions=1, replicas=1, settings={}))
    with pytest.raises(InvalidMetadataCall, match="replicas"):
        schema.encode(StoredTopic(topic_id="t", partitions=1, replicas=6, settings={}))
