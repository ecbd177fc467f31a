"""A check of a data directory calls no file foreign that a start takes for a sidecar's own."""

from __future__ import annotations

from logstore import refusals
from logstore.testing.simdisk import SimDisk
from logstore.testing.world import Setup
from logstore.verify.directory import OWN_NAMES, verify
from tests.crash.test_replica_damage import used


def foreign(disk: SimDisk) -> set[str]:
    """The paths of the files that a check calls foreign."""
    return {finding.path for finding in verify(disk).found if finding.kind == "foreign-file"}


def test_what_a_start_takes_is_not_foreign() -> None:
    """The label of a cluster's host and the marks of an adoption are no strangers' files; others are named."""
    assert not refusals.OWN_NAMES - OWN_NAMES
    disk = used(Setup(), is_noted=True).disk.kill_state()
    assert not foreign(disk)
    for name in ("host.json", "adoption.json", "adopted.json", "notes.txt"):
        disk.create(name)
    assert foreign(disk) == {"notes.txt"}
