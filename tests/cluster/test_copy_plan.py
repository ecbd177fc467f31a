"""The plan of copies and the wishes of a host, without a network: what is asked for, told, forgotten and adopted."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from logstore.base.metadata.interface import MAX_VALUE_BYTES
from logstore.cluster.copies.copy_fields import (
    MAX_GOES,
    MAX_OF_A_TARGET,
    MAX_WISHES,
    decode_plan,
    encode_plan,
    goes_fields,
    read_answer,
    read_goes,
    read_told,
    told_fields,
)
from logstore.cluster.copies.copy_plan import SILENT_MS, UNPLANNED_MS, WISHES_A_MS, CopyPlan, Going
from logstore.errors import MalformedRequest
from logstore.replica.copy_tokens import SHARED_BYTES, SHARED_CHUNKS, CopyGo, CopyTokens, CopyWish
from scheduler.peace.copies import HOST_COPIES, CopyScheduler

PLACES = dict.fromkeys("abcdef", ((), 1.0))


def wish(target: str = "c", live: int = 2, *, epoch: int = 1, is_move: bool = False) -> CopyWish:
    """A wish for a copy from host d or e."""
    return CopyWish(epoch, target, ("d", "e"), live, is_move)


def planned(*going: Going) -> CopyPlan:
    """A plan for six hosts."""
    plan = CopyPlan(CopyScheduler, Random(1), going, 0)
    plan.move(PLACES, {}, 0)
    return plan


# ---- tokens of a host


def test_without_a_plan_the_neediest_goes_next() -> None:
    """So many at a time; fewest live copies first, moves last, then first come, first served."""
    woken: list[str] = []
    tokens = CopyTokens(1, woken.append)
    assert tokens.take("s0", wish()) == CopyGo(1, "c", "d")
    wishes = {"move": wish(live=3, is_move=True), "two": wish(), "two again": wish(), "one": wish(live=1)}
    assert [tokens.take(stream, each) for stream, each in wishes.items()] == [None] * 4
    assert tokens.counts == (1, 4)
    for stream in ("s0", "one", "two", "two again"):
        tokens.give_back(stream)
    assert woken == ["one", "two", "two again", "move"]
    tokens.give_back("nobody")
    assert tokens.counts == (1, 0)


def test_with_a_plan_goes_come_from_it_alone() -> None:
    """A go counts for the chunk and the target that are wished for, and from a host that is; with the plan away the
    host's own tokens do again, and what is under way stays.
    """
    woken: list[str] = []
    tokens = CopyTokens(1, woken.append)
    tokens.follow_plan(is_planned=True)
    assert tokens.take("s", wish()) is None
    for stranger in (CopyGo(2, "c", "d"), CopyGo(1, "a", "d"), CopyGo(1, "c", "a")):
        assert not tokens.granted("s", stranger)
    assert tokens.granted("s", CopyGo(1, "c", "e"))
    assert woken == ["s"]
    assert tokens.take("s", wish()) == CopyGo(1, "c", "e")
    assert tokens.granted("s", CopyGo(1, "c", "e")), "told twice"
    assert tokens.take("s", wish("b")) is None, "another target needs another go"
    assert tokens.take("t", wish()) is None
    assert tokens.take("nothing to move", CopyWish(1, "c", (), 0)) == CopyGo(1, "c", "")
    assert tokens.targets() == {"b": 1, "c": 2}
    assert tokens.targets(without="t") == {"b": 1, "c": 1}
    tokens.follow_plan(is_planned=False)
    tokens.give_back("nothing to move")
    assert woken == ["s", "s"]
    assert tokens.counts == (1, 1)


def test_copies_of_last_copies_are_known_while_they_are_made() -> None:
    """Of chunks with one live copy, from their go to their end; moves, and what asks nobody, are none."""
    tokens = CopyTokens(9)
    for stream, live, is_move in (("one", 1, False), ("two", 2, False), ("move", 1, True)):
        tokens.take(stream, CopyWish(1, f"target of {stream}", ("a", "b"), live, is_move))
    tokens.take("nothing to move", CopyWish(1, "t", (), 1))
    assert tokens.last_copies() == {("a", "target of one")}
    tokens.take("one", CopyWish(2, "target of one", ("a", "b"), 2))
    assert tokens.last_copies() == set()
    tokens.take("one", CopyWish(3, "target of one", ("b",), 1))
    assert tokens.last_copies() == {("b", "target of one")}
    tokens.made("one")
    assert tokens.last_copies() == set()


SMALL_BYTES = 100_000
SMALL = wish()._replace(size_bytes=SMALL_BYTES)


def small_wishes(wake: Callable[[str], None] = lambda stream: None) -> CopyTokens:
    """Tokens of a host with a plan, whose streams s0 to s9 wish for copies of small chunks, and others for others."""
    tokens = CopyTokens(1, wake)
    tokens.follow_plan(is_planned=True)
    others = {
        "other target": SMALL._replace(target="b"),
        "other source": SMALL._replace(sources=("e",)),
        "needier": SMALL._replace(live=1),
        "large": SMALL._replace(size_bytes=SHARED_BYTES),
        "unknown": wish(),
    }
    for stream, each in {**others, **{f"s{number}": SMALL for number in range(SHARED_CHUNKS + 2)}}.items():
        assert tokens.take(stream, each) is None
    return tokens


def test_small_chunks_share_a_go() -> None:
    """As many at a time as there may be, those alone that go the same way and are needed as much; the plan hears when
    the last of them is made. Others have goes of their own.
    """
    woken: list[str] = []
    tokens, told = small_wishes(woken.append), list[str]()
    tokens.changed = lambda: told.append("")
    group = [f"s{number}" for number in range(SHARED_CHUNKS)]
    assert tokens.granted("s0", CopyGo(1, "c", "d"))
    assert woken == group
    assert tokens.held == dict.fromkeys(group, CopyGo(1, "c", "d"))
    for stream in reversed(group):
        assert not told
        tokens.give_back(stream)
    assert told
    assert tokens.granted("large", CopyGo(1, "c", "d"))
    assert tokens.granted("unknown", CopyGo(1, "c", "d"))
    assert set(tokens.held) == {"large", "unknown"}
    tokens.made("large")
    assert set(tokens.held) == {"unknown"}


def test_a_stream_of_small_chunks_goes_on() -> None:
    """Its go is for the next chunk too, to the same target and from the same source, until the go has had its bytes;
    without a plan for no other one.
    """
    tokens = small_wishes()
    assert tokens.granted("s0", CopyGo(1, "c", "d"))
    epochs = 1 + (SHARED_BYTES - SHARED_CHUNKS * SMALL_BYTES) // SMALL_BYTES
    for epoch in range(2, epochs + 1):
        tokens.made("s0")
        assert tokens.take("s0", SMALL._replace(epoch=epoch)) == CopyGo(epoch, "c", "d")
    tokens.made("s1")
    assert tokens.take("s1", SMALL._replace(epoch=2)) is None, "the go has had its bytes"
    tokens = small_wishes()
    assert tokens.granted("s0", CopyGo(1, "c", "d"))
    further = SMALL._replace(epoch=2)
    for stream, next_wish in (("s0", further._replace(target="a")), ("s1", further._replace(sources=("e",)))):
        tokens.made(stream)
        assert tokens.take(stream, next_wish) is None
    tokens.made("s2")
    assert "s2" in tokens.held
    tokens.give_back("s2")
    tokens.follow_plan(is_planned=False)
    tokens.made("s3")
    assert "s3" not in tokens.held


def test_copies_that_share_a_go_are_registered_together() -> None:
    """A stream whose copy is whole waits for the others of its go. All hear of it when the last one is whole, or does
    not copy any more; when one of them has waited for long enough, those that are whole then. Others wait for nobody.
    """
    woken: list[str] = []
    tokens = small_wishes(woken.append)
    assert tokens.granted("s0", CopyGo(1, "c", "d"))
    assert tokens.granted("large", CopyGo(1, "c", "d"))
    woken.clear()
    tokens.checked("large")
    tokens.checked("nobody")
    assert not tokens.awaits_others("large")
    assert not tokens.awaits_others("nobody")
    group = [f"s{number}" for number in range(SHARED_CHUNKS)]
    for stream in group[:3]:
        tokens.checked(stream)
    assert all(map(tokens.awaits_others, group))
    assert woken == ["large"]
    tokens.registers("s0")
    assert woken == ["large", "s0", "s1", "s2"]
    assert [stream for stream in group if tokens.awaits_others(stream)] == group[3:]
    for stream in group[:3]:
        tokens.made(stream)
        assert tokens.take(stream, SMALL._replace(epoch=2)), "its go is for the next chunk, which is not whole"
        assert tokens.awaits_others(stream)
        tokens.give_back(stream)
    for stream in group[3:-1]:
        tokens.checked(stream)
    assert all(map(tokens.awaits_others, group[3:]))
    tokens.give_back(group[-1])
    assert woken[4:] == group[3:-1]
    assert not any(map(tokens.awaits_others, group))


# ---- the plan


def test_a_shared_go_takes_the_tokens_of_all_its_copies() -> None:
    """What its streams make beside the go that they share counts, and what they go on with: no other copy begins for
    that, and the next one does when tokens are free again.
    """
    plan = planned()
    wishes = {f"s{number}": wish() for number in range(SHARED_CHUNKS + 2)}
    plan.heard("a", wishes, {}, 1)
    assert len(plan.goes) == HOST_COPIES
    (_, first, go), *_ = plan.goes
    group = {first: go, **{stream: go for stream in wishes if stream not in ("s8", "s9")}}
    rest = {stream: each for stream, each in wishes.items() if stream not in group}
    plan.heard("a", rest, group, 2)
    assert {each.stream: each.go for each in plan.goes} == group
    further = go._replace(epoch=2)
    plan.heard("a", rest, {"s0": further, "s1": further}, 3)
    assert {each.stream: each.go for each in plan.goes} == {"s0": further, "s1": further}
    plan.heard("a", rest, {"s0": further}, 4)
    assert len(plan.goes) == HOST_COPIES
    assert plan.counts == (HOST_COPIES, 1)


def test_shared_goes_seldom_have_all_wishes_asked_again() -> None:
    """With thousands of wishes that takes tens of milliseconds of the event loop of the host that plans. What shares
    a go is counted a moment later, and nothing else begins meanwhile; to go on with the next chunk costs nothing.
    """
    made: list[int] = []

    def counted(*arguments: Any) -> CopyScheduler:
        made.append(arguments[-1])
        return CopyScheduler(*arguments)

    plan = CopyPlan(counted, Random(1), (), 0)
    plan.move(PLACES, {}, 0)
    wishes = {f"s{number}": wish() for number in range(100 * WISHES_A_MS)}
    plan.heard("a", wishes, {}, 1)
    held = {each.stream: each.go for each in plan.goes}
    for now_ms in range(2, 60):
        shared = next(stream for stream in wishes if stream not in held)
        held[shared] = CopyGo(1, "c", "d")
        plan.heard("a", {stream: each for stream, each in wishes.items() if stream not in held}, held, now_ms)
        assert {each.stream: each.go for each in plan.goes} == held, "nothing else begins"
    assert made == [0]
    plan.heard("b", {}, {}, 100)
    assert made == [0, 100]
    following = {stream: go._replace(epoch=2) for stream, go in held.items()}
    rest = {stream: each for stream, each in wishes.items() if stream not in held}
    plan.heard("a", rest, following, 300)
    assert {each.stream: each.go for each in plan.goes} == following
    plan.heard("a", rest, {}, 301)
    assert len(plan.goes) == HOST_COPIES, "their tokens are free again"
    assert made == [0, 100]
    plan.heard("a", {}, {"s": CopyGo(1, "c", "d")}, 302)
    plan.heard("a", rest, {"t": CopyGo(1, "c", "d")}, 303)
    plan.tick(304)
    assert made[2:] == [302, 304], "there was one wish; then the next look is soon enough"


def test_goes_are_for_what_hosts_say_last() -> None:
    """A go stays as long as its owner wishes for it or makes it; what is not said any more is forgotten, and the next
    has its tokens.
    """
    plan = planned()
    plan.heard("a", {f"s{number}": wish() for number in range(HOST_COPIES + 2)}, {}, 1)
    goes = {each.stream: each.go for each in plan.goes}
    assert sorted(goes) == [f"s{number}" for number in range(HOST_COPIES)]
    assert plan.counts == (HOST_COPIES, 2)
    waiting = {f"s{number}": wish() for number in range(HOST_COPIES, HOST_COPIES + 2)}
    plan.heard("a", waiting, goes, 2)
    assert {each.stream: each.go for each in plan.goes} == goes
    del goes["s0"]
    plan.heard("a", waiting, goes, 3)
    assert len(plan.goes) == HOST_COPIES
    assert "s0" not in {each.stream for each in plan.goes}
    assert plan.elsewhere("a") == {}
    assert plan.elsewhere("b") == {"c": HOST_COPIES + 1}
    plan.heard("a", {}, {}, 4)
    assert plan.counts == (0, 0)


def test_a_host_that_is_silent_is_forgotten() -> None:
    """Its goes too, those among them that a former coordinator has given."""
    plan = planned(Going("gone", "s9", CopyGo(1, "c", "d")))
    plan.heard("a", {"s0": wish()}, {}, SILENT_MS - 1)
    plan.tick(SILENT_MS - 1)
    assert plan.counts == (2, 0)
    plan.tick(SILENT_MS)
    assert [each.owner for each in plan.goes] == ["a"]
    plan.tick(2 * SILENT_MS)
    assert plan.counts == (0, 0)


def test_copies_without_a_go_are_adopted() -> None:
    """What hosts make by their own tokens counts, once they say so."""
    plan = planned()
    held = {f"t{number}": CopyGo(1, "c", "d") for number in range(HOST_COPIES)}
    plan.heard("b", {}, held, 1)
    plan.heard("a", {"s": wish()}, {}, 2)
    assert {each.stream for each in plan.goes} == set(held)
    del held["t0"]
    plan.heard("b", {}, held, 3)
    assert "s" in {each.stream for each in plan.goes}


def test_a_stream_has_the_wish_of_its_newest_owner() -> None:
    """A takeover in the middle: the former owner's go ends, the new one's wish counts."""
    plan = planned()
    plan.heard("a", {"s": wish()}, {}, 1)
    plan.heard("b", {"s": wish("f", epoch=2)}, {}, 2)
    assert plan.goes == (Going("b", "s", CopyGo(2, "f", plan.goes[0].go.source)),)


def test_hosts_that_come_and_go_change_the_plan() -> None:
    """A wish for a target that is not known yet waits; the goes that there are keep their tokens."""
    plan = CopyPlan(CopyScheduler, Random(1), (), 0)
    plan.heard("a", {"s": wish("new"), "t": wish()}, {}, 1)
    assert not plan.goes
    plan.move(PLACES, {}, 2)
    assert [each.stream for each in plan.goes] == ["t"]
    plan.move({**PLACES, "new": ((), 1.0)}, {}, 3)
    assert {each.stream for each in plan.goes} == {"s", "t"}
    plan.heard("a", {"never": wish("stranger")}, {}, 4)
    plan.tick(UNPLANNED_MS)
    assert plan.counts == (0, 1)
    plan.heard("a", {"never": wish("stranger")}, {}, UNPLANNED_MS + 1)
    plan.tick(UNPLANNED_MS + 4)
    assert [each.stream for each in plan.goes] == ["never"], "a plan holds nobody up"
    plan.move({}, {}, 4)
    plan.heard("a", {"u": wish()}, {"s": CopyGo(1, "new", "d")}, 5)
    assert "u" not in {each.stream for each in plan.goes}


# ---- as bytes


def test_what_hosts_tell_comes_back() -> None:
    """Wishes and goes, the neediest MAX_WISHES; answers; the plan in the metadata store."""
    targets = "abcdefgh"
    wishes = {f"s{number}": wish(targets[number % 8], live=3 - number % 3) for number in range(2 * MAX_WISHES)}
    held = {"t": CopyGo(4, "a", ""), "u": CopyGo(5, "b", "c")}
    told = read_told(told_fields(wishes, held))
    assert told[1] == held
    assert len(told[0]) == MAX_WISHES
    assert max(each.live for each in told[0].values()) <= 2
    assert all(wishes[stream] == each for stream, each in told[0].items())
    assert read_goes({"goes": goes_fields(held.items())}) == held
    answer = read_answer({"error": None, "coordinates": True, "goes": goes_fields(held.items()), "elsewhere": {"a": 3}})
    assert answer == (True, held, {"a": 3})
    assert read_answer({"coordinates": False}) == (False, {}, {})
    going = [
        Going("o" * 64, f"{number:032x}/12345", CopyGo((1 << 63) - 1, "t" * 64, "s" * 64)) for number in range(300)
    ]
    value = encode_plan(going)
    assert decode_plan(value) == going[:MAX_GOES]
    assert len(value) <= MAX_VALUE_BYTES
    assert encode_plan([Going("a", "t/0", CopyGo(7, "b", "c"))]) == b'{"v":1,"goes":[["a","t/0",7,"b","c"]]}'


def test_of_what_one_host_is_to_get_a_part_is_told() -> None:
    """A host that came back lacks a hundred copies and takes a few at a time. Each change of any of them had all told
    and read again; now it is the neediest MAX_OF_A_TARGET, first come, first served, beside those of other targets.
    """
    wishes = {f"s{number}": wish("a", live=2) for number in range(MAX_WISHES)} | {"late": wish("a", live=1)}
    told = list(read_told(told_fields({**wishes, "other": wish("b", live=2)}, {}))[0])
    assert told == ["late", *(f"s{number}" for number in range(MAX_OF_A_TARGET - 1)), "other"]


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b'{"v":2,"goes":[]}', b'{"v":1,"goes":[["a","s",1,"t"]]}', b'{"v":1,"goes":[["a","s","x","t","u"]]}'],
)
def test_a_damaged_plan_is_refused(value: bytes) -> None:
    """By name; a coordinator begins without it."""
    with pytest.raises(MalformedRequest):
        decode_plan(value)


def test_what_is_no_wish_is_refused() -> None:
    """With the field."""
    with pytest.raises(MalformedRequest, match="wishes"):
        read_told({"held": []})
    with pytest.raises(MalformedRequest, match="epoch"):
        read_goes({"goes": [{"stream": "s", "epoch": -1, "target": "a", "source": "b"}]})
