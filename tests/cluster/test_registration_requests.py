"""Requests for registrations: bounded, not made twice at a time, and not given up where nobody asks again."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
import trio

from logstore.base.metadata import schema
from logstore.base.metadata.errors import MetadataRefused
from logstore.base.metadata.interface import Committed, Condition, ConditionFailed, Put, Transaction
from logstore.cluster.streams.registration_requests import (
    GATHERED,
    WORKERS,
    CreateRegistration,
    FirstRegistration,
    RegistrationRequests,
)
from logstore.replica.register import ReadRegistration, RegistrationRead, SwapAnswer, SwapRegistration
from logstore.replica.registrations import HEAD, OwnerId, StreamRegistration, encode_registration
from logstore.replica.stored_registrations import StoredRegistrations, head_key
from logstore.testing.metadata_contract import changing, committed
from logstore.testing.reports import RecordedReports
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata, SimulatedMetadataStore
from tests.support.virtual_time import run_virtual

FIRST = StreamRegistration(3, 2)
TOPIC = schema.StoredTopic(topic_id="t", partitions=100, replicas=3, settings={})


class Asked:
    """Requests on a simulated store, and their answers."""

    def __init__(self, service: SimulatedMetadata) -> None:
        self.service = service
        self.store: SimulatedMetadataStore = service.store("a")
        self.answers: list[RegistrationRead | SwapAnswer] = []
        self.reports = RecordedReports()
        self.requests = RegistrationRequests(StoredRegistrations(self.store), self.answers.append, self.reports)

    async def idle(self) -> None:
        """Wait until nothing is under way."""
        while not self.requests.is_idle:  # noqa: ASYNC110  time is virtual
            await trio.sleep(0.01)


def with_requests(test: Callable[[Asked], Awaitable[None]], **faults: float) -> None:
    """Run a test in virtual time."""

    async def main() -> None:
        service = SimulatedMetadata(Random(0), MetadataFaults(max_delay_s=0.01, **faults))
        async with trio.open_nursery() as nursery:
            await nursery.start(service.serve)
            asked = Asked(service)
            nursery.start_soon(asked.requests.run)
            await test(asked)
            nursery.cancel_scope.cancel()

    run_virtual(main)


def test_what_is_repeated_is_made_once() -> None:
    """A swap that its owner repeats while it is under way is one transaction; reads that wait are one read."""

    async def test(asked: Asked) -> None:
        swap = SwapRegistration("t/0", 0, FIRST)
        for _ in range(100):
            asked.requests.ask(swap)
            asked.requests.ask(ReadRegistration("t/0"))
            await trio.sleep(0.0001)
        await asked.idle()
        assert asked.store.statistics.transactions == 1
        assert [answer.is_done for answer in asked.answers if isinstance(answer, SwapAnswer)] == [True]
        assert len(asked.answers) < 20

    with_requests(test)


def test_a_change_that_is_heard_of_twice_is_read_once() -> None:
    """The owner says that a registration has changed, and so does the store, while it is read: one call in all. What
    has changed again meanwhile is read again.
    """

    async def test(asked: Asked) -> None:
        other = StoredRegistrations(asked.service.store("b"))
        answer = await other.swap(SwapRegistration("t/0", 0, FIRST))
        for newer, calls in ((0, 1), (1, 2)):
            before = asked.store.statistics.calls
            asked.requests.ask(ReadRegistration("t/0", answer.revision))
            await trio.sleep(0.0001)
            asked.requests.ask(ReadRegistration("t/0", answer.revision + newer))
            await asked.idle()
            assert asked.store.statistics.calls - before == calls
            claimed = FIRST.claimed(OwnerId("b", "1"))
            answer = await other.swap(SwapRegistration("t/0", answer.revision, claimed))

    with_requests(test)


def test_another_swap_waits_for_the_first() -> None:
    """Each is made, in their order."""

    async def test(asked: Asked) -> None:
        asked.requests.ask(SwapRegistration("t/0", 0, FIRST))
        await trio.sleep(0.0001)
        asked.requests.ask(SwapRegistration("t/0", 0, FIRST.claimed(OwnerId("a", "1"))))
        await asked.idle()
        done = [answer.is_done for answer in asked.answers if isinstance(answer, SwapAnswer)]
        assert done == [True, False]

    with_requests(test)


def test_at_most_some_are_under_way() -> None:
    """A thousand reads are made a few at a time, and all of them answered."""

    async def test(asked: Asked) -> None:
        most = now = 0
        page = asked.store.page

        async def counted(prefix: str, **arguments: Any) -> object:
            nonlocal most, now
            now += 1
            most = max(most, now)
            try:
                return await page(prefix, **arguments)
            finally:
                now -= 1

        asked.store.page = counted  # type: ignore[method-assign, assignment]
        for number in range(1000):
            asked.requests.ask(ReadRegistration(f"t/{number}"))
        await asked.idle()
        assert len(asked.answers) == 1000
        assert most == WORKERS

    with_requests(test)


def test_reads_outlast_an_outage_and_swaps_do_not() -> None:
    """A replica's read is made when the store is back; a swap is its owner's to repeat."""

    async def test(asked: Asked) -> None:
        asked.service.stop()
        asked.requests.ask(ReadRegistration("t/0"))
        asked.requests.ask(SwapRegistration("t/1", 0, FIRST))
        await trio.sleep(60)
        assert asked.answers == []
        asked.service.start()
        await asked.idle()
        assert [type(answer) for answer in asked.answers] == [RegistrationRead]

    with_requests(test)


def test_a_damaged_registration_is_reported_and_read_again() -> None:
    """An operator puts it right, and the read is answered; others go on meanwhile."""

    async def test(asked: Asked) -> None:
        await committed(asked.store, changing(Put(head_key("t/0"), b"?")))
        asked.requests.ask(ReadRegistration("t/0"))
        asked.requests.ask(ReadRegistration("t/1"))
        await trio.sleep(20)
        assert [answer.stream for answer in asked.answers] == ["t/1"]
        assert 5 <= asked.reports.names().count("metadata_unusable") <= 11
        await asked.store.commit(changing(Put(head_key("t/0"), head_of(FIRST))))
        await asked.idle()
        assert asked.answers[-1].registration == FIRST

    with_requests(test)


def head_of(registration: StreamRegistration) -> bytes:
    """The bytes of a head."""
    return encode_registration(registration)[HEAD]


def test_a_first_registration_needs_its_topic() -> None:
    """It is written once; if the topic changes meanwhile, for the changed topic; if it is gone, not at all."""

    async def test(asked: Asked) -> None:
        revision = await committed(asked.store, schema.create_topic("n", TOPIC))
        seen: list[FirstRegistration | None] = [
            FirstRegistration(FIRST, Condition(schema.topic_key("n"), revision - 1)),
            FirstRegistration(FIRST, Condition(schema.topic_key("n"), revision)),
        ]
        asked.requests.ask(CreateRegistration("t/0", lambda: seen.pop(0)))
        await asked.idle()
        assert asked.answers[-1].registration == FIRST
        asked.requests.ask(
            CreateRegistration("t/0", lambda: FirstRegistration(FIRST, Condition(schema.topic_key("n"), revision)))
        )
        await asked.idle()
        assert asked.answers[-1].registration == FIRST, "another host's is as good"
        gone: list[FirstRegistration | None] = [FirstRegistration(FIRST, Condition(schema.topic_key("m"), 1)), None]
        asked.requests.ask(CreateRegistration("t/1", lambda: gone.pop(0)))
        await asked.idle()
        assert (await asked.store.get(head_key("t/1"))).entry is None

    with_requests(test)


MANY = [f"t/{number}" for number in range(2 * GATHERED + 4)]


async def begin(asked: Asked) -> list[SwapRegistration]:
    """Many streams, whose registrations this host knows; returns its claims of them."""
    claims = []
    for stream in MANY:
        seen = await asked.requests.registrations.swap(SwapRegistration(stream, 0, FIRST))
        claims.append(SwapRegistration(stream, seen.revision, FIRST.claimed(OwnerId("a", "1"))))
    return claims


def test_swaps_that_wait_together_are_made_together() -> None:
    """Those of many streams are a few transactions, and so are the owners' looks at whether the store answers."""

    async def test(asked: Asked) -> None:
        claims = await begin(asked)
        for requests in (claims, [ReadRegistration(stream) for stream in MANY]):
            calls = asked.store.statistics.calls
            asked.answers.clear()
            for request in requests:
                asked.requests.ask(request)
            await asked.idle()
            assert asked.store.statistics.calls - calls == 3
            assert sorted(answer.stream for answer in asked.answers) == sorted(MANY)
            assert all(answer.registration == claims[0].registration for answer in asked.answers)

    with_requests(test)


