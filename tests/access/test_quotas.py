"""Quotas: rates in virtual time, the precedence of entities, throttled connections, and the requests about quotas."""

from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from logstore.access import quotas
from logstore.access.quotas import (
    CONSUMER,
    DEFAULT,
    MAX_THROTTLE_MS,
    PRODUCER,
    WINDOW_MS,
    WINDOWS,
    Entity,
    Quotas,
    Rate,
)
from logstore.errors import CorruptFile
from logstore.format.epoch_api import Part, StageRequest
from tests.access.world import ALICE, BOB, Client, World, records, world
from tests.kafka.front_driver import decode_answer, fetch_frame, kio_frame, produce_frame
from tests.support.limits import PATIENCE_S

DESCRIBE, ALTER = 48, 49


@given(
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 5_000)), min_size=1, max_size=60), st.integers(50, 2_000)
)
def test_who_waits_as_told_stays_at_the_quota(requests: list[tuple[int, int]], bytes_per_s: int) -> None:
    """Of any requests, each sent when the throttle of the one before is over, all but the last carry no more bytes than
    one span of windows allows at once, and twice the quota after that: Kafka's rates forget a burst with its window.
    (A throttle that was cut to its bound ends that.)
    """
    rate, now_ms, total = Rate(), 0, 0
    for pause_ms, size in requests:
        now_ms += pause_ms
        assert total <= bytes_per_s * (2 * now_ms / 1000 + WINDOWS) + 1
        total += size
        rate.add(size, now_ms)
        throttle_ms = rate.throttle_ms(bytes_per_s, now_ms)
        assert 0 <= throttle_ms <= MAX_THROTTLE_MS
        if throttle_ms == MAX_THROTTLE_MS:
            return
        now_ms += throttle_ms


def test_a_throttle_is_as_kafkas() -> None:
    """The excess over the quota in the window, divided by the quota: Kafka's arithmetic, on figures worked by hand."""
    rate = Rate()
    rate.add(10_000, 0)
    assert rate.throttle_ms(1_000, 0) == 0  # ten seconds' worth: a burst that the window allows
    rate.add(5_000, 500)
    assert rate.throttle_ms(1_000, 500) == 4_500  # 15,000 bytes in 10.5 s
    assert rate.throttle_ms(1_000, 5_000) == 5_000  # in 10 s: windows that are full replace assumed ones
    assert rate.throttle_ms(1_000, 10_999) == 4_001
    rate = Rate()
    rate.add(10**9, 0)
    assert rate.throttle_ms(1, 0) == MAX_THROTTLE_MS
    assert rate.throttle_ms(1, WINDOWS * WINDOW_MS) == 0  # forgotten with its window


LEVELS = [
    Entity("alice", "app"),
    Entity("alice", DEFAULT),
    Entity("alice"),
    Entity(DEFAULT, "app"),
    Entity(DEFAULT, DEFAULT),
    Entity(DEFAULT),
    Entity(None, "app"),
    Entity(None, DEFAULT),
]


@pytest.mark.parametrize("first", range(len(LEVELS)))
def test_the_most_specific_quota_decides(first: int) -> None:
    """Kafka's order: user and client id, user with any client id, user; the default user the same; client ids."""
    found = Quotas({entity: {PRODUCER: 1.0 + number} for number, entity in enumerate(LEVELS) if number >= first})
    throttle_ms = found.count(PRODUCER, "alice", "app", 1_000, 0)
    assert throttle_ms == round((1_000 - 10 * (1 + first)) / (1 + first) * 1000) or throttle_ms == MAX_THROTTLE_MS
    only = Quotas({LEVELS[first]: {PRODUCER: 10.0}})
    assert only.count(PRODUCER, "alice", "app", 1_000, 0) == MAX_THROTTLE_MS
    assert only.count(CONSUMER, "alice", "app", 1_000, 0) == 0


