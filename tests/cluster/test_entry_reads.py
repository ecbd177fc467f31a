"""Reads at other hosts: one member after the other, and no answer to another question."""

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from logstore.cluster.interfaces import Answering
from logstore.cluster.streams.entry_reads import MAX_READS, MEMBER_WAIT_S, READ_ROUNDS, SILENT_S, EntryReads
from logstore.errors import ChunkUnreachable
from logstore.replica.messages import BatchEntry, EntriesRead, Message, ReadEntries, Reason, Refused
from logstore.replica.registrations import ChunkRegistration, Member, Prefix
from tests.support.virtual_time import run_virtual

A, B, C = (Member(host, f"disk-{host}") for host in "abc")
OPEN = ChunkRegistration(3, 100, (A, B, C))
ELSEWHERE = ChunkRegistration(3, 100, (B,), Prefix(20, 102, 0), (C,))
SEALED = ChunkRegistration(3, 100, (A, B), Prefix(20, 102, 0), (C,))


class Peers:
    """Links whose other ends do what a test says: a member's `answers` is called with each question."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ReadEntries]] = []
        self.answers: dict[str, Callable[[ReadEntries], Message | None]] = {}
        self.is_ambiguous = False
        self.gone = set[str]()
        self.reads = EntryReads("a", self, self.may_be_a_copy)

    def may_be_a_copy(self, stream: str, epoch: int) -> bool:
        """What the test says."""
        return self.is_ambiguous

    def send(self, host: str, message: Message) -> None:
        """See Links."""
        assert isinstance(message, ReadEntries)
        self.asked.append((host, message))
        answers = self.answers.get(host)
        answer = answers(message) if answers is not None else None
        if isinstance(answer, EntriesRead | Refused):
            self.reads.received(answer)

    def is_reachable(self, host: str) -> bool:
        """See Links."""
        return host not in self.gone

    def is_stranger_to(self, host: str) -> bool:
        """See Links."""
        return False

    def deals(self, host: str) -> bool:
        """See Links."""
        return True

    def hosts(self) -> list[str]:
        """Who was asked."""
        return [host for host, _ in self.asked]


def entries(member: Member, at: int, *data: bytes, limit: int = 200) -> EntriesRead:
    """An answer, of entries of one record each."""
    return EntriesRead("t/0", 3, member, Prefix(0, at, 0), tuple(BatchEntry(each, 1) for each in data), limit)


def refused(member: Member, reason: Reason) -> Refused:
    """A refusal."""
    return Refused("t/0", 3, member, reason)


def simulated(test: Callable[[Peers], Awaitable[None]]) -> None:
    """Run a test in virtual time."""

    async def main() -> None:
        await test(Peers())

    run_virtual(main)


def test_one_member_after_the_other() -> None:
    """A refusal leads to the next member at once, silence after a moment; nobody's answer is an error with names."""

    async def test(peers: Peers) -> None:
        peers.answers = {
            "a": lambda asked: refused(A, Reason.DAMAGED),
            "c": lambda asked: entries(C, asked.offset, b"x"),
        }
        begin_s = trio.current_time()
        assert (await peers.reads.read("t/0", OPEN, 100, 1000)).entries == (BatchEntry(b"x", 1),)
        assert peers.hosts() == ["a", "b", "c"]
        assert 0 < trio.current_time() - begin_s < 1
        peers.answers.clear()
        with pytest.raises(ChunkUnreachable, match=r"offset 100 on has answered \(a, b, c\)"):
            await peers.reads.read("t/0", OPEN, 100, 1000)

    simulated(test)


def test_an_answer_to_another_question_does_not_count() -> None:
    """Of another member, another chunk, from behind the offset, or up to the offset only."""

    async def test(peers: Peers) -> None:
        wrong = [
            entries(B, 105, b"b"),
            entries(A, 106, b"later"),
            entries(A, 100, *[b"earlier"] * 5),
            EntriesRead("t/1", 3, A, Prefix(0, 105, 0), (BatchEntry(b"stream", 1),), 200),
            EntriesRead("t/0", 4, A, Prefix(0, 105, 0), (BatchEntry(b"epoch", 1),), 200),
        ]
        right = entries(A, 104, b"in front", b"right")

        def answer(asked: ReadEntries) -> Message:
            for message in wrong:
                peers.reads.received(message)
            return right

        peers.answers = {"a": answer}
        assert await peers.reads.read("t/0", OPEN, 105, 1000) == right

    simulated(test)


def test_a_sealed_chunk_ends_at_its_end() -> None:
    """What a member has behind the end, because it was not cut yet, is not shown; candidates are asked too."""

    async def test(peers: Peers) -> None:
        peers.answers = {"c": lambda asked: entries(C, 100, b"0", b"1", b"cut off")}
        found = await peers.reads.read("t/0", SEALED, 100, 1000)
        assert [entry.data for entry in found.entries] == [b"0", b"1"]
        assert found.limit_offset == 102
        assert peers.hosts() == ["a", "b", "c"]

    simulated(test)


