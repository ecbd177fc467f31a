"""Copies of chunks beside appends: pace, tokens, and hosts in virtual time."""

from collections import deque
from dataclasses import dataclass, field, replace
from random import Random

import pytest
import trio
import trio.testing

from logstore.base.copy_slots import SlotAnswer
from logstore.cluster.claims import BALANCE_AFTER_S, LONGEST_WAIT_S
from logstore.cluster.copies.copies import GAP_S, Copies
from logstore.cluster.copies.copy_flow import GO_ON_BYTES, PIECE_S, CopyFlow
from logstore.cluster.copies.copy_pace import (
    BESIDE_S,
    KEPT_CALM,
    MAX_PIECE_BYTES,
    MIN_PIECE_BYTES,
    PIECES_IN_FLIGHT,
    CopyPace,
    CopyRates,
)
from logstore.cluster.copies.copy_speed import AWAY_S, CopySpeed
from logstore.cluster.host import ClusterHost
from logstore.log.journal import JournalLimits
from logstore.replica.effects import Load, WriteEntries
from logstore.replica.messages import BatchEntry, Message, ReadEntries
from logstore.replica.registrations import Prefix
from tests.cluster.memory import LIMITS, Heard, MemoryCluster, simulated

SLOW = CopyRates(min_bytes_per_s=1 << 16, max_bytes_per_s=1 << 30)


def calm(pace: CopyPace, took_s: float = 0.002, count: int = KEPT_CALM) -> float:
    """Appends without copies; returns the time behind them."""
    for number in range(count):
        now_s = 10 + number * 0.01
        pace.append_begun(now_s)
        pace.append_durable(now_s, now_s + took_s)
    return 10 + count * 0.01


# ---- the pace


def test_without_appends_copies_flow_freely() -> None:
    """Nobody is in the way: no wait, and large pieces."""
    pace = CopyPace(SLOW)
    now_s = calm(pace) + 2 * BESIDE_S
    for _ in range(10):
        assert pace.wait_s(now_s) == 0
        pace.piece_begun()
        pace.piece_ended(MAX_PIECE_BYTES, now_s, now_s + 0.01)
        now_s += 0.01
    assert pace.next_piece_bytes(now_s) == MAX_PIECE_BYTES
    assert pace.pieces_at_once(now_s) == PIECES_IN_FLIGHT
    assert pace.rate(now_s) == SLOW.max_bytes_per_s


def test_an_unknown_disk_is_treated_with_care() -> None:
    """Beside appends of which too little is known, copies get the least that they are promised."""
    pace = CopyPace(SLOW)
    pace.append_begun(10)
    assert pace.rate(10.1) == SLOW.min_bytes_per_s


def test_an_append_counts_for_as_long_as_it_takes() -> None:
    """While a disk takes seconds for it, copies keep their pace: at full speed they would make it slower. So it does
    for BESIDE_S behind its end, and whether or not another one has ended meanwhile.
    """
    pace = CopyPace(SLOW)
    pace.append_begun(10)
    pace.append_begun(10)
    pace.append_durable(10, 10.01)
    late_s = 10 + 20 * BESIDE_S
    assert pace.rate(late_s) == SLOW.min_bytes_per_s
    assert pace.pieces_at_once(late_s) == 1
    pace.append_durable(10, late_s)
    assert pace.rate(late_s + 0.9 * BESIDE_S) == SLOW.min_bytes_per_s
    assert pace.rate(late_s + 1.1 * BESIDE_S) == SLOW.max_bytes_per_s


def test_harmed_appends_slow_copies_down_and_others_let_them_be_faster() -> None:
    """A harm halves the rate, down to the least and no further; two hundred unharmed ones double it again."""
    pace = CopyPace(SLOW)
    now_s = calm(pace)
    assert pace.rate(now_s) == SLOW.min_bytes_per_s
    pace.piece_begun()
    for doublings in (1, 2, 3):
        for _ in range(200):
            pace.append_begun(now_s)
            pace.append_durable(now_s, now_s + 0.002)
        assert pace.rate(now_s) == pytest.approx(SLOW.min_bytes_per_s * 2**doublings, rel=0.05)
    before = pace.rate(now_s)
    pace.append_begun(now_s)
    pace.append_durable(now_s, now_s + 0.02)
    assert pace.rate(now_s) <= before / 2
    for _ in range(100):
        pace.append_begun(now_s)
        pace.append_durable(now_s, now_s + 0.02)
    assert pace.rate(now_s) == SLOW.min_bytes_per_s