def test_who_shares_a_rate() -> None:
    """A user's clients share the user's rate; under a default, each user, or each client id, has a rate of its own."""
    users = Quotas({Entity(DEFAULT): {PRODUCER: 100.0}})
    assert users.count(PRODUCER, "alice", "a", 1_000, 0) == 0
    assert users.count(PRODUCER, "alice", "b", 1_000, 0) == 10_000
    assert users.count(PRODUCER, "bob", "a", 1_000, 0) == 0
    clients = Quotas({Entity(None, DEFAULT): {PRODUCER: 100.0}})
    assert clients.count(PRODUCER, "alice", "a", 1_000, 0) == 0
    assert clients.count(PRODUCER, "bob", "a", 1_000, 0) == 10_000
    assert clients.count(PRODUCER, "bob", "b", 1_000, 0) == 0


def test_rates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client ids that a client makes up take no more memory than MAX_RATES rates, and leave a busy one alone."""
    monkeypatch.setattr(quotas, "MAX_RATES", 10)
    found = Quotas({Entity(None, DEFAULT): {PRODUCER: 100.0}})
    for number in range(100):
        busy_ms = found.count(PRODUCER, "u", "busy", 1_000, 0)
        found.count(PRODUCER, "u", f"made-up-{number}", 1_000, 0)
    assert busy_ms == MAX_THROTTLE_MS
    assert len(found._rates) == 10


def test_made_up_names_take_bounded_memory() -> None:
    """Client ids may have 32 KiB: what is kept of one under a default quota is its first MAX_RATE_CHARACTERS."""
    found = Quotas({Entity(None, DEFAULT): {PRODUCER: 100.0}})
    assert found.count(PRODUCER, "u", "x" * 30_000 + "1", 10_000, 0) > 0
    assert found.count(PRODUCER, "u", "x" * 30_000 + "2", 1, 0) > 0  # they share a rate
    assert sum(len(str(entity.client_id)) for _, entity in found._rates) == quotas.MAX_RATE_CHARACTERS


# ---- connections


async def set_quota(here: World, entity: Entity, **bytes_per_s: float) -> None:
    """Set quotas of an entity."""
    await here.broker.engine.wait(here.quotas.alter(entity, dict(bytes_per_s)))


async def test_a_producer_above_its_quota_is_muted_and_others_are_not(tmp_path: Path) -> None:
    """The answer that exceeds the quota tells the time, and nothing more is read meanwhile; another user is served."""
    async with world(tmp_path) as here, here.client(ALICE) as alice, here.client(BOB) as bob:
        await here.create_topic("t")
        await set_quota(here, Entity("alice"), **{PRODUCER: 100.0})
        frame = produce_frame([records(b"x" * 20_000)], topic="t")
        answer = decode_answer(0, 8, await alice.ask(frame))
        assert answer.throttle_time.total_seconds() * 1000 == MAX_THROTTLE_MS
        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
        await alice.send(produce_frame([records(b"held back")], topic="t"))
        for _ in range(20):
            assert (await bob.produce(records(b"x" * 20_000), topic="t")).error_code is ErrorCode.none
        stream = here.broker.engine.store.stream("t", 0)
        assert stream.high_watermark == 21  # Alice's second batch has not even been read


async def test_a_muted_client_is_served_again(tmp_path: Path) -> None:
    """After the told time, and not before it, the next request is read."""
    async with world(tmp_path) as here, here.client(ALICE) as alice:
        await here.create_topic("t")
        frame = produce_frame([records(b"x" * 1_000)], topic="t")
        quota = (len(frame) - 4) * 4 // 41
        await set_quota(here, Entity("alice"), **{PRODUCER: float(quota)})
        before_s = trio.current_time()
        answer = decode_answer(0, 8, await alice.ask(frame))
        throttle_s = answer.throttle_time.total_seconds()
        assert throttle_s == pytest.approx((len(frame) - 4) / quota - 10, abs=0.01)
        assert throttle_s > 0.2
        with trio.fail_after(PATIENCE_S):
            assert (await alice.produce(records(b"1"), topic="t")).error_code is ErrorCode.none
        assert trio.current_time() - before_s >= throttle_s - 0.05


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_new_connection_does_not_get_around_a_quota(tmp_path: Path, size: int) -> None:
    """What one connection has used up, another of the same user waits for before it is served: a short request before
    it is begun, a long one before it is received. Requests without data, and other users, are served meanwhile.
    """
    async with world(tmp_path) as here, here.client(BOB) as bob:
        await here.create_topic("t")
        await set_quota(here, Entity("alice"), **{PRODUCER: 100.0, CONSUMER: 100.0})
        async with here.client(ALICE) as alice:
            assert (await alice.produce(records(b"x" * 20_000), topic="t")).error_code is ErrorCode.none
        async with here.client(ALICE) as alice:
            assert (await alice.kafka(3, 4, topics=None, allow_auto_topic_creation=False)).topics[0].name == "t"
            await alice.send(produce_frame([records(b"x" * size)], topic="t"))
            for _ in range(20):
                assert (await bob.produce(records(b"x"), topic="t")).error_code is ErrorCode.none
            assert here.broker.engine.store.stream("t", 0).high_watermark == 21
            assert here.kafka.request_bytes == 0  # what waits holds up nobody else


async def test_a_new_consumer_does_not_get_around_a_quota(tmp_path: Path) -> None:
    """A fetch waits for what another connection of the same user has taken."""
    async with world(tmp_path) as here, here.client(BOB) as bob:
        await here.create_topic("t")
        await bob.produce(records(b"x" * 50_000), topic="t")
        await set_quota(here, Entity("alice"), **{CONSUMER: 1_000.0})
        async with here.client(ALICE) as alice:
            assert (await alice.fetch(topic="t")).error_code is ErrorCode.none
        async with here.client(ALICE) as alice:
            await alice.send(fetch_frame(11, topic="t"))
            with trio.move_on_after(0.3) as waited:
                await alice.stream.receive_some()
            assert waited.cancelled_caught


async def test_a_stop_does_not_wait_for_muted_clients(tmp_path: Path) -> None:
    """A connection that is muted for long ends with the stop, after its answer."""
    async with world(tmp_path) as here, here.client(ALICE) as alice:
        await here.create_topic("t")
        await set_quota(here, Entity("alice"), **{PRODUCER: 100.0})
        assert (await alice.produce(records(b"x" * 20_000), topic="t")).error_code is ErrorCode.none
        await here.kafka.drain(MAX_THROTTLE_MS / 1000 - 2)
        assert not here.kafka._connections


async def test_a_consumer_above_its_quota(tmp_path: Path) -> None:
    """The answer to a fetch is whole, in every version, and tells how long nothing will be read."""
    async with world(tmp_path) as here:
        await here.create_topic("t")
        async with here.client(BOB) as bob:
            await bob.produce(records(b"x" * 50_000), topic="t")
        await set_quota(here, Entity(DEFAULT), **{CONSUMER: 1_000.0})
        for version in range(4, 13):
            async with here.client(f"User:reader-{version}") as client:
                answer = decode_answer(1, version, await client.ask(fetch_frame(version, topic="t")))
                assert answer.throttle_time.total_seconds() * 1000 == MAX_THROTTLE_MS
                assert len(answer.responses[0].partitions[0].records) > 50_000


async def test_staged_output_counts(tmp_path: Path) -> None:
    """What a query stages counts as what a producer sends."""
    async with world(tmp_path) as here, here.client(ALICE) as alice:
        await here.create_topic("t")
        await set_quota(here, Entity("alice"), **{PRODUCER: 100.0})
        data = records(b"x" * 20_000)
        part = Part("t", 0, len(data), 1, 1)
        await alice.own(StageRequest("q", "run", 0, 0, "attempt", 0, (part,), data))
        await alice.send(kio_frame(18, 0, {}))
        with trio.move_on_after(0.3) as waited:
            await alice.stream.receive_some()
        assert waited.cancelled_caught


# ---- requests


async def alter(
    client: Client, entity: list[tuple[str, str | None]], version: int = 1, **ops: float | None
) -> ErrorCode:
    """AlterClientQuotas for one entity: its error."""
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops.items()],
    }
    (answer,) = (await client.kafka(ALTER, version, entries=[entry], validate_only=False)).entries
    error: ErrorCode = answer.error_code
    return error


async def described(
    client: Client, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> Any:
    """DescribeClientQuotas: entities with their values."""
    parts = [{"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components]
    answer = await client.kafka(DESCRIBE, version, components=parts, strict=strict)
    assert answer.error_code is ErrorCode.none
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {v.key: v.value for v in entry.values}
        for entry in answer.entries
    }


async def test_altered_and_described_in_every_version_and_after_a_restart(tmp_path: Path) -> None:
    """Quotas are set, changed and removed; filters find them; a restart keeps them."""
    user: list[tuple[str, str | None]] = [("user", "ali*ce/ü")]
    async with world(tmp_path) as here, here.client(ALICE) as client:
        for version in (0, 1):
            assert (
                await alter(client, user, version, producer_byte_rate=1024.0, consumer_byte_rate=5.0) is ErrorCode.none
            )
            assert await alter(client, user, version, consumer_byte_rate=None) is ErrorCode.none
            assert await described(client, version=version) == {tuple(user): {"producer_byte_rate": 1024.0}}
        await alter(client, [("user", "bob"), ("client-id", None)], producer_byte_rate=7.0)
        await alter(client, [("client-id", "app")], producer_byte_rate=8.0)
    async with world(tmp_path) as here, here.client(ALICE) as client:
        both = (("user", "bob"), ("client-id", None))
        assert set(await described(client)) == {tuple(user), both, (("client-id", "app"),)}
        assert set(await described(client, ("user", 2, None))) == {tuple(user), both}
        assert set(await described(client, ("user", 2, None), strict=True)) == {tuple(user)}
        assert set(await described(client, ("user", 0, "bob"))) == {both}
        assert set(await described(client, ("client-id", 1, None))) == {both}
        assert await alter(client, user, producer_byte_rate=None) is ErrorCode.none
        assert set(await described(client, ("user", 2, None))) == {both}


async def test_what_has_no_effect_is_refused(tmp_path: Path) -> None:
    """Other quotas, other entities and impossible values are INVALID_REQUEST with the reason, and change nothing."""
    async with world(tmp_path) as here, here.client(ALICE) as client:
        bad = ErrorCode.invalid_request
        assert await alter(client, [("user", "a")], request_percentage=50.0) is bad
        assert await alter(client, [("ip", "127.0.0.1")], connection_creation_rate=1.0) is bad
        assert await alter(client, [], producer_byte_rate=1.0) is bad
        assert await alter(client, [("user", "a"), ("user", "b")], producer_byte_rate=1.0) is bad
        for value in (0.5, -1.0, float("inf"), float("nan"), 1e300):
            assert await alter(client, [("user", "a")], producer_byte_rate=value) is bad
        assert await alter(client, [("user", "a")], producer_byte_rate=5.0, request_percentage=1.0) is bad
        assert await described(client) == {}
        assert not here.broker.quotas.is_active


async def test_a_damaged_ledger_is_named(tmp_path: Path) -> None:
    """An entry that is not a quota, or no ACL, stops the start with its key."""
    for key in ('quota/{"host":"x"}', "quota/[]", "acl/[2]", "acl/no"):
        root = tmp_path / str(abs(hash(key)))
        root.mkdir()
        async with world(root) as here:
            await here.broker.engine.wait(here.store.access.put({key: b"{}"}))
        with pytest.raises(ExceptionGroup) as caught:
            async with world(root):
                pass
        assert caught.group_contains(CorruptFile, match="the ledger of")
