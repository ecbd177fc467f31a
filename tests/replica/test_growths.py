"""Streams take turns to go on with more members, some at a time, and each turn has a pause behind it."""

from logstore.replica.growths import (
    GATHER_MS,
    LONGEST_PAUSE_MS,
    LONGEST_TURN_MS,
    PAUSES,
    STEP_MS,
    TOGETHER,
    Growths,
)

FIRST = [f"first {number}" for number in range(TOGETHER)]
NEXT = [f"next {number}" for number in range(TOGETHER)]


def all_have_the_turn(growths: Growths, now_ms: int) -> None:
    """As many streams as may have the turn at the same time."""
    assert [growths.take(stream, now_ms) for stream in FIRST] == [True] * TOGETHER


def test_some_streams_together() -> None:
    """First come, first served; those that are next are told so when the pause behind the last one is over, and a
    stream may give up its place.
    """
    woken: list[str] = []
    growths = Growths(woken.append)
    all_have_the_turn(growths, 100)
    assert [growths.take(stream, 100) for stream in (*NEXT, "gives up", "last")] == [False] * (TOGETHER + 2)
    assert growths.take(FIRST[0], 105)
    growths.give_back("gives up", 106)
    for stream in FIRST[1:]:
        growths.give_back(stream, 107)
    assert growths.has(FIRST[0])
    assert not growths.has(FIRST[1])
    growths.give_back(FIRST[0], 110)
    assert growths.has(FIRST[0]), "it keeps the pause"
    assert not growths.take(FIRST[0], 111)
    assert not growths.take(FIRST[1], 111), "it waits for another turn"
    growths.give_back(FIRST[0], 110 + PAUSES * 10 - 1)
    assert woken == []
    growths.give_back(FIRST[0], 110 + PAUSES * 10)
    assert woken == NEXT
    assert all(growths.take(stream, 150) for stream in NEXT)
    assert growths.waiting == 2


def test_a_turn_is_joined_at_its_begin() -> None:
    """Who comes later waits, though there is room; so does who comes behind others that wait."""
    growths = Growths()
    assert growths.take("a", 100)
    assert growths.take("b", 100 + GATHER_MS)
    assert not growths.take("c", 100 + GATHER_MS + 1)
    growths.give_back("a", 130)
    growths.give_back("b", 130)
    growths.give_back("b", 130 + PAUSES * 30)
    assert growths.take("c", 230)
    assert growths.take("d", 231)


def test_a_stream_that_ends_leaves_its_turn() -> None:
    """Who is lost with its turn, in it or in its pause, or waits for it, holds nobody up."""
    woken: list[str] = []
    growths = Growths(woken.append)
    all_have_the_turn(growths, 0)
    assert [growths.take(stream, 0) for stream in "bcd"] == [False] * 3
    growths.leave("c")
    for stream in FIRST:
        growths.leave(stream)
    assert woken == ["b", "d"]
    growths.give_back("b", 1_000)
    growths.leave("b")
    growths.give_back("d", 1_000)
    growths.leave("d")
    assert growths.take("a", 1_001)


def test_a_turn_that_took_long_has_no_long_pause() -> None:
    """The stream waited for a member that did not answer: it may change its members again soon."""
    growths = Growths()
    assert growths.take("a", 0)
    growths.give_back("a", 60_000)
    assert not growths.take("a", 60_000 + LONGEST_PAUSE_MS - 1)
    growths.give_back("a", 60_000 + LONGEST_PAUSE_MS)
    assert growths.take("a", 60_000 + LONGEST_PAUSE_MS)


