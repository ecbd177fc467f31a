"""A disk is told apart from an empty one, another host's, and an old copy of itself."""

from __future__ import annotations

from logstore.replica.identity import DiskLabel, DiskVerdict, judge_disk
from logstore.replica.registrations import Member, OwnerId

FRESH = DiskLabel("disk1", "a")


def test_a_disk_that_was_formatted_is_known() -> None:
    """A label that never started is good on its host, and a start gives the next number and a new name."""
    assert judge_disk("a", FRESH, None) is DiskVerdict.KNOWN
    started = FRESH.next_start("x")
    assert (started.starts, started.member, started.owner_id) == (1, Member("a", "disk1"), OwnerId("a", "x"))


def test_a_start_that_ended_between_its_writes_may_be_tried_again() -> None:
    """The disk has the next start, the register does not yet: the disk is known."""
    first = FRESH.next_start("x")
    assert judge_disk("a", first, None) is DiskVerdict.KNOWN
    assert judge_disk("a", first.next_start("y"), first) is DiskVerdict.KNOWN


def test_an_old_copy_is_told_apart() -> None:
    """The register has a later start than the disk: the disk was set back."""
    first = FRESH.next_start("x")
    assert judge_disk("a", first, first.next_start("y")) is DiskVerdict.OLD_COPY


def test_another_hosts_disk_is_told_apart() -> None:
    """The label names the host that the disk was formatted for; so does the register."""
    assert judge_disk("b", FRESH, None) is DiskVerdict.FOREIGN
    assert judge_disk("a", FRESH, DiskLabel("disk1", "b", 1)) is DiskVerdict.FOREIGN


def test_an_empty_disk_has_no_identity() -> None:
    """It is formatted as a new one, whatever the host's name."""
    assert judge_disk("a", None, None) is DiskVerdict.EMPTY