def test_an_append_in_a_hundred_is_harmed() -> None:
    """Whatever a piece does to the appends beside it, the rate becomes such that about one in a hundred is harmed."""
    random = Random(1)
    pace = CopyPace(SLOW)
    now_s = calm(pace)
    harmed, count, free_s, busy_until_s = 0, 20_000, now_s, now_s
    pace_ended = True
    for _ in range(count):
        now_s += 0.004 * random.random()
        if not pace_ended and now_s >= busy_until_s:
            pace.piece_ended(MIN_PIECE_BYTES, free_s, busy_until_s)
            pace_ended = True
        if pace_ended and pace.wait_s(now_s) == 0:
            pace.piece_begun()
            free_s, busy_until_s, pace_ended = now_s, now_s + 0.005, False
        pace.append_begun(now_s)
        is_late = not pace_ended
        harmed += is_late
        pace.append_durable(now_s, now_s + (0.008 if is_late else 0.002))
    assert harmed / count < 0.02
    assert harmed / count > 0.002, "copies stand still"


@pytest.mark.parametrize(
    ("write_s", "bytes_per_s", "wanted"),
    [(0.0005, 1.5e8, MIN_PIECE_BYTES), (0.004, 1.5e8, 300_000), (0.02, 1.5e8, MAX_PIECE_BYTES)],
)
def test_pieces_fit_the_disk(write_s: float, bytes_per_s: float, wanted: int) -> None:
    """Beside appends the bytes of a piece take half as long as what comes with every write, within bounds."""
    pace = CopyPace(SLOW)
    now_s = calm(pace)
    for _ in range(200):
        size = pace.next_piece_bytes(now_s)
        pace.piece_written(size, write_s + size / bytes_per_s)
    sizes = [pace.next_piece_bytes(now_s) for _ in range(8)]
    assert sorted(sizes)[-1] == pytest.approx(wanted, rel=0.02)
    assert sizes.count(MIN_PIECE_BYTES) >= 1


def test_a_piece_is_more_than_a_part_of_the_journal() -> None:
    """Of batches of up to 32 KiB: smaller pieces would be written twice, and their times would not be a chunk's."""
    assert JournalLimits().max_part_bytes + (32 << 10) <= MIN_PIECE_BYTES


# ---- tokens


def piece(number: int, *, is_urgent: bool = False) -> ReadEntries:
    """A request for a piece of one of several chunks."""
    return ReadEntries("t/0", "d", number, 0, MAX_PIECE_BYTES, for_copy=True, is_urgent=is_urgent)


def test_pieces_in_flight_are_bounded() -> None:
    """So many for a host, one from each source; the next goes when one is durable, first come, first served."""
    flow = CopyFlow(CopyPace())
    for number, source in enumerate("aabbcc"):
        flow.ask(source, piece(number))
    assert [(asked.source, asked.message.epoch) for asked in flow.due(1.0)] == [("a", 0), ("b", 2)]
    assert len(flow.due(1.0)) == 0
    flow.arrived("t/0", 0, 1.1)
    assert flow.ended("t/0", 0, 1000, 1.2)
    assert [(asked.source, asked.message.epoch) for asked in flow.due(1.2)] == [("a", 1)]
    assert not flow.ended("t/0", 0, 1000, 1.2), "another write is no piece"
    assert flow.copied_bytes == 1000
    assert flow.is_waiting("t/0", 3)


def test_pieces_from_a_host_go_on_with_a_chunk() -> None:
    """One chunk is whole before the next one begins, for so many bytes; then others have their turn, and other hosts
    all the time. Chunks that took turns had their files made and their copies end at the same time.
    """
    flow, now_s, order = CopyFlow(CopyPace()), 1.0, list[int]()
    for number in (1, 2):
        flow.ask("a", piece(number))
    flow.ask("b", piece(3))
    pieces = GO_ON_BYTES // MAX_PIECE_BYTES
    while len(order) < 2 * (pieces + 1):
        (asked,) = [each for each in flow.due(now_s) if each.source == "a"]
        number = asked.message.epoch
        order.append(number)
        flow.arrived("t/0", number, now_s)
        assert flow.ended("t/0", number, asked.message.max_bytes, now_s)
        flow.ask("a", piece(number))
        assert flow.is_in_flight("t/0", 3)
        now_s += 0.01
    assert order == [1] * pieces + [2] * pieces + [1] * 2


def test_what_a_stream_waits_for_goes_first() -> None:
    """It waits for tokens, and not for the pace."""
    pace = CopyPace(SLOW)
    flow = CopyFlow(pace)
    now_s = calm(pace)
    pace.piece_begun()
    pace.piece_ended(64 << 20, now_s, now_s)
    flow.ask("a", piece(1))
    flow.ask("b", piece(2, is_urgent=True))
    assert [asked.message.epoch for asked in flow.due(now_s)] == [2]
    assert flow.wait_s(now_s) is not None
    assert flow.is_waiting("t/0", 1)