def test_a_stream_that_another_host_has_changed_fails_alone() -> None:
    """Its swap is not done, as its host hears; those that were sent with it are."""

    async def test(asked: Asked) -> None:
        claims = await begin(asked)
        other = StoredRegistrations(asked.service.store("b"))
        lost = claims[3]
        winner = FIRST.claimed(OwnerId("b", "1"))
        await other.swap(SwapRegistration(lost.stream, lost.expected_revision, winner))
        asked.answers.clear()
        for claim in claims:
            asked.requests.ask(claim)
        await asked.idle()
        done = {each.stream: each.is_done for each in asked.answers if isinstance(each, SwapAnswer)}
        assert done == {stream: stream != lost.stream for stream in MANY}
        assert [each.registration for each in asked.answers if each.stream == lost.stream] == [winner]

    with_requests(test)


def test_changes_that_are_heard_of_together_are_read_together() -> None:
    """What one transaction of another host has changed is read by one call; what is damaged by then is reported, and
    keeps no other stream from being read.
    """

    async def test(asked: Asked) -> None:
        claims = await begin(asked)
        other = StoredRegistrations(asked.service.store("b"))
        for claim in claims[:GATHERED]:
            await other.read(ReadRegistration(claim.stream))
        made = await other.swap_together(claims[:GATHERED])
        calls = asked.store.statistics.calls
        asked.answers.clear()
        for answer in made:
            asked.requests.ask(ReadRegistration(answer.stream, answer.revision))
        await asked.idle()
        assert asked.store.statistics.calls - calls == 1
        found = {(each.stream, each.revision, each.registration) for each in asked.answers}
        assert found == {(each.stream, each.revision, each.registration) for each in made}
        revision = await committed(asked.store, changing(Put(head_key(MANY[0]), b"?"), Put(head_key(MANY[1]), b"?")))
        asked.answers.clear()
        for stream in MANY[:4]:
            asked.requests.ask(ReadRegistration(stream, revision))
        await trio.sleep(1)
        assert sorted(each.stream for each in asked.answers) == MANY[2:4]
        assert asked.reports.names() == ["metadata_unusable"] * 2

    with_requests(test)