def test_a_turn_has_a_longest_time() -> None:
    """Who has had it for so long waits again, and the next ones have theirs, whole and at once; alone it goes on."""
    woken: list[str] = []
    growths = Growths(woken.append)
    all_have_the_turn(growths, 0)
    assert [growths.take(stream, 0) for stream in NEXT] == [False] * TOGETHER
    for stream in FIRST[1:]:
        growths.give_back(stream, 10)
    assert growths.take(FIRST[0], LONGEST_TURN_MS - 1)
    assert not growths.take(FIRST[0], LONGEST_TURN_MS)
    assert woken == NEXT
    assert all(growths.take(stream, 2 * LONGEST_TURN_MS - 1) for stream in NEXT)
    for stream in NEXT:
        growths.give_back(stream, 2 * LONGEST_TURN_MS - 1)
    growths.give_back(NEXT[-1], 2 * LONGEST_TURN_MS + LONGEST_PAUSE_MS)
    for lasted in (2.1, 3.1, 4.2):
        assert growths.take(FIRST[0], int(lasted * LONGEST_TURN_MS))


def test_beside_producers_each_stream_has_its_time() -> None:
    """A turn of many has a longer pause than a turn of one, and without producers neither has."""
    is_busy = [True]
    for streams, busy, pause_ms in ((FIRST, True, TOGETHER * STEP_MS), (["a"], True, STEP_MS), (FIRST, False, PAUSES)):
        is_busy[0] = busy
        woken: list[str] = []
        growths = Growths(woken.append, lambda: is_busy[0])
        assert all(growths.take(stream, 0) for stream in streams)
        growths.take("waits", GATHER_MS + 1)
        for stream in streams:
            growths.give_back(stream, 1)
        growths.give_back(streams[-1], pause_ms)
        assert woken == []
        growths.give_back(streams[-1], 1 + pause_ms)
        assert woken == ["waits"]


def test_a_stream_that_wants_others_again_holds_nobody_up() -> None:
    """A second host came within its pause: those that wait are first, and then it has another turn."""
    woken: list[str] = []
    growths = Growths(woken.append)
    all_have_the_turn(growths, 0)
    assert [growths.take(stream, 0) for stream in NEXT] == [False] * TOGETHER
    for stream in FIRST:
        growths.give_back(stream, 10)
    keeper = FIRST[-1]
    assert not growths.take(keeper, 10 + PAUSES * 10 - 1)
    assert not growths.take(keeper, 10 + PAUSES * 10)
    assert woken == NEXT
    for stream in NEXT:
        growths.give_back(stream, 50)
    growths.give_back(NEXT[-1], 1_000)
    assert woken == [*NEXT, keeper]
    assert growths.take(keeper, 1_001)
    growths.give_back(keeper, 1_011)
    assert growths.take(keeper, 1_011 + PAUSES * 11)


def test_a_chunk_with_one_member_goes_before_all_others() -> None:
    """Its stream came last, and has the next turn; beside producers the turn before has no longer pause for it."""
    woken: list[str] = []
    growths = Growths(woken.append, lambda: True)
    all_have_the_turn(growths, 0)
    assert [growths.take(stream, 1) for stream in NEXT] == [False] * TOGETHER
    assert not growths.take("alone", GATHER_MS + 1, members=1)
    assert growths.waiting == TOGETHER + 1
    for stream in FIRST:
        growths.give_back(stream, GATHER_MS + 10)
    growths.give_back(FIRST[-1], (1 + PAUSES) * (GATHER_MS + 10))
    assert woken == ["alone", *NEXT[:-1]]


def test_a_stream_that_has_two_members_again_waits_with_the_others() -> None:
    """Who waited first has the next turn."""
    woken: list[str] = []
    growths = Growths(woken.append)
    all_have_the_turn(growths, 0)
    assert [growths.take(stream, 1) for stream in NEXT] == [False] * TOGETHER
    assert not growths.take("alone", GATHER_MS + 1, members=1)
    assert not growths.take("alone", GATHER_MS + 2, members=2)
    for stream in FIRST:
        growths.give_back(stream, GATHER_MS + 10)
    growths.give_back(FIRST[-1], (1 + PAUSES) * (GATHER_MS + 10))
    assert woken == NEXT
    assert growths.waiting == 1