def test_a_lost_piece_gives_its_token_back() -> None:
    """A source that sends nothing holds nobody else up for longer than a bound."""
    flow = CopyFlow(CopyPace())
    for number, source in enumerate("abc"):
        flow.ask(source, piece(number))
    assert len(flow.due(0.0)) == PIECES_IN_FLIGHT
    flow.ask("a", piece(0))  # the order is repeated
    assert len(flow.due(PIECE_S - 0.1)) == 0
    assert flow.wait_s(PIECE_S - 0.1) == pytest.approx(0.1)
    assert [asked.message.epoch for asked in flow.due(PIECE_S)] == [2]
    flow.ask("a", piece(0))
    assert [asked.message.epoch for asked in flow.due(PIECE_S)] == [0]


def test_a_lost_piece_is_lost_when_its_time_is_over_however_sums_are_rounded() -> None:
    """Behind the time to wait the token is back. It was not, by a rounding, and to wait took no time: in virtual time
    for ever.
    """
    for asked_s in (3.3000000000000016, *(number / 7 for number in range(1, 500))):
        flow = CopyFlow(CopyPace())
        flow.ask("a", piece(0))
        flow.due(asked_s)
        wait_s = flow.wait_s(asked_s)
        assert wait_s is not None
        flow.due(asked_s + wait_s)
        assert flow.is_idle or (flow.wait_s(asked_s + wait_s) or 0) > 0, asked_s


class NoLinks:
    """See Links: to no host."""

    def send(self, host: str, message: Message) -> None:
        """See Links."""
        raise AssertionError("nothing is asked for")

    def is_reachable(self, host: str) -> bool:
        """See Links."""
        return False

    def is_stranger_to(self, host: str) -> bool:
        """See Links."""
        return False

    def deals(self, host: str) -> bool | None:
        """See Links."""
        return None


async def test_a_piece_is_read_behind_an_append(autojump_clock: trio.testing.MockClock) -> None:
    """Beside a producer of one append in 5 ms, each of which takes two, all pieces begin when one has ended, and none
    later than GAP_S; without appends, and for a stream that waits, they begin at once.
    """
    copies, ended_s, begun_s = Copies(NoLinks()), list[float](), list[float]()
    operation = WriteEntries("t/0", 1, Prefix.empty(0), (BatchEntry(b"x", 1),))

    async def read(*, is_urgent: bool = False) -> float:
        load = Load(1, "t/1", 1, 0, 1 << 20, MIN_PIECE_BYTES, for_copy=True, is_urgent=is_urgent)
        asked_s = trio.current_time()
        async with copies.turn_to_read(load):
            begun_s.append(trio.current_time())
        return trio.current_time() - asked_s

    async def append() -> None:
        while True:
            began_s = trio.current_time()
            is_append = copies.write_begun(operation)
            await trio.sleep(0.002)
            copies.write_ended(operation, began_s, is_append=is_append)
            ended_s.append(trio.current_time())
            await trio.sleep(0.003)

    assert await read() == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(append)
        await trio.sleep(0.0001)
        assert await read(is_urgent=True) == 0
        begun_s.clear()
        for _ in range(100):
            assert await read() <= GAP_S
            await trio.sleep(0.0007)
        nursery.cancel_scope.cancel()
    assert set(begun_s) <= set(ended_s)
    began_s = trio.current_time()
    is_append = copies.write_begun(operation)
    assert await read() == pytest.approx(GAP_S), "an append that hangs holds no copy up"
    copies.write_ended(operation, began_s, is_append=is_append)


# ---- hosts


async def filled(cluster: MemoryCluster, streams: list[str], batches: int) -> None:
    """Streams with many sealed chunks."""
    for _ in range(batches):
        for stream in streams:
            await cluster.append(stream, b"x" * 32_768)


@dataclass
class Timed(Heard):
    """Notes how long each append took until it was acknowledged."""

    begun_s: deque[float] = field(default_factory=deque)
    took_s: list[float] = field(default_factory=list)

    def acked(self, high_watermark: int) -> None:
        """See StreamObserver: a batch has one record."""
        while self.high_watermark < high_watermark:
            self.high_watermark += 1
            self.took_s.append(trio.current_time() - self.begun_s.popleft())


async def produce(host: ClusterHost, stream: str, timed: Timed) -> None:
    """Appends at a steady rate, until cancelled."""
    while True:
        timed.begun_s.append(trio.current_time())
        host.append(stream, b"y" * 1000, 1)
        await trio.sleep(0.01)


