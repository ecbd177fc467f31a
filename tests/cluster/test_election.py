"""Where streams should be, and who is gone: every host finds the same, and little moves when a host comes or goes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from logstore.base.metadata import schema
from logstore.cluster.members import election
from logstore.replica.registrations import ChunkRegistration, Member, OwnerId, StreamHead

HOSTS = st.lists(st.from_regex(r"[a-z]{1,5}", fullmatch=True), min_size=1, max_size=7, unique=True)


def live(hosts: list[str], racks: dict[str, str] | None = None) -> dict[str, schema.StoredMember]:
    """Members of these names, each with a disk and a start of its own."""
    return {
        host: schema.StoredMember(
            disk=f"disk-{host}",
            start=f"start-{host}",
            node_id=number,
            link="",
            rack=(racks or {}).get(host, ""),
            addresses={},
        )
        for number, host in enumerate(hosts)
    }


def head(owner: str, start: str, members: tuple[Member, ...]) -> StreamHead:
    """The head of a stream with an open chunk."""
    return StreamHead(3, 2, 4, OwnerId(owner, start), ChunkRegistration(4, 0, members), 0)


@given(HOSTS)
def test_one_host_goes_and_only_its_streams_move(hosts: list[str]) -> None:
    """The order of those that stay is the same, so a stream whose first host stays keeps it."""
    for number in range(20):
        stream = f"t/{number}"
        order = election.preferred(stream, live(hosts))
        assert sorted(order) == sorted(hosts)
        assert election.preferred(stream, live(hosts[::-1])) == order
        rest = [host for host in order if host != hosts[0]]
        assert election.preferred(stream, live(hosts[1:])) == rest


def test_an_owner_of_an_earlier_start_is_gone() -> None:
    """A host that has started anew does not own what its last life did."""
    cluster = live(["a", "b"])
    assert election.is_owner_gone(None, cluster)
    assert not election.is_owner_gone(head("a", "start-a", ()), cluster)
    assert election.is_owner_gone(head("a", "start-before", ()), cluster)
    assert election.is_owner_gone(head("c", "start-c", ()), cluster)


@given(HOSTS, st.data())
def test_sets_lie_in_as_many_racks_as_there_are(hosts: list[str], data: st.DataObject) -> None:
    """This host comes first; the first members up to the number of racks are all in different ones."""
    racks = {host: data.draw(st.sampled_from(["r1", "r2", "r3"])) for host in hosts}
    order = election.placement("t/0", hosts[-1], live(hosts, racks))
    assert order[0] == Member(hosts[-1], f"disk-{hosts[-1]}")
    assert sorted(member.host for member in order) == sorted(hosts)
    number = len(set(racks.values()))
    assert len({racks[member.host] for member in order[:number]}) == number


def test_streams_spread_in_proportion_to_disks() -> None:
    """A host whose disk takes three times as much comes first three times as often; one that does not say, as often as
    the middle one.
    """
    cluster = live(["a", "b", "c", "d"])
    for host, rate in (("a", 300), ("b", 100), ("c", 100)):
        cluster[host] = replace(cluster[host], disk_rate=rate)
    assert election.disk_rates(cluster) == {"a": 300, "b": 100, "c": 100, "d": 100}
    first = Counter(election.preferred(f"t/{number}", cluster)[0] for number in range(3_000))
    assert 1_350 < first["a"] < 1_650
    assert all(400 < first[host] < 600 for host in "bcd")


def test_min_copies() -> None:
    """The setting counts, within the replicas; without it, half of them."""
    for replicas, setting, wanted in (
        (1, None, 1), (2, None, 1), (3, None, 2), (5, None, 3),
        (3, "1", 1), (3, "3", 3), (3, "9", 3), (3, "0", 1), (3, "x", 2),
    ):  # fmt: skip
        settings = {} if setting is None else {election.MIN_COPIES_SETTING: setting}
        topic = schema.StoredTopic(topic_id="t", partitions=1, replicas=replicas, settings=settings)
        assert election.min_copies(topic) == wanted


def test_min_copies_of_a_cluster_with_few_hosts() -> None:
    """Half of the hosts that the cluster has had, up to the replicas; a setting counts as it is."""
    for hosts, setting, wanted in ((1, None, 1), (2, None, 1), (3, None, 2), (4, None, 2), (0, None, 3), (1, "3", 3)):
        settings = {} if setting is None else {election.MIN_COPIES_SETTING: setting}
        topic = schema.StoredTopic(topic_id="t", partitions=1, replicas=5, settings=settings, hosts=hosts)
        assert election.min_copies(topic) == wanted


def due(vacancies: election.Vacancies, rank_of: Callable[[str], int | None], now_ms: int) -> list[str]:
    """The streams to claim now."""
    return [stream for stream in vacancies.streams() if vacancies.is_due(stream, rank_of(stream), now_ms)]


def test_vacancies_are_claimed_by_rank() -> None:
    """The first host claims at once, the next one a step later, who does not live never."""
    vacancies = election.Vacancies()
    ranks: dict[str, int | None] = {"t/0": 0, "t/1": 1, "t/2": None}
    for stream in ranks:
        vacancies.set(stream, is_vacant=True, now_ms=1_000)
        vacancies.set(stream, is_vacant=True, now_ms=1_200)
    assert due(vacancies, ranks.__getitem__, 1_000) == ["t/0"]
    assert due(vacancies, ranks.__getitem__, 1_299) == ["t/0"]
    assert due(vacancies, ranks.__getitem__, 1_300) == ["t/0", "t/1"]
    vacancies.set("t/0", is_vacant=False, now_ms=1_300)
    assert len(vacancies) == 2


def test_who_claims_many_streams_has_time_for_them() -> None:
    """The second host waits from the last claim on that it sees, and not for ever."""
    vacancies = election.Vacancies()
    streams = [f"t/{number}" for number in range(100)]
    for stream in streams:
        vacancies.set(stream, is_vacant=True, now_ms=0)
    for number, stream in enumerate(streams[:40]):
        now_ms = 100 * (number + 1)
        assert due(vacancies, lambda stream: 1, now_ms) == []
        vacancies.set(stream, is_vacant=False, now_ms=now_ms)
    assert due(vacancies, lambda stream: 1, 4_300) == streams[40:]
    for number, stream in enumerate(streams[40:60]):
        vacancies.set(stream, is_vacant=False, now_ms=4_300 + 50 * number)
    assert due(vacancies, lambda stream: 1, election.MAX_WAIT_MS - 1) == []
    assert due(vacancies, lambda stream: 1, election.MAX_WAIT_MS + 500) == streams[60:]
