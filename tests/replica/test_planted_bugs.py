"""Every planted bug is found, by a story or by random runs; the product fails neither."""

from __future__ import annotations

import pytest

from logstore.replica.owner import Owner
from logstore.replica.replica import Replica
from tests.replica.cluster import Planted
from tests.replica.planted import PLANTED
from tests.replica.random_runs import run_seed
from tests.replica.stories import FOLDER, play

SEEDS = range(40)
FOUND_BY: dict[str, int | str] = {
    "fence is not durable": "fence_survives_a_restart",
    "ack while the seal is asked for": 6,
    "takeover seals at the longest length": 21,
    "takeover seals below the acked length": "all_members_lost",
    "replica set changes within an epoch": "failing_disk",
    "cached registration is believed": "second_takeover",
    "stream is read before it is fenced": "owner_dies",
    "takeover fences nobody": "fence_waits_for_syncs",
    "batches are sent again in another order": "failing_disk",
    "unreachable stream starts anew": "all_members_lost",
    "truncation by a message": "zombie_rolls",
    "target is a member before it has the copy": 3,
    "gap is accepted": 0,
    "repeated append is applied twice": 0,
    "append below the fence is accepted": "fence_survives_a_restart",
    "fence is answered before appends are synced": "fence_waits_for_syncs",
    "confirmed before the sync": "append",
    "unacked batches are served": "metadata_away",
    "roll without an answer of the metadata store": "metadata_away_full_chunk",
    "removal before the registration": "trim_metadata_away",
    "takeover forgets the log start": "trim_and_takeover",
    "stream without chunks starts anew": "trim_all",
    "trim drops the last chunk": "trim_all",
    "trim drops what is not acknowledged": "trim",
    "trim drops the chunk of the log start": "trim",
    "dropped chunks stay on disks": "trim",
    "registrations are looked at once for each replica": "damaged_copy",
    "wiped disk keeps its name": "wiped_disk_at_takeover",
    "old disk is judged by its new label": "old_disk",
    "damaged copy passes for a shorter one": "damaged_at_takeover",
}
"""Where to look first: a seed, or a story. Seeds change their meaning when the protocol does; then all are tried."""


def is_found_by(where: int | str, planted: Planted) -> bool:
    """Whether a story comes out otherwise, or a run breaks a promise, with a planted bug."""
    try:
        if isinstance(where, int):
            run_seed(where, planted=planted)
            return False
        text = (FOLDER / f"{where}.txt").read_text(encoding="utf-8")
        return play(text, planted) != text
    except AssertionError:
        return True


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    """A history with it breaks a promise, does not heal, or tells another story."""
    first = FOUND_BY.get(name, 0)
    stories = sorted(path.stem for path in FOLDER.glob("*.txt"))
    assert any(is_found_by(where, PLANTED[name]) for where in (first, *SEEDS, *stories))


def test_they_change_what_there_is() -> None:
    """A method that the product does not have any more would be called by nobody: the bug would not be planted."""
    classes = {kind for planted in PLANTED.values() for kind in (planted.owner, planted.replica)}
    for kind in classes - {Owner, Replica}:
        methods = {name: value.__code__ for name, value in vars(kind).items() if hasattr(value, "__code__")}
        helpers = {name for code in methods.values() for name in code.co_names}
        unknown = [name for name in methods if not hasattr(kind.__mro__[1], name) and name not in helpers]
        assert not unknown, f"{kind.__name__} changes {unknown}, which {kind.__mro__[1].__name__} does not have"


def test_there_are_enough_of_them() -> None:
    """At least the ones that other systems had."""
    assert len(PLANTED) >= 12
    assert set(FOUND_BY) <= set(PLANTED)