def test_a_member_that_may_not_show_a_sealed_chunk_yet() -> None:
    """Another one is asked; if none may, the answer is that there is nothing yet."""

    async def test(peers: Peers) -> None:
        peers.answers = {
            "a": lambda asked: entries(A, 100, limit=100),
            "b": lambda asked: entries(B, 100, b"0", b"1"),
        }
        assert len((await peers.reads.read("t/0", SEALED, 100, 1000)).entries) == 2
        peers.answers["b"] = lambda asked: refused(B, Reason.ABSENT)
        nothing = await peers.reads.read("t/0", SEALED, 100, 1000)
        assert (nothing.entries, nothing.limit_offset) == ((), 100)

    simulated(test)


def test_a_member_that_does_not_know_what_is_acknowledged() -> None:
    """It shows nothing of an open chunk, after a start for example; the next member is asked."""

    async def test(peers: Peers) -> None:
        peers.answers = {
            "a": lambda asked: entries(A, 100, limit=100),
            "b": lambda asked: refused(B, Reason.ABSENT),
            "c": lambda asked: entries(C, 100, b"0"),
        }
        assert len((await peers.reads.read("t/0", OPEN, 100, 1000)).entries) == 1
        assert peers.hosts() == ["a", "b", "c"]

    simulated(test)


def test_an_open_chunk_that_nobody_has() -> None:
    """Nothing was written: the answer is empty, and no error."""

    async def test(peers: Peers) -> None:
        peers.answers = {"a": lambda asked: refused(A, Reason.ABSENT)}
        nothing = await peers.reads.read("t/0", OPEN, 100, 1000)
        assert (nothing.entries, nothing.at.next_offset, nothing.limit_offset) == ((), 100, 100)

    simulated(test)


def test_entries_of_a_copy_answer_nobody() -> None:
    """They may lie behind the end of a chunk that the reader takes for open."""

    async def test(peers: Peers) -> None:
        peers.answers = {"a": lambda asked: entries(A, 100, b"0")}
        peers.is_ambiguous = True
        with pytest.raises(ChunkUnreachable):
            await peers.reads.read("t/0", OPEN, 100, 1000)
        assert (await peers.reads.read("t/0", SEALED, 100, 1000)).entries

    simulated(test)


def test_reads_are_bounded() -> None:
    """At most MAX_READS are under way; the others wait and come to their turn."""

    async def test(peers: Peers) -> None:
        done: list[int] = []

        async def read(number: int) -> None:
            await peers.reads.read("t/0", OPEN, 100 + number, 1000)
            done.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(MAX_READS * 3):
                nursery.start_soon(read, number)
            await trio.testing.wait_all_tasks_blocked()
            assert len(peers.asked) == MAX_READS
            peers.answers = {"b": lambda asked: entries(B, asked.offset, b"x")}
        assert sorted(done) == list(range(MAX_READS * 3))

    simulated(test)


def test_hosts_that_cannot_be_reached_are_not_waited_for() -> None:
    """The read lasts as long as a link is down for a moment; what another member says is there at once."""

    async def test(peers: Peers) -> None:
        peers.gone = {"b", "c"}
        begin_s = trio.current_time()
        with pytest.raises(ChunkUnreachable):
            await peers.reads.read("t/0", ELSEWHERE, 100, 1000)
        assert trio.current_time() - begin_s == pytest.approx(READ_ROUNDS * MEMBER_WAIT_S)
        assert not peers.asked
        assert peers.reads.answering(ELSEWHERE) is Answering.NOBODY
        begin_s, peers.gone = trio.current_time(), {"c"}
        peers.answers = {"b": lambda asked: entries(B, 100, limit=100)}
        assert not (await peers.reads.read("t/0", ELSEWHERE, 100, 1000)).entries
        assert trio.current_time() == begin_s

    simulated(test)


def test_a_silent_member_is_waited_for_once() -> None:
    """Whatever the chunk: it is asked behind all others then, with other silent ones, and not if one has answered. It
    counts as the others again when it answers anything, and after a while.
    """

    async def test(peers: Peers) -> None:
        peers.answers = {"c": lambda asked: entries(C, asked.offset, b"x")}
        await peers.reads.read("t/0", OPEN, 100, 1000)
        assert peers.hosts() == ["a", "b", "c"]
        begin_s = trio.current_time()
        await peers.reads.read("t/0", OPEN, 101, 1000)
        assert (peers.hosts()[3:], trio.current_time()) == (["c"], begin_s)
        assert peers.reads.answering(OPEN) is Answering.AT_ONCE
        peers.gone = {"c"}
        assert peers.reads.answering(OPEN) is Answering.LATE
        peers.reads.received(refused(B, Reason.DAMAGED))
        assert peers.reads.answering(OPEN) is Answering.AT_ONCE
        peers.asked.clear()
        with pytest.raises(ChunkUnreachable):
            await peers.reads.read("t/0", OPEN, 102, 1000)
        assert peers.hosts()[:3] == ["b", "a", "a"]
        await trio.sleep(SILENT_S)
        assert peers.reads.answering(OPEN) is Answering.AT_ONCE

    simulated(test)