def p99(took_s: list[float]) -> float:
    """The 99th percentile."""
    return sorted(took_s)[len(took_s) * 99 // 100]


async def is_whole(cluster: MemoryCluster, streams: list[str], name: str) -> bool:
    """Whether a host is a member of all sealed chunks."""
    host = cluster.hosts[name]
    registrations = [await host.host.read_registration(stream) for stream in streams]
    chunks = [chunk for each in registrations for chunk in each.chunks if not chunk.is_open]
    return all(host.identity.member in chunk.members for chunk in chunks)


def is_member(cluster: MemoryCluster, stream: str, name: str) -> bool:
    """Whether a host is a member of a stream's open chunk."""
    head = cluster.hosts[name].host.head(stream)
    chunk = None if head is None else head.head.open_chunk
    return chunk is not None and cluster.hosts[name].identity.member in chunk.members


def test_a_producer_does_not_feel_copies() -> None:
    """A host comes back with an empty disk. Of the appends beside its copies about one in a hundred, and never one in
    fifty, takes longer than 1.2 times the p99 without them; at the end no copy is missing.
    """

    async def test(cluster: MemoryCluster) -> None:
        cluster.bytes_per_s, cluster.write_s, cluster.copy_rates = 100e6, 0.004, SLOW
        for running in cluster.hosts.values():
            running.files.bytes_per_s, running.files.write_s = cluster.bytes_per_s, cluster.write_s
        streams = await cluster.create_topic(partitions=4)
        (steady,) = await cluster.create_topic("steady")
        await filled(cluster, streams, 10)
        owner = (await cluster.owner(steady)).host.name
        lost = next(host for host in "abc" if host != owner)
        timed = Timed()
        cluster.hosts[owner].host.observe(steady, timed)
        took_s = timed.took_s
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce, cluster.hosts[owner].host, steady, timed)
            await trio.sleep(5)
            before, beside = p99(took_s), len(took_s)
            await cluster.kill(lost)
            cluster.wipe(lost)
            await trio.sleep(1)
            await cluster.start(lost)
            # That each stream takes the host as a member again is no copy.
            await cluster.until(lambda: all(is_member(cluster, stream, lost) for stream in (steady, *streams)))
            beside = len(took_s)
            assert not await is_whole(cluster, streams, lost)
            while not await is_whole(cluster, streams, lost):  # noqa: ASYNC110  the metadata store is asked
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        late = [took for took in took_s[beside:] if took > 1.2 * before]
        assert len(late) < 0.02 * len(took_s[beside:])

    limits = replace(LIMITS, chunk_bytes=200_000)
    simulated(test, "a", "b", "c", limits=limits)


def has_last_records(cluster: MemoryCluster, stream: str, name: str) -> bool:
    """Whether a host has what lies in front of a stream's next record."""
    head = cluster.hosts[name].host.head(stream)
    assert head is not None
    assert head.head.open_chunk is not None
    end = head.head.open_chunk.base_offset
    found = cluster.hosts[name].files.disk.found().chunks
    return any(each == stream and chunk.durable.next_offset == end for (each, _), chunk in found.items())


def test_a_host_that_comes_back_empty_takes_streams_over_behind_their_copies() -> None:
    """What producers have sent is read from the last chunk at a takeover. A host that claimed its streams after ten
    seconds read what it lacked from others, at no pace, and had it copied as well.
    """

    async def test(cluster: MemoryCluster) -> None:
        cluster.copy_rates = CopyRates(min_bytes_per_s=1 << 16, max_bytes_per_s=1 << 16)
        for name in "abc":
            await cluster.start(name)
        streams = await cluster.create_topic(partitions=12)
        (steady,) = await cluster.create_topic("steady")
        await filled(cluster, streams, 10)
        owners = {stream: (await cluster.owner(stream)).host.name for stream in (*streams, steady)}
        lost = next(owners[stream] for stream in streams if owners[stream] != owners[steady])
        mine = [stream for stream in streams if owners[stream] == lost]
        timed, taken_s = Timed(), dict[str, float]()
        cluster.hosts[owners[steady]].host.observe(steady, timed)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce, cluster.hosts[owners[steady]].host, steady, timed)
            await cluster.kill(lost)
            cluster.wipe(lost)
            for stream in mine:
                await cluster.owner(stream)
            back = await cluster.start(lost)
            began_s = trio.current_time()
            while len(taken_s) < len(mine):
                await cluster.wait(began_s + LONGEST_WAIT_S, f"{len(mine)} streams are taken over, {taken_s} were")
                for stream in streams:  # as many as it had, whichever they are
                    if stream not in taken_s and back.host.owns(stream):
                        assert has_last_records(cluster, stream, lost), stream
                        taken_s[stream] = trio.current_time() - began_s
            nursery.cancel_scope.cancel()
        assert max(taken_s.values()) > 2 * BALANCE_AFTER_S, "copies took longer than that"

    simulated(test, limits=replace(LIMITS, chunk_bytes=64 << 20))


