"""The registry of complete checkpoints: what may go, what stays after every restart, and which host loads a unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.coordinator.checkpoints.locality import RackDistances, hosts_by_nearness
from scheduler.coordinator.checkpoints.registry import (
    CheckpointRegistry,
    RegisteredChange,
    RegisteredFile,
    RegistryLimits,
    UnitCheckpoint,
)
from scheduler.coordinator.errors import ApiError, StoreDamaged
from scheduler.coordinator.metadata.interface import Change, SetValue
from scheduler.topology import Link, Server, Topology, racks

UNITS = ("a", "a/b c%2F", "Prüfung/0")


def checkpoint(unit: str = "a", seq: int = 1, bases: Sequence[int] = (), epoch: int = 0) -> UnitCheckpoint:
    """A checkpoint with one file."""
    files = (RegisteredFile("000", 100 * seq, 7, ("r1h1",)),)
    return UnitCheckpoint(unit, seq, "file:///c", epoch, "", 4096, tuple(sorted(bases)), 1, files)


def stored(entries: dict[str, str], changes: Sequence[Change]) -> None:
    """Make changes as a metadata store makes them."""
    for change in changes:
        if isinstance(change, SetValue):
            entries[change.key] = change.value
        else:
            for key in [key for key in entries if key.startswith(change.prefix)]:
                del entries[key]


def made(registry: CheckpointRegistry, change: RegisteredChange | None) -> None:
    """A change that is durable at once."""
    if change is not None:
        change.publish()


def registered(*checkpoints: UnitCheckpoint, limits: RegistryLimits | None = None) -> CheckpointRegistry:
    """A registry with these, durable."""
    registry = CheckpointRegistry(limits)
    for one in checkpoints:
        made(registry, registry.register(one))
    return registry


CALLS = st.lists(
    st.one_of(
        st.tuples(
            st.just("register"), st.sampled_from(UNITS), st.integers(1, 8), st.sets(st.integers(1, 8), max_size=3)
        ),
        st.tuples(st.just("remove"), st.sampled_from(UNITS), st.integers(1, 8)),
        st.tuples(st.just("forget"), st.sampled_from(UNITS)),
    ),
    max_size=40,
)


class Model:
    """The same rules, written naively: for each unit its checkpoints, and the highest number that was removed."""

    def __init__(self) -> None:
        self.units: dict[str, dict[int, UnitCheckpoint]] = {}
        self.removed: dict[str, int] = {}

    def register(self, unit: str, seq: int, bases: set[int]) -> str:
        """What the answer should be: new, known or refused."""
        known = self.units.get(unit, {})
        new = checkpoint(unit, seq, sorted(bases))
        if any(base >= seq for base in bases):
            return "refused"
        if seq in known:
            return "known" if known[seq] == new else "refused"
        if seq <= self.removed.get(unit, 0):
            return "refused"
        self.units.setdefault(unit, {})[seq] = new
        return "new"

    def remove(self, unit: str, seq: int) -> str:
        """The same for a removal."""
        known = self.units.get(unit, {})
        if seq not in known:
            return "known"
        newest = self.newest(unit)
        if newest is not None and seq in (newest, *known[newest].bases):
            return "refused"
        del known[seq]
        self.removed[unit] = max(self.removed.get(unit, 0), seq)
        return "new"

    def newest(self, unit: str) -> int | None:
        """The newest that can be recovered."""
        known = self.units.get(unit, {})
        return max((seq for seq, one in known.items() if all(base in known for base in one.bases)), default=None)

    def forget(self, unit: str) -> str:
        """The same for a unit."""
        self.removed.pop(unit, None)
        return "known" if self.units.pop(unit, None) is None else "new"


def answer(registry: CheckpointRegistry, call: tuple[Any, ...], entries: dict[str, str]) -> str:
    """Make a call and store it; what it answered."""
    try:
        match call:
            case "register", unit, seq, bases:
                change = registry.register(checkpoint(unit, seq, sorted(bases)))
            case "remove", unit, seq:
                change = registry.remove(unit, seq)
            case _:
                _, change = registry.forget(call[1])
    except ApiError as error:
        return "refused" if error.status in (400, 409) and error.field is not None else str(error)
    if change is None:
        return "known"
    stored(entries, change.changes)
    change.publish()
    return "new"


@settings(max_examples=200)
@given(CALLS)
def test_the_registry_is_the_model_and_survives_restarts(calls: list[tuple[Any, ...]]) -> None:
    """After every call: the answer and the content are the model's, and a restart restores the same.

    A unit that has a checkpoint that can be recovered keeps it or a newer one.
    """
    registry, model, entries = CheckpointRegistry(), Model(), dict[str, str]()
    for call in calls:
        newest = {unit: model.newest(unit) for unit in model.units if call[0] != "forget" or call[1] != unit}
        assert answer(registry, call, entries) == getattr(model, call[0])(*call[1:])
        content = {unit: known for unit, known in model.units.items() if known}
        assert registry.published == content
        for unit, seq in newest.items():
            if seq is not None:
                assert registry.newest(unit).seq >= seq
        again = CheckpointRegistry()
        again.restore(entries)
        assert again.published == content
        assert again.counts() == registry.counts()
        for unit, seq in model.removed.items():
            with pytest.raises(ApiError, match=r"were removed|another checkpoint"):
                again.register(checkpoint(unit, seq, epoch=99))


def test_sentences_name_the_value_and_what_to_do() -> None:
    """Each refusal says which checkpoint is in the way, and what to send instead."""
    registry = registered(checkpoint(seq=3), checkpoint(seq=4), checkpoint(seq=7, bases=[4]))
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: registry.register(checkpoint(seq=4, epoch=9)), "another checkpoint of this number.*next number, 8"),
        (lambda: registry.register(checkpoint(seq=9, bases=[9])), "must be lower than its own number, 9"),
        (lambda: registry.register(replace(checkpoint(seq=9), bases=(3, 3))), "3 appears twice"),
        (
            lambda: registry.remove("a", 4),
            "checkpoint 7 builds on it and is the newest checkpoint of unit 'a' that can",
        ),
        (
            lambda: registry.remove("a", 7),
            "it is the newest checkpoint of unit 'a' that can be recovered; it may go when",
        ),
        (lambda: registry.newest("b"), "has no complete checkpoint here"),
        (lambda: registry.checkpoint("a", 5), "has no checkpoint of this number; the newest is 7"),
        (lambda: registry.checkpoints("b"), "has no complete checkpoint here"),
    ]
    for call, says in cases:
        with pytest.raises(ApiError, match=says):
            call()
    made(registry, registry.remove("a", 3))
    with pytest.raises(ApiError, match="up to number 3 were removed; register a number from 8 on"):
        registry.register(checkpoint(seq=2))
    twice = replace(checkpoint(seq=8), files=checkpoint().files * 2)
    with pytest.raises(ApiError, match=r"files\[1\].name='000': appears twice"):
        registry.register(twice)


def test_everything_is_bounded() -> None:
    """Units, checkpoints of a unit, an entry and all entries: each limit is a sentence that names it."""
    size = len(next(iter(_entries(checkpoint()).values())))
    limits = RegistryLimits(units=2, checkpoints_per_unit=2, entry_bytes=size + 50, all_bytes=3 * size + 50)
    registry = registered(checkpoint("a"), checkpoint("a", 2), checkpoint("b"), limits=limits)
    for refused, says in (
        (checkpoint("a", 3), "2 checkpoints, the most that are kept"),
        (checkpoint("c"), "2 units are registered, the most"),
        (checkpoint("b", 2), "the entries of all checkpoints have"),
        (replace(checkpoint("b", 2), sink="file:///" + "c" * 100), "the entry has"),
    ):
        with pytest.raises(ApiError, match=says):
            registry.register(refused)
    assert registry.forget("a")[0] == 2
    assert registry.register(checkpoint("c")) is not None


def _entries(*checkpoints: UnitCheckpoint) -> dict[str, str]:
    """What is stored of them."""
    registry, entries = CheckpointRegistry(), dict[str, str]()
    for one in checkpoints:
        change = registry.register(one)
        assert change is not None
        stored(entries, change.changes)
    return entries


@pytest.mark.parametrize(
    "entries",
    [
        {"checkpoints/a/1/entry": "{"},
        {"checkpoints/a/1/entry": "{}"},
        {"checkpoints/a/x/entry": "{}"},
        {"checkpoints/a/1/other": "{}"},
        {"checkpoints/a/removed": "-1"},
        {"checkpoints/a": "1"},
    ],
)
def test_what_cannot_be_read_prevents_the_start(entries: Mapping[str, str]) -> None:
    """A stored entry that is no checkpoint is damage, with one line."""
    with pytest.raises(StoreDamaged, match="cannot be read"):
        CheckpointRegistry().restore(entries)


def test_clients_see_what_is_durable() -> None:
    """Until a change is durable, the old state is shown; the rules hold for the new one already."""
    registry = registered(checkpoint(), checkpoint(seq=2))
    removal = registry.remove("a", 1)
    assert removal is not None
    assert [one.seq for one in registry.checkpoints("a")] == [2, 1]
    new = registry.register(checkpoint(seq=3))
    assert new is not None
    assert [one.seq for one in registry.checkpoints("a")] == [2, 1]
    removal.publish()
    new.publish()
    assert [one.seq for one in registry.checkpoints("a")] == [3, 2]
    assert registry.counts() == {"units": 1, "checkpoints": 2, "file_bytes": 500}


def test_a_base_that_is_not_there_hides_what_builds_on_it() -> None:
    """Registered in any order; a checkpoint counts when its bases are there, and an older one may lose its base."""
    registry = registered(checkpoint(seq=1), checkpoint(seq=3, bases=[2]))
    assert registry.newest("a").seq == 1
    made(registry, registry.register(checkpoint(seq=2, bases=[1])))
    assert registry.newest("a").seq == 3
    made(registry, registry.remove("a", 1))
    assert [registry.is_recoverable(one) for one in registry.checkpoints("a")] == [True, False]
    assert [file.bytes for file in registry.recovery_files(registry.newest("a"))] == [300, 200]


def test_units_come_in_pages() -> None:
    """All units once, in order, however small the pages are."""
    names = sorted(f"q/{number}" for number in range(25))
    registry = registered(*(checkpoint(name) for name in reversed(names)))
    for limit in (1, 7, 25, 100):
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page, after = registry.units(after, limit)
            assert 0 < len(page) <= limit
            found += page
        assert found == names


# ---- the host that loads a unit


def nearest(topology: Topology, files: Sequence[RegisteredFile], *lost: str) -> list[tuple[str, int, float | None]]:
    """The hosts in order."""
    return [
        (one.host, one.bytes, one.distance)
        for one in hosts_by_nearness(files, topology, RackDistances(topology), lost.__contains__)
    ]


def file(name: str, size: int, *hosts: str) -> RegisteredFile:
    """A file on these hosts."""
    return RegisteredFile(name, size, 0, hosts)


def test_the_host_with_most_bytes_comes_first_then_the_nearest() -> None:
    """Bytes of its own, then the mean distance: same rack 2, another rack of the paper's network 4."""
    topology = racks([2, 2, 1], 4)
    files = [file("0", 60, "r1h1", "r2h1"), file("1", 40, "r1h1")]
    assert nearest(topology, files) == [
        ("r1h1", 100, 2.0), ("r2h1", 60, 0.6 * 2 + 0.4 * 4), ("r1h2", 0, 2.0), ("r2h2", 0, 2.8), ("r3h1", 0, 4.0),
    ]  # fmt: skip