def test_a_silent_member_is_asked_for_what_others_may_not_show_of_a_sealed_chunk() -> None:
    """It has let somebody wait, and has all of the chunk; one that was started anew, or copies it, shows nothing of it
    yet. That is no answer to a reader, whose takeover or look-up would take it for the end of the chunk.
    """

    async def test(peers: Peers) -> None:
        with pytest.raises(ChunkUnreachable):
            await peers.reads.read("t/0", ELSEWHERE, 100, 1000)
        peers.answers = {"c": lambda asked: entries(C, 100, limit=100)}
        peers.reads.received(refused(C, Reason.ABSENT))
        assert peers.reads.answering(ELSEWHERE) is Answering.AT_ONCE
        peers.answers["b"] = lambda asked: entries(B, asked.offset, b"0", b"1")
        assert len((await peers.reads.read("t/0", ELSEWHERE, 100, 1000)).entries) == 2

    simulated(test)


def test_an_answer_over_a_slow_link_counts_when_it_comes() -> None:
    """Though the next member is asked meanwhile; and less is asked for in the next round, which may come earlier."""

    async def test(peers: Peers) -> None:
        async def answer_late() -> None:
            await trio.sleep(1.5 * MEMBER_WAIT_S)
            peers.reads.received(entries(A, 100, b"late"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_late)
            found = await peers.reads.read("t/0", OPEN, 100, 1000)
        assert (found.entries, peers.hosts()) == ((BatchEntry(b"late", 1),), ["a", "b"])
        with pytest.raises(ChunkUnreachable):
            await peers.reads.read("t/0", SEALED, 101, 1000)
        assert {asked.max_bytes for _, asked in peers.asked[2:]} == {1000, 125, 15}

    simulated(test)


def test_thousands_of_streams_that_ask_how_far_they_may_be_read_hold_up_nobody() -> None:
    """On the only host that is left, which knows of nothing: a host that is gone is not waited for, one that is silent
    is once, and other reads have their places meanwhile.
    """

    async def test(peers: Peers) -> None:
        peers.gone = {"c"}
        peers.answers = {"a": lambda asked: entries(A, 100, limit=100)}
        told: list[int | None] = []

        async def ask() -> None:
            told.append(await peers.reads.acknowledged_end("t/0", SEALED, 100))

        begin_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(10_000):
                nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            peers.answers["a"] = lambda asked: entries(A, 100, b"x" if asked.max_bytes > 1 else b"", limit=100)
            assert (await peers.reads.read("t/0", OPEN, 100, 1000)).entries
            assert trio.current_time() == begin_s
        assert told == [100] * 10_000
        assert trio.current_time() - begin_s < 2 * MEMBER_WAIT_S
        peers.gone = {"a", "b", "c"}
        assert await peers.reads.acknowledged_end("t/0", ELSEWHERE, 100) is None

    simulated(test)


def test_thousands_of_reads_that_nobody_answers_hold_up_no_other_one() -> None:
    """Of chunks on a host that has just stopped: as many as are under way have waited, and the read of another host's
    chunk comes then, not behind all of them. A host that was gone for a whole read is not waited for in the next ones.
    """

    async def test(peers: Peers) -> None:
        failed = 0

        async def read() -> None:
            nonlocal failed
            with pytest.raises(ChunkUnreachable):
                await peers.reads.read("t/0", ELSEWHERE, 100, 1000)
            failed += 1

        peers.answers = {"a": lambda asked: entries(A, asked.offset, b"x")}
        begin_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(20 * MAX_READS):
                nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            assert (await peers.reads.read("t/0", OPEN, 100, 1000)).entries
            assert trio.current_time() - begin_s <= 2 * READ_ROUNDS * MEMBER_WAIT_S
            assert failed <= 2 * MAX_READS
            nursery.cancel_scope.cancel()
        peers.gone = {"b", "c"}
        await trio.sleep(SILENT_S)
        begin_s = trio.current_time()
        for _ in range(1_000):
            await read()
        assert trio.current_time() - begin_s == pytest.approx(READ_ROUNDS * MEMBER_WAIT_S)

    simulated(test)
