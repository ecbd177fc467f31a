"""Who should own which stream: shares are even, every host deals alike, and little moves when a host comes or goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from logstore.base.metadata import schema
from logstore.cluster.members import election
from logstore.cluster.members.deal import NOBODY, Deal, OwnedStreams
from logstore.replica.registrations import ChunkRegistration, Member, OwnerId, StreamHead
from tests.cluster.test_election import HOSTS, head, live

TOPICS = st.lists(st.integers(1, 12), min_size=1, max_size=12)
Cluster = dict[str, schema.StoredMember]


def streams_of(number: int, partitions: int) -> list[str]:
    """The streams of a topic."""
    return [f"topic{number}/{partition}" for partition in range(partitions)]


def owner_id(host: str) -> OwnerId:
    """A host in the life that it is in."""
    return OwnerId(host, f"start-{host}")


def first_in(owned: OwnedStreams, cluster: Cluster, streams: Iterable[str], partitions: int) -> dict[str, str]:
    """Streams without owners, and the hosts that they are dealt to."""
    deal, found = Deal(owned, cluster), {}
    for stream in streams:
        found[stream] = deal.order(stream, partitions, None)[0]
        deal.give(stream, found[stream])
    return found


def levelled(owned: OwnedStreams, cluster: Cluster, topics: list[int]) -> int:
    """Move streams until shares are even; returns how many moves that took."""
    moves = 0
    while True:
        deal, moved = Deal(owned, cluster), False
        for number, partitions in enumerate(topics):
            for stream in streams_of(number, partitions):
                owner = owned.owner(stream).host
                other = deal.better(stream, partitions, owner, cluster)
                if other is not None:
                    deal.give(stream, other, owner)
                    owned.set(stream, owner_id(other))
                    moves, moved = moves + 1, True
        if not moved:
            return moves


def spread(owned: OwnedStreams, hosts: Iterable[str], streams: Iterable[str]) -> int:
    """By how many streams the host that owns most of them is in front of the one that owns least."""
    counts = Counter(dict.fromkeys(hosts, 0))
    counts.update(owned.owner(stream).host for stream in streams)
    return max(counts.values()) - min(counts.values())


def check_even(owned: OwnedStreams, hosts: list[str], topics: list[int]) -> None:
    """No host owns more than one stream more than another, of each topic and of all."""
    everything = []
    for number, partitions in enumerate(topics):
        streams = streams_of(number, partitions)
        assert spread(owned, hosts, streams) <= 1
        everything += streams
    assert spread(owned, hosts, everything) <= 1


@given(HOSTS, TOPICS)
def test_streams_are_dealt_evenly(hosts: list[str], topics: list[int]) -> None:
    """Topic after topic, each with whatever partitions: of each and of all hosts own as many, or one more."""
    owned, cluster = OwnedStreams(), live(hosts)
    for number, partitions in enumerate(topics):
        dealt = first_in(owned, cluster, streams_of(number, partitions), partitions)
        for stream, host in dealt.items():
            owned.set(stream, owner_id(host))
        check_even(owned, hosts, topics[: number + 1])


@given(st.lists(st.from_regex(r"[a-z]{1,5}", fullmatch=True), min_size=2, max_size=7, unique=True), TOPICS)
def test_a_host_goes_and_comes_back(hosts: list[str], topics: list[int]) -> None:
    """What it owned is dealt to the rest, and nothing else moves. When it is back, it gets its share again in as few
    moves as that takes, and afterwards nothing moves any more.
    """
    owned, cluster = OwnedStreams(), live(hosts)
    for number, partitions in enumerate(topics):
        for stream, host in first_in(owned, cluster, streams_of(number, partitions), partitions).items():
            owned.set(stream, owner_id(host))
    gone, rest = hosts[0], live(hosts[1:])
    total = lost = 0
    for number, partitions in enumerate(topics):
        streams = [each for each in streams_of(number, partitions) if owned.owner(each).host == gone]
        total, lost = total + partitions, lost + len(streams)
        for stream, host in first_in(owned, rest, streams, partitions).items():
            owned.set(stream, owner_id(host))
    levelled(owned, rest, topics)
    check_even(owned, hosts[1:], topics)
    moves = levelled(owned, cluster, topics)
    check_even(owned, hosts, topics)
    assert moves <= total
    assert levelled(owned, cluster, topics) == 0


def test_shares_are_in_proportion_to_disks() -> None:
    """A host whose disk takes three times as much owns three times as many, of topics of one partition as of others."""
    cluster = live(["a", "b", "c", "d"])
    for host, rate in (("a", 300), ("b", 100), ("c", 100)):
        cluster[host] = replace(cluster[host], disk_rate=rate)
    owned = OwnedStreams()
    topics = [1] * 60 + [12] * 5
    for number, partitions in enumerate(topics):
        for stream, host in first_in(owned, cluster, streams_of(number, partitions), partitions).items():
            owned.set(stream, owner_id(host))
    counts = {host: owned.count(owner_id(host)) for host in cluster}
    assert counts["a"] == 60
    assert all(counts[host] == 20 for host in "bcd")
    assert owned.count_of("topic60", owner_id("a")) == 6


@given(HOSTS, st.data())
def test_every_live_host_has_a_place_of_its_own(hosts: list[str], data: st.DataObject) -> None:
    """Members of the open chunk that have their disks come first, those that leave last."""
    members = tuple(Member(host, f"disk-{host}") for host in data.draw(st.lists(st.sampled_from(hosts), unique=True)))
    leaving = data.draw(st.sets(st.sampled_from(hosts)))
    deal = Deal(OwnedStreams(), live(hosts), leaving)
    order = deal.order("t/0", 1, head("gone", "x", (*members, Member("gone", "disk"))))
    assert sorted(order) == sorted(hosts)
    holders = {member.host for member in members}
    places = [(host in leaving, host not in holders) for host in order]
    assert places == sorted(places)


def test_a_disk_that_was_replaced_holds_nothing() -> None:
    """A host with another disk than the member has claims behind those that have theirs."""
    cluster = live(["a", "b"])
    for holder, other in ("ab", "ba"):
        chunk = ChunkRegistration(1, 0, (Member(other, "disk-before"), Member(holder, f"disk-{holder}")))
        at = StreamHead(3, 2, 4, OwnerId("gone", "x"), chunk, 0)
        assert Deal(OwnedStreams(), cluster).order("t/0", 1, at) == [holder, other]


def test_a_host_that_has_started_anew_owns_nothing() -> None:
    """What its last life owned is not counted, and who owns nothing any more leaves no entry."""
    owned = OwnedStreams()
    owned.set("t/0", OwnerId("a", "start-before"))
    assert not Deal(owned, live(["a"])).lives(owned.owner("t/0"))
    assert owned.count(owner_id("a")) == 0
    owned.set("t/0", owner_id("a"))
    assert Deal(owned, live(["a"])).lives(owned.owner("t/0"))
    assert (owned.count(owner_id("a")), owned.count_of("t", owner_id("a"))) == (1, 1)
    owned.set("t/0", None)
    assert owned.owner("t/0") == NOBODY
    assert len(owned) == 0


@given(st.lists(st.from_regex(r"[a-z]{1,5}", fullmatch=True), min_size=2, max_size=6, unique=True), st.data())
def test_hosts_of_two_versions_end_with_every_stream(hosts: list[str], data: st.DataObject) -> None:
    """Whichever hosts have the open chunk after each move: a host of the version before takes what it comes first for,
    another one what makes shares more even, and a stream moves less often than there are hosts.
    """
    random = data.draw(st.randoms(use_true_random=False))
    cluster, owned, streams = live(hosts), OwnedStreams(), streams_of(0, random.randint(1, 12))
    earlier = {host for host in hosts if random.random() < 0.5}
    moves = Counter[str]()
    for stream in streams:
        owned.set(stream, owner_id(random.choice(hosts)))
    for stream in streams * (2 * len(hosts)):
        owner = owned.owner(stream).host
        holders = {owner, *random.sample(hosts, random.randint(1, len(hosts)))}
        at = head(owner, f"start-{owner}", tuple(Member(host, f"disk-{host}") for host in holders))
        first = election.hash_order(stream, at, cluster)[0]
        deal = Deal(owned, cluster, keeps_order=True)
        taker = first if first in earlier else deal.better(stream, len(streams), owner, holders - earlier)
        if taker is not None and taker != owner:
            owned.set(stream, owner_id(taker))
            moves[stream] += 1
    assert all(each < len(hosts) for each in moves.values())


def test_a_host_of_the_version_before_decides_the_order() -> None:
    """While such a host lives, all claim what has no owner in its order: no two claim the same."""
    cluster = live(["a", "b", "c"])
    for number in range(50):
        stream = f"t/{number}"
        deal = Deal(OwnedStreams(), cluster, {"c"}, by_hash=True)
        assert deal.order(stream, 50, None) == election.hash_order(stream, None, cluster, {"c"})
        assert deal.order(stream, 50, None)[-1] == "c"


def test_a_host_takes_from_those_that_have_too_much() -> None:
    """Not from one that has its share of the topic by then, though that has more in all: it would have to take another
    one in its turn.
    """
    cluster, owned = live(["a", "b", "c"]), OwnedStreams()
    for number, stream in enumerate(streams_of(0, 30)):
        owned.set(stream, owner_id("a" if number % 3 else "c") if number < 22 else owner_id("c"))
    assert [owned.count(owner_id(host)) for host in "abc"] == [14, 0, 16]
    for number, stream in enumerate(streams_of(1, 100)):
        owned.set(stream, owner_id("abc"[number % 3]))
    assert levelled(owned, cluster, [30, 100]) == 10
    check_even(owned, ["a", "b", "c"], [30, 100])