# ---- slots


def copied(flow: CopyFlow, source: str, now_s: float, seconds: float) -> int:
    """How much comes from a host within some seconds, whose pieces arrive and are durable after a millisecond."""
    end_s, done = now_s + seconds, 0
    while now_s < end_s:
        flow.ask(source, piece(ord(source)))
        for asked in flow.due(now_s):
            size = asked.message.max_bytes
            flow.arrived("t/0", asked.message.epoch, now_s)
            flow.ended("t/0", asked.message.epoch, size, now_s + 0.001)
            done += size
        now_s += 0.001
    return done


def test_without_a_slot_copies_have_the_least_rate() -> None:
    """With appends or without, from all hosts without a slot together; one with a slot is as fast as before."""
    pace = CopyPace(CopyRates(1 << 20, 1 << 30))
    flow = CopyFlow(pace)
    assert copied(flow, "a", 0.0, 1.0) > 500 << 20
    flow.speed.begin()
    slow = copied(flow, "a", 2.0, 8.0)
    assert 7 << 20 <= slow <= 10 << 20
    assert copied(flow, "b", 10.0, 4.0) <= 6 << 20
    flow.speed.answered(SlotAnswer({"b": 1_000}, ()), "b", 20.0)
    assert copied(flow, "b", 20.0, 0.5) > 250 << 20
    assert copied(flow, "a", 20.0, 0.5) <= 2 << 20
    assert copied(flow, "b", 21.0, 1.0) <= 3 << 20, "the slot has ended"
    flow.speed.answered(SlotAnswer({}, ("a",)), "a", 30.0)
    assert copied(flow, "a", 30.0, 0.5) > 250 << 20, "the coordinator does not plan it"


def test_a_piece_that_a_stream_waits_for_needs_no_slot() -> None:
    """Its delay is an outage."""
    flow = CopyFlow(CopyPace())
    flow.speed.begin()
    flow.ask("a", piece(1))
    assert len(flow.due(0.0)) == 1
    flow.arrived("t/0", 1, 0.0)
    flow.ended("t/0", 1, 64 << 20, 0.0)
    flow.ask("a", piece(2))
    flow.ask("b", piece(3, is_urgent=True))
    assert [asked.message.epoch for asked in flow.due(0.1)] == [3]
    wait_s = flow.wait_s(0.1)
    assert wait_s is not None
    assert 0 < wait_s <= PIECE_S


def test_what_is_held_back_does_not_grow_beyond_what_has_flowed() -> None:
    """Beside appends that nothing harms the rate grows to twice the least, and with a slot as ever."""
    pace = CopyPace(CopyRates(1 << 20, 1 << 30))
    now_s = calm(pace)
    for _ in range(2_000):
        now_s += 0.005
        pace.piece_begun()
        pace.append_begun(now_s)
        pace.append_durable(now_s, now_s + 0.001)
        pace.piece_ended(1 << 10, now_s, now_s, is_fast=False)
    assert pace.rate(now_s) == 2 << 20
    assert pace.is_held_back(now_s)
    for _ in range(500):
        now_s += 0.005
        pace.piece_begun()
        pace.append_begun(now_s)
        pace.append_durable(now_s, now_s + 0.001)
        pace.piece_ended(1 << 10, now_s, now_s)
    assert pace.rate(now_s) > 4 << 20


def test_when_nobody_answers_copies_are_fast_after_a_while() -> None:
    """Each leader that gives no answer has AWAY_S, once; where nobody gives slots copies are fast at once."""
    speed = CopySpeed()
    speed.begin()
    for at_s in (0.0, 4.0, 8.0, 9.9):
        speed.unanswered(7, at_s)
        assert not speed.may_be_fast("a", at_s)
    speed.unanswered(7, AWAY_S)
    assert speed.may_be_fast("a", AWAY_S)
    speed.unanswered(7, 100.0)
    assert speed.may_be_fast("a", 100.0), "it is away as before"
    speed.unanswered(8, 100.5)
    assert speed.may_be_fast("a", 100.5) is False, "another one has led since"
    speed.nobody_gives()
    assert speed.may_be_fast("a", 101.0)