def test_what_cannot_be_made_together_is_made_alone() -> None:
    """The store refuses calls about several streams, as one that is full or asks for rights may: each stream is asked
    for alone, and hears of what becomes of it.
    """

    async def test(asked: Asked) -> None:
        claims = await begin(asked)
        commit = asked.store.commit

        async def refusing(transaction: Transaction) -> Committed | ConditionFailed:
            if len(transaction.conditions) > 1:
                raise MetadataRefused("no")
            return await commit(transaction)

        asked.store.commit = refusing  # type: ignore[method-assign]
        for requests in (claims, [ReadRegistration(stream) for stream in MANY]):
            asked.answers.clear()
            for request in requests:
                asked.requests.ask(request)
            await asked.idle()
            assert sorted(answer.stream for answer in asked.answers) == sorted(MANY)
        assert asked.reports.names() == []

    with_requests(test)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_made_together_outlasts_lost_messages(seed: int) -> None:
    """Owners that ask again and again have their swaps made, each once, whatever is lost and whoever else asks."""

    async def test(asked: Asked) -> None:
        asked.service.random.seed(seed)
        claims = await begin(asked)
        asked.service.faults.lost_requests = asked.service.faults.lost_answers = 0.3
        waiting = {claim.stream: claim for claim in claims}
        while waiting:
            for claim in waiting.values():
                asked.requests.ask(claim)
            await trio.sleep(0.05)
            for answer in asked.answers:
                if isinstance(answer, SwapAnswer):
                    assert answer.is_done
                    waiting.pop(answer.stream, None)
            asked.answers.clear()
        asked.service.faults.lost_requests = asked.service.faults.lost_answers = 0.0
        await asked.idle()
        for claim in claims:
            read = await asked.requests.registrations.read(ReadRegistration(claim.stream))
            assert read.registration == claim.registration

    with_requests(test)
