"""What is said of histories: goals that count what was seen, several histories as one, and copies read from disks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import histories
from benchmarks.checked import report
from benchmarks.checked.disks import survey
from logstore.format.records import Record, encode_batch

KINDS = ["kill", "pause"]


def part(seed: int, minutes: float = 30.0, **changes: Any) -> report.Content:
    """The result of a run in which everything was done and seen."""
    calls = dict.fromkeys((*report.CALLS, "zombie", "zombie, failed", *(f"fault: {kind}" for kind in KINDS)), 1)
    content: report.Content = {
        "mode": "shorter", "finished": "2026-01-01T00:00:00", "machine": {}, "versions": {},
        "slices": [{"plan": {"hosts": 3, "seed": seed}, "minutes": minutes}], "kinds": KINDS,
        "calls": calls | {"disks read": 3}, "notes": {"members that left": 2}, "violation_count": 0, "violations": [],
        "trouble": [], "rows": [row("kill", 0.5), row("pause", 4.0)],
    }  # fmt: skip
    return report.conclude(content | changes)


def row(kind: str, silence_s: float) -> report.Content:
    """A fault."""
    return {"kind": kind, "name": kind, "begun_s": 1.0, "silence_s": silence_s, "service_s": 1.0, "seen": {kind: "x"}}


def missed(content: report.Content) -> set[str]:
    """The goals that are not reached."""
    return {goal["name"] for goal in content["goals"] if not goal["holds"]}


def test_a_run_in_which_all_was_seen_reaches_its_goals() -> None:
    """None is missed."""
    assert missed(part(1)) == set()


@pytest.mark.parametrize(
    ("changes", "goal"),
    [
        ({"violation_count": 1}, "broken promises"),
        ({"trouble": ["a client has not ended"]}, "what did not heal or end"),
        ({"kinds": [*KINDS, "drain"]}, "kinds of faults that were seen"),
        ({"rows": [row("kill", 0.5), row("kill", 0.5), row("kill", 9.0)]}, report.LONGEST_KILL),
    ],
)
def test_what_is_wrong_misses_a_goal(changes: dict[str, Any], goal: str) -> None:
    """And no other one: the longest time counts beside the median."""
    assert missed(part(1, **changes)) == {goal}


def test_a_fault_that_nobody_saw_is_none() -> None:
    """It misses a goal by itself, and its kind is not counted as done."""
    calls = part(1)["calls"]
    del calls["fault: pause"]
    content = part(1, calls=calls | {"fault: pause, not seen": 1})
    assert missed(content) == {"faults that nobody saw", "kinds of faults that were seen"}


def test_disks_that_were_not_read_miss_a_goal() -> None:
    """Copies that nobody looked for are not there."""
    content = part(1, calls=part(1)["calls"] | {"disks read": 2})
    assert missed(content) == {"disks whose copies were compared with the logs"}


def test_a_short_run_need_not_have_each_kind() -> None:
    """Half a minute has time for a few."""
    assert missed(part(1, 0.5, kinds=[*KINDS, "drain"])) == set()


def test_results_of_several_runs_are_one(tmp_path: Path) -> None:
    """Counts are added, faults of all are judged together, each run's seed and commit stay; an hour of faults in all is
    a full run.
    """
    paths = []
    for seed in (1, 2):
        path = tmp_path / f"{seed}.json"
        path.write_text(json.dumps(part(seed)), encoding="utf-8")
        paths.append(str(path))
    histories.main(["--merge", *paths, "--results", str(tmp_path / "merged")])
    found = json.loads((tmp_path / "merged" / "histories.json").read_text(encoding="utf-8"))
    assert found["mode"] == "full"
    assert [each["plan"]["seed"] for each in found["slices"]] == [1, 2]
    assert (found["calls"]["produce"], found["notes"], len(found["rows"])) == (2, {"members that left": 4}, 4)
    assert missed(found) == set()
    kill = next(line for line in found["distributions"] if line["name"] == "kill")
    assert (kill["times"], kill["silence_s_longest"]) == (2, 0.5)
    assert (tmp_path / "merged" / "histories.png").exists()


def test_nothing_cannot_be_merged() -> None:
    """The error says what is missing."""
    with pytest.raises(ValueError, match="name the results"):
        report.merge([])


def test_a_violation_in_one_run_is_one_of_the_whole() -> None:
    """A later run without one does not hide it."""
    broken = part(1, violation_count=2, violations=[{"promise": "copies", "seen": "x"}])
    assert missed(report.merge([broken, part(2)])) == {"broken promises"}


def test_copies_are_read_from_the_files(tmp_path: Path) -> None:
    """Records of the topics that are asked for, by the names of directories and the bytes of batches; a batch that does
    not check out ends its file, and nothing behind it counts.
    """
    topic, other = "0123456789abcdef" * 2, "f" * 32
    good, flipped = batch(5, b"p:0", b"p:1"), bytearray(batch(7, b"p:2"))
    flipped[-1] ^= 1
    for directory, data in (
        (f"{topic}-1-3-9", good + bytes(flipped) + batch(8, b"p:3")),
        (f"{other}-1-3-9", batch(5, b"x:0")),
        ("no-replica", b"?"),
    ):
        folder = tmp_path / "replicas" / directory
        folder.mkdir(parents=True)
        (folder / "00000000000000000005.log").write_bytes(data)
        (folder / "00000000000000000005.index").write_bytes(b"?")
    assert list(survey(tmp_path, {topic: "orders"})) == [("orders-1", [(5, "p:0"), (6, "p:1")])]


def batch(offset: int, *values: bytes) -> bytes:
    """A batch with these values, from an offset on."""
    records = [Record(offset + number, 0, None, value) for number, value in enumerate(values)]
    return bytes(encode_batch(records, base_offset=offset))
