"""Streams take turns to go on with more members, and each turn has a pause behind it."""

from logstore.replica.growths import LONGEST_PAUSE_MS, PAUSES, Growths


def test_one_stream_after_another() -> None:
    """First come, first served; who is next is told so when the pause is over, and a stream may give up its place."""
    woken: list[str] = []
    growths = Growths(woken.append)
    assert [growths.take(stream, 100) for stream in "abcd"] == [True, False, False, False]
    assert growths.take("a", 105)
    growths.give_back("b", 106)
    growths.give_back("a", 110)
    assert growths.has("a")
    assert not growths.take("a", 111)
    growths.give_back("a", 110 + PAUSES * 10 - 1)
    assert woken == []
    growths.give_back("a", 110 + PAUSES * 10)
    assert woken == ["c"]
    assert growths.take("c", 150)
    assert growths.waiting == 1


def test_a_stream_that_ends_leaves_its_turn() -> None:
    """Who is lost with its turn, in it or in its pause, or waits for it, holds nobody up."""
    woken: list[str] = []
    growths = Growths(woken.append)
    assert growths.take("a", 0)
    assert [growths.take(stream, 0) for stream in "bcd"] == [False] * 3
    growths.leave("c")
    growths.leave("a")
    growths.give_back("b", 1_000)
    growths.leave("b")
    assert woken == ["b", "d"]
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


def test_a_stream_that_wants_others_again_holds_nobody_up() -> None:
    """A second host came within its pause: those that wait are first, and then it has another turn."""
    woken: list[str] = []
    growths = Growths(woken.append)
    assert [growths.take(stream, 0) for stream in "ab"] == [True, False]
    growths.give_back("a", 10)
    assert not growths.take("a", 10 + PAUSES * 10 - 1)
    assert not growths.take("a", 10 + PAUSES * 10)
    assert woken == ["b"]
    growths.give_back("b", 50)
    growths.give_back("b", 1_000)
    assert woken == ["b", "a"]
    assert growths.take("a", 1_001)
    growths.give_back("a", 1_011)
    assert growths.take("a", 1_011 + PAUSES * 11)
