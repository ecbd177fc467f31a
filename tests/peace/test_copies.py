"""Copies of chunks as requests: tokens of hosts and links, order of need, and what is under way after a loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from scheduler.peace.copies import (
    COPY_BYTES_S,
    HOST_COPIES,
    LINK_SHARE,
    CopyScheduler,
    CopyStart,
    copy_topology,
)
from scheduler.peace.replica_sets import Domain

RACKS: dict[str, tuple[Domain, float]] = {f"h{number}": (("z", f"r{number % 3}"), 100.0) for number in range(9)}


def scheduler(
    places: dict[str, tuple[Domain, float]] = RACKS,
    links: dict[Domain, float] | None = None,
    under_way: Sequence[tuple[str, str, str]] = (),
) -> CopyScheduler:
    """A scheduler that has just begun."""
    return CopyScheduler(places, links or {}, under_way, Random(1), 0)


def test_the_chunk_with_the_fewest_copies_goes_first() -> None:
    """Whatever came first: one live copy before two, two before a move; among equals first come, first served."""
    copies = scheduler(under_way=[("a", "h0", "h1"), ("b", "h0", "h2")])
    asked = [("move", 3, True), ("two", 2, False), ("one", 1, False), ("one more", 1, False)]
    for name, live, is_move in asked:
        assert copies.ask(name, "h0", ["h3"], live, 1, is_move=is_move) == []
    order = []
    for name in ("a", "b", "one", "one more", "two", "move"):
        order += [start.name for start in copies.end(name, 2)]
    assert order == ["one", "one more", "two", "move"]


def test_the_nearest_source_with_a_token_is_taken() -> None:
    """One in the target's rack; when its tokens are out, another one."""
    copies = scheduler()
    found = [copies.ask(f"c{number}", f"h{3 * number}", ["h6", "h1"], 2, 1, is_move=False) for number in range(2)]
    assert found == [[CopyStart("c0", "h0", "h6")], [CopyStart("c1", "h3", "h6")]]
    assert copies.ask("c2", "h0", ["h6", "h1"], 2, 1, is_move=False) == [CopyStart("c2", "h0", "h1")]


def test_a_link_takes_a_part_of_what_it_carries() -> None:
    """A rack's link has as many tokens as fit into a quarter of it; within the rack none is needed."""
    copies = scheduler(links={("z", "r1"): 2 * COPY_BYTES_S / LINK_SHARE})
    started = [copies.ask(f"c{number}", f"h{number}", ["h0", "h3"], 2, 1, is_move=False) for number in (1, 4, 7)]
    assert [len(each or ()) for each in started] == [1, 1, 0]
    assert copies.ask("inside", "h7", ["h1"], 2, 1, is_move=False) == [CopyStart("inside", "h7", "h1")]


def test_hosts_have_tokens_by_their_disks() -> None:
    """From 1 to 8, and HOST_COPIES for the middle disk."""
    topology = copy_topology({"slow": ((), 10.0), "middle": ((), 100.0), "fast": ((), 1e6)}, {})
    assert [(server.send, server.receive) for server in topology.servers] == [(1, 1), (HOST_COPIES,) * 2, (8, 8)]


def test_what_cannot_be_planned_is_said() -> None:
    """A host that is not known, no source, and a copy that is asked for twice."""
    copies = scheduler()
    assert copies.ask("a", "stranger", ["h1"], 2, 1, is_move=False) is None
    assert copies.ask("a", "h0", ["stranger", "h0"], 2, 1, is_move=False) is None
    assert copies.ask("a", "h0", ["h1"], 2, 1, is_move=False) == [CopyStart("a", "h0", "h1")]
    assert copies.ask("a", "h0", ["h1"], 2, 1, is_move=False) is None
    assert copies.end("nobody", 2) == []
    assert copies.end("a", 2) == []
    assert copies.ask("a", "h0", ["h1"], 2, 1, is_move=False) == [CopyStart("a", "h0", "h1")]


@given(st.data())
def test_tokens_are_never_exceeded_and_all_copies_go(data: st.DataObject) -> None:
    """Whatever is asked for and ends in whatever order, also over a restart with what is under way: no host sends or
    gets more than its tokens, and at the end every copy has begun once.
    """
    hosts = sorted(RACKS)
    copies = scheduler()
    going: dict[str, CopyStart] = {}
    waiting: dict[str, tuple[str, list[str]]] = {}
    begun: Counter[str] = Counter()

    def started(starts: Sequence[CopyStart] | None) -> None:
        for start in starts or ():
            target, sources = waiting.pop(start.name)
            assert (start.target, start.source in sources) == (target, True)
            going[start.name] = start
            begun[start.name] += 1
        for side in ("target", "source"):
            assert max(Counter(getattr(each, side) for each in going.values()).values(), default=0) <= HOST_COPIES

    for number in range(data.draw(st.integers(1, 30))):
        name, target = f"c{number}", data.draw(st.sampled_from(hosts))
        sources = data.draw(st.lists(st.sampled_from([host for host in hosts if host != target]), min_size=1))
        waiting[name] = (target, sources)
        started(copies.ask(name, target, sources, data.draw(st.integers(1, 3)), number, is_move=False))
        if data.draw(st.booleans()) and going:
            over = data.draw(st.sampled_from(sorted(going)))
            del going[over]
            started(copies.end(over, number))
        if data.draw(st.integers(0, 9)) == 0:
            copies = scheduler(under_way=list(going.values()))
            for again, (target, sources) in list(waiting.items()):
                started(copies.ask(again, target, sources, 2, number, is_move=False))
    while going:
        over = next(iter(going))
        del going[over]
        started(copies.end(over, 100))
    assert not waiting
    assert set(begun.values()) == {1}