def test_lost_hosts_count_neither_as_choice_nor_as_replica() -> None:
    """With a replica lost, the other one's rack is the near one; with all lost, nothing is known, and names decide."""
    topology = racks([2, 2], 4)
    files = [file("0", 60, "r1h1", "r2h1")]
    assert nearest(topology, files, "r1h1") == [("r2h1", 60, 2.0), ("r2h2", 0, 2.0), ("r1h2", 0, 4.0)]
    assert nearest(topology, files, "r1h1", "r2h1") == [("r1h2", 0, None), ("r2h2", 0, None)]


def test_hosts_outside_the_topology_and_files_without_hosts() -> None:
    """A host that the topology does not name has its bytes and no distance; a directory's files name no host."""
    topology = racks([1, 1], 4)
    assert nearest(topology, [file("0", 10, "nas"), file("1", 5, "r2h1")]) == [
        ("nas", 10, None), ("r2h1", 5, 2.0), ("r1h1", 0, 4.0),
    ]  # fmt: skip
    assert nearest(topology, [file("0", 10)]) == [("r1h1", 0, None), ("r2h1", 0, None)]


def test_the_links_costs_count() -> None:
    """The way between two racks is the cheapest one, in its direction."""
    servers = [Server(name, name) for name in ("a", "b", "c")]
    links = [Link("a", "b", 1, cost=9), Link("a", "c", 1), Link("c", "b", 1), Link("b", "a", 1), Link("b", "c", 1)]
    topology = Topology(servers, links)
    assert nearest(topology, [file("0", 1, "a")]) == [("a", 1, 2.0), ("c", 0, 3.0), ("b", 0, 4.0)]
